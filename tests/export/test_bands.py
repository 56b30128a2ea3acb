"""Whatever the shapes, cuts, strides and bands, the bytes of a tensor are those that numpy puts together."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.weights import NotExportableError, Piece, Record, Target
from ckpttool.core.storage.base import ByteSource
from ckpttool.export.bands import bands, blocks
from ckpttool.export.casts import cast
from ckpttool.export.cover import covered
from ckpttool.export.sources import Sources
from tests.support.shard_writers import MemorySource

WORDS = {DType.U8: "u1", DType.BF16: "<u2", DType.F32: "<u4", DType.F64: "<u8"}


class Files:
    """A storage of files in memory."""

    root = "."

    def __init__(self) -> None:
        self.contents: dict[str, bytearray] = {"f": bytearray()}

    @contextmanager
    def open(self, path: str) -> Iterator[ByteSource]:
        yield MemorySource(bytes(self.contents[path]))

    def store(self, values: np.ndarray, order: tuple[int, ...], at: tuple[int, ...], dtype: DType, gap: int) -> Piece:
        """Append a box in an order of axes, perhaps as a view of something larger."""
        axes = np.transpose(values, order)
        padded = np.zeros([size + gap for size in axes.shape], values.dtype)
        place = tuple(slice(0, size) for size in axes.shape)
        padded[place] = axes
        data = padded.tobytes()
        begin = len(self.contents["f"])
        self.contents["f"] += data
        strides = np.empty(values.ndim, int)
        strides[list(order)] = np.array(padded.strides, int) // values.itemsize
        record = Record("f", begin, len(data), zlib.crc32(data))
        return Piece("f", begin, dtype, values.shape, tuple(map(int, strides)), at, record)


def written(target: Target, files: Files, most: int) -> bytes:
    (checked,) = covered([target])
    with Sources(files, {}, [checked]) as sources:  # type: ignore[arg-type]  # it only opens files
        return b"".join(bytes(block) for block in blocks(checked, sources, most=most))


@st.composite
def tensors(draw: st.DrawFn) -> tuple[np.ndarray, Target, Files]:
    dtype = draw(st.sampled_from(list(WORDS)))
    shape = tuple(draw(st.lists(st.integers(0, 7), min_size=0, max_size=4)))
    values = draw(arrays(WORDS[dtype], shape))
    files = Files()
    cuts = [sorted({0, size, *draw(st.sets(st.integers(0, size), max_size=3))}) for size in shape]
    pieces = []
    boxes: list[tuple[tuple[int, int], ...]] = [()]
    for axis in cuts:
        boxes = [(*box, (low, high)) for box in boxes for low, high in zip(axis, axis[1:] or [0], strict=False)]
    for box in draw(st.permutations(boxes)):
        part = values[tuple(slice(low, high) for low, high in box)]
        order = tuple(draw(st.permutations(range(len(shape)))))
        piece = files.store(part, order, tuple(low for low, _ in box), dtype, draw(st.integers(0, 2)))
        pieces += [piece] * draw(st.integers(1, 2))
    return values, Target(name="w", dtype=dtype, shape=shape, pieces=tuple(pieces)), files


@given(tensors(), st.integers(1, 200))
def test_a_tensor_is_put_together_from_boxes_in_any_order_of_axes(
    made: tuple[np.ndarray, Target, Files], most: int
) -> None:
    values, target, files = made
    assert written(target, files, most) == values.tobytes()


@given(tensors(), st.data())
def test_a_missing_moved_or_overlapping_piece_is_never_written(
    made: tuple[np.ndarray, Target, Files], data: st.DataObject
) -> None:
    values, target, files = made
    real = [piece for piece in dict.fromkeys(target.pieces) if 0 not in piece.shape]
    if not real or not target.shape:
        return
    number = data.draw(st.integers(0, len(real) - 1))
    way = data.draw(st.sampled_from(["missing", "moved", "larger", "twice"]))
    axis = data.draw(st.integers(0, len(target.shape) - 1))
    piece = real[number]
    moved = tuple(at + (place == axis) for place, at in enumerate(piece.at))
    larger = tuple(size + (place == axis) for place, size in enumerate(piece.shape))
    changed = {
        "missing": [],
        "moved": [piece._replace(at=moved)],
        "larger": [piece._replace(shape=larger)],
        "twice": [piece, piece._replace(at=moved)],
    }[way]
    with pytest.raises(NotExportableError):
        written(
            Target(
                name="w", dtype=target.dtype, shape=target.shape, pieces=(*real[:number], *changed, *real[number + 1 :])
            ),
            files,
            100,
        )
    assert written(target, files, 100) == values.tobytes()


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(1, 64), st.randoms())
def test_a_flat_tensor_is_put_together_from_runs(lengths: list[int], most: int, random: Random) -> None:
    values = np.arange(sum(lengths), dtype="<u4") * 7
    files, pieces, at = Files(), [], 0
    for length in lengths:
        pieces.append(files.store(values[at : at + length], (0,), (at,), DType.F32, 0))
        at += length
    random.shuffle(pieces)
    target = Target(name="w", dtype=DType.F32, shape=(1, at), pieces=tuple(pieces), flat=True)
    assert written(target, files, most) == values.tobytes()
    if len(pieces) > 1:
        one, other = pieces[:2]
        swapped = (one._replace(at=other.at), other._replace(at=one.at), *pieces[2:])
        if one.shape != other.shape:
            with pytest.raises(NotExportableError):
                written(Target(name="w", dtype=DType.F32, shape=(1, at), pieces=swapped, flat=True), files, most)


@given(tensors(), st.data())
def test_a_flipped_bit_in_any_record_that_is_read_is_found(
    made: tuple[np.ndarray, Target, Files], data: st.DataObject
) -> None:
    _, target, files = made
    (checked,) = covered([target])
    if not checked.pieces:
        return
    record = data.draw(st.sampled_from([piece.record for piece in checked.pieces]))
    assert record is not None
    at = data.draw(st.integers(record.begin, record.begin + record.length - 1))
    files.contents["f"][at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(NotExportableError, match="do not match their CRC-32"):
        written(target, files, data.draw(st.integers(1, 200)))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 50))
def test_bands_are_contiguous_in_order_and_no_larger_than_allowed(shape: list[int], most: int) -> None:
    places = np.arange(np.prod(shape)).reshape(shape)
    at = 0
    for band in bands(tuple(shape), most):
        inside = places[tuple(slice(low, high) for low, high in band)].ravel()
        assert inside.tolist() == list(range(at, at + len(inside)))
        assert len(inside) <= most
        at += len(inside)
    assert at == places.size


def test_an_axis_of_any_size_takes_no_memory() -> None:
    assert next(bands((1 << 60, 1 << 60), 4)) == ((0, 1), (0, 4))


@pytest.mark.parametrize("dtype", [DType.F64, DType.F32, DType.F16, DType.BF16])
@pytest.mark.parametrize("wanted", [DType.F32, DType.BF16])
def test_a_cast_is_that_of_torch(dtype: DType, wanted: DType) -> None:
    import torch

    types = {DType.F64: torch.float64, DType.F32: torch.float32, DType.F16: torch.float16, DType.BF16: torch.bfloat16}
    random = np.random.default_rng(0)
    words = random.integers(0, 1 << min(dtype.bits, 63), 200_000, dtype=np.uint64).astype(f"<u{dtype.bits // 8}")
    signed = words.view(f"<i{dtype.bits // 8}")
    expected = torch.from_numpy(signed).view(types[dtype]).to(types[wanted])
    found = cast(words, dtype, wanted)
    as_floats = torch.from_numpy(found.view(f"<i{wanted.bits // 8}")).view(types[wanted])
    assert bool((as_floats.isnan() == expected.isnan()).all())
    assert torch.equal(as_floats[~expected.isnan()], expected[~expected.isnan()])
