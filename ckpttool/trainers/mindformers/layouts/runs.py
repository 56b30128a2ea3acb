"""Assign files to runs, although every rank counts its own runs, and determine the true steps.

MindFormers derives a run's number from the files in the rank's *own* folder at process start. A replaced node starts
with an empty folder, so its files lack the suffix that all other ranks' files of the same run have; a rank that died
before its first save is one run behind. Ranks whose folders contain the same names form a *cohort*; each cohort's own
run numbers are matched by the true steps that they share with the cohort that has seen the most runs.

If the labels are consistent, one header shows the step of a save. If they are not, shards of more ranks are read, and
the majority decides. Otherwise a stale copy under a newer name, or one flipped bit, would put an intact checkpoint in
the wrong place.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ckpttool.core.domain.checkpoint import StepSource
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.units import Step
from ckpttool.core.formats import read_header
from ckpttool.core.records import OWN_STATE
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.base import ScanOptions
from ckpttool.trainers.mindformers.layouts.names import FileKind, FileName, parse_shape
from ckpttool.trainers.mindformers.layouts.rank_folders import RankFolder
from ckpttool.trainers.mindformers.scalars import FACTS, EpochStep, TrainState, state_in

SAMPLE_TRIES = 3
"""Maximum number of a cohort's shards to open until one shows the step; `verify` checks all of them."""

MOST_ASKED = 5
"""Maximum number of a cohort's shards to open if the first shard is implausible."""

LEAP = 8
"""Maximum growth in steps per epoch over the previous save: the second save of a first epoch may reach this factor."""

MAX_STEP = 1 << 40
"""Upper limit for a step: no training run has reached a trillion steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The facts about a checkpoint in one shard of a cohort."""

    state: TrainState
    step: Step | None
    source: StepSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """Ranks whose folders contain the same names."""

    folders: tuple[RankFolder, ...]
    """The folders, in rank order."""
    checkpoints: tuple[tuple[int, str, FileName], ...]
    """For each checkpoint: the index in the folders' `shapes`, the shape, and the parsed shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The progress of a run at a save, as recorded in the save's shards; unknown values are None."""

    step: Step | None
    global_batch_size: int | None = None

    def may_be(self, peer: Place) -> bool:
        """Return whether two positions may be the same, because their known values are equal."""
        steps, sizes = {self.step, peer.step}, {self.global_batch_size, peer.global_batch_size}
        return len(steps - {None}) <= 1 and len(sizes - {None}) <= 1


Positions = Mapping[EpochStep, Place]
"""The saves of one run, by label."""

RunsOf = Mapping[int, Positions]
"""Runs by number, as counted by one cohort."""


def cohorts_of(folders: Sequence[RankFolder]) -> list[Cohort]:
    """Group the ranks by the names in their folders, largest group first (in a tie, the group with the lowest rank)."""
    groups: dict[tuple[str, ...], list[RankFolder]] = defaultdict(list)
    for folder in folders:
        groups[folder.shapes].append(folder)
    cohorts = [
        Cohort(
            folders=tuple(members),
            checkpoints=tuple(
                (index, shape, name)
                for index, shape in enumerate(shapes)
                if (name := parse_shape(shape)).kind is FileKind.CHECKPOINT
            ),
        )
        for shapes, members in groups.items()
    ]
    cohorts.sort(key=lambda cohort: (-len(cohort.folders), cohort.folders[0].rank))
    return cohorts


def reference_runs(
    arranged: Sequence[Mapping[str, dict[int, dict[EpochStep, Place]]]],
) -> dict[str, dict[int, dict[EpochStep, Place]]]:
    """Choose the reference runs of each prefix: those of the cohort that has the most runs.

    A replaced node, or a rank that died before its first save, has seen fewer runs; no rank has seen a run that did not
    exist. If several cohorts have equally many runs, the largest cohort is used, because it comes first.
    """
    references: dict[str, dict[int, dict[EpochStep, Place]]] = {}
    for by_prefix in arranged:
        for prefix, runs in by_prefix.items():
            if len(runs) > len(references.get(prefix, ())):
                references[prefix] = runs
    return references


def align_runs(runs_of: RunsOf, reference: RunsOf) -> dict[int, int]:
    """Match one cohort's run numbers with those of the reference.

    Later runs stay later. A run is matched with the run that shares the most saves with it; if it shares no saves, or
    equally many with several runs, it keeps its own number. Two of the cohort's runs are combined only if the second
    fits no other run and has other labels. This happens if some files of a run were renamed to the suffix of the other
    ranks.

    If the cohort's own numbers share equally many saves in total, these numbers are kept. After a rewind, a run may
    share more saves with the run that repeated its steps than with itself, because other ranks lost some of its files.

    Returns:
        The reference's number for each of the cohort's numbers.
    """
    by_saves = _align_by_saves(runs_of, reference)
    by_number = {run: run for run in runs_of}

    def explained(aligned: Mapping[int, int]) -> int:
        return sum(_shared(runs_of[run], reference.get(number, {})) for run, number in aligned.items())

    return max(by_number, by_saves, key=explained)


def _align_by_saves(runs_of: RunsOf, reference: RunsOf) -> dict[int, int]:
    """Match each run of the cohort with the run that shares the most saves with it."""
    aligned: dict[int, int] = {}
    floor = -1
    at_floor: set[EpochStep] = set()
    for run in sorted(runs_of):
        shared = {number: _shared(runs_of[run], reference[number]) for number in reference if number >= floor}
        best = max(
            (number for number in shared if number > floor and shared[number]),
            key=lambda number: (shared[number], number == run, -number),
            default=None,
        )
        if best is None and shared.get(floor) and at_floor.isdisjoint(runs_of[run]):
            best = floor
        elif best is None:
            best = max(run, floor + 1)
        at_floor = {*runs_of[run], *(at_floor if best == floor else ())}
        aligned[run] = floor = best
    return aligned


