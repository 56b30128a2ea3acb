"""Replay of a captured step in another process with the user's model. No optimizer step is made.

The ranks are computed one after the other in one process, and compared with the captured values.
"""

from __future__ import annotations

import importlib
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from types import FrameType
from typing import Any, cast

import torch
from torch import Tensor, nn

from ckpttool.core.domain.finding import Finding, Row, Severity, note, unknown
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Rank
from ckpttool.core.errors import IncompleteError, UsageError
from ckpttool.guard import randomness
from ckpttool.guard.capture.compute import digests_of, facts_of, loss_bits, named_gradients, unscale, unwrapped
from ckpttool.guard.capture.shard import Content
from ckpttool.guard.environment import COMPILED, comes_from_compiled, differences, environment, take_over
from ckpttool.guard.findings import GuardCode
from ckpttool.guard.model.capture import (
    Capture,
    CaptureLevel,
    Difference,
    GradientFacts,
    LossBits,
    MicroBatch,
    NanQuestion,
    NanReplay,
    NanVerdict,
    Origin,
    OriginKind,
    RankCapture,
    is_finite,
)
from ckpttool.guard.nested import form, map_tensors, named_tensors
from ckpttool.guard.replay.locate import Event, Locator, far_off
from ckpttool.guard.rules.nan_diagnosis import compared, is_reproduced, verdict
from ckpttool.guard.state_tree import Sharded, UnreadableState
from ckpttool.guard.tensor_file import copied

_OF_MODEL = "config."
"""Prefix of a model's own settings. Settings that differ are restored to the captured values."""

_MOST_NAMED = 3

_SQUARE_OVERFLOWS = 1.8e19
"""Absolute value from which the square of a float32 may be infinite."""


class EntryDoesNotFit(Exception):  # noqa: N818  the name is a statement
    """Error for an entry whose result does not match the capture, or a capture without the data for a replay."""

    def __init__(self, why: str, *, remedy: str = "let the entry build the model that was trained") -> None:
        super().__init__(why)
        self.remedy = remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTask:
    """The result of an entry for a plain loop."""

    model: nn.Module
    loss: Callable[[Any], Tensor]
    """Function of one micro-batch that returns the value for `backward`, divided if the training code accumulates."""


