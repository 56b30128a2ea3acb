"""What only shows while a training runs."""

from __future__ import annotations

from ckpttool.core.findings import SUSPECT, UNKNOWN, Row, Rows


class WatchCode(metaclass=Rows):
    """What only shows while a training runs."""

    SAVE_INCOMPLETE = Row(
        "save-incomplete",
        weights=(UNKNOWN,),
        group="Preflight",
        headline="A save was begun, is not whole and comes no further",
        meaning=(
            "Files of some ranks are there and others are not, and nothing of the save has changed for longer than "
            "patience lasts. Mostly a rank hangs, or its machine is gone, while the others wait for it."
        ),
        evidence=(
            "`ckpttool watch` saw the save begin. Patience is --patience, else three times what a save takes here, at "
            "least ten minutes."
        ),
        to_do=(
            (
                "Look at the ranks that are named: the log of the one that hangs ends first. The newest whole "
                "checkpoint meanwhile:"
            ),
            "    ckpttool resolve DIR",
        ),
    )

    SAVE_OVERDUE = Row(
        "save-overdue",
        weights=(SUSPECT,),
        group="Preflight",
        headline="No checkpoint has come for much longer than usual",
        meaning=(
            "A training that saves at a steady pace has not saved for three times as long. Mostly it hangs, or it has "
            "ended; after a change of the interval it is nothing."
        ),
        evidence=(
            "By the middle one of the last eight intervals that `ckpttool watch` saw. It is told once, until the next "
            "checkpoint comes."
        ),
        to_do=(
            "See whether the training still makes steps. If it does not, resume from the newest whole checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )
