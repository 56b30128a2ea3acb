"""Findings that only Megatron-LM can have."""

from __future__ import annotations

from ckpttool.core.findings import SUSPECT, UNKNOWN, Row, Rows


class MegatronCode(metaclass=Rows):
    """Findings that only Megatron-LM can have."""

    TRACKER_MIXES = Row(
        "tracker-mixes",
        weights=(SUSPECT, UNKNOWN),
        check="launch",
        group="Records",
        headline="The tracker makes the trainer load a different checkpoint",
        meaning=(
            "The plan names an iteration, and the tracker names another, `release`, or none. The tracker overrides "
            "the option, or is used in addition to it: for legacy saves with a distributed optimizer, Megatron-LM "
            "loads the moments from the tracker's iteration and the weights from the named one, without an error."
        ),
        evidence="The tracker is read in the same way as by the trainer, and compared with the planned checkpoint.",
        to_do=(
            "Point the tracker at the checkpoint to load:",
            "    ckpttool repair pointer DIR --checkpoint NAME --apply",
        ),
    )
