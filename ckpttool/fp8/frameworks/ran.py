"""What the logs of a run say of the arithmetic that it really used.

Source:
    `dump.py`, `inspect_log.py`; torchtitan v0.1.0 to 2026-08 (`components/quantization/float8.py`, `mx.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ckpttool.core.domain.metrics import LogProblem
from ckpttool.core.logs.base import lines_with
from ckpttool.core.logs.reading import blocks_of
from ckpttool.fp8.frameworks import dump, inspect_log
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
            *map(re.escape, (dump.BEGINS, dump.ENDS, inspect_log.PLAN, inspect_log.FEATURE, inspect_log.NOT_FOUND)),
            *map(re.escape, (*_CONVERTED, _TENSORWISE)),
            rb"training active with recipe ",
            dump.DOTS,
        ]
    )
)


def read_arithmetic(paths: Iterable[str]) -> RunArithmetic:
    """Read the logs of one run, of any of its ranks and in any format, once and in bounded memory.

    What stands later counts: a run that was started anew printed its settings again.

    Args:
        paths: Training logs and the logs of debug features; compressed ones, too.
    """
    paths = tuple(paths)
    reader = _Reader()
    problems = []
    for path in paths:
        for block in blocks_of(path):
            if isinstance(block, LogProblem):
                problems.append(block)
            else:
                for _, line in lines_with(block, _ANY):
                    reader.add(line)
        reader.printed = None  # the rest of it is in no other file
    return RunArithmetic(
        sources=paths,
        arguments=None if reader.arguments is None else tuple(reader.arguments.items()),
        operands=reader.operands.operands(),
        config_missing=reader.operands.config_missing,
        recipe=reader.recipe,
        converted=reader.converted,
        problems=tuple(problems),
    )


class _Reader:
    """What was read so far."""

    def __init__(self) -> None:
        self.arguments: dict[str, str] | None = None
        self.printed: dict[str, str] | None = None
        self.operands = inspect_log.OperandsSeen()
        self.recipe: str | None = None
        self.converted = False

    def add(self, line: bytes) -> None:
        if dump.ENDS in line:
            self.arguments, self.printed = self.printed or self.arguments, None
        elif dump.BEGINS in line:
            self.printed = {}
        elif self.printed is not None and (setting := dump.argument(line)):
            self.printed[setting[0]] = setting[1]
        elif match := _RECIPE.fullmatch(line):
            self.recipe = match["recipe"].decode()
        elif _TENSORWISE in line:
            self.recipe = "tensorwise"
        elif any(names in line for names in _CONVERTED):
            self.converted = True
        else:
            self.operands.add(line)
