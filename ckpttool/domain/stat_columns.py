"""The numbers of a shard's tensors in columns: thousands of ranks have millions of them, and an object is 200 bytes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import overload

from ckpttool.domain.verdict import TensorStat

Kind = tuple[str, str, int]
"""Name, type and elements of a tensor: the same on every rank that holds the same slice."""

Oddity = tuple[int, int, bool]
"""NaNs, infinities, and whether there are denormals only; of most tensors all three say no."""

_MOST_SHARED = 10_000
"""Tensors of a shard up to which what it has in common with others is kept for them: it comes from files."""


class StatColumns(Sequence[TensorStat]):
    """A tuple of `TensorStat`, but for the memory; each is made when it is asked for."""

    __slots__ = ("_absmax", "_kinds", "_norms", "_odd")

    def __init__(
        self, kinds: Iterable[Kind], *, absmax: Sequence[float], norms: Iterable[float], odd: Mapping[int, Oddity]
    ) -> None:
        """Take a column each; `odd` by the tensor's place, only those of which something is to be said."""
        own = tuple(kinds)
        self._kinds = _shared(own) if len(own) <= _MOST_SHARED else own
        narrow = array("f", absmax)
        # Nearly all floats of a model have 32 bits or fewer, and so has their largest one.
        self._absmax = narrow if list(narrow) == list(absmax) else array("d", absmax)
        self._norms = array("d", norms)
        self._odd = dict(odd) or None

    def __len__(self) -> int:
        """Count the tensors."""
        return len(self._kinds)

    @overload
    def __getitem__(self, index: int) -> TensorStat: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[TensorStat, ...]: ...
    def __getitem__(self, index: int | slice) -> TensorStat | tuple[TensorStat, ...]:
        """Return the numbers of one tensor, or of several."""
        if isinstance(index, slice):
            return tuple(self[at] for at in range(*index.indices(len(self))))
        at = range(len(self))[index]
        name, dtype, elements = self._kinds[at]
        nans, infinities, denormal_only = (self._odd or {}).get(at, (0, 0, False))
        return TensorStat(
            name=name,
            dtype=dtype,
            elements=elements,
            nans=nans,
            infinities=infinities,
            absmax=self._absmax[at],
            norm=self._norms[at],
            denormal_only=denormal_only,
        )

    def __eq__(self, other: object) -> bool:
        """Tell whether all numbers are the same."""
        return tuple(self) == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        """Hash as a tuple of the same would."""
        return hash(tuple(self))

    def __repr__(self) -> str:
        """Spell it as a tuple."""
        return repr(tuple(self))

    def sick(self) -> Iterator[TensorStat]:
        """Yield the tensors that hold NaN or infinity."""
        return (self[at] for at, (nans, infinities, _) in sorted((self._odd or {}).items()) if nans or infinities)

    def moved(self, before: StatColumns, factor: float) -> Iterator[tuple[TensorStat, TensorStat]] | None:
        """Yield the tensors whose norm became zero or changed by more than a factor, each with what it was before.

        Returns:
            None where the two do not hold the same tensors in the same order.
        """
        if self._kinds is not before._kinds and self._kinds != before._kinds:
            return None
        norms = enumerate(zip(self._norms, before._norms, strict=True))
        return (
            (self[at], before[at])
            for at, (now, then) in norms
            if then and not (now and now / factor <= then <= now * factor)
        )


@lru_cache(maxsize=16)  # the stages of a pipeline differ; what does not fit costs memory, no more
def _shared(kinds: tuple[Kind, ...]) -> tuple[Kind, ...]:
    """Return the first that is equal."""
    return kinds
