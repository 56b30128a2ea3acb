"""A `.metadata` of torch.distributed.checkpoint says without torch what it says to torch, however it is spelled."""

from __future__ import annotations

import gc
import io
import pickle
import pickletools
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.formats.torch.dcp import DcpMetadata, SplitTensor, read_dcp_metadata, slice_names
from ckpttool.core.formats.torch.pickle_objects import GETATTR, BrokenPickleError
from ckpttool.core.formats.torch.slice_machine import Chunk, Slice, SliceMachine
from ckpttool.core.storage.local import LocalStorage
from tests.support.trainer_trees import LAYOUTS

REAL = sorted(LAYOUTS.rglob(".metadata"))
ONE = LAYOUTS / "dcp_fsdp2_4ranks/step_000005/.metadata"
"""By name, because further trees change the order."""
MODULE = "torch.distributed.checkpoint.metadata"


def written(metadata: object, protocol: int = 4) -> bytes:
    out = io.BytesIO()
    pickle.dump(metadata, out, protocol)
    return out.getvalue()


class _Reader(pickle.Unpickler):
    """Takes another writer's record of a place for torch's own, which it copies."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401  any class
        own = "torch.distributed.checkpoint.filesystem"
        return super().find_class(own if name == "_StorageInfo" else module, name)


def told_by_torch(data: bytes) -> DcpMetadata:
    """What torch itself reads."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    said = _Reader(io.BytesIO(data)).load()  # a real one
    declared: Mapping[str, Any] = said.state_dict_metadata
    return DcpMetadata(
        tensors={
            name: SplitTensor(
                str(each.properties.dtype).rpartition(".")[2],
                tuple(each.size),
                tuple(Chunk(tuple(part.offsets), tuple(part.sizes)) for part in each.chunks),
            )
            for name, each in declared.items()
            if isinstance(each, TensorStorageMetadata)
        },
        values=tuple(name for name, each in declared.items() if not isinstance(each, TensorStorageMetadata)),
        slices=tuple(
            Slice(
                index.fqn,
                info.relative_path,
                info.offset,
                info.length,
                bool(info.transform_descriptors),
                tuple(index.offset or ()),
            )
            for index, info in said.storage_data.items()
        ),
        calls=(),
        paths=said.planner_data,
    )


def assert_same(found: DcpMetadata, true: DcpMetadata) -> None:
    assert dict(found.tensors) == dict(true.tensors)
    assert found.values == true.values
    assert sorted(found.slices) == sorted(true.slices)
    assert found.paths is None or found.paths == true.paths


def slowly(data: bytes, monkeypatch: pytest.MonkeyPatch) -> DcpMetadata:
    """Read every opcode, and pass over none."""
    for name in ("_chunk_again", "_tensor_again", "_slice_again"):
        monkeypatch.setattr(SliceMachine, name, lambda _self, _begin: False)
    return read_dcp_metadata(data)


@pytest.mark.sample(6)
@pytest.mark.parametrize("path", REAL, ids=lambda path: "/".join(path.parts[-4:-1]))
def test_real_metadata_say_what_they_say_to_torch(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = path.read_bytes()
    true = told_by_torch(data)
    assert_same(read_dcp_metadata(data), true)
    assert_same(slowly(data, monkeypatch), true)
    assert read_dcp_metadata(data, with_paths=True).paths == true.paths


names = st.text(max_size=12) | st.sampled_from(["model.weight", "a\x94b", "ä\udc94", "x" * 300])
numbers = st.integers(0, 300) | st.integers(0, 2**48) | st.sampled_from([255, 256, 65535, 65536, 2**31 - 1, 2**31])
shapes = st.lists(numbers, max_size=5).map(tuple)


@st.composite
def metadata(draw: st.DrawFn) -> object:
    import torch
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        BytesStorageMetadata,
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )

    declared: dict[str, Any] = {}
    stored: dict[Any, Any] = {}
    for name in draw(st.lists(names, max_size=6, unique=True)):
        path = draw(st.sampled_from(["__0_0.distcp", "__1_0.distcp"]) | names)
        if draw(st.booleans()):
            declared[name] = BytesStorageMetadata()
            stored[MetadataIndex(name)] = _StorageInfo(path, draw(numbers), draw(numbers))
            continue
        size = torch.Size(draw(shapes))
        parts = [
            ChunkStorageMetadata(offsets=torch.Size(draw(shapes)), sizes=draw(st.just(size) | shapes.map(torch.Size)))
            for _ in range(draw(st.integers(0, 3)))
        ]
        dtype = draw(st.sampled_from([torch.float32, torch.bfloat16]))
        declared[name] = TensorStorageMetadata(properties=TensorProperties(dtype=dtype), size=size, chunks=parts)
        for number, part in enumerate(parts):
            index = MetadataIndex(name, part.offsets, draw(st.none() | st.just(number)))
            stored[index] = _StorageInfo(path, draw(numbers), draw(numbers), draw(st.none() | st.just(["zstd"])))
    keys = draw(st.lists(names, min_size=1, max_size=5)) + draw(st.sampled_from([[], ["again", "again"]]))
    return Metadata(declared, {name: (name, *keys, *name.split("e")) for name in declared}, stored)


