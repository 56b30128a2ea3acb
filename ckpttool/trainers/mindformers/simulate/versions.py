"""In what the versions of MindFormers differ when they select a checkpoint: one table, no code."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ckpttool.core.errors import UsageError

_COMMON_1_7 = frozenset({"epoch_num", "step_num", "global_step", "loss_scale", "global_batch_size"})
_COMMON_1_9 = _COMMON_1_7 | {"ckpt_status"}
# `data_plan_state` of an unreleased 2.1 is dropped before the fields are counted.
_COMMON_2_1 = _COMMON_1_9 | {"consumed_samples", "data_plan_state"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """What one version does. The defaults are the oldest version's.

    Source: the published wheels 1.3.2, 1.6.0, 1.7.0, 1.8.0, 1.9.0, 2.0.0 and 2.1.0, run on small trees.
    """

    reads_safetensors: bool = False
    """Follows `load_ckpt_format`; else only `.ckpt` exists."""
    has_health_monitor: bool = False
    """With its health monitor on, `health_ckpts.json` must have a healthy entry; which one that is filters nothing."""
    takes_unified: bool = False
    """With safetensors, a `hyper_param.safetensors` in the folder ends the selection."""
    cuts_prefix_at_first_dash: bool = False
    """Ends a file's prefix at its first dash; else at the last one, so that a prefix may hold dashes."""
    keeps_dash_in_prefix: bool = False
    """Compares `llama_rank_0-`, which no other run's name begins with, instead of `llama_rank_0`."""
    counts_rank_entries: bool = False
    """Takes the number of entries that begin with `rank_` for the number of ranks, instead of the world size."""
    counts_rank_entries_for_times: bool = False
    """Counts them so where the times of files decide, too."""
    starts_at_random_from_empty_folder: bool = False
    """Takes an empty folder for a start from random weights, with only a warning."""
    steps_from_rank_0: bool = False
    """Where ranks load different steps, all count on from rank 0's; else each from its own."""
    has_iterations: bool = False
    """Knows the `iteration_*` layout."""
    takes_hugging_face: bool = False
    """Newer layout: a `model.safetensors.index.json` makes the folder itself the checkpoint."""
    looks_for_healthy_iteration: bool = False
    """Newer layout, with its health monitor on: takes the newest iteration whose `common.json` says healthy, unseen."""
    common_fields: frozenset[str] = frozenset()
    """All that may stand in common.json: one field more is an error."""


_V1_3 = Quirks(cuts_prefix_at_first_dash=True, steps_from_rank_0=True)
_V1_6 = replace(
    _V1_3, cuts_prefix_at_first_dash=False, reads_safetensors=True, has_health_monitor=True, takes_unified=True
)
_V1_7 = replace(
    _V1_6,
    counts_rank_entries=True,
    starts_at_random_from_empty_folder=True,
    has_iterations=True,
    common_fields=_COMMON_1_7,
)
_V1_8 = replace(
    _V1_7,
    keeps_dash_in_prefix=True,
    counts_rank_entries_for_times=True,
    steps_from_rank_0=False,
    takes_hugging_face=True,
)
_V1_9 = replace(_V1_8, looks_for_healthy_iteration=True, common_fields=_COMMON_1_9)
_V2_1 = replace(_V1_9, common_fields=_COMMON_2_1)

_SERIES = {"1.3": _V1_3, "1.6": _V1_6, "1.7": _V1_7, "1.8": _V1_8, "1.9": _V1_9, "2.0": _V1_9, "2.1": _V2_1}

KNOWN_VERSIONS = ("1.3.2", "1.6", "1.7", "1.8", "1.9", "2.0", "2.1")
"""What `--simulate-mindformers` takes, oldest first."""

_VERSION = re.compile(r"([0-9]+\.[0-9]+)(?:\.[0-9]+)?")


def quirks_of(version: str) -> Quirks:
    """Return what this version does; a patch release does what its series does.

    Raises:
        UsageError: No such version is known. A guess would be no better than none.
    """
    match = _VERSION.fullmatch(version)
    quirks = _SERIES.get(match[1]) if match else None
    if quirks is None:
        names = ", ".join(KNOWN_VERSIONS)
        raise UsageError(f"no MindFormers {version!r} is known to simulate; take one of {names}")
    return quirks
