"""Detection of faulty devices by feature values of gradients, and the strikes that follow.

A feature value is the square of the largest gradient of every third parameter, before clipping. Once the ranks have
averaged their gradients, all ranks have the same values, so the faulty rank can only be identified before that. Under
`DistributedDataParallel`, a communication hook therefore takes the values, and then averages as torch does without a
hook.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ckpttool.core.domain.asd import TORCH_NPU
from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.guarding import GuardEvent, GuardEventKind
from ckpttool.core.domain.metrics import LocalTime
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.errors import UsageError
from ckpttool.core.formats.strict_json import Json, ParseError, as_object
from ckpttool.guard.agree import Agreement
from ckpttool.guard.contain import Containment, Part
from ckpttool.guard.gradients import Scaling
from ckpttool.guard.nested import own_part
from ckpttool.guard.rules.detector import FeatureValueDetector
from ckpttool.health.model.asd import FeatureValue
from ckpttool.health.policies.registry import settings_of

_SELDOM = 10
"""Interval in steps between two samples, if sampling every step takes too long."""

_LOOKED_AT = (torch.float32, torch.bfloat16)
"""Data types to check, as in Ascend's detector. float16 is scaled, and the scaler handles its overflows."""


class SilentErrors:
    """Check of the feature values of each step. Values are judged one step late, so that nothing waits for them.

    Errors inside it never reach the training code. Without `features` it does nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        features: FeatureValueDetector | str | None,
        scaling: Scaling,
        contain: Containment,
    ) -> None:
        """Choose the parameters to check. `features` has the same meaning as in `Guard`.

        Raises:
            UsageError: With these settings, Ascend's own parser would stop the training run.
        """
        detector = _detector(features)
        self._detector = detector if detector is not None and detector.is_on else None
        self._wrong_settings = () if detector is None else detector.findings  # until they are reported
        self._scaling = scaling
        self._contain = contain
        self._every = 1
        self._probe = None
        if self._detector is not None:
            self._probe = FeatureProbe(model, interval=self._detector.sample_interval)

    @property
    def is_on(self) -> bool:
        """Whether feature values are checked."""
        return self._detector is not None and self._contain.is_on(Part.FEATURES)

    @property
    def runs_checksum(self) -> bool:
        """Whether all ranks agreed to check their matrix products."""
        return self._detector is not None and self._detector.checking and self.is_on

    def judge(self, step: Step) -> bool:
        """Judge the previous step's values, and return whether this rank needs a check.

        All ranks start a check together.
        """

        def judge() -> bool:
            findings, self._wrong_settings = self._wrong_settings, ()
            for finding in findings:
                if finding.severity is not Severity.NOTE:
                    message = f"feature values: {finding.message}"
                    self._contain.emit(GuardEventKind.ALARM, step=step, name=finding.code.value, message=message)
            if self._detector is None or self._probe is None:
                return False
            now = time.time()
            at = LocalTime(now + time.localtime(now).tm_gmtoff)  # this machine's own clock, as in its logs
            self._emit_all(self._detector.take(self._probe.values(), at=at, step=step))
            return self._detector.wants_checksum

        if self._detector is None and not self._wrong_settings:
            return False
        return self._contain.run(Part.FEATURES, judge) or False

    def take(self, step: Step, agreed: Agreement) -> None:
        """Carry out the common decision, and read the values of this step before its gradients are clipped."""

        def take() -> None:
            if self._detector is None or self._probe is None:
                return
            self._emit_all(self._detector.agree(wanted=agreed.strike, step=step))
            if step % self._every == 0 or not agreed.is_finite:  # then the ranks concerned are determined
                scale = self._scaling.scale()
                self._probe.take(step, scale=1.0 if scale is None else scale)
            if agreed.is_overflow:
                self._probe.forget()

        if self._detector is not None:
            self._contain.run(Part.FEATURES, take)

    def _emit_all(self, events: Iterable[GuardEvent]) -> None:
        for event in events:
            self._contain.emit(event.kind, step=event.step, **event.values)

    def own_are_finite(self) -> bool | None:
        """Return whether this rank's gradients were finite before they were averaged, or None if unknown."""
        return self._contain.run(Part.FEATURES, lambda: None if self._probe is None else self._probe.own_are_finite)

    def cost_too_much(self, reason: str) -> str:
        """Check less often, or stop checking at the second call. Return a description of the change."""
        if self._every != _SELDOM:
            self._every = _SELDOM
            return "feature values are checked only in every tenth step"
        if self._probe is not None:
            self._probe.close()
        self._contain.switch_off(Part.FEATURES, reason)
        return "feature values are no longer checked"

    def saved(self) -> Json:
        """Return the complete state as JSON."""
        if self._detector is None:
            return None
        return {"settings": _settings(self._detector), "detector": self._detector.saved()}

    def restore(self, saved: Json, *, step: Step) -> None:
        """Restore the state of an instance with the same settings. An unusable state is reported as an event."""
        if self._detector is None or saved is None:
            return
        try:
            record = as_object(saved)
            if record.get("settings") == _settings(self._detector):
                rank = None if self._probe is None else self._probe.rank
                self._detector.restore(record.get("detector"), rank=rank)
                return
            message = "feature values were judged with other settings"
        except ParseError as error:
            message = f"the saved state of feature values cannot be read ({error})"
        self._contain.emit(GuardEventKind.GUARD_RESET, step=step, message=f"{message}: it is not used")


