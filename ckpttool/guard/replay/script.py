"""Replay of a captured step by the user's own training script, as the first step of the run.

Weights, buffers, optimizer, loss scaler, batches and random-number states are restored right before they are used. The
weights are restored at the first forward pass, when every wrapper exists and every checkpoint is loaded. The step's
losses and gradients are then compared bit for bit with the captured ones.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch import Tensor, nn

from ckpttool.core.errors import CkptToolError, ExitCode, IncompleteError
from ckpttool.guard import randomness
from ckpttool.guard.agree import Ranks
from ckpttool.guard.capture.compute import facts_of, loss_bits, named_gradients, unwrapped
from ckpttool.guard.capture.shard import Content
from ckpttool.guard.environment import COMPILED, comes_from_compiled, differences, environment, take_over
from ckpttool.guard.files.parts import only_capture, part_of_rank, records
from ckpttool.guard.model.capture import LossBits, RankCapture, RankReplay
from ckpttool.guard.nested import own_part, tensors_in
from ckpttool.guard.replay.put_back import Exchange, OtherStructure
from ckpttool.guard.replay.run import EntryDoesNotFit, assert_same
from ckpttool.guard.rules.nan_diagnosis import compared, culprits, is_reproduced
from ckpttool.guard.state_tree import Sharded, UnreadableState
from ckpttool.guard.switch import REPLAY_VARIABLE, ReplaySwitch, report, report_result

if TYPE_CHECKING:
    from torch.optim import Optimizer

_FITS, _MISFIT, _CANNOT = range(3)
"""Results of restoring the weights, from best to worst. The ranks exchange them."""

_ORDER_IS_FREE = 2
"""Number of ranks up to which a sum has the same bits in any order."""

_MOST_NAMED = 3

_MOST_NODES = 100
"""Maximum number of operations to follow between a model's own loss and the argument of `backward`."""

_NO_LOSS = LossBits(value=float("nan"), dtype="none", bits="")
"""Placeholder for a loss that was not reported."""

_WAY_ON = "pass each batch to the guard in the training's code, with guard.micro(batch): see `ckpttool guide nan`"


class Part:
    """One rank's part of a capture."""

    def __init__(self, path: str, rank: int) -> None:
        """Read the part from disk.

        Raises:
            CkptToolError: The part is missing, damaged, or not sufficient for a replay.
        """
        self.captured: RankCapture = part_of_rank(path, rank)
        try:
            self.content = Content(self.captured, f"{path}/{self.captured.shard.name}")
        except (UnreadableState, OSError, ValueError) as error:
            raise IncompleteError(f"{path}: rank {rank}'s part cannot be read: {error}") from None


