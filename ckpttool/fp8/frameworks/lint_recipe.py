"""Rules about recipes of Transformer Engine, as it and Megatron-LM have their settings.

Source:
    Megatron-LM core_v0.12 to 2026-08 (`core/transformer/transformer_config.py`, `core/fp8_utils.py`), Transformer
    Engine v1.7 to 2026-08 (`common/recipe/__init__.py`, `common/recipe/delayed_scaling.cu`).
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpttool.core.decide.lint_engine import Problem, Rule, note, suspect
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.settings import Nested, dotted
from ckpttool.core.domain.units import counted
from ckpttool.fp8.frameworks.view import Fp8View, Scope
from ckpttool.fp8.model.fp8 import Recipe

_TENSOR_WIDE = (Recipe.DELAYED, Recipe.TENSORWISE)
_OF_DELAYED = {"margin": (0,), "history": (1,), "algorithm": ("most_recent",)}
"""What no other recipe asks for, and what it is where nobody has set it."""

_DELAYED_TAKES = frozenset({
    "margin", "fp8_format", "amax_history_len", "amax_compute_algo", "scaling_factor_compute_algo", "reduce_amax",
    "fp8_dpa", "fp8_mha", "backward_override",
})  # fmt: skip
_BEFORE_2 = frozenset({"interval", "override_linear_precision"})
_MOST_SAFE_MARGIN = 1


def _history(view: Fp8View) -> Iterator[Problem]:
    for scope in view.scopes:
        if scope.recipe is not Recipe.DELAYED:
            continue
        history, algorithm = scope.number("history"), scope.word("algorithm")
        if history == 1 or algorithm == "most_recent":
            used = "a history of 1 step" if history == 1 else "the most recent step alone"
            yield suspect(
                scope.key("history", "algorithm") if history == 1 else scope.key("algorithm", "history"),
                f"delayed scaling by {used}: after one step with small values the next one overflows",
                f"set `{scope.spelt('history')}` to 1024 and `{scope.spelt('algorithm')}` to max, as is Transformer "
                "Engine's own default, or take a recipe with current scaling",
                expected="1024, max",
                actual=", ".join(str(setting) for setting in (history, algorithm) if setting is not None),
            )


def _wgrad(view: Fp8View) -> Iterator[Problem]:
    for scope in view.scopes:
        name = "wgrad" if scope.get("wgrad") is False else "overridden" if _overrides(view, scope) else None
        if name is None:
            continue
        is_other = scope.recipe not in {None, Recipe.DELAYED}
        is_gone = view.beside.engine_from(2)
        if is_other or is_gone or (is_gone is None and view.is_dump):
            why = (
                f"the recipe {scope.recipe.value} has no such setting"
                if is_other and scope.recipe is not None
                else "Transformer Engine 2.0 took the setting away, and passes over words that it does not know"
            )
            yield suspect(
                scope.key(name),
                f"nothing is computed in higher precision by it: {why}",
                "take it out; `ckpttool fp8 plan` writes what puts the weight's gradient into BF16",
            )


def _overrides(view: Fp8View, scope: Scope) -> bool:
    """Tell whether any of the three products is to be computed in higher precision."""
    if scope.get("overridden") is Nested.LIST:
        return any(entry.value is True for entry in view.inside(scope.key("overridden")))
    return "true" in str(scope.get("overridden")).lower()


def _ignored(view: Fp8View) -> Iterator[Problem]:
    for scope in view.scopes:
        interval = scope.number("interval")
        if interval not in {None, 1} and (
            view.beside.engine_from(1, 8) or (view.is_dump and view.beside.engine is None)
        ):
            yield suspect(
                scope.key("interval"),
                f"`{scope.spelt('interval')}: {interval}` is ignored since Transformer Engine 1.8",
                "take it out",
            )
        recipe = scope.recipe
        if recipe not in {None, Recipe.DELAYED}:
            yield from _no_business(scope, recipe)
        if recipe is Recipe.DELAYED:
            yield from _not_taken(view, scope)


def _no_business(scope: Scope, recipe: Recipe) -> Iterator[Problem]:
    for name, untouched in _OF_DELAYED.items():
        value = scope.get(name)
        if name in scope.settings and value is not None and value not in untouched:
            yield suspect(
                scope.key(name),
                f"`{scope.spelt(name)}: {value}` is ignored: the recipe {recipe.value} has no delayed scale",
                "take it out, or set the recipe to delayed",
            )


def _not_taken(view: Fp8View, scope: Scope) -> Iterator[Problem]:
    """Find words that the recipe's own class passes over without a sound."""
    if scope.named_class != "DelayedScaling":
        return
    accepted = _DELAYED_TAKES if view.beside.engine_from(2) else _DELAYED_TAKES | _BEFORE_2
    for setting in view.inside(scope.place):
        name = str(setting.key[-1])
        if name not in accepted and not name.startswith("_"):
            yield suspect(
                f"{scope.place}.{name}".lstrip("."),
                f"`{name}` is no setting of DelayedScaling, which passes over words that it does not know",
                f"take it out; it knows {', '.join(sorted(_DELAYED_TAKES))}",
            )


