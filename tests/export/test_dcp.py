"""The weights in folders of torch.distributed.checkpoint are those that torch's own converter makes, or none."""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.storage.local import LocalSource
from tests.conftest import FIXTURES
from tests.export.truth import Reader, Tensors, by_dcp_to_torch, exported, flattened, of_tensors
from tests.support.commands import Said, ask
from tests.support.trainer_trees import flip

LAYOUTS = FIXTURES / "layouts"
KINDS = FIXTURES / "export/dcp_kinds_4ranks"
SINGLE = [
    "light_single/checkpoints/last.ckpt",
    "light_single/checkpoints/epoch=0-step=8.ckpt",
    "composer_single/ep1-ba14-rank0.pt",
    "files_loop/ckpt_300.pt",
]
SAVES = {
    "kinds": (KINDS, "", ("model",), 37),
    "FSDP2 under tensor parallelism": (FIXTURES / "export/dcp_fsdp_tp_4ranks", "", ("model",), 4),
    "a plain loop": (LAYOUTS / "dcp_plain_2ranks/8", "", ("model",), 4),
    "nested": (LAYOUTS / "dcp_fsdp2_4ranks/step_000015", "", ("app", "model"), 4),
    "torchtitan": (LAYOUTS / "titan_4ranks/checkpoint/step-10", "", (), 4),
    "torchtitan, model only": (LAYOUTS / "titan_last_model_only/checkpoint/step-7", "", (), 4),
    "FSDP of the Trainer": (LAYOUTS / "hf_fsdp2ranks/checkpoint-6", "pytorch_model_fsdp_0", ("model",), 17),
    "Lightning": (LAYOUTS / "light_modelparallel2/checkpoints/epoch=0-step=6.ckpt", "", ("state_dict",), 3),
    "Composer": (LAYOUTS / "composer_fsdp/ep1-ba12", "", ("state", "model"), 4),
    "OLMo-core": (LAYOUTS / "olmo_2ranks/step12", "model_and_optim", ("model",), 12),
    "Megatron": (LAYOUTS / "mcore_dist_tp2dp2/iter_0000006", "", (), 16),
    "Megatron with integrity": (LAYOUTS / "mcore_integrity/iter_0000006", "", (), 16),
}


def truth_of(folder: Path, keys: tuple[str, ...], scratch: Path) -> Tensors:
    tree: Any = by_dcp_to_torch(folder, scratch)
    for key in keys:
        tree = tree[key]
    return of_tensors(flattened(tree))


def export(save: Path, out: Path, *more: str) -> Said:
    return ask("export", str(save), "--output", str(out), "--json", *more)


@pytest.mark.parametrize("name", SAVES)
def test_every_tensor_is_that_of_torch_in_type_shape_and_bits(name: str, tmp_path: Path) -> None:
    save, inner, keys, count = SAVES[name]
    said = export(save, tmp_path / "out")
    assert said.code == 0, said.output
    truth = truth_of(save / inner, keys, tmp_path / "torch")
    found = exported(tmp_path / "out")
    assert len(found) == count
    if keys:
        assert found == truth
    assert found == {tensor: truth[tensor] for tensor in found}
    left_out = {each for left in said.json["output"]["left_out"] for each in left["names"]}
    assert not left_out & {*found}
    assert said.json["output"]["records_proven"] >= count - 1  # an empty tensor has no bytes


def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(KINDS, tmp_path / "kinds"))


def changed_record(save: Path, change: Any) -> None:  # noqa: ANN401  any function
    path = save / ".metadata"
    metadata = Reader(io.BytesIO(path.read_bytes())).load()
    change(metadata)
    path.write_bytes(pickle.dumps(metadata, 4))


