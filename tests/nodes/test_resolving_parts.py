"""`ckpttool resolve` on parts: does each rank's file lie where the rank will start?"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from ckpttool.core.render import schemas
from tests.support.commands import ask

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Split a tree over two machines that claim these ranks, and return the folder of their parts."""

    def looked(*claims: str) -> Path:
        for number, (host, claim) in enumerate(zip(("a", "b"), claims, strict=True)):
            monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
            monkeypatch.chdir(tmp_path)
            for rank in (2 * number, 2 * number + 1):
                source = FIXTURES / "async_ckpt" / "output" / "checkpoint" / f"rank_{rank}"
                shutil.copytree(source, tmp_path / host / "output" / "checkpoint" / f"rank_{rank}")
            monkeypatch.chdir(tmp_path / host)
            words = ("--part", f"{number + 1}/2", "--run-id", "n", "--out", f"{tmp_path}/parts/")
            assert ask("part", "output", *words, "--ranks", claim).code == 0
        return tmp_path / "parts"

    return looked


def test_a_plan_says_which_ranks_start_on_which_machine(look: Callable[[str, str], Path]) -> None:
    done = ask("resolve", str(look("0-1", "2-3")), "--json")
    document = json.loads(done.stdout)
    jsonschema.validate(document, schemas.schema("plan"))
    assert done.code == 0
    assert document["placement"] == [{"ranks": [0, 1], "host": "a"}, {"ranks": [2, 3], "host": "b"}]


def test_a_rank_that_would_start_where_its_file_is_not_is_damage_and_the_copy_is_spelled(
    look: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """It names the folders from `/` on: a machine that is reached by its name does not stand where the job does."""
    done = ask("resolve", str(look("2-3", "0-1")), "--json")
    assert done.code == 10
    (first, *_) = [each for each in json.loads(done.stdout)["findings"] if each["code"] == "shard-elsewhere"]
    assert first["remedy"].startswith(f"on b: rsync -asR -- a:{tmp_path}/a/output/checkpoint/./rank_0/")
    assert first["remedy"].endswith(f" {tmp_path}/b/output/checkpoint/")


def test_parts_that_lie_in_a_tree_are_not_passed_over_in_silence(look: Callable[[str, str], Path]) -> None:
    parts = look("0-1", "2-3")
    assert ask("resolve", str(parts)).code == 0
    shutil.copytree(FIXTURES / "async_ckpt" / "output" / "checkpoint" / "rank_0", parts / "rank_0")
    both = ask("resolve", str(parts))
    assert both.code == 2
    assert "has both a tree and parts of one" in both.stderr
    for part in parts.glob("*.ckptpart"):
        part.unlink()
    assert ask("resolve", str(parts)).code == 0


@pytest.mark.parametrize("apart", [False, True])
def test_a_launch_names_the_folder_of_the_machines_not_one_below_where_the_parts_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    config = str(FIXTURES / "configs" / "pretrain_sink2.yaml")
    for number in (1, 2):
        place = tmp_path / (f"node{number}" if apart else "node")
        (place / "output" / "checkpoint").mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(place)
        for rank in (2 * number - 2, 2 * number - 1):
            source = FIXTURES / "sink2_ckpt" / "output" / "checkpoint" / f"rank_{rank}"
            shutil.copytree(source, place / "output" / "checkpoint" / f"rank_{rank}")
        words = ("--part", f"{number}/2", "--run-id", "n", "--out", f"{tmp_path}/parts/")
        assert ask("part", "output", *words).code == 0
        if not apart:
            for rank in (2 * number - 2, 2 * number - 1):
                shutil.rmtree(place / "output" / "checkpoint" / f"rank_{rank}")
    monkeypatch.chdir(tmp_path)
    new = tmp_path / "new.yaml"
    done = ask("launch", "parts", "--config", config, "--output", str(new))
    if apart:
        assert done.code == 2
        assert "give --root" in " ".join(done.stderr.split())
        assert not new.exists()
        assert ask("preflight", "parts", "--config", config).code == 2
        done = ask("launch", "parts", "--config", config, "--output", str(new), "--root", f"{tmp_path}/node")
        folder = f"{tmp_path}/node"
    else:
        folder = f"{tmp_path}/node/output/checkpoint"
    assert done.code == 0, done.output
    assert f"load_checkpoint: '{folder}'" in new.read_text("utf-8")
