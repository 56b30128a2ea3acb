"""The answer of `verify`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.units import counted, step_and_name
from ckpttool.core.domain.verdict import Level, ShardReport, TensorStat, Verdict, VerdictWord, Verification
from ckpttool.core.domain.view import View
from ckpttool.core.render.answers.inventory import world_size
from ckpttool.core.render.escape import shown, size
from ckpttool.core.render.finding_lines import grouped_findings, pointer
from ckpttool.core.render.json import Document, finding_document, parts_document
from ckpttool.core.render.rank_map import Drawn
from ckpttool.core.render.text import Table, line, stack

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_STYLE = {
    VerdictWord.VERIFIED: "bold green",
    VerdictWord.AGREED: "green",
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
    Level.CHECKSUM: "every byte was read; only shards with a checksum are verified",
    Level.NUMERICS: "every byte and every floating-point element was read",
}

_GOOD = frozenset({VerdictWord.VERIFIED, VerdictWord.AGREED, VerdictWord.STRUCT_OK})

_MOST_NAMES = 8
"""Maximum number of checkpoints in a headline; the table has all."""


def table(answer: Verification) -> RenderableType:
    """Show one line per checkpoint, then the problems."""
    inventory, verdicts = answer.inventory, answer.verdicts
    if not verdicts:
        return stack(line(f"No checkpoint in {shown(inventory.root)}", style="bold red"))
    remembered = sum(report.remembered for verdict in verdicts for report in verdict.reports)
    headline = _headline(verdicts, answer.view)
    partial = any(verdict.unseen for verdict in verdicts)
    rows = Table()
    rows.add_column("NAME")
    rows.add_column("STEP", justify="right", no_wrap=True)
    rows.add_column("VERDICT", no_wrap=True)
    rows.add_column("SHARDS", justify="right", no_wrap=True)
    rows.add_column("VERIFIED", justify="right", no_wrap=True)
    rows.add_column("READ", justify="right", no_wrap=True)
    for verdict in verdicts:
        rows.add_row(
            line(shown(verdict.name)),
            "?" if verdict.step is None else str(verdict.step),
            _verdict_cell(verdict),
            f"{len(verdict.reports)}/{len(verdict.reports) + verdict.unseen}" if partial else str(len(verdict.reports)),
            str(sum(report.word is VerdictWord.VERIFIED for report in verdict.reports)),
            size(verdict.bytes_read),
        )
    # On a separate line, because dimmed red is illegible.
    parts: list[RenderableType] = [headline, line(_what_was_read(verdicts, answer.level)), line(), rows]
    saves = {checkpoint.key: checkpoint for checkpoint in inventory.checkpoints}
    parts.append(Drawn([(saves[verdict.key], verdict.findings) for verdict in verdicts]))
    remaining = len(inventory.checkpoints) - len(verdicts)
    if remaining > 0:
        parts.append(line(f"{counted(remaining, 'other')} not checked: --checkpoint all", style="dim"))
    if remembered:
        parts.append(
            line(f"{remembered} unchanged shards were checked before and not read again (--no-ledger reads them)")
        )
    for verdict in verdicts:
        if verdict.also_read:
            names, was = ", ".join(map(shown, verdict.also_read)), "was" if len(verdict.also_read) == 1 else "were"
            note = f"{names} {was} also read, to see which ranks have copies (--no-replicas avoids it)"
            parts.append(line(note, style="dim"))
    all_findings = [finding for verdict in verdicts for finding in verdict.findings]
    findings = list(dict.fromkeys([*all_findings, *inventory.findings]))
    return stack(*parts, *grouped_findings(findings, world_size(inventory), answer.view), *pointer(findings))


def _what_was_read(verdicts: Sequence[Verdict], level: Level) -> str:
    """Describe the amount read, without making a claim about unread shards."""
    reports = [report for verdict in verdicts for report in verdict.reports]
    unseen = sum(verdict.unseen for verdict in verdicts)
    if not level.reads_content or not unseen:
        return _content(reports, level)
    part = f"{len(reports)} of {len(reports) + unseen} shards: {_content(reports, level)}"
    return f"{part}; the others: headers, sizes and siblings were compared"


def _content(reports: Sequence[ShardReport], level: Level) -> str:
    if not reports:
        return "no tensor data was read" if level.reads_content else _LOOKED[level]
    if all(report.remembered for report in reports):
        return "nothing was read: every shard is unchanged since an earlier check verified it"
    read = sum(not report.remembered and report.stamp is not None for report in reports)
    if level is Level.NUMERICS and any(
        f.code is Code.UNSUPPORTED_FORMAT for report in reports for f in report.findings
    ):
        return _LOOKED[Level.CHECKSUM]
    if not level.reads_content or read == len(reports):
        return _LOOKED[level]
    return f"every byte of {read} of {len(reports)} shards was read; only shards with a checksum are verified"


def _headline(verdicts: Sequence[Verdict], view: View) -> Text:
    """Return a headline with the worst verdict; a checkpoint that was not checked has no verdict."""
    looked_at = [verdict for verdict in verdicts if verdict.looked_at]
    subject = shown(verdicts[0].name) if len(verdicts) == 1 else f"{len(verdicts)} checkpoints"
    if not looked_at:
        return line(f"{subject}: no shard in this part", style="yellow")
    worst = max((verdict.word for verdict in looked_at), key=tuple(VerdictWord).index)
    bad = [verdict for verdict in looked_at if verdict.word not in _GOOD]
    several = bool(bad) and len(verdicts) > 1
    headline = line(
        _bad_ones(bad, len(verdicts), view) if several else f"{subject}: {_verdict_text(worst)}", style=_STYLE[worst]
    )
    unseen = sum(verdict.unseen for verdict in verdicts)
    if unseen:
        headline.append(f"  ({unseen} of {unseen + sum(len(v.reports) for v in verdicts)} shards are not in this part)")
    return headline


def _bad_ones(bad: Sequence[Verdict], all_of_them: int, view: View) -> str:
    """Name the checkpoints that are not good, newest first, grouped by verdict."""
    by_word: dict[str, list[str]] = {}
    for verdict in bad:
        by_word.setdefault(_verdict_text(verdict.word), []).append(step_and_name(verdict.step, shown(verdict.name)))
    parts = []
    for verdict_word, names in by_word.items():
        most = len(names) if view.everything else _MOST_NAMES
        more = ["…"] if len(names) > most else []
        parts.append(f"{len(names)} of {all_of_them} {verdict_word}: {', '.join([*names[:most], *more])}")
    return "; ".join(parts)


def _verdict_text(verdict_word: VerdictWord) -> str:
    """Return the word for a checkpoint's verdict; a checkpoint with a missing shard is incomplete, not missing."""
    return "incomplete" if verdict_word is VerdictWord.MISSING else verdict_word.value


