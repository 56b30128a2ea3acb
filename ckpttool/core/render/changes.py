"""Texts shared by the answers of all commands that change a tree."""

from __future__ import annotations

from ckpttool.core.domain.question import GRACE_SECONDS


def refused(change: str, *, apply: bool) -> str:
    """Return the headline of a change that is refused, or of a dry run of such a change.

    Args:
        change: The change, as a clause.
        apply: Whether the change was requested; otherwise the command was a dry run.
    """
    if apply:
        return f"Refused: {change}; nothing was changed"
    return f"{change}, but --apply would be refused now"


def grace_option(grace: float) -> list[str]:
    """Return the option that repeats the grace time of a dry run; an empty list for the default."""
    return [] if grace == GRACE_SECONDS else ["--grace", f"{grace:g}"]
