"""Machines that each keep their part of a tree fresh, and one watch that judges all parts."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.question import CheckQuestion, TreeQuestion
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import UsageError, WriteFailedError
from ckpttool.core.verbs import verifying
from ckpttool.core.verbs.scanning import Tree
from ckpttool.core.verify.session import Session
from ckpttool.core.write import files
from ckpttool.nodes.model import PartQuestion, Split
from ckpttool.nodes.verbs import part
from ckpttool.watch import reading as watch_reading
from ckpttool.watch.model import WatchRule
from tests.support.trees import flip
from tests.support.watched_trainings import RANKS, Trainer, Watching


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no disk: each poll writes parts and states."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


class OnNodes(Trainer):
    """The same trainer, with as many ranks on each of some machines."""

    kept = 2

    def __init__(self, base: Path, seed: int, *, of: int) -> None:
        self.base, self.of = base, of
        super().__init__(base, seed)
        for rank in range(RANKS):
            (self.on(rank * of // RANKS) / f"rank_{rank}").mkdir(parents=True)

    def on(self, node: int) -> Path:
        """Return the tree of one machine."""
        return self.base / f"node-{node}" / "checkpoint"

    def file(self, rank: int, number: int) -> Path:
        return self.on(rank * self.of // RANKS) / super().file(rank, number).relative_to(self.root)


class Node(Watching):
    """The watch of one machine, with that machine's name."""

    def __init__(self, trainer: OnNodes, number: int, **more: object) -> None:
        self.name = f"node-{number}"
        root = str(trainer.on(number))
        part = PartQuestion(
            tree=TreeQuestion(path=root),
            check=CheckQuestion(),
            out=f"{trainer.base}/parts/",
            part=f"{number + 1}/{trainer.of}",
            split=Split.NONE,
        )
        super().__init__(Path(root), trainer.base / f"state-{number}", part=part, **more)  # type: ignore[arg-type]

    def poll(self, trainer: Trainer | None = None, times: int = 1) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "gethostname", lambda: self.name)
            super().poll(trainer, times)


class Fleet:
    """All of them, or the first so many."""

    def __init__(self, base: Path, *, of: int = 2, there: int | None = None, **more: object) -> None:
        self.trainer = OnNodes(base, seed=5, of=of)
        self.nodes = {number: Node(self.trainer, number, **more) for number in range(of if there is None else there)}
        (base / "parts").mkdir(exist_ok=True)
        self.judge = Watching(base / "parts", base / "state", **more)  # type: ignore[arg-type]
        self.judge.watch.stop()
        self.judge.end()
        tree = replace(self.judge.question.tree, root="checkpoint", skew=0.0)
        self.judge.question = replace(self.judge.question, tree=tree)
        self.judge.watch = self.judge.anew()

    def poll(self, times: int = 1, *, but: int | None = None) -> None:
        """Let time pass for all but one, who is dead."""
        for _ in range(times):
            self.trainer.step()
            for number, node in self.nodes.items():
                if number != but:
                    node.poll()
            self.judge.poll()

    def save(self) -> None:
        """Save, and let time pass until it is told of."""
        told = len(self.judge.told)
        self.trainer.begin()
        for _ in range(14):
            if len(self.judge.told) > told:
                return
            self.poll()

    def until(self, *kinds: str, but: int | None = None) -> None:
        """Let time pass until just this was told, and see that nothing else is for a while."""
        for _ in range(40):
            if self.judge.kinds == [*kinds]:
                break
            self.poll(but=but)
        self.poll(3, but=but)
        assert self.judge.kinds == [*kinds]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_each_save_is_told_once_and_nothing_else_while_watches_are_killed(fleet: Fleet) -> None:
    for number in range(3):
        fleet.save()
        (fleet.judge, *fleet.nodes.values())[number].killed()
    fleet.until(*["good"] * 3)
    assert [event.name for event in fleet.judge.told] == ["1_1", "2_1", "3_1"]
    assert len({event.id for event in fleet.judge.told}) == 3
    assert [node.told for node in fleet.nodes.values()] == [[]] * 2


def test_a_rank_that_hangs_is_told_with_its_machine_and_the_others_wait(fleet: Fleet) -> None:
    fleet.save()
    fleet.trainer.begin(hangs=5)
    fleet.until("good", "save-incomplete")
    event = fleet.judge.told[-1]
    assert event.findings[0].ranks == (5,)
    assert "node-1" in event.findings[1].message


def test_parts_that_come_at_different_times_raise_no_alarm(fleet: Fleet) -> None:
    fleet.trainer.begin()
    for turn in range(20):
        fleet.trainer.step()
        fleet.nodes[turn % 2].poll()
        fleet.judge.poll()
    assert fleet.judge.kinds == ["good"]


def test_a_machine_that_died_is_told_once_and_what_others_take_away_meanwhile_is_no_damage(fleet: Fleet) -> None:
    for _ in range(2):
        fleet.save()
    fleet.until(*["good"] * 2, "part-stale", but=1)
    (stale,) = fleet.judge.told[-1].findings
    assert "part 2 of 2 (node-1)" in stale.message
    fleet.judge.killed()
    fleet.trainer.begin()
    fleet.until(*["good"] * 2, "part-stale", "save-incomplete", but=1)
    assert [(event.kind.value, event.name) for event in fleet.judge.told[3:]] == [("save-incomplete", "3_1")]
    fleet.poll(6)
    assert ("good", "3_1") in [(event.kind.value, event.name) for event in fleet.judge.told[4:]]
    assert "bad" not in fleet.judge.kinds


