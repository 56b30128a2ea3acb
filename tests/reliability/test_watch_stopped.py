"""A watch that is killed, or whose disk fails, at every call: each event comes once or twice, and never not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ckpttool.core.errors import ExitCode
from ckpttool.watch.state import read_state
from tests.reliability.figures import Programme
from tests.reliability.injection import changes_the_disk
from tests.reliability.traced import KILL, Call, Point, Run, calls_of, traced, untraced, works
from tests.reliability.warm import MARK, Warm
from tests.support.trees import TreeBuilder

HOOK = 'line=$(cat); [ -n "$line" ] && printf "%s\\n" "$line" >> heard'
ARGV = ("watch", "output/checkpoint", "--once", "--level", "structure", "--on-event", f"sh -c '{HOOK}'")
SAVES = 2


class Scene:
    """A tree of two saves of which nothing was told yet, as often as wanted."""

    def __init__(self, base: Path) -> None:
        self.base = base
        tree = TreeBuilder(base / "template").legacy(ranks=2, sparse=True)
        for number in range(1, SAVES + 1):
            tree.save(epoch=number, step=1)
        (base / "template" / "state").mkdir()
        self.place = base / "place"
        self.anew()

    def anew(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.base / "template", self.place)

    @property
    def env(self) -> dict[str, str]:
        return {"XDG_STATE_HOME": str(self.place / "state"), "XDG_CACHE_HOME": str(self.place / "cache")}

    def go(self, warm: Warm, point: Point | None = None) -> Run:
        return traced(warm, ARGV, cwd=self.place, scratch=self.base / "scratch", env=self.env, point=point)

    def again(self, warm: Warm) -> Run:
        return untraced(warm, ARGV, cwd=self.place, scratch=self.base / "scratch", env=self.env)

    def heard(self) -> Counter[str]:
        path = self.place / "heard"
        lines = path.read_text().splitlines() if path.exists() else []
        return Counter(json.loads(line)["id"] for line in lines)

    def state(self) -> Path | None:
        return next((self.place / "state").rglob("*.json"), None)

    def calls(self) -> list[Call]:
        """Choose the calls of the watch from its first look at the state on, without those of its modules.

        Those of other threads and of the hook have numbers of their own, which would meet others of its.
        """
        lines = (self.base / "scratch" / "trace").read_text(errors="replace").splitlines()
        own = next(line.split(maxsplit=1)[0] for line in lines if MARK in line)
        calls = calls_of("\n".join(line for line in lines if line.startswith(f"{own} ")))
        first = next(at for at, call in enumerate(calls) if "/watch/" in call.line)
        return [call for call in calls[first:] if ".py" not in call.line]

    def wrong(self, warm: Warm, run: Run, *, ended: set[int]) -> Iterator[str]:
        """Say what is wrong with how it ended, and with what the next watches tell."""
        if run.code not in ended:
            yield f"exit {run.code}: {run.stderr[-300:]}"
        if "Traceback" in run.stderr or "internal error" in run.stderr:
            yield run.stderr[-300:]
        state = self.state()
        if state is not None and read_state(str(state)) is None:
            yield "the state is torn"
        failed = run.stderr.count("the hook of")  # the fault met the hook itself: that was said
        for _ in range(2):
            last = self.again(warm)
            if last.code != 0:
                yield f"the next one: exit {last.code}: {last.stderr[-300:]}"
        heard = self.heard()
        if len(heard) + failed < SAVES or any(times > 2 for times in heard.values()):
            yield f"heard {sorted(heard.values())} of {SAVES}, {failed} hooks failed"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    reason = works()
    if reason is not None:
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return Scene(tmp_path)


def tried(
    scene: Scene, fault: str, *, everything: bool, ended: set[int], first: int = 0, each: int = 1
) -> tuple[int, list[str]]:
    wrong, count = [], 0
    with closing(Warm()) as warm:
        for _ in range(2):  # what is loaded from disk at the first use must not be counted
            scene.anew()
            assert scene.go(warm).code == 0
        assert sorted(scene.heard().values()) == [1, 1]
        calls = [call for call in scene.calls() if everything or changes_the_disk(call)]
        for call in calls[first::each]:
            scene.anew()
            point = Point(call, fault)
            done = scene.go(warm, point)
            count += 1
            wrong += [f"{point}: {what}" for what in scene.wrong(warm, done, ended=ended)]
    return count, wrong


def test_wherever_it_is_killed_each_event_comes_once_or_twice(scene: Scene, programme: Programme) -> None:
    count, wrong = tried(scene, KILL, everything=programme.nightly, ended={-9, 0})
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:20])
    assert count > 20


@pytest.mark.parametrize(("fault", "first"), [("ENOSPC", 0), ("EROFS", 1)])
def test_whichever_change_of_the_disk_fails_each_event_comes_once_or_twice(
    scene: Scene, programme: Programme, fault: str, first: int
) -> None:
    """With a commit each of them fails in one of the two ways, at night in both."""
    which = (0, 1) if programme.nightly else (first, 2)
    ended = {int(code) for code in ExitCode}
    count, wrong = tried(scene, fault, everything=False, ended=ended, first=which[0], each=which[1])
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:20])
    assert count > 10
