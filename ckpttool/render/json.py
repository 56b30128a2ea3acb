"""The JSON that scripts read: versioned, stable, the same bytes for the same answer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from json.encoder import encode_basestring_ascii as quoted
from typing import TYPE_CHECKING, Any, TypeAlias

from ckpttool.domain.checkpoint import Checkpoint, Inventory, Rename
from ckpttool.domain.finding import Finding
from ckpttool.domain.plan import NoResumePoint, Rejection, ResumePlan, Simulation, SkipAnswer
from ckpttool.domain.shard import Shard
from ckpttool.render.answers.resume import data_document, load_document, position_document

if TYPE_CHECKING:
    from ckpttool.domain.launch import Launch
    from ckpttool.domain.manifest import Sealing
    from ckpttool.domain.verdict import Level, ShardReport, TensorStat, Verdict

Document: TypeAlias = "Mapping[str, Document] | Sequence[Document] | str | int | float | bool | None"


def dumps(document: Document) -> str:
    """Spell a document in ASCII, so that any file name survives any terminal, pipe and log."""
    return "".join(pieces(document))


_LEAVES = frozenset({str, int, float, bool, type(None)})
_LISTS = frozenset({list, tuple, dict})


def pieces(document: Document) -> list[str]:
    """Spell a document as `dumps` does, but in pieces: those of ten thousand ranks need not be in memory twice."""
    return list(_spelled(document, "\n"))


def _spelled(value: Document, line: str) -> Iterator[str]:
    """Spell a value as `json.dumps(indent=2)` does, which does not ask the fast encoder: in a third of its time.

    Args:
        value: What to spell.
        line: The end of a line, and how far the value is moved in on the next one.
    """
    inner = f"{line}  "
    if isinstance(value, _Shards):
        yield f"[{inner}{value.spelled(inner)}{line}]" if value else "[]"
    elif not value or isinstance(value, str) or not isinstance(value, (Mapping, Sequence)):
        yield _flat(inner)(value)
    elif isinstance(value, Mapping):
        if _is_flat(value.values()):
            yield f"{{{inner}{_flat(inner)(value)[1:-1]}{line}}}"
            return
        start = "{"
        for key, each in value.items():
            yield f"{start}{inner}{_flat(inner)(key)}: "
            yield from _spelled(each, inner)
            start = ","
        yield f"{line}}}"
    elif _is_flat(value):
        yield f"[{inner}{_flat(inner)(value)[1:-1]}{line}]"
    elif all(type(each) is dict and each and _is_flat(each.values()) for each in value):
        # In a text the end of a line is escaped, so what is replaced stands between two objects and nowhere else.
        members = _flat(f"{inner}  ")(value)[2:-2].replace(f"}},{inner}  {{", f"{inner}}},{inner}{{{inner}  ")
        yield f"[{inner}{{{inner}  {members}{inner}}}{line}]"
    else:
        start = "["
        for each in value:
            yield f"{start}{inner}"
            yield from _spelled(each, inner)
            start = ","
        yield f"{line}]"


def _is_flat(values: Iterable[Document]) -> bool:
    """Tell whether no value has lines of its own: the encoder spells those all at once."""
    return all(type(each) in _LEAVES or (type(each) in _LISTS and not each) for each in values)


@cache
def _flat(line: str) -> Callable[[object], str]:
    """Return what spells a value with its members on lines of their own, but not its brackets."""
    return json.JSONEncoder(check_circular=False, allow_nan=False, separators=(f",{line}", ": ")).encode


def inventory_document(inventory: Inventory) -> Document:
    """`ckpttool/inventory/1`: what `scan` found."""
    return {
        "schema": "ckpttool/inventory/1",
        "root": inventory.root,
        "layout": inventory.layout.value,
        "world_size": world_size(inventory),
        "checkpoints": [_checkpoint(checkpoint) for checkpoint in inventory.checkpoints],
        "findings": [finding_document(finding) for finding in inventory.findings],
        "strays": list(inventory.strays),
    }


def world_size(inventory: Inventory) -> int | None:
    """Ranks that the newest checkpoint must have; None where nothing tells."""
    return inventory.checkpoints[-1].topology.world_size if inventory.checkpoints else None


def _checkpoint(checkpoint: Checkpoint) -> Document:
    return {
        "name": checkpoint.name,
        "prefix": checkpoint.prefix,
        "run": checkpoint.run,
        "epoch": _epoch(checkpoint),
        "step_in_epoch": checkpoint.position.step if checkpoint.position else None,
        "step": checkpoint.step,
        "step_source": checkpoint.step_source,
        "optimizer_step": checkpoint.scalars.global_step,
        "global_batch_size": checkpoint.scalars.global_batch_size,
        "samples": checkpoint.samples,
        "ranks": list(checkpoint.ranks),
        "world_size": checkpoint.topology.world_size,
        "bytes": checkpoint.nbytes,
        "format": checkpoint.format.value,
        "health": checkpoint.health.value,
        "renames": [_rename(rename) for rename in checkpoint.renames],
        "shards": _Shards(checkpoint.shards),
        "findings": [finding_document(finding) for finding in checkpoint.findings],
    }


class _Shards(Sequence[Document]):
    """The shards of a checkpoint, as many as ranks: spelled without making a document of each."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, index: int | slice) -> Any:  # noqa: ANN401  one document, or several
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        shard = self._shards[index]
        return {"path": shard.path, "rank": shard.rank, "bytes": shard.stamp.size if shard.stamp else None}

    def spelled(self, line: str) -> str:
        """Spell all of them, each on lines that are moved in so far."""
        path, rank, nbytes = (f'{line}  "{key}": ' for key in ("path", "rank", "bytes"))
        return f",{line}".join(
            [
                f"{{{path}{quoted(shard.path)}"
                f",{rank}{'null' if shard.rank is None else shard.rank}"
                f",{nbytes}{shard.stamp.size if shard.stamp else 'null'}{line}}}"
                for shard in self._shards
            ]
        )


