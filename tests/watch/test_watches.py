"""A tree that is watched while a trainer saves into it, takes saves away, hangs and stops."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.question import CheckQuestion
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import LockedError, UnknownLayoutError, WriteFailedError
from ckpttool.core.verbs import verifying
from ckpttool.core.verbs.scanning import Tree
from ckpttool.core.verify.session import Session
from ckpttool.watch import listed as listed_storage
from ckpttool.watch import reading as watch_reading
from ckpttool.watch import verbs as watches
from tests.support.trees import flip
from tests.support.watched_trainings import Trainer, Watching, assert_told_and_nothing_else, course, watched


@pytest.fixture
def scene(tmp_path: Path) -> tuple[Trainer, Watching]:
    return watched(tmp_path, seed=7)


def test_each_save_is_told_with_one_id_and_nothing_else_while_the_watch_is_killed_again_and_again(
    scene: tuple[Trainer, Watching],
) -> None:
    trainer, watching = scene
    course(trainer, watching, saves=6, kills=4)
    assert_told_and_nothing_else(trainer, watching)

    trainer.begin(hangs=3)
    watching.poll(trainer, times=4 + 12 + 4)  # written, then patience, then four polls
    assert watching.kinds[-1] == "save-incomplete"
    assert watching.told[-1].findings[0].ranks == (3,)

    there = len(watching.told)
    watching.poll(trainer, times=3 * 14 + 4)
    assert watching.kinds[there:] == ["save-overdue"]


def test_a_rank_that_still_writes_under_another_name_does_not_hang_and_one_that_stopped_does(
    scene: tuple[Trainer, Watching],
) -> None:
    trainer, watching = scene
    trainer.begin(hangs=3)
    part = trainer.file(3, 1).with_suffix(".tmp")
    for turn in range(40):
        part.write_bytes(b"x" * turn)
        watching.poll(trainer)
    assert watching.kinds == []
    watching.poll(trainer, times=14)
    assert watching.kinds == ["save-incomplete"]


def test_a_file_of_a_sealed_save_that_is_written_anew_and_differs_is_told_when_patience_ends(tmp_path: Path) -> None:
    trainer, watching = watched(tmp_path, seed=1, level=Level.CHECKSUM, seal=True)
    watching.save(trainer)
    assert [event.sealed for event in watching.told] == [True]
    flip(trainer.file(5, 1), -1)
    watching.poll(times=4)
    assert watching.kinds == ["good"]  # the training may be writing all of it once more
    watching.poll(times=12)
    assert watching.kinds == ["good", "checksum-mismatch"]


def test_a_tree_that_goes_away_as_a_whole_takes_nothing_of_what_is_known(scene: tuple[Trainer, Watching]) -> None:
    trainer, watching = scene
    watching.save(trainer)
    away = trainer.root.rename(trainer.root.with_name("away"))
    watching.poll(times=5)
    assert len(watching.notes) == 1
    away.rename(trainer.root)
    watching.poll(times=5)
    assert watching.kinds == ["good"]


def test_what_is_not_there_yet_is_waited_for_and_one_look_alone_says_so(tmp_path: Path) -> None:
    watching = Watching(tmp_path / "nothing", tmp_path / "state")
    watching.poll(times=3)
    assert len(watching.notes) == 1
    assert "waiting" in watching.notes[0]
    once = Watching(tmp_path / "nothing else", tmp_path / "state", once=True)
    with pytest.raises(UnknownLayoutError):
        once.watch.run()


@pytest.mark.sample(1)
@pytest.mark.parametrize("one", [".", "rank_0", ".."])
def test_a_tree_that_is_watched_is_refused_by_each_of_its_names(
    scene: tuple[Trainer, Watching], tmp_path: Path, one: str
) -> None:
    trainer, watching = scene
    trainer.begin()
    watching.poll(trainer, times=6)
    with pytest.raises(LockedError, match="watched already"):
        Watching(trainer.root / one, tmp_path / "state").poll()
    watching.end()
    other = Watching(trainer.root / one, tmp_path / "state")
    other.poll(times=2)
    with pytest.raises(LockedError, match="watched already"):
        watching.anew().poll()
    other.end()


def test_an_idle_poll_lists_nothing_and_does_not_grow(
    scene: tuple[Trainer, Watching], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trainer, watching = scene
    monkeypatch.setattr(listed_storage, "TICK", 0)
    trainer.begin()
    watching.poll(trainer, times=12)
    size = (state := next((tmp_path / "state").rglob("*.json"))).stat().st_size
    listed: list[object] = []
    real = os.scandir

    def noted(path: str) -> object:
        listed.append(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", noted)
    monkeypatch.setattr(watching.watch, "_polls", 0)
    watching.poll(times=19)
    assert listed == []
    watching.poll()
    assert listed
    watching.poll(times=200)
    assert abs(state.stat().st_size - size) < 100
    assert watching.kinds == ["good"]


HOOK = """
import json, os, sys
event = json.load(sys.stdin)
with open({path!r}, "a") as file:
    print(event["id"], *(os.environ["CKPTTOOL_" + name] for name in ("EVENT", "CHECKPOINT", "STEP", "ROOT")), file=file)
