"""Number of steps that MindFormers will train, number of batches that the data provide, and their difference.

MindFormers computes the remaining steps from the checkpoint's counters, regardless of the data skip. Every number in
this module was compared with runs of the real program (2.1.0), with and without sinks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.data_position import GoesOn
from ckpttool.core.domain.finding import Finding, Row, note, suspect, unknown
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.units import counted
from ckpttool.trainers.findings import TrainersCode
from ckpttool.trainers.mindformers.counters import mindformers_counters, saved_sinks, sinks_as_epochs
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.load import is_moved, load_keys, planned_skip
from ckpttool.trainers.mindformers.scalars import epoch_step, same_run, state_of

if TYPE_CHECKING:
    from ckpttool.trainers.mindformers.train_config import TrainConfig

_EPOCHS = "runner_config.epochs"
_STOPS = "stops with a ValueError, 'epoch' must bigger than 'initial_epoch'"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLength:
    """The length of the resumed run, in batches of its own batch size."""

    per_epoch: int
    """Batches per epoch."""
    source: str
    """Source of `per_epoch`, for messages."""
    total: int
    """Number of batches in all epochs."""
    start: int
    """Step from which MindFormers continues to count."""
    over: bool
    """Whether MindFormers considers all epochs complete."""
    planned: int
    """Number of steps that MindFormers will train, if the run is not complete."""
    left: int
    """Number of batches after the skipped batches; 0 or less if none remains."""

    @property
    def due(self) -> int:
        """Number of steps from the checkpoint to the end of the last epoch."""
        return self.total - self.start


def length_findings(
    config: TrainConfig | None, plan: ResumePlan, inventory: Inventory, logged: int | None = None
) -> Iterator[Finding]:
    """Report a run that does not start, or ends before or after its epochs, or the condition for that.

    Args:
        config: The base config; None if unknown.
        plan: The plan of the resume, with the start of its data.
        inventory: The complete tree: the labels show the length of an epoch.
        logged: Batches per epoch when the checkpoint was saved, from the training log; None if the log does not show
            this number.
    """
    if isinstance(plan.data, GoesOn):
        return
    if config is None:
        if is_moved(plan):
            yield from _moved(None, plan)
        return
    length = run_length(config, plan, inventory, logged)
    switched = _had_sinks(config, plan, inventory) or _into_an_epoch(config, plan, inventory, logged)
    if switched is not None:
        yield switched
    elif _is_complete(config, plan, length):
        yield _complete(config, plan, length)
    elif length is None:
        yield from _moved(config, plan) if is_moved(plan) else _of_unknown_length(config, plan)
    elif length.left <= 0:
        yield _beyond(config, plan, length)
    elif is_moved(plan) or (not config.sink_mode and length.planned != length.due):
        yield from _parted(config, length)
    elif not config.sink_mode and config.dataset_samples is None and length.start > length.per_epoch:
        ends = f"the run ends at step {length.total} if an epoch still has {length.per_epoch} batches"
        yield _if_unchanged(config, f"{ends} ({length.source})")


def run_length(
    config: TrainConfig, plan: ResumePlan, inventory: Inventory, logged: int | None = None
) -> RunLength | None:
    """Return the length of the resumed run; None if the batches per epoch are unknown.

    Source:
        load_resume_context_from_checkpoint, check_runner_config and Model.train: with sinks `epochs` becomes data_size
        / sink_size * epochs, in floating point, and the counter counts sinks. Without sinks, the started epoch is
        trained again completely, except for the batches that the data skip removes.
    """
    epoch_steps = _per_epoch(config, plan, inventory, logged)
    if epoch_steps is None or config.epochs is None:
        return None
    per_epoch, source = epoch_steps
    epochs_done = _begun(config, plan, per_epoch)
    skipped, total = planned_skip(plan).batches, config.epochs * per_epoch
    if config.sink_mode and config.sink_size is not None:
        unit, ends = config.sink_size, int(per_epoch / config.sink_size * config.epochs)
    else:
        unit, ends = per_epoch, config.epochs
    return RunLength(
        per_epoch=per_epoch,
        source=source,
        total=total,
        start=plan.next_step - 1,
        over=epochs_done >= ends,
        planned=(ends - epochs_done) * unit - (0 if config.sink_mode else skipped % per_epoch),
        left=total - skipped,
    )


def _begun(config: TrainConfig, plan: ResumePlan, per_epoch: int) -> int:
    """Return the number of epochs (or sinks) that MindFormers considers complete."""
    counters = mindformers_counters(
        scalars=plan.point.checkpoint.scalars,
        new_global_batch_size=planned_skip(plan).global_batch_size,
        new_sink_size=(config.sink_size or per_epoch) if config.sink_mode else None,
        legacy=load_keys(plan.load).use_legacy_format,
        dataset_size=per_epoch,
    )
    return counters.initial_epoch or 0


def _per_epoch(
    config: TrainConfig, plan: ResumePlan, inventory: Inventory, logged: int | None
) -> tuple[int, str] | None:
    """Return the batches per epoch at the new batch size, with the source of the number."""
    state, batch = state_of(plan.point.checkpoint.scalars), planned_skip(plan).global_batch_size
    sinks_are_known = not config.sink_mode or config.sink_size is not None or config.sinks_all
    if state.step_num is None or state.epoch_num is None or not sinks_are_known:
        return None
    if config.dataset_samples is not None and batch is not None:
        batches = config.dataset_samples // batch
        return (batches, f"`sizes` has {config.dataset_samples} samples") if batches else None
    if is_moved(plan) and planned_skip(plan).batches < plan.next_step - 1:
        return None  # log and names belong to other data
    if logged is not None:
        batches = _converted(logged, plan.point.checkpoint.scalars.global_batch_size, batch)
        return (batches, "from the training log") if batches > 0 else None
    prefix = plan.point.checkpoint.prefix
    own_saves = (checkpoint for checkpoint in inventory.checkpoints if checkpoint.prefix == prefix)
    sizes = {_labelled(config, checkpoint, batch) for checkpoint in own_saves} - {0}
    batches = sizes.pop() if len(sizes) == 1 else -1
    return (batches, "from the file names") if batches > 0 else None


def _labelled(config: TrainConfig, checkpoint: Checkpoint, batch: int | None) -> int:
    """Return the batches per epoch that a name implies; 0 if it implies none, -1 if the number cannot be converted.

    `4_20` at step 80 was saved 20 batches into the fourth epoch, so three epochs have 60 batches. If labels count
    sinks, or the run was resumed, they imply nothing.
    """
    label, step, old = epoch_step(checkpoint), checkpoint.step, checkpoint.scalars.global_batch_size
    if label is None or step is None or checkpoint.run:
        return 0
    if config.sink_mode:
        size = label.step if config.sinks_all and label.epoch * label.step == step else 0
    else:
        size, rest = divmod(step - label.step, label.epoch - 1) if label.epoch > 1 else (0, 0)
        size = size if not rest and size >= label.step else 0
    return _converted(size, old, batch) if size else 0


def _converted(size: int, old: int | None, batch: int | None) -> int:
    """Return the batches per epoch at a different batch size; -1 if an incomplete last batch decides this number."""
    if old is None or batch is None or old == batch:
        return size
    low, high = size * old // batch, ((size + 1) * old - 1) // batch
    return low if low == high else -1


def _had_sinks(config: TrainConfig, plan: ResumePlan, inventory: Inventory) -> Finding | None:
    """Report a run without sinks that continues a run with sinks, and interprets the number of sinks as epochs.

    Saves that were all made at the end of an epoch have the same counts. The size of the data set distinguishes them,
    or else a number of sinks that is above the number of epochs.
    """
    checkpoint = plan.point.checkpoint
    epoch, batch = state_of(checkpoint.scalars).epoch_num, checkpoint.scalars.global_batch_size
    saved = None if config.sink_mode else saved_sinks(checkpoint.scalars, same_run(checkpoint, inventory))
    if saved is None or saved.size is None or not saved.is_sure or epoch is None:
        return None
    if config.dataset_samples is not None and batch is not None:
        is_told = saved.size != config.dataset_samples // batch
    else:
        is_told = config.epochs is not None and epoch > config.epochs
    return sinks_as_epochs(saved, epoch) if is_told else None


def _into_an_epoch(config: TrainConfig, plan: ResumePlan, inventory: Inventory, logged: int | None) -> Finding | None:
    """Report sinks of the complete data set that continue within an epoch.

    Each sink begins a complete epoch.

    Source: runs of MindFormers 2.1.0 with `sink_size: -1`, from saves that were made without sinks.
    """
    checkpoint = plan.point.checkpoint
    step, epoch = plan.next_step - 1, state_of(checkpoint.scalars).epoch_num or 1
    saved = saved_sinks(checkpoint.scalars, same_run(checkpoint, inventory)) if config.sinks_all else None
    if saved is None:
        return None
    length = _per_epoch(replace(config, sink_mode=False), plan, inventory, logged)
    begins = "and with `sink_size: -1` MindFormers starts a whole epoch"
    remedy = "set runner_config.sink_mode: False, as when this was saved"
    if length is not None:
        rest = step % length[0]
        into = f"{counted(rest, 'batch', 'batches')} into an epoch of {length[0]} ({length[1]})"
        message = (
            f"the checkpoint is {into}, {begins}: these batches are trained again, and the step count continues from "
            f"{step}"
        )
        return suspect(MindFormersCode.SINK_SIZE_CHANGED, message, path=config.path, remedy=remedy) if rest else None
    if saved.size is not None and saved.is_sure:
        return None
    if step % epoch:
        message = f"the checkpoint is within epoch {epoch}, at step {step}, {begins}: its batches are trained again"
        return suspect(MindFormersCode.SINK_SIZE_CHANGED, message, path=config.path, remedy=remedy)
    message = f"whether step {step} ends an epoch is unknown, {begins}: if it does not, batches are trained again"
    return unknown(
        MindFormersCode.SINK_SIZE_CHANGED,
        message,
        path=config.path,
        remedy=f"{remedy}, or --allow sink-size-changed if it does",
    )


def _is_complete(config: TrainConfig, plan: ResumePlan, length: RunLength | None) -> bool:
    """Return whether MindFormers considers all epochs complete.

    Some cases can be decided without the length of an epoch.
    """
    if length is not None:
        return length.over
    epochs_done, epochs = state_of(plan.point.checkpoint.scalars).epoch_num, config.epochs
    return not config.sink_mode and epochs_done is not None and epochs is not None and epochs_done > epochs


def _complete(config: TrainConfig, plan: ResumePlan, length: RunLength | None) -> Finding:
    point = plan.point.checkpoint
    size = "" if length is None else f" of {length.per_epoch} batches ({length.source})"
    are, remedy = "are complete", "nothing is left to train; to continue, raise runner_config.epochs"
    if length is not None and length.due >= (config.sink_size or 1):
        are = f"count as complete at step {length.start} of {length.total}"
        remedy = "keep data sinks and batch size unchanged since the save, or raise runner_config.epochs"
    return suspect(
        TrainersCode.TRAINING_COMPLETE,
        f"{point.name}, step {point.step}: all {config.epochs} epochs{size} {are}, and MindFormers {_STOPS}",
        path=config.path,
        remedy=remedy,
        line=config.line(_EPOCHS),
    )


def _of_unknown_length(config: TrainConfig, plan: ResumePlan) -> Iterator[Finding]:
    """Report when a training run is complete, or ends with its epochs, if the size of these epochs is unknown."""
    step, epochs_done, epochs = plan.next_step - 1, state_of(plan.point.checkpoint.scalars).epoch_num, config.epochs
    if epochs_done is None or not epochs:
        return
    if config.sink_mode:
        few = step // epochs
        condition = f"if it has {counted(few, 'batch', 'batches')} or fewer" if few else ""
    else:
        condition = f"if epoch {epochs} ends at step {step}" if epochs_done == epochs else ""
    unknown = "the number of batches per epoch is unknown"
    if condition:
        yield _note(
            config,
            TrainersCode.TRAINING_COMPLETE,
            f"{unknown}: {condition}, the training is complete, and MindFormers stops with a ValueError",
            "if so, nothing is left to train; a log/ or msrun_log/ beside the checkpoint folder would show it",
        )
    elif not config.sink_mode and epochs_done > 1:
        yield _if_unchanged(config, f"{unknown}: the run ends with its epochs if they have as many batches as before")


def _if_unchanged(config: TrainConfig, ends: str) -> Finding:
    """Report the condition for a correct end of a run without sinks.

    MindFormers keeps the number of completed epochs, and computes the position in the started epoch from the step and
    the current data set. So after the first epoch, a different data set size moves the end of the run.
    """
    return _note(
        config,
        MindFormersCode.ENDS_ELSEWHERE,
        f"{ends}; without sinks, a data set that has grown or shrunk since moves the end",
        f"if the data set now has another size, {_stop_at('N')}, where N is the number of remaining steps",
    )


def _beyond(config: TrainConfig, plan: ResumePlan, length: RunLength) -> Finding:
    skipped = planned_skip(plan).batches
    return suspect(
        MindFormersCode.SKIP_BEYOND_DATA,
        f"{skipped} batches are skipped, but {config.epochs} epochs of {length.per_epoch} ({length.source}) "
        f"have {length.total}: the start fails",
        path=config.path,
        remedy=f"skip less, or set runner_config.epochs to at least {skipped // length.per_epoch + 1}",
        line=config.line(_EPOCHS),
    )


def _moved(config: TrainConfig | None, plan: ResumePlan) -> Iterator[Finding]:
    """Report the end of a run whose data and steps continue at different places, if the epoch length is unknown."""
    ahead = planned_skip(plan).batches - (plan.next_step - 1)
    epochs_done = state_of(plan.point.checkpoint.scalars).epoch_num
    if ahead > 0:
        yield _note(
            config,
            MindFormersCode.DATA_END_EARLY,
            f"the data is {ahead} batches ahead of the steps, by which MindFormers plans: when the data ends, the "
            "run ends in an exception, exit 1, without a last save, whatever epochs says, unless a TrainCallBack "
            "ends it before",
            "give the callback `- {type: TrainCallBack, stop_step: N}`, where N is at most the number of batches "
            "left then",
        )
    elif config is not None and not config.sink_mode and epochs_done is not None and config.epochs is not None:
        epochs_left = config.epochs - epochs_done
        yield _note(
            config,
            MindFormersCode.ENDS_ELSEWHERE,
            f"without sinks, MindFormers trains to the end of epoch {config.epochs}: {epochs_left} or "
            f"{epochs_left + 1} epochs of this data, not the remaining steps",
            "give the callback `- {type: TrainCallBack, stop_step: N}`, where N is the number of remaining steps, "
            "or set runner_config.epochs again",
        )


def _parted(config: TrainConfig, length: RunLength) -> Iterator[Finding]:
    """Report the end of a run whose steps, data and epochs do not end at the same time."""
    if length.planned > length.left:
        more = -((length.left - length.due) // length.per_epoch)
        remedy = _stop_at(length.left)
        if more > 0:
            remedy += f"; with runner_config.epochs raised by {more} it can be {length.due}, "
            remedy += f"which ends at step {length.total}"
        yield _note(
            config,
            MindFormersCode.DATA_END_EARLY,
            f"MindFormers plans {length.planned} more steps, but the data is enough for {length.left}: at step "
            f"{length.start + length.left} it ends in an exception, exit 1, without a last save, whatever epochs "
            f"says, unless a TrainCallBack with `stop_step: {length.left}` ends it before",
            remedy,
        )
    elif length.planned != length.due:
        epochs = -((length.planned - length.due) // length.per_epoch)
        mends = f"a TrainCallBack with `stop_step: {length.due}` ends it there"
        remedy = _stop_at(length.due)
        if epochs > 0:
            mends = f"raising runner_config.epochs by {epochs} and {mends}"
            remedy = f"raise runner_config.epochs by {epochs}, and {remedy}"
        yield _note(
            config,
            MindFormersCode.ENDS_ELSEWHERE,
            f"MindFormers trains {length.planned} more steps and ends at step {length.start + length.planned}, not "
            f"at {length.total}, because it counts whole epochs of {length.per_epoch} batches ({length.source}); "
            f"{mends}",
            remedy,
        )


def _stop_at(steps: int | str) -> str:
    return f"give the callback `- {{type: TrainCallBack, stop_step: {steps}}}`, which ends it regularly"


def _note(config: TrainConfig | None, code: Row, message: str, remedy: str) -> Finding:
    path, line = (None, None) if config is None else (config.path, config.line(_EPOCHS))
    return note(code, message, path=path, remedy=remedy, line=line)
