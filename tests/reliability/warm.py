"""Runs command lines in forks of a process that has imported everything: a tenth of the time of a new interpreter.

The fork waits for a byte before it starts, so that strace can take hold of it; it begins its work at a mark that the
trace shows. Not under coverage, whose own calls would be among those counted: `python -m tests.reliability.warm` is a
server that reads one JSON request a line, `{"argv": [...], "cwd": "...", "env": {...}, "out": "..."}`, and answers with
the fork's process id, then, when told `wait`, with its exit status. The clock of the forks stands still, so that what
two of them write can be compared byte for byte.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.reliability.fork_server import ForkServer, answer, import_everything, redirect

WAITING = "/ckpttool-waits-here"
"""Asked for again and again before: a trace that shows it has hold of the process."""
_PATIENCE = 0.002
MARK = "/ckpttool-starts-here"
"""Asked for, and never there; what a trace shows after it is the command's own."""
_HANDLERS: dict[int, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}
_PR_SET_PTRACER, _BY_ANYBODY = 0x59616D61, ctypes.c_ulong(-1)
CARELESS = "CKPTTOOL_TESTS_WRITE_IN_PLACE"
"""Set in a fork's environment, files are replaced by writing over them: what the judges must notice."""
HASTY = "CKPTTOOL_TESTS_NO_FSYNC"
"""The same with no file's content brought to the disk before its name."""
NOW = 1_800_000_000
"""Unix seconds at which every fork runs: long after the times that the tests give to their files."""


class Fork:
    """One command, held before its first step."""

    def __init__(self, server: Warm, pid: int, out: Path) -> None:
        self.pid = pid
        self._server = server
        self._out = out

    def start(self) -> None:
        """Let it go."""
        self._server.ask("go")

    def wait(self) -> int:
        """Return its exit code, or minus the signal that killed it."""
        return os.waitstatus_to_exitcode(int(self._server.ask("wait")))

    @property
    def stdout(self) -> str:
        return self._out.with_suffix(".stdout").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self._out.with_suffix(".stderr").read_text(errors="replace")


class Warm(ForkServer):
    """The server, and how to ask it. It makes one fork at a time; one that still waits ends with it."""

    def __init__(self) -> None:
        super().__init__(("-m", "tests.reliability.warm"), {"PYTHONHASHSEED": "0", "COLUMNS": "100", "NO_COLOR": "1"})

    def fork(self, argv: Sequence[str], *, cwd: Path, out: Path, env: Mapping[str, str] | None = None) -> Fork:
        """Make a process that will run `ckpttool ARGV` in a folder, its output in `<out>.stdout` and `<out>.stderr`."""
        request = {"argv": list(argv), "cwd": str(cwd), "env": dict(env or {}), "out": str(out)}
        return Fork(self, int(self.ask(json.dumps(request))), out)


def serve() -> None:
    """Answer until the input ends."""
    import_everything()
    for line in sys.stdin:
        _serve_one(json.loads(line))


def _serve_one(request: dict[str, object]) -> None:
    gate_out, gate_in = os.pipe()
    ready_out, ready_in = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(gate_in)
        _become(request, gate_out, ready_in)
    os.close(gate_out)
    os.close(ready_in)
    os.read(ready_out, 1)  # from here on it makes no call until it is let go
    os.close(ready_out)
    answer(pid)
    for order in sys.stdin:
        if order.strip() == "go":
            os.write(gate_in, b"x")
            answer("going")
        else:
            answer(os.waitpid(pid, 0)[1])
            break
    os.close(gate_in)


def _become(request: dict[str, object], gate: int, ready: int) -> None:
    """Turn a fork into the command; never returns."""
    out = str(request["out"])
    os.chdir(str(request["cwd"]))
    os.environ.update(request["env"])  # type: ignore[call-overload]  # text to text: our own request
    redirect(os.devnull, f"{out}.stdout", f"{out}.stderr")
    for fd in set(range(3, 64)) - {gate, ready}:
        with suppress(OSError):
            os.close(fd)
    sys.argv = ["ckpttool", *request["argv"]]  # type: ignore[misc]  # a list of text: our own request
    from ckpttool.__main__ import main

    import_module("ckpttool.cli.main")  # which the program would import as its first step
    _stop_the_clock()
    for number, handler in _HANDLERS.items():  # whoever started us, in the background perhaps, may ignore them
        signal.signal(number, handler)
    if CARELESS in os.environ:
        os.replace = _write_over  # type: ignore[assignment]  # as the one command that is tried so calls it
    if HASTY in os.environ:
        fsync = os.fsync
        os.fsync = lambda fd: None if stat.S_ISREG(os.fstat(fd).st_mode) else fsync(fd)  # type: ignore[arg-type]  # an int
    # As root anybody may be traced; where Yama guards users from one another, a process must say by whom.
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _BY_ANYBODY)
    os.write(ready, b"x")
    # Calls that commands do not make: who counts theirs need not count these.
    while not select.select([gate], [], [], _PATIENCE)[0]:
        os.access(WAITING, os.F_OK)
    if not os.read(gate, 1):
        os._exit(0)  # the server ended
    os.access(MARK, os.F_OK)
    main()
    os._exit(0)


def _stop_the_clock() -> None:
    real = time.gmtime
    time.time = lambda: float(NOW)
    time.gmtime = lambda seconds=None: real(NOW if seconds is None else seconds)


def _write_over(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
    content = os.read(os.open(source, os.O_RDONLY, dir_fd=src_dir_fd), 1 << 20)
    half = len(content) // 2
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, dir_fd=dst_dir_fd)
    for part in (content[:half], content[half:]):
        os.write(fd, part)
    os.close(fd)


if __name__ == "__main__":
    serve()
