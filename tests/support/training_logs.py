"""Training logs as MindFormers writes them, with whatever a test wants to happen in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

_HEAD = "[mindformers/core/callback/callback.py:540] on_train_step_end:"
FIRST_DAY = "2025-03-01"


def stamp(step: int) -> str:
    """The time at which a step was logged: the first one at 08:00, one a minute."""
    minute = 8 * 60 + step
    return f"{FIRST_DAY} {minute // 60:02d}:{minute % 60:02d}:00"


def step_lines(step: int, norm: float, embedding: float | None = None) -> list[str]:
    """What is printed for a step."""
    head = f"[INFO] {stamp(step)},000 {_HEAD}"
    line = (
        f"{head} {{ Epoch:[  1/  2], step:[{step:5d}/ 6500], loss: 2.000, per_step_time: 157ms, lr: 1e-05, "
        f"overflow cond: False, loss_scale: 1.0, global_norm: [{norm:.6f}], train_throughput_per_npu: 3.023T"
    )
    lines = [line]
    if embedding is not None:
        lines.append(f"{head} embedding_local_norm: {embedding:.5f}")
    return lines


def skip_lines(step: int, norm: float, *, count: int, stop: bool) -> list[str]:
    """What is printed where the trainer itself skips a step."""
    head = f"[INFO] {stamp(step)},100 {_HEAD}"
    end = " 3.0, stop training" if stop else ": 3.0"
    row = (
        f"{head} Current global norm [{norm}] of step {step} has been {count} consecutive times greater than threshold"
    )
    return [f"{head} opt_global_step: {step - count}, skip_data_grad_norm_threshold: 3.0, is_skip: [ True]", row + end]


def calm(step: int) -> float:
    """A norm that trembles by a percent, the same in every run."""
    return 0.3 * (1 + 0.01 * ((step * 7919) % 101 - 50) / 50)


def write_log(
    path: Path,
    steps: Iterable[int],
    *,
    norms: Mapping[int, float] | None = None,
    embeddings: Mapping[int, float] | None = None,
    stop: int | None = None,
    in_a_row: int = 3,
    tells_stop: bool = True,
) -> Path:
    """Write a log.

    Args:
        path: Where; its folder is made.
        steps: Which steps.
        norms: Of some steps; the others are calm.
        embeddings: Embedding local norm of some steps; the others print none.
        stop: Where the trainer stops, after it has skipped so many in a row.
        in_a_row: How many.
        tells_stop: Whether it holds the last line, by which an exception goes: what the launcher catches does.
    """
    lines: list[str] = []
    for step in steps:
        norm = (norms or {}).get(step, calm(step))
        lines += step_lines(step, norm, (embeddings or {}).get(step))
        if stop is not None and stop - in_a_row < step <= stop:
            told = skip_lines(step, norm, count=step - stop + in_a_row, stop=step == stop)
            lines += told if tells_stop or step < stop else told[:1]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def spike(first: int, last: int, height: float = 50.0) -> dict[int, float]:
    """Norms of a spike."""
    return dict.fromkeys(range(first, last + 1), height)
