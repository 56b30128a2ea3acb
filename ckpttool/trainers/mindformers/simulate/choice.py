"""MindFormers' own choice in both layouts, by names, times and small records; it opens no shard.

Source of the selection in the `rank_N` layout: `get_resume_checkpoint` and the functions that it calls, in the wheels
listed in `versions`; the order of the steps and their quirks are those of the wheels. Source of the selection in the
`iteration_*` layout: `get_checkpoint_path`, `verify_ckpt_valid` and `get_healthy_checkpoint_path` of the wheels 1.7.0
to 2.1.0, and the reading of common.json that follows them. The sentences here never mention the contents of a shard.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpttool.core.domain.frozen import replace
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
from ckpttool.trainers.mindformers.simulate.versions import Quirk, common_fields, quirks_of
from ckpttool.trainers.mindformers.simulate.view import (
    IterationView,
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
_NEVER_OLDER = "and it never falls back to an older iteration"
_NUMBER = re.compile(r"iteration_(\d+)")
UNKNOWN_FIELD = "it does not know the field"
"""Beginning of the reason if common.json has a field that this version does not read."""


def choose(view: MindFormersView, series: str) -> Pick:
    """Choose a save as the versions in a series do.

    Raises:
        StopsError: These versions would stop.
        UnreadError: The choice depends on a record that could not be read here.
    """
    quirks = quirks_of(series)
    if view.entries is None:
        raise StopsError("the checkpoint folder cannot be listed")
    if not view.entries and Quirk.STARTS_AT_RANDOM_FROM_EMPTY_FOLDER in quirks:
        because = "the folder is empty, so it starts from random weights with only a warning"
        return Pick(name=None, because=because, outcome=Outcome.SCRATCH)
    if Quirk.HAS_ITERATIONS in quirks and _is_newer(view):
        return _of_iterations(view, quirks, common_fields(series))
    tree = _Tree(view, quirks)
    pick = _of_ranks(tree)
    stray = min((name for name in tree.entries if name.endswith(".ckpt")), default=None)
    if pick.name is None or stray is None or tree.fmt != "ckpt":
        return pick
    return replace(pick, because=f"{pick.because}; its weights come from {stray} beside the rank folders, on all ranks")


def _is_newer(view: MindFormersView) -> bool:
    """Return whether MindFormers uses its newer algorithm, judged by the config, or else by the folder."""
    if view.settings.use_legacy_format is not None:
        return not view.settings.use_legacy_format
    signs = (view.tracker.reading, view.itself.common.reading)
    return not view.ranks and (bool(view.iterations) or any(sign is not Reading.MISSING for sign in signs))


# The `rank_N` layout: by meta.json and names, or by time -------------------------------------------------------------


class _Tree:
    """The tree as a version addresses it: by rank number, in its known format."""

    def __init__(self, view: MindFormersView, quirks: frozenset[Quirk]) -> None:
        settings = view.settings
        self.view = view
        self.quirks = quirks
        self.fmt = settings.load_ckpt_format if Quirk.READS_SAFETENSORS in quirks else "ckpt"
        self.monitored = Quirk.HAS_HEALTH_MONITOR in quirks and settings.use_checkpoint_health_monitor
        self.entries = frozenset(entry.name for entry in view.entries or ())
        self.ranks: dict[int, RankView] = {int(rank.name.removeprefix("rank_")): rank for rank in view.ranks}
        self.world = len(view.ranks) if settings.world_size is None else settings.world_size
        # Number of ranks according to this version.
        self.count = self.world
        if Quirk.COUNTS_RANK_ENTRIES in quirks:
            self.count = sum(name.startswith("rank_") for name in self.entries)

    def has_file(self, rank: int, name: str) -> bool:
        """Return whether the rank's folder has a shard (or folder) of this name that is not a dangling link."""
        files = self.ranks[rank].files if rank in self.ranks else None
        return any(file.name == name and (file.is_folder or file.mtime_ns is not None) for file in files or ())

    def files(self, rank: int, *, of: int) -> tuple[SeenEntry, ...]:
        """Return the contents of the rank's folder, in the folder's order.

        Args:
            rank: The rank.
            of: Number of ranks that the simulated version expects here, for the error.

        Raises:
            StopsError: There is no such folder.
        """
        view = self.ranks.get(rank)
        if view is None:
            proper = {entries.name for entries in self.ranks.values()}
            invalid = sorted(name for name in self.entries - proper if name.startswith("rank_"))
            if invalid and Quirk.COUNTS_RANK_ENTRIES in self.quirks and of == self.count:
                why = f"it counts every entry that begins with rank_, {invalid[0]} included, and finds no rank_{rank}"
                raise StopsError(why)
            raise StopsError(f"it looks for {of} ranks and finds no rank_{rank}")
        if view.files is None:
            raise StopsError(f"rank_{rank} is not a folder that it can list")
        return view.files

    def prefix_of(self, file: str) -> str:
        """Return the prefix of a file as this version parses it."""
        if Quirk.CUTS_PREFIX_AT_FIRST_DASH in self.quirks:
            return file.partition("-")[0]
        return file[: file.rfind("-")]


