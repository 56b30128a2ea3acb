"""Origin of the first non-finite value: an operation with its module and line, or a weight or batch.

Every operation of forward and backward is checked. An operation with a non-finite result is an event. Its parents are
the events of its non-finite inputs. They are found by storage, so views are recognized under any name. An intentional
infinity, as in a mask, is not a fault if it was only moved since. The origin is therefore an event without parents, or
with intentional parents only. It is found by walking back from the non-finite values at the end, so an infinity that a
`min` dropped is never reached.
"""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ckpttool.core.domain.frozen import dataclass
from ckpttool.guard.model.capture import OriginKind
from ckpttool.guard.modules import ModuleTrace, current_node
from ckpttool.guard.nested import named_tensors, tensors_in

MOST_EVENTS = 2000
"""Maximum number of events. Their tensors stay alive, so that no freed storage is mistaken for another."""

_ON_PURPOSE = frozenset(
    {
        "full",
        "full_like",
        "new_full",
        "fill",
        "fill_",
        "masked_fill",
        "masked_fill_",
        "where",
        "scalar_tensor",
        "lift_fresh",
    }
)
"""Operations that write an infinity on request."""

_MOVED = frozenset(
    {
        "add",
        "add_",
        "clone",
        "copy_",
        "_to_copy",
        "cat",
        "stack",
        "index",
        "index_select",
        "gather",
        "triu",
        "tril",
        "repeat",
    }
    | {
        "index_put_",
        "slice_scatter",
        "select_scatter",
        "constant_pad_nd",
        "contiguous",
        "new_tensor",
        "where",
        "masked_fill",
    }
    | {"masked_fill_", "sub", "maximum", "minimum", "roll", "flip", "lift_fresh", "lift_fresh_copy", "detach", "alias"}
)
"""Operations that leave an infinity unchanged. Views are not included, because their results share the storage."""

_BEYOND = 1e6
"""Multiple of the root mean square of a tensor's other elements. No training run produces a weight this large."""

_LEAST_RMS = 1e-6
"""Lower limit of the root mean square for elements near zero, beside which a weight of 1 is normal."""

_FEW = 2
"""Minimum number of elements, because a single element cannot be compared with others."""

_INNER = re.compile(r"_?(?P<name>\w+?)(?:_forward)?_?")
_NODE = re.compile(r"(?P<name>\w+?)Backward(?P<built_in>[0-9]+)?")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_HERE = Path(__file__).parents[2]
_OURS = (str(Path(torch.__file__).parent), *(str(_HERE / part) for part in ("guard", "core", "cli", "__main__.py")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A tensor with its origin. It is non-finite, or has an element that is far too large."""

    number: int = 0
    """Position in order of time."""
    kind: OriginKind
    name: str
    """Name of the operation or of the input."""
    phase: str = "forward"
    module: str = ""
    line: str | None = None
    shape: tuple[int, ...]
    nan: int = 0
    inf: int = 0
    parents: tuple[int, ...] = ()
    on_purpose: bool = False
    value: float | None = None
    """A finite element that is far too large, or None if the tensor is not finite."""
    times_rms: float | None = None
    """Ratio of that element to the root mean square of the tensor's other elements."""


class Locator(TorchDispatchMode):
    """Dispatch mode that checks every operation while it is active."""

    def __init__(self, model: nn.Module) -> None:
        """Store the model, which provides the names of parameters and buffers."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[Event] = []
        self._alive: list[Tensor] = []
        self._by_storage: dict[int, int] = {}
        self._given: dict[int, tuple[OriginKind, str]] = {}
        self._trace = ModuleTrace(model, lambda name, module: f"{name or 'the model'} ({type(module).__name__})")
        self._know(OriginKind.PARAMETER, model.named_parameters())
        self._know(OriginKind.BUFFER, model.named_buffers())

    def know_inputs(self, batch: object) -> None:
        """Store the tensors of a batch by name."""
        self._know(OriginKind.INPUT, named_tensors(batch))

    def _know(self, kind: OriginKind, tensors: Iterable[tuple[str, Tensor]]) -> None:
        for name, tensor in tensors:
            self._alive.append(tensor)
            self._given[_storage(tensor)] = (kind, name)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Activate the checks in eager mode, with module names.

        Operations in backward get the source lines of the forward.
        """
        with ExitStack() as stack:
            stack.enter_context(self._trace)
            stack.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=False))
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(self)
            yield

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401  torch's signature
        types: Any,  # noqa: ANN401  as above
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401  as above
        kwargs = kwargs or {}
        if len(self.events) >= MOST_EVENTS:
            return func(*args, **kwargs)
        bad = [tensor for tensor in tensors_in((args, kwargs)) if _is_bad(tensor)]
        parents = tuple(dict.fromkeys(self._event_of(tensor) for tensor in bad))  # before an operation in place
        result = func(*args, **kwargs)
        name = str(func.overloadpacket.__name__)
        before = {_storage(tensor) for tensor in bad}
        for tensor in tensors_in((result, args if name.endswith("_") else ())):
            if not _is_bad(tensor):
                if name.endswith("_"):
                    self._by_storage.pop(_storage(tensor), None)
            elif not (func.is_view and _storage(tensor) in before):
                self._by_storage[_storage(tensor)] = self._made(name, tensor, parents)
                self._alive.append(tensor)
        return result

    def _event_of(self, tensor: Tensor) -> int:
        """Return the event that made a tensor non-finite. Without such an event, the tensor was an input."""
        storage = _storage(tensor)
        if storage not in self._by_storage:
            kind, name = self._given.get(
                storage, (OriginKind.INPUT, "a tensor that belongs to neither the model nor the batch")
            )
            nan, inf = _counts(tensor)
            is_mask = not nan and not tensor.is_complex() and not bool(torch.isposinf(tensor).any())
            on_purpose = kind is not OriginKind.PARAMETER and is_mask
            self._by_storage[storage] = self._add(kind, name, tensor, (nan, inf), (), on_purpose=on_purpose)
            self._alive.append(tensor)
        return self._by_storage[storage]

    def _made(self, name: str, tensor: Tensor, parents: tuple[int, ...]) -> int:
        nan, inf = _counts(tensor)
        inherited = all(self.events[parent].on_purpose for parent in parents)
        on_purpose = not nan and inherited and (name in _ON_PURPOSE or (name in _MOVED and bool(parents)))
        return self._add(OriginKind.OP, name, tensor, (nan, inf), parents, on_purpose=on_purpose)

    def _add(  # noqa: PLR0913  the fields of an event
        self,
        kind: OriginKind,
        name: str,
        tensor: Tensor,
        counts: tuple[int, int],
        parents: tuple[int, ...],
        *,
        on_purpose: bool,
    ) -> int:
        node = None if self._trace.is_inside else current_node()
        if kind is OriginKind.OP:
            name = _plain_name(name) if node is None else _node_name(node.name(), name)
        event = Event(
            number=len(self.events),
            kind=kind,
            name=name,
            phase="forward" if node is None else "backward",
            module=self._trace.module(),
            line=_line_of(node) if kind is OriginKind.OP else None,
            shape=tuple(tensor.shape),
            nan=counts[0],
            inf=counts[1],
            parents=parents,
            on_purpose=on_purpose,
        )
        self.events.append(event)
        return event.number

    def origin(self, wrong: Iterable[Tensor]) -> Event | None:
        """Walk back from non-finite tensors to the earliest event without an earlier cause."""
        ahead = [self._by_storage[_storage(tensor)] for tensor in wrong if _storage(tensor) in self._by_storage]
        visited: set[int] = set()
        events: list[Event] = []
        while ahead:
            number = ahead.pop()
            if number in visited:
                continue
            visited.add(number)
            event = self.events[number]
            if all(self.events[parent].on_purpose for parent in event.parents):
                events.append(event)
            ahead += [parent for parent in event.parents if not self.events[parent].on_purpose]
        return min(events, key=lambda event: event.number, default=None)


