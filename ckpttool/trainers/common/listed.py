"""Helpers for layouts that list files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory, RunSummary, Tracked
from ckpttool.core.domain.expectation import Expectation, Expected, FilesByPath
from ckpttool.core.domain.finding import Code, Finding, Row, Severity, damage, note
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.progress import Progress
from ckpttool.core.domain.shard import FileStamp, Shard
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.storage.base import Kind, Storage, unreadable
from ckpttool.core.storage.fan_out import map_waiting
from ckpttool.trainers.base import Members, Refusal
from ckpttool.trainers.listing import Listing

UNFINISHED_MARK = "-unfinished"
"""Suffix of the marker file that NeMo creates next to a save when the save starts, and removes when it ends."""
_FROM_A_COPY = "restore it from a copy, or resume from another checkpoint"


def one_save(folders: str) -> Refusal:
    """Refuse to move a save, because its layout has only one.

    Args:
        folders: The signs of layouts with several saves: `rank_N/ or iteration_*/`.
    """
    return Refusal(why=f"is one checkpoint, not a tree of {folders} folders", is_of_tree=True)


def holds_its_mark(layout: str, *, companion: str) -> Refusal:
    """Refuse to record health next to the saves, because each save contains its own record.

    Args:
        layout: Name of the layout.
        companion: The layout whose health is recorded next to the saves.
    """
    mark = f"in {layout} each checkpoint contains its own mark, and checkpoints are never changed"
    return Refusal(why=f"is for {companion}: {mark}")


def in_order_of_progress(checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Sort by progress; saves with unknown progress, which are never loaded, come last."""
    every = list(checkpoints)
    progress = Progress(every)

    def age(checkpoint: Checkpoint) -> tuple[bool, int, str]:
        place = progress.of(checkpoint)
        return place is None, checkpoint.step or 0 if place is None else place, checkpoint.name

    return sorted(every, key=age)


def tracked_by(checkpoints: Iterable[Checkpoint], name: str | None) -> list[Checkpoint]:
    """Mark the save that a record names as the last, intact or not; mark no save if the record names none."""
    return [replace(save, is_tracked=True) if save.name == name else save for save in checkpoints]


def own_folder(checkpoint: Checkpoint, record: str, *records: str) -> Members | Refusal:
    """Return the save's own folder as the files to move; refuse if the trainer's record names the save.

    Args:
        checkpoint: The save.
        record: The record that names the last save: `latest`.
        records: Files in the folder that the trainer writes in addition to the shards.
    """
    if checkpoint.is_tracked:
        return Refusal(why=f"is the one that {record} names, from which a start without a name resumes")
    return Members(paths=(checkpoint.name,), records=tuple(f"{checkpoint.name}/{own_record}" for own_record in records))


def one_run(checkpoints: Sequence[Checkpoint]) -> tuple[RunSummary, ...]:
    """Summarize the progress of the tree as one run, because its names do not distinguish runs.

    Args:
        checkpoints: All checkpoints of the tree, the newest last.
    """
    if not checkpoints:
        return ()
    steps = [checkpoint.step for checkpoint in checkpoints if checkpoint.step is not None]
    return (
        RunSummary(
            prefix=checkpoints[-1].prefix,
            run=0,
            first_step=min(steps, default=None),
            last_step=max(steps, default=None),
            world_size=checkpoints[-1].topology.world_size or 0,
        ),
    )


def by_own_records(inventory: Inventory) -> Expected:
    """Expect the files that each save's own record names; without a record, the expected files are unknown."""
    return Expected(
        checkpoints=tuple(
            Expectation(
                files=None if save.expected is None else FilesByPath(paths=save.expected, ranks={}),
                topology=save.topology,
            )
            for save in inventory.checkpoints
        ),
        runs=inventory.runs,
    )


def marked_unfinished(listing: Listing, names: Iterable[str]) -> frozenset[str]:
    """Return the saves that NeMo's mark shows as unfinished.

    Source: `format_checkpoint_unfinished_marker_path` of NeMo 2.

    Args:
        listing: The folder of the saves.
        names: The names of the saves.
    """
    marks = {entry.name for entry in listing.entries if entry.name.endswith(UNFINISHED_MARK)}
    if not marks:
        return frozenset()
    return frozenset(
        name for name in names if f"{name.removesuffix('.ckpt').removesuffix('-EMA')}{UNFINISHED_MARK}" in marks
    )


