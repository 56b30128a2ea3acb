"""The effects of Hugging Face's Trainer on a resume: Trainer computes the position in the data from the step.

Source:
    `Trainer._inner_training_loop` of transformers 4.57 and 5.23, and its runs: `global_step // steps_per_epoch`
    epochs and `global_step % steps_per_epoch` batches of the next epoch are skipped, both computed with the sizes of
    the new run. Resumed runs were compared with uninterrupted runs: transformers 4.57.3, 5.0.0 and 5.1.0 keep the micro
    batch of `trainer_state.json`, 5.2.0 and 5.23.0 use the arguments' micro batch; with `auto_find_batch_size`, all
    versions keep the size that was found. Within an epoch after the first, accelerate 1.10.1 to 1.14.0 continue in the
    first epoch's order, 1.15.0 in the current epoch's order. Data without a length are read from the beginning if they
    had already ended once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ckpttool.core.decide.data_effects import Consumed, by_step, consumed, effect_findings, restarting
from ckpttool.core.decide.lint_engine import View
from ckpttool.core.domain.data_position import DataEffect, GoesOn, SampleSource
from ckpttool.core.domain.finding import Code, Finding, note
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.load_settings import Place, TrainerSetting
from ckpttool.core.formats.strict_json import ParseError, parse_object
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.base import Effects, Resume
from ckpttool.trainers.common.complete import complete
from ckpttool.trainers.common.saved_values import first_value
from ckpttool.trainers.huggingface import ARGUMENTS, MODEL_CONFIG, STATE, TRAINER
from ckpttool.trainers.huggingface.config import BEGINS_ANEW, KEEP_TWO, KEEPS_ONE, REMOVE_IT
from ckpttool.trainers.huggingface.findings import HuggingFaceCode
from ckpttool.trainers.huggingface.record import Arguments, ArgumentsReader, Epochs, State, read_state

_SIZES = "per_device_train_batch_size x gradient_accumulation_steps x ranks"
_SKIPS = "it skips as many batches as steps were completed"
_OTHER = f"{_SKIPS}, each of the new size: {_SIZES} must stay the same"
_SHORT = "an epoch's last batch is counted as full"
_RANKS_AS_THEY_WERE = "the number of ranks is unchanged"
_AS_THEY_WERE = "per_device_train_batch_size, gradient_accumulation_steps and the number of ranks are unchanged"
_SPLIT_WHY = "up to transformers 5.1, the loader keeps the micro batch of {micro} from {state}"
_NEW_SPLIT, _OLD_SPLIT = "transformers is 5.2 or newer", "transformers is older than 5.2"
_EPOCH_WHY = (
    "the save is from within epoch {epoch}, and accelerate before 1.15 reads the rest of that epoch in the first "
    "epoch's order"
)
_EPOCH_UNKNOWN = (
    "its epoch is unknown, and accelerate before 1.15 reads the rest of a later epoch in the first epoch's order"
)
_NEW_ACCELERATE = "accelerate is 1.15 or newer"
_ENDED = "the data has no length and had ended before, and a resume starts it again from the beginning"
_SAME_ORDER = "the data, which has no length, comes in the same order again"
_ENDS = "Trainer ends with exit code 0 after at most one more step"
_MODEL_CONFIG_LIMIT = 1 << 20


class _Split(NamedTuple):
    """The division of an optimizer step into batches; None for unknown numbers."""

    micro: int | None
    """Samples per batch of one rank."""
    accumulation: int | None
    ranks: int | None

    @property
    def batch(self) -> int | None:
        """Samples per step over all ranks."""
        if self.micro is None or self.accumulation is None or self.ranks is None:
            return None
        return self.micro * self.accumulation * self.ranks


class _Run(NamedTuple):
    """A save, and the differences between its run and the resumed run."""

    step: int
    state: State | None
    was: _Split
    now: _Split
    read: Consumed
    epochs: Epochs | None
    is_told: bool
    """Whether a config sets the division of a step.

    If so, only the number of ranks is an assumption.
    """
    last_is_short: bool
    """Whether the last batch of an earlier epoch may have had fewer samples, which are not counted exactly."""
    version: str | None
    """Version of transformers, from the model's config next to the weights."""

    def at(self, new_batch: int | None) -> GoesOn:
        """Return the position for steps with this many samples."""
        old, epochs, samples = self.read.old_batch, self.epochs, None
        if old is not None and epochs is not None and epochs.batches is not None and self.was.accumulation is not None:
            samples = epochs.batches * old // self.was.accumulation
        return by_step(
            self.step,
            replace(self.read, new_batch=new_batch),
            epoch_steps=None if epochs is None else epochs.steps,
            epoch_samples=samples,
            why=_SKIPS if new_batch == old else _OTHER,
        )


