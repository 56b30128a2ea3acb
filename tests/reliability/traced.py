"""Runs a command under strace, which notes its system calls, kills it at one of them, or lets one of them fail."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.reliability.warm import MARK, WAITING, Warm

STRACE = shutil.which("strace")
KILL = "SIGKILL"
ERRNOS = ("ENOSPC", "EIO", "EDQUOT", "EROFS", "EACCES", "EINTR", "EMFILE", "ESTALE")

CLASSES = "%file,%desc"
"""Every call that takes a path or a descriptor: no other changes what is on a disk."""
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_NOT_FILES = frozenset({"mmap"})
"""Memory, here: where a new thread gets none, CPython 3.11 waits for it for ever, whoever calls."""
HANG_SECONDS = 120
_QUOTED_PATH = re.compile(r'"(/[^"]*)"')
_OPEN_PATH = re.compile(r"<(/[^>]*)>")
_CALL = re.compile(r"^(?:\d+ +)?(?P<name>[a-z_0-9]+)\((?P<arguments>.*)")
_ATTACH_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Call:
    """One system call: which of its kind since the process was held, as strace counts, and how it looked."""

    name: str
    nth: int
    line: str

    def is_in(self, folder: Path) -> bool:
        """Whether it is about something below a folder."""
        found = _QUOTED_PATH.search(self.line) or _OPEN_PATH.search(self.line)
        return found is not None and f"{found[1]}/".startswith(f"{folder}/")


@dataclass(frozen=True, slots=True)
class Point:
    """What happens, and at which call."""

    call: Call
    fault: str
    """A signal, just before the call is made, or the name of the error that it returns instead of being made."""
    for_good: bool = False
    """Whether all later calls of its kind fail as well: the disk stays broken."""

    @property
    def is_signal(self) -> bool:
        return self.fault.startswith("SIG")

    @property
    def injection(self) -> str:
        how = f"signal={self.fault}" if self.is_signal else f"error={self.fault}"
        return f"{self.call.name}:{how}:when={self.call.nth}{'+' if self.for_good else ''}"

    def __str__(self) -> str:
        lasting = " from then on" if self.for_good else ""
        return f"{self.fault}{lasting} at {self.call.name} {self.call.nth}: {self.call.line[:120]}"


@dataclass(frozen=True, slots=True)
class Run:
    """How a traced command ended."""

    code: int
    stdout: str
    stderr: str
    calls: tuple[Call, ...]
    """After the mark."""

    @property
    def met(self) -> list[Call]:
        """The calls that something was done to, where it was an error: what strace counts it counts in each thread."""
        return [call for call in self.calls if "(INJECTED)" in call.line]


def traced(
    warm: Warm, argv: Sequence[str], *, cwd: Path, scratch: Path, env: Mapping[str, str], point: Point | None = None
) -> Run:
    """Run a command, and let something happen at a point of it."""
    scratch.mkdir(exist_ok=True)
    log = scratch / "trace"
    log.unlink(missing_ok=True)
    fork = warm.fork(argv, cwd=cwd, out=scratch / "said", env=env)
    inject = ["-e", f"inject={point.injection}"] if point else []
    command = [str(STRACE), "-f", "-qq", "-y", "-s", "60", "-o", str(log), "-e", f"trace={CLASSES}", *inject]
    with subprocess.Popen([*command, "-p", str(fork.pid)], stderr=subprocess.PIPE) as strace:
        attached(log, strace)
        fork.start()
        watchdog = threading.Timer(HANG_SECONDS, os.kill, (fork.pid, signal.SIGABRT))
        watchdog.start()
        code = fork.wait()
        watchdog.cancel()
    return Run(code, fork.stdout, fork.stderr, tuple(calls_of(log.read_text(errors="replace"))))


def untraced(warm: Warm, argv: Sequence[str], *, cwd: Path, scratch: Path, env: Mapping[str, str]) -> Run:
    """Run a command with nothing in its way."""
    scratch.mkdir(exist_ok=True)
    fork = warm.fork(argv, cwd=cwd, out=scratch / "said", env=env)
    fork.start()
    return Run(fork.wait(), fork.stdout, fork.stderr, ())


def attached(log: Path, strace: subprocess.Popen[bytes]) -> None:
    """Wait until strace holds the process: the kernel names a tracer before it sees its first call."""
    deadline = time.monotonic() + _ATTACH_SECONDS
    while not (log.exists() and WAITING in log.read_text(errors="replace")):
        if strace.poll() is not None or time.monotonic() > deadline:
            said = strace.stderr.read().decode() if strace.stderr else ""
            raise RuntimeError(f"strace cannot hold a process here: {said.strip()}")
        time.sleep(0.001)


def calls_of(trace: str) -> list[Call]:
    """Count the calls of each kind, process by process; those after the mark are the command's own."""
    counts: Counter[tuple[str, str]] = Counter()
    calls, begun = [], False
    for line in trace.splitlines():
        found = _CALL.match(line)
        if found is None:
            continue
        process = line.split(maxsplit=1)[0] if line[0].isdigit() else ""
        counts[process, found["name"]] += 1
        if begun and found["name"] not in _NOT_FILES:
            calls.append(Call(found["name"], counts[process, found["name"]], line.partition(" ")[2].strip()))
        begun = begun or MARK in line
    return calls


def works() -> str | None:
    """Tell why processes cannot be traced here, or nothing where they can."""
    if STRACE is None:
        return "strace is not installed"
    if os.geteuid() != 0 and YAMA.exists() and int(YAMA.read_text()) > 1:
        return "only root may trace a process here (kernel.yama.ptrace_scope)"
    done = subprocess.run([STRACE, "-qq", "-e", "trace=none", "true"], capture_output=True, text=True, check=False)
    return f"strace cannot trace here: {done.stderr.strip()}" if done.returncode else None
