"""The differences between versions of MindFormers in choosing a checkpoint, as a table.

Source: the published wheels 1.3.2, 1.6.0, 1.7.0, 1.8.0, 1.9.0, 2.0.0 and 2.1.0, run on small trees.
"""

from __future__ import annotations

import re
from enum import Enum

from ckpttool.core.errors import UsageError

_SERIES = ("1.3", "1.6", "1.7", "1.8", "1.9", "2.0", "2.1")

KNOWN_VERSIONS = ("1.3.2", *_SERIES[1:])
"""Values of `--simulate-mindformers`, oldest first."""

_VERSION = re.compile(r"([0-9]+\.[0-9]+)(?:\.[0-9]+)?")


class Quirk(Enum):
    """A behaviour of some versions: the first and last series that show it, and a description."""

    READS_SAFETENSORS = "1.6", "2.1", "Follows `load_ckpt_format`; else only `.ckpt` exists"
    HAS_HEALTH_MONITOR = (
        "1.6",
        "2.1",
        "With its health monitor on, `health_ckpts.json` must have a healthy entry, but nothing is filtered by it",
    )
    TAKES_UNIFIED = "1.6", "2.1", "With safetensors, a `hyper_param.safetensors` in the folder ends the selection"
    CUTS_PREFIX_AT_FIRST_DASH = (
        "1.3",
        "1.3",
        "Ends a file's prefix at its first dash; else at the last one, so that a prefix may contain dashes",
    )
    KEEPS_DASH_IN_PREFIX = (
        "1.8",
        "2.1",
        "Compares `llama_rank_0-`, with which no other run's name begins, instead of `llama_rank_0`",
    )
    COUNTS_RANK_ENTRIES = (
        "1.7",
        "2.1",
        "Uses the number of entries that begin with `rank_` as the number of ranks, instead of the world size",
    )
    COUNTS_RANK_ENTRIES_FOR_TIMES = "1.8", "2.1", "Counts them like this also if file times decide"
    STARTS_AT_RANDOM_FROM_EMPTY_FOLDER = (
        "1.7",
        "2.1",
        "Starts from random weights if the folder is empty, with only a warning",
    )
    STEPS_FROM_RANK_0 = (
        "1.3",
        "1.7",
        "If ranks load different steps, all continue from rank 0's step; else each from its own",
    )
    HAS_ITERATIONS = "1.7", "2.1", "Supports the `iteration_*` layout"
    TAKES_HUGGING_FACE = (
        "1.8",
        "2.1",
        "Newer layout: a `model.safetensors.index.json` makes the folder itself the checkpoint",
    )
    LOOKS_FOR_HEALTHY_ITERATION = (
        "1.9",
        "2.1",
        "Newer layout, with its health monitor on: loads the newest iteration marked healthy, whatever its content",
    )

    def __init__(self, first: str, last: str, effect: str) -> None:
        self.series = _SERIES[_SERIES.index(first) : _SERIES.index(last) + 1]
        self.effect = effect


_COMMON_FIELDS = {
    "epoch_num": "1.7",
    "step_num": "1.7",
    "global_step": "1.7",
    "loss_scale": "1.7",
    "global_batch_size": "1.7",
    "ckpt_status": "1.9",
    "consumed_samples": "2.1",
    "data_plan_state": "2.1",  # of an unreleased 2.1; it is removed before the fields are counted
}
"""All fields that common.json may have, by the first series that reads each field.

Any other field is an error.
"""


def series_of(version: str) -> str:
    """Return the series of a version, which is the table's key.

    A patch release behaves like its series.

    Raises:
        UsageError: No such version is known.
    """
    match = _VERSION.fullmatch(version)
    if match is None or match[1] not in _SERIES:
        names = ", ".join(KNOWN_VERSIONS)
        raise UsageError(f"ckpttool cannot simulate MindFormers {version!r}; use one of {names}")
    return match[1]


def quirks_of(series: str) -> frozenset[Quirk]:
    """Return the quirks of the versions of a series."""
    return frozenset(quirk for quirk in Quirk if series in quirk.series)


def common_fields(series: str) -> frozenset[str]:
    """Return the fields of common.json that the versions of a series accept."""
    return frozenset(field for field, first in _COMMON_FIELDS.items() if series in _SERIES[_SERIES.index(first) :])
