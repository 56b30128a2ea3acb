"""Verdicts and seals as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from ckpttool.domain.checkpoint import Inventory
from ckpttool.domain.finding import Code, Finding, Severity, worst
from ckpttool.domain.manifest import Sealing
from ckpttool.domain.verdict import Level, Verdict, VerdictWord
from ckpttool.render.answers.plan import grouped_findings, pointer
from ckpttool.render.escape import shown, size
from ckpttool.render.json import world_size
from ckpttool.render.text import stack, whole_words

if TYPE_CHECKING:
    from rich.console import RenderableType

_STYLE = {
    VerdictWord.VERIFIED: "bold green",
    VerdictWord.STRUCT_OK: "green",
    VerdictWord.UNSUPPORTED: "yellow",
    VerdictWord.SUSPECT: "yellow",
    VerdictWord.UNREADABLE: "yellow",
    VerdictWord.UNSTABLE: "yellow",
    VerdictWord.MISSING: "red",
    VerdictWord.DAMAGED: "red",
    VerdictWord.UNSAFE: "bold red",
}

_LOOKED = {
    Level.STRUCTURE: "headers, sizes and siblings were compared; tensor data was not read",
    Level.CHECKSUM: "every byte was read; only a shard with a checksum is verified by that",
    Level.NUMERICS: "every byte and every floating-point element was read",
}

_GOOD = frozenset({VerdictWord.VERIFIED, VerdictWord.STRUCT_OK})

_MOST_NAMES = 8
"""Checkpoints that a headline names; the table has all."""


def verdicts_table(inventory: Inventory, verdicts: Sequence[Verdict], level: Level) -> RenderableType:
    """Show what `verify` found: one line a checkpoint, then what is wrong."""
    if not verdicts:
        return stack(Text(f"No checkpoint in {shown(inventory.root)}", style="bold red"))
    remembered = sum(report.remembered for verdict in verdicts for report in verdict.reports)
    headline = _headline(verdicts)
    headline.append(f"\n{_looked(verdicts, level)}", style="dim")
    partial = any(verdict.unseen for verdict in verdicts)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("NAME")
    table.add_column("STEP", justify="right", no_wrap=True)
    table.add_column("VERDICT", no_wrap=True)
    table.add_column("SHARDS", justify="right", no_wrap=True)
    table.add_column("VERIFIED", justify="right", no_wrap=True)
    table.add_column("READ", justify="right", no_wrap=True)
    for verdict in verdicts:
        table.add_row(
            Text(shown(verdict.name)),
            "?" if verdict.step is None else str(verdict.step),
            _word(verdict),
            f"{len(verdict.reports)}/{len(verdict.reports) + verdict.unseen}" if partial else str(len(verdict.reports)),
            str(sum(report.word is VerdictWord.VERIFIED for report in verdict.reports)),
            size(verdict.bytes_read),
        )
    parts: list[RenderableType] = [headline, Text(""), whole_words(table)]
    if remembered:
        parts.append(Text(f"{remembered} unchanged shards were checked before and not read again (--no-ledger)"))
    own = [finding for verdict in verdicts for finding in verdict.findings]
    findings = list(dict.fromkeys([*own, *inventory.findings]))
    return stack(*parts, *grouped_findings(findings, world_size(inventory)), *pointer(findings))


def _looked(verdicts: Sequence[Verdict], level: Level) -> str:
    """Say what was read, and nothing of a shard that was not."""
    reports = [report for verdict in verdicts for report in verdict.reports]
    if reports and all(report.remembered for report in reports):
        return "nothing was read: every shard is unchanged since an earlier check found it verified"
    read = sum(not report.remembered and report.stamp is not None for report in reports)
    if level is Level.NUMERICS and any(f.code is Code.UNSUPPORTED_FORMAT for each in reports for f in each.findings):
        return _LOOKED[Level.CHECKSUM]
    if level is Level.STRUCTURE or read == len(reports):
        return _LOOKED[level]
    return f"every byte of {read} of {len(reports)} shards was read; only a shard with a checksum is verified by that"


def _headline(verdicts: Sequence[Verdict]) -> Text:
    """Say the worst word; of what was not looked at there is none."""
    looked_at = [verdict for verdict in verdicts if verdict.looked_at]
    what = shown(verdicts[0].name) if len(verdicts) == 1 else f"{len(verdicts)} checkpoints"
    if not looked_at:
        return Text(f"{what}: no shard in this part", style="yellow")
    worst = max((verdict.word for verdict in looked_at), key=tuple(VerdictWord).index)
    bad = [verdict for verdict in looked_at if verdict.word not in _GOOD]
    several = bool(bad) and len(verdicts) > 1
    headline = Text(_bad_ones(bad, len(verdicts)) if several else f"{what}: {worst.value}", style=_STYLE[worst])
    unseen = sum(verdict.unseen for verdict in verdicts)
    if unseen:
        headline.append(f"  ({unseen} of {unseen + sum(len(v.reports) for v in verdicts)} shards are not in this part)")
    return headline


def _bad_ones(bad: Sequence[Verdict], all_of_them: int) -> str:
    """Name those that are not good, newest first, each kind with its word."""
    by_word: dict[str, list[str]] = {}
    for verdict in bad:
        by_word.setdefault(verdict.word.value, []).append(shown(verdict.name))
    parts = []
    for word, names in by_word.items():
        more = ["…"] if len(names) > _MOST_NAMES else []
        parts.append(f"{len(names)} of {all_of_them} {word}: {', '.join([*names[:_MOST_NAMES], *more])}")
    return "; ".join(parts)


def _word(verdict: Verdict) -> Text:
    if not verdict.looked_at:
        return Text("–", style="dim")
    return Text(verdict.word.value, style=_STYLE[verdict.word])


def seals_table(inventory: Inventory, sealings: Sequence[Sealing]) -> RenderableType:
    """Show what `seal` recorded."""
    if not sealings:
        return stack(Text(f"No checkpoint in {shown(inventory.root)}", style="bold red"))
    lines: list[RenderableType] = []
    for sealing in sealings:
        if sealing.manifest is None:
            lines.append(Text(f"{shown(sealing.checkpoint)}: not sealed, {_why_not(sealing)}", style="bold red"))
            continue
        shards = sealing.manifest.shards
        done = "sealed" if sealing.written else "sealed before, the same now"
        if sealing.findings:
            done = "differs from what was sealed; the old seal is kept"
        since = min((seal.first_seen for seal in shards), default=sealing.manifest.sealed_at)
        line = Text(f"{shown(sealing.checkpoint)}: {done}", style="bold green" if not sealing.findings else "bold red")
        line.append(
            f"  ({len(shards)} shard{'s' * (len(shards) != 1)}, first seen {since}, {shown(sealing.path)})", style="dim"
        )
        lines.append(line)
    findings: list[Finding] = [finding for sealing in sealings for finding in sealing.findings]
    return stack(*lines, *grouped_findings(findings, world_size(inventory)), *pointer(findings))


def _why_not(sealing: Sealing) -> str:
    codes = {finding.code for finding in sealing.findings}
    if Code.MANIFEST_NEWER in codes:
        return "a newer ckpttool sealed it before"
    if Code.MANIFEST_UNREADABLE in codes:
        return "the manifest that is there is not believed"
    if worst(sealing.findings) is Severity.UNKNOWN:
        return "it could not be read whole"
    return "it is not whole"
