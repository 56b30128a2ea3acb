"""A part's lines stay whole, whatever its reader reads at once; one who has left is told of."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
import tty
from pathlib import Path

SENDER = """
from ckpttool.cli import output
for number in range(200):
    output.line(b"%255d\\n" % number)
"""


def sent(read: int, write: int) -> list[bytes]:
    """Return what a reader gets at each call that is slower than the sender."""
    sender = subprocess.Popen([sys.executable, "-c", SENDER], stdout=write)
    os.close(write)
    pieces = []
    try:
        while piece := os.read(read, 4095):  # as many as Open MPI reads at once
            pieces.append(piece)
            time.sleep(0.001)
    except OSError:
        pass  # so a terminal ends
    assert sender.wait() == 0
    os.close(read)
    return pieces


def test_no_piece_that_is_read_of_a_pipe_ends_within_a_line() -> None:
    pieces = sent(*os.pipe())
    assert [int(line) for line in b"".join(pieces).splitlines()] == [*range(200)]
    assert {len(piece) % 256 for piece in pieces} == {0}


def test_all_lines_come_through_a_terminal_as_they_are() -> None:
    read, write = pty.openpty()
    tty.setraw(write)
    pieces = sent(read, write)
    assert [int(line) for line in b"".join(pieces).splitlines()] == [*range(200)]


def test_a_reader_who_has_left_is_an_error() -> None:
    read, write = os.pipe()
    os.close(read)
    told = subprocess.run([sys.executable, "-c", SENDER], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert "WriteFailedError: the result could not be written: Broken pipe" in told.stderr


def test_a_file_takes_all_lines(tmp_path: Path) -> None:
    with (tmp_path / "lines").open("wb") as file:
        subprocess.run([sys.executable, "-c", SENDER], stdout=file, check=True)
    assert (tmp_path / "lines").stat().st_size == 200 * 256
