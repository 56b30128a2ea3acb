"""The configuration string of feature-value detection, as the actual parsers read it, and the traps in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ckpttool.core.domain.asd import AsdDialect
from ckpttool.core.domain.finding import Code, Finding, note, suspect
from ckpttool.core.errors import UsageError
from ckpttool.health.model.asd import AsdCheck, AsdConfig
from ckpttool.trainers.findings import TrainersCode

_FLAGS = ("enable", "with_checksum")
_COUNTS = {
    "cooldown": 1,
    "strikes_num": 1,
    "strikes_window": 1,
    "checksum_cooldown": 1,
    "upper_thresh1": 3,
    "upper_thresh2": 3,
    "grad_sample_interval": 1,
}
"""Setting -> the smallest value that the parsers intend to allow."""

_KEYS = (*_FLAGS, *_COUNTS)
_PAIR = 2  # a key and a value
_SHORT_WINDOW_STRIKES = 2
_SHOWN_ITEMS = 100
"""Maximum number of settings to show; only nine exist, so this limits unknown settings."""
_MOST_DIGITS = 4300
"""Maximum length of a text that Python, the language of both parsers, converts to a number."""


def defaults(dialect: AsdDialect) -> AsdConfig:
    """Return the settings that are in effect by default."""
    return AsdConfig(grad_sample_interval=dialect.sample_interval)


def dialect_of(dialect_name: str | None, dialects: Sequence[AsdDialect]) -> AsdDialect:
    """Return the dialect with this name; without a name, the first dialect.

    Raises:
        UsageError: No dialect has this name.
    """
    if dialect_name is None:
        return dialects[0]
    match = next((dialect for dialect in dialects if dialect.name == dialect_name.lower().replace("_", "-")), None)
    if match is None:
        raise UsageError(
            f"--dialect: unknown dialect {dialect_name!r}; known dialects: "
            f"{', '.join(dialect.name for dialect in dialects)}"
        )
    return match


def config_in_force(text: str | None, dialect: AsdDialect) -> AsdConfig:
    """Return the settings that a configuration string puts into effect, with detection enabled.

    Raises:
        UsageError: The real parser would stop the training because of this string.
    """
    if text is None:
        return replace(defaults(dialect), enable=True)
    check = check_asd_config(text, dialect)
    if check.error is not None:
        raise UsageError(f"--asd-config: {check.error}; ckpttool asd check shows all problems")
    return replace(check.config, enable=True)


def check_asd_config(text: str, dialect: AsdDialect) -> AsdCheck:
    """Return the actual parser's result for the string, the traps in it, and contradictions.

    Source:
        torch_npu 7.1: items with a wrong number of colons are dropped and unknown keys ignored silently, nothing is
        stripped, a wrong flag raises, a wrong number becomes the default. MindSpore 2.7.1 also accepts `=`, strips
        spaces, and warns and continues in every case.
    """
    reading = _Reading(dialect=dialect)
    config = reading.read(text)
    findings = [*reading.findings, *_misfits(config)]
    return AsdCheck(dialect=dialect, config=config, error=reading.error, findings=tuple(findings))


def emit_asd_config(config: AsdConfig, dialect: AsdDialect) -> str:
    """Return a string that both parsers read as exactly this configuration, without the defaults.

    Raises:
        ValueError: A number is below the parser's minimum.
    """
    base = defaults(dialect)
    items = [f"enable:{str(config.enable).lower()}"]
    for name in _KEYS:
        value = getattr(config, name)
        if value < _COUNTS.get(name, 0):
            raise ValueError(f"{name} must be at least {_COUNTS[name]}, not {value}")
        if name != "enable" and value != getattr(base, name):
            items.append(f"{name}:{str(value).lower()}")
    return ",".join(items)


@dataclass(slots=True, kw_only=True)
class _Reading:
    """One pass over the string."""

    dialect: AsdDialect
    findings: list[Finding] = field(default_factory=list)
    error: str | None = None
    values: dict[str, Any] = field(default_factory=dict)
    """Flags and counts, by the fields of `AsdConfig`."""
    ignored: int = 0
    """Number of items without effect, shown or not."""

    def read(self, text: str) -> AsdConfig:
        if self.dialect.is_strict and text:
            message = "NPU_ASD_ENABLE is ignored if NPU_ASD_CONFIG is set, even to enable:false"
            self.findings.append(note(TrainersCode.CONFIG_KEY_IGNORED, message))
        for key, value in sorted(self._items(text).items(), key=lambda item: _KEYS.index(item[0])):
            if key in _FLAGS:
                self._flag(key, value)
            else:
                self._count(key, value)
        base = defaults(self.dialect)
        return base if self.error else replace(base, **self.values)

    def _items(self, text: str) -> dict[str, str]:
        items: dict[str, str] = {}
        for raw in text.split(",") if text else ():
            parts = (raw if self.dialect.is_strict else raw.replace("=", ":")).split(":")
            if len(parts) != _PAIR:
                self._ignored(f"{raw!r} is not key:value and is ignored", raw)
                continue
            key, value = parts if self.dialect.is_strict else (part.strip() for part in parts)
            if key not in _KEYS:
                near = f"; write it as {key.strip()}, without spaces" if key.strip() in _KEYS else ""
                self._ignored(f"{key!r} is not a setting and is ignored{near}", raw)
                continue
            if key in items:
                self._ignored(f"{key} is set twice; the later value {value!r} is used", raw)
            items[key] = value
        if self.ignored > _SHOWN_ITEMS:
            more = f"{self.ignored - _SHOWN_ITEMS} more items are ignored or set twice"
            self.findings.append(suspect(TrainersCode.CONFIG_KEY_IGNORED, more))
        return items

    def _flag(self, key: str, value: str) -> None:
        if value in {"true", "false"}:
            self.values[key] = value == "true"
            return
        if self.dialect.is_strict and (key == "enable" or self.values.get("enable")):
            problem = f"{key} must be exactly true or false, not {value!r}: the training does not start"
            self.error = self.error or problem
        self._wrong(key, value, "exactly true or false")

    def _count(self, key: str, value: str) -> None:
        least = _COUNTS[key]
        if not value.isdecimal():
            if self.dialect.is_strict and value.isdigit():  # superscripts are digits, but not numbers
                self.error = self.error or f"{key}: {value!r} passes the parser's test and then raises an error"
            self._wrong(key, value, f"digits only, at least {least}")
        elif len(value) > _MOST_DIGITS:
            if self.dialect.is_strict:
                self.error = (
                    self.error or f"{key}: a number of {len(value)} digits raises an error: the training does not start"
                )
            self._wrong(key, f"{value[:20]}…", f"at most {_MOST_DIGITS} digits")
        elif value == "0" or (least > 1 and int(value) < least):
            self._wrong(key, value, f"at least {least}")
        else:
            if int(value) == 0:
                self._wrong(key, value, "at least 1; the parser refuses 0 only if it is written as 0")
            self.values[key] = int(value)

    def _wrong(self, key: str, value: str, expected: str) -> None:
        self.findings.append(
            suspect(
                TrainersCode.CONFIG_WRONG_TYPE,
                f"{key}: expected {expected}, found {value!r}",
                expected=expected,
                actual=value,
                remedy=f"ckpttool asd emit writes a correct {key}",
            )
        )

    def _ignored(self, message: str, raw: str) -> None:
        self.ignored += 1
        if self.ignored > _SHOWN_ITEMS:
            return
        self.findings.append(suspect(TrainersCode.CONFIG_KEY_IGNORED, message, actual=raw))


_MISFITS: tuple[tuple[Callable[[AsdConfig], bool], str], ...] = (
    (
        lambda c: (c.strikes_num - 1) * c.cooldown > c.strikes_window,
        (
            "a strike-out is impossible: {strikes_num} events {cooldown} minutes apart do not fit into "
            "{strikes_window} minutes"
        ),
    ),
    (
        lambda c: c.cooldown >= c.strikes_window,
        (
            "events are lost: an event stays suppressed for {cooldown} minutes, but is remembered for only "
            "{strikes_window}"
        ),
    ),
    (
        lambda c: c.strikes_num == _SHORT_WINDOW_STRIKES,
        (
            "with 2 strikes torch_npu reuses an event that already counted for a strike: every event after the "
            "first is a strike"
        ),
    ),
    (lambda c: c.with_checksum and not c.enable, "with_checksum does nothing without enable:true"),
    (
        lambda c: c.checksum_cooldown < c.cooldown,
        "a checksum runs for {cooldown} minutes, longer than its own cooldown of {checksum_cooldown}",
    ),
    (
        lambda c: c.upper_thresh1 <= c.upper_thresh2,
        "upper_thresh1 ({upper_thresh1}) must be above upper_thresh2 ({upper_thresh2}); the parser does not check it",
    ),
)


def _misfits(config: AsdConfig) -> Iterator[Finding]:
    for applies, message in _MISFITS:
        if applies(config):
            values = {field.name: getattr(config, field.name) for field in fields(config)}
            yield suspect(Code.CONFIG_DISAGREES, message.format_map(values))