def not_finished(name: str) -> Finding:
    """Report an unfinished save."""
    message = f"the file *{UNFINISHED_MARK} beside it shows that the save is not complete"
    return damage(Code.UNCOMMITTED_SAVE, message, path=name, remedy="resume from an older checkpoint")


def stray(path: str) -> Finding:
    """Report a file that belongs to no save."""
    return note(Code.STRAY_FILE, "not part of any checkpoint: listed, but never counted", path=path)


def stamp_if_there(storage: Storage, path: str) -> FileStamp | None:
    """Return a listed file's stamp; None if it was removed or became unreadable after the listing."""
    try:
        return storage.stamp(path)
    except OSError:
        return None


def stamped(storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
    """Add the size and time of each of a checkpoint's files."""
    stamps = map_waiting(lambda shard: shard.stamp or stamp_if_there(storage, shard.path), checkpoint.shards)
    pairs = zip(checkpoint.shards, stamps, strict=True)
    return replace(checkpoint, shards=tuple(replace(shard, stamp=stamp) for shard, stamp in pairs))


def tracked_in(storage: Storage, record: str, name: str, step: Step | None) -> Tracked:
    """Return the save that a record names as the last, and the record's time.

    Args:
        storage: The tree.
        record: The path of the record.
        name: The name of the save.
        step: The step in that name.
    """
    stamp = stamp_if_there(storage, record)
    return Tracked(name=name, step=step, written_ns=None if stamp is None else stamp.modified_ns)


def timed(storage: Storage, checkpoints: Sequence[Checkpoint], tracked: Tracked | None) -> list[Checkpoint]:
    """Add the times of the tracker's save and of later saves.

    They show whether the tracker was written after these saves.

    Args:
        storage: The tree.
        checkpoints: All checkpoints of the tree.
        tracked: The save in the tracker; None if the tracker names no save.
    """
    progress = Progress(checkpoints)
    if tracked is None:
        return list(checkpoints)
    named = next((save for save in checkpoints if save.name == tracked.name), None)
    least = tracked.step if named is None else progress.of(named)
    if least is None:
        return list(checkpoints)
    return [stamped(storage, save) if (progress.of(save) or 0) >= least else save for save in checkpoints]


def lost_link(storage: Storage, path: str, rank: Rank | None) -> list[Finding]:
    """Report a dangling link that has a shard's name, worded as in the check of every shard.

    The shard counts as listed, because the link's target is unknown, not missing.
    """
    try:
        with storage.open(path):
            return []  # it was mounted in the meantime
    except OSError as error:
        return [unreadable(path, error, rank)]


def listed_shard(
    storage: Storage, shard: Shard, kind: Kind, findings: list[Finding], *, sizes: bool
) -> tuple[Shard, ...]:
    """Return a save's file as listed; if the entry is not a file, return nothing and add a finding.

    Args:
        storage: The tree.
        shard: The facts in the file's name.
        kind: Whether the entry is a file, a folder or neither.
        findings: The findings about the save.
        sizes: Whether to read the file's stamp as well.
    """
    if kind not in {Kind.FILE, Kind.LOST}:
        severity = Severity.DAMAGE if kind is Kind.FOLDER else Severity.UNSAFE
        message = "expected a file, but this is a folder, FIFO or device"
        findings.append(Finding(code=Code.NOT_A_REGULAR_FILE, severity=severity, message=message, path=shard.path))
        return ()
    if kind is Kind.LOST:
        findings += lost_link(storage, shard.path, shard.rank)
    return (replace(shard, stamp=stamp_if_there(storage, shard.path)) if sizes else shard,)


def by_rank(shards: Iterable[Shard]) -> tuple[Shard, ...]:
    """Sort by rank and path; files without a rank come last."""
    return tuple(sorted(shards, key=lambda shard: (shard.rank is None, shard.rank or 0, shard.path)))


def listed_damage(code: Row, message: str, path: str, *, remedy: str = _FROM_A_COPY) -> Finding:
    """Report damage that the listing alone shows."""
    return damage(code, message, path=path, remedy=remedy)