def _epoch(checkpoint: Checkpoint) -> int | None:
    return checkpoint.position.epoch if checkpoint.position else checkpoint.scalars.epoch_num


def _rename(rename: Rename) -> dict[str, Document]:
    return {"from": rename.source, "to": rename.target}


def finding_document(finding: Finding) -> dict[str, Document]:
    """Spell one finding with all its fields, so that a script need not ask which are there."""
    return {
        "code": finding.code.value,
        "severity": finding.severity.word,
        "message": finding.message,
        "path": finding.path,
        "tensor": finding.tensor,
        "expected": finding.expected,
        "actual": finding.actual,
        "remedy": finding.remedy,
        "line": finding.line,
        "ranks": list(finding.ranks),
    }


def plan_document(answer: ResumePlan | NoResumePoint, simulation: Simulation | None = None) -> Document:
    """`ckpttool/plan/1`: what `resolve` decided."""
    point = answer.point if isinstance(answer, ResumePlan) else answer
    document: dict[str, Document] = {
        "schema": "ckpttool/plan/1",
        "root": answer.root,
        "evidence": point.evidence.word,
        "resume": None,
        "data": None,
        "load": None,
        "position": None,
        "lost_steps": None,
        "lost_samples": None,
    }
    findings = answer.findings
    if isinstance(answer, ResumePlan):
        document["resume"] = _resume(answer)
        document["data"] = data_document(answer)
        document["load"] = load_document(answer.load)
        document["position"] = position_document(answer.data)
        document["lost_steps"] = answer.point.lost_steps
        document["lost_samples"] = answer.point.lost_samples
        findings = (*answer.point.findings, *answer.findings)
    document["rejected"] = [_rejection(one) for one in point.rejected]
    document["findings"] = [finding_document(finding) for finding in findings]
    if answer.advice is not None:
        from ckpttool.render.answers.advice import advice_document

        document["advice"] = advice_document(answer.advice)
    if simulation is not None:
        document["mindformers"] = {
            "version": simulation.version,
            "would_resume": simulation.would_resume,
            "because": simulation.because,
        }
    return document


