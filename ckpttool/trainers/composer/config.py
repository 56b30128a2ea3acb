"""LLM-Foundry's YAML, whose keys are arguments of Composer's Trainer: settings that harm a resume.

Source:
    mosaicml 0.32.1 (`Trainer.__init__`, `CheckpointSaver`), and its runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpttool.core.decide.lint_engine import Problem, Rule, View, note, suspect
from ckpttool.core.domain.finding import Code
from ckpttool.core.storage import is_local
from ckpttool.trainers.common.linted_configs import LintedConfigs
from ckpttool.trainers.composer import TRAINER
from ckpttool.trainers.findings import TrainersCode

BATCH, DURATION = "global_train_batch_size", "max_duration"
_KEEP, _AUTO, _LATEST, _FOLDER = "save_num_checkpoints_to_keep", "autoresume", "save_latest_filename", "save_folder"
_OWN = (BATCH, "device_train_microbatch_size", _KEEP, _LATEST, "save_overwrite", _AUTO)
"""Keys that only Composer and LLM-Foundry have at the top level."""


def duration(view: View) -> tuple[int, str] | None:
    """Return the number and the unit of the run's length; None if it is not set, or is in another form.

    A number without a unit counts epochs.
    """
    value = view.get(DURATION)
    match = re.fullmatch(r"([0-9]{1,18}) ?(ep|ba|sp|tok)?", str(value)) if isinstance(value, (str, int)) else None
    return None if match is None else (int(match[1]), match[2] or "ep")


def _model_alone(view: View) -> Iterator[Problem]:
    if view.is_on("save_weights_only"):
        yield suspect(
            "save_weights_only",
            "`save_weights_only: true` saves no optimizer and no counters: Composer loads such a file without a "
            "warning and starts at step 0, and stops at such a folder",
            "write `save_weights_only: false` for a training run that may have to be resumed",
        )


def _keeps_too_few(view: View) -> Iterator[Problem]:
    if view.count(_KEEP, -1) == 1:
        yield note(
            _KEEP,
            f"`{_KEEP}: 1` keeps one checkpoint on this disk: if it is damaged or bad, there is no older one",
            "write 2 or more, or -1 to keep all",
        )


def _saves_nothing(view: View) -> Iterator[Problem]:
    folder = view.get(_FOLDER)
    if folder is None:
        yield note(
            view.at(_FOLDER, _AUTO),
            f"there is no `{_FOLDER}`: nothing is saved, unless the command line has one",
            f"set `{_FOLDER}`",
        )
    elif view.count(_KEEP, -1) == 0 and is_local(str(folder)):
        yield suspect(
            _KEEP,
            f"`{_KEEP}: 0` deletes each checkpoint after it is written, and `{_FOLDER}` is on a disk: none remains",
            "write 2 or more, or -1 to keep all",
        )


def _takes_its_own_choice(view: View) -> Iterator[Problem]:
    if not view.is_on(_AUTO):
        return
    if view.setting(_LATEST) is not None and view.get(_LATEST) is None:
        yield suspect(
            _LATEST,
            f"`{_AUTO}: true` needs the link that `{_LATEST}` names, and it is off: Composer stops with a ValueError",
            f"remove `{_LATEST}`",
        )
        return
    yield note(
        _AUTO,
        f"`{_AUTO}: true` names no checkpoint: Composer follows latest-rank0.pt, whatever its target contains; "
        "without it, a run with sharded FSDP begins at step 0 and overwrites its saves",
        "write the path that `ckpttool resolve` reports: `load_path: PATH`",
    )


def _begins_anew(view: View) -> Iterator[Problem]:
    if view.get("spin_dataloaders") is False:
        yield note(
            "spin_dataloaders",
            "`spin_dataloaders: false`: unless the data set saves its position, the epoch is read again from its "
            "beginning, while the step count continues",
            "remove `spin_dataloaders`",
        )


CONFIGS = LintedConfigs(
    trainer=TRAINER.name,
    words=_OWN,
    is_own=lambda view: any(view.setting(key) is not None for key in _OWN),
    rules=(
        Rule(code=TrainersCode.ONLY_MODEL_SAVED, check=_model_alone),
        Rule(code=Code.KEEPS_ONE_CHECKPOINT, check=_keeps_too_few),
        Rule(code=TrainersCode.SAVES_NOTHING, check=_saves_nothing),
        Rule(code=TrainersCode.RESUME_TRUE, check=_takes_its_own_choice),
        Rule(code=Code.DATA_RESTARTS, check=_begins_anew),
    ),
    batch=lambda view: view.count(BATCH, 0) or None,
)
