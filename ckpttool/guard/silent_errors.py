"""What looks for devices that compute wrongly: feature values of gradients, and the strikes that follow from them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Finding, Severity
from ckpttool.core.domain.guarding import GuardEvent, GuardEventKind
from ckpttool.core.domain.metrics import LocalTime
from ckpttool.core.domain.units import Step
from ckpttool.core.formats.strict_json import Json, ParseError, as_object
from ckpttool.guard.agree import Agreement
from ckpttool.guard.contain import Containment, Part
from ckpttool.guard.features import FeatureProbe
from ckpttool.guard.rules.detector import FeatureValueDetector
from ckpttool.guard.scaling import Scaling
from ckpttool.health.policies.registry import settings_of

if TYPE_CHECKING:
    from torch import nn

_SELDOM = 10
"""Steps between two looks, where looking at each costs too much."""


class SilentErrors:
    """Takes the feature values of each step and judges them one step late, so that nothing waits for them.

    Everything in it is contained. Where nobody asked for it, it does nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        features: FeatureValueDetector | str | None,
        scaling: Scaling,
        contain: Containment,
    ) -> None:
        """Begin to look.

        Args:
            model: As it is trained.
            features: What judges, or its settings; None: nothing does.
            scaling: Of the loss, and so of gradients that are looked at in backward.
            contain: What keeps exceptions in, and whom is told what is found.

        Raises:
            UsageError: Ascend's own parser would stop the training over the settings.
        """
        detector = FeatureValueDetector.of(features) if isinstance(features, str) else features
        self._detector = detector if detector is not None and detector.is_on else None
        self._odd = () if detector is None else detector.findings
        self._scaling = scaling
        self._contain = contain
        self._every = 1
        self._probe = None
        if self._detector is not None:
            self._probe = FeatureProbe(model, interval=self._detector.sample_interval)

    @property
    def is_on(self) -> bool:
        """Whether values are looked at."""
        return self._detector is not None and self._contain.is_on(Part.FEATURES)

    @property
    def runs_checksum(self) -> bool:
        """Whether all ranks agreed to check their matrix products."""
        return self._detector is not None and self._detector.checking and self.is_on

    def judge(self, step: Step) -> bool:
        """Judge the values of the step before; tell whether this rank wants a check, which all begin together."""
        return self._contain.run(Part.FEATURES, lambda: self._judge(step)) or False

    def take(self, step: Step, agreed: Agreement) -> None:
        """Do what all ranks want, and take the values of this step, before its gradients are clipped."""
        self._contain.run(Part.FEATURES, lambda: self._take(step, agreed))

    def own_are_finite(self) -> bool | None:
        """Tell whether this rank's gradients were finite before they were averaged; None where nobody saw them so."""
        return self._contain.run(Part.FEATURES, lambda: None if self._probe is None else self._probe.own_are_finite)

    def cost_too_much(self, reason: str) -> str:
        """Look less often, and then not at all; return what was done."""
        if self._every != _SELDOM:
            self._every = _SELDOM
            return "feature values are looked at in every tenth step"
        if self._probe is not None:
            self._probe.close()
        self._contain.switch_off(Part.FEATURES, reason)
        return "feature values are looked at no more"

    def saved(self) -> Json:
        """Return everything that is remembered, as JSON."""
        if self._detector is None:
            return None
        return {"settings": self._settings(self._detector), "detector": self._detector.saved()}

    def restore(self, saved: Json, *, step: Step) -> None:
        """Remember what another one with the same settings did; what is lost is told."""
        if self._detector is None or saved is None:
            return
        try:
            record = as_object(saved)
            if record.get("settings") == self._settings(self._detector):
                rank = None if self._probe is None else self._probe.rank
                self._detector.restore(record.get("detector"), rank=rank)
                return
            message = "feature values were judged with other settings"
        except ParseError as error:
            message = f"what was remembered of feature values cannot be read ({error})"
        self._contain.emit(GuardEventKind.GUARD_RESET, step=step, message=f"{message}: it is not used")

    def _judge(self, step: Step) -> bool:
        outliers, self._odd = self._odd, ()
        self._tell(_wrong_settings(outliers, step))
        if self._detector is None or self._probe is None:
            return False
        self._tell(self._detector.take(self._probe.values(), at=_now(), step=step))
        return self._detector.wants_checksum

    def _take(self, step: Step, agreed: Agreement) -> None:
        if self._detector is None or self._probe is None:
            return
        self._tell(self._detector.agree(wanted=agreed.strike, step=step))
        if step % self._every == 0 or not agreed.is_finite:  # then it is asked whose they are
            self._probe.take(step, scale=1.0 if self._scaling.scaler is None else self._scaling.scaler.get_scale())
        if agreed.is_overflow:
            self._probe.forget()

    def _tell(self, events: Iterable[GuardEvent]) -> None:
        for event in events:
            self._contain.emit(event.kind, step=event.step, **event.values)

    @staticmethod
    def _settings(detector: FeatureValueDetector) -> Json:
        return [[name, value] for name, value in settings_of(detector.watch.policy)]


def _wrong_settings(findings: Iterable[Finding], step: Step) -> Iterable[GuardEvent]:
    for finding in findings:
        if finding.severity is not Severity.NOTE:
            values = {"name": finding.code.value, "message": f"feature values: {finding.message}"}
            yield GuardEvent(kind=GuardEventKind.ALARM, step=step, values={**values})


def _now() -> LocalTime:
    """Return the time on this machine's own clock, as its logs tell it."""
    now = time.time()
    return LocalTime(now + time.localtime(now).tm_gmtoff)