def _resume(plan: ResumePlan) -> Document:
    checkpoint = plan.point.checkpoint
    return {
        "name": checkpoint.name,
        "run": checkpoint.run,
        "step": checkpoint.step,
        "optimizer_step": checkpoint.scalars.global_step,
        "epoch": _epoch(checkpoint),
        "global_batch_size": checkpoint.scalars.global_batch_size,
        "samples": checkpoint.samples,
        "world_size": checkpoint.topology.world_size,
        "health": checkpoint.health.value,
        "verdict": plan.point.verdict.value,
        **{name: plan.load.value(place) for name, place in plan.load.older},
        "renames": [_rename(rename) for rename in checkpoint.renames],
    }


def _rejection(rejection: Rejection) -> Document:
    return {
        "name": rejection.checkpoint.name,
        "run": rejection.checkpoint.run,
        "step": rejection.checkpoint.step,
        "samples": rejection.checkpoint.samples,
        "reasons": [finding_document(reason) for reason in rejection.reasons],
    }


def skip_document(answer: SkipAnswer) -> Document:
    """`ckpttool/skip/1`: what `scale-skip` computed."""
    skip = answer.skip
    return {
        "schema": "ckpttool/skip/1",
        "steps": answer.steps,
        "old_global_batch_size": answer.old_global_batch,
        "new_global_batch_size": skip.global_batch_size,
        "samples": skip.samples,
        "data_skip_steps": skip.batches,
        "ignore_data_skip": skip.batches == 0,
        "repeated_samples": skip.repeated_samples,
        "exact": skip.repeated_samples == 0,
        "exact_global_batch_sizes": list(answer.exact_sizes),
        "sink_size": skip.sink_size,
    }


def launch_document(launch: Launch) -> Document:
    """`ckpttool/launch/1`: what `launch` wrote and how to start it."""
    return {
        "schema": "ckpttool/launch/1",
        "config": launch.output,
        "written": launch.written,
        "changes": [{"key": one.key, "before": one.before, "after": one.after} for one in launch.changes],
        "command": launch.commands[0],
        "commands": list(launch.commands),
        "plan": plan_document(launch.plan),
    }


def verdicts_document(inventory: Inventory, verdicts: Sequence[Verdict], level: Level, *, seconds: float) -> Document:
    """`ckpttool/verdicts/1`: what `verify` found, oldest checkpoint first; then of the tree, which may weigh more."""
    return {
        "schema": "ckpttool/verdicts/1",
        "level": level.word,
        "checkpoints": [_verdict(verdict) for verdict in reversed(verdicts)],
        "findings": [finding_document(finding) for finding in inventory.findings],
        "bytes_read": sum(verdict.bytes_read for verdict in verdicts),
        "seconds": round(seconds, 3),
    }


def _verdict(verdict: Verdict) -> Document:
    return {
        "name": verdict.name,
        "step": verdict.step,
        "verdict": verdict.word.value if verdict.looked_at else None,
        "unseen": verdict.unseen,
        "shards": [
            {"path": report.path, "rank": report.rank, "verdict": report.word.value, "remembered": report.remembered}
            for report in verdict.reports
        ],
        "findings": [finding_document(finding) for finding in verdict.findings],
    }


def seals_document(sealings: Sequence[Sealing]) -> Document:
    """`ckpttool/seals/1`: what `seal` recorded, oldest checkpoint first."""
    return {
        "schema": "ckpttool/seals/1",
        "checkpoints": [
            {
                "name": sealing.checkpoint,
                "manifest": sealing.path,
                "sealed": sealing.manifest is not None,
                "written": sealing.written,
                "shards": len(sealing.manifest.shards) if sealing.manifest else 0,
                "first_seen": min((seal.first_seen for seal in sealing.manifest.shards), default=None)
                if sealing.manifest
                else None,
                "findings": [finding_document(finding) for finding in sealing.findings],
            }
            for sealing in reversed(sealings)
        ],
    }


def stats_lines(verdicts: Sequence[Verdict]) -> str:
    """One JSON object a line for every floating-point tensor; what JSON cannot hold comes as null."""
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
