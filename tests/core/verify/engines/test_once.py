"""What was read for one question is not read again for the next, unless it changed meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.verdict import CheckTask, Level
from ckpttool.core.storage.local import LocalStorage
from ckpttool.core.verify.engines import threads
from ckpttool.core.verify.engines.threads import ThreadEngine
from ckpttool.core.verify.engines.waiting import OnceEngine, SavedResults
from ckpttool.core.verify.observation import Observation
from ckpttool.core.verify.plan import plan_checks
from ckpttool.core.verify.report import check_and_judge
from ckpttool.types import ReportQuestion, ResumeQuestion, TreeQuestion
from tests.support.trees import TreeBuilder


class Noting:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._engine = ThreadEngine(jobs=1, timeout=60, work=check_and_judge)

    def run(self, tasks: Sequence[CheckTask]) -> Iterator[Observation]:
        self.asked += [task.path for task in tasks]
        return self._engine.run(tasks)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    builder = TreeBuilder(tmp_path).legacy(ranks=2)
    for epoch in (1, 2, 3):
        builder.save(epoch=epoch, step=1)
    return builder.checkpoint


def test_a_file_that_changed_or_went_since_is_read_again_and_no_other_is(tree: Path) -> None:
    (save, *_) = ckpttool.scan(str(tree)).inventory.checkpoints
    tasks = plan_checks(str(tree), save, Level.CHECKSUM)
    kept, noting, done = SavedResults(), Noting(), list[CheckTask]()
    engine = OnceEngine(noting, kept, stamp=LocalStorage(str(tree)).stamp, done=done.append)
    first = {observed.task.path: observed for observed in engine.run(tasks)}
    assert {observed.task.path: observed for observed in engine.run(tasks)} == first
    assert (sorted(noting.asked), tuple(done)) == (sorted(first), tuple(tasks))
    changed, gone = (tree / task.path for task in tasks)
    os.utime(changed, ns=(1, 1))
    gone.unlink()
    noting.asked.clear()
    assert len(list(engine.run(tasks))) == 2
    assert sorted(noting.asked) == sorted(first)


def test_what_is_read_when_it_takes_no_more_is_not_kept(tree: Path) -> None:
    (save, *_) = ckpttool.scan(str(tree)).inventory.checkpoints
    kept = SavedResults()
    kept.takes = False
    tasks = plan_checks(str(tree), save, Level.CHECKSUM)
    assert len(list(OnceEngine(Noting(), kept, stamp=LocalStorage(str(tree)).stamp).run(tasks))) == len(tasks)
    assert kept.seen == {}


@pytest.mark.parametrize("level", [Level.CHECKSUM, Level.NUMERICS])
def test_a_report_reads_each_shard_once_though_it_asks_three_verbs(
    tree: Path, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = threads.ThreadEngine.run

    def noted(self: ThreadEngine, tasks: Sequence[CheckTask]) -> Iterator[Observation]:
        read.extend(task.path for task in tasks)
        return real(self, tasks)

    monkeypatch.setattr(threads.ThreadEngine, "run", noted)
    choice = ResumeQuestion(evidence=level)
    ckpttool.report(ReportQuestion(tree=TreeQuestion(path=str(tree)), choice=choice, keep_last=1))
    assert len(read) == len(set(read)) == 6