class Session:
    """The replay that the environment of this process requests, shared by all of its guards."""

    def __init__(self, request: ReplaySwitch) -> None:
        self.request = request
        self.owner: ScriptReplay | None = None
        """The guard whose model has the captured parameters. None until its first forward pass."""
        self.is_over = False
        self.exchange = Exchange()
        self.feed_problem: str | None = None
        """Why a data loader could not return the captured items."""
        self._part: Part | None = None
        self._positions: dict[int, int] = {}
        self._has_scale = False
        self._pid = os.getpid()
        self._is_expected = False

    def part(self, rank: int, world_size: int) -> Part:
        """Return the part of a rank.

        Raises:
            CkptToolError: The part cannot be used.
        """
        if self._part is None:
            path = only_capture(self.request.capture)
            part = Part(path, rank)
            if part.captured.world_size != world_size:
                raise IncompleteError(
                    f"{path} is from {part.captured.world_size} ranks, and this training has {world_size}"
                )
            self._part = part
        return self._part

    def expect(self) -> None:
        """Record that this process trains, so that it must not end as if the step had been replayed."""
        if not self._is_expected:
            self._is_expected = True
            atexit.register(self._at_exit)

    # The data loaders.

    def begins(self, loader: int) -> None:
        """Handle a new iterator of a data loader.

        Before the first forward pass, it begins with the first item again.
        """
        if self.owner is None:
            self._positions[loader] = 0

    def feed(self, loader: int, item: object) -> None:
        """Replace the contents of the next item of a data loader by the captured ones."""
        if self.is_over or os.getpid() != self._pid:
            return
        items = self._items(loader)
        position = self._positions.get(loader, 0)
        self._positions[loader] = position + 1
        if position < len(items):
            try:
                self.exchange.put(item, items[position], "the item of the data loader")
            except OtherStructure as error:
                self.feed_problem = str(error)

    def _items(self, loader: int) -> list[object]:
        distributed = torch.distributed
        is_one_of_many = distributed.is_available() and distributed.is_initialized()
        rank, world_size = (distributed.get_rank(), distributed.get_world_size()) if is_one_of_many else (0, 1)
        try:
            part = self.part(rank, world_size)
        except CkptToolError:  # the first forward pass reports it
            return []
        return [drawn["item"] for drawn in part.content.drawn if drawn["loader"] == loader]

    def begin_again(self) -> None:
        """Make every data loader return the captured items again."""
        self._positions.clear()

    # The loss scaler.

    def scale(self, scaler: torch.amp.GradScaler) -> None:
        """Load the captured state into a loss scaler before it scales the first captured loss."""
        part = self._part
        if self.is_over or self.owner is None or self._has_scale or part is None or not scaler.is_enabled():
            return
        self._has_scale = True
        state = scaler.state_dict() | cast("dict[str, Any]", part.content.scaler)
        if part.captured.scale is not None:
            state["scale"] = part.captured.scale
        scaler.load_state_dict(state)

    # The end.

    def _at_exit(self) -> None:
        if self.is_over or os.getpid() != self._pid or hasattr(sys, "last_type"):
            return  # or its own error ended the training run
        report(f"{self.request.capture} was not replayed: the training ended before the end of the step")
        report_result(ExitCode.INCOMPLETE)
        sys.stdout.flush()
        os._exit(ExitCode.INCOMPLETE)  # an exit code cannot be changed otherwise at this point

    def end(self, code: ExitCode) -> NoReturn:
        """End the process with an exit code."""
        self.is_over = True
        report_result(code)
        sys.stdout.flush()
        raise SystemExit(int(code))

    def cannot(self, why: str) -> NoReturn:
        """End the process because the step cannot be replayed."""
        report(f"{self.request.capture} cannot be replayed by this script: {why}")
        self.end(ExitCode.INCOMPLETE)


@functools.cache
def session() -> Session:
    """Return the session of this process. The environment must request one."""
    scale = torch.amp.GradScaler.scale
    own = Session(ReplaySwitch.parsed(os.environ[REPLAY_VARIABLE]))

    @functools.wraps(scale)
    def scaled(self: torch.amp.GradScaler, outputs: Any) -> Any:  # noqa: ANN401  torch's own form
        own.scale(self)
        return scale(self, outputs)

    torch.amp.GradScaler.scale = scaled  # type: ignore[method-assign]
    return own


