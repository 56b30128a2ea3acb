"""Rules that find settings of debug features that stop the run or have no effect.

Source:
    nvdlfw-inspect 0.2.2 (`base.py`, `config_manager.py`), Transformer Engine v2.4 to 2026-08 (`debug/features/`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations, islice

from ckpttool.core.decide.lint_engine import Problem, Rule, View, note, suspect
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.settings import Nested
from ckpttool.fp8.findings import Fp8Code
from ckpttool.fp8.frameworks.lint_layers import ends_in_number, too_many
from ckpttool.fp8.frameworks.settings import NAMESPACE, SELECTORS
from ckpttool.fp8.frameworks.view import Fp8View, Version
from ckpttool.fp8.model.fp8 import Gemm, Operand, Recipe

FAKE, CURRENT = "FakeQuant", "PerTensorScaling"

_OF_A_SECTION = frozenset({"enabled", "layers"})
_GEMMS = frozenset(gemm.value for gemm in Gemm)
_TENSORS = frozenset({*(operand.value for operand in Operand), "output", "wgrad", "dgrad"})
_FORMATS = ("FP8E4M3", "FP8E5M2", "MXFP8E4M3", "MXFP8E5M2")
_MOST_SECTIONS = 64
"""Maximum number of sections to compare with each other. A config has one to five."""

_BY_GEMM = frozenset({"enabled", "gemms", "gemms_struct"})
_BY_TENSOR = _BY_GEMM | {"tensors", "tensors_struct", "gemm", "tensor"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Feature:
    since: Version = (2,)
    """The first version with the feature."""
    takes: frozenset[str] | None = None
    """The accepted keys. Any other key stops the run. None if the feature only measures."""
    renamed: str | None = None
    """Name of the feature since 2.13, if it was renamed."""
    before: str | None = None
    """Name of the feature before it was renamed."""


_FEATURES = {
    "DisableFP8GEMM": _Feature(takes=_BY_GEMM | {"gemm"}, renamed="DisableQuantizationGEMM"),
    "DisableFP8Layer": _Feature(takes=frozenset({"enabled", "gemm"}), renamed="DisableQuantizationLayer"),
    "DisableQuantizationGEMM": _Feature(since=(2, 13), takes=_BY_GEMM | {"gemm"}, before="DisableFP8GEMM"),
    "DisableQuantizationLayer": _Feature(since=(2, 13), takes=frozenset({"enabled", "gemm"}), before="DisableFP8Layer"),
    FAKE: _Feature(takes=_BY_TENSOR | {"quant_format"}),
    CURRENT: _Feature(takes=_BY_TENSOR),
    "LogTensorStats": _Feature(),
    "LogFp8TensorStats": _Feature(),
    "LogNvfp4TensorStats": _Feature(since=(2, 13)),
    "DumpTensors": _Feature(since=(2, 15)),
}
_OUTSIDE = frozenset({"LogTensorStats"})  # features that need no namespace


# --- sections and the layers that they pick --------------------------------------------------------------------------

_LONGEST_PATTERN = 500
_MOST_OPEN = 3  # repeats: each multiplies the time by the length of the name
_LONGEST_NAME = 200
_REPEAT = re.compile(r"(?<!\\)(?:\*|\+|\{\d*,\d*\})")
_COSTLY = re.compile(r"\)[*+{]|\\[1-9]|\(\?P=")
_NUMBER = re.compile(r"(?<!fc)\d{1,18}")
_SPAN = re.compile(r"(\d{1,18})-(\d{1,18})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section of a config of debug features."""

    name: str
    enabled: object
    """The value of the key, or None if the key is missing."""
    layers: Mapping[str, object] | None
    """The layer selection, or None if it is missing or not a mapping."""
    features: Mapping[str, object]
    """Features by namespace, or by name without a namespace."""

    @property
    def is_on(self) -> bool:
        """Whether the section is active."""
        return bool(self.enabled)

    def picks(self, layer: str) -> bool | None:
        """Return whether the section applies to a layer, or None if that is unknown or the layer stops the run."""
        layers = self.layers or {}
        if (exact := layers.get("exact_layer_names")) is not None:
            return True if isinstance(exact, list) and layer in exact else None
        if (pattern := layers.get("layer_name_regex_pattern")) is not None:
            compiled = _compiled(pattern) if isinstance(pattern, str) else None
            return None if compiled is None or len(layer) > _LONGEST_NAME else compiled.search(layer) is not None
        if isinstance(types := layers.get("layer_types"), str):
            types = list(types)  # the result for a text
        by_number = _by_number(layers.get("layer_numbers"), layer) if "layer_numbers" in layers else False
        by_type = isinstance(types, list) and any(
            kind in layer or kind == "all" for kind in types if isinstance(kind, str)
        )
        if by_number is None:
            return None
        if by_number:
            return types is None or by_type
        return by_type and layers.get("layer_numbers") is None


