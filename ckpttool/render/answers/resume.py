"""How a plan tells a program what to set and where the data go on, for every trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.domain.data_position import (
    DataPosition,
    Samples,
    SkipBatches,
    Stateful,
    Tokens,
    Unknown,
    effect_of,
    skip_of,
)
from ckpttool.domain.load_settings import LoadSettings
from ckpttool.domain.plan import ResumePlan

if TYPE_CHECKING:
    from ckpttool.render.json import Document


def load_document(load: LoadSettings) -> Document:
    """Spell every setting with its place, and what must be done before."""
    return {
        "trainer": load.trainer,
        "path": load.path,
        "settings": [{"place": str(setting.place), "value": setting.value} for setting in (*load.settings, *load.data)],
        "first": [{"do": "rename", "from": rename.source, "to": rename.target} for rename in load.first],
    }


def data_document(plan: ResumePlan) -> Document:
    """Spell how the data go on where batches are counted; states of the data loader alone say where they are."""
    skip = skip_of(plan.data)
    if skip is None:
        return None
    return {
        "ignore_data_skip": skip.batches == 0,
        "data_skip_steps": skip.batches,
        "repeated_samples": skip.repeated_samples,
        "samples": skip.samples,
        "next_step": plan.next_step,
        "global_batch_size": skip.global_batch_size,
        "sink_size": skip.sink_size,
        **({"dataset_state": plan.data.where} if isinstance(plan.data, Stateful) else {}),
    }


def position_document(position: DataPosition) -> Document:
    """Spell where the data go on in any trainer's currency; null where that currency does not tell."""
    told: dict[str, Document] = dict.fromkeys(("samples", "tokens", "batches", "repeated", "lost", "where", "why"))
    match position:
        case SkipBatches():
            told |= {"samples": position.samples, "batches": position.batches}
            told |= {"repeated": position.repeated_samples, "lost": position.lost_samples}
        case Samples():
            told["samples"] = position.samples
        case Tokens():
            told["tokens"] = position.tokens
        case Stateful():
            told |= {"where": position.where, "repeated": 0, "lost": 0}
        case Unknown():  # pragma: no branch  mypy knows all
            told["why"] = position.why
    return {"kind": _KINDS[type(position)], "effect": effect_of(position).value, **told}


_KINDS = {
    SkipBatches: "skip-batches",
    Samples: "samples",
    Tokens: "tokens",
    Stateful: "stateful",
    Unknown: "unknown",
}
