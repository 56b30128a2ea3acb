"""Metrics of a watch for Prometheus, in a file for the node exporter or over HTTP."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import VerdictWord
from ckpttool.core.errors import UsageError
from ckpttool.core.write.files import replace as write
from ckpttool.watch.model import EventKind, KnownSave, SaveState, Watched, WatchQuestion

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_NOT_JUDGED = ("saving", "incomplete", "unread")
"""The labels of a save without a verdict."""


class Measured(Protocol):
    """The values that a watch exports."""

    question: WatchQuestion
    known: Watched
    told: Counter[EventKind]
    """Number of events since the watch began, by kind. The next two values count from the same time."""
    hook_failures: int
    verified_bytes: int
    polled_at: float | None
    """Time of the last poll in seconds since 1970, or None if there was no poll yet."""
    free_bytes: ByteCount | None
    norm: float | None
    """Embedding local norm (sum of squares) at the last judged save, or None if no log has it."""


@contextmanager
def measured(watch: Measured) -> Iterator[Callable[[], None]]:
    """Serve a watch's metrics while the context is open, and yield a function that writes the metrics.

    Args:
        watch: The watch. Its question contains the destination of the metrics.

    Raises:
        UsageError: prometheus-client is not installed, or the address cannot be used.
    """
    question = watch.question
    if question.metrics is None and question.listen is None:
        yield lambda: None
        return
    try:
        from prometheus_client import CollectorRegistry, generate_latest, start_http_server
        from prometheus_client.registry import Collector
    except ImportError:
        raise UsageError("--metrics and --listen need prometheus-client: pip install 'ckpttool[watch]'") from None

    class Told(Collector):
        def collect(self) -> Iterator[Metric]:
            return _metrics(watch)

        def describe(self) -> list[Metric]:  # the metrics depend on the current state
            return []

    registry = CollectorRegistry()
    registry.register(Told())
    path = question.metrics
    server = None
    if question.listen is not None:
        host, port = question.listen
        try:
            server, _ = start_http_server(port, addr=host, registry=registry)
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise UsageError(f"--listen {host}:{port}: {why}") from None
    try:
        yield lambda: None if path is None else write(path, generate_latest(registry), overwrite=True, backup=False)
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()


def _metrics(watch: Measured) -> Iterator[Metric]:
    """Yield the known values. Unknown values are omitted, because no number represents them."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    watched = watch.known
    tree = os.path.realpath(watch.question.tree.path or ".").encode(errors="surrogateescape").decode(errors="replace")

    def gauge(name: str, about: str, value: float | None) -> Metric:
        family = GaugeMetricFamily(f"ckpttool_{name}", about, labels=["tree"])
        if value is not None:
            family.add_metric([tree], value)
        return family

    def counter(name: str, about: str, value: float) -> Metric:
        family = CounterMetricFamily(f"ckpttool_{name}", about, labels=["tree"])
        family.add_metric([tree], value)
        return family

    good = [save for save in watched.saves if save.state is SaveState.GOOD]
    step = good[0].step if good else None
    # After a run goes back to an earlier step, new good saves have lower steps.
    written = max((save.newest_ns for save in good if save.newest_ns is not None), default=None)
    when = None if written is None else written / 1e9
    yield gauge("newest_good_step", "Step of the newest checkpoint that was verified as good.", step)
    yield gauge(
        "newest_good_timestamp_seconds", "When the last good checkpoint was written, by the clock of the disk.", when
    )
    saves = GaugeMetricFamily("ckpttool_checkpoints", "Checkpoints of the tree by verdict.", labels=["tree", "verdict"])
    counts = Counter(_word(save) for save in watched.saves)
    for state in (*_NOT_JUDGED, *(verdict_word.value for verdict_word in VerdictWord)):
        saves.add_metric([tree, state], counts[state])
    yield saves
    events = CounterMetricFamily(
        "ckpttool_events", "Events reported since the watch was started, by kind.", labels=["tree", "event"]
    )
    for kind in EventKind:
        events.add_metric([tree, kind.value], watch.told[kind])
    yield events
    resume = None if watched.resume is None else watched.resume.is_wrong
    yield gauge("resume_wrong", "Whether the last start did not resume as planned, by the logs of both runs.", resume)
    last = watched.durations[-1] if watched.durations else None
    yield gauge("save_seconds", "From the first file of the last good checkpoint to its last one, as seen.", last)
    yield counter("verified_bytes", "Bytes read to verify since the watch was started.", watch.verified_bytes)
    yield counter("hook_failures", "Hooks that failed since the watch was started.", watch.hook_failures)
    yield gauge("last_poll_timestamp_seconds", "When the tree was last checked.", watch.polled_at)
    yield gauge("free_bytes", "Free bytes on the disk of the tree.", watch.free_bytes)
    yield gauge("embedding_local_norm", "Sum of squares, at the save that was judged last by a log.", watch.norm)


def _word(save: KnownSave) -> str:
    if save.state in {SaveState.GOOD, SaveState.BAD} and save.word is not None:
        return save.word.value
    if save.told_incomplete:
        return "incomplete"
    return "saving" if save.state is SaveState.SAVING else "unread"
