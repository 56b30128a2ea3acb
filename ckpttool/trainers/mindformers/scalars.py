"""The training state that MindFormers appends to a rank's file and writes into common.json, and the labels of saves."""

from __future__ import annotations

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.scalars import (
    AgreedScalar,
    Facts,
    NameClaim,
    OwnScalars,
    RequestedScalar,
    ScalarRules,
    Scalars,
    ScalarValues,
    ShardFacts,
)
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.units import Step
from ckpttool.trainers.mindformers.findings import MindFormersCode

RULES = ScalarRules(
    requested=(
        RequestedScalar(name="epoch_num"),
        RequestedScalar(name="step_num"),
        RequestedScalar(name="global_step"),
        RequestedScalar(name="loss_scale", is_integer=False),
        RequestedScalar(name="global_batch_size", least=1),  # a batch without samples cannot have been trained on
    ),
    # `global_batch_size` was added in 1.3, and the unified layout has its own rules for it.
    required=(
        (ShardRole.FULL, ("epoch_num", "step_num", "global_step", "loss_scale")),
        (ShardRole.SCALARS, ("epoch_num", "step_num", "global_step")),
    ),
    agreed=(
        AgreedScalar(name="step_num", code=Code.STEP_DISAGREES, severity=Severity.DAMAGE),
        AgreedScalar(name="epoch_num", code=MindFormersCode.EPOCH_DISAGREES, severity=Severity.DAMAGE),
        AgreedScalar(name="global_step", code=Code.STEP_DISAGREES, severity=Severity.DAMAGE),
        AgreedScalar(name="global_batch_size", code=Code.SCHEMA_DIFFERS, severity=Severity.DAMAGE),
        # All ranks use the same loss scale, but a rank with another one is harmless.
        AgreedScalar(name="loss_scale", code=Code.SCHEMA_DIFFERS, severity=Severity.SUSPECT),
    ),
    without="MindFormers would load this one and start at step 0",
    without_batch_size="MindFormers 1.2 wrote none",
)
"""The rules for the scalars that MindFormers appends: Int64 [] and, for the optimizer's own counter, Int32 [1]."""

PLANNED_STEPS = "planned_steps"
"""Planned number of steps, which the PyNative trainer writes as `step_num`; 0 if the trainer wrote none."""

FACTS = ShardFacts(scalars=RULES.requested)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """The scalars by their names; None for entries missing in a file."""

    epoch_num: int | None = None
    """Epochs (sinks in data-sink mode) begun since the start of the training run."""
    step_num: int | None = None
    """True global step: data batches consumed."""
    global_step: int | None = None
    """Optimizer step: the number of updates applied; overflowed and skipped batches do not count."""
    loss_scale: float | None = None
    global_batch_size: int | None = None
    """Samples per batch over all ranks; files from MindFormers 1.2 lack this number."""
    consumed_samples: int | None = None
    by_own_writer: bool = False
    """Whether ckpttool's writer made the file.

    This writer records health only if it was measured.
    """

    @property
    def scalars(self) -> Scalars:
        """The scalars common to all trainers, and the other scalars under their own names."""
        rest = (("epoch_num", self.epoch_num), ("global_step", self.global_step), ("loss_scale", self.loss_scale))
        return Scalars(
            step=self.step_num,
            samples=self.consumed_samples,
            global_batch_size=self.global_batch_size,
            rest=tuple((name, value) for name, value in rest if value is not None),
        )

    @property
    def facts(self) -> Facts:
        """The facts to display."""
        return ("epoch", self.epoch_num), ("optimizer_step", self.global_step)


def state_in(values: ScalarValues) -> TrainState:
    """Parse the values of these scalars in a file."""
    by_name = dict(values)
    return TrainState(
        epoch_num=_integer(by_name.get("epoch_num")),
        step_num=_integer(by_name.get("step_num")),
        global_step=_integer(by_name.get("global_step")),
        loss_scale=by_name.get("loss_scale"),
        global_batch_size=_integer(by_name.get("global_batch_size")),
    )


def meaning(values: ScalarValues) -> tuple[Scalars, Facts]:
    """Return the meaning of a file's scalars, regardless of its path."""
    state = state_in(values)
    return state.scalars, state.facts


def state_of(scalars: Scalars) -> TrainState:
    """Return a checkpoint's scalars under MindFormers' own names."""
    by_name = dict(scalars.rest)
    return TrainState(
        epoch_num=_integer(by_name.get("epoch_num")),
        step_num=scalars.step,
        global_step=_integer(by_name.get("global_step")),
        loss_scale=by_name.get("loss_scale"),
        global_batch_size=scalars.global_batch_size,
        consumed_samples=scalars.samples,
    )


def by_pynative(checkpoint: Checkpoint) -> bool:
    """Return whether the PyNative trainer wrote a save."""
    return any(name == PLANNED_STEPS for name, _ in checkpoint.scalars.rest)


def _integer(value: float | None) -> int | None:
    return None if value is None else int(value)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class EpochStep:
    """Epoch and step in a file name, both counted from 1.

    In data-sink mode, `epoch` counts sink intervals and `step` is the sink size. After a resume without data sinking,
    the numbers restart and are not even monotonic. So this is a label, not a position.
    """

    epoch: int
    step: int

    def __str__(self) -> str:
        """Return the label in MindFormers' form for file names, `20_2`."""
        return f"{self.epoch}_{self.step}"

    def global_step(self, *, steps_per_epoch: int) -> Step:
        """Convert the label of a *never resumed* run to its global step.

        Args:
            steps_per_epoch: Steps in one of the epochs that the label counts: the sink size in data-sink
                mode, otherwise the batches in the data set.
        """
        return Step((self.epoch - 1) * steps_per_epoch + self.step)

    @property
    def sort_key(self) -> tuple[int, int]:
        """Sort key for the saves of one run."""
        return self.epoch, self.step

    @property
    def facts(self) -> Facts:
        """The facts to display."""
        return ("epoch", self.epoch), ("step_in_epoch", self.step)

    @property
    def claims(self) -> tuple[NameClaim, ...]:
        """Return the values that a shard's content must match.

        `epoch_num` is the label's epoch in every file that MindFormers writes. The label's step is counted in the epoch
        (or is the sink size), so this step is only a lower limit for the number of steps.
        """
        epoch = f"the name says epoch {self.epoch}, the content says %d"
        step = f"the name says step {self.step} of its epoch, the content says that only %d steps were completed"
        return (
            NameClaim(scalar="epoch_num", value=self.epoch, message=epoch),
            NameClaim(scalar="step_num", value=self.step, at_least=True, message=step),
        )


def epoch_step(checkpoint: Checkpoint) -> EpochStep | None:
    """Return the label of a rank's save; None if the layout has no labels."""
    return EpochStep(epoch=checkpoint.sort_key[0], step=checkpoint.sort_key[1]) if checkpoint.sort_key else None


def same_run(checkpoint: Checkpoint, inventory: Inventory) -> tuple[Checkpoint, ...]:
    """Return all saves of a checkpoint's own run."""
    run_key = (checkpoint.prefix, checkpoint.run)
    return tuple(save for save in inventory.checkpoints if (save.prefix, save.run) == run_key)


OWN = OwnScalars(rules=RULES, meaning=meaning)
