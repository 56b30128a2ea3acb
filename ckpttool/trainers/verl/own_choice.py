"""The save that verl chooses: the save in its tracker, or none."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Code, blocking
from ckpttool.core.domain.plan import Outcome
from ckpttool.core.formats.strict_json import ParseError
from ckpttool.trainers.common.own_choice import Choice, OwnChoice, save_finding_text
from ckpttool.trainers.common.tracker_file import tracked_step
from ckpttool.trainers.verl import TRAINER, folder_of, is_data

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.finding import Finding
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
        return name, Outcome.LOADS, f"the tracker names it{_without_states(start, save)}"
    return name, Outcome.STOPS, f"the tracker names it, and then it stops: {stop}"


def _stop(start: OwnStart, save: Checkpoint) -> str | None:
    """Return why verl stops at a save; None if it loads the save."""
    findings = (
        finding
        for finding in start.checked(save).findings
        # It needs neither a step nor the states of its loaders.
        if finding.code is not Code.STEP_DISAGREES and not _is_missing_state(finding)
    )
    against, world = blocking(findings), save.topology.world_size
    if against:
        return save_finding_text(against[0], save)
    if start.world_size in {None, world}:
        return None
    return f"{start.world_size} ranks look for files that {world} ranks did not write"


def _is_missing_state(finding: Finding) -> bool:
    return finding.code is Code.SHARD_MISSING and is_data(posixpath.basename(finding.path or ""))


def _without_states(start: OwnStart, save: Checkpoint) -> str:
    """Return what a start does without the states of some loaders; empty if it has all."""
    missing = [finding.path for finding in start.checked(save).findings if _is_missing_state(finding)]
    if not missing:
        return ""
    return f", and each rank without its state ({missing[0]}) starts the epoch from the beginning, without a warning"


SIMULATOR = OwnChoice(trainer=TRAINER, choose=choose, by_records=True)
