"""The guard of one optimizer: each update is looked at before it is applied, and dropped where it would do harm."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from ckpttool.core.domain.guarding import EventValue, GuardEventKind
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import CkptToolError, UsageError
from ckpttool.core.formats.strict_json import Json, JsonObject, ParseError, as_object, get_optional_int
from ckpttool.guard.agree import Agreement, Ranks, Vote
from ckpttool.guard.buffers import Buffers
from ckpttool.guard.capture.keeping import Keeping
from ckpttool.guard.capture.settings import CaptureSettings
from ckpttool.guard.checks import Checks, mode_of, refuse_settings, stops_at_abnormal
from ckpttool.guard.contain import MOST_SHARE, MOST_SHARE_WITH_FEATURES, Containment, Pace, Part
from ckpttool.guard.deciding import Decided, Deciding
from ckpttool.guard.dropping import Closures, Updated, innermost, refuse_undroppable
from ckpttool.guard.micro_batch import MicroBatch
from ckpttool.guard.model.guarding import Action, Emit, GuardMode
from ckpttool.guard.norm import EmbeddingNorm, Losses, clip, full, total_norm
from ckpttool.guard.reporting import Telling
from ckpttool.guard.rules.detector import FeatureValueDetector
from ckpttool.guard.rules.guarding import STOPS_AT, SpikeGuard
from ckpttool.guard.scaling import Scaling
from ckpttool.guard.silent_errors import SilentErrors
from ckpttool.health.policies.base import Policy

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle


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
    ) -> None:
        """Stand between an optimizer and its gradients.

        Args:
            model: As it is trained, wrapped or not.
            optimizer: One guard each; several may share a model.
            output: The training's output folder: events go into `guard` in it; None: only to `sinks`.
            policy: Which updates to drop or to clip; None: only those that are not finite.
            mode: `act`, or `watch`: nothing is dropped, and events say what would have been.
            count_threshold: How many dropped in a row end the training.
            scaler: Of the loss: its overflows are its own business. One not handed over is found at its first update.
            features: What judges feature values of gradients, or its settings as `NPU_ASD_CONFIG` has them; None:
                they are not looked at.
            patrol: Matrix products are checked in one step of so many; 0: only after a strike of `features`.
            on_abnormal: What follows from a wrong product: `warn`, an event, or `stop`, the end of the training.
            replica_every: Steps between two comparisons of the weights that DDP keeps alike on all ranks; 0: never.
            capture: What is kept of a step that is not finite, in `guard/captures` of the output folder; None: nothing.
            group: The ranks that train this model together; None: all.
            sinks: Who else is told of events.
            step: Steps that the training did before.

        Raises:
            UsageError: The optimizer cannot be kept from an update, or a setting cannot be meant.
        """
        self.mode = mode_of(mode)
        refuse_settings(output, policy, scaler, capture, step)
        self.model = model
        self.optimizer = innermost(optimizer)
        if self.mode is GuardMode.ACT:
            refuse_undroppable(model, self.optimizer)
        self.step = Step(step)
        """Steps that the training did, applied or not: the number of the last one."""
        self._began = self.step  # here, or where it was restored
        self.applied = True
        """Whether the last update was: where a learning rate must not move with a dropped one, ask this."""
        self.on_stop: Callable[[GuardStop], None] | None = None
        """Called in place of raising `GuardStop`, by trainers that end in another way."""
        self._scaling = Scaling(scaler, self.optimizer)
        self._spikes = SpikeGuard(policy, count_threshold, self.mode)
        self._pace = Pace()
        self._updated = Updated(model, self.optimizer)
        self._closures = Closures(self._ready, is_one_step=self.mode is GuardMode.WATCH)
        self._ranks = Ranks(group, self._updated.device)
        self._telling = Telling(output, sinks, self._ranks, self._about)
        self._contain = Containment(self.tell)
        self._checks = Checks(model, self._ranks, self._contain, patrol=patrol, replica_every=replica_every)
        self._deciding = Deciding(self._spikes, self.mode, self._scaling, self._ranks, self._contain)
        self._deciding.stops_at_abnormal = stops_at_abnormal(on_abnormal)
        self._buffers = Buffers(model)
        self._losses = Losses()
        self._features = SilentErrors(model, features, self._scaling, self._contain)
        self._keeping = Keeping.of(model, self.optimizer, output, capture, self._contain)
        self.embedding = EmbeddingNorm()
        """Of the parameter whose gradient tells the health of saves, if a writer names one."""
        self._is_open = False  # a step has begun
        self._is_decided = False
        self._drops = False
        self._norms_agreed = False  # once at least: it is one norm that all ranks have
        self._is_slow = False
        self._hook: RemovableHandle | None = None
        if hasattr(self.optimizer, "register_step_pre_hook"):  # else it is watched, and the trainer asks `decide`
            self._hook = self.optimizer.register_step_pre_hook(self._before_update)
            self.optimizer.register_step_post_hook(self._after_update)

    @property
    def sinks(self) -> list[Emit]:
        """Whom events are told to, beside the file; more can be added. One that raises three times is left out."""
        return self._telling.sinks

    def micro(self, batch: object = None, *, index: int | None = None) -> MicroBatch:
        """Return what stands around forward and backward of a batch, which may have a number in its epoch."""
        return MicroBatch(self, batch, index)

    def clip_(self, max_norm: float) -> Tensor:
        """Take the norm of all gradients, decide on the update, and clip where it is applied.

        Call it after the last backward of a step, and after `scaler.unscale_`.

        Returns:
            The norm before clipping, as `torch.nn.utils.clip_grad_norm_` does.

        Raises:
            GuardStop: So many updates in a row were dropped.
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
        self._clip(most if most < math.inf else None, norm)  # of an infinite norm torch would make NaN even then
        return norm

    def decide(self, norm: Tensor | float) -> bool:
        """Decide on the update by a norm that the trainer took itself, over all of its ranks and before clipping.

        Returns:
            Whether it is applied.

        Raises:
            GuardStop: So many updates in a row were dropped.
            UsageError: The norm is no number.
        """
        try:
            full_norm = full(norm) if isinstance(norm, Tensor) else torch.tensor(norm, device=self._updated.device)
        except (TypeError, ValueError, RuntimeError):
            raise UsageError(f"a norm is a number or a tensor of one, not {norm!r}") from None
        self._clip(self._decide(full_norm), full_norm)
        return self.applied

    def _clip(self, most: float | None, norm: Tensor) -> None:
        if most is not None and not self._drops:
            clip(self._updated.current(), most, norm)

    def saved(self) -> JsonObject:
        """Return everything that is remembered: plain JSON, for a checkpoint."""

        def state(call: Callable[[], Json]) -> Json:
            return self._contain.run(Part.STATE, call, always=True)

        return {
            **as_object(state(self._spikes.saved) or {}),
            "step": self.step,
            "norms_agreed": self._norms_agreed,
            "features": state(self._features.saved),
            "captures": state(self._keeping.saved),
        }

    def restore(self, saved: Json) -> None:
        """Remember what the guard did that wrote a checkpoint; None: there is nothing. What is lost is told."""
        try:
            record = as_object(saved)
            self.step = self._began = Step(get_optional_int(record, "step") or self.step)
        except ParseError:  # or there is nothing: the rule says so
            record = {}
        self._norms_agreed = record.get("norms_agreed") is True
        for restore in (
            lambda: self._telling.tell_all(self._spikes.restore(saved, step=self.step)),
            lambda: self._features.restore(record.get("features"), step=self.step),
            lambda: self._keeping.restore(record.get("captures")),
        ):
            self._contain.run(Part.STATE, restore, always=True)

    def tell(self, kind: GuardEventKind, /, *, step: Step, **values: EventValue) -> None:
        """Tell an event to the file and all sinks: for what works beside the guard, too."""
        self._telling.tell(kind, step=step, **values)
        if kind is GuardEventKind.TRANSIENT:
            self._checks.look_closer(step)

    def close(self) -> None:
        """Write the events that are left; the end of the process does so, too."""
        self.end()  # of a micro-batch that somebody began, and never ended
        self._telling.close()

    def _about(self) -> tuple[Step, EventValue]:
        return self._began, self._spikes.saved()["policy"]

    # What a micro-batch tells.

    def begin(self, batch: object, index: int | None = None) -> None:
        """Begin a micro-batch, and with the first one the step. Called by `MicroBatch`."""
        if self._closures.is_repeated:
            return
        if self._contain.run(Part.STATE, self._scaling.has_stepped) and self._is_open:
            self._telling.ask("decided-too-late", step=self._contain.step)
            self._decide(math.inf)  # only what is not finite does a scaler keep from the optimizer
        if not self._is_open:
            self._is_open, self._is_decided, self._drops = True, False, False
            self._contain.step = Step(self.step + 1)
            self._contain.run(Part.BUFFERS, self._buffers.take)
            self._be_last()
        self._keeping.micro(batch, index)
        self._checks.enter(self._contain.step, runs=self._features.runs_checksum)

    def end(self) -> None:
        """End a micro-batch. Called by `MicroBatch`."""
        self._checks.leave()
        self._keeping.leave()

    def take_loss(self, loss: Tensor) -> None:
        """Take the local loss of a micro-batch. Called by `MicroBatch`."""
        if not self._closures.is_repeated:
            self._contain.run(Part.NORM, lambda: self._losses.add(loss))
            self._keeping.loss(loss)

    # The decision.

    def _norm(self, parameters: Sequence[Tensor], *, instead: bool = False) -> Tensor | None:
        """Take the norm; where it is taken instead of by the training, it is not the guard's own time."""
        if self._updated.are_sharded:
            return total_norm(parameters)  # takes all ranks, so whatever it raises, it raises as torch's own does
        return self._contain.run(Part.NORM, lambda: total_norm(parameters), waits=instead)

    def _decide(self, norm: Tensor | float | None, *, scale: Tensor | None = None) -> float | None:
        """Decide, and return to which norm the policy clips; None: it does not.

        Args:
            norm: Of all gradients, before clipping.
            scale: By which gradients are multiplied that a fused update unscales by itself.
        """
        if self._closures.is_repeated:
            return None
        step = self._contain.step = Step(self.step + 1)
        if self._contain.is_off:
            self.step = step
            self.embedding.applied = None
            self._close(drops=False, applied=True)
            return None
        if not self._is_open and not self._is_decided:
            self._telling.ask("no-micro-batch", step=step)
        vote = Vote(strike=self._features.judge(step), abnormal=self._checks.take_abnormal())
        squares = self._contain.run(Part.EMBEDDING, lambda: self.embedding.measured(scale))
        decided = self._deciding.decide(step, norm, self._losses, vote, embedding=squares)
        self.step = step
        self._checks.compare_replicas(step)
        self._features.take(step, decided.agreed)
        culprits = self._culprits(decided)
        if not decided.agreed.is_finite and not decided.agreed.is_overflow:
            self._keeping.capture(step, self._spikes.applied, self._scaling.scaler, self._buffers)
        if decided.drops:
            self._contain.run(Part.BUFFERS, self._buffers.restore)
        self._close(drops=decided.drops, applied=decided.is_applied)
        if decided.is_applied:
            self.embedding.applied = None if decided.reading is None else decided.reading.embedding
        self._contain.run(Part.EVENTS, lambda: self._tell_step(decided, culprits))
        if decided.decision.action is Action.STOP:
            self._stop(decided.agreed)
        return decided.decision.limit

    def _culprits(self, decided: Decided) -> list[int]:
        """Return the ranks whose own numbers are not finite. Asked by all of them or none: it takes all."""
        if decided.agreed.is_finite or self._contain.is_off:
            return []
        own_are_finite = self._features.own_are_finite()
        is_bad = own_are_finite is False or (decided.reading is not None and not decided.reading.losses_finite)
        return [rank for rank, bad in enumerate(self._ranks.gather(int(is_bad))) if bad]

    def _tell_step(self, decided: Decided, culprits: Sequence[int]) -> None:
        agreed = decided.agreed
        values: dict[str, EventValue] = {"optimizer_step": self._spikes.applied, "skipped": self._drops}
        if decided.reading is not None:
            values |= {"loss": decided.reading.loss, "global_norm": decided.reading.norm}
            if decided.reading.embedding is not None:
                values["embedding_local_norm"] = decided.reading.embedding
        if self._scaling.scaler is not None:
            values["overflow"] = agreed.is_overflow
        values |= self._checks.fields()
        own_seconds, self._contain.seconds = self._contain.seconds, 0.0
        share = self._pace.share(own_seconds)
        if share is not None:
            values["overhead"] = round(share, 4)
            self._keep_pace(own_seconds, share)
        self.tell(GuardEventKind.STEP, step=self.step, **values)
        for event in decided.decision.events:
            if event.kind is GuardEventKind.NONFINITE and culprits:
                event.values["ranks"] = [*culprits]
        self._telling.tell_all(decided.decision.events)
        if agreed.norms_differ and self._norms_agreed:
            self.tell(GuardEventKind.REPLICAS_DISAGREE, step=self.step, message="the norm differs from rank to rank")
        self._norms_agreed = not agreed.norms_differ  # told once, until they agree again

    def _keep_pace(self, own_seconds: float, share: float) -> None:
        """Look at less where it takes too much for too long; what takes no other rank may differ from rank to rank."""
        is_due = self._features.is_on
        most = MOST_SHARE_WITH_FEATURES if is_due else MOST_SHARE
        if not self._pace.is_too_slow(own_seconds, share, most) or (self._is_slow and not is_due):
            return
        message = f"the guard takes {share:.1%} of a step, more than {most:.0%} for a hundred steps"
        if is_due:
            message = f"{message}: {self._features.cost_too_much(message)}"
        else:
            self._is_slow = True  # said once: nothing is left to take less of
        if self._features.is_on == is_due:
            self.tell(GuardEventKind.ALARM, step=self.step, name="guard-too-slow", message=message)

    def _close(self, *, drops: bool, applied: bool) -> None:
        self._is_open, self._is_decided = False, True
        self._drops, self.applied = drops, applied
        self._losses = Losses()
        self._buffers.forget()
        self._keeping.forget()

    def _stop(self, agreed: Agreement) -> None:
        why = f"{self._spikes.in_a_row} updates in a row were dropped, so the weights are bad"
        if agreed.abnormal and self._deciding.stops_at_abnormal:
            why = "a matrix product was wrong; the event checksum-abnormal names the device"
        stop = GuardStop(f"step {self.step}: {why}; `ckpttool resolve --around-spike last` says from where to go on")
        if self.on_stop is None:
            raise stop
        self.on_stop(stop)

    # The moment before the update.

    def _be_last(self) -> None:
        """Stand behind hooks that came later: those of others still find gradients that are dropped."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = self.optimizer.register_step_pre_hook(self._before_update)

    def _before_update(
        self, _optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Drop the gradients where so decided. `args[0]` is the optimizer; a closure makes the gradients only now."""
        if callable(closure := kwargs.get("closure")):
            return args, {**kwargs, "closure": self._closures.guarded(closure)}
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._closures.guarded(args[1]), *args[2:]), kwargs
        self._ready()
        return None

    def _ready(self) -> None:
        if self._contain.run(Part.STATE, self._scaling.finds):
            self._telling.ask("scaler-not-given", step=self._contain.step)
        if not self._is_decided:
            norm = None if self._contain.is_off else self._norm(self._updated.current())
            scale = getattr(self.optimizer, "grad_scale", None)  # a fused update unscales by itself
            if norm is not None and scale is not None:
                norm = norm / scale
            limit = self._decide(norm, scale=scale)
            if norm is not None:
                self._clip(limit, norm)
            if self._scaling.is_on:  # which at an overflow does not call it at all
                self._telling.ask("decided-too-late", step=self.step)
        if self._drops:
            self.applied = self._contain.run(Part.DROP, self._updated.drop) is None

    def _after_update(self, _optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        self._is_decided = self._drops = False
