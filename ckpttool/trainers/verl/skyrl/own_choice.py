"""The save that SkyRL chooses: the save in its tracker, unless the folder has much later saves.

Source: `load_checkpoints`, `validate_consistency_for_latest_checkpoint` and `list_checkpoint_dirs` of skyrl 0.4.0, and
`FSDPStrategy.load_checkpoint`, which needs neither the optimizer's file nor the state of the data loader.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Code, blocking
from ckpttool.core.domain.plan import Outcome
from ckpttool.core.domain.units import Step, counted
from ckpttool.core.formats.strict_json import ParseError
from ckpttool.core.formats.torch.plain import integer_at, text_at
from ckpttool.core.storage.base import Kind
from ckpttool.trainers.common import SKYRL_TRACKER
from ckpttool.trainers.common.own_choice import Choice, ChoiceUnknown, OwnChoice, choice_with
from ckpttool.trainers.common.saved_values import first_value
from ckpttool.trainers.common.tracker_file import tracked_step
from ckpttool.trainers.listing import list_root
from ckpttool.trainers.verl import DATA, folder_of
from ckpttool.trainers.verl.skyrl import STATE, TRAINER, is_fine_tuning

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.finding import Finding
    from ckpttool.trainers.abilities import OwnStart

_PREFIX = "global_step_"


def choose(start: OwnStart) -> Choice | ChoiceUnknown:
    """Choose the save in the tracker, or none, as `trainer.resume_mode=latest` does, the default.

    The SFT trainer does so only with `resume_from=latest`, which the config in the save shows.
    """
    try:
        step = tracked_step(start.storage, SKYRL_TRACKER)
        folders = [entry.name for entry in list_root(start.storage).entries if entry.kind is Kind.FOLDER]
    except FileNotFoundError:
        return None, Outcome.SCRATCH, "there is no tracker file, so it starts from scratch"
    except OSError as error:
        return None, Outcome.UNKNOWN, f"the tracker cannot be read here ({error.strerror or error})"
    except ParseError as error:
        return None, Outcome.STOPS, f"it stops at the tracker: {error}"
    name = folder_of(step)
    record = first_value(start.storage, [f"{name}/{STATE}"])
    refused = _not_resumed(record) or _refused_folder(record, step, folders)
    if refused is not None:
        return refused
    save = start.inventory.named(name)
    if save is None:
        return None, Outcome.STOPS, f"it stops, because the tracker names {name}, which does not exist"
    return _loaded(start, save)


def _loaded(start: OwnStart, save: Checkpoint) -> Choice:
    """Return whether SkyRL loads the save that the tracker names."""
    findings = [finding for finding in start.checked(save).findings if finding.code is not Code.STEP_DISAGREES]
    against, world = blocking(finding for finding in findings if not _is_optional(finding)), save.topology.world_size
    if against:
        return choice_with(against, save, "the tracker names it")
    if start.world_size not in {None, world}:
        why = f"with --world-size {start.world_size}, no rank finds the files that {world} ranks wrote"
        return save.name, Outcome.STOPS, f"the tracker names it, and then it stops: {why}"
    return save.name, Outcome.LOADS, f"the tracker names it{_without(start, save)}"


def _not_resumed(record: object) -> Choice | None:
    """Return the choice of the SFT trainer if it does not resume; None otherwise."""
    if not is_fine_tuning(record) or text_at(record, "config", "resume_from") == "latest":
        return None
    return None, Outcome.SCRATCH, "the SFT trainer starts from scratch without resume_from=latest"


def _refused_folder(record: object, step: Step, folders: Sequence[str]) -> Choice | ChoiceUnknown | None:
    """Return the choice if SkyRL refuses the saves next to the tracker's; None if it accepts them."""
    numbers = {folder: folder.removeprefix(_PREFIX) for folder in folders if folder.startswith(_PREFIX)}
    odd = next((folder for folder, number in numbers.items() if not re.fullmatch("[0-9]{1,18}", number)), None)
    if odd is not None:
        return None, Outcome.STOPS, f"it stops with a ValueError, because {odd} has no number after {_PREFIX}"
    ahead = max(map(int, numbers.values()), default=0) - step
    if ahead <= 0:
        return None
    interval = integer_at(record, "config", "trainer", "ckpt_interval")
    if interval is None:
        interval = integer_at(record, "config", "ckpt_interval")
    if interval is None:
        return ChoiceUnknown(
            why=f"{folder_of(step)} does not show its ckpt_interval, which decides whether SkyRL accepts later saves"
        )
    if ahead <= interval:
        return None
    later = f"{counted(ahead, 'step')} later than the tracker, more than its ckpt_interval of {interval}"
    return None, Outcome.STOPS, f"it stops with a ValueError, because the newest save is {later}"


def _is_optional(finding: Finding) -> bool:
    """Return whether SkyRL starts in spite of a finding: its message would be only a warning."""
    name = posixpath.basename(finding.path or "")
    return name == DATA or (finding.code is Code.SHARD_MISSING and name.startswith("optim_"))


def _without(start: OwnStart, save: Checkpoint) -> str:
    """Return the parts that a start does without; empty if it has all."""
    paths = [finding.path or "" for finding in blocking(start.checked(save).findings) if _is_optional(finding)]
    optimizers = [path for path in paths if posixpath.basename(path) != DATA]
    if optimizers:
        return f", and the rank of {optimizers[0]} starts with a new optimizer, without a warning"
    return ", and the data starts from the beginning, because data.pt is damaged" if paths else ""


SIMULATOR = OwnChoice(trainer=TRAINER, choose=choose, by_records=True)
