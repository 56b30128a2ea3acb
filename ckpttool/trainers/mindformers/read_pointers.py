"""What the trainer's own records name as saved last: every rank's meta.json, or the tracker of the newer layout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ckpttool.domain.checkpoint import Inventory, LayoutName
from ckpttool.domain.retention import SavedLast
from ckpttool.domain.units import Rank
from ckpttool.formats.strict_json import ParseError
from ckpttool.storage.base import Storage
from ckpttool.trainers.common.tracker_file import TRACKER
from ckpttool.trainers.mindformers.layouts.iteration import TRACKER_LIMIT
from ckpttool.trainers.mindformers.layouts.rank_folders import META_LIMIT
from ckpttool.trainers.mindformers.meta_json import parse_meta


def saved_last(storage: Storage, inventory: Inventory, ranks: Iterable[Rank]) -> Iterator[SavedLast]:
    """Read the records of a tree.

    Args:
        storage: The tree.
        inventory: Of it.
        ranks: Whose meta.json to read, in the legacy layout.
    """
    if inventory.layout is LayoutName.MINDFORMERS_ITERATION:
        yield read_tracker(storage)
        return
    for rank in ranks:
        yield read_meta(storage, rank)


def read_meta(storage: Storage, rank: Rank) -> SavedLast:
    """Read a rank's meta.json."""
    path = f"rank_{rank}/meta.json"
    try:
        record = parse_meta(storage.small_file(path, limit=META_LIMIT), what=path)
    except FileNotFoundError:
        return SavedLast(path=path, rank=rank, trouble="is missing")
    except OSError as error:
        return SavedLast(path=path, rank=rank, trouble=f"cannot be read ({error.strerror or error})", unknown=True)
    except ParseError:
        return SavedLast(path=path, rank=rank, trouble="is torn or edited")
    return SavedLast(path=path, rank=rank, file=record.file, position=record.position)


def read_tracker(storage: Storage) -> SavedLast:
    """Read the tracker of the newer layout."""
    try:
        text = storage.small_file(TRACKER, limit=TRACKER_LIMIT).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return SavedLast(path=TRACKER, rank=None, trouble="is missing")
    except OSError as error:
        return SavedLast(path=TRACKER, rank=None, trouble=f"cannot be read ({error.strerror or error})", unknown=True)
    if not (text.isascii() and text.isdigit()):
        return SavedLast(path=TRACKER, rank=None, trouble="holds no step")
    return SavedLast(path=TRACKER, rank=None, file=f"iteration_{int(text):08d}")