def swap(metadata: Any, first: int, second: int) -> None:  # noqa: ANN401  torch's own
    """Let two slices of one tensor say each other's place in the tensor."""
    slices = [index for index in metadata.storage_data if index.fqn == "model.shard0.float32"]
    moved = {}
    for index, info in metadata.storage_data.items():
        other = {slices[first]: slices[second], slices[second]: slices[first]}.get(index)
        key = index if other is None else dataclasses.replace(index, offset=other.offset, index=other.index)
        moved[key] = info
    metadata.storage_data = moved


def drop(metadata: Any) -> None:  # noqa: ANN401  as above
    metadata.storage_data.pop(next(index for index in metadata.storage_data if index.fqn == "model.shard1"))


def overlap(metadata: Any) -> None:  # noqa: ANN401  as above
    import torch

    metadata.state_dict_metadata["model.shard1"].chunks[1].offsets = torch.Size((0, 1))


def lie(metadata: Any) -> None:  # noqa: ANN401  as above
    import torch

    metadata.state_dict_metadata["model.shard1"].size = torch.Size((5, 10))


def same_place(metadata: Any) -> None:  # noqa: ANN401  as above
    slices = [index for index in metadata.storage_data if index.fqn in {"model.tied_a", "model.tied_b"}]
    metadata.storage_data[slices[0]] = metadata.storage_data[slices[1]]


def without_path(metadata: Any) -> None:  # noqa: ANN401  as above
    metadata.planner_data.pop("model.plain.float64")


def without_tensor(metadata: Any) -> None:  # noqa: ANN401  as above
    for part in (metadata.planner_data, metadata.state_dict_metadata):
        part.pop("model.plain.float64")


LIES = [drop, overlap, lie, same_place, without_path, without_tensor, lambda metadata: swap(metadata, 0, 3)]


@pytest.mark.parametrize("change", LIES)
def test_a_record_that_lies_is_refused(change: Any, tmp_path: Path) -> None:  # noqa: ANN401  any function
    save = copied(tmp_path)
    changed_record(save, change)
    said = export(save, tmp_path / "out")
    assert said.code == 10, said.output
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.part").exists()


