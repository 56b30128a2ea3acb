"""The selection by time: each rank takes the newest file in its own folder. `touch` and `cp` decide it."""

from __future__ import annotations

from ckpttool.trainers.mindformers.simulate.names import Pick, StopsError, checkpoint_name, is_regular, with_rank
from ckpttool.trainers.mindformers.simulate.seen import SeenEntry
from ckpttool.trainers.mindformers.simulate.tree import LegacyTree

_SECOND_NS = 1_000_000_000
_SHOWN = 3  # ranks that a sentence names


def newest_everywhere(tree: LegacyTree, *, why: str, only_visible: bool = False) -> Pick:
    """Pick the checkpoint that is the newest on every rank, or none where the ranks disagree.

    Args:
        tree: The ranks.
        why: First half of the sentence.
        only_visible: Whether ranks without a folder are passed over, because they lie on other nodes' disks.

    Raises:
        StopsError: A rank has nothing to load.
    """
    # Nobody asks the folders of ranks that do not train: leftovers of a larger run.
    ranks = sorted(rank for rank in tree.ranks if rank < tree.world) if only_visible else range(tree.world)
    names: dict[str, int] = {}
    folders = []
    for rank in ranks:
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
    shown = ", ".join(f"rank {rank} {name}" for name, rank in list(names.items())[:_SHOWN])
    count = "counts on from rank 0's step" if tree.quirks.steps_from_rank_0 else "counts on from its own step"
    return Pick(name=None, because=f"{why}, and these differ ({shown}) while each rank {count}")


def require_same_newest(tree: LegacyTree) -> None:
    """Do the check that comes before, where meta.json gave nothing.

    It compares names only if one rank's newest follows the naming rule. Its second look forgets the format, so with
    safetensors it finds no file and stumbles over that.

    Raises:
        StopsError: It would stop.
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
    found = _newest(tree, rank, fmt, of=of)
    return None if found is None else found.name


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
