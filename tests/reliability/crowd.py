"""Many command lines at one moment: forks of a process that has imported everything, let go together, some killed.

`python -m tests.reliability.crowd` is the server: one JSON request a line, one answer a line. To start an interpreter
takes longer than a command holds a lock, so commands that were started one by one would mostly miss each other.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.reliability.fork_server import ForkServer, answer, import_everything, redirect

HANG_SECONDS = 600.0
"""Far beyond any patience that a command has for a lock, and beyond what a disk that others use stalls."""
HUNG = 999
"""In place of an exit code: it had to be killed, and nobody had asked for that."""
_LAST_WORDS_SECONDS = 10.0
"""For what hung, to say where."""
_POLL_SECONDS = 0.002
_SLOW_FSYNC_SECONDS = 0.05


class Job(NamedTuple):
    """One command line."""

    argv: tuple[str, ...]
    kill_after: float | None = None
    """Seconds after all were let go; None: never."""
    start_after: float = 0.0
    """Seconds that this one waits."""


@dataclass(frozen=True, slots=True)
class End:
    """How one ended."""

    job: Job
    code: int
    """Exit code, minus the signal, or HUNG."""
    seconds: float
    stdout: str
    stderr: str

    @property
    def killed(self) -> bool:
        """By us: whom nobody meant to kill, something else has killed."""
        return self.code == -signal.SIGKILL and self.job.kill_after is not None

    @property
    def told(self) -> str:
        """What it said last; of one that hung the stacks of its threads, the one that works first."""
        return self.stderr[:3000] if self.code == HUNG else self.stderr[-300:]


class Crowd(ForkServer):
    """The server, and how to ask it. One question at a time."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        """Start it; what the commands print goes through files in `folder`."""
        folder.mkdir(parents=True)
        self._folder = folder
        super().__init__(("-m", "tests.reliability.crowd"), env)

    def run(self, jobs: Sequence[Job], *, unlocked: bool = False) -> list[End]:
        """Let all of them go at once, and wait for the last. `unlocked` takes our locks away, on a slow disk."""
        wanted = [job._asdict() for job in jobs]
        request = {"jobs": wanted, "folder": str(self._folder), "unlocked": unlocked}
        ends = json.loads(self.ask(json.dumps(request)))
        return [
            End(job, code, seconds, self._printed(number, "stdout"), self._printed(number, "stderr"))
            for number, (job, (code, seconds)) in enumerate(zip(jobs, ends, strict=True))
        ]

    def _printed(self, number: int, stream: str) -> str:
        return (self._folder / f"{number}.{stream}").read_text(errors="replace")


def serve() -> None:
    """Answer until the input ends."""
    import_everything()
    gc.freeze()
    for line in sys.stdin:
        answer(json.dumps(_serve_one(json.loads(line))))


def _serve_one(request: Mapping[str, Any]) -> list[tuple[int, float]]:
    gate_out, gate_in = os.pipe()
    pids = []
    for number, job in enumerate(request["jobs"]):
        pid = os.fork()
        if pid == 0:
            os.close(gate_in)
            _become(job, f"{request['folder']}/{number}", gate_out, unlocked=request["unlocked"])
        pids.append(pid)
    os.close(gate_out)
    started = time.monotonic()
    os.close(gate_in)
    kills = {pid: job["kill_after"] for pid, job in zip(pids, request["jobs"], strict=True)}
    ends = _ends(kills, started)
    return [ends[pid] for pid in pids]


def _ends(kills: dict[int, float | None], started: float) -> dict[int, tuple[int, float]]:
    """Wait for all, and kill whose time has come."""
    ends: dict[int, tuple[int, float]] = {}
    while len(ends) < len(kills):
        now = time.monotonic() - started
        for pid in kills.keys() - ends.keys():
            kill_after = kills[pid]
            if kill_after is not None and now >= kill_after:
                kills[pid] = None
                os.kill(pid, signal.SIGKILL)  # not waited for yet, so it is still ours
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ends[pid] = (os.waitstatus_to_exitcode(status), now)
            elif now > HANG_SECONDS:
                _end_hung(pid)
                ends[pid] = (HUNG, now)
        time.sleep(_POLL_SECONDS)
    return ends


def _end_hung(pid: int) -> None:
    """Let it write its threads' stacks to its stderr and end; kill what sleeps too deep for that."""
    os.kill(pid, signal.SIGABRT)
    until = time.monotonic() + _LAST_WORDS_SECONDS
    while time.monotonic() < until:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        time.sleep(_POLL_SECONDS)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _become(job: Mapping[str, Any], out: str, gate: int, *, unlocked: bool) -> None:
    """Turn a fork into a command; never returns."""
    redirect(os.devnull, f"{out}.stdout", f"{out}.stderr")
    faulthandler.enable()
    sys.argv = ["ckpttool", *job["argv"]]
    from ckpttool.__main__ import main

    if unlocked:
        take_locks_away()
    os.read(gate, 1)  # until the server closes its end
    time.sleep(job["start_after"])
    main()


def take_locks_away() -> None:
    """Let everybody in, wherever the lock was imported to; a slow disk makes sure that they meet."""
    from ckpttool.core.write import files

    real: Callable[..., object] = files.locked

    @contextmanager
    def open_to_all(path: str, *, timeout: float) -> Iterator[None]:  # noqa: ARG001  a lock's signature
        yield

    for module in list(sys.modules.values()):
        if getattr(module, "locked", None) is real:
            module.locked = open_to_all  # type: ignore[attr-defined]  # it has one, as was just seen
    os.fsync = lambda _: time.sleep(_SLOW_FSYNC_SECONDS)  # type: ignore[assignment]  # a disk that is slow


if __name__ == "__main__":
    serve()
