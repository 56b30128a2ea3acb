"""What watches a check is told of every byte once, while a shard is read and not only after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.verdict import CheckTask, Level, Verdict
from ckpttool.core.storage.stream import BLOCK_BYTES, read_blocks
from ckpttool.core.verbs.verifying import bytes_to_read, watched
from ckpttool.core.verify.check import check
from ckpttool.core.verify.kernels import digest
from ckpttool.core.verify.meter import Meter
from ckpttool.core.verify.observation import Observation
from ckpttool.core.verify.plan import plan_checks
from ckpttool.types import CheckQuestion, DataQuestion, ResumeQuestion, Tree, TreeQuestion
from tests.support.trees import Tensor, TreeBuilder, safetensors_bytes, training_scalars

SHARDS = 3
BLOCKS = 2


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """One checkpoint whose shards have several blocks each."""
    builder = TreeBuilder(tmp_path).legacy(ranks=SHARDS, fmt="safetensors")
    builder.save(epoch=20, step=2)
    weight = Tensor("w", "Float32", (BLOCKS * BLOCK_BYTES // 4,), bytes(range(256)) * (BLOCKS * BLOCK_BYTES // 256))
    content = safetensors_bytes(
        [*training_scalars(epoch=20, true_step=40), weight], {"remove_redundancy": "False", "format": "ms"}
    )
    for rank in range(SHARDS):
        builder.file(builder.shard(rank, 20, 2), content)
    return ckpttool.scan(TreeQuestion(path=str(builder.checkpoint), sizes=True))


def verified(tree: Tree, meter: Meter, question: CheckQuestion) -> Verdict:
    with watched(meter):
        (verdict,) = (event for event in ckpttool.verify(tree, question) if isinstance(event, Verdict))
    return verdict


@pytest.mark.parametrize("level", Level)
def test_all_is_counted_once_and_was_known_before(level: Level, tree: Tree) -> None:
    meter, question = Meter(), CheckQuestion(level=level, jump=0)
    verified(tree, meter, question)
    assert meter.bytes_done == meter.bytes_total == bytes_to_read(tree, question)
    assert (meter.shards_done, meter.shards_total) == (SHARDS, SHARDS)


def test_of_a_part_of_the_shards_no_others_are_expected(tree: Tree) -> None:
    totals = []
    for number in (1, 2):
        meter = Meter()
        verified(tree, meter, CheckQuestion(level=Level.CHECKSUM, bucket=(number, 2)))
        assert meter.shards_done == meter.shards_total
        totals.append(meter.shards_total)
    assert sum(totals) == SHARDS


def test_it_moves_inside_a_shard(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    meter, seen = Meter(), []

    def watching(*arguments: object, **options: object) -> object:
        for block in read_blocks(*arguments, **options):  # type: ignore[arg-type]
            seen.append((meter.shards_done, meter.bytes_done))
            yield block

    monkeypatch.setattr(digest, "read_blocks", watching)
    verified(tree, meter, CheckQuestion(level=Level.CHECKSUM, jobs=1))
    before_the_first_report = {nbytes for shards, nbytes in seen if not shards}
    assert len(before_the_first_report) >= BLOCKS


def test_what_the_ledger_answers_need_not_be_read(tree: Tree) -> None:
    list(ckpttool.seal(tree))
    question = CheckQuestion(level=Level.CHECKSUM, max_age=3600.0)
    first, second = Meter(), Meter()
    verified(tree, first, question)
    assert first.shards_kept == SHARDS
    verified(tree, second, question)
    assert (second.bytes_done, second.bytes_total) == (0, 0)
    assert (second.shards_done, second.shards_kept) == (SHARDS, SHARDS)


def test_the_ledger_keeps_nothing_of_shards_without_a_checksum(tree: Tree) -> None:
    meter = Meter()
    verified(tree, meter, CheckQuestion(level=Level.CHECKSUM, max_age=3600.0))
    assert (meter.shards_done, meter.shards_kept) == (SHARDS, 0)


def test_a_task_adds_its_cost_whatever_becomes_of_it(tree: Tree) -> None:
    """One that fails, and one that reads more than was planned, for the file grew."""
    task = plan_checks(tree.inventory.root, tree.inventory.checkpoints[0], Level.CHECKSUM)[0]
    meter = Meter()

    def fails(task: CheckTask, *, passed: Callable[[int], None] | None = None) -> Observation:
        assert passed is not None
        passed(7)
        raise OSError(task.path)

    with pytest.raises(OSError, match="rank_0"):
        meter.counting(fails)(task)
    assert meter.bytes_done == task.cost
    meter.counting(check)(replace(task, cost=type(task.cost)(BLOCK_BYTES)))
    assert meter.bytes_done == task.cost + BLOCK_BYTES


def test_who_chooses_learns_of_what_is_read_as_it_is_planned(tree: Tree) -> None:
    meter = Meter()
    question = TreeQuestion(path=tree.inventory.root)
    with watched(meter):
        ckpttool.resolve(question, ResumeQuestion(evidence=Level.CHECKSUM), DataQuestion())
    assert meter.bytes_done == meter.bytes_total > SHARDS * BLOCKS * BLOCK_BYTES
    assert meter.shards_done == meter.shards_total == SHARDS


def test_nobody_is_told_of_what_is_read_when_nobody_watches_any_more(tree: Tree) -> None:
    meter = Meter()
    with watched(meter):
        pass
    list(ckpttool.verify(tree, CheckQuestion(level=Level.CHECKSUM)))
    assert meter.bytes_done == 0
