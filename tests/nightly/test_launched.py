"""Real launchers: each process knows which part it is, and leaves it where the answer for all is asked."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.domain.node import Process
from ckpttool.nodes.part_file import PartView, read_parts
from ckpttool.trainers.common.processes import process_of
from tests.conftest import FIXTURES
from tests.nightly.clusters import Slurm, needs, on_nodes, plain_environment, slurm

nightly = pytest.mark.skipif("not config.getoption('--nightly')", reason="starts real launchers: --nightly")

TELL = "import json, os, sys; json.dump({**os.environ}, open(f'{sys.argv[1]}/{os.getpid()}', 'x'))"
"""Into files: launchers tear lines as long as an environment."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm")) as started:
        yield started


def launched(line: Sequence[str]) -> bytes:
    """Run a command, and return what it writes."""
    return subprocess.run(line, env=plain_environment(), capture_output=True, timeout=120, check=True).stdout


def torchrun() -> list[str]:
    """Return its command with four processes: the program's module, which is there wherever torch is."""
    pytest.importorskip("torch", reason="torchrun comes with torch, which is not installed")
    return [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "4"]


def tells(folder: Path) -> list[str]:
    """Return a command that leaves its environment in a folder."""
    folder.mkdir(exist_ok=True)
    return [sys.executable, "-c", TELL, str(folder)]


def processes_in(folder: Path) -> list[Process]:
    """Ask each environment that was left there which process it is of."""
    found = [process_of(json.loads(path.read_text("utf-8"))) for path in folder.iterdir()]
    return sorted((process for process in found if process is not None), key=lambda process: process.index)


@nightly
class TestSlurm:
    def test_every_task_of_srun_is_another_part_and_knows_its_node(self, cluster: Slurm, tmp_path: Path) -> None:
        told = cluster.srun(["-N3", "-n7", "--overcommit"], tells(tmp_path))
        assert told.returncode == 0, told.stderr
        found = processes_in(tmp_path)
        assert [(one.index, one.count, one.local_count) for one in found] == [
            (index, 7, count) for index, count in enumerate((3, 3, 3, 2, 2, 2, 2))
        ]
        assert [one.node for one in found] == [0, 0, 0, 1, 1, 2, 2]


@nightly
class TestOthers:
    def test_every_process_of_open_mpi_is_another_part(self, tmp_path: Path) -> None:
        mpirun = [needs("mpirun.openmpi", "openmpi-bin"), "--allow-run-as-root", "--oversubscribe", "-n", "4"]
        launched([*mpirun, *tells(tmp_path)])
        found = processes_in(tmp_path)
        assert [(one.index, one.count, one.local_index, one.local_count) for one in found] == [
            (index, 4, index, 4) for index in range(4)
        ]

    def test_every_process_of_mpich_is_another_part(self, tmp_path: Path) -> None:
        mpirun = [needs("mpirun.mpich", "mpich"), "-n", "4"]
        launched([*mpirun, *tells(tmp_path)])
        found = processes_in(tmp_path)
        assert [(one.index, one.launcher, one.local_count) for one in found] == [(n, "MPICH", 4) for n in range(4)]

    def test_every_process_of_torchrun_is_another_part(self, tmp_path: Path) -> None:
        launched([*torchrun(), *tells(tmp_path)])
        found = processes_in(tmp_path)
        assert [(one.index, one.launcher, one.local_count) for one in found] == [(n, "torchrun", 4) for n in range(4)]


CHECKPOINTS = FIXTURES / "health_pp2" / "output" / "checkpoint"
"""Of four ranks."""

CKPTTOOL = [sys.executable, "-m", "ckpttool"]


class Job:
    """A training on four machines, each of which has one rank's files on a disk of its own."""

    def __init__(self, folder: Path) -> None:
        self.disks = folder / "disks"
        self.root = folder / "data"
        self.parts = folder / "parts"
        self.root.mkdir()
        self.parts.mkdir()
        for rank in range(4):
            shutil.copytree(CHECKPOINTS / f"rank_{rank}", self.disks / str(rank) / f"rank_{rank}")

    def look(self, out: str, *more: str) -> list[str]:
        """Return the command that each machine's process runs."""
        return on_nodes(self.root, self.disks, [*CKPTTOOL, "part", str(self.root), "--out", out, *more])

    def looks(self) -> dict[str, PartView]:
        """Return what each machine saw, by its name."""
        return looks_in(b"".join(path.read_bytes() for path in self.parts.iterdir()))

    def resolved(self, *given: str, stdin: bytes = b"") -> tuple[int, dict[str, Any]]:
        """Ask where to resume from, on a machine that has nothing but the parts."""
        line = [*CKPTTOOL, "resolve", *given, "--json"]
        told = subprocess.run(line, env=plain_environment(), input=stdin, capture_output=True, check=False)
        assert told.stdout, told.stderr
        return told.returncode, json.loads(told.stdout)


