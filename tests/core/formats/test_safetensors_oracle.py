"""Our parser against the real package: what it refuses, we refuse; what it writes, we find without a note.

What we refuse although it loads it, on purpose: an unknown field in an entry, an entry spelled as a list, `null` as
metadata, a key of the top level that stands twice, padding other than spaces, more than 64 dimensions. Nothing writes
these, so they are damage or an attack.
"""

from __future__ import annotations

import json
import math
import re
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

from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.formats import read_header
from ckpttool.core.formats.safetensors import header as safetensors_header
from ckpttool.core.formats.safetensors.header import DTYPES, HeaderText, parse_strictly
from ckpttool.trainers.mindformers.scalars import FACTS
from tests.conftest import FIXTURES
from tests.support.shard_writers import MemorySource, compact, safetensors_file

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


# --- an entry read at once against one read piece by piece -----------------------------------------------------------

NEVER = re.compile("(?!)")


def piece_by_piece(text: str) -> HeaderText:
    with mock.patch.object(safetensors_header, "_USUAL_ENTRY", NEVER):
        return parse_strictly(text, data_begin=100)


@given(
    st.dictionaries(_NAMES, st.tuples(_NUMPY, st.lists(st.integers(0, 4), max_size=4)), max_size=12),
    st.none() | st.dictionaries(st.text("ab"), st.text('ab"\\€'), max_size=3),
    st.data(),
)
@example({"a": ("u1", [1])}, {}, None)
@example({name: ("f4", [1]) for name in "abcdefgh"}, {"a": ""}, None)
def test_an_entry_read_at_once_says_what_it_says_piece_by_piece(
    tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str] | None, draw: st.DataObject | None
) -> None:
    data = save({name: np.zeros(shape, dtype) for name, (dtype, shape) in tensors.items()}, metadata)
    text = data[8 : 8 + int.from_bytes(data[:8], "little")].decode().rstrip(" ")
    if draw is not None and draw.draw(st.booleans()):
        at = draw.draw(st.integers(0, len(text)))
        until = at + draw.draw(st.integers(0, 2))
        text = text[:at] + draw.draw(st.text('019{}[],:"\\U8\x01²', max_size=2)) + text[until:]
    assert parse_strictly(text, data_begin=100) == piece_by_piece(text)


def test_metadata_that_look_like_a_tensor_are_none() -> None:
    text = '{"__metadata__":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    assert parse_strictly(text, data_begin=100) == piece_by_piece(text)
    assert [finding.code for finding in parse_strictly(text, data_begin=100).findings] == [Code.HEADER_INVALID]


@pytest.mark.parametrize("path", FILES[:: len(FILES) // 8], ids=lambda path: path.stem)
def test_what_mindspore_writes_is_as_safetensors_writes_it(path: Path) -> None:
    data = path.read_bytes()
    text = data[8 : 8 + int.from_bytes(data[:8], "little")].decode().rstrip(" ")
    assert parse_strictly(text, data_begin=100) == piece_by_piece(text)
    assert parse_strictly(text, data_begin=100).canonical