def test_a_shard_that_breaks_is_told_with_its_machine_and_its_neighbours_are_not(fleet: Fleet) -> None:
    fleet.save()
    fleet.save()
    shard = fleet.trainer.file(3, 1)
    shard.write_bytes(shard.read_bytes()[:-300])
    fleet.until("good", "good", "bad")
    event = fleet.judge.told[-1]
    assert (event.name, {each.path for each in event.findings}) == ("1_1", {"rank_3/" + shard.name})
    assert all("node-0" in each.message for each in event.findings)


def test_a_part_that_never_came_is_told_and_no_save_is_good(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, of=4, there=3)
    fleet.save()
    fleet.poll(14)
    assert sorted(fleet.judge.kinds) == ["part-missing", "save-incomplete"]
    assert "part 4 of 4" in next(e for e in fleet.judge.told if e.kind.value == "part-missing").findings[0].message


def test_a_save_is_good_only_when_its_machines_have_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(tmp_path, level=Level.CHECKSUM)
    let_go = threading.Event()
    real = verifying.session_for

    def slow(tree: Tree, question: CheckQuestion) -> Session:
        if tree.machines.is_here:
            let_go.wait()
        return real(tree, question)

    monkeypatch.setattr(watch_reading, "session_for", slow)
    fleet.trainer.begin()
    for _ in range(12):
        fleet.trainer.step()
        for node in fleet.nodes.values():
            node.look()
        fleet.judge.poll()
    assert fleet.judge.kinds == []
    for _ in range(12):
        for node in fleet.nodes.values():
            node.look()
        fleet.judge.poll()
    assert fleet.judge.kinds == ["save-incomplete"]
    assert "8 of 8 shards have not been read yet" in fleet.judge.told[0].findings[1].message
    let_go.set()
    fleet.poll(5)
    assert fleet.judge.kinds == ["save-incomplete", "good"]


def test_a_good_save_is_read_once_more_by_its_machines_and_what_broke_is_told(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, level=Level.NUMERICS)
    node = fleet.nodes[1]
    node.question = replace(node.question, rule=WatchRule(settle=2, patience=120.0, again=100.0))
    node.killed()
    fleet.save()
    shard = fleet.trainer.file(7, 1)
    status, data = shard.stat(), bytearray(shard.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 8] = b"\xff" * 8  # behind the back of the file system: no time tells
    with shard.open("r+b") as file:
        file.write(data)
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    fleet.until("good", "bad")
    assert {each.path for each in fleet.judge.told[1].findings} == {f"rank_7/{shard.name}"}


def test_a_part_that_cannot_be_written_for_a_while_is_said_once(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.save()

    def full(*_: object, **__: object) -> None:
        raise WriteFailedError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(files, "replace", full)
        fleet.poll(4)
    fleet.trainer.begin()
    fleet.until("good", "good")
    assert [len([text for text in node.notes if "disk is full" in text]) for node in fleet.nodes.values()] == [1] * 2


@pytest.mark.parametrize("what", ["seal parts", "seal a part", "part of parts", "in the tree", "no number"])
def test_what_makes_no_sense_is_refused(tmp_path: Path, what: str) -> None:
    fleet = Fleet(tmp_path, there=1)
    fleet.poll()
    judge, node = fleet.judge.question, fleet.nodes[0].question
    assert node.part is not None
    question = {
        "seal parts": replace(judge, seal=True),
        "seal a part": replace(node, seal=True),
        "part of parts": replace(judge, part=replace(node.part, tree=judge.tree, out=f"{fleet.trainer.base}/more/")),
        "in the tree": replace(node, part=replace(node.part, out=node.part.tree.path or "")),
        "no number": replace(node, part=replace(node.part, part="auto")),
    }[what]
    fleet.judge.end()
    fleet.nodes[0].end()
    fleet.judge.question = question
    with pytest.raises(UsageError):
        fleet.judge.anew().poll()


def test_parts_of_another_number_of_machines_stop_nobody_and_those_of_a_new_run_count(fleet: Fleet) -> None:
    fleet.save()
    node = fleet.nodes[0]
    assert node.question.part is not None
    for run in ("watch", "next"):
        node.question = replace(node.question, part=replace(node.question.part, part="1/1", run=run))
        node.killed()
        for _ in range(3):
            node.poll()
            fleet.judge.poll()
    assert len([text for text in fleet.judge.notes if "some parts are of 1, others of 2" in text]) == 1
    assert [known.name for known in fleet.judge.watch.known.nodes] == ["part 1 of 1 (node-0)"]
    assert fleet.judge.kinds == ["good"]


def test_a_byte_that_flips_in_what_its_machine_sealed_is_told_with_the_machine(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, level=Level.CHECKSUM)
    fleet.save()
    for node in fleet.nodes.values():
        assert node.question.part is not None
        part(replace(node.question.part, out=str(tmp_path / f"{node.name}.ckptpart"), seal=True))
    fleet.poll(6)
    fleet.judge.end()
    fleet.judge.question = replace(fleet.judge.question, environment={"XDG_STATE_HOME": str(tmp_path / "lost")})
    fleet.judge.watch = fleet.judge.anew()
    fleet.until("good", "good")
    shard = fleet.trainer.file(5, 1)
    flip(shard, -1)
    fleet.until("good", "good", "checksum-mismatch")
    event = fleet.judge.told[2]
    assert {each.path for each in event.findings} == {f"rank_5/{shard.name}"}
    assert "node-1" in event.findings[0].message