class ScriptReplay:
    """The replay of a captured step by one guard."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        ranks: Ranks,
        encode_batch: Callable[[object], object] | None,
        set_step: Callable[[int], None],
    ) -> None:
        """Store the parts of a guard. `set_step` receives the number of steps before the captured one."""
        self._session = session()
        self._session.expect()
        self._model = model
        self._inner = unwrapped(model)
        self._optimizer = optimizer
        self._ranks = ranks
        self._encode = encode_batch or _unchanged
        self._set_step = set_step
        self._misfit: str | None = None
        self._is_misfit_for_good = False
        self._steps = 0  # before the captured one
        self._begun = 0
        self._losses: dict[int, LossBits] = {}
        self._is_compiled = False
        self._differs = False
        """Whether the batch of the training run differed from the captured one and was replaced."""
        self._outputs: list[Tensor] | None = None
        self._notes: list[str] = []

    @property
    def is_running(self) -> bool:
        """Whether the current step of this guard is the captured one."""
        return self._session.owner is self and not self._session.is_over

    @property
    def index(self) -> int | None:
        """Number in its epoch of the current captured batch. None if it is unknown or the replay is over."""
        return self._captured.micro_batches[self._begun - 1].index if self.is_running and self._begun else None

    def begin(self, batch: object) -> None:
        """Begin a micro-batch, and restore the captured state. Called right before the forward pass."""
        owner = self._session
        if owner.is_over or owner.owner not in {None, self} or self._misfit is not None:
            return
        if owner.owner is None and (self._is_rehearsal() or not self._loads()):
            return
        number, self._begun = self._begun, self._begun + 1
        count = len(self._captured.micro_batches)
        if number >= count:
            owner.cannot(
                f"the captured step has {count} micro-batches, and this training begins another one before its update: "
                "accumulate as many, or let it begin at another batch"
            )
        self._put(number, batch)
        if number == 0 and owner.request.stop == "before" and self._opens_debugger():
            self._debug(f"before the first forward pass of step {self._captured.step}")
        randomness.restore(self._content.random[number])

    def loss(self, loss: Tensor | float) -> None:
        """Record the loss of the current micro-batch."""
        if not self.is_running or not self._begun:
            return
        if self._outputs is not None and not _comes_from(loss, self._outputs):
            self._session.cannot(
                "its loss is computed outside of the model, from values that no data loader of torch returned, so that "
                f"they are not in the capture; {_WAY_ON}"
            )
        self._is_compiled = self._is_compiled or comes_from_compiled(loss)
        self._losses[self._begun - 1] = loss_bits(torch.as_tensor(loss))

    def finish(self) -> None:
        """End the step after its last backward pass. Compare it, and end the process unless the run is to continue."""
        own = self._session
        if own.is_over:
            return
        if own.owner is not self:
            if self._is_rehearsal():
                own.begin_again()
                report("the first step only lets DDP arrange its buckets; the next step is the captured one")
            elif own.owner is None and self._misfit is not None and self._is_misfit_for_good:
                own.cannot(self._misfit)
            self._is_misfit_for_good = self._misfit is not None
            self._steps += 1
            return
        if own.request.stop == "after" and self._opens_debugger():
            self._debug(f"after the last backward pass of step {self._captured.step}")
        code = ExitCode(max(self._ranks.gather(self._compare())))
        own.is_over = True
        take_over(self._environment)
        own.exchange.undo()
        if not own.request.goes_on:
            own.end(code)
        report_result(code)
        report("the training continues; it is guarded, but writes no events and captures")

    def _is_rehearsal(self) -> bool:
        """Return whether the current step comes before the captured one.

        DDP rearranges its buckets after its first backward pass. With more than two ranks, the arrangement determines
        the order in which a gradient is summed.
        """
        is_ddp = isinstance(self._model, nn.parallel.DistributedDataParallel)
        return is_ddp and self._steps == 0 and self._ranks.world > _ORDER_IS_FREE

    # The weights and everything else that exists before the step.

    def _loads(self) -> bool:
        """Restore the captured state on all ranks or on none, and return whether it fits this guard."""
        own, status, why = self._session, _FITS, ""
        try:
            self._part = own.part(self._ranks.own, self._ranks.world)
            self._misfit = self._misfit_of(self._part.content)
            status = _FITS if self._misfit is None else _MISFIT
        except CkptToolError as error:
            status, why = _CANNOT, str(error)
        everywhere = self._ranks.gather(status)
        if max(everywhere) == _CANNOT or len({*everywhere}) > 1:
            others = [rank for rank, other in enumerate(everywhere) if other != _FITS]
            own.cannot(why or self._misfit or f"rank {others[0]} cannot")
        if status == _MISFIT:
            return False
        self._captured, self._content = self._part.captured, self._part.content
        own.owner = self
        device = next((parameter.device for parameter in self._inner.parameters()), torch.device("cpu"))
        self._environment = environment(device)
        take_over(dict(self._captured.environment))
        self._device = device
        self._put_tensors()
        self._put_modes()
        self._put_optimizer()
        self._set_step(self._captured.step - 1)
        if _is_call(self._content.batches[0]) and not self._content.drawn:
            self._outputs = []
            self._model.register_forward_hook(self._computed)
        notes = "".join(f"; {note}" for note in self._notes)
        report(
            f"this step is step {self._captured.step} of {own.request.capture}{notes}; no events and captures are "
            "written"
        )
        return True

    def _misfit_of(self, content: Content) -> str | None:
        """Return why the capture does not fit this model and optimizer, or None if it fits."""
        parameters = dict(self._inner.named_parameters())
        captured = {name: _whole_form(value) for name, value in content.parameters.items()}
        try:
            assert_same("parameter", captured, parameters, model="the training's model")
            assert_same("buffer", content.buffers, dict(self._inner.named_buffers()), model="the training's model")
        except EntryDoesNotFit as error:
            return str(error)
        for name, value in content.parameters.items():
            local = value.local if isinstance(value, Sharded) else value
            if local.shape != own_part(parameters[name]).shape:
                return f"the parameter {name} is sharded in another way"
        if isinstance(updated := content.optimizer.get("updated"), list):
            names = {id(parameter): name for name, parameter in parameters.items()}
            current = [names.get(id(value)) for group in self._optimizer.param_groups for value in group["params"]]
            if current != updated:
                return "the optimizer updates other parameters, or in another order"
        return None

    def _put_tensors(self) -> None:
        buffers = dict(self._inner.named_buffers())
        with torch.no_grad():
            for name, parameter in self._inner.named_parameters():
                value = self._content.parameters[name]
                own_part(parameter).copy_(value.local if isinstance(value, Sharded) else value)
                parameter.grad = None
            for name, buffer in self._content.buffers.items():
                buffers[name].copy_(buffer)

    def _put_modes(self) -> None:
        changed = [
            (name, parameter)
            for name, parameter in self._inner.named_parameters()
            if parameter.requires_grad != self._content.trained[name]
        ]
        if changed and self._model is not self._inner and isinstance(self._model, nn.parallel.DistributedDataParallel):
            self._session.cannot(f"{changed[0][0]} was trained in the captured step, or not, unlike in this training")
        for _, parameter in changed:
            parameter.requires_grad_(not parameter.requires_grad)
        for name, module in self._inner.named_modules():
            module.training = name not in self._captured.evaluating

    def _put_optimizer(self) -> None:
        """Restore the optimizer's state. Losses and gradients do not depend on it."""
        state = self._content.optimizer.get("state")
        why = "the capture has none"
        if isinstance(state, dict):
            try:
                if any(isinstance(value, Sharded) for kept in state["state"].values() for value in kept.values()):
                    raise ValueError("it is sharded")  # noqa: TRY301  handled as any other reason
                self._optimizer.load_state_dict(state)
            except Exception as error:  # noqa: BLE001  an optimizer of the user may raise anything
                why = str(error)
            else:
                return
        self._notes.append(
            f"the optimizer keeps its own state ({why}), which does not affect the losses and gradients of the step"
        )

    # A micro-batch.

    def _put(self, number: int, batch: object) -> None:
        own, captured = self._session, self._content.batches[number]
        if batch is None:
            own.cannot(f"the training calls guard.micro without a batch; {_WAY_ON}")
        try:
            differs = own.exchange.put(self._encode(batch), captured)
            # A copy that `encode_batch` made was replaced, and not the training's own batch.
            if differs and self._encode is not _unchanged and Exchange().put(self._encode(batch), captured):
                own.cannot("its encode_batch copies the batch, so that the captured one cannot be put in place")
        except OtherStructure as error:
            own.cannot(
                f"micro-batch {number + 1} differs from the captured one: {error}; let the script prepare its batches "
                "as the captured training did"
            )
        self._differs = self._differs or differs

    def _computed(self, _model: nn.Module, _inputs: object, output: object) -> None:
        if self._outputs is not None and self.is_running:
            self._outputs[:] = [tensor for tensor in tensors_in(output) if tensor.numel() == 1]

    def _opens_debugger(self) -> bool:
        """Return whether the debugger opens on this rank. Several ranks cannot share a terminal."""
        if self._ranks.world == 1:
            return True
        begun_on = culprits(records(only_capture(self._session.request.capture)))
        return self._ranks.own == (int(begun_on[0].rank) if begun_on else 0)

    def _debug(self, place: str) -> None:
        from ckpttool.guard.replay.debugger import open_debugger

        report(f"the debugger opens {place}; `c` continues")
        if not open_debugger():
            report("the training was ended in the debugger")
            self._session.end(ExitCode.INCOMPLETE)

    # The result.

    def _compare(self) -> int:
        """Report the result of this rank, and return its exit code."""
        captured, count = self._captured, len(self._captured.micro_batches)
        if self._begun < count:
            self._session.cannot(
                f"the captured step has {count} micro-batches, and this training updates after {self._begun}"
            )
        losses = tuple(self._losses.get(number, _NO_LOSS) for number in range(count))
        facts = tuple(facts_of(named_gradients(self._inner)))
        result = compared(captured, losses, facts, facts)
        of_rank = f"rank {captured.rank}: " if captured.world_size > 1 else ""
        equal = (
            f"{result.losses_equal} of {result.losses} losses and {result.gradients_equal} of {result.gradients} "
            "gradients are equal in every bit"
        )
        if is_reproduced([result], exact=True):
            report(f"{of_rank}step {captured.step} was reproduced: {equal}{_not_finite(result, losses)}")
            return ExitCode.OK
        if (why := self._unsure_batch()) is not None:
            report(
                f"{of_rank}step {captured.step} could not be replayed: {equal}, and the batch may be another one: {why}"
            )
            return ExitCode.INCOMPLETE
        report(f"{of_rank}step {captured.step} was not reproduced: {equal}{self._first_differences(result, facts)}")
        return ExitCode.DAMAGE

    def _unsure_batch(self) -> str | None:
        """Return why values of the batch outside of the model may differ, or None if the guard has all of them."""
        if not _is_call(self._content.batches[0]):
            return None
        if self._session.feed_problem is not None:
            return f"{self._session.feed_problem}; {_WAY_ON}"
        if any(drawn.get("changed") is True for drawn in self._content.drawn):
            return "the training changed it in place before it was captured; the next capture of a run has a copy"
        if self._differs:
            return (
                f"the model was called with other inputs than in the captured step, and they were replaced; {_WAY_ON}"
            )
        return None

    def _first_differences(self, result: RankReplay, facts: tuple[Any, ...]) -> str:
        captured = {gradient.name: gradient.xxh3_128 for gradient in self._captured.gradients}
        names = [fact.name for fact in facts if captured.get(fact.name) != fact.xxh3_128]
        parts = [f"loss of micro-batch {number + 1}" for number in result.losses_differ] + names
        text = f"; different: {_some(parts)}" if parts else ""
        current = {**environment(self._device), COMPILED: self._is_compiled}
        changed = differences(dict(self._captured.environment), current)
        settings = [f"{difference.what} {difference.captured} → {difference.here}" for difference in changed]
        text += f"; the environment differs: {', '.join(settings)}" if settings else "; the environment is the same"
        if self._differs:
            text += "; check that the training passes every tensor of its loss to guard.micro"
        return text


