"""The legacy tree as the simulated version addresses it: by rank number, in the format that it knows."""

from __future__ import annotations

from dataclasses import dataclass

from ckpttool.trainers.mindformers.simulate.names import StopsError
from ckpttool.trainers.mindformers.simulate.seen import (
    HealthView,
    MetaView,
    MindFormersView,
    RankView,
    Reading,
    SeenEntry,
)
from ckpttool.trainers.mindformers.simulate.versions import Quirks

_NO_META = MetaView(reading=Reading.MISSING)


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyTree:
    """Ranks by number, and the numbers and settings that this version goes by."""

    quirks: Quirks
    fmt: str
    health: bool
    """Whether the health monitor has a say."""
    health_file: HealthView
    entries: frozenset[str]
    ranks: dict[int, RankView]
    settings_world: int | None
    """The world size as it was given."""
    world: int
    """The same, or the number of rank folders."""
    count: int
    """What this version takes for the number of ranks."""
    _names: dict[int, frozenset[str]]
    """Names that exist, not merely dangle, by rank."""

    @classmethod
    def of(cls, view: MindFormersView, quirks: Quirks) -> LegacyTree:
        """Return the tree of a folder that could be listed."""
        settings = view.settings
        entries = frozenset(entry.name for entry in view.entries or ())
        world = len(view.ranks) if settings.world_size is None else settings.world_size
        counted = sum(name.startswith("rank_") for name in entries)
        return cls(
            quirks=quirks,
            fmt=settings.load_ckpt_format if quirks.reads_safetensors else "ckpt",
            health=quirks.has_health_monitor and settings.use_checkpoint_health_monitor,
            health_file=view.health,
            entries=entries,
            ranks={int(rank.name.removeprefix("rank_")): rank for rank in view.ranks},
            settings_world=settings.world_size,
            world=world,
            count=counted if quirks.counts_rank_entries else world,
            _names={
                int(rank.name.removeprefix("rank_")): frozenset(
                    file.name for file in rank.files or () if file.is_folder or file.mtime_ns is not None
                )
                for rank in view.ranks
            },
        )

    def has_entry(self, name: str) -> bool:
        """Tell whether the checkpoint folder has an entry of this name."""
        return name in self.entries

    def has_file(self, rank: int, name: str) -> bool:
        """Tell whether the rank's folder has a shard (or folder) of this name."""
        return name in self._names.get(rank, ())

    def meta(self, rank: int) -> MetaView:
        """Return the rank's meta.json; MISSING where the whole rank is."""
        return self.ranks[rank].meta if rank in self.ranks else _NO_META

    def files(self, rank: int, *, of: int) -> tuple[SeenEntry, ...]:
        """Return what is in the rank's folder, in its own order.

        Args:
            rank: The rank.
            of: How many ranks the simulated version looks for here, for the error.

        Raises:
            StopsError: There is no such folder.
        """
        view = self.ranks.get(rank)
        if view is None:
            raise StopsError(self._no_rank(rank, of))
        if view.files is None:
            raise StopsError(f"rank_{rank} is no folder that it can list")
        return view.files

    def _no_rank(self, rank: int, of: int) -> str:
        proper = {view.name for view in self.ranks.values()}
        odd = sorted(name for name in self.entries - proper if name.startswith("rank_"))
        if odd and self.quirks.counts_rank_entries and of == self.count:
            return f"it counts every entry that begins with rank_, {odd[0]} included, and finds no rank_{rank}"
        return f"it looks for {of} ranks and finds no rank_{rank}"
