"""Findings that only a watch of a training run in progress can report."""

from __future__ import annotations

from ckpttool.core.findings import SUSPECT, UNKNOWN, Row, Rows


class WatchCode(metaclass=Rows):
    """Findings that only a watch of a training run in progress can report."""

    SAVE_INCOMPLETE = Row(
        "save-incomplete",
        weights=(UNKNOWN,),
        group="Preflight",
        headline="A save was started, is incomplete and does not progress",
        meaning=(
            "Files of some ranks exist and others do not, and nothing of the save has changed for longer than "
            "--patience. Usually a rank hangs, or its machine is lost, while the others wait for it."
        ),
        evidence=(
            "`ckpttool watch` saw the save start. The limit is --patience, else three times the usual duration of "
            "a save here, at least ten minutes."
        ),
        to_do=(
            "Check the named ranks: the log of the hanging rank ends first. To find the newest intact checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    ROOM_LOW = Row(
        "room-low",
        weights=(SUSPECT,),
        group="Preflight",
        headline="After the next save, less space than requested will be free",
        meaning=(
            "With `--free-below`, `ckpttool watch` compares the free space with the size of the newest good "
            "checkpoint, before each save. The save itself will still fit; `disk-space-low` reports if it will not."
        ),
        evidence=(
            "The file system's own figures for unprivileged users, and quotas as reported by `quota` or `lfs quota`. "
            "The finding is reported once, until there is enough space again."
        ),
        to_do=(
            "Free disk space. To see what can be deleted:",
            "    ckpttool prune DIR --keep-last 3 --free 10%",
        ),
    )

    SAVE_OVERDUE = Row(
        "save-overdue",
        weights=(SUSPECT,),
        group="Preflight",
        headline="No checkpoint for much longer than usual",
        meaning=(
            "A run that saves at regular intervals has not saved for three times the usual interval. Usually it "
            "hangs, or it has ended. If the interval was changed, ignore the finding."
        ),
        evidence=(
            "The usual interval is the median of the last eight intervals that `ckpttool watch` saw. The finding is "
            "reported once, until the next checkpoint."
        ),
        to_do=(
            (
                "Check whether the training still makes progress. If it does not, resume from the newest intact "
                "checkpoint:"
            ),
            "    ckpttool resolve DIR",
        ),
    )