def _of_ranks(tree: _Tree) -> Pick:
    is_unified = tree.fmt == "safetensors" and "hyper_param.safetensors" in tree.entries
    if is_unified and Quirk.TAKES_UNIFIED in tree.quirks:
        return Pick(
            name=None, because="hyper_param.safetensors ends its selection: it loads the unified weights from there"
        )
    if tree.view.settings.resume_by_last_timestamp_ckpt:
        return _newest_everywhere(tree, why="resume_by_last_timestamp_ckpt lets each rank load its own newest file")
    oldest, without = _oldest_meta(tree)
    if oldest is None:
        _require_same_newest(tree)
        return _newest_everywhere(tree, why="no meta.json can be used, so each rank loads its own newest file")
    return _by_name(tree, oldest, without)


def _oldest_meta(tree: _Tree) -> tuple[str | None, list[int]]:
    """Return the lowest (epoch, step) over all ranks, as a file name with the prefix of the first rank that has it.

    Newer checkpoints and other prefixes are not considered. Also return the ranks whose record could not be used.
    """
    oldest: tuple[int, int] | None = None
    file = ""
    without = []
    for rank in range(tree.count):
        meta = tree.ranks[rank].meta if rank in tree.ranks else _NO_META
        require_read(meta.reading, f"rank_{rank}/meta.json")
        if meta.reading is not Reading.PRESENT and meta.reading not in _PASSED_OVER:
            why = f"rank_{rank}/meta.json cannot be opened as an object, which it does not handle"
            raise StopsError(why)
        if meta.epoch is None or meta.step is None or meta.file is None or not is_regular(meta.file, tree.fmt):
            without.append(rank)
        elif oldest is None or (meta.epoch, meta.step) < oldest:
            oldest, file = (meta.epoch, meta.step), meta.file
    if oldest is None:
        return None, without
    return f"{tree.prefix_of(file)}-{oldest[0]}_{oldest[1]}.{tree.fmt}", without


def _by_name(tree: _Tree, oldest: str, without: list[int]) -> Pick:
    limit = label_of(oldest, tree.fmt)
    picks = []
    for members in _groups(tree, oldest, limit=limit).values():
        if _are_all_ranks(members, tree.count):
            file = with_rank(min(members, key=rank_of), 0)
            if not tree.has_file(0, file):
                raise StopsError(f"rank_0/{file} is not found")
            picks.append(file)
    if not picks:
        raise StopsError(
            f"no name that begins with {tree.prefix_of(oldest)} exists on all {tree.count} ranks at or below "
            f"{limit[0]}_{limit[1]}, the oldest meta.json, and it never falls back to another run"
        )
    if tree.monitored:
        picks.sort(key=lambda file: run_label_of(file, tree.fmt))
        _require_healthy_entry(tree)
    else:
        picks.sort(key=lambda file: label_of(file, tree.fmt))
    name = checkpoint_name(picks[-1], tree.fmt)
    have = f"all {tree.count} ranks have" if tree.count > 1 else "its one rank has"
    most = f"{limit[0]}_{limit[1]}, the lowest position in meta.json"
    quirk = next(_quirks_met(tree, oldest, without, picks), None)
    tail = "it compares only names and opens no shard" if quirk is None else f"{quirk}, and it opens no shard"
    return Pick(name=name, because=f"{name} is the newest name that {have} up to {most}; {tail}")


