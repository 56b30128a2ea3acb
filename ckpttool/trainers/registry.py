"""Directory layouts, recognised by names alone."""

from __future__ import annotations

from operator import itemgetter

from ckpttool.domain.checkpoint import LayoutName
from ckpttool.storage.base import Storage
from ckpttool.trainers.base import Layout, Listing, ScanOptions
from ckpttool.trainers.mindformers.layouts.iteration import MindFormersIteration
from ckpttool.trainers.mindformers.layouts.rank import MindFormersRank
from ckpttool.trainers.mindformers.layouts.unified import MindFormersUnified

LAYOUTS: tuple[Layout, ...] = (MindFormersUnified(), MindFormersIteration(), MindFormersRank())
"""Most specific first."""


def list_root(storage: Storage) -> Listing:
    """List a folder, sorted by name.

    Raises:
        OSError: It cannot be listed.
    """
    return Listing(entries=tuple(sorted(storage.entries(""), key=itemgetter(0))))


def recognise(listing: Listing, *, wanted: LayoutName | None = None) -> Layout | None:
    """Return the layout of a folder; None where no layout knows it.

    Args:
        listing: The folder's names.
        wanted: Look for this one alone, where a folder holds several.
    """
    return next((layout for layout in LAYOUTS if wanted in {None, layout.name} and layout.recognise(listing)), None)


__all__ = ["LAYOUTS", "Layout", "Listing", "ScanOptions", "list_root", "recognise"]
