"""Experiment settings for each framework. Each framework supports only some experiments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import cast

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import UsageError, unknown_word
from ckpttool.fp8.frameworks.view import Version
from ckpttool.fp8.model.fp8 import Arithmetic, Gemm, Recipe
from ckpttool.fp8.model.plan import AsPlanned, Change, Experiment, Trial
from ckpttool.fp8.model.settings import RunArithmetic

_MODULES = {
    "te": "transformer_engine",
    "megatron": "megatron",
    "torchtitan": "torchtitan",
    "torchao": "torchao",
}

NOT_IN_FP8 = {
    "mindformers": (
        "MindFormers 2.1.0 does not train in FP8: it only decodes FP8 weights when it loads them (fp8 compare reads "
        "its logs and fp8 probe its shards)"
    ),
}
"""Reasons why some frameworks or options support no experiments."""

SAME_BATCH = "the global batch size stays the same: the same samples per step, summed in another order"
KEEP_OPTIMIZER = "if parameters are stored in FP8, BF16 needs the master weights: load the optimizer as well"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The location and the settings of an experiment."""

    folder: str
    """The experiment's output folder, as an absolute path."""
    first_step: Step
    last_step: Step
    load: str | None
    """The folder of the checkpoint that the experiment starts from, or None if it starts from scratch."""
    recipe: Recipe | None
    """The candidate's recipe."""
    framework_version: Version | None
    engine_version: Version | None
    """Version of Transformer Engine, if the run uses it."""
    arguments: Mapping[str, str] | None
    """The arguments that the candidate's log printed."""
    in_e5m2: bool
    """Whether gradients are in E5M2. Otherwise they are in E4M3, like all other operands."""

    def argument(self, name: str) -> str | None:
        """Return a printed argument of the candidate, or None if unknown."""
        return None if self.arguments is None else self.arguments.get(name)


class Framework(ABC):
    """The framework-specific part of experiments."""

    title: str
    recipes: tuple[Recipe, ...]
    """Recipes to which a complete run can be switched."""
    first_layer: int
    """The number of the first layer in the names that its configs match."""
    all_extras: tuple[str, ...]
    """Possible features besides plain FP8, under the framework's names."""

    def extras(self, arguments: Mapping[str, str] | None) -> tuple[str, ...]:
        """Return the active features besides plain FP8, or all possible features if the log lists none."""
        del arguments
        return self.all_extras

    @abstractmethod
    def change(self, trial: Trial, setting: Setting) -> Change | str:
        """Return the changes to the candidate's launch for the experiment, or why the experiment is not supported."""

    def as_planned(self, experiment: Experiment, arithmetic: RunArithmetic) -> tuple[AsPlanned, str | None]:
        """Return whether an experiment ran as planned, according to the framework's log.

        Many frameworks log nothing about it.
        """
        del experiment, arithmetic
        return AsPlanned.UNKNOWN, None


def framework_names() -> tuple[str, ...]:
    """Return the names of the frameworks with experiments."""
    return tuple(_MODULES)


def framework_of(name: str) -> Framework:
    """Return the framework with this name.

    Raises:
        UsageError: No framework has that name, or the framework has no FP8 training.
    """
    if name in NOT_IN_FP8:
        raise UsageError(f"--framework {name}: {NOT_IN_FP8[name]}")
    if name not in _MODULES:
        raise unknown_word("framework", name, list(_MODULES), f"choose from {', '.join(_MODULES)}")
    return cast("Framework", import_module(f"ckpttool.fp8.frameworks.{_MODULES[name]}").FRAMEWORK)


def in_bf16(trial: Trial) -> bool:
    """Return whether an experiment uses no FP8 at all."""
    return trial.products.changed == frozenset(Gemm) and trial.products.kinds == {Arithmetic.BF16}


def regrouped(size: str | None) -> str | None:
    """Return a different micro-batch size for the same samples: half of the given size, or two instead of one."""
    if size is None or not size.isdecimal() or int(size) < 1:
        return None
    if int(size) == 1:
        return "2"
    return str(int(size) // 2) if int(size) % 2 == 0 else "1"


def in_a_script(trial: Trial, setting: Setting) -> list[str]:
    """Describe the changes that an experiment needs in a custom script, for any FP8 library."""
    notes = [] if setting.load is None else [f"load the checkpoint of step {setting.first_step} from {setting.load}"]
    notes += [
        f"stop after step {setting.last_step}, with unchanged learning rates",
        f"save below {setting.folder}",
    ]
    if trial.is_regrouped:
        notes.append(f"halve the micro-batch: {SAME_BATCH}")
    return notes


def no_delayed(trial: Trial, setting: Setting, title: str) -> str | None:
    """Return why an experiment that needs a delayed scale is impossible, or None if it is possible."""
    needs = trial.drops_history or Arithmetic.CURRENT in trial.products.kinds
    if not needs or setting.recipe in {None, Recipe.DELAYED}:
        return None
    return f"{title} uses {setting.recipe.value} scaling here: there is no history" if setting.recipe else None


def printed_otherwise(arithmetic: RunArithmetic, expected: Mapping[str, str]) -> str | None:
    """Return how a log differs from the plan, or None if nothing differs.

    Args:
        arithmetic: The printed settings. Other settings are skipped.
        expected: Expected values by argument. Placeholders are in angle brackets.
    """
    for name, value in expected.items():
        printed = arithmetic.argument(name)
        if printed is not None and not value.startswith("<") and not _same(printed, value):
            return f"its log prints {name} = {printed}, but {value} was planned"
    return None


def _same(printed: str, value: str) -> bool:
    if printed.rstrip("/") == value.rstrip("/"):
        return True
    try:
        return float(printed) == float(value)
    except ValueError:
        return False
