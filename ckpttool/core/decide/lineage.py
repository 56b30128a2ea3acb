"""The way that a tree's trainings took: what lies on it, and what was left or done again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ckpttool.core.decide.tracker import TrackedLineage
from ckpttool.core.domain.checkpoint import Checkpoint, Inventory, RunSummary
from ckpttool.core.domain.finding import Code, Finding, note, suspect
from ckpttool.core.domain.progress import Progress
from ckpttool.core.domain.units import Step

if TYPE_CHECKING:
    from ckpttool.core.domain.data_position import PastSizes


class Lineage:
    """What a tree's runs say of each save."""

    def __init__(self, inventory: Inventory) -> None:
        """Compare the runs, or where names mark none the saves with the tracker."""
        self.inventory = inventory
        self.progress = Progress(inventory.checkpoints)
        self._tracked = TrackedLineage(inventory, self.progress)

    def abandoned(self, checkpoint: Checkpoint) -> Finding | None:
        """Tell whether the training went back behind this checkpoint and on from there.

        Returns:
            A finding that says which run did; None where the checkpoint is on the training's last course.
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
        """Tell whether a later run did this checkpoint's steps again and went on: then it went back behind it, too."""
        run = self._run_again(checkpoint)
        if run is None:
            return None
        why = f"run {run.run} did the steps from {run.first_step} on again"
        return self._branch(why, checkpoint, self.progress.of(checkpoint) or 0)

    def best_first(self, newest_first: Iterable[Checkpoint]) -> list[Checkpoint]:
        """Put what was done again behind all others: it is taken only where nothing on the last course is good."""
        return sorted(newest_first, key=lambda checkpoint: self._run_again(checkpoint) is not None)

    def overlaps(self, checkpoint: Checkpoint, *, is_named: bool = False) -> list[Finding]:
        """Say of one that is taken all the same that it is of an earlier run's course.

        Unless it was asked for by its name, that is because nothing else can be loaded.
        """
        run = self._run_again(checkpoint)
        if run is None:
            return []
        why = "" if is_named else ", but nothing of its course can be loaded"
        return [
            note(
                Code.RUN_REWOUND,
                (
                    f"run {run.run} did the steps from {run.first_step} on again{why}: {checkpoint.name} is on run "
                    f"{checkpoint.run}'s own course"
                ),
                remedy="choose an older one with --checkpoint if that course was left for a reason",
            )
        ]

    def rewinds(self) -> list[Finding]:
        """Say which runs were started behind an earlier run's last step."""
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
        """Tell what batch sizes the saves record by whose way the training came to a checkpoint, itself included."""
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
        from ckpttool.core.domain.data_position import PastSizes  # a scan asks for none

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
        """Return the runs that were started after a checkpoint's, with how far they were first and last."""
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
                f"{earlier.run}'s {self._where(earlier, earlier.last_step, last)}; what is higher there is an "
                "abandoned branch"
            ),
            remedy="name a checkpoint of the abandoned branch with --checkpoint to go back to it",
        )

    def _branch(self, why: str, checkpoint: Checkpoint, place: int) -> Finding:
        more = f" ({place} samples)" if self.progress.counts_samples(checkpoint.prefix) else ""
        return suspect(
            Code.ABANDONED_BRANCH,
            f"{why}, so step {checkpoint.step}{more} is on a branch that the training left",
            remedy=f"choose it with --checkpoint {checkpoint.name} if that is what you mean",
        )
