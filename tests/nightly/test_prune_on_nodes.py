"""A plan under real launchers: each of four machines lets go what it has of it, or refuses, or is killed at it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ckpttool.records.prune_plan import read_plan
from tests.conftest import FIXTURES
from tests.nightly.clusters import Slurm, lasting_disks, needs, on_nodes, plain_environment, slurm
from tests.support.machines import files_in

nightly = pytest.mark.skipif("not config.getoption('--nightly')", reason="starts real launchers: --nightly")

CKPTTOOL = [sys.executable, "-m", "ckpttool"]
RANKS = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm")) as started:
        yield started


class Machines:
    """Four of them, each with one rank's folder on a disk that lasts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.disks, self.root = folder, folder / "disks", folder / "data"
        self.parts, self.plan = folder / "parts", folder / "plan.json"
        self.root.mkdir()
        self.parts.mkdir()
        checkpoint = FIXTURES / "sink2_ckpt" / "output" / "checkpoint"
        for rank in range(RANKS):
            shutil.copytree(checkpoint / f"rank_{rank}", self.disks / str(rank) / f"rank_{rank}")
        self.before = [self.files(rank) for rank in range(RANKS)]

    def files(self, number: int) -> dict[str, bytes]:
        return {
            path: content for path, content in files_in(self.disks / str(number)).items() if ".ckpttool" not in path
        }

    def trashed(self, number: int) -> list[str]:
        return sorted(path for path in files_in(self.disks / str(number)) if path.startswith(".ckpttool/trash/"))

    def each(self, *arguments: str) -> list[str]:
        """Return the command that is launched."""
        return on_nodes(self.root, self.disks, [*CKPTTOOL, *arguments], lasting=True)

    def look(self) -> list[str]:
        return self.each("part", str(self.root), "--out", f"{self.parts}/", "--run-id", f"{time.time_ns()}", "-q")

    def apply(self, *options: str, plan: str | None = None) -> list[str]:
        return self.each("prune", str(self.root), "--apply-plan", plan or str(self.plan), "--grace", "0", *options)

    def make_plan(self) -> None:
        told = self.asked("prune", str(self.parts), "--keep-last", "2", "--grace", "0", "--plan-out", str(self.plan))
        assert [save["fate"] for save in told["checkpoints"]] == ["go"] * 3 + ["keep"] * 2

    def asked(self, *arguments: str) -> dict[str, Any]:
        """Ask where none of the files are."""
        line = [*CKPTTOOL, *arguments, "--json"]
        told = subprocess.run(line, env=plain_environment(), capture_output=True, check=False, timeout=120)
        assert told.returncode == 0, told.stderr
        document: dict[str, Any] = json.loads(told.stdout)
        return document

    def assert_moved(self, number: int) -> None:
        gone = {path for path in self.before[number] if path not in self.files(number)}
        assert gone == {
            path for path in self.before[number] if path.endswith(("-10_2.ckpt", "-15_2.ckpt", "-20_2.ckpt"))
        }
        assert [path.split("/", 3)[3] for path in self.trashed(number)] == sorted(gone)

    def assert_untouched(self, number: int) -> None:
        assert (self.files(number), self.trashed(number)) == (self.before[number], [])


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with lasting_disks(tmp_path / "disks", RANKS):
        yield Machines(tmp_path)


