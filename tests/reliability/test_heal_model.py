"""Any order of damage, heals and interrupted heals: what is rebuilt is right to the last byte, nothing good goes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import ckpttool
from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.units import Rank
from ckpttool.core.domain.verdict import Level, Verdict
from ckpttool.core.errors import CkptToolError
from ckpttool.core.records import HEAL_JOURNAL
from ckpttool.replicas.model import Healing, HealOrder
from ckpttool.types import CheckQuestion, TreeQuestion
from tests.support.prunable_trees import WAYS, files, stopped
from tests.support.trees import TreeBuilder, weights

WORLD = 4
EPOCHS = (10, 15, 20)
EXAMPLES, NIGHTLY_EXAMPLES = 20, 300
STEPS = 12

RANKS = st.integers(0, WORLD - 1)
SAVES = st.sampled_from([20, 20, 20, 15])


class Healed(RuleBasedStateMachine):
    """A tree of copies, and what each of its shards held when it was saved.

    In each save one copy of every slice stays whole, and no wrong content lies on more than half of a slice's copies:
    where the last whole one is gone, or most agree in the same fault, nobody is left who could tell.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=folder)
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(os, "fsync", lambda _: None)
        self.patch.setenv("XDG_CACHE_HOME", f"{self.folder.name}/cache")
        self.right: dict[str, bytes] = {}

    def teardown(self) -> None:
        self.patch.undo()
        self.folder.cleanup()

    @initialize(sliced=st.booleans())
    def train(self, *, sliced: bool) -> None:
        """Save three times, on ranks of which all hold the same, or each two."""
        self.tree = TreeBuilder(Path(self.folder.name) / "tree").legacy(ranks=WORLD)
        self.slice = [rank % 2 if sliced else 0 for rank in range(WORLD)]
        for epoch in EPOCHS:
            for part in sorted(set(self.slice)):
                ranks = [rank for rank in range(WORLD) if self.slice[rank] == part]
                self.tree.save(epoch=epoch, step=2, ranks=ranks, tensors=weights(seed=100 * epoch + part))
            for rank in range(WORLD):
                path = self.path(rank, epoch)
                self.right[self.name(path)] = path.read_bytes()

    def path(self, rank: int, epoch: int) -> Path:
        return self.tree.output / self.tree.shard(rank, epoch, 2)

    def name(self, path: Path) -> str:
        return path.relative_to(self.tree.checkpoint).as_posix()

    def content(self, rank: int, epoch: int) -> bytes | None:
        path = self.path(rank, epoch)
        return path.read_bytes() if path.exists() else None

    def put(self, rank: int, epoch: int, content: bytes | None) -> bool:
        """Damage a shard; False where too few would be left that are whole."""
        copies = [other for other in range(WORLD) if self.slice[other] == self.slice[rank]]
        held = {other: self.content(other, epoch) if other != rank else content for other in copies}
        right = self.right[self.name(self.path(rank, epoch))]
        alike = sum(each is not None and each == content for each in held.values())
        if right not in held.values() or (content is not None and 2 * alike > len(copies)):
            return False
        path = self.path(rank, epoch)
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        return True

    # ---- what happens to shards ----

    @rule(
        ranks=st.sets(RANKS, min_size=1, max_size=2), epoch=SAVES, place=st.integers(0, 1 << 20), bit=st.integers(0, 7)
    )
    def flip(self, ranks: set[int], epoch: int, place: int, bit: int) -> None:
        """Flip one bit in one copy, or the same bit in two."""
        for rank in sorted(ranks):
            content = self.content(rank, epoch)
            if content:
                changed = bytearray(content)
                changed[place % len(changed)] ^= 1 << bit
                self.put(rank, epoch, bytes(changed))

    @rule(rank=RANKS, epoch=SAVES, size=st.integers(0, 400))
    def cut(self, rank: int, epoch: int, size: int) -> None:
        content = self.content(rank, epoch)
        if content is not None and size < len(content):
            self.put(rank, epoch, content[:size])

    @rule(rank=RANKS, epoch=SAVES)
    def lose(self, rank: int, epoch: int) -> None:
        self.put(rank, epoch, None)

    @rule(ranks=st.sets(RANKS, min_size=1, max_size=2), older=st.sampled_from(EPOCHS))
    def go_stale(self, ranks: set[int], older: int) -> None:
        """Bring ranks' own shards of an older step back under the newest name."""
        for rank in sorted(ranks):
            self.put(rank, EPOCHS[-1], self.right[self.name(self.path(rank, older))])

    @rule(rank=RANKS, other=RANKS, epoch=SAVES)
    def link(self, rank: int, other: int, epoch: int) -> None:
        """Let two copies be one file."""
        source = self.path(other, epoch)
        if source.exists() and rank != other and self.slice[rank] == self.slice[other]:
            content = source.read_bytes()
            if self.put(rank, epoch, content):
                self.path(rank, epoch).unlink()
                os.link(source, self.path(rank, epoch))

    # ---- what is done about it ----

    @rule(donor=st.sampled_from([None, None, *range(WORLD)]), apply=st.sampled_from([True, True, False]))
    def heal(self, donor: int | None, *, apply: bool) -> None:
        epoch = self.wrong_save()
        before = files(self.tree)
        ends_another = apply and (self.tree.checkpoint / HEAL_JOURNAL).exists()
        healing = self.healed(epoch, donor, apply=apply)
        if healing is not None and healing.applied:
            for shard in healing.healable:
                assert files(self.tree)[shard.target.path] == self.right[shard.target.path]
        elif not ends_another:  # one that was interrupted is ended, whatever becomes of this one
            assert {path: files(self.tree).get(path) for path in before} == before
        self.nothing_went(before, files(self.tree))

    @rule(nth=st.integers(1, 60), way=st.sampled_from(sorted(WAYS)))
    def heal_interrupted(self, nth: int, way: str) -> None:
        epoch = self.wrong_save()
        before = files(self.tree)
        stopped(lambda: self.healed(epoch, None, apply=True), nth, way)
        self.nothing_went(before, files(self.tree))

    def wrong_save(self) -> int:
        """The newest save in which anything is wrong, or the newest one."""
        wrong = (
            epoch
            for epoch in EPOCHS[::-1]
            if any(content != self.content(rank, epoch) for rank, content in self.rights(epoch))
        )
        return next(wrong, EPOCHS[-1])

    def healed(self, epoch: int, donor: int | None, *, apply: bool) -> Healing | None:
        order = HealOrder(checkpoint=f"{epoch}_2", donor=None if donor is None else Rank(donor), grace=0, apply=apply)
        try:
            return ckpttool.heal(TreeQuestion(path=str(self.tree.checkpoint), world_size=WORLD), order)
        except CkptToolError:
            return None

    def nothing_went(self, before: dict[str, bytes], after: dict[str, bytes]) -> None:
        """What was right still is, and what was not is right now, as it was, or kept in the trash."""
        kept = {content for path, content in after.items() if path.startswith(".ckpttool/trash/")}
        for path, right in self.right.items():
            if path in before:
                assert path in after, path
                assert after[path] == right or after[path] == before[path], path
                assert after[path] == before[path] or before[path] in kept, path
            else:
                assert after.get(path) in {None, right}, path

    @rule(epoch=SAVES)
    def verify(self, epoch: int) -> None:
        """A save that is right is not called damaged."""
        question = CheckQuestion(level=Level.CHECKSUM, name=f"{epoch}_2")
        tree = ckpttool.scan(TreeQuestion(path=str(self.tree.checkpoint), world_size=WORLD, sizes=True))
        if all(content == self.content(rank, epoch) for rank, content in self.rights(epoch)):
            for event in ckpttool.verify(tree, question):
                if isinstance(event, Verdict):
                    assert max((finding.severity for finding in event.findings), default=0) < Severity.DAMAGE

    def rights(self, epoch: int) -> Iterable[tuple[int, bytes]]:
        return ((rank, self.right[self.name(self.path(rank, epoch))]) for rank in range(WORLD))

    @invariant()
    def no_temporary_is_taken_for_a_shard(self) -> None:
        if self.right:
            ckpttool.scan(str(self.tree.checkpoint))


@pytest.mark.slow
def test_after_any_order_of_damage_and_heals_what_was_rebuilt_is_right_and_nothing_good_is_gone(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    nightly = request.config.getoption("--nightly")
    how = settings(
        max_examples=NIGHTLY_EXAMPLES if nightly else EXAMPLES,
        stateful_step_count=3 * STEPS if nightly else STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    run_state_machine_as_test(lambda: Healed(tmp_path), settings=how)  # type: ignore[arg-type]  # it only calls what it gets
