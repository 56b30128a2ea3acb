"""Effect of recipes on a tensor, summed tile by tile for each recipe in reused memory.

Magnitudes are cast, because no recipe depends on signs. They are first divided by a power of two, so that the largest
is close to 1 and no F32 square overflows or underflows. Powers of two do not change the rounding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ckpttool.core.verify.kernels.fold import numpy
from ckpttool.fp8.model.fp8 import Fp8Format, Recipe
from ckpttool.fp8.model.probe import CastNumbers, Lines
from ckpttool.fp8.read.kernel_cast import LIMITS, round_in_place, scales
from ckpttool.fp8.read.kernel_sample import SIDE, Matrix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]

NO_ERROR_DB = 99.0
"""Signal-to-error ratio in dB of elements that do not change at all."""

PERCENT = 0.01
"""The percentile of the worst runs of elements that represents a tensor."""

_GROUP = 32
"""Number of elements that share a scale in recipes with the hardware's own blocks."""

WIDE_BITS = 50
"""Number of binades beyond which small F32 squares vanish next to large ones."""

ONE_SCALE = frozenset({Recipe.TENSORWISE, Recipe.DELAYED})
"""Recipes with one scale per tensor."""

_GROUPED = frozenset({Recipe.MXFP8, Recipe.MXFP8_FLOOR})


class _Lowest:
    """Collector of the lowest of many numbers, as many as a percentile needs."""

    def __init__(self, most: int) -> None:
        self._keep = math.ceil(most * PERCENT) + 2
        self._held: list[Array] = []
        self._here = self._count = 0

    def add(self, values: Array) -> None:
        np: Any = numpy()
        self._held.append(values)
        self._count += len(values)
        self._here += len(values)
        if self._here > 4 * self._keep + (1 << 16):
            self._held = [np.partition(np.concatenate(self._held), self._keep)[: self._keep]]
            self._here = self._keep

    def percentile(self) -> float | None:
        """Return the first percentile, interpolated, or None if there are no values."""
        np: Any = numpy()
        if not self._count:
            return None
        lowest = np.sort(np.concatenate(self._held))
        at = PERCENT * (self._count - 1)
        low = math.floor(at)
        high = min(low + 1, len(lowest) - 1)
        return float(lowest[low] + (lowest[high] - lowest[low]) * (at - low))


class Tile:
    """A tile, with the values that all recipes need."""

    def __init__(self, values: Array, place: tuple[int, int], matrix: Matrix, *, wide: bool) -> None:
        """Compute the magnitudes, padded with zeros to 128 x 128, and store the tile's place.

        Args:
            values: F32 values. The largest of the tensor is close to one.
            place: The tile's row of tiles, and column of tiles.
            matrix: The matrix that contains the tile.
            wide: Whether to compute squares in F64.
        """
        np: Any = numpy()
        self.values, self.place, self.wide = values, place, wide
        self.height = min(SIDE, matrix.rows - place[0] * SIDE)
        self.width = min(SIDE, matrix.columns - place[1] * SIDE)
        self.elements = self.height * self.width
        self.nonzero = int(np.count_nonzero(values.view(np.int32)))
        self.rows, self.columns = self.squares(values)
        self.total = float(self.rows.sum(dtype=np.float64))
        down, across = matrix.tiles
        # Shorter runs count only if the tensor has no others.
        self.row_runs = slice(0, self.height if self.width == SIDE or across == 1 else 0)
        self.column_runs = slice(0, self.width if matrix.is_matrix and (self.height == SIDE or down == 1) else 0)

    def squares(self, values: Array) -> tuple[Array, Array]:
        """Return the sum of squares for each row and for each column."""
        np: Any = numpy()
        squared = np.square(values, dtype=np.float64 if self.wide else np.float32)
        units = np.ones(SIDE, squared.dtype)
        return squared @ units, units @ squared


