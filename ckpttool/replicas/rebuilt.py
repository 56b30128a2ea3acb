"""A save's files that are not independent evidence, because they were rebuilt from others or from the same file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckpttool.core.domain.manifest import ShardSeal
    from ckpttool.core.domain.replicas import TensorDigests
    from ckpttool.core.domain.verdict import ShardReport
    from ckpttool.replicas.model import Place


def rebuilt_from(reports: Iterable[ShardReport], seals: Mapping[str, ShardSeal]) -> dict[str, str]:
    """Return, by path, the source of each rebuilt file that still has its tensors.

    A file and its copy are a single sample: both are wrong if the first was. The same is true for files that were
    rebuilt from a file that has been removed or changed since: the first of them represents the others. Among files
    that were rebuilt from each other, one has no entry.

    Args:
        reports: Reports of one save, with the digests of tensors.
        seals: The records of the save's manifest.
    """
    by_place = {(report.rank, report.role): report for report in reports if report.tensor_digests is not None}
    origins: dict[str, str] = {}
    first_of_donor: dict[tuple[Place, TensorDigests | None], str] = {}
    for report in by_place.values():
        seal = seals.get(report.path)
        if seal is None or seal.healed is None:
            continue
        place = seal.healed.rank, report.role
        donor = by_place.get(place)
        if donor is not None and donor.tensor_digests == report.tensor_digests:
            origin = donor.path
        else:
            origin = first_of_donor.setdefault((place, report.tensor_digests), report.path)
        while origin in origins:
            origin = origins[origin]
        if origin != report.path:
            origins = {path: origin if first == report.path else first for path, first in origins.items()}
            origins[report.path] = origin
    return origins
