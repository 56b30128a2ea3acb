"""The save that Composer chooses: with `autoresume: true` the target of its link, otherwise the one in `load_path`.

Source:
    `Trainer.__init__` and `_get_autoresume_checkpoint` in trainer/trainer.py, `fit_start` in
    callbacks/checkpoint_saver.py and `load_checkpoint` in utils/checkpoint.py of mosaicml 0.32.1; and its runs with
    cut, missing, older and renamed saves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, Content
from ckpttool.core.domain.finding import Code, Finding, blocking, note
from ckpttool.core.domain.plan import Outcome
from ckpttool.core.storage import is_local
from ckpttool.core.storage.base import Kind, Storage
from ckpttool.trainers.common.named_path import elsewhere, inside
from ckpttool.trainers.common.own_choice import Choice, ChoiceUnknown, ConfigChoice, OwnChoice, choice_with, holder
from ckpttool.trainers.common.torch_files import is_torn
from ckpttool.trainers.composer import FIRST_LATEST, LATEST, TRAINER
from ckpttool.trainers.composer.kinds import is_folder, newer_files
from ckpttool.trainers.listing import Listing

if TYPE_CHECKING:
    from ckpttool.core.decide.lint_engine import View
    from ckpttool.trainers.abilities import OwnStart

_START = "a start with autoresume"
_LIMIT = 4096
_PATH, _FOLDER, _AUTO, _LATEST, _WEIGHTS, _OVERWRITE = (
    "load_path", "save_folder", "autoresume", "save_latest_filename", "load_weights_only", "save_overwrite",
)  # fmt: skip


def choose(start: OwnStart) -> Choice:
    """Follow the link to the last save, as `autoresume: true` does."""
    return _of_link(start) or _anew(start, _no_link(start), overwrites=False)


def choice_of(start: OwnStart, view: View) -> ConfigChoice:
    """Return the effect of LLM-Foundry's YAML: a link that `autoresume` finds takes precedence over `load_path`."""
    linked = _by_link(start, view) if view.is_on(_AUTO) else None
    if linked is not None:
        return linked
    path, overwrites = view.get(_PATH), view.is_on(_OVERWRITE)
    if path is None:
        key = next((key for key in (_AUTO, _FOLDER) if view.setting(key) is not None), "")
        why = _no_link(start) if view.is_on(_AUTO) else f"neither `{_PATH}` nor `{_AUTO}` is set"
        return ConfigChoice(choice=_anew(start, why, overwrites=overwrites), key=key)
    if not isinstance(path, str) or not path:
        return ConfigChoice(choice=ChoiceUnknown(why=f"`{_PATH}` is not a path"), key=_PATH)
    if not is_local(path) or "{" in _filled(path, view):
        return ConfigChoice(choice=ChoiceUnknown(why=f"`{_PATH}` names {path}, which was not checked"), key=_PATH)
    named = _filled(path, view)
    choice = _of_path(start, named, overwrites=overwrites)
    if not view.is_on(_WEIGHTS):
        return ConfigChoice(choice=choice, key=_PATH, path=named)
    lacks = f"with `{_WEIGHTS}` only weights are loaded, and it starts at step 0"
    return ConfigChoice(choice=choice, key=_WEIGHTS, mend=f"remove `{_WEIGHTS}`", lacks=lacks)


def _by_link(start: OwnStart, view: View) -> ConfigChoice | None:
    """Return the effect of `autoresume`; None if it finds no link, so that `load_path` decides."""
    name = view.setting(_LATEST)
    if name is not None and re.fullmatch(LATEST, _filled(str(name.value), view)) is None:
        why = f"`{_LATEST}` is {name.value}, and only {FIRST_LATEST} was looked for"
        return ConfigChoice(choice=ChoiceUnknown(why=why), key=_LATEST)
    folder = _folder(start, view)
    if isinstance(folder, ConfigChoice):
        return folder
    choice = _of_link(start, overwrites=view.is_on(_OVERWRITE))
    return None if choice is None else ConfigChoice(choice=choice, key=_AUTO, path=folder)


