"""Findings about the records of marks."""

from __future__ import annotations

from ckpttool.core.findings import NOTE, UNKNOWN, Row, Rows


class MarkCode(metaclass=Rows):
    """Findings about the records of marks."""

    MARK_STALE = Row(
        "mark-stale",
        weights=(NOTE,),
        check="health",
        group="Records",
        headline="A mark is about an earlier save of the same name",
        meaning=(
            "The checkpoint was marked, and its files were written again since then. The mark is not about the new "
            "files, so it does not count."
        ),
        evidence=(
            "The mark records the size, the time and samples of the content of up to eight files. A file has another "
            "size, or another time and other content."
        ),
        to_do=(
            "If the new save is also bad, mark it again:",
            "    ckpttool mark NAME DIR --bad REASON",
        ),
    )

    MARK_UNREADABLE = Row(
        "mark-unreadable",
        weights=(UNKNOWN,),
        check="health",
        taken_with="--ignore-health",
        leaves_open=True,
        group="Records",
        headline="The record of a mark cannot be read",
        meaning=(
            "A file in .ckpttool/marks is damaged, unreadable or unknown to this version. It may mark a checkpoint as "
            "bad, so the checkpoint does not count as good. If the record's checkpoint is unknown, resolve still "
            "chooses, and exits with 14."
        ),
        evidence="Each mark is one file that ends with a hash of its content. The newest mark of a checkpoint counts.",
        to_do=(
            "Set the mark again, which replaces the damaged one:",
            "    ckpttool mark NAME DIR --bad REASON",
            "    ckpttool mark NAME DIR --clear",
            "If the message names no checkpoint, restore the file from a copy, or remove it.",
        ),
    )
