"""Start the real MindFormers: train, stop it, launch what ckpttool wrote, and read what every step really saw.

`CKPTTOOL_MINDFORMERS` names a folder that holds one folder a version (`2.1.0/`), each like the top of MindFormers'
repository: `run_mindformer.py`, `scripts/`, `configs/`, `mindformers/`, and beside them `venv/`, an environment with
the MindSpore that this version wants. `python -m tests.nightly.prepare_mindformers FOLDER` makes the most of it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

INJECT = Path(__file__).parent / "inject"
BASE = (INJECT / "pretrain.yaml").read_text(encoding="utf-8")
PLACE = "CKPTTOOL_MINDFORMERS"
LINKED = ("run_mindformer.py", "scripts", "configs", "mindformers")

PATIENCE = 900
"""Seconds after which a start has hung; an ordinary one takes ten, on four ranks fifty."""

Row = dict[str, Any]


def home_of(version: str, needed: tuple[str, ...] = LINKED) -> Path | None:
    """Return the folder of this MindFormers, or None if this machine has none."""
    place = os.environ.get(PLACE)
    home = Path(place, version) if place else None
    return home if home and all((home / name).exists() for name in (*needed, "venv/bin/python")) else None


def config(*additions: str, **values: object) -> str:
    """Return the tiny training's config with the first line of each key set anew, and lines added at its top."""
    text = BASE
    for key, value in values.items():
        text, count = re.subn(rf"(?m)^(\s*(?:- )?){key}:.*$", rf"\g<1>{key}: {value}", text, count=1)
        assert count == 1, key
    return "".join(f"{line}\n" for line in additions) + text


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def rows_of(file: Path) -> tuple[Row, ...]:
    """Return the rows of a trace; the last one may be half written still."""
    if not file.exists():
        return ()
    return tuple(json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1])


@dataclass(frozen=True)
class Trace:
    """What one phase of a training wrote down, a list of rows for each rank."""

    ranks: tuple[tuple[Row, ...], ...]

    @cached_property
    def steps(self) -> Mapping[int, Row]:
        """Rank 0's rows by global step, with the samples of all ranks together."""
        found: dict[int, Row] = {}
        for rank in self.ranks:
            for row in rank:
                if "step" in row:
                    samples = [*found.get(row["step"], {"samples": []})["samples"], *row["samples"]]
                    found[row["step"]] = {**row, "samples": sorted(samples)}
        return found

    def of_rank(self, rank: int) -> Mapping[int, Row]:
        """Return the rows of one rank, by global step."""
        return {row["step"]: row for row in self.ranks[rank] if "step" in row}

    def first(self, key: str, rank: int = 0) -> Any:  # noqa: ANN401  whatever was written
        return next((row[key] for row in self.ranks[rank] if key in row), None)

    @property
    def samples(self) -> list[int]:
        """Every sample that was trained on, in order."""
        return [sample for step in sorted(self.steps) for sample in self.steps[step]["samples"]]


def environment_of(home: Path, inject: Path = INJECT) -> dict[str, str]:
    return {
        **os.environ, "PATH": f"{home}/venv/bin:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": f"{inject}:{home}", "GLOG_v": "3",
    }  # fmt: skip


class Server:
    """A process that has imported MindFormers, and of which each start is a copy: it takes a third of the time."""

    def __init__(self, home: Path, log: Path, *, inject: Path = INJECT, imported: str = "mindformers.trainer") -> None:
        self.version = home.name
        environment = {**environment_of(home, inject), "CKPTTOOL_TRACE": str(log), "LOG_MF_PATH": str(log)}
        self.log = (log / "server.txt").open("wb")
        self.run = subprocess.Popen(
            [home / "venv/bin/python", INJECT / "warm_start.py", imported], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self.log, env=environment, text=True,
        )  # fmt: skip

    def start(self, asked: Row) -> int:
        """Start it, wait for its end, and return how it ended."""
        assert self.run.stdin is not None
        assert self.run.stdout is not None
        self.run.stdin.write(json.dumps(asked) + "\n")
        self.run.stdin.flush()
        for line in self.run.stdout:
            if line.startswith('{"ended"'):
                return int(json.loads(line)["ended"])
        raise AssertionError(self.log.name)

    def close(self) -> None:
        assert self.run.stdin is not None
        assert self.run.stdout is not None
        self.run.stdin.close()
        self.run.wait()
        self.run.stdout.close()
        self.log.close()


