"""A thread that does one thing again and again beside a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event, Thread


@dataclass(kw_only=True)
class ReplicaAnswer:
    """Begins with a `with` statement and ends with it; what went wrong meanwhile is kept for the test."""

    done: int = 0
    """How often it was done."""
    wrong: list[str] = field(default_factory=list)
    _stop: Event = field(default_factory=Event)

    def __enter__(self) -> None:
        self._thread = Thread(target=self._run)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.once()
        except Exception as error:  # noqa: BLE001  a thread's end would pass unseen
            self.wrong.append(f"{type(self).__name__} stopped: {type(error).__name__}: {error}")

    def once(self) -> None:
        """Do it."""
        raise NotImplementedError