def _folder(start: OwnStart, view: View) -> str | ConfigChoice | None:
    """Return the folder of the link; the choice itself if that is not the tree.

    None if the config does not name the folder.
    """
    folder = view.get(_FOLDER)
    if folder is None:
        return None
    path = _filled(str(folder), view)
    if "{" in path or not is_local(path):
        return ConfigChoice(choice=ChoiceUnknown(why=f"`{_FOLDER}` is {folder}, which was not checked"), key=_FOLDER)
    if inside(start.inventory.root, path) == "":
        return path
    why = f"`{_AUTO}` looks in the `{_FOLDER}` {path}, not in {start.inventory.root}"
    return ConfigChoice(choice=(path, Outcome.UNKNOWN, why), key=_FOLDER)


def _filled(text: str, view: View) -> str:
    """Fill in the ranks of the first process, and the name of the run."""
    run = view.get("run_name")
    for rank in ("rank", "local_rank", "node_rank"):
        text = text.replace(f"{{{rank}}}", "0")
    return text if not isinstance(run, str) else text.replace("{run_name}", run)


def _of_path(start: OwnStart, path: str, *, overwrites: bool) -> Choice:
    root, label = start.inventory.root, f"`{_PATH}` names {path}"
    relative = inside(root, path)
    save = None if relative is None else holder(start.inventory.checkpoints, relative)
    if relative is None or save is None:
        return elsewhere(root, path, label)
    return _outcome(start, save, relative, label, overwrites=overwrites)


def _of_link(start: OwnStart, *, overwrites: bool = False) -> Choice | None:
    """Return the choice of the link, or of the text that a store has in its place; None if there is neither.

    A broken link counts as none.
    """
    kinds = {entry.name: entry.kind for entry in start.storage.entries("")}
    kind = kinds.get(FIRST_LATEST)
    if kind is Kind.LOST:
        return None
    if kind is not None:
        save = holder(start.inventory.checkpoints, FIRST_LATEST)
        if save is None and not _is_readable(start.storage):
            return FIRST_LATEST, Outcome.UNKNOWN, f"it follows {FIRST_LATEST}, which cannot be read here"
        if save is None:
            return FIRST_LATEST, Outcome.STOPS, f"it follows {FIRST_LATEST}, and stops there: it is not a save"
        if kind is Kind.FOLDER and _is_copy(start.inventory.root):
            return FIRST_LATEST, Outcome.STOPS, f"{FIRST_LATEST} is a folder, not a link: it stops with an OSError"
        return _outcome(start, save, FIRST_LATEST, f"it follows {FIRST_LATEST}", overwrites=overwrites)
    return _of_text(start, overwrites=overwrites) if f"{FIRST_LATEST}.symlink" in kinds else None


def _is_readable(storage: Storage) -> bool:
    """Return whether the target of the link, a file or a folder, can be read."""
    try:
        storage.entries(FIRST_LATEST)
    except NotADirectoryError:
        return is_torn(storage, FIRST_LATEST) is not None
    except OSError:
        return False
    return True


def _is_copy(root: str) -> bool:
    """Return whether a folder is in the place of the link; False if this cannot be seen from here."""
    path = os.path.join(root, FIRST_LATEST)
    return is_local(root) and os.path.isdir(path) and not os.path.islink(path)


def _no_link(start: OwnStart) -> str:
    is_lost = any(entry == (FIRST_LATEST, Kind.LOST) for entry in start.storage.entries(""))
    return f"{FIRST_LATEST} is a broken link" if is_lost else f"there is no {FIRST_LATEST}"


def _of_text(start: OwnStart, *, overwrites: bool) -> Choice:
    record = f"{FIRST_LATEST}.symlink"
    try:
        text = start.storage.small_file(record, limit=_LIMIT).decode("utf-8", "replace").strip()
    except OSError as error:
        return None, Outcome.UNKNOWN, f"{record} cannot be read here ({error.strerror or error})"
    name = text.rstrip("/").rpartition("/")[2]
    save = holder(start.inventory.checkpoints, name)
    if save is None:
        return (
            None,
            Outcome.STOPS,
            f"{record} names {text}, which does not exist, and it stops with a FileNotFoundError",
        )
    return _outcome(start, save, name, f"it follows {record}", overwrites=overwrites)


