"""Tensors as bytes are those that safetensors itself writes, and a file that lies is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from ckpttool.guard.tensor_file import TYPES, block, copied, named, open_tensors
from tests.guard.test_state_tree import any_tensor, bits


@given(tensors=st.dictionaries(st.text("ab.", min_size=1), any_tensor().filter(lambda tensor: tensor.dtype in TYPES)))
def test_safetensors_is_read_exactly(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, torch.Tensor]
) -> None:
    path = tmp_path_factory.getbasetemp() / "a.safetensors"
    path.write_bytes(save({name: tensor.contiguous() for name, tensor in tensors.items()}))
    back = open_tensors(str(path))
    assert {name: bits(tensor) for name, tensor in back.items()} == {
        name: bits(tensor) for name, tensor in tensors.items()
    }
    for name, _, shape in named(back.items()):
        assert shape == tensors[name].shape
        assert bytes(block(back[name])) == bytes(block(tensors[name]))


def test_one_element_that_stands_for_many_has_its_bytes() -> None:
    one = torch.tensor([3.0]).expand(1000)
    assert bytes(block(one.narrow(0, 0, 1))) == bytes(block(torch.tensor([3.0])))
    assert bytes(block(one)) == bytes(block(torch.full((1000,), 3.0)))


@given(tensor=any_tensor(), times=st.integers(1, 3))
def test_a_copy_has_every_bit_and_stride_and_lies_where_torch_puts_tensors(tensor: torch.Tensor, times: int) -> None:
    place = torch.empty(tensor.nbytes + 128, dtype=torch.uint8)
    begin = -place.data_ptr() % 64 + max(8, tensor.itemsize)  # as in a file, where all begins at a multiple of 8
    inner = place[begin : begin + tensor.nbytes].view(tensor.dtype)
    elsewhere = inner.as_strided(tensor.shape, tensor.stride()).copy_(tensor)
    for given_one in (elsewhere, elsewhere.unsqueeze(0).expand(times, *tensor.shape)):
        made = copied(given_one)
        assert (made.shape, made.stride(), bits(made)) == (given_one.shape, given_one.stride(), bits(given_one))
        assert made.data_ptr() % 64 == 0
        assert not made.numel() or made.data_ptr() != given_one.data_ptr()


def test_what_is_written_into_such_a_tensor_stays_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content := save({"a": torch.ones(3)}))
    open_tensors(str(path))["a"].fill_(2)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x02\0\0\0\0\0\0\0{}x",
        save({"a": torch.ones(3)})[:-1],
        save({"a": torch.ones(3)}).replace(b"F32", b"F4 "),
        b"\xff" * 8 + b"{}",
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ValueError, match="a"):
        open_tensors(str(tmp_path / "a"))
