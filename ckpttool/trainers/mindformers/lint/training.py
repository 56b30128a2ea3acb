"""Rules about whether a training starts, on the ranks and slices that its author means, and about what it will save."""

from __future__ import annotations

from collections.abc import Iterator

from ckpttool.core.decide.lint_engine import Problem, Rule, note, suspect
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.settings import Nested
from ckpttool.trainers.mindformers.train_config import KEPT_CHECKPOINTS, ConfigView

_TRAINS = frozenset({"train", "finetune"})

_SLICES_ITSELF = "BlendedMegatronDatasetDataLoader"
"""The data loader for which MindFormers 2.0 and later write the strategy themselves."""

_MONITOR = "CheckpointMonitor"


def _only_strategy(view: ConfigView) -> Iterator[Problem]:
    if view.is_on("only_save_strategy"):
        yield suspect(
            "only_save_strategy",
            "`only_save_strategy: True` compiles, writes the strategy files and ends with exit code 0, untrained",
            "write `only_save_strategy: False`",
        )


def _run_mode(view: ConfigView) -> Iterator[Problem]:
    mode = view.get("run_mode")
    if mode is not None and mode not in _TRAINS:
        text = f"`run_mode: {mode}`" if isinstance(mode, str) else "a `run_mode` that is no word"
        yield suspect(
            "run_mode",
            f"{text} trains nothing, so nothing is resumed",
            "write `run_mode: train`, or give the config of the training",
        )


def _micro_batches(view: ConfigView) -> Iterator[Problem]:
    micro = view.count("parallel_config.micro_batch_num")
    if 0 < micro < view.stages:
        yield suspect(
            "parallel_config.micro_batch_num",
            f"`micro_batch_num` is {micro}, but there are {view.stages} pipeline stages: MindSpore needs at "
            "least as many micro batches, and finds that out while it compiles",
            f"set `micro_batch_num` to {view.stages} or more; the global batch size grows with it",
        )


def _data_strategy(view: ConfigView) -> Iterator[Problem]:
    is_sliced = view.is_auto_parallel and view.get("parallel.full_batch") is False
    if not is_sliced or view.get("parallel.dataset_strategy") is Nested.LIST:
        return
    if view.get("train_dataset.data_loader.type") != _SLICES_ITSELF:
        parts = view.count("parallel_config.data_parallel")
        yield suspect(
            "parallel.full_batch",
            "`full_batch: False` needs a `dataset_strategy` that says how each input is sliced: without one "
            "MindFormers 1.6 and later stop with a ValueError",
            f"write `dataset_strategy: [[{parts}, 1], …]`, one pair for each input, under `parallel:`",
        )


STARTING = (
    Rule(code=Code.ONLY_SAVES_STRATEGY, check=_only_strategy, needs_all=False),
    Rule(code=Code.NOT_A_TRAINING, check=_run_mode, needs_all=False),
    Rule(code=Code.MICRO_BATCHES_FEW, check=_micro_batches),
    Rule(code=Code.DATA_STRATEGY_MISSING, check=_data_strategy),
)


def _saved_as(view: ConfigView, callback: str) -> str:
    """Return the format of the files: models of the newer kind and the newer layout are never saved as ckpt."""
    if view.get("use_legacy") is False or view.is_newer_layout:
        return "safetensors"
    return str(view.get(f"{callback}.checkpoint_format") or "ckpt")


def _keeps_one(view: ConfigView) -> Iterator[Problem]:
    if view.is_newer_layout:
        return  # there the oldest goes after the new one is written
    for callback in view.callbacks(_MONITOR):
        if view.count(f"{callback}.keep_checkpoint_max", KEPT_CHECKPOINTS) == 1:
            yield suspect(
                f"{callback}.keep_checkpoint_max",
                "`keep_checkpoint_max: 1` deletes the only checkpoint before the next one is written: a run that stops "
                "in between leaves none",
                "write `keep_checkpoint_max: 2` or more",
            )


def _format(view: ConfigView) -> Iterator[Problem]:
    loads = view.get("load_ckpt_format") or "ckpt"
    for callback in view.callbacks(_MONITOR):
        saves = _saved_as(view, callback)
        if saves != loads and not view.is_newer_layout:
            yield note(
                f"{callback}.checkpoint_format",
                f"the run saves {saves} but loads {loads}: with this config MindFormers finds none of its own "
                "checkpoints when it resumes",
                f"write `load_ckpt_format: {saves}` for the resume after next; `ckpttool launch` does",
            )


def _redundancy(view: ConfigView) -> Iterator[Problem]:
    for callback in view.callbacks(_MONITOR):
        if view.is_on(f"{callback}.remove_redundancy") and _saved_as(view, callback) == "ckpt":
            yield suspect(
                f"{callback}.remove_redundancy",
                "`remove_redundancy: True` with checkpoints in the format ckpt: MindFormers stops with a ValueError "
                "after the model is built",
                "write `checkpoint_format: safetensors` beside it",
            )


def _async_save(view: ConfigView) -> Iterator[Problem]:
    for callback in view.callbacks(_MONITOR):
        if view.is_on(f"{callback}.async_save") and not view.is_newer_layout:
            yield note(
                f"{callback}.async_save",
                "with `async_save` the last save of a run never reaches meta.json: MindFormers by itself resumes from "
                "the one before",
                "start the next run with `ckpttool launch`, which goes by the shards",
            )


def _by_mtime(view: ConfigView) -> Iterator[Problem]:
    key = "resume_by_last_timestamp_ckpt"
    if view.is_on(key):
        yield note(
            key,
            f"`{key}` makes MindFormers take each rank's newest file: one that was copied or touched wins, and ranks "
            "may differ; a launch config that names its file is not affected",
            f"write `{key}: False`",
        )


SAVING = (
    Rule(code=Code.KEEPS_ONE_CHECKPOINT, check=_keeps_one, needs_all=False),
    Rule(code=Code.SAVE_FORMAT_DIFFERS, check=_format),
    Rule(code=Code.REDUNDANCY_NEEDS_SAFETENSORS, check=_redundancy),
    Rule(code=Code.ASYNC_SAVE_LAGS, check=_async_save, needs_all=False),
    Rule(code=Code.RESUME_BY_MTIME, check=_by_mtime, needs_all=False),
)