def effects(resume: Resume) -> Effects:
    """Return the position in the data.

    It is exact if an optimizer step takes as many samples as before.
    """
    name = resume.plan.point.checkpoint.name
    arguments = ArgumentsReader(resume.storage)(f"{name}/{ARGUMENTS}")
    try:
        state = read_state(resume.storage, f"{name}/{STATE}")
    except (OSError, ParseError):  # it was read when the save was judged
        state = None
    run = _run(resume, state, arguments)
    position = _position(run, skips=_skips_data(resume, arguments))
    if run.last_is_short and position.samples is not None:
        position = replace(position, why=f"{position.why}; {_SHORT}")
    if position.effect not in {DataEffect.EXACT, DataEffect.UNKNOWN} or run.read.changes:
        position = replace(position, exact_with=_sizes(run.read, arguments, resume.sizes.world))
    findings = (
        *effect_findings(position, title=TRAINER.title, remedy=_remedy(position, resume)),
        *_notes(resume, arguments),
        *_complete(resume, run),
    )
    return Effects(position=position, settings=(), findings=findings)


def _complete(resume: Resume, run: _Run) -> Iterator[Finding]:
    """Report a config that requests no more steps or epochs than have been trained.

    Source: runs of transformers 5.23: the loop checks the limit only after a step, if an epoch remains.
    """
    if resume.config is None:
        return
    view = View(resume.config.settings)
    most, epochs = view.count("max_steps", 0), view.get("num_train_epochs")
    if most > 0:
        if run.step >= most:
            yield complete(resume, view, "max_steps", ends=_ENDS)
    elif isinstance(epochs, int | float) and run.state is not None and not run.state.lacks_length:
        done = run.state.epoch
        if done is not None and done >= epochs and not run.read.changes:
            yield complete(resume, view, "num_train_epochs", ends=_ENDS)


def _skips_data(resume: Resume, arguments: Arguments) -> bool:
    """Return whether a resume skips the data already read, by the config or else by the save's arguments."""
    if resume.config is not None:
        view = View(resume.config.settings)
        if view.setting("ignore_data_skip") is not None:
            return not view.is_on("ignore_data_skip")
    return arguments.skips_data


def _run(resume: Resume, state: State | None, arguments: Arguments) -> _Run:
    checkpoint = resume.plan.point.checkpoint
    was = _Split(
        (None if state is None else state.micro_batch) or arguments.micro_batch,
        arguments.accumulation,
        checkpoint.topology.world_size or arguments.world,
    )
    read = consumed(resume.plan, resume.inventory, resume.data)
    split = _split_now(resume, was, arguments, old_batch=read.old_batch)
    if resume.data.new_global_batch is None:
        read = replace(read, new_batch=split.batch or _scaled(read, was, split))
    epochs = None if state is None else state.epochs(was.accumulation)
    run = _Run(
        step=resume.plan.point.step,
        state=state,
        was=was,
        now=split,
        read=read,
        epochs=epochs,
        is_told=resume.config is not None and _micro_known(View(resume.config.settings)) > 0,
        last_is_short=_may_be_short(state, was, arguments),
        version=_version(resume.storage, f"{checkpoint.name}/{MODEL_CONFIG}"),
    )
    if read.source is SampleSource.COMPUTED and not resume.data.segments:
        by_epochs = run._replace(read=replace(read, samples=None)).at(read.old_batch).samples
        run = run._replace(read=replace(read, samples=by_epochs))
    return run


