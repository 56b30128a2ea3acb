"""Conversion of named values to `StepMetrics`, for all logs with named columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.metrics import LogItem, LogNote, LogProblem, StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import UsageError
from ckpttool.core.formats.strict_json import Json
from ckpttool.core.logs.base import LogSource, UnreadableError, number, problem, rewind

_OF_MONITOR = tuple(f"lr-{optimizer}{group}" for optimizer in ("AdamW", "Adam", "SGD") for group in ("", "/pg1"))
"""Names that a monitor of optimizers gives the learning rate; with several groups, that of the first one."""

ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "step": ("step", "global_step", "iteration", "iter", "Step"),
        "loss": (
            *("loss", "train_loss", "train/loss", "lm loss", "lm_loss", "lm-loss"),
            *("train_loss_step", "loss_step", "train/loss_step"),
        ),
        "global_norm": (
            *("global_norm", "grad_norm", "gnorm", "grad norm", "train/grad_norm", "grad-norm"),
            "grad_2.0_norm_total",
        ),
        "embedding_local_norm": ("embedding_local_norm",),
        "overflow": ("overflow",),
        "skipped": ("skipped",),
        "time": ("time",),
        "consumed_samples": ("consumed_samples", "consumed samples"),
        "learning_rate": (
            *("learning_rate", "lr", "train/learning_rate", "learning rate", "learning-rate"),
            *_OF_MONITOR,
        ),
        "validation_loss": (
            *("validation_loss", "eval_loss", "val_loss", "valid_loss", "eval/loss", "val/loss", "validation/loss"),
            *("lm loss validation", "validation_metrics/loss"),
        ),
    }
)
"""Usual column names for each field of `StepMetrics`, most likely first."""

Row = tuple[int, Mapping[str, str]]
"""A line number, and the text of each field of `StepMetrics`; an empty text means no value."""

CURVES = frozenset({"learning_rate", "validation_loss"})
"""Fields that only comparisons of complete runs use, so that errors in them do not matter elsewhere."""
_NUMBERS = ("consumed_samples", "loss", "global_norm", "embedding_local_norm", *sorted(CURVES))
_IGNORED = frozenset({"epoch", "optimizer_step"})
"""Columns that users may name because logs have them, although they are not used."""
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def parse_columns(text: str) -> dict[str, str]:
    """Parse `step=iter,global_norm=gnorm` into a column for each field.

    Raises:
        UsageError: The text has a different form, or names a field that does not exist.
    """
    columns: dict[str, str] = {}
    for part in text.split(","):
        field, equals, column = (piece.strip() for piece in part.partition("="))
        if not equals or not column:
            raise UsageError(f"--columns: {part.strip()!r} is not field=column, as in step=iter,global_norm=gnorm")
        if field in _IGNORED:
            continue
        if field not in ALIASES:
            raise UsageError(f"--columns: unknown field {field!r}; known fields: {', '.join(ALIASES)}")
        columns[field] = column
    return columns


def resolve_columns(source: LogSource, names: frozenset[str]) -> dict[str, str]:
    """Return the log's column for each field; the user's choice takes precedence over the usual names."""
    chosen = dict(source.columns or {})
    for field, aliases in ALIASES.items():
        alias_used = next((alias for alias in aliases if alias in names), None)
        if alias_used is not None:
            chosen.setdefault(field, alias_used)
    return {field: name for field, name in chosen.items() if name in names}


def json_row(source: LogSource, record: Mapping[str, Json]) -> dict[str, str]:
    """Return the text of each field in an object; a list of one number counts as the number, as callbacks write it."""
    row: dict[str, str] = {}
    for field, name in resolve_columns(source, frozenset(record)).items():
        value = record[name]
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        row[field] = "" if value is None else str(value)
    return row


def steps_of(source: LogSource, rows: Iterable[Row | LogProblem | LogNote | None]) -> Iterator[LogItem]:
    """Yield one step per group of consecutive rows of that step, and a note for each point where the log goes back.

    Args:
        source: The log.
        rows: The rows of the log; None marks the start of another process, after which a repeated step is a separate
            step.
    """
    pending: StepMetrics | None = None
    is_new = False
    for row in rows:
        if row is None:
            is_new = True
            continue
        if isinstance(row, (LogProblem, LogNote)):
            yield row
            continue
        line, texts = row
        metrics, problems = _metrics(source, line, texts)
        yield from problems
        if metrics is None:
            continue
        if pending is not None and metrics.step == pending.step and not is_new:
            pending = replace(pending, **{field: v for field in ALIASES if (v := getattr(metrics, field)) is not None})
            continue
        if pending is not None:
            yield pending
            if metrics.step < pending.step + is_new:
                yield rewind(source, line, metrics.step, pending.step)
        pending, is_new = metrics, False
    if pending is not None:
        yield pending


def _metrics(source: LogSource, line: int, row: Mapping[str, str]) -> tuple[StepMetrics | None, list[LogProblem]]:
    """Return the step of a row, and a problem for each value that is not a number; such values are None."""
    row_text = ", ".join(f"{field}={text}" for field, text in row.items()).encode()
    problems: list[LogProblem] = []
    values: dict[str, float | None] = {}
    for field in ("step", *_NUMBERS):
        try:
            values[field] = number(row.get(field, "").encode())
        except UnreadableError as error:
            values[field] = None
            if field not in CURVES or source.curves:
                problems.append(problem(source, line, f"{field} {error}", row_text))
    step = values["step"]
    if step is None or not math.isfinite(step) or step != int(step) or step < 0:
        return None, [*problems, problem(source, line, "the row has no step", row_text)]
    metrics = StepMetrics(
        step=Step(int(step)),
        loss=values["loss"],
        global_norm=values["global_norm"],
        embedding_local_norm=values["embedding_local_norm"],
        overflow=_TRUTHS.get(row.get("overflow", "").strip().lower()),
        skipped=_TRUTHS.get(row.get("skipped", "").strip().lower()),
        time=row.get("time") or None,
        consumed_samples=_integer(values["consumed_samples"]),
        learning_rate=values["learning_rate"],
        validation_loss=values["validation_loss"],
    )
    return metrics, problems


def _integer(value: float | None) -> int | None:
    """Return the integer part of a value, because some trainers count fractions of epochs."""
    return int(value) if value is not None and math.isfinite(value) else None