def _anew(start: OwnStart, why: str, *, overwrites: bool) -> Choice:
    """Return the outcome of a start without a save: files in its folder stop it, folders do not."""
    newer = () if overwrites else newer_files(start.inventory, 0)
    if newer:
        return None, Outcome.STOPS, f"{why}, so it starts at step 0, and stops with a FileExistsError at {newer[0]}"
    return None, Outcome.SCRATCH, f"{why}, so it starts at step 0, and overwrites older saves one by one"


def _outcome(start: OwnStart, save: Checkpoint, taken: str, holds: str, *, overwrites: bool) -> Choice:
    """Return the outcome of loading a save under one of its names."""
    torn = False if is_folder(save) else is_torn(start.storage, taken)
    if torn is None:
        return taken, Outcome.UNKNOWN, f"{holds}, which cannot be read here"
    if torn:
        return taken, Outcome.STOPS, f"{holds}, and stops there, because it is not intact"
    if save.content is Content.WEIGHTS_ONLY:
        return _of_weights(start, save, holds, overwrites=overwrites)
    # It takes the counters from the save, whatever its name.
    against = [each for each in blocking(start.checked(save).findings) if each.code is not Code.STEP_DISAGREES]
    if against:
        return choice_with(against, save, holds, stops="and stops there")
    newer = () if overwrites else newer_files(start.inventory, save.step)
    if newer:
        return save.name, Outcome.STOPS, f"{holds}, and then stops with a FileExistsError: {newer[-1]} is newer"
    return save.name, Outcome.LOADS, holds


def _of_weights(start: OwnStart, save: Checkpoint, holds: str, *, overwrites: bool) -> Choice:
    """Return the outcome of loading a save that has only weights: a folder stops the start, a file does not."""
    if is_folder(save):
        return save.name, Outcome.STOPS, f"{holds}, and stops there with a RuntimeError: it has only weights"
    newer = () if overwrites else newer_files(start.inventory, 0)
    if newer:
        why = f"{holds}, takes only weights from it, and stops with a FileExistsError at {newer[0]}"
        return save.name, Outcome.STOPS, why
    return save.name, Outcome.SCRATCH, f"{holds}, takes only weights from it, and starts at step 0"


def traps(storage: Storage, listing: Listing, checkpoints: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Report a link that a start with autoresume would follow to an old or damaged save, or to none.

    Args:
        storage: The tree.
        listing: The names in its root.
        checkpoints: The tree's checkpoints, the newest last.
    """
    entry = next((entry for entry in listing.beginning(FIRST_LATEST) if entry.name == FIRST_LATEST), None)
    if entry is None:
        return
    if entry.kind is Kind.LOST:
        message = f"a broken link: {_START} does not find a save, and begins at step 0"
        yield note(Code.TRACKER_DISAGREES, message, path=FIRST_LATEST, remedy="resume with load_path: PATH, once")
        return
    newest = [save for save in checkpoints if save.step is not None and save.content is Content.FULL][-1:]
    save = holder(checkpoints, FIRST_LATEST)
    if not _is_readable(storage):
        return  # reported with the save
    if save is None or (not is_folder(save) and is_torn(storage, FIRST_LATEST)):
        yield _trap("and stop, because it is not intact")
    elif save.content is Content.WEIGHTS_ONLY:
        yield _trap("and resume no training, because it has only weights")
    elif save not in newest and save.step is not None:
        yield _trap(f"and resume from step {save.step}")


def _trap(instead: str) -> Finding:
    message = f"{_START} would follow it {instead}"
    remedy = "resume with load_path: PATH and without autoresume, once"
    return note(Code.STRAY_TAKES_OVER, message, path=FIRST_LATEST, remedy=remedy)


SIMULATOR = OwnChoice(trainer=TRAINER, choose=choose, choice_of=choice_of)
