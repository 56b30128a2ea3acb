"""A disk that never answers: the check ends in time, says so, and leaves no process behind."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from ckpttool.core.errors import ExitCode
from tests.support.commands import environment
from tests.support.trees import TreeBuilder

HANGS = """
import sys, threading
from ckpttool.cli.main import run
from ckpttool.core.verify import check

look, hung = check._attempt, sys.argv[1]

def hang(task, *rest):
    if task.path.startswith(hung):
        threading.Event().wait()
    return look(task, *rest)

check._attempt = hang
sys.argv = ["ckpttool", *sys.argv[2:]]
sys.exit(run())
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("level", "hung"),
    [
        ("checksum", "rank_1/"),
        ("structure", "rank_1/"),
        # Of the sibling only the header is wanted: it must not be waited for any longer than the rest.
        ("checksum", "rank_0/llama2_7b_rank_0-5_2"),
        ("numerics", "rank_1/"),
    ],
)
def test_a_read_that_hangs_leaves_the_check_incomplete_and_the_process_ends(
    tmp_path: Path, level: str, hung: str
) -> None:
    tree = TreeBuilder(tmp_path).legacy(ranks=3).save(epoch=5, step=2).save(epoch=10, step=2)
    started = time.monotonic()
    done = subprocess.run(
        [
            *(sys.executable, "-c", HANGS, hung, "verify", str(tree.output)),
            *("--checkpoint", "all", "--level", level, "--timeout", "1", "--no-ledger", "-q"),
        ],
        env=environment(),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == ExitCode.INCOMPLETE, done.stderr
    assert "no answer from the disk within 1 s" in " ".join(done.stdout.decode().split())
    assert done.stderr == b""
    assert time.monotonic() - started < 30
