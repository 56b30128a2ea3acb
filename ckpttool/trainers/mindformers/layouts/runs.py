"""Which run of the training wrote which file, when every rank counts its runs by itself.

MindFormers numbers a run by what it finds in the rank's *own* folder at process start. A replaced node starts with
an empty folder, so its files lack the suffix that all other ranks' files of the same run have; a rank that died
before its first save is one behind. Ranks whose folders hold the same names form a *cohort*; each cohort's own run
numbers are matched by the true steps they share with those of the cohort that has seen most runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ckpttool.domain.frozen import dataclass
from ckpttool.domain.units import Step
from ckpttool.trainers.mindformers.epoch_step import EpochStep
from ckpttool.trainers.mindformers.layouts.names import FileKind, FileName, parse_shape
from ckpttool.trainers.mindformers.layouts.rank_folders import RankFolder
from ckpttool.trainers.mindformers.scalars import TrainState


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one shard of a cohort says about a checkpoint."""

    state: TrainState
    step: Step | None
    source: str
    """`content`, `name` or `unknown`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """Ranks whose folders hold the same names."""

    folders: tuple[RankFolder, ...]
    """In rank order."""
    checkpoints: tuple[tuple[int, str, FileName], ...]
    """Index in the folders' `shapes`, the shape, and the shape parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run was at a save, as its shards tell; each None where none told."""

    step: Step | None
    global_batch_size: int | None = None

    def may_be(self, other: Place) -> bool:
        """Tell whether both may be the same, as far as they are known."""
        steps, sizes = {self.step, other.step}, {self.global_batch_size, other.global_batch_size}
        return len(steps - {None}) <= 1 and len(sizes - {None}) <= 1


Positions = Mapping[EpochStep, Place]
"""What one run saved, by label."""

RunsOf = Mapping[int, Positions]
"""By run number, as one cohort counts."""


def cohorts_of(folders: Sequence[RankFolder]) -> list[Cohort]:
    """Group the ranks by the names they hold, the largest group first (ties: the one with the lowest rank)."""
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
    """Choose for each prefix the runs that all cohorts are matched with: those of the cohort that saw most of them.

    A replaced node, or a rank that died before its first save, has seen fewer; no rank has seen a run that was not.
    Among equals the largest cohort counts, for it comes first.
    """
    references: dict[str, dict[int, dict[EpochStep, Place]]] = {}
    for by_prefix in arranged:
        for prefix, runs in by_prefix.items():
            if len(runs) > len(references.get(prefix, ())):
                references[prefix] = runs
    return references


def align_runs(own: RunsOf, reference: RunsOf) -> dict[int, int]:
    """Match one cohort's run numbers with the reference's.

    Later runs stay later. A run goes where it shares most saves; where it shares none or several equally, it keeps
    its own number. Two of the cohort's runs become one only where the second fits nowhere else and has other labels:
    so looks a run of which some files were renamed to the suffix of the other ranks.

    Where the cohort's own numbers share as many saves in all, they stand: after a rewind a run may share more with the
    one that did its steps again than with itself, where other ranks lost some of its files.

    Returns:
        The reference's number for each of the cohort's.
    """
    by_saves = _align_by_saves(own, reference)
    by_number = {run: run for run in own}
    return max(by_number, by_saves, key=lambda aligned: _explained(aligned, own, reference))


def _explained(aligned: Mapping[int, int], own: RunsOf, reference: RunsOf) -> int:
    return sum(_shared(own[run], reference.get(number, {})) for run, number in aligned.items())


def _align_by_saves(own: RunsOf, reference: RunsOf) -> dict[int, int]:
    """Match the cohort's runs one after the other, each with the one that it shares most saves with."""
    aligned: dict[int, int] = {}
    floor = -1
    at_floor: set[EpochStep] = set()
    for run in sorted(own):
        shared = {number: _shared(own[run], reference[number]) for number in reference if number >= floor}
        best = max(
            (number for number in shared if number > floor and shared[number]),
            key=lambda number: (shared[number], number == run, -number),
            default=None,
        )
        if best is None and shared.get(floor) and at_floor.isdisjoint(own[run]):
            best = floor
        elif best is None:
            best = max(run, floor + 1)
        at_floor = {*own[run], *(at_floor if best == floor else ())}
        aligned[run] = floor = best
    return aligned


def _shared(one: Positions, other: Positions) -> int:
    """Count the saves that both runs have, at the same true step and batch size as far as the shards tell."""
    return sum(1 for position, place in one.items() if position in other and place.may_be(other[position]))


def runs_by_prefix(cohort: Cohort, samples: Mapping[str, Sample]) -> dict[str, dict[int, dict[EpochStep, Place]]]:
    """Arrange what a cohort holds by prefix, own run number and label."""
    arranged: dict[str, dict[int, dict[EpochStep, Place]]] = {}
    for _, shape, name in cohort.checkpoints:
        sample = samples[shape]
        place = Place(step=sample.step, global_batch_size=sample.state.global_batch_size)
        arranged.setdefault(name.prefix, {}).setdefault(name.run, {})[name.position] = place
    return arranged
