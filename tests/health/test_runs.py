"""Each checkpoint is judged by the start of the training that saved it, or by none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ckpttool.core.domain.metrics import LogAttempt, StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.health.model.events import SavedCheckpoint
from ckpttool.health.rules.runs import Home, course, homes, logged_step


def attempt(steps: Iterable[int], norm: float = 1.0, *, begun: bool = False, ended: bool = False) -> LogAttempt:
    rows = [StepMetrics(step=Step(step), embedding_local_norm=norm) for step in steps]
    return LogAttempt(rows=rows, begun=begun, ended=ended)


def in_one_log(*stretches: Iterable[int]) -> list[LogAttempt]:
    """Each goes back behind the one before it; the norm is the number of the stretch."""
    last = len(stretches) - 1
    return [
        attempt(steps, float(number), begun=number > 0, ended=number < last) for number, steps in enumerate(stretches)
    ]


def run(number: int | None, *steps: int | None) -> list[SavedCheckpoint]:
    return [
        SavedCheckpoint(name=f"{number}-{step}", step=None if step is None else Step(step), run=number)
        for step in steps
    ]


def norms(saves: Sequence[SavedCheckpoint], attempts: Sequence[LogAttempt]) -> list[float | str | None]:
    """The norm of each; `?` where it is in doubt."""
    found = [logged_step(save, home, attempts) for save, home in zip(saves, homes(saves, attempts), strict=True)]
    return ["?" if one.is_doubtful else None if one.row is None else one.row.embedding_local_norm for one in found]


def test_each_run_has_its_own_norm_at_a_step_that_both_did() -> None:
    log = in_one_log(range(1, 46), range(21, 61))
    assert norms([*run(0, 10, 20, 30, 40), *run(1, 30, 40, 50, 60)], log) == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_run_keeps_its_norms_where_the_files_of_the_later_one_are_lost() -> None:
    log = in_one_log(range(1, 46), range(21, 61))
    assert norms(run(0, 10, 20, 30, 40), log) == [0, 0, 0, 0]
    assert norms(run(1, 30, 50), log) == [1, 1]


def test_nobody_can_tell_of_saves_that_two_starts_did() -> None:
    log = in_one_log(range(1, 46), range(21, 61))
    assert norms(run(0, 30, 40), log) == ["?", "?"]
    assert norms(run(0, 30, 40), [attempt(range(1, 46)), attempt(range(21, 61))]) == [1, 1]  # the same norm in both


def test_a_log_that_holds_the_last_start_alone_says_nothing_of_the_others() -> None:
    log = [attempt(range(21, 61))]
    assert norms([*run(0, 10, 20, 30, 40), *run(1, 30, 40, 50, 60)], log) == [None, None, "?", "?", 1, 1, 1, 1]
    assert norms(run(0, 10, 20, 30, 40), log) == [None, None, "?", "?"]  # it begins behind the save that it resumed
    assert norms(run(0, 10, 20, 30, 40), [attempt(range(26, 61))]) == [None, None, 1, 1]  # it lost its beginning


def test_a_log_in_which_every_step_is_saved_may_have_lost_its_beginning() -> None:
    assert norms(run(0, 10, 20, 30, 40), [attempt((30, 40))]) == [None, None, 1, 1]


def test_a_run_that_finds_some_of_its_steps_alone_puts_none_in_doubt_that_finds_them_all() -> None:
    log = [attempt(range(50, 101))]  # it lost its beginning
    assert norms([*run(0, 10, 80), *run(1, 70, 90)], log) == [None, "?", 1, 1]


def test_runs_that_went_on_where_the_log_ended_share_a_stretch() -> None:
    log = [attempt(range(1, 61))]
    assert norms([*run(0, 10, 20, 30), *run(2, 40, 50)], log) == [1] * 5
    assert norms([*run(0, 10, 20, 30), *run(1, 30, 40)], log) == ["?"] * 5  # a log that goes back was expected


def test_a_stretch_that_leaps_over_a_step_is_not_where_it_was_saved() -> None:
    """The log lost its first start; one that saved nothing, and one from step 2 on, look like one stretch."""
    assert norms([*run(0, 2), *run(1, 2)], in_one_log((1, 2), (1, 3))) == ["?", "?"]


def test_runs_that_would_share_a_stretch_do_not_outvote_the_one_that_fills_it() -> None:
    """The log lost the first two starts: the first stretch is run 2's, though runs 0 and 1 would fit as well."""
    saves = [*run(0, 2), *run(1, 4), *run(2, 2, 4), *run(3, 2, 4)]
    found = norms(saves, in_one_log(range(1, 5), range(1, 5)))
    assert set(found) == {"?"}


def test_a_start_that_saved_nothing_is_passed_over() -> None:
    log = in_one_log(range(1, 46), range(21, 28), range(21, 61))
    assert norms([*run(0, 10, 20, 30, 40), *run(1, 30, 40, 50)], log) == [0, 0, 0, 0, 2, 2, 2]


def test_a_step_that_is_not_printed_is_not_known_and_one_without_a_step_neither() -> None:
    log = in_one_log(range(2, 46, 2), range(22, 61, 2))
    assert norms([*run(0, 10, 15, 40, None), *run(1, 30, 40)], log) == [0, None, 0, None, 1, 1]


def test_where_a_layout_tells_no_runs_a_step_that_was_done_twice_is_in_doubt() -> None:
    log = in_one_log(range(1, 46), range(21, 61))
    assert norms(run(None, 10, 30, 60, 70), log) == [0, "?", 1, None]


def test_trainings_that_share_a_folder_are_laid_each_by_itself() -> None:
    log = in_one_log(range(1, 46), range(21, 61))
    others = [SavedCheckpoint(name="b", step=Step(step), run=0, prefix="b") for step in (50, 60)]
    assert norms([*run(0, 10, 40), *others], log) == [0, 0, 1, 1]


