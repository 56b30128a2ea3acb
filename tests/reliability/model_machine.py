"""The machine that both layouts share: what is done about a tree, and what is said of it after every step."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import ckpttool
from ckpttool.core.domain import verdict
from ckpttool.core.domain.plan import NoResumePoint
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.domain.retention import PruneOrder, Pruning, RetentionPolicy, Why
from ckpttool.types import DataQuestion, ResumeQuestion
from tests.reliability.model import WORLD, Level, Model, Save, readings, right_picks, seen_at
from tests.support.prunable_trees import Stop, files, outside_trash
from tests.support.reference_choice import evidence, lost
from tests.support.reference_retention import Kept, Wish, may_go

M = TypeVar("M", bound=Model)

Answer: TypeAlias = tuple[str, int] | None
"""The name of what is chosen, and the steps that are lost; None for nothing."""

HEALTH_MODES = ((False, False), (True, False), (False, True))
"""`--ignore-health`, `--require-health`."""

WISHES = st.builds(
    Wish,
    last=st.sampled_from([1, 1, 2, 3]),
    every=st.none() | st.integers(2, 4),
    healthy=st.integers(0, 1),
    drop_abandoned=st.booleans(),
    looked=st.sampled_from(["auto", "auto", "structure", "checksum"]),
)


@dataclass
class Tally:
    """What was tried."""

    programmes: int = 0
    steps: int = 0
    resolves: int = 0
    several: int = 0
    """Resolves to which more than one answer is right, as headers alone cannot tell."""
    or_none: int = 0
    """Those of them of which one right answer is that there is nothing."""
    loose: int = 0
    """Resolves of trees in which damage hides which run saved what: that nothing bad is chosen is all that is asked."""
    loose_none: int = 0
    """Those of them that were answered with nothing."""
    prunes: int = 0
    exact: int = 0
    """Prunes to which one answer was right, however the tree is read."""
    pruned: int = 0
    """Checkpoints that went."""
    evidence: int = 0
    """Checkpoints that stayed only as others are judged by them."""
    kills: int = 0
    """Prunes that were to be killed and had anything to do."""
    killed: int = 0
    counts_care: bool = False
    """Whether to be too careful is counted, not refused: where most is broken, doubt is not always wrong."""
    careful: int = 0
    """Resolves that chose an older good one, or nothing, where a newer is good; prunes that took too little."""


class Judged(RuleBasedStateMachine, Generic[M]):
    """A tree, what is known of it, and the judge."""

    model: M

    def __init__(self, tally: Tally, folder: Path) -> None:
        super().__init__()
        self.tally = tally
        self.tally.programmes += 1
        self.folder = tempfile.TemporaryDirectory(dir=folder)
        self.base = Path(self.folder.name)
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(os, "fsync", lambda _: None)
        self.patch.setenv("XDG_CACHE_HOME", str(self.base / "cache"))
        self.world: int | None = None
        """As declared by the user; None leaves it to the tree."""

    def teardown(self) -> None:
        self.patch.undo()
        self.folder.cleanup()

    # ---- what is said ----

    def question(self, *, sizes: bool = False) -> TreeQuestion:
        """Ask as somebody whom no earlier check told of damage: the reference knows the tree alone."""
        shutil.rmtree(self.base / "cache" / "ckpttool" / "damaged", ignore_errors=True)
        return TreeQuestion(path=str(self.model.tree.checkpoint), world_size=self.world, sizes=sizes)

    def resolved(self, level: Level, *, ignore: bool = False, require: bool = False) -> Answer:
        """Return the name of what `resolve` chooses and the steps that are lost; None where it finds nothing."""
        choice = ResumeQuestion(evidence=verdict.Level[level.upper()], ignore_health=ignore, require_health=require)
        decision = ckpttool.resolve(self.question(), choice, DataQuestion()).decision
        if isinstance(decision, NoResumePoint):
            return None
        return decision.point.checkpoint.name, decision.point.lost_steps

    def right(
        self, rows: list[Kept], level: Level, *, ignore: bool, require: bool
    ) -> list[Answer | tuple[str, None]] | None:
        """Return all right answers, without lost steps where a wrong step is told; None where nobody can count them."""
        worlds = None if self.model.is_tangled() else readings(rows, self.model.misread())
        if worlds is None:
            return None
        doubtful = self.model.doubtful() | (self.model.rotten() if level == "checksum" else set())
        doubts = {number for number, row in enumerate(rows) if (row.run, row.step) in doubtful}
        found = list[Answer | tuple[str, None]]()
        for world in worlds:
            is_wrong = any(one.step != row.step for one, row in zip(world, rows, strict=True))
            for index in right_picks(world, doubts, ignore_health=ignore, require_health=require):
                name = "" if index is None else self.model.spelled((rows[index].run, rows[index].step))
                found.append(None if index is None else (name, None) if is_wrong else (name, lost(world, world[index])))
        return list(dict.fromkeys(found))

    def judge(self, level: Level, *, ignore: bool = False, require: bool = False) -> None:
        rows = seen_at(self.model.rows(), level)
        answer = self.resolved(level, ignore=ignore, require=require)
        self.tally.resolves += 1
        asked = f"{level}, ignore_health={ignore}, require_health={require}"
        right = self.right(rows, level, ignore=ignore, require=require)
        if right is not None:
            named = right[0] if answer is None else (answer[0], None)
            if answer not in right and not (answer and named in right):
                assert self.tally.counts_care, f"{asked}: answered {answer}, right is {right} of {rows}"
                assert self.is_older(answer, right, rows), f"{asked}: answered {answer}, right is {right} of {rows}"
                self.is_good(answer, rows, asked, ignore=ignore, require=require)
                self.tally.careful += 1
                return
            several = {None if one is None else one[0] for one in right}
            self.tally.several += len(several) > 1
            self.tally.or_none += len(several) > 1 and None in several
            return
        self.tally.loose += 1
        self.tally.loose_none += answer is None
        self.is_good(answer, rows, asked, ignore=ignore, require=require)

    def is_older(self, answer: Answer, right: list[Answer | tuple[str, None]], rows: list[Kept]) -> bool:
        """Tell whether an answer is older than every right one, or nothing where there is one."""
        places = {self.model.spelled((row.run, row.step)): (row.run, row.step) for row in rows}
        named = [places[one[0]] for one in right if one is not None]
        return len(named) == len(right) and (answer is None or places[answer[0]] < min(named))

    def is_good(self, answer: Answer, rows: list[Kept], asked: str, *, ignore: bool, require: bool) -> None:
        """Nothing bad is ever chosen, whatever can be told of the rest."""
        if answer is not None:
            row = next(row for row in rows if self.model.spelled((row.run, row.step)) == answer[0])
            assert not row.damaged, f"{asked}: {answer} is damaged: {row}"
            assert row.ranks == set(range(WORLD)), f"{asked}: {answer} is not whole: {row}"
            assert ignore or not row.unhealthy, f"{asked}: {answer} is unhealthy: {row}"
            assert not (require and row.unmeasured), f"{asked}: {answer} is of unknown health: {row}"

    @invariant()
    def exactly_the_right_one_is_chosen(self) -> None:
        self.tally.steps += 1
        for ignore, require in HEALTH_MODES:
            self.judge("structure", ignore=ignore, require=require)
        self.judge("checksum")

    # ---- what is done ----

    @rule(everything=st.booleans())
    def seal(self, *, everything: bool) -> None:
        list(ckpttool.seal(ckpttool.scan(self.question(sizes=True)), "all" if everything else "latest"))
        doubtful = self.model.doubtful()
        for row in self.model.rows():
            save = row.run, row.step
            is_there = self.model.manifest(save).exists()
            if everything and save not in doubtful and not self.model.is_unsure() and not row.sealed:
                whole = row.ranks == set(range(WORLD)) and not row.damaged
                assert is_there == (whole or row.rotten), f"sealed: {is_there}, {row}"
            if is_there and row.ranks == set(range(WORLD)) and not row.damaged:
                self.model.seal(save)

    @rule(wish=WISHES, data=st.data(), days=st.sampled_from([0.0, 7.0]))
    def prune(self, wish: Wish, data: st.DataObject, days: float) -> None:
        named = self.some_name(data)
        self.judged_prune(wish, named, lambda: self.pruned(wish, named, days))

    @rule(wish=WISHES, data=st.data(), nth=st.integers(0, 999), after=st.booleans(), for_good=st.booleans())
    def prune_is_killed_and_done_again(
        self, wish: Wish, data: st.DataObject, nth: int, *, after: bool, for_good: bool
    ) -> None:
        named = self.some_name(data)
        calls = self.rehearsed(wish, named)

        def twice() -> Pruning:
            before = self.resolved("structure")
            with pytest.MonkeyPatch.context() as patch:
                Stop(patch, 1 + nth % max(1, calls), KeyboardInterrupt(), after=after, for_good=for_good)
                try:
                    return self.pruned(wish, named, 0.0)
                except KeyboardInterrupt:
                    self.tally.killed += 1
            now = self.resolved("structure")
            assert now == before or self.model.is_unsure(), f"a killed prune made {now} of {before}"
            return self.pruned(wish, named, 0.0)

        self.tally.kills += calls > 0
        self.judged_prune(wish, named, twice)

    def rehearsed(self, wish: Wish, named: Save | None) -> int:
        """Prune a copy of the tree, and return how many calls change it."""
        with tempfile.TemporaryDirectory(dir=self.base) as folder, pytest.MonkeyPatch.context() as patch:
            copy = Path(folder, "output")
            shutil.copytree(self.model.tree.output, copy)
            patch.setenv("XDG_CACHE_HOME", str(Path(folder, "cache")))
            counted = Stop(patch, sys.maxsize, KeyboardInterrupt(), after=False, for_good=False)
            where = copy / self.model.tree.checkpoint.relative_to(self.model.tree.output)
            self.pruned(wish, named, 0.0, where)
            return len(counted.calls)

    def some_name(self, data: st.DataObject) -> Save | None:
        """Draw a save to keep, where all agree about the names."""
        known = [] if self.model.is_tangled() else [(row.run, row.step) for row in self.model.rows()]
        return data.draw(st.sampled_from([None, *known]))

    def pruned(self, wish: Wish, named: Save | None, days: float, where: Path | None = None) -> Pruning:
        policy = RetentionPolicy(
            keep_last=wish.last,
            keep_every=wish.every,
            keep_healthy=wish.healthy,
            keep=() if named is None else (self.model.spelled(named),),
            drop_abandoned=wish.drop_abandoned,
        )
        level = None if wish.looked == "auto" else verdict.Level[wish.looked.upper()]
        question = self.question() if where is None else replace(self.question(), path=str(where))
        return ckpttool.prune(question, policy, PruneOrder(apply=True, level=level, trash_days=days, grace=0.0))

    def judged_prune(self, wish: Wish, named: Save | None, prune: Callable[[], Pruning]) -> None:
        rows, doubtful = self.model.rows(), self.model.doubtful()
        paths = {(row.run, row.step): self.model.paths((row.run, row.step)) for row in rows}
        before, chosen = outside_trash(files(self.model.tree)), self.resolved("structure")
        worlds = None if self.model.is_tangled() else readings(rows, self.model.misread(), doubtful)
        pruning = prune()
        self.tally.prunes += 1
        after = outside_trash(files(self.model.tree))
        assert self.resolved("structure") == chosen, f"a prune by {wish} made another choice of {chosen}, of {rows}"
        gone = [row for row in rows if paths[row.run, row.step] and paths[row.run, row.step].isdisjoint(after)]
        self.nothing_else_went(before, after, gone)
        if self.model.unfinished:
            assert not gone, f"pruned while somebody saves: {gone}"
            return
        for row in gone:
            assert row.ranks == set(range(WORLD)), f"incomplete, and went: {row}"
            assert not row.damaged, f"damaged, and went: {row}"
            assert (row.run, row.step) != named, f"named, and went: {row}"
            self.model.forget((row.run, row.step))
            self.tally.pruned += 1
        self.model.reread()
        if worlds is not None:
            self.exactly_those_went(wish, named, pruning, worlds, gone)

    def exactly_those_went(
        self, wish: Wish, named: Save | None, pruning: Pruning, worlds: list[list[Kept]], gone: list[Kept]
    ) -> None:
        """Compare what went with what may go, as the tree may rightly be read; the first reading is the truth."""
        rows = worlds[0]
        kept = {fate.checkpoint.name for fate in pruning.plan.fates if fate.why == (Why.EVIDENCE,)}
        went = {(row.run, row.step) for row in gone}
        rights = {self.to_go(wish, named, rows, world) for world in worlds}
        stayed = {save for may in rights for save in may if self.model.spelled(save) in kept} - went
        fitting = [may for may in rights if went | (stayed & may) == may]
        if not fitting and self.tally.counts_care and any(went < may for may in rights):
            self.tally.careful += 1
            return
        assert fitting, f"{wish}: went {went}, but may go {list(rights)[:2]}, of {rows}"
        self.tally.exact += len(rights) == 1
        self.tally.evidence += len(stayed)
        needed = evidence(rows, went | stayed, world=WORLD)
        idle = [row for row in rows if (row.run, row.step) in stayed and row not in needed]
        if idle and self.tally.counts_care:
            self.tally.careful += 1
            return
        assert not idle, f"{wish}: kept as evidence, of which nothing is judged: {idle}, of {rows}"

    def to_go(self, wish: Wish, named: Save | None, rows: list[Kept], world: list[Kept]) -> frozenset[Save]:
        """Return what may go, as the tree is read here."""
        both = zip(rows, world, strict=True)
        return frozenset((row.run, row.step) for row, one in both if may_go(one, world, wish, world=WORLD)) - {named}

    def nothing_else_went(self, before: dict[str, bytes], after: dict[str, bytes], gone: list[Kept]) -> None:
        """Compare every file but the trainer's records, which may name another one now, and our own."""
        own = {path for row in gone for path in before if self.belongs(path, (row.run, row.step))}
        for path, content in before.items():
            if path not in own and not self.is_record(path):
                assert after.get(path) == content, f"{path} was changed"
        assert own.isdisjoint(after), f"only a part went of {gone}"

    def belongs(self, path: str, save: Save) -> bool:
        """Tell whether a file goes with a save."""
        raise NotImplementedError

    def is_record(self, path: str) -> bool:
        """Tell whether a file is the trainer's word about what was saved last."""
        raise NotImplementedError

    @rule()
    def repair(self) -> None:
        before = outside_trash(files(self.model.tree))
        done = ckpttool.repair_meta(self.question(), ResumeQuestion(), grace=0.0, apply=True)
        after = outside_trash(files(self.model.tree))
        changed = {path for path in before | after if before.get(path) != after.get(path)}
        assert all(self.is_record(path) for path in changed), f"changed {changed}"
        self.model.reread()
        if done.checkpoint is None or self.model.unfinished:
            assert not changed
            return
        for path, named in self.records(done.checkpoint.name):
            found = after[path].decode()
            assert named in {found, json.loads(found).get("last_ckpt_file") if "{" in found else None}

    def records(self, name: str) -> list[tuple[str, str]]:
        """Return the trainer's records, and what each shall name."""
        raise NotImplementedError

    @precondition(lambda self: bool(self.model.unfinished))
    @rule()
    def sweep(self) -> None:
        for path in self.model.unfinished:
            (self.model.tree.checkpoint / path).unlink()
        self.model.unfinished = set()
