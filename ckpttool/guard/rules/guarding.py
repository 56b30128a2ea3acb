"""Decision on an update: every rank proposes from its own numbers, and all ranks carry out the common decision."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from numbers import Real
from typing import cast

from ckpttool.core.domain.guarding import EventValue, GuardEvent, GuardEventKind
from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import UsageError
from ckpttool.core.formats.strict_json import (
    Json,
    JsonObject,
    ParseError,
    as_int,
    as_object,
    get_bool,
    get_int,
    get_list,
    get_optional_int,
    get_str,
    number,
)
from ckpttool.guard.model.guarding import SKIPS_TOO_OFTEN, Action, Decision, GuardMode, Proposal
from ckpttool.health.model.events import EventKind, HealthEvent
from ckpttool.health.policies.base import Policy
from ckpttool.health.policies.registry import settings_of

STATE_SCHEMA = "ckpttool/guard-state/1"

STOPS_AT = 10
"""Number of consecutive drops that end a run, as in the trainer that popularized the rule."""

_SCALER_TRIES = 20
"""Number of consecutive overflows to leave to a loss scaler. A scale of 65536 is 1 after 16 of them."""

_RECENT = 1000
"""Number of steps over which dropped updates are counted for the alarm."""
_USUAL_DROPS = 10
"""Number of drops that raises the alarm. A public run lost 393 of 394 updates to its threshold without a warning."""

_LONGEST_WARM_UP = 10_000

_DROPS = frozenset({EventKind.SKIP, EventKind.SKIP_UNCOUNTED, EventKind.SPIKE, EventKind.NONFINITE})
_OWN_WORDS = {kind.value: kind for kind in GuardEventKind}
_PASSED_ON = {
    kind: _OWN_WORDS[kind.value]
    for kind in EventKind
    if kind.value in _OWN_WORDS and kind not in {*_DROPS, EventKind.CLIP, EventKind.STOP, EventKind.OVERFLOW}
}
"""A policy's events that are only reported, and do not affect the decision on the update."""


