"""What experiments tell together: who is guilty, what makes it well, or what to run next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.fp8.model.curves import Curve, CurveClass
from ckpttool.fp8.model.fp8 import Arithmetic, Gemm, Recipe
from ckpttool.fp8.model.plan import (
    EXTRAS,
    FAKE,
    FRESH_HISTORY,
    LAST,
    REFERENCE,
    REGROUPED,
    REPEATED,
    UNCHANGED,
    AsPlanned,
    Cure,
    Evidence,
    Fp8Plan,
    Fp8Verdict,
    NextRound,
    Outcome,
    Shown,
    VerdictKind,
)
from ckpttool.fp8.rules.experiments import CHEAPEST_FIRST, Known, name_of, next_round
from ckpttool.fp8.rules.horizon import LONGEST
from ckpttool.fp8.rules.measure import Cell, Measured, Run, cell_of, measure
from ckpttool.fp8.rules.shares import RESTORED, is_settled, shapley

_LIMITS = 3
"""So many floors must lie in the candidate's gap before parts of it can be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """What the first row that holds says."""

    kind: VerdictKind
    because: str
    culprits: Cell = frozenset()
    cure: Cure | None = None
    run: tuple[str, ...] = ()
    """What was planned and is still missing for more to be said."""
    notes: tuple[str, ...] = ()


def judge(plan: Fp8Plan, runs: Sequence[Run], baseline: Curve | None, *, recipes: tuple[Recipe, ...]) -> Fp8Verdict:
    """Judge what was run.

    Args:
        plan: As it was written.
        runs: All of its experiments, with a log or without.
        baseline: The loss of the old BF16 run; None where its log is not there any more.
        recipes: Those that the framework has.
    """
    measured = measure(plan, runs, baseline)
    row = _row(measured)
    culprits = tuple(gemm for gemm in Gemm if gemm in row.culprits)
    verdict = Fp8Verdict(
        round=plan.round,
        kind=row.kind,
        because=row.because,
        culprits=culprits,
        operands=(),
        layers=_layers(measured) if culprits else None,
        explains=_explains(measured, row.culprits),
        cure=row.cure,
        experiments=measured.shown,
        shares=_shares(measured),
        floor=measured.floor,
        limit=measured.limit,
        next=None,
        notes=(*row.notes, *_unproven_runs(measured)),
    )
    verdict = _with_operands(verdict, measured)
    return replace(verdict, next=_next(verdict, row, plan, recipes))


def _row(measured: Measured) -> _Row:
    """Return the first row of the table that holds."""
    ground = _groundwork(measured)
    if ground is not None:
        return ground
    cells = measured.cells
    without = [run for run in measured.runs if run.experiment.trial.without or run.experiment.trial.id == EXTRAS]
    well = [run for run in without if measured.outcome(run.experiment.trial.id) is Outcome.RESTORES]
    if well:
        least = min(well, key=lambda run: len(run.experiment.trial.without)).experiment
        named = ", ".join(least.trial.without) or "the extras"
        return _Row(
            kind=VerdictKind.SOFTWARE,
            because=f"without {named} the gap is gone: it is software, not the arithmetic",
            cure=_cure(measured, least.trial.id, keeps_fp8=True),
        )
    if measured.outcome(FRESH_HISTORY) is Outcome.RESTORES:
        return _Row(
            kind=VerdictKind.STALE_SCALE,
            because="without the scale history the gap is gone: a stale largest magnitude did it",
            cure=_cure(measured, FRESH_HISTORY, keeps_fp8=True),
            notes=("a shorter history or current scaling keeps it from coming back",),
        )
    culprits = _culprits(measured, cells)
    if measured.outcome(FAKE) in {Outcome.NO, Outcome.WORSE}:
        return _Row(
            kind=VerdictKind.FORMAT,
            because="a current scale does not help either: not the scale but the format is too coarse",
            culprits=culprits,
            cure=_best_cure(measured, culprits) or _cure(measured, f"E6-{Recipe.BLOCKWISE.value}", keeps_fp8=True),
            notes=("blockwise or mxfp8, else BF16 for the culprits",),
        )
    if culprits:
        return _named(measured, culprits)
    return _open(measured, cells)


