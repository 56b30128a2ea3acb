"""Time limit for calls of other code, which cannot be stopped in any other way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")


def within(seconds: float, work: Callable[[], R], label: str) -> R:
    """Return the result of a function; if it takes too long, it continues in its own thread.

    Raises:
        TimeoutError: The function took too long.
        Exception: The function raised this exception.
    """
    done: list[R] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001  it is raised again in the waiting thread
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if done:
        return done[0]
    raise failed[0] if failed else TimeoutError(f"no {label} within {seconds:g} s")
