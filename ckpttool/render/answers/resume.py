"""How a plan tells a program what to set and where the data go on, for every trainer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
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
from ckpttool.domain.load_settings import LoadSettings, PlaceKind
from ckpttool.domain.plan import ResumePlan
from ckpttool.render.escape import shown

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


def yaml_block(plan: ResumePlan, remarks: Iterable[str]) -> str:
    """Spell what is to stand in the training's config, to be pasted there; all that is no setting is a comment.

    Args:
        plan: With the path as the training shall see it.
        remarks: What else is to be said, a line each.

    Raises:
        UsageError: A value is no text that YAML can say.
    """
    from ckpttool.render.shell import join
    from ckpttool.render.yaml_edit import spell

    renames = (join(["mv", "--", rename.source, rename.target]) for rename in plan.load.first)
    comments = [*remarks, *(f"first rename, in the checkpoint folder: {command}" for command in renames)]
    settings = _Section()
    for setting in (*plan.load.settings, *plan.load.data):
        place, value = setting.place, spell(setting.value)
        if place.kind is not PlaceKind.CONFIG:
            comments.append(f"set elsewhere: {place}={value}")
        elif setting.is_default:
            comments.append(f"{place.name}: {value} is the default; set it where the config says otherwise")
        else:
            *sections, key = place.name.split(".")
            reduce(_Section.within, sections, settings)[key] = value
    return "\n".join((*(f"# {shown(comment)}" for comment in comments), *settings.lines()))


class _Section(dict[str, "str | _Section"]):
    """Keys of a config, each with its value as YAML, or with the section that it heads."""

    def within(self, name: str) -> _Section:
        found = self.setdefault(name, _Section())
        if isinstance(found, str):
            raise TypeError(f"{name} is a setting and a section")
        return found

    def lines(self, indent: str = "") -> Iterator[str]:
        for key, value in self.items():
            if isinstance(value, str):
                yield f"{indent}{key}: {value}"
            else:
                yield f"{indent}{key}:"
                yield from value.lines(f"{indent}  ")


_KINDS = {
    SkipBatches: "skip-batches",
    Samples: "samples",
    Tokens: "tokens",
    Stateful: "stateful",
    Unknown: "unknown",
}
