"""What Hugging Face's Trainer makes of a resume: it keeps no place in the data, it reckons one from the step.

Source:
    `Trainer._inner_training_loop` of transformers 4.57 and 5.23, and runs of it: `global_step // steps_per_epoch`
    epochs are passed over and `global_step % steps_per_epoch` batches of the next one are skipped, both with the sizes
    of the new run.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpttool.decide.data_effects import Consumed, by_step, consumed, effect_findings, restarting
from ckpttool.decide.lint_engine import View
from ckpttool.domain.data_position import DataEffect, GoesOn
from ckpttool.domain.finding import Code, Finding, note
from ckpttool.domain.frozen import replace
from ckpttool.domain.load_settings import Place, TrainerSetting
from ckpttool.formats.strict_json import ParseError
from ckpttool.trainers.base import Effects, Resume
from ckpttool.trainers.common.saved_values import first_told
from ckpttool.trainers.huggingface import HuggingFace
from ckpttool.trainers.huggingface.config import BEGINS_ANEW, KEEP_TWO, KEEPS_ONE, batch_of_rank
from ckpttool.trainers.huggingface.names import ARGUMENTS, STATE
from ckpttool.trainers.huggingface.record import Arguments, ArgumentsReader, State, read_state

_SIZES = "per_device_train_batch_size x gradient_accumulation_steps x ranks"
_SAME = f"it skips as many batches as steps were done: exact while {_SIZES} stays as it was"
_OTHER = f"it skips as many batches as steps were done, of the new size: {_SIZES} must stay what it was"


def effects(resume: Resume) -> Effects:
    """Say where the data go on: exactly there, as long as an optimizer step takes as many samples as before."""
    name = resume.plan.point.checkpoint.name
    arguments = ArgumentsReader(resume.storage)(f"{name}/{ARGUMENTS}")
    try:
        state = read_state(resume.storage, f"{name}/{STATE}")
    except (OSError, ParseError):  # it was read when it was judged
        state = None
    read = _read(resume, arguments)
    position = _position(resume, read, state, arguments)
    findings = (
        *effect_findings(position, title=HuggingFace.title, remedy=_remedy(position)),
        *_notes(resume, arguments),
    )
    return Effects(position=position, settings=(), findings=findings)


def _read(resume: Resume, arguments: Arguments) -> Consumed:
    """Count what was read, and what a step takes now: as the config says, else as much on each rank as before."""
    read = consumed(resume.plan, resume.inventory, resume.data)
    old, asked = resume.plan.point.checkpoint.topology.world_size or arguments.world, resume.sizes.world
    ranks, own = asked or old, None if resume.config is None else batch_of_rank(View(resume.config.settings))
    if resume.data.new_global_batch is not None or ranks is None:
        return read
    if own is not None:
        return replace(read, new_batch=own * ranks)
    if read.new_batch is None or old is None:
        return read
    return replace(read, new_batch=read.new_batch * ranks // old)


def _position(resume: Resume, read: Consumed, state: State | None, arguments: Arguments) -> GoesOn:
    epoch_steps = None if state is None else state.epoch_steps
    if not arguments.skips_data:
        epoch = None if epoch_steps is None or read.old_batch is None else epoch_steps * read.old_batch
        return restarting(read, epoch_samples=epoch, why=BEGINS_ANEW)
    why = _OTHER if read.changes else _SAME
    position = by_step(resume.plan.point.step, read, epoch_steps=epoch_steps, why=why)
    if position.effect is DataEffect.EXACT:
        return position
    return replace(position, exact_with=_sizes(read, arguments, resume.sizes.world))


def _sizes(read: Consumed, arguments: Arguments, asked: int | None) -> tuple[TrainerSetting, ...]:
    """Return the sizes with which a step takes as many samples as before, on as many ranks as are asked for."""
    ranks = asked or arguments.world
    if read.old_batch is None or ranks is None or read.old_batch % ranks:
        return ()
    own = read.old_batch // ranks
    micro = max(size for size in range(1, min(own, arguments.micro_batch or own) + 1) if own % size == 0)
    pairs = (("--per_device_train_batch_size", micro), ("--gradient_accumulation_steps", own // micro))
    return tuple(TrainerSetting(place=Place.parsed(f"argument:{flag}"), value=value) for flag, value in pairs)


def _remedy(position: GoesOn) -> str | None:
    told = " ".join(f"{setting.place.name} {setting.value}" for setting in position.exact_with)
    return f"resume with {told}" if told else None


def _notes(resume: Resume, arguments: Arguments) -> Iterator[Finding]:
    """Say what else its own records tell that whoever resumes should know."""
    checkpoint = resume.plan.point.checkpoint
    path = f"{checkpoint.name}/scheduler.pt"
    updates = _updates(first_told(resume.storage, (path,)))
    if updates not in {None, checkpoint.step}:
        message = (
            f"the schedule counts {updates} steps, {STATE} {checkpoint.step}: it counts otherwise, or is not of it"
        )
        yield note(Code.STEP_DISAGREES, message, path=path, expected=str(checkpoint.step), actual=str(updates))
    if any(shard.path.endswith(("/adapter_model.safetensors", "/adapter_model.bin")) for shard in checkpoint.shards):
        message = "an adapter: the model that it was trained on lies elsewhere, and is not looked at"
        yield note(Code.BASE_ELSEWHERE, message, path=checkpoint.name)
    if arguments.most_saves == 1:
        yield note(Code.KEEPS_ONE_CHECKPOINT, KEEPS_ONE, path=f"{checkpoint.name}/{ARGUMENTS}", remedy=KEEP_TWO)


def _updates(told: object) -> int | None:
    from ckpttool.formats.torch.plain import whole_at

    return whole_at(told, "last_epoch")
