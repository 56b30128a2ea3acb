"""What looks for devices that compute wrongly: feature values of gradients, and the strikes that follow from them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ckpttool.decide.asd.detector import FeatureValueDetector
from ckpttool.decide.policies.registry import settings_of
from ckpttool.domain.guarding import GuardEvent, GuardEventKind
from ckpttool.domain.metrics import LocalTime
from ckpttool.domain.units import Step
from ckpttool.formats.strict_json import Json, as_object
from ckpttool.guard.features import FeatureProbe

if TYPE_CHECKING:
    from torch import nn

_SELDOM = 10
"""Steps between two looks, where looking at each costs too much."""


class SilentErrors:
    """Takes the feature values of each step and judges them one step late, so that nothing waits for them."""

    def __init__(self, model: nn.Module, detector: FeatureValueDetector) -> None:
        """Take the model as it is trained, and who judges."""
        self._detector = detector
        self._probe = FeatureProbe(model, interval=detector.sample_interval)
        self._every = 1

    @staticmethod
    def of(model: nn.Module, features: FeatureValueDetector | str | None) -> SilentErrors | None:
        """Return what looks at a model; None where nothing does.

        Raises:
            UsageError: Ascend's own parser would stop the training over the settings.
        """
        detector = FeatureValueDetector.of(features) if isinstance(features, str) else features
        return None if detector is None or not detector.is_on else SilentErrors(model, detector)

    @property
    def wants_checksum(self) -> bool:
        """Whether a strike of this rank waits for the others to start the checksum with it."""
        return self._detector.wants_checksum

    @property
    def runs_checksum(self) -> bool:
        """Whether all ranks agreed to check their matrix products."""
        return self._detector.checking

    @property
    def own_are_finite(self) -> bool | None:
        """Whether this rank's gradients were finite before they were averaged; None where nobody saw them so."""
        return self._probe.own_are_finite

    def judge(self, step: Step) -> tuple[GuardEvent, ...]:
        """Judge the values of the step before."""
        return self._detector.take(self._probe.values(), at=_now(), step=step)

    def agree(self, *, wanted: bool, step: Step) -> tuple[GuardEvent, ...]:
        """Start the checksum where any rank wants it. The same on all."""
        return self._detector.agree(wanted=wanted, step=step)

    def take(self, step: Step, *, scale: float) -> None:
        """Take the values of this step, before its gradients are clipped."""
        if step % self._every == 0:
            self._probe.take(step, scale=scale)

    def forget(self) -> None:
        """Drop what was taken last: the loss scaler's scale was too large."""
        self._probe.forget()

    def look_seldom(self) -> bool:
        """Look at every tenth step alone; tell whether that is news."""
        was, self._every = self._every, _SELDOM
        return was != _SELDOM

    def start(self, step: Step) -> tuple[GuardEvent, ...]:
        """Say once what is odd about the settings."""
        return tuple(
            GuardEvent(
                kind=GuardEventKind.ALARM,
                step=step,
                values={"name": finding.code.value, "message": finding.message},
            )
            for finding in self._detector.findings
        )

    def close(self) -> None:
        """Take no more."""
        self._probe.close()

    def saved(self) -> Json:
        """Return everything that is remembered, as JSON."""
        return {"settings": self._settings(), "detector": self._detector.saved()}

    def restore(self, saved: Json) -> bool:
        """Remember what another one did; tell whether it had the same settings, and was used.

        Raises:
            ParseError: It is not what `saved` returns.
        """
        record = as_object(saved)
        if record.get("settings") != self._settings():
            return False
        self._detector.restore(record.get("detector"))
        return True

    def _settings(self) -> Json:
        return [[name, value] for name, value in settings_of(self._detector.watch.policy)]


def _now() -> LocalTime:
    """Return the time on this machine's own clock, as its logs tell it."""
    now = time.time()
    return LocalTime(now + time.localtime(now).tm_gmtoff)