class RankRun:
    """A rank's step, ready to be computed repeatedly."""

    def __init__(self, captured: RankCapture, content: Content, made: object, device: torch.device) -> None:
        """Load the captured data into the objects of the entry.

        Args:
            captured: The rank's record.
            content: The rank's tensors.
            made: The result of the entry.
            device: The device to compute on.

        Raises:
            EntryDoesNotFit: The model has other parameters, buffers or modules, or cannot be run.
        """
        self._captured = captured
        self._content = content
        self._device = device
        model = made.model if isinstance(made, ReplayTask) else made
        if not isinstance(model, nn.Module):
            raise EntryDoesNotFit(
                f"the entry returned {type(made).__name__}: "
                "expected a ReplayTask, a LightningModule or a transformers model"
            )
        self._made = made
        self._model = unwrapped(model).to(device)
        self.differences = tuple(_take_config(self._model, captured.model_config))
        """Settings of the model that differed from the captured values, and were set to them."""
        self.is_compiled = False
        """Whether compiled code computed a loss of the last run."""
        self._load()

    def compute(self) -> tuple[LossBits, ...]:
        """Compute the step: the forward and backward pass of each micro-batch, without an update."""
        self._prepare()
        losses = []
        for number in range(len(self._captured.micro_batches)):
            loss = self._loss(number, self._batch(number))
            self.is_compiled = self.is_compiled or comes_from_compiled(loss)
            losses.append(loss_bits(loss))
            self._backward(loss)
        unscale(self._model, self._captured.scale)
        return tuple(losses)

    @property
    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each gradient of the last run with its name."""
        return named_gradients(self._model)

    def facts(self) -> tuple[GradientFacts, ...]:
        """Return the facts about the gradients of the last run."""
        return tuple(facts_of(self.gradients))

    def locate(self) -> Origin | None:
        """Recompute the step with every operation checked. Return None if all results are finite."""
        self._prepare()
        for number in range(len(self._captured.micro_batches)):
            locator = Locator(self._model)
            batch = self._batch(number)
            locator.know_inputs(batch)
            with locator.watching():
                loss = self._loss(number, batch)
                self._backward(loss)
            wrong = [loss.detach()] if not bool(torch.isfinite(loss).all()) else []
            tensors = [gradient._values() if gradient.is_sparse else gradient for _, gradient in self.gradients]  # noqa: SLF001  a copy would have another storage than the checked tensor
            wrong += [gradient for gradient in tensors if not bool(torch.isfinite(gradient).all())]
            if wrong:
                event = locator.origin(wrong[:1]) or locator.origin(wrong)
                if event is None:
                    return None
                return self._origin(number, self._overflowing_weight(event) or event)
        far = (
            far_off(OriginKind.PARAMETER, self._model.named_parameters())
            or far_off(OriginKind.BUFFER, self._model.named_buffers())
            or far_off(OriginKind.INPUT, named_tensors(self._content.batches))
        )
        return None if far is None else self._origin(0, far)

    def _overflowing_weight(self, event: Event) -> Event | None:
        """Return the weight that made an operation overflow, because its square exceeds float32."""
        if event.kind is not OriginKind.OP:
            return None
        far = far_off(OriginKind.PARAMETER, self._model.named_parameters())
        return None if far is None or abs(far.value or 0.0) < _SQUARE_OVERFLOWS else far

    def _origin(self, number: int, event: Event) -> Origin:
        return Origin(
            rank=self._captured.rank,
            micro_batch=number,
            phase=event.phase,
            kind=event.kind,
            op=event.name,
            module=event.module,
            line=event.line,
            shape=event.shape,
            nan=event.nan,
            inf=event.inf,
            value=event.value,
            times_rms=event.times_rms,
        )

    def _load(self) -> None:
        weights = dict(self._model.named_parameters())
        captured: dict[str, Tensor] = {}
        for name, value in self._content.parameters.items():
            if isinstance(value, Sharded):
                raise EntryDoesNotFit(f"the weight {name} is sharded, but not all ranks' captures are here")
            captured[name] = value
        assert_same("parameter", captured, weights)
        assert_same("buffer", self._content.buffers, dict(self._model.named_buffers()))
        modules = dict(self._model.named_modules())
        if unknown := [name for name in self._captured.evaluating if name not in modules]:
            raise EntryDoesNotFit(f"the model has no module {unknown[0]}")
        self._weights = captured
        self._prepare()
        if self._captured.weights:
            self._assert_captured_weights()
        for name, wants_gradient in self._content.trained.items():
            weights[name].requires_grad_(wants_gradient)
        for name, module in modules.items():
            module.training = name not in self._captured.evaluating

    def _assert_captured_weights(self) -> None:
        current = dict(digests_of(self._model))
        changed = [name for name, digest in self._captured.weights if current.get(name) != digest]
        if changed:
            raise EntryDoesNotFit(
                f"{len(changed)} of {len(current)} weights differ from the captured ones, {changed[0]} first: name "
                "the checkpoint of exactly that step, or one without an applied update in between"
            )

    def _prepare(self) -> None:
        """Restore weights, buffers and gradients to the state before the step. A forward pass may change them."""
        self._model.zero_grad(set_to_none=True)
        for name, parameter in self._model.named_parameters():
            parameter.data = self._weights[name].detach().clone().to(self._device)
        for name, buffer in self._model.named_buffers():
            buffer.data = self._content.buffers[name].detach().clone().to(self._device)

    def _batch(self, number: int) -> object:
        """Return a batch in separate memory. With a file's alignment, a kernel may sum in another order."""

        def moved(tensor: Tensor) -> Tensor:
            stored = tensor.detach()
            copy = copied(stored) if stored.device == self._device else stored.to(self._device)
            return copy.requires_grad_(tensor.requires_grad)

        return map_tensors(self._content.batches[number], moved)

    def _loss(self, number: int, batch: object) -> Tensor:
        micro = self._captured.micro_batches[number]
        randomness.restore(self._content.random[number])
        with self._autocast(micro):
            loss = self._own_loss(micro, batch)
        if not isinstance(loss, Tensor):
            raise EntryDoesNotFit(f"the loss is a {type(loss).__name__}, not a tensor")
        return loss

    def _own_loss(self, micro: MicroBatch, batch: object) -> object:
        """Return the loss as this model's trainer passes it to `backward`."""
        if isinstance(self._made, ReplayTask):
            return self._made.loss(batch)
        divisor = len(self._captured.micro_batches)
        if hasattr(self._model, "training_step"):
            result = cast("Any", self._model).training_step(batch, micro.index or 0)
            loss = result["loss"] if isinstance(result, Mapping) else result
            return loss / divisor
        if not isinstance(batch, Mapping):
            raise EntryDoesNotFit("the batch is not a dict, which a transformers model needs: return a ReplayTask")
        inputs = {key: value for key, value in batch.items() if key != "num_items_in_batch"}
        counted = batch.get("num_items_in_batch")
        # Without a number of items the trainer divides by the accumulation itself.
        item_count = {} if counted is None else {"num_items_in_batch": counted}
        result = self._model(**inputs, **item_count)
        loss = result["loss"] if isinstance(result, Mapping) else result[0]  # as in the trainer
        return loss if item_count else loss / divisor

    @contextmanager
    def _autocast(self, micro: MicroBatch) -> Iterator[None]:
        """Enter the captured autocast. For a plain loop, this is the one that was active before its own code ran."""
        inner = () if isinstance(self._made, ReplayTask) or micro.inner_autocast is None else micro.inner_autocast
        with ExitStack() as stack:
            for kind, dtype in inner or micro.outer_autocast:
                device = kind if kind == "cpu" else self._device.type
                stack.enter_context(torch.autocast(device, dtype=getattr(torch, dtype, torch.bfloat16)))
            yield

    def _backward(self, loss: Tensor) -> None:
        if not loss.requires_grad:
            raise EntryDoesNotFit(
                "the loss does not require a gradient: the entry has to return the loss on which `backward` is called"
            )
        scale = self._captured.scale
        (loss if scale is None else loss * scale).sum().backward()


