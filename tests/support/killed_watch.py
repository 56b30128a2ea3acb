"""A training that runs, and the real `ckpttool watch` beside it, which is killed again and again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from tests.support.saving_trainer import HANGS, KEPT, RANKS, shard

EVERY = 0.1
LIMIT_SECONDS = 280.0
"""For what must happen some time: whoever waits longer has lost it."""

LATEST = 8
"""Saves by which it is known what is usual."""

HOOK = 'line=$(cat) && [ -n "$line" ] && printf "%s\\n" "$line" >> "$HEARD"'


class Course:
    """The training, the watch, and what the watch's hook heard."""

    def __init__(self, base: Path, *, saves: int, pause: float, seed: int, patience: int) -> None:
        self.root, self.heard = base / "output" / "checkpoint", base / "output" / "heard"
        self.root.mkdir(parents=True)
        self.prepare(base)
        self.saves = saves
        self._base = base
        self._chance = Random(seed)  # noqa: S311  as the training's
        self._patience = patience
        self._pause = pause
        self._said = (base / "said").open("ab")
        words = [
            sys.executable,
            "-m",
            "tests.support.saving_trainer",
            str(self.root),
            str(saves),
            str(seed),
            str(pause),
        ]
        self.training = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.watch = self._watch()

    def prepare(self, base: Path) -> None:
        """Make what must be there before the training begins."""

    def _watch(self) -> subprocess.Popen[bytes]:
        command = [
            *(sys.executable, "-m", "ckpttool", "watch", str(self.root), f"--world-size={RANKS}", f"--every={EVERY}"),
            *(f"--patience={self._patience}s", "--seal", "--again=2s", "--on-event", f"sh -c '{HOOK}'"),
        ]
        env = {"XDG_STATE_HOME": str(self._base / "state"), "HEARD": str(self.heard), "XDG_CACHE_HOME": str(self._base)}
        return subprocess.Popen(command, env={**os.environ, **env}, stdout=self._said, stderr=self._said)

    def run(self, *, kills: int) -> None:
        """Kill the watch at random moments until the training has saved as often as it shall."""
        for _ in range(kills):
            time.sleep(self._chance.uniform(0, 2 * self.saves * self._pause / kills))
            self.assert_alive()
            self.kill_one()
        assert self.training.stdout is not None
        assert self.training.stdout.readline() == "done\n"
        self.until(lambda: len(self.told("good")) == self.saves)

    def kill_one(self) -> None:
        """Kill the watch, and begin another."""
        self.watch.kill()
        self.watch.wait()
        self.watch = self._watch()

    def assert_alive(self) -> None:
        """Notice a watch or a training that ended by itself."""
        assert self.watch.poll() is None, self.said
        assert self.training.poll() is None, "the training gave up"

    def until(self, happened: Callable[[], bool]) -> None:
        """Wait."""
        end = time.monotonic() + LIMIT_SECONDS
        while not happened():
            self.assert_alive()
            assert time.monotonic() < end, f"{self.kinds()}\n{self.said}"
            time.sleep(EVERY)

    @property
    def said(self) -> str:
        return (self._base / "said").read_text()

    def events(self) -> list[dict[str, Any]]:
        """Return what the hook heard, in its order."""
        return [json.loads(line) for line in self.heard.read_text().splitlines()] if self.heard.exists() else []

    def told(self, kind: str) -> dict[str, set[str]]:
        """Return the ids by save."""
        ids: dict[str, set[str]] = {}
        for event in self.events():
            if event["event"] == kind:
                ids.setdefault(event["checkpoint"], set()).add(event["id"])
        return ids

    def kinds(self) -> list[str]:
        return [event["event"] for event in self.events()]

    def assert_each_save_told_and_nothing_else(self) -> None:
        others = [event for event in self.events() if event["event"] not in {"good", "read-again"}]
        assert [event for event in others if not self.is_late(event)] == []
        assert {name: len(ids) for name, ids in self.told("good").items()} == {
            f"{number}_1": 1 for number in range(1, self.saves + 1)
        }
        assert "Traceback" not in self.said

    def is_late(self, event: dict[str, Any]) -> bool:
        """Tell whether it was true that no save came: on a busy machine the training stands still, too."""
        if event["event"] != "save-overdue":
            return False
        told = datetime.fromisoformat(event["at"].replace("Z", "+00:00")).timestamp() + 1  # it is cut to seconds
        began = [float(line) for line in (self.root.parent / "began").read_text().splitlines()]
        before = [at for at in began if at <= told]
        passed = [later - at for at, later in pairwise(before)][-LATEST:]
        return told - before[-1] > 2 * median(passed)

    def flip(self) -> None:
        """Change one bit of a sealed save, where no checksum of its own tells."""
        path = shard(self.root, 5, self.saves - 1)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)

    def assert_troubles_are_told(self) -> None:
        """Let a byte flip, a rank hang and the training stop, and wait until each is told."""
        self.flip()
        self.until(lambda: "checksum-mismatch" in self.kinds())
        assert self.training.stdin is not None
        self.training.stdin.write("hang\n")
        self.training.stdin.flush()
        flipped, left_by_hang = f"{self.saves - 1}_1", f"{self.saves + 1 - KEPT}_1"
        self.until(
            lambda: {"save-incomplete", "save-overdue"} <= set(self.kinds()) and left_by_hang in self.told("bad")
        )
        assert self.told("checksum-mismatch").keys() == {flipped}
        (hang,) = [event for event in self.events() if event["event"] == "save-incomplete"]
        assert hang["checkpoint"] == f"{self.saves + 1}_1"
        assert hang["findings"][0]["ranks"] == [HANGS]
        # All ranks but the one that hangs took their files of the oldest save away. And a reading that seals judges a
        # save by itself, not by its manifest: if one was due, it first calls the flipped save bad.
        assert self.told("bad").keys() - {flipped} == {left_by_hang}
        told = {"good", "read-again", "checksum-mismatch", "save-incomplete", "save-overdue", "bad"}
        assert set(self.kinds()) == told

    def close(self) -> None:
        """End both."""
        self.training.kill()
        self.training.communicate()
        self.watch.terminate()
        code = self.watch.wait()
        self._said.close()
        assert code == 0, self.said
