"""Each machine seals its own shards while it looks; who has all parts joins the seals, and says where they differ."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.manifest import Manifest
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.records.manifest import manifest_bytes, read_manifest
from ckpttool.core.storage.local import LocalStorage
from ckpttool.trainers.mindformers.layouts.rank import seal_place
from tests.support.commands import ask
from tests.support.json_schemas import problems_of
from tests.support.trees import FIXTURES, flip

SEALS = Path("output/checkpoint/.ckpttool/seals")
NEWEST = "llama2_7b-15_2.ckpt.manifest"
SHARD = "output/checkpoint/rank_{0}/llama2_7b_rank_{0}-15_2.ckpt"


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the folders of four machines, each of which has one rank's shards."""
    for name in ("HOME", "XDG_CACHE_HOME"):  # where a machine remembers what it found
        monkeypatch.delenv(name, raising=False)
    places = [tmp_path / f"node{number}" for number in range(4)]
    for number, place in enumerate(places):
        rank = f"rank_{number}"
        shutil.copytree(FIXTURES / "async_ckpt" / "output" / "checkpoint" / rank, place / "output/checkpoint" / rank)
        for path in place.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
    return places


class Look:
    """Lets machines look, each in its own folder and by its own name."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._tmp_path, self._monkeypatch, self._times = tmp_path, monkeypatch, 0

    def __call__(self, nodes: list[Path], *words: str) -> tuple[Path, list[dict[str, Any]]]:
        """Return the folder of the parts, and what was said of each."""
        self._times += 1
        parts, said = self._tmp_path / f"parts{self._times}", []
        for number, place in enumerate(nodes, 1):
            self._monkeypatch.chdir(place)
            self._monkeypatch.setattr(socket, "gethostname", lambda place=place: place.name)
            part = ("--part", f"{number}/{len(nodes)}", "--out", f"{parts}/", "--run-id", "look", "--split", "none")
            done = ask("part", "output", *part, "--json", *words)
            assert done.code == 0, done.stderr
            document = json.loads(done.stdout)
            assert not [*problems_of(document)]
            said.append(document)
        self._monkeypatch.chdir(self._tmp_path)
        return parts, said


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    return Look(tmp_path, monkeypatch)


def verified(where: Path, *words: str) -> tuple[int, dict[str, str], list[tuple[str, str]]]:
    """Return the exit code, the word on each checkpoint, and what weighs more than a note."""
    done = ask("verify", str(where), "--level", "checksum", "--json", *words)
    document = json.loads(done.stdout)
    words_of = {each["name"]: each["verdict"] for each in document["checkpoints"]}
    found = [each for save in document["checkpoints"] for each in save["findings"] if each["severity"] != "note"]
    return done.code, words_of, [(each["code"], each["message"]) for each in found]


def test_each_machine_seals_its_own_shards_and_all_together_prove_the_save(nodes: list[Path], look: Look) -> None:
    parts, said = look(nodes, "--seal", "--checkpoint", "all")
    for number, document in enumerate(said, 1):
        seals = document["seals"]
        assert [(each["name"], each["written"], each["shards"]) for each in seals] == [
            ("5_2", True, 1),
            ("10_2", True, 1),
            ("15_2", True, 1),
        ]
        assert [path.name for path in (nodes[number - 1] / SEALS / NEWEST).iterdir()] == [f"{number}-of-4.json"]
    whole = {"15_2": "verified", "10_2": "verified", "5_2": "verified"}
    assert verified(parts, "--checkpoint", "all") == (0, whole, [])
    later, _ = look(nodes, "--level", "checksum", "--checkpoint", "all")
    assert verified(later, "--checkpoint", "all") == (0, whole, [])
    again, said = look(nodes, "--seal")
    assert not any(each["written"] for document in said for each in document["seals"])
    assert verified(again) == (0, {"15_2": "verified"}, [])


@pytest.mark.parametrize("tree", ["newfmt_4rank/output/checkpoint", "layouts/verl_2ranks", "layouts/hf_ddp2"])
def test_a_part_holds_the_seals_of_a_save_that_is_a_folder(
    tree: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, parts = tmp_path / "here", tmp_path / "parts"
    shutil.copytree(FIXTURES / tree, here)
    monkeypatch.chdir(here)
    sealed = ask("part", ".", "--part", "1/1", "--out", f"{parts}/", "--run-id", "look", "--seal", "--json")
    assert json.loads(sealed.stdout)["seals"][0]["written"]
    code, words, found = verified(parts)
    assert (code, [*words.values()], found) == (0, ["verified"], [])


def test_without_being_asked_a_look_seals_nothing(nodes: list[Path], look: Look) -> None:
    _, said = look(nodes, "--level", "checksum")
    assert not any("seals" in document for document in said)
    assert not any((place / "output/checkpoint/.ckpttool").exists() for place in nodes)


def test_what_changed_since_it_was_sealed_is_found_on_its_machine_and_never_blessed(
    nodes: list[Path], look: Look
) -> None:
    look(nodes, "--seal")
    manifest = nodes[2] / SEALS / NEWEST / "3-of-4.json"
    before = manifest.read_bytes()
    flip(nodes[2] / SHARD.format(2), -400, keep_times=True)
    parts, said = look(nodes, "--seal")
    code, words, found = verified(parts)
    assert (code, words, {each for each, _ in found}) == (10, {"15_2": "damaged"}, {"checksum-mismatch"})
    assert manifest.read_bytes() == before
    assert [document["seals"][0]["sealed"] for document in said] == [True, True, False, True]


def test_a_damaged_shard_is_not_sealed_and_those_beside_it_are(nodes: list[Path], look: Look) -> None:
    moved = nodes[3] / "output/checkpoint/rank_3"
    shutil.move(moved, nodes[2] / "output/checkpoint/rank_3")
    path = nodes[2] / SHARD.format(3)
    path.write_bytes(path.read_bytes()[:-100])
    _, said = look(nodes[:3], "--seal")
    (seal,) = said[2]["seals"]
    assert (seal["sealed"], seal["shards"]) == (True, 1)
    assert {finding["path"] for finding in seal["findings"]} == {f"rank_3/{path.name}"}
    manifest = json.loads((nodes[2] / SEALS / NEWEST / "3-of-3.json").read_bytes())
    assert [shard["path"] for shard in manifest["shards"]] == ["rank_2/llama2_7b_rank_2-15_2.ckpt"]
    assert manifest["world_size"] is None


def test_a_missing_part_is_never_good_though_all_that_is_there_is_proven(nodes: list[Path], look: Look) -> None:
    parts, _ = look(nodes, "--seal")
    (parts / "look.00002-of-00004.ckptpart").unlink()
    code, words, found = verified(parts)
    assert code == 14
    assert words == {"15_2": "missing"}
    assert "part-missing" in {each for each, _ in found}


@pytest.mark.parametrize("alike", [True, False])
def test_of_unequal_seals_of_one_shard_both_machines_are_named(nodes: list[Path], look: Look, alike: bool) -> None:
    """A rank moved from one machine to another, which keeps what it sealed of the rank's file."""
    shutil.copytree(nodes[1] / "output/checkpoint/rank_1", nodes[0] / "output/checkpoint/rank_1")
    if not alike:
        flip(nodes[0] / SHARD.format(1), -400, keep_times=True)
    look(nodes, "--seal")
    shutil.rmtree(nodes[0] / "output/checkpoint/rank_1")
    parts, _ = look(nodes, "--level", "checksum")
    code, words, found = verified(parts)
    if alike:
        assert (code, words, found) == (0, {"15_2": "verified"}, [])
        return
    assert (code, words) == (10, {"15_2": "damaged"})
    (told,) = (message for each, message in found if each == "checksum-mismatch" and " sealed " in message)
    assert "node0" in told
    assert "node1" in told
    assert ask("resolve", str(parts), "-q").stdout.startswith("Resume from step 20 (10_2)")


