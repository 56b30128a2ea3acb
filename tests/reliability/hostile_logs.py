"""Training logs and replays of them that are hostile."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from pathlib import Path

from ckpttool.core.errors import ExitCode
from tests.reliability.hostile_situation import NO_FILES, Ask, Maker, Situation, ask, sound_tree, sparse, text
from tests.support.training_logs import step_lines

MEBI = 1 << 20
STEP = step_lines(1, 0.3)[0] + "\n"
_STEP_1 = "Epoch:[  1/  2], step:[    2/ 6500], loss: 1.0, "
_ITERATION = (
    " iteration        1/     100 | consumed samples:            1 | elapsed time per iteration (ms): 1.0 | "
    "learning rate: 1.0E-05 | global batch size:     1 | lm loss: 1.0 | grad norm: 0.1 |\n"
)


def _gzip(mebibytes: int, head: str = "") -> Maker:
    """So many mebibytes of zeros, packed to a thousandth."""

    def put(path: Path) -> None:
        packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        with path.open("wb") as file:
            file.write(packer.compress(head.encode()))
            for _ in range(mebibytes):
                file.write(packer.compress(bytes(MEBI)))
            file.write(packer.flush())

    return put


def _eight(line: str, head: str = STEP) -> Maker:
    return text(head + (line + "\n") * 8)


def _noise(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(4 * MEBI))  # noqa: S311  no secret


READ: dict[str, tuple[Maker, int]] = {
    "a million digits a line": (_eight("1" * 1_000_000), 0),
    "a million blanks a line": (_eight(" " * 1_000_000), 0),
    "a million brackets a line": (_eight("[" * 1_000_000), 0),
    "an epoch of 500,000 blanks": (_eight("Epoch:[" + " " * 500_000), 0),
    "400,000 beginnings of a step": (text(STEP + "Epoch:[ 1/ 2], step:[" * 400_000 + "\n"), 0),
    "a step of 500,000 digits": (_eight("step:[" + " " * 100 + "9" * 500_000), 0),
    "80,000 losses": (_eight(_STEP_1 + "a_loss: 1, " * 80_000 + "x"), 0),
    "a loss with a name of 900,000 letters": (_eight(_STEP_1 + "a" * 900_000), 0),
    "300,000 norms without a number": (text(STEP + "embedding_local_norm: " * 300_000 + "\n"), 0),
    "500,000 beginnings of a skip": (text(STEP + "is_skip: [ " * 500_000 + "\n"), 0),
    "40,000 times of day in a line": (_eight("2025-03-01 08:00:00,000 " * 40_000), 0),
    "escape sequences": (text(STEP + "\x1b[31m\x1b]0;x\x07[/red]\n" + STEP.replace("0.300000", "\x1b[31m")), 0),
    "60,000 rewinds": (text("".join(step_lines(number % 2 + 1, 0.3)[0] + "\n" for number in range(60_000))), 0),
    "a million zeros before": (text(b"\0" * 1_000_000 + b"\n" + STEP.encode()), 0),
    "a sparse gigabyte after a step": (sparse(1 << 30, STEP.encode()), 0),
    "a gzip bomb after a step": (_gzip(200, STEP), 0),
    "JSON lines 10,000 deep": (
        text('{"step": 1, "grad_norm": 0.1}\n' + ('{"a":' * 10_000 + "\n") * 20),
        ExitCode.INCOMPLETE,
    ),
    "JSON lines with giant numbers": (
        text('{"step": 1, "grad_norm": 0.1}\n{"step": ' + "9" * 900_000 + '}\n{"step": 2, "grad_norm": 1e999}\n'),
        ExitCode.INCOMPLETE,
    ),
    "a table with a quote that never ends": (text('step,global_norm\n1,1\n2,"' + "x\n" * 1_000_000), 0),
    "a table with giant numbers": (
        text("step,global_norm\n1,1\n" + "9" * 100_000 + ",1\n1," + "9" * 500_000 + "\n"),
        ExitCode.INCOMPLETE,
    ),
    "Megatron lines of a million characters": (
        text(_ITERATION + " iteration " + " " * 900_000 + "\n"),
        ExitCode.INCOMPLETE,
    ),
}
"""With what `replay` exits: a step or more is in it, whatever else there is; 14 if the steps are too few to judge."""

HEAVY = {
    "a gzip bomb",
    "a sparse gigabyte",
    "a sparse gigabyte after a step",
    "a table with a quote that never ends",
    "a trainer's state of fifteen million values",
}

REFUSED: dict[str, Maker] = {
    "a sparse gigabyte": sparse(1 << 30),
    "a gzip bomb": _gzip(512),
    "a trainer's state 100,000 deep": text('{"log_history": ' + "[" * 100_000),
    "a trainer's state of fifteen million values": lambda path: _write(
        path, '{"log_history": [' + "{}," * (15 * MEBI) + "{}]}"
    ),
    "a trainer's state of a gigabyte": sparse(1 << 30, b'{"log_history": ['),
    "a TensorBoard file of nothing": text(b"\x18\0\0\0\0\0\0\0" + b"\xff" * 100_000),
    "a TensorBoard record of an exabyte": text((1 << 60).to_bytes(8, "little") + b"\0" * 4 + b"\xff" * 1000),
    "noise": _noise,
    **{name: put for name, put in NO_FILES.items() if name != "a folder"},
}
"""Nothing in it can be judged: exit 14."""

_HEAD = '{"schema": "ckpttool/replay/1", "timeline": '
TIMELINES: dict[str, tuple[Maker, int]] = {
    "fifteen million values": (lambda path: _write(path, _HEAD + "[" + "{}," * (15 * MEBI) + "{}]}"), 2),
    "100,000 deep": (text(_HEAD + "[" * 100_000), 2),
    "a step of a million digits": (
        text(_HEAD + '[{"kind":"spike","reason":"x","first_step":' + "9" * 1_000_000 + "}]}"),
        2,
    ),
    "a sparse terabyte": (sparse(1 << 40, _HEAD.encode()), 2),
    "a kind of a million letters": (text(_HEAD + '[{"kind":"' + "x" * 1_000_000 + '","reason":"x"}]}'), 2),
    "escape sequences": (text(_HEAD + '[{"kind":"\\u001b[31m[/red]","reason":"x"}]}'), 2),
    "a time of 100,000 digits": (
        text(_HEAD + '[{"kind":"spike","reason":"x","first_time":"' + "9" * 100_000 + '"}]}'),
        2,
    ),
}


def _write(path: Path, content: str) -> None:
    path.write_text(content)


def _with(name: str, put: Maker) -> Maker:
    def make(here: Path) -> None:
        sound_tree(here)
        put(here / name)

    return make


def _asks(code: int) -> tuple[Ask, ...]:
    return (
        ask("replay train.log", code),
        ask("calibrate train.log", ExitCode.INCOMPLETE),
        ask("health output --threshold 1 --log train.log", ExitCode.INCOMPLETE),
    )


def situations() -> Iterator[Situation]:
    """Every log with every command that reads one, and every timeline."""
    for name, (put, code) in READ.items():
        yield Situation(
            name=f"log: {name}", kind="log", make=_with("train.log", put), asks=_asks(code), heavy=name in HEAVY
        )
    asks = _asks(ExitCode.INCOMPLETE)
    for name, put in REFUSED.items():
        make = _with("train.log", put)
        yield Situation(name=f"log: {name}", kind="no log", make=make, asks=asks, heavy=name in HEAVY)
    # Of a folder the logs in it are meant; there are none.
    lines = (
        "replay train.log",
        "calibrate train.log",
        "resolve output --health-timeline train.log",
        "resolve output --health-threshold 1 --log train.log",
        "replay train.log --health-timeline output",
    )
    asks = tuple(ask(line, 2, "train.log holds no") for line in lines)
    yield Situation(name="log: a folder", kind="none", make=_with("train.log", NO_FILES["a folder"]), asks=asks)
    for name, (put, code) in TIMELINES.items():
        said = ask("resolve output --health-timeline train.log", code, "train.log")
        yield Situation(name=f"timeline: {name}", kind="none", make=_with("train.log", put), asks=(said,))