def _groundwork(measured: Measured) -> _Row | None:
    """Return what is to be put right before anybody can be blamed: rows 1 to 3."""
    plan, unchanged = measured.plan, measured.unchanged
    missing = tuple(name for name in (REFERENCE, REGROUPED, UNCHANGED) if not _counts(measured.of(name)))
    if missing or unchanged is None or measured.limit is None or measured.floor is None:
        names = " and ".join(missing)
        return _Row(kind=VerdictKind.UNDECIDED, because=f"nothing can be said without {names}", run=missing)
    old = measured.baseline
    beyond = max(plan.suspicion.limit or plan.limit, old.gap.half) if old is not None else 0.0
    if old is not None and abs(old.gap.mean) > beyond:
        return _Row(
            kind=VerdictKind.DAMAGED_START,
            because=f"BF16 from {plan.start.name or f'step {plan.start.step}'} is {old.gap.mean:+.4g} from the old "
            f"baseline, more than {beyond:.4g}: the weights there are damaged already",
            notes=("plan from an earlier checkpoint: --checkpoint-step",),
        )
    gap, expected = unchanged.gap.mean, plan.suspicion.gap
    if abs(gap) <= measured.limit or (expected is not None and expected * gap < 0):
        return _not_reproduced(measured, gap)
    if abs(gap) < _LIMITS * measured.floor:
        return _Row(
            kind=VerdictKind.WEAK,
            because=f"the gap of C, {gap:.4g}, is under three times the noise floor of {measured.floor:.4g}",
            notes=(f"plan longer runs in a new folder: --horizon {2 * plan.horizon}",),
        )
    return None


def _counts(result: Shown | None) -> bool:
    return result is not None and result.gate.is_valid


def _not_reproduced(measured: Measured, gap: float) -> _Row:
    plan = measured.plan
    reason = f"the gap does not come back: C is {gap:+.4g} from B, and {measured.limit:.4g} counts"
    if plan.suspicion.kind is CurveClass.INCONCLUSIVE:
        return _Row(kind=VerdictKind.INNOCENT, because=f"{reason}: FP8 does what BF16 does")
    repeat = measured.of(REPEATED)
    if repeat is not None and repeat.gap is not None and repeat.gate.is_valid:
        if abs(repeat.gap.mean) <= (measured.limit or 0.0):
            return _Row(
                kind=VerdictKind.INNOCENT,
                because="twice the gap does not come back: hardware or data did it, not FP8's numbers",
                notes=("ckpttool health and ckpttool replay look there",),
            )
        return _Row(
            kind=VerdictKind.UNDECIDED,
            because=f"the gap comes back once in two runs: C2 is {repeat.gap.mean:+.4g} from B",
            notes=("something outside the arithmetic decides whether it comes: run on other machines",),
        )
    is_restart = plan.start.evidence is not Evidence.SCRATCH  # from scratch nobody ever has a history
    if plan.recipe is Recipe.DELAYED and is_restart and plan.start.has_history is False:
        return _Row(
            kind=VerdictKind.STALE_SCALE,
            because=f"{reason}; the checkpoint holds no scale history, so the restart itself has dropped it",
            cure=_cure(measured, UNCHANGED, keeps_fp8=True),
            notes=("a shorter history or current scaling keeps it from coming back",),
        )
    return _Row(kind=VerdictKind.NOT_REPRODUCED, because=reason)


def _price(cell: Cell) -> tuple[int, list[int]]:
    return len(cell), sorted((CHEAPEST_FIRST.index(gemm) for gemm in cell), reverse=True)


def _culprits(measured: Measured, cells: Mapping[Cell, Shown]) -> Cell:
    """Return the smallest set of products without which all is well; empty where none is known yet.

    One is blamed only where none that costs less is left that could be tried.
    """
    well = sorted((cell for cell, result in cells.items() if result.outcome is Outcome.RESTORES), key=_price)
    if well and not any(_price(cell) < _price(well[0]) for cell in _untried(measured, cells)):
        return well[0]
    takes_all = not well and len(_pairs(cells)) == len(Gemm) and _suspicion(measured) is None
    return frozenset(Gemm) if takes_all else frozenset()


