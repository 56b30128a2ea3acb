"""What a torch file holds is told as torch itself would load it, without loading it."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.dtype import DType
from ckpttool.core.formats.torch import contents
from ckpttool.core.formats.torch.contents import TorchContents, torch_contents
from ckpttool.core.formats.torch.zip_directory import read_zip_directory
from tests.conftest import FIXTURES
from tests.support.shard_writers import MemorySource, torch_file

DTYPES = {
    torch.float64: DType.F64,
    torch.float32: DType.F32,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.float8_e4m3fn: DType.F8_E4M3,
    torch.float8_e5m2: DType.F8_E5M2,
    torch.int64: DType.I64,
    torch.int32: DType.I32,
    torch.int16: DType.I16,
    torch.int8: DType.I8,
    torch.uint8: DType.U8,
    torch.uint16: DType.U16,
    torch.bool: DType.BOOL,
    torch.complex64: DType.C64,
}


def opened(data: bytes) -> TorchContents:
    source = MemorySource(data)
    return torch_contents(source, read_zip_directory(source).entries)


@pytest.mark.sample(35)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0,), (4, 0, 2)])
def test_each_type_and_shape_is_told_and_its_bytes_are_found(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(60).to(dtype)[: max(1, torch.Size(shape).numel())].reshape(-1)
    tensor = tensor[: torch.Size(shape).numel()].reshape(shape).clone()
    data = torch_file({"w": tensor})
    (entry,) = opened(data).entries
    assert (entry.name, entry.dtype, entry.shape) == ("w", DTYPES[dtype], shape)
    begin, end = entry.spans[0]
    assert (
        data[begin:end] == tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() and shape else True
    )
    assert end - begin == tensor.numel() * tensor.element_size()


def test_names_are_the_keys_with_dots_between() -> None:
    linear = torch.nn.Linear(2, 3)
    optimizer = torch.optim.AdamW(linear.parameters(), lr=0.01)
    linear(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state: dict[object, object] = {
        "model": linear.state_dict(),
        "optimizer": optimizer.state_dict(),
        "args": Namespace(lr=0.1, tp=2),
    }
    state |= {"step": 7, "seen": [torch.ones(2)], (torch.float32, 1): {2.5: True}, None: "x"}
    found = opened(torch_file(state))
    names = {entry.name for entry in found.entries}
    assert {"model.weight", "model.bias", "optimizer.state.0.exp_avg", "optimizer.state.1.step", "seen.0"} <= names
    values = dict(found.values)
    assert (values["step"], values["args.lr"], values["args.tp"]) == (7, 0.1, 2)
    assert values["optimizer.param_groups.0.betas"] == "(0.9, 0.999)"
    assert values["(float32, 1).2.5"] is True
    assert values["?"] == "x"
    assert found.unread == 0


def test_parameters_views_and_shared_storages_are_told_where_they_lie() -> None:
    base = torch.arange(12, dtype=torch.float32)
    tensors = {
        "parameter": torch.nn.Parameter(base.clone()),
        "part": base[4:8],
        "turned": base.reshape(3, 4).t(),
        "scattered": base[::2],
        "one": base[3:4].reshape(1, 1),
    }
    data = torch_file(tensors)
    by_name = {entry.name: entry for entry in opened(data).entries}
    assert by_name["scattered"].spans == ()
    assert (by_name["turned"].shape, by_name["turned"].spans) == ((4, 3), ())
    begin, end = by_name["part"].spans[0]
    assert data[begin:end] == base[4:8].numpy().tobytes()
    begin, end = by_name["one"].spans[0]
    assert data[begin:end] == base[3:4].numpy().tobytes()


def test_tensors_of_kinds_that_are_not_followed_are_counted() -> None:
    sparse = torch.eye(3).to_sparse()
    found = opened(torch_file({"sparse": sparse, "w": torch.ones(2), "meta": torch.empty(2, device="meta")}))
    assert [entry.name for entry in found.entries] == ["w"]
    assert found.unread == 2


class Named(torch.Tensor):
    """A class of somebody's own."""


def test_a_tensor_of_a_class_of_its_own_is_a_tensor() -> None:
    found = opened(torch_file({"w": torch.ones(2, 3).as_subclass(Named)}))
    assert [(entry.name, entry.shape, len(entry.spans)) for entry in found.entries] == [("w", (2, 3), 1)]
    assert found.unread == 0


