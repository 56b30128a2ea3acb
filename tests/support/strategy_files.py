"""Strategy files as MindSpore writes them, for arrangements of a test's own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Lies(NamedTuple):
    """How a parameter lies, in the words of MindSpore's schema."""

    dev_matrix: Sequence[int]
    tensor_map: Sequence[int]
    step: int = 0
    size: int = 0
    field: int = 0
    offsets: Sequence[int] = ()


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def message(field: int, content: bytes) -> bytes:
    return varint(field * 8 + 2) + varint(len(content)) + content


def number(field: int, value: int) -> bytes:
    return varint(field * 8) + varint(value)


def dims(numbers: Iterable[int], *, packed: bool = False) -> bytes:
    if packed:
        return message(1, b"".join(map(varint, numbers)))
    return b"".join(number(1, each) for each in numbers)


def layout(lies: Lies, *, packed: bool = False) -> bytes:
    return b"".join(
        [
            message(1, dims(lies.dev_matrix, packed=packed)),
            message(2, dims(lies.tensor_map, packed=packed)),
            message(3, b""),
            message(4, dims(lies.offsets)),
            number(5, lies.field),
            number(6, lies.step),
            number(7, lies.size),
        ]
    )


def item(name: str, content: bytes) -> bytes:
    return message(1, name.encode()) + message(2, content)


def strategy(layouts: Mapping[str, Lies], *, stage: int = 0, packed: bool = False) -> bytes:
    """A whole file of one stage."""
    operator = message(2, item("MatMul_x", number(1, stage)))
    parameters = [message(3, item(name, layout(lies, packed=packed))) for name, lies in layouts.items()]
    return b"".join([number(1, 2), operator, *parameters])


def write_strategies(output: Path, stages: Sequence[bytes], *, ranks: int, suffix: str = "ckpt") -> None:
    """Write each stage's file for all of its ranks, before anything that was saved."""
    (output / "strategy").mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        path = output / "strategy" / f"ckpt_strategy_rank_{rank}.{suffix}"
        path.write_bytes(stages[rank * len(stages) // ranks])
        os.utime(path, (1_000_000_000, 1_000_000_000))
