"""The answer of `scale-skip`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.data_position import SkipAnswer
from ckpttool.core.domain.units import counted
from ckpttool.core.render.text import Summary

if TYPE_CHECKING:
    from ckpttool.core.render.json import Document


def document(answer: SkipAnswer) -> Document:
    """Return `ckpttool/skip/1`, the answer of `scale-skip`."""
    skip = answer.skip
    return {
        "schema": "ckpttool/skip/1",
        "steps": answer.steps,
        "old_global_batch_size": answer.old_global_batch,
        "new_global_batch_size": skip.global_batch_size,
        "samples": skip.samples,
        "batches": skip.batches,
        "data_skip_steps": None if answer.told is None else skip.batches,
        "ignore_data_skip": None if answer.told is None else skip.batches == 0,
        "repeated_samples": skip.repeated_samples,
        "exact": skip.repeated_samples == 0,
        "exact_global_batch_sizes": list(answer.exact_sizes),
        "sink_size": skip.sink_size,
    }


def table(answer: SkipAnswer) -> Summary:
    """Show the answer of `scale-skip`."""
    skip, trainers_skip = answer.skip, answer.told
    setting = "batches to skip" if trainers_skip is None else trainers_skip.setting
    headline = f"{setting}: {skip.batches if trainers_skip is None else trainers_skip.value}"
    remark = ""
    if trainers_skip is not None and trainers_skip.remark is not None:
        remark = f"  ({trainers_skip.remark})"
    old = f" of {answer.old_global_batch} samples" if answer.old_global_batch is not None else " of several sizes"
    new = f" of {skip.global_batch_size} samples" if skip.global_batch_size is not None else ""
    before, after = (counted(number, "batch", "batches") for number in (answer.steps, skip.batches))
    lines = [f"{before}{old} = {counted(skip.samples or 0, 'sample')} = {after}{new}"]
    if answer.by_trainer is not None:
        lines[0] = f"{counted(skip.samples or 0, 'sample')} consumed = {after}{new}"
        lines.append(f"nothing has to be set: {answer.by_trainer}")
    elif skip.repeated_samples:
        lines.append(f"{counted(skip.repeated_samples, 'sample')} left over: seen twice, none lost")
    if skip.sink_size is not None:
        as_who = "" if trainers_skip is None else f", {trainers_skip.whole_sinks}"
        lines.append(f"rounded down to whole sinks of {skip.sink_size} batches{as_who}")
    if answer.exact_sizes:
        lines.append(f"exact with a global batch size of {' or '.join(map(str, answer.exact_sizes))}")
    return Summary(headline, lines, style="bold green", remark=remark)
