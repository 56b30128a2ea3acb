"""OLMo-core's configs, such as the `config.json` of a save: settings that harm a resume.

Source:
    `train/config.py`, `train/checkpoint.py` and `train/callbacks/checkpointer.py` of ai2-olmo-core 3.0.0.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpttool.core.decide.lint_engine import Problem, Rule, View, note, suspect
from ckpttool.core.domain.finding import Code
from ckpttool.trainers.common.linted_configs import LintedConfigs
from ckpttool.trainers.findings import TrainersCode
from ckpttool.trainers.olmo_core import TRAINER

_TRAINER = "trainer"
_CALLBACK = f"{_TRAINER}.callbacks.checkpointer"
_OWN = (
    f"{_TRAINER}.save_folder", f"{_TRAINER}.load_strategy", f"{_TRAINER}.no_checkpoints",
    f"{_CALLBACK}.max_checkpoints", f"{_CALLBACK}.ephemeral_save_interval",
)  # fmt: skip


def _saves_nothing(view: View) -> Iterator[Problem]:
    for key, value in ((f"{_TRAINER}.no_checkpoints", True), (f"{_CALLBACK}.enabled", False)):
        if view.get(key) is value:
            text = f"`{key.rpartition('.')[2]}: {str(value).lower()}`: nothing is saved"
            yield suspect(key, text, "remove it, unless this is a benchmark")


def _keeps_one(view: View) -> Iterator[Problem]:
    key = f"{_CALLBACK}.max_checkpoints"
    if view.count(key, 0) == 1:
        yield note(
            key,
            "`max_checkpoints: 1`: each save is followed by the removal of the previous one, even if the new one is "
            "damaged",
            "write 2 or more, or null to keep all",
        )


def _restarts(view: View) -> Iterator[Problem]:
    key = f"{_TRAINER}.load_trainer_state"
    if view.get(key) is False:
        yield note(
            key,
            "`load_trainer_state: false`: a start from `load_path` counts the steps from 0, and the data start from "
            "the beginning",
            "remove it, unless a new run begins with these weights",
        )


CONFIGS = LintedConfigs(
    trainer=TRAINER.name,
    words=tuple(key.rpartition(".")[2] for key in _OWN),
    is_own=lambda view: any(view.setting(key) is not None for key in _OWN),
    rules=(
        Rule(code=TrainersCode.SAVES_NOTHING, check=_saves_nothing),
        Rule(code=Code.KEEPS_ONE_CHECKPOINT, check=_keeps_one),
        Rule(code=Code.DATA_RESTARTS, check=_restarts),
    ),
)
