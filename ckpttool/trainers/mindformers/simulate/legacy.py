"""The selection in the `rank_N` layout: by meta.json and names, or by time.

Source: `get_resume_checkpoint` and what it calls, as the wheels in `versions` have them; the order of the steps and
each step's quirk are theirs. It reads names only, so the sentences here never speak of what is inside a shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ckpttool.core.domain.plan import Outcome
from ckpttool.trainers.mindformers.own_names import (
    Pick,
    StopsError,
    checkpoint_name,
    is_regular,
    label_of,
    rank_of,
    run_label_of,
    with_rank,
)
from ckpttool.trainers.mindformers.simulate.versions import Quirks
from ckpttool.trainers.mindformers.simulate.view import (
    HealthView,
    MetaView,
    MindFormersView,
    RankView,
    Reading,
    SeenEntry,
    require_read,
)

_PASSED_OVER = {Reading.MISSING, Reading.NOT_TEXT, Reading.NOT_JSON}
_NO_META = MetaView(reading=Reading.MISSING)
_SECOND_NS = 1_000_000_000
_SHOWN = 3  # ranks that a sentence names


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyTree:
    """The tree as the simulated version addresses it: by rank number, in the format that it knows."""

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
            proper = {entries.name for entries in self.ranks.values()}
            invalid = sorted(name for name in self.entries - proper if name.startswith("rank_"))
            if invalid and self.quirks.counts_rank_entries and of == self.count:
                why = f"it counts every entry that begins with rank_, {invalid[0]} included, and finds no rank_{rank}"
                raise StopsError(why)
            raise StopsError(f"it looks for {of} ranks and finds no rank_{rank}")
        if view.files is None:
            raise StopsError(f"rank_{rank} is no folder that it can list")
        return view.files


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """The oldest of the meta.json records: nothing newer is considered, and no other file prefix."""

    file: str
    ranks_without: tuple[int, ...]
    """Ranks whose record could not be used."""


def select(view: MindFormersView, quirks: Quirks) -> Pick:
    """Pick as MindFormers does.

    Raises:
        StopsError: It would stop.
    """
    tree = LegacyTree.of(view, quirks)
    pick = _selected(view, tree)
    stray = min((name for name in tree.entries if name.endswith(".ckpt")), default=None)
    if pick.name is None or stray is None or tree.fmt != "ckpt":
        return pick
    return replace(pick, because=f"{pick.because}; its weights come from {stray} beside the rank folders, on all ranks")


def _selected(view: MindFormersView, tree: LegacyTree) -> Pick:
    if tree.quirks.takes_unified and tree.fmt == "safetensors" and "hyper_param.safetensors" in tree.entries:
        return Pick(name=None, because="hyper_param.safetensors ends its selection: it loads the unified weights there")
    if view.settings.resume_by_last_timestamp_ckpt:
        return _newest_everywhere(tree, why="resume_by_last_timestamp_ckpt lets each rank load its own newest file")
    base = _oldest_meta(tree)
    if base is None:
        _require_same_newest(tree)
        return _newest_everywhere(tree, why="no meta.json can be used, so each rank loads its own newest file")
    return _by_name(tree, base)


def _oldest_meta(tree: LegacyTree) -> _Base | None:
    """Return the smallest (epoch, step) over all ranks, under the file prefix of the first rank that has it."""
    oldest: tuple[int, int] | None = None
    file = ""
    without = []
    for rank in range(tree.count):
        usable = _usable(tree.meta(rank), rank, tree.fmt)
        if usable is None:
            without.append(rank)
        elif oldest is None or usable[0] < oldest:
            oldest, file = usable
    if oldest is None:
        return None
    return _Base(
        file=f"{_prefix(tree, file)}-{oldest[0]}_{oldest[1]}.{tree.fmt}",
        ranks_without=tuple(without),
    )


def _prefix(tree: LegacyTree, file: str) -> str:
    return file.partition("-")[0] if tree.quirks.cuts_prefix_at_first_dash else file[: file.rfind("-")]


def _usable(meta: MetaView, rank: int, fmt: str) -> tuple[tuple[int, int], str] | None:
    require_read(meta.reading, f"rank_{rank}/meta.json")
    if meta.reading in _PASSED_OVER:
        return None
    if meta.reading is not Reading.PRESENT:
        raise StopsError(f"rank_{rank}/meta.json is nothing that it can open as an object, which it does not expect")
    if meta.epoch is None or meta.step is None or meta.file is None or not is_regular(meta.file, fmt):
        return None
    return (meta.epoch, meta.step), meta.file


def _by_name(tree: LegacyTree, base: _Base) -> Pick:
    label = label_of(base.file, tree.fmt)
    groups = _groups(tree, base, limit=label)
    picks = []
    for members in groups.values():
        if _all_ranks(members, tree.count):
            file = with_rank(min(members, key=rank_of), 0)
            if not tree.has_file(0, file):
                raise StopsError(f"rank_0/{file} is not found")
            picks.append(file)
    if not picks:
        raise StopsError(
            f"no name that begins with {_prefix(tree, base.file)} is there on all {tree.count} ranks at or below "
            f"{label[0]}_{label[1]}, the oldest meta.json, and it never falls back to another run"
        )
    picks.sort(key=lambda file: run_label_of(file, tree.fmt) if tree.health else label_of(file, tree.fmt))
    if tree.health:
        require_read(tree.health_file.reading, "health_ckpts.json")
        if tree.health_file.reading not in {Reading.PRESENT, Reading.MISSING}:
            raise StopsError("health_ckpts.json is not the list that it expects")
        if 0 not in tree.health_file.marks:
            why = "with the health monitor on, health_ckpts.json must have a healthy entry, of whatever file"
            raise StopsError(why)
    return _explained(tree, base, picks)


def _groups(tree: LegacyTree, base: _Base, *, limit: tuple[int, int] | None) -> dict[tuple[int, int], list[str]]:
    """Return the names of all ranks that begin with the prefix, by (epoch, step), up to `limit`."""
    prefix = _prefix(tree, base.file) + ("-" if tree.quirks.keeps_dash_in_prefix else "")
    rank_in_base = rank_of(base.file)
    groups: dict[tuple[int, int], list[str]] = {}
    for rank in range(tree.count):
        start = prefix.replace(f"rank_{rank_in_base}", f"rank_{rank}")
        if tree.health:  # also the other runs: all up to the last underscore, which begins the run suffix or the rank
            start = start[: start.rfind("_")]
        for name in (file.name for file in tree.files(rank, of=tree.count)):
            if name.startswith(start) and name.endswith(f".{tree.fmt}"):
                label = label_of(name, tree.fmt)
                if limit is None or label <= limit:
                    groups.setdefault(label, []).append(name)
    return groups


def _all_ranks(files: list[str], count: int) -> bool:
    ranks = {rank_of(file) for file in files}
    return len(ranks) == count and max(ranks) == count - 1


def _explained(tree: LegacyTree, base: _Base, picks: list[str]) -> Pick:
    name = checkpoint_name(picks[-1], tree.fmt)
    have = f"all {tree.count} ranks have" if tree.count > 1 else "its one rank has"
    head = f"{name} is the newest name that {have}"
    quirk = next(_quirks_met(tree, base, picks), None)
    tail = "it reads names only and never opens a shard" if quirk is None else f"{quirk}, and it never opens a shard"
    return Pick(name=name, because=f"{head}; {tail}")


def _quirks_met(tree: LegacyTree, base: _Base, picks: list[str]) -> Iterator[str]:
    """Yield the quirks that had a say in the pick, the one with the worst consequence first."""
    file = picks[-1]
    lacking = [rank for rank in range(tree.count) if not tree.has_file(rank, with_rank(file, rank))]
    if lacking:
        yield f"of several files with these numbers it takes the first listed, {file}, which rank {lacking[0]} lacks"
    if tree.health and any(mark != 0 for mark in tree.health_file.marks):
        yield "its health filter never filters (the test is inverted), so the newest complete name wins"
    if tree.health and label_of(file, tree.fmt) < max(label_of(pick, tree.fmt) for pick in picks):
        yield "with the health monitor on, a later run goes before a larger number"
    if tree.settings_world is not None and tree.count != tree.settings_world:
        yield f"it counts {tree.count} entries that begin with rank_, though {tree.settings_world} ranks train"
    newer = _newer_than_meta(tree, base)
    if newer is not None:
        yield f"{newer} is on all ranks too, but nothing beyond the oldest meta.json counts"
    if base.ranks_without:
        yield f"the meta.json of rank {base.ranks_without[0]} cannot be used and is simply left out"


def _newer_than_meta(tree: LegacyTree, base: _Base) -> str | None:
    """Return the newest complete name beyond the oldest meta.json; MindFormers itself never looks there."""
    limit = label_of(base.file, tree.fmt)
    beyond = {label: files for label, files in _groups(tree, base, limit=None).items() if label > limit}
    for label in sorted(beyond, reverse=True):
        try:
            if _all_ranks(beyond[label], tree.count):
                return checkpoint_name(beyond[label][0], tree.fmt)
        except StopsError:  # a name without a rank, beyond what MindFormers reads
            continue
    return None


def _newest_everywhere(tree: LegacyTree, *, why: str) -> Pick:
    """Pick the checkpoint that is the newest on every rank, or none where the ranks disagree: `touch` and `cp` decide.

    Args:
        tree: The ranks.
        why: First half of the sentence.
    """
    names: dict[str, int] = {}
    folders = []
    for rank in range(tree.world):  # nobody asks the folders of ranks that do not train: leftovers of a larger run
        file = _newest(tree, rank, tree.fmt, of=tree.world)
        if file is None:
            raise StopsError(f"rank_{rank} holds no .{tree.fmt} file")
        names.setdefault(checkpoint_name(file.name, tree.fmt), rank)
        folders += [f"rank_{rank}/{file.name}"] if file.is_folder else []
    if not names:
        raise StopsError(f"there is no rank_N folder to load a .{tree.fmt} file from")
    if len(names) == 1:
        (name,) = names
        because = f"{why}; {name} has the latest time on each, which any touch or copy could give"
        return Pick(
            name=name, because=f"{because}; {folders[0]} is a folder, on which it stops" if folders else because
        )
    shown_names = ", ".join(f"rank {rank} {name}" for name, rank in list(names.items())[:_SHOWN])
    count = "counts on from rank 0's step" if tree.quirks.steps_from_rank_0 else "counts on from its own step"
    because = f"{why}, and these differ ({shown_names}) while each rank {count}"
    return Pick(name=None, because=because, outcome=Outcome.MIXES)


def _require_same_newest(tree: LegacyTree) -> None:
    """Do the check that comes before, where meta.json gave nothing.

    It compares names only if one rank's newest follows the naming rule. Its second look forgets the format, so with
    safetensors it finds no file and stumbles over that.
    """
    count = tree.count if tree.quirks.counts_rank_entries_for_times else tree.world
    expected = _first_regular(tree, count)
    if expected is None:
        return
    irregular = False
    for rank in range(count):
        file = _newest_name(tree, rank, "ckpt", of=count)
        if file is None:
            raise StopsError(
                "no meta.json can be used, and its comparison of the newest files then looks for .ckpt only, "
                f"finds none in rank_{rank} and fails on that"
            )
        if not is_regular(file, tree.fmt):
            irregular = True
        elif with_rank(file, 0) != expected:
            raise StopsError(f"no meta.json can be used, and the newest file of rank_{rank} is not that of the others")
    if irregular:
        raise StopsError("no meta.json can be used, and some ranks' newest files follow the naming rule, others not")


def _first_regular(tree: LegacyTree, count: int) -> str | None:
    for rank in range(count):
        file = _newest_name(tree, rank, tree.fmt, of=count)
        if file is None:
            raise StopsError(f"no meta.json can be used, and rank_{rank} holds no .{tree.fmt} file")
        if is_regular(file, tree.fmt):
            return with_rank(file, 0)
    return None


def _newest_name(tree: LegacyTree, rank: int, fmt: str, *, of: int) -> str | None:
    newest = _newest(tree, rank, fmt, of=of)
    return None if newest is None else newest.name


def _newest(tree: LegacyTree, rank: int, fmt: str, *, of: int) -> SeenEntry | None:
    latest: SeenEntry | None = None
    at = -1.0
    for file in tree.files(rank, of=of):
        if not file.name.endswith(f".{fmt}"):
            continue
        if file.mtime_ns is None:
            raise StopsError(f"rank_{rank}/{file.name} leads nowhere, so it has no time, which it goes by")
        # Python's getmtime: a float, in which times less than a quarter of a microsecond apart are equal.
        seconds = file.mtime_ns // _SECOND_NS + 1e-9 * (file.mtime_ns % _SECOND_NS)
        if seconds >= at:  # of equals, the one listed last
            latest, at = file, seconds
    return latest