def _require_healthy_entry(tree: _Tree) -> None:
    health = tree.view.health
    require_read(health.reading, "health_ckpts.json")
    if health.reading not in {Reading.PRESENT, Reading.MISSING}:
        raise StopsError("health_ckpts.json is not the list that it expects")
    if 0 not in health.marks:
        raise StopsError("with the health monitor on, health_ckpts.json must have a healthy entry, for any file")


def _groups(tree: _Tree, oldest: str, *, limit: tuple[int, int] | None) -> dict[tuple[int, int], list[str]]:
    """Return the names on all ranks with this prefix, by (epoch, step), up to `limit`."""
    prefix = tree.prefix_of(oldest) + ("-" if Quirk.KEEPS_DASH_IN_PREFIX in tree.quirks else "")
    rank_in_oldest = rank_of(oldest)
    groups: dict[tuple[int, int], list[str]] = {}
    for rank in range(tree.count):
        start = prefix.replace(f"rank_{rank_in_oldest}", f"rank_{rank}")
        if tree.monitored:  # including other runs: up to the last underscore, which begins the run suffix or the rank
            start = start[: start.rfind("_")]
        for file in tree.files(rank, of=tree.count):
            if file.name.startswith(start) and file.name.endswith(f".{tree.fmt}"):
                label = label_of(file.name, tree.fmt)
                if limit is None or label <= limit:
                    groups.setdefault(label, []).append(file.name)
    return groups


def _are_all_ranks(files: list[str], count: int) -> bool:
    ranks = {rank_of(file) for file in files}
    return len(ranks) == count and max(ranks) == count - 1


def _quirks_met(tree: _Tree, oldest: str, without: list[int], picks: list[str]) -> Iterator[str]:
    """Yield the quirks that affected the choice, the quirk with the worst consequence first."""
    file = picks[-1]
    lacking = [rank for rank in range(tree.count) if not tree.has_file(rank, with_rank(file, rank))]
    if lacking:
        yield f"of several files with these numbers it chooses the first listed, {file}, which rank {lacking[0]} lacks"
    if tree.monitored and any(mark != 0 for mark in tree.view.health.marks):
        yield "its health filter never filters (the test is inverted), so the newest complete name wins"
    if tree.monitored and label_of(file, tree.fmt) < max(label_of(pick, tree.fmt) for pick in picks):
        yield "with the health monitor on, a later run takes precedence over a larger number"
    world = tree.view.settings.world_size
    if world is not None and tree.count != world:
        yield f"it counts {tree.count} entries that begin with rank_, although {world} ranks train"
    newer = _newer_than_meta(tree, oldest)
    if newer is not None:
        yield f"{newer} is on all ranks too, but it ignores everything after the oldest meta.json"
    if without:
        yield f"the meta.json of rank {without[0]} cannot be used and is ignored"


def _newer_than_meta(tree: _Tree, oldest: str) -> str | None:
    """Return the newest complete name after the oldest meta.json.

    MindFormers itself ignores such names.
    """
    limit = label_of(oldest, tree.fmt)
    groups = _groups(tree, oldest, limit=None)
    for label in sorted(groups, reverse=True):
        try:
            if label > limit and _are_all_ranks(groups[label], tree.count):
                return checkpoint_name(groups[label][0], tree.fmt)
        except StopsError:  # a name without a rank, beyond the part that MindFormers reads
            continue
    return None


