"""Runs many command lines, each in a process of its own that is watched: time, memory, and what it tried to start.

A process is forked from one that has imported ckpttool already: an interpreter a case would take most of the time.
`fork` sets the largest memory of a process to what it has at that moment, so it is each case's own.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

from tests.reliability.fork_server import ForkServer, answer, import_everything, redirect

HUNG_CPU_SECONDS = 40
"""Of its own time until a case counts as hung; some ten times what the slowest one takes."""
HUNG_SECONDS = 900
"""Of wall time, for what waits for ever: a machine that has other work to do may take long for a case."""
MOST_ADDRESSES = 2 << 30
"""No case comes near it: a runaway must not take the machine's memory before it is told."""
STARTED_SOMETHING = 99
WROTE_OUTSIDE = 98

STARTERS = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.forkpty",
    "os.startfile",
    "pty.spawn",
    "subprocess.Popen",
    "pickle.find_class",
    "socket.connect",
    "socket.bind",
)
"""Audit events of which none belongs to a question about files."""

CHANGERS: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.mkdir": ((0, 2),),
    "os.truncate": ((0, None),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
}
"""Audit events of what changes something: where among the arguments a path stands, and the folder that it is below."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True, kw_only=True)
class Done:
    """How a command line ended."""

    code: int
    """Negative: killed by that signal."""
    stdout: bytes
    stderr: bytes
    peak_mebibytes: float
    cpu_seconds: float
    """User and system, without the start of the interpreter."""

    @property
    def hung(self) -> bool:
        return self.code in {-signal.SIGALRM, -signal.SIGXCPU}

    @property
    def said(self) -> str:
        """Everything that it said, blanks and line ends as one blank: tables break lines where they like."""
        return " ".join((self.stdout + b" " + self.stderr).decode("utf-8", "backslashreplace").split())


@dataclass(frozen=True, kw_only=True)
class Order:
    """A command line for the server."""

    arguments: list[str]
    folder: str
    environment: dict[str, str]
    stdin: str
    stdout: str
    stderr: str


class Runner(ForkServer):
    """The server, and how to ask it. It runs one process at a time."""

    def __init__(self, scratch: Path, program: Sequence[str] = ("-m", "tests.reliability.hostile_runner")) -> None:
        super().__init__(program)
        self._scratch = scratch

    def run(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        stdin: Path | str = os.devnull,
    ) -> Done:
        """Run `ckpttool ARGUMENTS…` in a folder."""
        out, err = self._scratch / "stdout", self._scratch / "stderr"
        order = Order(
            arguments=list(arguments),
            folder=str(folder),
            environment=dict(environment or {}),
            stdin=str(stdin),
            stdout=str(out),
            stderr=str(err),
        )
        ended = json.loads(self.ask(json.dumps(asdict(order))))
        return Done(stdout=out.read_bytes(), stderr=err.read_bytes(), **ended)


def serve() -> None:
    """Do what comes in, one order a line, until nothing more comes."""
    sys.dont_write_bytecode = True
    import_everything()
    for line in sys.stdin:
        order = Order(**json.loads(line))
        child = os.fork()
        if not child:
            _become(order)
        _, status, used = os.wait4(child, 0)
        ended = {
            "code": os.waitstatus_to_exitcode(status),
            "peak_mebibytes": used.ru_maxrss / 1024,
            "cpu_seconds": used.ru_utime + used.ru_stime,
        }
        answer(json.dumps(ended))


def _become(order: Order) -> NoReturn:
    """Be the program, and never come back."""
    try:
        os.chdir(order.folder)
        os.environ.update(order.environment)
        redirect(order.stdin, order.stdout, order.stderr)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES))
        resource.setrlimit(resource.RLIMIT_CPU, (HUNG_CPU_SECONDS, HUNG_CPU_SECONDS + 5))
        signal.alarm(HUNG_SECONDS)  # not handled, so it ends even a call that waits for ever
        sys.argv = ["ckpttool", *order.arguments]
        sys.addaudithook(_no_starting)
        sys.addaudithook(_fence(os.path.realpath(order.folder)))
        from ckpttool.__main__ import main

        main()
    finally:
        os._exit(97)


def _no_starting(event: str, arguments: tuple[Any, ...]) -> None:
    if event in STARTERS:
        os.write(2, f"started something: {event} {arguments!r:.200}".encode())
        os._exit(STARTED_SOMETHING)


def _fence(folder: str) -> Callable[[str, tuple[Any, ...]], None]:
    """Return a hook that ends the process where it is about to change something that is not below a folder."""

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and arguments[2] & WRITING:
            where = [_really(arguments[0], None, followed=True)]
        else:
            where = [
                _really(arguments[at], None if below is None else arguments[below], followed=event == "os.truncate")
                for at, below in CHANGERS.get(event, ())
            ]
        for path in where:
            if not f"{path}/".startswith((f"{folder}/", "/dev/null/")):
                os.write(2, f"changes {path!r:.200} by {event}".encode())
                os._exit(WROTE_OUTSIDE)

    return look


def _really(path: object, below: int | None, *, followed: bool) -> str:
    """Return where a path of an audit event leads; what is opened is followed to its end, a name is not."""
    if isinstance(path, int):  # it was opened before, and looked at then
        return os.devnull
    text = os.fsdecode(cast("str", path))
    if below is not None and below >= 0:
        text = os.path.join(os.readlink(f"/proc/self/fd/{below}"), text)  # noqa: PTH118, PTH115  no pathlib in a hook
    if followed:
        return os.path.realpath(text)
    folder, name = os.path.split(os.path.abspath(text))  # noqa: PTH100  as above
    return os.path.join(os.path.realpath(folder), name)  # noqa: PTH118  as above


if __name__ == "__main__":
    serve()
