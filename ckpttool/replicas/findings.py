"""Findings that need a comparison of a tensor's copies."""

from __future__ import annotations

from ckpttool.core.findings import NOTE, UNKNOWN, Row, Rows


class ReplicasCode(metaclass=Rows):
    """Findings that need a comparison of a tensor's copies."""

    NO_DONOR = Row(
        "no-donor",
        weights=(UNKNOWN,),
        group="Checkpoints",
        headline="No other rank's shard is proven to be a copy",
        meaning=(
            "A shard is missing or damaged, and `repair shards` does not change it, because it never guesses. Equal "
            "shapes prove nothing, because the ranks of a tensor-parallel group also have equal shapes."
        ),
        evidence=(
            "No record of the trainer says which slices the ranks have (metadata.json beside the shards), and no two "
            "other checkpoints, one of them of the same run, show this rank and another one equal in every tensor. "
            "Or all copies are damaged or suspect, or they differ and there is no evidence which is right."
        ),
        to_do=(
            "Restore the shard from its disk or from a copy, or resume from an older checkpoint.",
            "Seal checkpoints when they are new, so that a copy can be verified:",
            "    ckpttool seal DIR",
        ),
    )

    REPLICAS_PARTED = Row(
        "replicas-parted",
        weights=(NOTE,),
        group="Shards",
        headline="Ranks whose tensors were equal before now all differ",
        meaning=(
            "All copies differ from each other, not only one from the rest: the parallel layout changed between the "
            "checkpoints, or the ranks are no longer kept equal. A comparison is not conclusive."
        ),
        evidence="Digests of the tensors at this checkpoint and at others are compared.",
        to_do=(
            "Nothing, if the parallel layout was changed. Otherwise check the loss of each rank from there on:",
            "    ckpttool health DIR",
        ),
    )
