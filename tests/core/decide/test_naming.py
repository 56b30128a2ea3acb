"""One name means one checkpoint, whichever command is asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ckpttool.core.decide.naming import focused, named
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.errors import ExitCode, UsageError
from ckpttool.core.storage.local import LocalStorage
from tests.support import inventories
from tests.support.commands import ask
from tests.support.faulty_storages import scan
from tests.support.trees import TreeBuilder

LEGACY = [
    "10_2",
    "llama2_7b_rank_0-10_2.ckpt",
    "llama2_7b_rank_1-10_2",
    "rank_1/llama2_7b_rank_1-10_2.ckpt",
]
NEWER = ["iteration_00000020", "iteration_00000020/", "20", "00000020"]


def legacy(base: Path) -> TreeBuilder:
    return TreeBuilder(base).legacy(ranks=2).save(epoch=5, step=2).save(epoch=10, step=2).save(epoch=15, step=2)


def newer(base: Path) -> TreeBuilder:
    return TreeBuilder(base, world=2).iteration(step=10).iteration(step=20).iteration(step=30)


def checkpoints(tree: TreeBuilder) -> tuple[Checkpoint, ...]:
    return scan(LocalStorage(str(tree.checkpoint))).checkpoints


def seen(command: str, tree: TreeBuilder, name: str) -> object:
    said = ask(command, str(tree.output), "--checkpoint", name, "--format", "json", "-q")
    assert said.code == ExitCode.OK, said.stderr
    document = said.json
    if command == "verify":
        checkpoints = document["checkpoints"]
        assert isinstance(checkpoints, list)
        (one,) = checkpoints
        return one["name"]
    resume = document["resume"]
    assert isinstance(resume, dict)
    return resume["name"]


@pytest.mark.parametrize("name", LEGACY)
def test_a_legacy_checkpoint_has_many_names(name: str, tmp_path: Path) -> None:
    assert [one.name for one in named(checkpoints(legacy(tmp_path)), name)] == ["10_2"]


@pytest.mark.parametrize("name", NEWER)
def test_an_iteration_has_many_names(name: str, tmp_path: Path) -> None:
    assert [one.name for one in named(checkpoints(newer(tmp_path)), name)] == ["iteration_00000020"]


@pytest.mark.parametrize("command", ["verify", "resolve"])
def test_every_command_knows_them(command: str, tmp_path: Path) -> None:
    tree = newer(tmp_path)
    assert [seen(command, tree, name) for name in (NEWER[1], NEWER[3])] == ["iteration_00000020"] * 2
    assert seen(command, tree, "latest") == "iteration_00000030"


@pytest.mark.parametrize("name", ["", "10", "20_2", "llama2_7b_rank_0-10", "²", "9" * 5000, "rank_0", "iteration_"])
def test_what_names_nothing_names_nothing(name: str, tmp_path: Path) -> None:
    assert named(checkpoints(legacy(tmp_path)), name) == []
    assert name == "10" or named(checkpoints(newer(tmp_path / "newer")), name) == []


@pytest.mark.parametrize("name", [None, "latest", *LEGACY])
def test_a_shard_and_a_name_that_mean_the_same_are_fine(name: str | None, tmp_path: Path) -> None:
    assert [one.name for one in focused(checkpoints(legacy(tmp_path)), "10_2", name)] == ["10_2"]


@pytest.mark.parametrize("name", ["5_2", "llama2_7b_rank_0-15_2.ckpt", "nothing", "all"])
def test_a_shard_and_a_name_that_mean_two_are_an_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="remove one of them"):
        focused(checkpoints(legacy(tmp_path)), "10_2", name)


@pytest.mark.parametrize("command", ["verify", "resolve", "seal"])
def test_no_command_ignores_a_name_beside_a_shard(command: str, tmp_path: Path) -> None:
    tree = legacy(tmp_path)
    shard = tree.output / tree.shard(1, 10, 2)
    said = ask(command, str(shard), "--checkpoint", "5_2", "-q")
    assert said.code == ExitCode.USAGE
    assert "--checkpoint is 5_2" in said.stderr
    same = ask(command, str(shard), "--checkpoint", shard.name, "-q")
    assert same.code == ExitCode.OK
    assert "10_2" in same.stdout


def test_prune_keeps_what_is_named_in_any_of_these_ways(tmp_path: Path) -> None:
    tree = newer(tmp_path)
    said = ask("prune", str(tree.output), "--keep-last", "1", "--keep", "20", "--format", "json", "-q")
    assert said.code == ExitCode.OK, said.stderr
    assert "--keep" in said.stdout or "named" in said.stdout


def test_a_save_of_any_trainer_that_is_called_by_its_step_has_its_bare_number_for_a_name() -> None:
    saves = [
        replace(inventories.checkpoint("10_2"), name=name, label=None)
        for name in ("step-30", "step-300", "30_old", "model30.pt")
    ]
    assert [save.name for save in named(saves, "30")] == ["step-30"]
    assert named([inventories.checkpoint("10_30")], "30") == []
