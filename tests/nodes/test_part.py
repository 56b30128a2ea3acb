"""`ckpttool part`: what one of several machines writes down, where it may, and how it ends."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import jsonschema
import pytest

from ckpttool.core.domain.verdict import Level
from ckpttool.core.render import schemas
from ckpttool.nodes.part_file import PartView, read_parts
from tests.support.answers import writable_copy
from tests.support.commands import ask

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
TREE = str(FIXTURES / "async_ckpt" / "output")
ROOT = f"{TREE}/checkpoint"


def written(folder: Path) -> PartView:
    (file,) = folder.glob("*.ckptpart")
    ((_, look),) = read_parts(file.read_bytes(), name=file.name)
    assert isinstance(look, PartView), look
    return look


def part(tmp_path: Path, *words: str, tree: str = TREE) -> PartView:
    done = ask("part", tree, "--part", "1/2", "--out", f"{tmp_path}/parts/", *words)
    assert done.code == 0, done.stderr
    return written(tmp_path / "parts")


def shards_in(look: PartView) -> set[str]:
    return {path for path in look.answers.stamps if look.report_of(path) is not None}


def test_a_part_tells_of_every_shard_that_is_seen_and_of_which_part_it_is(tmp_path: Path) -> None:
    look = part(tmp_path, "--run-id", "night", "--ranks", "0-1,4")
    seat = look.seat
    assert (seat.number, seat.of, seat.run, seat.root, seat.level) == (1, 2, "night", ROOT, Level.STRUCTURE)
    assert (seat.claims, seat.share) == ((0, 1, 4), None)
    files = {str(path.relative_to(ROOT)) for path in Path(ROOT).rglob("*.ckpt")}
    assert shards_in(look) == files
    assert (tmp_path / "parts" / "night.00001-of-00002.ckptpart").exists()


def test_machines_with_so_many_devices_each_claim_their_row_of_ranks(tmp_path: Path) -> None:
    done = ask("part", TREE, "--part", "3/4", "--out", f"{tmp_path}/parts/", "--devices-per-node", "8", "--json")
    document = json.loads(done.stdout)
    jsonschema.validate(document, schemas.schema("part"))
    assert document["claims"] == [*range(16, 24)]
    assert document["shards"] == {"struct-ok": 12}
    first = (tmp_path / "parts" / "part.00003-of-00004.ckptpart").read_text().partition("\n")[0]
    jsonschema.validate(json.loads(first), schemas.schema("part"))


@pytest.mark.parametrize(
    ("here", "index", "claims"),
    [
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NODEID": "1"}, "SLURM_PROCID", [8, 15]),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "OMPI_COMM_WORLD_RANK", [24, 31]),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "OMPI_COMM_WORLD_RANK", None),
    ],
)
def test_a_machines_row_goes_by_its_number_and_not_by_how_a_launcher_dealt_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: dict[str, str], index: str, claims: list[int] | None
) -> None:
    for name, value in {**here, index: "3", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    if index != "OMPI_COMM_WORLD_RANK":
        monkeypatch.delenv("OMPI_COMM_WORLD_LOCAL_RANK")
    done = ask("part", TREE, "--out", f"{tmp_path}/parts/", "--devices-per-node", "8", "--json")
    if claims is None:
        assert done.code == 2
        assert "the number of this machine is unknown; give --ranks" in done.stderr
        return
    found = json.loads(done.stdout)["claims"]
    assert [found[0], found[-1]] == claims


@pytest.mark.parametrize("split", ["all", "none"])
def test_parts_share_out_a_disk_that_all_of_them_see(tmp_path: Path, split: str) -> None:
    seen = []
    for number in (1, 2, 3):
        folder = tmp_path / str(number)
        done = ask("part", TREE, "--part", f"{number}/3", "--split", split, "--out", f"{folder}/")
        assert done.code == 0
        seen.append(shards_in(written(folder)))
    everything = set.union(*seen)
    assert len(everything) == 12
    assert sum(map(len, seen)) == (12 if split == "all" else 36)
    if split == "all":
        assert {path.partition("/")[0] for path in seen[1]} == {"rank_1"}


@pytest.mark.parametrize("place", ["nowhere", "empty", "closed"])
def test_what_there_is_no_tree_in_is_a_part_as_well(tmp_path: Path, place: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed").chmod(0)
    look = part(tmp_path, tree=str(tmp_path / place))
    assert look.seat.root == str(tmp_path / place)
    assert shards_in(look) == set()
    if place == "closed" and os.getuid():
        assert look.answers.failures["entries", ""] == ("OSError", 13)


def test_a_part_is_written_over_an_earlier_one_and_over_nothing_else(tmp_path: Path) -> None:
    file, other = tmp_path / "a.ckptpart", tmp_path / "b.ckptpart"
    other.write_text("mine")
    for _ in range(2):
        assert ask("part", TREE, "--part", "1/2", "--out", str(file)).code == 0
    done = ask("part", TREE, "--part", "1/2", "--out", str(other))
    assert (done.code, other.read_text()) == (2, "mine")


def test_a_file_that_one_machine_wrote_is_not_written_over_by_another_of_the_same_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.ckptpart"
    assert ask("part", TREE, "--part", "1/2", "--run-id", "r", "--out", str(file)).code == 0
    first = file.read_bytes()
    done = ask("part", TREE, "--part", "2/2", "--run-id", "r", "--out", str(file))
    assert (done.code, file.read_bytes()) == (2, first)
    assert "is part 1 of 2" in " ".join(done.stderr.split())
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("socket.gethostname", lambda: "another")
        assert ask("part", TREE, "--part", "1/2", "--run-id", "r", "--out", str(file)).code == 2
    assert ask("part", TREE, "--part", "1/2", "--run-id", "r", "--out", str(file)).code == 0
    assert ask("part", TREE, "--part", "2/2", "--run-id", "later", "--out", str(file)).code == 0


class TestLinksAndOtherFiles:
    """A part is given to others: what is in it is what a trainer's layout asks for, and nothing else of the machine."""

    @staticmethod
    def part_of(tmp_path: Path, tree: Path) -> str:
        assert ask("part", str(tree), "--part", "1/1", "--out", f"{tmp_path}/one.ckptpart").code == 0
        return (tmp_path / "one.ckptpart").read_text()

    def test_no_text_of_a_file_that_no_layout_asks_for_is_in_it(self, tmp_path: Path) -> None:
        tree = writable_copy("sink2_safetensors", tmp_path / "copy")
        root = tree / "checkpoint"
        home = tmp_path / "home"
        home.mkdir()
        for path in (root / "env.yaml", root / "rank_0" / "run.sh", root / "notes.json", home / "credentials"):
            path.write_text("SECRET: 1")
        (root / "data").symlink_to(home)
        (root / "rank_0" / "common.json").symlink_to(home / "credentials")
        told = self.part_of(tmp_path, tree)
        assert "SECRET" not in told
        assert "env.yaml" in told  # its name travels
        assert "credentials" not in told

    def test_a_rank_folder_on_another_disk_is_followed_and_told_as_if_it_lay_here(self, tmp_path: Path) -> None:
        tree = writable_copy("sink2_safetensors", tmp_path / "copy")
        whole = ask("resolve", str(tree), "--json").stdout
        root = tree / "checkpoint"
        (root / "rank_0").rename(tmp_path / "elsewhere")
        (root / "rank_0").symlink_to(tmp_path / "elsewhere")
        assert self.part_of(tmp_path, tree).count("rank_0") > 0
        told = json.loads(ask("resolve", f"{tmp_path}/one.ckptpart", "--json").stdout)
        assert told["resume"] == json.loads(whole)["resume"]

    def test_a_link_to_a_whole_disk_is_not_walked(self, tmp_path: Path) -> None:
        tree = writable_copy("sink2_safetensors", tmp_path / "copy")
        root = tree / "checkpoint"
        deep = tmp_path / "disk" / "a" / "b"
        deep.mkdir(parents=True)
        (deep / "model.safetensors").write_bytes(b"")
        (root / "rank_6").symlink_to(tmp_path / "disk")
        (root / "other").symlink_to(tmp_path / "disk")
        (root / "round").symlink_to(root)
        told = self.part_of(tmp_path, tree)
        assert "model.safetensors" not in told


