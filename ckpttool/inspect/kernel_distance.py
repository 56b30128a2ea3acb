"""Distance between two tensors, computed in pieces, with only one piece of each in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ckpttool.core.domain.contents import elements_in
from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.storage.base import ByteSource
from ckpttool.core.storage.stream import BLOCK_BYTES
from ckpttool.core.verify.kernels.elements import NUMBERS, doubles, pieces
from ckpttool.core.verify.kernels.fold import numpy
from ckpttool.inspect.model import Distance

_BYTES_APART = 1 << 16
"""Number of elements per piece if only bits are compared."""


class Comparison:
    """Comparison of the tensors of two files, with reused memory."""

    def __init__(
        self, a: ByteSource, b: ByteSource, *, numerics: bool, passed: Callable[[int], None] | None = None
    ) -> None:
        """Store the open files, whether to compare values or only bits, and a callback for the bytes read."""
        self._passed = passed
        self._sources = a, b
        self._buffers = memoryview(bytearray(BLOCK_BYTES)), memoryview(bytearray(BLOCK_BYTES))
        self._numerics = numerics

    def distance(self, a: TensorEntry, b: TensorEntry) -> Distance | None:
        """Compare two tensors.

        Return None if shapes differ, types differ and are not numeric, or a tensor is scattered.

        Raises:
            OSError: The disk could not be read, or a file was truncated while it was read.
        """
        if a.shape != b.shape or not (self._is_there(a) and self._is_there(b)):
            return None
        as_numbers = self._numerics and a.dtype in NUMBERS and b.dtype in NUMBERS
        if not as_numbers and (a.dtype is not b.dtype or a.nbytes != b.nbytes):
            return None
        sides = (
            pieces(source, entry, elements=_BYTES_APART, buffer=buffer)
            for source, entry, buffer in zip(self._sources, (a, b), self._buffers, strict=True)
        )
        sums = _Apart()
        equal = a.dtype is b.dtype
        for ours, theirs in zip(*sides, strict=True):
            is_equal = a.dtype is b.dtype and bytes(ours) == bytes(theirs)
            equal = equal and is_equal
            if self._passed is not None:
                self._passed(len(ours) + len(theirs))
            if as_numbers:
                sums.add(doubles(a.dtype, ours), None if is_equal else doubles(b.dtype, theirs))
            elif not equal:
                break
        return sums.distance(a.name, equal=equal) if as_numbers else Distance(name=a.name, equal=equal)

    @staticmethod
    def _is_there(entry: TensorEntry) -> bool:
        return bool(entry.spans) or not elements_in(entry.shape)


class _Apart:
    """Sums over the pieces of one tensor."""

    def __init__(self) -> None:
        self._squares = self._other = self._dot = self._moved = self._largest = 0.0
        self._found = self._lost = 0

    def add(self, ours: Any, theirs: Any) -> None:  # noqa: ANN401  arrays of F64; None: the same once more
        np: Any = numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            finite = np.isfinite(ours)
            self._found += len(ours) - int(np.count_nonzero(finite))
            if theirs is None:
                self._lost += len(ours) - int(np.count_nonzero(finite))
                squares = float(np.dot(ours[finite], ours[finite]))
                self._squares += squares
                self._other += squares
                self._dot += squares
                return
            finite_too = np.isfinite(theirs)
            self._lost += len(theirs) - int(np.count_nonzero(finite_too))
            both = finite & finite_too
            ours, theirs = ours[both], theirs[both]
            change = theirs - ours
            self._squares += float(np.dot(ours, ours))
            self._other += float(np.dot(theirs, theirs))
            self._dot += float(np.dot(ours, theirs))
            self._moved += float(np.dot(change, change))
            self._largest = max(self._largest, float(np.abs(change).max(initial=0.0)))

    def distance(self, name: str, *, equal: bool) -> Distance:
        return Distance(
            name=name,
            equal=equal,
            squares=self._squares,
            other=self._other,
            dot=self._dot,
            moved=self._moved,
            largest=self._largest,
            found=self._found,
            lost=self._lost,
        )
