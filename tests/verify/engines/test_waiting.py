"""Headers of many ranks: in one thread on a fast disk, in many on a slow one, and never in the caller's."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from ckpttool.domain.verdict import CheckTask, VerdictWord
from ckpttool.storage.fan_out import WORKERS
from ckpttool.verify.engines import waiting
from ckpttool.verify.engines.waiting import WaitingEngine
from ckpttool.verify.observation import Observation
from tests.verify.engines.test_threads import seen, tasks
from tests.verify.looking import CKPT, task_for


@pytest.fixture(autouse=True)
def short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "TICK_SECONDS", 0.02)


def test_looks_come_in_the_order_of_the_tasks() -> None:
    observations = WaitingEngine(work=seen).run(tasks(100))
    assert [observed.task.path for observed in observations] == [str(number) for number in range(100)]


def test_no_tasks_make_no_looks() -> None:
    assert list(WaitingEngine().run([])) == []


def test_a_disk_that_makes_us_wait_gets_many_threads_and_a_fast_one_gets_one() -> None:
    used: set[int] = set()
    lock = threading.Lock()

    def slow(task: CheckTask) -> Observation:
        with lock:
            used.add(threading.get_ident())
        time.sleep(0.005)
        return seen(task)

    started = time.monotonic()
    observations = list(WaitingEngine(work=slow).run(tasks(200)))
    assert [observed.task.path for observed in observations] == [str(number) for number in range(200)]
    assert 2 < len(used) <= WORKERS
    assert time.monotonic() - started < 200 * 0.005

    used.clear()
    task = task_for(CKPT)

    def fast(_: CheckTask) -> Observation:
        used.add(threading.get_ident())
        return seen(task)

    list(WaitingEngine(work=fast).run(tasks(200)))
    assert len(used) < WORKERS


@pytest.mark.parametrize("count", [1, 5, 60])
def test_a_header_that_never_comes_is_unreadable_and_the_rest_goes_on(count: int) -> None:
    release = threading.Event()

    def work(task: CheckTask) -> Observation:
        if int(task.path) % 20 == 0:
            release.wait(30)
        return seen(task)

    started = time.monotonic()
    try:
        observations = list(WaitingEngine(timeout=0.1, work=work).run(tasks(count)))
    finally:
        release.set()
    assert len(observations) == count
    for observed in observations:
        expected = VerdictWord.UNREADABLE if int(observed.task.path) % 20 == 0 else VerdictWord.STRUCT_OK
        assert observed.report.word is expected
    assert time.monotonic() - started < 10


def test_an_exception_inside_a_check_is_a_report() -> None:
    def work(task: CheckTask) -> Observation:
        if task.path == "2":
            raise MemoryError
        return seen(task)

    words = [observed.report.word for observed in WaitingEngine(work=work).run(tasks(4))]
    assert words == [VerdictWord.STRUCT_OK, VerdictWord.STRUCT_OK, VerdictWord.UNREADABLE, VerdictWord.STRUCT_OK]


def test_what_is_looked_at_is_what_the_task_says() -> None:
    (observed,) = WaitingEngine().run([replace(task_for(CKPT), path="gone.ckpt")])
    assert observed.report.word is VerdictWord.UNSTABLE
