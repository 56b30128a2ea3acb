"""With the strategy files of its training beside it, one checkpoint alone tells which copy is damaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code, Finding, Severity, blocking
from ckpttool.core.domain.replicas import Proof
from ckpttool.core.domain.verdict import Level, Verdict
from ckpttool.trainers.mindformers import strategy_file
from ckpttool.types import CheckQuestion, HealOrder, TreeQuestion
from tests.support.commands import ask
from tests.support.parallel_trainings import Mesh, Training, parallel_tree
from tests.support.strategy_files import Lies, strategy, write_strategies

SPLIT = ("column.weight", "column.bias", "embedding.weight")
"""What is sliced by tensor parallelism."""


def training(*, data: int, tensor: int, pipeline: int = 1, saves: int = 1, tensor_last: bool = True) -> Training:
    mesh = Mesh(
        data=data, tensor=tensor, pipeline=pipeline, tensor_last=tensor_last, experts=1, shards=1, weights_too=False
    )
    return Training(
        seed=1,
        meshes=(mesh,),
        saves=(saves,),
        zero_start=False,
        same_seed=False,
        has_rng=False,
        has_counter=False,
        has_statistics=False,
        has_frozen=False,
        unfrozen_at=None,
        rare=False,
        skipped=frozenset(),
        shifting_batch=False,
        fmt="ckpt",
    )


def lies(saved: Training, stage: int, *, but: Sequence[str] = ()) -> Mapping[str, Lies]:
    """How the tensors of a stage lie, optimizer states counted; scalars have no layout."""
    (mesh,) = saved.meshes
    grid, split = ([mesh.data, mesh.tensor], 0) if mesh.tensor_last else ([mesh.tensor, mesh.data], 1)
    names = saved.held(0, stage * mesh.data * mesh.tensor, 10)
    return {
        name: Lies(grid, [split if name.endswith(SPLIT) else -1])
        for name in names
        if name not in {"beta1_power", "constant", *but}
    }


def with_strategies(folder: Path, saved: Training, told: Training | None = None) -> Path:
    """A training's files, and strategy files that tell of it, or of another one."""
    output = parallel_tree(folder, saved)
    told = told or saved
    (mesh,) = told.meshes
    stages = [strategy(lies(told, stage), stage=stage) for stage in range(mesh.pipeline)]
    write_strategies(output, stages, ranks=saved.meshes[0].world)
    return output


def shard(output: Path, rank: int) -> Path:
    (path, *_) = sorted((output / "checkpoint" / f"rank_{rank}").glob("*.ckpt"))
    return path


def flip(output: Path, rank: int, tensor: str) -> None:
    path = shard(output, rank)
    data = bytearray(path.read_bytes())
    at = data.index(tensor.encode()) + len(tensor) + 20
    data[at] ^= 4
    path.write_bytes(data)


def said(output: Path) -> tuple[Verdict, tuple[Finding, ...]]:
    question = CheckQuestion(level=Level.CHECKSUM, name="all")
    (verdict,) = (event for event in ckpttool.verify(str(output), question) if isinstance(event, Verdict))
    return verdict, blocking(verdict.findings)


def test_one_flipped_bit_of_three_copies_is_located_without_another_checkpoint(tmp_path: Path) -> None:
    output = with_strategies(tmp_path, training(data=3, tensor=2))
    assert said(output)[1] == ()
    flip(output, 3, "adam_m.stage0.column.weight")
    (finding,) = said(output)[1]
    assert (finding.code, finding.severity, finding.ranks) == (Code.REPLICA_DIFFERS, Severity.DAMAGE, (3,))
    assert finding.tensor == "adam_m.stage0.column.weight"
    assert "its replicas on ranks 1, 5" in finding.message


def test_copies_of_a_slice_may_be_neighbours(tmp_path: Path) -> None:
    output = with_strategies(tmp_path, training(data=3, tensor=2, tensor_last=False))
    assert said(output)[1] == ()
    flip(output, 3, "adam_m.stage0.column.weight")
    (finding,) = said(output)[1]
    assert (finding.code, finding.severity, finding.ranks) == (Code.REPLICA_DIFFERS, Severity.DAMAGE, (3,))
    assert "its replicas on ranks 4-5" in finding.message


@pytest.mark.parametrize(("lost", "severity"), [(4, Severity.DAMAGE), (5, Severity.SUSPECT)])
def test_a_lost_rank_of_the_same_slice_is_a_copy_not_heard(tmp_path: Path, lost: int, severity: Severity) -> None:
    saved = training(data=3 if lost == 4 else 4, tensor=2)
    output = with_strategies(tmp_path, saved)
    flip(output, 3, "adam_m.stage0.column.weight")
    shard(output, lost).unlink()
    (finding,) = (each for each in said(output)[1] if each.code is Code.REPLICA_DIFFERS)
    assert (finding.severity, finding.ranks) == (severity, (3,))


