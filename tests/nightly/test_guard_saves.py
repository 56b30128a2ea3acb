"""What a training saves holds against everything: kills, errors at every call, full disks; and the real torchdata."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import ckpttool
from ckpttool.core.domain.plan import NoResumePoint
from ckpttool.core.domain.question import CheckQuestion, TreeQuestion
from ckpttool.core.domain.verdict import Level, VerdictWord
from ckpttool.core.errors import CkptToolError
from tests.guard.resumable import Training
from tests.nightly.borrowing import told, trainer_python
from tests.reliability.disks import PAGE, in_memory, why_not
from tests.reliability.traced import works

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="kills and mounts for minutes: --nightly")

STEPS, KILLS = 1200, 100


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trainer_python(tmp_path_factory.mktemp("torchdata") / "venv", "torchdata==0.11.0")


@pytest.mark.parametrize("stop", [18, 20], ids=["in an epoch", "at its end"])
@pytest.mark.parametrize(("workers", "data"), [(0, "plain"), (0, "seeded"), (2, "seeded")])
def test_with_torchdatas_loader_a_resumed_training_sees_the_same_batches(
    workers: int, data: str, stop: int, python: str, tmp_path: Path
) -> None:
    def trained(folder: str, steps: int) -> dict[str, Any]:
        done: dict[str, Any] = told(
            python, "torchdata_saves.py", str(tmp_path / folder), str(workers), data, str(steps)
        )
        return done

    whole = trained("whole", 30)
    trained("stopped", stop)
    resumed = trained("stopped", 30)
    assert resumed["from"] == (17 if stop == 18 else 20)
    assert (resumed["order"], resumed["bits"]) == (whole["order"][resumed["from"] :], whole["bits"])


def test_random_numbers_of_workers_are_in_no_save(python: str, tmp_path: Path) -> None:
    runs = [told(python, "torchdata_saves.py", str(tmp_path), "2", "plain", steps) for steps in ("18", "30")]
    assert (runs[1]["from"], runs[1]["order"][0] == runs[0]["order"][17]) == (17, False)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_hundred_kills_change_no_bit(seed: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.nightly.killed_training", str(tmp_path), str(STEPS), str(KILLS), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
    assert (done.returncode, done.stdout.strip()) == (0, str(KILLS)), done.stderr[-2000:]
    torch.set_num_threads(1)
    training = Training()
    list(training.steps(training.resume(Path("/nowhere"), fresh_ok=True), STEPS))
    assert (tmp_path / "order.bits").read_text(encoding="utf-8") == repr(training.bits())
    assert set((tmp_path / "order").read_text(encoding="utf-8").splitlines()) == set(training.order)


def test_whatever_happens_at_whichever_call_of_a_save_the_training_goes_on_in_every_bit(tmp_path: Path) -> None:
    if (reason := works()) is not None:
        pytest.skip(reason)
    command = [sys.executable, "-m", "tests.nightly.stopped_saves", str(tmp_path), "everything"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
    assert done.returncode == 0, done.stderr[-2000:]
    told_of = json.loads(done.stdout)
    assert told_of["wrong"] == []
    assert told_of["tried"] > 3 * told_of["calls"] > 100


@pytest.fixture
def saved_first(tmp_path: Path) -> Training:
    if (reason := why_not(tmp_path, images=False)) is not None:
        pytest.skip(reason)
    torch.set_num_threads(1)
    training = Training()
    list(training.steps(training.resume(Path("/nowhere"), fresh_ok=True), 2))
    return training


def test_however_little_room_a_disk_has_the_save_before_is_whole(saved_first: Training, tmp_path: Path) -> None:
    """A save takes 19 pages and a few for its records: from one page of room to all that it needs."""
    outcomes = set()
    for spare in range(1, 40):
        with in_memory(tmp_path / "disk", pages=140, inodes=100) as disk:
            writer = saved_first.writer(disk, embedding="embed.weight", health_threshold=1e9)
            first = writer.save(step=2)
            free = int(subprocess.run(["stat", "-f", "-c", "%a", disk], capture_output=True, check=True).stdout)
            (disk / "filler").write_bytes(bytes(max(0, free - spare) * PAGE))
            try:
                second: str | None = writer.save(step=4)
            except CkptToolError:
                second = None
            question = TreeQuestion(path=str(disk))
            decision = ckpttool.resolve(question).decision
            assert not isinstance(decision, NoResumePoint)
            assert decision.point.checkpoint.name in {first, second or "1_4"}
            check = CheckQuestion(level=Level.CHECKSUM, name="all")
            words = {verdict.word for verdict in ckpttool.verify(question, check).answer().verdicts}
            assert words <= {VerdictWord.VERIFIED, VerdictWord.AGREED, VerdictWord.STRUCT_OK}
            assert list(disk.rglob("*.tmp")) == []
            outcomes.add(second)
    assert outcomes == {None, "1_4"}
