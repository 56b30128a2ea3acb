"""Our parser against the real package: what it refuses, we refuse; what it writes, we find without a note.

What we refuse although it loads it, on purpose: an unknown field in an entry, an entry spelled as a list, `null` as
metadata, a key of the top level that stands twice, padding other than spaces, more than 64 dimensions. Nothing writes
these, so they are damage or an attack.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import safetensors
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from safetensors.numpy import save
from safetensors.torch import save as save_torch

from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.formats import read_header
from ckpttool.core.formats.safetensors import quick as safetensors_quick
from ckpttool.core.formats.safetensors.header import DTYPES, parse_strictly
from ckpttool.core.formats.safetensors.quick import parse_quickly
from ckpttool.trainers.mindformers.scalars import FACTS
from tests.conftest import FIXTURES
from tests.support.shard_writers import MemorySource, compact, entries_json, safetensors_file

FILES = sorted(FIXTURES.rglob("*.safetensors"))


# The package has no types for it. Returns pairs of a name and a dict of dtype, shape and data.
deserialize: Callable[[bytes], list[tuple[str, dict[str, Any]]]] = safetensors.deserialize


def package_accepts(data: bytes) -> bool:
    try:
        deserialize(data)
    except safetensors.SafetensorError:
        return False
    return True


def we_accept(data: bytes) -> bool:
    findings = read_header(MemorySource(data), named=FormatName.SAFETENSORS, facts=FACTS).findings
    return all(finding.severity is Severity.NOTE for finding in findings)


# --- what the package writes -----------------------------------------------------------------------------------------

_NUMPY = st.sampled_from(["bool", "u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8", "c8"])
_NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda name: name != "__metadata__")


@given(
    st.dictionaries(_NAMES, st.tuples(_NUMPY, st.lists(st.integers(0, 4), max_size=4)), max_size=12),
    st.none()
    | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), st.text('ab"\\\n€'), max_size=4),
)
def test_what_safetensors_writes_has_no_finding_and_not_even_a_note(
    tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str] | None
) -> None:
    assume("crc_num" not in (metadata or {}))
    assume(
        tensors or metadata != {}
    )  # for neither, safetensors 0.8 writes `{},"__metadata__":{}}`, and refuses it itself
    data = save({name: np.zeros(shape, dtype) for name, (dtype, shape) in tensors.items()}, metadata)
    header = read_header(MemorySource(data), named=FormatName.SAFETENSORS, facts=FACTS)
    scalar_names = {"epoch_num", "step_num", "global_step", "loss_scale", "global_batch_size"}
    assert [finding for finding in header.findings if finding.tensor not in scalar_names] == []
    begin = 8 + int.from_bytes(data[:8], "little")
    theirs = {
        (name, tensor["dtype"], tuple(tensor["shape"]), len(tensor["data"])) for name, tensor in deserialize(data)
    }
    assert {(entry.name, entry.dtype.value, entry.shape, entry.nbytes) for entry in header.entries} == theirs
    assert sum(entry.nbytes for entry in header.entries) == len(data) - begin
    assert dict(header.metadata) == (metadata or {})


def test_the_order_of_all_types_is_that_of_the_package() -> None:
    types = [
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64),
        *(torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
        *(torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.float8_e4m3fnuz),
        *(torch.float8_e5m2fnuz, torch.float4_e2m1fn_x2),
    ]
    data = save_torch(
        {
            str(dtype): torch.zeros(16, dtype=torch.uint8).view(dtype)
            for dtype in types
            if dtype.is_floating_point or dtype is torch.uint8
        }
        | {str(dtype): torch.zeros(2, dtype=dtype) for dtype in types if not dtype.is_floating_point}
    )
    header = read_header(MemorySource(data), named=FormatName.SAFETENSORS, facts=FACTS)
    assert header.findings == ()
    assert len({entry.dtype for entry in header.entries}) == len(types)


# --- what the package refuses ----------------------------------------------------------------------------------------


def _tweak(header: dict[str, object], draw: Callable[[st.SearchStrategy[object]], object]) -> bytes:
    """Change one thing of a healthy header: a value, a key, or a stretch of its text."""
    names = [name for name in header if name != "__metadata__"]
    kind = draw(st.sampled_from(["nothing", "value", "text", "order", "metadata"]))
    if kind == "value" and names:
        entry = header[draw(st.sampled_from(names))]  # type: ignore[index]
        assert isinstance(entry, dict)
        key = draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
        entry[key] = draw(
            st.sampled_from([*DTYPES, "F99", "f32"])
            | st.lists(st.integers(-1, 9) | st.sampled_from([2**32, 2**62, 2**64 - 1, 2**64, True, 1.0]), max_size=4)
            | st.none()
        )
    if kind == "metadata":
        header["__metadata__"] = draw(st.sampled_from([{"a": 1}, {"a": None}, {}, {"a": "b"}, [], "x", {"a": ["b"]}]))
    raw = json.dumps(header).encode() if kind == "order" else compact(header)
    if kind == "text":
        at = draw(st.integers(0, len(raw)))
        until = draw(st.integers(0, 3))
        assert isinstance(at, int)
        assert isinstance(until, int)
        instead = draw(
            st.sampled_from([b"", *(bytes([byte]) for byte in b' \n0-"\\{}[],e\xff'), b"\\ud800", b"\\u0061", b"NaN"])
        )
        assert isinstance(instead, bytes)
        raw = raw[:at] + instead + raw[at + until :]
    return raw


@given(
    st.dictionaries(
        st.text('abé"\\\n', max_size=3),
        st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 9), max_size=3)),
        max_size=4,
    ),
    st.data(),
    st.integers(-1, 1),
)
def test_whatever_the_package_refuses_we_refuse(
    tensors: dict[str, tuple[str, list[int]]], draw: st.DataObject, more: int
) -> None:
    header: dict[str, object] = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * DTYPES[dtype].bits // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    raw = _tweak(header, draw.draw)
    data = safetensors_file(raw, bytes(max(0, end + more)), pad=draw.draw(st.booleans()))
    assert not we_accept(data) or package_accepts(data)


@pytest.mark.sample(1)
@pytest.mark.parametrize("path", FILES[:: len(FILES) // 4], ids=lambda path: path.stem)
def test_every_bit_flip_that_the_package_refuses_we_refuse(path: Path) -> None:
    data = path.read_bytes()
    header_bits = 8 * (8 + int.from_bytes(data[:8], "little"))
    for bit in range(header_bits):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert not we_accept(bytes(changed)) or package_accepts(bytes(changed)), bit


_ENTRY = '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'


@pytest.mark.parametrize(
    "header",
    [
        _ENTRY.join(['{"a":', "}"]).replace("[0,1]}", '[0,1],"more":1}'),
        '{"a":["U8",[1],[0,1]]}',
        '{"__metadata__":null,"a":' + _ENTRY + "}",
        '{"a":' + _ENTRY + ',"a":' + _ENTRY + "}",
        '{"a":' + _ENTRY + "}\n",
        '{"a":' + _ENTRY.replace("[1]", str([1] * 65)) + "}",
    ],
)
def test_the_list_of_what_only_we_refuse_is_true(header: str) -> None:
    data = safetensors_file(header.encode(), b"1")
    assert package_accepts(data)
    assert not we_accept(data)


NUMBERED = [(number, name) for name in ("a", "]},b", "€") for number in range(12)]

# --- the quick parser against the strict one -------------------------------------------------------------------------


@given(
    st.dictionaries(_NAMES, st.tuples(_NUMPY, st.lists(st.integers(0, 4), max_size=4)), max_size=12),
    st.none() | st.dictionaries(st.text("ab"), st.text('ab"\\€'), max_size=3),
    st.sampled_from([1_000_000, 200, 90, 50, 1]),
    st.data(),
)
@example({"a": ("u1", [1])}, {}, 1_000_000, None)
@example({name: ("f4", [1]) for name in "abcdefgh"}, {"a": ""}, 50, None)
def test_the_quick_parser_says_what_the_strict_one_says_or_nothing(
    tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str] | None, piece: int, draw: st.DataObject | None
) -> None:
    data = save({name: np.zeros(shape, dtype) for name, (dtype, shape) in tensors.items()}, metadata)
    text = data[8 : 8 + int.from_bytes(data[:8], "little")].decode().rstrip(" ")
    if draw is not None and draw.draw(st.booleans()):
        at = draw.draw(st.integers(0, len(text)))
        until = at + draw.draw(st.integers(0, 2))
        text = text[:at] + draw.draw(st.text('019{}[],:"\\U8\x01²', max_size=2)) + text[until:]
    with mock.patch.object(safetensors_quick, "_PIECE_CHARS", piece):
        quick = parse_quickly(text, data_begin=100)
    assert quick in (None, parse_strictly(text, data_begin=100))


@pytest.mark.parametrize("metadata", [None, {"format": "ms", "]},": "a"}])
def test_a_header_in_pieces_says_what_it_says_in_one(metadata: dict[str, str] | None) -> None:
    tensors = {f"{name}{number:03d}": np.zeros(2, dtype) for dtype in ("f4", "i4", "u1") for number, name in NUMBERED}
    data = save(tensors, metadata)
    text = data[8 : 8 + int.from_bytes(data[:8], "little")].decode().rstrip(" ")
    whole = parse_quickly(text, data_begin=100)
    assert whole is not None
    assert whole == parse_strictly(text, data_begin=100)
    for piece in range(100, 2000, 61):
        with mock.patch.object(safetensors_quick, "_PIECE_CHARS", piece):
            assert parse_quickly(text, data_begin=100) == whole


def test_what_is_wrong_between_two_pieces_is_for_the_strict_way() -> None:
    """Two types in the wrong order, two names in the wrong order, one name twice, and a hole: each at every border."""
    for at in range(1, 20):
        rows = [(f"{number:03d}", "F32", [2], 8) for number in range(20)]
        swapped = [*rows[: at - 1], rows[at], rows[at - 1], *rows[at + 1 :]]
        later = [*rows[:at], ("y", "U8", [8], 8), *rows[at:]]
        texts = [compact(entries_json(wrong)).decode() for wrong in (swapped, later)]
        healthy = compact(entries_json(rows)).decode()
        texts.append(healthy.replace(f'"{at:03d}"', f'"{at - 1:03d}"'))
        texts.append(healthy.replace(f"[{8 * at},{8 * at + 8}]", f"[{8 * at + 1},{8 * at + 9}]"))
        for text in (healthy, *texts):
            for piece in (1, 60, 61, 130):
                with mock.patch.object(safetensors_quick, "_PIECE_CHARS", piece):
                    quick = parse_quickly(text, data_begin=100)
                assert quick in (None, parse_strictly(text, data_begin=100))
                assert quick is None or text == healthy


@pytest.mark.parametrize("path", FILES[:: len(FILES) // 8], ids=lambda path: path.stem)
def test_the_quick_parser_knows_what_mindspore_writes(path: Path) -> None:
    data = path.read_bytes()
    text = data[8 : 8 + int.from_bytes(data[:8], "little")].decode().rstrip(" ")
    quick = parse_quickly(text, data_begin=100)
    assert quick is not None
    assert quick == parse_strictly(text, data_begin=100)
