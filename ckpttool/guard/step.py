"""The guard of one optimizer: it checks each update before it is applied, and drops harmful ones."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer  # noqa: TC002  a WeakSet of them is made

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.guarding import EVENTS_FOLDER, EventValue, GuardEventKind
from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import CkptToolError, UsageError
from ckpttool.core.formats.strict_json import Json, JsonObject, ParseError, as_object, get_optional_int
from ckpttool.core.storage import path_text
from ckpttool.guard.agree import Agreement, Ranks, Vote
from ckpttool.guard.buffers import Buffers
from ckpttool.guard.capture.memory import Remembered, StepMemory
from ckpttool.guard.capture.store import CaptureSettings, CaptureStore, StepFacts
from ckpttool.guard.checks import Checks
from ckpttool.guard.contain import MOST_SHARE, MOST_SHARE_WITH_FEATURES, Containment, Pace, Part, one_line
from ckpttool.guard.features import SilentErrors
from ckpttool.guard.files.events import EventFile, EventSinks
from ckpttool.guard.files.words import Words
from ckpttool.guard.gradients import (
    EmbeddingNorm,
    Losses,
    Reading,
    Scaling,
    Updated,
    clip,
    full,
    innermost,
    refuse_undroppable,
    total_norm,
)
from ckpttool.guard.model.guarding import Action, Decision, Emit, GuardMode, Proposal
from ckpttool.guard.recheck import Recheck
from ckpttool.guard.rules.detector import FeatureValueDetector
from ckpttool.guard.rules.guarding import STOPS_AT, SpikeGuard
from ckpttool.guard.switch import REPLAY_VARIABLE
from ckpttool.health.policies.base import Policy

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from ckpttool.guard.replay.script import ScriptReplay

T = TypeVar("T")

_ALARMS = {
    "decided-too-late": (
        "call guard.clip_ or guard.decide after scaler.unscale_: otherwise an overflow is detected only when the "
        "next step begins, and its gradients are lost"
    ),
    "scaler-not-given": (
        "pass the loss scaler, Guard(..., scaler=scaler): it was found only when it first called the optimizer, and "
        "earlier overflows were counted as part of that step"
    ),
    "no-micro-batch": (
        "put guard.micro(batch) around forward and backward: otherwise a dropped update leaves buffers such as "
        "running means changed, a loss that is not finite is not detected, and nothing is saved for a replay"
    ),
}
"""Advice about the training code, by the name of the alarm."""


GUARDED: WeakSet[Optimizer] = WeakSet()
"""The optimizers with a guard. A second guard of one optimizer would decide about the same updates."""


class GuardStop(CkptToolError):  # noqa: N818  it ends a training, but is not an error in it
    """Error raised when so many consecutive updates were dropped that the weights are bad.

    The last update was also dropped.
    """


class MicroBatch:
    """Context for the forward and backward passes of one micro-batch. Exceptions pass through."""

    def __init__(self, guard: Guard, batch: object, index: int | None) -> None:
        self._guard = guard
        self._batch = batch
        self._index = index

    def __enter__(self) -> MicroBatch:  # noqa: PYI034  `Self` is in Python since 3.11
        self._guard.begin(self._batch, self._index)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._guard.end()
        self._batch = None  # a loop variable may keep this object

    def loss(self, loss: Tensor) -> Tensor:
        """Record the loss, as passed to `backward`, and return it without waiting for the device."""
        self._guard.take_loss(loss)
        return loss


class Guard:
    """Guard that drops harmful updates, without a trace in weights, optimizer or buffers.

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

    It raises only `GuardStop`. A failure inside the guard is reported as an event, and the update is applied.
    """

    switched_on = "code"
    """How the guard was switched on: by the training code or by the environment variable."""
    limit: float | None = None
    """The norm to clip the last update to, for a trainer that drops updates itself. None if the policy set no norm."""

    def __init__(  # noqa: PLR0913, PLR0915  all have defaults, and callers name them; it makes the parts of a guard
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        output: str | os.PathLike[str] | None = None,
        policy: Policy | None = None,
        mode: GuardMode | str = GuardMode.ACT,
        count_threshold: int = STOPS_AT,
        scaler: torch.amp.GradScaler | None = None,
        features: FeatureValueDetector | str | None = None,
        patrol: int = 0,
        on_abnormal: str = "warn",
        replica_every: int = 100,
        capture: CaptureSettings | None = CaptureSettings(),
        group: dist.ProcessGroup | None = None,
        sinks: Sequence[Emit] = (),
        step: int = 0,
        stop_on_capture: bool = False,
        trainer_drops: bool = False,
    ) -> None:
        """Register the guard on an optimizer.

        If the environment requests the replay of a captured step, the guard makes it the first step of the training
        run, and writes no events and captures.

        Args:
            model: The trained model, wrapped or not.
            optimizer: The optimizer. Use one guard per optimizer. Several optimizers may share a model.
            output: The run's output folder. Events are written to `guard` in it. If None, they go only to `sinks`.
            policy: Decides which updates to drop or to clip. If None, only non-finite updates are dropped.
            mode: `act`, or `watch` to drop nothing and report the updates that would have been dropped.
            count_threshold: Number of consecutive drops that ends the training run.
            scaler: The loss scaler, which handles its own overflows. If it is not passed, it is found at its
                first update.
            features: The detector for feature values of gradients, or its settings in the form of `NPU_ASD_CONFIG`. If
                None, the environment's `NPU_ASD_CONFIG` is used. If empty, nothing is checked.
            patrol: Interval in steps of the check of matrix products, or 0 to check only after a strike of `features`.
            on_abnormal: The reaction to a wrong product: `warn` for an event, or `stop` to end the training run.
            replica_every: Interval in steps of the comparison of the weights that DDP keeps equal on all ranks, or 0
                for never.
            capture: The data to capture of a non-finite step, in `guard/captures` of the output folder. If None,
                nothing is captured.
            group: The ranks that train this model together, or None for all.
            sinks: Further receivers of events.
            step: Number of steps that the training run did before.
            stop_on_capture: Whether the first capture with weights ends the training run, before another step changes
                them.
            trainer_drops: Whether the trainer calls `decide` and drops the update if that returns False, as engines do
                that own their gradients. The guard then neither hooks into the optimizer nor changes a gradient.

        Raises:
            UsageError: Updates of this optimizer cannot be dropped, or a setting is not valid.
        """
        _refuse_settings(output, policy, mode, scaler, capture, on_abnormal, step)
        self.mode = GuardMode(mode)
        self.model = model
        self.optimizer = innermost(optimizer)
        self._trainer_drops = trainer_drops
        if self.mode is GuardMode.ACT and not trainer_drops:
            refuse_undroppable(model, self.optimizer)
        self.step = Step(step)
        """Number of the last step, which counts applied and dropped updates."""
        self._began = self.step  # here, or at the restored step
        self.applied = True
        """Whether the last update was applied. Check it if the learning rate must not advance after a drop."""
        self.on_stop: Callable[[GuardStop], None] | None = None
        """Callback to use instead of raising `GuardStop`, for trainers that end in another way."""
        self.recheck = Recheck()
        """The suspicious steps to recompute."""
        self.embedding = EmbeddingNorm()
        """The norm of the embedding's gradient, used for the health of saves if a writer names an embedding."""
        encode_batch = None if capture is None else capture.encode_batch
        replays = bool(os.environ.get(REPLAY_VARIABLE))
        if replays:
            output = capture = None
        self._output = None if output is None else os.fspath(output)
        self._capture_settings = capture
        self._stops_on_capture = stop_on_capture
        self._stops_at_abnormal = on_abnormal == "stop"
        self._scaling = Scaling(scaler, self.optimizer)
        self._spikes = SpikeGuard(policy, count_threshold, self.mode)
        self._pace = Pace()
        self._updated = Updated(model, self.optimizer)
        self._ranks = Ranks(group, self._updated.device)
        self._events = EventSinks((Words(lambda: self._ranks.own), *sinks), begin=self._begin_file)
        self._contain = Containment(self.tell)
        self._checks = Checks(model, self._ranks, self._contain, patrol=patrol, replica_every=replica_every)
        self._buffers = Buffers(model)
        self._losses = Losses()
        self._features = SilentErrors(model, features, self._scaling, self._contain)
        self._memory: StepMemory | None = None  # None: no step is captured
        if output is not None and capture is not None:
            budget = capture.budget
            self._memory = StepMemory(model, host_batches=budget.host_batches, device_batches=budget.device_batches)
        self._store: CaptureStore | None = None
        self._alarmed: set[str] = set()
        self._is_open = False  # a step has begun
        self._is_decided = self._drops = False
        self._is_repeated = False  # a closure is called again in a step that was already counted
        self._norms_agreed = False  # true after the first call: all ranks have the same norm
        self._is_slow = False
        self._hook: RemovableHandle | None = None
        GUARDED.add(self.optimizer)
        self._replay = self._new_replay(encode_batch) if replays else None
        if not trainer_drops and hasattr(self.optimizer, "register_step_pre_hook"):  # otherwise it calls `decide`
            self._hook = self.optimizer.register_step_pre_hook(self._before_update)
            self.optimizer.register_step_post_hook(self._after_update)

    @property
    def sinks(self) -> list[Emit]:
        """Receivers of events besides the file. The first is the log of the training run, and more can be added.

        A sink that raises three times is removed.
        """
        return self._events.sinks

    def micro(self, batch: object = None, *, index: int | None = None) -> MicroBatch:
        """Return the context for the forward and backward passes of a batch. `index` is its number in the epoch."""
        return MicroBatch(self, batch, index)

    def _new_replay(self, encode_batch: Callable[[object], object] | None) -> ScriptReplay:
        from ckpttool.guard.replay.script import ScriptReplay

        return ScriptReplay(self.model, self.optimizer, self._ranks, encode_batch, self._set_step)

    @property
    def replays(self) -> bool:
        """Whether the environment requests the replay of a captured step."""
        return self._replay is not None

    @property
    def replayed_index(self) -> int | None:
        """Number in its epoch of the captured batch that is replayed now.

        None if it is unknown, or without a replay.
        """
        return None if self._replay is None else self._replay.index

    def _set_step(self, step: int) -> None:
        self.step = Step(step)

    def use_scaler(self, scaler: torch.amp.GradScaler) -> None:
        """Set the loss scaler, which handles its own overflows, unless one is already known."""
        self._scaling.use(scaler)

    def may_clip(self, parameters: AbstractSet[int]) -> bool:
        """Return whether `clip_` can replace the clipping of these parameters before the decision on their update.

        Args:
            parameters: The ids of the clipped parameters with a gradient.
        """
        if not self._is_open or self._is_decided:
            return False
        return parameters == {id(parameter) for parameter in self._updated.current() if parameter.grad is not None}

    def clip_(self, max_norm: float) -> Tensor:
        """Compute the norm of all gradients, decide on the update, and clip the gradients if it is applied.

        Call it after the last backward pass of a step, and after `scaler.unscale_`.

        Returns:
            The norm before clipping, as `torch.nn.utils.clip_grad_norm_` does.

        Raises:
            GuardStop: Too many updates in a row were dropped.
        """
        parameters = self._updated.current()
        if self._updated.only_model_clips:
            global_norm = cast("Tensor", cast("Any", self.model).clip_grad_norm_(max_norm))
            self._clip(self._decide(global_norm), global_norm.clamp(max=max_norm))
            return global_norm
        norm = None if self._contain.is_off else self._norm(parameters, instead=True)
        limit = self._decide(norm)
        if norm is None:
            return clip_grad_norm_(parameters, max_norm)
        most = max_norm if limit is None else min(max_norm, limit)
        self._clip(most if most < math.inf else None, norm)  # with an infinite norm torch would produce NaN even then
        return norm

    def decide(self, norm: Tensor | float) -> bool:
        """Decide on the update by a norm that the trainer computed over all of its ranks before clipping.

        Returns:
            Whether the update is applied.

        Raises:
            GuardStop: Too many updates in a row were dropped.
            UsageError: The norm is not a number.
        """
        try:
            full_norm = full(norm) if isinstance(norm, Tensor) else torch.tensor(norm, device=self._updated.device)
        except (TypeError, ValueError, RuntimeError):
            raise UsageError(f"a norm must be a number or a tensor with one element, not {norm!r}") from None
        self.limit = self._decide(full_norm)
        if not self._trainer_drops:
            self._clip(self.limit, full_norm)
        return self.applied

    def _clip(self, most: float | None, norm: Tensor) -> None:
        if most is not None and not self._drops:
            clip(self._updated.current(), most, norm)

    # State in checkpoints.

    def saved(self) -> JsonObject:
        """Return the complete state as plain JSON, for a checkpoint."""

        def state(call: Callable[[], Json]) -> Json:
            return self._contain.run(Part.STATE, call, always=True)

        return {
            **as_object(state(self._spikes.saved) or {}),
            "step": self.step,
            "norms_agreed": self._norms_agreed,
            "features": state(self._features.saved),
            "captures": None if self._memory is None else state(lambda: {**self._captures().saved()}),
        }

    def restore(self, saved: Json) -> None:
        """Restore the output of `saved`, or do nothing for None. Lost state is reported as an event."""
        try:
            record = as_object(saved)
            self.step = self._began = Step(get_optional_int(record, "step") or self.step)
        except ParseError:  # or nothing was saved: the policy reports that
            record = {}
        self._norms_agreed = record.get("norms_agreed") is True
        captures = record.get("captures")

        def restore_captures() -> None:
            if isinstance(captures, dict) and self._memory is not None:
                self._captures().restore(captures)

        for restore in (
            lambda: self._events.tell_all(self._spikes.restore(saved, step=self.step)),
            lambda: self._features.restore(record.get("features"), step=self.step),
            restore_captures,
        ):
            self._contain.run(Part.STATE, restore, always=True)

    # Events.

    def tell(self, kind: GuardEventKind, /, *, step: Step, **values: EventValue) -> None:
        """Send an event to the file and to all sinks. Writers and resumes use it too."""
        self._events.tell(kind, step=step, **values)
        if kind is GuardEventKind.TRANSIENT:
            self._checks.look_closer(step)
        self.recheck.note(kind, step, values, rank=self._ranks.own)

    def _begin_file(self) -> EventFile | None:
        """Open the event file. Called at the first event, when the process group exists."""
        if self._output is None:
            return None
        try:
            return EventFile(
                self._output,
                rank=self._ranks.own,
                world_size=self._ranks.world,
                step=self._began,
                policy=self._spikes.saved()["policy"],
                switched_on=self.switched_on,
                versions={"python": sys.version.split()[0], "torch": torch.__version__},
            )
        except Exception as error:  # noqa: BLE001  no error here may end the training
            self._events.tell(GuardEventKind.GUARD_ERROR, step=self._began, part="events", error=one_line(error))
            return None

    def _alarm(self, name: str, *, step: Step) -> None:
        """Report once what to change in the training code."""
        if name not in self._alarmed:
            self._alarmed.add(name)
            self._events.tell(GuardEventKind.ALARM, step=step, name=name, message=_ALARMS[name])

    def close(self) -> None:
        """Write the remaining events. The end of the process does the same."""
        self.end()  # a micro-batch may have begun and never ended
        self._events.close()

    # Micro-batches.

    def begin(self, batch: object, index: int | None = None) -> None:
        """Begin a micro-batch. The first micro-batch also begins the step. Called by `MicroBatch`."""
        if self._is_repeated or self.recheck.is_running:
            return
        has_scaler = self._scaling.scaler is not None
        if has_scaler and self._contain.run(Part.STATE, self._scaling.has_stepped) and self._is_open:
            self._alarm("decided-too-late", step=self._contain.step)
            self._decide(math.inf)  # a scaler keeps only non-finite values from the optimizer
        if self._replay is not None:
            self._replay.begin(batch)
        if not self._is_open:
            self._is_open, self._is_decided, self._drops = True, False, False
            self._contain.step = Step(self.step + 1)
            self._contain.run(Part.BUFFERS, self._buffers.take)
            if self._hook is not None and not _is_last(self._hook):  # hooks of others must still find gradients
                self._hook.remove()
                self._hook = self.optimizer.register_step_pre_hook(self._before_update)
        if (memory := self._memory) is not None and batch is not None:
            self._contain.run(Part.MEMORY, lambda: memory.micro(batch, index=index))
        self._checks.enter(self._contain.step, runs=self._features.runs_checksum)

    @property
    def current_micro_batch(self) -> Remembered | None:
        """The last micro-batch that was stored for a capture, or None."""
        return self._memory.micro_batches[-1] if self._memory is not None and self._memory.micro_batches else None

    def end(self) -> None:
        """End a micro-batch, and remove the guard's hooks from the model. Called by `MicroBatch`."""
        self._checks.leave()
        if self._memory is not None and self._memory.is_hooked:
            self._contain.run(Part.MEMORY, self._memory.leave, always=True)

    def take_loss(self, loss: Tensor) -> None:
        """Record the local loss of a micro-batch. Called by `MicroBatch`."""
        if self._is_repeated or self.recheck.is_running:
            return
        if self._replay is not None:
            self._replay.loss(loss)
        self._contain.run(Part.NORM, lambda: self._losses.add(loss))
        if (memory := self._memory) is not None:
            self._contain.run(Part.MEMORY, lambda: memory.loss(loss))

    # The decision.

    def _norm(self, parameters: Sequence[Tensor], *, instead: bool = False) -> Tensor | None:
        """Compute the norm. It replaces the trainer's own computation, so its time does not count as the guard's."""
        if self._updated.are_sharded:
            return total_norm(parameters)  # involves all ranks, so it raises its errors as torch's own function does
        return self._contain.run(Part.NORM, lambda: total_norm(parameters), waits=instead)

    def _decide(self, norm: Tensor | float | None, *, scale: Tensor | None = None) -> float | None:
        """Decide on the update, and return the norm to which the policy clips, or None if it does not clip.

        Errors are caught everywhere except in collective operations, so that every rank reaches these in every step.

        Args:
            norm: Norm of all gradients before clipping, or None if it could not be computed.
            scale: Loss scale of gradients that a fused update unscales itself.
        """
        if self._is_repeated:
            return None
        if self._replay is not None:
            self._replay.finish()
        contain, step = self._contain, Step(self.step + 1)
        contain.step = step
        if contain.is_off:
            self.step = step
            self.embedding.applied = None
            self._end_step(drops=False, applied=True)
            return None
        if not self._is_open and not self._is_decided:
            self._alarm("no-micro-batch", step=step)
        strike, abnormal = self._features.judge(step), self._checks.take_abnormal()
        reading = self._read(norm, scale)
        proposal = None if reading is None else self._propose(reading, step)
        if proposal is not None and abnormal and self._stops_at_abnormal:
            proposal = replace(proposal, action=Action.STOP)
        vote = Vote(proposal=proposal, failed=contain.next_failed(), strike=strike, abnormal=abnormal)
        agreed = self._ranks.agree(vote)
        contain.agreed(agreed.failed)
        decision = self._settle(agreed)
        drops = decision.action is not Action.APPLY
        self.step = step
        self._checks.compare_replicas(step)
        self._features.take(step, agreed)
        culprits = self._culprits(reading, agreed)
        ends = not agreed.is_overflow and self._examine(step, agreed, culprits)
        if drops:
            contain.run(Part.BUFFERS, self._buffers.restore)
        # The loss scaler drops overflows, whatever the guard does.
        self._end_step(drops=drops, applied=not drops and not agreed.is_overflow)
        if self.applied:
            self.embedding.applied = None if reading is None else reading.embedding
        contain.run(Part.EVENTS, lambda: self._tell_step(reading, agreed, decision, culprits))
        if decision.action is Action.STOP:
            self._stop(agreed)
        elif ends:
            list_them = f"`ckpttool guard list {self._output}` shows the capture"
            self._end_training(f"step {step} was captured, and stop_on_capture is set; {list_them}")
        return decision.limit

    def _read(self, norm: Tensor | float | None, scale: Tensor | None) -> Reading | None:
        """Read this rank's numbers, or return None if that fails. The host waits for the device."""
        squares = None
        if self.embedding.is_watched:
            squares = self._contain.run(Part.EMBEDDING, lambda: self.embedding.measured(scale))
        if norm is None:
            return None
        return self._contain.run(Part.NORM, lambda: self._losses.read(norm, squares), waits=True)

    def _propose(self, reading: Reading, step: Step) -> Proposal:
        row = StepMetrics(
            step=step, loss=reading.loss, global_norm=reading.norm, embedding_local_norm=reading.embedding
        )

        def propose() -> Proposal:
            # Reading the scale waits for the device, so only if it matters.
            scale = None if math.isfinite(reading.norm) else self._scaling.scale()
            return self._spikes.propose(row, losses_finite=reading.losses_finite, scale=scale)

        proposal = self._contain.run(Part.POLICY, propose)
        if proposal is not None:
            return proposal
        # Certain results stay certain if a rule fails.
        is_finite = math.isfinite(reading.norm) and reading.losses_finite
        return Proposal(action=Action.APPLY if is_finite else Action.SKIP, norm=reading.norm, is_finite=is_finite)

    def _settle(self, agreed: Agreement) -> Decision:
        proposal = agreed.proposal
        if proposal is None or self._contain.is_off:
            return Decision(action=Action.APPLY)
        decision = self._contain.run(Part.POLICY, lambda: self._spikes.settle(proposal))
        if decision is not None:
            return decision
        # The other ranks settled the same numbers, and drop if any rank proposed it.
        must_wait = self.mode is GuardMode.ACT and (proposal.action is not Action.APPLY or not proposal.is_finite)
        return Decision(action=Action.SKIP if must_wait else Action.APPLY)

    def _culprits(self, reading: Reading | None, agreed: Agreement) -> list[int]:
        """Return the ranks whose own numbers are not finite. Either all ranks must call it, or none."""
        if agreed.is_finite or self._contain.is_off:
            return []
        own_are_finite = self._features.own_are_finite()
        is_bad = own_are_finite is False or (reading is not None and not reading.losses_finite)
        return [rank for rank, bad in enumerate(self._ranks.gather(int(is_bad))) if bad]

    def _tell_step(
        self, reading: Reading | None, agreed: Agreement, decision: Decision, culprits: Sequence[int]
    ) -> None:
        values: dict[str, EventValue] = {"optimizer_step": self._spikes.applied, "skipped": self._drops}
        if reading is not None:
            values |= {"loss": reading.loss, "global_norm": reading.norm}
            if reading.embedding is not None:
                values["embedding_local_norm"] = reading.embedding
        if self._scaling.scaler is not None:
            values["overflow"] = agreed.is_overflow
        values |= self._checks.fields()
        own_seconds, self._contain.seconds = self._contain.seconds, 0.0
        share = self._pace.share(own_seconds)
        if share is not None:
            values["overhead"] = round(share, 4)
            self._keep_pace(own_seconds, share)
        self.tell(GuardEventKind.STEP, step=self.step, **values)
        for event in decision.events:
            if event.kind is GuardEventKind.NONFINITE and culprits:
                event.values["ranks"] = [*culprits]
        self._events.tell_all(decision.events)
        if agreed.norms_differ and self._norms_agreed:
            self.tell(GuardEventKind.REPLICAS_DISAGREE, step=self.step, message="the norm differs from rank to rank")
        self._norms_agreed = not agreed.norms_differ  # reported once, until they agree again

    def _keep_pace(self, own_seconds: float, share: float) -> None:
        """Do less if the guard is too slow for too long. Only work that involves no other rank is dropped."""
        is_due = self._features.is_on
        most = MOST_SHARE_WITH_FEATURES if is_due else MOST_SHARE
        if not self._pace.is_too_slow(own_seconds, share, most) or (self._is_slow and not is_due):
            return
        message = f"the guard takes {share:.1%} of a step, more than {most:.0%}, for a hundred steps"
        if is_due:
            message = f"{message}: {self._features.cost_too_much(message)}"
        else:
            self._is_slow = True  # reported once: no further work can be dropped
        if self._features.is_on == is_due:
            self.tell(GuardEventKind.ALARM, step=self.step, name="guard-too-slow", message=message)

    def _end_step(self, *, drops: bool, applied: bool) -> None:
        self._is_open, self._is_decided = False, True
        self._drops, self.applied = drops, applied
        self._losses = Losses()
        self._buffers.forget()
        if self._memory is not None:
            self._contain.run(Part.MEMORY, self._memory.forget)

    def _stop(self, agreed: Agreement) -> None:
        why = f"{self._spikes.in_a_row} updates in a row were dropped, so the weights are bad"
        if agreed.abnormal and self._stops_at_abnormal:
            why = "a matrix product was wrong; the event checksum-abnormal names the device"
        self._end_training(f"step {self.step}: {why}; `ckpttool resolve --around-spike last` chooses where to resume")

    def _end_training(self, why: str) -> None:
        stop = GuardStop(why)
        if self.on_stop is None:
            raise stop
        self.on_stop(stop)

    # The capture of a step that is not finite.

    def _captures(self) -> CaptureStore:
        """Return the captures of this rank.

        Created on first use, because the process group may be created after the guard.
        """
        if self._store is None:
            self._store = CaptureStore(
                os.path.join(self._output or "", EVENTS_FOLDER),
                self.model,
                emit=self.tell,
                rank=self._ranks.own,
                world_size=self._ranks.world,
                settings=self._capture_settings or CaptureSettings(),
                optimizer=self.optimizer,
            )
        return self._store

    def drew(self, loader: int, item: object) -> None:
        """Store an item of a data loader, which may contain values that the model does not receive."""
        if (memory := self._memory) is not None:
            self._contain.run(Part.MEMORY, lambda: memory.drew(loader, item))

    def evaluated(self) -> None:
        """Discard items that were drawn for a forward pass without gradients."""
        if self._memory is not None:
            self._contain.run(Part.MEMORY, self._memory.evaluated)

    def _examine(self, step: Step, agreed: Agreement, culprits: Sequence[int]) -> bool:
        """Capture a non-finite step, or recompute a suspicious one. Return whether this ends the training run."""
        if not agreed.is_finite:
            return self._capture(step, culprits)
        self._recheck(step)
        return False

    def _capture(self, step: Step, culprits: Sequence[int]) -> bool:
        """Capture the stored step, without a lasting change of weights, gradients and buffers.

        Either all ranks must call it, or none.

        Args:
            step: The step.
            culprits: The ranks whose own values were not finite. Empty if unknown.

        Returns:
            Whether this ends the training run, because any rank has a new capture with weights.
        """
        self.recheck.forget()
        if self._memory is None:
            return False
        is_culprit = self._ranks.own in culprits

        def capture(memory: StepMemory) -> bool:
            store = self._captures()
            before = store.full_captures
            store.capture(memory, self._facts(step, is_culprit=is_culprit))
            return store.full_captures > before

        is_captured = bool(self._with_memory(capture))
        return self._stops_on_capture and any(self._ranks.gather(int(is_captured)))

    def _recheck(self, step: Step) -> None:
        """Recompute the stored step if this rank is suspicious, and compare the results."""

        def recheck(suspicion: GuardEventKind, of_step: Step) -> bool | None:
            return self._with_memory(
                lambda memory: self._captures().recheck(memory, self._facts(step), suspicion, of_step)
            )

        self.recheck.run(step, recheck)

    def _with_memory(self, call: Callable[[StepMemory], T]) -> T | None:
        """Call a function with the stored step, without counting its time as the cost of an ordinary step."""
        if (memory := self._memory) is None:
            return None
        with self.recheck.running():
            return self._contain.run(Part.CAPTURE, lambda: call(memory), waits=True)

    def _facts(self, step: Step, *, is_culprit: bool = False) -> StepFacts:
        return StepFacts(
            step=step,
            optimizer_step=self._spikes.applied,
            scale=self._scaling.scale(),
            scaler=self._scaling.state(),
            buffers_left_out=self._buffers.left_out,
            restore_buffers=self._buffers.restore,
            recompute=self.recheck.recompute,
            is_culprit=is_culprit,
        )

    # The moment before the update.

    def _before_update(
        self, _optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Drop the gradients if that was decided.

        `args[0]` is the optimizer. A closure computes the gradients only now.
        """
        if callable(closure := kwargs.get("closure")):
            return args, {**kwargs, "closure": self._guarded(closure)}
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._guarded(args[1]), *args[2:]), kwargs
        self._ready()
        return None

    def _guarded(self, closure: Callable[[], object]) -> Callable[[], object]:
        """Return a replacement for the closure of one optimizer step, which LBFGS calls many times.

        In watch mode, all calls are one step. If updates can be dropped, each call is a separate step, because the
        gradients of any call may be harmful.
        """
        was_called = False

        def guarded() -> object:
            nonlocal was_called
            self._is_repeated, was_called = was_called and self.mode is GuardMode.WATCH, True
            try:
                loss = closure()
                self._ready()
            finally:
                self._is_repeated = False
            return loss

        return guarded

    def _ready(self) -> None:
        """Decide, unless `clip_` or `decide` already did, and drop the gradients if that is the decision."""
        if not self._scaling.has_looked and self._contain.run(Part.STATE, self._scaling.finds):
            self._alarm("scaler-not-given", step=self._contain.step)
        if not self._is_decided:
            norm = None if self._contain.is_off else self._norm(self._updated.current())
            scale = getattr(self.optimizer, "grad_scale", None)  # a fused update unscales on its own
            if norm is not None and scale is not None:
                norm = norm / scale
            limit = self._decide(norm, scale=scale)
            if norm is not None:
                self._clip(limit, norm)
            if self._scaling.is_on:  # the scaler does not call the optimizer after an overflow
                self._alarm("decided-too-late", step=self.step)
        if self._drops:
            self.applied = self._contain.run(Part.DROP, self._updated.drop) is None

    def _after_update(self, _optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        self._is_decided = self._drops = False


def _is_last(hook: RemovableHandle) -> bool:
    """Return whether a hook runs after all other hooks of its kind."""
    hooks = hook.hooks_dict_ref()
    return hooks is not None and next(reversed(hooks), None) == hook.id


def _refuse_settings(  # noqa: PLR0913, PLR0917  of a guard
    output: object, policy: object, mode: object, scaler: object, capture: object, on_abnormal: object, step: object
) -> None:
    """Check the settings before any hook is registered.

    Raises:
        UsageError: A setting is not valid.
    """
    if mode not in tuple(GuardMode):
        raise UsageError(f"a guard's mode must be 'act' or 'watch', not {mode!r}")
    if output is not None:
        path_text(output, "output")
    if policy is not None and (isinstance(policy, type) or not hasattr(policy, "begin")):
        raise UsageError(f"a policy must be an object such as RobustZPolicy(), not {policy!r}")
    if scaler is not None and not (hasattr(scaler, "get_scale") and hasattr(scaler, "is_enabled")):
        raise UsageError(f"scaler must be a loss scaler such as torch.amp.GradScaler(), not {scaler!r}")
    if capture is not None and not isinstance(capture, CaptureSettings):
        raise UsageError(f"capture must be CaptureSettings(...), or None for no captures, not {capture!r}")
    if on_abnormal not in {"warn", "stop"}:
        raise UsageError(f"on_abnormal must be 'warn' or 'stop', not {on_abnormal!r}")
    if type(step) is not int or step < 0:
        raise UsageError(f"step must be the number of completed steps, not {step!r}")
