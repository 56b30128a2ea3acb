"""Rules about whether a training starts at all, and on as many ranks and slices as its author counts on."""

from __future__ import annotations

from collections.abc import Iterator

from ckpttool.decide.lint_engine import Problem, Rule, suspect
from ckpttool.domain.finding import Code
from ckpttool.domain.settings import Nested
from ckpttool.trainers.mindformers.lint.view import ConfigView

_TRAINS = frozenset({"train", "finetune"})

_SLICES_ITSELF = "BlendedMegatronDatasetDataLoader"
"""The data loader for which MindFormers 2.0 and later write the strategy themselves."""


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
        spelled = f"`run_mode: {mode}`" if isinstance(mode, str) else "a `run_mode` that is no word"
        yield suspect(
            "run_mode",
            f"{spelled} trains nothing, so nothing is resumed",
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
