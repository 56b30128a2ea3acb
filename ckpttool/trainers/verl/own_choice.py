"""The save that verl chooses: the save in its tracker, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Code, blocking
from ckpttool.core.domain.plan import Outcome
from ckpttool.core.formats.strict_json import ParseError
from ckpttool.trainers.common.own_choice import Choice, OwnChoice, save_finding_text
from ckpttool.trainers.common.tracker_file import tracked_step
from ckpttool.trainers.verl import TRAINER, folder_of

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.trainers.abilities import OwnStart


def choose(start: OwnStart) -> Choice:
    """Choose the save in the tracker, or none, as `trainer.resume_mode=auto` does.

    Source: `find_latest_ckpt_path` in verl/utils/checkpoint/checkpoint_manager.py; each rank loads its own files.
    """
    try:
        name = folder_of(tracked_step(start.storage))
    except FileNotFoundError:
        return None, Outcome.SCRATCH, "there is no tracker file, so it starts from scratch"
    except OSError as error:
        return None, Outcome.UNKNOWN, f"the tracker cannot be read here ({error.strerror or error})"
    except ParseError as error:
        return None, Outcome.STOPS, f"it stops at the tracker: {error}"
    save = start.inventory.named(name)
    if save is None:
        return None, Outcome.SCRATCH, f"the tracker names {name}, which does not exist, so it starts from scratch"
    stop = _stop(start, save)
    if stop is None:
        return name, Outcome.LOADS, "the tracker names it"
    return name, Outcome.STOPS, f"the tracker names it, and then it stops: {stop}"


def _stop(start: OwnStart, save: Checkpoint) -> str | None:
    """Return why verl stops at a save; None if it loads the save."""
    findings = (
        finding for finding in start.checked(save).findings if finding.code is not Code.STEP_DISAGREES
    )  # it does not need a step
    against, world = blocking(findings), save.topology.world_size
    if against:
        return save_finding_text(against[0], save)
    if start.world_size in {None, world}:
        return None
    return f"{start.world_size} ranks look for files that {world} ranks did not write"


SIMULATOR = OwnChoice(trainer=TRAINER, choose=choose, by_records=True)