def assert_same(
    noun: str, captured: Mapping[str, Tensor], current: Mapping[str, Tensor], *, model: str = "the entry's model"
) -> None:
    """Raise an error that names the tensors that do not match.

    Raises:
        EntryDoesNotFit: A tensor is missing, unexpected, or of another shape or type.
    """
    missing = [name for name in captured if name not in current]
    extra = [name for name in current if name not in captured]
    changed = [
        f"{name} ({form(captured[name])} captured, {form(current[name])} here)"
        for name in current
        if name in captured and form(captured[name]) != form(current[name])
    ]
    for phrase, names in (("lacks the", missing), ("has a {} that was not captured:", extra), ("has another", changed)):
        if names:
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            lead = phrase.format(noun) if "{}" in phrase else f"{phrase} {noun}"
            raise EntryDoesNotFit(f"{model} {lead} {', '.join(names[:_MOST_NAMED])}{more}")


def _take_config(model: nn.Module, captured: object) -> Iterator[Difference]:
    """Restore attributes of a library's config, some of which a trainer sets silently, and yield the changes."""
    config = getattr(model, "config", None)
    if not isinstance(captured, Mapping) or config is None:
        return
    for key, value in captured.items():
        current = getattr(config, key, None)
        if isinstance(value, (str, int, bool)) and type(current) in {str, int, bool} and current != value:
            setattr(config, key, value)
            yield Difference(what=f"{_OF_MODEL}{key}", captured=value, here=current)


def replay(capture: Capture, question: NanQuestion) -> NanReplay:
    """Recompute the ranks of a capture.

    The output of the entry goes to stderr, because stdout is reserved for the answer.

    Raises:
        UsageError: There is no such entry, rank or device.
        IncompleteError: The replay exceeded the timeout.
    """
    ranks = _requested_ranks(capture, question)
    device = _device(question.device, ranks)
    current = environment(device)
    try:
        with redirect_stdout(sys.stderr), _within(question.timeout):
            entry = _entry(question.entry)
            if ranks:
                take_over(dict(ranks[0].environment))
            return _Session(capture, question, device, entry).answer(ranks)
    finally:
        take_over(current)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Computed:
    captured: RankCapture
    losses: tuple[LossBits, ...]
    gradients: tuple[GradientFacts, ...]


