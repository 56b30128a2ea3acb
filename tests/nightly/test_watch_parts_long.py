"""A training on four machines' disks, a watch on each, and one that judges: all of them killed again and again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.killed_watch import EVERY, HOOK, Course
from tests.support.saving_trainer import HANGS, KEPT, RANKS, shard

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="watches for minutes: --nightly")

NODES = 4


class OnNodes(Course):
    """The same course, with two ranks on the disk of each machine."""

    def prepare(self, base: Path) -> None:
        for rank in range(RANKS):
            own = base / f"node-{rank % NODES}" / "checkpoint" / f"rank_{rank}"
            own.mkdir(parents=True)
            (self.root / own.name).symlink_to(own)
        self._parts = base / "parts"
        self._parts.mkdir()
        self._began = (base / "began").open("ab")
        self.nodes = [self._node(base, number) for number in range(NODES)]

    def _node(self, base: Path, number: int) -> subprocess.Popen[bytes]:
        command = [
            *(sys.executable, "-m", "ckpttool", "watch", "checkpoint", f"--part-out={self._parts}"),
            *(f"--part={number + 1}/{NODES}", f"--every={EVERY}", "--again=2s"),
        ]
        own = {"XDG_STATE_HOME": str(base / f"state-{number}"), "XDG_CACHE_HOME": str(base / f"cache-{number}")}
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in (str(Path.cwd()), *sys.path) if path),
            **own,
        }
        return subprocess.Popen(command, env=env, cwd=base / f"node-{number}", stdout=self._began, stderr=self._began)

    def _watch(self) -> subprocess.Popen[bytes]:
        command = [
            *(sys.executable, "-m", "ckpttool", "watch", str(self._parts), f"--world-size={RANKS}"),
            *(f"--every={EVERY}", f"--patience={self._patience}s", "--skew=0s", "--on-event", f"sh -c '{HOOK}'"),
        ]
        env = {"XDG_STATE_HOME": str(self._base / "state"), "HEARD": str(self.heard), "XDG_CACHE_HOME": str(self._base)}
        return subprocess.Popen(command, env={**os.environ, **env}, stdout=self._said, stderr=self._said)

    def kill_one(self) -> None:
        number = self._chance.randrange(-1, NODES)
        if number < 0:
            super().kill_one()
            return
        self.nodes[number].kill()
        self.nodes[number].wait()
        self.nodes[number] = self._node(self._base, number)

    def is_late(self, event: dict[str, Any]) -> bool:
        """Take each for true: saves come every second, and five processes tell of one on a machine that is busy."""
        return bool(event["event"] == "save-overdue")

    def assert_troubles_are_told(self) -> None:
        broken = shard(self.root, 5, self.saves - 1)
        broken.write_bytes(broken.read_bytes()[:-300])
        self.until(lambda: "bad" in self.kinds())
        assert self.training.stdin is not None
        self.training.stdin.write("hang\n")
        self.training.stdin.flush()
        self.until(lambda: "save-incomplete" in self.kinds())
        self.nodes[1].kill()
        self.until(lambda: "part-stale" in self.kinds())
        left_by_hang = f"{self.saves + 1 - KEPT}_1"  # all but the rank that hangs took their files of it away
        assert self.told("bad").keys() - {left_by_hang} == {f"{self.saves - 1}_1"}
        (hang,) = [event for event in self.events() if event["event"] == "save-incomplete"]
        assert (hang["checkpoint"], hang["findings"][0]["ranks"]) == (f"{self.saves + 1}_1", [HANGS])
        (stale,) = [event for event in self.events() if event["event"] == "part-stale"]
        assert "part 2 of 4" in stale["findings"][0]["message"]
        assert set(self.kinds()) <= {"good", "bad", "save-incomplete", "save-overdue", "part-stale"}

    def close(self) -> None:
        for node in self.nodes:
            node.terminate()
        self.codes = [node.wait() for node in self.nodes]
        self._began.close()
        super().close()


@pytest.mark.parametrize("seed", [1, 2])
def test_each_save_is_told_once_and_each_trouble_while_all_watches_are_killed(tmp_path: Path, seed: int) -> None:
    course = OnNodes(tmp_path, saves=30, pause=0.4, seed=seed, patience=15)
    try:
        course.run(kills=20)
        course.assert_each_save_told_and_nothing_else()
        course.assert_troubles_are_told()
    finally:
        course.close()
    assert course.codes == [0, -9, 0, 0]