def _shared(first: Positions, second: Positions) -> int:
    """Count the saves that both runs have at the same true step and batch size, as far as these are known."""
    return sum(1 for position, place in first.items() if position in second and place.may_be(second[position]))


def runs_by_prefix(cohort: Cohort, samples: Mapping[str, Sample]) -> dict[str, dict[int, dict[EpochStep, Place]]]:
    """Group a cohort's saves by prefix, run number and label."""
    arranged: dict[str, dict[int, dict[EpochStep, Place]]] = {}
    for _, shape, name in cohort.checkpoints:
        sample = samples[shape]
        place = Place(step=sample.step, global_batch_size=sample.state.global_batch_size)
        arranged.setdefault(name.prefix, {}).setdefault(name.run, {})[name.position] = place
    return arranged


def sample_cohort(storage: Storage, cohort: Cohort, options: ScanOptions) -> dict[str, Sample]:
    """Open one header per save, and more if the header contradicts the save's label or the other saves.

    Returns:
        The facts by shape. The step is None if no shard contains it, or if the shards contradict each other and none
        has a majority.
    """
    states = {shape: _first_state(storage, cohort, shape, name) for _, shape, name in cohort.checkpoints}
    names = {shape: name for _, shape, name in cohort.checkpoints}
    out_of_order = _out_of_order(names, states)
    samples = {}
    for shape, name in names.items():
        state = states[shape]
        if state.step_num is not None and (shape in out_of_order or not _fits(state, name.position)):
            state = _checked_again(storage, cohort.folders, shape, name, state)
        step, source = None, StepSource.UNKNOWN
        if state.step_num is not None:
            step, source = Step(state.step_num), StepSource.CONTENT
        elif options.steps_per_epoch is not None:
            step = name.position.global_step(steps_per_epoch=options.steps_per_epoch)
            source = StepSource.NAME
        samples[shape] = Sample(state=state, step=step, source=source)
    return samples


def _first_state(storage: Storage, cohort: Cohort, shape: str, name: FileName) -> TrainState:
    """Read the cohort's shards, lowest rank first, until a shard shows the step."""
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
            header = read_header(source, named=name.format, facts=FACTS)
            is_own = any(entry.name == OWN_STATE for entry in header.entries)
            return replace(state_in(header.scalars), by_own_writer=is_own)
    except OSError:  # reported by the later check of every shard
        return None


def _fits(state: TrainState, position: EpochStep) -> bool:
    """Return whether this label is possible for a shard.

    An epoch has at least one step.
    """
    if state.epoch_num is not None and state.epoch_num != position.epoch:
        return False
    step = state.step_num
    return step is None or position.step <= step <= MAX_STEP


def _out_of_order(names: Mapping[str, FileName], states: Mapping[str, TrainState]) -> set[str]:
    """Return the saves whose steps contradict their labels, jump, or precede the steps of an earlier run.

    Such saves may be genuine: after a resume, labels are not in order, and a rewind repeats steps. So shards of more
    ranks are read to decide.
    """
    runs: dict[tuple[str, int], list[tuple[EpochStep, int, str]]] = {}
    for shape, name in names.items():
        step = states[shape].step_num
        if step is not None:
            runs.setdefault((name.prefix, name.run), []).append((name.position, step, shape))
    out_of_order: set[str] = set()
    reached: dict[str, int] = {}
    for prefix, run in sorted(runs):
        saves = sorted(runs[prefix, run])
        for (before, earlier, first_name), (after, later, second_name) in pairwise(saves):
            is_same = before == after  # in two formats
            if (later != earlier if is_same else later <= earlier) or _leaps(before, earlier, after, later):
                out_of_order |= {first_name, second_name}
        # A new batch size changes the count of steps. If a shard has no batch size, it never changed.
        far = {shape: step * (states[shape].global_batch_size or 1) for _, step, shape in saves}
        out_of_order |= {shape for shape, place in far.items() if place <= reached.get(prefix, -1)}
        reached[prefix] = max(reached.get(prefix, -1), *far.values())
    return out_of_order


def _leaps(before: EpochStep, earlier: int, after: EpochStep, later: int) -> bool:
    """Return whether the step rose far more than the epochs in the labels can explain."""
    return later * max(before.epoch, 1) > LEAP * max(earlier, 1) * max(after.epoch, 1)


def _checked_again(
    storage: Storage, folders: Sequence[RankFolder], shape: str, name: FileName, first: TrainState
) -> TrainState:
    """Read shards of several ranks, and return the state of the majority.

    If the majority's state does not fit the label, return the majority's among the states that fit. If there is no such
    majority, the step is unknown.
    """
    last = len(folders) - 1
    places = dict.fromkeys(place * last // (MOST_ASKED - 1) for place in (0, 4, 2, 1, 3))
    states = [_scalars(storage, folders[place], shape, name) for place in places]
    known_states = [state for state in states if state is not None and state.step_num is not None] or [first]
    fitting = [state for state in known_states if _fits(state, name.position)]
    for votes, needed in ((known_states, len(known_states) // 2 + 1), (fitting, len(fitting) // 2 + 1)):
        ballot = Counter((state.epoch_num, state.step_num) for state in votes).most_common(1)
        if ballot and ballot[0][1] >= needed:
            winner = next(state for state in votes if (state.epoch_num, state.step_num) == ballot[0][0])
            if _fits(winner, name.position):
                return winner
    return TrainState(epoch_num=name.position.epoch, global_batch_size=first.global_batch_size)
