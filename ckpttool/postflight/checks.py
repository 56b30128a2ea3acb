"""The judgements as checks with findings, for the exit code and every format of a report."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ckpttool.core.domain.finding import Finding, note, suspect, unknown
from ckpttool.core.domain.preflight import Check, Reason
from ckpttool.core.findings import Row
from ckpttool.postflight.conclusion import is_against, is_suspected
from ckpttool.postflight.findings import PostflightCode
from ckpttool.postflight.model import Aspect, Judged, State, Word
from ckpttool.postflight.model.answers import Conclusion, Outcome

CODES = {
    Word.POSITION: PostflightCode.RESUME_POSITION_WRONG,
    Word.LEARNING_RATE: PostflightCode.RESUME_LEARNING_RATE_RESTARTED,
    Word.OPTIMIZER: PostflightCode.RESUME_OPTIMIZER_LOST,
    Word.DATA_REPEATED: PostflightCode.RESUME_DATA_REPEATED,
    Word.DATA_OTHER: PostflightCode.RESUME_DATA_OTHER,
    Word.RANDOM: PostflightCode.RESUME_RANDOM_STATE_LOST,
    Word.CHECKPOINT: PostflightCode.RESUME_OTHER_CHECKPOINT,
    Word.SCRATCH: PostflightCode.RESUME_WEIGHTS_LOST,
    Word.DIFFERS: PostflightCode.RESUME_DIFFERS,
}
"""The kind of finding of each fault."""


def words_of(codes: Iterable[Row]) -> frozenset[Word]:
    """Return the faults of some kinds of findings; other kinds are ignored."""
    accepted = set(codes)
    return frozenset(word for word, code in CODES.items() if code in accepted)


def checks_of(
    aspects: Sequence[Judged], conclusion: Conclusion, accepted: Collection[Word], trainer: str | None
) -> tuple[Check, ...]:
    """Return a check for each aspect.

    Args:
        aspects: The judgements.
        conclusion: The conclusion from them.
        accepted: Faults that the user accepts.
        trainer: Title of the trainer, whose usual cause the remedy names; None: unknown.
    """
    unproven = _unproven(aspects) if conclusion.outcome is Outcome.UNKNOWN else None
    return tuple(_check(judged, conclusion, accepted, trainer, is_unproven=judged is unproven) for judged in aspects)


def _unproven(aspects: Sequence[Judged]) -> Judged | None:
    """Return the aspect that has to be proven and is not; None if a suspected fault is the reason."""
    if any(judged.state is State.CONTRADICTED and is_suspected(judged) for judged in aspects):
        return None
    order = (Aspect.DATA, Aspect.WEIGHTS, Aspect.UPDATE, Aspect.POSITION)
    by_need = sorted(aspects, key=lambda judged: order.index(judged.aspect))
    undecided = [judged for judged in by_need if judged.state is not State.CONTRADICTED]
    return next((judged for judged in undecided if judged.state is not State.PROVEN), next(iter(undecided), None))


def _check(
    judged: Judged, conclusion: Conclusion, accepted: Collection[Word], trainer: str | None, *, is_unproven: bool
) -> Check:
    reasons: tuple[Reason, ...] = ()
    allowed: tuple[Reason, ...] = ()
    if is_against(judged, accepted):
        reasons = (Reason(finding=_finding(judged, trainer)),)
    elif judged.state is State.CONTRADICTED and judged.word is not None:
        allowed = (Reason(finding=note(CODES[judged.word], judged.why)),)
    elif is_unproven:
        reasons = (Reason(finding=unknown(PostflightCode.RESUME_NOT_SHOWN, conclusion.missing or judged.why)),)
    return Check(
        name=judged.aspect.value,
        summary=f"{judged.state.value.replace('-', ' ')}: {judged.why}",
        reasons=reasons,
        allowed=allowed,
        unsure=judged.state is State.NOT_SHOWN,
    )


def _finding(judged: Judged, trainer: str | None) -> Finding:
    code = CODES[judged.word or Word.DIFFERS]
    cause = None if trainer is None else code.trainers.get(trainer)
    remedy = code.remedy if cause is None else f"usual cause in {trainer}: {cause}".rstrip(".")
    make = unknown if is_suspected(judged) else suspect
    return make(code, judged.why, remedy=remedy)
