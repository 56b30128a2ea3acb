"""What Linux alone has is used only where it is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conftest import TESTS
from tests.support.commands import ask, environment
from tests.support.situations import whole

if TYPE_CHECKING:
    import pytest

MACOS = """
import os, resource
for module, names in (
    (os, "sched_getaffinity posix_fadvise POSIX_FADV_SEQUENTIAL POSIX_FADV_DONTNEED RWF_NOWAIT O_DIRECT"),
    (resource, "RUSAGE_THREAD"),
):
    for name in names.split():
        delattr(module, name)
"""
"""The names that macOS lacks."""

COMMANDS = (
    "scan output",
    "resolve output",
    "verify output --level checksum",
    "verify output --level numerics",
    "prune output --keep-last 1 --grace 0",
    "seal output",
)
DAY = 24 * 3600
"""Seconds."""
ASK = """
import json, sys
from tests.support.commands import ask
print(json.dumps([vars(ask(*command.split())) for command in sys.argv[1:]]))
"""


def test_commands_answer_without_what_linux_alone_has_as_they_do_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for system in ("linux", "macos"):
        whole(tmp_path / system)
        saved = time.time() - 10.5 * DAY  # no minute, hour or day ends for it between the two
        for file in (tmp_path / system).rglob("*"):
            os.utime(file, (saved, saved))
    monkeypatch.chdir(tmp_path / "linux")
    here = json.dumps([vars(ask(*command.split())) for command in COMMANDS])
    there = subprocess.run(
        [sys.executable, "-c", MACOS + ASK, *COMMANDS],
        cwd=tmp_path / "macos",
        capture_output=True,
        env=environment({"PYTHONPATH": str(TESTS.parent)}),
        check=True,
        text=True,
    ).stdout
    answers = [json.loads(re.sub("T[0-9:]+Z", "", text)) for text in (here, there)]  # the clock's own
    assert answers[0] == answers[1]
    assert [answer["code"] for answer in answers[0]] == [0] * len(COMMANDS)
