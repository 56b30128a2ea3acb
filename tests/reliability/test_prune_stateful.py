"""Saves, damage, seals, restarts and prunes in any order: the newest good checkpoint is never lost by a prune."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ckpttool.core.errors import NothingToResumeError
from tests.support.prunable_trees import Stop, pruned, resumes_from, seal
from tests.support.trees import TreeBuilder

RANKS = 2


class Training(RuleBasedStateMachine):
    """A model that knows of every save whether it is whole, and nothing of how ckpttool finds that out."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp())
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(os, "fsync", lambda _: None)
        self.patch.setenv("XDG_CACHE_HOME", str(self.base / "cache"))
        self.tree = TreeBuilder(self.base).legacy(ranks=RANKS, sparse=True)
        self.run = 0
        self.step = 0
        self.whole: dict[tuple[int, int], bool] = {}
        """By run and step: is it whole on the disk?"""

    def teardown(self) -> None:
        self.patch.undo()
        shutil.rmtree(self.base)

    def name(self, run: int, step: int) -> str:
        return f"_{run}-{step}_1" if run else f"{step}_1"

    def newest_whole(self) -> str | None:
        at = max((at for at, whole in self.whole.items() if whole), default=None)
        return None if at is None else self.name(*at)

    @initialize()
    def first(self) -> None:
        self.save()

    @rule()
    def save(self) -> None:
        self.step += 1
        self.tree.save(epoch=self.step, step=1, run=self.run)
        self.whole[self.run, self.step] = True

    @rule()
    def crash_while_saving(self) -> None:
        self.step += 1
        self.tree.save(epoch=self.step, step=1, run=self.run, ranks=[0])
        self.whole[self.run, self.step] = False

    @rule()
    def restart(self) -> None:
        self.run += 1

    @precondition(lambda self: len(self.whole) > 1)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        run, step = data.draw(st.sampled_from(sorted(self.whole)))
        path = self.tree.shard(0, step, 1, run=run)
        if (self.tree.output / path).stat().st_size > 20:
            self.tree.truncate(path, 20)
        self.whole[run, step] = False

    @rule()
    def seal(self) -> None:
        seal(self.tree)

    def expected_after(self, last: int) -> None:
        """Forget in the model what a prune may have taken: whole ones with enough whole ones after them."""
        there = {path.name for path in (self.tree.checkpoint / "rank_0").iterdir()}
        for at in sorted(self.whole):
            run, step = at
            if Path(self.tree.shard(0, step, 1, run=run)).name not in there:
                assert self.whole[at], "something damaged went"
                assert sum(whole for other, whole in self.whole.items() if other > at) >= last, "too few are newer"
                del self.whole[at]
        left = [path.name for path in (self.tree.checkpoint / "rank_1").iterdir()]
        for (run, step), whole in self.whole.items():
            if whole:
                assert Path(self.tree.shard(1, step, 1, run=run)).name in left, "one rank alone went"

    @rule(last=st.integers(1, 3))
    def prune(self, last: int) -> None:
        pruned(self.tree, last=last)
        self.expected_after(last)

    @rule(last=st.integers(1, 3), nth=st.integers(1, 60), after=st.booleans(), for_good=st.booleans())
    def prune_is_killed_and_done_again(self, last: int, nth: int, *, after: bool, for_good: bool) -> None:
        with pytest.MonkeyPatch.context() as patch:
            Stop(patch, nth, KeyboardInterrupt(), after=after, for_good=for_good)
            try:
                pruned(self.tree, last=last)
            except KeyboardInterrupt:
                assert resumes_from(self.tree) == self.newest_whole()
        pruned(self.tree, last=last)
        self.expected_after(last)

    @invariant()
    def the_newest_whole_one_is_what_we_resume_from(self) -> None:
        if self.whole:
            try:
                assert resumes_from(self.tree) == self.newest_whole()
            except NothingToResumeError:
                assert self.newest_whole() is None


Training.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestTraining = Training.TestCase

pytestmark = pytest.mark.slow
