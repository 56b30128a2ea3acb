"""Findings that only a training log can show."""

from __future__ import annotations

from ckpttool.core.findings import NOTE, SUSPECT, Row, Rows


class HealthCode(metaclass=Rows):
    """Findings that only a training log can show."""

    NORM_ABOVE_THRESHOLD = Row(
        "norm-above-threshold",
        weights=(SUSPECT,),
        check="health",
        taken_with="--ignore-health",
        group="Training logs",
        headline="The embedding local norm was too high when this checkpoint was saved",
        meaning=(
            "The sum of squares of the embedding's gradient at the step of the save, according to the log, is at "
            "or above your threshold, or is NaN: the training was about to diverge, or had started to."
        ),
        evidence=(
            "The step inside the shards is looked up in the part of the log that the checkpoint's own run wrote. "
            "If there are several ranks, the worst one counts."
        ),
        trainers={
            "MindFormers": (
                "Compares the same number with its own threshold at the time of the save, and records NaN as healthy."
            ),
        },
        to_do=(
            (
                "An older, healthy checkpoint is chosen. To compare all norms with the threshold, and to find a "
                "suitable threshold:"
            ),
            "    ckpttool health DIR --threshold X",
            "    ckpttool log calibrate LOG",
        ),
    )

    SAVED_IN_SPIKE = Row(
        "saved-in-spike",
        weights=(SUSPECT,),
        check="health",
        taken_with="--ignore-health",
        group="Training logs",
        headline="This checkpoint was saved during a spike of the gradient norm",
        meaning=(
            "Between the first step of a spike and the first normal one, the weights receive updates that are far "
            "too large. Steps that the trainer itself skipped do not count, because they changed no weight."
        ),
        evidence=(
            "The log's global norms are compared with --spike-threshold, or judged by a robust z-score of their "
            "logarithm."
        ),
        trainers={
            "MindFormers": "Its health monitor checks only the step of the save.",
        },
        to_do=(
            "An older checkpoint is chosen. To go back further and skip the data of the spike:",
            "    ckpttool resolve DIR --log LOG --around-spike last",
        ),
    )

    SAVED_AFTER_STRIKE = Row(
        "saved-after-strike",
        weights=(SUSPECT,),
        check="health",
        taken_with="--ignore-health",
        group="Training logs",
        headline="This checkpoint was saved after a device may have started to compute wrong values",
        meaning=(
            "Silent data corruption was detected: a strike (several abnormal feature values in the window) or a "
            "wrong matrix product. Everything saved since the first event of the group, hours before the strike, "
            "is suspect, because errors in the weights remain."
        ),
        evidence=(
            "The detector's lines in the logs of all ranks are counted again by its own rule. The time of a save is "
            "the time of its step in the log, else the modification time of the shard."
        ),
        to_do=(
            "Remove that rank's node from the job and test it; an older checkpoint is chosen. To show the timeline:",
            "    ckpttool log replay LOG --policy features --health-timeline DIR",
        ),
    )

    LOG_GOES_ON = Row(
        "log-goes-on",
        weights=(NOTE,),
        group="Training logs",
        headline="The training progressed further than the chosen checkpoint",
        meaning=(
            "The steps between its save and the end of the run are not in any usable checkpoint, and must be redone."
        ),
        evidence=(
            "The last step of the log is used, if the run that saved the checkpoint is the last one in the log. If "
            "the training went back later, nothing is reported."
        ),
        trainers={
            "MindFormers": "Trains these steps again, with the same data.",
        },
        to_do=("Nothing to repair. Saving more often (`save_checkpoint_steps`) reduces the loss.",),
    )