def test_nothing_is_written_into_the_tree(tmp_path: Path) -> None:
    tree = writable_copy("async_ckpt", tmp_path / "copy")
    root = next(tree.rglob("rank_0")).parent
    done = ask("part", str(root), "--part", "1/2", "--out", f"{root}/parts/")
    assert done.code == 2
    assert "is in the checkpoint tree" in done.stderr
    assert not (root / "parts").exists()
    assert ask("part", str(root), "--part", "1/2", "--out", f"{root}-parts/").code == 0


def test_a_launcher_tells_which_part_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_LOCALID": "1", "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    done = ask("part", TREE, "--out", f"{tmp_path}/parts/", "--split", "node")
    assert done.code == 0, done.stderr
    look = written(tmp_path / "parts")
    assert (look.seat.number, look.seat.of, look.seat.run, look.seat.share) == (2, 4, "77.0", "2/2")
    assert {path.partition("/")[0] for path in shards_in(look)} == {"rank_1", "rank_3"}


def test_msruns_scheduler_writes_nothing_and_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MS_ROLE", "MS_SCHED")
    assert ask("part", TREE, "--out", f"{tmp_path}/parts/").code == 0
    assert not (tmp_path / "parts").exists()


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two machines' looks, asked about where a tree of another run has the very path that theirs had."""
    for number, ranks in ((1, (0, 1)), (2, (2, 3))):
        for rank in ranks:
            shutil.copytree(f"{ROOT}/rank_{rank}", tmp_path / str(number) / "output" / "checkpoint" / f"rank_{rank}")
        monkeypatch.chdir(tmp_path / str(number))
        done = ask("part", "output", "--part", f"{number}/2", "--out", f"{tmp_path}/parts/")
        assert done.code == 0
    return str(tmp_path / "parts")