@given(metadata(), st.sampled_from([2, 3, 4, 5]))
def test_whatever_torch_writes_is_read_as_torch_reads_it(said: object, protocol: int) -> None:
    data = written(said, protocol)
    assert_same(read_dcp_metadata(data), told_by_torch(data))


def test_what_is_written_for_every_slice_is_passed_over_as_a_whole() -> None:
    data = ONE.read_bytes()
    machine = SliceMachine(data)
    machine.run()
    assert len(machine.slices) > 0.9 * len(told_by_torch(data).slices)


def test_every_class_that_would_be_looked_up_is_told() -> None:
    calls = {f"{module}.{name}" for module, name in read_dcp_metadata(ONE.read_bytes()).calls}
    assert {"torch.distributed.checkpoint.metadata.Metadata", "torch.Size", "torch.float32"} <= calls
    hostile = b"\x80\x02cposix\nsystem\nU\x02id\x85R0" + ONE.read_bytes()[2:]
    with suppress(BrokenPickleError):
        assert ("posix", "system") in read_dcp_metadata(hostile).calls


MEMBER = b"ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n"


@pytest.mark.parametrize(
    ("before", "told"),
    [
        (b"cbuiltins\ngetattr\n" + MEMBER + b"\x8c\x01A\x86R0", {(MODULE, "_MEM_FORMAT_ENCODING.A")}),
        (b"cbuiltins\ngetattr\ncos\npath\n\x8c\x06unlink\x86R0", {("os", "path"), ("os", "path.unlink")}),
        (b"cbuiltins\ngetattr\n\x8c\x01a\x8c\x01b\x86R0", {GETATTR}),
        (b"cbuiltins\ngetattr\n" + MEMBER + b"\x85R0", {GETATTR}),
        (b"cbuiltins\ngetattr\n" + MEMBER + b"K\x01\x86R0", {GETATTR}),
        (b"cbuiltins\nmap\ncbuiltins\ngetattr\n\x85R0", {GETATTR, ("builtins", "map")}),
    ],
)
def test_what_is_asked_for_by_getattr_is_told_by_its_dotted_name_or_getattr_itself(
    before: bytes, told: set[tuple[str, str]]
) -> None:
    whole = ONE.read_bytes()
    healthy, found = (set(read_dcp_metadata(data).calls) for data in (whole, b"\x80\x04" + before + whole[2:]))
    assert {name for name in found - healthy if name != (MODULE, "_MEM_FORMAT_ENCODING")} == told


@pytest.mark.parametrize("keep", [0, 1, 100, 3000, -1])
def test_a_cut_one_is_said_to_be_cut(keep: int) -> None:
    with pytest.raises(BrokenPickleError):
        read_dcp_metadata(ONE.read_bytes()[:keep])


@given(st.data())
def test_a_damaged_one_is_read_or_said_to_be_broken_and_no_more(data: st.DataObject) -> None:
    whole = bytearray(data.draw(st.sampled_from(REAL)).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BrokenPickleError):
        read_dcp_metadata(bytes(whole))


def _changed(old: bytes, new: bytes) -> bytes:
    data = ONE.read_bytes()
    assert old in data
    return data.replace(old, new)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"a": 1}),
        pickle.dumps(None),
        b"N.",
        _changed(b"\x8c\x13state_dict_metadata", b"\x8c\x13state_dict_metadatb"),
        _changed(b"\x8c\x06chunks", b"\x8c\x06chunkt"),
        _changed(b"\x8c\x07offsets", b"\x8c\x07offsett"),
        _changed(b"\x8c\x0drelative_path", b"\x8c\x0drelative_patt"),
        _changed(b"\x8c\x06length", b"\x8c\x06lengtt"),
        b"Np5\n.",
    ],
)
def test_what_says_not_where_slices_lie_is_broken(data: bytes) -> None:
    with pytest.raises(BrokenPickleError):
        read_dcp_metadata(data)


