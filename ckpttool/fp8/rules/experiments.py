"""Choice of the experiments that find the cause in FP8, cheapest first, by round and by earlier results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.fp8.model.curves import CurveClass
from ckpttool.fp8.model.fp8 import OPERANDS, Arithmetic, Gemm, Operand, Recipe
from ckpttool.fp8.model.plan import (
    EXTRAS,
    FAKE,
    FRESH_HISTORY,
    LAST,
    REFERENCE,
    REGROUPED,
    REPEATED,
    UNCHANGED,
    Fp8Plan,
    Fp8Verdict,
    Outcome,
    Products,
    Trial,
    VerdictKind,
)

CHEAPEST_FIRST = (Gemm.WGRAD, Gemm.DGRAD, Gemm.FPROP)
"""Order in which products change to BF16 if several sets are equally good. fprop is last, because serving uses it."""

_PARTS = 4
"""Number of parts into which layers are divided in a round."""

_MOST_NAMED = 2
"""Maximum number of extras to name in a title. If there are more, the title shows their number."""

_CURES = (Recipe.TENSORWISE, Recipe.BLOCKWISE, Recipe.MXFP8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The facts that determine which experiments are available."""

    kind: CurveClass
    recipe: Recipe | None
    """The candidate's recipe, or None if unknown. Experiments for a delayed recipe are then also planned."""
    extras: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    """Numbers of the layers, the most suspicious first."""
    layers_in: str = "layers"
    recipes: tuple[Recipe, ...] = _CURES
    """The recipes that the framework supports."""

    @classmethod
    def of(cls, plan: Fp8Plan, recipes: tuple[Recipe, ...] = _CURES) -> Known:
        """Read the facts from an existing plan."""
        return cls(
            kind=plan.suspicion.kind,
            recipe=plan.recipe,
            extras=plan.extras,
            layers=plan.layers,
            layers_in=plan.layers_in,
            recipes=recipes,
        )

    @property
    def may_be_delayed(self) -> bool:
        """Whether scales may come from earlier steps."""
        return self.recipe in {None, Recipe.DELAYED}


def name_of(gemms: Iterable[Gemm]) -> str:
    """Return the name of the experiment with these products in BF16, such as `E4d` or `E4dw`."""
    chosen = frozenset(gemms)
    return "E4" + "".join(gemm.value[0] for gemm in Gemm if gemm in chosen)


def first_round(facts: Known) -> tuple[Trial, ...]:
    """Return the experiments that need only the two curves."""
    if facts.kind is CurveClass.INCONCLUSIVE:
        return (_REFERENCE, _REGROUPED, _UNCHANGED)
    is_early = facts.kind is CurveClass.EARLY
    return (
        _REFERENCE,
        _REGROUPED,
        _UNCHANGED,
        *((_FRESH,) if facts.may_be_delayed else ()),
        *((_without_extras(EXTRAS, 1, facts.extras),) if is_early else ()),
        _FROM_LAST,
        *((_FAKE,) if facts.may_be_delayed else ()),
        *(_in_bf16(frozenset({gemm}), 1) for gemm in Gemm),
    )


