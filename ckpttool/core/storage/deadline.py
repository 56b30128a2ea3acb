"""Wait for someone else's code no longer than one is willing to: there is no other way to stop it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")


def within(seconds: float, work: Callable[[], R], label: str) -> R:
    """Return what some work returns; it is left behind, in a thread of its own, where it takes too long.

    Raises:
        TimeoutError: It did.
        Exception: As the work raises it.
    """
    done: list[R] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001  whoever waits is told
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if done:
        return done[0]
    raise failed[0] if failed else TimeoutError(f"no {label} within {seconds:g} s")