class Scales:
    """The scales of one recipe and format in one tensor."""

    def __init__(self, recipe: Recipe, format_: Fp8Format, amax: float, row_max: Array) -> None:
        """Store the largest magnitudes of the tensor and of its rows, scaled like the values of its tiles."""
        np: Any = numpy()
        self._recipe, self._format = recipe, format_
        if recipe in ONE_SCALE:
            self._of_tensor = scales(np.float32(amax), format_, recipe)
        elif recipe is Recipe.ROWWISE:
            self._of_rows = np.ones(-(-len(row_max) // SIDE) * SIDE, np.float32)
            self._of_rows[: len(row_max)] = scales(row_max, format_, recipe)

    def of(self, tile: Tile) -> Array:
        """Return the scale of a tile: one number, or a shape that broadcasts to 128 x 4 x 32."""
        if self._recipe in ONE_SCALE:
            return self._of_tensor
        if self._recipe is Recipe.ROWWISE:
            first = tile.place[0] * SIDE
            scale: Array = self._of_rows[first : first + SIDE].reshape(SIDE, 1, 1)
            return scale
        if self._recipe in _GROUPED:
            parts = tile.values.reshape(SIDE, -1, _GROUP)
            return scales(parts.max(axis=2, keepdims=True), self._format, self._recipe)
        return scales(tile.values.max(), self._format, self._recipe)


class CastSums:
    """Sums over tiles for one recipe in one format."""

    def __init__(self, recipe: Recipe, format_: Fp8Format, matrix: Matrix) -> None:
        self.recipe, self.format = recipe, format_
        self._limits = LIMITS[format_]
        self._threshold = 2.0 ** -(self._limits.mantissa_bits + 1)
        down, across = matrix.tiles
        self._row_runs = _Lowest(matrix.rows * across)
        self._column_runs = _Lowest(matrix.columns * down)
        self._nonzero: list[int] = []
        self._lost: list[int] = []
        self._underflow = self._subnormal = self._saturated = 0
        self._signal = self._error = self._product = self._cast = 0.0

    def add(self, tile: Tile, scale: Array, work: Sequence[Array]) -> None:
        """Add a tile.

        Args:
            tile: The tile.
            scale: The scale, as `Scales.of` returns it.
            work: Three arrays of F32 and one of booleans of its shape, which are overwritten.
        """
        np: Any = numpy()
        scaled, rounded, spare, flags = work
        parts = (SIDE, -1, _GROUP) if scale.ndim else (SIDE, SIDE)
        np.multiply(tile.values.reshape(parts), scale, out=scaled.reshape(parts))
        if self.recipe in {Recipe.MXFP8_FLOOR, Recipe.DELAYED}:
            self._saturated += int(np.count_nonzero(np.greater(scaled, self._limits.largest, out=flags)))
            np.minimum(scaled, self._limits.largest, out=rounded)
        else:
            np.copyto(rounded, scaled)
        round_in_place(rounded, self.format, spare)
        above = int(np.count_nonzero(rounded.view(np.int32)))
        normal = int(np.count_nonzero(np.greater_equal(rounded, self._limits.smallest_normal, out=flags)))
        self._underflow += tile.nonzero - above
        self._subnormal += above - normal
        self._compare(tile, scale, work)

    def _compare(self, tile: Tile, scale: Array, work: Sequence[Array]) -> None:
        """Compare a tile with the result of its cast, both still scaled if the scale is one number."""
        np: Any = numpy()
        scaled, rounded, spare, flags = work
        if scale.ndim:
            parts = rounded.reshape(SIDE, -1, _GROUP)
            np.multiply(parts, np.divide(np.float32(1), scale), out=parts)
            base, factor = tile.values, 1.0
        else:
            base, factor = scaled, float(scale) ** -2
        product, cast = np.vdot(rounded, base), np.vdot(rounded, rounded)
        np.subtract(rounded, base, out=rounded)
        np.abs(rounded, out=rounded)
        np.multiply(base, np.float32(self._threshold), out=spare)
        self._nonzero.append(tile.nonzero)
        self._lost.append(int(np.count_nonzero(np.greater(rounded, spare, out=flags))))
        rows, columns = tile.squares(rounded)
        self._row_runs.add(_ratios(tile.rows, rows, factor, tile.row_runs))
        self._column_runs.add(_ratios(tile.columns, columns, factor, tile.column_runs))
        self._signal += tile.total
        self._error += float(rows.sum(dtype=np.float64)) * factor
        self._product += float(product) * factor
        self._cast += float(cast) * factor

    def numbers(self, *, amax: float, lines: tuple[Array, Array] | None, is_exact: bool) -> CastNumbers:
        """Return the totals.

        Args:
            amax: The largest magnitude, which determines a single scale of the tensor.
            lines: The largest magnitudes of all rows, and of all columns, or None if the tensor is not a matrix.
            is_exact: Whether every element was cast.
        """
        np: Any = numpy()
        scale = gone = faint = None
        if self.recipe in ONE_SCALE:
            scale = float(scales(np.float32(amax), self.format, self.recipe))
            if lines is not None:
                gone, faint = _below(*lines, scale, self.format)
        nonzero, lost = sum(self._nonzero), sum(self._lost)
        runs = [
            percentile for runs in (self._row_runs, self._column_runs) if (percentile := runs.percentile()) is not None
        ]
        lengths = math.sqrt(self._signal * self._cast)
        return CastNumbers(
            recipe=self.recipe,
            format=self.format,
            scale=scale,
            channel_snr_db=min(runs, default=None),
            gone=gone,
            faint=faint,
            underflow=self._underflow / nonzero if nonzero else None,
            subnormal=self._subnormal / nonzero if nonzero else None,
            saturated=self._saturated / nonzero if nonzero else None,
            lost=lost / nonzero if nonzero else None,
            lost_error=None if is_exact or not nonzero else self._standard_error(lost / nonzero, nonzero),
            snr_db=_decibels(self._signal, self._error) if nonzero else None,
            cosine=self._product / lengths if lengths else None,
        )

    def _standard_error(self, share: float, nonzero: int) -> float | None:
        """Return the standard error of a ratio of two sums over tiles."""
        count = len(self._lost)
        if count < 2:  # noqa: PLR2004  a single tile shows no variation
            return None
        residual = sum((lost - share * count) ** 2 for lost, count in zip(self._lost, self._nonzero, strict=True))
        return math.sqrt(residual * count / (count - 1)) / nonzero


def _decibels(signal: float, error: float) -> float:
    return min(10 * math.log10(signal / error), NO_ERROR_DB) if error else NO_ERROR_DB


def _ratios(signal: Array, error: Array, factor: float, runs: slice) -> Array:
    """Return the decibels of runs of elements that are not all zero."""
    np: Any = numpy()
    signal, error = signal[runs], error[runs]
    nonzero = signal > 0
    signal, error = signal[nonzero].astype(np.float64), error[nonzero] * factor
    with np.errstate(divide="ignore"):
        ratios: Array = np.minimum(10 * np.log10(signal / error), NO_ERROR_DB)
    return ratios


def _below(row_max: Array, column_max: Array, scale: float, format_: Fp8Format) -> tuple[Lines, Lines]:
    """Count the rows and columns that become zero, and the faint ones, under one scale.

    Args:
        row_max: Largest magnitude of each row, F32.
        column_max: Largest magnitude of each column, F32.
        scale: The factor before the cast.
        format_: The target format.
    """
    np: Any = numpy()
    limits = LIMITS[format_]
    counts = []
    for least in (np.float32(limits.smallest / 2), np.nextafter(np.float32(limits.smallest_normal), np.float32(0))):
        both = [
            int(np.count_nonzero((largest > 0) & (largest * np.float32(scale) <= least)))
            for largest in (row_max, column_max)
        ]
        counts.append(Lines(rows=both[0], columns=both[1]))
    return counts[0], counts[1]