def _detector(features: FeatureValueDetector | str | None) -> FeatureValueDetector | None:
    """Return the detector. Without settings, use the environment variable that Ascend's detector also reads."""
    if isinstance(features, str):
        return FeatureValueDetector.of(features)
    variable = TORCH_NPU.variable or ""
    if features is not None or variable not in os.environ:
        return features
    try:
        return FeatureValueDetector.of(os.environ[variable])
    except UsageError as error:
        raise UsageError(f"{variable} in the environment: {error}") from None


def _settings(detector: FeatureValueDetector) -> Json:
    return [[name, value] for name, value in settings_of(detector.watch.policy)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """The values of one step, still on the device."""

    step: Step
    names: tuple[str, ...]
    largest: Tensor
    """Largest absolute gradient of each parameter."""


class FeatureProbe:
    """Reader of the feature values of a step, which stay on the device until they are requested."""

    def __init__(self, model: nn.Module, *, interval: int = 3) -> None:
        """Choose the parameters, and register a communication hook if that is possible.

        Args:
            model: The trained model, with its wrapper.
            interval: Interval of the checked parameters among those with two or more dimensions.
        """
        bare = model.module if isinstance(model, DistributedDataParallel) else model
        suitable = [
            (name, parameter)
            for name, parameter in bare.named_parameters()
            if parameter.requires_grad and parameter.dim() > 1 and parameter.dtype in _LOOKED_AT
        ]
        self._chosen: dict[str, nn.Parameter] = dict(suitable[::interval])
        self._names = {id(parameter): name for name, parameter in self._chosen.items()}
        self._seen: dict[str, Tensor] = {}
        self._extremes: list[Tensor] = []
        self._own_extremes: list[Tensor] = []
        self._failure: Exception | None = None
        self._taken: list[_Taken] = []
        self._is_open = True
        self.is_before_reduction = isinstance(model, DistributedDataParallel) and self._hook_into(model)
        """Whether the values come from this rank alone."""
        alone = not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)
        knows_rank = self.is_before_reduction or alone
        rank = 0 if alone else dist.get_rank()
        self.rank = Rank(rank) if knows_rank else None
        """The rank of the values, or None if gradients are averaged before they can be read."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the checked parameters, in the model's order."""
        return tuple(self._chosen)

    @property
    def own_are_finite(self) -> bool | None:
        """Whether all gradients of this rank were finite before they were averaged, or None if unknown.

        Waits for the device, so read it only if there is a problem.
        """
        if not self._own_extremes:
            return None
        return all(bool(torch.isfinite(extreme)) for extreme in self._own_extremes)

    def take(self, step: Step, *, scale: float = 1.0) -> None:
        """Read the values of this step, after its gradients are complete and before they are clipped.

        Args:
            step: The step of the values.
            scale: Loss scale, if there is a scaler. Only gradients that were read during backward are still scaled.

        Raises:
            Exception: An error that occurred while reading during backward. It must not be raised there.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self.is_before_reduction:
            largest, self._seen = self._seen, {}
            self._own_extremes, self._extremes = self._extremes, []
        else:
            grads = {name: parameter.grad for name, parameter in self._chosen.items() if parameter.grad is not None}
            largest = dict(zip(grads, _largest(list(grads.values())), strict=True))
            scale = 1.0
        if largest:
            values = list(largest.values())
            stacked = torch.stack([value.to(values[0].device, torch.float32) for value in values])
            self._taken.append(_Taken(step=step, names=tuple(largest), largest=stacked / scale))

    def forget(self) -> None:
        """Discard the latest values because the gradients of this step overflowed. The loss scaler handles that."""
        del self._taken[-1:]

    def values(self) -> tuple[FeatureValue, ...]:
        """Return values that were not returned before. Call it one step later, so that nothing waits for them."""
        taken, self._taken = self._taken, []
        return tuple(
            FeatureValue(value=root * root, name=name, step=step.step, rank=self.rank)
            for step in taken
            for name, root in zip(step.names, step.largest.tolist(), strict=True)
        )

    def close(self) -> None:
        """Stop reading values. torch cannot remove the hook, but the hook does nothing from now on."""
        self._is_open = False

    def _hook_into(self, model: DistributedDataParallel) -> bool:
        group: dist.ProcessGroup = model.process_group
        if model._comm_hooks or model.mixed_precision is not None or model._use_python_reducer:  # noqa: SLF001  torch has no public name for it
            return False
        if model.gradient_as_bucket_view and group.size().bit_count() != 1:
            return False  # torch averages gradients that are accumulated in its buckets differently
        try:
            model.register_comm_hook(None, self._hook(group))
        except RuntimeError:  # torch registered its own hook, which is undocumented
            model._comm_hooks.clear()  # noqa: SLF001  torch records our hook before it refuses it
            return False
        return True

    def _hook(self, group: dist.ProcessGroup) -> Callable[[object, Any], torch.futures.Future[Tensor]]:
        # torch insists on the name `bucket`, and compares annotations with types: ours are text.
        def take_and_average(_state, bucket):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
            if self._is_open:
                try:
                    self._read_bucket(bucket)
                except Exception as error:  # noqa: BLE001  no error in backward may end the training
                    self._failure = error
            return _average(group, bucket.buffer())

        return take_and_average

    def _read_bucket(self, bucket: Any) -> None:  # noqa: ANN401  a torch without distributed has no name for it
        """Read the values of the last micro-batch, because its gradients include those of the earlier ones."""
        pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
        chosen = {self._names[id(parameter)]: gradient for parameter, gradient in pairs if id(parameter) in self._names}
        self._seen.update(zip(chosen, _largest(list(chosen.values())), strict=True))
        if bucket.index() == 0:
            self._extremes = []
        self._extremes += _largest([bucket.buffer()])


def _largest(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return the largest absolute value of each gradient, or NaN for a gradient that contains NaN."""
    local = [_local(gradient.detach()) for gradient in gradients]
    if local and all(gradient.is_cuda for gradient in local):
        return list(torch._foreach_norm(local, torch.inf))  # noqa: SLF001  as torch's own clipping does
    # On the CPU an infinity norm takes thirty times as long.
    extremes = [torch.aminmax(gradient) for gradient in local]
    return [torch.maximum(-lowest, highest) for lowest, highest in extremes]


def _local(gradient: Tensor) -> Tensor:
    """Return the local data of a gradient: this rank's part if it is sharded, the values if it is sparse."""
    local = own_part(gradient)
    local = local.coalesce().values() if local.is_sparse else local
    return local if local.numel() else local.new_zeros(1)


def _average(group: dist.ProcessGroup, buffer: Tensor) -> torch.futures.Future[Tensor]:
    """Average over ranks, bit for bit as torch does without a hook.

    torch's own `allreduce_hook` divides by the number of ranks. Without a hook, torch multiplies by the reciprocal,
    which gives different bits for three ranks.
    """
    buffer.mul_(1.0 / group.size())
    work = dist.all_reduce(buffer, group=group, async_op=True)
    averaged: torch.futures.Future[Tensor] = work.get_future().then(lambda future: future.value()[0])
    return averaged
