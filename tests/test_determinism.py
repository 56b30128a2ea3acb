"""The same tree gives the same bytes, whatever the hash seed and the order of the listing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ckpttool.core.storage.base import Entry
from ckpttool.core.storage.local import LocalStorage
from ckpttool.core.verify.engines.threads import ThreadEngine
from ckpttool.core.verify.engines.waiting import WaitingEngine
from tests.support.answers import writable_copy
from tests.support.commands import ask
from tests.support.trees import TreeBuilder, flip


@pytest.fixture
def messy(tmp_path: Path) -> TreeBuilder:
    """A legacy tree with a bit of everything that can be found in one."""
    tree = TreeBuilder(tmp_path).legacy(ranks=5).save(epoch=5, step=2).save(epoch=10, step=2)
    tree.save(epoch=15, step=2, run=1).save(epoch=20, step=2, run=1, ranks=[0, 1, 3])
    tree.save(epoch=20, step=2, ranks=[4]).save(epoch=10, step=2, fmt="safetensors", ranks=[1, 2])
    tree.truncate(tree.shard(2, 15, 2, run=1), 100).truncate(tree.shard(3, 15, 2, run=1), 0)
    for number, name in enumerate(("x", "y", "rank_0_bak", "rank_table.json", "iteration_bak")):
        tree.file(f"checkpoint/{name}").file(f"checkpoint/rank_{number}/{name}")
        tree.file(f"checkpoint/rank_{number}/llama2_7b_rank_{number}-9_9_breakpoint.ckpt")
    tree.meta(1, 1, 1, "x").meta(2, 5, 2, "llama2_7b_rank_2-5_2.ckpt").meta(3, "3", 2, "x")
    names = [f"llama2_7b_rank_0-{epoch}_2.ckpt" for epoch in (5, 10, 12, 14)]
    return tree.health([*((name, 0) for name in names), (names[1], 1), ("other", 1), ("third", 7)])


@pytest.fixture
def messy_iterations(tmp_path: Path) -> TreeBuilder:
    """The newer layout with records that name many things that are not there."""
    tree = TreeBuilder(tmp_path / "newer")
    for step in (10, 20, 30, 40):
        tree.iteration(step=step)
    places = {str(number): [{"file_name": f"../{number}"}] for number in range(20)}
    tree.file("checkpoint/iteration_00000040/metadata.json", json.dumps({"storage_data": places}))
    places = {str(number): [{"file_name": f"llama2_7b-model-{number:07d}-0000020.safetensors"}] for number in range(20)}
    return tree.file("checkpoint/iteration_00000030/metadata.json", json.dumps({"storage_data": places}))


SCAN_AND_RESOLVE = """
import sys
from typer.testing import CliRunner
from ckpttool.cli.main import app
for tree in sys.argv[1:]:
    for command in ("scan", "resolve"):
        for form in ("json", "table"):
            print(CliRunner().invoke(app, [command, tree, "--format", form]).stdout)
"""


def printed(trees: list[TreeBuilder], seed: int) -> bytes:
    """What `scan` and `resolve` print of trees in a process of that hash seed."""
    environment = os.environ | {"PYTHONHASHSEED": str(seed)}
    command = [sys.executable, "-c", SCAN_AND_RESOLVE, *(str(tree.output) for tree in trees)]
    return subprocess.run(command, capture_output=True, check=True, env=environment).stdout


def test_two_hash_seeds_give_the_same_bytes(messy: TreeBuilder, messy_iterations: TreeBuilder) -> None:
    first, second = (printed([messy, messy_iterations], seed) for seed in (0, 1))
    assert first == second
    assert first.count(b'"schema"') >= 4


@pytest.mark.parametrize("layout", ["messy", "messy_iterations"])
@pytest.mark.parametrize("command", ["scan", "resolve"])
def test_a_disk_that_lists_its_folders_in_another_order_gives_the_same_bytes(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, layout: str, command: str
) -> None:
    tree: TreeBuilder = request.getfixturevalue(layout)
    straight = ask(command, str(tree.output), "--format", "json")
    document = json.loads(straight.stdout)
    assert len(document["findings"]) > 2 or layout == "messy_iterations"
    listed = LocalStorage.entries
    for seed in range(2):
        chance = Random(seed)  # noqa: S311  a shuffle, no secret

        def shuffled(storage: LocalStorage, folder: str, chance: Random = chance) -> list[Entry]:
            found = sorted(listed(storage, folder), key=lambda entry: entry.name)
            chance.shuffle(found)
            return found

        monkeypatch.setattr(LocalStorage, "entries", shuffled)
        again = ask(command, str(tree.output), "--format", "json")
        assert (again.stdout, again.code) == (straight.stdout, straight.code)


def test_times_of_writing_tell_how_long_lost_steps_took_and_nothing_else(messy: TreeBuilder) -> None:
    def decided() -> dict[str, object]:
        document: dict[str, Any] = json.loads(ask("resolve", str(messy.output), "--format", "json").stdout)
        document["resume"] = {**document["resume"], "saved_at": None}  # it tells that time and decides nothing
        return {key: value for key, value in document.items() if not key.startswith("lost_seconds")}

    straight = decided()
    assert "lost_steps" in straight
    for number, path in enumerate(sorted(messy.checkpoint.rglob("*"), reverse=True)):
        messy.touch(str(path.relative_to(messy.output)), number * 1_000_000_000)
    assert decided() == straight


@pytest.mark.parametrize("level", ["structure", "checksum", "numerics"])
def test_the_order_in_which_shards_are_finished_is_not_in_the_answer(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is told of ranks comes in the order of ranks, not of threads."""
    tree = writable_copy("health_pp2", tmp_path / "fixture") / "checkpoint"
    for rank, name, at in ((2, "15_2", 1275), (1, "10_2", 1041)):
        flip(tree / f"rank_{rank}/llama2_7b_rank_{rank}-{name}.ckpt", at)
    gone = tree / "rank_1/llama2_7b_rank_1-15_2.ckpt"
    gone.write_bytes(bytes(gone.stat().st_size))
    said = []
    for is_backwards in (False, True):
        for engine in (ThreadEngine, WaitingEngine) if is_backwards else ():
            run = engine.run
            monkeypatch.setattr(engine, "run", lambda self, tasks, run=run: iter([*run(self, tasks)][::-1]))
        done = ask("verify", str(tree), "--checkpoint", "all", "--level", level, "--no-ledger", "--json")
        said.append({**json.loads(done.stdout), "seconds": None})
    assert ("but with different names, types or shapes") in json.dumps(said), (
        "a damaged file is no witness for another one"
    )
    assert said[0] == said[1]
