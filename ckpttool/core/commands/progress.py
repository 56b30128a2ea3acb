"""Progress on stderr during long work: a bar on a terminal, elsewhere a line from time to time."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ckpttool.core.commands import output
from ckpttool.core.domain.units import counted
from ckpttool.core.render.escape import size

if TYPE_CHECKING:
    from threading import Timer

    from rich.status import Status

    from ckpttool.core.verify.meter import Meter

PATIENCE_SECONDS = 1.0
"""Seconds after which a bar is shown; shorter work needs none."""
REFRESH_SECONDS = 0.2
"""Seconds between two updates of the bar."""
HEARTBEAT_SECONDS = 30.0
"""Seconds between two lines if there is no terminal, so that a long job does not seem to hang."""


@contextmanager
def watched(*, quiet: bool) -> Iterator[None]:
    """Show the progress of reading, and report it on an interrupt.

    Args:
        quiet: Show nothing except the message on an interrupt.

    Raises:
        KeyboardInterrupt: The user interrupted the work; the message has the work done so far.
    """
    from ckpttool.core.verbs import verifying  # a scan does not verify anything
    from ckpttool.core.verify.meter import Meter

    meter, ended, show = Meter(), threading.Event(), _bar if _can_draw() else _heartbeat
    # A daemon thread: if the terminal hangs, the result does not wait for it.
    watcher = threading.Thread(target=show, args=(meter, ended.wait), daemon=True)
    try:
        with verifying.watched(meter):
            if not quiet:
                watcher.start()
            yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_until_now(meter)) from None
    finally:
        ended.set()
        if not quiet:
            watcher.join()


def _can_draw() -> bool:
    """Return whether stderr is a terminal that can overwrite lines."""
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    return is_terminal and os.environ.get("TERM", "").lower() not in {"dumb", "unknown"}


def _until_now(meter: Meter) -> str:
    if not meter.shards_total:
        return ""
    them = "them" if meter.shards_kept == meter.shards_done else f"{meter.shards_kept} of these"
    retained = f"; the ledger keeps {them}" if meter.shards_kept else ""
    shards = counted(meter.shards_total, "shard")
    return f"after {meter.shards_done} of {shards}, {size(meter.bytes_done)}{retained}"


def _heartbeat(meter: Meter, wait: Callable[[float], bool]) -> None:
    """Print a progress line every `HEARTBEAT_SECONDS`."""
    began = time.monotonic()
    while not wait(HEARTBEAT_SECONDS):
        if not meter.shards_total:
            continue
        rate = meter.bytes_done / (time.monotonic() - began)
        seconds = (meter.bytes_total - meter.bytes_done) / rate if rate else None
        output.note(
            f"{size(meter.bytes_done)} of {size(meter.bytes_total)} read, {meter.shards_done} of "
            f"{counted(meter.shards_total, 'shard')}; {size(int(rate))}/s"
            + ("" if seconds is None else _about(seconds))
        )


def _about(seconds: float) -> str:
    """Format the remaining time."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f", about {hours} h {minutes} min left"
    return f", about {minutes} min left" if minutes else f", about {rest} s left"


def _bar(meter: Meter, wait: Callable[[float], bool]) -> None:
    """Draw a bar that moves within a shard, once the work takes long enough."""
    if wait(PATIENCE_SECONDS):
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    bar = Progress(
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
    )
    while not wait(REFRESH_SECONDS):
        if not meter.bytes_total:
            continue
        if not bar.task_ids:
            bar.add_task("", total=meter.bytes_total)
            bar.start()
        bar.update(bar.task_ids[0], completed=meter.bytes_done, total=meter.bytes_total, refresh=True)
    bar.stop()


@contextmanager
def busy(label: str, *, quiet: bool) -> Iterator[None]:
    """Show that work of unknown duration is running, once it takes long enough."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    timer, status = _spinner(label)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()


def _spinner(label: str) -> tuple[Timer, Status]:
    """Return a spinner, and the timer that starts it after a delay."""
    from threading import Timer

    from rich.console import Console

    status = Console(stderr=True).status(label)
    return Timer(PATIENCE_SECONDS, status.start), status
