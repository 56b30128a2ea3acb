"""The places of a torch file's tensors are those from which torch itself loads them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.weights import NotExportableError, Piece
from ckpttool.core.formats.torch.pickle_objects import Tensor
from ckpttool.trainers.common.archives import Archive, read_archive
from tests.support.shard_writers import MemorySource, torch_file


def opened(data: bytes, begin: int = 0) -> Archive:
    return read_archive(MemorySource(data), "a.pt", begin)


def tensor_of(archive: Archive, name: str) -> Tensor:
    assert isinstance(archive.tree, dict)
    tensor = archive.tree[name]
    assert isinstance(tensor, Tensor)
    return tensor


def elements(data: bytes, piece: Piece) -> list[float]:
    steps = tuple(4 * step for step in piece.stride)
    view: np.ndarray = np.ndarray(piece.shape, np.float32, data, piece.begin, steps)
    return list(view.ravel().tolist())


BIG = torch.arange(100, dtype=torch.float32).reshape(10, 10)


@pytest.mark.parametrize("begin", [0, 77])
@pytest.mark.parametrize("tensor", [BIG, BIG[2:5, 1:4], BIG.t(), BIG[:, 0], BIG[3, 4], torch.empty(0, 3)])
def test_a_view_is_found_in_the_record_of_its_storage(tensor: torch.Tensor, begin: int) -> None:
    data = bytes(begin) + torch_file({"w": tensor})
    archive = opened(data, begin)
    piece = archive.piece(tensor_of(archive, "w"))
    assert (piece.dtype, piece.shape, piece.at) == (DType.F32, tuple(tensor.shape), (0,) * tensor.dim())
    assert elements(data, piece) == tensor.reshape(-1).tolist()
    assert piece.record is not None
    assert piece.record.begin <= piece.begin
    assert piece.record.crc32 is not None


def test_the_place_in_a_complete_tensor_is_the_one_that_was_given() -> None:
    archive = opened(torch_file({"w": BIG}))
    assert archive.piece(tensor_of(archive, "w"), (10, 0)).at == (10, 0)


def test_a_file_without_checksums_has_none() -> None:
    torch.serialization.set_crc32_options(compute_crc32=False)
    try:
        data = torch_file({"w": BIG})
    finally:
        torch.serialization.set_crc32_options(compute_crc32=True)
    archive = opened(data)
    record = archive.piece(tensor_of(archive, "w")).record
    assert record is not None
    assert record.crc32 is None


def test_a_truncated_archive_and_a_legacy_file_are_refused() -> None:
    whole = torch_file({"w": BIG})
    with pytest.raises(NotExportableError) as cut:
        opened(whole[:-200])
    assert cut.value.finding.path == "a.pt"
    with pytest.raises(NotExportableError) as old:
        opened(torch_file({"w": BIG}, _use_new_zipfile_serialization=False))
    assert old.value.finding.code == "export-not-understood"


def test_a_type_of_which_no_elements_are_read_is_refused() -> None:
    archive = opened(torch_file({"w": BIG}))
    tensor = tensor_of(archive, "w")
    with pytest.raises(NotExportableError, match="the type QUInt4x2Storage"):
        archive.piece(tensor._replace(storage=tensor.storage._replace(kind="QUInt4x2Storage")))


def test_a_record_that_is_not_there_is_damage() -> None:
    archive = opened(torch_file({"w": BIG}))
    tensor = tensor_of(archive, "w")
    with pytest.raises(NotExportableError) as lost:
        archive.piece(tensor._replace(storage=tensor.storage._replace(key="7")))
    assert lost.value.finding.severity.word == "damage"


def test_equal_pickles_are_read_once_and_their_tensors_are_in_their_own_files() -> None:
    trees: dict[bytes, object] = {}
    files = [torch_file({"w": BIG + shift}) for shift in range(2)]
    one, other = (read_archive(MemorySource(data), f"{at}.pt", trees=trees) for at, data in enumerate(files))
    assert one.tree is other.tree
    assert len(trees) == 1
    for shift, (archive, data) in enumerate(zip((one, other), files, strict=True)):
        piece = archive.piece(tensor_of(archive, "w"))
        assert piece.path == f"{shift}.pt"
        assert elements(data, piece) == (BIG + shift).reshape(-1).tolist()
    read_archive(MemorySource(torch_file({"v": BIG})), "2.pt", trees=trees)
    assert len(trees) == 2
