"""The save that Lightning chooses: with `ckpt_path="last"`, the newest file with certain names, whatever its contents.

Source: `_parse_ckpt_path` in trainer/connectors/checkpoint_connector.py and `_find_last_checkpoints` in
callbacks/model_checkpoint.py of Lightning 2.6; and its runs with a stale, a truncated and a dangling `last.ckpt`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, Content
from ckpttool.core.domain.finding import Code, Finding, blocking, note
from ckpttool.core.domain.plan import Outcome
from ckpttool.core.storage import is_local
from ckpttool.core.storage.base import Entry, Kind, NotRegularError, Storage
from ckpttool.trainers.common.named_path import elsewhere, inside
from ckpttool.trainers.common.own_choice import Choice, ChoiceUnknown, ConfigChoice, OwnChoice, choice_with, holder
from ckpttool.trainers.common.torch_files import is_torn
from ckpttool.trainers.lightning import TRAINER, hpc_number, is_last
from ckpttool.trainers.lightning.callbacks import fit_prefix, items_of, saving_callbacks

if TYPE_CHECKING:
    from ckpttool.core.decide.lint_engine import View
    from ckpttool.trainers.abilities import OwnStart

_START = "a start with ckpt_path='last'"
_ON_SLURM = "a start on Slurm without a ckpt_path"
_LOGGERS = {"TensorBoardLogger", "CSVLogger"}
"""Loggers that number their versions themselves."""
_REMEDY = "resume with ckpt_path=PATH, never 'last', and remove it"


def choice_of(start: OwnStart, view: View) -> ConfigChoice:
    """Return the effect of `ckpt_path` in the config of Lightning's command line.

    Source: `LightningCLI` passes `ckpt_path` to `Trainer.fit`; if it is not set, Lightning searches only for Slurm's
        saves.
    """
    key = "fit.ckpt_path" if view.is_section("fit.trainer") else "ckpt_path"
    path = view.get(key)
    if path == "last":
        folder = next(_dirpaths(view), None)
        return ConfigChoice(
            choice=_of_last(start, view), key=key, path=None if folder is None else os.path.expanduser(folder)
        )
    named = os.path.expanduser(path) if isinstance(path, str) and path not in {"", "best"} else None
    return ConfigChoice(choice=_of_path(start, key, path), key=key, path=named)


def _dirpaths(view: View) -> Iterator[str]:
    for place in saving_callbacks(view):
        folder = view.get(f"{place}.dirpath")
        if folder is not None:
            yield str(folder)


def _of_last(start: OwnStart, view: View) -> Choice | ChoiceUnknown | None:
    """Search the folder of each callback; return None if that is the tree's own folder.

    Source: `_find_last_checkpoints` searches `dirpath`, else `default_root_dir`; a `~` is expanded in both.
    """
    root, folders_here = start.inventory.root, 0
    folders = list(_dirpaths(view))
    for folder in folders:
        folders_here += inside(root, os.path.expanduser(folder)) == ""
    if folders_here and folders_here < len(folders):
        return ChoiceUnknown(
            why="`ckpt_path: last` loads the newest from several folders, and not all of them were checked"
        )
    if folders:
        message = f"`ckpt_path: last` looks in the `dirpath` {folders[0]}, not in {root}"
        return None if folders_here else (folders[0], Outcome.UNKNOWN, message)
    logged = _of_logger(view)
    if logged is not None:
        return logged
    default = view.get(f"{fit_prefix(view)}trainer.default_root_dir")
    if default is None or _is_above(str(default), root):
        return None
    return str(default), Outcome.UNKNOWN, f"`ckpt_path: last` looks below `default_root_dir`, {default}, not in {root}"


def _of_logger(view: View) -> Choice | ChoiceUnknown | None:
    """Search the logger's folder, which is new at each start unless the version is set.

    Source: `ModelCheckpoint.__resolve_ckpt_dir`; runs of Lightning 2.6.6 with its own logger and with others.
    """
    key = f"{fit_prefix(view)}trainer.logger"
    raw = view.get(key)
    if raw is False:
        return None
    first = items_of(view, key)[0]
    kind = str(view.get(f"{first}.class_path") or view.get(first)).rpartition(".")[2]
    if raw in {None, True} or (kind in _LOGGERS and view.get(f"{first}.init_args.version") is None):
        why = (
            "`ckpt_path: last` looks beside the logger's files, in a new version_N without a save: it starts at step 0"
        )
        return None, Outcome.SCRATCH, why
    return ChoiceUnknown(
        why="`ckpt_path: last` looks beside the logger's files, which depend on its name and version: write a `dirpath`"
    )


def _is_above(folder: str, root: str) -> bool:
    """Return whether a tree is in a folder, at any depth."""
    folder, place = os.path.expanduser(folder), os.path.abspath(root)
    if os.path.normpath(folder) == ".":  # regardless of the training's working directory
        return True
    while inside(place, folder) != "":
        if place == os.path.dirname(place):
            return False
        place = os.path.dirname(place)
    return True


def _of_path(start: OwnStart, key: str, path: object) -> Choice | ChoiceUnknown:
    """Return the choice for a path, or for a keyword in place of a path."""
    if path in {None, ""}:
        if any(hpc_number(entry.name) is not None for entry in start.storage.entries("")):
            return ChoiceUnknown(
                why=(
                    f"`{key}` names no save: {_ON_SLURM} loads the highest hpc_ckpt_N.ckpt, any other start loads "
                    "nothing"
                )
            )
        return None, Outcome.SCRATCH, f"`{key}` names no save, so it starts at step 0"
    if path == "best":
        return None, Outcome.STOPS, f"`{key}: best` stops with a ValueError, because no fit has run before"
    if not isinstance(path, str):
        return None, Outcome.STOPS, f"`{key}` is not a path"
    if path == "hpc" or not is_local(path) or path.startswith("registry"):
        return ChoiceUnknown(why=f"`{key}` names {path}, which was not checked: write the path of the save")
    return _named(start, os.path.expanduser(path), f"`{key}` names {path}")


def _named(start: OwnStart, path: str, label: str) -> Choice:
    """Return the choice for exactly this file.

    If it is truncated, an intact file of the same save under a different name does not help.
    """
    relative = inside(start.inventory.root, path)
    save = None if relative is None else holder(start.inventory.checkpoints, relative)
    if relative is None or save is None:
        return elsewhere(start.inventory.root, path, label)
    return _of_file(start, relative, label) or _outcome(start, save, label)


def _of_file(start: OwnStart, name: str, message: str) -> Choice | None:
    """Return the choice of a file that is truncated or cannot be read; None for any other."""
    torn = is_torn(start.storage, name)
    if torn is None:
        return name, Outcome.UNKNOWN, f"{message}, which cannot be read here"
    return (name, Outcome.STOPS, f"{message}, and stops there, because it is not intact") if torn else None


def choose(start: OwnStart) -> Choice:
    """Find the newest save as Lightning does with `ckpt_path="last"`."""
    newest = newest_lasts(start.storage, start.storage.entries(""))
    if not newest:
        why = "ckpt_path='last' finds no last*.ckpt, so it starts from scratch with a warning"
        return None, Outcome.SCRATCH, why
    if len(newest) > 1:
        return (
            None,
            Outcome.UNKNOWN,
            f"ckpt_path='last' loads the newest by modification time, and {' and '.join(newest)} have the same",
        )
    (taken,) = newest
    save = holder(start.inventory.checkpoints, taken)
    message = f"ckpt_path='last' loads {taken}, whatever its content"
    of_file = _of_file(start, taken, message)
    if of_file is not None:
        return of_file
    if save is None:
        return taken, Outcome.STOPS, f"{message}, and stops there, because it is not intact"
    holds = message if save.step is None or taken == save.name else f"{message}: it contains step {save.step}"
    choice = _outcome(start, save, holds)
    if choice[1] is Outcome.STOPS and save.content is Content.FULL and _is_other_folder(start.storage, taken, save):
        return taken, Outcome.UNKNOWN, f"{holds}; its files were not checked, but those of {save.name}"
    return choice


def _is_other_folder(storage: Storage, taken: str, save: Checkpoint) -> bool:
    """Return whether a folder is a copy of a save, and not a link to it."""
    for shard in save.shards:
        name, _, inner = shard.path.partition("/")
        if not inner or name == taken:
            return False
        try:
            return storage.stamp(shard.path) != storage.stamp(f"{taken}/{inner}")
        except OSError:  # in one of the folders only
            continue
    return False


def _outcome(start: OwnStart, save: Checkpoint, holds: str) -> Choice:
    if save.content is Content.WEIGHTS_ONLY:
        return save.name, Outcome.STOPS, f"{holds}, and stops there, because it has no optimizer state"
    # It takes the step from the save, whatever its name.
    against = [each for each in blocking(start.checked(save).findings) if each.code is not Code.STEP_DISAGREES]
    if against:
        return choice_with(against, save, holds, stops="and stops there")
    return save.name, Outcome.LOADS, holds


def newest_lasts(storage: Storage, entries: Iterable[Entry]) -> list[str]:
    """Return the names that `ckpt_path="last"` may choose.

    There are several if their times are equal, and none if no entry qualifies.

    Args:
        storage: The tree.
        entries: The entries in the tree's root.
    """
    times = {
        entry.name: _modified(storage, entry.name)
        for entry in entries
        if is_last(entry.name) and entry.kind is not Kind.LOST
    }
    newest = max(times.values(), default=0)
    return sorted(name for name, time in times.items() if time == newest)


def _modified(storage: Storage, name: str) -> int:
    try:
        return storage.stamp(name).modified_ns or 0
    except NotRegularError as folder:
        return folder.modified_ns or 0
    except OSError:
        return 0


def traps(storage: Storage, entries: Sequence[Entry], checkpoints: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Report the files that a start without a named save would load: a stale, truncated or dangling `last.ckpt`.

    Args:
        storage: The tree.
        entries: The entries in the tree's root.
        checkpoints: The tree's checkpoints, the newest last.
    """
    newest = [save for save in checkpoints if save.step is not None and save.content is Content.FULL][-1:]
    for taken in newest_lasts(storage, entries):
        save = holder(checkpoints, taken)
        if save is None or is_torn(storage, taken):
            yield _trap(taken, "and stop, because it is not intact")
        elif save not in newest and save.step is not None:
            yield _trap(taken, f"and resume from step {save.step}")
    numbers = [(number, entry.name) for entry in entries if (number := hpc_number(entry.name)) is not None]
    for _, name in sorted(numbers)[-1:]:
        if all(name not in {save.name, *save.aliases} for save in newest):
            message = f"the highest of its kind, which {_ON_SLURM} loads instead of newer saves"
            yield note(Code.STRAY_TAKES_OVER, message, path=name, remedy="resume with ckpt_path=PATH")
    for entry in entries:
        if entry.kind is Kind.LOST and is_last(entry.name):
            message = f"a broken link: {_START} starts from scratch with a warning, unless there is another"
            yield note(Code.TRACKER_DISAGREES, message, path=entry.name, remedy=_REMEDY)


def _trap(path: str, instead: str) -> Finding:
    message = f"{_START} would load it, whatever its content, {instead}"
    return note(Code.STRAY_TAKES_OVER, message, path=path, remedy=_REMEDY)


SIMULATOR = OwnChoice(trainer=TRAINER, choose=choose, choice_of=choice_of)
