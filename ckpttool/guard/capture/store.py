"""Captures on disk, within a budget. They are written atomically, one tensor at a time."""

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
from ckpttool.guard.capture.again import Again, Recomputation, original
from ckpttool.guard.capture.compute import (
    LossFunction,
    Recompute,
    digests_of,
    facts_of,
    loss_bits,
    named_gradients,
    unwrapped,
)
from ckpttool.guard.capture.memory import DEVICE_BATCHES, HOST_BATCHES, Remembered, StepMemory
from ckpttool.guard.capture.shard import ShardWriter
from ckpttool.guard.contain import one_line
from ckpttool.guard.environment import COMPILED, environment
from ckpttool.guard.files.capture import folder_name, record_name, shard_name
from ckpttool.guard.model.capture import (
    CAPTURES_IN_A_ROW,
    CaptureLevel,
    LeftOut,
    MicroBatch,
    RankCapture,
    Rerun,
    ShardFile,
)
from ckpttool.guard.model.guarding import Emit
from ckpttool.guard.state_tree import EncodedValue, Unsaveable, spell

if TYPE_CHECKING:
    from torch.optim import Optimizer

CAPTURES = "captures"
"""Name of the folder of all captures, in the guard's folder."""

_ROW = 3
"""Number of consecutive captures of the same weights that are reported as a series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureBudget:
    """The budget for captures. Further captures are light, without weights."""

    captures: int = 3
    """Maximum number of full captures per run."""
    light_captures: int = 20
    """Maximum number of light captures per run. After that, nothing is captured."""
    every_steps: int = 100
    """Minimum number of steps between two full captures."""
    nbytes: ByteCount = ByteCount(20 << 30)
    """Maximum size of one rank's shard in bytes."""
    device_batches: ByteCount = DEVICE_BATCHES
    """Bytes of accelerator memory for earlier batches of an accumulated step. Further batches move to the host."""
    host_batches: ByteCount = HOST_BATCHES
    """Bytes of host memory for these batches.

    Of further batches only fingerprints are kept, which prevents a replay.
    """
    reruns: int = 3
    """Maximum number of steps per run to recompute in place."""
    full_gradients: bool = False
    """Whether every complete gradient is stored, not only its digest."""
    io_timeout: float = 60.0
    """Timeout in seconds for a disk that does not respond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSettings:
    """The settings for capturing a step with non-finite values."""

    budget: CaptureBudget = CaptureBudget()
    loss_of: LossFunction | None = None
    """Function that returns the loss of a micro-batch from model and batch, so that the step can be recomputed in
    place.
    """
    encode_batch: Callable[[object], object] | None = None
    """Function that converts a batch to plain values if its classes cannot be saved."""
    run_config: EventValue = None
    """User data to store in each capture, as plain JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """Facts about a step that its stored micro-batches do not show."""

    step: Step
    optimizer_step: int | None = None
    scale: float | None = None
    """Loss scale, or None without a loss scaler."""
    scaler: Mapping[str, object] | None = None
    """State of the loss scaler."""
    buffers_left_out: tuple[str, ...] = ()
    restore_buffers: Callable[[], None] = lambda: None
    """Function that restores the buffers to their state before the step's first forward pass."""
    recompute: Recompute | None = None
    """The trainer's own function for recomputing a micro-batch, or None if it has none."""
    is_culprit: bool = False
    """Whether this rank's own values were not finite, before any reduction."""


