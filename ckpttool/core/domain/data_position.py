"""Position of the data after a resume, in the trainer's own units, and the questions about it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.option import WITHOUT_BATCH_SIZE, Option
from ckpttool.core.domain.units import Step, is_count
from ckpttool.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from ckpttool.core.domain.load_settings import TrainerSetting


class DataEffect(str, Enum):
    """Effect of a resume on the training samples."""

    EXACT = "exact"
    REPEATS = "repeats"
    LOSES = "loses"
    REORDERS = "reorders"
    RESTARTS = "restarts"
    """The data start again from the beginning."""
    REFUSES = "refuses"
    """The trainer refuses to start."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipBatches:
    """A skip of the consumed samples by the data loader, in batches of the *new* global batch size."""

    batches: int
    """Number of batches to skip."""
    repeated_samples: int | None
    """Number of samples that the resumed run sees again, because the skip is a whole number of batches (and sinks).

    None if samples repeat but the batch size is unknown.
    """
    samples: int | None
    """Samples consumed before the position at which the data resume; None if the batch size is unknown and not needed.
    """
    global_batch_size: int | None
    """New global batch size in samples; None if neither a shard nor the user provides it."""
    sink_size: int | None = None
    """Batches per data sink, if the skip was rounded down to whole sinks; otherwise None."""
    lost_samples: int | None = 0
    """Number of samples skipped on purpose; None if the batch size is unknown."""
    begins_anew: bool = False
    """Whether the data are new, so that earlier consumption does not count."""

    @property
    def effect(self) -> DataEffect:
        """Most severe effect of the skip on the samples."""
        if self.begins_anew:
            return DataEffect.RESTARTS
        if self.lost_samples != 0:
            return DataEffect.LOSES
        return DataEffect.EXACT if self.repeated_samples == 0 else DataEffect.REPEATS


class SampleSource(str, Enum):
    """Source of the number of consumed samples."""

    CONTENT = "content"
    """The save itself, because its trainer counts samples."""
    COMPUTED = "computed"
    """Computed from the step and the batch size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoesOn:
    """Position from which the trainer continues without a data setting.

    The trainer uses samples that it counts, data loader states that it saved, or only its step.
    """

    effect: DataEffect
    why: str | None = None
    """Reason in one sentence; None if the numbers explain it."""
    samples: int | None = None
    """Number of samples consumed at the save; None if unknown or not used."""
    source: SampleSource | None = None
    """Source of `samples`; None if there is no source, or if the trainer uses only samples."""
    tokens: int | None = None
    """Number of tokens consumed, if the trainer counts tokens."""
    batches: int | None = None
    """Number of batches of the new size that the trainer treats as consumed; None if unknown or not counted."""
    repeated: int | None = None
    """Number of samples that are read again; None if unknown."""
    lost: int | None = None
    """Number of samples that are never read; None if unknown."""
    where: str | None = None
    """File or folder of the data loader states that the trainer will read; None if it reads none."""
    exact_with: tuple[TrainerSetting, ...] = ()
    """Settings that prevent repeated or lost samples; empty if no settings exist or are needed."""
    exact_if: tuple[str, ...] = ()
    """Conditions under which no sample is repeated, lost or moved, with the versions that matter.

    Each condition is a clause without "if" and without a full stop. An exact position assumes that all conditions are
    true. For any other position, they are false or not checked. Empty if there are no conditions.
    """
    unchanged: SkipBatches | None = None
    """The skip if nothing changed; None if the trainer skips no batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """An unknown data position of the resumed run."""

    why: str
    """Reason in one sentence."""


DataPosition: TypeAlias = SkipBatches | GoesOn | Unknown


def effect_of(position: DataPosition) -> DataEffect:
    """Return the effect of the data position on the samples."""
    return DataEffect.UNKNOWN if isinstance(position, Unknown) else position.effect


def skip_of(position: DataPosition) -> SkipBatches | None:
    """Return the skip, or the skip that would apply if nothing changed; None if no batches are skipped."""
    match position:
        case SkipBatches():
            return position
        case GoesOn():
            return position.unchanged
        case Unknown():  # pragma: no branch  mypy knows all
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSegment:
    """A segment of past steps with one global batch size."""

    steps: int
    """Number of batches consumed in this segment."""
    global_batch_size: int
    """Samples per batch over all ranks."""


def segments(texts: Sequence[str]) -> tuple[BatchSegment, ...]:
    """Parse texts of the form `STEPS:GBS`.

    Raises:
        UsageError: A text does not consist of two integers.
    """
    return tuple(_segment(text) for text in texts)


