"""Launchers as they are run on a cluster, on this machine: four nodes of Slurm, Open MPI, torchrun."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ckpttool.trainers.common import LAUNCHERS_VARIABLES, processes

NODES = ("n1", "n2", "n3", "n4")

_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
{nodes}
PartitionName=all Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP
"""


def needs(program: str, package: str) -> str:
    """Return where a program lies; where it is not there, the test is skipped and says which package has it."""
    places = (os.environ["PATH"], "/usr/sbin", "/usr/local/sbin", str(Path(sys.executable).parent))
    found = shutil.which(program, path=os.pathsep.join(places))
    if found is None:
        pytest.skip(f"there is no {program}: apt-get install {package}")
    return found


def plain_environment() -> dict[str, str]:
    """Return this process's environment without what any launcher left there."""
    left_out = {*LAUNCHERS_VARIABLES, *processes.VARIABLES}
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"}


class Slurm:
    """A cluster that was started; each node is a daemon on this machine."""

    def __init__(self, folder: Path) -> None:
        """Take the folder with its configuration."""
        self.environment = {**plain_environment(), "SLURM_CONF": str(folder / "slurm.conf")}

    def srun(
        self, options: Sequence[str], command: Sequence[str], *, timeout: float = 60
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command on its nodes."""
        line = ["srun", *options, *command]
        return subprocess.run(line, env=self.environment, capture_output=True, timeout=timeout, check=False)


@contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """Start four nodes on this machine, and end them."""
    programs = {name: needs(name, "slurmd slurmctld slurm-client munge") for name in ("munged", "slurmctld", "slurmd")}
    needs("srun", "slurm-client")
    _, *ports = _free_ports(6)
    host = socket.gethostname().partition(".")[0]
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=1000"
        for node, port in zip(NODES, ports[1:], strict=True)
    )
    user = "root" if os.geteuid() == 0 else os.environ["USER"]
    (folder / "slurm.conf").write_text(_CONF.format(host=host, ports=ports, user=user, folder=folder, nodes=nodes))
    for name in ("state", *(f"spool.{node}" for node in NODES)):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    folder.chmod(0o755)  # the socket is to be reached
    own = [f"--{name}={folder}/munge.{end}" for name, end in _MUNGE.items()]
    with ExitStack() as started:
        _daemon(started, [programs["munged"], "--foreground", "--force", *own], folder)
        _wait_for((folder / "munge.socket").exists, "munged")
        cluster = Slurm(folder)
        _daemon(started, [programs["slurmctld"], "-D"], folder, cluster.environment)
        for node in NODES:
            _daemon(started, [programs["slurmd"], "-D", "-N", node], folder, cluster.environment)
        _wait_for(lambda: _all_idle(cluster), "slurmd")
        yield cluster


_MUNGE = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _daemon(started: ExitStack, line: Sequence[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    log = started.enter_context((folder / "daemons.log").open("ab"))
    daemon = subprocess.Popen(line, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    started.callback(daemon.wait)
    started.callback(daemon.terminate)


def _all_idle(cluster: Slurm) -> bool:
    line = ["sinfo", "--noheader", "--format=%t %D"]
    told = subprocess.run(line, env=cluster.environment, capture_output=True, check=False)
    return told.stdout.split() == [b"idle", b"4"]


def _wait_for(is_there: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 30
    while not is_there():
        if time.monotonic() > end:
            pytest.skip(f"{what} does not come up on this machine")
        time.sleep(0.1)


ON_A_NODE = """
import os, subprocess, sys
from ckpttool.trainers.common.processes import process_of

process = process_of(os.environ)
node = str(process.index if process.node is None else process.node)
script = 'hostname node$0 && mount -t tmpfs tmpfs "$1" && cp -a "$2/$0/." "$1" && shift 2 && exec "$@"'
os.execvp("unshare", ["unshare", "--mount", "--uts", "sh", "-c", script, node, *sys.argv[1:]])
"""
"""Makes a process's machine out of this one: a name of its own, and a disk of its own with what it has."""


def on_nodes(root: Path, disks: Path, command: Sequence[str]) -> list[str]:
    """Return a command to be launched, that runs another on machines whose disks hold different things.

    Args:
        root: An empty folder: where each machine has its tree.
        disks: What each has there: a folder for each, named by its number from 0.
        command: What is run on all.
    """
    tried = subprocess.run(["unshare", "--mount", "--uts", "true"], capture_output=True, check=False)
    if tried.returncode != 0:
        pytest.skip("a disk for each node takes mount namespaces: run it as root")
    return [sys.executable, "-c", ON_A_NODE, str(root), str(disks), *command]
