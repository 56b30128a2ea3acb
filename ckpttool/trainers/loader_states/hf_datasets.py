"""States of iterable data sets of Hugging Face's datasets: the shard and row of the innermost source.

Source:
    iterable_dataset.py of datasets 2.21 and 5.2, and runs of 5.2 with shuffle, interleave, concatenate, map, filter,
    take, skip, repeat and split_dataset_by_node. Arrow sources read ahead, so their row is only the end of a piece; the
    rebatched stage above them counts the rows that were yielded. The epoch grows only if the script calls
    `set_epoch`, so positions of two saves are not ordered by it.
"""

from __future__ import annotations

from ckpttool.core.domain.loader_state import LoaderState
from ckpttool.core.formats.torch.plain import text_at, value_at
from ckpttool.trainers.loader_states.counts import count_at

_INNER = "examples_iterable"
_SOURCES = ("ex_iterables", "previous_states")
_COUNTERS = (
    *("shard_idx", "shard_example_idx", "batch_idx", "ex_iterable_idx", "bit_generator_index_offset"),
    *("previous_state_example_idx", "num_examples_since_previous_state", "num_chunks_since_previous_state"),
    *("taken", "skipped", "stepped", "repeat_index"),
)
"""All counters that grow while the data set is read."""
_MOST_STAGES = 1000
"""Maximum number of stages and sources that are searched."""


def read(state: object) -> LoaderState | None:
    """Return the position in a state; None for a state of another kind."""
    if not isinstance(state, dict):
        return None
    is_source = {"shard_idx", "shard_example_idx"} <= state.keys()
    if not is_source and not isinstance(state.get(_INNER), dict):
        return None
    rows = _rows(value_at(state, _INNER))
    return LoaderState(
        kind="datasets",
        epoch=count_at(state, "epoch"),
        samples=rows,
        place=_place(state) if rows is None else None,
        never_moved=_never_moved(state),
    )


def _rows(stage: object) -> int | None:
    """Return the number of rows yielded, if the outermost stage counts them."""
    kind = text_at(stage, "type")
    if kind == "RebatchedArrowExamplesIterable":
        return count_at(stage, "batch_idx")
    if kind == "ExamplesIterable" and count_at(stage, "shard_idx") == 0:
        return count_at(stage, "shard_example_idx")
    return None


def _place(state: object) -> str | None:
    """Describe the shard and row of the innermost source, or the number of sources."""
    stage = state
    for _ in range(_MOST_STAGES):
        shard, row = count_at(stage, "shard_idx"), count_at(stage, "shard_example_idx")
        if shard is not None and row is not None:
            return f"shard {shard}, row {row}"
        for key in _SOURCES:
            sources = value_at(stage, key)
            if isinstance(sources, list):
                return f"{len(sources)} sources"
        stage = value_at(stage, _INNER)
        if stage is None:
            return None
    return None


def _never_moved(state: object) -> bool:
    """Return whether all counters of all stages and sources are 0."""
    known: list[int] = []
    waiting = [state]
    for _ in range(_MOST_STAGES):
        if not waiting:
            return bool(known) and not any(known)
        stage = waiting.pop()
        counts = [count_at(stage, key) for key in _COUNTERS]
        known += [count for count in counts if count is not None]
        inner = [value_at(stage, _INNER)]
        for key in _SOURCES:
            sources = value_at(stage, key)
            inner += sources[:_MOST_STAGES] if isinstance(sources, list) else []
        waiting += [stage for stage in inner if isinstance(stage, dict)]
    return False