def _refused_layers(view: Fp8View) -> Iterator[Problem]:
    for scope in view.scopes:
        if scope.recipe is Recipe.DELAYED and scope.get("bf16_layers") is True:
            yield suspect(
                scope.key("bf16_layers"),
                "no layers can be left in BF16 with delayed scaling: Megatron stops with a ValueError",
                "take another recipe, or set `first_last_layers_bf16` to False",
            )


def _no_layers(view: Fp8View) -> Iterator[Problem]:
    for scope in view.scopes:
        counts = [scope.number(name) for name in ("bf16_at_start", "bf16_at_end")]
        if scope.get("bf16_layers") is True and counts == [0, 0]:
            yield suspect(
                scope.key("bf16_layers"),
                "`first_last_layers_bf16` leaves no layer in BF16: both counts are 0",
                "set `num_layers_at_start_in_bf16` and `num_layers_at_end_in_bf16`",
            )


def _gradients(view: Fp8View) -> Iterator[Problem]:
    for scope in view.scopes:
        if scope.word("format") == "e4m3" and scope.recipe in _TENSOR_WIDE:
            yield suspect(
                scope.key("format"),
                "gradients in E4M3 with one scale for a whole tensor: what is smaller than the largest by 2^18.8 "
                "becomes 0, where E5M2 keeps it down to 2^32.8",
                f"set `{scope.spelt('format')}` to hybrid, or take a recipe of blocks",
                expected="hybrid",
                actual="e4m3",
            )


def _blocks(view: Fp8View) -> Iterator[Problem]:
    for scope in view.scopes:
        if scope.word("format") == "hybrid" and scope.recipe in {Recipe.BLOCKWISE, Recipe.MXFP8}:
            yield note(
                scope.key("format"),
                "gradients in E5M2 have 2 bits of mantissa; with a scale for each block they need no more range than "
                "E4M3 has, which is this recipe's default",
                f"set `{scope.spelt('format')}` to e4m3",
                expected="e4m3",
                actual="hybrid",
            )


def _margin(view: Fp8View) -> Iterator[Problem]:
    for scope in view.scopes:
        margin = scope.number("margin")
        if margin is None or scope.recipe is not Recipe.DELAYED:
            continue
        if margin < 0:
            yield suspect(
                scope.key("margin"),
                f"a margin of {margin} saturates: every value within a factor of 2^{-margin} of the largest is cut off",
                "set it to 0",
            )
        elif margin > _MOST_SAFE_MARGIN:
            yield note(
                scope.key("margin"),
                f"a margin of {margin} leaves the top {margin} binades of the format empty: what becomes 0 is larger "
                f"by 2^{margin}",
                "set it to 0, unless overflows were seen",
            )


