"""Lineage of training runs in a tree: which saves led to the current state, and which were abandoned or repeated."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Inventory, RunSummary, Tracked
from ckpttool.core.domain.finding import Code, Finding, note, suspect
from ckpttool.core.domain.progress import Progress, newest_first
from ckpttool.core.domain.units import Step

if TYPE_CHECKING:
    from ckpttool.core.domain.data_position import PastSizes


CLEARLY_NS = 10 * 10**9
"""Time difference that separates two saves.

It is longer than the time between two writes of one copy, or the difference between clocks, but shorter than the time
between two saves.
"""


class Lineage:
    """Lineage of the saves in one tree."""

    def __init__(self, inventory: Inventory) -> None:
        """Compare the tree's runs with the tracker, or its saves if the names do not identify runs."""
        self.inventory = inventory
        self.progress = Progress(inventory.checkpoints)
        self._tracked = TrackedLineage(inventory, self.progress)

    def abandoned(self, checkpoint: Checkpoint) -> Finding | None:
        """Return a finding if the training went back to before this checkpoint and continued from there.

        Returns:
            A finding that names the later run; None if the checkpoint is on the current lineage.
        """
        place = self.progress.of(checkpoint)
        if place is None:
            return None
        later_runs = [(run, last) for run, _, last in self._later(checkpoint) if last < place]
        if later_runs:
            run, last = later_runs[-1]
            where = self._where(run, run.last_step, last)
            return self._branch(f"run {run.run} was started later and is at {where}", checkpoint, place)
        why = self._tracked.abandoned_because(checkpoint)
        return None if why is None else self._branch(why, checkpoint, place)

    def done_again(self, checkpoint: Checkpoint) -> Finding | None:
        """Return a finding if a later run repeated this checkpoint's steps and continued beyond them."""
        run = self._run_again(checkpoint)
        if run is None:
            return None
        why = f"run {run.run} repeated the steps from {run.first_step}"
        return self._branch(why, checkpoint, self.progress.of(checkpoint) or 0)

    def best_first(self, newest_first: Iterable[Checkpoint]) -> list[Checkpoint]:
        """Return the checkpoints with repeated checkpoints last.

        A repeated checkpoint is chosen only if the current lineage has no good checkpoint.
        """
        return sorted(newest_first, key=lambda checkpoint: self._run_again(checkpoint) is not None)

    def overlaps(self, checkpoint: Checkpoint, *, is_named: bool = False) -> list[Finding]:
        """Return a finding if a chosen checkpoint belongs to the lineage of an earlier run.

        Unless the user named it, this happens only if no other checkpoint can be loaded.
        """
        run = self._run_again(checkpoint)
        if run is None:
            return []
        why = "" if is_named else ", but none of its checkpoints can be loaded"
        return [
            note(
                Code.RUN_REWOUND,
                (
                    f"run {run.run} repeated the steps from {run.first_step}{why}: {checkpoint.name} is on run "
                    f"{checkpoint.run}'s own branch"
                ),
                remedy="choose an older checkpoint with --checkpoint if that branch was abandoned for a reason",
            )
        ]

    def rewinds(self) -> list[Finding]:
        """Return a finding for each run that started before the last step of an earlier run."""
        findings = []
        for later in self.inventory.runs:
            place = self.progress.of_run(later)
            earlier = [run for run in self.inventory.runs if run.prefix == later.prefix and run.run < later.run]
            ahead = [
                (run, run_progress[1], place[1])
                for run in earlier
                if place is not None
                and (run_progress := self.progress.of_run(run)) is not None
                and run_progress[1] > place[1]
            ]
            if ahead:
                run, last, own_last = ahead[-1]
                findings.append(self._rewound(run, last, later, own_last))
        return [*findings, *self._tracked.findings(self.inventory)]

    def past(self, checkpoint: Checkpoint) -> PastSizes:
        """Return the batch sizes recorded by the saves on the path to a checkpoint, including the checkpoint itself."""
        place = self.progress.of(checkpoint)
        saves = [
            save
            for save in self.inventory.checkpoints
            if save.prefix == checkpoint.prefix
            and save.run <= checkpoint.run
            and save.step is not None
            and self.abandoned(save) is None
        ]
        sizes = {
            size
            for save in saves
            if (size := self.progress.batch_size(save)) is not None
            and place is not None
            and (self.progress.of(save) or 0) <= place
        }
        steps = [save.step for save in saves if save.step is not None and self.progress.batch_size(save) is None]
        unrecorded = max((step for step in steps if step <= (checkpoint.step or 0)), default=0)
        from ckpttool.core.domain.data_position import PastSizes  # not needed for a scan

        return PastSizes(
            batch_sizes=tuple(sorted(sizes)),
            unrecorded_steps=unrecorded,
            why_unrecorded=checkpoint.rules.without_batch_size,
        )

    def _run_again(self, checkpoint: Checkpoint) -> RunSummary | None:
        place = self.progress.of(checkpoint)
        if place is None:
            return None
        return next((run for run, first, _ in reversed(self._later(checkpoint)) if first <= place), None)

    def _later(self, checkpoint: Checkpoint) -> list[tuple[RunSummary, int, int]]:
        """Return the runs that started after a checkpoint's run, each with its first and last position."""
        later = [
            (run, self.progress.of_run(run))
            for run in self.inventory.runs
            if run.prefix == checkpoint.prefix and run.run > checkpoint.run
        ]
        return [(run, *places) for run, places in later if places is not None]

    def _where(self, run: RunSummary, step: Step | None, place: int) -> str:
        more = (
            f" ({self.progress.position_text(place, run.prefix)})" if self.progress.counts_samples(run.prefix) else ""
        )
        return f"step {step}{more}"

    def _rewound(self, earlier: RunSummary, last: int, later: RunSummary, own_last: int) -> Finding:
        return note(
            Code.RUN_REWOUND,
            (
                f"run {later.run} was rewound: it is at {self._where(later, later.last_step, own_last)}, behind run "
                f"{earlier.run}'s {self._where(earlier, earlier.last_step, last)}; later steps there are an "
                "abandoned branch"
            ),
            remedy="to return to the abandoned branch, name one of its checkpoints with --checkpoint",
        )

    def _branch(self, why: str, checkpoint: Checkpoint, place: int) -> Finding:
        more = f" ({place} samples)" if self.progress.counts_samples(checkpoint.prefix) else ""
        return suspect(
            Code.ABANDONED_BRANCH,
            f"{why}, so step {checkpoint.step}{more} is on an abandoned branch",
            remedy=f"pass --checkpoint {checkpoint.name} to choose it anyway",
        )


