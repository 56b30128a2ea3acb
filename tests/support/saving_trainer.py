"""A training that saves on eight ranks, to be watched: `python -m tests.support.saving_trainer ROOT SAVES SEED PAUSE`.

Each rank saves at its own pace, by rename or in place, out of order, and takes its file of the fourth save before away.
What was told is read from `ROOT/../heard`: the training is never so far ahead that retention takes what nobody told of
yet, for whoever is slow on a busy machine shall not lose a race here. When each save began stands in `ROOT/../began`.

It obeys lines on stdin once its saves are done: `hang` begins a save of which rank 3 never writes.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from tests.support.trees import ckpt_bytes, training_scalars, weights

RANKS = 8
KEPT = 4
HANGS = 3
AHEAD = 2
"""Saves that may be there and not yet told when the next one begins."""
GIVE_UP_SECONDS = 120.0


def shard(root: Path, rank: int, number: int) -> Path:
    """Return where a rank's file of a save lies."""
    return root / f"rank_{rank}" / f"llama2_7b_rank_{rank}-{number}_1.ckpt"


def content(rank: int, number: int) -> bytes:
    """Return what a rank saves."""
    return ckpt_bytes([*weights(seed=rank + 100 * number), *training_scalars(epoch=number, true_step=number)])


class Training:
    """What happens on the ranks."""

    def __init__(self, root: Path, seed: int, pause: float) -> None:
        self._root = root
        self._pause = pause
        self._chance = Random(seed)  # noqa: S311  the same course for the same seed, as far as the kernel lets it

    def save(self, number: int, *, hangs: bool = False) -> None:
        """Save on all ranks at once, and let the oldest save go."""
        plans = [
            (rank, number, self._chance.choice(("rename", "place")), self._chance.uniform(0, self._pause / 2))
            for rank in range(RANKS)
            if not (hangs and rank == HANGS)
        ]
        with ThreadPoolExecutor(RANKS) as ranks:
            list(ranks.map(lambda plan: self._rank(*plan), plans))

    def _rank(self, rank: int, number: int, how: str, delay: float) -> None:
        target, data = shard(self._root, rank, number), content(rank, number)
        time.sleep(delay)
        if how == "rename":
            part = target.with_name(f".{target.name}.part")
            part.write_bytes(data[:100])
            time.sleep(delay / 4)
            part.write_bytes(data)
            part.rename(target)
        else:
            with target.open("wb", buffering=0) as file:
                for piece in (data[:100], data[100:]):
                    file.write(piece)
                    time.sleep(delay / 4)
        if number > KEPT:
            time.sleep(delay / 4)
            shard(self._root, rank, number - KEPT).unlink()

    def rest(self) -> None:
        """Make steps."""
        time.sleep(self._chance.uniform(self._pause / 2, self._pause))


def told_good(heard: Path) -> set[str]:
    """Return which saves a watch told as good."""
    lines = heard.read_text().splitlines() if heard.exists() else []
    return {event["checkpoint"] for event in map(json.loads, lines) if event["event"] == "good"}


def main() -> None:
    """Train."""
    root, saves, seed, pause = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    for rank in range(RANKS):
        (root / f"rank_{rank}").mkdir(parents=True, exist_ok=True)
    training = Training(root, seed, pause)
    for number in range(1, saves + 1):
        until = time.monotonic() + GIVE_UP_SECONDS
        while not {f"{before}_1" for before in range(1, number - AHEAD)} <= told_good(root.parent / "heard"):
            if time.monotonic() > until:
                sys.exit(f"of save {number - AHEAD - 1} nothing was told")
            time.sleep(0.02)
        with (root.parent / "began").open("a", encoding="utf-8") as began:
            began.write(f"{time.time()}\n")
        training.save(number)
        training.rest()
    print("done", flush=True)  # noqa: T201  who started us waits for it
    for line in sys.stdin:
        if line.strip() == "hang":
            training.save(saves + 1, hangs=True)


if __name__ == "__main__":
    main()
