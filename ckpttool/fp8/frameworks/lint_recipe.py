"""Rules about Transformer Engine's recipes, as set in its own configs or in Megatron-LM's arguments.

Source:
    Megatron-LM core_v0.12 to 2026-08 (`core/transformer/transformer_config.py`, `core/fp8_utils.py`), Transformer
    Engine v1.7 to 2026-08 (`common/recipe/__init__.py`, `common/recipe/delayed_scaling.cu`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from ckpttool.core.decide.lint_engine import Problem, Rule, note, suspect
from ckpttool.core.domain.finding import Row
from ckpttool.core.domain.settings import Nested, Value, dotted
from ckpttool.core.domain.units import counted
from ckpttool.fp8.findings import Fp8Code
from ckpttool.fp8.frameworks.view import Fp8View, Scope
from ckpttool.fp8.model.fp8 import Recipe

_DELAYED_TAKES = frozenset({
    "margin", "fp8_format", "amax_history_len", "amax_compute_algo", "scaling_factor_compute_algo", "reduce_amax",
    "fp8_dpa", "fp8_mha", "backward_override",
})  # fmt: skip
_BEFORE_2 = frozenset({"interval", "override_linear_precision"})
_MOST_SAFE_MARGIN = 1


def _rule(  # noqa: PLR0913  the columns of the table
    code: Row,
    at: str,
    when: Callable[[Scope], bool],
    says: str,
    fix: str,
    *,
    problem: Callable[..., Problem] = suspect,
    expected: str | None = None,
    actual: str | None = None,
) -> Rule[Fp8View]:
    """Return the rule for a finding, which is applied to every section that sets FP8.

    Texts refer to settings in braces: `{name[margin]}` is the name in the file, `{value[margin]}` the value there.

    Args:
        code: Code of the finding.
        at: Settings in order of preference. The first one in the file is the place of the problem.
        when: Returns whether the section has the problem.
        says: Description of the problem.
        fix: The change that fixes it.
        problem: `suspect`, or `note` for a fact that needs no change.
        expected: The correct value.
        actual: The current value.
    """

    def check(view: Fp8View) -> Iterator[Problem]:
        for scope in filter(when, view.scopes):
            words = {"name": _Lookup(scope.spelt), "value": _Lookup(scope.get), "scope": scope}
            message, remedy, value = (text and text.format_map(words) for text in (says, fix, actual))
            yield problem(scope.key(*at.split()), message, remedy, expected=expected, actual=value)

    return Rule(code=code, check=check)


class _Lookup:
    """Adapter of a function of a setting's name, for the texts of rules."""

    def __init__(self, of: Callable[[str], object]) -> None:
        self._of = of

    def __getitem__(self, name: str) -> object:
        return self._of(name)


def _is_delayed(scope: Scope) -> bool:
    return scope.recipe is Recipe.DELAYED


def _is_on(scope: Scope, name: str) -> bool:
    return scope.get(name) is True


def _is_per_group(scope: Scope) -> bool:
    return scope.get("tp_only") is True


def _is_per_rank(scope: Scope) -> bool:
    return scope.get("reduce_amax") is False and not _is_per_group(scope)


def _is_without_effect(scope: Scope, name: str, default: Value) -> bool:
    """Return whether a setting for delayed scales has a non-default value although the recipe has no delayed scale."""
    is_set = name in scope.settings and scope.get(name) not in (None, default)
    return is_set and scope.recipe not in {None, Recipe.DELAYED}


def _margin(scope: Scope) -> int | float:
    """Return the margin of a delayed scale, or 0 for any other scale."""
    return (scope.number("margin") or 0) if _is_delayed(scope) else 0


def _wgrad(view: Fp8View) -> Iterator[Problem]:
    for scope in view.scopes:
        if scope.get("wgrad") is False:
            name = "wgrad"
        elif _overrides(view, scope):
            name = "overridden"
        else:
            continue
        is_other = scope.recipe not in {None, Recipe.DELAYED}
        is_gone = view.beside.engine_from(2)
        if is_other or is_gone or (is_gone is None and view.is_dump):
            why = (
                f"the recipe {scope.recipe.value} has no such setting"
                if is_other and scope.recipe is not None
                else "Transformer Engine 2.0 removed the setting, and ignores unknown arguments"
            )
            yield suspect(
                scope.key(name),
                f"no product is computed in higher precision because of it: {why}",
                "remove it; `ckpttool fp8 plan` writes the setting that computes the weight gradient in BF16",
            )