class _When(Enum):
    """Time of a save relative to the tracker."""

    BEFORE = "before"
    AFTER = "after"
    BOTH = "both"
    UNKNOWN = "unknown"


class TrackedLineage:
    """Saves beyond the tracker, and the saves that the training abandoned.

    A tracker is the record in the root that is written at the end of every save. A checkpoint beyond it was saved
    before the training went back, or by a save that was interrupted before this last write. File times distinguish the
    two cases: a checkpoint of the first kind is older than the tracker, one of the second kind newer. If times are
    unreliable, for example in a copy, the number of such checkpoints decides: a training run that never went back has
    at most one.
    """

    def __init__(self, inventory: Inventory, progress: Progress) -> None:
        """Classify the checkpoints beyond the tracker.

        Args:
            inventory: The tree, with the times of the tracker and of saves with other numbers, if the disk shows them.
            progress: The progress of the same tree.
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
        least = place + (tracked.name in torn)  # an incomplete one does not replace another at the same step
        beyond = [
            checkpoint
            for checkpoint in inventory.checkpoints
            if (at := places.get(checkpoint.name)) is not None and at >= least and checkpoint.name != tracked.name
        ]
        self._told = progress.position_text(place, prefix)
        self._when = {checkpoint.name: _when(checkpoint, tracked.written_ns) for checkpoint in beyond}
        for name, when in self._when.items():
            if places[name] == place and when is _When.UNKNOWN:  # the tracker names the later of two at one step
                self._when[name] = _When.BEFORE
        complete = [
            checkpoint
            for checkpoint in beyond
            if checkpoint.name not in torn and self._when[checkpoint.name] is not _When.AFTER
        ]
        self._are_several = len(complete) > 1

    def abandoned_because(self, checkpoint: Checkpoint) -> str | None:
        """Return why the training abandoned a checkpoint; None if it did not, or if this is unknown."""
        when = self._when.get(checkpoint.name, _When.AFTER)
        if when is _When.BOTH:
            return f"some of its files are older than the tracker, at {self._told}, and some are newer"
        if when is _When.BEFORE or (when is _When.UNKNOWN and self._are_several):
            return f"the tracker shows that the training reached {self._told} after it"
        return None

    def findings(self, inventory: Inventory) -> list[Finding]:
        """Return a note about the checkpoints beyond the tracker."""
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
    """Return the prefix of the tracker's training run and its reported progress; None if unknown."""
    if not inventory.checkpoints:
        return None
    named = inventory.named(tracked.name)
    if named is not None:
        place = progress.of(named)
        return None if place is None else (named.prefix, place)
    prefix = newest_first(inventory.checkpoints)[0].prefix
    return None if tracked.step is None or progress.counts_samples(prefix) else (prefix, tracked.step)


def _is_torn(checkpoint: Checkpoint) -> bool:
    """Return whether a save is unfinished according to the listing, so that it does not prove a rewind."""
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
