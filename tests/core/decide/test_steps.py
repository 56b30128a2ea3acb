"""The one law of a step: what lies inside, else a name that the tree shares, never against what siblings hold."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from ckpttool.core.decide.steps import (
    is_named_beyond,
    is_out_of_place,
    latest,
    leaves_newest_open,
    left_by_name,
    not_acted_on,
    read_name,
    settle,
)
from ckpttool.core.domain.checkpoint import Checkpoint, Content, NamedStep, RunSummary, StepSource
from ckpttool.core.domain.finding import Code, Row, Severity
from ckpttool.core.domain.units import Step
from tests.support.inventories import checkpoint, finding, tree


def save(name: str, step: int | None = None) -> Checkpoint:
    """A folder that a script named, with the step that lies inside."""
    made = checkpoint("1_1", step=step, ranks=range(1))
    return replace(made, name=name, prefix="", label=None, named=read_name(name))


def settled(*saves: Checkpoint) -> dict[str, Checkpoint]:
    return {one.name: one for one in settle(tree(*saves)).checkpoints}


def steps(*saves: Checkpoint) -> dict[str, int | None]:
    return {name: one.step for name, one in settled(*saves).items()}


def told(*saves: Checkpoint) -> dict[str, list[tuple[Row, Severity]]]:
    return {name: [(one.code, one.severity) for one in each.findings] for name, each in settled(*saves).items()}


def dated(name: str, step: int, committed: int | None, *, identity: str | None = None) -> Checkpoint:
    """A save whose trainer puts the step into the name, and the time inside."""
    made = checkpoint("1_1", step=step, ranks=range(1))
    named = NamedStep(stem="", number=Step(step))
    return replace(
        made, name=name, prefix="", label=None, step_source=StepSource.NAME, named=named, identity=identity,
        order=committed, committed_ns=committed,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "stem", "number"),
    [
        ("step_50", "step_", 50),
        ("global_step50", "global_step", 50),
        ("my-run_iter-0000100", "my-run_iter-", 100),
        ("ep0-ba50", "ep#-ba", 50),
        ("ep12-ba50", "ep#-ba", 50),
        ("checkpoint-7", "checkpoint-", 7),
        ("50", "", 50),
        (f"step_{10**17}", "step_", 10**17),
    ],
)
def test_a_number_behind_a_word_that_counts_steps_is_one(name: str, stem: str, number: int) -> None:
    found = read_name(name)
    assert (found.stem, found.number) == (stem, number)


@pytest.mark.parametrize(
    "name", ["llama-70b", "epoch_2", "step_1.5", "20260101", "step_20260101123000", "1767225600", ""]
)
def test_a_size_an_epoch_or_a_date_is_no_step(name: str) -> None:
    for text in (name, "1" * 19):
        assert (read_name(text).number, read_name(text).is_free) == (None, True)


def test_a_name_tells_a_step_behind_the_stem_that_most_saves_have() -> None:
    assert steps(save("step_10"), save("step_20"), save("ckpt_99")) == {"step_10": 10, "step_20": 20, "ckpt_99": None}
    assert steps(save("step_10"), save("ckpt_99")) == {"step_10": None, "ckpt_99": None}


def test_a_stem_whose_saves_hold_their_step_inside_goes_before_the_one_of_most() -> None:
    found = steps(save("step_10", 10), save("step_20"), save("ckpt_7"), save("ckpt_8"), save("ckpt_9"))
    assert found == {"step_10": 10, "step_20": 20, "ckpt_7": None, "ckpt_8": None, "ckpt_9": None}


def test_the_order_and_the_runs_of_a_tree_follow_the_steps_that_names_tell() -> None:
    run = RunSummary(prefix="", run=0, first_step=None, last_step=None, world_size=1)
    inventory = replace(tree(save("step_9"), save("step_10"), save("final")), runs=(run,))
    found = settle(inventory)
    assert [one.name for one in found.checkpoints] == ["final", "step_9", "step_10"]
    assert [(one.first_step, one.last_step) for one in found.runs] == [(9, 10)]


def test_what_only_a_name_tells_is_acted_on_where_all_saves_are_named_alike() -> None:
    mixed, alike = settled(save("step_50"), save("step_60"), save("final")), settled(save("step_50"), save("step_60"))
    assert [one.severity for one in not_acted_on(mixed["step_60"])] == [Severity.UNKNOWN]
    assert not_acted_on(alike["step_60"]) == ()
    assert not_acted_on(settled(save("step_50", 50), save("final"))["step_50"]) == ()
    without_number = settled(save("step_50"), save("step_60"), save("step_"))
    assert [finding.severity for finding in not_acted_on(without_number["step_60"])] == [Severity.UNKNOWN]


def test_what_tells_no_step_is_not_acted_on_unless_it_is_an_export_of_weights() -> None:
    unnamed = settled(save("final"))["final"]
    assert [one.code for one in not_acted_on(unnamed)] == [Code.STEP_UNKNOWN]
    assert not_acted_on(replace(unnamed, content=Content.WEIGHTS_ONLY)) == ()


def test_a_name_that_the_content_denies_is_suspect_where_other_names_agree() -> None:
    found = told(save("step_9", 9), save("step_12", 9))
    assert found == {"step_9": [], "step_12": [(Code.STEP_DISAGREES, Severity.SUSPECT)]}


def test_names_that_count_something_else_are_a_note() -> None:
    note = [(Code.STEP_DISAGREES, Severity.NOTE)]
    assert told(save("ckpt_1", 100), save("ckpt_2", 200)) == {"ckpt_1": note, "ckpt_2": note}
    assert told(save("step_100", 99)) == {"step_100": note}
    assert told(save("step_100", 50)) == {"step_100": [(Code.STEP_DISAGREES, Severity.UNKNOWN)]}


def test_a_counter_that_says_one_step_under_names_of_several_is_no_step() -> None:
    assert steps(save("step_10", 0), save("step_20", 0)) == {"step_10": None, "step_20": None}
    assert steps(save("a", 5), save("b", 5), save("c", 5)) == {"a": None, "b": None, "c": None}
    assert steps(save("best", 5), save("last", 5)) == {"best": 5, "last": 5}
    assert steps(save("step_5", 5), save("best", 5), save("last", 5)) == {"step_5": 5, "best": 5, "last": 5}


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_of_a_save_and_its_copy_the_one_out_of_order_is_the_copy(order: tuple[int, ...]) -> None:
    saves = [
        dated("10", 10, 1, identity="a"),
        dated("20", 20, 2, identity="b"),
        dated("30", 30, 3),
        dated("99", 99, 1, identity="a"),
    ]
    found = told(*(saves[at] for at in order))
    assert found["99"] == [(Code.DUPLICATE_CHECKPOINT, Severity.SUSPECT)]
    assert found["10"] == found["20"] == found["30"] == []


def test_of_two_that_are_one_nothing_tells_which_is_the_copy() -> None:
    tie = [(Code.DUPLICATE_CHECKPOINT, Severity.UNKNOWN)]
    assert told(dated("10", 10, 1, identity="a"), dated("99", 99, 1, identity="a")) == {"10": tie, "99": tie}


def test_what_was_committed_before_a_lower_step_is_of_another_run_or_a_copy() -> None:
    found = told(
        dated("500", 500, 1), dated("1000", 1000, 2), dated("8", 8, 3), dated("16", 16, 4), dated("24", 24, None)
    )
    suspect = [(Code.TIMES_DISAGREE, Severity.SUSPECT)]
    assert found == {"500": suspect, "1000": suspect, "8": [], "16": [], "24": []}
    saves = settled(dated("500", 500, 1), dated("8", 8, 3))
    assert is_out_of_place(saves["500"])
    assert not is_out_of_place(saves["8"])
    assert is_named_beyond(saves["500"], saves["8"])
    assert not is_named_beyond(saves["8"], saves["500"])


def counted(number: int, step: int | None) -> Checkpoint:
    """A save of a trainer that numbers its saves, with the step inside."""
    named = NamedStep(stem="checkpoint_", number=Step(number), counts_saves=True)
    return replace(save(f"checkpoint_{number}", step), named=named)


def test_a_save_number_that_says_an_earlier_step_again_is_a_copy() -> None:
    found = told(counted(0, 4), counted(1, 8), counted(2, 8), counted(9, 4), counted(10, None))
    copy = [(Code.DUPLICATE_CHECKPOINT, Severity.SUSPECT)]
    assert found == {name: copy if name == "checkpoint_9" else [] for name in found}


def test_latest_is_no_copy_and_no_folder_that_tells_no_step_if_there_is_another() -> None:
    assert [one.name for one in latest([save("final"), dated("30", 30, 3)])] == ["30"]
    saves = settled(dated("10", 10, 1, identity="a"), dated("20", 20, 2), dated("99", 99, 1, identity="a"))
    assert [one.name for one in latest([saves["99"], saves["20"], saves["10"]])] == ["20"]
    assert [one.name for one in latest([save("final"), save("best")])] == ["final"]
    assert latest([]) == []


def test_a_tree_in_which_nothing_is_wrong_is_returned_as_it_is() -> None:
    inventory = tree(checkpoint("10_2"), checkpoint("20_2"))
    assert settle(inventory) is inventory


def test_what_a_person_may_have_named_or_numbered_does_not_go_by_its_step_alone() -> None:
    def left(*saves: Checkpoint) -> dict[str, str]:
        found = left_by_name(saves)
        return {one.name: found[one.key].partition(" ")[2] for one in saves if one.key in found}

    assert left(save("step_10", 10), save("step_20", 20), save("final", 30)) == {
        "final": "not named like the other checkpoints, so a person may have put it there"
    }
    assert left(counted(0, 4), counted(1, 8), counted(9, 4)) == {
        "checkpoint_9": "numbered after checkpoint_1, which contains a later step"
    }
    denied = replace(dated("10", 10, 1), findings=(finding(Code.STEP_DISAGREES),))
    assert left(denied, dated("20", 20, 2)) == {"10": "named for a different step than it contains"}


@pytest.mark.parametrize(("severity", "is_open"), [(Severity.UNKNOWN, True), (Severity.SUSPECT, False)])
def test_a_copy_that_nothing_tells_from_its_original_leaves_open_which_is_the_newest(
    severity: Severity, *, is_open: bool
) -> None:
    against = [finding(Code.DUPLICATE_CHECKPOINT, severity)]
    assert leaves_newest_open(save("step_10", 10), against, is_tracked=True) is is_open