@pytest.mark.parametrize("held", ["disjoint", "of other bytes", "torn"])
def test_manifests_of_one_path_on_several_machines_join(
    nodes: list[Path], look: Look, tmp_path: Path, held: str
) -> None:
    """A save was sealed as a whole, and its manifest came to machines that each have a part of it."""
    for place in nodes:
        shutil.copytree(place, tmp_path / "whole", dirs_exist_ok=True)
    assert ask("seal", str(tmp_path / "whole/output")).code == 0
    root = tmp_path / "whole/output/checkpoint"
    kept = seal_place("llama2_7b", "15_2", FormatName.MINDSPORE_CKPT)
    manifest = read_manifest(LocalStorage(str(root)), kept)
    assert isinstance(manifest, Manifest)
    for number, node in enumerate(nodes):
        own = manifest.shards[number : number + 1] if held == "disjoint" else manifest.shards
        if held == "of other bytes" and number == 3:
            own = (*own[:3], replace(own[3], xxh3_128="0" * 32, chunks=("0" * 32,), first_seen="2099-01-01T00:00:00Z"))
        data = manifest_bytes(replace(manifest, shards=own, sealed_by=f"{number}"))
        path = node / "output/checkpoint" / kept.path
        path.parent.mkdir()
        path.write_bytes(data[:-9] if held == "torn" and number == 3 else data)
    parts, _ = look(nodes, "--level", "checksum")
    code, words, found = verified(parts)
    codes = {each for each, _ in found}
    if held == "torn":
        assert (code, words, codes) == (14, {"15_2": "unreadable"}, {"manifest-unreadable"})
    elif held == "of other bytes":
        assert (code, words, codes) == (10, {"15_2": "damaged"}, {"checksum-mismatch"})
        assert any("node0 sealed" in message and "and node3 on 2099" in message for _, message in found)
    else:
        assert (code, words, codes) == (0, {"15_2": "verified"}, set())


