"""Verdict on a plan's experiments: the cause of the gap, its fix, or the next experiments.

`TABLE` contains all rules. The first row whose condition is true is the verdict. The conditions are defined below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.fp8.model.curves import Curve, CurveClass
from ckpttool.fp8.model.fp8 import Arithmetic, Gemm, Operand, Recipe
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
    Experiment,
    Fp8Plan,
    Fp8Verdict,
    NextRound,
    Outcome,
    Shown,
    VerdictKind,
)
from ckpttool.fp8.rules.experiments import CHEAPEST_FIRST, Known, name_of, next_round
from ckpttool.fp8.rules.grounds import LONGEST
from ckpttool.fp8.rules.measure import Measured, Run, measure
from ckpttool.fp8.rules.shares import RESTORED, is_settled, shapley

_LIMITS = 3
"""Factor by which the candidate's gap must exceed the floor before its parts can be distinguished."""

_ALL = frozenset(Gemm)


def judge(plan: Fp8Plan, runs: Sequence[Run], baseline: Curve | None, *, recipes: tuple[Recipe, ...]) -> Fp8Verdict:
    """Judge the runs.

    Args:
        plan: The plan as written.
        runs: All experiments of the plan, with or without a log.
        baseline: The loss of the old BF16 run, or None if its log no longer exists.
        recipes: The recipes that the framework supports.
    """
    measured = measure(plan, runs, baseline)
    facts = Facts(measured)
    row = next(row for row in TABLE if row.when(facts))
    culprits = facts.culprits if row.blames else frozenset()
    notes = (note.format(facts) for note in row.notes)
    verdict = Fp8Verdict(
        round=plan.round,
        kind=row.kind,
        because=row.because.format(facts),
        culprits=tuple(gemm for gemm in Gemm if gemm in culprits),
        operands=tuple(_operands(measured)) if culprits else (),
        layers=_layers(measured) if culprits else None,
        explains=facts.explained if culprits else None,
        cure=row.cure(facts),
        experiments=tuple(measured.shown.values()),
        shares=_shares(measured),
        floor=None if math.isinf(measured.floor) else measured.floor,
        limit=None if math.isinf(measured.limit) else measured.limit,
        next=None,
        notes=(*filter(None, notes), *_unproven_runs(measured)),
    )
    missing = row.run(facts)
    if missing:
        return replace(verdict, next=NextRound(round=plan.round, ids=missing, steps=len(missing) * plan.horizon))
    planned = [experiment.trial for experiment in plan.experiments]
    ids = tuple(trial.id for trial in next_round(plan.round + 1, Known.of(plan, recipes), verdict, planned))
    following = NextRound(round=plan.round + 1, ids=ids, steps=len(ids) * plan.horizon) if ids else None
    return replace(verdict, next=following)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table: the condition, the conclusion, the reason, and what to do."""

    when: Callable[[Facts], bool]
    kind: VerdictKind
    because: str
    """The reason in one sentence. Like `notes`, it refers to facts in braces."""
    blames: bool = False
    """Whether the suspected products are proven to cause the gap, if there are any."""
    cure: Callable[[Facts], Cure | None] = lambda _: None
    run: Callable[[Facts], tuple[str, ...]] = lambda _: ()
    """Returns the planned experiments that still have to be run. If empty, the next round follows."""
    notes: tuple[str, ...] = ()


_NOT_REPRODUCED = "the gap does not come back: C is {0.gap:+.4g} from B, and the limit is {0.limit:.4g}"
_KEEP_SHORT = "a shorter history or current scaling prevents it from coming back"
_LONGER = "plan longer runs in a new folder: --horizon {0.longer}"

TABLE = (
    Row(
        when=lambda facts: bool(facts.missing) or math.isinf(facts.limit),
        kind=VerdictKind.UNDECIDED,
        because="there is no answer without {0.missing_names}",
        run=lambda facts: facts.missing,
    ),
    Row(
        when=lambda facts: abs(facts.old_gap) > facts.old_limit,
        kind=VerdictKind.DAMAGED_START,
        because=(
            "BF16 from {0.start} is {0.old_gap:+.4g} from the old baseline, more than {0.old_limit:.4g}: the "
            "weights there are already damaged"
        ),
        notes=("plan from an earlier checkpoint: --checkpoint-step",),
    ),
    Row(
        when=lambda facts: not facts.is_reproduced and facts.plan.suspicion.kind is CurveClass.INCONCLUSIVE,
        kind=VerdictKind.INNOCENT,
        because=f"{_NOT_REPRODUCED}: FP8 behaves like BF16",
    ),
    Row(
        when=lambda facts: not facts.is_reproduced and abs(facts.gap_again) <= facts.limit,
        kind=VerdictKind.INNOCENT,
        because="the gap did not come back in two runs: the cause is hardware or data, not FP8 arithmetic",
        notes=("check with ckpttool health and ckpttool log replay",),
    ),
    Row(
        when=lambda facts: not facts.is_reproduced and math.isfinite(facts.gap_again),
        kind=VerdictKind.UNDECIDED,
        because="the gap came back in one of two runs: C2 is {0.gap_again:+.4g} from B",
        notes=("a cause outside the arithmetic decides whether it comes back: run on other machines",),
    ),
    Row(
        when=lambda facts: not facts.is_reproduced and facts.restart_lost_history,
        kind=VerdictKind.STALE_SCALE,
        because=f"{_NOT_REPRODUCED}; the checkpoint has no scale history, so the restart itself dropped it",
        cure=lambda facts: replace(facts.cure(UNCHANGED), restores=True),
        notes=(_KEEP_SHORT,),
    ),
    Row(
        when=lambda facts: not facts.is_reproduced,
        kind=VerdictKind.NOT_REPRODUCED,
        because=_NOT_REPRODUCED,
    ),
    Row(
        when=lambda facts: abs(facts.gap) < _LIMITS * facts.floor,
        kind=VerdictKind.WEAK,
        because="the gap of C, {0.gap:.4g}, is below three times the noise floor of {0.floor:.4g}",
        notes=(_LONGER,),
    ),
    Row(
        when=lambda facts: facts.fewest_extras is not None,
        kind=VerdictKind.SOFTWARE,
        because="without {0.extras} there is no gap: the cause is software, not the arithmetic",
        cure=lambda facts: facts.cure(facts.fewest_extras.trial.id if facts.fewest_extras else EXTRAS),
    ),
    Row(
        when=lambda facts: facts.measured.outcome(FRESH_HISTORY) is Outcome.RESTORES,
        kind=VerdictKind.STALE_SCALE,
        because="without the scale history there is no gap: a stale largest magnitude is the cause",
        cure=lambda facts: facts.cure(FRESH_HISTORY),
        notes=(_KEEP_SHORT,),
    ),
    Row(
        when=lambda facts: facts.measured.outcome(FAKE) in {Outcome.NO, Outcome.WORSE},
        kind=VerdictKind.FORMAT,
        because="a current scale does not help either: the cause is not the scale, but the format is too coarse",
        blames=True,
        cure=lambda facts: facts.best_cure or facts.cure(f"E6-{Recipe.BLOCKWISE.value}"),
        notes=("use blockwise or mxfp8, else BF16 for the products that cause it",),
    ),
    Row(
        when=lambda facts: facts.culprits == _ALL,
        kind=VerdictKind.CULPRIT,
        because=(
            "all three products together are the cause: of the pairs, {0.pair.id} closes most, "
            "{0.pair.recovered:.1%} of the gap{0.and_delayed}"
        ),
        blames=True,
        cure=lambda facts: facts.best_cure,
        notes=("{0.not_separable}",),
    ),
    Row(
        when=lambda facts: bool(facts.culprits),
        kind=VerdictKind.CULPRIT,
        because="with {0.culprit_names} in BF16 the gap closes ({0.explained:.1%} of it){0.and_delayed}",
        blames=True,
        cure=lambda facts: facts.best_cure,
        notes=("{0.not_separable}",),
    ),
    Row(
        when=lambda facts: bool(facts.untried),
        kind=VerdictKind.UNDECIDED,
        because="the cause cannot be named without {0.untried_names}",
        run=lambda facts: facts.untried,
    ),
    Row(
        when=lambda facts: len(facts.pairs) == len(Gemm) and bool(facts.pairs_open),
        kind=VerdictKind.UNDECIDED,
        because=(
            "no two products bring the loss back, but {0.pairs_open}: the runs are too short to show whether all "
            "three are the cause"
        ),
        notes=(_LONGER,),
    ),
    Row(
        when=lambda _: True,
        kind=VerdictKind.UNDECIDED,
        because="no single product brings the loss back: two together may",
    ),
)


class Facts:
    """The facts that the rows use: measurements and conclusions."""

    def __init__(self, measured: Measured) -> None:
        self.measured: Measured = measured
        self.plan: Fp8Plan = measured.plan
        self.floor: float = measured.floor
        self.limit: float = measured.limit
        self.gap: float = self._gap(UNCHANGED)
        self.gap_again: float = self._gap(REPEATED)
        counts = {name for name, shown in measured.shown.items() if shown.gate.is_valid}
        self.missing: tuple[str, ...] = tuple(name for name in (REFERENCE, REGROUPED, UNCHANGED) if name not in counts)
        self.missing_names = " and ".join(self.missing)
        self.longer = min(2 * self.plan.horizon, LONGEST)
        self.start = self.plan.start.name or f"step {self.plan.start.step}"
        old = measured.baseline
        self.old_gap: float = 0.0 if old is None else old.gap.mean
        self.old_limit: float = 0.0
        if old is not None:
            self.old_limit = max(self.plan.suspicion.limit or self.plan.limit, old.gap.half)
        self.culprits: frozenset[Gemm] = self._culprits()
        self.culprit_names = " and ".join(gemm.value for gemm in Gemm if gemm in self.culprits)

    def _gap(self, name: str) -> float:
        """Return the gap between a run and B, or infinity for an invalid run."""
        part = self.measured.stretches.get(name)
        return math.inf if part is None else part.gap.mean

    @property
    def is_reproduced(self) -> bool:
        """Whether the candidate departs from BF16 again, in the same direction."""
        expected = self.plan.suspicion.gap
        return abs(self.gap) > self.limit and (expected is None or expected * self.gap >= 0)

    @property
    def restart_lost_history(self) -> bool:
        """Whether C is known to have started without the candidate's scale history."""
        start = self.plan.start  # from scratch no run has a history
        is_restart = start.evidence is not Evidence.SCRATCH
        return self.plan.recipe is Recipe.DELAYED and is_restart and start.has_history is False

    @property
    def fewest_extras(self) -> Experiment | None:
        """The experiment that closes the gap with the fewest extras switched off."""
        well = [each for each in self.measured.restoring() if each.trial.without or each.trial.id == EXTRAS]
        return min(well, key=lambda experiment: len(experiment.trial.without), default=None)

    @property
    def extras(self) -> str:
        """The extras that this experiment switches off, for display."""
        return ", ".join(self.fewest_extras.trial.without if self.fewest_extras else ()) or "the extras"

    def _culprits(self) -> frozenset[Gemm]:
        """Return the smallest set of products that close the gap when changed. Empty if unknown.

        A set counts as the cause only if every cheaper set was tried or cannot be tried.
        """
        cells = self.measured.cells
        well = sorted((cell for cell, shown in cells.items() if shown.outcome is Outcome.RESTORES), key=_price)
        if well and not any(_price(cell) < _price(well[0]) for cell in self._untried()):
            return well[0]
        takes_all = not well and len(self.pairs) == len(Gemm) and not self.pairs_open
        return _ALL if takes_all else frozenset()

    def _untried(self) -> list[frozenset[Gemm]]:
        """Return the planned and supported sets of products without a result."""
        planned = [
            experiment.trial.cell for experiment in self.measured.experiments.values() if experiment.change is not None
        ]
        return [cell for cell in planned if cell is not None and cell not in self.measured.cells]

    @property
    def untried(self) -> tuple[str, ...]:
        """The cheapest experiments without a run that may find the cause."""
        cells = sorted(self._untried(), key=_price)
        return tuple(name_of(cell) for cell in cells if len(cell) == len(cells[0]))

    @property
    def untried_names(self) -> str:
        """Names of the untried experiments."""
        return " and ".join(self.untried)

    @property
    def pairs(self) -> list[Shown]:
        """The effects of two products in BF16, largest first."""
        pairs = [shown for cell, shown in self.measured.cells.items() if len(cell) == len(Gemm) - 1]
        return sorted(pairs, key=lambda shown: shown.recovered or 0.0, reverse=True)

    @property
    def pair(self) -> Shown:
        """The pair that closes the largest share of the gap."""
        return self.pairs[0]

    @property
    def pairs_open(self) -> str:
        """Why all three products cannot be blamed although no pair closes the gap. Empty if they can.

        A good result of B proves nothing, because B is the reference of all experiments.
        """
        unchanged = self.measured.stretches.get(UNCHANGED)
        for pair in self.pairs:
            closes = f"{pair.id} closes {pair.recovered or 0.0:.0%} of the gap"
            if (pair.recovered_high or 0.0) >= RESTORED:
                return f"{closes}, and possibly {pair.recovered_high:.0%}"
            if unchanged is None or not is_settled(unchanged, self.measured.stretches[pair.id]):
                return f"{closes}, and this share or the gap itself is still growing"
        return ""

    @property
    def explained(self) -> float | None:
        """Share of the gap closed with the products at fault in BF16, or None for all three, which proves nothing."""
        return None if self.culprits in {frozenset(), _ALL} else self.measured.cells[self.culprits].recovered

    @property
    def and_delayed(self) -> str:
        """The end of a sentence if a current scale also helps. Otherwise empty."""
        if self.measured.outcome(FAKE) is not Outcome.RESTORES:
            return ""
        return (
            f", and it also closes in FP8 with a current scale: the delayed scale of {self.culprit_names} is the cause"
        )

    @property
    def not_separable(self) -> str:
        """A note if some of the products at fault could not be tried alone. Otherwise empty."""
        refused = [experiment.trial for experiment in self.measured.experiments.values() if experiment.change is None]
        names = ", ".join(trial.id for trial in refused if trial.cell and trial.cell < self.culprits)
        return f"which of them alone would be enough is unknown here: {names}" if names else ""

    def cure(self, name: str, *, keeps_fp8: bool = True) -> Cure:
        """Return an experiment as the fix, proven or not."""
        outcome, experiment = self.measured.outcome(name), self.measured.experiments.get(name)
        restores = None if outcome is None else outcome is Outcome.RESTORES
        change = None if experiment is None else experiment.change
        return Cure(id=name, restores=restores, keeps_fp8=keeps_fp8, change=change)

    @property
    def best_cure(self) -> Cure | None:
        """The proven fix that keeps FP8 with the smallest change. Otherwise BF16 for the products at fault."""
        for trial in sorted(
            (experiment.trial for experiment in self.measured.restoring()), key=lambda trial: bool(trial.recipe)
        ):
            is_of_all = trial.layers is None and trial.operand is None
            if is_of_all and (trial.recipe is not None or Arithmetic.CURRENT in trial.products.kinds):
                return self.cure(trial.id)
        if self.culprits == _ALL:
            return replace(self.cure(REFERENCE, keeps_fp8=False), restores=True)
        return self.cure(name_of(self.culprits), keeps_fp8=False) if self.culprits else None


