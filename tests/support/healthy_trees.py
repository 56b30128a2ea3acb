"""Trees as trainings leave them behind when nothing goes wrong, in every way of saving: none may raise an alarm."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import ckpttool
from ckpttool.core.domain.finding import Finding, blocking
from ckpttool.core.domain.verdict import Level, Verdict
from ckpttool.types import CheckQuestion, TreeQuestion
from tests.support.fault_detection import with_crc
from tests.support.trees import (
    Fmt,
    Tensor,
    TreeBuilder,
    floats,
    safetensors_bytes,
    shard_bytes,
    training_scalars,
    weights,
)

PAGE_OF_FLOATS = 1024


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How one training saves."""

    fmt: Fmt
    ranks: int
    sink: int | None
    """Batches a data sink; None: none, and five batches an epoch."""
    saves: tuple[int, ...]
    """How many each start of the training made."""
    keep: int
    """`keep_checkpoint_max`, counted in each run by itself."""
    is_sharded: bool
    """Ranks hold slices of their own; else replicas."""
    stages: int
    """Pipeline stages: ranks of different ones hold different tensors."""
    is_reduced: bool
    """`remove_redundancy`: every rank holds a part of the tensors."""
    frozen: bool
    """A layer is not trained: its moments are zero, at the very end of the file."""
    is_async: bool
    """meta.json stays one save behind."""
    crc: tuple[bool, ...]
    """`crc_check`, by run."""
    replaced: bool
    """The last rank's node was replaced before the second run, so its files have no suffix there; what the first run
    had saved was of no use any more and is gone."""
    new_optimizer: bool
    """The second run trains with another one: other tensors on every rank."""
    health: bool


def habits_of(chance: Random) -> Habits:
    """Draw the habits of one training."""
    fmt: Fmt = chance.choice(["ckpt", "safetensors"])
    runs = chance.choice([1, 1, 2, 3])
    ranks = chance.randint(1, 8)
    return Habits(
        fmt=fmt,
        ranks=ranks,
        sink=chance.choice([None, 1, 2, 4]),
        saves=tuple(chance.randint(1, 4) for _ in range(runs)),
        keep=chance.randint(1, 5),
        is_sharded=chance.random() < 0.5,
        stages=chance.choice([stages for stages in (1, 1, 2, 4) if ranks % stages == 0]),
        is_reduced=fmt == "safetensors" and ranks > 1 and chance.random() < 0.2,
        frozen=chance.random() < 0.3,
        is_async=chance.random() < 0.2,
        crc=tuple(chance.random() < 0.3 for _ in range(runs)),
        replaced=ranks > 2 and runs == 2 and chance.random() < 0.3,
        new_optimizer=runs > 1 and chance.random() < 0.2,
        health=chance.random() < 0.3,
    )


def legacy_tree(base: Path, habits: Habits) -> Path:
    """Save as MindFormers does in the legacy layout, and return the output folder."""
    builder = TreeBuilder(base).legacy(ranks=habits.ranks, fmt=habits.fmt)
    step = 0
    marks = []
    for run, saves in enumerate(habits.saves):
        labels: list[tuple[int, int]] = []
        started = step
        if habits.replaced and run == 1:
            for folder in list(builder.checkpoint.iterdir()):
                builder.remove(f"checkpoint/{folder.name}")
        for _ in range(saves):
            previous = labels[-1] if labels else None
            step += 10
            label = _label(step, step - started, habits)
            if label in labels:
                continue
            labels.append(label)
            _save(builder, habits, run=run, step=step, label=label, behind=previous)
            marks.append((_name(builder, habits, 0, label, run), 0))
        for label in labels[: -habits.keep]:
            for rank in range(habits.ranks):
                builder.remove(builder.shard(rank, *label, run=_own_run(habits, rank, run)))
    if habits.health:
        builder.health(marks)
    return builder.output