class _Session:
    def __init__(
        self, capture: Capture, question: NanQuestion, device: torch.device, entry: Callable[[RankCapture], object]
    ) -> None:
        self._capture = capture
        self._question = question
        self._device = device
        self._entry = entry
        requested = set(question.ranks or range(capture.world_size))
        self._findings: list[Finding] = []
        for finding in capture.findings:  # a finding without a rank concerns all ranks
            if finding.severity is Severity.NOTE or not finding.ranks or requested & set(finding.ranks):
                self._findings.append(finding)
        self._differences: dict[tuple[str, str, str], Difference] = {}
        self._origin: Origin | None = None
        self._mean: dict[str, Tensor] = {}

    def answer(self, ranks: Sequence[RankCapture]) -> NanReplay:
        """Compute these ranks, and return the answer."""
        computed = [result for rank in ranks if (result := self._computed(rank)) is not None]
        is_complete = len(computed) == self._capture.world_size > 1
        reduced = tuple(facts_of(self._mean.items())) if is_complete else None
        replayed = [compared(result.captured, result.losses, result.gradients, reduced) for result in computed]
        could_not = any(finding.severity > Severity.NOTE for finding in self._findings)
        reproduced = bool(replayed) and not could_not and is_reproduced(replayed, exact=self._question.exact)
        kinds = {captured.device.partition(":")[0] for captured in (result.captured for result in computed)}
        outcome, why = verdict(
            [result.captured for result in computed],
            replayed,
            same_device=kinds <= {self._device.type},
            same_host=any(result.captured.host == platform.node() for result in computed),
            origin=self._origin,
        )
        if not replayed or could_not:
            outcome, why = NanVerdict.UNDECIDED, "it could not be recomputed"
            if replayed and is_reproduced(replayed, exact=self._question.exact):
                why = "the computed part was reproduced, but parts of the capture are missing or damaged"
        if self._differences:
            self._findings.append(self._environment_note(reproduced=reproduced))
        return NanReplay(
            capture=self._capture.path,
            step=self._capture.step,
            device=str(self._device),
            exact=self._question.exact,
            verdict=outcome,
            why=why,
            ranks=tuple(replayed),
            culprits=self._capture.culprits,
            origin=self._origin,
            environment=tuple(sorted(self._differences.values(), key=lambda difference: difference.what)),
            findings=tuple(self._findings),
            reproduced=reproduced,
        )

    def _environment_note(self, *, reproduced: bool) -> Finding:
        names = sorted({difference.what for difference in self._differences.values()})
        ours = [name for name in names if name.startswith(_OF_MODEL)]
        foreign = [name for name in names if name not in ours]
        parts = [f"differs from the capture: {', '.join(foreign)}"] if foreign else []
        parts += [f"set as in the capture: {', '.join(ours)}"] if ours else []
        remedy = (
            None
            if reproduced or not foreign
            else "replay in an environment with the same values; each of them changes last bits"
        )
        if COMPILED in foreign:
            remedy = "compiled code gives other last bits: let a ReplayTask's loss call the model as the training did"
        return note(GuardCode.ENVIRONMENT_DIFFERS, "; ".join(parts), remedy=remedy)

    def _computed(self, captured: RankCapture) -> _Computed | None:
        """Compute one rank, or return None if that is impossible, which is reported as a finding."""
        try:
            content = self._content(captured)
            with torch.random.fork_rng(devices=[]):
                made = self._entry(captured)
            run = RankRun(captured, content, made, self._device)
            self._note_autocast(captured, made)
            result = _Computed(captured=captured, losses=run.compute(), gradients=run.facts())
            current = {**environment(self._device), COMPILED: run.is_compiled}
            for difference in (*differences(dict(captured.environment), current), *run.differences):
                self._differences[difference.what, str(difference.captured), str(difference.here)] = difference
            if captured.world_size > 1:
                for name, gradient in run.gradients:  # divided before they are summed, as in a reduction
                    part = gradient.detach() / captured.world_size
                    self._mean[name] = self._mean[name] + part if name in self._mean else part
            is_bad = not is_finite(result.losses, result.gradients)
            if self._question.locate and self._origin is None and is_bad:
                self._origin = run.locate()
        except EntryDoesNotFit as error:
            self._cannot(GuardCode.ENTRY_DOES_NOT_FIT, captured, str(error), error.remedy)
        except (UnreadableState, OSError) as error:
            self._cannot(GuardCode.CAPTURE_DAMAGED, captured, str(error), "copy the capture again")
        except (Exception, SystemExit) as error:  # noqa: BLE001  the user's own code may raise anything
            text = f"the entry's own code raised {type(error).__name__}: {' '.join(str(error).split())[:500]}"
            self._cannot(GuardCode.ENTRY_DOES_NOT_FIT, captured, text, "let the entry build the model that was trained")
        else:
            return result
        return None

    def _cannot(self, code: Row, captured: RankCapture, why: str, remedy: str) -> None:
        self._findings.append(
            unknown(code, f"rank {captured.rank} cannot be recomputed: {why}", ranks=(captured.rank,), remedy=remedy)
        )

    def _content(self, captured: RankCapture) -> Content:
        content = Content(captured, f"{self._capture.path}/{captured.shard.name}")
        left_out = next((batch.left_out for batch in captured.micro_batches if batch.left_out is not None), None)
        if left_out is not None:
            raise EntryDoesNotFit(
                f"its batch was not saved: {left_out.path or 'it'} is {left_out.reason}",
                remedy=f"for the next capture, {left_out.remedy}",
            )
        if not captured.micro_batches:
            raise EntryDoesNotFit(
                "no micro-batch was recorded: the training did not pass them to the guard",
                remedy="for the next capture, pass each batch to the guard: with guard.micro(batch)",
            )
        if self._question.weights is not None:
            content.take_weights(self._question.weights)
        elif captured.level is CaptureLevel.LIGHT:
            raise EntryDoesNotFit(
                "the capture is light and has no weights",
                remedy="give the safetensors file of a checkpoint at this step with --weights",
            )
        if any(isinstance(value, Sharded) for value in content.parameters.values()):
            folder = self._capture.path
            parts = [Content(rank, f"{folder}/{rank.shard.name}") for rank in self._capture.ranks]
            try:
                content.join(parts)
            except ValueError as error:
                raise EntryDoesNotFit(str(error)) from None
        return content

    def _note_autocast(self, captured: RankCapture, made: object) -> None:
        """Report that a model is computed although its captured autocast is unknown."""
        if isinstance(made, ReplayTask) or all(micro.inner_autocast is not None for micro in captured.micro_batches):
            return
        around = {dtype for micro in captured.micro_batches for _, dtype in micro.outer_autocast}
        self._findings.append(
            note(
                GuardCode.CAPTURE_INCOMPLETE,
                f"rank {captured.rank}: the autocast with which the model was called is unknown; it is computed with "
                f"{', '.join(sorted(around)) or 'none'}",
                ranks=(captured.rank,),
                remedy="return a ReplayTask whose loss enters the training's own autocast",
            )
        )