def test_parts_are_asked_as_the_tree_would_be(parts: str) -> None:
    said = ask("resolve", parts)
    assert (said.code, said.stdout.partition("\n")[0]) == (0, "Resume from step 30 (15_2): intact on all 4 ranks")
    document = json.loads(ask("scan", parts, "--json").stdout)
    jsonschema.validate(document, schemas.schema("inventory"))
    assert document["parts"] == {**document["parts"], "given": 2, "of": 2, "missing": [], "stale": []}
    verified = json.loads(ask("verify", parts, "--json").stdout)
    jsonschema.validate(verified, schemas.schema("verdicts"))
    assert verified["parts"] == document["parts"]


def test_parts_one_behind_another_are_the_same(parts: str, tmp_path: Path) -> None:
    files = sorted(Path(parts).iterdir())
    joined = tmp_path / "all.ckptpart"
    joined.write_bytes(b"".join(file.read_bytes() for file in files))
    whole = ask("resolve", parts).stdout
    assert ask("resolve", str(joined)).stdout == whole
    joined.write_bytes(joined.read_bytes()[:-100])
    assert ask("resolve", str(joined)).code == 14


def test_one_part_of_two_is_never_nothing_to_resume_from(parts: str) -> None:
    first, _ = sorted(Path(parts).iterdir())
    said = ask("resolve", str(first))
    assert said.code == 14
    assert "part-missing" in said.stdout


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("prune --keep-last 1 --apply", 15), ("seal", 15), ("repair-meta --apply", 15), ("heal --apply", 15),
        ("health --threshold 1 --write", 15), ("inspect", 14), ("fp8 probe", 14),
    ],
)  # fmt: skip
def test_nothing_is_changed_or_opened_on_the_machine_that_is_asked(parts: str, command: str, code: int) -> None:
    """The current folder holds a tree under the very path that the parts name."""
    before = {path: path.read_bytes() for path in Path.cwd().rglob("*") if path.is_file()}
    said = ask(*command.split(), parts)
    assert said.code == code, said.stdout + said.stderr
    assert {path: path.read_bytes() for path in Path.cwd().rglob("*") if path.is_file()} == before
