"""The weights in AutoModel's saves, and the proof that none of their slices is missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ckpttool.core.domain.weights import NotExportableError
from tests.support.assembled_weights import Tensor, assembled, tensors_in, weights_of
from tests.support.trainer_trees import healthy
from tests.support.trees import FIXTURES

SAVE = "epoch_1_step_11"
MODEL, OPTIMIZER, RANDOM = f"{SAVE}/model", f"{SAVE}/optim", f"{SAVE}/rng"
FIRST, LAST = (f"{MODEL}/shard-0000{rank}-model-00001-of-00001.safetensors" for rank in (1, 2))
INDEX = f"{MODEL}/.hf_metadata/fqn_to_file_index_mapping.json"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three saves of two ranks."""
    return healthy("automodel_2ranks", tmp_path)


def joined(tree: Path) -> dict[str, Tensor]:
    """Return the weights of the two ranks, each of which has half of the rows."""
    first, second = tensors_in(tree / FIRST), tensors_in(tree / LAST)
    return {
        name: (dtype, (shape[0] + second[name][1][0], *shape[1:]), data + second[name][2])
        for name, (dtype, shape, data) in first.items()
    }


def refusal(tree: Path) -> tuple[str, str, str]:
    with pytest.raises(NotExportableError) as caught:
        weights_of(tree, SAVE)
    finding = caught.value.finding
    return finding.code.value, finding.severity.name.lower(), finding.message


def test_the_rows_of_both_ranks_make_up_the_weights(tree: Path) -> None:
    weights = weights_of(tree, SAVE)
    assert assembled(tree, weights) == joined(tree)
    assert (len(weights.targets), weights.is_loadable, weights.findings) == (12, True, ())
    assert {path.rpartition("/")[2] for path in weights.companions} == {"config.json", "generation_config.json"}


def test_a_missing_last_file_is_noticed_by_the_states_of_the_optimizer(tree: Path) -> None:
    (tree / LAST).unlink()
    code, severity, message = refusal(tree)
    assert (code, severity) == ("export-incomplete", "damage")
    assert "but the optimizer's states have the shape [64, 8]" in message


def test_without_the_optimizer_a_missing_last_file_is_noticed_by_the_random_states(tree: Path) -> None:
    shutil.rmtree(tree / OPTIMIZER)
    (tree / LAST).unlink()
    code, severity, message = refusal(tree)
    assert (code, severity) == ("export-incomplete", "unknown")
    assert "not every rank has a file of slices" in message


def test_without_the_optimizer_the_files_of_all_ranks_prove_the_shapes(tree: Path) -> None:
    expected = joined(tree)
    shutil.rmtree(tree / OPTIMIZER)
    assert assembled(tree, weights_of(tree, SAVE)) == expected


def test_without_any_other_file_of_the_ranks_the_shapes_are_unproven(tree: Path) -> None:
    for folder in (OPTIMIZER, RANDOM, f"{SAVE}/dataloader"):
        shutil.rmtree(tree / folder)
    assert refusal(tree)[:2] == ("export-incomplete", "unknown")


def test_a_weight_that_only_the_optimizer_has_is_missing(tree: Path) -> None:
    for file in (FIRST, LAST):
        without(tree / file, "model.norm.weight")
    code, severity, message = refusal(tree)
    assert (code, severity) == ("export-incomplete", "damage")
    assert "'model.norm.weight', which is in no file, although the optimizer has states of it" in message


def test_a_name_that_nothing_else_has_is_noted(tree: Path) -> None:
    index = json.loads((tree / INDEX).read_text())
    (tree / INDEX).write_text(json.dumps({**index, "model.rotary.inv_freq": 1}))
    (finding,) = weights_of(tree, SAVE).findings
    assert (finding.code.value, "model.rotary.inv_freq" in finding.message) == ("export-left-out", True)


def test_a_name_that_nothing_else_has_is_unproven_without_all_files(tree: Path) -> None:
    index = json.loads((tree / INDEX).read_text())
    (tree / INDEX).write_text(json.dumps({**index, "model.rotary.inv_freq": 1}))
    shutil.copyfile(tree / f"{RANDOM}/rng_global_rank_1.pt", tree / f"{RANDOM}/rng_global_rank_2.pt")
    assert refusal(tree)[:2] == ("export-incomplete", "unknown")


def test_an_adapter_is_exported_as_an_adapter(tree: Path) -> None:
    for file in (FIRST, LAST):
        (tree / file).unlink()
    adapter = write(tree / f"{MODEL}/adapter_model.safetensors", {"base_model.q.lora_A.weight": np.ones((2, 8), "<f4")})
    weights = weights_of(tree, SAVE)
    assert assembled(tree, weights) == tensors_in(adapter)
    assert (weights.stem, [finding.code.value for finding in weights.findings]) == (
        "adapter_model",
        ["export-left-out"],
    )


def write(file: Path, arrays: dict[str, np.ndarray]) -> Path:
    rows, data = {}, b""
    for name, array in arrays.items():
        raw = array.tobytes()
        rows[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(rows, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return file


def without(file: Path, name: str) -> None:
    """Write a file of slices without a tensor."""
    content = file.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    info = json.loads(header["__metadata__"]["DCP_SHARDING_INFO"])
    rows, data = {}, b""
    for other, (dtype, shape, raw) in tensors_in(file).items():
        if other != name:
            rows[other] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
    info.pop(name)
    metadata = {**header["__metadata__"], "DCP_SHARDING_INFO": json.dumps(info)}
    text = json.dumps({"__metadata__": metadata, **rows}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_slices_of_torch_are_exported_if_the_model_was_saved_so(tree: Path) -> None:
    shutil.rmtree(tree / MODEL)
    shutil.copytree(FIXTURES / "export/dcp_fsdp_tp_4ranks", tree / MODEL)
    weights = weights_of(tree, SAVE)
    assert len(weights.targets) == 4
    assert {piece.path.rpartition("/")[0] for target in weights.targets for piece in target.pieces} == {MODEL}
    assert (weights.is_loadable, "AutoModel" in weights.names_of) == (None, True)
