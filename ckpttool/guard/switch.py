"""The settings of a guard that is switched on without code changes, by `ckpttool guard run` or the environment."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

VARIABLE = "CKPTTOOL_GUARD"
"""Variable of the form `OUTPUT[,NAME=VALUE]…`: the run's output folder, and settings of the guard."""

REPLAY_VARIABLE = "CKPTTOOL_GUARD_REPLAY"
"""Variable of the form `CAPTURE[,stop=before|after][,continue=true]`: the captured step to begin the run with."""

_RESULTS = {
    ExitCode.OK: "reproduced",
    ExitCode.DAMAGE: "not-reproduced",
    ExitCode.INCOMPLETE: "not-replayed",
}

_EXAMPLE = f"{VARIABLE}=output,policy=zscore"


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """The settings of a guard that is switched on without code changes."""

    output: str
    """The output folder of the training run."""
    policy: str = ""
    """Name of the policy: zscore, skip, zclip or olmo. If empty, only non-finite updates are dropped."""
    threshold: float | None = None
    """Threshold of the policy."""
    mode: str = "act"
    """`act` or `watch`."""
    features: str | None = None
    """Settings in the form of `NPU_ASD_CONFIG`. If None, that variable is used. If empty, gradients are not checked."""
    patrol: int = 0
    """Interval in steps of the check of matrix products, or 0 for never."""
    on_abnormal: str = "warn"
    """The reaction to a wrong product: `warn` or `stop`."""
    stop_on_capture: bool = False
    """Whether the first full capture ends the training run."""

    @classmethod
    def parsed(cls, text: str) -> Switch:
        """Parse the value of the variable. A setting that contains commas continues up to the next `NAME=`.

        Raises:
            UsageError: A setting is unknown or has a wrong value.
        """
        output, *parts = text.split(",")
        names = [field.name for field in fields(cls)][1:]
        texts: dict[str, str] = {}
        last = ""
        for part in parts:
            name, equals, value = part.partition("=")
            if equals and name.strip() in names:
                last = name.strip()
                texts[last] = value
            elif last and not equals:
                texts[last] += f",{part}"
            else:
                raise UsageError(f"{VARIABLE}: unknown setting {part!r}; the settings are {', '.join(names)}")
        if not output.strip() or "=" in output:
            raise UsageError(f"{VARIABLE} must begin with the output folder of the training run: {_EXAMPLE}")
        return cls.of(output=output.strip(), **texts)

    @classmethod
    def of(cls, **texts: str) -> Switch:
        """Convert settings from text, as used in the variable and the options.

        Raises:
            UsageError: A value is not a number, or is unknown.
        """
        values: dict[str, Any] = dict(texts)
        for name, convert in (("threshold", float), ("patrol", int)):
            if name in texts:
                try:
                    values[name] = convert(texts[name])
                except ValueError:
                    raise UsageError(f"{name} of the guard must be a number, not {texts[name]!r}") from None
        if "stop_on_capture" in texts:
            values["stop_on_capture"] = _flag("stop_on_capture", texts["stop_on_capture"])
        switch = cls(**values)
        switch.assert_valid()
        return switch

    def assert_valid(self) -> None:
        """Check the settings without importing torch.

        Raises:
            UsageError: A setting is not valid.
        """
        for name, choices in (("mode", ("act", "watch")), ("on_abnormal", ("warn", "stop"))):
            if getattr(self, name) not in choices:
                raise UsageError(f"{name} of the guard must be {' or '.join(choices)}, not {getattr(self, name)!r}")
        if self.policy:
            self._policy()
        elif self.threshold is not None:
            raise UsageError("a threshold of the guard needs a policy: policy=skip,threshold=3.0")

    def _policy(self) -> Any:  # noqa: ANN401  a policy of the health feature
        from ckpttool.health.policies.base import PolicySettings
        from ckpttool.health.policies.registry import policy_of

        return policy_of(self.policy, PolicySettings(threshold=self.threshold))

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `Guard` other than model, optimizer, scaler and step."""
        return {
            "output": self.output,
            "policy": self._policy() if self.policy else None,
            "mode": self.mode,
            "features": self.features,
            "patrol": self.patrol,
            "on_abnormal": self.on_abnormal,
            "stop_on_capture": self.stop_on_capture,
        }

    def __str__(self) -> str:
        values = ((field, getattr(self, field.name)) for field in fields(self)[1:])
        parts = [
            f"{field.name}={'true' if value is True else value}" for field, value in values if value != field.default
        ]
        return ",".join((self.output, *parts))


def _flag(name: str, text: str) -> bool:
    if text not in {"true", "false"}:
        raise UsageError(f"{name} of the guard must be true or false, not {text!r}")
    return text == "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySwitch:
    """The request to begin a training run with a captured step."""

    capture: str
    """Path of a capture, or of a folder that contains one."""
    stop: str = ""
    """`before` or `after`, to open a debugger before the first forward pass or after the last backward pass."""
    goes_on: bool = False
    """Whether training continues after the step."""

    @classmethod
    def parsed(cls, text: str) -> ReplaySwitch:
        """Parse the value of the variable. The settings follow the path, which may contain commas.

        Raises:
            UsageError: A value is not known.
        """
        stop, goes_on = "", False
        while True:
            capture, _, setting = text.rpartition(",")
            name, _, value = setting.partition("=")
            if not capture or name not in {"stop", "continue"}:
                break
            text = capture
            if name == "continue":
                goes_on = _flag("continue", value)
            elif value in {"before", "after"}:
                stop = value
            else:
                raise UsageError(f"{REPLAY_VARIABLE}: stop must be before or after, not {value!r}")
        return cls(capture=text, stop=stop, goes_on=goes_on)

    def __str__(self) -> str:
        stop = f",stop={self.stop}" if self.stop else ""
        return f"{self.capture}{stop}{',continue=true' if self.goes_on else ''}"


def switch_of(environ: Mapping[str, str]) -> Switch | None:
    """Return the settings of an environment, or None if it does not switch the guard on.

    A replay alone also switches the guard on. It writes nothing, so the output folder does not matter.

    Raises:
        UsageError: A setting is not valid.
    """
    if text := environ.get(VARIABLE, ""):
        return Switch.parsed(text)
    return Switch(output="output") if environ.get(REPLAY_VARIABLE) else None


def report(text: str) -> None:
    """Print one line about how the guard was switched on, for readers of the training output."""
    sys.stderr.write(f"ckpttool guard: {text}\n")
    sys.stderr.flush()


def report_result(code: ExitCode) -> None:
    """Print the result of a replay for scripts, because launchers such as torchrun do not pass on the exit code."""
    report(f"replay result: {_RESULTS[code]}")


def variables(switch: Switch, replay: ReplaySwitch | None = None) -> dict[str, str]:
    """Return the variables of a training run that is guarded, and optionally begins with a captured step."""
    guarded = {VARIABLE: str(switch)}
    return guarded if replay is None else {**guarded, REPLAY_VARIABLE: str(replay)}


def environment(
    switch: Switch, before: Iterable[tuple[str, str]], replay: ReplaySwitch | None = None
) -> dict[str, str]:
    """Return the environment of a guarded training run.

    Args:
        switch: The settings.
        before: The environment without them.
        replay: The captured step to begin the training run with.
    """
    # Without torch's autoload nothing would call us.
    return {**dict(before), **variables(switch, replay), "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