def launched(line: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(line, env=plain_environment(), capture_output=True, timeout=180, check=False)


@nightly
class TestSlurm:
    @pytest.fixture(autouse=True)
    def plan(self, cluster: Slurm, machines: Machines) -> None:
        told = cluster.srun(["-N4"], machines.look())
        assert told.returncode == 0, told.stderr
        machines.make_plan()

    def test_each_node_moves_what_it_has_once_all_have_said_that_they_would(
        self, cluster: Slurm, machines: Machines
    ) -> None:
        tried = cluster.srun(["-N4"], machines.apply())
        assert tried.returncode == 0, tried.stderr
        assert tried.stdout.count(b"would be moved to the trash") == 4
        for number in range(RANKS):
            machines.assert_untouched(number)
        done = cluster.srun(["-N4"], machines.apply("--apply"))
        assert done.returncode == 0, done.stderr
        for number in range(RANKS):
            assert f"node{number}: 10_2, 15_2, 20_2: 3 files".encode() in done.stdout
            machines.assert_moved(number)
        again = cluster.srun(["-N4"], machines.apply("--apply"))
        assert (again.returncode, again.stdout.count(b"nothing is left to do")) == (0, 4)

    def test_srun_gives_the_plan_to_all_through_standard_input(self, cluster: Slurm, machines: Machines) -> None:
        line = ["srun", "-N4", *machines.apply("--apply", plan="-")]
        with machines.plan.open("rb") as plan:
            told = subprocess.run(
                line, env=cluster.environment, stdin=plan, capture_output=True, timeout=60, check=False
            )
        assert told.returncode == 0, told.stderr
        for number in range(RANKS):
            machines.assert_moved(number)

    def test_one_that_refuses_moves_nothing_and_the_others_go_on_and_all_of_it_can_be_undone(
        self, cluster: Slurm, machines: Machines
    ) -> None:
        os.utime(machines.disks / "2/rank_2/llama2_7b_rank_2-15_2.ckpt")
        tried = cluster.srun(["-N4"], machines.apply())
        assert tried.returncode == 14
        done = cluster.srun(["-N4"], machines.apply("--apply"))
        assert done.returncode == 14
        machines.assert_untouched(2)
        for number in (0, 1, 3):
            machines.assert_moved(number)
        assert cluster.srun(["-N4"], machines.look()).returncode == 0
        found = machines.asked("resolve", str(machines.parts), "--world-size", "4")
        assert (found["resume"]["name"], found["rejected"]) == ("_1-30_2", [])
        assert [each["path"] for each in found["findings"] if each["code"] == "half-gone"] == ["10_2", "15_2", "20_2"]
        back = machines.each("trash", "restore", "10_2", "15_2", "20_2", str(machines.root), "--grace", "0")
        assert cluster.srun(["-N4"], back).returncode == 2  # there is nothing in the third one's trash
        for number in range(RANKS):
            assert machines.files(number) == machines.before[number]

    def test_one_that_is_killed_while_it_moves_is_undone_by_its_next_start(
        self, cluster: Slurm, machines: Machines
    ) -> None:
        """At 20 moments from its start to its end; each time it goes on from there."""
        for number in range(20):
            killer = f'case $SLURM_PROCID in 2) timeout -s KILL {0.15 + 0.03 * number:.2f} "$@";; *) exec "$@";; esac'
            told = cluster.srun(["-N4"], ["sh", "-c", killer, "sh", *machines.apply("--apply")])
            for other in (0, 1, 3):
                machines.assert_moved(other)
            kept = {path: content for path, content in machines.before[2].items() if "_1-" in path}
            assert kept.items() <= machines.files(2).items()
            if told.returncode == 0:
                break
        assert cluster.srun(["-N4"], machines.apply("--apply")).returncode == 0
        for each in range(RANKS):
            machines.assert_moved(each)


@nightly
@pytest.mark.parametrize("program", ["mpirun.openmpi", "mpirun.mpich"])
class TestMpi:
    @pytest.fixture
    def mpirun(self, program: str, machines: Machines) -> list[str]:
        line = [needs(program, program.partition(".")[2]), "-n", "4"]
        if program.endswith("openmpi"):
            line += ["--allow-run-as-root", "--oversubscribe"]
        # To mpirun all four are processes of one machine, whose disk they would share out.
        told = launched([*line, *machines.look(), "--split", "none"])
        assert told.returncode == 0, told.stderr
        machines.make_plan()
        return line

    def test_each_process_moves_what_its_machine_has(self, mpirun: list[str], machines: Machines) -> None:
        assert launched([*mpirun, *machines.apply()]).returncode == 0
        assert launched([*mpirun, *machines.apply("--apply")]).returncode == 0
        for number in range(RANKS):
            machines.assert_moved(number)

    def test_where_one_refuses_the_first_start_says_so_before_any_other_moved_a_file(
        self, mpirun: list[str], machines: Machines
    ) -> None:
        os.utime(machines.disks / "2/rank_2/llama2_7b_rank_2-15_2.ckpt")
        assert launched([*mpirun, *machines.apply()]).returncode != 0
        for number in range(RANKS):
            machines.assert_untouched(number)

    def test_what_is_ended_with_the_one_that_refuses_is_whole_or_goes_on_the_next_time(
        self, mpirun: list[str], machines: Machines
    ) -> None:
        os.utime(machines.disks / "2/rank_2/llama2_7b_rank_2-15_2.ckpt")
        assert launched([*mpirun, *machines.apply("--apply")]).returncode != 0
        machines.assert_untouched(2)
        plan = read_plan(machines.plan.read_bytes(), name="x")
        files = [file for save in plan.going for share in save.shares for file in share.files]
        (stamp,) = (file.stamp.modified_ns for file in files if file.path.endswith("rank_2-15_2.ckpt"))
        assert stamp is not None
        os.utime(machines.disks / "2/rank_2/llama2_7b_rank_2-15_2.ckpt", ns=(stamp, stamp))
        assert launched([*mpirun, *machines.apply("--apply")]).returncode == 0
        for number in range(RANKS):
            machines.assert_moved(number)