def _infinity(view: Fp8View) -> Iterator[Problem]:
    checks = tuple(view.named("check_for_nan_in_loss_and_grad", "check_for_nan_in_loss", "check_for_nan_in_grad"))
    unchecked = checks[0] if checks and all(setting.value is False for setting in checks) else None
    for scope in view.scopes:
        if scope.recipe is not Recipe.DELAYED:
            continue
        steps = scope.number("history")
        stays = "as long as it is in the history" if steps is None else f"for {counted(int(steps), 'step')}"
        effect = f"one infinite value leaves a tensor's scale as it was {stays}"
        if unchecked is not None:
            yield suspect(
                dotted(unchecked.key),
                f"{effect}, and nothing stops the run at it: the check for NaN is off",
                "leave the check on, or take a recipe with current scaling",
            )
        else:
            yield note(
                scope.key("recipe", "history", "format"),
                f"{effect}, and nothing says so",
                "watch for infinite gradients; `ckpttool guard` drops such steps",
            )


def _per_group(view: Fp8View) -> Iterator[Problem]:
    for scope in view.scopes:
        name = next(
            (key for key, value in (("tp_only", True), ("reduce_amax", False)) if scope.get(key) is value), None
        )
        if name is not None:
            yield note(
                scope.key(name),
                "the largest value is not shared by all ranks: scales differ between them, and so do their results",
                "share it, unless that was measured and is too slow",
            )


def _attention(view: Fp8View) -> Iterator[Problem]:
    for scope in view.scopes:
        for name in ("dot_product_attention", "multi_head_attention"):
            if scope.get(name) is True:
                yield note(
                    scope.key(name),
                    "attention in FP8 is a beta feature of Transformer Engine: the first to switch off where the loss "
                    "is worse from the start",
                    f"set `{scope.spelt(name)}` to False if so",
                )


def _output_layer(view: Fp8View) -> Iterator[Problem]:
    for scope in view.scopes:
        if scope.get("output_layer") is True:
            yield note(
                scope.key("output_layer"),
                "the output layer is computed in FP8: published recipes keep it in higher precision",
                f"set `{scope.spelt('output_layer')}` to False",
            )


def _split_accumulator(view: Fp8View) -> Iterator[Problem]:
    for scope in view.scopes:
        if scope.recipe is Recipe.TENSORWISE and scope.word("recipe") is not None:
            yield note(
                scope.key("recipe"),
                "with current scaling the forward product is summed in the tensor cores' own accumulator, which keeps "
                "about 14 bits on Hopper: nearly 2 % of error where 4096 products are summed",
                "take the blockwise recipe where that is too coarse",
            )


def _optimizer(view: Fp8View) -> Iterator[Problem]:
    for setting in view.named("exp_avg_dtype", "exp_avg_sq_dtype"):
        if str(setting.value).lower().rpartition(".")[2] in {"fp8", "uint8"}:  # as printed
            yield note(
                dotted(setting.key),
                f"`{setting.key[-1]}: {setting.value}`: the optimizer keeps this state in FP8",
                "`ckpttool fp8 probe --optimizer` says what that loses of a checkpoint",
            )


RECIPE: tuple[Rule[Fp8View], ...] = (
    Rule(code=Code.FP8_HISTORY_SHORT, check=_history),
    Rule(code=Code.FP8_WGRAD_IGNORED, check=_wgrad),
    Rule(code=Code.FP8_SETTING_IGNORED, check=_ignored),
    Rule(code=Code.FP8_BF16_LAYERS_REFUSED, check=_refused_layers),
    Rule(code=Code.FP8_BF16_LAYERS_NONE, check=_no_layers),
    Rule(code=Code.FP8_E4M3_GRADIENTS, check=_gradients),
    Rule(code=Code.FP8_HYBRID_BLOCKS, check=_blocks),
    Rule(code=Code.FP8_MARGIN, check=_margin),
    Rule(code=Code.FP8_INF_FREEZES_SCALE, check=_infinity),
    Rule(code=Code.FP8_AMAX_PER_GROUP, check=_per_group),
    Rule(code=Code.FP8_FAST_ACCUMULATION, check=_split_accumulator),
    Rule(code=Code.FP8_ATTENTION, check=_attention),
    Rule(code=Code.FP8_OUTPUT_LAYER, check=_output_layer),
    Rule(code=Code.FP8_OPTIMIZER_STATE, check=_optimizer),
)