def test_a_type_without_a_name_here_is_counted() -> None:
    data = torch_file({"w": torch.zeros(2, dtype=torch.float8_e4m3fn)})
    assert opened(data.replace(b"float8_e4m3fn", b"float8_e4m3xx")).unread == 1


@pytest.mark.parametrize("file", sorted((FIXTURES / "torch").glob("*.pt")), ids=lambda path: path.stem)
def test_a_real_file_holds_what_torch_loads(file: Path) -> None:
    found = opened(file.read_bytes())
    assert found.unread == 0
    assert found.version == "3"
    assert all(entry.spans for entry in found.entries)
    if file.stem == "fsdp2_rank_0":  # needs a process group to be loaded
        assert {entry.name: entry.shape for entry in found.entries} == {
            "0.weight": (16, 16), "1.weight": (8, 16), "1.bias": (8,)
        }  # fmt: skip
        return
    loaded = torch.load(file, weights_only=True)
    flat: dict[str, torch.Tensor] = {}

    def walk(path: str, value: object) -> None:
        if isinstance(value, torch.Tensor):
            flat[path] = value
        elif isinstance(value, (dict, list)):
            for key, each in value.items() if isinstance(value, dict) else enumerate(value):
                word = "(float32, float32)" if isinstance(key, tuple) else key
                walk(f"{path}.{word}" if path else str(word), each)

    walk("", loaded)
    assert {entry.name: entry.shape for entry in found.entries} == {name: tuple(t.shape) for name, t in flat.items()}


def test_a_file_without_its_end_still_tells_its_tensors() -> None:
    data = (FIXTURES / "torch" / "adamw.pt").read_bytes()
    whole, torn = opened(data), opened(data[: len(data) // 2])
    assert [entry.name for entry in torn.entries] == [entry.name for entry in whole.entries]
    assert {entry.spans for entry in torn.entries} == {()}
    assert torn.version is None


@pytest.mark.parametrize("data", [b"", b"PK", b"PK\x03\x04" + bytes(26), b"no zip at all" * 9])
def test_what_is_no_archive_holds_nothing(data: bytes) -> None:
    assert torch_contents(MemorySource(data), ()) == TorchContents()


def test_numbers_of_another_byte_order_are_not_looked_for() -> None:
    data = torch_file({"w": torch.ones(2)})
    assert opened(data.replace(b"little", b"biggie")).entries[0].spans == ()


def test_a_record_that_is_too_short_holds_no_tensor() -> None:
    source = MemorySource(torch_file({"w": torch.ones(4)}))
    records = [
        record
        if "/data/" not in record.name
        else type(record)(name=record.name, crc32=0, begin=record.begin, end=record.begin)
        for record in read_zip_directory(source).entries
    ]
    assert torch_contents(source, records).entries[0].spans == ()


def test_a_pickle_that_holds_itself_comes_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "_MOST_NODES", 1000)
    endless: list[object] = [torch.ones(1)]
    endless += [endless, endless]
    assert len(opened(torch_file(endless)).entries) <= 1000


def test_names_and_texts_that_a_few_bytes_repeat_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    found = opened(torch_file({"k" * 5000: "v" * 10_003, "plain": ("w" * 20_000, 1)}))
    text, plain = (str(value) for _, value in found.values)
    assert [len(name) for name, _ in found.values] == [512, 5]
    assert text == "v" * 10_000 + "… and 3 more characters"
    assert plain == f"('{'w' * 9_998}… and 10007 more characters"
    text = "v" * 10_000
    assert opened(torch_file({"whole": text})).values == (("whole", text),)
    monkeypatch.setattr(contents, "_MOST_NAME_CHARS", 100_000)
    assert len(opened(torch_file([{"text": text}] * 1000)).values) < 20
    monkeypatch.setattr(contents, "_MOST_NAME_CHARS", 100)
    assert len(opened(torch_file({f"tensor {at}": at for at in range(1000)})).values) < 20


@given(st.data())
def test_a_damaged_file_tells_what_it_can_and_raises_nothing(data: st.DataObject) -> None:
    whole = bytearray((FIXTURES / "torch" / "adamw.pt").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    for entry in opened(cut).entries:
        assert all(0 <= begin <= end <= len(cut) for begin, end in entry.spans)
