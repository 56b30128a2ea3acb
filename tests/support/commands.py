"""Ask ckpttool as a user does: in this process where that is enough, as a program where it is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from ckpttool.cli.main import COMMANDS, _Group, app
from ckpttool.core.commands.headings import exits_of
from tests.support.json_schemas import problems_of

MODULE = (sys.executable, "-m", "ckpttool")


@cache
def _built(name: str, build: Callable[..., object] = _Group.get_command) -> object:
    return build(None, None, name)


# A command is built once in a process, and not once a question: that takes as long as most answers.
setattr(_Group, "get_command", lambda _group, _context, name: _built(name))  # noqa: B010  no method, for mypy


class Said:
    """What came out."""

    def __init__(self, code: int, stdout: str, stderr: str) -> None:
        self.code = code
        self.stdout = stdout
        self.stderr = stderr

    @property
    def exit_code(self) -> int:
        """The exit code, as tests of a whole tree call it."""
        return self.code

    @property
    def output(self) -> str:
        """All that was said, wherever."""
        return self.stdout + self.stderr

    @cached_property
    def json(self) -> dict[str, Any]:
        """The result as JSON: one document that keeps to its schema, and nothing beside it."""
        document = json.loads(self.stdout)
        assert isinstance(document, dict)
        assert problems_of(document) == []
        return document


def ask(*arguments: str, env: Mapping[str, str] | None = None, stdin: str | None = None) -> Said:
    """Run a command line in this process."""
    done = CliRunner().invoke(app, list(arguments), input=stdin, env=env)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Said(done.exit_code, done.stdout, done.stderr)


@cache
def known_exits() -> dict[str, Mapping[int, str]]:
    """By command, and by one in a group that has its own: the codes with which it ends, and what each means there."""
    group: Any = get_command(app)
    found: dict[str, Mapping[int, str]] = {}
    for name in COMMANDS:
        command = group.get_command(None, name)
        found[name] = exits_of(command)
        for word, single in getattr(command, "commands", {}).items():
            if exits_of(single):
                found[f"{name} {word}"] = exits_of(single)
    return found


def shard_words(said: Said) -> set[str]:
    """The verdicts on the shards of all checkpoints that `verify` told of as JSON."""
    return {shard["verdict"] for each in json.loads(said.stdout)["checkpoints"] for shard in each["shards"]}


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of the tests, and what a test adds to it."""
    return {**os.environ, **(extra or {})}


def run(*arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Said:
    """Run a command line as a program of its own."""
    done = subprocess.run(
        [*MODULE, *arguments],
        cwd=cwd,
        env=environment(env),
        capture_output=True,
        check=False,
        timeout=60,
    )
    return Said(done.returncode, done.stdout.decode(), done.stderr.decode())
