"""The section of a page about the last resume that the logs show. All texts are unescaped."""

from __future__ import annotations

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Step
from ckpttool.core.render.escape import shown
from ckpttool.postflight.model import State
from ckpttool.postflight.model.answers import Outcome, Postflight
from ckpttool.report.page.content import Tone

_TONES = {Outcome.RESUMED: Tone.GOOD, Outcome.WRONG: Tone.BAD, Outcome.UNKNOWN: Tone.DOUBT}

_STATE_TONES = {
    State.PROVEN: Tone.GOOD,
    State.CONSISTENT: Tone.PLAIN,
    State.NOT_SHOWN: Tone.PLAIN,
    State.CONTRADICTED: Tone.BAD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a resume, on one line."""

    name: str
    state: str
    tone: Tone
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The judgement of a resume."""

    headline: str
    tone: Tone
    parts: tuple[Part, ...]
    assumptions: tuple[str, ...]
    before: tuple[tuple[Step, float], ...]
    """Losses of the first run at the repeated steps."""
    after: tuple[tuple[Step, float], ...]
    """Losses of the resumed run at the same steps."""


def resumed(answer: Postflight) -> Resumed:
    """Summarize the judgement of a resume."""
    rows = () if answer.comparison is None else answer.comparison.repeated
    return Resumed(
        headline=shown(answer.headline),
        tone=_TONES[answer.conclusion.outcome],
        parts=tuple(
            Part(
                name=judged.aspect.value,
                state=judged.state.value.replace("-", " "),
                tone=_STATE_TONES[judged.state],
                why=shown(judged.why),
            )
            for judged in answer.aspects
        ),
        assumptions=tuple(map(shown, answer.assumptions)),
        before=tuple((row.step, row.before) for row in rows),
        after=tuple((row.step, row.after) for row in rows),
    )