def _split_now(resume: Resume, was: _Split, arguments: Arguments, *, old_batch: int | None) -> _Split:
    """Return how the new run splits a step, according to the config.

    If there is no config, the old split is used with the requested number of ranks.
    """
    ranks, batch = resume.sizes.world or was.ranks, resume.data.new_global_batch
    if resume.config is not None:
        view = View(resume.config.settings)
        micro = _micro_known(view)
        if micro > 0:
            return _Split(_micro_now(view, micro, was, arguments), view.count("gradient_accumulation_steps"), ranks)
    if batch is not None and (batch, ranks) != (old_batch, was.ranks):
        return _Split(None, None, ranks)
    return was._replace(ranks=ranks)


def _micro_known(view: View) -> int:
    return view.count("per_device_train_batch_size", 0)


def _may_be_short(state: State | None, was: _Split, arguments: Arguments) -> bool:
    """Return whether fewer samples may have been read than the batches show.

    This is possible only on one rank: several ranks pad each batch.
    """
    has_ended = state is not None and not state.lacks_length and (state.epoch is None or state.epoch >= 1)
    return has_ended and was.ranks == 1 and not arguments.drops_last


def _micro_now(view: View, printed: int, was: _Split, arguments: Arguments) -> int:
    """Return the next run's micro batch over all devices that a rank drives, as the state counts it."""
    if view.is_on("auto_find_batch_size"):
        return was.micro or printed
    if was.micro is None or arguments.micro_batch is None or arguments.finds_batch:
        return printed
    return printed * max(1, was.micro // arguments.micro_batch)


def _scaled(read: Consumed, was: _Split, split: _Split) -> int | None:
    """Return the samples per step, assuming that each rank takes as many as before."""
    if read.new_batch is None or was.ranks is None or split.ranks is None:
        return read.new_batch
    return read.new_batch * split.ranks // was.ranks


def _version(storage: Storage, path: str) -> str | None:
    """Return the transformers version that wrote a model's config; None if unknown."""
    try:
        transformers = parse_object(
            storage.small_file(path, limit=_MODEL_CONFIG_LIMIT), where=path, nonfinite=True
        ).get("transformers_version")
    except (OSError, ParseError):  # reported by its own check
        return None
    return transformers if isinstance(transformers, str) else None


def _keeps_micro(version: str | None) -> bool | None:
    """Return whether a version of transformers keeps the state's micro batch; None if unknown."""
    numbers = (version or "").split(".")[:2]
    if len(numbers) < 2 or not all(number.isdecimal() for number in numbers):  # noqa: PLR2004  major and minor
        return None
    return (int(numbers[0]), int(numbers[1])) < (5, 2)


def _position(run: _Run, *, skips: bool) -> GoesOn:
    state, read = run.state, run.read
    if not skips:
        epoch = None if run.epochs is None or read.old_batch is None else run.epochs.steps * read.old_batch
        return restarting(read, epoch_samples=epoch, why=BEGINS_ANEW)
    if state is not None and state.lacks_length and state.epoch is not None and state.epoch >= 1:
        return GoesOn(effect=DataEffect.RESTARTS, why=_ENDED, samples=read.samples, source=read.source, batches=0)
    position = _of_split(run)
    if position.effect is not DataEffect.EXACT:
        return position
    if state is not None and state.lacks_length:
        return replace(position, exact_if=(*position.exact_if, _SAME_ORDER))
    later = None if state is None else state.is_in_later_epoch
    if later is False:
        return position
    why = _EPOCH_UNKNOWN
    if state is not None and state.epoch is not None and later:
        why = _EPOCH_WHY.format(epoch=int(state.epoch) + 1)
    return _unproven(position, why, (*position.exact_if, _NEW_ACCELERATE))


def _of_split(run: _Run) -> GoesOn:
    """Return the position for sizes that depend on the version of transformers."""
    was, current = run.was, run.now
    taken = run.at(run.read.new_batch)
    if current == was:
        as_it_was = _RANKS_AS_THEY_WERE if run.is_told else _AS_THEY_WERE
        return replace(taken, exact_if=(as_it_was,)) if taken.effect is DataEffect.EXACT else taken
    unchanged = taken
    if current.micro is not None:
        unchanged = run.at(current._replace(micro=was.micro).batch)
    elif taken.effect is DataEffect.EXACT:  # equally many samples on other ranks: the micro batch must differ
        unchanged = replace(taken, effect=DataEffect.UNKNOWN, repeated=None, lost=None)
    if (taken.effect, taken.repeated, taken.lost) == (unchanged.effect, unchanged.repeated, unchanged.lost):
        return taken
    condition = tuple(
        setting
        for setting, position in ((_NEW_SPLIT, taken), (_OLD_SPLIT, unchanged))
        if position.effect is DataEffect.EXACT
    )
    why = _SPLIT_WHY.format(micro=was.micro, state=STATE)
    keeps = _keeps_micro(run.version)
    if keeps is None:
        return _unproven(taken, why, condition)
    return replace(unchanged if keeps else taken, why=f"{why}; {run.version} wrote the save", exact_if=condition)


def _unproven(position: GoesOn, why: str, conditions: tuple[str, ...]) -> GoesOn:
    """Return the position as unknown, with the conditions under which it is exact."""
    return replace(position, effect=DataEffect.UNKNOWN, why=why, repeated=None, lost=None, exact_if=conditions)


def _sizes(read: Consumed, arguments: Arguments, requested: int | None) -> tuple[TrainerSetting, ...]:
    """Return the sizes that keep the samples per step, on the requested number of ranks."""
    ranks = requested or arguments.world
    if read.old_batch is None or ranks is None or read.old_batch % ranks:
        return ()
    own_batch = read.old_batch // ranks
    micro = max(
        size for size in range(1, min(own_batch, arguments.micro_batch or own_batch) + 1) if own_batch % size == 0
    )
    pairs = (("--per_device_train_batch_size", micro), ("--gradient_accumulation_steps", own_batch // micro))
    return tuple(TrainerSetting(place=Place.parsed(f"argument:{flag}"), value=value) for flag, value in pairs)


def _remedy(position: GoesOn, resume: Resume) -> str | None:
    if position.why is not None and position.why.startswith(BEGINS_ANEW):
        in_config = resume.config is not None and View(resume.config.settings).is_on("ignore_data_skip")
        return REMOVE_IT if in_config else "resume with --ignore_data_skip false"
    settings = " ".join(f"{setting.place.name} {setting.value}" for setting in position.exact_with)
    return f"resume with {settings}" if settings else None


def _notes(resume: Resume, arguments: Arguments) -> Iterator[Finding]:
    """Report other notable facts in the save's records."""
    checkpoint = resume.plan.point.checkpoint
    path = f"{checkpoint.name}/scheduler.pt"
    updates = _updates(first_value(resume.storage, (path,)))
    if updates not in {None, checkpoint.step}:
        message = (
            f"the schedule counts {updates} steps, {STATE} {checkpoint.step}: it counts differently, or is from "
            "another save"
        )
        yield note(Code.STEP_DISAGREES, message, path=path, expected=str(checkpoint.step), actual=str(updates))
    if any(shard.path.endswith(("/adapter_model.safetensors", "/adapter_model.bin")) for shard in checkpoint.shards):
        message = "an adapter: its base model is elsewhere and is not checked"
        yield note(HuggingFaceCode.BASE_ELSEWHERE, message, path=checkpoint.name)
    if arguments.most_saves == 1:
        yield note(Code.KEEPS_ONE_CHECKPOINT, KEEPS_ONE, path=f"{checkpoint.name}/{ARGUMENTS}", remedy=KEEP_TWO)


def _updates(value: object) -> int | None:
    from ckpttool.core.formats.torch.plain import integer_at

    return integer_at(value, "last_epoch")
