"""Conditions for changing a tree, and the checkpoint that its records must name afterwards.

No other process may write to the tree during the change. The trainer's pointers must name the newest intact checkpoint,
never a deleted one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, Finding, unknown
from ckpttool.core.domain.pointer import Pointer, PointerFix, PointerText
from ckpttool.core.domain.units import moment_if_any

NamingIt = Callable[[Checkpoint], Mapping[str, PointerText]]
"""Function that returns the content of each record, by path, after a save of the checkpoint.

Records that cannot name the checkpoint are left out.
"""


def signs_of_writing(
    unfinished: Iterable[str], written: Iterable[tuple[str, float]], *, now: float, grace: float
) -> Iterator[Finding]:
    """Report unfinished files, and the newest file if its age is below the grace time.

    Args:
        unfinished: Paths of files that have a temporary name.
        written: Paths of files that saves write, with their mtimes in Unix seconds.
        now: Current time in Unix seconds.
        grace: Grace time in seconds. A file time further in the future than this only shows that a clock was wrong.
    """
    for path in sorted(unfinished):
        yield unknown(
            Code.IN_PROGRESS,
            "a temporary file: a save is in progress, or was interrupted",
            path=path,
            remedy="wait for the save; if no training is running, remove the file",
        )
    age, path, at = min(((abs(now - mtime), path, mtime) for path, mtime in written), default=(grace, "", now))
    if age < grace:
        yield unknown(
            Code.IN_PROGRESS,
            f"written {age:.0f} s ago: a save may be in progress (--grace {grace:g})",
            path=path,
            actual=moment_if_any(at),
            remedy=f"wait {grace - age:.0f} s; if no training is running, pass --grace 0",
        )


def stale_pointers(
    pointers: Sequence[Pointer], going: Iterable[Checkpoint], staying: Iterable[Checkpoint], naming: NamingIt
) -> Iterator[PointerFix]:
    """Return the records that name a checkpoint to delete, each with the best remaining checkpoint that it can name.

    Args:
        pointers: The current records.
        going: The checkpoints to delete.
        staying: The intact checkpoints that stay, best first.
        naming: The naming rules of the tree's layout.
    """
    going = tuple(going)
    leaving = {shard.path for checkpoint in going for shard in checkpoint.shards}
    leaving |= {checkpoint.name for checkpoint in going}
    stale = [pointer for pointer in pointers if pointer.target in leaving]
    best: dict[str, PointerText] = {}
    for checkpoint in staying:
        if all(pointer.path in best for pointer in stale):
            break
        best = {**naming(checkpoint), **best}
    for pointer in stale:
        if pointer.path in best:
            trouble = f"names {pointer.name}, which will be deleted"
            yield PointerFix(path=pointer.path, trouble=trouble, text=best[pointer.path])


def repairs(pointers: Iterable[Pointer], checkpoint: Checkpoint, naming: NamingIt) -> Iterator[PointerFix]:
    """Return a fix for each record that does not name this checkpoint, with the error in the record.

    Args:
        pointers: The current records.
        checkpoint: The checkpoint that the records must name.
        naming: The naming rules of the tree's layout.
    """
    texts = naming(checkpoint)
    for pointer in pointers:
        text = texts.get(pointer.path)
        if text is not None and text.content != pointer.content:
            yield PointerFix(path=pointer.path, trouble=pointer.trouble or f"names {pointer.name}", text=text)