def sections(view: View) -> Iterator[Section]:
    """Yield the sections of a config, in order."""
    for entry in view.inside(""):
        content = view.raw(str(entry.key[0]))
        if isinstance(content, dict):
            layers = content.get("layers")
            yield Section(
                name=str(entry.key[0]),
                enabled=content.get("enabled"),
                layers=layers if isinstance(layers, dict) else None,
                features={name: value for name, value in content.items() if name not in _OF_A_SECTION},
            )


@cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """Compile a user's pattern, or return None if it could take hours to match."""
    inner = pattern.removeprefix(".*").removesuffix(".*")  # the pattern is searched for, so these change nothing
    if len(pattern) > _LONGEST_PATTERN or _COSTLY.search(inner) or len(_REPEAT.findall(inner)) > _MOST_OPEN:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning that a later Python may interpret the pattern differently
            return re.compile(inner)
    except (re.error, OverflowError, RecursionError):
        return None


def _by_number(requested: object, layer: str) -> bool | None:
    """Return whether a layer's number is selected. A name with no number, or with several, stops the run."""
    numbers = _NUMBER.findall(layer)
    if len(numbers) != 1:
        return None
    if (isinstance(requested, str) and requested.lower() == "all") or (
        isinstance(requested, list) and "all" in requested
    ):
        return True
    return any(_holds(item, int(numbers[0])) for item in requested) if isinstance(requested, list) else None


def _holds(requested: object, number: int) -> bool:
    span = _SPAN.fullmatch(requested) if isinstance(requested, str) else None
    return requested == number if span is None else int(span[1]) <= number <= int(span[2])


def samples() -> tuple[str, ...]:
    """Return typical layer names of several kinds of models, numbered from 0 and from 1."""
    inner = (
        "self_attention.linear_qkv", "self_attention.linear_proj", "mlp.linear_fc1", "mlp.linear_fc2",
        "self_attention.layernorm_qkv", "self_attention.proj", "layernorm_mlp.fc1", "layernorm_mlp.fc2",
        "mlp.experts.linear_fc1", "mlp.experts.linear_fc2", "mlp.shared_experts.linear_fc1",
    )  # fmt: skip
    heads = (
        "model.decoder.layers.{}", "model.module.decoder.layers.{}", "model.module.module.decoder.layers.{}",
        "decoder.layers.{}", "decoder.{}", "transformer_layer.{}", "transformer_layer", "model.layers.{}",
    )  # fmt: skip
    return tuple(
        dict.fromkeys(f"{head.format(number)}.{name}" for head in heads for number in range(33) for name in inner)
    )


# --- rules -----------------------------------------------------------------------------------------------------------

_Content = Mapping[str, object]


def _on(view: Fp8View) -> Iterator[Section]:
    return (section for section in sections(view) if section.is_on)


def _features(section: Section) -> Iterator[tuple[str, str, _Content]]:
    """Yield the key, name and settings of each Transformer Engine feature in a section."""
    inside = section.features.get(NAMESPACE)
    for name, content in inside.items() if isinstance(inside, dict) else ():
        yield f"{section.name}.{NAMESPACE}.{name}", name, content if isinstance(content, dict) else {}


def _active(view: Fp8View) -> Iterator[tuple[str, str, _Content]]:
    """Yield the enabled features of the enabled sections."""
    for section in _on(view):
        yield from (feature for feature in _features(section) if feature[2].get("enabled"))


