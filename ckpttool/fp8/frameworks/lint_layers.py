"""Rules about torchao and torchtitan, and about patterns that select layers in any framework.

Source:
    torchtitan v0.1.0 to v0.2.2 (`components/quantization/`), torchao 0.12 to 0.18 (`float8/config.py`,
    `prototype/mx_formats/`), Megatron-LM 2026-08 (`core/quantization/quant_config.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpttool.core.decide.lint_engine import Problem, Rule, note, suspect
from ckpttool.core.domain.settings import Nested, Setting, dotted
from ckpttool.fp8.findings import Fp8Code
from ckpttool.fp8.frameworks.arguments import UNKNOWN
from ckpttool.fp8.frameworks.view import Fp8View

_CONVERTED = {"float8": "float8", "mx": "mx"}
"""Maps the word that switches a converter on to its section of settings."""

_OUTPUT = ("output", "lm_head")
_FLOOR_RECIPES = frozenset(
    {"mxfp8", "mxfp8_cublas", "mxfp8_emulated"}
)  # torchao until the training recipe `mxfp8_rceil`

_ENDS_IN_NUMBER = re.compile(r"(?:^|[.*]|\b(?:layers?|blocks?)_?)\d+")
"""Pattern of a number that is a separate part of a name, unlike the number in `fc1` or `w1`."""


def ends_in_number(text: str) -> bool:
    """Return whether a pattern for part of a name also matches ten more layers, as `layers.1` matches `layers.10`."""
    return re.search(rf"(?:{_ENDS_IN_NUMBER.pattern})$", text) is not None


def _sections(view: Fp8View, section: str) -> Iterator[Setting]:
    """Yield the sections of settings for a converter. If a list of converters omits it, yield nothing."""
    lists = [entry for entry in view.named("converters") if entry.value is Nested.LIST]
    switched_on = {str(item.value) for entry in lists for item in view.inside(dotted(entry.key))}
    if lists and not any(section in name.split(".") for name in switched_on):
        return
    for entry in view.named(section):
        if entry.value is Nested.MAPPING and "grouped_mm" not in entry.key:
            yield entry


def _unfiltered(view: Fp8View, section: Setting) -> tuple[str, list[str]] | None:
    """Return the names to exclude and the place of the setting, or None if the names are unknown."""
    key = f"{dotted(section.key)}.filter_fqns"
    names = view.raw(key)
    if isinstance(names, str):
        names = names.split(",")
    if not isinstance(names, list) or any(not isinstance(name, str) or UNKNOWN in name for name in names):
        return None
    return key, [name.strip() for name in names]


def _output_layer(view: Fp8View) -> Iterator[Problem]:
    for part in _CONVERTED:
        for section in _sections(view, part):
            unfiltered = _unfiltered(view, section)
            if unfiltered is not None and not any(output in name for name in unfiltered[1] for output in _OUTPUT):
                yield note(
                    unfiltered[0],
                    "the output layer is computed in FP8: published recipes keep it in higher precision",
                    'add "output" to `filter_fqns`',
                )


def _substring(view: Fp8View) -> Iterator[Problem]:
    for entry in view.named("filter_fqns"):
        names = view.raw(dotted(entry.key))
        if isinstance(names, str):
            names = names.split(",")
        for name in names if isinstance(names, list) else ():
            if isinstance(name, str) and ends_in_number(name.strip()):
                yield too_many(dotted(entry.key), name.strip(), f"{name.strip()}.", "it matches any part of a name")
    for entry in view.named("pattern"):
        if "matchers" in entry.key and isinstance(entry.value, str):
            stem = entry.value.rstrip("*")
            if stem != entry.value and ends_in_number(stem):
                yield too_many(dotted(entry.key), entry.value, f"{stem}.*", "a star also matches digits")


def too_many(key: str, pattern: str, closed: str, why: str) -> Problem:
    """Report that a pattern also selects the ten layers whose numbers begin with the same digits."""
    return suspect(
        key,
        f"`{pattern}` matches more than one layer: {why}, so 1 also matches 10 to 19",
        f"end the pattern: `{closed}`",
        expected=closed,
        actual=pattern,
    )


def _emulated(view: Fp8View) -> Iterator[Problem]:
    active = {dotted(section.key) for section in _sections(view, "float8")}
    for entry in view.named("emulate"):
        place = dotted(entry.key[:-1])
        recipe = view.get(f"{place}.recipe_name".lstrip("."))
        is_active = place in active or "float8" not in entry.key
        if is_active and entry.value is True and isinstance(recipe, str) and UNKNOWN not in recipe:
            yield suspect(
                dotted(entry.key),
                f"`emulate` and the recipe {recipe} cannot be combined: torchtitan up to 0.2 then does not emulate, "
                "and later versions replace the recipe with one scale per tensor and gradients in E5M2",
                "remove `emulate` on a device with FP8; elsewhere remove the recipe, whose arithmetic differs",
            )


def _floor(view: Fp8View) -> Iterator[Problem]:
    for entry in view.named("scale_calculation_mode", "scaling_mode"):
        if str(entry.value).rpartition(".")[2].lower() == "floor":
            yield _rounds_down(dotted(entry.key), f"`{entry.key[-1]}: {entry.value}`", "set it to RCEIL")
    for section in _sections(view, "mx"):
        key = f"{dotted(section.key)}.recipe_name"
        if view.get(key) in _FLOOR_RECIPES:
            yield _rounds_down(key, f"`recipe_name: {view.get(key)}`", "use mxfp8_cublas_rceil or mxfp8_rceil")


def _rounds_down(key: str, reason: str, remedy: str) -> Problem:
    return suspect(
        key,
        f"{reason} rounds scales down, as in the OCP standard: the largest values of one block in six saturate, by "
        "up to 14 %",
        remedy,
    )


def _fast(view: Fp8View) -> Iterator[Problem]:
    for entry in view.named("use_fast_accum"):
        if entry.value is True:
            yield note(
                dotted(entry.key),
                "fast accumulation keeps about 14 bits of a sum on Hopper: nearly 2 % of error if 4096 products are "
                "summed",
                "set `use_fast_accum` to False if that is too coarse",
            )


LAYERS: tuple[Rule[Fp8View], ...] = (
    Rule(code=Fp8Code.FP8_OUTPUT_LAYER, check=_output_layer),
    Rule(code=Fp8Code.FP8_SUBSTRING, check=_substring),
    Rule(code=Fp8Code.FP8_EMULATE_DROPS_RECIPE, check=_emulated),
    Rule(code=Fp8Code.FP8_MX_FLOOR, check=_floor),
    Rule(code=Fp8Code.FP8_FAST_ACCUMULATION, check=_fast),
)
