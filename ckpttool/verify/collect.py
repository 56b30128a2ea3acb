"""Reports of single shards, in any order, to the verdict on a checkpoint: what only all ranks together show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields

from ckpttool.domain.checkpoint import Checkpoint
from ckpttool.domain.finding import Code, Finding, Severity
from ckpttool.domain.shard import FormatName, NameClaim, Scalars, ShardRole
from ckpttool.domain.verdict import Level, ShardReport, Verdict

_REQUIRED = {
    ShardRole.FULL: ("epoch_num", "step_num", "global_step", "loss_scale"),
    ShardRole.SCALARS: ("epoch_num", "step_num", "global_step"),
}
"""What is appended to each. `global_batch_size` came later, and the unified layout asks for it in its own rules."""

_SCALAR_NAMES = tuple(field.name for field in fields(Scalars) if field.name != "consumed_samples")


def collect(checkpoint: Checkpoint, reports: Iterable[ShardReport], level: Level) -> Verdict:
    """Put the reports of a checkpoint together and compare them with one another and with the name.

    Args:
        checkpoint: As it was listed, with all its shards.
        reports: Of all its shards, or of a part of them, in any order.
        level: How hard was looked.
    """
    ordered = tuple(sorted(reports, key=lambda report: (-1 if report.rank is None else report.rank, report.path)))
    listed = set(checkpoint.findings)  # a link that leads nowhere is told by the listing already
    findings = [finding for report in ordered for finding in report.findings if finding not in listed]
    bearers = [report for report in ordered if _bears_scalars(report)]
    findings += _scalars_missing(bearers)
    findings += _scalars_differ(ordered)
    findings += _name_differs(checkpoint, bearers)
    return Verdict(
        key=checkpoint.key,
        name=checkpoint.name,
        step=checkpoint.step,
        level=level,
        reports=ordered,
        findings=(*checkpoint.findings, *findings),
        unseen=len({shard.path for shard in checkpoint.shards} - {report.path for report in ordered}),
    )


def _bears_scalars(report: ShardReport) -> bool:
    """Whether this file must hold the training scalars, and could be parsed far enough to tell."""
    return report.role in _REQUIRED and report.schema_hash is not None


def _scalars_missing(reports: Sequence[ShardReport]) -> list[Finding]:
    """Find files that lack what others have: a `.ckpt` cut at an entry boundary is a valid file otherwise."""
    anywhere = {name for report in reports for name in _SCALAR_NAMES if getattr(report.scalars, name) is not None}
    findings = []
    for report in reports:
        needed = anywhere.union(_REQUIRED[report.role])
        lacking = [name for name in _SCALAR_NAMES if name in needed and getattr(report.scalars, name) is None]
        if lacking:
            cut = "it was cut at a tensor's end, or " if report.format is FormatName.MINDSPORE_CKPT else ""
            findings.append(
                Finding(
                    code=Code.SCALARS_MISSING,
                    severity=Severity.DAMAGE,
                    message=f"no {', '.join(lacking)} inside: {cut}it is no training state",
                    path=report.path,
                    remedy="resume from another checkpoint; the trainer would take this one and start at step 0",
                )
            )
    return findings


_MUST_AGREE = {
    "step_num": (Code.STEP_DISAGREES, Severity.DAMAGE),
    "epoch_num": (Code.EPOCH_DISAGREES, Severity.DAMAGE),
    "global_step": (Code.STEP_DISAGREES, Severity.DAMAGE),
    "global_batch_size": (Code.SCHEMA_DIFFERS, Severity.DAMAGE),
    # All ranks scale by one number. But nothing breaks where one does not.
    "loss_scale": (Code.SCHEMA_DIFFERS, Severity.SUSPECT),
}
"""What all ranks save alike, and how it is called where one does not."""


def _scalars_differ(reports: Sequence[ShardReport]) -> list[Finding]:
    """Find files that were saved at another step than most: an older file under a newer name."""
    findings = []
    for name, (code, severity) in _MUST_AGREE.items():
        values = Counter(value for report in reports if (value := getattr(report.scalars, name)) is not None)
        if len(values) < 2:  # noqa: PLR2004  two differ
            continue
        # Where as many say one as say the other, any will do: the checkpoint is not whole either way.
        common = max(values.items(), key=lambda item: (item[1], item[0]))[0]
        findings += [
            Finding(
                code=code,
                severity=severity,
                message=f"{name} is {value} here, but {common} in {values[common]} of {values.total()} files",
                path=report.path,
                expected=str(common),
                actual=str(value),
                remedy="an older file under a newer name? resume from another checkpoint",
            )
            for report in reports
            if (value := getattr(report.scalars, name)) not in {None, common}
        ]
    return findings


def _name_differs(checkpoint: Checkpoint, reports: Sequence[ShardReport]) -> list[Finding]:
    """Compare what the name says with the content."""
    return [
        _misnamed(report, claim, actual)
        for report in reports
        if report.role is ShardRole.FULL
        for claim in checkpoint.claims
        if (actual := getattr(report.scalars, claim.scalar)) is not None
        and (actual < claim.value if claim.at_least else actual != claim.value)
    ]


def _misnamed(report: ShardReport, claim: NameClaim, actual: int) -> Finding:
    return Finding(
        code=Code.NAME_DISAGREES,
        severity=Severity.SUSPECT,
        message=claim.message % actual,
        path=report.path,
        expected=str(claim.value),
        actual=str(actual),
        remedy="an older file under a newer name? resume from another checkpoint",
    )
