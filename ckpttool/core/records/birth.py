"""Birth certificates: digests of a shard, computed in the writer's memory before the bytes reach the disk.

Each certificate is a manifest of one shard in its own file, because ranks do not wait for one another: the rank that
writes a shard seals it. This module also combines all records of a save; the manifest of `ckpttool seal` has priority.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress

from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.manifest import Manifest, ShardSeal
from ckpttool.core.domain.shard import Shard
from ckpttool.core.domain.units import Rank
from ckpttool.core.records import BIRTH_FOLDER, SealPlace
from ckpttool.core.records.manifest import ManifestProblem, read_alone, read_manifest
from ckpttool.core.storage.base import Storage, is_there
from ckpttool.core.storage.fan_out import map_waiting

_ASKED = 4
"""Maximum number of shards whose certificates are read for the values common to all shards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """All records of a save's shards."""

    manifest: Manifest | None
    """The manifest, with missing shards added from certificates; None if there is no record."""
    problems: tuple[ManifestProblem, ...] = ()
    """Invalid records, which are not used."""
    sealed_at: str | None = None
    """UTC time of the last change of the manifest; None if there is no manifest, because certificates predate files."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings about the records."""
        return tuple(problem.finding for problem in self.problems)

    @property
    def seals(self) -> dict[str, ShardSeal]:
        """Record of each shard, by path."""
        return {} if self.manifest is None else self.manifest.by_path

    @property
    def disputed(self) -> tuple[Finding, ...]:
        """Findings about shards for which the manifests differ."""
        return () if self.manifest is None else self.manifest.disputed


def birth_path(begin: str, rank: Rank) -> str:
    """Return the path of the birth certificate for a rank's shard."""
    return f"{begin}{rank}.json"


def birth_paths(storage: Storage, place: SealPlace) -> list[str]:
    """Return the paths of a save's birth certificates, including those of deleted shards.

    Raises:
        OSError: The folder cannot be listed.
    """
    if place.births is None:
        return []
    begin = place.births.removeprefix(f"{BIRTH_FOLDER}/")
    try:
        names = [entry.name for entry in storage.entries(BIRTH_FOLDER)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    is_birth = re.compile(re.escape(begin) + r"[0-9]{1,9}\.json").fullmatch
    return sorted(f"{BIRTH_FOLDER}/{name}" for name in names if is_birth(name))


def recorded(storage: Storage, place: SealPlace, shards: Collection[Shard]) -> Recorded:
    """Read the records of a save: its manifest, and birth certificates for shards that the manifest lacks.

    Args:
        storage: The tree.
        place: The location that the layout returns.
        shards: The shards of the save.
    """
    manifest = read_manifest(storage, place)
    if isinstance(manifest, ManifestProblem):
        born = with_births(None, storage, place, shards)
        return replace(born, problems=(manifest, *born.problems))
    born = with_births(manifest, storage, place, shards)
    return born if manifest is None else replace(born, sealed_at=manifest.sealed_at)


def recorded_shard(storage: Storage, place: SealPlace, rank: Rank, path: str) -> ShardSeal | None:
    """Return the record of one rank's shard; None if there is no valid record."""
    certificate = None if place.births is None else birth_path(place.births, rank)
    for record in (read_manifest(storage, place), certificate and _birth(storage, place, certificate)):
        if isinstance(record, Manifest) and (seal := record.by_path.get(path)) is not None:
            return seal
    return None


def recorded_world(storage: Storage, place: SealPlace, shards: Sequence[Shard]) -> int | None:
    """Return a save's number of ranks from its manifest or from certificates; None if unknown."""
    manifest = read_manifest(storage, place)
    if manifest is None and place.births is not None and is_there(storage, BIRTH_FOLDER):
        ranks = (shard.rank for shard in shards[:_ASKED] if shard.rank is not None)
        births = (_birth(storage, place, birth_path(place.births, rank)) for rank in ranks)
        manifest = next((birth for birth in births if isinstance(birth, Manifest)), None)
    return manifest.world_size if isinstance(manifest, Manifest) else None


def with_births(manifest: Manifest | None, storage: Storage, place: SealPlace, shards: Collection[Shard]) -> Recorded:
    """Add the certificates of shards that a manifest lacks; the manifest may be None."""
    begin = place.births
    sealed = {} if manifest is None else manifest.by_path
    ranks = sorted({shard.rank for shard in shards if shard.rank is not None and shard.path not in sealed})
    if begin is None or not ranks or not is_there(storage, BIRTH_FOLDER):
        return Recorded(manifest=manifest)

    def read(path: str) -> Manifest | ManifestProblem | None:
        return _birth(storage, place, path)

    read_births = list(map_waiting(read, [birth_path(begin, rank) for rank in ranks]))
    births = [birth for birth in read_births if isinstance(birth, Manifest)]
    if any((birth.world_size or 0) > len({shard.rank for shard in shards}) for birth in births):
        with suppress(OSError):  # a deleted shard may still have a certificate
            requested = {birth_path(begin, shard.rank) for shard in shards if shard.rank is not None}
            read_births += map_waiting(read, [path for path in birth_paths(storage, place) if path not in requested])
    births = [birth for birth in read_births if isinstance(birth, Manifest)]
    problems = tuple(birth for birth in read_births if isinstance(birth, ManifestProblem))
    return Recorded(manifest=_merged(manifest, births), problems=problems)


def _birth(storage: Storage, place: SealPlace, path: str) -> Manifest | ManifestProblem | None:
    seal_place = SealPlace(path=path, layout=place.layout, checkpoint=place.checkpoint, prefix=place.prefix)
    return read_alone(storage, seal_place)


def _merged(manifest: Manifest | None, births: list[Manifest]) -> Manifest | None:
    if not births:
        return manifest
    base = births[0] if manifest is None else manifest
    seals = {**{seal.path: seal for birth in births for seal in birth.shards}, **base.by_path}
    return replace(base, shards=tuple(seals[path] for path in sorted(seals)))
