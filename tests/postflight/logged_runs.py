"""The logs of a small training that crashed at step 530, and of its resumes from step 500, right and wrong."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.conftest import FIXTURES
from tests.support.training_logs import stamp

RUNS = FIXTURES / "resumed_runs"
BEFORE = str(RUNS / "before.csv")
TRUTH = json.loads((RUNS / "truth.json").read_text(encoding="utf-8"))
SAVES = tuple(TRUTH["saves"])

Row = Mapping[str, str]


def after(way: str) -> str:
    """The log of a resume."""
    return str(RUNS / f"after_{way}.csv")


def rows_of(path: str) -> list[Row]:
    """The rows of a log."""
    with Path(path).open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


def write_rows(path: Path, rows: Sequence[Row]) -> str:
    """Write rows as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=[*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def up_to(rows: Iterable[Row], last: int) -> list[Row]:
    """The rows up to a step."""
    return [row for row in rows if int(row["step"]) <= last]


def mindformers_lines(rows: Iterable[Row], *, minutes_later: int = 0) -> str:
    """The same rows as MindFormers prints them."""
    lines = []
    for row in rows:
        step = int(row["step"])
        time = stamp(step % 600 + minutes_later)
        lines.append(
            f"[INFO] {time},000 [mindformers/core/callback/callback.py:540] on_train_step_end: {{ Epoch:[  1/  2], "
            f"step:[{step:5d}/ 6500], loss: {row['loss']}, per_step_time: 157ms, lr: {row['lr']}, overflow cond: "
            f"False, loss_scale: 1.0, global_norm: [{row['grad_norm']}], train_throughput_per_npu: 3.023T\n"
        )
    return "".join(lines)
