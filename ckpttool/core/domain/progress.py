"""Progress of saves in a training run, measured in samples if batch sizes differ.

When a trainer resumes with a different global batch size, it may scale its step counter, so step 60 with 16 samples per
step is further than step 100 with 8. The steps of two runs are comparable only if their batch sizes are not known to
differ.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from ckpttool.core.domain.checkpoint import Checkpoint, RunSummary
from ckpttool.core.domain.units import Step


class Progress:
    """Comparison of the progress of saves from different runs."""

    def __init__(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Collect the batch sizes of the checkpoints.

        Args:
            checkpoints: All checkpoints of a tree, or of one training run in it, in any order.
        """
        counts: dict[tuple[str, int], Counter[int]] = defaultdict(Counter)
        sizes: dict[str, set[int]] = defaultdict(set)
        counted: dict[str, bool] = {}
        for checkpoint in checkpoints:
            size, samples = checkpoint.scalars.global_batch_size, checkpoint.scalars.samples
            counted[checkpoint.prefix] = counted.get(checkpoint.prefix, True) and samples is not None
            if size is not None:
                counts[checkpoint.prefix, checkpoint.run][size] += 1
                sizes[checkpoint.prefix] |= {size} if checkpoint.label is None else set()
        self._of_run = {key: _most(votes) for key, votes in counts.items()}
        for key, votes in counts.items():
            usual = self._of_run[key]
            sizes[key[0]] |= set(votes) if usual is None else {usual}
        self._in_samples = {prefix for prefix, all_count in counted.items() if all_count or len(sizes[prefix]) > 1}

    def counts_samples(self, prefix: str) -> bool:
        """Return whether saves are compared by samples.

        This is so if all of them record samples, or if batch sizes differ.
        """
        return prefix in self._in_samples

    def batch_size(self, checkpoint: Checkpoint) -> int | None:
        """Return the global batch size of a checkpoint's steps, in samples; None if unknown.

        A run that is identified by names has one batch size, which is the size in most of its saves.
        """
        if checkpoint.label is None:
            return checkpoint.scalars.global_batch_size
        return self._of_run.get((checkpoint.prefix, checkpoint.run))

    def samples(self, checkpoint: Checkpoint) -> int | None:
        """Return the number of samples that training had consumed at a save; None if unknown."""
        if checkpoint.label is None:
            return checkpoint.samples
        size = self.batch_size(checkpoint)
        return None if size is None or checkpoint.step is None else checkpoint.step * size

    def of(self, checkpoint: Checkpoint) -> int | None:
        """Return the progress of a save as a number that is comparable within its training run; None if unknown."""
        return self.samples(checkpoint) if self.counts_samples(checkpoint.prefix) else checkpoint.step

    def of_run(self, run: RunSummary) -> tuple[int, int] | None:
        """Return the progress of a run at its first and last save; None if unknown."""
        if run.first_step is None or run.last_step is None:
            return None
        if not self.counts_samples(run.prefix):
            return run.first_step, run.last_step
        size = self._of_run.get((run.prefix, run.run))
        return None if size is None else (run.first_step * size, run.last_step * size)

    def position_text(self, place: int, prefix: str) -> str:
        """Format a position as `step 30`, or as `480 samples` if saves are compared by samples."""
        return f"{place} samples" if self.counts_samples(prefix) else f"step {place}"


def newest_first(checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Sort checkpoints by run and then by progress, newest first; the mtime is never used.

    A checkpoint without a known step (for example, because all of its shards are empty after a power failure) is placed
    by its name among the others of its run: it cannot be chosen, but the reader must see that it exists. If a
    checkpoint has no known run and no known batch size, and the batch sizes of others differ, it comes first.
    """
    ordered = list(checkpoints)
    progress = Progress(ordered)
    places: dict[tuple[str, int], list[tuple[tuple[int, ...], Step]]] = defaultdict(list)
    for checkpoint in ordered:
        if checkpoint.step is not None and checkpoint.label is not None:
            places[checkpoint.prefix, checkpoint.run].append((checkpoint.sort_key, checkpoint.step))

    def age(checkpoint: Checkpoint) -> tuple[int, bool, int, bool, tuple[int, ...], str]:
        # A run that is identified by names has one batch size.
        place = progress.of(checkpoint) if checkpoint.label is None else checkpoint.step
        step = checkpoint.step if place is None else place
        if step is None:
            before = [step for key, step in places[checkpoint.prefix, checkpoint.run] if key <= checkpoint.sort_key]
            step = max(before, default=_BEFORE_ALL)
        is_lost = checkpoint.label is None and place is None
        return (checkpoint.run, is_lost, step, checkpoint.step is None, checkpoint.sort_key, checkpoint.format.value)

    return sorted(ordered, key=age, reverse=True)


_BEFORE_ALL = Step(-1)


def _most(votes: Counter[int]) -> int | None:
    """Return the most frequent value; None if several values are equally frequent."""
    first, *rest = votes.most_common(2)
    return None if rest and rest[0][1] == first[1] else first[0]
