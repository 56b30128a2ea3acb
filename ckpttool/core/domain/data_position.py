"""Position of the data after a resume, in the trainer's own units, with its questions and answers."""

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
    """The effect of a resume on the samples."""

    EXACT = "exact"
    REPEATS = "repeats"
    LOSES = "loses"
    REORDERS = "reorders"
    RESTARTS = "restarts"
    """The data start again from the beginning."""
    REFUSES = "refuses"
    """The trainer stops."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipBatches:
    """The data loader skips the consumed samples, in batches of the *new* global batch size."""

    batches: int
    """Batches to skip."""
    repeated_samples: int | None
    """Samples that the resumed run sees a second time, because the skip is a whole number of batches (and sinks). None
    if samples repeat but the batch size, and so their number, is unknown."""
    samples: int | None
    """Samples consumed before the position where the data resume; None if the batch size is unknown (and not needed).
    """
    global_batch_size: int | None
    """New global batch size in samples; None if neither a shard nor the user gave it."""
    sink_size: int | None = None
    """Batches per data sink, if the skip was rounded down to a multiple of this number."""
    lost_samples: int | None = 0
    """Samples skipped on purpose; None if their number is unknown without a batch size."""
    begins_anew: bool = False
    """Whether the data are new, so that earlier consumption does not count."""

    @property
    def effect(self) -> DataEffect:
        """Effect on the samples, the most severe first."""
        if self.begins_anew:
            return DataEffect.RESTARTS
        if self.lost_samples != 0:
            return DataEffect.LOSES
        return DataEffect.EXACT if self.repeated_samples == 0 else DataEffect.REPEATS


class SampleSource(str, Enum):
    """The source of the number of consumed samples."""

    CONTENT = "content"
    """The save itself: its trainer counts them."""
    COMPUTED = "computed"
    """Computed from the step and the batch size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoesOn:
    """The trainer continues on its own: from samples that it counts, states that it saved, or its step alone."""

    effect: DataEffect
    why: str | None = None
    """The reason, in one sentence; None if the numbers explain it."""
    samples: int | None = None
    """Samples consumed at the save; None if unknown or not used."""
    source: SampleSource | None = None
    """The source of `samples`; None if there is no source, or if the trainer uses only samples."""
    tokens: int | None = None
    """Tokens consumed, if the trainer counts tokens."""
    batches: int | None = None
    """Batches of the new size that the trainer treats as consumed; None if the trainer does not count batches, or the
    number is unknown."""
    repeated: int | None = None
    """Samples that are read again; None if unknown."""
    lost: int | None = None
    """Samples that are never read; None if unknown."""
    where: str | None = None
    """Folder or file of the data loader's states that the trainer will read; None if the trainer reads no such
    states."""
    exact_with: tuple[TrainerSetting, ...] = ()
    """Settings with which no sample is repeated or lost; empty if no such settings exist or are needed."""
    exact_if: tuple[str, ...] = ()
    """The conditions under which no sample is repeated, lost or moved, with the versions that matter: clauses without a
    leading "if" or a final full stop. An exact position assumes that they are true; for any other position they are
    false or not checked. Empty: no conditions."""
    unchanged: SkipBatches | None = None
    """The batches that would be skipped if nothing changed; None if the trainer skips no batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The data position of the resumed run is unknown."""

    why: str
    """One sentence."""


DataPosition: TypeAlias = SkipBatches | GoesOn | Unknown


def effect_of(position: DataPosition) -> DataEffect:
    """Return the effect on the samples."""
    return DataEffect.UNKNOWN if isinstance(position, Unknown) else position.effect


def skip_of(position: DataPosition) -> SkipBatches | None:
    """Return the batches that are skipped, or would be if nothing changed; None if no batches are skipped."""
    match position:
        case SkipBatches():
            return position
        case GoesOn():
            return position.unchanged
        case Unknown():  # pragma: no branch  mypy knows all
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSegment:
    """Consecutive past steps at one global batch size."""

    steps: int
    """Batches consumed in this stretch."""
    global_batch_size: int
    """Samples per batch over all ranks."""


def segments(texts: Sequence[str]) -> tuple[BatchSegment, ...]:
    """Parse `STEPS:GBS`.

    Raises:
        UsageError: A text is not two whole numbers.
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
    """Parse `STEP[:GBS]`.

    Raises:
        UsageError: The text is not one whole number, or two separated by a colon.
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
    """Samples per batch over all ranks; None leaves the size unchanged."""
    old_global_batch: Annotated[
        int | None,
        Option(
            "--old-gbs",
            f"Previous global batch size, if the shards do not record it ({WITHOUT_BATCH_SIZE}).",
            "Data position",
            least=1,
        ),
    ] = None
    """Samples per batch so far, for checkpoints that do not record this size."""
    sink_size: int | None = None
    """Batches per data sink in the resumed run; None if there is no data sinking, or the size is unknown."""
    segments: Annotated[tuple[BatchSegment, ...], SEGMENT] = ()
    """Earlier segments at other batch sizes, oldest first; the remaining steps ran at the checkpoint's size.

    Used only if no shard records them: a step counts batches of the size recorded with it, whatever ran before.
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
    """Samples per batch of this step count; None if the size is the same as for the checkpoint's own step."""

    def assert_consistent(self) -> None:
        """Reject options that contradict each other.

        Raises:
            UsageError: Two options contradict each other.
        """
        if self.new_dataset and self.dataset_changed_at is not None:
            raise UsageError("--new-dataset and --dataset-changed-at cannot be used together")


@dataclass(frozen=True, slots=True, kw_only=True)
class PastSizes:
    """The batch sizes recorded by the saves on the path to a checkpoint."""

    batch_sizes: tuple[int, ...] = ()
    """Samples per batch that any of these saves records, ascending; at each change the step was recomputed."""
    unrecorded_steps: int = 0
    """Highest step of those saves that record no batch size: the trainer continued from it without converting it."""
    why_unrecorded: str | None = None
    """The saves of this trainer that do not record the batch size; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipAnswer(Answered):
    """The batches to skip after a change of the batch size."""

    NOUN = "skip"

    skip: SkipBatches
    steps: Step
    """Batches consumed."""
    old_global_batch: int | None
    """Samples per batch before the change; None if segments give it."""
    exact_sizes: tuple[int, ...]
    """Global batch sizes near the requested one at which no sample is repeated; empty if the requested size is
    exact."""
    told: TrainersSkip | None
    """None if the trainer has no setting for it."""
    by_trainer: str | None = None
    """How the trainer skips the batches without a setting, in words; None if the trainer does not, or this is
    unknown."""

    @property
    def exit_code(self) -> ExitCode:
        """Return 0, because the answer is pure arithmetic."""
        return ExitCode.OK

    @property
    def data_skip_steps(self) -> int:
        """Batches of the new global batch size that the data loader skips."""
        return self.skip.batches


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainersSkip:
    """A skip, expressed as a setting of one trainer."""

    setting: str
    value: int | bool
    remark: str | None = None
    """Why this setting and not the expected one."""
    whole_sinks: str = ""
    """Name of the trainer that counts whole data sinks."""
