"""What only a training log shows."""

from __future__ import annotations

from ckpttool.core.findings import NOTE, SUSPECT, Row, Rows


class HealthCode(metaclass=Rows):
    """What only a training log shows."""

    NORM_ABOVE_THRESHOLD = Row(
        "norm-above-threshold",
        weights=(SUSPECT,),
        check="health",
        taken_with="--ignore-health",
        group="Training logs",
        headline="The embedding local norm was too high when this checkpoint was saved",
        meaning=(
            "The sum of squares of the embedding's gradient, which the log shows at the step of the save, is at or "
            "above the threshold that you gave, or is NaN: the training was about to diverge, or had begun to."
        ),
        evidence=(
            "The step inside the shards is looked up in the log, where the checkpoint's own run wrote it. Of several "
            "ranks the worst one counts."
        ),
        trainers={
            "MindFormers": (
                "Judges the same number at the save, by the threshold that was set then, and calls NaN healthy."
            ),
        },
        to_do=(
            "An older, healthy one is chosen. All norms against the threshold, and which threshold fits:",
            "    ckpttool health DIR --threshold X",
            "    ckpttool calibrate LOG",
        ),
    )

    SAVED_IN_SPIKE = Row(
        "saved-in-spike",
        weights=(SUSPECT,),
        check="health",
        taken_with="--ignore-health",
        group="Training logs",
        headline="This checkpoint was saved in a spike of the gradient norm",
        meaning=(
            "Between the first step of a spike and the first one that is well again the weights take updates that are "
            "far too large. Steps that the trainer itself skipped do not count: they changed no weight."
        ),
        evidence="A robust z-score of the logarithm of the global norm, or --spike-threshold, over the log.",
        trainers={
            "MindFormers": "Its health monitor looks at the moment of the save alone.",
        },
        to_do=(
            "An older one is chosen. To go back further and pass the data of the spike:",
            "    ckpttool resolve DIR --log LOG --around-spike last",
        ),
    )

    SAVED_AFTER_STRIKE = Row(
        "saved-after-strike",
        weights=(SUSPECT,),
        check="health",
        taken_with="--ignore-health",
        group="Training logs",
        headline="This checkpoint was saved after a unit may have begun to compute wrong numbers",
        meaning=(
            "Silent data corruption was detected: a strike (several abnormal feature values in the window) or a wrong "
            "matrix product. Suspect is all that was saved since the first event of the group, hours before the "
            "strike; what was written into the weights stays there."
        ),
        evidence=(
            "The detector's lines in the logs of all ranks, counted again by its own rule; the time of a save is the "
            "log's time at its step, else the shard's modification time."
        ),
        to_do=(
            "Take the node of that rank out of the job and test it; an older checkpoint is chosen. The timeline:",
            "    ckpttool replay LOG --policy features --health-timeline DIR",
        ),
    )

    LOG_GOES_ON = Row(
        "log-goes-on",
        weights=(NOTE,),
        group="Training logs",
        headline="The training came further than the checkpoint that is resumed from",
        meaning=(
            "What was trained between its save and the end of the training is in no checkpoint that is taken, and is "
            "to be done again."
        ),
        evidence=(
            "The last step of the log, where the start of the training that saved the checkpoint is the last one that "
            "the log shows. Where the training went back later, nothing is said."
        ),
        trainers={
            "MindFormers": "Trains these steps again, with the same data.",
        },
        to_do=("Nothing to repair. Saving more often (`save_checkpoint_steps`) makes it less.",),
    )
