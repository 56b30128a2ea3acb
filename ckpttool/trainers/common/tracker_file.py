"""`latest_checkpointed_iteration.txt`, the tracker of three trainers.

The file alone does not identify a tree's trainer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from ckpttool.core.domain.units import STEP_DIGITS, Step
from ckpttool.core.formats.strict_json import ParseError
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.common import TRACKER, TRACKERS

if TYPE_CHECKING:
    from ckpttool.core.domain.pointer import Pointer, PointerText

_LIMIT = 64

_OTHERS = {"Megatron-LM": r"iter_[0-9]{7,18}", "verl": r"global_step_[0-9]{1,18}"}
"""Patterns for the save folders of other trainers that write a tracker with this name."""


def whose_tracker(names: Collection[str]) -> str:
    """Describe the trainer whose checkpoints a folder seems to contain; "" if there are no signs of one.

    The folder has a tracker but no known save.
    """
    for trainer, pattern in _OTHERS.items() if TRACKER in names else ():
        save_name = next((name for name in names if re.fullmatch(pattern, name)), None)
        if save_name is not None:
            return (
                f"; {save_name} beside {TRACKER} looks like a tree of {trainer}, but contains no save that ckpttool "
                "knows"
            )
    notes = [f"{name} is a tracker of {trainers}" for name, trainers in TRACKERS.items() if name in names]
    return f"; {' and '.join(notes)}, but there is no checkpoint" if notes else ""


def lacks_its_saves(names: Collection[str]) -> bool:
    """Return whether a folder has a tracker, but no save with a name that the tracker's trainers use."""
    patterns = "|".join((*_OTHERS.values(), "iteration_[0-9]{1,18}", "rank_[0-9]{1,18}"))
    return TRACKER in names and not any(re.fullmatch(patterns, name) for name in names)


def tracked_step(storage: Storage, path: str = TRACKER) -> Step:
    """Return the step that the tracker names.

    Args:
        storage: The tree.
        path: The tracker.

    Raises:
        FileNotFoundError: There is no tracker.
        OSError: The tracker cannot be read.
        ParseError: The tracker contains no step.
    """
    return _step(_text(storage, path))


def _text(storage: Storage, path: str) -> str:
    return storage.small_file(path, limit=_LIMIT).decode("ascii", "replace").strip()


def _step(text: str) -> Step:
    if re.fullmatch(rf"[0-9]{{1,{STEP_DIGITS}}}", text) is None:
        raise ParseError(f"expected a step, found {text!r}")
    return Step(int(text))


def tracker_pointer(
    storage: Storage, folder_of: Callable[[Step], str], *, content: str | None = None, path: str = TRACKER
) -> Pointer:
    """Read the tracker.

    Args:
        storage: The tree.
        folder_of: Returns the trainer's name for the save of a step.
        content: The value that the tracker may contain instead of a step: the name of a folder.
        path: The tracker.
    """
    from ckpttool.core.domain.pointer import Pointer  # not needed for a scan

    try:
        text = _text(storage, path)
        if text == content:
            return Pointer(path=path, name=content, target=content, content=text.encode("ascii"))
        step = _step(text)
    except FileNotFoundError:
        return Pointer(path=path, trouble="is missing")
    except OSError as error:
        return Pointer(path=path, trouble=f"cannot be read ({error.strerror or error})", unknown=True)
    except ParseError:
        return Pointer(path=path, trouble="has no step")
    folder = folder_of(step)
    return Pointer(path=path, name=folder, target=folder, content=_bytes(step))


def tracker_naming(folder: str, step: Step | None, path: str = TRACKER) -> dict[str, PointerText]:
    """Return the tracker's contents that name a folder's save: the step, or the name if the name has no step."""
    from ckpttool.core.domain.pointer import PointerText  # not needed for a scan

    return {path: PointerText(name=folder, content=folder.encode("ascii") if step is None else _bytes(step))}


def _bytes(step: Step) -> bytes:
    return str(step).encode("ascii")