def _targets(content: _Content, word: str) -> Iterator[tuple[tuple[str, ...], _Content]]:
    """Yield products or tensors, each with its settings.

    Args:
        content: Settings of a feature, or of a product in it.
        word: `gemm` or `tensor`.
    """
    structs, names = content.get(f"{word}s_struct"), content.get(f"{word}s")
    if isinstance(structs, list):
        yield from (((str(item.get(word)),), item) for item in structs if isinstance(item, dict))
    elif isinstance(names, list):
        yield tuple(map(str, names)), content
    elif isinstance(names, str):
        yield (names,), content


def _not_wired(view: Fp8View) -> Iterator[Problem]:
    first = next(_on(view), None)
    if view.beside.flags and first is not None:
        yield suspect(
            first.name,
            "Megatron-LM never starts debug features: with its own scripts such a config has no effect",
            "train with Megatron-Bridge (`tensor_inspect`) or your own script that calls `debug_api.initialize`",
        )


def _overlap(view: Fp8View) -> Iterator[Problem]:
    names = samples() if view.beside.layers is None else view.beside.layers
    active = islice(_on(view), _MOST_SECTIONS)
    picked = {section.name: {name for name in names if section.picks(name)} for section in active}
    for first, second in combinations(picked, 2):
        if both := sorted(picked[first] & picked[second]):
            more = f" and {len(both) - 1} more" if len(both) > 1 else ""
            yield suspect(
                f"{second}.layers",
                f"the sections {first!r} and {second!r} both match {both[0]}{more}: the run stops with a ValueError",
                "match each layer in only one section",
            )


def _two_modifiers(view: Fp8View) -> Iterator[Problem]:
    for section in _on(view):
        active = {name: (key, content) for key, name, content in _features(section) if content.get("enabled")}
        if FAKE in active and CURRENT in active:
            changed = [
                {
                    (gemm, tensor)
                    for gemms, inner in _targets(active[name][1], "gemm")
                    for tensors, _ in _targets(inner, "tensor")
                    for gemm in gemms
                    for tensor in tensors
                }
                for name in (FAKE, CURRENT)
            ]
            for gemm, tensor in sorted(changed[0] & changed[1])[:1]:
                yield suspect(
                    active[CURRENT][0],
                    f"{FAKE} and {CURRENT} both change the {tensor} of {gemm}: the run stops with an AssertionError",
                    "use only one of them",
                )


def _exact_names(view: Fp8View) -> Iterator[Problem]:
    for section in _on(view):
        if (section.layers or {}).get("exact_layer_names") is not None:
            yield suspect(
                f"{section.name}.layers.exact_layer_names",
                "`exact_layer_names` stops the run with a ValueError at the first layer that it does not name",
                "write `layer_name_regex_pattern`, with `^`, `$` and a backslash before each dot",
            )


def _block_format(view: Fp8View) -> Iterator[Problem]:
    for key, name, content in _active(view):
        if name == FAKE and any(str(form).startswith("MXFP8E") for form in _formats(content)):
            yield suspect(
                key,
                f"{FAKE} with a format of blocks fails at the first tensor: it passes text instead of a type",
                "use FP8E4M3 or FP8E5M2",
            )


def _formats(content: _Content) -> list[object]:
    """Return every format that the settings name, at any depth."""
    formats = [content["quant_format"]] if "quant_format" in content else []
    for value in content.values():
        for item in value if isinstance(value, list) else ():
            formats += _formats(item) if isinstance(item, dict) else ()
    return formats


def _needs_delayed(view: Fp8View) -> Iterator[Problem]:
    recipes = view.beside.recipes
    is_other = bool(recipes) and Recipe.DELAYED not in recipes
    for key, name, _ in _active(view):
        if is_other and name == CURRENT:
            yield suspect(
                key,
                f"{CURRENT} stops the run with an AssertionError: it is for delayed scales, and the recipe is "
                + " or ".join(sorted(recipe.value for recipe in recipes)),
                "remove it: there is no delayed scale to replace",
            )


def _stops(key: str, feature: str, remedy: str) -> Problem:
    return suspect(key, f"{feature}: the run stops with an error", remedy)


def _unknown_sections(view: Fp8View) -> Iterator[Problem]:
    names = tuple(sections(view))
    unsaid = [section for section in names if view.setting(f"{section.name}.enabled") is None]
    for section in unsaid:
        yield _stops(section.name, f"the section {section.name!r} has no `enabled`", "write `enabled: True`")
    for entry in view.inside(""):
        if entry.value is not Nested.MAPPING:
            yield _stops(str(entry.key[0]), f"`{entry.key[0]}` is not a section", "remove it")
    if names and not unsaid and not any(section.is_on for section in names):
        yield _stops(names[0].name, "no section is enabled", "write `enabled: True` in one")