def test_another_run_s_file_is_told_from_three_copies(tmp_path: Path) -> None:
    saved = training(data=4, tensor=1)
    output = with_strategies(tmp_path / "this", saved)
    other = with_strategies(tmp_path / "other", replace(saved, skipped=frozenset({10})))
    shutil.copy(shard(other, 2), shard(output, 2))
    (finding,) = said(output)[1]
    assert (finding.code, finding.severity, finding.ranks) == (Code.REPLICA_STALE, Severity.DAMAGE, (2,))


def test_of_two_copies_both_are_doubted(tmp_path: Path) -> None:
    output = with_strategies(tmp_path, training(data=2, tensor=2, pipeline=2))
    assert said(output)[1] == ()
    flip(output, 7, "stage1.column.bias")
    assert {(finding.severity, finding.ranks) for finding in said(output)[1]} == {
        (Severity.SUSPECT, (5,)),
        (Severity.SUSPECT, (7,)),
    }


@pytest.mark.parametrize("how", ["newer", "torn", "disagree", "one alone", "huge", "another's number"])
def test_files_that_may_be_wrong_tell_nothing(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = training(data=3, tensor=2)
    output = with_strategies(tmp_path, saved)
    flip(output, 3, "adam_m.stage0.column.weight")
    last = output / "strategy" / "ckpt_strategy_rank_5.ckpt"
    match how:
        case "newer":
            os.utime(last)
        case "torn":
            last.write_bytes(last.read_bytes()[:-1])
        case "disagree":
            last.write_bytes(strategy(lies(saved, 0, but=["embedding.weight"])))
        case "one alone":
            for rank in range(5):
                (output / "strategy" / f"ckpt_strategy_rank_{rank}.ckpt").unlink()
        case "huge":
            monkeypatch.setattr(strategy_file, "STRATEGY_LIMIT", 100)
        case _:
            write_strategies(output, [strategy(lies(saved, 0), stage=1)], ranks=6)
    if how != "newer":
        os.utime(last, (1_000_000_000, 1_000_000_000))
    assert said(output)[1] == ()


@pytest.mark.parametrize(
    ("saved", "told"),
    [
        (training(data=2, tensor=2), training(data=4, tensor=1)),
        (training(data=1, tensor=4), training(data=2, tensor=2)),
        (training(data=4, tensor=1), training(data=2, tensor=2)),
        (training(data=4, tensor=2), training(data=8, tensor=1)),
    ],
)
def test_files_of_another_arrangement_raise_no_alarm(tmp_path: Path, saved: Training, told: Training) -> None:
    assert said(with_strategies(tmp_path, saved, told))[1] == ()


def test_no_more_arrangements_are_kept_than_a_model_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = with_strategies(tmp_path, training(data=3, tensor=2))
    monkeypatch.setattr(strategy_file, "MOST_ARRANGEMENTS", 1)
    tree = ckpttool.scan(TreeQuestion(path=str(output)))
    (checkpoint,) = tree.inventory.checkpoints
    told = tree.slices(checkpoint)
    assert told is not None
    assert len({id(ranks) for ranks in told.slices.values()}) == 1


def test_a_part_that_a_machine_writes_down_tells_who_holds_which_slice(tmp_path: Path) -> None:
    output, parts = with_strategies(tmp_path, training(data=3, tensor=2)), f"{tmp_path}/parts/"
    assert ask("part", str(output), "--part", "1/1", "--out", parts).code == 0
    found = []
    for place in (str(output), parts):
        tree = ckpttool.scan(TreeQuestion(path=place))
        (checkpoint,) = tree.inventory.checkpoints
        found.append(tree.slices(checkpoint))
    there, told = found
    assert there is not None
    assert told is not None
    assert told.slices == there.slices


@pytest.mark.parametrize("lost", [[3], [2, 3], [1, 2]])
def test_files_of_a_start_without_pipeline_stages_give_no_donor_across_them(tmp_path: Path, lost: list[int]) -> None:
    """They say that all four ranks hold the same, and name the tensors of both stages."""
    saved = training(data=2, tensor=1, pipeline=2)
    output = parallel_tree(tmp_path, saved)
    told = {name: Lies([4], [-1]) for stage in (0, 1) for name in lies(saved, stage)}
    write_strategies(output, [strategy(told)], ranks=4)
    for rank in lost:
        shard(output, rank).unlink()
    healing = ckpttool.heal(str(output), HealOrder(grace=0))
    assert [(each.target.rank, each.donor) for each in healing.shards] == [(rank, None) for rank in lost]


def test_a_lost_shard_of_the_only_checkpoint_can_be_healed(tmp_path: Path) -> None:
    output = with_strategies(tmp_path, training(data=2, tensor=2))
    lost = shard(output, 3)
    content = lost.read_bytes()
    lost.unlink()
    healing = ckpttool.heal(str(output), HealOrder(grace=0, apply=True))
    (healed,) = healing.shards
    assert healed.donor is not None
    assert (healed.donor.rank, healed.donor.proof, healed.donor.record) == (1, Proof.RECORDED, "../strategy")
    assert lost.read_bytes() == content
