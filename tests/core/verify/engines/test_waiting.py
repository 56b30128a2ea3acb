"""Headers of many ranks: in one thread on a fast disk, in many on a slow one, and never in the caller's."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from ckpttool.core.domain.verdict import CheckTask, VerdictWord
from ckpttool.core.storage.fan_out import WORKERS
from ckpttool.core.verify.engines.waiting import WaitingEngine
from ckpttool.core.verify.observation import Observation
from tests.core.verify.engines.test_threads import seen, tasks
from tests.support.verifying import CKPT, task_for


def test_observations_come_in_the_order_of_the_tasks() -> None:
    observations = WaitingEngine(work=seen).run(tasks(100))
    assert [observed.task.path for observed in observations] == [str(number) for number in range(100)]


def test_a_disk_that_makes_us_wait_gets_many_threads_and_a_fast_one_gets_one() -> None:
    used: set[int] = set()
    many = threading.Barrier(3)

    def slow(task: CheckTask) -> Observation:
        used.add(threading.get_ident())
        time.sleep(0.005)
        if 100 <= int(task.path) < 100 + many.parties:
            many.wait(280)  # none comes back before as many are looked at together
        return seen(task)

    observations = list(WaitingEngine(work=slow).run(tasks(200)))
    assert [observed.task.path for observed in observations] == [str(number) for number in range(200)]
    assert len(used) <= WORKERS

    used.clear()
    task = task_for(CKPT)

    def fast(_: CheckTask) -> Observation:
        used.add(threading.get_ident())
        return seen(task)

    list(WaitingEngine(work=fast).run(tasks(200)))
    assert len(used) < WORKERS


def test_what_is_looked_at_is_what_the_task_says() -> None:
    (observed,) = WaitingEngine().run([replace(task_for(CKPT), path="gone.ckpt")])
    assert observed.report.word is VerdictWord.UNSTABLE