def _requested_ranks(capture: Capture, question: NanQuestion) -> tuple[RankCapture, ...]:
    by_rank = {int(rank.rank): rank for rank in capture.ranks}
    for rank in question.ranks:
        if rank not in by_rank and rank >= capture.world_size:
            raise UsageError(f"there is no rank {rank}: {capture.path} has {capture.world_size}")
    damaged = {rank for finding in capture.findings if finding.severity > Severity.NOTE for rank in finding.ranks}
    requested = sorted(set(question.ranks) or by_rank)
    return tuple(by_rank[rank] for rank in requested if rank in by_rank and Rank(rank) not in damaged)


def _device(name: str | None, ranks: Sequence[RankCapture]) -> torch.device:
    """Return the device to compute on: the captured device if it exists, else the CPU.

    Raises:
        UsageError: There is no such device on this machine.
    """
    captured = ranks[0].device if ranks else "cpu"
    try:
        if name is None:
            kind, accelerator = torch.device(captured).type, torch.accelerator.current_accelerator()
            is_here = accelerator is not None and accelerator.type == kind
            return torch.device(captured if kind == "cpu" or is_here else "cpu")
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise UsageError(f"there is no device {name!r} here: {str(error).splitlines()[0]}") from None
    return device


def _entry(text: str) -> Callable[[RankCapture], object]:
    """Import the user's own function.

    Raises:
        UsageError: There is no such module or function.
    """
    module, _, name = text.partition(":")
    if not module or not name.isidentifier():
        raise UsageError(f"an entry has the form module:function, not {text!r}")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        entry = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise UsageError(f"{module} cannot be imported ({error}); add its folder to PYTHONPATH") from None
    except SystemExit:
        raise UsageError(
            f"{module} ends the process while it is imported: put the code that it runs as a program under if "
            "__name__ == '__main__'"
        ) from None
    except Exception as error:  # noqa: BLE001  the user's own code may raise anything
        raise UsageError(f"{module} cannot be imported ({type(error).__name__}: {error})") from None
    if not callable(entry):
        raise UsageError(f"{module} has no function {name}")
    function: Callable[[RankCapture], object] = entry
    return function


@contextmanager
def _within(timeout: float | None) -> Iterator[None]:
    """Raise the exception that ends the command if the timeout is exceeded."""

    def late(_signal: int, _frame: FrameType | None) -> None:
        raise _Late

    if timeout is None:
        yield
        return
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, timeout)
    try:
        yield
    except _Late:
        raise IncompleteError(f"it took longer than {timeout:g} s; raise --timeout") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _Late(BaseException):
    """A timeout that no `except Exception` in the user's code can catch."""
