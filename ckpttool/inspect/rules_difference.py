"""Differences between two sides, the most unusual first, such as a tensor that moved much further than its peers."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from fractions import Fraction
from statistics import median

from ckpttool.core.domain.contents import Contents, Shape, TensorRow
from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.units import Rank
from ckpttool.core.domain.verdict import Level
from ckpttool.inspect.model import Difference, Distance, Group, Movement, ScalarChange, TensorChange
from ckpttool.inspect.rules_contents import as_counted, kind_of

FEWEST = 3
"""Minimum number of moved tensors of a kind for a comparison with their median."""

_Held = tuple[tuple[str, Shape, tuple[Rank, ...]], ...]


class Distances:
    """Sums of the distances between files, as fractions, so that the order of the files does not matter."""

    def __init__(self, *, scalars: frozenset[str] = frozenset()) -> None:
        """Start with empty sums. Tensors in `scalars` are skipped, because they are reported as scalars."""
        self._scalars = scalars
        self._sums: dict[str, list[Fraction]] = {}
        self._largest: dict[str, tuple[float, int]] = {}
        self._nonfinite: dict[str, tuple[int, int]] = {}
        self.equal: dict[str, bool] = {}
        self.pairs: Counter[str] = Counter()
        """Number of compared files, by tensor."""

    def add(self, distance: Distance, rank: Rank | None) -> None:
        """Add the distance of a tensor between two files of this rank."""
        name = distance.name
        if name in self._scalars:
            return
        self.equal[name] = self.equal.get(name, True) and distance.equal
        self.pairs[name] += 1
        if distance.squares is None:
            return
        terms = (distance.squares, distance.other, distance.dot, distance.moved)
        # Sums that overflow F64 give no distance.
        sums = [Fraction(number) if math.isfinite(number) else Fraction(0) for number in terms]
        sums_before = self._sums.get(name)
        self._sums[name] = (
            sums if sums_before is None else [first + second for first, second in zip(sums_before, sums, strict=True)]
        )
        largest = (distance.largest, -1 if rank is None else -rank - 2)  # if distances are equal, the lowest rank
        self._largest[name] = max(self._largest.get(name, largest), largest)
        gained, lost = self._nonfinite.get(name, (0, 0))
        self._nonfinite[name] = (gained + distance.found, lost + distance.lost)

    def movements(self) -> dict[str, Movement]:
        """Return the distance of each tensor that differs."""
        relative = {name: _relative(sums) for name, sums in self._sums.items() if not self.equal[name]}
        medians = self.medians()
        return {
            name: Movement(
                relative=distance,
                cosine=_cosine(self._sums[name]),
                largest=self._largest[name][0],
                largest_rank=None if self._largest[name][1] == -1 else Rank(-self._largest[name][1] - 2),
                nonfinite=self._nonfinite[name],
                times_median=distance / usual
                if distance is not None and (usual := medians.get(kind_of(name)))
                else None,
            )
            for name, distance in relative.items()
        }

    def medians(self) -> dict[str, float]:
        """Return the median of the relative distances for each kind in which enough tensors moved."""
        by_kind: dict[str, list[float]] = defaultdict(list)
        for name, sums in self._sums.items():
            distance = _relative(sums)
            if not self.equal[name] and distance is not None:
                by_kind[kind_of(name)].append(distance)
        return {kind: median(ratios) for kind, ratios in by_kind.items() if len(ratios) >= FEWEST}

    def groups(self) -> tuple[Group, ...]:
        """Return the numbers of equal and moved tensors, by kind."""
        medians = self.medians()
        kinds: dict[str, list[bool]] = defaultdict(list)
        for name, equal in self.equal.items():
            kinds[kind_of(name)].append(equal)
        return tuple(
            Group(kind=kind, equal=sum(equal), moved=len(equal) - sum(equal), median=medians.get(kind))
            for kind, equal in sorted(kinds.items())
        )


def _relative(sums: list[Fraction]) -> float | None:
    before, _, _, moved = sums
    return _root(moved / before) if before else None


def _cosine(sums: list[Fraction]) -> float | None:
    before, after, dot, _ = sums
    if not before or not after:
        return None
    # Rounding may have made it slightly more than one.
    return max(-1.0, min(1.0, math.copysign(_root(dot * dot / (before * after)), dot)))


def _root(square: Fraction) -> float:
    try:
        return math.sqrt(square)
    except OverflowError:
        return math.inf


def compared(
    a: Contents, b: Contents, *, level: Level, distances: Distances, findings: Iterable[Finding]
) -> Difference:
    """Combine the differences.

    Args:
        a: The contents of one side.
        b: The contents of the other side.
        level: Whether bits or numbers were compared as well.
        distances: The distances of the tensors that could be compared.
        findings: The problems of either side.
    """
    movements = distances.movements()
    same_ranks = _ranks(a) == _ranks(b)
    before = {row.name: row for row in a.tensors}
    after = {row.name: row for row in b.tensors}
    scalars = reported_as_scalars(a, b)
    changes = []
    uncompared = 0
    for name in {**before, **after}:
        row, row_after = before.get(name), after.get(name)
        differences = _what(row, row_after, same_ranks=same_ranks)
        if (
            row is not None
            and row_after is not None
            and level is not Level.STRUCTURE
            and row.elements
            and name not in scalars
        ):
            differences += () if distances.equal.get(name, True) else ("values",)
            # A comparison of half of the ranks does not prove that a tensor is equal.
            uncompared += not differences and distances.pairs[name] < max(row.files, row_after.files)
        if differences:
            change = TensorChange(
                name=name,
                kind=kind_of(name),
                what=differences,
                before=_variants_of(row),
                after=_variants_of(row_after),
                movement=movements.get(name),
            )
            changes.append(change)
    return Difference(
        a=a,
        b=b,
        level=level,
        tensors=tuple(sorted(changes, key=_oddness)),
        same=len({**before, **after}) - len(changes) - uncompared,
        uncompared=uncompared,
        groups=distances.groups(),
        scalars=tuple(_scalars(a, b)),
        findings=tuple(dict.fromkeys(findings)),
    )


def reported_as_scalars(a: Contents, b: Contents) -> frozenset[str]:
    """Return the one-element tensors that were read on both sides. They are reported by their values."""
    return frozenset(row.name for row in a.scalars) & frozenset(row.name for row in b.scalars)


def _what(row: TensorRow | None, row_after: TensorRow | None, *, same_ranks: bool) -> tuple[str, ...]:
    if row is None or row_after is None:
        return ("added",) if row is None else ("gone",)
    ours, theirs = _variants(row), _variants(row_after)
    differences = (
        ("dtype", {dtype for dtype, _ in ours} != {dtype for dtype, _ in theirs}),
        ("shape", {shape for _, shape in ours} != {shape for _, shape in theirs}),
        # If the world sizes differ, every tensor is on other ranks.
        ("ranks", same_ranks and _variants_of(row) != _variants_of(row_after)),
    )
    kinds = tuple(kind for kind, differs in differences if differs)
    return kinds if len(kinds) == 1 else tuple(kind for kind in kinds if kind != "ranks")


def _variants(row: TensorRow) -> set[tuple[str, Shape]]:
    return {(row.dtype, row.shape), *((dtype, shape) for dtype, shape, _ in row.others)}


def _variants_of(row: TensorRow | None) -> _Held:
    """Return the types and shapes, each with its ranks."""
    if row is None:
        return ()
    elsewhere = {rank for _, _, ranks in row.others for rank in ranks}
    most = tuple(rank for rank in row.ranks if rank not in elsewhere)
    return tuple(sorted(((row.dtype, row.shape, most), *row.others)))


def _ranks(contents: Contents) -> set[Rank]:
    return {row.rank for row in contents.files if row.rank is not None}


def _oddness(change: TensorChange) -> tuple[object, ...]:
    """Return a sort key for unusual changes: tensors on one side only come first, then changed forms, then NaN."""
    movement = change.movement
    grave = min(_GRAVEST.index(kind) for kind in change.what)
    if movement is None:
        return grave, True, 0.0, as_counted(change.name)
    far = movement.times_median if movement.times_median is not None else movement.relative
    sick = movement.nonfinite[1] > movement.nonfinite[0]
    # Equal values in three digits are sorted by name.
    return grave, not sick, -(math.inf if far is None else float(f"{far:.3g}")), as_counted(change.name)


_GRAVEST = ("gone", "added", "dtype", "shape", "ranks", "values")


def _scalars(a: Contents, b: Contents) -> Iterator[ScalarChange]:
    before, after = ({row.name: row for row in side.scalars} for side in (a, b))
    for name in {**before, **after}:
        row, row_after = before.get(name), after.get(name)
        # By their text: NaN does not equal NaN, and True is 1.
        if repr(row and (row.value, row.others)) != repr(row_after and (row_after.value, row_after.others)):
            yield ScalarChange(
                name=name,
                before=None if row is None else row.value,
                after=None if row_after is None else row_after.value,
            )
