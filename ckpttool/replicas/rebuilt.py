"""Which files of a save are no witnesses of their own, since they were rebuilt from others that are still there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckpttool.core.domain.manifest import ShardSeal
    from ckpttool.core.domain.verdict import ShardReport


def rebuilt_from(reports: Iterable[ShardReport], seals: Mapping[str, ShardSeal]) -> dict[str, str]:
    """Return by path the file from which another one was rebuilt whose tensors it still holds.

    A file and its copy are one witness: both are wrong if the first was. One of several files that were rebuilt from
    each other is no key.

    Args:
        reports: Of one save, with the digests of tensors.
        seals: What its manifest has of them.
    """
    by_place = {(report.rank, report.role): report for report in reports if report.tensor_digests is not None}
    origins: dict[str, str] = {}
    for report in by_place.values():
        seal = seals.get(report.path)
        donor = None if seal is None or seal.healed is None else by_place.get((seal.healed.rank, report.role))
        if donor is None or donor.tensor_digests != report.tensor_digests:
            continue
        origin = donor.path
        while origin in origins:
            origin = origins[origin]
        if origin != report.path:
            origins = {path: origin if first == report.path else first for path, first in origins.items()}
            origins[report.path] = origin
    return origins