print("printed by the hook")
sys.exit({code})
"""


@pytest.mark.parametrize("code", [0, 3])
def test_a_hook_hears_of_each_event_and_stops_nothing_where_it_fails(
    tmp_path: Path, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    heard = tmp_path / "heard"
    hook = (sys.executable, "-c", HOOK.format(path=str(heard), code=code))
    trainer, watching = watched(tmp_path, seed=2, hook=hook)
    watching.save(trainer)
    (event,) = watching.told
    assert heard.read_text() == f"{event.id} good 1_1 1 {trainer.root}\n"
    assert watching.watch.hook_failures == (code != 0)
    assert capfd.readouterr().out == ""


def test_a_hook_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ckpttool.watch import hooks as watch_hooks

    monkeypatch.setattr(watch_hooks, "HOOK_SECONDS", 0.3)
    pid = tmp_path / "pid"
    hook = ("sh", "-c", f"sleep 600 & echo $! > {pid}; wait")
    trainer, watching = watched(tmp_path, seed=2, hook=hook)
    watching.save(trainer)
    assert watching.watch.hook_failures == 1
    assert "killed" in watching.notes[-1]
    status = Path("/proc") / pid.read_text().strip() / "stat"
    assert not status.exists() or " Z " in status.read_text()


def test_an_event_is_told_again_where_the_watch_died_between_its_hook_and_its_state(
    scene: tuple[Trainer, Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, watching = scene
    trainer.begin()
    monkeypatch.setattr(watching.watch, "_keep", lambda **_: None)
    watching.poll(trainer, times=10)
    watching.killed()
    watching.poll(times=5)
    assert watching.kinds == ["good", "good"]
    assert len({event.id for event in watching.told}) == 1


@pytest.mark.parametrize("harm", ["cut", "flip", "other"])
def test_a_state_that_cannot_be_believed_is_none(scene: tuple[Trainer, Watching], tmp_path: Path, harm: str) -> None:
    trainer, watching = scene
    watching.save(trainer)
    watching.watch._place = None  # noqa: SLF001
    state = next((tmp_path / "state").rglob("*.json"))
    data = state.read_bytes()
    state.write_bytes(
        {"cut": data[:50], "flip": data.replace(b"good", b"gone"), "other": json.dumps([]).encode()}[harm]
    )
    watching.killed()
    assert watching.watch.known.saves == ()


class SlowDisk:
    """A disk that gives nothing to whoever reads a save until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.let_go, self.asked = threading.Event(), threading.Event()
        real = verifying.session_for

        def slow(tree: Tree, question: CheckQuestion) -> Session:
            self.asked.set()
            self.let_go.wait()
            return real(tree, question)

        monkeypatch.setattr(watch_reading, "session_for", slow)