def _newest_everywhere(tree: _Tree, *, why: str) -> Pick:
    """Choose the newest checkpoint on every rank, or none if the ranks disagree.

    `touch` and `cp` can change the result.

    Args:
        tree: The ranks.
        why: The first half of the sentence that explains the choice.
    """
    names: dict[str, int] = {}
    folders = []
    for rank in range(tree.world):  # folders of ranks that do not train are ignored: leftovers of a larger run
        file = _newest(tree, rank, tree.fmt, of=tree.world)
        if file is None:
            raise StopsError(f"rank_{rank} has no .{tree.fmt} file")
        names.setdefault(checkpoint_name(file.name, tree.fmt), rank)
        if file.is_folder:
            folders.append(f"rank_{rank}/{file.name}")
    if not names:
        raise StopsError(f"there is no rank_N folder to load a .{tree.fmt} file from")
    if len(names) == 1:
        (name,) = names
        because = f"{why}; {name} has the latest modification time on each, which any touch or copy can change"
        if folders:
            because += f"; {folders[0]} is a folder, at which it stops"
        return Pick(name=name, because=because)
    shown_names = ", ".join(f"rank {rank} {name}" for name, rank in list(names.items())[:_SHOWN])
    count = "continues from its own step"
    if Quirk.STEPS_FROM_RANK_0 in tree.quirks:
        count = "continues from rank 0's step"
    because = f"{why}, and these differ ({shown_names}) while each rank {count}"
    return Pick(name=None, because=because, outcome=Outcome.MIXES)


def _require_same_newest(tree: _Tree) -> None:
    """Run MindFormers' check before each rank loads its own newest file, which happens if no meta.json can be used.

    The check compares names only if one rank's newest file follows the naming rule. Its second search ignores the
    format, so with safetensors the check finds no file and fails.
    """
    count = tree.count if Quirk.COUNTS_RANK_ENTRIES_FOR_TIMES in tree.quirks else tree.world
    expected = _first_regular(tree, count)
    if expected is None:
        return
    irregular = False
    for rank in range(count):
        file = _newest(tree, rank, "ckpt", of=count)
        if file is None:
            raise StopsError(
                "no meta.json can be used, and its comparison of the newest files then looks only for .ckpt, finds "
                f"none in rank_{rank} and fails"
            )
        if not is_regular(file.name, tree.fmt):
            irregular = True
        elif with_rank(file.name, 0) != expected:
            raise StopsError(
                f"no meta.json can be used, and the newest file of rank_{rank} differs from that of the others"
            )
    if irregular:
        raise StopsError("no meta.json can be used, and only some ranks' newest files follow the naming rule")


def _first_regular(tree: _Tree, count: int) -> str | None:
    for rank in range(count):
        file = _newest(tree, rank, tree.fmt, of=count)
        if file is None:
            raise StopsError(f"no meta.json can be used, and rank_{rank} has no .{tree.fmt} file")
        if is_regular(file.name, tree.fmt):
            return with_rank(file.name, 0)
    return None


def _newest(tree: _Tree, rank: int, fmt: str, *, of: int) -> SeenEntry | None:
    latest: SeenEntry | None = None
    at = -1.0
    for file in tree.files(rank, of=of):
        if not file.name.endswith(f".{fmt}"):
            continue
        if file.mtime_ns is None:
            raise StopsError(f"rank_{rank}/{file.name} is a broken link without a modification time, which it needs")
        # Python's getmtime: a float, in which times less than a quarter of a microsecond apart are equal.
        seconds = file.mtime_ns // _SECOND_NS + 1e-9 * (file.mtime_ns % _SECOND_NS)
        if seconds >= at:  # of equal times, the entry listed last
            latest, at = file, seconds
    return latest


# The `iteration_*` layout: the save in the tracker, and never an older one --------------------------------------------


def _of_iterations(view: MindFormersView, quirks: frozenset[Quirk], fields: frozenset[str]) -> Pick:
    folder, because = _tracked(view, quirks)
    if Quirk.LOOKS_FOR_HEALTHY_ITERATION in quirks and view.settings.use_checkpoint_health_monitor:
        folder, because = _healthy(view)
    where = folder.name or "the folder"
    require_read(folder.common.reading, f"the common.json of {where}")
    if folder.common.reading is Reading.MISSING:
        raise StopsError(f"{where} has no common.json")
    if folder.common.reading is not Reading.PRESENT:
        raise StopsError(f"the common.json of {where} is not in the form that it expects")
    for field in folder.common.fields:
        if field not in fields:
            raise StopsError(f"{UNKNOWN_FIELD} {field} in common.json, written by a newer MindFormers")
    return Pick(name=folder.name or view.path.rpartition("/")[2], because=because)


