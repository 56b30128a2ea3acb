"""A file with arguments of Hugging Face's Trainer: settings that harm a resume.

Source:
    transformers 5.23.0: `HfArgumentParser.parse_yaml_file` and `parse_json_file` (keys at the top level are fields of
    TrainingArguments), `Trainer._save_checkpoint` (writes, then rotates by time), `get_last_checkpoint`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpttool.core.decide.lint_engine import Problem, Rule, View, note, suspect
from ckpttool.core.domain.finding import Code
from ckpttool.trainers.common.linted_configs import LintedConfigs
from ckpttool.trainers.findings import TrainersCode
from ckpttool.trainers.huggingface import AUTOMATIC, RESUME, TRAINER

_OWN = (
    "per_device_train_batch_size", "per_device_eval_batch_size", "save_total_limit", "save_only_model",
    "save_strategy", "load_best_model_at_end", "restore_callback_states_from_checkpoint", "save_on_each_node",
    AUTOMATIC,
)  # fmt: skip
"""Fields that only Trainer has.

`resume_from_checkpoint`, `output_dir` and `ignore_data_skip` are left out, because others share them.
"""

KEEPS_ONE = "`save_total_limit: 1` keeps one checkpoint: if it is damaged or bad, there is no older one"
KEEP_TWO = "set save_total_limit to 2 or more"
REMOVE_IT = "remove `ignore_data_skip: true`, or write false: Trainer then skips the data already read"
BEGINS_ANEW = "with ignore_data_skip it reads the epoch again from its beginning"


def _keeps_one(view: View) -> Iterator[Problem]:
    if view.count("save_total_limit", 0) == 1:
        yield note("save_total_limit", KEEPS_ONE, KEEP_TWO)


def _model_alone(view: View) -> Iterator[Problem]:
    if view.is_on("save_only_model"):
        yield suspect(
            "save_only_model",
            "`save_only_model: true` saves no optimizer, schedule or random-number state: Trainer resumes from such "
            "a save without a warning, with a re-initialized optimizer and schedule",
            "write `save_only_model: false` for a training run that may have to be resumed",
        )


def _takes_its_own_choice(view: View) -> Iterator[Problem]:
    for key in (RESUME, AUTOMATIC):
        if view.is_on(key) and (key == RESUME or view.get(RESUME) is None):
            yield note(
                key,
                f"`{key}: true` names no checkpoint: Trainer loads the highest checkpoint-N, whatever its content, "
                "and never falls back to another",
                f"write the path that `ckpttool resolve` reports: `{RESUME}: PATH`",
            )


def _begins_anew(view: View) -> Iterator[Problem]:
    if view.is_on("ignore_data_skip"):
        yield note(
            "ignore_data_skip",
            f"{BEGINS_ANEW}, while the step count continues",
            REMOVE_IT,
        )


def _saves_nothing(view: View) -> Iterator[Problem]:
    strategy = view.get("save_strategy")
    if strategy == "no":
        yield suspect(
            "save_strategy",
            "`save_strategy` is no: nothing is saved, so a run that stops starts from scratch",
            "write steps or epoch",
        )
    elif strategy is False:
        yield suspect(
            "save_strategy",
            "`save_strategy` is no without quotes, which YAML reads as false: Trainer stops with a ValueError",
            "write steps or epoch",
        )


def _best_alone(view: View) -> Iterator[Problem]:
    if view.get("save_strategy") == "best":
        yield note(
            "save_strategy",
            "`save_strategy: best` saves only when the metric reaches a new best: a run that stops resumes from the "
            "best save, not from the newest state",
            "write steps or epoch, and `load_best_model_at_end: true` to keep the best checkpoint as well",
        )


CONFIGS = LintedConfigs(
    trainer=TRAINER.name,
    words=_OWN,
    is_own=lambda view: any(view.setting(key) is not None for key in _OWN),
    rules=(
        Rule(code=Code.KEEPS_ONE_CHECKPOINT, check=_keeps_one),
        Rule(code=TrainersCode.ONLY_MODEL_SAVED, check=_model_alone),
        Rule(code=TrainersCode.RESUME_TRUE, check=_takes_its_own_choice),
        Rule(code=Code.DATA_RESTARTS, check=_begins_anew),
        Rule(code=TrainersCode.SAVES_NOTHING, check=_saves_nothing),
        Rule(code=TrainersCode.KEEPS_BEST_ALONE, check=_best_alone),
    ),
)