class SpikeGuard:
    """Decision rule for each update before it is applied. Its state is the same on all ranks, and survives restarts.

    Each step needs two calls: `propose` from this rank's numbers, then `settle` with the combined proposals of all
    ranks. Only `settle` changes counters, so they are the same everywhere, even if a policy depends on values that
    differ by rank.
    """

    def __init__(
        self, policy: Policy | None = None, count_threshold: int = STOPS_AT, mode: GuardMode = GuardMode.ACT
    ) -> None:
        """Store the policy.

        Args:
            policy: Decides which updates to drop or to clip. If None, only non-finite updates are dropped.
            count_threshold: Number of consecutive drops that ends the run, because then the weights are bad, not the
                data.
            mode: Whether the guard acts, or only watches.

        Raises:
            UsageError: The count is invalid.
        """
        if type(count_threshold) is not int or count_threshold < 1:
            raise UsageError(f"count_threshold must be 1 or more dropped updates, not {count_threshold!r}")
        self._policy = policy
        self._count_threshold = count_threshold
        self._acts = mode is GuardMode.ACT
        self._watch = None if policy is None else policy.begin()
        limit = None if self._watch is None else self._watch.limit()
        if limit is not None and not (isinstance(cast("object", limit), Real) and limit > 0):
            raise UsageError(f"a policy needs a threshold above 0 to drop norms, not {limit!r}")
        self._row = StepMetrics(step=Step(0))
        self._noticed: tuple[HealthEvent, ...] = ()
        self._own_is_finite = True
        self.in_a_row = 0
        """Number of updates dropped since the last applied one."""
        self.dropped = 0
        """Total number of dropped updates, which is 0 in watch mode."""
        self.applied = 0
        self.overflows = 0
        """Total number of updates that a loss scaler skipped."""
        self._overflows_in_a_row = 0
        self._stop_reported = False
        self._settled = 0
        self._recent: deque[int] = deque()  # whether each of the last thousand settled steps was dropped
        self._alarmed: int | None = None

    def propose(self, row: StepMetrics, *, losses_finite: bool = True, scale: float | None = None) -> Proposal:
        """Return what this rank would do with the update.

        Args:
            row: Metrics of the update. The norm of all gradients is unscaled and taken before clipping.
            losses_finite: Whether every local loss is finite. A batch of only padding has a NaN loss
                but finite gradients.
            scale: The loss scale, or None without a loss scaler.
        """
        self._row, self._noticed = row, ()
        norm = 0.0 if row.global_norm is None else row.global_norm
        losses_finite = losses_finite and (row.loss is None or math.isfinite(row.loss))
        self._own_is_finite = losses_finite and math.isfinite(norm)
        tries = scale is not None and scale > 1 and self._overflows_in_a_row < _SCALER_TRIES
        if tries and losses_finite and not self._own_is_finite:
            return Proposal(action=Action.SKIP, norm=norm, is_finite=True)
        if self._watch is not None:
            self._noticed = self._watch.observe(row)
        kinds = {event.kind for event in self._noticed}
        action = Action.APPLY if self._own_is_finite and kinds.isdisjoint(_DROPS) else Action.SKIP
        if EventKind.STOP in kinds:
            action = Action.STOP
        return Proposal(action=action, norm=norm, is_finite=self._own_is_finite)

    def settle(self, agreed: Proposal) -> Decision:
        """Carry out the common decision of all ranks, and count it.

        The events give the reason. `Guard` reports the numbers of the step itself.

        Args:
            agreed: The largest action, finite only if it is finite on every rank.
        """
        self._settled += 1
        if math.isfinite(agreed.norm):
            self._overflows_in_a_row = 0
        if agreed.is_overflow and agreed.action is not Action.STOP:
            self.overflows += 1
            self._overflows_in_a_row += 1
            event = self._event(
                GuardEventKind.OVERFLOW,
                value=agreed.norm,
                count=self._overflows_in_a_row,
                message="the gradients are not finite, as the loss scaler tries a scale that is too large",
            )
            decision = Decision(action=Action.SKIP if self._acts else Action.APPLY, events=(event,))
        elif agreed.action is Action.APPLY and agreed.is_finite:
            decision = self._apply()
        else:
            decision = self._drop(agreed)
        # If this rank cannot propose because its norm could not be computed, it still settles.
        self._row, self._noticed = StepMetrics(step=Step(self._row.step + 1)), ()
        self._own_is_finite = True
        return decision

    def _apply(self) -> Decision:
        self.in_a_row = 0
        self._stop_reported = False
        self.applied += 1
        clips = [event for event in self._noticed if event.kind is EventKind.CLIP]
        events = [
            self._event(
                GuardEventKind.CLIP, value=clip.value, limit=clip.limit, clipped=self._acts, message=clip.message
            )
            for clip in clips
        ]
        limit = clips[0].limit if clips and self._acts else None
        return Decision(action=Action.APPLY, events=(*events, *self._passed_on()), limit=limit)

    def _drop(self, agreed: Proposal) -> Decision:
        self.in_a_row += 1
        self.dropped += self._acts
        self.applied += not self._acts
        events = [self._dropped(agreed), *self._passed_on()]
        stops = agreed.action is Action.STOP or self.in_a_row >= self._count_threshold
        if stops and (self._acts or not self._stop_reported):
            message = (
                f"{self.in_a_row} in a row were dropped: the weights are bad; `ckpttool resolve --around-spike last` "
                "chooses where to resume"
            )
            stop = self._event(GuardEventKind.STOP, count=self.in_a_row, stopped=self._acts, message=message)
            events.append(stop)
        self._stop_reported = stops
        events += self._too_often()
        if not self._acts:
            return Decision(action=Action.APPLY, events=tuple(events))
        return Decision(action=Action.STOP if stops else Action.SKIP, events=tuple(events))

    def _dropped(self, agreed: Proposal) -> GuardEvent:
        """Return an event with the reason for a drop: its numbers, the policy, or another rank."""
        kinds = [event.kind for event in self._noticed if event.kind in _DROPS]
        kind = GuardEventKind.SPIKE if EventKind.SPIKE in kinds else GuardEventKind.SKIP
        if not agreed.is_finite:
            kind = GuardEventKind.NONFINITE
        messages = [event.message for event in self._noticed if event.kind not in _PASSED_ON]
        if not self._own_is_finite:
            norm = self._row.global_norm
            is_norm = norm is not None and not math.isfinite(norm)
            # Not in the policy's words: it does not matter here whether its own trainer counts a NaN.
            messages = [f"the norm is {norm}" if is_norm else "a loss is not finite"]
        if not messages:
            messages = [f"another rank {'drops it' if agreed.is_finite else 'has numbers that are not finite'}"]
        limit = next((event.limit for event in self._noticed if event.limit is not None), None)
        return self._event(
            kind,
            value=self._row.global_norm,
            limit=limit,
            dropped=self._acts,
            count=self.in_a_row,
            message="; ".join(messages),
        )

    def _passed_on(self) -> Iterator[GuardEvent]:
        """Yield the policy's events that do not affect the decision on the update."""
        for event in self._noticed:
            if event.kind in _PASSED_ON:
                values: dict[str, EventValue] = {"value": event.value, "message": event.message}
                yield self._event(_PASSED_ON[event.kind], **values)

    def _too_often(self) -> Iterator[GuardEvent]:
        """Report that too many of the last thousand updates were dropped, once per thousand steps."""
        self._recent.append(self._settled)
        while self._recent[0] <= self._settled - _RECENT:
            self._recent.popleft()
        is_recent = self._alarmed is not None and self._settled - self._alarmed < _RECENT
        if len(self._recent) > _USUAL_DROPS and not is_recent:
            self._alarmed = self._settled
            count = len(self._recent)
            message = f"{count} of the last {_RECENT} updates were dropped: check whether the threshold fits this run"
            yield self._event(GuardEventKind.ALARM, name=SKIPS_TOO_OFTEN, count=count, message=message)

    def _event(self, kind: GuardEventKind, **values: EventValue) -> GuardEvent:
        return GuardEvent(kind=kind, step=self._row.step, values=values)

    def saved(self) -> JsonObject:
        """Return the complete state as plain JSON, for a checkpoint."""
        return {
            "schema": STATE_SCHEMA,
            "policy": _encode_policy(self._policy),
            "watch": None if self._watch is None else self._watch.saved(),
            "in_a_row": self.in_a_row,
            "dropped": self.dropped,
            "applied": self.applied,
            "overflows": self.overflows,
            "overflows_in_a_row": self._overflows_in_a_row,
            "stop_told": self._stop_reported,
            "settled": self._settled,
            "recent": list(self._recent),
            "alarmed": self._alarmed,
        }

    def restore(self, saved: Json, *, step: Step) -> tuple[GuardEvent, ...]:
        """Restore the state of the guard that wrote a checkpoint, and report lost state.

        If the policy or its settings changed, its memory is not used. The totals of applied and dropped updates stay
        correct.

        Args:
            saved: The output of `saved`, with any other keys, or None if nothing was saved.
            step: The step at which training continues.
        """
        self._row = StepMetrics(step=step)
        if saved is None:
            return (self._afresh(GuardEventKind.BLIND, "there is no saved state"),)
        try:
            return self._restored(as_object(saved))
        except ParseError as error:
            message = f"the saved state cannot be read ({error}) and is not used"
            return (self._afresh(GuardEventKind.GUARD_RESET, message),)

    def _restored(self, saved: JsonObject) -> tuple[GuardEvent, ...]:
        if get_str(saved, "schema") != STATE_SCHEMA:
            raise ParseError(f"expected {STATE_SCHEMA}", key="schema")
        totals = [get_int(saved, key) for key in ("dropped", "applied", "overflows")]
        if saved.get("policy") != _encode_policy(self._policy):
            self.dropped, self.applied, self.overflows = totals
            message = "the saved state is from another policy or other settings, and is not used"
            return (self._afresh(GuardEventKind.GUARD_RESET, message),)
        watch = None if self._policy is None else self._policy.begin()
        if watch is not None:
            watch.restore(saved.get("watch"))
        rows = [get_int(saved, key) for key in ("in_a_row", "overflows_in_a_row", "settled")]
        recent = deque(as_int(place) for place in get_list(saved, "recent"))
        stop_told, alarmed = get_bool(saved, "stop_told"), get_optional_int(saved, "alarmed")
        # All of it could be read: the state is never restored partially.
        self._watch, self._recent, self._stop_reported, self._alarmed = watch, recent, stop_told, alarmed
        self.dropped, self.applied, self.overflows = totals
        self.in_a_row, self._overflows_in_a_row, self._settled = rows
        return ()

    def _afresh(self, kind: GuardEventKind, why: str) -> GuardEvent:
        steps = self._warm_up()
        follows = (
            f"for {steps} steps the policy detects nothing"
            if steps
            else "the count of updates dropped in a row restarts"
        )
        return self._event(kind, steps=steps, message=f"{why}: {follows}")

    def _warm_up(self) -> int:
        """Return the number of usual steps that a fresh policy needs before it can detect anything."""
        if self._policy is None:
            return 0
        watch = self._policy.begin()
        for step in range(_LONGEST_WARM_UP):
            if watch.limit() is not None:
                return step
            watch.observe(StepMetrics(step=Step(step), loss=1.0, global_norm=1.0))
        return _LONGEST_WARM_UP


def _encode_policy(policy: Policy | None) -> Json:
    if policy is None:
        return None
    settings = {key: number(value) if isinstance(value, float) else value for key, value in settings_of(policy)}
    return {"name": policy.name, "settings": cast("Json", settings)}
