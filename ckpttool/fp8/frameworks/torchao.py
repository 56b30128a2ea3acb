"""Experiments in a custom script on torchao, set in the config of torchao's conversion.

Source:
    torchao v0.8 to 2026-08 (`float8/config.py`, `float8/float8_linear_utils.py`).
"""

from __future__ import annotations

from ckpttool.fp8.frameworks.frameworks import Framework, Setting, in_a_script, in_bf16
from ckpttool.fp8.model.fp8 import Arithmetic, Gemm, Recipe
from ckpttool.fp8.model.plan import Change, Trial

CONFIG = "float8_config.py"

_CASTS = {
    Gemm.FPROP: ("cast_config_input", "cast_config_weight"),
    Gemm.DGRAD: ("cast_config_grad_output", "cast_config_weight_for_grad_input"),
    Gemm.WGRAD: ("cast_config_input_for_grad_weight", "cast_config_grad_output_for_grad_weight"),
}
"""The casts of each product's operands."""

EXTRAS = ("FP8 all-gather (enable_fsdp_float8_all_gather)", "compile", "recompute")


class Torchao(Framework):
    """Experiments in a custom script on torchao."""

    title = "torchao"
    recipes = (Recipe.TENSORWISE, Recipe.ROWWISE)
    first_layer = 0
    all_extras = EXTRAS

    def change(self, trial: Trial, setting: Setting) -> Change | str:
        """Return the changes to the script and the conversion of the model."""
        notes = in_a_script(trial, setting)
        if in_bf16(trial):
            return Change(remove=("convert_to_float8_training",), notes=tuple(notes))
        refused = _refused(trial)
        if refused is not None:
            return refused
        if trial.recipe is not None or trial.products.changed:
            base = trial.recipe or setting.recipe or Recipe.TENSORWISE
            if base not in self.recipes:
                return f"torchao has no recipe {base.value}"
            if setting.recipe is None and trial.recipe is None:
                notes.append(f"the candidate's recipe is unknown: {CONFIG} has {base.value}")
            return Change(
                set=(("convert", f"{setting.folder}/{CONFIG}"),),
                files=((CONFIG, _conversion(trial, base)),),
                notes=(*notes, f"call convert(model) of {CONFIG} instead of convert_to_float8_training"),
            )
        if trial.without or trial.id.startswith("E1"):
            notes.append(f"switch off: {', '.join(trial.without or self.all_extras)}")
        return Change(notes=tuple(notes))


def _refused(trial: Trial) -> str | None:
    if trial.drops_history or Arithmetic.CURRENT in trial.products.kinds:
        return "torchao has no delayed scaling, so there is no history"
    if Arithmetic.FAKE in trial.products.kinds:
        return "torchao casts both operands of a product or none: one alone cannot be rounded"
    return None


def _conversion(trial: Trial, base: Recipe) -> str:
    """Return a module whose `convert` replaces torchao's own."""
    casts = [name for gemm in Gemm if gemm in trial.products.changed for name in _CASTS[gemm]]
    changed = "".join(f"\n    {name}=_in_bf16(_CANDIDATE.{name})," for name in casts)
    lines = [
        f'"""{trial.id}: {trial.title}."""',
        "",
        "import re",
        "from dataclasses import replace",
        "",
        "from torchao.float8 import CastConfig, Float8LinearConfig, convert_to_float8_training",
        "from torchao.float8.config import ScalingType",
        "",
        "",
        "def _in_bf16(cast):",
        '    """Leave an operand as it is; torchao wants one type of number for both uses of a tensor all the same."""',
        "    return CastConfig(scaling_type=ScalingType.DISABLED, target_dtype=cast.target_dtype)",
        "",
        "",
        f'_CANDIDATE = Float8LinearConfig.from_recipe_name("{base.value}")',
        f"CONFIG = replace(\n    _CANDIDATE,{changed}\n)" if casts else "CONFIG = _CANDIDATE",
        f'LAYERS = re.compile(r"{trial.layers or ".*"}")',
        "",
        "",
        "def convert(model, module_filter_fn=lambda module, name: True, **changes):",
        '    """Convert a model; `module_filter_fn` is the candidate\'s own."""',
        "    convert_to_float8_training(",
        "        model,",
        "        config=replace(CONFIG, **changes),",
        "        module_filter_fn=lambda module, name: bool(LAYERS.search(name)) and module_filter_fn(module, name),",
        "    )",
    ]
    if trial.layers is not None:
        lines += [
            "    convert_to_float8_training(",
            "        model,",
            "        config=replace(_CANDIDATE, **changes),",
            "        module_filter_fn=lambda module, name: not LAYERS.search(name) and module_filter_fn(module, name),",
            "    )",
        ]
    return "\n".join([*lines, "    return model", ""])


FRAMEWORK = Torchao()