def next_round(number: int, facts: Known, verdict: Fp8Verdict, planned: Sequence[Trial]) -> tuple[Trial, ...]:
    """Return new experiments that would give more information, if there are any.

    Args:
        number: Number of this round.
        facts: The facts that determine which experiments are available.
        verdict: The results of earlier experiments.
        planned: The experiments of earlier rounds.
    """
    last = _Round(number=number, facts=facts, verdict=verdict, planned=tuple(planned))
    if last.outcome(UNCHANGED) is None:
        return ()
    names = {trial.id for trial in planned}
    trials = (trial for kind in _FOLLOW.get(verdict.kind, ()) for trial in kind(last))
    return tuple(trial for trial in trials if trial.id not in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    number: int
    facts: Known
    verdict: Fp8Verdict
    planned: tuple[Trial, ...]

    def outcome(self, name: str) -> Outcome | None:
        """Return the effect of an experiment on the gap, or None if it was not run."""
        return next((result.outcome for result in self.verdict.experiments if result.id == name), None)

    def restoring(self) -> list[Trial]:
        """Return the experiments that closed the gap."""
        return [trial for trial in self.planned if self.outcome(trial.id) is Outcome.RESTORES]

    @property
    def culprits(self) -> frozenset[Gemm]:
        """The products that are known to cause the gap."""
        return frozenset(self.verdict.culprits)

    @property
    def named(self) -> str:
        """Names of the culprits for display."""
        return _names(self.culprits)


def _names(gemms: Iterable[Gemm]) -> str:
    chosen = frozenset(gemms)
    return " and ".join(gemm.value for gemm in Gemm if gemm in chosen)


# --- one trial -------------------------------------------------------------------------------------------------------

_REFERENCE = Trial(
    id=REFERENCE,
    round=1,
    title="BF16 from the same checkpoint",
    products=Products.all(Arithmetic.BF16),
    if_guilty="This is the reference for all others: the old baseline has other weights at this step.",
    if_innocent="If it is far from the old baseline, the checkpoint is already damaged: plan from an earlier one.",
)
_REGROUPED = Trial(
    id=REGROUPED,
    round=1,
    title="BF16 with the samples regrouped",
    products=Products.all(Arithmetic.BF16),
    is_regrouped=True,
    if_guilty="Its distance to B is the effect of the summation order alone: the noise floor of paired runs.",
    if_innocent="In the other experiments, differences below three times that distance are ignored.",
)
_UNCHANGED = Trial(
    id=UNCHANGED,
    round=1,
    title="the candidate, unchanged",
    products=Products.all(Arithmetic.FP8),
    if_guilty="The gap comes back: it is reproduced, and the other experiments can find its cause.",
    if_innocent=(
        "The gap does not come back: the cause is not FP8 arithmetic, but a scale history lost at the restart, "
        "hardware or data."
    ),
)
_FRESH = Trial(
    id=FRESH_HISTORY,
    round=1,
    title="the candidate without its scale history",
    products=Products.all(Arithmetic.FP8),
    drops_history=True,
    if_guilty=(
        "A stale largest magnitude is the cause: drop the history now; a shorter history or current scaling "
        "prevents it."
    ),
    if_innocent="The history is not the cause.",
)
_FROM_LAST = Trial(
    id=LAST,
    round=1,
    title="BF16 from the candidate's last checkpoint",
    products=Products.all(Arithmetic.BF16),
    from_last=True,
    if_guilty="The gap closes: the weights are still good, and the training can continue from there.",
    if_innocent="The gap stays: go back to a checkpoint from before the gap began.",
)
_FAKE = Trial(
    id=FAKE,
    round=1,
    title="all products rounded to FP8 with a current scale",
    products=Products.all(Arithmetic.FAKE),
    if_guilty="The format is fine; the delayed scale is the cause.",
    if_innocent="The format itself is too coarse: use blockwise or mxfp8, else BF16 for the products that cause it.",
)


def _in_bf16(gemms: frozenset[Gemm], number: int) -> Trial:
    names, is_one = _names(gemms), len(gemms) == 1
    more = (
        "If no single product is the cause, pairs are tried next." if is_one else "The third product contributes to it."
    )
    return Trial(
        id=name_of(gemms),
        round=number,
        title=f"{names} in BF16",
        products=Products.fp8_but(Arithmetic.BF16, gemms),
        if_guilty=f"{names} in FP8 {'is' if is_one else 'are'} the cause.",
        if_innocent=f"{names} alone {'is' if is_one else 'are'} not the cause. {more}",
    )


def _without_extras(name: str, number: int, extras: tuple[str, ...]) -> Trial:
    named = " and ".join(extras) or "any extra"
    if len(extras) > _MOST_NAMED:
        named = f"its {len(extras)} extras"
    return Trial(
        id=name,
        round=number,
        title=f"the candidate without {named}",
        products=Products.all(Arithmetic.FP8),
        without=extras,
        if_guilty="The cause is software: one of the features that were switched off. The next round halves them.",
        if_innocent="The cause is the arithmetic.",
    )


# --- experiments that follow from earlier results
# --------------------------------------------------------------------------------------


def _again(last: _Round) -> Iterator[Trial]:
    yield Trial(
        id=REPEATED,
        round=last.number,
        title="the candidate, unchanged, once more",
        products=Products.all(Arithmetic.FP8),
        if_guilty="The gap comes back this time: a cause outside the arithmetic decides it.",
        if_innocent=(
            "Twice the gap did not come back: the cause is hardware or data, not FP8. Check with `ckpttool health` "
            "and `log replay`."
        ),
    )


def _halves(last: _Round) -> Iterator[Trial]:
    """Yield experiments that halve the smallest set of switches without which the gap is closed."""
    well = [trial for trial in last.restoring() if trial.without]
    least = min(well, key=lambda trial: len(trial.without), default=None)
    if least is not None and len(least.without) > 1:
        middle = len(least.without) // 2
        yield _without_extras(f"{least.id}a", last.number, least.without[:middle])
        yield _without_extras(f"{least.id}b", last.number, least.without[middle:])


def _who(last: _Round) -> Iterator[Trial]:
    """Yield the experiments that may identify the product at fault while it is unknown."""
    if last.culprits:
        return
    if last.facts.kind is CurveClass.INCONCLUSIVE:  # the first round only shows whether there is any effect
        whole = first_round(replace(last.facts, kind=CurveClass.LATE))
        yield from (replace(trial, round=last.number) for trial in whole)
        return
    yield _without_extras(EXTRAS, last.number, last.facts.extras)
    yield from (_in_bf16(frozenset(pair), last.number) for pair in combinations(Gemm, 2))


def _current(last: _Round) -> Iterator[Trial]:
    if last.facts.may_be_delayed:
        yield Trial(
            id="E5",
            round=last.number,
            title=f"current scaling for {last.named}",
            products=Products.fp8_but(Arithmetic.CURRENT, last.culprits),
            if_guilty="This is the cheapest fix: all products stay in FP8.",
            if_innocent="A current scale is not enough: use another recipe, or BF16.",
        )


def _other_recipes(last: _Round) -> Iterator[Trial]:
    """Yield experiments with recipes that the candidate does not use. A scale per tensor cannot fix a coarse format."""
    useless = {last.facts.recipe}
    if last.verdict.kind is VerdictKind.FORMAT:
        useless.add(Recipe.TENSORWISE)
    for recipe in last.facts.recipes:
        if recipe not in useless:
            yield Trial(
                id=f"E6-{recipe.value}",
                round=last.number,
                title=f"the whole run with the recipe {recipe.value}",
                products=Products.all(Arithmetic.FP8),
                recipe=recipe,
                if_guilty="The recipe closes the gap: all products stay in FP8.",
                if_innocent="This recipe does not help.",
            )


def _layers(last: _Round) -> Iterator[Trial]:
    """Yield experiments that divide the layers, or the last part found to be at fault, into four."""
    name, layers = "E7", last.facts.layers
    guilty = [trial for trial in last.restoring() if trial.layers]
    if guilty:
        least = max(guilty, key=lambda trial: len(trial.id))
        name, layers = least.id, tuple(layer for layer in layers if f"{layer}" in numbers_in(least.layers or ""))
    parts = min(_PARTS, len(layers))
    if not last.culprits or parts == 1:
        return
    for place in range(parts):
        part = layers[place * len(layers) // parts : (place + 1) * len(layers) // parts]
        yield Trial(
            id=f"{name}q{place + 1}",
            round=last.number,
            title=f"{last.named} in BF16 only in layers {', '.join(map(str, sorted(part)))}",
            products=Products.fp8_but(Arithmetic.BF16, last.culprits),
            layers=pattern_of(part, last.facts.layers_in),
            if_guilty="These layers are the cause.",
            if_innocent="These layers alone are not the cause.",
        )


def pattern_of(layers: Iterable[int], inside: str) -> str:
    """Return a regular expression for layer names, with a dot on both sides so that 1 does not match 10 to 19."""
    return rf".*{inside}\.({'|'.join(map(str, sorted(layers)))})\..*"


def numbers_in(pattern: str) -> frozenset[str]:
    """Return the layers that an expression from `pattern_of` names."""
    return frozenset(pattern.rpartition("(")[2].partition(")")[0].split("|"))


def _operands(last: _Round) -> Iterator[Trial]:
    """Yield experiments that find the operand at fault.

    They use a current scale for only one operand or, if that does not help, FP8 for only one operand. A culprit without
    such an operand stays unchanged in the first case, and is in BF16 in the second.
    """
    if len(last.verdict.operands) == 1:
        return
    of_culprits = {operand for gemm in last.culprits for operand in OPERANDS[gemm]}
    for operand in Operand:
        if operand not in of_culprits:
            continue
        if last.outcome(FAKE) is Outcome.RESTORES:
            yield Trial(
                id=f"E8-{operand.value}",
                round=last.number,
                title=f"current scaling only for the {operand.value} of {last.named}",
                products=Products.fp8_but(Arithmetic.CURRENT, last.culprits),
                operand=operand,
                if_guilty=f"The delayed scale of the {operand.value} is the cause.",
                if_innocent=f"The scale of the {operand.value} alone is not the cause.",
            )
        else:
            yield Trial(
                id=f"E8-{operand.value}",
                round=last.number,
                title=f"only the {operand.value} of {last.named} rounded to FP8",
                products=Products.fp8_but(Arithmetic.FAKE, last.culprits),
                operand=operand,
                if_guilty=f"The {operand.value} is not the cause: without the other operand in FP8 there is no gap.",
                if_innocent=f"FP8 for the {operand.value} alone is the cause.",
            )


_FOLLOW = {
    VerdictKind.NOT_REPRODUCED: (_again,),
    VerdictKind.SOFTWARE: (_halves,),
    VerdictKind.STALE_SCALE: (_other_recipes,),
    VerdictKind.UNDECIDED: (_who, _other_recipes),
    VerdictKind.FORMAT: (_who, _other_recipes, _layers, _operands),
    VerdictKind.CULPRIT: (_current, _other_recipes, _layers, _operands),
}
"""Functions that yield the experiments needed after a verdict. Other verdicts need none."""
