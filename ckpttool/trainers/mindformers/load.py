"""The settings that make MindFormers load exactly the chosen checkpoint, and continue its data."""

from __future__ import annotations

from ckpttool.core.domain.checkpoint import Rename
from ckpttool.core.domain.data_position import DataPosition, DataQuestion, GoesOn, SkipBatches, Unknown, skip_of
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.load_settings import LoadSettings, Place, SettingValue, TrainerSetting
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import FormatName

LOAD_FORMAT = {FormatName.MINDSPORE_CKPT: "ckpt", FormatName.SAFETENSORS: "safetensors"}

_LOAD, _RESUME, _FORMAT, _LEGACY = (
    f"config:{key}" for key in ("load_checkpoint", "resume_training", "load_ckpt_format", "use_legacy_format")
)

_SKIP, _IGNORE = "config:data_skip_steps", "config:ignore_data_skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadKeys:
    """The four keys of a config that decide which save is loaded."""

    load_checkpoint: str
    resume_training: str | bool
    """An explicit file name in the legacy layout, because MindFormers' own choice is not reliable.

    True in the newer layout, in which `load_checkpoint` already names the iteration's folder.
    """
    load_ckpt_format: str
    """Format of the files: `ckpt` or `safetensors`."""
    use_legacy_format: bool

    def settings(self, first: tuple[Rename, ...] = ()) -> LoadSettings:
        """Return the keys in the form that all trainers share."""
        return LoadSettings(
            trainer="mindformers",
            path=self.load_checkpoint,
            settings=(
                _setting(_LOAD, self.load_checkpoint, is_path=True),
                _setting(_RESUME, self.resume_training),
                _setting(_FORMAT, self.load_ckpt_format),
                _setting(_LEGACY, self.use_legacy_format, is_default=self.use_legacy_format),
            ),
            first=first,
            older=tuple((place.partition(":")[2], place) for place in (_LOAD, _RESUME, _FORMAT)),
        )


def _setting(place: str, value: SettingValue, *, is_path: bool = False, is_default: bool = False) -> TrainerSetting:
    return TrainerSetting(place=Place.parsed(place), value=value, is_path=is_path, is_default=is_default)


def load_keys(load: LoadSettings) -> LoadKeys:
    """Convert settings from this module back to keys."""
    resume = load.value(_RESUME)
    return LoadKeys(
        load_checkpoint=load.path,
        resume_training=resume if isinstance(resume, str) else resume is True,
        load_ckpt_format=str(load.value(_FORMAT)),
        use_legacy_format=load.value(_LEGACY) is not False,
    )


def data_settings(position: DataPosition) -> tuple[TrainerSetting, ...]:
    """Return the settings for a position in the data.

    To skip nothing, a config needs `ignore_data_skip`, because 0 means 'not set' to MindFormers, which then skips the
    steps of the checkpoint. A `data_skip_steps` in the base config becomes null, which clearly means 'not set' and
    keeps its line with its comment; if the config has no such line, no line is added.
    """
    match position:
        case SkipBatches(batches=0):
            return _setting(_IGNORE, value=True), _setting(_SKIP, None, is_default=True)
        case SkipBatches(batches=batches):
            return _setting(_SKIP, batches), _setting(_IGNORE, value=False)
        case GoesOn(where=None):
            return _setting(_IGNORE, value=False, is_default=True), _setting(_SKIP, None, is_default=True)
        case GoesOn() | Unknown():  # pragma: no branch  mypy knows all
            return ()


def counts_data_itself(scalars: Scalars, question: DataQuestion) -> bool:
    """Return whether MindFormers should count the data itself, because only MindFormers can determine the batch size.

    Args:
        scalars: The checkpoint's scalars: the basis of MindFormers' scaling, if it finds them in the checkpoint.
        question: The user's question, completed from the config. If the question asks for more than a
            position, MindFormers cannot determine that on its own.

    Source:
        load_resume_context_from_checkpoint: `initial_step = step_num * old / new` if the shard has both numbers, and
        BaseTrainer.training_process, which skips that many unless `data_skip_steps` sets another number.
    """
    is_requested = question.new_dataset or question.dataset_changed_at is not None or question.segments
    counts = scalars.step is not None and scalars.global_batch_size is not None
    return counts and question.new_global_batch is None and not is_requested


def planned_skip(plan: ResumePlan) -> SkipBatches:
    """Return the batches that a plan for MindFormers skips, or would skip.

    Such a plan always counts data in batches.
    """
    skip = skip_of(plan.data)
    if skip is None:
        raise AssertionError(f"a plan of MindFormers counts batches, not {plan.data}")
    return skip


def is_moved(plan: ResumePlan) -> bool:
    """Return whether the data continue at a different place than the steps, apart from rounding to complete sinks."""
    return abs(planned_skip(plan).batches - (plan.next_step - 1)) >= (planned_skip(plan).sink_size or 1)
