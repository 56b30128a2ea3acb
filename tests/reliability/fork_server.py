"""What the servers share whose forks become ckpttool: to be asked line by line, and to have imported everything."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO

import ckpttool

ROOT = Path(__file__).resolve().parent.parent.parent
_END_SECONDS = 60


class ForkServer:
    """A process that answers every line with a line."""

    def __init__(self, program: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Start `python PROGRAM…`, with these variables besides our own."""
        self._name = " ".join(program)
        self._process = subprocess.Popen(
            [sys.executable, *program],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )

    def ask(self, line: str) -> str:
        """Send one line and return the answer's."""
        pipe_in: IO[str] | None = self._process.stdin
        pipe_out: IO[str] | None = self._process.stdout
        assert pipe_in is not None
        assert pipe_out is not None
        pipe_in.write(f"{line}\n")
        pipe_in.flush()
        answer = pipe_out.readline()
        assert answer, f"the server has died: {self._name}"
        return answer.strip()

    def close(self) -> None:
        """Let it end; it ends where its input does."""
        try:
            self._process.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise


def answer(what: object) -> None:
    """Send one line back."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def redirect(stdin: str, stdout: str, stderr: str) -> None:
    """Give a fork input and output of its own, and leave no other descriptor of them behind."""
    new = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, (path, flags) in enumerate(((stdin, os.O_RDONLY), (stdout, new), (stderr, new))):
        opened = os.open(path, flags, 0o666)
        os.dup2(opened, number)
        os.close(opened)


def import_everything() -> None:
    """Import what a command may import, at once or late, so that a fork only does its work.

    No command imports `ckpttool.guard` but to replay a capture: it works inside a training, with torch.
    """
    import filelock
    import rich.table
    import safetensors
    import xxhash
    import yaml

    assert all((filelock, rich.table, safetensors, xxhash, yaml))
    for room in pkgutil.iter_modules(ckpttool.__path__, "ckpttool."):
        if room.name not in {"ckpttool.__main__", "ckpttool.guard", "ckpttool.guide"}:
            import_module(room.name)
            for module in pkgutil.walk_packages(getattr(sys.modules[room.name], "__path__", ()), f"{room.name}."):
                import_module(module.name)
