"""TensorBoard's event files, where the `tensorboard` package is there to read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Protocol, cast

from ckpttool.domain.metrics import LogItem
from ckpttool.errors import UsageError
from ckpttool.logs.base import LogSource
from ckpttool.logs.fields import resolve_columns, steps_of


class _Scalar(Protocol):
    step: int
    value: float


class _Events(Protocol):
    def Reload(self) -> object: ...  # noqa: N802 (TensorBoard's name)

    def Tags(self) -> dict[str, list[str]]: ...  # noqa: N802 (TensorBoard's name)

    def Scalars(self, tag: str) -> Iterable[_Scalar]: ...  # noqa: N802 (TensorBoard's name)


class TensorBoard:
    """`events.out.tfevents.*`: one tag a field, as most trainers write them."""

    name = "tensorboard"

    def recognise(self, head: bytes) -> bool:
        """Tell from the first record, which every event file begins with."""
        return b"brain.Event:" in head[:64]

    def read(self, source: LogSource) -> Iterator[LogItem]:
        """Yield the steps in ascending order.

        Raises:
            UsageError: The package is not installed, or the events come through a pipe.
        """
        if source.path is None:
            raise UsageError(f"{source.name}: TensorBoard events can be read from an uncompressed file only")
        events = _open(source.path)
        events.Reload()
        tags = frozenset(events.Tags().get("scalars", ()))
        fields = {field: tag for field, tag in resolve_columns(source, tags).items() if field != "step"}
        rows: dict[int, dict[str, str]] = {}
        for field, tag in fields.items():
            for scalar in events.Scalars(tag):
                rows.setdefault(scalar.step, {"step": str(scalar.step)})[field] = repr(scalar.value)
        yield from steps_of(source, enumerate((rows[step] for step in sorted(rows)), 1))


def _open(path: str) -> _Events:
    try:
        module = import_module("tensorboard.backend.event_processing.event_accumulator")
    except ImportError:
        raise UsageError(
            f"{path} holds TensorBoard events: install the tensorboard package, or export the scalars as CSV"
        ) from None
    # 0: keep every point; by default it keeps a random sample of them.
    return cast("_Events", module.EventAccumulator(path, size_guidance={"scalars": 0}))
