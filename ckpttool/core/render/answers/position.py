"""The data position of a plan, and the effect on the samples, for every trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.data_position import (
    DataEffect,
    DataPosition,
    GoesOn,
    SampleSource,
    SkipBatches,
    Unknown,
    effect_of,
    skip_of,
)
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.units import counted
from ckpttool.core.render.answers.resume import fragment, setting_document
from ckpttool.core.render.escape import shown

if TYPE_CHECKING:
    from ckpttool.core.render.json import Document


def data_document(plan: ResumePlan) -> Document:
    """Return the data position in batches, or None if only the data loader's states record it."""
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
        **({"dataset_state": plan.data.where} if isinstance(plan.data, GoesOn) and plan.data.where is not None else {}),
    }


def position_document(position: DataPosition) -> Document:
    """Return the data position in the trainer's units; null for units that the trainer does not count."""
    record: dict[str, Document] = dict.fromkeys(("samples", "tokens", "batches", "repeated", "lost", "where", "why"))
    match position:
        case SkipBatches():
            record |= {"samples": position.samples, "batches": position.batches}
            record |= {"repeated": position.repeated_samples, "lost": position.lost_samples}
        case GoesOn():
            record |= {name: getattr(position, name) for name in record}
            if position.source is not None:
                record["source"] = position.source.value
            if position.exact_with:
                record["exact_with"] = [setting_document(setting) for setting in position.exact_with]
            if position.exact_if:
                record["exact_if"] = list(position.exact_if)
        case Unknown():  # pragma: no branch  mypy knows all
            record["why"] = position.why
    return {"kind": _kind(position), "effect": effect_of(position).value, **record}


def _kind(position: DataPosition) -> str:
    """Return how the position is counted: by skipped batches, data loader states, samples or tokens."""
    match position:
        case SkipBatches():
            return "skip-batches"
        case GoesOn():
            if position.where is not None:
                return "stateful"
            return "tokens" if position.samples is None and position.tokens is not None else "samples"
        case Unknown():  # pragma: no branch  mypy knows all
            return "unknown"


def data_rows(plan: ResumePlan) -> list[tuple[str, str]]:
    """Return the data settings as rows: the name, and the value with its meaning."""
    match plan.data:
        case Unknown(why=why):
            return [("data position", f"unknown: {shown(why)}  (next step {plan.next_step})")]
        case GoesOn(where=None, unchanged=SkipBatches() as skip):
            return _skip_settings(plan, skip)
        case GoesOn() as position:
            return _by_itself(plan, position)
        case SkipBatches() as skip:  # pragma: no branch  mypy knows all
            return _skip_settings(plan, skip)


def _by_itself(plan: ResumePlan, position: GoesOn) -> list[tuple[str, str]]:
    """Return the position at which a trainer continues without settings, the effect on the samples, and the remedy."""
    if position.where is not None:
        place = shown(position.where)
    elif position.samples is not None:
        place = f"after {counted(position.samples, 'sample')}"
    elif position.tokens is not None:
        place = f"after {counted(position.tokens, 'token')}"
    else:
        place = "not recorded in the checkpoint"
    details = [] if position.source is None else [_SOURCES[position.source]]
    is_exact = position.effect is DataEffect.EXACT
    if is_exact and position.why is not None:
        details.append(shown(position.why))
    if position.batches is not None:
        details.append(f"{counted(position.batches, 'batch', 'batches')} counted as read")
    rows = [("data position", f"{place}  ({'; '.join([*details, f'next step {plan.next_step}'])})")]
    if not is_exact:
        why = "" if position.why is None else f": {shown(position.why)}"
        rows.append(("data effect", f"{effect_words(position)}{why}"))
    if position.exact_if:
        rows.append(("exact if", shown("; ".join(position.exact_if))))
    if position.exact_with:
        rows.append(("exact with", ", ".join(shown(text) for _, text in fragment(position.exact_with))))
    return rows


_SOURCES = {
    SampleSource.CONTENT: "recorded in the checkpoint",
    SampleSource.COMPUTED: "computed from its step and batch size",
}


def effect_words(position: GoesOn) -> str:
    """Describe the effect on the samples, with numbers if they are known."""
    repeated = "some samples" if position.repeated is None else counted(position.repeated, "sample")
    lost = "some samples" if position.lost is None else counted(position.lost, "sample")
    return {
        DataEffect.EXACT: "exact",
        DataEffect.REPEATS: f"repeats {repeated}",
        DataEffect.LOSES: f"loses {lost}",
        DataEffect.REORDERS: "reorders",
        DataEffect.RESTARTS: "restarts" if position.repeated is None else f"restarts, {repeated} read again",
        DataEffect.REFUSES: "refuses",
        DataEffect.UNKNOWN: "unknown",
    }[position.effect]


def seen_twice(skip: SkipBatches) -> str | None:
    """Return the number of samples repeated because only whole batches and sinks can be skipped, or None if it is 0."""
    if skip.repeated_samples is None:
        return "less than one sink seen twice"
    return f"{counted(skip.repeated_samples, 'sample')} seen twice" if skip.repeated_samples else None


def _skip_settings(plan: ResumePlan, skip: SkipBatches) -> list[tuple[str, str]]:
    repeats = seen_twice(skip) or "no sample seen twice"
    batch = f" of {skip.global_batch_size} samples" if skip.global_batch_size is not None else ""
    place = f"batches{batch}" if skip.batches else "data from the beginning"
    detail = f"  ({place}; next step {plan.next_step}; {repeats})"
    # If the trainer counts without settings, none is needed, and this is the result, with the number first.
    changed = [setting for setting in plan.load.data if not setting.is_default or isinstance(plan.data, GoesOn)]
    rows = [
        (setting.place.name, str(skip.batches if setting.value is None else setting.value))
        for setting in sorted(changed, key=lambda setting: isinstance(setting.value, bool))
    ]
    (name, value), *rest = rows or [("data position", f"skip {skip.batches}")]
    return [(name, value + detail), *rest]
