"""Findings of `ckpttool preflight` that are about neither a shard nor a setting."""

from __future__ import annotations

from ckpttool.domain.finding import Code, Severity
from ckpttool.render.explanations.base import DAMAGE, NOTE, SUSPECT, UNKNOWN, Explanation

_STATVFS = "The file system's own figures for users without privileges; quotas are not in them."

PREFLIGHT = (
    Explanation(
        code=Code.CONFIG_UNUSABLE,
        title="The config cannot be used at all",
        severities=DAMAGE,
        meaning="It cannot be opened, is no YAML, has a key twice, or is larger than any config. Nothing else can be "
        "asked without it. The exit code is that of such an error, 2 or 15, instead.",
        evidence="PyYAML's own reading, and what it would pass over in silence: the second of two equal keys.",
        mindformers="Fails at the start, or takes the last of two equal keys.",
        remedy=("Mend the line that is named, then:", "ckpttool lint-config BASE.yaml"),
    ),
    Explanation(
        code=Code.NOTHING_TO_RESUME,
        title="There is no checkpoint that a launch could resume from",
        severities=DAMAGE,
        meaning="None is whole on every rank and not unhealthy. Beside this one stand all reasons against the "
        "newest, and the gravest against the next. The exit code is 11.",
        evidence="What `ckpttool resolve` found, at the level that was asked for.",
        mindformers="May start from damaged or random weights, or stop.",
        remedy=("See for each checkpoint why not:", "ckpttool resolve DIR"),
    ),
    Explanation(
        code=Code.NEWER_NOT_CHOSEN,
        title="A newer checkpoint is there and was not chosen",
        severities=(*NOTE, *SUSPECT, Severity.UNKNOWN),
        meaning="A launch would resume from an older one and do steps again. A note, or suspect with --strict; "
        "unknown where the newer one could not be looked at, for it may be whole.",
        evidence="What `ckpttool resolve` found against it; the gravest reason is told.",
        mindformers="Would often take it: it goes by names.",
        remedy=("See all reasons, and repair it if it is worth it:", "ckpttool resolve DIR"),
    ),
    Explanation(
        code=Code.CANNOT_ANSWER,
        title="A question could not be answered, so nothing is proven",
        severities=(Severity.UNKNOWN, Severity.UNSAFE),
        meaning="There is no checkpoint folder that ckpttool knows, something could not be read or kept changing, or "
        "an option cannot be meant. The exit code is the one of that error: 2, 12, 14 or 15.",
        evidence="The message is the error's own.",
        mindformers=None,
        remedy=("Do what the message says, or ask the question alone:", "ckpttool resolve DIR"),
    ),
    Explanation(
        code=Code.DISK_SPACE_LOW,
        title="The next saves will not fit on the disk",
        severities=SUSPECT,
        meaning="As many saves as are kept, and the one being written, must fit beside what is there: files of older "
        "runs are never removed by MindFormers.",
        evidence="Size of the checkpoint that is resumed from. " + _STATVFS,
        mindformers="Notices when a save fails, and has deleted the oldest one by then.",
        remedy=("Make room, or keep fewer. What is there:", "ckpttool scan DIR"),
    ),
    Explanation(
        code=Code.DISK_INODES_LOW,
        title="The file system has too few inodes for the next saves",
        severities=SUSPECT,
        meaning="Every shard is a file. There can be room for bytes and none for files.",
        evidence="Files of the checkpoint that is resumed from. " + _STATVFS,
        mindformers="Notices when a save fails with 'No space left on device'.",
        remedy=("Remove many small files, or save elsewhere. What is there:", "ckpttool scan DIR"),
    ),
    Explanation(
        code=Code.FOLDER_NOT_WRITABLE,
        title="This user may not write where the next save goes",
        severities=SUSPECT,
        meaning="MindFormers makes its folders for their owner and group alone. A check by another user than the one "
        "who trains says nothing about that one.",
        evidence="The system is asked, for the checkpoint folder and each rank's folder in it.",
        mindformers="Notices at the first save.",
        remedy=(
            "Start as the owner, or mend the mode. Where another user trains:",
            "ckpttool preflight --config BASE.yaml --allow folder-not-writable",
        ),
    ),
    Explanation(
        code=Code.DISK_UNKNOWN,
        title="Nobody can tell how much room there is",
        severities=UNKNOWN,
        meaning="The file system, or a shard whose size was needed, did not answer. The next saves may fit or not; a "
        "check that could not be made is never counted as passed.",
        evidence="Asking for free bytes and inodes, or for the size of a shard, ended in the error of the message.",
        mindformers=None,
        remedy=(
            "Look at the mount. Where it is known to be large enough:",
            "ckpttool preflight --config BASE.yaml --allow disk-unknown",
        ),
    ),
)