def looks_in(parts: bytes) -> dict[str, PartView]:
    """Return what each machine saw, by its name; all of it can be read."""
    found = [look for _, look in read_parts(parts, name="parts")]
    assert all(isinstance(look, PartView) for look in found)
    return {look.seat.host: look for look in found if isinstance(look, PartView)}


def newest(rank: int) -> str:
    return f"rank_{rank}/llama2_7b_rank_{rank}-15_2.ckpt"


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def mpirun() -> list[str]:
    return [needs("mpirun.openmpi", "openmpi-bin"), "--allow-run-as-root", "--oversubscribe", "-n", "4"]


def cut_short(job: Job, rank: int) -> None:
    """Damage the newest save of a rank, on its own machine."""
    shard = job.disks / str(rank) / newest(rank)
    shard.write_bytes(shard.read_bytes()[:1000])


def codes(document: dict[str, Any]) -> set[str]:
    found = [*document["findings"], *(reason for one in document["rejected"] for reason in one["reasons"])]
    return {finding["code"] for finding in found}


@nightly
class TestParts:
    def test_srun_leaves_a_part_of_each_node_in_a_folder(self, cluster: Slurm, job: Job) -> None:
        told = cluster.srun(["-N4"], job.look(str(job.parts), "--devices-per-node", "1"))
        assert told.returncode == 0, told.stderr
        looks = job.looks()
        assert [(host, looks[host].seat.claims) for host in sorted(looks)] == [(f"node{n}", (n,)) for n in range(4)]
        assert len({look.seat.disk for look in looks.values()}) == 4
        for rank in range(4):
            assert [host for host in looks if looks[host].report_of(newest(rank)) is not None] == [f"node{rank}"]

    def test_a_part_with_damage_ends_with_0_so_that_mpirun_lets_the_others_look(self, job: Job) -> None:
        cut_short(job, 1)
        # To mpirun all four are processes of one machine, whose disk they would share out.
        launched([*mpirun(), *job.look(str(job.parts), "--run-id", "night", "--split", "none")])
        looks = job.looks()
        reports = [looks[f"node{rank}"].report_of(newest(rank)) for rank in range(4)]
        assert [report is not None and bool(report.findings) for report in reports] == [False, True, False, False]

    def test_a_launcher_ends_all_where_one_ends_with_10(self, tmp_path: Path) -> None:
        """Why a part with damage does not."""
        script = f'[ "$OMPI_COMM_WORLD_RANK" = 1 ] && exit 10; sleep 3; touch "{tmp_path}/$OMPI_COMM_WORLD_RANK"'
        line = [*mpirun(), "sh", "-c", script]
        told = subprocess.run(line, env=plain_environment(), capture_output=True, timeout=60, check=False)
        assert told.returncode == 10
        assert [*tmp_path.iterdir()] == []

    def test_processes_that_torchrun_starts_on_one_machine_share_its_files_out(self, job: Job) -> None:
        shutil.copytree(CHECKPOINTS, job.disks / "0", dirs_exist_ok=True)
        launched([*torchrun(), *job.look(str(job.parts))])
        looks = [look for path in sorted(job.parts.iterdir()) for look in looks_in(path.read_bytes()).values()]
        assert [look.seat.share for look in looks] == ["1/4", "2/4", "3/4", "4/4"]
        seen = [[rank for rank in range(4) if look.report_of(newest(rank)) is not None] for look in looks]
        assert seen == [[0], [1], [2], [3]]

    def test_a_process_that_is_killed_while_it_looks_leaves_no_part_and_the_others_theirs(
        self, cluster: Slurm, job: Job
    ) -> None:
        killer = 'case $SLURM_PROCID in 2) timeout -s KILL 0.1 "$@";; *) exec "$@";; esac'
        told = cluster.srun(["-N4"], ["sh", "-c", killer, "sh", *job.look(str(job.parts))])
        assert told.returncode != 0
        assert sorted(look.seat.number for look in job.looks().values()) == [1, 2, 4]


