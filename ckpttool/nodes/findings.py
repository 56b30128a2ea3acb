"""Findings that need the parts of several machines."""

from __future__ import annotations

from ckpttool.core.findings import NOTE, SUSPECT, UNKNOWN, Row, Rows


class NodesCode(metaclass=Rows):
    """Findings that need the parts of several machines."""

    PART_MISSING = Row(
        "part-missing",
        weights=(NOTE, UNKNOWN),
        is_elsewhere=True,
        group="Checkpoints",
        headline="The part of one machine is missing",
        meaning=(
            "Each machine writes a part that describes the files it sees. One part is not given, is damaged, has "
            "another version, or could not list the folder. Or a machine saw no shard on its local disk: it may have "
            "lost the last ranks, or used another folder. Its files are unknown, not missing, so the exit code is "
            "14, never 11. It is a note, or not reported, if the stated number of ranks is complete without the part."
        ),
        evidence=(
            "Each part has its number and the number of parts; its last line has the number of its lines and a "
            "hash of them."
        ),
        to_do=(
            "Run ckpttool part on that machine again, and give its file with the others:",
            "    ckpttool part DIR --part I/N --out /shared/parts/",
        ),
    )

    PART_STALE = Row(
        "part-stale",
        weights=(NOTE, UNKNOWN),
        is_elsewhere=True,
        group="Checkpoints",
        headline="A machine recorded its part before the checkpoint was written",
        meaning=(
            "A file of this checkpoint is missing on a machine that started recording before the files of the others "
            "were written, so it may exist by now. Or a part belongs to an older collection than the newest, and is "
            "ignored."
        ),
        evidence="The file times are compared with the start time of the part, less 60 s (`--skew`).",
        to_do=(
            "Run ckpttool part again on all machines.",
            "Remove the files of older collections from the folder.",
        ),
    )

    NOT_LOOKED_AT = Row(
        "not-looked-at",
        weights=(UNKNOWN,),
        is_elsewhere=True,
        group="Checkpoints",
        headline="A machine listed a shard, and no machine checked it",
        meaning=(
            "A part lists the file without a result, or the file was checked at a lower level than requested now. Or "
            "its checksum is recorded only on another machine, so it was not compared. Or the parts divided the "
            "files as if all machines saw the same disk, but they do not, so the other files were not checked."
        ),
        evidence="Each part contains the result and the level of each shard's check.",
        to_do=(
            "Run ckpttool part again, at the level you need:",
            "    ckpttool part DIR --level checksum --out /shared/parts/",
        ),
    )

    NODES_DISAGREE = Row(
        "nodes-disagree",
        weights=(SUSPECT, UNKNOWN),
        is_elsewhere=True,
        group="Checkpoints",
        headline="Two machines read different content from one file",
        meaning=(
            "The file is on one disk, with one size, time and inode, and two machines read different content. One of "
            "them has a bad cache, link, controller or memory. It is reported for a whole tree if the only reason "
            "against a checkpoint is that machines saw different records, or different files under one name: the "
            "checkpoint may be intact, so the answer is unknown, not exit 11."
        ),
        evidence="The machines recorded different headers, last bytes or, if everything was read, digests.",
        to_do=(
            "Read the file on a third machine, and remove the machine that differs from the run.",
            (
                "If files and records differ, record again while no save is in progress, and remove files left "
                "behind by ranks that no longer run there."
            ),
        ),
    )

    RANK_ON_SEVERAL_NODES = Row(
        "rank-on-several-nodes",
        weights=(NOTE, SUSPECT),
        group="Checkpoints",
        headline="Several machines have their own file for one rank",
        meaning=(
            "The same path exists on the disks of several machines, for example because a copy was left on a "
            "replaced machine. Equal files are a note. If they differ, it is unknown which one the training would "
            "load: that depends on where the rank starts."
        ),
        evidence=(
            "The parts record the disk of each file. Size, names, scalars and last bytes are compared, and digests "
            "if everything was read."
        ),
        to_do=("Remove the file on the machine where this rank will not start.",),
    )

    HALF_GONE = Row(
        "half-gone",
        weights=(NOTE,),
        group="Checkpoints",
        headline="One machine deleted its files of a checkpoint, but another still has them",
        meaning=(
            "A `prune` on the first machine moved its files to the trash; the second still has its own. The "
            "remaining files are not a checkpoint: they are not listed, never resumed from, and not used as evidence "
            "about others."
        ),
        evidence="The machines' parts list files of it in the trash, and no machine has these files in the tree.",
        to_do=(
            "Restore them on the machine where they were deleted:",
            "    ckpttool trash restore NAME DIR",
            "If they are not needed, delete the remaining files by hand.",
        ),
    )
