"""Experiments in torchtitan, set in its config.

Source:
    torchtitan v0.2.2 (`config/job_config.py`, `components/checkpoint.py`, `components/quantization/float8.py`). Later
    versions have the same settings in a `config_registry` in Python.
"""

from __future__ import annotations

from ckpttool.fp8.frameworks.frameworks import SAME_BATCH, Framework, Setting, in_bf16, regrouped
from ckpttool.fp8.model.fp8 import Arithmetic, Gemm, Recipe
from ckpttool.fp8.model.plan import AsPlanned, Change, Experiment, Trial
from ckpttool.fp8.model.settings import RunArithmetic
from ckpttool.fp8.rules.experiments import numbers_in

_FLOAT8 = "quantize.linear.float8"
_REGISTRY = (0, 3)
_WGRAD_HIGH = "rowwise_with_gw_hp"
_TOTAL_STEPS = (0, 2, 2)
_NO_GATHER = (f"{_FLOAT8}.enable_fsdp_float8_all_gather", "false")
_NO_ASYNC = ("parallelism.enable_async_tensor_parallel", "false")
_EXTRAS = {
    "FP8 all-gather": (_NO_GATHER,),
    "asynchronous tensor parallelism": (_NO_ASYNC,),
    "compile": (("compile.enable", "false"), _NO_ASYNC),  # async tensor parallelism needs compile
    "recompute": (("activation_checkpoint.mode", "none"),),
}


class Torchtitan(Framework):
    """Experiments in torchtitan, by keys of its TOML config."""

    title = "torchtitan"
    recipes = (Recipe.TENSORWISE, Recipe.ROWWISE)
    first_layer = 0
    all_extras = tuple(_EXTRAS)

    def change(self, trial: Trial, setting: Setting) -> Change | str:
        """Return the keys for the experiment, or why it is not supported."""
        settings, notes = _start(setting), _notes(setting)
        if trial.is_regrouped:
            size = regrouped(setting.argument("local_batch_size"))
            settings += [("training.local_batch_size", size or "<half of the old value>")]
            settings += [("training.global_batch_size", "<the old value>")]
            notes.append(SAME_BATCH)
        if in_bf16(trial):
            notes.append(f"remove the converter {_FLOAT8} from model.converters")
            return Change(remove=(f"model.converters: {_FLOAT8}",), set=tuple(settings), notes=tuple(notes))
        if trial.recipe is not None:
            if trial.recipe not in self.recipes:
                return f"torchtitan's Float8 has no recipe {trial.recipe.value}"
            settings += _recipe(trial.recipe.value)
        elif trial.without or trial.id.startswith("E1"):
            off = (extra for name in trial.without or self.all_extras for extra in _EXTRAS[name])
            settings += list(dict.fromkeys(off))
        elif trial.drops_history:
            return "torchtitan has no delayed scaling, so there is no history"
        elif trial.layers is not None:
            filters = ", ".join(f'"layers.{number}."' for number in sorted(numbers_in(trial.layers), key=int))
            settings.append((f"{_FLOAT8}.filter_fqns", f"[{filters}, <the old value>]"))
            notes.append("all three products of these layers are in BF16, because the filter is per module here")
        elif trial.products.changed:
            refused = _no_products(trial, setting)
            if refused is not None:
                return refused
            settings += _recipe(_WGRAD_HIGH)
            notes.append(
                f"{_WGRAD_HIGH} also scales the weight of dgrad per tensor, not per row, which alone may close the gap"
            )
        return Change(set=tuple(settings), notes=tuple(notes))

    def as_planned(self, experiment: Experiment, arithmetic: RunArithmetic) -> tuple[AsPlanned, str | None]:
        """Return whether the experiment ran as planned, according to the recipe that the log reports as active."""
        trial, change = experiment.trial, experiment.change
        recipe_name = None if change is None else dict(change.set).get(f"{_FLOAT8}.recipe_name")
        if in_bf16(trial):
            active = arithmetic.recipe or ("Float8Linear" if arithmetic.converted else None)
            return (AsPlanned.UNKNOWN, None) if active is None else (AsPlanned.NO, f"its log says {active} is active")
        if arithmetic.recipe is None:
            return AsPlanned.UNKNOWN, "its log does not say which recipe is active"
        if recipe_name is not None and arithmetic.recipe != recipe_name:
            return AsPlanned.NO, f"its log says {arithmetic.recipe} is active, but {recipe_name} was planned"
        if recipe_name is None and trial.products.changed:
            return AsPlanned.UNKNOWN, "its log does not say which layers are converted"
        return AsPlanned.YES, None


def _no_products(trial: Trial, setting: Setting) -> str | None:
    if trial.products.changed != {Gemm.WGRAD} or trial.products.wgrad is not Arithmetic.BF16:
        return f"{_WGRAD_HIGH} keeps wgrad in BF16; there is no other setting for single products"
    if setting.recipe not in {None, Recipe.ROWWISE}:
        return (
            f"{_WGRAD_HIGH} would also change the recipe: the candidate's is {setting.recipe and setting.recipe.value}"
        )
    return None


def _recipe(name: str) -> list[tuple[str, str]]:
    """Return the keys that set a recipe by name. torchtitan stops if parameters are also gathered in FP8."""
    return [(f"{_FLOAT8}.recipe_name", name), _NO_GATHER]


def _start(setting: Setting) -> list[tuple[str, str]]:
    """Return the keys that start from the complete checkpoint and save elsewhere, never in the candidate's folder."""
    load = (
        []
        if setting.load is None
        else [
            ("checkpoint.enable", "true"),
            ("checkpoint.initial_load_path", f"{setting.load}/step-{setting.first_step}"),
            ("checkpoint.initial_load_model_only", "false"),
            ("checkpoint.initial_load_in_hf", "false"),
        ]
    )
    stop = [("training.steps", str(setting.last_step)), ("lr_scheduler.total_steps", "<the old training.steps>")]
    return [*load, ("job.dump_folder", setting.folder), *(stop if _has_total_steps(setting) else [])]


def _has_total_steps(setting: Setting) -> bool:
    return setting.framework_version is None or setting.framework_version >= _TOTAL_STEPS


def _notes(setting: Setting) -> list[str]:
    notes = [
        "without lr_scheduler.total_steps (since 0.2.2), fewer steps would change the learning rates"
        if _has_total_steps(setting)
        else f"stop it after step {setting.last_step}: before 0.2.2 fewer training.steps change the learning rates"
    ]
    if setting.framework_version is not None and setting.framework_version >= _REGISTRY:
        notes.append("these keys are fields of a Python config_registry in this version")
    return notes


FRAMEWORK = Torchtitan()