@pytest.mark.parametrize("file", [".metadata", "__0_0.distcp", "__2_0.distcp"])
def test_a_flipped_bit_anywhere_gives_the_right_numbers_or_none(
    file: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A name may differ, for nothing else says it; a number never."""
    save = copied(tmp_path)
    truth = truth_of(KINDS, ("model",), tmp_path / "torch")
    true_values = sorted(truth.values())
    path = save / file
    data = path.read_bytes()
    draw = random.Random(0)  # noqa: S311  no secret
    refused = 0
    for number in range(400 if request.config.getoption("--nightly") else 12):
        path.write_bytes(data)
        flip(path, draw.randrange(len(data)), draw.randrange(8))
        said = export(save, tmp_path / f"out{number}")
        if said.code:
            refused += 1
            assert not (tmp_path / f"out{number}").exists()
        else:
            assert sorted(exported(tmp_path / f"out{number}").values()) == true_values
            shutil.rmtree(tmp_path / f"out{number}")
    assert refused > 0


def test_a_file_that_changes_during_the_export_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = copied(tmp_path)
    real, path = LocalSource.read_into, save / "__1_0.distcp"
    done: list[int] = []

    def read_into(source: LocalSource, offset: int, buffer: memoryview) -> int:
        if not done:
            done.append(offset)
            os.utime(path, ns=(0, 0))
        return real(source, offset, buffer)

    monkeypatch.setattr(LocalSource, "read_into", read_into)
    said = export(save, tmp_path / "out")
    assert said.code == 14
    assert [finding["code"] for finding in said.json["findings"]] == ["changed-while-reading"]
    assert not (tmp_path / "out").exists()


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def test_nothing_in_a_record_is_called(tmp_path: Path) -> None:
    save, bomb = copied(tmp_path), Bomb(tmp_path / "called")
    changed_record(save, lambda metadata: metadata.planner_data.update({"x": bomb}))
    assert export(save, tmp_path / "out").code == 15
    pickle.loads((save / ".metadata").read_bytes())  # noqa: S301  the bomb is real
    assert bomb.folder.exists()
    assert not (tmp_path / "out").exists()


def test_nothing_in_a_file_of_torch_is_called(tmp_path: Path) -> None:
    import torch

    bomb = Bomb(tmp_path / "called")
    torch.save({"model": {"w": torch.ones(3)}, "more": bomb}, tmp_path / "model.pt")
    said = export(tmp_path / "model.pt", tmp_path / "out")
    assert said.code in {0, 15}, said.output
    assert not bomb.folder.exists()


def test_a_model_under_an_unusual_key_is_named_by_the_user(tmp_path: Path) -> None:
    save = copied(tmp_path)

    def renamed(metadata: Any) -> None:  # noqa: ANN401  as above
        metadata.planner_data = {
            name: ("generator", *keys[1:]) if keys[0] == "model" else ("critic", *keys[1:])
            for name, keys in metadata.planner_data.items()
        }
        names = {name: ".".join(map(str, keys)) for name, keys in metadata.planner_data.items()}
        metadata.planner_data = {names[name]: keys for name, keys in metadata.planner_data.items()}
        metadata.state_dict_metadata = {names[name]: each for name, each in metadata.state_dict_metadata.items()}
        metadata.storage_data = {
            dataclasses.replace(index, fqn=names[index.fqn]): info for index, info in metadata.storage_data.items()
        }

    changed_record(save, renamed)
    said = export(save, tmp_path / "out")
    assert said.code == 14
    assert [finding["code"] for finding in said.json["findings"]] == ["export-ambiguous-part"]
    assert "critic, generator" in said.json["findings"][0]["message"]
    assert export(save, tmp_path / "out", "--part", "generator").code == 0
    assert exported(tmp_path / "out") == truth_of(KINDS, ("model",), tmp_path / "torch")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_weight_whose_name_begins_like_a_state_is_a_weight(tmp_path: Path) -> None:
    import torch
    from torch.distributed.checkpoint.state_dict_saver import save as save_slices

    weights = {"scheduler_mlp.weight": torch.ones(3), "optim_head.bias": torch.ones(1), "layer.weight": torch.zeros(2)}
    save = tmp_path / "step_1"
    save_slices({**weights, "rng_state": torch.zeros(4)}, checkpoint_id=save)
    said = export(save, tmp_path / "out")
    assert said.code == 0, said.output
    assert exported(tmp_path / "out") == of_tensors(weights)
    assert said.json["output"]["left_out"][0]["names"] == ["rng_state"]


def test_a_legacy_save_of_megatron_is_refused_with_a_way_on(tmp_path: Path) -> None:
    said = export(LAYOUTS / "mcore_legacy_tp2dp2", tmp_path / "out")
    assert said.code == 14
    (finding,) = said.json["findings"]
    assert finding["code"] == "export-needs-model"
    assert "torch_dist" in finding["remedy"]


@pytest.mark.parametrize("tree", SINGLE)
def test_an_archive_of_one_model_is_exported_as_torch_loads_it(tree: str, tmp_path: Path) -> None:
    import torch

    said = export(LAYOUTS / tree, tmp_path / "out")
    assert said.code == 0, said.output
    loaded = torch.load(LAYOUTS / tree, weights_only=False)
    model = loaded.get("state_dict") or loaded.get("model") or loaded["state"]["model"]
    assert exported(tmp_path / "out") == of_tensors(dict(model))


def test_one_file_of_several_is_no_checkpoint(tmp_path: Path) -> None:
    for file in ("hf_single/checkpoint-12/model.safetensors", "dcp_plain_2ranks/8/__0_0.distcp"):
        said = ask("export", str(LAYOUTS / file), "--output", str(tmp_path / "out"))
        assert said.code == 2
        assert "give the checkpoint" in said.stderr