def _pairs(cells: Mapping[Cell, Shown]) -> list[Shown]:
    """Return what two products in BF16 did, what closes most first."""
    pairs = [result for cell, result in cells.items() if len(cell) == len(Gemm) - 1]
    return sorted(pairs, key=lambda result: result.recovered or 0.0, reverse=True)


def _suspicion(measured: Measured) -> str | None:
    """Say why all three products cannot be blamed, though no pair brings the loss back; None: they can.

    That B is well says nothing: it is what all are held against.
    """
    for pair in _pairs(measured.cells):
        closes = f"{pair.id} closes {pair.recovered or 0.0:.0%} of the gap"
        if (pair.recovered_high or 0.0) >= RESTORED:
            return f"{closes}, and it may be {pair.recovered_high:.0%}"
        if measured.unchanged is None or not is_settled(measured.unchanged, measured.stretches[pair.id]):
            return f"{closes}, and that or the gap itself still grows"
    return None


def _untried(measured: Measured, cells: Mapping[Cell, Shown]) -> list[Cell]:
    """Return the sets that were planned, can be expressed here and have not been seen yet."""
    planned = [run.experiment for run in measured.runs if run.experiment.change is not None]
    tried = [cell for experiment in planned if (cell := cell_of(experiment.trial)) is not None]
    return [cell for cell in tried if cell not in cells]


def _named(measured: Measured, culprits: Cell) -> _Row:
    named = " and ".join(gemm.value for gemm in Gemm if gemm in culprits)
    closed = _explains(measured, culprits)
    stale = measured.outcome(FAKE) is Outcome.RESTORES
    if culprits == frozenset(Gemm):
        best = _pairs(measured.cells)[0]
        because = f"it takes all three products: of the pairs {best.id} closes most, {best.recovered:.1%} of the gap"
    else:
        share = "" if closed is None else f" ({closed:.1%} of the gap is closed)"
        because = f"with {named} in BF16 it is well{share}"
    if stale:
        because += f", and so it is in FP8 with a current scale: the delayed scale of {named} does it"
    smaller = [run.experiment for run in measured.runs if run.experiment.change is None]
    cells = [(cell.trial.id, cell_of(cell.trial)) for cell in smaller]
    separate = [name for name, cell in cells if cell and cell < culprits]
    notes = (f"which of them alone would do cannot be told here: {', '.join(separate)}",) if separate else ()
    return _Row(
        kind=VerdictKind.CULPRIT,
        because=because,
        culprits=culprits,
        cure=_best_cure(measured, culprits),
        notes=notes,
    )


def _open(measured: Measured, cells: Mapping[Cell, Shown]) -> _Row:
    """Say what is missing where nobody can be named."""
    untried = sorted(_untried(measured, cells), key=_price)
    if untried:
        least = len(untried[0])
        missing = tuple(name_of(cell) for cell in untried if len(cell) == least)
        return _Row(
            kind=VerdictKind.UNDECIDED, because=f"nobody can be named without {' and '.join(missing)}", run=missing
        )
    suspicion = _suspicion(measured) if len(_pairs(cells)) == len(Gemm) else None
    if suspicion is not None:
        return _Row(
            kind=VerdictKind.UNDECIDED,
            because=f"no two products bring the loss back, but {suspicion}: too short to tell whether it "
            "takes all three",
            notes=(f"plan longer runs in a new folder: --horizon {min(2 * measured.plan.horizon, LONGEST)}",),
        )
    return _Row(
        kind=VerdictKind.UNDECIDED,
        because="no product alone brings the loss back: two together may",
    )


