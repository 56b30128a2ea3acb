"""The answer in one line."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ckpttool.postflight.conclusion import is_against, is_suspected
from ckpttool.postflight.model import Aspect, Comparison, Judged, State, Word
from ckpttool.postflight.model.answers import Conclusion, Outcome, Resumed, StepSource

EQUAL = "to within 1 % of the step noise"

_CLAUSES = {
    Word.POSITION: "it continues from another step",
    Word.LEARNING_RATE: "the learning-rate schedule began again",
    Word.OPTIMIZER: "the optimizer state was not restored",
    Word.DATA_REPEATED: "it trains on samples that were trained on before",
    Word.DATA_OTHER: "it trains on other batches",
    Word.RANDOM: "the random-number state may be lost",
    Word.CHECKPOINT: "it has the weights of another checkpoint",
    Word.SCRATCH: "it started with fresh weights",
    Word.DIFFERS: "it differs from the first run",
}


def headline_of(
    resumed: Resumed,
    comparison: Comparison | None,
    aspects: Sequence[Judged],
    conclusion: Conclusion,
    accepted: Collection[Word],
) -> str:
    """Return the answer in one line.

    Args:
        resumed: The save, and its source.
        comparison: The comparison of the logs; None without two runs.
        aspects: The judgements.
        conclusion: The conclusion from them.
        accepted: Faults that the user accepts.
    """
    if conclusion.outcome is Outcome.UNKNOWN or comparison is None:
        return f"Cannot tell {'from these logs' if conclusion.is_final else 'yet'}: {conclusion.missing}"
    if conclusion.outcome is Outcome.WRONG:
        return f"The resume is wrong: {_faults(resumed, comparison, aspects, accepted)}"
    start = f"Resumed from step {resumed.saved}" if resumed.source is StepSource.TREE else "Resumed as planned"
    return f"{start}: {_equal_steps(comparison, aspects)}"


def _faults(resumed: Resumed, comparison: Comparison, aspects: Sequence[Judged], accepted: Collection[Word]) -> str:
    clauses = []
    for judged in aspects:
        if is_against(judged, accepted) and not is_suspected(judged) and judged.word is not None:
            clause = _CLAUSES[judged.word]
            if judged.word is Word.POSITION:
                clause = f"it continues at step {comparison.first}, not after step {resumed.saved}"
            if judged.word is Word.DIFFERS and judged.aspect is Aspect.UPDATE:
                clause = "it trains with another learning rate"
            clauses.append(clause)
    return "; ".join(dict.fromkeys(clauses))


def _equal_steps(comparison: Comparison, aspects: Sequence[Judged]) -> str:
    rows = comparison.repeated
    steps = f"steps {rows[0].step} to {rows[-1].step}" if len(rows) > 1 else f"step {rows[0].step}"
    verb = "equal" if len(rows) > 1 else "equals"
    update = next(judged for judged in aspects if judged.aspect is Aspect.UPDATE)
    if update.state is not State.PROVEN:
        return f"step {rows[0].step} equals the first run {EQUAL}, and {steps} contradict nothing"
    if all(row.before == row.after for row in rows):
        return f"{steps} {verb} the first run to the last printed digit"
    return f"{steps} {verb} the first run {EQUAL}"
