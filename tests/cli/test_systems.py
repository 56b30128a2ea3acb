"""What Linux alone has is used only where it is there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import MODULE, environment
from tests.support.situations import whole

MACOS = """
import os, resource, runpy, sys
for module, names in (
    (os, "sched_getaffinity posix_fadvise POSIX_FADV_SEQUENTIAL POSIX_FADV_DONTNEED RWF_NOWAIT O_DIRECT"),
    (resource, "RUSAGE_THREAD"),
):
    for name in names.split():
        delattr(module, name)
sys.argv[0] = "ckpttool"
runpy.run_module("ckpttool", run_name="__main__")
"""
"""`python -m ckpttool` without the names that macOS lacks."""


@pytest.mark.parametrize(
    "command",
    [
        "scan output",
        "resolve output",
        "verify output --level checksum",
        "verify output --level numerics",
        "seal output",
        "prune output --keep-last 1 --grace 0",
    ],
)
def test_a_command_answers_without_what_linux_alone_has_as_it_does_with_it(command: str, tmp_path: Path) -> None:
    answers = []
    for system, program in (("linux", MODULE), ("macos", (sys.executable, "-c", MACOS))):
        whole(tmp_path / system)
        done = subprocess.run(
            [*program, *shlex.split(command)],
            cwd=tmp_path / system,
            capture_output=True,
            env=environment(),
            check=False,
        )
        answers.append((done.returncode, re.sub(rb"T[0-9:]+Z", b"", done.stdout), done.stderr))  # the clock's own
    assert answers[0] == answers[1]
    assert answers[0][0] == 0
