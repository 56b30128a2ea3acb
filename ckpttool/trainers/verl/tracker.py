"""The tracker next to the saves, which verl and SkyRL write under different names."""

from __future__ import annotations

from collections.abc import Collection

from ckpttool.core.domain.checkpoint import Tracked
from ckpttool.core.domain.finding import Code, Finding, note
from ckpttool.core.formats.strict_json import ParseError
from ckpttool.core.storage.base import Storage, unreadable
from ckpttool.trainers.common.listed import tracked_in
from ckpttool.trainers.common.tracker_file import tracked_step
from ckpttool.trainers.verl import folder_of


def read_tracker(
    storage: Storage, path: str, names: Collection[str], *, start: str, without_save: str
) -> tuple[Tracked | None, list[Finding]]:
    """Read the tracker.

    Args:
        storage: The tree.
        path: The tracker.
        names: Folders of the saves.
        start: The start that reads the tracker, as the beginning of a clause.
        without_save: Effect of a tracker that names a save which does not exist, as the end of the clause.
    """
    try:
        step = tracked_step(storage, path)
    except FileNotFoundError:
        return None, [note(Code.TRACKER_DISAGREES, f"no tracker file: {start} starts from scratch", path=path)]
    except OSError as error:
        return None, [unreadable(path, error)]
    except ParseError as error:
        return None, [note(Code.TRACKER_DISAGREES, f"{error}: {start} stops here", path=path)]
    name = folder_of(step)
    tracked = tracked_in(storage, path, name, step)
    if name in names:
        return tracked, []
    message = f"the tracker names {name}, which does not exist: {start} {without_save}"
    # Nothing is saved before the first step: a 0 was written by hand, and proves nothing about the training.
    return tracked if step else None, [note(Code.TRACKER_DISAGREES, message, path=path)]
