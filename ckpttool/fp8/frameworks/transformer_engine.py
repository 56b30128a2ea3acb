"""Experiments in a custom script on Transformer Engine, set in debug features.

Source:
    Transformer Engine v2.4 to 2.20.2 (`debug/features/`, `common/recipe/__init__.py`), nvdlfw-inspect 0.2.2. Two
    sections that match one layer cause an error, as do two features that change one tensor. So one section with one
    feature is used.
"""

from __future__ import annotations

from ckpttool.fp8.frameworks.frameworks import (
    KEEP_OPTIMIZER,
    Framework,
    Setting,
    in_a_script,
    in_bf16,
    no_delayed,
)
from ckpttool.fp8.frameworks.view import Version
from ckpttool.fp8.model.fp8 import OPERANDS, Arithmetic, Gemm, Operand, Recipe
from ckpttool.fp8.model.plan import Change, Trial

CONFIG = "inspect.yaml"
LOGS = "inspect"
"""Folder for the logs of debug features."""

_FIRST = (2, 4)
_RENAMED = (2, 13)
_CLASSES = {
    Recipe.TENSORWISE: ("Float8CurrentScaling", (2, 2), ""),
    Recipe.BLOCKWISE: ("Float8BlockScaling", (2, 3), "Hopper"),
    Recipe.MXFP8: ("MXFP8BlockScaling", (2, 0), "Blackwell"),
}
"""Class, first version with that class, and supported devices, by recipe."""

EXTRAS = (
    "sequence parallel", "overlap of tensor-parallel communication", "FP8 attention (fp8_dpa, fp8_mha)",
    "FP8 parameters (fp8_model_init)", "CUDA graphs", "recompute",
)  # fmt: skip

_BEFORE = (
    "before the model is created: nvdlfw_inspect.api.initialize(config_file=…, feature_dirs=[the folder "
    "transformer_engine/debug/features], log_dir=…, init_training_step=…)"
)
_AFTER = (
    "after the model is created: nvdlfw_inspect.api.infer_and_assign_layer_names(model); after each step: "
    "nvdlfw_inspect.api.step()"
)


def needs_debug(trial: Trial) -> bool:
    """Return whether a trial changes single products, which needs debug features."""
    return bool(trial.products.changed) and not in_bf16(trial)


def debug_config(trial: Trial, setting: Setting) -> str:
    """Return the config of debug features that computes the products of an experiment."""
    pattern = trial.layers or ".*"
    return (
        f"{trial.id.lower().replace('-', '_')}:\n"
        "  enabled: True\n"
        f"  layers: {{layer_name_regex_pattern: '{pattern}'}}\n"
        "  transformer_engine:\n"
        f"    {_feature(trial, setting)}\n"
    )


def _feature(trial: Trial, setting: Setting) -> str:
    gemms = [gemm for gemm in Gemm if gemm in trial.products.changed]
    named = ", ".join(gemm.value for gemm in gemms)
    operands = [
        operand
        for operand in Operand
        if trial.operand in {None, operand} and any(operand in OPERANDS[gemm] for gemm in gemms)
    ]
    arithmetic = trial.products.of(gemms[0])
    if arithmetic is Arithmetic.BF16:
        feature = (
            "DisableFP8GEMM"
            if setting.engine_version is None or setting.engine_version < _RENAMED
            else "DisableQuantizationGEMM"
        )
        return f"{feature}: {{enabled: True, gemms: [{named}]}}"
    if arithmetic is Arithmetic.CURRENT:
        tensors = ", ".join(operand.value for operand in operands)
        return f"PerTensorScaling: {{enabled: True, gemms: [{named}], tensors: [{tensors}]}}"
    formats = [f"{{tensor: {operand.value}, quant_format: {_format(operand, setting)}}}" for operand in operands]
    return f"FakeQuant: {{enabled: True, gemms: [{named}], tensors_struct: [{', '.join(formats)}]}}"


def _format(operand: Operand, setting: Setting) -> str:
    return "FP8E5M2" if operand is Operand.GRADIENT and setting.in_e5m2 else "FP8E4M3"


def no_debug(trial: Trial, setting: Setting) -> str | None:
    """Return why debug features do not support the setting, or None if they do."""
    version = setting.engine_version
    if version is not None and version < _FIRST:
        return f"debug features need Transformer Engine 2.4, and this is {_version_text(version)}"
    return no_delayed(trial, setting, "PerTensorScaling works only inside DelayedScaling, and the candidate")


def no_recipe(recipe: Recipe, version: Version | None) -> str | None:
    """Return why a recipe is not available, or None if it is."""
    if recipe not in _CLASSES:
        return f"Transformer Engine has no recipe {recipe.value}"
    name, since, _ = _CLASSES[recipe]
    if version is not None and version < since:
        return f"{name} needs Transformer Engine {_version_text(since)}, and this is {_version_text(version)}"
    return None


def for_devices(recipe: Recipe) -> tuple[str, ...]:
    """Return the devices that a recipe requires, for display."""
    devices = _CLASSES[recipe][2]
    return (f"{recipe.value} needs {devices}",) if devices else ()


def _version_text(version: Version) -> str:
    return ".".join(map(str, version))


class TransformerEngine(Framework):
    """Experiments in a custom script on Transformer Engine."""

    title = "Transformer Engine"
    recipes = tuple(_CLASSES)
    first_layer = 1
    all_extras = EXTRAS

    def change(self, trial: Trial, setting: Setting) -> Change | str:
        """Return the changes to the script, and the config of debug features."""
        notes = in_a_script(trial, setting)
        if in_bf16(trial):
            return Change(set=(("fp8_autocast.enabled", "False"),), notes=(*notes, KEEP_OPTIMIZER))
        if trial.recipe is not None:
            refused = no_recipe(trial.recipe, setting.engine_version)
            name = _CLASSES[trial.recipe][0] if refused is None else ""
            more = (*notes, *for_devices(trial.recipe)) if refused is None else ()
            return refused or Change(set=(("fp8_autocast.fp8_recipe", f"{name}()"),), notes=more)
        refused = no_delayed(trial, setting, "the candidate")
        if refused is None and needs_debug(trial):
            refused = no_debug(trial, setting)
        if refused is not None:
            return refused
        if trial.drops_history:
            notes.append("skip the keys that end in `_extra_state` when the state dict is loaded (strict=False)")
        if trial.without or trial.id.startswith("E1"):
            notes.append(f"switch off: {', '.join(trial.without or self.all_extras)}")
        if not needs_debug(trial):
            return Change(notes=tuple(notes))
        notes += [_BEFORE, _AFTER]
        return Change(
            set=(
                ("debug_api.initialize.config_file", f"{setting.folder}/{CONFIG}"),
                ("debug_api.initialize.log_dir", f"{setting.folder}/{LOGS}"),
                ("debug_api.initialize.init_training_step", str(setting.first_step)),
            ),
            files=((CONFIG, debug_config(trial, setting)),),
            notes=tuple(notes),
        )


FRAMEWORK = TransformerEngine()
