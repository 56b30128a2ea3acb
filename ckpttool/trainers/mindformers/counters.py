"""The counters that MindFormers computes when it resumes, and the errors in them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from ckpttool.core.decide.data_position import exact_batches_near
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Finding, note, suspect
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.units import counted
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.scalars import epoch_step, state_of


@dataclass(frozen=True, slots=True, kw_only=True)
class MindFormersCounters:
    """The position at which MindFormers 2.1.0 resumes, computed with its own arithmetic."""

    initial_step: int
    """Batches that MindFormers considers done, at the new batch size; its output and saves continue from here."""
    initial_epoch: int | None
    """Epochs (sinks in data-sink mode) that MindFormers considers done; None if the data set's size decides."""
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSinks:
    """The data sinks of a run, according to its saves."""

    size: int | None
    """Batches per sink; None if the run's epochs are not sinks of equal size."""
    is_sure: bool
    """False if the only evidence is a single epoch: one sink of 30 batches, or 30 steps of the first epoch."""


def saved_sinks(scalars: Scalars, run: Sequence[Checkpoint] = ()) -> SavedSinks | None:
    """Determine from the counts of steps and epochs whether a run had sinks; None if the save lacks a count.

    With sinks of equal size, an epoch is a sink: steps / epochs is the same integer in all saves, and equals the step
    in each name. Without sinks, this can be true only of saves made at the end of an epoch.

    Args:
        scalars: The scalars of the requested save.
        run: All saves of the same run; those with other batch sizes are ignored.
    """
    state = state_of(scalars)
    if not state.step_num or not state.epoch_num:
        return None
    counts, names = {(state.step_num, state.epoch_num)}, set()
    for save in run:
        save_state, label = state_of(save.scalars), epoch_step(save)
        if save_state.global_batch_size == scalars.global_batch_size and save_state.step_num and save_state.epoch_num:
            counts.add((save_state.step_num, save_state.epoch_num))
            names |= set() if label is None else {label.step}
    sizes = {divmod(step, epoch) for step, epoch in counts}
    size, rest = sizes.pop()
    if sizes or rest or not names <= {size}:
        return SavedSinks(size=None, is_sure=True)
    return SavedSinks(size=size, is_sure=any(epoch > 1 for _, epoch in counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    step: int
    epoch: int | None
    old_batch: int
    new_batch: int
    new_sink: int | None
    dataset: int | None
    legacy: bool
    saved: SavedSinks | None

    def scaled(self, count: int, new_batch: int | None = None) -> int:
        """Return a count as MindFormers converts it to a different batch size."""
        scale = self.old_batch / (new_batch or self.new_batch)
        return int(_float32(_float32(count) * _float32(scale))) if self.legacy else int(count * scale)

    @property
    def initial_step(self) -> int:
        return self.scaled(self.step)

    @property
    def exact_step(self) -> int:
        return self.step * self.old_batch // self.new_batch


def mindformers_counters(  # noqa: PLR0913  all values that it uses, as keywords
    *,
    scalars: Scalars,
    new_global_batch_size: int | None,
    new_sink_size: int | None,
    legacy: bool,
    dataset_size: int | None = None,
    run: Sequence[Checkpoint] = (),
) -> MindFormersCounters:
    """Compute the counters as MindFormers 2.1.0 does, with rounding errors, and report the deviations.

    If a launch config sets `data_skip_steps`, the data position is safe, but these counters are not. The counters
    determine the number of remaining epochs, the step in the next checkpoint's label, and the learning rate.

    Args:
        scalars: The scalars in the checkpoint; a missing step counts as 0, as in MindFormers.
        new_global_batch_size: Samples per batch over all ranks in the resumed run; None if unchanged.
        new_sink_size: Batches per data sink in the resumed run; None without data sinking.
        legacy: Whether the checkpoint has the `rank_N` layout, whose counters are MindSpore parameters and thus scaled
            in float32. The newer layout scales in float64, and does not scale the optimizer's step.
        dataset_size: Batches in the data set at the new batch size; None if unknown.
        run: All saves of the same run: the saves show whether the run had sinks.

    Source:
        load_resume_context_from_checkpoint and BaseTrainer.training_process. That Parameter(Int64) * float gives
        Float32 was checked against real parameters.
    """
    state = state_of(scalars)
    old = state.global_batch_size or new_global_batch_size or 1
    new = new_global_batch_size or old
    case = _Case(
        step=state.step_num or 0,
        epoch=state.epoch_num,
        old_batch=old,
        new_batch=new,
        new_sink=new_sink_size,
        dataset=dataset_size,
        legacy=legacy,
        saved=saved_sinks(scalars, run),
    )
    unscaled = _unscaled_updates(case, state.global_step)
    return MindFormersCounters(
        initial_step=case.initial_step,
        initial_epoch=_initial_epoch(case),
        findings=(*_rounded(case), *_sinks(case), *_epochs(case), *unscaled),
    )


def _float32(number: float) -> float:
    """Round to the nearest float32. A product of two float32 values is exact in float64, so it rounds only once."""
    rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    return rounded


def _initial_epoch(case: _Case) -> int | None:
    if case.epoch is None:
        return 0
    if case.new_sink is not None:
        return case.scaled(case.epoch)
    if case.initial_step == 0:
        return case.epoch  # 0 is a multiple of every size, so this counts as the end of an epoch
    if case.dataset is None:
        return None
    return case.epoch - int(case.initial_step % case.dataset != 0)


def _rounded(case: _Case) -> Iterator[Finding]:
    if case.initial_step == case.exact_step:
        return
    exact = _exact_batch(case)
    yield note(
        MindFormersCode.COUNTER_ROUNDED,
        f"MindFormers scales step {case.step} from batches of {case.old_batch} to {case.new_batch} samples in "
        f"floating point and continues from step {case.initial_step}; the exact step is {case.exact_step}",
        expected=str(case.exact_step),
        actual=str(case.initial_step),
        remedy="nothing is needed for the data, because data_skip_steps is exact"
        + (f"; a global batch size of {exact} keeps the counter exact too" if exact else ""),
    )


def _exact_batch(case: _Case, *, sink_size: int | None = None) -> int | None:
    """Return the batch size nearest to the new size that leaves no samples over and causes no floating-point error."""
    samples = case.step * case.old_batch
    batches = exact_batches_near(samples, case.new_batch, sink_size=sink_size)
    for batch in sorted(batches, key=lambda size: abs(size - case.new_batch)):
        if case.scaled(case.step, batch) == samples // batch:
            return batch
    return None


def _sinks(case: _Case) -> Iterator[Finding]:
    """Report disagreeing counters in data-sink mode: steps, and sinks of an unrecorded size."""
    if case.new_sink is None or case.epoch is None:
        return
    saved, size = case.saved, case.new_sink
    if saved is not None and saved.size not in {None, size}:
        yield _sink_changed(case, saved, size)
        return
    sinks = case.scaled(case.epoch)
    difference = abs(sinks * size - case.initial_step)
    if not difference:
        return
    # Each earlier change of the batch size rounded both counters down, the sinks to complete sinks. This change scales
    # their difference.
    most_apart = size * (1 + max(1, -(-case.old_batch // case.new_batch)))
    if saved is not None and saved.size is None and difference > most_apart:
        yield _sink_changed(case, saved, size)
        return
    exact = None if case.old_batch == case.new_batch else _exact_batch(case, sink_size=size)
    is_near = exact is not None and case.new_batch <= 2 * exact
    yield note(
        MindFormersCode.EPOCH_COUNTER_SHIFTS,
        f"MindFormers continues from step {case.initial_step}, but from {_of_sinks(sinks, size)}, which is step "
        f"{sinks * size}: the two counters disagree",
        expected=f"{case.initial_step} steps",
        actual=f"{sinks * size} steps",
        remedy=f"expect step numbers to be off by {difference}"
        + (f", or choose a global batch size of {exact}, with which both agree" if is_near else ""),
    )


def _of_sinks(number: int, size: int) -> str:
    return f"{counted(number, 'sink')} of {counted(size, 'batch', 'batches')}"


def _sink_changed(case: _Case, saved: SavedSinks, new: int) -> Finding:
    """Report the effect on a run whose epochs were counted differently.

    Source: runs of MindFormers 2.1.0 in both layouts: steps planned beyond the end of the data are never trained.
    """
    epoch = case.epoch or 0
    short = case.scaled(epoch) * new - case.initial_step
    if short > 0:
        effect = f"trains {counted(short, 'batch', 'batches')} too few"
    else:
        effect = f"plans {counted(-short, 'batch', 'batches')} too many: at the end of the data it stops with an "
        effect += "exception, exit 1, without a last save"
    taken = f"but sink_size is now {new}: MindFormers reads them as sinks of the new size, and {effect}"
    if saved.size is None:
        counts = f"the checkpoint counts {counted(epoch, 'epoch')} at step {case.step}, "
        counts += "which are not sinks of one size, "
        expected = "no sinks"
        remedy = "set runner_config.sink_mode: False, because this was saved without sinks"
    elif saved.is_sure:
        counts = f"the checkpoint counts {_of_sinks(epoch, saved.size)}, "
        expected, remedy = f"sink_size {saved.size}", f"set runner_config.sink_size: {saved.size}"
    else:
        counts = f"the checkpoint counts {_of_sinks(epoch, saved.size)}, or as many steps without sinks, "
        expected = f"sink_size {saved.size}, or no sinks"
        remedy = "set runner_config.sink_mode and sink_size as they were at the save"
    return suspect(
        MindFormersCode.SINK_SIZE_CHANGED,
        f"{counts}{taken}",
        expected=expected,
        actual=f"sink_size {new}",
        remedy=remedy,
    )


def sinks_as_epochs(saved: SavedSinks, epoch: int) -> Finding:
    """Report that a run that continues without sinks interprets the saved sinks as epochs."""
    size = saved.size or 0
    return suspect(
        MindFormersCode.SINK_SIZE_CHANGED,
        f"the checkpoint counts {_of_sinks(epoch, size)}, but the config now has no sinks: MindFormers reads them as "
        f"{counted(epoch, 'epoch')}",
        expected=f"sink_size {size}",
        actual="no sinks",
        remedy=f"set runner_config.sink_mode: True and sink_size: {size}",
    )


def _epochs(case: _Case) -> Iterator[Finding]:
    """Report a rounded step that MindFormers, without data sinking, mistakes for the end of an epoch."""
    if case.new_sink is not None or not case.epoch or not case.step:
        return
    size = case.dataset or 0
    whole_epochs = case.step * case.old_batch % (size * case.new_batch) == 0 if size else False
    ends = case.initial_step % size == 0 if size else case.initial_step == 0
    if not ends or whole_epochs:
        return
    yield suspect(
        MindFormersCode.EPOCH_COUNTER_SHIFTS,
        f"MindFormers reads step {case.initial_step} as the end of epoch {case.epoch} and skips the rest of that epoch",
        expected=f"epoch {case.epoch - 1} finished",
        actual=f"epoch {case.epoch} finished",
        remedy=f"keep the global batch size of {case.old_batch} until a later checkpoint, or raise "
        "runner_config.epochs by 1",
    )


def _unscaled_updates(case: _Case, updates: int | None) -> Iterator[Finding]:
    """Report the optimizer's step, which the newer layout loads unscaled from its file, unlike the other counters."""
    if case.legacy or not updates or case.old_batch == case.new_batch:
        return
    exact = updates * case.old_batch // case.new_batch
    yield suspect(
        MindFormersCode.COUNTER_ROUNDED,
        f"the optimizer continues from update {updates}, which MindFormers does not scale in this layout; with "
        f"batches of {case.new_batch} samples it would be {exact}, so the learning rate differs",
        expected=str(exact),
        actual=str(updates),
        remedy=f"keep the global batch size of {case.old_batch}, or shift the learning rate schedule "
        f"by {abs(updates - exact)} steps",
    )