def _unknown_layers(view: Fp8View) -> Iterator[Problem]:
    known = ", ".join(SELECTORS[1:])
    for section in _on(view):
        key, layers = f"{section.name}.layers", section.layers or {}
        if not any(layers.get(name) is not None for name in SELECTORS):
            yield _stops(view.at(key, section.name), f"{section.name!r} does not name any layers", f"write {known}")
            continue
        for name, picked in layers.items():
            if name not in SELECTORS:
                yield suspect(f"{key}.{name}", f"`{name}` matches no layers: it is never read", f"known: {known}")
            elif name == "layer_types" and isinstance(picked, str):
                yield suspect(
                    f"{key}.{name}",
                    f"`{name}: {picked}` is text, not a list: it matches every layer whose name has one of its letters",
                    f"write `[{picked}]`",
                )
            elif name == "layer_numbers" and not isinstance(picked, list) and str(picked).lower() != "all":
                yield _stops(f"{key}.{name}", f"`{name}: {picked}` is not a list", f"write `[{picked}]`")


def _unknown_features(view: Fp8View) -> Iterator[Problem]:
    for section in _on(view):
        for name in section.features:
            if name != NAMESPACE and name not in _OUTSIDE:
                hint = f" (it belongs under `{NAMESPACE}:`)" if name in _FEATURES else ""
                feature = f"there is neither a namespace nor a feature {name!r}{hint}"
                yield _stops(f"{section.name}.{name}", feature, f"write `{NAMESPACE}:`")
        for key, name, content in _features(section):
            known = _FEATURES.get(name)
            if known is None:
                yield _stops(
                    key,
                    f"Transformer Engine has no feature {name!r}, unless it is in a folder of your own features",
                    f"known: {', '.join(_FEATURES)}",
                )
            elif view.beside.engine_from(*known.since) is False:
                since = ".".join(map(str, known.since))
                remedy = f"write {known.before}" if known.before else "remove it"
                yield _stops(key, f"{name} is new in Transformer Engine {since}", remedy)
            elif content and "enabled" not in content:
                yield _stops(key, f"{name} has no `enabled`", "write `enabled: True`")


def _checked(view: Fp8View) -> Iterator[tuple[str, str, _Content, frozenset[str]]]:
    """Yield the active features whose settings are checked, each with the accepted keys."""
    for key, name, content in _active(view):
        known = _FEATURES.get(name)
        if known is not None and known.takes is not None and view.beside.engine_from(*known.since) is not False:
            yield key, name, content, known.takes


def _unknown_settings(view: Fp8View) -> Iterator[Problem]:
    for key, name, content, takes in _checked(view):
        for setting in content:
            if setting not in takes:
                remedy = f"it accepts {', '.join(sorted(takes - {'gemm', 'tensor'}))}"
                yield _stops(f"{key}.{setting}", f"{name} has no setting `{setting}`", remedy)


def _unknown_products(view: Fp8View) -> Iterator[Problem]:
    for key, name, content, takes in _checked(view):
        names, products = content.get("gemms"), list(_targets(content, "gemm"))
        if "gemms" not in takes:
            continue
        if isinstance(names, str) and "gemms_struct" not in content:
            feature = f"`gemms: {names}` is text, not a list, and each letter is read as a product"
            yield _stops(f"{key}.gemms", feature, f"write `[{names}]`")
        if not products:
            remedy = "write `gemms: [fprop, dgrad, wgrad]`, or some of them"
            yield _stops(key, f"{name} does not name any products", remedy)
        for gemms, inner in products:
            for gemm in gemms:
                if gemm not in _GEMMS:
                    remedy = f"known: {', '.join(sorted(_GEMMS))}, in a list"
                    yield _stops(f"{key}.gemms", f"there is no product {gemm!r}", remedy)
            if "tensors" in takes:
                yield from _unknown_tensors(key, name, inner, content.get("quant_format"))


