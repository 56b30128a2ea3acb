"""Do the slices in safetensors files of torch.distributed.checkpoint make up the tensors that were saved?"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.domain.weights import NotExportableError, Target, Weights
from ckpttool.core.storage import open_storage
from ckpttool.trainers.common.divided_files import divided_targets
from tests.support.assembled_weights import assembled, tensors_in
from tests.support.trees import FIXTURES

SLICES = FIXTURES / "torch/hf_slices"
LAST = "shard-00004-model-00001-of-00002.safetensors"
Metadata = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SLICES, tmp_path / "model"))


def targets_in(folder: Path) -> list[Target]:
    names = sorted(path.name for path in folder.glob("shard-*.safetensors"))
    return divided_targets(open_storage(str(folder)), names)


def as_weights(targets: list[Target]) -> Weights:
    return Weights(targets=tuple(targets), names_of="names", is_loadable=None)


def edit(file: Path, change: Callable[[Metadata], object]) -> None:
    """Change the metadata in a header."""
    data = file.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    change(header["__metadata__"])
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[begin:])


def move(name: str, offsets: object) -> Callable[[Metadata], object]:
    def change(metadata: Metadata) -> None:
        info = json.loads(metadata["DCP_SHARDING_INFO"])
        info[name] = offsets
        metadata["DCP_SHARDING_INFO"] = json.dumps(info)

    return change


def refusal(folder: Path) -> tuple[str, str]:
    with pytest.raises(NotExportableError) as caught:
        targets_in(folder)
    return caught.value.finding.code.value, caught.value.finding.message


def test_the_slices_of_all_ranks_make_up_the_tensors() -> None:
    assert assembled(SLICES, as_weights(targets_in(SLICES))) == tensors_in(SLICES / "truth.safetensors")


def test_without_a_file_in_the_middle_a_tensor_has_a_gap(folder: Path) -> None:
    (folder / "shard-00002-model-00001-of-00002.safetensors").unlink()
    weights = as_weights(targets_in(folder))
    with pytest.raises(AssertionError, match="in no piece"):
        assembled(folder, weights)


def test_without_the_last_file_the_slices_show_a_shorter_tensor(folder: Path) -> None:
    """It is why a caller must prove the shapes."""
    truth = tensors_in(folder / "truth.safetensors")
    (folder / LAST).unlink()
    shorter = [target.name for target in targets_in(folder) if target.shape != truth[target.name][1]]
    assert shorter


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        (lambda metadata: metadata.pop("DCP_SHARDING_INFO"), "export-incomplete", "is missing"),
        (lambda metadata: metadata.update(DCP_SHARDING_INFO="{"), "export-incomplete", "cannot be used"),
        (lambda metadata: metadata.update(DCP_VERSION="2.0"), "export-not-understood", "version 1.0"),
        (lambda metadata: metadata.pop("DCP_VERSION"), "export-not-understood", "version 1.0"),
        (move("columns", {"saved_offsets": [0]}), "export-incomplete", "expected 2 numbers, found 1"),
        (move("columns", {"saved_offsets": [0, -1]}), "export-incomplete", "columns"),
        (move("columns", {"saved_offsets": [0, 0.5]}), "export-incomplete", "columns"),
        (move("columns", [0, 0]), "export-incomplete", "columns"),
    ],
)
def test_a_record_of_another_form_is_refused(
    change: Callable[[Metadata], object], code: str, text: str, folder: Path
) -> None:
    (file,) = [path for path in folder.glob("shard-00003-*") if "columns" in tensors_in(path)]
    edit(file, change)
    found, message = refusal(folder)
    assert found == code
    assert text in message


def test_a_slice_at_another_place_leaves_a_gap_or_an_overlap(folder: Path) -> None:
    (file,) = [path for path in folder.glob("shard-00002-*") if "columns" in tensors_in(path)]
    edit(file, move("columns", {"saved_offsets": [0, 2]}))
    weights = as_weights(targets_in(folder))
    with pytest.raises(AssertionError, match="in several"):
        assembled(folder, weights)


def test_slices_of_different_types_are_refused(folder: Path) -> None:
    file = next(path for path in folder.glob("shard-00002-*") if "rows.int8" in tensors_in(path))
    data = file.read_bytes()
    file.write_bytes(data.replace(b'"rows.int8":{"dtype":"I8"', b'"rows.int8":{"dtype":"U8"'))
    code, message = refusal(folder)
    assert (code, "different types" in message) == ("export-incomplete", True)


def test_a_truncated_file_is_refused_with_its_own_finding(folder: Path) -> None:
    file = folder / LAST
    file.write_bytes(file.read_bytes()[:-1])
    assert refusal(folder)[0] == "shard-truncated"