def _last_changed(old: bytes, new: bytes) -> bytes:
    before, _, after = ONE.read_bytes().rpartition(old)
    assert before
    return before + new + after


def _other_recall(text: str) -> bytes:
    """Let all that recalls a text recall the first thing that is none."""
    data = ONE.read_bytes()
    opcodes = [(opcode.name, argument) for opcode, argument, _ in pickletools.genops(data)]
    remembered = [before[1] for before, (name, _) in pairwise(opcodes) if name == "MEMOIZE"]
    own = remembered.index(text)
    spelled = (b"h" + bytes([own])) if own < 256 else b"j" + own.to_bytes(4, "little")
    assert spelled in data
    return data.replace(spelled, b"h\x03")


@pytest.mark.parametrize(
    "data",
    [
        b"\x8c\x01a\x94h\x00(\x8c\x05b\x94t\x94.",  # a key whose length is not its text's
        _changed(b"\x86\x94\x85\x94R", b"\x85\x94\x85\x94R"),
        _changed(b"\x8c\x0c__1_0", b"\x8c\x0b__1_0"),
        _changed(b"app.optim.state.3.weight.exp_avg_sq\x94", b"app.optim.state.3.weight.exp_avg\x94sq\x94"),
        _other_recall("__1_0.distcp"),
        _last_changed(b"\x8c#app.optim.state.3.weight.exp_avg_sq", b"\x8c$app.optim.state.3.weight.exp_avg_sq"),
    ],
)
def test_what_is_spelled_as_torch_never_does_is_not_passed_over(data: bytes) -> None:
    with pytest.raises(BrokenPickleError):
        read_dcp_metadata(data)


def test_an_offset_below_zero_is_none() -> None:
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex

    for last in (-5, 5):
        stored = {MetadataIndex(name): _StorageInfo("__0_0.distcp", at, 5) for name, at in (("a", 0), ("b", last))}
        data = written(Metadata({"a": BytesStorageMetadata(), "b": BytesStorageMetadata()}, None, stored))
        if last > 0:
            assert len(read_dcp_metadata(data).slices) == 2
        else:
            with pytest.raises(BrokenPickleError, match="below zero"):
                read_dcp_metadata(data)


def test_no_more_spellings_of_sizes_are_kept_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    true = told_by_torch(ONE.read_bytes())
    monkeypatch.setattr("ckpttool.core.formats.torch.slice_machine._MOST_SIZES", 0)
    assert_same(read_dcp_metadata(ONE.read_bytes()), true)


def test_who_collects_no_garbage_is_left_so() -> None:
    gc.disable()
    try:
        read_dcp_metadata(ONE.read_bytes())
        assert not gc.isenabled()
    finally:
        gc.enable()
    read_dcp_metadata(ONE.read_bytes())
    assert gc.isenabled()


def test_slices_are_called_by_the_record_beside_them_a_part_by_its_place(tmp_path: Path) -> None:
    save = LAYOUTS / "dcp_fsdp2_4ranks" / "step_000015"
    record = read_dcp_metadata((save / ".metadata").read_bytes())
    names = slice_names(LocalStorage(str(save.parent)), "step_000015/__1_0.distcp")
    assert slice_names(LocalStorage(str(save)), "__1_0.distcp") == names
    here = {each.offset: each.name for each in record.slices if each.path == "__1_0.distcp"}
    assert {offset: name.partition(" (part ")[0] for offset, name in names.items()} == here
    assert {name.partition(" (part ")[2] for name in names.values()} == {"", "2 of 4)"}
    (tmp_path / ".metadata").write_bytes(b"torn")
    assert slice_names(LocalStorage(str(tmp_path)), "__1_0.distcp") == {}
    assert slice_names(LocalStorage(str(tmp_path)), "none/__1_0.distcp") == {}


def test_a_slice_that_is_the_whole_of_its_tensor_is_called_by_the_name_alone() -> None:
    save = LAYOUTS / "dcp_plain_2ranks" / "8"
    record = read_dcp_metadata((save / ".metadata").read_bytes())
    times = Counter(each.name for each in record.slices)
    whole = {each.offset: each.name for each in record.slices if each.path == "__0_0.distcp" and times[each.name] == 1}
    assert whole
    assert whole.items() <= slice_names(LocalStorage(str(save)), "__0_0.distcp").items()
