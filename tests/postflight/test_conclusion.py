"""Whether the judgements are enough for an answer, and the exit code and the line that follow from them."""

from __future__ import annotations

import pytest

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.preflight import exit_of
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import ExitCode
from ckpttool.postflight.checks import CODES, checks_of, words_of
from ckpttool.postflight.conclusion import conclude
from ckpttool.postflight.findings import PostflightCode
from ckpttool.postflight.headline import headline_of
from ckpttool.postflight.model import Aspect, Comparison, Judged, Repeated, State, Word
from ckpttool.postflight.model.answers import Conclusion, Outcome, Resumed, StepSource

PROVEN = dict.fromkeys(Aspect, State.PROVEN)
RESUMED = Resumed(saved=Step(500), source=StepSource.PLAN, before=("a",), after=("b",))


def comparison(states: dict[Aspect, State], *, word: Word | None = None, rows: int = 30) -> Comparison:
    return Comparison(
        saved=Step(500),
        loaded=Step(500),
        first=Step(501),
        aspects=tuple(
            Judged(aspect=aspect, state=state, why="seen", word=word if state is State.CONTRADICTED else None)
            for aspect, state in states.items()
        ),
        repeated=tuple(Repeated(step=Step(501 + row), before=2.0, after=2.0 + 1e-9 * row) for row in range(rows)),
        median_z=0.0,
        loss_noise=0.1,
        resolution=1e-5,
    )


def ended(seen: Comparison, *, coming: int = 0, accepted: frozenset[Word] = frozenset()) -> tuple[Conclusion, ExitCode]:
    last = 500 + len(seen.repeated)
    conclusion = conclude(seen, seen.aspects, accepted, [Step(last + row + 1) for row in range(coming)])
    return conclusion, exit_of(checks_of(seen.aspects, conclusion, accepted, None))


def test_a_kind_of_finding_belongs_to_every_fault() -> None:
    assert {*CODES} == {*Word}
    others = {PostflightCode.RESUME_NOT_SHOWN, PostflightCode.RESUME_NOT_PROVABLE}
    assert {*CODES.values(), *others} == {*PostflightCode}
    assert words_of([PostflightCode.RESUME_DIFFERS, PostflightCode.RESUME_NOT_SHOWN]) == {Word.DIFFERS}


def test_all_parts_proven_is_right() -> None:
    seen = comparison(PROVEN)
    assert ended(seen) == (Conclusion(outcome=Outcome.RESUMED), ExitCode.OK)
    line = headline_of(RESUMED, seen, seen.aspects, ended(seen)[0], frozenset())
    assert line == "Resumed as planned: steps 501 to 530 equal the first run to within 1 % of the step noise"


@pytest.mark.parametrize("aspect", [Aspect.DATA, Aspect.WEIGHTS, Aspect.UPDATE])
@pytest.mark.parametrize("state", [State.CONSISTENT, State.NOT_SHOWN])
def test_a_part_that_is_not_proven_is_unknown_and_never_right(aspect: Aspect, state: State) -> None:
    conclusion, code = ended(comparison(PROVEN | {aspect: state}))
    assert (conclusion.outcome, conclusion.is_final, code) == (Outcome.UNKNOWN, True, ExitCode.INCOMPLETE)
    assert conclusion.missing == f"{aspect.value} not proven: seen"


@pytest.mark.parametrize("word", [word for word in Word if word is not Word.RANDOM])
def test_a_contradiction_is_wrong_unless_it_is_accepted(word: Word) -> None:
    seen = comparison(PROVEN | {Aspect.UPDATE: State.CONTRADICTED}, word=word)
    conclusion, code = ended(seen)
    assert (conclusion.outcome, code) == (Outcome.WRONG, ExitCode.DAMAGE)
    assert headline_of(RESUMED, seen, seen.aspects, conclusion, frozenset()).startswith("The resume is wrong: it ") or (
        word in {Word.OPTIMIZER, Word.LEARNING_RATE}
    )
    assert ended(seen, accepted=frozenset({word})) == (Conclusion(outcome=Outcome.RESUMED), ExitCode.OK)


@pytest.mark.parametrize(("rows", "coming", "until"), [(8, 22, 520), (8, 2, 510), (8, 0, None), (20, 10, None)])
def test_a_difference_without_a_cause_waits_for_the_rows_that_may_show_it(
    rows: int, coming: int, until: int | None
) -> None:
    seen = comparison(PROVEN | {Aspect.WEIGHTS: State.CONTRADICTED}, word=Word.DIFFERS, rows=rows)
    conclusion, code = ended(seen, coming=coming)
    assert (conclusion.outcome, code) == (Outcome.WRONG, ExitCode.DAMAGE)
    assert (conclusion.until, conclusion.is_final) == (until, until is None)
    named = comparison(PROVEN | {Aspect.WEIGHTS: State.CONTRADICTED}, word=Word.CHECKPOINT, rows=rows)
    assert ended(named, coming=coming)[0].is_final


def test_a_lost_random_state_is_only_suspected() -> None:
    seen = comparison(PROVEN | {Aspect.WEIGHTS: State.CONTRADICTED}, word=Word.RANDOM)
    conclusion, code = ended(seen)
    assert (conclusion.outcome, code) == (Outcome.UNKNOWN, ExitCode.INCOMPLETE)
    line = headline_of(RESUMED, seen, seen.aspects, conclusion, frozenset())
    assert line == "Cannot tell from these logs: the random-number state may be lost: seen"


@pytest.mark.parametrize(
    ("rows", "coming", "more"), [(2, 28, "8 more logged steps"), (9, 5, "1 more logged step "), (2, 3, "3 more")]
)
def test_the_missing_steps_are_counted(rows: int, coming: int, more: str) -> None:
    conclusion, code = ended(comparison(PROVEN | {Aspect.UPDATE: State.NOT_SHOWN}, rows=rows), coming=coming)
    assert (conclusion.outcome, code, conclusion.is_final) == (Outcome.UNKNOWN, ExitCode.INCOMPLETE, False)
    assert str(conclusion.missing).startswith(more)


def test_a_first_run_that_stopped_too_early_proves_no_update() -> None:
    conclusion, _ = ended(comparison(PROVEN | {Aspect.UPDATE: State.CONSISTENT}, rows=4))
    assert conclusion.missing == "the first run logged 4 steps to repeat, and 10 prove the updates"
    assert conclusion.is_final


def test_unknown_noise_is_the_reason_before_missing_steps() -> None:
    seen = comparison(PROVEN | {Aspect.DATA: State.NOT_SHOWN}, rows=2)
    conclusion, _ = ended(replace(seen, loss_noise=None, resolution=None), coming=20)
    assert (conclusion.missing, conclusion.is_final) == ("seen", True)


def test_an_accepted_fault_of_every_part_needs_no_reason() -> None:
    seen = comparison(dict.fromkeys(Aspect, State.CONTRADICTED), word=Word.DIFFERS)
    assert ended(seen, accepted=frozenset({Word.DIFFERS}))[1] == ExitCode.OK
