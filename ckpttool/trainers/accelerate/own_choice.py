"""The save that Accelerate chooses: the entry of `checkpoints/` with the highest first number in its name.

Source: `Accelerator.load_state` of accelerate 1.15 with automatic naming, and test runs with stray entries and copies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.decide.data_effects import stray_taken
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, Finding, Severity, note, worst
from ckpttool.core.domain.plan import Outcome
from ckpttool.trainers.accelerate import FOLDER, RANK_STATE, TRAINER, first_number
from ckpttool.trainers.common.own_choice import Choice, ChoiceUnknown, OwnChoice, save_finding_text

if TYPE_CHECKING:
    from ckpttool.core.storage.base import Storage
    from ckpttool.trainers.abilities import OwnStart

_CALL = "load_state() without a path"
_REMEDY = f"move it out of {FOLDER}/, or pass the folder to load_state"


def traps(strays: Sequence[str], checkpoints: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Report entries that Accelerate would load or stop at, and saves whose numbers contradict their steps.

    Args:
        strays: Paths in `checkpoints/` that are not saves.
        checkpoints: The saves, the newest last.
    """
    numbers = [number for save in checkpoints if (number := first_number(save.name)) is not None]
    for path in strays:
        number = first_number(path.rpartition("/")[2])
        if number is None:
            message = f"{_CALL} stops with an IndexError, because an entry of {FOLDER}/ has no number"
            yield note(Code.STRAY_TAKES_OVER, message, path=path, remedy=_REMEDY)
        elif number >= max(numbers, default=0):
            yield stray_taken(
                path, title=TRAINER.title, instead="and either load it or stop with an error", remedy=_REMEDY
            )
    steps = [(save.step, save.name, first_number(save.name)) for save in checkpoints if save.step is not None]
    if steps:
        _, newest, own_steps = steps[-1]
        _, taken, highest = max(steps, key=lambda item: item[2] or 0)
        if own_steps is not None and highest is not None and highest > own_steps:
            message = (
                f"{newest} is further along than {taken}, which {_CALL} loads: a resumed run restarted the numbering"
            )
            remedy = "resume with ProjectConfiguration(..., iteration=N), where N is the number of the next save"
            yield note(Code.RUN_REWOUND, message, path=f"{FOLDER}/{newest}", remedy=remedy)


def choose(start: OwnStart) -> Choice | ChoiceUnknown:
    """Choose the name with the highest first number, as automatic naming does."""
    try:
        names = sorted(entry.name for entry in start.storage.entries(FOLDER))
    except OSError:
        return ChoiceUnknown(why=f"the training script chooses the folder: there is no {FOLDER}/", by_script=True)
    without = next((name for name in names if first_number(name) is None), None)
    if without is not None:
        return None, Outcome.STOPS, f"{_CALL} stops with an IndexError, because the name {without} has no number"
    taken = max(names, key=lambda name: first_number(name) or 0)
    message = f"{_CALL} loads {taken}, the entry with the highest first number in its name"
    save = start.inventory.named(taken)
    if save is None:
        if _holds_a_save(start.storage, f"{FOLDER}/{taken}"):
            return taken, Outcome.LOADS, f"{message}; it has the files of a save, however old it is"
        return taken, Outcome.UNKNOWN, f"{message}; it is not a known save"
    against = [finding for finding in start.checked(save).findings if finding.severity > Severity.NOTE]
    others = [finding for finding in against if not _is_silent(finding, f"{FOLDER}/{taken}")]
    if not others:
        return taken, Outcome.LOADS, message
    outcome = Outcome.STOPS if worst(others) >= Severity.DAMAGE else Outcome.UNKNOWN
    return taken, outcome, f"{message}; {save_finding_text(others[0], save)}"


def _is_silent(finding: Finding, folder: str) -> bool:
    """Return whether Accelerate only logs the problem.

    It does so if one rank's random-number states are missing, or all of them in an existing folder.
    """
    if finding.code is Code.UNCOMMITTED_SAVE:
        return finding.path == folder
    return "/random_states_" in (finding.path or "")


def _holds_a_save(storage: Storage, path: str) -> bool:
    """Return whether a folder contains random-number states, which are written last.

    Accelerate also loads copies, whatever their names.
    """
    try:
        return any(re.fullmatch(RANK_STATE, entry.name) for entry in storage.entries(path))
    except OSError:
        return False


SIMULATOR = OwnChoice(trainer=TRAINER, choose=choose)
