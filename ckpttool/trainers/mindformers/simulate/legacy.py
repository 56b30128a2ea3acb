"""The selection in the `rank_N` layout: by meta.json and names, or by time.

Source: `get_resume_checkpoint` and what it calls, as the wheels in `versions` have them; the order of the steps and
each step's quirk are theirs. It reads names only, so the sentences here never speak of what is inside a shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ckpttool.trainers.mindformers.simulate.names import (
    Pick,
    StopsError,
    checkpoint_name,
    is_regular,
    label_of,
    rank_of,
    run_label_of,
    with_rank,
)
from ckpttool.trainers.mindformers.simulate.newest import newest_everywhere, require_same_newest
from ckpttool.trainers.mindformers.simulate.seen import HealthView, MetaView, MindFormersView, Reading
from ckpttool.trainers.mindformers.simulate.tree import LegacyTree
from ckpttool.trainers.mindformers.simulate.versions import Quirks

_PASSED_OVER = {Reading.MISSING, Reading.NOT_TEXT, Reading.NOT_JSON}


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
    beside = min((name for name in tree.entries if name.endswith(".ckpt")), default=None)
    if pick.name is None or beside is None or tree.fmt != "ckpt":
        return pick
    return replace(
        pick, because=f"{pick.because}; its weights come from {beside} beside the rank folders, on all ranks"
    )


def _selected(view: MindFormersView, tree: LegacyTree) -> Pick:
    settings, quirks = view.settings, tree.quirks
    if isinstance(settings.resume_training, str):
        return _named(tree, settings.resume_training)
    if not _is_shared(view, tree):
        why = f"it takes the disks of {tree.world} ranks for separate ones, so each rank loads its own newest file"
        return newest_everywhere(tree, why=why, only_visible=True)
    if quirks.takes_unified and tree.fmt == "safetensors" and tree.has_entry("hyper_param.safetensors"):
        return Pick(name=None, because="hyper_param.safetensors ends its selection: it loads the unified weights there")
    if settings.resume_by_last_timestamp_ckpt:
        return newest_everywhere(tree, why="resume_by_last_timestamp_ckpt lets each rank load its own newest file")
    base = _oldest_meta(tree)
    if base is None:
        require_same_newest(tree)
        return newest_everywhere(tree, why="no meta.json can be used, so each rank loads its own newest file")
    return _by_name(tree, base)


def _is_shared(view: MindFormersView, tree: LegacyTree) -> bool:
    settings = view.settings
    if tree.world <= settings.devices_per_node or settings.shared_disk:
        return True
    # A plain comparison of text: /share1 covers /share10 as well.
    return any(view.path.startswith(path) for path in settings.shared_paths)


def _named(tree: LegacyTree, wanted: str) -> Pick:
    suffix = f".{tree.fmt}"
    file = wanted if wanted.endswith(suffix) else wanted + suffix
    lacking = [rank for rank in range(tree.world) if not tree.has_file(rank, with_rank(file, rank))]
    if len(lacking) == tree.world:
        return Pick(name=None, because=f"it looks for {file}, which no rank has, and notices only when it loads")
    because = "the name in resume_training is taken as it stands and nothing checks that all ranks have it"
    if lacking:
        because += f"; rank {lacking[0]} has not, and stops when it loads"
    return Pick(name=checkpoint_name(file, tree.fmt), because=because)


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
        _require_a_healthy_entry(tree.health_file)
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


def _require_a_healthy_entry(health: HealthView) -> None:
    if health.reading not in {Reading.PRESENT, Reading.MISSING}:
        raise StopsError("health_ckpts.json is not the list that it expects")
    if not any(entry.is_health == 0 for entry in health.entries):
        raise StopsError("with the health monitor on, health_ckpts.json must have a healthy entry, of whatever file")


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
    if tree.health and any(entry.is_health != 0 for entry in tree.health_file.entries):
        yield "its health filter never filters (the test is inverted), so the newest complete name wins"
    if tree.health and label_of(file, tree.fmt) < max(label_of(other, tree.fmt) for other in picks):
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
