"""torchtitan's configs in TOML: settings that harm a resume.

Source:
    torchtitan 0.1.0 and 0.2.2 (`config_manager.py`, `config/job_config.py`, `components/checkpoint.py`). 0.3.0 no
    longer has such files: its configs are Python.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpttool.core.decide.lint_engine import Problem, Rule, View, note, suspect
from ckpttool.core.domain.finding import Code
from ckpttool.trainers.common.linted_configs import LintedConfigs
from ckpttool.trainers.findings import TrainersCode
from ckpttool.trainers.torchtitan import LEFT_OUT, ON, SECTION, TRAINER

_LAST = (f"{SECTION}.last_save_model_only", f"{SECTION}.last_save_model_weights_only")  # in the same order
_OWN = (
    "job.dump_folder", "job.config_file", f"{SECTION}.enable_checkpoint", f"{SECTION}.keep_latest_k",
    f"{SECTION}.last_save_model_only", f"{SECTION}.last_save_model_weights_only",
    f"{SECTION}.enable_first_step_checkpoint", "parallelism.data_parallel_shard_degree",
)  # fmt: skip


def _keeps_one(view: View) -> Iterator[Problem]:
    key = f"{SECTION}.keep_latest_k"
    if view.count(key, 0) == 1:
        yield suspect(
            key,
            "`keep_latest_k = 1`: torchtitan stops with a ValueError, because the only kept checkpoint may be "
            "incomplete",
            "write 2 or more, or 0 to keep all",
        )


def _saves_nothing(view: View) -> Iterator[Problem]:
    if not any(view.is_on(key) for key in ON):
        key = next((key for key in ON if view.setting(key) is not None), SECTION)
        yield note(
            key,
            "checkpoints are off, which is the default: nothing is saved and no checkpoint is loaded, unless the "
            "command line has --checkpoint.enable",
            f"write `{ON[0].rpartition('.')[2]} = true` under [{SECTION}]",
        )


def _last_model_alone(view: View) -> Iterator[Problem]:
    new, old = _LAST
    is_old = view.setting(ON[1]) is not None
    if any(view.is_on(key) for key in ON) and (view.is_on(old) if is_old else view.get(new) is not False):
        yield note(
            view.at(old if is_old else new, SECTION),
            "the last save of a completed run has only the model: a run that resumes from it stops with a "
            "CheckpointException, and has to resume from the previous save",
            f"write `{(old if is_old else new).rpartition('.')[2]} = false` if the run may be extended later",
        )


def left_out(view: View) -> list[str]:
    """Return the parts of a save that torchtitan does not load with this config."""
    names = view.raw(LEFT_OUT)
    if isinstance(names, str):
        names = names.split(",")
    return [str(name).strip() for name in names] if isinstance(names, list) else []


def _begins_anew(view: View) -> Iterator[Problem]:
    if "dataloader" in left_out(view):
        yield note(
            LEFT_OUT,
            "`exclude_from_loading` leaves out the data loaders: the data starts from the beginning at every start, "
            "while the step count continues",
            "remove `dataloader`, unless the number of data-parallel ranks changes at this start",
        )


CONFIGS = LintedConfigs(
    trainer=TRAINER.name,
    words=tuple(key.rpartition(".")[2] for key in _OWN),
    is_own=lambda view: any(view.setting(key) is not None for key in _OWN),
    rules=(
        Rule(code=Code.KEEPS_ONE_CHECKPOINT, check=_keeps_one),
        Rule(code=TrainersCode.SAVES_NOTHING, check=_saves_nothing),
        Rule(code=TrainersCode.ONLY_MODEL_SAVED, check=_last_model_alone),
        Rule(code=Code.DATA_RESTARTS, check=_begins_anew),
    ),
)