def _tracked(view: MindFormersView, quirks: frozenset[Quirk]) -> tuple[IterationView, str]:
    is_hugging_face = "model.safetensors.index.json" in (view.itself.names or ())
    if is_hugging_face and Quirk.TAKES_HUGGING_FACE in quirks:
        return view.itself, "model.safetensors.index.json makes the folder itself the checkpoint"
    tracker = view.tracker
    require_read(tracker.reading, "the tracker file")
    if tracker.reading is Reading.MISSING:
        return view.itself, f"there is no tracker, so it uses the folder itself, where {_verified(view.itself)}"
    if tracker.reading is not Reading.PRESENT:
        raise StopsError("the tracker file cannot be read")
    if tracker.folder is None:
        content = f"{tracker.text[:20]!r}, which is not a number" if tracker.text else "empty"
        raise StopsError(f"the tracker file is {content}, {_NEVER_OLDER}")
    for folder in view.iterations:
        if folder.name == tracker.folder and folder.names is not None:
            return folder, f"the tracker names it and {_verified(folder)}"
    raise StopsError(f"the tracker names {tracker.folder}, which is not a folder there, {_NEVER_OLDER}")


def _verified(folder: IterationView) -> str:
    """Return the reason why MindFormers accepts a folder; the check reads only names."""
    names = frozenset(folder.names or ())
    where = folder.name or "the folder"
    require_read(folder.metadata.reading, f"the metadata.json of {where}")
    if folder.metadata.reading is Reading.MISSING:
        shards = sum(name.endswith(".safetensors") and not name.startswith(".") for name in names)
        if not shards:
            raise StopsError(f"{where} has no *.safetensors, {_NEVER_OLDER}")
        return f"without a metadata.json it checks only that a *.safetensors exists ({shards} found), and opens none"
    if folder.metadata.reading is not Reading.PRESENT:
        raise StopsError(f"the metadata.json of {where} is not in the form that it expects, {_NEVER_OLDER}")
    for file in folder.metadata.files:
        if file not in names:
            raise StopsError(f"{where} lacks {file}, which its metadata.json lists, {_NEVER_OLDER}")
    return f"all {len(folder.metadata.files)} shards in metadata.json exist by name; it opens none of them"


def _healthy(view: MindFormersView) -> tuple[IterationView, str]:
    """Return the newest iteration whose common.json is healthy, whatever the tracker and the contents."""
    if not view.iterations:
        raise StopsError("with the health monitor on it needs an iteration_* entry, but finds none")
    numbers = [match and int(match[1]) for match in (_NUMBER.search(folder.name) for folder in view.iterations)]
    if len(numbers) > 1 and None in numbers:
        invalid = view.iterations[numbers.index(None)].name
        raise StopsError(f"{invalid} has no number, so it cannot be sorted")
    ordered = sorted(zip(numbers, view.iterations, strict=True), key=lambda pair: pair[0] or 0, reverse=True)
    because = "it is the newest whose common.json has ckpt_status 0; it checks neither the tracker nor the shards"
    for _, folder in ordered:
        reading = folder.common.reading
        require_read(reading, f"the common.json of {folder.name}")
        if reading in {Reading.NOT_TEXT, Reading.WRONG_SHAPE}:
            raise StopsError(f"the common.json of {folder.name} is not an object, which it does not handle")
        if reading is Reading.PRESENT and folder.common.ckpt_status == 0:
            holds_some = any(name.endswith(".safetensors") for name in folder.names or ())
            return folder, because if holds_some else f"{because}, and this one has none"
    raise StopsError(
        "no iteration's common.json has ckpt_status 0; a checkpoint that was never monitored counts as unhealthy"
    )
