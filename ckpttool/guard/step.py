"""The guard of one optimizer: each update is looked at before it is applied, and dropped where it would do harm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_
from torch.optim import LBFGS, Optimizer

from ckpttool.decide.guarding import STOPS_AT, SpikeGuard
from ckpttool.decide.policies.base import Policy
from ckpttool.domain.guarding import Action, Decision, Emit, EventValue, GuardEventKind, GuardMode, Proposal
from ckpttool.domain.metrics import StepMetrics
from ckpttool.domain.units import Step
from ckpttool.errors import CkptToolError, UsageError
from ckpttool.formats.strict_json import Json, JsonObject, as_object, get_optional_int
from ckpttool.guard.agree import Agreement, Ranks, Vote
from ckpttool.guard.buffers import Buffers
from ckpttool.guard.contain import Containment, Part
from ckpttool.guard.norm import Losses, Reading, full, is_sharded, total_norm


class GuardStop(CkptToolError):  # noqa: N818  it is what a training ends by, not an error of it
    """So many updates in a row were dropped that the weights are bad. The last one was dropped, too."""


class Guard:
    """Drops updates that would do harm, without a trace in weights, optimizer or buffers.

    In a plain loop:

        for batches in micro_batches(loader):
            for batch in batches:
                with guard.micro(batch) as micro:
                    loss = loss_fn(model, batch) / len(batches)
                    micro.loss(loss)
                    loss.backward()
            guard.clip_(max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()

    Nothing but `GuardStop` ever leaves it: what fails inside is told as an event, and the update is applied.
    """

    def __init__(  # noqa: PLR0913  each has a default, and is named where it is given
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        policy: Policy | None = None,
        mode: GuardMode | str = GuardMode.ACT,
        count_threshold: int = STOPS_AT,
        scaler: torch.amp.GradScaler | None = None,
        group: dist.ProcessGroup | None = None,
        sinks: Sequence[Emit] = (),
        step: int = 0,
    ) -> None:
        """Stand between an optimizer and its gradients.

        Args:
            model: As it is trained, wrapped or not.
            optimizer: One guard each; several may share a model.
            policy: Which updates to drop or to clip; None: only those that are not finite.
            mode: `act`, or `watch`: nothing is dropped, and events say what would have been.
            count_threshold: How many dropped in a row end the training.
            scaler: The loss scaler, where there is one: its overflows are its own business.
            group: The ranks that train this model together; None: all.
            sinks: Who else is told of events.
            step: Steps that the training did before.

        Raises:
            UsageError: The optimizer cannot be kept from an update, or a setting cannot be meant.
        """
        try:
            self.mode = GuardMode(mode)
        except ValueError:
            raise UsageError(f"a guard can act or watch, not {mode!r}") from None
        self.model = model
        self.optimizer = _innermost(optimizer)
        if self.mode is GuardMode.ACT:
            _refuse_undroppable(model, self.optimizer)
        self.step = Step(step)
        """Steps that the training did, applied or not: the number of the last one."""
        self.applied = True
        """Whether the last update was: where a learning rate must not move with a dropped one, ask this."""
        self.sinks: list[Emit] = list(sinks)
        """Whom events are told to. One that raises three times is left out."""
        self.on_stop: Callable[[GuardStop], None] | None = None
        """Called in place of raising `GuardStop`, by trainers that end in another way."""
        self._scaler = scaler
        self._spikes = SpikeGuard(policy, count_threshold, self.mode)
        self._contain = Containment(self.tell)
        self._failed_sinks: list[Emit] = []
        self._parameters = _Parameters(model, self.optimizer)
        self._ranks = Ranks(group, self._parameters.device)
        self._buffers = Buffers(model)
        self._losses = Losses()
        self._is_open = False  # a step has begun
        self._is_decided = False
        self._drops = False
        self._norms_agreed = False  # once at least: it is one norm that all ranks have
        self.optimizer.register_step_pre_hook(self._before_update)
        self.optimizer.register_step_post_hook(self._after_update)

    def micro(self, batch: object = None) -> MicroBatch:
        """Return what stands around forward and backward of a micro-batch."""
        return MicroBatch(self, batch)

    def clip_(self, max_norm: float) -> Tensor:
        """Take the norm of all gradients, decide on the update, and clip where it is applied.

        Call it after the last backward of a step, and after `scaler.unscale_`.

        Returns:
            The norm before clipping, as `torch.nn.utils.clip_grad_norm_` does.

        Raises:
            GuardStop: So many updates in a row were dropped.
        """
        parameters = self._parameters.current()
        norm = None if self._contain.is_off else self._norm(parameters)
        limit = self._decide(norm)
        if norm is None:
            return clip_grad_norm_(parameters, max_norm)
        if not self._drops:
            clip_grads_with_norm_(parameters, max_norm if limit is None else min(max_norm, limit), norm)
        return norm

    def decide(self, norm: Tensor | float) -> bool:
        """Decide on the update by a norm that the trainer took itself, over all of its ranks and before clipping.

        Returns:
            Whether it is applied.

        Raises:
            GuardStop: So many updates in a row were dropped.
        """
        if isinstance(norm, Tensor):
            norm = full(norm)
        limit = self._decide(norm)
        if limit is not None and not self._drops:
            parameters = self._parameters.current()
            whole = norm if isinstance(norm, Tensor) else torch.tensor(norm, device=self._parameters.device)
            clip_grads_with_norm_(parameters, limit, whole)
        return self.applied

    def saved(self) -> JsonObject:
        """Return everything that is remembered: plain JSON, for a checkpoint."""
        return {**self._spikes.saved(), "step": self.step, "norms_agreed": self._norms_agreed}

    def restore(self, saved: Json) -> None:
        """Remember what the guard did that wrote a checkpoint; None: there is nothing. What is lost is told."""
        record = as_object(saved) if isinstance(saved, Mapping) else {}
        self.step = Step(get_optional_int(record, "step") or self.step)
        self._norms_agreed = record.get("norms_agreed") is True
        for event in self._spikes.restore(saved, step=self.step):
            self.tell(event.kind, step=event.step, **event.values)

    def tell(self, kind: GuardEventKind, /, *, step: Step, **values: EventValue) -> None:
        """Tell an event to all sinks."""
        for sink in tuple(self.sinks):
            try:
                sink(kind, step=step, **values)
            except Exception as error:  # noqa: BLE001  whatever it is, the training must not end by it
                self._sink_failed(sink, error)

    def _sink_failed(self, sink: Emit, error: Exception) -> None:
        self._failed_sinks.append(sink)
        if self._failed_sinks.count(sink) >= _MOST_FAILURES_OF_A_SINK and sink in self.sinks:
            self.sinks.remove(sink)
            self.tell(GuardEventKind.GUARD_ERROR, step=self.step, part="sink", error=f"left out: {error!r}"[:300])

    # What a micro-batch tells.

    def begin(self, batch: object) -> None:  # noqa: ARG002  what remembers batches is to come
        """Begin a micro-batch, and with the first one the step. Called by `MicroBatch`."""
        if not self._is_open:
            self._is_open, self._is_decided, self._drops = True, False, False
            self._contain.step = Step(self.step + 1)
            self._contain.run(Part.BUFFERS, self._buffers.take)

    def take_loss(self, loss: Tensor) -> None:
        """Take the local loss of a micro-batch. Called by `MicroBatch`."""
        self._contain.run(Part.NORM, lambda: self._losses.add(loss))

    # The decision. Everything but the agreement is contained.

    def _norm(self, parameters: Sequence[Tensor]) -> Tensor | None:
        if self._parameters.are_sharded:
            return total_norm(parameters)  # takes all ranks, so whatever it raises, it raises as torch's own does
        return self._contain.run(Part.NORM, lambda: total_norm(parameters))

    def _decide(self, norm: Tensor | float | None) -> float | None:
        """Decide, and return to which norm the policy clips; None: it does not."""
        if self._contain.is_off:
            self._close(drops=False, applied=True)
            return None
        step = self._contain.step = Step(self.step + 1)
        reading = None if norm is None else self._contain.run(Part.NORM, lambda: self._losses.read(norm))
        proposal = None if reading is None else self._proposed(reading, step)
        agreed = self._ranks.agree(Vote(proposal=proposal, failed=self._contain.next_failed()))
        self._contain.agreed(agreed.failed)
        decision = self._settled(agreed)
        self.step = step
        drops = decision.action is not Action.APPLY
        overflow = agreed.proposal is not None and agreed.proposal.is_overflow
        culprits = self._culprits(agreed, reading)
        if drops:
            self._contain.run(Part.BUFFERS, self._buffers.restore)
        self._close(drops=drops, applied=not drops and not overflow)
        self._tell_step(reading, agreed, decision, overflow=overflow, culprits=culprits)
        if decision.action is Action.STOP:
            self._stop()
        return decision.limit

    def _proposed(self, reading: Reading, step: Step) -> Proposal:
        row = StepMetrics(step=step, loss=reading.loss, global_norm=reading.norm)
        proposal = self._contain.run(
            Part.POLICY,
            lambda: self._spikes.propose(row, losses_finite=reading.losses_finite, scale=self._scale(reading)),
        )
        if proposal is not None:
            return proposal
        # What is certain without any rule stays certain where the rule fails.
        is_finite = math.isfinite(reading.norm) and reading.losses_finite
        return Proposal(action=Action.APPLY if is_finite else Action.SKIP, norm=reading.norm, is_finite=is_finite)

    def _scale(self, reading: Reading) -> float | None:
        """Return the scaler's scale where it matters: to ask for it, the host waits for the device."""
        if self._scaler is None or not self._scaler.is_enabled() or math.isfinite(reading.norm):
            return None
        return self._scaler.get_scale()

    def _settled(self, agreed: Agreement) -> Decision:
        proposal = agreed.proposal
        if proposal is None or self._contain.is_off:
            return Decision(action=Action.APPLY)
        decision = self._contain.run(Part.POLICY, lambda: self._spikes.settle(proposal))
        if decision is not None:
            return decision
        # The other ranks settled the same numbers, and drop where any rank wanted to.
        wanted = self.mode is GuardMode.ACT and (proposal.action is not Action.APPLY or not proposal.is_finite)
        return Decision(action=Action.SKIP if wanted else Action.APPLY)

    def _culprits(self, agreed: Agreement, reading: Reading | None) -> list[int]:
        """Return the ranks whose own loss is not finite. Asked by all of them or none: it takes all."""
        proposal = agreed.proposal
        if proposal is None or proposal.is_finite or self._contain.is_off:
            return []
        losses = self._ranks.gather(int(reading is not None and not reading.losses_finite))
        return [rank for rank, is_bad in enumerate(losses) if is_bad]

    def _tell_step(
        self,
        reading: Reading | None,
        agreed: Agreement,
        decision: Decision,
        *,
        overflow: bool,
        culprits: list[int],
    ) -> None:
        told: dict[str, EventValue] = {"optimizer_step": self._spikes.applied, "skipped": self._drops}
        if reading is not None:
            told |= {"loss": reading.loss, "global_norm": reading.norm}
        if self._scaler is not None:
            told["overflow"] = overflow
        self.tell(GuardEventKind.STEP, step=self.step, **told)
        for event in decision.events:
            values = dict(event.values)
            if event.kind is GuardEventKind.NONFINITE and culprits:
                values["ranks"] = [*culprits]
            self.tell(event.kind, step=event.step, **values)
        if agreed.norms_differ and self._norms_agreed:
            self._norms_agreed = False  # told once, until they agree again
            self.tell(GuardEventKind.REPLICAS_DISAGREE, step=self.step, message="the norm differs from rank to rank")
        elif not agreed.norms_differ:
            self._norms_agreed = True

    def _close(self, *, drops: bool, applied: bool) -> None:
        self._is_open, self._is_decided = False, True
        self._drops, self.applied = drops, applied
        self._losses = Losses()
        self._buffers.forget()

    def _stop(self) -> None:
        stop = GuardStop(
            f"step {self.step}: {self._spikes.in_a_row} updates in a row were dropped, so the weights are bad; "
            "`ckpttool resolve --around-spike last` says from where to go on"
        )
        if self.on_stop is None:
            raise stop
        self.on_stop(stop)

    # The moment before the update.

    def _before_update(
        self, _optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Drop the gradients where so decided. `args[0]` is the optimizer; a closure makes the gradients only now."""
        if callable(closure := kwargs.get("closure")):
            return args, {**kwargs, "closure": self._guarded(closure)}
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._guarded(args[1]), *args[2:]), kwargs
        self._ready()
        return None

    def _guarded(self, closure: Callable[[], object]) -> Callable[[], object]:
        def guarded() -> object:
            loss = closure()
            self._ready()
            return loss

        return guarded

    def _ready(self) -> None:
        if not self._is_decided:
            norm = None if self._contain.is_off else self._norm(self._parameters.current())
            scale = getattr(self.optimizer, "grad_scale", None)  # a fused update unscales by itself
            self._decide(norm / scale if norm is not None and scale is not None else norm)
        if self._drops:
            self._contain.run(Part.DROP, self._parameters.drop)

    def _after_update(self, _optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        self._is_decided = self._drops = False


_MOST_FAILURES_OF_A_SINK = 3


class MicroBatch:
    """Stands around forward and backward of one micro-batch; an exception in these passes through."""

    def __init__(self, guard: Guard, batch: object) -> None:
        """Take the guard, and the batch as the model gets it."""
        self._guard = guard
        self._batch = batch

    def __enter__(self) -> MicroBatch:  # noqa: PYI034  `Self` is in Python since 3.11
        self._guard.begin(self._batch)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        pass

    def loss(self, loss: Tensor) -> Tensor:
        """Take the loss, as it is handed to `backward`, and return it: nothing waits for the device."""
        self._guard.take_loss(loss)
        return loss


class _Parameters:
    """What an optimizer updates."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer
        self._groups: list[int] = []
        self._ordered: list[Tensor] = []
        ordered = self.current()
        self.device = next((parameter.device for parameter in ordered), torch.device("cpu"))
        self.are_sharded = any(is_sharded(parameter) for parameter in ordered)

    def current(self) -> list[Tensor]:
        """Return them in the model's order, by which a sum of squares is what the training gets by itself."""
        groups = [len(group["params"]) for group in self._optimizer.param_groups]
        if groups != self._groups:
            updated = {
                id(parameter): parameter for group in self._optimizer.param_groups for parameter in group["params"]
            }
            own = {id(parameter): parameter for parameter in self._model.parameters() if id(parameter) in updated}
            self._groups, self._ordered = groups, list({**own, **updated}.values())
        return self._ordered

    def drop(self) -> None:
        """Leave the optimizer nothing to do: without a gradient it touches neither weights nor state."""
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def _innermost(optimizer: Optimizer) -> Optimizer:
    """Return what a trainer's wrapper steps: its hooks are those that run."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def _refuse_undroppable(model: nn.Module, optimizer: Optimizer) -> None:
    advice = "its updates cannot be dropped; mode='watch' says what would have been"
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise UsageError(f"{type(optimizer).__name__} has no hook before its step: {advice}")
    if hasattr(optimizer, "fused_backward") or (hasattr(model, "backward") and hasattr(model, "step")):
        raise UsageError(f"{type(optimizer).__name__} steps inside backward: {advice}")
    if isinstance(optimizer, LBFGS):
        raise UsageError(f"LBFGS takes many gradients in one step: {advice}")