def test_what_hangs_is_told_while_another_save_is_read_for_long(
    scene: tuple[Trainer, Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, watching = scene
    disk = SlowDisk(monkeypatch)
    trainer.begin()
    watching.look(trainer, times=10)
    trainer.begin(hangs=3)
    watching.look(trainer, times=30)
    assert watching.kinds == ["save-incomplete"]
    disk.let_go.set()
    watching.poll(trainer)
    assert watching.kinds == ["save-incomplete", "good"]


def test_a_save_that_changes_while_it_is_read_is_read_anew_and_told_as_it_is_then(
    scene: tuple[Trainer, Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, watching = scene
    disk = SlowDisk(monkeypatch)
    trainer.begin()
    watching.look(trainer, times=10)
    trainer.file(2, 1).write_bytes(b"cut off")
    watching.look(times=4)
    disk.let_go.set()
    watching.poll(times=4)
    assert watching.kinds == []
    watching.poll(times=14)
    assert watching.kinds == ["bad"]


def test_whoever_ends_a_watch_does_not_wait_for_what_is_being_read(
    scene: tuple[Trainer, Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, watching = scene
    disk = SlowDisk(monkeypatch)
    monkeypatch.setattr(watch_reading, "LEAVE_SECONDS", 0.01)
    trainer.begin()
    for _ in range(4):
        trainer.step()
    watching.end()
    monkeypatch.setattr(watching.clock, "seconds", time.monotonic)
    watching.question = replace(watching.question, every=0.01)
    watch = watching.anew()
    ended = threading.Thread(target=watch.run)
    ended.start()
    disk.asked.wait()
    watch.stop()
    ended.join()
    watching.end()
    disk.let_go.set()
    assert watching.kinds == []
    watching.anew().poll()
    watching.poll(times=4)
    assert watching.kinds == ["good"]


def test_a_save_that_cannot_be_judged_for_now_is_read_again_at_the_next_poll(
    scene: tuple[Trainer, Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, watching = scene
    trainer.begin()
    with monkeypatch.context() as patch:

        def locked(*_: object) -> None:
            raise LockedError("somebody holds the ledger")

        patch.setattr(watch_reading, "session_for", locked)
        watching.poll(trainer, times=10)
    assert len([text for text in watching.notes if "holds the ledger" in text]) == 1
    watching.poll()
    assert watching.kinds == ["good"]


def test_a_state_that_cannot_be_written_any_more_is_said_once_and_the_watch_goes_on(
    scene: tuple[Trainer, Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, watching = scene

    def full(*_: object, **__: object) -> None:
        raise WriteFailedError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(watches, "write", full)
        for _ in range(2):
            watching.save(trainer)
        watching.end()
        assert watching.kinds == ["good", "good"]
        assert len([text for text in watching.notes if "disk is full" in text]) == 1
        with pytest.raises(WriteFailedError):
            watching.anew()


def test_a_disk_that_is_not_mounted_is_told_once_as_what_cannot_be_read(scene: tuple[Trainer, Watching]) -> None:
    trainer, watching = scene
    watching.save(trainer)
    away = trainer.root.rename(trainer.root.with_name("away"))
    trainer.root.mkdir()  # where it is mounted
    watching.poll(times=14)
    watching.killed()
    watching.poll(times=14)
    assert watching.kinds == ["good", "unreadable"]
    assert (watching.told[1].name, watching.told[1].root) == (None, str(trainer.root))
    trainer.root.rmdir()
    away.rename(trainer.root)
    watching.poll(times=30)
    assert watching.kinds == ["good", "unreadable"]


def test_what_an_earlier_watch_told_as_good_is_sealed_by_one_that_is_asked_to(tmp_path: Path) -> None:
    trainer, watching = watched(tmp_path, seed=1, level=Level.CHECKSUM)
    watching.save(trainer)
    watching.question = replace(watching.question, seal=True)
    watching.killed()
    watching.poll(times=5)
    assert [(event.kind.value, event.sealed) for event in watching.told] == [("good", False), ("read-again", True)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("level", [Level.CHECKSUM, Level.STRUCTURE, Level.NUMERICS])
def test_a_training_that_went_back_and_saves_once_more_under_the_same_names_raises_no_alarm(
    tmp_path: Path, level: Level
) -> None:
    trainer, watching = watched(tmp_path, seed=3, level=level, seal=True)
    for _ in range(3):
        trainer.begin()
        watching.poll(trainer, times=12)
    trainer.saves, trainer.seed = 1, 77
    for _ in range(2):
        trainer.begin()
        watching.poll(trainer, times=12)
    assert [(event.kind.value, event.name, event.sealed) for event in watching.told] == [
        ("good", name, True) for name in ("1_1", "2_1", "3_1", "2_1", "3_1")
    ]
    assert len({event.id for event in watching.told}) == 5
    flip(trainer.file(5, 3), -1)
    watching.poll(times=16)
    assert watching.kinds[5:] == ["checksum-mismatch"]


def test_the_room_for_the_next_save_is_looked_at(
    scene: tuple[Trainer, Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, watching = scene
    watching.save(trainer)
    monkeypatch.setattr(watching.watch, "_free", lambda: ByteCount(1))
    watching.poll(times=3)
    assert watching.kinds == ["good", "disk-space-low"]
