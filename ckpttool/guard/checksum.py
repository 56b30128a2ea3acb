"""Checks of matrix products during training, in every linear layer, matmul and einsum, forward and backward."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils.flop_counter import flop_registry

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.guarding import EventValue, GuardEventKind
from ckpttool.core.domain.units import Rank, Step
from ckpttool.guard.model.guarding import Emit
from ckpttool.guard.modules import ModuleTrace, current_node
from ckpttool.guard.products import PRODUCTS, Product, WrongElement, can_be_checked, suspicious_rows, worst_element

if TYPE_CHECKING:
    from torch._ops import OpOverload

_INNOCENT = 3
"""Number of false suspicions at one call site after which rounding errors are assumed to add up there."""
_MOST_EVENTS = 100
"""Maximum number of wrong products to report individually. A faulty device produces thousands per step."""

_aten = torch.ops.aten
_ON_CPU: Mapping[object, object] = MappingProxyType(
    {
        _aten._scaled_dot_product_flash_attention_for_cpu: _aten._scaled_dot_product_flash_attention,  # noqa: SLF001  operations
        _aten._scaled_dot_product_flash_attention_for_cpu_backward: _aten._scaled_dot_product_flash_attention_backward,  # noqa: SLF001  as above
    }
)
"""Maps an operation that torch does not count to a counted operation with the same arguments."""


def _run(call: Callable[[], Any]) -> Any:  # noqa: ANN401  whatever is called returns
    return call()


class MatmulChecksum(TorchDispatchMode):
    """Dispatch mode that checks each matrix product of the forward and backward passes before it is used.

    A suspicious product is computed again in float64 before it is reported. A wrong product is computed once more: if
    the result is then right, the fault was transient, and the right product is returned. Fused attention, convolutions,
    products of FP8 operands and third-party kernels are not checked. `covered_flops` is the share of operations that
    are checked.
    """

    def __init__(
        self, model: nn.Module, emit: Emit, *, rank: Rank, contained: Callable[[Callable[[], Any]], Any] = _run
    ) -> None:
        """Prepare to report wrong products.

        Args:
            model: The model, which provides the names of modules for events.
            emit: Receiver of events.
            rank: Rank of this process.
            contained: Function that runs a check and returns None if it fails. The product is then returned unchanged.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.step = Step(0)
        """The current step, for events."""
        self._emit = emit
        self._rank = rank
        self._contained = contained
        self._trace = ModuleTrace(model)
        self._innocent: Counter[tuple[object, ...]] = Counter()
        self._is_abnormal = False
        self._counters: dict[OpOverload, Callable[..., int] | None] = {}
        self._forget()

    def _forget(self) -> None:
        self._flops = {"all": 0, "covered": 0}
        self._products = self._suspicions = self._wrong = 0

    def __enter__(self) -> MatmulChecksum:  # noqa: PYI034  `Self` is in Python since 3.11
        self._trace.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        self._trace.__exit__(kind, error, traceback)

    def take_abnormal(self) -> bool:
        """Return whether a product was wrong since the last call."""
        was, self._is_abnormal = self._is_abnormal, False
        return was

    def summary(self) -> dict[str, EventValue]:
        """Return the results of the checks since the last call, for the event of the step."""
        summary: dict[str, EventValue] = {
            "products": self._products,
            "suspicions": self._suspicions,
            "wrong": self._wrong,
            "covered_flops": self._covered,
        }
        self._forget()
        return summary

    @property
    def _covered(self) -> float | None:
        """Return the checked share of the operations that torch can count, or None if there were none."""
        return round(self._flops["covered"] / self._flops["all"], 4) if self._flops["all"] else None

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if types:
            # Components of sharded tensors also get here. Other tensors have no values.
            is_wrapped = any(is_traceable_wrapper_subclass_type(kind) for kind in types)
            return NotImplemented if is_wrapped else func(*args, **kwargs)
        result = func(*args, **kwargs)
        if func in PRODUCTS:
            call = _Call(func=func, args=args, kwargs=kwargs)
            checked = self._contained(lambda: self._checked(call, result))
            return result if checked is None else checked
        if func not in self._counters:
            self._counters[func] = flop_registry.get(_ON_CPU.get(func.overloadpacket, func.overloadpacket))
        counter = self._counters[func]
        if counter is not None:
            self._contained(lambda: self._count(counter(*args, **kwargs, out_val=result)))
        return result

    def _count(self, flops: int) -> None:
        self._flops["all"] += flops

    def _checked(self, call: _Call, result: Tensor) -> Tensor:
        product = call.product(result)
        self._count(product.flops)
        if not can_be_checked(product):
            return result
        self._flops["covered"] += product.flops
        self._products += 1
        adds_up = bool(self._innocent) and self._innocent[self._site(call, product)] >= _INNOCENT
        rows = suspicious_rows(product, roundings_add_up=adds_up)
        if not len(rows):
            return result
        self._suspicions += 1
        wrong = worst_element(product, rows)
        if wrong is not None:
            return self._convict(call, result, wrong)
        self._acquit(self._site(call, product), product, rows)
        return result

    def _site(self, call: _Call, product: Product) -> tuple[object, ...]:
        return (call.func, self._trace.module(), _phase(), tuple(product.a.shape), tuple(product.b.shape))

    def _acquit(self, site: tuple[object, ...], product: Product, rows: Tensor) -> None:
        """Record a false suspicion. Non-finite values are ignored, because they show nothing about rounding."""
        batch, row = rows.to(product.c.device).unbind(1)
        if not bool(product.c[batch, row].isfinite().all()):
            return
        self._innocent[site] += 1
        if self._innocent[site] == _INNOCENT:
            op, module, phase, *_ = map(str, site)
            message = f"rounding errors add up here: {_INNOCENT} products looked wrong but were right"
            self._emit(
                GuardEventKind.CHECKSUM_SUSPICION, step=self.step, op=op, module=module, phase=phase, message=message
            )

    def _convict(self, call: _Call, result: Tensor, wrong: WrongElement) -> Tensor:
        """Recompute a wrong product, report it, and return the right product, or the wrong one if both are wrong."""
        rerun = call.run()
        second = call.product(rerun)
        place = wrong.batch, wrong.row
        first_row, second_row = call.product(result).c[place], second.c[place]
        bits = torch.int32 if first_row.itemsize == torch.int32.itemsize else torch.int16
        is_persistent = torch.equal(first_row.view(bits), second_row.view(bits))  # a NaN is equal to itself
        is_healed = not is_persistent and worst_element(second, suspicious_rows(second)) is None
        self._is_abnormal = True
        self._wrong += 1
        if self._wrong <= _MOST_EVENTS:
            self._emit(
                GuardEventKind.CHECKSUM_ABNORMAL,
                step=self.step,
                rank=self._rank,
                host=socket.gethostname(),
                device=str(result.device),
                op=str(call.func),
                module=self._trace.module(),
                phase=_phase(),
                batch=wrong.batch,
                row=wrong.row,
                column=wrong.column,
                error_over_bound=wrong.ratio,
                fault="persistent" if is_persistent else "transient",
                healed=is_healed,
                covered_flops=self._covered,
            )
        return rerun if is_healed else result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A repeatable call of an operation, with its arguments."""

    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Tensor:
        result: Tensor = self.func(*self.args, **self.kwargs)
        return result

    def product(self, result: Tensor) -> Product:
        return PRODUCTS[self.func](self.args, self.kwargs, result)


def _phase() -> str:
    return "forward" if current_node() is None else "backward"
