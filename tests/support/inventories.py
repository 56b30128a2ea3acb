"""Checkpoints and trees made by hand, without a file: for tests of the rules that decide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ckpttool.core.decide.completeness import believable, compare
from ckpttool.core.domain.checkpoint import (
    Checkpoint,
    CommitState,
    Content,
    Inventory,
    Rename,
    RunSummary,
    StepSource,
    Topology,
    Tracked,
)
from ckpttool.core.domain.expectation import Evidence, WorldEvidence
from ckpttool.core.domain.finding import Code, Finding, Row, Severity
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.domain.verdict import Level, Verdict
from ckpttool.trainers.mindformers.layouts.names import RANK_LAYOUT
from ckpttool.trainers.mindformers.scalars import RULES, EpochStep, TrainState
from tests.support.faulty_storages import layout_of

PREFIX = "llama"


def finding(code: Row = Code.SHARD_TRUNCATED, severity: Severity = Severity.DAMAGE, path: str | None = None) -> Finding:
    """Some finding."""
    return Finding(code=code, severity=severity, message="made for a test", path=path)


def checkpoint(
    label: str = "10_2",
    *,
    run: int = 0,
    step: int | None = -1,
    ranks: Iterable[int] = range(4),
    prefix: str = PREFIX,
    fmt: FormatName = FormatName.MINDSPORE_CKPT,
    batch: int | None = 8,
    health: Health = Health.UNKNOWN,
    renames: Sequence[Rename] = (),
    findings: Sequence[Finding] = (),
) -> Checkpoint:
    """One of the legacy layout; the true step is epoch × step of the label unless given (None: nothing tells it)."""
    epoch, in_epoch = map(int, label.split("_"))
    true = epoch * in_epoch if step == -1 else step
    own = f"_{run}" if run else ""
    at = EpochStep(epoch=epoch, step=in_epoch)
    state = TrainState(epoch_num=epoch, step_num=true, global_step=true, global_batch_size=batch)
    suffix = "ckpt" if fmt is FormatName.MINDSPORE_CKPT else "safetensors"
    return Checkpoint(
        name=f"{own}-{label}" if run else label,
        prefix=prefix,
        run=run,
        label=label,
        sort_key=at.sort_key,
        facts=(*at.facts, ("optimizer_step", true)),
        claims=at.claims,
        scalars=state.scalars,
        rules=RULES,
        step=None if true is None else Step(true),
        step_source=StepSource.UNKNOWN if true is None else StepSource.CONTENT,
        shards=tuple(
            Shard(
                path=f"rank_{rank}/{prefix}_rank_{rank}{own}-{label}.{suffix}",
                rank=Rank(rank),
                role=ShardRole.FULL,
                format=fmt,
                run=run,
            )
            for rank in ranks
        ),
        topology=Topology(),
        format=fmt,
        commit=CommitState.UNRECORDED,
        content=Content.FULL,
        health=health,
        renames=tuple(renames),
        findings=tuple(findings),
    )


def tree(
    *checkpoints: Checkpoint,
    layout: str = RANK_LAYOUT,
    folders: Iterable[int] | None = None,
    unreadable: Iterable[int] = (),
    tracked: str | None = None,
    findings: Sequence[Finding] = (),
) -> Inventory:
    """A tree of these; its runs and rank folders follow from them unless given."""
    seen = {rank for one in checkpoints for rank in one.ranks}
    return Inventory(
        root="output/checkpoint",
        layout=layout,
        checkpoints=checkpoints,
        runs=runs_of(checkpoints),
        findings=tuple(findings),
        folder_ranks=tuple(Rank(rank) for rank in sorted(seen if folders is None else folders)),
        unlisted=tuple(f"rank_{rank}" for rank in unreadable),
        tracked=None if tracked is None else Tracked(name=tracked, step=None, written_ns=None),
    )


def expect_ranks(
    inventory: Inventory, evidence: Sequence[WorldEvidence] = (), *, weights_alone: bool = False
) -> Inventory:
    """Compare a tree with what its layout expects of it."""
    told = believable(Evidence(worlds=tuple(evidence), weights_alone=weights_alone))
    return compare(inventory, layout_of(inventory.layout).expected(inventory, told))


def runs_of(checkpoints: Iterable[Checkpoint]) -> tuple[RunSummary, ...]:
    """Summarise as a scan does: by (prefix, run)."""
    members: dict[tuple[str, int], list[Checkpoint]] = {}
    for one in checkpoints:
        members.setdefault((one.prefix, one.run), []).append(one)
    return tuple(
        RunSummary(
            prefix=prefix,
            run=run,
            first_step=min((one.step for one in those if one.step is not None), default=None),
            last_step=max((one.step for one in those if one.step is not None), default=None),
            world_size=max((rank for one in those for rank in one.ranks), default=Rank(-1)) + 1,
        )
        for (prefix, run), those in sorted(members.items())
    )


def verdicts(
    damaged: Iterable[str] = (), *, asked: list[str] | None = None, found: Finding | None = None
) -> Callable[[Checkpoint], Verdict]:
    """A check that finds the named checkpoints damaged, and writes down which ones it was asked about."""
    bad = set(damaged)

    def verdict_of(one: Checkpoint) -> Verdict:
        if asked is not None:
            asked.append(one.name)
        own = (found or finding(),) if one.name in bad else ()
        findings = (*one.findings, *own)
        return Verdict(key=one.key, name=one.name, step=one.step, level=Level.STRUCTURE, reports=(), findings=findings)

    return verdict_of
