"""What every engine promises, whoever runs the tasks: a new one is one line more in `ENGINES`."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ckpttool.core.domain.verdict import CheckTask, Level, VerdictWord
from ckpttool.core.storage import STORAGES
from ckpttool.core.verify.check import check
from ckpttool.core.verify.engines.threads import ThreadEngine
from ckpttool.core.verify.engines.waiting import WaitingEngine
from ckpttool.core.verify.observation import Engine, Observation
from tests.core.verify.engines.test_threads import seen, tasks
from tests.support.memory_storage import Bucket, MemoryStorage
from tests.support.verifying import CKPT, SAFETENSORS, task_for

Work = Callable[[CheckTask], Observation]

ENGINES: dict[str, Callable[[Work, float], Engine]] = {
    "waiting": lambda work, timeout: WaitingEngine(timeout=timeout, work=work),
    "one thread": lambda work, timeout: ThreadEngine(jobs=1, timeout=timeout, work=work),
    "threads": lambda work, timeout: ThreadEngine(jobs=3, timeout=timeout, work=work),
}


@pytest.fixture(params=[*ENGINES.values()], ids=[*ENGINES])
def make(request: pytest.FixtureRequest) -> Callable[[Work, float], Engine]:
    made: Callable[[Work, float], Engine] = request.param
    return made


def words(engine: Engine, todo: list[CheckTask]) -> dict[str, VerdictWord]:
    observations = list(engine.run(todo))
    assert len(observations) == len(todo)
    return {observed.task.path: observed.report.word for observed in observations}


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_every_task_is_observed_once(make: Callable[[Work, float], Engine], count: int) -> None:
    assert words(make(seen, 60), tasks(count)) == {str(number): VerdictWord.STRUCT_OK for number in range(count)}


def test_a_mistake_of_ours_about_one_shard_takes_no_other_s_report(make: Callable[[Work, float], Engine]) -> None:
    def work(task: CheckTask) -> Observation:
        if task.path == "2":
            raise ZeroDivisionError("ours")
        return seen(task)

    found = words(make(work, 60), tasks(4))
    assert {path for path, word in found.items() if word is VerdictWord.UNREADABLE} == {"2"}


@pytest.mark.parametrize("count", [1, 5, 30])
def test_a_disk_that_never_answers_is_unreadable_and_the_rest_goes_on(
    make: Callable[[Work, float], Engine], count: int
) -> None:
    release = threading.Event()

    def work(task: CheckTask) -> Observation:
        if int(task.path) % 20 == 0:
            release.wait(30)
        return seen(task)

    try:
        found = words(make(work, 0.1), tasks(count))
    finally:
        release.set()
    assert {path for path, word in found.items() if word is VerdictWord.UNREADABLE} == {"0", "20"} & found.keys()
    assert len({*found.values()}) == min(count, 2)


@pytest.mark.parametrize("level", Level)
def test_a_shard_on_no_disk_is_observed_as_one_on_a_disk(
    make: Callable[[Work, float], Engine], level: Level, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task says by its root where it is read, so whoever runs it can open it."""
    folder = tmp_path / "tree"
    folder.mkdir()
    for shard in (CKPT, SAFETENSORS):
        shutil.copy(shard, folder / shard.name)
    bucket = Bucket.copied(folder)
    monkeypatch.setitem(STORAGES, "memory", lambda root: MemoryStorage(root, bucket))
    on_disk = [replace(task_for(folder / shard.name, level), listed=None) for shard in (CKPT, SAFETENSORS)]
    elsewhere = [replace(task, root="memory://tree") for task in on_disk]
    found = [
        {observed.task.path: replace(observed.report, stamp=None) for observed in make(check, 60).run(todo)}
        for todo in (on_disk, elsewhere)
    ]
    assert found[0] == found[1]
    assert {report.word for report in found[0].values()} <= {VerdictWord.STRUCT_OK, VerdictWord.VERIFIED}
