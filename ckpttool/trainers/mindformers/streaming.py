"""Streaming data: the position is in the data loader's state files, whatever data skip the config sets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from ckpttool.core.domain.data_position import DataQuestion
from ckpttool.core.domain.finding import Finding, suspect, unknown
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.units import ByteCount, Rank
from ckpttool.core.formats.strict_json import ParseError, get_object, parse_object
from ckpttool.core.storage import is_folder, open_storage
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.load import planned_skip
from ckpttool.trainers.mindformers.train_config import StreamingData, TrainConfig

_DIR = "train_dataset.data_loader.dataset_state_dir"
_BUILT_BY_STAGE = (1, 3)
_BUILT_BY_SLICE = (2, 3)
_SHOWN = 8
STATE_LIMIT = ByteCount(64 << 20)
"""Maximum size: a state has a few counters per file of the data set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStates:
    """The state files of one step."""

    missing: tuple[Rank, ...]
    """Ranks without a state file."""
    broken: tuple[tuple[Rank, str], ...]
    """Ranks whose file the loader cannot load, with the reason."""
    unread: tuple[tuple[Rank, str], ...]
    """Ranks whose file could not be checked, with the reason."""


def read_states(folder: str, ranks: Iterable[Rank]) -> DatasetStates:
    """Find the state file of each rank as the loader does.

    The contents of a state are not checked, because they belong to the `datasets` library.

    Args:
        folder: The folder of the step.
        ranks: The ranks that load a state.
    """
    storage = open_storage(folder)
    missing, broken, unread = [], [], []
    for rank in ranks:
        name = f"dataset_state_rank{rank}.json"
        try:
            state = parse_object(storage.small_file(name, limit=STATE_LIMIT), where=name, limit=STATE_LIMIT)
            get_object(state, "_train_state", where=name)
        except (FileNotFoundError, NotADirectoryError):
            missing.append(rank)
        except OSError as error:
            unread.append((rank, error.strerror or str(error)))
        except ParseError as error:
            broken.append((rank, str(error)))
    return DatasetStates(missing=tuple(missing), broken=tuple(broken), unread=tuple(unread))


