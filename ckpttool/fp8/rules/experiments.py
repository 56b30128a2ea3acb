"""Which experiments tell what of FP8 hurts, cheapest knowledge first: by round, and by what those before showed."""

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
"""In this order products are given up to BF16 where several sets are as good: fprop, which serving uses, last."""

_PARTS = 4
"""Into so many parts layers are cut in one round."""

_CURES = (Recipe.TENSORWISE, Recipe.BLOCKWISE, Recipe.MXFP8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What decides which experiments there are."""

    kind: CurveClass
    recipe: Recipe | None
    """The candidate's; None: not known, so that what only a delayed one needs is planned, too."""
    extras: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    """Their numbers, the most suspicious first."""
    layers_in: str = "layers"
    recipes: tuple[Recipe, ...] = _CURES
    """Those that the framework has."""

    @classmethod
    def of(cls, plan: Fp8Plan, recipes: tuple[Recipe, ...] = _CURES) -> Known:
        """Take it from a plan that was made."""
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
        """Whether scales may come from the steps before."""
        return self.recipe in {None, Recipe.DELAYED}


def name_of(gemms: Iterable[Gemm]) -> str:
    """Return what the experiment is called that computes these products in BF16: `E4d`, `E4dw`."""
    letters = sorted(gemm.value[0] for gemm in gemms)
    return f"E4{''.join(sorted(letters, key='fdw'.index))}"


def first_round(facts: Known) -> tuple[Trial, ...]:
    """Return what needs to know nothing but the two curves."""
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
    """Return what tells more than is known by now, and was not planned before; none: there is nothing.

    Args:
        number: Of this round.
        facts: What decides which experiments there are.
        verdict: What those showed that were run.
        planned: What earlier rounds planned.
    """
    outcomes = {result.id: result.outcome for result in verdict.experiments}
    names = {trial.id for trial in planned}
    return tuple(trial for trial in _next(number, facts, verdict, outcomes, planned) if trial.id not in names)


def _next(
    number: int,
    facts: Known,
    verdict: Fp8Verdict,
    outcomes: dict[str, Outcome | None],
    planned: Sequence[Trial],
) -> Iterator[Trial]:
    kind, culprits = verdict.kind, frozenset(verdict.culprits)
    if kind is VerdictKind.NOT_REPRODUCED:
        yield _again(number)
    elif kind is VerdictKind.SOFTWARE:
        yield from _halves(number, planned, outcomes)
    elif kind in {VerdictKind.CULPRIT, VerdictKind.FORMAT, VerdictKind.UNDECIDED} and outcomes.get(UNCHANGED):
        if not culprits:
            yield from _who(number, facts)
        elif facts.may_be_delayed and kind is not VerdictKind.FORMAT:
            yield _current(culprits, number)
        yield from _other_recipes(number, facts, verdict)
        if culprits:
            yield from _layers(number, facts, culprits, planned, outcomes)
        if culprits and len(verdict.operands) != 1:
            yield from _operands(number, culprits, restored=outcomes.get(FAKE) is Outcome.RESTORES)
    elif kind is VerdictKind.STALE_SCALE:
        yield from _other_recipes(number, facts, verdict)


def _who(number: int, facts: Known) -> Iterator[Trial]:
    """Yield what may name somebody: of what was planned before nothing is planned again."""
    if facts.kind is CurveClass.INCONCLUSIVE:  # its first round only asked whether there is anything at all
        yield from (replace(trial, round=number) for trial in first_round(replace(facts, kind=CurveClass.LATE)))
        return
    yield _without_extras(EXTRAS, number, facts.extras)
    yield from (_in_bf16(frozenset(pair), number) for pair in combinations(Gemm, 2))


_REFERENCE = Trial(
    id=REFERENCE,
    round=1,
    title="BF16 from the same checkpoint",
    products=Products.all(Arithmetic.BF16),
    if_guilty="It is the reference of all that follows: the old baseline has other weights at this step.",
    if_innocent="Far from the old baseline, the checkpoint is damaged already: plan from an earlier one.",
)
_REGROUPED = Trial(
    id=REGROUPED,
    round=1,
    title="BF16 with the samples regrouped",
    products=Products.all(Arithmetic.BF16),
    is_regrouped=True,
    if_guilty="Its distance to B is what the order of sums alone does: the noise floor of paired runs.",
    if_innocent="Nothing in the others counts that is under three times that distance.",
)
_UNCHANGED = Trial(
    id=UNCHANGED,
    round=1,
    title="the candidate, unchanged",
    products=Products.all(Arithmetic.FP8),
    if_guilty="The gap comes back: it is reproduced, and the others can tell where it comes from.",
    if_innocent="It does not come back: not FP8's numbers, but a history that the restart lost, hardware or data.",
)
_FRESH = Trial(
    id=FRESH_HISTORY,
    round=1,
    title="the candidate without its scale history",
    products=Products.all(Arithmetic.FP8),
    drops_history=True,
    if_guilty="A stale largest magnitude did it: drop the history now; a shorter one or current scaling keeps it well.",
    if_innocent="The history is not to blame.",
)
_FROM_LAST = Trial(
    id=LAST,
    round=1,
    title="BF16 from the candidate's last checkpoint",
    products=Products.all(Arithmetic.BF16),
    from_last=True,
    if_guilty="The gap closes: the weights are still good, and the training can go on from there.",
    if_innocent="The gap stays: go back to a checkpoint from before it began.",
)
_FAKE = Trial(
    id=FAKE,
    round=1,
    title="all products rounded to FP8 with a current scale",
    products=Products.all(Arithmetic.FAKE),
    if_guilty="The format is fine, and the delayed scale is not.",
    if_innocent="The format itself is too coarse: blockwise or mxfp8, else BF16 for the culprits.",
)


def _in_bf16(gemms: frozenset[Gemm], number: int) -> Trial:
    named = [gemm.value for gemm in Gemm if gemm in gemms]
    names = " and ".join(named)
    more = "One at a time may find nobody: then pairs tell." if len(named) == 1 else "The third one has a part in it."
    return Trial(
        id=name_of(gemms),
        round=number,
        title=f"{names} in BF16",
        products=Products.fp8_but(Arithmetic.BF16, gemms),
        if_guilty=f"{names} in FP8 {'does' if len(named) == 1 else 'do'} the damage.",
        if_innocent=f"{names} alone {'is' if len(named) == 1 else 'are'} not to blame. {more}",
    )


def _again(number: int) -> Trial:
    return Trial(
        id=REPEATED,
        round=number,
        title="the candidate, unchanged, once more",
        products=Products.all(Arithmetic.FP8),
        if_guilty="The gap comes back this time: something outside the arithmetic decides whether it does.",
        if_innocent="Twice not: hardware or data did it, not FP8. `ckpttool health` and `replay` look there.",
    )


def _without_extras(name: str, number: int, extras: tuple[str, ...]) -> Trial:
    return Trial(
        id=name,
        round=number,
        title=f"the candidate without {_counted(extras)}",
        products=Products.all(Arithmetic.FP8),
        without=extras,
        if_guilty="It is software: one of what was switched off. The next round halves them.",
        if_innocent="It is the arithmetic.",
    )


def _counted(extras: tuple[str, ...]) -> str:
    """Name them, or where that would fill lines say how many there are."""
    most = 2
    if len(extras) > most:
        return f"its {len(extras)} extras"
    return " and ".join(extras) or "any extra"


def _halves(number: int, planned: Sequence[Trial], outcomes: dict[str, Outcome | None]) -> Iterator[Trial]:
    """Halve the switches of the smallest set without which all is well."""
    well = [trial for trial in planned if trial.without and outcomes.get(trial.id) is Outcome.RESTORES]
    if not well:
        return
    least = min(well, key=lambda trial: len(trial.without))
    middle = len(least.without) // 2
    if middle:
        yield _without_extras(f"{least.id}a", number, least.without[:middle])
        yield _without_extras(f"{least.id}b", number, least.without[middle:])


def _current(culprits: frozenset[Gemm], number: int) -> Trial:
    named = " and ".join(gemm.value for gemm in Gemm if gemm in culprits)
    return Trial(
        id="E5",
        round=number,
        title=f"current scaling for {named}",
        products=Products.fp8_but(Arithmetic.CURRENT, culprits),
        if_guilty="The cheap cure: all stays in FP8.",
        if_innocent="A current scale is not enough: another recipe, or BF16.",
    )


def _other_recipes(number: int, facts: Known, verdict: Fp8Verdict) -> Iterator[Trial]:
    """Yield the recipes that the candidate does not use; one scale a tensor is no cure where the format is to blame."""
    for recipe in facts.recipes:
        if recipe is facts.recipe or (recipe is Recipe.TENSORWISE and verdict.kind is VerdictKind.FORMAT):
            continue
        yield Trial(
            id=f"E6-{recipe.value}",
            round=number,
            title=f"the whole run with the recipe {recipe.value}",
            products=Products.all(Arithmetic.FP8),
            recipe=recipe,
            if_guilty="The cure by recipe: all stays in FP8.",
            if_innocent="This recipe does not help.",
        )


def _layers(
    number: int, facts: Known, culprits: frozenset[Gemm], planned: Sequence[Trial], outcomes: dict[str, Outcome | None]
) -> Iterator[Trial]:
    """Cut the layers into four, or the part of them that was found guilty last."""
    name, layers = "E7", facts.layers
    guilty = [trial for trial in planned if trial.layers and outcomes.get(trial.id) is Outcome.RESTORES]
    if guilty:
        least = max(guilty, key=lambda trial: len(trial.id))
        name, layers = least.id, tuple(layer for layer in layers if f"{layer}" in numbers_in(least.layers or ""))
    if len(layers) < 2:  # noqa: PLR2004  nothing is left to cut
        return
    named = " and ".join(gemm.value for gemm in Gemm if gemm in culprits)
    for place, part in enumerate(_cut(layers), start=1):
        yield Trial(
            id=f"{name}q{place}",
            round=number,
            title=f"{named} in BF16 in layers {', '.join(map(str, sorted(part)))} alone",
            products=Products.fp8_but(Arithmetic.BF16, culprits),
            layers=pattern_of(part, facts.layers_in),
            if_guilty="These layers do the damage.",
            if_innocent="These layers alone are not to blame.",
        )


def pattern_of(layers: Iterable[int], inside: str) -> str:
    """Return a regular expression for the names of layers: a dot on both sides, or 1 would be 10 to 19, too."""
    return rf".*{inside}\.({'|'.join(map(str, sorted(layers)))})\..*"


def numbers_in(pattern: str) -> frozenset[str]:
    """Return the layers of such an expression."""
    return frozenset(pattern.rpartition("(")[2].partition(")")[0].split("|"))


def _cut(layers: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    parts = min(_PARTS, len(layers))
    for place in range(parts):
        yield layers[place * len(layers) // parts : (place + 1) * len(layers) // parts]


def _operands(number: int, culprits: frozenset[Gemm], *, restored: bool) -> Iterator[Trial]:
    """Ask which operand it is: one alone gets a current scale, or where that does not help, one alone is in FP8.

    A culprit that has no such operand stays as it is in the first case, and is in BF16 in the second.
    """
    named = " and ".join(gemm.value for gemm in Gemm if gemm in culprits)
    for operand in Operand:
        if not any(operand in OPERANDS[gemm] for gemm in culprits):
            continue
        if restored:
            yield Trial(
                id=f"E8-{operand.value}",
                round=number,
                title=f"current scaling for the {operand.value} of {named} alone",
                products=Products.fp8_but(Arithmetic.CURRENT, culprits),
                operand=operand,
                if_guilty=f"The delayed scale of the {operand.value} does the damage.",
                if_innocent=f"The scale of the {operand.value} alone is not to blame.",
            )
        else:
            yield Trial(
                id=f"E8-{operand.value}",
                round=number,
                title=f"of {named} the {operand.value} alone rounded to FP8",
                products=Products.fp8_but(Arithmetic.FAKE, culprits),
                operand=operand,
                if_guilty=f"The {operand.value} is not to blame: without the other one in FP8 all is well.",
                if_innocent=f"FP8 of the {operand.value} alone does the damage.",
            )
