"""Epoch and step, by which MindFormers names what a rank saved."""

from __future__ import annotations

from ckpttool.domain.checkpoint import Checkpoint, Facts
from ckpttool.domain.frozen import dataclass
from ckpttool.domain.scalars import NameClaim
from ckpttool.domain.units import Step


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class EpochStep:
    """Epoch and step as a file name holds them, both counted from 1.

    In data-sink mode `epoch` counts sink intervals and `step` is the sink size; after a resume without
    data sinking the numbers start anew and are not even monotonic. So this is a label, not a position.
    """

    epoch: int
    step: int

    def __str__(self) -> str:
        """Return the label as MindFormers spells it in a file name, `20_2`."""
        return f"{self.epoch}_{self.step}"

    def global_step(self, *, steps_per_epoch: int) -> Step:
        """Convert the label of a *never resumed* run to its global step.

        Args:
            steps_per_epoch: Steps in one of the epochs that the label counts: the sink size in data-sink
                mode, else the batches in the data set.
        """
        return Step((self.epoch - 1) * steps_per_epoch + self.step)

    @property
    def sort_key(self) -> tuple[int, int]:
        """What orders the saves of one run."""
        return self.epoch, self.step

    @property
    def facts(self) -> Facts:
        """What is shown of it."""
        return ("epoch", self.epoch), ("step_in_epoch", self.step)

    @property
    def claims(self) -> tuple[NameClaim, ...]:
        """Say how far a shard's content must agree.

        `epoch_num` is the label's epoch in every file that MindFormers writes. The label's step is counted in the epoch
        (or is the sink size), so it tells only that no fewer steps were done.
        """
        epoch = f"the name says epoch {self.epoch}, the content %d"
        step = f"the name says step {self.step} of its epoch, the content that only %d steps were done"
        return (
            NameClaim(scalar="epoch_num", value=self.epoch, message=epoch),
            NameClaim(scalar="step_num", value=self.step, at_least=True, message=step),
        )


def epoch_step(checkpoint: Checkpoint) -> EpochStep | None:
    """Return the label of what a rank saved; None where the layout has none."""
    return EpochStep(epoch=checkpoint.sort_key[0], step=checkpoint.sort_key[1]) if checkpoint.sort_key else None
