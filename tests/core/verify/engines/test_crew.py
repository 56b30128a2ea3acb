"""Threads stay for the next checkpoint, and not for ever."""

from __future__ import annotations

import threading

import pytest

from ckpttool.core.domain.verdict import CheckTask
from ckpttool.core.verify.engines import waiting
from ckpttool.core.verify.engines.threads import ThreadEngine
from ckpttool.core.verify.engines.waiting import Crew, WaitingEngine
from ckpttool.core.verify.observation import Engine, Observation
from tests.core.verify.engines.test_threads import seen, tasks


def done_by(team: Crew) -> threading.Thread:
    """Have one piece of work done, and return the thread that did it."""
    by: list[threading.Thread] = []
    ready = threading.Event()

    def work() -> None:
        by.append(threading.current_thread())
        ready.set()

    team.begin(work)
    assert ready.wait(30)
    return by[0]


def wait_for(condition: threading.Thread) -> None:
    condition.join(30)
    assert not condition.is_alive()


def test_work_that_comes_soon_is_done_by_the_same_threads() -> None:
    team = Crew()
    used: set[threading.Thread] = set()
    again = 0
    for _ in range(1000):  # for on a busy machine many a thread does not wait again yet
        by = done_by(team)
        again += by in used
        used.add(by)
        if again == 25:
            return
    pytest.fail(f"of 1000 pieces of work {again} were done by a thread that had done one")


def test_a_thread_without_work_ends_and_the_next_work_gets_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "IDLE_SECONDS", 0.01)
    team = Crew()
    first = done_by(team)
    wait_for(first)
    assert done_by(team) is not first


def test_work_beside_work_that_hangs_is_begun_at_once() -> None:
    team = Crew()
    release = threading.Event()

    def hang() -> None:
        release.wait(30)

    team.begin(hang)
    try:
        assert done_by(team).daemon
    finally:
        release.set()


def test_no_work_is_lost_where_threads_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "IDLE_SECONDS", 0.0)
    team = Crew()
    left = threading.Semaphore(0)
    for _ in range(500):
        team.begin(left.release)
    assert all(left.acquire(timeout=30) for _ in range(500))


@pytest.mark.parametrize("kind", ["waiting", "threads"])
def test_checkpoints_of_one_session_share_their_threads(kind: str) -> None:
    used: set[threading.Thread] = set()

    def work(task: CheckTask) -> Observation:
        used.add(threading.current_thread())
        return seen(task)

    engine: Engine = WaitingEngine(work=work) if kind == "waiting" else ThreadEngine(jobs=1, timeout=60, work=work)
    without_a_new_one = 0
    for _ in range(1000):
        before = len(used)
        assert len(list(engine.run(tasks(3)))) == 3
        without_a_new_one += len(used) == before
        if without_a_new_one == 25:
            return
    pytest.fail(f"of 1000 checkpoints {without_a_new_one} began no thread")