def _overrides(view: Fp8View, scope: Scope) -> bool:
    """Return whether any of the three products is overridden to higher precision."""
    if scope.get("overridden") is Nested.LIST:
        return any(entry.value is True for entry in view.inside(scope.key("overridden")))
    return "true" in str(scope.get("overridden")).lower()


def _interval(view: Fp8View) -> Iterator[Problem]:
    is_ignored = view.beside.engine_from(1, 8) or (view.is_dump and view.beside.engine is None)
    for scope in view.scopes if is_ignored else ():
        interval = scope.number("interval")
        if interval not in {None, 1}:
            says = f"`{scope.spelt('interval')}: {interval}` is ignored since Transformer Engine 1.8"
            yield suspect(scope.key("interval"), says, "remove it")


def _not_taken(view: Fp8View) -> Iterator[Problem]:
    """Find settings that the recipe's class silently ignores."""
    accepted = _DELAYED_TAKES if view.beside.engine_from(2) else _DELAYED_TAKES | _BEFORE_2
    for scope in view.scopes:
        if not _is_delayed(scope) or scope.named_class != "DelayedScaling":
            continue
        for setting in view.inside(scope.place):
            name = str(setting.key[-1])
            if name not in accepted and not name.startswith("_"):
                yield suspect(
                    f"{scope.place}.{name}".lstrip("."),
                    f"`{name}` is not a setting of DelayedScaling, which ignores unknown arguments",
                    f"remove it; known: {', '.join(sorted(_DELAYED_TAKES))}",
                )


def _infinity(view: Fp8View) -> Iterator[Problem]:
    checks = tuple(view.named("check_for_nan_in_loss_and_grad", "check_for_nan_in_loss", "check_for_nan_in_grad"))
    unchecked = checks[0] if checks and all(setting.value is False for setting in checks) else None
    for scope in view.scopes:
        if scope.recipe is not Recipe.DELAYED:
            continue
        steps = scope.number("history")
        stays = "as long as it is in the history" if steps is None else f"for {counted(int(steps), 'step')}"
        effect = f"one infinite value leaves a tensor's scale unchanged {stays}"
        if unchecked is not None:
            yield suspect(
                dotted(unchecked.key),
                f"{effect}, and the run does not stop: the check for NaN is off",
                "leave the check on, or use a recipe with current scaling",
            )
        else:
            yield note(
                scope.key("recipe", "history", "format"),
                f"{effect} without a warning",
                "watch for infinite gradients; `ckpttool guard` drops such steps",
            )


def _optimizer(view: Fp8View) -> Iterator[Problem]:
    for setting in view.named("exp_avg_dtype", "exp_avg_sq_dtype"):
        if str(setting.value).lower().rpartition(".")[2] in {"fp8", "uint8"}:  # as printed
            yield note(
                dotted(setting.key),
                f"`{setting.key[-1]}: {setting.value}`: the optimizer keeps this state in FP8",
                "`ckpttool fp8 probe --optimizer` shows the loss of precision in a checkpoint",
            )


_FULL_HISTORY = (
    "set `{name[history]}` to 1024 and `{name[algorithm]}` to max, the default of Transformer Engine, or use a "
    "recipe with current scaling"
)

