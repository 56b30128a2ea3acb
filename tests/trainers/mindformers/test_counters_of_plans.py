"""Counters that MindFormers rounds, scales twice or does not scale are told of, and the data go on at the exact place.

The data position does not suffer from them, because a launch config names it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from ckpttool.core.domain.finding import Row
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.load import planned_skip
from ckpttool.types import DataQuestion
from tests.support.answers import cli, notes, plan
from tests.support.trees import TreeBuilder


class Case(NamedTuple):
    """A save, what is asked of it, what is told, and what can be asked without a word."""

    save: dict[str, int]
    asked: DataQuestion
    code: Row
    skip: int
    repeated: int
    next_step: int
    calm: DataQuestion


CASES = {
    "the newer layout does not scale the optimizer's own step": Case(
        {"step": 40, "global_batch_size": 16},
        DataQuestion(new_global_batch=32),
        MindFormersCode.COUNTER_ROUNDED,
        *(20, 0, 21),
        calm=DataQuestion(new_global_batch=16),
    ),
    "20 sinks of 2 are taken for 20 of 4": Case(
        {"epoch": 20, "step": 2},
        DataQuestion(sink_size=4),
        MindFormersCode.SINK_SIZE_CHANGED,
        *(40, 0, 41),
        calm=DataQuestion(sink_size=2),
    ),
    "MindSpore rounds the data to sinks and not the step": Case(
        {"epoch": 25, "step": 2, "global_batch_size": 16},
        DataQuestion(new_global_batch=24, sink_size=2),
        MindFormersCode.EPOCH_COUNTER_SHIFTS,
        *(32, 50 * 16 - 32 * 24, 34),
        calm=DataQuestion(new_global_batch=8, sink_size=2),
    ),
    "0 passes for the end of an epoch": Case(
        {"epoch": 1, "step": 1, "global_batch_size": 16},
        DataQuestion(new_global_batch=64),
        MindFormersCode.EPOCH_COUNTER_SHIFTS,
        *(0, 16, 1),
        calm=DataQuestion(new_global_batch=16),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_counter_that_goes_wrong_is_told_and_the_skip_is_exact(tmp_path: Path, case: Case) -> None:
    tree = TreeBuilder(tmp_path).legacy()
    (tree.save if "epoch" in case.save else tree.iteration)(**case.save)  # type: ignore[arg-type]  # as the case says
    answer = plan(tree.checkpoint, data=case.asked)
    assert case.code in notes(answer)
    skip = planned_skip(answer)
    assert (skip.batches, skip.repeated_samples, answer.next_step) == (case.skip, case.repeated, case.next_step)
    assert notes(plan(tree.checkpoint, data=case.calm)) == set()


@pytest.mark.parametrize(("sink", "said"), [("2", "less than one sink seen twice"), ("1", "no sample seen twice")])
def test_what_sinks_repeat_of_batches_of_unknown_size_is_not_called_nothing(
    tmp_path: Path, sink: str, said: str
) -> None:
    """Files of 1.2 hold no batch size: the 31st batch is seen again, and nobody knows how many samples that is."""
    tree = TreeBuilder(tmp_path).legacy().save(epoch=31, step=1, global_batch_size=None)
    assert said in " ".join(cli("resolve", str(tree.checkpoint), "--sink-size", sink).stdout.split())
