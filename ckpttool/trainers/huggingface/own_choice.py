"""What Hugging Face's Trainer takes by itself: with `resume_from_checkpoint=True` the highest number, and no other.

Source: `get_last_checkpoint` in trainer_utils.py of transformers 4.57 and 5.23; runs of it with damaged saves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.domain.checkpoint import Checkpoint, Content
from ckpttool.domain.finding import Code, Severity, worst
from ckpttool.domain.plan import Outcome
from ckpttool.trainers.common.named_path import inside
from ckpttool.trainers.common.own_choice import Choice, NotTold, said
from ckpttool.trainers.huggingface.names import AUTOMATIC, RESUME, number_in

if TYPE_CHECKING:
    from ckpttool.decide.lint_engine import View
    from ckpttool.trainers.abilities import OwnStart

_LOADS_WITHOUT = {Code.CHECKSUM_MISMATCH, Code.STEP_DISAGREES}


def told(start: OwnStart, view: View) -> Choice | NotTold | None:
    """Go by what its arguments name; where they name nothing, its script decides.

    Source:
        `Trainer.train(resume_from_checkpoint=…)`: a path is opened as it is. The field of TrainingArguments does
        nothing by itself; scripts pass it on, and some look for the highest number if it is not set.
    """
    path = view.get(RESUME)
    if path is True or (path in {None, False} and view.is_on(AUTOMATIC)):
        return None
    if path in {None, False, ""}:
        return NotTold(why=f"`{RESUME}` names no save, so the script begins at step 0, or takes the highest number")
    taken = f"`{RESUME}` names {path}"
    below = inside(start.inventory.root, str(path))
    save = None if below is None else start.inventory.named(below)
    if save is None:
        return str(path), Outcome.UNKNOWN, f"{taken}, which is no save of {start.inventory.root}"
    return _outcome(save, start, taken)


def choose(start: OwnStart) -> Choice:
    """Take the highest number."""
    numbered = [save for save in start.inventory.checkpoints if number_in(save.name) is not None]
    newest = max(numbered, key=_number, default=None)
    if newest is None:
        return None, Outcome.STOPS, "resume_from_checkpoint=True finds no checkpoint-N, and it stops"
    taken = f"resume_from_checkpoint=True takes {newest.name}, the highest number, whatever is in it"
    return _outcome(newest, start, taken)


def _number(checkpoint: Checkpoint) -> int:
    return number_in(checkpoint.name) or 0


def _outcome(save: Checkpoint, start: OwnStart, taken: str) -> Choice:
    against = [finding for finding in start.checked(save).findings if finding.severity > Severity.NOTE]
    silent = [finding for finding in against if _is_silent(finding.code, finding.path or "")]
    if against and len(silent) == len(against):
        return save.name, Outcome.LOADS, f"{taken}: {said(silent[0], save)}"
    if worst(against) > Severity.UNKNOWN:
        stops = next(finding for finding in against if finding not in silent)
        return save.name, Outcome.STOPS, f"{taken}, and stops: {said(stops, save)}"
    if not against and save.content is Content.WEIGHTS_ONLY:
        return save.name, Outcome.LOADS, f"{taken}: optimizer and learning rate begin anew, without a word"
    return save.name, Outcome.UNKNOWN if against else Outcome.LOADS, taken


def _is_silent(code: Code, path: str) -> bool:
    """Tell what it loads without: a part of the training's state that is not there begins anew."""
    file = path.rpartition("/")[2]
    is_state = file.startswith(("optimizer.", "scheduler.", "scaler.", "rng_state"))
    return code in _LOADS_WITHOUT or code is Code.RANK_MISSING or (code is Code.SHARD_MISSING and is_state)