def _cure(measured: Measured, name: str, *, keeps_fp8: bool) -> Cure:
    result = measured.of(name)
    how = None if result is None or result.outcome is None else result.outcome is Outcome.RESTORES
    experiment = next((run.experiment for run in measured.runs if run.experiment.trial.id == name), None)
    restores = True if name == UNCHANGED else how
    change = None if experiment is None else experiment.change
    return Cure(id=name, restores=restores, keeps_fp8=keeps_fp8, change=change)


def _best_cure(measured: Measured, culprits: Cell) -> Cure | None:
    """Return what was shown to help and keeps FP8, the least change first; else BF16 for the culprits."""
    for run in sorted(measured.runs, key=lambda run: run.experiment.trial.recipe is not None):
        trial = run.experiment.trial
        is_whole_model = trial.layers is None and trial.operand is None
        is_cure = trial.recipe is not None or Arithmetic.CURRENT in {trial.products.of(gemm) for gemm in Gemm}
        if is_whole_model and is_cure and measured.outcome(trial.id) is Outcome.RESTORES:
            return _cure(measured, trial.id, keeps_fp8=True)
    if not culprits:
        return None
    if culprits == frozenset(Gemm):
        return replace(_cure(measured, REFERENCE, keeps_fp8=False), restores=True)
    return _cure(measured, name_of(culprits), keeps_fp8=False)


def _explains(measured: Measured, culprits: Cell) -> float | None:
    result = measured.cells.get(culprits)
    return None if not culprits or result is None or culprits == frozenset(Gemm) else result.recovered


def _layers(measured: Measured) -> str | None:
    trials = [
        run.experiment.trial
        for run in measured.runs
        if run.experiment.trial.layers is not None and measured.outcome(run.experiment.trial.id) is Outcome.RESTORES
    ]
    return max(trials, key=lambda trial: len(trial.id)).layers if trials else None


def _with_operands(verdict: Fp8Verdict, measured: Measured) -> Fp8Verdict:
    """Name the operands: with a current scale for one alone it is well, or with it alone in FP8 it is not."""
    guilty = []
    for run in measured.runs:
        trial = run.experiment.trial
        how = measured.outcome(trial.id)
        if trial.operand is None or how is None:
            continue
        helps = how is Outcome.RESTORES
        is_scale = Arithmetic.CURRENT in {trial.products.of(gemm) for gemm in Gemm}
        if helps if is_scale else not helps:
            guilty.append(trial.operand)
    return replace(verdict, operands=tuple(guilty)) if verdict.culprits else verdict


def _shares(measured: Measured) -> tuple[tuple[Gemm, float], ...] | None:
    """Return each product's share where all eight sets were run."""
    every = frozenset(Gemm)
    gaps = {every - cell: 0.0 if result.gap is None else result.gap.mean for cell, result in measured.cells.items()}
    return shapley(gaps) if len(gaps) == 2 ** len(Gemm) else None


def _unproven_runs(measured: Measured) -> Iterator[str]:
    """Say which runs count though nothing tells that they ran as planned, or that they ran at all."""
    names = [
        result.id for result in measured.shown if result.gate.is_valid and result.gate.as_planned is AsPlanned.UNKNOWN
    ]
    if names:
        yield f"nothing in their logs tells what was computed, so they are taken at their word: {', '.join(names)}"
    for duplicates in measured.alike:
        yield f"the losses of {' and '.join(duplicates)} are the same to the last digit: is it one log, given twice?"
    last = measured.of(LAST)
    if last is not None and last.outcome is not None:
        closed = "" if last.note is None else f" ({last.note})"
        yield f"BF16 from the candidate's last checkpoint: {last.outcome.value}{closed}"


def _next(verdict: Fp8Verdict, row: _Row, plan: Fp8Plan, recipes: tuple[Recipe, ...]) -> NextRound | None:
    if row.run:
        return NextRound(round=plan.round, ids=row.run, steps=len(row.run) * plan.horizon)
    trials = next_round(
        plan.round + 1, Known.of(plan, recipes), verdict, [experiment.trial for experiment in plan.experiments]
    )
    if not trials:
        return None
    ids = tuple(trial.id for trial in trials)
    return NextRound(round=plan.round + 1, ids=ids, steps=len(ids) * plan.horizon)
