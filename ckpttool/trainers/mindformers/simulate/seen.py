"""What MindFormers looks at when it selects a checkpoint by itself: names, times and small records, never a shard."""

from __future__ import annotations

from enum import Enum

from ckpttool.domain.frozen import dataclass


class Reading(str, Enum):
    """How far a record file could be read. Each is another way through MindFormers' code."""

    PRESENT = "present"
    MISSING = "missing"
    NOT_TEXT = "not-text"
    """Its bytes are no UTF-8."""
    NOT_JSON = "not-json"
    WRONG_SHAPE = "wrong-shape"
    """JSON, but not the objects and lists that MindFormers takes for granted."""
    UNREADABLE = "unreadable"
    """A folder of that name, no permission, or beyond all limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenEntry:
    """One name in a folder."""

    name: str
    is_folder: bool
    mtime_ns: int | None
    """None where it was not asked for or cannot be told: a link that leads nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaView:
    """One rank's meta.json with the values as they stand there; None for a value of another type.

    An epoch or step may be a bool: MindFormers takes `true` for an integer, and stumbles later.
    """

    reading: Reading
    epoch: int | None = None
    step: int | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One entry of the checkpoint folder that is named `rank_` and digits."""

    name: str
    files: tuple[SeenEntry, ...] | None
    """As the folder lists them, for MindFormers takes the first of equals; None where it cannot be listed."""
    meta: MetaView


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthMark:
    """One entry of health_ckpts.json."""

    name: str | None
    is_health: int | None
    """0 is healthy; None where it is absent or no number, which counts as unhealthy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthView:
    """`health_ckpts.json` of the output folder."""

    reading: Reading
    entries: tuple[HealthMark, ...] = ()
    """In the order of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataView:
    """A metadata.json: the shards that it says belong to the checkpoint."""

    reading: Reading
    files: tuple[str, ...] = ()
    """Each name once, in the order in which the file names them first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonView:
    """A common.json."""

    reading: Reading
    fields: tuple[str, ...] = ()
    ckpt_status: int | None = None
    """0 is healthy; None where it is null, absent, or no whole number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationView:
    """A folder of the newer layout, or what bears such a name."""

    name: str
    names: tuple[str, ...] | None
    """What it holds, in any order; None where it is no folder or cannot be listed."""
    metadata: MetadataView
    """Read only where MindFormers would: MISSING in folders that neither are the root nor stand in the tracker."""
    common: CommonView


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerView:
    """`latest_checkpointed_iteration.txt` of the checkpoint folder."""

    reading: Reading
    text: str = ""
    folder: str | None = None
    """The folder that it names; None where its text is no whole number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MindFormersSettings:
    """The settings and the surroundings on which the selection depends; defaults are MindFormers' own."""

    load_ckpt_format: str = "ckpt"
    resume_training: bool | str = True
    """True, or a file name (legacy layout only)."""
    use_legacy_format: bool | None = None
    """None: the layout that the folder shows."""
    use_checkpoint_health_monitor: bool = False
    """Legacy: the top-level key. Newer layout: a threshold under `monitor_config.health_checkpoint`."""
    resume_by_last_timestamp_ckpt: bool = False
    world_size: int | None = None
    """Ranks that train; None: as many as there are rank folders."""
    devices_per_node: int = 8
    """`DEVICE_NUM_PER_NODE`: up to so many ranks, all disks count as shared."""
    shared_disk: bool = True
    """Whether MindFormers recognises the disk as shared by itself (NFS and the like, ModelArts)."""
    shared_paths: tuple[str, ...] = ()
    """The environment variable `SHARED_PATHS`, split at its commas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MindFormersView:
    """All that the selection looks at."""

    path: str
    """The checkpoint folder, absolute and free of links, as `SHARED_PATHS` is compared with it."""
    entries: tuple[SeenEntry, ...] | None
    """None where the folder cannot be listed."""
    ranks: tuple[RankView, ...]
    """In the order of their numbers."""
    health: HealthView
    itself: IterationView
    """The folder itself, which may be an iteration's."""
    iterations: tuple[IterationView, ...]
    """Whatever is named `iteration_…`, as the folder lists it."""
    tracker: TrackerView
    settings: MindFormersSettings
