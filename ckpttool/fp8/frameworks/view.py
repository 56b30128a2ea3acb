"""The view of a file and related files that rules about FP8 use."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property

from ckpttool.core.decide.lint_engine import View
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.settings import KeyPath, Nested, Setting, Value, dotted
from ckpttool.fp8.frameworks.arguments import UNKNOWN
from ckpttool.fp8.frameworks.settings import FORMAT_SWITCHES, GENERAL, KEYS
from ckpttool.fp8.model.fp8 import Recipe
from ckpttool.fp8.model.settings import Fp8Input, Fp8Settings

Version = tuple[int, ...]

_CLASSES = {
    "DelayedScaling": Recipe.DELAYED,
    "Float8CurrentScaling": Recipe.TENSORWISE,
    "Float8BlockScaling": Recipe.BLOCKWISE,
    "MXFP8BlockScaling": Recipe.MXFP8,
}
"""Transformer Engine's recipes by the class names that a config may contain."""

_RECIPES = {recipe.value: recipe for recipe in (Recipe.DELAYED, Recipe.TENSORWISE, Recipe.BLOCKWISE, Recipe.MXFP8)}
_OFF = frozenset({"none", "null", "false", "no", ""})
_TARGET = "_target_"

_DEFAULTS: Mapping[str, Value] = {
    "format": None, "recipe": "delayed", "history": 1, "algorithm": "most_recent", "margin": 0, "interval": 1,
    "wgrad": True, "bf16_layers": False, "bf16_at_start": 1, "bf16_at_end": 1,
}  # fmt: skip
"""Megatron's defaults for settings that are in effect although a version does not print them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherFacts:
    """Facts from other sources than the file."""

    engine: Version | None = None
    """Version of Transformer Engine, or None if unknown."""
    layers: tuple[str, ...] | None = None
    """Names of all layers, or None if unknown."""
    recipes: frozenset[Recipe] = frozenset()
    """The recipes that the other files name."""
    flags: bool = False
    """Whether one of the other files has Megatron's arguments, printed or as passed."""

    def engine_from(self, *version: int) -> bool | None:
        """Return whether Transformer Engine is at this version or later, or None if its version is unknown."""
        return None if self.engine is None else self.engine >= version


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The settings of one recipe: one section of a config, or all arguments."""

    place: str
    """The dotted name of the section. Empty at the top level."""
    settings: Mapping[str, Setting]
    """Settings by word."""
    kind: Fp8Input

    @property
    def is_dump(self) -> bool:
        """Whether the trainer has no settings other than these."""
        return self.kind is Fp8Input.DUMP

    def get(self, name: str) -> Value:
        """Return a setting, or None if it is unknown or not set."""
        setting = self.settings.get(name)
        if setting is None:
            return _DEFAULTS.get(name) if self.is_dump else None
        value = setting.value
        return None if value is Nested.MAPPING or (isinstance(value, str) and UNKNOWN in value) else value

    def key(self, *names: str) -> str:
        """Return the location of the first of these settings that is present, else that of the section."""
        return next((dotted(self.settings[name].key) for name in names if name in self.settings), self.place)

    def spelt(self, name: str) -> str:
        """Return the file's name for a setting, even if the file does not set it."""
        if name in self.settings:
            key = str(self.settings[name].key[-1])
        else:
            short = any(setting.key[-1] == "amax_history_len" for setting in self.settings.values())
            key = next(key for key in KEYS if KEYS[key] == name and key.startswith("fp8_") is not short)
        return f"--{key.replace('_', '-')}" if self.kind is Fp8Input.ARGUMENTS else key

    def number(self, name: str) -> int | float | None:
        """Return a setting if it is a finite number, else None."""
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return value if isinstance(value, int) or math.isfinite(value) else None

    def word(self, name: str) -> str | None:
        """Return a setting in lower case, without the class of an enumeration, or None if it is unknown."""
        value = self.get(name)
        return value.strip().rpartition(".")[2].lower() if isinstance(value, str) else None

    @property
    def history(self) -> str:
        """The history length of a delayed scale and its algorithm, as far as known."""
        both = (self.number("history"), self.word("algorithm"))
        return ", ".join(str(setting) for setting in both if setting is not None)

    @property
    def overflow(self) -> int | float:
        """Number of binades that a negative margin cuts off at the top."""
        return -(self.number("margin") or 0)

    @property
    def is_off(self) -> bool:
        """Whether FP8 is explicitly off."""
        setting = self.settings.get("format")
        if setting is None:
            return self.is_dump
        value = setting.value
        return value is None or value is False or (isinstance(value, str) and value.strip().lower() in _OFF)

    @property
    def named_class(self) -> str:
        """The class that the settings belong to, or the section's name."""
        setting = self.settings.get(_TARGET)
        return (self.place if setting is None else str(setting.value)).rpartition(".")[2]

    @property
    def recipe(self) -> Recipe | None:
        """The recipe, or None if unknown. Arguments that only one recipe's class accepts also identify it."""
        if (recipe := _RECIPES.get(self.word("recipe") or "")) is not None:
            return recipe
        if self.named_class in _CLASSES:
            return _CLASSES[self.named_class]
        is_own_class = "history" in self.settings and self.spelt("history") == "amax_history_len"
        return Recipe.DELAYED if is_own_class and "recipe" not in self.settings else None


class Fp8View(View):
    """View of a file with lookup of its FP8 settings."""

    def __init__(self, read: Fp8Settings, extras: OtherFacts) -> None:
        super().__init__(read.settings)
        self.kind = read.kind
        self.beside = extras

    @cached_property
    def scopes(self) -> tuple[Scope, ...]:
        """All sections with FP8 settings, except sections that switch FP8 off."""
        if self.kind is Fp8Input.DEBUG:
            return ()
        sections: dict[KeyPath, dict[str, Setting]] = {}
        for entry in self.entries:
            name = str(entry.key[-1])
            if name in KEYS and entry.value is not Nested.MAPPING:
                sections.setdefault(entry.key[:-1], {})[KEYS[name]] = entry
            elif name in FORMAT_SWITCHES and entry.value is True:
                form = replace(entry, value=FORMAT_SWITCHES[name])
                sections.setdefault(entry.key[:-1], {})["format"] = form
            elif name == _TARGET:
                sections.setdefault(entry.key[:-1], {})[_TARGET] = entry
        scopes = (Scope(place=dotted(place), settings=settings, kind=self.kind) for place, settings in sections.items())
        return tuple(scope for scope in scopes if _is_fp8(scope) and not scope.is_off)

    def named(self, *names: str) -> Iterator[Setting]:
        """Yield all settings with these names, anywhere in the file."""
        yield from (entry for entry in self.entries if entry.key[-1] in names)

    @property
    def is_dump(self) -> bool:
        """Whether the file contains all settings of the trainer."""
        return self.kind is Fp8Input.DUMP


def _is_fp8(scope: Scope) -> bool:
    """Return whether a section concerns FP8. Some keys also have other uses."""
    names = {name for name, setting in scope.settings.items() if name != _TARGET and setting.key[-1] not in GENERAL}
    return bool(names) or scope.named_class in _CLASSES