RECIPE: tuple[Rule[Fp8View], ...] = (
    _rule(
        Fp8Code.FP8_HISTORY_SHORT,
        at="history algorithm",
        when=lambda scope: _is_delayed(scope) and scope.number("history") == 1,
        says="delayed scaling with a history of 1 step: after one step with small values the next one overflows",
        fix=_FULL_HISTORY,
        expected="1024, max",
        actual="{scope.history}",
    ),
    _rule(
        Fp8Code.FP8_HISTORY_SHORT,
        at="algorithm history",
        when=lambda scope: (
            _is_delayed(scope) and scope.number("history") != 1 and scope.word("algorithm") == "most_recent"
        ),
        says="delayed scaling with only the most recent step: after one step with small values the next one overflows",
        fix=_FULL_HISTORY,
        expected="1024, max",
        actual="{scope.history}",
    ),
    Rule(code=Fp8Code.FP8_WGRAD_IGNORED, check=_wgrad),
    Rule(code=Fp8Code.FP8_SETTING_IGNORED, check=_interval),
    Rule(code=Fp8Code.FP8_SETTING_IGNORED, check=_not_taken),
    *(
        _rule(
            Fp8Code.FP8_SETTING_IGNORED,
            at=name,
            when=partial(_is_without_effect, name=name, default=default),
            says=f"`{{name[{name}]}}: {{value[{name}]}}` is ignored: the recipe {{scope.recipe.value}} has no delayed "
            "scale",
            fix="remove it, or set the recipe to delayed",
        )
        for name, default in (("margin", 0), ("history", 1), ("algorithm", "most_recent"))
    ),
    _rule(
        Fp8Code.FP8_BF16_LAYERS_REFUSED,
        at="bf16_layers",
        when=lambda scope: _is_delayed(scope) and scope.get("bf16_layers") is True,
        says="layers cannot stay in BF16 with delayed scaling: Megatron stops with a ValueError",
        fix="use another recipe, or set `first_last_layers_bf16` to False",
    ),
    _rule(
        Fp8Code.FP8_BF16_LAYERS_NONE,
        at="bf16_layers",
        when=lambda scope: (
            scope.get("bf16_layers") is True and scope.number("bf16_at_start") == scope.number("bf16_at_end") == 0
        ),
        says="`first_last_layers_bf16` leaves no layer in BF16: both counts are 0",
        fix="set `num_layers_at_start_in_bf16` and `num_layers_at_end_in_bf16`",
    ),
    _rule(
        Fp8Code.FP8_E4M3_GRADIENTS,
        at="format",
        when=lambda scope: scope.word("format") == "e4m3" and scope.recipe in {Recipe.DELAYED, Recipe.TENSORWISE},
        says=(
            "gradients in E4M3 with one scale for a whole tensor: values smaller than the largest by 2^18.8 become "
            "0, while E5M2 keeps them down to 2^32.8"
        ),
        fix="set `{name[format]}` to hybrid, or use a recipe with blocks",
        expected="hybrid",
        actual="e4m3",
    ),
    _rule(
        Fp8Code.FP8_HYBRID_BLOCKS,
        problem=note,
        at="format",
        when=lambda scope: scope.word("format") == "hybrid" and scope.recipe in {Recipe.BLOCKWISE, Recipe.MXFP8},
        says=(
            "gradients in E5M2 have 2 bits of mantissa; with a scale per block the range of E4M3, this recipe's "
            "default, is enough"
        ),
        fix="set `{name[format]}` to e4m3",
        expected="e4m3",
        actual="hybrid",
    ),
    _rule(
        Fp8Code.FP8_MARGIN,
        at="margin",
        when=lambda scope: _margin(scope) < 0,
        says=(
            "a margin of {value[margin]} saturates: every value within a factor of 2^{scope.overflow} of the "
            "largest is clipped"
        ),
        fix="set it to 0",
    ),
    _rule(
        Fp8Code.FP8_MARGIN,
        problem=note,
        at="margin",
        when=lambda scope: _margin(scope) > _MOST_SAFE_MARGIN,
        says=(
            "a margin of {value[margin]} leaves the top {value[margin]} binades of the format empty: the threshold "
            "below which values become 0 rises by a factor of 2^{value[margin]}"
        ),
        fix="set it to 0, unless there were overflows",
    ),
    Rule(code=Fp8Code.FP8_INF_FREEZES_SCALE, check=_infinity),
    *(
        _rule(
            Fp8Code.FP8_AMAX_PER_GROUP,
            problem=note,
            at=name,
            when=when,
            says="the largest value is not shared by all ranks: their scales differ, and so do their results",
            fix="share it, unless measurements show that it is too slow",
        )
        for name, when in (("tp_only", _is_per_group), ("reduce_amax", _is_per_rank))
    ),
    _rule(
        Fp8Code.FP8_FAST_ACCUMULATION,
        problem=note,
        at="recipe",
        when=lambda scope: scope.recipe is Recipe.TENSORWISE and scope.word("recipe") is not None,
        says=(
            "with current scaling the forward product is summed in the tensor cores' own accumulator, which keeps "
            "about 14 bits on Hopper: nearly 2 % of error if 4096 products are summed"
        ),
        fix="use the blockwise recipe if that is too coarse",
    ),
    *(
        _rule(
            Fp8Code.FP8_ATTENTION,
            problem=note,
            at=name,
            when=partial(_is_on, name=name),
            says=(
                "attention in FP8 is a beta feature of Transformer Engine: switch it off first if the loss is worse "
                "from the start"
            ),
            fix=f"set `{{name[{name}]}}` to False if so",
        )
        for name in ("dot_product_attention", "multi_head_attention")
    ),
    _rule(
        Fp8Code.FP8_OUTPUT_LAYER,
        problem=note,
        at="output_layer",
        when=lambda scope: scope.get("output_layer") is True,
        says="the output layer is computed in FP8: published recipes keep it in higher precision",
        fix="set `{name[output_layer]}` to False",
    ),
    Rule(code=Fp8Code.FP8_OPTIMIZER_STATE, check=_optimizer),
)
