"""Findings about what a prune keeps or frees."""

from __future__ import annotations

from ckpttool.core.findings import NOTE, Row, Rows


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
