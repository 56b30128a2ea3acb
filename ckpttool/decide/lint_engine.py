"""What a rule about configs sees, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from ckpttool.domain.finding import Code, Severity
from ckpttool.domain.frozen import dataclass
from ckpttool.domain.settings import KeyPath, Nested, Setting, Settings, Value
from ckpttool.trainers.mindformers.train_config import AUTO_PARALLEL, LEGACY_SWITCHES

KEPT_CHECKPOINTS = 5
"""MindFormers' default of `keep_checkpoint_max` and of `save_max`."""


class View:
    """A config to look things up in, by dotted keys: `runner_config.sink_size`, `callbacks.1.prefix`."""

    def __init__(self, settings: Settings) -> None:
        """Index a config once for all rules."""
        self.entries = settings.entries
        self._by_key = {dotted(entry.key): entry for entry in settings.entries}
        self._inside: dict[str, list[Setting]] = {}
        for entry in settings.entries:
            self._inside.setdefault(dotted(entry.key[:-1]), []).append(entry)

    def get(self, key: str) -> Value:
        """Return a value; None where it is not set, which to MindFormers is the same as an empty one."""
        entry = self._by_key.get(key)
        return None if entry is None else entry.value

    def setting(self, key: str) -> Setting | None:
        """Return a setting with its line and spelling; None where the config has no such key."""
        return self._by_key.get(key)

    def raw(self, key: str) -> object:
        """Return a value with all that is in it: mappings and lists as such; None where it is not set."""
        value = self.get(key)
        if value is Nested.MAPPING:
            return {str(entry.key[-1]): self.raw(dotted(entry.key)) for entry in self.inside(key)}
        if value is Nested.LIST:
            return [self.raw(dotted(entry.key)) for entry in self.inside(key)]
        return value

    def is_on(self, key: str) -> bool:
        """Tell whether a switch is True; text that looks like it is another rule's business."""
        return self.get(key) is True

    def is_section(self, key: str) -> bool:
        """Tell whether there are settings under a key."""
        return self.get(key) is Nested.MAPPING and key in self._inside

    def inside(self, key: str) -> Sequence[Setting]:
        """Return the settings directly under a key, in the order of the file."""
        return self._inside.get(key, ())

    def count(self, key: str, default: int = 1) -> int:
        """Return a whole number; MindFormers' default where it is not set or is none."""
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def callbacks(self, kind: str) -> list[str]:
        """Return the keys of the callbacks of a type, in order: `callbacks.1`."""
        return [
            dotted(entry.key) for entry in self.inside("callbacks") if self.get(f"{dotted(entry.key)}.type") == kind
        ]

    def at(self, key: str, otherwise: str) -> str:
        """Return where to look for a setting that may be missing: itself, its section, or what demands it."""
        return key if self.line(key) is not None else otherwise

    def line(self, key: str) -> int | None:
        """Return the line of a setting; where it is not set, of the section that should have it."""
        while key:
            entry = self._by_key.get(key)
            if entry is not None and entry.line is not None:
                return entry.line
            key = key.rpartition(".")[0]
        return None

    @property
    def stages(self) -> int:
        """Pipeline stages: 1 without automatic parallelism, whatever is set."""
        return max(self.count("parallel_config.pipeline_stage"), 1) if self.is_auto_parallel else 1

    @property
    def is_auto_parallel(self) -> bool:
        """Whether the sizes of `parallel_config` count."""
        mode = self.get("parallel.parallel_mode")
        return self.is_on("use_parallel") and (1 if mode is None else mode) in AUTO_PARALLEL

    @property
    def is_newer_layout(self) -> bool:
        """Whether checkpoints are saved as `iteration_*`."""
        return self.is_section("checkpoint") or any(self.get(switch) is False for switch in LEGACY_SWITCHES)


def dotted(key: KeyPath) -> str:
    """Spell a key path as people do."""
    return ".".join(map(str, key))


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What a rule found."""

    severity: Severity
    key: str
    """Where to look: dotted, and there or in a section that is there."""
    message: str
    remedy: str
    """The change that mends it."""
    expected: str | None = None
    """What belongs there, where one thing does."""
    actual: str | None = None
    """What is there instead."""


Check: TypeAlias = "Callable[[View], Iterator[Problem]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that a config can get wrong."""

    code: Code
    check: Check
    needs_all: bool = True
    """Whether a setting that is missing may be held against the config, so that all of it must be known."""


def suspect(key: str, message: str, remedy: str, *, expected: str | None = None, actual: str | None = None) -> Problem:
    """Make a problem that stops a launch."""
    return Problem(severity=Severity.SUSPECT, key=key, message=message, remedy=remedy, expected=expected, actual=actual)


def note(key: str, message: str, remedy: str, *, expected: str | None = None, actual: str | None = None) -> Problem:
    """Make a problem that is only worth knowing."""
    return Problem(severity=Severity.NOTE, key=key, message=message, remedy=remedy, expected=expected, actual=actual)
