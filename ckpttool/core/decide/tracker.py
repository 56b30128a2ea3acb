"""What a tracker tells of the training's course: the record in the root which is written at the end of every save.

So whatever is further than it was saved before the training went back, or by a save that was cut off before this last
write. Times tell which: the one was there before the tracker was written, the other came after it. Where they do not
tell, as in a copy, their number does: a training that only went forward has one such save at most.
"""

from __future__ import annotations

from enum import Enum

from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Inventory, Tracked
from ckpttool.core.domain.finding import Code, Finding, note
from ckpttool.core.domain.progress import Progress, newest_first

CLEARLY_NS = 10 * 10**9
"""Between two writes of one copy there is less, as there may be between clocks; between two saves there is more."""


class _When(Enum):
    """When a checkpoint was saved, beside the tracker."""

    BEFORE = "before"
    AFTER = "after"
    BOTH = "both"
    UNKNOWN = "unknown"


class TrackedLineage:
    """The checkpoints that are further than the tracker, and which of them the training left."""

    def __init__(self, inventory: Inventory, progress: Progress) -> None:
        """Sort out what the tracker does not cover.

        Args:
            inventory: With the times of the tracker and of what is numbered otherwise, where the disk tells them.
            progress: Of the same tree.
        """
        tracked = inventory.tracked
        self._said = None if tracked is None else _reported_progress(tracked, inventory, progress)
        self._when: dict[str, _When] = {}
        if tracked is None or self._said is None:
            return
        prefix, place = self._said
        places = {
            checkpoint.name: progress.of(checkpoint)
            for checkpoint in inventory.checkpoints
            if checkpoint.prefix == prefix
        }
        torn = {checkpoint.name for checkpoint in inventory.checkpoints if _is_torn(checkpoint)}
        least = place + (tracked.name in torn)  # of two that are as far a torn one replaces none
        beyond = [
            checkpoint
            for checkpoint in inventory.checkpoints
            if (at := places.get(checkpoint.name)) is not None and at >= least and checkpoint.name != tracked.name
        ]
        self._told = progress.position_text(place, prefix)
        self._when = {checkpoint.name: _when(checkpoint, tracked.written_ns) for checkpoint in beyond}
        for name, when in self._when.items():
            if places[name] == place and when is _When.UNKNOWN:  # of two that are as far the tracker names the last
                self._when[name] = _When.BEFORE
        complete = [
            checkpoint
            for checkpoint in beyond
            if checkpoint.name not in torn and self._when[checkpoint.name] is not _When.AFTER
        ]
        self._are_several = len(complete) > 1

    def abandoned_because(self, checkpoint: Checkpoint) -> str | None:
        """Say why the training left a checkpoint; None where it did not, or nothing tells."""
        when = self._when.get(checkpoint.name, _When.AFTER)
        if when is _When.BOTH:
            return f"some of its files are older than the tracker, at {self._told}, and some are newer"
        if when is _When.BEFORE or (when is _When.UNKNOWN and self._are_several):
            return f"the tracker says that the training came to {self._told} after it"
        return None

    def findings(self, inventory: Inventory) -> list[Finding]:
        """Say in a note what is further than the tracker."""
        beyond = [checkpoint for checkpoint in inventory.checkpoints if checkpoint.name in self._when]
        abandoned = [checkpoint.name for checkpoint in beyond if self.abandoned_because(checkpoint) is not None]
        cut = [checkpoint.name for checkpoint in beyond if checkpoint.name not in abandoned]
        findings = []
        if abandoned:
            many = f"{len(abandoned)} iterations" if len(abandoned) > 1 else abandoned[0]
            message = (
                f"the tracker is at {self._told}, behind {many}: the training was rewound, "
                f"and {'they are' if len(abandoned) > 1 else 'it is'} an abandoned branch"
            )
            findings.append(note(Code.RUN_REWOUND, message, path=abandoned[0]))
        if cut:
            many = f"{len(cut)} iterations beyond it were saved" if len(cut) > 1 else f"{cut[0]} was saved"
            them = "them" if len(cut) > 1 else "it"
            message = f"the tracker is at {self._told}; {many}, but the tracker was not written after {them}"
            findings.append(note(Code.TRACKER_DISAGREES, message, path=cut[0]))
        return findings


def _reported_progress(tracked: Tracked, inventory: Inventory, progress: Progress) -> tuple[str, int] | None:
    """Return the training that the tracker is of, and how far it says that it came; None where that is not known."""
    if not inventory.checkpoints:
        return None
    named = inventory.named(tracked.name)
    if named is not None:
        place = progress.of(named)
        return None if place is None else (named.prefix, place)
    prefix = newest_first(inventory.checkpoints)[0].prefix
    return None if tracked.step is None or progress.counts_samples(prefix) else (prefix, tracked.step)


def _is_torn(checkpoint: Checkpoint) -> bool:
    """Tell whether a save was not finished, as far as the listing shows: such a one proves no rewind."""
    missing = any(finding.code is Code.SHARD_MISSING for finding in checkpoint.findings)
    return missing or checkpoint.commit in {CommitState.UNCOMMITTED, CommitState.UNKNOWN}


def _when(checkpoint: Checkpoint, written_ns: int | None) -> _When:
    times = [shard.modified_ns for shard in checkpoint.shards if shard.modified_ns is not None]
    if written_ns is None or not times:
        return _When.UNKNOWN
    is_older, is_newer = min(times) <= written_ns - CLEARLY_NS, max(times) >= written_ns + CLEARLY_NS
    if is_older and is_newer:
        return _When.BOTH
    if max(times) <= written_ns - CLEARLY_NS:
        return _When.BEFORE
    return _When.AFTER if min(times) >= written_ns + CLEARLY_NS else _When.UNKNOWN