def _verdict_cell(verdict: Verdict) -> Text:
    if not verdict.looked_at:
        return line("–", style="dim")
    return line(_verdict_text(verdict.word), style=_STYLE[verdict.word])


def document(answer: Verification) -> Document:
    """Return `ckpttool/verdicts/1`, the answer of `verify`, oldest checkpoint first.

    The findings about the tree come after the verdicts, and may be more severe.
    """
    return {
        "schema": "ckpttool/verdicts/1",
        "level": answer.level.word,
        "checkpoints": [_verdict(verdict) for verdict in reversed(answer.verdicts)],
        "findings": [finding_document(finding) for finding in answer.inventory.findings],
        "bytes_read": sum(verdict.bytes_read for verdict in answer.verdicts),
        "seconds": round(answer.seconds, 3),
        **parts_document(answer.inventory.parts),
    }


def _verdict(verdict: Verdict) -> Document:
    return {
        "name": verdict.name,
        "step": verdict.step,
        "verdict": verdict.word.value if verdict.looked_at else None,
        "unseen": verdict.unseen,
        "compared_with": list(verdict.compared_with),
        "also_read": list(verdict.also_read),
        "shards": [
            {
                "path": report.path,
                "rank": report.rank,
                "verdict": report.word.value,
                "copies": report.copies,
                "remembered": report.remembered,
            }
            for report in verdict.reports
        ],
        "findings": [finding_document(finding) for finding in verdict.findings],
    }


def stats_lines(verdicts: Sequence[Verdict]) -> str:
    """Return one line of JSON per floating-point tensor; values that JSON cannot represent are null."""
    return "".join(
        json.dumps(_stat(verdict, report, stat), allow_nan=False) + "\n"
        for verdict in reversed(verdicts)
        for report in verdict.reports
        for stat in report.stats
    )


def _stat(verdict: Verdict, report: ShardReport, stat: TensorStat) -> Document:
    return {
        "checkpoint": verdict.name,
        "step": verdict.step,
        "path": report.path,
        "rank": report.rank,
        "tensor": stat.name,
        "dtype": stat.dtype,
        "elements": stat.elements,
        "nans": stat.nans,
        "infinities": stat.infinities,
        "absmax": stat.absmax if math.isfinite(stat.absmax) else None,
        "norm": stat.norm if math.isfinite(stat.norm) else None,
        "denormal_only": stat.denormal_only,
    }