class CaptureStore:
    """The captures of one rank."""

    def __init__(  # noqa: PLR0913  callers name each argument
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
        """Store the guard's folder, the model, and the optimizer, if any.

        Args:
            folder: The guard's folder, in the output folder. Captures are stored in a subfolder.
            model: The trained model, wrapped or not.
            emit: Receiver of events about captures and failures.
            rank: Rank of this process.
            world_size: Number of ranks that train together.
            settings: The data to capture, and the budget.
            optimizer: The optimizer. Its state is captured if it fits and the disk has room for two more copies of it,
                for the
                next checkpoint.
        """
        self._folder = f"{folder}/{CAPTURES}"
        self._model = unwrapped(model)
        self._emit = emit
        self._rank, self._world_size = rank, world_size
        self._settings, self._budget = settings, settings.budget
        self._optimizer = optimizer
        self._recomputation = Recomputation(self._model, settings.loss_of, settings.budget.reruns)
        self._full = self._light = 0
        self._last: int | None = None
        self._before: tuple[int, int | None] | None = None  # step and applied updates of the capture before
        self._row_began = 0

    @property
    def full_captures(self) -> int:
        """Number of captures with weights."""
        return self._full

    def saved(self) -> dict[str, int | None]:
        """Return the numbers of captures, because a restart does not get a new budget."""
        return {"whole": self._full, "light": self._light, "reruns": self._recomputation.count, "last": self._last}

    def restore(self, saved: Mapping[str, object]) -> None:
        """Restore the numbers of captures."""
        numbers = {key: value for key, value in saved.items() if type(value) is int}
        self._full, self._light = numbers.get("whole", 0), numbers.get("light", 0)
        self._recomputation.count, self._last = numbers.get("reruns", 0), numbers.get("last")

    def capture(self, memory: StepMemory, facts: StepFacts) -> str | None:
        """Recompute the step if possible, and write the data for recomputing it elsewhere.

        All ranks call it at the same time, without communication. The weights must be those of the forward pass, and
        the gradients must not be clipped yet. Both are unchanged when it returns.

        Returns:
            The capture's folder, or None without a capture, which an event reports.
        """
        level = self._level(facts.step, can_be_replayed=bool(memory.micro_batches) and memory.holds_all)
        if level is None and self._recomputation.count >= self._budget.reruns:
            return None
        try:
            with _put_back(self._model):
                again = self._again(memory, facts, lambda rerun: not rerun.is_finite)
                rerun = again.rerun
                losses = [micro.loss for micro in memory.micro_batches if micro.loss is not None]
                # The source of a reduced gradient is unknown.
                has_bad_loss = not all(bool(torch.isfinite(loss).all()) for loss in losses)
                was_own = self._world_size == 1 or has_bad_loss or facts.is_culprit
                is_finite_now = rerun is not None and rerun.is_finite and was_own
                if is_finite_now:
                    self._emit(GuardEventKind.TRANSIENT, step=facts.step, rank=self._rank)
                if level is None:
                    return None
                with torch.no_grad():
                    path, capture = self._written(memory, facts, rerun, level)
        except Exception as error:  # noqa: BLE001  no error here may end the training
            self._emit(GuardEventKind.CAPTURE_FAILED, step=facts.step, rank=self._rank, error=one_line(error))
            return None
        if capture.level is CaptureLevel.FULL:
            self._full, self._last = self._full + 1, facts.step
        else:
            self._light += 1
        self._emit(
            GuardEventKind.CAPTURE,
            step=facts.step,
            rank=self._rank,
            path=path,
            level=capture.level.value,
            culprit=was_own or (rerun is not None and not rerun.is_finite),
            verdict="transient" if is_finite_now else None,
            host=capture.host,
            device=capture.device,
            finite_again=None if rerun is None else rerun.is_finite,
            repeats=None if rerun is None else rerun.repeats,
            not_recomputed=again.why_not,
            next=f"ckpttool guard inspect {path}",
        )
        self._report_row(facts)
        return path

    def recheck(self, memory: StepMemory, facts: StepFacts, suspicion: GuardEventKind, of_step: Step) -> bool:
        """Recompute a step with finite values, compare the results, and report the outcome.

        Losses are always compared. Gradients are compared only if no other rank contributed to them.

        Args:
            memory: The micro-batches of the step.
            facts: Facts about the step.
            suspicion: The event that made this rank suspicious. RECOMPUTED means a step that differed when recomputed.
            of_step: The step of that event.

        Returns:
            Whether the result differs.
        """
        is_alone = self._world_size == 1
        before = original(self._model, memory)

        def is_same(rerun: Rerun) -> bool:
            return rerun.equals(before) if is_alone else rerun.has_losses_of(before)

        with _put_back(self._model):
            again = self._again(memory, facts, is_same)
        same = None if again.rerun is None else is_same(again.rerun)
        self._emit(
            GuardEventKind.RECOMPUTED,
            step=facts.step,
            rank=self._rank,
            host=platform.node(),
            device=_device(self._model),
            suspicion=suspicion.value,
            of_step=of_step,
            same=same,
            not_recomputed=again.why_not,
        )
        return same is False

    def _report_row(self, facts: StepFacts) -> None:
        """Report once that several consecutive captures have the same weights."""
        applied = facts.optimizer_step
        if applied is None or self._before != (facts.step - 1, applied):
            self._row_began = facts.step
        self._before = facts.step, applied
        if facts.step - self._row_began + 1 == _ROW:
            message = (
                f"{_ROW} captures in a row from step {self._row_began} are of the same weights: most likely one cause; "
                "inspect the first one"
            )
            self._emit(GuardEventKind.ALARM, step=facts.step, name=CAPTURES_IN_A_ROW, count=_ROW, message=message)

    def _level(self, step: int, *, can_be_replayed: bool) -> CaptureLevel | None:
        early = self._last is not None and step - self._last < self._budget.every_steps
        if can_be_replayed and self._full < self._budget.captures and not early:
            return CaptureLevel.FULL
        return CaptureLevel.LIGHT if self._light < self._budget.light_captures else None

    def _again(self, memory: StepMemory, facts: StepFacts, is_suspicious: Callable[[Rerun], bool]) -> Again:
        return self._recomputation.run(
            memory,
            of_trainer=facts.recompute,
            scale=facts.scale,
            restore_buffers=facts.restore_buffers,
            is_suspicious=is_suspicious,
        )

    def _written(
        self, memory: StepMemory, facts: StepFacts, rerun: Rerun | None, level: CaptureLevel
    ) -> tuple[str, RankCapture]:
        facts.restore_buffers()
        batches, left_out = [], []
        for micro in memory.micro_batches:
            batch, missing = self._batch(micro)
            batches.append(batch)
            left_out.append(missing)
        content: dict[str, object] = {
            "buffers": dict(self._model.named_buffers()),
            "batches": batches,
            "rng": [micro.random for micro in memory.micro_batches],
        }
        if drawn := _items(memory):
            content["drawn"] = drawn
        encoded = spell(content)
        if level is CaptureLevel.FULL:
            whole = {"parameters": dict(self._model.named_parameters()), **content}
            if facts.scaler:
                whole["scaler"] = dict(facts.scaler)
            if self._budget.full_gradients:
                whole["gradients"] = dict(named_gradients(self._model))
            state = self._optimizer_state()
            candidates = [spell(whole)] if state is None else [spell({**whole, "optimizer": state}), spell(whole)]
            fitting = next(filter(self._fits, candidates), None)
            level = CaptureLevel.LIGHT if fitting is None else level
            encoded = fitting or encoded
        capture = self._record(memory, facts, rerun, level, encoded, left_out)
        path = self._free_folder(facts.step)
        ShardWriter(path, capture, encoded.tensors, is_first=self._rank == 0).write(self._budget.io_timeout)
        return path, capture

    def _batch(self, micro: Remembered) -> tuple[object, LeftOut | None]:
        """Return the batch if it can be saved, else the reason."""
        if micro.let_go is not None:
            return None, LeftOut(path="", reason=micro.let_go, is_over_budget=True)
        encode = self._settings.encode_batch
        try:
            batch = _plain(micro.batch if encode is None else encode(micro.batch))
            spell(batch)
        except Unsaveable as error:
            return None, LeftOut(path=error.path, reason=error.reason)
        return batch, None

    def _optimizer_state(self) -> dict[str, object] | None:
        """Return the optimizer's state and the names of its parameters, or None if it cannot be saved."""
        if self._optimizer is None or not hasattr(self._optimizer, "state_dict"):
            return None
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        updated = [names.get(id(parameter)) for group in self._optimizer.param_groups for parameter in group["params"]]
        state: dict[str, object] = {"updated": updated, "state": self._optimizer.state_dict()}
        try:
            spell(state)
        except Unsaveable:
            return None
        return state

    def _fits(self, encoded: EncodedValue) -> bool:
        """Return whether a full capture is within the budget, and leaves room for two checkpoints of this rank."""
        size = sum(tensor.nbytes for tensor in encoded.tensors.values())
        if size > self._budget.nbytes:
            return False
        states = self._optimizer.state.values() if self._optimizer is not None else ()
        nbytes = sum(parameter.nbytes for parameter in self._model.parameters())
        nbytes += sum(value.nbytes for state in states for value in state.values() if isinstance(value, Tensor))
        ensure_folder(self._folder)
        free = _free_bytes(self._folder)
        return free is None or free - size >= 2 * nbytes

    def _record(  # noqa: PLR0913, PLR0917  all known facts about a step
        self,
        memory: StepMemory,
        facts: StepFacts,
        rerun: Rerun | None,
        level: CaptureLevel,
        encoded: EncodedValue,
        left_out: Sequence[LeftOut | None],
    ) -> RankCapture:
        device = torch.device(_device(self._model))
        changed = [micro.was_changed for micro in memory.micro_batches]
        if any(changed):
            memory.keep_copies()
        return RankCapture(
            rank=Rank(self._rank),
            world_size=self._world_size,
            step=facts.step,
            optimizer_step=facts.optimizer_step,
            level=level,
            host=platform.node(),
            device=str(device),
            micro_batches=tuple(
                MicroBatch(
                    loss=None if micro.loss is None else loss_bits(micro.loss),
                    changed=was_changed,
                    left_out=missing,
                    index=micro.index,
                    outer_autocast=micro.outer_autocast,
                    inner_autocast=micro.inner_autocast,
                )
                for micro, was_changed, missing in zip(memory.micro_batches, changed, left_out, strict=True)
            ),
            gradients=tuple(facts_of(named_gradients(self._model))),
            rerun=rerun,
            weights=digests_of(self._model) if level is CaptureLevel.LIGHT else (),
            evaluating=tuple(name for name, module in self._model.named_modules() if not module.training),
            buffers_left_out=facts.buffers_left_out,
            scale=facts.scale,
            environment=(*environment(device).items(), (COMPILED, bool(memory.is_compiled))),
            model_config=_model_config(self._model),
            run_config=self._settings.run_config,
            data_position=None,
            content=encoded.tree,
            shard=ShardFile(name=shard_name(self._rank), size=ByteCount(0), xxh3_128="0" * 32),
        )

    def _free_folder(self, step: Step) -> str:
        """Return a new folder for this step, with a suffix if this rank captured the same step before a restart."""
        for attempt in range(1000):
            path = f"{self._folder}/{folder_name(step, attempt)}"
            if not os.path.lexists(f"{path}/{record_name(self._rank)}"):
                return path
        raise WriteFailedError(f"{self._folder}: there are a thousand captures of step {step}")


def _device(model: nn.Module) -> str:
    return str(next((parameter.device for parameter in model.parameters()), torch.device("cpu")))


def _free_bytes(folder: str) -> int | None:
    """Return the free space in bytes, or None if the file system does not report it."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize if disk.f_blocks else None


@contextmanager
def _put_back(model: nn.Module) -> Iterator[None]:
    """Restore the current buffers on exit, because a guard in watch mode keeps the changes of the step."""
    # By name: Megatron-core's wrapper has a list where a module has the method `buffers`.
    buffers = [(buffer, buffer.detach().clone()) for _, buffer in model.named_buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, copy in buffers:
                buffer.copy_(copy)


def _plain(value: object) -> object:
    """Return a batch with plain dicts in place of a library's collator types. Models accept both."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if type(value) in {list, tuple}:
        items = [_plain(item) for item in cast("list[object]", value)]
        return items if type(value) is list else tuple(items)
    return value


def _items(memory: StepMemory) -> list[dict[str, object]]:
    """Return the items that data loaders returned for the step, or an empty list if one cannot be saved."""
    items: list[dict[str, object]] = [
        {"loader": drawn.loader, "item": _plain(drawn.item), "changed": drawn.was_moved} for drawn in memory.drawn
    ]
    try:
        spell(items)
    except Unsaveable:
        return []
    return items


def _model_config(model: nn.Module) -> EventValue:
    """Return the plain data in the config of a library's model."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        return None
    settings = config.to_dict()
    if not isinstance(settings, dict):
        return None
    return {str(key): value for key, value in settings.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, float):
        return value - value == 0
    return value is None or isinstance(value, (str, int))
