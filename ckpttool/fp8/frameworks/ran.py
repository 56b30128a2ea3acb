"""The arithmetic that a run actually used, according to its logs.

Source:
    `arguments.py`, `inspect_log.py`; torchtitan v0.1.0 to 2026-08 (`components/quantization/float8.py`, `mx.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ckpttool.core.domain.metrics import LogProblem
from ckpttool.core.logs.base import lines_with
from ckpttool.core.logs.reading import blocks_of
from ckpttool.fp8.frameworks.arguments import BEGINS, DOTS, ENDS, PrintedArguments
from ckpttool.fp8.frameworks.inspect_log import FEATURE, NOT_FOUND, PLAN, OperandsSeen
from ckpttool.fp8.model.settings import RunArithmetic

_RECIPE = re.compile(
    rb".*\b(?:Float8|MX) training active with recipe (?P<recipe>[\w.-]{1,80})(?:\x1b\[[\d;]*m|\s)*", re.DOTALL
)
_TENSORWISE = b"Float8 tensorwise scaled training active"
_CONVERTED = (
    b"Swapped to Float8Linear layers",
    b"Swapped to MXLinear layers",
    b"Converted Linear layers to MXFP8Linear",
)

_ANY = re.compile(
    b"|".join(
        [
            *map(re.escape, (BEGINS, ENDS, PLAN, FEATURE, NOT_FOUND)),
            *map(re.escape, (*_CONVERTED, _TENSORWISE)),
            rb"training active with recipe ",
            DOTS,
        ]
    )
)


def read_arithmetic(paths: Iterable[str]) -> RunArithmetic:
    """Read the logs of one run, from any ranks and in any format, in one pass and bounded memory.

    Later values override earlier ones, because a restarted run prints its settings again.

    Args:
        paths: Training logs and the logs of debug features, possibly compressed.
    """
    paths = tuple(paths)
    printed, operands = PrintedArguments(), OperandsSeen()
    recipe, converted = None, False
    problems = []
    for path in paths:
        for block in blocks_of(path):
            if isinstance(block, LogProblem):
                problems.append(block)
                continue
            for _, line in lines_with(block, _ANY):
                if printed.add(line):
                    continue
                if match := _RECIPE.fullmatch(line):
                    recipe = match["recipe"].decode()
                elif _TENSORWISE in line:
                    recipe = "tensorwise"
                elif any(names in line for names in _CONVERTED):
                    converted = True
                else:
                    operands.add(line)
        printed.end_file()
    return RunArithmetic(
        sources=paths,
        arguments=None if printed.values is None else tuple(printed.values.items()),
        operands=operands.operands(),
        config_missing=operands.config_missing,
        recipe=recipe,
        converted=converted,
        problems=tuple(problems),
    )