def _label(step: int, since_start: int, habits: Habits) -> tuple[int, int]:
    """Spell a step as the file name does; without a sink the count in the epoch starts anew with the process."""
    if habits.sink is not None:
        return max(1, step // habits.sink), habits.sink
    return 1 + step // 5, (since_start + step // 5 - 1) % 5 + 1


def _own_run(habits: Habits, rank: int, run: int) -> int:
    return 0 if habits.replaced and run == 1 and rank == habits.ranks - 1 else run


def _name(builder: TreeBuilder, habits: Habits, rank: int, label: tuple[int, int], run: int) -> str:
    return builder.shard(rank, *label, run=_own_run(habits, rank, run)).rpartition("/")[2]


def _save(
    builder: TreeBuilder,
    habits: Habits,
    *,
    run: int,
    step: int,
    label: tuple[int, int],
    behind: tuple[int, int] | None,
) -> None:
    scalars = training_scalars(epoch=label[0], true_step=step, loss_scale=65536.0 / 2 ** (step // 10), resumed=run > 0)
    for rank in range(habits.ranks):
        path = builder.shard(rank, *label, run=_own_run(habits, rank, run))
        tensors = [*_tensors(habits, rank=rank, step=step, run=run), *scalars]
        data = shard_bytes(tensors, habits.fmt)
        if habits.is_reduced:
            data = safetensors_bytes(tensors, {"remove_redundancy": "True", "format": "ms"})
        builder.file(path, with_crc(path, data) if habits.crc[run] else data)
        told = behind if habits.is_async else label
        if told is not None:
            builder.meta(rank, *told, _name(builder, habits, rank, told, run))


def _tensors(habits: Habits, *, rank: int, step: int, run: int) -> list[Tensor]:
    """A stage's tensors at a step. They move a little from save to save; a schedule's counter moves a lot."""
    stage = rank * habits.stages // habits.ranks
    seed = rank if habits.is_sharded else stage
    drift = 1 + step / 1000
    tensors = [
        Tensor(f"stage{stage}.{one.name}", one.dtype, one.shape, _scaled(one.data, drift)) for one in weights(seed=seed)
    ]
    if run > 0 and habits.new_optimizer:
        tensors = [one for one in tensors if "adam_m" not in one.name]
        tensors.append(floats(f"stage{stage}.muon_m.dense.bias", [8], seed=seed))
    if habits.is_reduced:
        tensors = [one for index, one in enumerate(tensors) if index % habits.ranks == rank]
    tensors.append(floats("beta1_power", [], values=[0.9**step]))
    if habits.frozen:
        tensors.append(floats("zz_moments.frozen", [PAGE_OF_FLOATS], values=[0.0] * PAGE_OF_FLOATS))
    return tensors


def _scaled(data: bytes, factor: float) -> bytes:
    numbers = struct.unpack(f"<{len(data) // 4}f", data)
    return struct.pack(f"<{len(numbers)}f", *(number * factor for number in numbers))


def iteration_tree(base: Path, chance: Random) -> Path:
    """Save as MindFormers does in the newer layout, with one to eight ranks."""
    builder = TreeBuilder(base, world=chance.randint(1, 8), prefix=chance.choice(["llama2_7b", None]))
    era = chance.choice(["1.7", "1.9", "2.1"])
    status = None if era == "1.7" else chance.choice([None, 0])
    for number in range(1, chance.randint(2, 5)):
        builder.iteration(
            step=number * 10,
            era="1.7" if era == "1.7" else "1.9" if era == "1.9" else "2.1",
            ckpt_status=status,
            optimizer=True,
        )
    return builder.output


def unified_tree(base: Path) -> Path:
    """Merge a checkpoint as `mindspore.unified_safetensors` does."""
    folder = base / "unified"
    folder.mkdir(parents=True)
    tensors = weights(seed=3)
    (folder / "part0.safetensors").write_bytes(safetensors_bytes(tensors, {"format": "ms"}))
    scalars = safetensors_bytes(training_scalars(epoch=5, true_step=10), {"format": "ms"})
    (folder / "hyper_param.safetensors").write_bytes(scalars)
    size = sum(len(tensor.data) for tensor in tensors)
    record = {"metadata": {"total_size": size}, "weight_map": {one.name: "part0.safetensors" for one in tensors}}
    (folder / "param_name_map.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def healthy_tree(base: Path, seed: int) -> tuple[Path, str]:
    """Make one healthy tree; return its folder, and how it was saved."""
    chance = Random(seed)  # noqa: S311  the same tree for the same seed, no secret
    draw = chance.random()
    if draw < 0.05:
        return unified_tree(base), "unified"
    if draw < 0.25:
        return iteration_tree(base, chance), "iterations"
    habits = habits_of(chance)
    return legacy_tree(base, habits), str(habits)


def alarms(folder: Path, level: Level) -> Sequence[Finding]:
    """Verify every checkpoint of a tree; return all that weighs more than a note."""
    tree = ckpttool.scan(TreeQuestion(path=str(folder), sizes=True))
    question = CheckQuestion(level=level, name="all", jobs=1)
    verdicts = [event for event in ckpttool.verify(tree, question) if isinstance(event, Verdict)]
    assert verdicts
    found = [finding for verdict in verdicts for finding in verdict.findings]
    return blocking([*tree.inventory.findings, *found])