def test_at_another_batch_size_each_run_is_laid_in_its_own_steps() -> None:
    """Run 0 stopped at step 45; run 1 went on from its 30 with twice the batch as step 15, with half of it as 60."""
    twice = in_one_log(range(1, 46), range(16, 41))
    assert norms([*run(0, 10, 20, 30, 40), *run(1, 20, 30, 40)], twice) == [0, 0, 0, 0, 1, 1, 1]
    assert norms(run(1, 20, 30, 40), twice) == ["?", "?", "?"]
    half = [attempt([*range(1, 46), *range(61, 101)], 7.0)]
    assert norms([*run(0, 10, 20, 30, 40), *run(1, 70, 80)], half) == [7, 7, 7, 7, 7, 7]


def test_of_a_log_that_goes_back_without_end_nothing_is_said() -> None:
    saves = run(0, 10)
    (home,) = homes(saves, None)
    assert logged_step(saves[0], home, None).is_doubtful
    many = [save for number in range(500) for save in run(number, 10 * number + 10)]
    assert {home.sure for home in homes(many, in_one_log(*(range(1, 6000) for _ in range(5))))} == {False}


def test_not_a_number_agrees_with_itself() -> None:
    nan = float("nan")
    log = [attempt((1, 2), nan), attempt((1, 2), nan)]
    assert str(norms(run(None, 1), log)) == "[nan]"


def test_a_course_goes_on_from_what_was_done_before_it() -> None:
    log = in_one_log(range(1, 6), range(3, 9), range(2, 5), range(8, 10))
    assert [[(row.step, row.embedding_local_norm) for row in course(log, place)[0]] for place in range(4)] == [
        [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0)],
        [(1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1)],
        [(1, 0), (2, 2), (3, 2), (4, 2)],
        [(1, 0), (2, 2), (3, 2), (4, 2), (8, 3), (9, 3)],
    ]


@st.composite
def trainings(draw: st.DrawFn) -> tuple[list[tuple[list[int], list[int]]], int]:
    """Starts of a training: the steps that each did and those that it saved; and every how many steps it printed."""
    every = draw(st.integers(2, 6))
    stride = draw(st.sampled_from([1, 1, 2]))
    starts: list[tuple[list[int], list[int]]] = []
    saved = [0]
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.sampled_from(saved))
        steps = list(range(begin + 1, begin + draw(st.integers(1, 25)) + 1))
        saves = [step for step in steps if step % (every * stride) == 0]
        starts.append((steps, saves))
        saved += saves
    return starts, stride


def log_of(starts: Sequence[tuple[list[int], list[int]]], stride: int, lost: int) -> list[LogAttempt]:
    """What one log shows of them, the oldest ones lost: each step's norm tells its start."""
    stretches: list[tuple[list[int], set[int]]] = []
    for number, (steps, _) in enumerate(starts[lost:], lost):
        printed = [step for step in steps if step % stride == 0]
        if not printed:
            continue
        if stretches and stretches[-1][0][-1] < printed[0]:
            stretches[-1] = ([*stretches[-1][0], *printed], stretches[-1][1] | {number})
        else:
            stretches.append((printed, {number}))
    return [
        replace(one, rows=[replace(row, embedding_local_norm=_norm(starts, who, row.step)) for row in one.rows])
        for one, (_, who) in zip(in_one_log(*(steps for steps, _ in stretches)), stretches, strict=True)
    ]


def _norm(starts: Sequence[tuple[list[int], list[int]]], who: Iterable[int], step: int) -> float:
    return 1000.0 * next(number for number in who if step in starts[number][0]) + step


@pytest.mark.parametrize("what", ["the oldest of the log", "files"])
@given(trainings(), st.data())
def test_no_checkpoint_ever_gets_the_norm_of_another_start(
    what: str, training: tuple[list[tuple[list[int], list[int]]], int], data: st.DataObject
) -> None:
    """Where files of runs are lost, or the oldest part of the log; of both together nothing is left to be told."""
    starts, stride = training
    saves: list[SavedCheckpoint] = []
    truth: list[float] = []
    number = 0
    for start, (_, steps) in enumerate(starts):
        saves += run(number, *steps)
        truth += [1000.0 * start + step for step in steps]
        number += bool(steps)
    lost = data.draw(st.sets(st.integers(0, number))) if what == "files" else set()
    log = log_of(starts, stride, 0 if what == "files" else data.draw(st.integers(0, len(starts) - 1)))
    kept = [(save, true) for save, true in zip(saves, truth, strict=True) if save.run not in lost]
    found = norms([save for save, _ in kept], log)
    assert all(norm in {"?", None, true} for norm, (_, true) in zip(found, kept, strict=True)), (kept, found)


@given(trainings())
def test_every_run_that_is_whole_and_logged_has_its_own_norms(
    training: tuple[list[tuple[list[int], list[int]]], int],
) -> None:
    """Where each start saved something, and no two began at the same step: else one may stand for the other."""
    starts, stride = training
    assume(all(saves for _, saves in starts))
    assume(len({steps[0] for steps, _ in starts}) == len(starts))
    saves = [save for number, (_, steps) in enumerate(starts) for save in run(number, *steps)]
    truth = [1000.0 * number + step for number, (_, steps) in enumerate(starts) for step in steps]
    assert norms(saves, log_of(starts, stride, 0)) == truth


def test_a_home_is_known_where_one_attempt_alone_is_left() -> None:
    homes_of = [Home(attempts=(3,), sure=True), Home(attempts=(3,), sure=False), Home(attempts=(1, 3), sure=True)]
    assert [home.known for home in homes_of] == [3, None, None]
