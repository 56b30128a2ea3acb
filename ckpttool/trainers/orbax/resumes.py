"""Settings that make Orbax restore exactly one step, the step that Orbax chooses, and the position in the data.

Source: `latest_step` in checkpoint_manager.py of orbax-checkpoint 0.12.8, and its runs with damaged saves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.decide.data_effects import consumed
from ckpttool.core.domain.data_position import DataEffect, GoesOn, Unknown
from ckpttool.core.domain.finding import Severity, blocking
from ckpttool.core.domain.load_settings import LoadSettings, Place, TrainerSetting
from ckpttool.core.domain.plan import Outcome
from ckpttool.core.formats.strict_json import ParseError, parse_object
from ckpttool.trainers.base import Effects, Resume
from ckpttool.trainers.common.own_choice import Choice, OwnChoice, save_finding_text
from ckpttool.trainers.orbax import RECORD, RECORD_LIMIT, TRAINER

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.trainers.abilities import OwnStart

_NO_ITEM = "no item of the save contains the position in the data"


def settings(inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings:
    """Return settings for the step.

    For a checkpointer without a manager, they name the folder.
    """
    path = inventory.path_of(checkpoint.name)
    by_step, by_path = (
        Place.parsed("code:manager.restore(step)"),
        Place.parsed("code:checkpointer.restore(directory)"),
    )
    return LoadSettings(
        trainer=TRAINER.name,
        path=path,
        settings=(
            TrainerSetting(place=by_step, value=checkpoint.step),
            TrainerSetting(place=by_path, value=path, is_path=True, is_alternative=True),
        ),
        remarks=("latest_step() is the highest step, whatever remains of it: name the step.",),
    )


def choose(start: OwnStart) -> Choice:
    """Choose the highest step whose folder has its final name, as `latest_step()` does."""
    latest = max(start.inventory.checkpoints, key=lambda save: save.step or 0, default=None)
    if latest is None:
        return None, Outcome.SCRATCH, "latest_step() finds no step, so the script starts from scratch"
    why = "latest_step() is the highest step that has its final name"
    against = blocking(start.checked(latest).findings)
    if not against:
        return latest.name, Outcome.LOADS, why
    message = save_finding_text(against[0], latest)
    if max(finding.severity for finding in against) < Severity.DAMAGE:
        return latest.name, Outcome.UNKNOWN, f"{why}; whether it can be restored is unknown: {message}"
    return latest.name, Outcome.STOPS, f"{why}, and restoring it raises an error: {message}"


def effects(resume: Resume) -> Effects:
    """Return the position in the data.

    It is known if an item contains it, according to the handlers in the record.
    """
    item = _loader(resume)
    if item is None:
        return Effects(position=Unknown(why=_NO_ITEM), settings=(), findings=())
    read = consumed(resume.plan, resume.inventory, resume.data)
    position = GoesOn(
        effect=DataEffect.UNKNOWN if read.changes else DataEffect.EXACT,
        why="each process's loader continues from its own state",
        exact_if=("the number of processes and the batch size are unchanged",),
        samples=read.samples,
        source=read.source,
        where=f"{resume.plan.load.path}/{item}",
    )
    return Effects(position=position, settings=(), findings=())


def _loader(resume: Resume) -> str | None:
    """Return the item that a data loader wrote; None if there is no such item."""
    path = f"{resume.plan.point.checkpoint.name}/{RECORD}"
    try:
        item_handlers = parse_object(resume.storage.small_file(path, limit=RECORD_LIMIT), where=path).get(
            "item_handlers"
        )
    except (OSError, ParseError):  # reported by the scan
        return None
    handlers = item_handlers.items() if isinstance(item_handlers, dict) else ()
    return next((item for item, handler in handlers if isinstance(handler, str) and "grain" in handler.lower()), None)


SIMULATOR = OwnChoice(trainer=TRAINER, choose=choose)