@dataclass
class Training:
    """A folder in which one training runs, stops, and goes on."""

    folder: Path
    version: str = "2.1.0"
    ranks: int = 1
    text: str = BASE
    code: int | None = field(default=None, init=False)
    """The exit code of the last start."""

    inject: ClassVar[Path] = INJECT
    needed: ClassVar[tuple[str, ...]] = LINKED
    names_one_device: ClassVar[bool] = False
    """Whether `launch` is given the number of devices even if it is 1, because the tree may be of more ranks."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        (self.folder / "base.yaml").write_text(self.text, encoding="utf-8")
        home = home_of(self.version, self.needed)
        assert home is not None
        self.home = home
        for name in self.needed:
            (self.folder / name).symlink_to(home / name)

    @property
    def checkpoints(self) -> Path:
        return self.folder / "output/checkpoint"

    def shard(self, rank: int, name: str) -> Path:
        """Return a shard's path by its rank and what its name ends with."""
        (found,) = (self.checkpoints / f"rank_{rank}").glob(f"*{name}")
        return found

    def train(self, phase: str, command: str | None = None, *, die_at: int | None = None) -> Trace:
        """Start it and wait for its end; without a command as a user starts a fresh training."""
        environment = {**environment_of(self.home, self.inject), **self.own_environment(phase)}
        if die_at is not None:
            environment["CKPTTOOL_DIE_AT"] = str(die_at)
        if self.ranks > 1:
            del environment["LOG_MF_PATH"]  # each rank has its own
        with (self.folder / f"{phase}.txt").open("wb") as output:
            run = subprocess.Popen(
                ["bash", "-c", command or self.fresh_command()], cwd=self.folder, env=environment, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            self.code = self.wait_for(run, phase, die_at)
        trace = self.trace(phase)
        if die_at is not None:
            assert max(trace.steps, default=0) >= die_at, self.errors(phase)
        return trace

    def own_environment(self, phase: str) -> dict[str, str]:
        return {
            "CKPTTOOL_TRACE": str(self.folder / "trace"), "CKPTTOOL_PHASE": phase,
            "LOG_MF_PATH": str(self.folder / "output/log"),
        }  # fmt: skip

    def start(
        self, server: Server, phase: str, script: str, folder: Path, environment: Mapping[str, str], *,
        base: str = "base.yaml",
    ) -> Trace:  # fmt: skip
        """Start it on one rank, from a folder and with more in its environment."""
        self.code = server.start({
            "arguments": [script, "--config", base], "folder": str(folder),
            "environment": {**self.own_environment(phase), **environment}, "output": str(self.folder / f"{phase}.txt"),
        })  # fmt: skip
        return self.trace(phase)

    def wait_for(self, run: subprocess.Popen[bytes], phase: str, die_at: int | None) -> int:
        """Return the exit code; once a rank has killed itself the others go, too, who would wait for minutes."""
        deadline = time.monotonic() + PATIENCE
        while run.poll() is None and time.monotonic() < deadline:
            time.sleep(1)
            if die_at is not None and self.ranks > 1 and max(self.trace(phase).steps, default=0) >= die_at:
                time.sleep(2)  # the last rank writes its row
                break
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
        return run.wait()

    def fresh_command(self) -> str:
        start = "python run_mindformer.py --config base.yaml"
        if self.ranks == 1:
            return start
        return (
            f"bash scripts/msrun_launcher.sh {shlex.quote(start)} {self.ranks} {free_port()} output/msrun_log True 500"
        )

    def trace(self, phase: str) -> Trace:
        return Trace(tuple(
            rows_of(self.folder / f"trace/{phase}_rank_{rank}.jsonl") for rank in range(self.ranks)
        ))  # fmt: skip

    def errors(self, phase: str) -> str:
        """Return the lines of the output and of the workers' logs that name an error."""
        files = [self.folder / f"{phase}.txt", *sorted((self.folder / "output/msrun_log").glob("worker_*.log"))]
        lines = (line for file in files for line in file.read_text(encoding="utf-8", errors="replace").splitlines())
        return "\n".join(line[:300] for line in lines if re.match(r"\w*(Error|Exception)\b.*:", line))

    def ckpttool(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Ask ckpttool, in the training's folder."""
        return subprocess.run(
            [sys.executable, "-m", "ckpttool", *arguments], cwd=self.folder, capture_output=True, text=True,
            check=False, input=stdin,
        )  # fmt: skip

    def preflight(self, *options: str, base: str = "base.yaml") -> tuple[int, str]:
        devices = ("--devices", str(self.ranks))
        run = self.ckpttool("preflight", "output", "--config", base, "-q", *devices, *options)
        return run.returncode, run.stdout

    def launch(self, *options: str, base: str = "base.yaml", output: str = "resume.yaml") -> Row:
        """Let ckpttool write the launch config; return its document."""
        devices = ("--devices-per-node", str(self.ranks)) if self.ranks > 1 or self.names_one_device else ()
        run = self.ckpttool(
            "launch", "output", "--config", base, "--output", output, "--format", "json", *devices, *options
        )
        assert run.returncode == 0, run.stderr + run.stdout
        document: Row = json.loads(run.stdout)
        return document

    def resume(self, document: Row, phase: str, *, die_at: int | None = None) -> Trace:
        """Start what ckpttool printed, unedited but for the port, which another run may hold."""
        command = document.get("command") or document["commands"][0]
        return self.train(phase, command.replace(" 8118 ", f" {free_port()} "), die_at=die_at)

    def weights_of(self, shards: Iterable[Path]) -> dict[str, dict[str, str]]:
        """Return the hash of every tensor as MindSpore loads it from these shards."""
        python = self.home / "venv/bin/python"
        run = subprocess.run(
            [python, INJECT / "weights_of_shards.py", *map(str, shards)], capture_output=True, text=True, check=True
        )
        (line,) = [line for line in run.stdout.splitlines() if line.startswith("weights ")]
        found: dict[str, dict[str, str]] = json.loads(line.removeprefix("weights "))
        return found
