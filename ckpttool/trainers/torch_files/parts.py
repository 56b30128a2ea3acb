"""Files that are saved together: a script may save several models at each step, such as `G_100.pth` and `D_100.pth`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, Finding, blocking, unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import Step
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.common.torch_files import identity

_LEAST_COMMON = 2
"""Least steps at which two kinds of files were saved, so that they count as parts of each save."""
_MOST_ALONE = 1
"""Maximum number of steps that have only one of them: a run that stops while it saves leaves one."""


def with_parts(
    storage: Storage, saves: Sequence[Checkpoint], stem_of: Callable[[str], tuple[str | None, Step]]
) -> list[Checkpoint]:
    """Return the saves, with a finding if a file that is saved together with one is missing or damaged.

    Args:
        storage: The tree.
        saves: The saves, each of one file.
        stem_of: Returns the text around the number in a name, and the number.
    """
    series: dict[str, dict[Step, Checkpoint]] = defaultdict(dict)
    for save in saves:
        stem, number = stem_of(save.name)
        if stem is not None:
            series[stem][number] = save
    lacking: dict[str, list[Finding]] = defaultdict(list)
    for stem, own in series.items():
        for other_stem, others in series.items():
            if stem != other_stem and _are_parts(storage, own, others):
                for name, finding in _alone(own, others):
                    lacking[name].append(finding)
    return [replace(save, findings=(*save.findings, *lacking[save.name])) for save in saves]


def _are_parts(storage: Storage, own: Mapping[Step, Checkpoint], others: Mapping[Step, Checkpoint]) -> bool:
    """Return whether files of the second kind are saved with those of the first kind, and are not copies of them."""
    common = own.keys() & others.keys()
    if len(common) < _LEAST_COMMON or len(own) - len(common) > _MOST_ALONE:
        return False
    for number in sorted(common, reverse=True):
        save, other = own[number], others[number]
        if save.step == other.step and not blocking((*save.findings, *other.findings)):
            return identity(storage, save.name) != identity(storage, other.name)
    return False


def _alone(own: Mapping[Step, Checkpoint], others: Mapping[Step, Checkpoint]) -> Iterator[tuple[str, Finding]]:
    for number, save in own.items():
        other = others.get(number)
        if other is not None and not blocking(other.findings):
            continue
        usual = next(iter(others.values())).name
        state = f"{other.name} is not intact" if other is not None else f"a file such as {usual} is missing"
        message = f"{state}, while the other steps have both: they may be parts of one save"
        remedy = "restore it from a copy, or resume from another checkpoint"
        yield save.name, unknown(Code.METADATA_INCOMPLETE, message, path=save.name, remedy=remedy)
