"""Findings that a training log, not a shard, gives rise to."""

from __future__ import annotations

from ckpttool.domain.finding import Code, Severity
from ckpttool.render.explanations.base import SUSPECT, Explanation

TRAINING = (
    Explanation(
        code=Code.NORM_ABOVE_THRESHOLD,
        title="The embedding local norm was too high when this checkpoint was saved",
        severities=SUSPECT,
        meaning="The sum of squares of the embedding's gradient, which the log shows at the step of the save, is at or "
        "above the threshold that you gave, or is NaN: the training was about to diverge, or had begun to.",
        evidence="The step inside the shards is looked up in the log, where the checkpoint's own run wrote it. "
        "Of several ranks the worst one counts.",
        mindformers="Judges the same number at the save, by the threshold that was set then, and calls NaN healthy.",
        remedy=(
            "An older, healthy one is chosen. All norms against the threshold, and which threshold fits:",
            "ckpttool health DIR --threshold X",
            "ckpttool calibrate LOG",
        ),
    ),
    Explanation(
        code=Code.SAVED_IN_SPIKE,
        title="This checkpoint was saved in a spike of the gradient norm",
        severities=SUSPECT,
        meaning="Between the first step of a spike and the first one that is well again the weights take updates that "
        "are far too large. Steps that the trainer itself skipped do not count: they changed no weight.",
        evidence="A robust z-score of the logarithm of the global norm, or --spike-threshold, over the log.",
        mindformers="Its health monitor looks at the moment of the save alone.",
        remedy=(
            "An older one is chosen. To go back further and pass the data of the spike:",
            "ckpttool resolve DIR --log LOG --around-spike last",
        ),
    ),
    Explanation(
        code=Code.SAVED_AFTER_STRIKE,
        title="This checkpoint was saved after a unit may have begun to compute wrong numbers",
        severities=SUSPECT,
        meaning="Silent data corruption was detected: a strike (several abnormal feature values in the window) or a "
        "wrong matrix product. Suspect is all that was saved since the first event of the group, hours before the "
        "strike; what was written into the weights stays there.",
        evidence="The detector's lines in the logs of all ranks, counted again by its own rule; the time of a save is "
        "the log's time at its step, else the shard's modification time.",
        mindformers=None,
        remedy=(
            "Take the node of that rank out of the job and test it; an older checkpoint is chosen. The timeline:",
            "ckpttool replay LOG --policy features --health-timeline DIR",
        ),
    ),
    Explanation(
        code=Code.REWOUND_PAST,
        title="The way around the spike begins before this checkpoint",
        severities=SUSPECT,
        meaning="To get around a spike the training goes back to at least 100 steps before its onset and passes the "
        "data of the spike. This checkpoint lies later than that.",
        evidence="Its step against the step at which the log shows the onset (or the stop).",
        mindformers=None,
        remedy=("Leave --around-spike out to resume from the newest good one.",),
    ),
    Explanation(
        code=Code.LOG_UNREADABLE,
        title="A training log, or a line of it, cannot be read",
        severities=(Severity.NOTE, Severity.UNKNOWN),
        meaning="A note for a line: a digit lost on the way, a field cut off. What is read stands, and nothing was "
        "guessed. Unknown where a whole log could not be read, or not to its end, and where logs were to have a say "
        "and there is none, or no step in them.",
        evidence="Every line that looks like a step or a monitor's is read field by field; its number is given.",
        mindformers=None,
        remedy=(
            "For a line nothing. For a whole log give another copy; where its columns have other names, say which:",
            "ckpttool replay LOG --columns step=iter,global_norm=gnorm",
        ),
    ),
    Explanation(
        code=Code.LOG_GOES_ON,
        title="The training came further than the checkpoint that is resumed from",
        severities=(Severity.NOTE,),
        meaning="What was trained between its save and the end of the training is in no checkpoint that is taken, and "
        "is to be done again.",
        evidence="The last step of the log, where the start of the training that saved the checkpoint is the last one "
        "that the log shows. Where the training went back later, nothing is said.",
        mindformers="Trains these steps again, with the same data.",
        remedy=("Nothing to repair. Saving more often (`save_checkpoint_steps`) makes it less.",),
    ),
)
