"""Newest means: the later run, then the higher true step."""

from __future__ import annotations

import random

from ckpttool.core.domain.progress import newest_first
from ckpttool.core.domain.shard import FormatName
from tests.support.inventories import checkpoint


def test_a_later_run_comes_first_even_at_a_lower_step() -> None:
    ordered = newest_first([checkpoint("20_2"), checkpoint("15_2", run=1), checkpoint("10_2")])
    assert [one.name for one in ordered] == ["_1-15_2", "20_2", "10_2"]


def test_inside_a_run_the_true_step_decides_and_not_the_label() -> None:
    ordered = newest_first([checkpoint("3_3", step=11), checkpoint("3_2", step=15), checkpoint("3_1", step=14)])
    assert [one.name for one in ordered] == ["3_2", "3_1", "3_3"]


def test_one_without_a_known_step_stands_where_its_label_puts_it() -> None:
    ordered = newest_first([checkpoint("10_2"), checkpoint("15_2", step=None), checkpoint("20_2")])
    assert [one.name for one in ordered] == ["20_2", "15_2", "10_2"]
    ordered = newest_first([checkpoint("10_2"), checkpoint("15_2"), checkpoint("20_2", step=None)])
    assert [one.name for one in ordered] == ["20_2", "15_2", "10_2"]


def test_one_without_a_known_step_and_with_the_lowest_label_is_the_oldest_of_its_run() -> None:
    ordered = newest_first([checkpoint("10_2", step=None), checkpoint("15_2"), checkpoint("1_2", run=1, step=None)])
    assert [one.name for one in ordered] == ["_1-1_2", "15_2", "10_2"]


def test_one_without_a_known_step_is_newer_than_its_twin_in_the_other_format() -> None:
    twins = [checkpoint("15_2"), checkpoint("15_2", step=None, fmt=FormatName.SAFETENSORS), checkpoint("10_2")]
    assert [one.step for one in newest_first(twins)] == [None, 30, 20]


def test_another_trainings_labels_do_not_move_it() -> None:
    ordered = newest_first(
        [checkpoint("10_2", prefix="a"), checkpoint("20_2", step=None, prefix="b"), checkpoint("15_2", prefix="b")]
    )
    assert [(one.prefix, one.name) for one in ordered] == [("b", "20_2"), ("b", "15_2"), ("a", "10_2")]


def test_the_same_save_in_two_formats_has_one_order() -> None:
    both = [checkpoint(), checkpoint(fmt=FormatName.SAFETENSORS)]
    assert newest_first(both) == newest_first(both[::-1])


def test_the_order_of_the_input_does_not_matter() -> None:
    found = [
        checkpoint(f"{epoch}_2", run=run, step=None if epoch == 15 else -1) for epoch in (5, 10, 15) for run in (0, 1)
    ]
    ordered = newest_first(found)
    shuffled = random.Random(1).sample(found, len(found))  # noqa: S311  a shuffle, no secret
    assert newest_first(shuffled) == ordered
