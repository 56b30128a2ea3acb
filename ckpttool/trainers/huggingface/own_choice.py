"""The save that Hugging Face's Trainer chooses: with `resume_from_checkpoint=True`, the highest number in a name.

Source: `get_last_checkpoint` in trainer_utils.py of transformers 4.57 and 5.23; and its runs with damaged saves.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, Content
from ckpttool.core.domain.finding import Code, Row, Severity, worst
from ckpttool.core.domain.plan import Outcome
from ckpttool.core.storage.base import Kind, LostLinkError
from ckpttool.trainers.common.named_path import elsewhere, inside
from ckpttool.trainers.common.own_choice import Choice, ChoiceUnknown, ConfigChoice, OwnChoice, save_finding_text
from ckpttool.trainers.huggingface import AUTOMATIC, OUTPUT, RESUME, TRAINER, UNFINISHED, number_in

if TYPE_CHECKING:
    from ckpttool.core.decide.lint_engine import View
    from ckpttool.trainers.abilities import OwnStart

_LOADS_WITHOUT = {Code.CHECKSUM_MISMATCH, Code.STEP_DISAGREES}


def choice_of(start: OwnStart, view: View) -> ConfigChoice:
    """Return the effect of the path in Trainer's arguments; if no path is set, the script decides.

    Source:
        `Trainer.train(resume_from_checkpoint=…)`: a path is opened unchanged. The field of TrainingArguments alone has
        no effect; scripts pass it on, and some search for the highest number if it is not set. With True it searches
        `output_dir`, the only path in which TrainingArguments expands a `~`.
    """
    path = view.get(RESUME)
    if path is True or (path in {None, False} and view.is_on(AUTOMATIC)):
        return _highest_elsewhere(start, view, RESUME if path is True else AUTOMATIC)
    if path in {None, False, ""}:
        why = f"`{RESUME}` names no save, so the script starts at step 0 or loads the highest number"
        return ConfigChoice(choice=ChoiceUnknown(why=why), key=RESUME)
    if not isinstance(path, str):
        return ConfigChoice(choice=(None, Outcome.STOPS, f"`{RESUME}` is neither a path nor true"), key=RESUME)
    root, taken = start.inventory.root, f"`{RESUME}` names {path}"
    relative = inside(root, path)
    save = None if relative is None else start.inventory.named(relative)
    choice = elsewhere(root, path, taken) if save is None else _outcome(save, start, taken)
    return ConfigChoice(choice=choice, key=RESUME, path=path)


def _highest_elsewhere(start: OwnStart, view: View, switch: str) -> ConfigChoice:
    """Search the output folder, and choose the checkpoint with the highest number."""
    output, root = view.get(OUTPUT), start.inventory.root
    if output is None:
        return ConfigChoice(key=switch)
    if isinstance(output, str) and inside(root, os.path.expanduser(output)) == "":
        return ConfigChoice(key=switch, path=os.path.expanduser(output))
    why = f"`{switch}: true` looks in `{OUTPUT}`, {output}, not in {root}"
    return ConfigChoice(choice=(str(output), Outcome.UNKNOWN, why), key=OUTPUT)


def choose(start: OwnStart) -> Choice:
    """Choose the save with the highest number."""
    numbered = [
        save
        for save in start.inventory.checkpoints
        if number_in(save.name) is not None and _may_be_folder(start, save.name)
    ]
    newest = max(numbered, key=_number, default=None)
    if newest is None:
        return None, Outcome.STOPS, "resume_from_checkpoint=True finds no checkpoint-N and stops"
    taken = f"resume_from_checkpoint=True loads {newest.name}, the highest number, whatever its content"
    return _outcome(newest, start, taken)


def _may_be_folder(start: OwnStart, name: str) -> bool:
    """Return whether an entry may be a folder; Trainer skips files and dangling links."""
    try:
        return start.storage.kind(name) is Kind.FOLDER
    except LostLinkError:
        return False
    except OSError:  # which is a separate problem, reported by its check
        return True


def _number(checkpoint: Checkpoint) -> int:
    return number_in(checkpoint.name) or 0


def _outcome(save: Checkpoint, start: OwnStart, taken: str) -> Choice:
    against = [finding for finding in start.checked(save).findings if finding.severity > Severity.NOTE]
    silent = [finding for finding in against if _is_silent(finding.code, finding.path or "")]
    if against and len(silent) == len(against):
        return save.name, Outcome.LOADS, f"{taken}: {save_finding_text(silent[0], save)}"
    others = [finding for finding in against if finding not in silent]
    if others and all((finding.path or "").endswith(f"/{UNFINISHED}") for finding in others):
        # No loader reads the mark: a start loads the complete save, or stops at an unwritten part.
        return save.name, Outcome.UNKNOWN, f"{taken}: {save_finding_text(others[0], save)}"
    if worst(against) > Severity.UNKNOWN:
        return save.name, Outcome.STOPS, f"{taken}, and stops: {save_finding_text(others[0], save)}"
    if not against and save.content is Content.WEIGHTS_ONLY:
        return save.name, Outcome.LOADS, f"{taken}: optimizer and learning rate are re-initialized without a warning"
    return save.name, Outcome.UNKNOWN if against else Outcome.LOADS, taken


def _is_silent(code: Row, path: str) -> bool:
    """Return whether Trainer loads a save without this file.

    A missing part of the training state is re-initialized.
    """
    file = path.rpartition("/")[2]
    is_state = file.startswith(("optimizer.", "scheduler.", "scaler.", "rng_state"))
    return code in _LOADS_WITHOUT or code is Code.RANK_MISSING or (code is Code.SHARD_MISSING and is_state)


SIMULATOR = OwnChoice(trainer=TRAINER, choose=choose, choice_of=choice_of)