@nightly
class TestRead:
    def test_four_nodes_are_one_training(self, cluster: Slurm, job: Job) -> None:
        cluster.srun(["-N4"], job.look(str(job.parts), "--devices-per-node", "1"))
        joined = b"".join(path.read_bytes() for path in job.parts.iterdir())
        code, document = job.resolved("-", "--world-size", "4", stdin=joined)
        assert (code, document["resume"]["name"], document["parts"]["given"]) == (0, "15_2", 4)

    def test_damage_on_one_machine_is_found_on_another(self, cluster: Slurm, job: Job) -> None:
        cut_short(job, 1)
        cluster.srun(["-N4"], job.look(str(job.parts)))
        code, document = job.resolved(str(job.parts), "--world-size", "4")
        assert (code, document["resume"]["name"]) == (0, "10_2")
        assert "shard-truncated" in codes(document)

    def test_a_part_that_is_missing_is_never_nothing_to_resume_from(self, cluster: Slurm, job: Job) -> None:
        told = cluster.srun(["-N4"], job.look(str(job.parts)))
        assert told.returncode == 0, told.stderr
        (gone,) = job.parts.glob("*00003-of-*")
        gone.unlink()
        code, document = job.resolved(str(job.parts))
        assert (code, document["resume"], document["parts"]["missing"]) == (14, None, [3])
        assert "part-missing" in codes(document)

    def test_a_stale_copy_on_a_replaced_node_is_never_taken_for_the_ranks_file(self, cluster: Slurm, job: Job) -> None:
        shutil.copytree(job.disks / "3" / "rank_3", job.disks / "0" / "rank_3")
        stale = job.disks / "0" / newest(3)
        content = bytearray(stale.read_bytes())
        content[-40] ^= 1
        stale.write_bytes(content)
        told = cluster.srun(["-N4"], job.look(str(job.parts)))
        assert told.returncode == 0, told.stderr
        code, document = job.resolved(str(job.parts), "--world-size", "4")
        assert (code, document["resume"]["name"]) == (0, "10_2")
        assert "rank-on-several-nodes" in codes(document)


@nightly
class TestThreeMisfortunesAtOnce:
    """One machine's shard is damaged, another one's part is missing, a third has a stale copy: each is said."""

    @pytest.fixture(params=["srun", "mpirun", "mpirun.mpich"])
    def parts(self, request: pytest.FixtureRequest, job: Job) -> Path:
        cut_short(job, 1)
        shutil.copytree(job.disks / "3" / "rank_3", job.disks / "0" / "rank_3")
        stale = job.disks / "0" / newest(3)
        content = bytearray(stale.read_bytes())
        content[-40] ^= 1
        stale.write_bytes(content)
        # To mpirun all four are processes of one machine, whose disk they would share out.
        look = job.look(str(job.parts), "--run-id", "night", "--split", "none")
        if request.param == "srun":
            told = request.getfixturevalue("cluster").srun(["-N4"], look)
            assert told.returncode == 0, told.stderr
        else:
            launched([*(mpirun() if request.param == "mpirun" else [needs("mpirun.mpich", "mpich"), "-n", "4"]), *look])
        assert sorted(job.looks()) == ["node0", "node1", "node2", "node3"]
        return job.parts

    def test_each_is_said_and_the_missing_part_is_never_nothing_to_resume_from(self, job: Job, parts: Path) -> None:
        (gone,) = parts.glob("*00003-of-*")
        aside = job.disks / gone.name
        gone.rename(aside)
        code, document = job.resolved(str(parts))
        assert (code, document["resume"], document["parts"]["missing"]) == (14, None, [3])
        newest_save = next(one for one in document["rejected"] if one["name"] == "15_2")
        said = {(each["code"], each["severity"], tuple(each["ranks"])) for each in newest_save["reasons"]}
        assert ("shard-truncated", "damage", (1,)) in said
        assert ("rank-on-several-nodes", "suspect", (3,)) in said
        assert {(code, severity) for code, severity, _ in said} >= {
            ("part-missing", "unknown"),
            ("rank-missing", "unknown"),
        }
        config = FIXTURES / "configs" / "pretrain_sink2.yaml"
        line = [*CKPTTOOL, "launch", str(parts), "--config", str(config), "--output", str(job.disks / "new.yaml")]
        refused = subprocess.run(line, env=plain_environment(), capture_output=True, check=False)
        assert refused.returncode == 10  # what is damaged is so wherever one looks from
        assert not (job.disks / "new.yaml").exists()
        aside.rename(gone)
        code, document = job.resolved(str(parts), "--world-size", "4")
        assert (code, document["resume"]["name"]) == (0, "10_2")
        assert {"shard-truncated", "rank-on-several-nodes"} <= codes(document)
        assert not {"part-missing", "rank-missing"} & codes(document)
