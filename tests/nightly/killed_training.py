"""A training that is killed at random moments, again and again, until it comes to its end."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch

from tests.guard.resumable import train


def killed(output: Path, until: int, *, kills: int, seed: int, told: Path, longest: int = 9) -> tuple[int, str]:
    """Train in processes that are killed at random moments, until so many were; then let one come to its end.

    Each does up to `longest` steps, and is killed in the next ones or while they are saved. Must be called before this
    process has computed anything with torch: what it forks could hang.

    Returns:
        How many were killed, and what the last one remembered.
    """
    chance = random.Random(seed)  # noqa: S311  moments, no secrets
    done = 0
    while True:
        ready, tells = os.pipe()
        child = os.fork()
        if not child:
            _child(output, until, told, tells)
        os.close(tells)
        for _ in range(chance.randint(1, longest) if done < kills else 0):
            os.read(ready, 1)
        if done < kills:
            time.sleep(chance.uniform(0, 0.03))
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(ready)
        if os.WIFSIGNALED(status):
            done += 1
        elif os.waitstatus_to_exitcode(status):
            raise AssertionError(f"the training failed after {done} kills")
        else:
            return done, told.with_suffix(".bits").read_text(encoding="utf-8")


def _child(output: Path, until: int, told: Path, tells: int) -> None:
    try:
        torch.set_num_threads(1)
        training = train(output, until, told=told, stepped=lambda: os.write(tells, b"."))
        told.with_suffix(".bits").write_text(repr(training.bits()), encoding="utf-8")
        os._exit(0)
    except BaseException:  # noqa: BLE001  the parent sees that it failed
        import traceback

        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    FOLDER, UNTIL, KILLS, SEED = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    DONE, _ = killed(FOLDER / "output", UNTIL, kills=KILLS, seed=SEED, told=FOLDER / "order")
    sys.stdout.write(f"{DONE}\n")