def _segment(text: str) -> BatchSegment:
    steps, _, batch = text.partition(":")
    if not (is_count(steps) and is_count(batch) and int(batch)):
        raise UsageError(f"--segment takes STEPS:GBS, such as 1000:512, not {text!r}")
    return BatchSegment(steps=int(steps), global_batch_size=int(batch))


SEGMENT: Final = Option(
    "--segment",
    "Past steps at another batch size, oldest first; repeatable.",
    "Data position",
    metavar="STEPS:GBS",
    parse=segments,
    typed=list[str] | None,
)


def change(text: str) -> tuple[Step, int | None]:
    """Parse a text of the form `STEP[:GBS]`.

    Raises:
        UsageError: The text is not one integer, or two integers separated by a colon.
    """
    step, colon, batch = text.partition(":")
    if not is_count(step) or (colon and not (is_count(batch) and int(batch))):
        raise UsageError(f"--dataset-changed-at takes STEP or STEP:GBS, such as 800 or 800:512, not {text!r}")
    return Step(int(step)), int(batch) if colon else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataQuestion:
    """The user's options about the data of the resumed run."""

    new_global_batch: Annotated[
        int | None,
        Option(
            "--gbs --new-gbs",
            "Global batch size of the resumed run. Used for the calculation; does not "
            "change the config. Default: from --config, else unchanged.",
            "Data position",
            least=1,
        ),
    ] = None
    """Samples per batch over all ranks; None if the size does not change."""
    old_global_batch: Annotated[
        int | None,
        Option(
            "--old-gbs",
            f"Previous global batch size, if the shards do not record it ({WITHOUT_BATCH_SIZE}).",
            "Data position",
            least=1,
        ),
    ] = None
    """Previous samples per batch, for checkpoints that do not record this size."""
    sink_size: int | None = None
    """Batches per data sink in the resumed run; None if there is no data sinking, or the size is unknown."""
    segments: Annotated[tuple[BatchSegment, ...], SEGMENT] = ()
    """Earlier segments with other batch sizes, oldest first; the remaining steps used the checkpoint's size.

    Used only if no shard records the batch size, because a recorded step counts batches of the size recorded with it.
    """
    new_dataset: Annotated[bool, Option("--new-dataset", "Read the data from the beginning.", "Data position")] = False
    dataset_changed_at: Annotated[
        Step | None,
        Option(
            "--dataset-changed-at",
            "Step at which the data set was replaced (in batches of GBS samples); skip only the data read since.",
            "Data position",
            metavar="STEP[:GBS]",
            parse=change,
            also="dataset_changed_batch",
        ),
    ] = None
    """Steps completed when the data set was replaced; None if it was not replaced."""
    dataset_changed_batch: int | None = None
    """Samples per batch for `dataset_changed_at`; None if the size is the same as for the checkpoint's own step."""

    def assert_consistent(self) -> None:
        """Raise an error if options contradict each other.

        Raises:
            UsageError: Two options contradict each other.
        """
        if self.new_dataset and self.dataset_changed_at is not None:
            raise UsageError("--new-dataset and --dataset-changed-at cannot be used together")


@dataclass(frozen=True, slots=True, kw_only=True)
class PastSizes:
    """Batch sizes that were recorded by the saves on the path to a checkpoint."""

    batch_sizes: tuple[int, ...] = ()
    """Samples per batch in these saves, ascending. The trainer recomputed the step at each change."""
    unrecorded_steps: int = 0
    """Highest step of a save without a recorded batch size. The trainer continued from this step without conversion."""
    why_unrecorded: str | None = None
    """Which saves of this trainer do not record the batch size; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipAnswer(Answered):
    """Answer with the number of batches to skip after a change of the batch size."""

    NOUN = "skip"

    skip: SkipBatches
    steps: Step
    """Number of batches consumed."""
    old_global_batch: int | None
    """Samples per batch before the change; None if segments define it."""
    exact_sizes: tuple[int, ...]
    """Global batch sizes near the requested size that repeat no sample; empty if the requested size repeats none."""
    told: TrainersSkip | None
    """The setting for the skip; None if the trainer has no such setting."""
    by_trainer: str | None = None
    """Description of how the trainer skips batches without a setting; None if it does not, or if this is unknown."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code, always 0, because the answer is pure arithmetic."""
        return ExitCode.OK

    @property
    def data_skip_steps(self) -> int:
        """Number of batches of the new global batch size that the data loader skips."""
        return self.skip.batches


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainersSkip:
    """The skip, as a setting of one trainer."""

    setting: str
    value: int | bool
    remark: str | None = None
    """Explanation if this setting is not the one that users expect; otherwise None."""
    whole_sinks: str = ""
    """Name of the trainer, if it counts whole data sinks; otherwise empty."""
