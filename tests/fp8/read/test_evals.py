"""Downstream tasks: all changed, some dropped, or neither."""

from __future__ import annotations

import pytest

from ckpttool.fp8.model.curves import CurveClass, Downstream, TaskScore
from ckpttool.fp8.read.evals import compare_tasks

NAMES = ("arc", "boolq", "hellaswag", "mmlu", "piqa")


def scores(*values: float, error: float | None = 0.005) -> list[TaskScore]:
    return [
        TaskScore(task=name, metric="acc,none", value=value, error=error)
        for name, value in zip(NAMES, values, strict=False)
    ]


BASE = scores(0.5, 0.6, 0.7, 0.5, 0.8)


@pytest.mark.parametrize(
    ("candidate", "verdict"),
    [
        (scores(0.5, 0.6, 0.7, 0.5, 0.8), Downstream.NONE),
        (scores(0.45, 0.65, 0.66, 0.5, 0.7), Downstream.ALL),  # four of five, in whatever direction
        (scores(0.45, 0.65, 0.66, 0.5, 0.8), Downstream.SOME),  # three of five
        (scores(0.5, 0.6, 0.67, 0.5, 0.8), Downstream.SOME),
        (scores(0.5, 0.6, 0.671, 0.5, 0.8), Downstream.NONE),  # under three points
        (scores(0.5, 0.6, 0.65, 0.5, 0.8, error=0.05), Downstream.NONE),  # within chance
        (scores(0.5, 0.6, 0.65, 0.5, 0.8, error=None), Downstream.NONE),  # nobody knows
        (scores(0.55, 0.6, 0.7, 0.5, 0.8), Downstream.NONE),  # better
        (scores(0.4), Downstream.SOME),  # of one task nobody can say that it is all
    ],
)
def test_nearly_all_is_the_export_and_some_is_the_recipe(candidate: list[TaskScore], verdict: Downstream) -> None:
    assert compare_tasks(BASE, candidate, CurveClass.MATCH).verdict is verdict


def test_only_what_both_were_given_by_the_same_measure_counts() -> None:
    others = [TaskScore(task="arc", metric="acc_norm,none", value=0.1, error=0.01), *scores(0.5, 0.6)[1:]]
    assert [task.task for task in compare_tasks(BASE, others, CurveClass.MATCH).tasks] == ["boolq"]


def test_tasks_tell_nothing_more_where_losses_do_not_match() -> None:
    assert compare_tasks(BASE, scores(0.1, 0.1, 0.1, 0.1, 0.1), CurveClass.STEP).verdict is None
    assert compare_tasks(BASE, BASE, CurveClass.SPIKES).verdict is Downstream.NONE
