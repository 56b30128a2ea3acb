"""What only Megatron-LM can get wrong."""

from __future__ import annotations

from ckpttool.core.findings import SUSPECT, UNKNOWN, Row, Rows


class MegatronCode(metaclass=Rows):
    """What only Megatron-LM can get wrong."""

    TRACKER_MIXES = Row(
        "tracker-mixes",
        weights=(SUSPECT, UNKNOWN),
        check="launch",
        group="Records",
        headline="The tracker makes the trainer load something else than it is told",
        meaning=(
            "The plan names an iteration, and the tracker names another, `release`, or nothing that is one. What the "
            "tracker says goes before the option, or beside it: Megatron-LM's legacy saves with a distributed "
            "optimizer take the moments from the iteration of the tracker and the weights from the one that is named, "
            "without an error."
        ),
        evidence="The tracker is read as the trainer reads it, and compared with the checkpoint of the plan.",
        to_do=(
            "Let the tracker name the checkpoint that is to be loaded:",
            "    ckpttool repair-meta DIR --checkpoint NAME --apply",
        ),
    )
