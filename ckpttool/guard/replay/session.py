"""A whole capture computed again: rank by rank in one process, and held against what was kept."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from types import FrameType

import torch
from torch import Tensor

from ckpttool.core.domain.finding import Finding, Row, Severity, note, unknown
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Rank
from ckpttool.core.errors import IncompleteError, UsageError
from ckpttool.guard.capture.compute import facts_of
from ckpttool.guard.capture.shard import Content
from ckpttool.guard.environment import COMPILED, differences, environment, take_over
from ckpttool.guard.findings import GuardCode
from ckpttool.guard.model.capture import (
    Capture,
    CaptureLevel,
    Difference,
    GradientFacts,
    LossBits,
    NanQuestion,
    NanReplay,
    NanVerdict,
    Origin,
    RankCapture,
    is_finite,
)
from ckpttool.guard.replay.run import OF_MODEL, EntryDoesNotFit, RankRun, ReplayTask
from ckpttool.guard.rules.nan_diagnosis import compared, is_reproduced, verdict
from ckpttool.guard.state_tree import Sharded, UnreadableState


def replay(capture: Capture, question: NanQuestion) -> NanReplay:
    """Compute the ranks of a capture again.

    What the entry prints goes to stderr: stdout is the answer's.

    Raises:
        UsageError: There is no such entry, rank or device.
        IncompleteError: It took longer than it may.
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
    """What came of one rank."""

    captured: RankCapture
    losses: tuple[LossBits, ...]
    gradients: tuple[GradientFacts, ...]