def _price(cell: frozenset[Gemm]) -> tuple[int, list[int]]:
    return len(cell), sorted((CHEAPEST_FIRST.index(gemm) for gemm in cell), reverse=True)


def _layers(measured: Measured) -> str | None:
    """Return the pattern of the fewest layers that close the gap if their products are in BF16."""
    trials = [experiment.trial for experiment in measured.restoring() if experiment.trial.layers is not None]
    return max(trials, key=lambda trial: len(trial.id)).layers if trials else None


def _operands(measured: Measured) -> Iterator[Operand]:
    """Yield the operands at fault.

    An operand is at fault if a current scale for it closes the gap, or if the gap remains with FP8 for it alone.
    """
    for name, experiment in measured.experiments.items():
        trial, outcome = experiment.trial, measured.outcome(name)
        if trial.operand is not None and outcome is not None:
            helps = outcome is Outcome.RESTORES
            if helps is (Arithmetic.CURRENT in trial.products.kinds):
                yield trial.operand


def _shares(measured: Measured) -> tuple[tuple[Gemm, float], ...] | None:
    """Return each product's share if all eight sets were run."""
    gaps = {_ALL - cell: 0.0 if shown.gap is None else shown.gap.mean for cell, shown in measured.cells.items()}
    return shapley(gaps) if len(gaps) == 2 ** len(Gemm) else None


def _unproven_runs(measured: Measured) -> Iterator[str]:
    """Yield the names of the valid runs without proof that they ran as planned or used FP8 at all."""
    counts = [shown for shown in measured.shown.values() if shown.gate.is_valid]
    names = [shown.id for shown in counts if shown.gate.as_planned is AsPlanned.UNKNOWN]
    if names:
        yield (
            "their logs do not show the precision of the computation, so they are assumed to have run as planned: "
            f"{', '.join(names)}"
        )
    for alike in measured.alike:
        yield f"the losses of {' and '.join(alike)} are the same to the last digit: was the same log given twice?"
    last = measured.shown.get(LAST)
    if last is not None and last.outcome is not None:
        closed = "" if last.note is None else f" ({last.note})"
        yield f"BF16 from the candidate's last checkpoint: {last.outcome.value}{closed}"
