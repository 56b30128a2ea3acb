"""Configs of debug features as nvdlfw-inspect reads them: which section is meant for which layer.

Source:
    nvdlfw-inspect 0.2.2 (`config_manager.py`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from functools import cache

from ckpttool.core.decide.lint_engine import View
from ckpttool.core.domain.frozen import dataclass

_OWN = frozenset({"enabled", "layers"})

_LONGEST_PATTERN = 500
_MOST_OPEN = 3  # repeats: each of them multiplies what a name takes by its length
_LONGEST_NAME = 200
_REPEAT = re.compile(r"(?<!\\)(?:\*|\+|\{\d*,\d*\})")
_COSTLY = re.compile(r"\)[*+{]|\\[1-9]|\(\?P=")
_NUMBER = re.compile(r"(?<!fc)\d{1,18}")
_SPAN = re.compile(r"(\d{1,18})-(\d{1,18})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section."""

    name: str
    enabled: object
    """None where that is missing."""
    layers: Mapping[str, object] | None
    """What picks the layers; None where it is missing, or no mapping."""
    features: Mapping[str, object]
    """By namespace, or by name where they stand outside of any."""

    @property
    def is_on(self) -> bool:
        """Whether it counts."""
        return bool(self.enabled)

    def picks(self, layer: str) -> bool | None:
        """Tell whether it is meant for a layer; None where that stops the run, or cannot be told here."""
        layers = self.layers or {}
        if (exact := layers.get("exact_layer_names")) is not None:
            return True if isinstance(exact, list) and layer in exact else None
        if (pattern := layers.get("layer_name_regex_pattern")) is not None:
            compiled = _compiled(pattern) if isinstance(pattern, str) else None
            return None if compiled is None or len(layer) > _LONGEST_NAME else compiled.search(layer) is not None
        if isinstance(types := layers.get("layer_types"), str):
            types = list(types)  # which is what becomes of a text
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
    """Yield the sections of a config, in its order."""
    for entry in view.inside(""):
        content = view.raw(str(entry.key[0]))
        if isinstance(content, dict):
            layers = content.get("layers")
            yield Section(
                name=str(entry.key[0]),
                enabled=content.get("enabled"),
                layers=layers if isinstance(layers, dict) else None,
                features={name: value for name, value in content.items() if name not in _OWN},
            )


@cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """Compile a pattern of a user's, unless one that is made for it could keep us busy for hours."""
    inner = pattern.removeprefix(".*").removesuffix(".*")  # it is searched for, so that these change nothing
    if len(pattern) > _LONGEST_PATTERN or _COSTLY.search(inner) or len(_REPEAT.findall(inner)) > _MOST_OPEN:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a later Python may read it in another way
            return re.compile(inner)
    except (re.error, OverflowError, RecursionError):
        return None


def _by_number(requested: object, layer: str) -> bool | None:
    """Tell whether a layer's number is asked for; a name with none, or with several, stops the run."""
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
    """Return names such as layers have in models of several kinds, numbered from 0 and from 1."""
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