class _Session:
    """One question."""

    def __init__(
        self, capture: Capture, question: NanQuestion, device: torch.device, entry: Callable[[RankCapture], object]
    ) -> None:
        self._capture = capture
        self._question = question
        self._device = device
        self._entry = entry
        requested = set(question.ranks or range(capture.world_size))
        self._findings: list[Finding] = []
        for finding in capture.findings:  # what is about no rank is about all
            if finding.severity is Severity.NOTE or not finding.ranks or requested & set(finding.ranks):
                self._findings.append(finding)
        self._differences: dict[tuple[str, str, str], Difference] = {}
        self._origin: Origin | None = None
        self._mean: dict[str, Tensor] = {}

    def answer(self, ranks: Sequence[RankCapture]) -> NanReplay:
        """Compute these ranks, and say what came of it."""
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
            origin=self._origin,
        )
        if not replayed or could_not:
            outcome, why = NanVerdict.UNDECIDED, "it could not be computed again"
            if replayed and is_reproduced(replayed, exact=self._question.exact):
                why = "what was computed came out as it was, but not all of the capture is there and whole"
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
        ours = [name for name in names if name.startswith(OF_MODEL)]
        foreign = [name for name in names if name not in ours]
        parts = [f"not as it was captured: {', '.join(foreign)}"] if foreign else []
        parts += [f"set as it was captured: {', '.join(ours)}"] if ours else []
        remedy = None if reproduced or not foreign else "replay where these are as they were; each changes last bits"
        if COMPILED in foreign:
            remedy = "compiled code has other last bits: let a ReplayTask's loss call the model as the training did"
        return note(GuardCode.ENVIRONMENT_DIFFERS, "; ".join(parts), remedy=remedy)

    def _computed(self, captured: RankCapture) -> _Computed | None:
        """Compute one rank; None where that cannot be done, which is a finding."""
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
                for name, gradient in run.gradients:  # divided before they are summed, as a reduction does it
                    part = gradient.detach() / captured.world_size
                    self._mean[name] = self._mean[name] + part if name in self._mean else part
            is_bad = not is_finite(result.losses, result.gradients)
            if self._question.locate and self._origin is None and is_bad:
                self._origin = run.locate()
        except EntryDoesNotFit as error:
            self._cannot(GuardCode.ENTRY_DOES_NOT_FIT, captured, str(error), error.remedy)
        except (UnreadableState, OSError) as error:
            self._cannot(GuardCode.CAPTURE_DAMAGED, captured, str(error), "copy the capture once more")
        except (Exception, SystemExit) as error:  # noqa: BLE001  the user's own code may raise anything
            text = f"the entry's own code raised {type(error).__name__}: {' '.join(str(error).split())[:500]}"
            self._cannot(GuardCode.ENTRY_DOES_NOT_FIT, captured, text, "let the entry build what was trained")
        else:
            return result
        return None

    def _cannot(self, code: Row, captured: RankCapture, why: str, remedy: str) -> None:
        self._findings.append(
            unknown(
                code, f"rank {captured.rank} cannot be computed again: {why}", ranks=(captured.rank,), remedy=remedy
            )
        )

    def _content(self, captured: RankCapture) -> Content:
        content = Content(captured, f"{self._capture.path}/{captured.shard.name}")
        left_out = next((batch.left_out for batch in captured.micro_batches if batch.left_out is not None), None)
        if left_out is not None:
            raise EntryDoesNotFit(
                f"its batch was not kept: {left_out.path or 'it'} is {left_out.reason}",
                remedy=f"for the next capture, {left_out.remedy}",
            )
        if not captured.micro_batches:
            raise EntryDoesNotFit(
                "no micro-batch was remembered: the training did not hand them to the guard",
                remedy="for the next capture, hand each batch over: with guard.micro(batch)",
            )
        if self._question.weights is not None:
            content.take_weights(self._question.weights)
        elif captured.level is CaptureLevel.LIGHT:
            raise EntryDoesNotFit(
                "the capture is light and holds no weights",
                remedy="name the safetensors file of a checkpoint at this step by --weights",
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
        """Say of a model that is computed in the captured autocast if nobody saw which that was."""
        if isinstance(made, ReplayTask) or all(micro.inner_autocast is not None for micro in captured.micro_batches):
            return
        around = {dtype for micro in captured.micro_batches for _, dtype in micro.outer_autocast}
        self._findings.append(
            note(
                GuardCode.CAPTURE_INCOMPLETE,
                f"rank {captured.rank}: nobody saw with which autocast the model was called; it is computed with "
                f"{', '.join(sorted(around)) or 'none'}",
                ranks=(captured.rank,),
                remedy="return a ReplayTask whose loss enters the training's own autocast",
            )
        )


def _requested_ranks(capture: Capture, question: NanQuestion) -> tuple[RankCapture, ...]:
    by_rank = {int(rank.rank): rank for rank in capture.ranks}
    for rank in question.ranks:
        if rank not in by_rank and rank >= capture.world_size:
            raise UsageError(f"there is no rank {rank}: {capture.path} is of {capture.world_size}")
    damaged = {rank for finding in capture.findings if finding.severity > Severity.NOTE for rank in finding.ranks}
    requested = sorted(set(question.ranks) or by_rank)
    return tuple(by_rank[rank] for rank in requested if rank in by_rank and Rank(rank) not in damaged)


def _device(name: str | None, ranks: Sequence[RankCapture]) -> torch.device:
    """Return where to compute: where it was captured, if there is one, else on the CPU.

    Raises:
        UsageError: There is no such device here.
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
        raise UsageError(f"an entry is spelled module:function, not {text!r}")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        entry = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise UsageError(f"{module} cannot be imported ({error}); its folder belongs into PYTHONPATH") from None
    except SystemExit:
        raise UsageError(
            f"{module} ends the process while it is imported: what it runs as a program belongs behind "
            "if __name__ == '__main__'"
        ) from None
    except Exception as error:  # noqa: BLE001  the user's own code may raise anything
        raise UsageError(f"{module} cannot be imported ({type(error).__name__}: {error})") from None
    if not callable(entry):
        raise UsageError(f"{module} has no function {name}")
    function: Callable[[RankCapture], object] = entry
    return function


@contextmanager
def _within(timeout: float | None) -> Iterator[None]:
    """Raise what ends the command where it takes longer."""

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
        raise IncompleteError(f"it took longer than {timeout:g} s; --timeout allows more") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _Late(BaseException):
    """No `except Exception` of the user's own code may swallow it."""
