"""What one header of each save tells; more of them where what it tells cannot be.

One header is enough where nothing is odd. A stale copy under a newer name, or one flipped bit, would otherwise move
a whole checkpoint to where nobody looks for it: then further ranks are asked, and most of them are believed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ckpttool.domain.units import Step
from ckpttool.formats import read_header
from ckpttool.storage.base import Storage
from ckpttool.trainers.base import ScanOptions
from ckpttool.trainers.mindformers.epoch_step import EpochStep
from ckpttool.trainers.mindformers.layouts.names import FileName
from ckpttool.trainers.mindformers.layouts.rank_folders import RankFolder
from ckpttool.trainers.mindformers.layouts.runs import Cohort, Sample
from ckpttool.trainers.mindformers.scalars import FACTS, TrainState, state_in

SAMPLE_TRIES = 3
"""Shards of a cohort that are opened until one tells the step; `verify` looks at all of them."""

MOST_ASKED = 5
"""Shards of a cohort that are asked at most where the first one says what cannot be."""

LEAP = 8
"""Times as many steps an epoch as at the save before: the second save of a first epoch may have that by right."""

MAX_STEP = 1 << 40
"""No training has done a trillion steps."""


def sample_cohort(storage: Storage, cohort: Cohort, options: ScanOptions) -> dict[str, Sample]:
    """Open one header a save, and further ones where it is odd: by its label, or beside the other saves.

    Returns:
        By shape. The step is None where no shard tells it, and where shards contradict each other without a majority.
    """
    told = {shape: _first_told(storage, cohort, shape, name) for _, shape, name in cohort.checkpoints}
    names = {shape: name for _, shape, name in cohort.checkpoints}
    odd = _out_of_order(names, told)
    samples = {}
    for shape, name in names.items():
        state = told[shape]
        if state.step_num is not None and (shape in odd or not _fits(state, name.position)):
            state = _asked_again(storage, cohort.folders, shape, name, state)
        samples[shape] = _sample(state, name.position, options)
    return samples


def _sample(state: TrainState, position: EpochStep, options: ScanOptions) -> Sample:
    if state.step_num is not None:
        return Sample(state=state, step=Step(state.step_num), source="content")
    if options.steps_per_epoch is not None:
        step = position.global_step(steps_per_epoch=options.steps_per_epoch)
        return Sample(state=state, step=step, source="name")
    return Sample(state=state, step=None, source="unknown")


def _first_told(storage: Storage, cohort: Cohort, shape: str, name: FileName) -> TrainState:
    """Ask the cohort's shards, lowest rank first, until one tells the step."""
    best = TrainState()
    for folder in cohort.folders[:SAMPLE_TRIES]:
        state = _scalars(storage, folder, shape, name)
        if state is not None and state.step_num is not None:
            return state
        best = state if state is not None and best == TrainState() else best
    return best


def _scalars(storage: Storage, folder: RankFolder, shape: str, name: FileName) -> TrainState | None:
    try:
        with storage.open(folder.path_of(shape)) as source:
            return state_in(read_header(source, named=name.format, facts=FACTS).scalars)
    except OSError:  # the check of every shard, later, says which and why
        return None


def _fits(state: TrainState, position: EpochStep) -> bool:
    """Tell whether a shard can have been saved under this label: an epoch has at least one step."""
    if state.epoch_num is not None and state.epoch_num != position.epoch:
        return False
    step = state.step_num
    return step is None or position.step <= step <= MAX_STEP


def _out_of_order(names: Mapping[str, FileName], told: Mapping[str, TrainState]) -> set[str]:
    """Find saves whose steps do not rise with their run's labels, leap, or lie behind what an earlier run reached.

    A training may really have saved so: after a resume labels are not in order, and a rewind goes back. So further
    ranks are asked, and believed.
    """
    runs: dict[tuple[str, int], list[tuple[EpochStep, int, str]]] = {}
    for shape, name in names.items():
        step = told[shape].step_num
        if step is not None:
            runs.setdefault((name.prefix, name.run), []).append((name.position, step, shape))
    odd: set[str] = set()
    reached: dict[str, int] = {}
    for prefix, run in sorted(runs):
        saves = sorted(runs[prefix, run])
        for (before, earlier, one), (after, later, other) in pairwise(saves):
            is_same = before == after  # in two formats
            if (later != earlier if is_same else later <= earlier) or _leaps(before, earlier, after, later):
                odd |= {one, other}
        # At another batch size steps are counted anew; and where a shard holds none, they never were.
        far = {shape: step * (told[shape].global_batch_size or 1) for _, step, shape in saves}
        odd |= {shape for shape, place in far.items() if place <= reached.get(prefix, -1)}
        reached[prefix] = max(reached.get(prefix, -1), *far.values())
    return odd


def _leaps(before: EpochStep, earlier: int, after: EpochStep, later: int) -> bool:
    """Tell whether the step rose far beyond what the labels' epochs explain."""
    return later * max(before.epoch, 1) > LEAP * max(earlier, 1) * max(after.epoch, 1)


def _asked_again(
    storage: Storage, folders: Sequence[RankFolder], shape: str, name: FileName, first: TrainState
) -> TrainState:
    """Ask ranks spread over the cohort, and take what most say; else what most say that fits the label."""
    last = len(folders) - 1
    places = dict.fromkeys(place * last // (MOST_ASKED - 1) for place in (0, 4, 2, 1, 3))
    asked = [_scalars(storage, folders[place], shape, name) for place in places]
    said = [state for state in asked if state is not None and state.step_num is not None] or [first]
    fitting = [state for state in said if _fits(state, name.position)]
    for votes, needed in ((said, len(said) // 2 + 1), (fitting, len(fitting) // 2 + 1)):
        ballot = Counter((state.epoch_num, state.step_num) for state in votes).most_common(1)
        if ballot and ballot[0][1] >= needed:
            winner = next(state for state in votes if (state.epoch_num, state.step_num) == ballot[0][0])
            if _fits(winner, name.position):
                return winner
    return TrainState(epoch_num=name.position.epoch, global_batch_size=first.global_batch_size)
