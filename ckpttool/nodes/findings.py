"""What only shows if several machines wrote down what they see."""

from __future__ import annotations

from ckpttool.core.findings import NOTE, SUSPECT, UNKNOWN, Row, Rows


class NodesCode(metaclass=Rows):
    """What only shows if several machines wrote down what they see."""

    PART_MISSING = Row(
        "part-missing",
        weights=(NOTE, UNKNOWN),
        is_elsewhere=True,
        group="Checkpoints",
        headline="What one of the machines sees is not among the parts",
        meaning=(
            "Each machine wrote a part of what it sees, and one of them is not given, is torn, is another version's, "
            "or could not list the folder. Or a machine saw no shard at all on a disk of its own: it may have lost "
            "the last ranks, or looked at another folder. What is there is unknown, not missing: exit 14, never 11. A "
            "note, or nothing, where a number of ranks that was stated is there without it."
        ),
        evidence=(
            "Each part says which it is of how many, and its last line holds the number of its lines and a hash of "
            "them."
        ),
        to_do=(
            "Run the look again on that machine, and give its file with the others:",
            "    ckpttool part DIR --part I/N --out /shared/parts/",
        ),
    )

    PART_STALE = Row(
        "part-stale",
        weights=(NOTE, UNKNOWN),
        is_elsewhere=True,
        group="Checkpoints",
        headline="A machine looked before the save was written",
        meaning=(
            "A file of this checkpoint lacks on a machine that began to look before the others' files of it were "
            "written: it may be there by now. Or a part is of an older look than the newest, and is left out."
        ),
        evidence="The files' times are compared with the time at which the part began, less 60 s (`--skew`).",
        to_do=(
            "Look again on all machines.",
            "Remove the files of older looks from the folder.",
        ),
    )

    NOT_LOOKED_AT = Row(
        "not-looked-at",
        weights=(UNKNOWN,),
        is_elsewhere=True,
        group="Checkpoints",
        headline="A shard is listed by a machine and was looked at by none",
        meaning=(
            "A part lists the file and tells nothing of it, or it was looked at less hard than is asked for now. Or "
            "its checksum is in a record that lies on another machine alone, so that nobody compared it. Or the parts "
            "shared the files of a disk out as if all saw it, and they do not: then nobody looked at the rest."
        ),
        evidence="Each part holds what was seen of each shard, and how hard was looked.",
        to_do=(
            "Look again, as hard as you ask:",
            "    ckpttool part DIR --level checksum --out /shared/parts/",
        ),
    )

    NODES_DISAGREE = Row(
        "nodes-disagree",
        weights=(SUSPECT, UNKNOWN),
        is_elsewhere=True,
        group="Checkpoints",
        headline="Two machines read different things in one file",
        meaning=(
            "The file is on one disk, with one size, time and inode, and two machines saw different content. One of "
            "them has a bad cache, link, controller or memory. Of a whole tree it is said where all that stands "
            "against a checkpoint is that machines saw different things of it, other records or other files under one "
            "name: it may be whole, so nobody is told to start anew."
        ),
        evidence="The headers, the last bytes and, where all was read, the digests that the machines wrote down.",
        to_do=(
            "Read it on a third machine, and take out of the run the one that stands alone.",
            (
                "Where files and records differ, look again while nothing is saved, and remove what a former rank left "
                "behind."
            ),
        ),
    )

    RANK_ON_SEVERAL_NODES = Row(
        "rank-on-several-nodes",
        weights=(NOTE, SUSPECT),
        group="Checkpoints",
        headline="Several machines have a file of their own for one rank",
        meaning=(
            "The same path lies on the disks of several machines: a copy that was left on a replaced machine, say. "
            "Alike they are a note. Where they differ nobody knows which one the training would load: that depends on "
            "where the rank starts."
        ),
        evidence=(
            "The parts say on which disk each file lies; size, names, scalars and last bytes are compared, and the "
            "digests where all was read."
        ),
        to_do=("Remove the file on the machine where this rank will not start.",),
    )

    HALF_GONE = Row(
        "half-gone",
        weights=(NOTE,),
        group="Checkpoints",
        headline="One machine let its files of a checkpoint go, another has its own",
        meaning=(
            "A `prune` on the first machine moved what it had of it to its trash; the second has its files in their "
            "place. What is left is no checkpoint: it is not listed, nothing is resumed from it, and what others are "
            "taken for does not hang on it."
        ),
        evidence="The machines' parts name files of it in a trash that lie in their place on no machine.",
        to_do=(
            "Bring back what went, on the machine where it went:",
            "    ckpttool trash restore NAME DIR",
            "Where it is not wanted, remove what is left by hand.",
        ),
    )
