"""No file makes the process crash, hang, take more than 256 MB, or run code."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ckpttool.core.errors import ExitCode
from tests.support.hostile_files import CORPUS

MOST_MEBIBYTES = 256
MOST_SECONDS = 60
"""Of a processor: thrice what the slowest takes where others keep the machine busy; what hangs takes more."""

ANSWERS = {ExitCode.OK, ExitCode.DAMAGE, ExitCode.INCOMPLETE, ExitCode.UNSAFE}

# As `python -m ckpttool`, and before it is left the largest memory that it had: `ru_maxrss` would count the memory of
# the process that started it, too.
PROGRAM = """
import os, sys
from ckpttool.__main__ import main
leave = os._exit
def tell(code):
    with open("/proc/self/status") as status:
        peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
    os.write(2, f"peak {int(peak) // 1024}".encode())
    leave(code)
os._exit = tell
try:
    main()
except SystemExit as left:
    tell(left.code or 0)
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CORPUS)
@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_a_hostile_file_is_answered_soon_and_in_little_memory(tmp_path: Path, name: str, command: str) -> None:
    path = tmp_path / name
    CORPUS[name](path)
    options = ["--level", "numerics", "--no-ledger"] if command == "verify" else ["--stats"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, command, str(path), *options],
        capture_output=True,
        text=True,
        timeout=5 * MOST_SECONDS,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode in ({ExitCode.UNSAFE} if "pickle" in name else ANSWERS), done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < MOST_SECONDS  # of its own: a busy machine is no bug
    assert int(done.stderr.rpartition("peak ")[2]) <= MOST_MEBIBYTES
    assert len(done.stdout) < 100_000
    assert not any(ord(character) < 32 and character != "\n" for character in done.stdout)
    assert [one for one in tmp_path.iterdir() if one.name.endswith(".ran")] == []
