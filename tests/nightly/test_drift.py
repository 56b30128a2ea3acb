"""A real training of two replicas, in one of which a bit flips: checkpoints tell whose, and between which steps."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code, Finding, Severity, blocking
from ckpttool.core.domain.verdict import Level, Verdict
from ckpttool.types import CheckQuestion
from tests.nightly.drift_training import FLIPPED

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="trains with torch: --nightly")


def trained(folder: Path, odd: int, at: int) -> Path:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [sys.executable, "-m", "tests.nightly.drift_training", str(folder), str(odd), str(at)]
    environment = {
        "MASTER_PORT": str(port),
        "PATH": "/usr/bin:/bin",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=600)
    return folder / "output"


def said(folder: Path, level: Level) -> dict[int, list[Finding]]:
    question = CheckQuestion(level=level, name="all")
    verdicts = [event for event in ckpttool.verify(str(folder), question) if isinstance(event, Verdict)]
    return {verdict.step or 0: list(blocking(verdict.findings)) for verdict in verdicts}


@pytest.mark.parametrize(("odd", "at"), [(1, 35), (0, 42)])
def test_of_two_replicas_that_part_both_are_named_from_the_step_on_at_which_a_bit_flipped(
    tmp_path: Path, odd: int, at: int
) -> None:
    findings = said(trained(tmp_path, odd, at), Level.CHECKSUM)
    before, after = at // 10 * 10, at // 10 * 10 + 10
    assert {step for step, found in findings.items() if found} == set(range(after, 90, 10))
    for step, found in findings.items():
        for finding in found:
            assert (finding.code, finding.severity, finding.tensor) == (
                Code.REPLICA_DRIFTED,
                Severity.SUSPECT,
                FLIPPED,
            )
            assert f"(step {before}) they still agreed" in finding.message
            assert f"(step {after}) on" in finding.message or (
                step == after and "this checkpoint on" in finding.message
            )
        assert {finding.ranks for finding in found} in (set(), {(0,), (1,)})


def test_a_training_in_which_nothing_flips_raises_no_alarm(tmp_path: Path) -> None:
    assert not any(said(trained(tmp_path, 0, 10**6), Level.CHECKSUM).values())
