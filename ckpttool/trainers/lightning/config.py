"""The YAML of Lightning's command line: settings that harm a resume.

Source:
    Lightning 2.6.6: `cli.py` (`seed_everything`, `trainer`, `ckpt_path`, all of them below the subcommand if a file
    serves several), `callbacks/model_checkpoint.py`, `_CheckpointConnector._parse_ckpt_path`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpttool.core.decide.lint_engine import Problem, Rule, View, note, suspect
from ckpttool.trainers.common.linted_configs import LintedConfigs
from ckpttool.trainers.findings import TrainersCode
from ckpttool.trainers.lightning import TRAINER
from ckpttool.trainers.lightning.callbacks import fit_prefix, items_of, saving_callbacks

_PATH = "ckpt_path"
_OF_OTHERS = ("defaults", "exp_manager", "trainer._target_")
"""Keys of Hydra and NeMo, which build a Trainer from their own configs.

In those configs, the callbacks are elsewhere.
"""


def _is_own(view: View) -> bool:
    top = fit_prefix(view)
    if not view.is_section(f"{top}trainer") or any(view.setting(key) is not None for key in _OF_OTHERS):
        return False
    keys = ("seed_everything", f"{top}seed_everything", f"{top}{_PATH}")
    classes = (view.get(f"{key}.class_path") for key in items_of(view, f"{top}trainer.callbacks"))
    return any(view.setting(key) is not None for key in keys) or any(isinstance(name, str) for name in classes)


def _place(view: View, callback: str, name: str) -> str:
    return view.at(f"{callback}.{name}", view.at(callback, callback.rpartition(".")[0]))


def _keeps_last(view: View, callback: str) -> bool:
    return view.get(f"{callback}.save_last") in {True, "link"}


def _model_alone(view: View) -> Iterator[Problem]:
    callbacks = saving_callbacks(view)
    if callbacks and all(view.is_on(f"{callback}.save_weights_only") for callback in callbacks):
        yield suspect(
            f"{callbacks[0]}.save_weights_only",
            "`save_weights_only: true` saves no optimizer: Lightning stops with a KeyError when it resumes from "
            "such a save",
            "write `save_weights_only: false`, or add a ModelCheckpoint that saves everything",
        )


def _best_alone(view: View) -> Iterator[Problem]:
    callbacks = saving_callbacks(view)
    if callbacks and all(_goes_by_metric(view, callback) for callback in callbacks):
        yield note(
            _place(view, callbacks[0], "monitor"),
            "only the best saves by a metric are kept, and with `save_last: true` (Lightning 2.6, run) last.ckpt is "
            "written only together with them: a run that stops resumes from one of them, not from the newest state",
            "add a ModelCheckpoint without `monitor`, which keeps the newest",
        )


def _goes_by_metric(view: View, callback: str) -> bool:
    """Return whether a metric decides which saves to keep.

    The newest save may then be deleted.

    Source:
        `ModelCheckpoint._save_topk_checkpoint` and `_save_last_checkpoint` of 2.6: `last` is a copy of the most recent
        save, which is the best save if a metric decides.
    """
    return isinstance(view.get(f"{callback}.monitor"), str) and view.count(f"{callback}.save_top_k", 1) > 0


def _saves_nothing(view: View) -> Iterator[Problem]:
    switch, callbacks = f"{fit_prefix(view)}trainer.enable_checkpointing", saving_callbacks(view)
    none = [view.count(f"{callback}.save_top_k", 1) == 0 and not _keeps_last(view, callback) for callback in callbacks]
    if view.get(switch) is False or (none and all(none)):
        yield suspect(
            switch if view.get(switch) is False else f"{callbacks[0]}.save_top_k",
            "nothing is saved, so a run that stops starts from scratch",
            "write `enable_checkpointing: true`, and `save_top_k: 1` or more",
        )


def _takes_its_own_choice(view: View) -> Iterator[Problem]:
    key = f"{fit_prefix(view)}{_PATH}"
    if view.get(key) != "last":
        return
    callbacks = saving_callbacks(view)
    if callbacks and not any(_keeps_last(view, callback) for callback in callbacks):
        yield suspect(
            key,
            "`ckpt_path: last` looks for files whose names begin with `last`, and no ModelCheckpoint here writes "
            "one: Lightning starts from scratch with a warning",
            "write `save_last: true`, or the path that `ckpttool resolve` reports",
        )
    else:
        yield note(
            key,
            "`ckpt_path: last` names no checkpoint: Lightning loads the `last*.ckpt` with the latest modification "
            "time, even a stale one instead of newer saves; without one it starts from scratch with a warning",
            "write the path that `ckpttool resolve` reports",
        )


CONFIGS = LintedConfigs(
    trainer=TRAINER.name,
    words=("seed_everything", "class_path", _PATH),
    is_own=_is_own,
    rules=(
        Rule(code=TrainersCode.ONLY_MODEL_SAVED, check=_model_alone),
        Rule(code=TrainersCode.KEEPS_BEST_ALONE, check=_best_alone),
        Rule(code=TrainersCode.SAVES_NOTHING, check=_saves_nothing),
        Rule(code=TrainersCode.RESUME_TRUE, check=_takes_its_own_choice),
    ),
)
