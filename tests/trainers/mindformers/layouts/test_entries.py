"""Saves of several ranks: metadata.json against the files, and files rebuilt from another rank's."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ckpttool.core.errors import ExitCode
from tests.support.answers import cli, document
from tests.trainers.mindformers.pynative.support import tree_of

SAVE = "iteration_00000010"
MODEL, OPTIMIZER = (f"{SAVE}/tiny-{role}-0000001-0000002.safetensors" for role in ("model", "opt"))
Record: TypeAlias = dict[str, dict[str, Any]]
METADATA = f"{SAVE}/metadata.json"


def tree_at(name: str, folder: Path) -> Path:
    """Copy a tree, an hour old."""
    tree = tree_of(name, folder)
    before = time.time() - 3600
    for path in tree.rglob("*"):
        os.utime(path, (before, before))
    return tree


def edit_metadata(tree: Path, change: Callable[[Record], object]) -> None:
    path = tree / METADATA
    record = json.loads(path.read_bytes())
    change(record)
    path.write_text(json.dumps(record))


def damage(tree: Path) -> list[tuple[str, str]]:
    """Return code and path of each damage of the newest save."""
    answer = document("verify", str(tree), "--checkpoint", SAVE)
    (save,) = answer["checkpoints"]
    return sorted({(found["code"], found["path"]) for found in save["findings"] if found["severity"] == "damage"})


def other_file(record: Record) -> None:
    """Say that rank 1's optimizer file has a tensor of the model."""
    record["storage_data"]["('model.output.weight', (1,))"][0]["file_name"] = OPTIMIZER.rpartition("/")[2]


def other_shape(record: Record) -> None:
    record["state_dict_metadata"]["model.output.weight"]["chunk"][1]["local_shape"] = [8, 4]


def no_file(record: Record) -> None:
    del record["storage_data"]["('model.output.weight', (1,))"]


def no_tensors(record: Record) -> None:
    del record["state_dict_metadata"]


CASES = {
    "entries-missing": (other_file, OPTIMIZER),
    "schema-differs": (other_shape, MODEL),
    "no file": (no_file, METADATA),
    "meta-unreadable": (no_tensors, METADATA),
}


@pytest.mark.parametrize("case", CASES)
def test_a_file_that_contradicts_the_metadata_is_damaged(case: str, tmp_path: Path) -> None:
    tree = tree_at("two_ranks_sharded", tmp_path)
    assert damage(tree) == []
    change, path = CASES[case]
    edit_metadata(tree, change)
    assert damage(tree) == [("entries-missing" if case == "no file" else case, path)]
    assert document("resolve", str(tree))["resume"]["name"] == "iteration_00000005"


def test_a_tensor_in_no_slice_of_the_metadata_is_no_damage(tmp_path: Path) -> None:
    """The trainer loads what state_dict_metadata lists, and nothing else."""
    tree = tree_at("two_ranks_copies", tmp_path)
    edit_metadata(tree, lambda record: record["state_dict_metadata"].pop("model.norm.weight"))
    assert damage(tree) == []


def cut(tree: Path, path: str) -> bytes:
    """Cut a file in half, an hour ago, and return what it had."""
    content = (tree / path).read_bytes()
    (tree / path).write_bytes(content[: len(content) // 2])
    before = time.time() - 3600
    os.utime(tree / path, (before, before))
    return content


class TestAFileThatAnotherRankHasToo:
    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        return tree_at("two_ranks_copies", tmp_path)

    @pytest.mark.parametrize("is_sealed", [False, True])
    @pytest.mark.parametrize("path", [MODEL, OPTIMIZER])
    def test_is_rebuilt(self, path: str, is_sealed: bool, tree: Path) -> None:
        if is_sealed:
            assert cli("seal", str(tree), "--checkpoint", "all").exit_code == ExitCode.OK
        content = cut(tree, path)
        assert cli("verify", str(tree), "--checkpoint", SAVE).exit_code == ExitCode.DAMAGE
        healed = cli("repair", "shards", str(tree), "--checkpoint", SAVE, "--apply", "--grace", "0")
        assert healed.exit_code == ExitCode.OK, healed.output
        assert (tree / path).read_bytes() == content
        assert cli("verify", str(tree), "--checkpoint", SAVE).exit_code == ExitCode.OK

    def test_is_rebuilt_if_only_the_optimizer_is_sliced(self, tree: Path) -> None:
        """With an optimizer sharded over the ranks, the slices of its moments say nothing of the weights."""

        def slice_moments(record: Record) -> None:
            places, tensors = record["storage_data"], record["state_dict_metadata"]
            for name in [name for name in tensors if name.startswith("adam_")]:
                first, second = places[f"('{name}', (0,))"]
                places[f"('{name}', (0,))"], places[f"('{name}', (1,))"] = [first], [second]
                tensors[name]["chunk"].append({**tensors[name]["chunk"][0], "global_offset": [1]})

        edit_metadata(tree, slice_moments)
        assert damage(tree) == []
        content = cut(tree, MODEL)
        healed = cli("repair", "shards", str(tree), "--checkpoint", SAVE, "--apply", "--grace", "0")
        assert healed.exit_code == ExitCode.OK, healed.output
        assert (tree / MODEL).read_bytes() == content
        cut(tree, OPTIMIZER)
        assert cli("repair", "shards", str(tree), "--checkpoint", SAVE).exit_code == ExitCode.NOTHING_TO_RESUME


def test_a_slice_that_no_other_rank_has_is_not_rebuilt(tmp_path: Path) -> None:
    tree = tree_at("two_ranks_sharded", tmp_path)
    cut(tree, MODEL)
    assert cli("repair", "shards", str(tree), "--checkpoint", SAVE).exit_code == ExitCode.NOTHING_TO_RESUME
