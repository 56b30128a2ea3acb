"""What becomes of an update: this rank reads its numbers, all agree, and each settles the same."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.guard.agree import Agreement, Ranks, Vote
from ckpttool.guard.contain import Containment, Part
from ckpttool.guard.model.guarding import Action, Decision, GuardMode, Proposal
from ckpttool.guard.norm import Losses, Reading
from ckpttool.guard.rules.guarding import SpikeGuard
from ckpttool.guard.scaling import Scaling

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What was decided on one step, and from what."""

    reading: Reading | None
    """None where it could not be read on this rank."""
    agreed: Agreement
    decision: Decision

    @property
    def drops(self) -> bool:
        """Whether the update is dropped."""
        return self.decision.action is not Action.APPLY

    @property
    def is_applied(self) -> bool:
        """Whether it is applied: what overflowed the loss scaler drops, whatever the guard does."""
        return not self.drops and not self.agreed.is_overflow


class Deciding:
    """Decides on each step. Everything but the agreement is contained."""

    def __init__(
        self,
        spikes: SpikeGuard,
        mode: GuardMode,
        scaling: Scaling,
        ranks: Ranks,
        contain: Containment,
    ) -> None:
        """Take the rule, and who decides together."""
        self._spikes = spikes
        self._mode = mode
        self._scaling = scaling
        self._ranks = ranks
        self._contain = contain
        self.stops_at_abnormal = False
        """Whether a wrong matrix product ends the training."""

    def decide(
        self, step: Step, norm: Tensor | float | None, losses: Losses, vote: Vote, *, embedding: Tensor | None = None
    ) -> Decided:
        """Decide on a step. Every rank must call it once in each, whatever happened before.

        Args:
            step: Its number.
            norm: Of all gradients; None where it could not be taken.
            losses: Of its micro-batches.
            vote: What this rank knows beside its numbers.
            embedding: Sum of squares of the embedding's gradient; None if it is not measured.
        """
        reading = None
        if norm is not None:
            reading = self._contain.run(Part.NORM, lambda: losses.read(norm, embedding), waits=True)
        proposal = None if reading is None else self._proposed(reading, step)
        if proposal is not None and vote.abnormal and self.stops_at_abnormal:
            proposal = replace(proposal, action=Action.STOP)
        agreed = self._ranks.agree(replace(vote, proposal=proposal, failed=self._contain.next_failed()))
        self._contain.agreed(agreed.failed)
        return Decided(reading=reading, agreed=agreed, decision=self._settled(agreed))

    def _proposed(self, reading: Reading, step: Step) -> Proposal:
        row = StepMetrics(
            step=step, loss=reading.loss, global_norm=reading.norm, embedding_local_norm=reading.embedding
        )
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
        scaler = self._scaling.scaler
        if scaler is None or not scaler.is_enabled() or math.isfinite(reading.norm):
            return None
        return scaler.get_scale()

    def _settled(self, agreed: Agreement) -> Decision:
        proposal = agreed.proposal
        if proposal is None or self._contain.is_off:
            return Decision(action=Action.APPLY)
        decision = self._contain.run(Part.POLICY, lambda: self._spikes.settle(proposal))
        if decision is not None:
            return decision
        # The other ranks settled the same numbers, and drop where any rank wanted to.
        must_wait = self._mode is GuardMode.ACT and (proposal.action is not Action.APPLY or not proposal.is_finite)
        return Decision(action=Action.SKIP if must_wait else Action.APPLY)
