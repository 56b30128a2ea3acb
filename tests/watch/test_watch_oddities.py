"""What a watch meets beside saves: hooks of all kinds, clocks that jump, odd names, disks that go away."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.domain.verdict import Level
from ckpttool.core.storage.local import LocalStorage
from ckpttool.watch.model import WatchEvent, WatchQuestion, WatchRule
from ckpttool.watch.verbs import Watch
from tests.support.trees import TreeBuilder
from tests.support.watched_trainings import Clock, Trainer, Watching, watched


def script(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


HOOKS = {
    "reads nothing": ("true",),
    "closes stdin and goes on": ("sh", "-c", "exec <&-; sleep 0.1"),
    "prints much": script("import sys; print('x' * 5_000_000); print('y' * 5_000_000, file=sys.stderr)"),
    "leaves a process behind": ("sh", "-c", "sleep 3 <&- & exit 0"),
    "leaves one that holds stdin": ("sh", "-c", "sleep 3 & exit 0"),
}


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
def test_whatever_a_hook_does_that_ends_well_is_no_failure(
    tmp_path: Path, hook: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    trainer, watching = watched(tmp_path, seed=2, hook=hook)
    watching.save(trainer)
    assert watching.kinds == ["good"]
    assert (watching.watch.hook_failures, watching.notes) == (0, [])
    assert capfd.readouterr().out == ""  # the result alone goes there


def test_an_event_larger_than_a_pipe_reaches_a_hook_whole(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    tree = TreeBuilder(tmp_path).legacy(ranks=600, sparse=True)
    tree.save(epoch=1, step=1).save(epoch=2, step=1, ranks=[0])
    hook = script(f"import sys, time; time.sleep(0.3); open({str(heard)!r}, 'a').write(sys.stdin.read())")
    watching = Watching(tree.checkpoint, tmp_path / "state", hook=hook, world=600)
    watching.poll(times=20)
    told = [json.loads(line) for line in heard.read_text().splitlines()]
    assert [event["event"] for event in told] == ["good", "save-incomplete"]
    assert len(told[1]["findings"][0]["ranks"]) == 599


class Jumping(Clock):
    """A machine whose wall clock somebody sets, forth and back by years."""

    def wall(self) -> float:
        return [1_800_000_000.0, 0.0, 4_000_000_000.0][int(self.now / 10) % 3]


def test_a_wall_clock_that_jumps_tells_nothing_and_hides_nothing(tmp_path: Path) -> None:
    trainer, watching = watched(tmp_path, seed=4)
    watching.clock = Jumping()
    watching.end()
    watching.watch = watching.anew()
    for _ in range(3):
        watching.save(trainer)
        watching.killed()
    assert watching.kinds == ["good"] * 3
    trainer.begin(hangs=1)
    watching.poll(trainer, times=22)
    assert watching.kinds[3:] == ["save-incomplete"]


def test_after_a_restart_of_the_machine_the_wall_clock_counts_and_one_that_went_back_is_one_that_stood_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, watching = watched(tmp_path, seed=4)
    watching.save(trainer)
    before = watching.watch.known.now
    for number, (wall, passed) in enumerate([(50.0, 50.0), (-1e9, 0.0)]):
        then = watching.clock.wall()
        watching.watch._keep(always=True)  # noqa: SLF001
        monkeypatch.setattr(watching.clock, "boot", lambda number=number: f"another start {number}")
        monkeypatch.setattr(watching.clock, "wall", lambda at=then + wall: at)
        watching.clock.now = 5.0
        watching.killed()
        watching.watch.poll()
        assert watching.watch.known.now == pytest.approx(before + passed)
        before = watching.watch.known.now
    assert watching.kinds == ["good"]


NAMES = ["läuft_é", "two words", "$(touch pwned)", "-rf", "new\nline", "\udcff\udcfe", "'; touch pwned; '", "\x1b[31m"]


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_nobody_chose_is_told_kept_and_never_run(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    heard = tmp_path / "heard"
    tree = TreeBuilder(tmp_path / name).legacy(ranks=2, sparse=True, prefix="llama")
    tree.save(epoch=1, step=1)
    hook = ("sh", "-c", f'printf "%s" "$CKPTTOOL_ROOT" > {heard}; cat >/dev/null')
    watching = Watching(tree.checkpoint, tmp_path / "state", hook=hook, world=2)
    watching.poll(times=5)
    assert watching.kinds == ["good"]
    assert os.fsdecode(heard.read_bytes()) == watching.told[0].root
    watching.killed()
    watching.poll(times=5)
    assert watching.kinds == ["good"]
    assert not list(tmp_path.rglob("pwned"))


def test_ranks_that_appear_late_where_nobody_said_how_many_there_are_raise_no_alarm(tmp_path: Path) -> None:
    made = TreeBuilder(tmp_path / "made").legacy(ranks=4, sparse=True)
    made.save(epoch=1, step=1)
    root = tmp_path / "output" / "checkpoint"
    told: list[WatchEvent] = []
    clock = Clock()
    question = WatchQuestion(
        tree=TreeQuestion(path=str(root)),
        rule=WatchRule(settle=2, patience=120.0, again=0.0),
        level=Level.STRUCTURE,
        environment={"XDG_STATE_HOME": str(tmp_path / "state")},
    )
    watch = Watch(question, told.append, told.append, clock)  # type: ignore[arg-type]  # notes are none either
    with watch.begun():
        for rank in range(4):
            shutil.copytree(made.checkpoint / f"rank_{rank}", root / f"rank_{rank}")
            for _ in range(5):
                clock.now += 10.0
                watch.poll()
                watch.finish_reading()
    assert {event.kind.value for event in told} == {"good"}
    assert len({event.id for event in told}) == len(told)


def test_a_folder_that_cannot_be_listed_for_long_makes_its_saves_unknown_and_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, watching = watched(tmp_path, seed=4)
    watching.save(trainer)
    real = LocalStorage.entries

    def gone(storage: LocalStorage, folder: str) -> object:
        if folder == "rank_3":
            raise OSError(116, "Stale file handle")
        return real(storage, folder)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "entries", gone)
        watching.watch._listed = None  # noqa: SLF001  as at every 20th poll
        watching.poll(times=30)
    assert watching.kinds == ["good", "unreadable"]
    assert {finding.code for finding in watching.told[1].findings} <= {Code.UNREADABLE, Code.SHARD_MISSING}
    watching.poll(times=40)
    assert watching.kinds == ["good", "unreadable"]


def test_a_link_to_the_newest_tree_that_is_moved_on_leads_to_another_tree(tmp_path: Path) -> None:
    first, second = Trainer(tmp_path / "first", seed=1), Trainer(tmp_path / "second", seed=2)
    first.begin()
    link = tmp_path / "run"
    link.symlink_to(first.root)
    watching = Watching(link, tmp_path / "state")
    watching.poll(first, times=10)
    second.begin()
    link.unlink()
    link.symlink_to(second.root)
    watching.poll(second, times=25)
    assert watching.kinds == ["good", "good"]
    assert len({event.id for event in watching.told}) == 2
