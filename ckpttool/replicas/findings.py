"""What only comparing copies of a tensor finds."""

from __future__ import annotations

from ckpttool.core.findings import NOTE, UNKNOWN, Row, Rows


class ReplicasCode(metaclass=Rows):
    """What only comparing copies of a tensor finds."""

    NO_DONOR = Row(
        "no-donor",
        weights=(UNKNOWN,),
        group="Checkpoints",
        headline="Nothing proves that another rank's shard is a copy",
        meaning=(
            "A shard is missing or damaged, and `heal` leaves it so: it rebuilds none from a guess. Equal shapes prove "
            "nothing; ranks of a tensor-parallel group have them, too."
        ),
        evidence=(
            "No record of the trainer says which slices the ranks hold (metadata.json beside the shards), and no two "
            "other checkpoints, one of them of the same run, show the rank and another one equal in every tensor; or "
            "all that are copies are damaged or in doubt themselves, or differ from each other without anything that "
            "tells which is right."
        ),
        to_do=(
            "Bring the shard back from its disk or from a copy, or resume from an older checkpoint.",
            "Seal checkpoints as they come, so that a copy can be verified:",
            "    ckpttool seal DIR",
        ),
    )

    REPLICAS_PARTED = Row(
        "replicas-parted",
        weights=(NOTE,),
        group="Shards",
        headline="Ranks that held the same tensors each hold another now",
        meaning=(
            "Not one copy differs from the others, but all from each other: the parallel layout changed between the "
            "checkpoints, or the ranks are not kept equal any more. Nothing can be said by comparing them."
        ),
        evidence="The tensors' digests at this checkpoint and at others.",
        to_do=(
            "Nothing, if the parallel layout was changed. Else look at the loss of each rank from there on:",
            "    ckpttool health DIR",
        ),
    )
