"""Of a tree on many machines: checkpoints of which one machine let its files go, and another one has its own still."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.finding import Finding, in_order, note
from ckpttool.core.domain.frozen import replace
from ckpttool.core.records.journal import TRASH, trash_folder, trashed_name
from ckpttool.core.storage import open_storage
from ckpttool.nodes.findings import NodesCode
from ckpttool.nodes.read.merging import MergedViews
from ckpttool.trainers.base import Refusal, ScanOptions
from ckpttool.trainers.listing import list_root
from ckpttool.trainers.located import Located


def without_half_gone(
    located: Located, views: MergedViews, inventory: Inventory, options: ScanOptions
) -> tuple[Located, Inventory]:
    """Return a tree as it is without those saves: what is left of one may look whole on fewer ranks, and is none.

    Args:
        located: The tree.
        views: What its machines saw. What is left of such saves is taken out of it.
        inventory: As scanned.
        options: With which it was scanned.
    """
    halves = list(_halves(located, views, inventory))
    if not halves:
        return located, inventory
    for save, _ in halves:
        views.forget(_paths(located, save))
    storage = open_storage(located.storage.root)
    located = replace(located, storage=storage, listing=list_root(storage))
    remaining = located.layout.scan(storage, located.listing, options)
    findings = in_order((*remaining.findings, *(_half_gone(views, save, folders) for save, folders in halves)))
    return located, replace(remaining, findings=findings)


def _halves(located: Located, views: MergedViews, inventory: Inventory) -> Iterator[tuple[Checkpoint, list[str]]]:
    """Yield each save of which files lie in a trash and nowhere else, and the folders of that."""
    trash: dict[str, list[str]] = {}
    for folder in views.trashed:
        trash.setdefault(trashed_name(folder), []).append(folder)
    for save in inventory.checkpoints:
        folders = [folder for folder in trash.get(save.name, ()) if _is_of(located, views, save, folder)]
        if folders:
            yield save, folders


def _is_of(located: Located, views: MergedViews, save: Checkpoint, folder: str) -> bool:
    """Tell whether what lies in a folder of a trash is of a save: other trainings, or formats, may share its name.

    What was saved anew under the name of one that went is another one, and younger than its trash.
    """
    trashed, stamps = trash_folder(folder), views.answers.stamps
    saved_ns = max((stamps[shard.path].modified_ns or 0 for shard in save.shards if shard.path in stamps), default=0)
    if trashed is None or saved_ns > trashed.since * 1e9:
        return False
    inside = tuple(f"{path}/" for path in _paths(located, save))
    if any(path.startswith(inside) for path in views.trashed[folder]):
        return True
    storage = open_storage(f"{located.storage.root}/{TRASH}/{folder}")
    with suppress(OSError):  # what cannot be read there is told by no name
        inventory = located.layout.scan(storage, list_root(storage), ScanOptions())
        return save.key in {checkpoint.key for checkpoint in inventory.checkpoints}
    return False


def _paths(located: Located, save: Checkpoint) -> tuple[str, ...]:
    members = located.layout.members(save)
    return tuple(shard.path for shard in save.shards) if isinstance(members, Refusal) else members.paths


def _half_gone(views: MergedViews, save: Checkpoint, folders: list[str]) -> Finding:
    seats = views.merge.seats
    hosts_without = {seats[at].host for folder in folders for at in views.listing(f"{TRASH}/{folder}")}
    hosts_with = {seats[at].host for shard in save.shards for at in views.merge.holders.get(shard.path, ())}
    return note(
        NodesCode.HALF_GONE,
        f"{_named(hosts_without)} moved its files to the trash, and {_named(hosts_with)} did not: what is "
        "left counts for nothing",
        path=save.name,
        remedy=f"ckpttool trash restore {save.name} where it went; or remove what is left",
    )


def _named(hosts: set[str]) -> str:
    first, *more = sorted(hosts)
    return f"{first} and {len(more)} more" if more else first
