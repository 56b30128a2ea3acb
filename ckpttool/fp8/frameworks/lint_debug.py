"""Rules about configs of debug features: what stops the run, and what does nothing in silence.

Source:
    nvdlfw-inspect 0.2.2 (`base.py`, `config_manager.py`), Transformer Engine v2.4 to 2026-08 (`debug/features/`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import combinations, islice

from ckpttool.core.decide.lint_engine import Problem, Rule, note, suspect
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.settings import Nested
from ckpttool.fp8.frameworks.debug_config import Section, samples, sections
from ckpttool.fp8.frameworks.lint_layers import ends_in_number, too_many
from ckpttool.fp8.frameworks.settings import NAMESPACE, SELECTORS
from ckpttool.fp8.frameworks.view import Fp8View, Version
from ckpttool.fp8.model.fp8 import Gemm, Operand, Recipe

FAKE, CURRENT = "FakeQuant", "PerTensorScaling"

_FEATURES: Mapping[str, Version] = {
    "DisableFP8GEMM": (2,),
    "DisableFP8Layer": (2,),
    "DisableQuantizationGEMM": (2, 13),
    "DisableQuantizationLayer": (2, 13),
    FAKE: (2,),
    CURRENT: (2,),
    "LogTensorStats": (2,),
    "LogFp8TensorStats": (2,),
    "LogNvfp4TensorStats": (2, 13),
    "DumpTensors": (2, 15),
}
"""By the first version of Transformer Engine that has them."""

_MOST_SECTIONS = 64
"""That are held against each other: a config has one to five."""

_NEW_NAMES = {"DisableFP8GEMM": "DisableQuantizationGEMM", "DisableFP8Layer": "DisableQuantizationLayer"}
_OUTSIDE = frozenset({"LogTensorStats"})  # features that need no namespace

_GEMMS = frozenset(gemm.value for gemm in Gemm)
_TENSORS = frozenset({*(operand.value for operand in Operand), "output", "wgrad", "dgrad"})
_FORMATS = ("FP8E4M3", "FP8E5M2", "MXFP8E4M3", "MXFP8E5M2")

_BY_GEMM = frozenset({"enabled", "gemms", "gemms_struct"})
_BY_TENSOR = _BY_GEMM | {"tensors", "tensors_struct", "gemm", "tensor"}
_TAKES = {
    "DisableFP8GEMM": _BY_GEMM | {"gemm"},
    "DisableQuantizationGEMM": _BY_GEMM | {"gemm"},
    "DisableFP8Layer": frozenset({"enabled", "gemm"}),
    "DisableQuantizationLayer": frozenset({"enabled", "gemm"}),
    FAKE: _BY_TENSOR | {"quant_format"},
    CURRENT: _BY_TENSOR,
}
"""What each takes; another key stops the run. Those that only measure check their keys in other ways."""


def _on(view: Fp8View) -> Iterator[Section]:
    return (section for section in sections(view) if section.is_on)


def _features(section: Section) -> Iterator[tuple[str, str, Mapping[str, object]]]:
    """Yield the features of Transformer Engine that a section names: where each stands, its name, its settings."""
    inside = section.features.get(NAMESPACE)
    for name, content in inside.items() if isinstance(inside, dict) else ():
        yield f"{section.name}.{NAMESPACE}.{name}", name, content if isinstance(content, dict) else {}


def _active(section: Section) -> Iterator[tuple[str, str, Mapping[str, object]]]:
    return (feature for feature in _features(section) if feature[2].get("enabled"))


def _not_wired(view: Fp8View) -> Iterator[Problem]:
    if view.beside.flags:
        for section in _on(view):
            yield suspect(
                section.name,
                "Megatron-LM never asks for debug features: with its own scripts such a config does nothing",
                "train by Megatron-Bridge (`tensor_inspect`) or a script of your own that calls `debug_api.initialize`",
            )
            return


def _overlap(view: Fp8View) -> Iterator[Problem]:
    names = samples() if view.beside.layers is None else view.beside.layers
    active = list(islice(_on(view), _MOST_SECTIONS))
    picked = {section.name: [name for name in names if section.picks(name)] for section in active}
    for first, second in combinations(picked, 2):
        if both := sorted(set(picked[first]).intersection(picked[second])):
            yield suspect(
                f"{second}.layers",
                f"the sections {first!r} and {second!r} both pick {both[0]}"
                + (f" and {len(both) - 1} more" if len(both) > 1 else "")
                + ": the run stops with a ValueError",
                "let each layer be picked by one section",
            )


def pairs(content: Mapping[str, object]) -> frozenset[tuple[str, str]]:
    """Return the products and tensors that a feature is for."""
    products = set()
    for gemms, inner in _gemms(content):
        for tensors, _ in _tensors(inner):
            products |= {(gemm, tensor) for gemm in gemms for tensor in tensors}
    return frozenset(products)


def _gemms(content: Mapping[str, object]) -> Iterator[tuple[tuple[str, ...], Mapping[str, object]]]:
    """Yield products, and what says which of their tensors are meant."""
    structs = content.get("gemms_struct")
    if isinstance(structs, list):
        for item in structs:
            if isinstance(item, dict):
                yield (str(item.get("gemm")),), item
    elif isinstance(content.get("gemms"), (list, str)):
        yield _words(content["gemms"]), content


def _tensors(content: Mapping[str, object]) -> Iterator[tuple[tuple[str, ...], Mapping[str, object]]]:
    """Yield tensors, and what says what is done to them."""
    structs = content.get("tensors_struct")
    if isinstance(structs, list):
        for item in structs:
            if isinstance(item, dict):
                yield (str(item.get("tensor")),), item
    elif isinstance(content.get("tensors"), (list, str)):
        yield _words(content["tensors"]), content


def _words(entry: object) -> tuple[str, ...]:
    return tuple(map(str, entry)) if isinstance(entry, list) else (str(entry),)


def _two_modifiers(view: Fp8View) -> Iterator[Problem]:
    for section in _on(view):
        targets = {name: (key, pairs(content)) for key, name, content in _active(section)}
        if FAKE in targets and CURRENT in targets and (both := sorted(targets[FAKE][1] & targets[CURRENT][1])):
            gemm, tensor = both[0]
            yield suspect(
                targets[CURRENT][0],
                f"{FAKE} and {CURRENT} both change the {tensor} of {gemm}: the run stops with an AssertionError",
                "let one of them do it",
            )


def _exact_names(view: Fp8View) -> Iterator[Problem]:
    for section in _on(view):
        if section.layers is not None and section.layers.get("exact_layer_names") is not None:
            yield suspect(
                f"{section.name}.layers.exact_layer_names",
                "`exact_layer_names` stops the run with a ValueError at the first layer that it does not name",
                "write `layer_name_regex_pattern`, with `^`, `$` and a backslash before each dot",
            )


def _block_format(view: Fp8View) -> Iterator[Problem]:
    for section in _on(view):
        for key, name, content in _active(section):
            if name == FAKE and any(str(form).startswith("MXFP8E") for form in _formats(content)):
                yield suspect(
                    key,
                    f"{FAKE} with a format of blocks fails when the first tensor comes: it passes a text where a type "
                    "belongs",
                    "take FP8E4M3 or FP8E5M2",
                )


def _formats(content: Mapping[str, object]) -> list[object]:
    """Return every format that is named, at any depth."""
    formats = [content["quant_format"]] if "quant_format" in content else []
    for value in content.values():
        for item in value if isinstance(value, list) else ():
            formats += _formats(item) if isinstance(item, dict) else ()
    return formats


def _needs_delayed(view: Fp8View) -> Iterator[Problem]:
    recipes = view.beside.recipes
    if not recipes or Recipe.DELAYED in recipes:
        return
    for section in _on(view):
        for key, name, _ in _active(section):
            if name == CURRENT:
                yield suspect(
                    key,
                    f"{CURRENT} stops the run with an AssertionError: it is for delayed scales, and the recipe is "
                    + " or ".join(sorted(recipe.value for recipe in recipes)),
                    "take it out: there is no delayed scale to replace",
                )


def _unknown(view: Fp8View) -> Iterator[Problem]:
    names = tuple(sections(view))
    unsaid = [section for section in names if view.setting(f"{section.name}.enabled") is None]
    for section in unsaid:
        yield _stops(section.name, f"the section {section.name!r} has no `enabled`", "write `enabled: True`")
    for entry in view.inside(""):
        if entry.value is not Nested.MAPPING:
            yield _stops(str(entry.key[0]), f"`{entry.key[0]}` is no section", "take it out")
    if names and not unsaid and not any(section.is_on for section in names):
        yield _stops(names[0].name, "no section is enabled", "write `enabled: True` in one")
    for section in names:
        if section.is_on:
            yield from _unknown_layers(view, section)
            yield from _unknown_features(view, section)


def _stops(key: str, feature: str, remedy: str) -> Problem:
    return suspect(key, f"{feature}: the run stops with an error", remedy)


def _unknown_layers(view: Fp8View, section: Section) -> Iterator[Problem]:
    key = f"{section.name}.layers"
    if section.layers is None or not any(section.layers.get(name) is not None for name in SELECTORS):
        yield _stops(
            view.at(key, section.name),
            f"{section.name!r} does not say which layers",
            f"write {', '.join(SELECTORS[1:])}",
        )
        return
    for name, picked in section.layers.items():
        if name == "layer_types" and isinstance(picked, str):
            yield suspect(
                f"{key}.{name}",
                f"`{name}: {picked}` is a text: every layer is picked whose name has one of its letters",
                f"write `[{picked}]`",
            )
        if name == "layer_numbers" and not isinstance(picked, list) and str(picked).lower() != "all":
            yield _stops(f"{key}.{name}", f"`{name}: {picked}` is no list", f"write `[{picked}]`")
        if name not in SELECTORS:
            yield suspect(
                f"{key}.{name}", f"`{name}` picks no layers: nobody reads it", f"known are {', '.join(SELECTORS[1:])}"
            )


def _unknown_features(view: Fp8View, section: Section) -> Iterator[Problem]:
    for name in section.features:
        if name != NAMESPACE and name not in _OUTSIDE:
            hint = f" (it belongs under `{NAMESPACE}:`)" if name in _FEATURES else ""
            yield _stops(
                f"{section.name}.{name}",
                f"there is no namespace and no feature {name!r}{hint}",
                f"write `{NAMESPACE}:`",
            )
    for key, name, content in _features(section):
        first = _FEATURES.get(name)
        if first is None:
            yield _stops(
                key,
                f"Transformer Engine has no feature {name!r}, unless a folder of your own features has it",
                f"known are {', '.join(_FEATURES)}",
            )
        elif view.beside.engine_from(*first) is False:
            old = next((old for old, new in _NEW_NAMES.items() if new == name), None)
            since = ".".join(map(str, first))
            yield _stops(key, f"{name} is new in Transformer Engine {since}", f"write {old}" if old else "take it out")
        elif content and "enabled" not in content:
            yield _stops(key, f"{name} has no `enabled`", "write `enabled: True`")
        elif content.get("enabled"):
            yield from _unknown_words(key, name, content)


def _unknown_words(key: str, name: str, content: Mapping[str, object]) -> Iterator[Problem]:
    takes = _TAKES.get(name)
    if takes is None:
        return
    for content_key in content:
        if content_key not in takes:
            yield _stops(
                f"{key}.{content_key}",
                f"{name} takes no `{content_key}`",
                f"it takes {', '.join(sorted(takes - {'gemm', 'tensor'}))}",
            )
    if "gemms" in takes:
        yield from _unknown_products(key, name, content)


def _unknown_products(key: str, name: str, content: Mapping[str, object]) -> Iterator[Problem]:
    known_gemms = list(_gemms(content))
    if isinstance(content.get("gemms"), str) and "gemms_struct" not in content:
        names = content["gemms"]
        yield _stops(
            f"{key}.gemms", f"`gemms: {names}` is a text, and each letter is taken for a product", f"write `[{names}]`"
        )
    if not known_gemms:
        yield _stops(
            key, f"{name} does not say which products", "write `gemms: [fprop, dgrad, wgrad]`, or some of them"
        )
    for gemms, inner in known_gemms:
        for gemm in gemms:
            if gemm not in _GEMMS:
                yield _stops(
                    f"{key}.gemms", f"there is no product {gemm!r}", f"known are {', '.join(sorted(_GEMMS))}, in a list"
                )
        if "tensors" in _TAKES[name]:
            yield from _unknown_tensors(key, name, inner, content.get("quant_format"))


def _unknown_tensors(key: str, name: str, content: Mapping[str, object], form: object) -> Iterator[Problem]:
    known_tensors = list(_tensors(content))
    if not known_tensors:
        yield _stops(
            key, f"{name} does not say which tensors", "write `tensors: [activation, weight, gradient]`, or some"
        )
    for tensors, inner in known_tensors:
        for tensor in tensors:
            if tensor not in _TENSORS:
                yield suspect(
                    f"{key}.tensors",
                    f"there is no tensor {tensor!r}: nothing is done to it, in silence",
                    f"known are {', '.join(sorted(_TENSORS))}, in a list",
                )
        if name == FAKE:
            form_name = inner.get("quant_format", content.get("quant_format", form))
            if form_name not in _FORMATS:
                yield _stops(
                    key,
                    f"{FAKE} with the format {form_name!r}",
                    f"write `quant_format:`, one of {', '.join(_FORMATS[:2])}",
                )


def _empty(view: Fp8View) -> Iterator[Problem]:
    for section in _on(view):
        features = [content for _, _, content in _features(section)]
        outside = [value for name, value in section.features.items() if name in _OUTSIDE]
        is_on = any(content.get("enabled") for content in features) or any(
            isinstance(content, dict) and content.get("enabled") for content in outside
        )
        if not is_on and all(not content or "enabled" in content for content in features):
            yield suspect(
                section.name,
                f"{section.name!r} is enabled, and none of its features is: plain FP8 runs, in silence",
                "write `enabled: True` in the feature as well",
            )
        names = view.beside.layers
        if names is not None and section.layers is not None and all(section.picks(name) is False for name in names):
            yield suspect(
                f"{section.name}.layers",
                f"{section.name!r} picks none of the {len(names)} layers: plain FP8 runs, in silence",
                f"mend the pattern; a layer is called {names[0]}" if names else "give names of layers",
            )


def _deprecated(view: Fp8View) -> Iterator[Problem]:
    if view.beside.engine_from(2, 13):
        for section in _on(view):
            for key, name, _ in _features(section):
                if name in _NEW_NAMES:
                    yield note(key, f"{name} is an old name since Transformer Engine 2.13", f"write {_NEW_NAMES[name]}")


_OPEN_END = re.compile(r"(?:\.\*)?$")
_ENDING_GROUP = re.compile(r"\((?:\?:)?([\d|]+)\)$")


def _substring(view: Fp8View) -> Iterator[Problem]:
    for section in _on(view):
        layers = section.layers or {}
        for kind in _words(layers.get("layer_types")) if isinstance(layers.get("layer_types"), list) else ():
            if ends_in_number(kind):
                yield too_many(f"{section.name}.layers.layer_types", kind, f"{kind}.", "it may be any part of a name")
        pattern = layers.get("layer_name_regex_pattern")
        if isinstance(pattern, str) and layers.get("exact_layer_names") is None:
            stem = _OPEN_END.sub("", pattern, count=1)
            plain = _ENDING_GROUP.sub(lambda group: group[1].rpartition("|")[2], stem).replace("\\.", ".")
            if ends_in_number(plain):
                rest = pattern[len(stem) :]
                yield too_many(
                    f"{section.name}.layers.layer_name_regex_pattern", pattern, f"{stem}\\.{rest}", "it is searched for"
                )


DEBUG: tuple[Rule[Fp8View], ...] = (
    Rule(code=Code.FP8_SUBSTRING, check=_substring),
    Rule(code=Code.TE_DEBUG_NOT_WIRED, check=_not_wired),
    Rule(code=Code.TE_DEBUG_OVERLAP, check=_overlap),
    Rule(code=Code.TE_DEBUG_TWO_MODIFIERS, check=_two_modifiers),
    Rule(code=Code.TE_DEBUG_EXACT_NAMES, check=_exact_names),
    Rule(code=Code.TE_DEBUG_FAKEQUANT_MX, check=_block_format),
    Rule(code=Code.TE_DEBUG_NEEDS_DELAYED, check=_needs_delayed),
    Rule(code=Code.TE_DEBUG_UNKNOWN, check=_unknown),
    Rule(code=Code.TE_DEBUG_EMPTY, check=_empty),
    Rule(code=Code.TE_DEBUG_DEPRECATED, check=_deprecated),
)
