"""nvdlfw-inspect's logs of Transformer Engine's layers: the casts and the statistics of each operand.

Source:
    nvdlfw-inspect 0.2.2 (`logging.py`, `config_manager.py`), Transformer Engine v2.4 to 2026-08
    (`debug/pytorch/debug_quantization.py`, `debug/features/`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ckpttool.core.domain.metrics import LogProblem
from ckpttool.core.logs.base import lines_with
from ckpttool.core.logs.reading import blocks_of
from ckpttool.fp8.model.fp8 import Gemm, Operand
from ckpttool.fp8.model.settings import Computed, OperandSeen, RunArithmetic, TensorStatistic

PLAN, FEATURE, NOT_FOUND = b"Tensor: ", b"API=process_tensor: ", b"Could not find config file at "

_WORDS = {
    b"high precision": Computed.HIGH,
    b"fp8 quantize": Computed.QUANTIZED,  # to 2.12
    b"quantize": Computed.QUANTIZED,  # from 2.13
    b"fp8 quantization": Computed.QUANTIZED,  # in older documentation
    b"modify_tensor()": Computed.MODIFIED,
}
_FEATURES = {b"FakeQuant": Computed.FAKE, b"PerTensorScaling": Computed.CURRENT}

_HEAD = rb"(?:.* )?(?:LAYER=)?(?P<layer>[^\s=]+): "
_GEMM, _OPERAND = rb"(?P<gemm>fprop|dgrad|wgrad)", rb"(?P<operand>activation|weight|gradient)"
_PLAN = re.compile(_HEAD + rb"Tensor: " + _OPERAND + rb", gemm " + _GEMM + rb" - (?P<word>\S.*?)\s*")
_FEATURE = re.compile(_HEAD + rb"Feature=(?P<feature>\w+), API=process_tensor: " + _GEMM + rb", " + _OPERAND + rb"\s*")
_NOT_FOUND = re.compile(rb".*Could not find config file at (?P<path>.*?)\. Please make sure.*", re.DOTALL)

_STATISTIC = re.compile(
    rb"(?:.* - [A-Z]+ - )?(?P<layer>\S+)_(?P<tensor>activation|weight|gradient|output|wgrad|dgrad)_"
    rb"(?P<name>[A-Za-z0-9_%]+?)(?P<columnwise>_columnwise)?"
    rb"[ \t]+iteration=(?P<step>\d{1,18})[ \t]+value=(?P<value>-?(?:\d+\.\d+|inf|nan))\s*"
)
_ITERATION = re.compile(rb"[ \t]iteration=")
_RECIPE = re.compile(r"((?:fp8_)?(?:delayed|current|block)_scaling|mxfp8|nvfp4)_(.+)")


class OperandsSeen:
    """Collector of the logged casts of each operand."""

    def __init__(self) -> None:
        self.config_missing: str | None = None
        self._seen: dict[tuple[str, Gemm, Operand], dict[Computed, None]] = {}

    def add(self, line: bytes) -> None:
        """Read a line that may contain a cast."""
        computed = None
        if match := _PLAN.fullmatch(line):
            computed = _WORDS.get(match["word"].lower())
        elif match := _FEATURE.fullmatch(line):
            computed = _FEATURES.get(match["feature"])
        elif missing := _NOT_FOUND.fullmatch(line):
            self.config_missing = missing["path"].decode("utf-8", "replace")
            return
        if match is None or computed is None:
            return
        key = (
            match["layer"].decode("utf-8", "replace"),
            Gemm(match["gemm"].decode()),
            Operand(match["operand"].decode()),
        )
        self._seen.setdefault(key, {})[computed] = None

    def operands(self) -> tuple[OperandSeen, ...]:
        """Return the operands by layer, product and operand. A named feature takes precedence over an unnamed one."""
        named = frozenset(_FEATURES.values())
        return tuple(
            OperandSeen(
                layer=layer,
                gemm=gemm,
                operand=operand,
                computed=tuple(
                    computation
                    for computation in computed
                    if computation is not Computed.MODIFIED or not named & computed.keys()
                ),
            )
            for (layer, gemm, operand), computed in sorted(
                self._seen.items(), key=lambda item: (item[0][0], list(Gemm).index(item[0][1]), item[0][2].value)
            )
        )


@dataclass(slots=True)
class _Sum:
    """The combined measurements of one tensor."""

    first: int
    last: int
    count: int = 0
    total: float = 0.0
    largest: float = -math.inf
    nonfinite: int = 0

    def add(self, step: int, value: float) -> None:
        self.first, self.last = min(self.first, step), max(self.last, step)
        if math.isfinite(value):
            self.count += 1
            self.total += value
            self.largest = max(self.largest, value)
        else:
            self.nonfinite += 1


def read_statistics(paths: Iterable[str]) -> tuple[tuple[TensorStatistic, ...], tuple[LogProblem, ...]]:
    """Return the measurements of each tensor, by layer, tensor and name, and the problems of unreadable logs.

    Args:
        paths: Statistics logs from some or all ranks. If several ranks measured a tensor, their values count equally.
    """
    sums: dict[tuple[str, str, str, str, bool], _Sum] = {}
    problems = []
    for path in paths:
        for block in blocks_of(path):
            if isinstance(block, LogProblem):
                problems.append(block)
                continue
            for _, line in lines_with(block, _ITERATION):
                if match := _STATISTIC.fullmatch(line):
                    layer, name, step = match["layer"].decode("utf-8", "replace"), match["name"].decode(), match["step"]
                    named = _RECIPE.fullmatch(name)
                    recipe, name = named.groups() if named else ("", name)
                    key = (layer, match["tensor"].decode(), name, recipe, match["columnwise"] is not None)
                    sums.setdefault(key, _Sum(int(step), int(step))).add(int(step), float(match["value"]))
    statistics = []
    for layer, tensor, name, recipe, columnwise in sorted(sums):
        total = sums[layer, tensor, name, recipe, columnwise]
        statistics.append(
            TensorStatistic(
                layer=layer,
                tensor=tensor,
                name=name,
                recipe=recipe or None,
                columnwise=columnwise,
                count=total.count,
                mean=total.total / total.count if total.count else math.nan,
                largest=total.largest if total.count else math.nan,
                nonfinite=total.nonfinite,
                first_step=total.first,
                last_step=total.last,
            )
        )
    return tuple(statistics), tuple(problems)


_NUMBERED = re.compile(r"(?:^|\.)(?P<inside>[A-Za-z_]+)\.(?P<number>[0-9]{1,6})\.")


def layers_of(
    measured: Iterable[TensorStatistic], arithmetic: RunArithmetic, first_layer: int
) -> tuple[tuple[int, ...], str]:
    """Return the layer numbers by share of zeroed values, largest first, and the prefix of the layers' names.

    Args:
        measured: Statistics of tensors.
        arithmetic: The recipe and settings in the run's logs.
        first_layer: The index of the first layer, if only the number of layers is known.
    """
    worst: dict[int, float] = {}
    inside = "layers"
    names = [
        (statistic.layer, statistic.mean if statistic.name.startswith("underflows") else 0.0) for statistic in measured
    ]
    for layer, share in (*names, *((operand.layer, 0.0) for operand in arithmetic.operands)):
        match = _NUMBERED.search(layer)
        if match is not None:
            inside, number = match["inside"], int(match["number"])
            worst[number] = max(worst.get(number, 0.0), share)
    count = arithmetic.argument("num_layers")
    if not worst and count is not None and count.isdecimal():
        worst = dict.fromkeys(range(first_layer, first_layer + int(count)), 0.0)
    return tuple(sorted(worst, key=lambda number: (-worst[number], number))), inside
