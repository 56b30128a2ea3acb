"""The save that torchtitan chooses: the highest number in the name of any entry that looks finished.

Source:
    `CheckpointManager._find_load_step` of torchtitan 0.3.0: `re.search("step-([0-9]+)")` over all entries of the folder
    that contain `.metadata` or `model.safetensors.index.json`; then `step-N` is opened. There is no fallback.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckpttool.core.decide.data_effects import stray_taken
from ckpttool.core.domain.checkpoint import Content
from ckpttool.core.domain.finding import Code, blocking
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.plan import Outcome
from ckpttool.core.storage.base import Kind
from ckpttool.trainers.common.named_path import inside
from ckpttool.trainers.common.own_choice import Choice, ChoiceUnknown, ConfigChoice, OwnChoice
from ckpttool.trainers.listing import list_root
from ckpttool.trainers.torch_dcp import METADATA
from ckpttool.trainers.torchtitan import INDEX, LEFT_OUT, ON, SECTION, TRAINER
from ckpttool.trainers.torchtitan.config import left_out

if TYPE_CHECKING:
    from ckpttool.core.decide.lint_engine import View
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.finding import Finding
    from ckpttool.trainers.abilities import OwnStart
    from ckpttool.trainers.listing import Listing

_DUMP = "job.dump_folder"
_ANEW = {
    "optimizer": "the optimizer is re-initialized",
    "lr_scheduler": "the schedule is re-initialized",
    "train_state": "the steps are counted from 0",
}
"""The optional parts of a save, and the consequences of leaving them out."""
_MARKS = frozenset({METADATA, INDEX})


def _numbered(listing: Listing) -> Iterator[tuple[int, str]]:
    """Yield each entry that torchtitan considers, with the number that it finds in the name.

    Raises:
        OSError: A folder cannot be listed.
    """
    for entry in listing.entries:
        match = re.search("step-([0-9]{1,18})", entry.name)
        if match and entry.kind is Kind.FOLDER and not _MARKS.isdisjoint(listing.names_in(entry.name)):
            yield int(match[1]), entry.name


def strays_taken(listing: Listing) -> Iterator[Finding]:
    """Report entries that are not saves, but make torchtitan load a missing or unfinished save.

    Args:
        listing: The names in the tree's root.
    """
    try:
        numbered = sorted(_numbered(listing))
    except OSError:  # its contents are unknown
        return
    if not numbered:
        return
    highest, plain = numbered[-1][0], {name for number, name in numbered if name == f"step-{number}"}
    if f"step-{highest}" in plain:
        return
    for number, name in numbered:
        if number == highest:
            yield stray_taken(
                name,
                title=TRAINER.title,
                instead=f"and then stop, because it opens step-{number}, which is missing or incomplete",
                remedy=f"move it out of the folder, or name the step: --checkpoint.load_step (found {name})",
            )


def choice_of(start: OwnStart, view: View) -> ConfigChoice:
    """Return the effect of the config's `[checkpoint]` section: its switch, folder, step and excluded parts.

    Source: `CheckpointManager.__init__` and `load` of torchtitan 0.1.0 and 0.2.2, `_states_to_load` of 0.3.0.
    """
    if not any(view.is_on(key) for key in ON):
        key = next((key for key in ON if view.setting(key) is not None), SECTION)
        name = (ON[0] if key == SECTION else key).rpartition(".")[2]
        why = "checkpoints are off, so it starts at step 0, whatever was saved"
        mend = f"write `{name} = true` under [{SECTION}]"
        return ConfigChoice(choice=(None, Outcome.SCRATCH, why), key=key, mend=mend)
    outcome = _of_other_folder(start, view) or _of_other_parts(view) or _of_step(start, view)
    return replace(outcome, path=_place(view))


def _place(view: View) -> str | None:
    """Return the folder that torchtitan searches; None if unknown."""
    dump, folder = view.get(_DUMP), view.get(f"{SECTION}.folder")
    if dump is None and folder is None:
        return None
    return os.path.join(*(str(part) for part in (dump, folder or "checkpoint") if part is not None))


def _of_other_folder(start: OwnStart, view: View) -> ConfigChoice | None:
    place, key, root = _place(view), f"{SECTION}.folder", start.inventory.root
    if place is None or inside(root, place) == "":
        return None
    choice = place, Outcome.UNKNOWN, f"it looks in {place}, not in {root}"
    mend = f"set `dump_folder` and `folder` so that they lead to {root}"
    return ConfigChoice(choice=choice, key=key if view.setting(key) else _DUMP, mend=mend)


def _of_other_parts(view: View) -> ConfigChoice | None:
    """Return the effect of excluded parts, apart from data loaders, which the position in the data covers."""
    names = left_out(view)
    wrong = [name for name in names if name not in {"dataloader", *_ANEW}]
    mend = f"remove {' and '.join(name for name in names if name != 'dataloader')} from `exclude_from_loading`"
    if wrong:
        why = f"`exclude_from_loading` names {wrong[0]}, so it stops with a ValueError"
        return ConfigChoice(choice=(None, Outcome.STOPS, why), key=LEFT_OUT, mend=mend)
    effects = [_ANEW[name] for name in names if name in _ANEW]
    if not effects:
        return None
    return ConfigChoice(key=LEFT_OUT, mend=mend, lacks=f"with `exclude_from_loading` {' and '.join(effects)}")


def _of_step(start: OwnStart, view: View) -> ConfigChoice:
    key = f"{SECTION}.load_step"
    step = view.get(key)
    if step is None or (step == -1 and not isinstance(step, float)):
        return ConfigChoice()
    if isinstance(step, bool) or not isinstance(step, int):
        return ConfigChoice(choice=ChoiceUnknown(why=f"`load_step` is not a whole number: {step}"), key=key)
    name, message = f"step-{step}", f"`load_step` names step {step}"
    save = start.inventory.named(name)
    if save is None:
        return ConfigChoice(
            choice=(None, Outcome.STOPS, f"{message}, and it stops, because there is no {name}"), key=key
        )
    stop = _stop(start, save)
    if stop is None:
        return ConfigChoice(choice=(name, Outcome.LOADS, message), key=key)
    return ConfigChoice(choice=(name, Outcome.STOPS, f"{message}, and then it stops: {stop}"), key=key)


def choose(start: OwnStart) -> Choice:
    """Choose the highest number, as the default `--checkpoint.load_step -1` does."""
    try:
        numbered = list(_numbered(list_root(start.storage)))
    except OSError as error:
        return None, Outcome.UNKNOWN, f"a folder cannot be listed here ({error.strerror or error})"
    if not numbered:
        return None, Outcome.SCRATCH, "no step-N has a record that its save is complete, so it starts from scratch"
    number, told_by = max(numbered)
    name = f"step-{number}"
    save = start.inventory.named(name)
    if save is None:
        return name, Outcome.STOPS, f"{told_by} has the highest number, and it stops, because there is no {name}"
    stop = _stop(start, save)
    by = "it has the highest number of the complete saves"
    if stop is None:
        return name, Outcome.LOADS, by
    return name, Outcome.STOPS, f"{by}, and then it stops: {stop}"


def _stop(start: OwnStart, save: Checkpoint) -> str | None:
    """Return why torchtitan stops at a save; None if it loads the save."""
    # It uses the state in the save: a folder with another number is also loaded.
    against = [each for each in blocking(start.checked(save).findings) if each.code is not Code.STEP_DISAGREES]
    if against:
        return against[0].message
    if save.content is Content.WEIGHTS_ONLY:
        return "the save has only weights, like the last save of a completed run, and it looks for the optimizer"
    return None


SIMULATOR = OwnChoice(trainer=TRAINER, choose=choose, choice_of=choice_of)