def _unknown_tensors(key: str, name: str, content: _Content, form: object) -> Iterator[Problem]:
    targets = list(_targets(content, "tensor"))
    if not targets:
        remedy = "write `tensors: [activation, weight, gradient]`, or some of them"
        yield _stops(key, f"{name} does not name any tensors", remedy)
    for tensors, inner in targets:
        for tensor in tensors:
            if tensor not in _TENSORS:
                yield suspect(
                    f"{key}.tensors",
                    f"there is no tensor {tensor!r}: the entry is silently ignored",
                    f"known: {', '.join(sorted(_TENSORS))}, in a list",
                )
        form_name = inner.get("quant_format", content.get("quant_format", form))
        if name == FAKE and form_name not in _FORMATS:
            remedy = f"write `quant_format:`, one of {', '.join(_FORMATS[:2])}"
            yield _stops(key, f"{FAKE} with the format {form_name!r}", remedy)


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
                f"{section.name!r} is enabled, but none of its features is: it silently runs plain FP8",
                "write `enabled: True` in the feature as well",
            )
        names = view.beside.layers
        if names is not None and section.layers is not None and all(section.picks(name) is False for name in names):
            yield suspect(
                f"{section.name}.layers",
                f"{section.name!r} matches none of the {len(names)} layers: it silently runs plain FP8",
                f"correct the pattern; a layer is named {names[0]}" if names else "give names of layers",
            )


def _deprecated(view: Fp8View) -> Iterator[Problem]:
    for section in _on(view) if view.beside.engine_from(2, 13) else ():
        for key, name, _ in _features(section):
            if name in _FEATURES and (renamed := _FEATURES[name].renamed):
                yield note(key, f"{name} is a deprecated name since Transformer Engine 2.13", f"write {renamed}")


_OPEN_END = re.compile(r"(?:\.\*)?$")
_ENDING_GROUP = re.compile(r"\((?:\?:)?([\d|]+)\)$")


def _substring(view: Fp8View) -> Iterator[Problem]:
    for section in _on(view):
        layers = section.layers or {}
        types = layers.get("layer_types")
        for kind in map(str, types) if isinstance(types, list) else ():
            if ends_in_number(kind):
                yield too_many(f"{section.name}.layers.layer_types", kind, f"{kind}.", "it matches any part of a name")
        pattern = layers.get("layer_name_regex_pattern")
        if isinstance(pattern, str) and layers.get("exact_layer_names") is None:
            stem = _OPEN_END.sub("", pattern, count=1)
            plain = _ENDING_GROUP.sub(lambda group: group[1].rpartition("|")[2], stem).replace("\\.", ".")
            if ends_in_number(plain):
                rest = pattern[len(stem) :]
                yield too_many(
                    f"{section.name}.layers.layer_name_regex_pattern",
                    pattern,
                    f"{stem}\\.{rest}",
                    "it matches anywhere in a name",
                )


DEBUG: tuple[Rule[Fp8View], ...] = (
    Rule(code=Fp8Code.FP8_SUBSTRING, check=_substring),
    Rule(code=Fp8Code.TE_DEBUG_NOT_WIRED, check=_not_wired),
    Rule(code=Fp8Code.TE_DEBUG_OVERLAP, check=_overlap),
    Rule(code=Fp8Code.TE_DEBUG_TWO_MODIFIERS, check=_two_modifiers),
    Rule(code=Fp8Code.TE_DEBUG_EXACT_NAMES, check=_exact_names),
    Rule(code=Fp8Code.TE_DEBUG_FAKEQUANT_MX, check=_block_format),
    Rule(code=Fp8Code.TE_DEBUG_NEEDS_DELAYED, check=_needs_delayed),
    Rule(code=Fp8Code.TE_DEBUG_UNKNOWN, check=_unknown_sections),
    Rule(code=Fp8Code.TE_DEBUG_UNKNOWN, check=_unknown_layers),
    Rule(code=Fp8Code.TE_DEBUG_UNKNOWN, check=_unknown_features),
    Rule(code=Fp8Code.TE_DEBUG_UNKNOWN, check=_unknown_settings),
    Rule(code=Fp8Code.TE_DEBUG_UNKNOWN, check=_unknown_products),
    Rule(code=Fp8Code.TE_DEBUG_EMPTY, check=_empty),
    Rule(code=Fp8Code.TE_DEBUG_DEPRECATED, check=_deprecated),
)
