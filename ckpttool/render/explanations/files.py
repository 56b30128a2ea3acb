"""Findings about files that are no shard, or that could not be looked at."""

from __future__ import annotations

from ckpttool.domain.finding import Code, Severity
from ckpttool.render.explanations.base import NOTE, UNKNOWN, UNSAFE, Explanation

FILES = (
    Explanation(
        code=Code.STRAY_FILE,
        title="Not a part of any checkpoint",
        severities=NOTE,
        meaning="A backup folder such as rank_0_bak, weights without optimizer state, notes, anything whose name "
        "MindFormers gives no checkpoint. It is listed and never counted.",
        evidence="Names are matched as a whole.",
        mindformers="1.7 to 2.1 count every name that begins with rank_ as a rank, and stop because the last one is "
        "'not found'; a network file copied into rank_0/ is even chosen.",
        remedy=("Move it out of the folder if MindFormers is to resume by itself; a launch config does not mind.",),
    ),
    Explanation(
        code=Code.BREAKPOINT_FILE,
        title="Saved while an exception unwound: no checkpoint",
        severities=NOTE,
        meaning="exception_save leaves a *_breakpoint.ckpt. It holds the step within the epoch where the global step "
        "belongs, and only some ranks may have one.",
        evidence="The name ends in _breakpoint.ckpt.",
        mindformers="One such file in any rank's folder makes the whole resume fail ('Can't match epoch and step').",
        remedy=("Move it away if MindFormers is to resume by itself; a launch config does not mind.",),
    ),
    Explanation(
        code=Code.IN_PROGRESS,
        title="A temporary file: a save is under way, or was cut off",
        severities=NOTE + UNKNOWN,
        meaning="MindSpore writes NAME.tmp and renames it. If no training runs here, the save died, and the file may "
        "go. `prune` and `repair-meta` change nothing (unknown) while one is there, while a shard is younger than "
        "--grace, or while a prune is running.",
        evidence="The name ends in .tmp, or is one that Python gives a temporary file.",
        mindformers="Ignores it.",
        remedy=("If a training is running, look again when its save has ended:", "ckpttool scan DIR"),
    ),
    Explanation(
        code=Code.CHANGED_WHILE_READING,
        title="The file changed or vanished while it was looked at",
        severities=UNKNOWN,
        meaning="A save or a pruning is at work beside us. What was seen of it proves nothing and is not counted as "
        "good.",
        evidence="Size, time and inode before and after differ, twice in a row.",
        mindformers=None,
        remedy=("Run again when nothing writes here:", "ckpttool resolve DIR"),
    ),
    Explanation(
        code=Code.UNREADABLE,
        title="Could not be read: unknown, not damaged",
        severities=UNKNOWN,
        meaning="No permission (MindFormers writes shards with mode 0400), the disk answered with an error, or a link "
        "leads nowhere or round in a loop: the disk that it leads to is not mounted, say. Unknown is never counted as "
        "good.",
        evidence="The operating system refused; the message says why.",
        mindformers="Fails in the same way, unless it runs as another user.",
        remedy=(
            "Run as the user that trained; mount what a link leads to; after an I/O error look at the disk first:",
            "ckpttool scan DIR",
        ),
    ),
    Explanation(
        code=Code.NOT_A_REGULAR_FILE,
        title="A folder, FIFO or device under a shard's name",
        severities=(Severity.DAMAGE, Severity.UNSAFE),
        meaning="There should be a file. A folder is damage; a FIFO or a device could block a reader for ever, so it "
        "is refused.",
        evidence="The operating system tells the kind; nothing was opened. Links to regular files are followed; one "
        "that leads nowhere is unreadable.",
        mindformers="Looks at names alone, so it chooses even a folder.",
        remedy=("Put the file back, or mend the link, or take another checkpoint:", "ckpttool resolve DIR"),
    ),
    Explanation(
        code=Code.UNSAFE_NAME,
        title="A record names a file outside of its folder",
        severities=UNSAFE,
        meaning="A name with a slash, with `..`, control characters or a NUL stands where a plain file name belongs. "
        "It was not followed. No trainer writes that.",
        evidence="Every name that is read from a file is checked before it is used.",
        mindformers=None,
        remedy=("Find out who wrote that record. Do not let MindFormers near this folder before.",),
    ),
)
