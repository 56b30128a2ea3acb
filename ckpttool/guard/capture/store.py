"""Captures on the disk: within a budget, tensor by tensor, and whole or not at all."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.guarding import EventValue, GuardEventKind
from ckpttool.core.domain.units import ByteCount, Rank, Step
from ckpttool.core.errors import WriteFailedError
from ckpttool.core.write.files import ensure_folder
from ckpttool.guard.capture.again import compute_again
from ckpttool.guard.capture.facts import digests_of, gradients_of, loss_bits, named_gradients, unwrapped
from ckpttool.guard.capture.remember import Remembered, StepMemory
from ckpttool.guard.capture.settings import CaptureSettings
from ckpttool.guard.capture.writing import ShardWriter
from ckpttool.guard.environment import COMPILED, environment
from ckpttool.guard.files.capture import folder_name, record_name, shard_name
from ckpttool.guard.model.capture import CaptureLevel, LeftOut, MicroBatch, RankCapture, Rerun, ShardFile
from ckpttool.guard.model.guarding import Emit
from ckpttool.guard.norm import is_sharded
from ckpttool.guard.state_tree import EncodedValue, Unsaveable, spell

if TYPE_CHECKING:
    from torch.optim import Optimizer

CAPTURES = "captures"
"""The folder of all captures, in the guard's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """What the guard knows of a step that its memory does not."""

    step: Step
    optimizer_step: int | None = None
    scale: float | None = None
    """A loss scaler's factor; None without one."""
    buffers_left_out: tuple[str, ...] = ()
    data_position: EventValue = None
    restore_buffers: Callable[[], None] = lambda: None
    """Puts buffers back as they were before the step's first forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contents:
    level: CaptureLevel
    encoded: EncodedValue
    left_out: tuple[LeftOut | None, ...]
    """Of each micro-batch."""


class CaptureStore:
    """The captures of one rank."""

    def __init__(  # noqa: PLR0913  each is named where it is given
        self,
        folder: str,
        model: nn.Module,
        *,
        emit: Emit,
        rank: int = 0,
        world_size: int = 1,
        settings: CaptureSettings = CaptureSettings(),
        optimizer: Optimizer | None = None,
    ) -> None:
        """Take where they go and what they are of.

        Args:
            folder: The guard's own, below the output folder; captures get a folder in it.
            model: As it is trained, wrapped or not.
            emit: Where it is told what was made, and what failed.
            rank: This process's.
            world_size: Ranks that train together.
            settings: What is kept, and within which budget.
            optimizer: Whose state has to fit on the disk as well, twice: for the next checkpoint.
        """
        self._folder = f"{folder}/{CAPTURES}"
        self._model = unwrapped(model)
        self._emit = emit
        self._rank, self._world_size = rank, world_size
        self._settings, self._budget = settings, settings.budget
        self._optimizer = optimizer
        self._whole = self._light = self._reruns = 0
        self._last: int | None = None

    def saved(self) -> dict[str, int | None]:
        """Return what was made: a restart does not get a new budget."""
        return {"whole": self._whole, "light": self._light, "reruns": self._reruns, "last": self._last}

    def restore(self, saved: Mapping[str, object]) -> None:
        """Count on from there."""
        numbers = {key: value for key, value in saved.items() if type(value) is int}
        self._whole, self._light = numbers.get("whole", 0), numbers.get("light", 0)
        self._reruns, self._last = numbers.get("reruns", 0), numbers.get("last")

    def capture(self, memory: StepMemory, facts: StepFacts) -> str | None:
        """Compute the step again where that can be done, and write down what is needed to do so elsewhere.

        All ranks at once, and without a word between them. The weights must be those that the forward used, and the
        gradients not clipped yet; both are as before when it returns.

        Returns:
            The capture's folder; None where none was made, which an event says.
        """
        level = self._level(facts.step, can_be_replayed=bool(memory.micro_batches) and memory.holds_all)
        if level is None and self._reruns >= self._budget.reruns:
            return None
        try:
            with _put_back(self._model):
                rerun = self._computed_again(memory, facts)
                if self._is_transient(memory, rerun):
                    self._emit(GuardEventKind.TRANSIENT, step=facts.step, rank=self._rank)
                if level is None:
                    return None
                with torch.no_grad():
                    path, level = self._written(memory, facts, rerun, level)
        except Exception as error:  # noqa: BLE001  whatever it is, the training must not end by it
            self._emit(GuardEventKind.CAPTURE_FAILED, step=facts.step, rank=self._rank, error=_one_line(error))
            return None
        self._count(level, facts.step)
        return path

    def _computed_again(self, memory: StepMemory, facts: StepFacts) -> Rerun | None:
        sharded = any(is_sharded(parameter) for parameter in self._model.parameters())
        if self._settings.loss_of is None or self._reruns >= self._budget.reruns or sharded:
            return None
        if not memory.micro_batches or not memory.holds_all:
            return None
        self._reruns += 1
        return compute_again(
            self._model,
            memory.micro_batches,
            self._settings.loss_of,
            scale=facts.scale,
            restore_buffers=facts.restore_buffers,
        )

    def _is_transient(self, memory: StepMemory, rerun: Rerun | None) -> bool:
        """Tell whether what was wrong on this rank is finite now; of a reduced gradient nobody knows whose it was."""
        if rerun is None or not rerun.is_finite:
            return False
        losses = [micro.loss for micro in memory.micro_batches if micro.loss is not None]
        return self._world_size == 1 or not all(bool(torch.isfinite(loss).all()) for loss in losses)

    def _level(self, step: int, *, can_be_replayed: bool) -> CaptureLevel | None:
        early = self._last is not None and step - self._last < self._budget.every_steps
        if can_be_replayed and self._whole < self._budget.captures and not early:
            return CaptureLevel.FULL
        return CaptureLevel.LIGHT if self._light < self._budget.light_captures else None

    def _count(self, level: CaptureLevel, step: int) -> None:
        if level is CaptureLevel.FULL:
            self._whole, self._last = self._whole + 1, step
        else:
            self._light += 1

    def _written(
        self, memory: StepMemory, facts: StepFacts, rerun: Rerun | None, level: CaptureLevel
    ) -> tuple[str, CaptureLevel]:
        facts.restore_buffers()
        batches = [self._batch(micro) for micro in memory.micro_batches]
        contents = self._contents(memory, batches, level)
        if level is CaptureLevel.FULL and not self._fits(contents.encoded):
            contents = self._contents(memory, batches, CaptureLevel.LIGHT)
        capture = self._record(memory, facts, rerun, contents)
        path = self._free_folder(facts.step)
        ShardWriter(path, capture, contents.encoded.tensors, is_first=self._rank == 0).write(self._budget.io_timeout)
        self._emit(
            GuardEventKind.CAPTURE,
            step=facts.step,
            rank=self._rank,
            path=path,
            level=contents.level.value,
            culprit=self._world_size == 1 or bool(capture.bad_losses) or (rerun is not None and not rerun.is_finite),
            verdict="transient" if self._is_transient(memory, rerun) else None,
            next=f"ckpttool nan inspect {path}",
        )
        return path, contents.level

    def _batch(self, micro: Remembered) -> tuple[object, LeftOut | None]:
        """Return what of a batch can be spelled, and what cannot."""
        if micro.let_go is not None:
            return None, LeftOut(path="", reason=micro.let_go)
        try:
            batch = _plain(
                micro.batch if self._settings.encode_batch is None else self._settings.encode_batch(micro.batch)
            )
            spell(batch)
        except Unsaveable as error:
            return None, LeftOut(path=error.path, reason=error.reason)
        return batch, None

    def _contents(
        self, memory: StepMemory, batches: Sequence[tuple[object, LeftOut | None]], level: CaptureLevel
    ) -> _Contents:
        content: dict[str, object] = {
            "buffers": dict(self._model.named_buffers()),
            "batches": [batch for batch, _ in batches],
            "rng": [micro.random for micro in memory.micro_batches],
        }
        if level is CaptureLevel.FULL:
            content = {"parameters": dict(self._model.named_parameters()), **content}
            if self._budget.full_gradients:
                content["gradients"] = dict(named_gradients(self._model))
        return _Contents(level=level, encoded=spell(content), left_out=tuple(left_out for _, left_out in batches))

    def _fits(self, encoded: EncodedValue) -> bool:
        """Tell whether a whole capture is within the budget, and leaves room for two checkpoints of this rank."""
        size = sum(tensor.nbytes for tensor in encoded.tensors.values())
        if size > self._budget.nbytes:
            return False
        states = self._optimizer.state.values() if self._optimizer is not None else ()
        nbytes = sum(parameter.nbytes for parameter in self._model.parameters())
        nbytes += sum(value.nbytes for state in states for value in state.values() if isinstance(value, Tensor))
        ensure_folder(self._folder)
        free = _free_bytes(self._folder)
        return free is None or free - size >= 2 * nbytes

    def _record(self, memory: StepMemory, facts: StepFacts, rerun: Rerun | None, contents: _Contents) -> RankCapture:
        device = next((parameter.device for parameter in self._model.parameters()), torch.device("cpu"))
        changed = [micro.was_changed for micro in memory.micro_batches]
        if any(changed):
            memory.keep_copies()
        return RankCapture(
            rank=Rank(self._rank),
            world_size=self._world_size,
            step=facts.step,
            optimizer_step=facts.optimizer_step,
            level=contents.level,
            host=platform.node(),
            device=str(device),
            micro_batches=tuple(map(_micro_batch, memory.micro_batches, changed, contents.left_out)),
            gradients=gradients_of(self._model),
            rerun=rerun,
            weights=digests_of(self._model) if contents.level is CaptureLevel.LIGHT else (),
            evaluating=tuple(name for name, module in self._model.named_modules() if not module.training),
            buffers_left_out=facts.buffers_left_out,
            scale=facts.scale,
            environment=(*environment(device).items(), (COMPILED, bool(memory.is_compiled))),
            model_config=_model_config(self._model),
            run_config=self._settings.run_config,
            data_position=facts.data_position,
            content=contents.encoded.tree,
            shard=ShardFile(name=shard_name(self._rank), size=ByteCount(0), xxh3_128="0" * 32),
        )

    def _free_folder(self, step: Step) -> str:
        """Return the folder of this step; another one where this rank captured the same step before a restart."""
        for attempt in range(1000):
            path = f"{self._folder}/{folder_name(step, attempt)}"
            if not os.path.lexists(f"{path}/{record_name(self._rank)}"):
                return path
        raise WriteFailedError(f"{self._folder}: there are a thousand captures of step {step}")


def _free_bytes(folder: str) -> int | None:
    """Return what may still be written; None where the file system knows of no blocks."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize if disk.f_blocks else None


@contextmanager
def _put_back(model: nn.Module) -> Iterator[None]:
    """Leave buffers as they are now: a guard that only watches lets the step's own changes stand."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, copy in buffers:
                buffer.copy_(copy)


def _micro_batch(micro: Remembered, changed: bool, left_out: LeftOut | None) -> MicroBatch:  # noqa: FBT001  for `map`
    return MicroBatch(
        loss=None if micro.loss is None else loss_bits(micro.loss),
        changed=changed,
        left_out=left_out,
        index=micro.index,
        outer_autocast=micro.outer_autocast,
        inner_autocast=micro.inner_autocast,
    )


def _plain(value: object) -> object:
    """Return a batch with plain dicts for what a library's collator makes of one: a model takes either."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if type(value) in {list, tuple}:
        items = [_plain(item) for item in cast("list[object]", value)]
        return items if type(value) is list else tuple(items)
    return value


def _model_config(model: nn.Module) -> EventValue:
    """Return what a model of a library says it was built from, as far as that is plain."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        return None
    settings = config.to_dict()
    return (
        {str(key): value for key, value in settings.items() if _is_plain(value)} if isinstance(settings, dict) else None
    )


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, float):
        return value - value == 0
    return value is None or isinstance(value, (str, int))


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