def writers(stream: StreamingData, world: int | None) -> tuple[Rank, ...] | None:
    """Return the ranks whose data loader reads its own state; None if unknown.

    Source:
        is_dataset_built_on_rank: with `use_broadcast_data` (which is the default) the pipeline stages between the first
        and the last get no data, and of the ranks that share a slice of the data, only one rank reads the slice and
        sends it to the others.
    """
    if world is None:
        return None
    if world == 1 or not stream.broadcast:
        return tuple(Rank(rank) for rank in range(world))
    stages, slices = stream.stages, stream.slices
    if stages is None or slices is None or world % (stages * slices):
        return None
    a_stage = world // stages
    a_slice = a_stage // slices
    inner = [0 < rank // a_stage < stages - 1 and stream.level in _BUILT_BY_STAGE for rank in range(world)]
    sent = [bool(rank % a_slice) and stream.level in _BUILT_BY_SLICE for rank in range(world)]
    return tuple(Rank(rank) for rank in range(world) if not inner[rank] and not sent[rank])


def state_folder(stream: StreamingData, plan: ResumePlan) -> str | None:
    """Return the folder of the state files from which the data continue; None if they restart, or no folder is named.

    Source:
        BaseTrainer.training_process: `_resume_hf_iterable_dataset(dataset, initial_step)`, which reads no state at
        step 0; `data_skip_steps` and `ignore_data_skip` are not read.
    """
    step = plan.next_step - 1
    return None if step == 0 or stream.state_dir is None else f"{stream.state_dir}/step_{step}"


def not_movable(config: TrainConfig, plan: ResumePlan, data: DataQuestion) -> Iterator[Finding]:
    """Report options that would move the data position, although only the state files determine it.

    Args:
        config: A config with streaming data.
        plan: The plan of the resume.
        data: The user's question about the data.
    """
    was, current = plan.point.checkpoint.scalars.global_batch_size, planned_skip(plan).global_batch_size
    step = plan.point.step
    if was is not None and current is not None and was != current:
        yield _fixed(
            config, f"batches of {current} samples", f"keep batches of {was} samples, in the config and by --gbs"
        )
    elif any(segment.global_batch_size != current for segment in data.segments):
        yield _fixed(config, "--segment", "omit it: the state files record how much was consumed")
    if data.new_dataset and step:
        fix = "start a new training from only the weights (`load_checkpoint`, no `resume_training`) with another "
        yield _fixed(config, "--new-dataset", f"{fix}`dataset_state_dir`")
    if data.dataset_changed_at:
        fix = "omit it: the state files were written for the current data, or none of them fits"
        yield _fixed(config, "--dataset-changed-at", fix)
    if plan.advice is not None and plan.advice.detour is not None and plan.advice.followed:
        yield _fixed(config, "--around-spike", "omit it, or use a data loader that does not stream")


def _fixed(config: TrainConfig, label: str, fix: str) -> Finding:
    return suspect(
        MindFormersCode.STREAM_POSITION_FIXED,
        f"{label} would move the data position, but a streaming data loader continues from its saved state for the "
        "checkpoint's step, or stops",
        path=config.path,
        remedy=fix,
        line=config.line("train_dataset.data_loader.streaming"),
    )


def _not_known(config: TrainConfig, why: str, fix: str) -> Finding:
    """Report that the search for the state files failed."""
    return unknown(
        MindFormersCode.STREAM_STATE_MISSING,
        f"{why}, so whether the state files of the streaming data exist is unknown",
        path=config.path,
        remedy=fix,
        line=config.line(_DIR),
    )


def unusable_states(folder: str, missing: Sequence[Rank], broken: Sequence[tuple[Rank, str]]) -> Iterator[Finding]:
    """Report the ranks that have no readable state for the step.

    Args:
        folder: The expected folder of the state files.
        missing: Ranks without a file, ascending.
        broken: Ranks whose file is invalid, with the reason.
    """
    remedy = "use --checkpoint to choose a checkpoint with states for its step; later states prove no step: the data "
    finding = suspect(
        MindFormersCode.STREAM_STATE_MISSING, "", path=folder, remedy=f"{remedy}is fetched ahead of the training"
    )
    if missing:
        names = ", ".join(map(str, missing[:_SHOWN])) + (f" and {len(missing) - _SHOWN} more" * (len(missing) > _SHOWN))
        message = (
            f"expected the data loader's state of rank {names} as dataset_state_rank{missing[0]}.json, but found none"
        )
        message += ": MindFormers stops with a FileNotFoundError"
        yield replace(finding, message=message, ranks=tuple(missing))
    for rank, why in broken[:_SHOWN]:
        yield replace(finding, message=f"the data loader's state of rank {rank} cannot be loaded: {why}", ranks=(rank,))


def state_findings(
    plan: ResumePlan, config: TrainConfig, stream: StreamingData, data: DataQuestion
) -> tuple[Finding, ...]:
    """Report whether streaming data can continue at the chosen checkpoint's position.

    Args:
        plan: The plan of the resume.
        config: A config with streaming data.
        stream: The config's settings for streaming.
        data: The user's question about the data.
    """
    return tuple(not_movable(config, plan, data)) or tuple(_states(plan, config, stream))


def _states(plan: ResumePlan, config: TrainConfig, stream: StreamingData) -> Iterator[Finding]:
    """Report missing and invalid state files.

    They are searched for from the working directory, as MindFormers does from its own.
    """
    folder = state_folder(stream, plan)
    if stream.state_dir is None:
        yield suspect(
            MindFormersCode.STREAM_STATE_MISSING,
            "`streaming: True` needs a `dataset_state_dir`: without one MindFormers stops with a ValueError",
            path=config.path,
            remedy="set the `dataset_state_dir` of the training to resume",
            line=config.line(_DIR) or config.line("train_dataset.data_loader.streaming"),
        )
        return
    if folder is None:
        return
    if not os.path.isabs(stream.state_dir) and not is_folder(stream.state_dir):
        yield _not_known(
            config,
            f"there is no folder {stream.state_dir!r} here, and MindFormers resolves it from the folder in which the "
            "training is started",
            "run ckpttool in that folder, or write an absolute `dataset_state_dir`",
        )
        return
    ranks = writers(stream, config.world_size)
    if ranks is None:
        yield _not_known(
            config,
            "the config does not show which ranks read data",
            "give the complete config (with `parallel`, `parallel_config` and `dataset_strategy`), and --devices in "
            "data-parallel mode",
        )
        return
    states = read_states(folder, ranks)
    yield from unusable_states(os.path.abspath(folder), states.missing, states.broken)
    for rank, why in states.unread[:1]:
        yield _not_known(config, f"the state of rank {rank} in {folder} cannot be read ({why})", "make it readable")
