"""Ways to avoid a spike and to continue after a stop, with each trainer's settings and the cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckpttool.core.domain.advice import Choice, DataDetour, SpikeAdvice, StopAdvice
from ckpttool.core.render.json import Document
from ckpttool.core.render.text import Indented, Pairs, line

if TYPE_CHECKING:
    from rich.console import RenderableType

Row = tuple[str, str]

_HEADLINES = {
    Choice.WAIT: "Do nothing",
    Choice.REWIND: "Go back and skip the bad data",
    Choice.NONE: "It has not recovered, and no checkpoint is early enough",
}


def advice_document(advice: SpikeAdvice | StopAdvice) -> Document:
    """Return the advice with all its numbers."""
    match advice:
        case SpikeAdvice():
            return {
                "kind": "spike",
                "choice": advice.choice.value,
                "reason": advice.reason,
                "onset": advice.spike.onset,
                "end": advice.spike.end,
                "wait_cost": advice.wait_cost,
                "rewind_cost": advice.rewind_cost,
                "detour": _detour_document(advice),
                "notes": list(advice.notes),
            }
        case StopAdvice():
            return {
                "kind": "stop",
                "stop": advice.stop,
                "good_batches_lost": advice.good_batches_lost,
                "detour": _detour_document(advice),
                "notes": list(advice.notes),
            }


def _detour_document(advice: SpikeAdvice | StopAdvice) -> Document:
    detour = advice.detour
    if detour is None:
        return None
    return {
        "checkpoint_step": detour.checkpoint_step,
        "skip_batches": detour.skip_batches,
        "first_skipped": detour.first_skipped,
        "last_skipped": detour.last_skipped,
        **{detour_.trainer: dict(detour_.config) if detour_.config else detour_.argument for detour_ in detour.detours},
        "samples_before": detour.samples_before,
        "samples_after": detour.samples_after,
    }


def advice_parts(advice: SpikeAdvice | StopAdvice) -> list[RenderableType]:
    """Show the advice for people."""
    parts: list[RenderableType] = [line(_headline(advice), style="bold"), Pairs(_rows(advice))]
    return parts + [Indented(line(note, style="dim")) for note in advice.notes]


def _headline(advice: SpikeAdvice | StopAdvice) -> str:
    match advice:
        case SpikeAdvice():
            return f"{_HEADLINES[advice.choice]}: {advice.reason}"
        case StopAdvice(detour=None):
            return f"Training stopped at step {advice.stop}, and there is no good checkpoint at or before it"
        case StopAdvice():
            return f"Resume after the stop at step {advice.stop}, with the data that follow it"


def _rows(advice: SpikeAdvice | StopAdvice) -> Iterator[Row]:
    if isinstance(advice, SpikeAdvice):
        end = "not yet over" if advice.spike.end is None else f"over at step {advice.spike.end}"
        yield "spike", f"from step {advice.spike.onset}, {end}"
        wait = (
            "unknown: it has not recovered"
            if advice.wait_cost is None
            else (f"{advice.wait_cost} steps with a bad loss curve")
        )
        yield "cost of waiting", wait
        cost = "-" if advice.rewind_cost is None else f"{advice.rewind_cost} steps to redo"
        yield "cost of going back", cost
    if advice.detour is not None:
        yield from _detour(advice, advice.detour)


def _detour(advice: SpikeAdvice | StopAdvice, detour: DataDetour) -> Iterator[Row]:
    if not advice.followed:
        yield "if you go back:", ""
    yield "checkpoint", f"step {detour.checkpoint_step}"
    if not detour.skip_batches:
        yield "skip", "nothing: the checkpoint is after the bad batches"
    else:
        yield "skip", f"{detour.skip_batches} batches, {detour.first_skipped} to {detour.last_skipped}"
    for trainers_detour in detour.detours:
        settings = trainers_detour.argument or ", ".join(f"{name}: {value}" for name, value in trainers_detour.config)
        if settings:
            yield trainers_detour.title, settings
    if detour.samples_before is not None:
        yield "consumed samples", f"{detour.samples_before} -> {detour.samples_after}"
