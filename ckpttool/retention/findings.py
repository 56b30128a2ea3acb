"""Findings about what a prune keeps or frees."""

from __future__ import annotations

from ckpttool.core.findings import NOTE, SUSPECT, UNKNOWN, Row, Rows


class RetentionCode(metaclass=Rows):
    """Findings about what a prune keeps or frees."""

    SAVE_TIME_UNKNOWN = Row(
        "save-time-unknown",
        weights=(NOTE,),
        group="Checkpoints",
        headline="It is unknown when a checkpoint was saved, so rules of time keep it",
        meaning=(
            "`--keep-within`, `--keep-hourly`, `--keep-daily` and `--keep-weekly` need the time of each save. Here "
            "the times of the files contradict the order of the steps, are equal, or follow each other without a "
            "pause, as in a copy that did not preserve times."
        ),
        evidence=(
            "The modification times of the shards, or the time of the commit that the trainer recorded. Two saves of "
            "a training are at least a minute apart, and the pause between them is at least twice as long as the time "
            "for writing one."
        ),
        to_do=(
            "Copy trees with their times (`cp -p`, `rsync -a`), or keep checkpoints by step:",
            "    ckpttool prune DIR --keep-last 3 --keep-every 10000",
        ),
    )

    ROOM_SHORT = Row(
        "room-short",
        weights=(SUSPECT,),
        group="Preflight",
        headline="Deleting checkpoints does not reach the requested space",
        meaning=(
            "`prune --free` or `--max-size` deleted, or would delete, everything that may be deleted, and the space is "
            "still not reached. Or the deletion freed less than planned, because other programs write to the disk, "
            "have deleted files open, or share their blocks with other files."
        ),
        evidence=(
            "The file system's own figures for unprivileged users, quotas as reported by `quota` or `lfs quota`, and "
            "the blocks of each file to delete. A file with another hard link frees nothing."
        ),
        to_do=(
            "Keep fewer checkpoints, free space elsewhere, or include more trees:",
            "    ckpttool prune DIR DIR2 --keep-last 1 --free 2TiB",
        ),
    )

    ROOM_UNKNOWN = Row(
        "room-unknown",
        weights=(UNKNOWN,),
        group="Preflight",
        headline="A quota or the size of a tree is unknown",
        meaning=(
            "A program that reports quotas failed or did not answer, or a folder could not be listed. The space that "
            "`prune --free` or `--max-size` shows may be too favourable."
        ),
        evidence="The message has the reason.",
        to_do=("Run `quota` or `lfs quota` yourself, or make the folder readable, and run the command again.",),
    )