def far_off(kind: OriginKind, tensors: Iterable[tuple[str, Tensor]]) -> Event | None:
    """Return the most extreme element that exceeds a million times the root mean square of the rest of its tensor.

    Trained weights have no such element: a flipped bit of the exponent turns 0.1 into 1e37. The largest hundredth of
    the elements is excluded from the rest, so that a second such element does not hide the first.
    """
    farthest, most = None, _BEYOND
    for name, tensor in tensors:
        if tensor.numel() < _FEW or not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        flat = tensor.detach().reshape(-1)
        sizes = flat.abs().double()
        place = int(sizes.argmax())
        largest = sizes[place].item()
        if largest <= _BEYOND * _LEAST_RMS or not math.isfinite(largest):
            continue
        rest = sizes.sort().values[: -max(1, sizes.numel() // 100)]
        times_rms = largest / max(rest.square().mean().sqrt().item(), _LEAST_RMS)
        if times_rms > most:
            value = largest if flat.is_complex() else float(flat[place].item())
            farthest = Event(kind=kind, name=name, shape=tuple(tensor.shape), value=value, times_rms=times_rms)
            most = times_rms
    return farthest


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  an address would be 0 for all empty tensors


def _is_bad(tensor: Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.dtype.itemsize < 2:  # noqa: PLR2004  float8
        return False
    if tensor.layout is not torch.strided or tensor.is_meta:
        return False
    return not bool(torch.isfinite(tensor).all())


def _counts(tensor: Tensor) -> tuple[int, int]:
    return int(torch.isnan(tensor).sum()), int(torch.isinf(tensor).sum())


def _plain_name(name: str) -> str:
    """Return an operation's usual name: `nll_loss` for `nll_loss_forward`, `softmax` for `_softmax`."""
    match = _INNER.fullmatch(name)
    return name if match is None else match["name"]


def _node_name(node: str, operation: str) -> str:
    """Return the operation of a backward node: `sqrt` for `SqrtBackward0`. A user's own node is named by its class."""
    match = _NODE.fullmatch(node)
    if match is None:
        return _plain_name(operation)
    return _HUMP.sub("_", match["name"]).lower() if match["built_in"] is not None else match["name"]


def _line_of(node: Any) -> str | None:  # noqa: ANN401  torch has no type for a node
    """Return file, line and source of the innermost user code. For a backward node, return those of its forward."""
    if node is None:
        frames = [(frame.filename, frame.lineno, frame.line) for frame in traceback.extract_stack()]
    else:
        trace = "".join(node.metadata.get("traceback_", ()))
        parts = re.finditer(
            r'  File "(?P<file>[^\n]+)", line (?P<line>[0-9]+)[^\n]*\n(?: {4}(?P<source>[^\n]*))?', trace
        )
        frames = [(part["file"], int(part["line"]), part["source"]) for part in parts]
    own_frames = [frame for frame in frames if not frame[0].startswith((*_OURS, "<"))]
    if not own_frames:
        return None
    file, line, source = own_frames[-1]
    return f"{file}:{line}: {(source or '').strip()}".rstrip(": ")
