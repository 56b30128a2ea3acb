"""Is somebody writing to a tree? What must be known before anything is moved away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ckpttool.domain.finding import Code, Finding, unknown


def signs_of_writing(
    unfinished: Iterable[str], written: Iterable[tuple[str, float]], *, now: float, grace: float
) -> Iterator[Finding]:
    """Report files that are not finished, and the youngest file where it is younger than the grace time.

    Args:
        unfinished: Paths of files under a temporary name.
        written: Paths of what saves write, with their mtimes in Unix seconds.
        now: Unix seconds.
        grace: Seconds. A time so far in the future says nothing but that a clock was wrong.
    """
    for path in sorted(unfinished):
        yield unknown(
            Code.IN_PROGRESS,
            "a temporary file: a save is under way, or was cut off",
            path=path,
            remedy="wait for the save; where no training runs, remove the file",
        )
    youngest = min(((abs(now - mtime), path) for path, mtime in written), default=None)
    if youngest is not None and youngest[0] < grace:
        yield unknown(
            Code.IN_PROGRESS,
            f"written {youngest[0]:.0f} s ago: somebody may still be saving (--grace {grace:g})",
            path=youngest[1],
            remedy="wait; where no training runs, --grace 0",
        )
