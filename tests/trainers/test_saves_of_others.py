"""What saves of other trainers are like and MindFormers' are not, on the toy's tree: each answer is heard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.checkpoint import Checkpoint, Content, Inventory
from ckpttool.core.domain.finding import Code, damage
from ckpttool.core.domain.retention import RetentionPolicy
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.storage.base import Storage
from ckpttool.trainers import registry
from ckpttool.trainers.base import Members, ScanOptions
from ckpttool.trainers.listing import Listing
from ckpttool.types import ResumeQuestion, TreeQuestion
from tests.support.answers import chosen, codes, plan, reasons, verdict
from tests.trainers import toy

Changed = Callable[[Checkpoint], Checkpoint]


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TRAINERS", (toy.TOY, *registry.TRAINERS))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two whole saves."""
    toy.save(tmp_path / "saves", 20)
    toy.save(tmp_path / "saves", 30)
    return tmp_path / "saves"


@pytest.fixture
def newest_is(monkeypatch: pytest.MonkeyPatch) -> Callable[[Changed], None]:
    """Lets the scan say something else of the newest save."""
    scan = toy.ToyLayout.scan

    def install(changed: Changed) -> None:
        def other(self: toy.ToyLayout, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
            inventory = scan(self, storage, listing, options)
            *older, newest = inventory.checkpoints
            return replace(inventory, checkpoints=(*older, changed(newest)))

        monkeypatch.setattr(toy.ToyLayout, "scan", other)

    return install


@pytest.fixture
def closer_is(monkeypatch: pytest.MonkeyPatch) -> Callable[[Changed], None]:
    """Lets the closer look at a save tell something."""

    def install(changed: Changed) -> None:
        monkeypatch.setattr(toy.ToyLayout, "with_own_records", lambda _self, _storage, checkpoint: changed(checkpoint))

    return install


def is_whole(tree: Path, name: str) -> bool:
    return codes(verdict(tree, name).findings) == set()


def test_weights_alone_are_passed_over_unless_asked_for(tree: Path, newest_is: Callable[[Changed], None]) -> None:
    newest_is(lambda newest: replace(newest, content=Content.WEIGHTS_ONLY))
    assert chosen(plan(tree)) == ("step-20", 20)
    assert codes(reasons(plan(tree), "step-30")) == {Code.WEIGHTS_ONLY}
    assert is_whole(tree, "step-30")
    assert chosen(plan(tree, choice=ResumeQuestion(allow_weights_only=True))) == ("step-30", 30)


@pytest.mark.parametrize("content", [Content.WEIGHTS_ONLY, Content.FULL])
def test_nothing_goes_because_weights_alone_are_newer(
    tree: Path, newest_is: Callable[[Changed], None], monkeypatch: pytest.MonkeyPatch, content: Content
) -> None:
    monkeypatch.setattr(toy.ToyLayout, "members", lambda _self, save: Members(paths=(save.name,)))
    newest_is(lambda newest: replace(newest, content=content))
    answer = ckpttool.prune(TreeQuestion(path=str(tree)), RetentionPolicy(keep_last=1))
    going = [checkpoint.name for checkpoint in answer.plan.going]
    assert going == ([] if content is Content.WEIGHTS_ONLY else ["step-20"])


def test_what_a_closer_look_misses_counts(tree: Path, closer_is: Callable[[Changed], None]) -> None:
    asked: set[str] = set()

    def with_own_records(checkpoint: Checkpoint) -> Checkpoint:
        asked.add(checkpoint.name)
        if checkpoint.name != "step-30":
            return checkpoint
        lost = damage(Code.SHARD_MISSING, "its index names it", path="step-30/__9_0.toy")
        return replace(checkpoint, findings=(*checkpoint.findings, lost))

    toy.save(tree, 10)
    closer_is(with_own_records)
    assert chosen(plan(tree)) == ("step-20", 20)
    assert codes(reasons(plan(tree), "step-30")) == {Code.SHARD_MISSING}
    assert asked == {"step-30", "step-20"}


@pytest.mark.parametrize(("beyond", "whole"), [(0, True), (1, False)])
def test_a_short_shard_is_damage(tree: Path, closer_is: Callable[[Changed], None], beyond: int, *, whole: bool) -> None:
    def with_own_records(checkpoint: Checkpoint) -> Checkpoint:
        sizes = {shard.path: (tree / shard.path).stat().st_size + beyond for shard in checkpoint.shards}
        shards = (replace(shard, least=ByteCount(sizes[shard.path])) for shard in checkpoint.shards)
        return replace(checkpoint, shards=tuple(shards))

    closer_is(with_own_records)
    assert is_whole(tree, "step-30") is whole