def test_on_one_disk_the_machines_seals_are_one_seal(
    nodes: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):
        rank = f"output/checkpoint/rank_{number}"
        shutil.copytree(nodes[number] / rank, nodes[0] / rank)
    tree = nodes[0] / "output"
    monkeypatch.chdir(nodes[0])
    for part in ("1/2", "2/2"):
        words = ("--split", "all", "--seal", "--out", f"{tmp_path}/shared/")
        assert ask("part", "output", "--part", part, *words).code == 0
    names = {path.name: json.loads(path.read_bytes()) for path in (nodes[0] / SEALS / NEWEST).iterdir()}
    assert {name: len(each["shards"]) for name, each in names.items()} == {"1-of-2.json": 2, "2-of-2.json": 2}
    assert verified(tree) == (0, {"15_2": "verified"}, [])
    flip(nodes[0] / SHARD.format(2), -400, keep_times=True)
    code, said, _ = verified(tree)
    assert (code, said) == (10, {"15_2": "damaged"})
    assert ask("seal", str(tree), "--reseal").code == 10  # its copies differ: no seal makes that good
    flip(nodes[0] / SHARD.format(2), -400, keep_times=True)
    assert ask("seal", str(tree), "--reseal").code == 0
    assert not any((nodes[0] / SEALS / NEWEST).iterdir())
    assert verified(tree) == (0, {"15_2": "verified"}, [])


def test_what_each_machine_sealed_goes_and_comes_back_with_its_checkpoint(nodes: list[Path], look: Look) -> None:
    for number in (1, 2, 3):
        rank = f"output/checkpoint/rank_{number}"
        shutil.copytree(nodes[number] / rank, nodes[0] / rank)
    tree = nodes[0] / "output"
    look(nodes[:1], "--seal", "--checkpoint", "all")
    oldest = nodes[0] / SEALS / "llama2_7b-5_2.ckpt.manifest"
    sealed = {path.name: path.read_bytes() for path in oldest.iterdir()}
    assert sealed
    gone = ask("prune", str(tree), "--keep-last", "2", "--grace", "0", "--trash-days", "1", "--apply")
    assert gone.code == 0, gone.stderr
    assert not [*oldest.iterdir()]
    back = ask("trash", "restore", "5_2", str(tree), "--grace", "0")
    assert back.code == 0, back.stderr
    assert {path.name: path.read_bytes() for path in oldest.iterdir()} == sealed
    assert verified(tree, "--checkpoint", "5_2") == (0, {"5_2": "verified"}, [])
