"""Time as a watch sees it."""

from __future__ import annotations

import time

from ckpttool.core.storage.mounts import boot_id


class Machine:
    """Time as the watch sees it; tests have one of their own."""

    def boot(self) -> str:
        """Return a word that holds until this machine starts anew."""
        return boot_id()

    def seconds(self) -> float:
        """Return seconds since it started; no change of the clock moves them, and while it sleeps none saves."""
        return time.monotonic()

    def wall(self) -> float:
        """Return seconds since 1970."""
        return time.time()
