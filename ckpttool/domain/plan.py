"""Which checkpoint, where the data starts, and why not a newer one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.domain.checkpoint import Checkpoint
from ckpttool.domain.finding import Finding
from ckpttool.domain.frozen import dataclass
from ckpttool.domain.load_settings import LoadSettings
from ckpttool.domain.units import Step
from ckpttool.domain.verdict import Level, VerdictWord

if TYPE_CHECKING:
    from ckpttool.domain.advice import SpikeAdvice, StopAdvice


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A checkpoint that was not chosen, with every reason found."""

    checkpoint: Checkpoint
    reasons: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The checkpoint to load."""

    checkpoint: Checkpoint
    evidence: Level
    """How hard all of its shards were looked at."""
    verdict: VerdictWord
    """What that showed: `verified` where checksums agreed, `struct-ok` where there was none to compare with."""
    lost_steps: int
    """Batches between this checkpoint and the furthest one on its course, whole or not: work to be done again.

    Batches of this checkpoint's size; where the other one's differed, rounded up.
    """
    lost_samples: int | None = None
    """The same in samples; None where no batch size is known."""
    rejected: tuple[Rejection, ...]
    """Newest first: what a reader might have expected instead."""
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoResumePoint:
    """Nothing in the tree can be resumed from."""

    root: str
    evidence: Level
    """How hard to look was asked for."""
    rejected: tuple[Rejection, ...]
    findings: tuple[Finding, ...]
    advice: SpikeAdvice | StopAdvice | None = None
    """The way around a spike or on after a stop, where that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSegment:
    """A stretch of past training at one global batch size."""

    steps: int
    """Batches consumed in this stretch."""
    global_batch_size: int
    """Samples a batch over all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastSizes:
    """What the saves on the way to a checkpoint tell of the batches that it was trained with."""

    batch_sizes: tuple[int, ...] = ()
    """Samples a batch that any of them records, ascending: at each change the step was counted anew."""
    unrecorded_steps: int = 0
    """How far they came of which none is recorded: MindFormers counted on from there as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSkip:
    """Where the data loader must start, in batches of the *new* global batch size."""

    batches: int
    """Batches to skip."""
    repeated_samples: int | None
    """Samples that the resumed run sees a second time, because the skip is a whole number of batches (and sinks).
    None where there are some, but no batch size tells how many."""
    samples: int | None
    """Samples consumed before the checkpoint; None where the batch size is not known (and not needed)."""
    global_batch_size: int | None
    """New global batch size in samples; None where neither a shard nor the user told it."""
    sink_size: int | None = None
    """Batches a data sink, where the skip was rounded down to a multiple of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlan:
    """The skip, and the two settings that make MindFormers do it."""

    skip: DataSkip
    ignore_data_skip: bool
    """True where the data must start at its beginning: MindFormers takes `data_skip_steps: 0` for 'unset'."""
    next_step: Step
    """Global step that the resumed run does first, counted in batches of the new size."""
    left_to_trainer: bool = False
    """Whether neither setting is to be written: the new batch size is not known, and the trainer, which will know it,
    counts right by itself. `skip` is then what follows if the batches stay as large as they were."""
    dataset_state: str | None = None
    """Folder of the state files from which streaming data go on, whatever the settings say; None for all other data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipAnswer:
    """The arithmetic of a changed batch size alone."""

    data: DataPlan
    steps: Step
    """Batches consumed."""
    old_global_batch: int | None
    """Samples a batch before; None where segments tell it all."""
    exact_sizes: tuple[int, ...]
    """Global batch sizes near the wished-for one at which no sample is seen twice; empty where it is exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What MindFormers would pick by itself with `resume_training: True`."""

    version: str
    would_resume: str | None
    """Checkpoint name; None where it stops with an error, starts from random weights, or lets every rank differ."""
    because: str
    """One sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePlan:
    """Everything a launch needs."""

    root: str
    point: ResumePoint
    load: LoadSettings
    data: DataPlan
    findings: tuple[Finding, ...] = ()
    """About the resume as a whole: counters that MindFormers will get wrong, settings that disagree."""
    advice: SpikeAdvice | StopAdvice | None = None
    """The way around a spike or on after a stop, where that was asked for; `data` follows it."""