def _unchanged(batch: object) -> object:
    return batch


def _whole_form(value: Tensor | Sharded) -> Tensor:
    """Return a tensor with the complete shape of a captured one."""
    if isinstance(value, Sharded):
        return torch.empty(value.shape, dtype=value.local.dtype, device="meta")
    return value


def _is_call(batch: object) -> bool:
    """Return whether a captured batch consists of the model's arguments, as a guard without code captures them."""
    return isinstance(batch, Mapping) and batch.keys() == {"args", "kwargs"}


def _comes_from(loss: Tensor | float, outputs: list[Tensor]) -> bool:
    """Return whether a loss is a single number that the model returned, and was only scaled since."""
    node = getattr(loss, "grad_fn", None)
    own = [output.grad_fn for output in outputs]
    for _ in range(_MOST_NODES):
        if node is None or node in own:
            return node is not None
        following = [next_node for next_node, _ in node.next_functions if next_node is not None]
        node = following[0] if len(following) == 1 else None
    return False


def _not_finite(result: RankReplay, losses: tuple[LossBits, ...]) -> str:
    bad = [
        f"loss of micro-batch {number + 1}" for number, loss in enumerate(losses) if not loss.is_finite and loss.bits
    ]
    bad += [gradient.name for gradient in result.nonfinite]
    if bad:
        return f"; not finite: {_some(bad)}"
    return "; the norm of all gradients is not finite" if result.norm_overflows else "; all of them are finite"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"
