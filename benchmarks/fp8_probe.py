"""Cost of `fp8 probe` relative to reading the same bytes, and the memory of a worker.

    python benchmarks/fp8_probe.py [speed] [memory]

One thread, CPU time, from the page cache: each ratio is the median of pairs that ran in turns, so that other load on
the machine has little effect.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from ckpttool.core.domain.shard import FormatName, ShardRole
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import CheckTask, Level
from ckpttool.core.storage import open_storage
from ckpttool.core.storage.stream import BLOCK_BYTES, read_blocks
from ckpttool.core.verify.check import check
from ckpttool.fp8.model.probe import ProbeQuestion
from ckpttool.fp8.read.probe import ShardNumbers, probe_shard
from ckpttool.fp8.rules.risk import is_probed
from tests.support.shard_writers import entries_json, safetensors_file

SPEEDS = ((4096, 4096, 5.0), (4096, 11_008, 5.0), (8192, 14_336, 3.0))
"""Rows, columns, and the target ratio."""
MOST_MIB = 64
"""Memory of a worker."""


def written(folder: str, rows: int, columns: int, dtype: str) -> Path:
    """Write a file of one tensor of normally distributed numbers."""
    path = Path(folder) / f"{dtype}-{rows}-{columns}.safetensors"
    width = {"BF16": 2, "F32": 4}[dtype]
    header = entries_json([("layer.weight", dtype, (rows, columns), rows * columns * width)])
    generator = np.random.default_rng(1)
    with path.open("wb") as file:
        file.write(safetensors_file(header))
        for _ in range(rows):
            row = generator.standard_normal(columns, dtype=np.float32) * np.float32(0.02)
            file.write((row if width == 4 else (row.view(np.uint32) >> 16).astype(np.uint16)).tobytes())  # noqa: PLR2004
    return path


def task_of(path: Path) -> CheckTask:
    """Return the task of one file."""
    return CheckTask(
        root=str(path.parent),
        path=path.name,
        rank=None,
        role=ShardRole.FULL,
        named_format=FormatName.SAFETENSORS,
        level=Level.STRUCTURE,
        cost=ByteCount(0),
    )


def probed(path: Path, question: ProbeQuestion) -> None:
    """Probe one file."""
    compare = partial(probe_shard, question=question, is_selected=partial(is_probed, optimizer=False))
    found = check(task_of(path), compare=compare)
    numbers = found.result(ShardNumbers)
    if numbers is None or len(numbers.tensors) != 1:
        raise SystemExit(f"it was not looked at: {found.report.findings}")


def read(path: Path) -> None:
    """Read one file."""
    buffer = memoryview(bytearray(BLOCK_BYTES))
    with open_storage(str(path.parent)).open(path.name) as source:
        for _ in read_blocks(source, 0, path.stat().st_size, buffer=buffer):
            pass


def seconds(call: Callable[[], object]) -> float:
    """Return the CPU time of a call."""
    begun = time.process_time()
    call()
    return time.process_time() - begun


def speed(folder: str) -> None:
    """Print ratios to reading."""
    for rows, columns, wanted in SPEEDS:
        path, question = written(folder, rows, columns, "BF16"), ProbeQuestion()
        plain, looked = [], []
        for _ in range(13):
            plain.append(seconds(partial(read, path)))
            looked.append(seconds(partial(probed, path, question)))
        ratio = statistics.median(ours / theirs for ours, theirs in zip(looked[2:], plain[2:], strict=True))
        rate = rows * columns * 2 / statistics.median(plain) / 1e9
        print(
            f"{rows * columns * 2 >> 20:4d} MiB of BF16, four recipes: {ratio:.1f} x reading (wanted {wanted}), "
            f"which is {rate:.1f} GB/s"
        )
        path.unlink()


def memory(folder: str) -> None:
    """Print the peak memory of a worker."""
    for rows, columns, dtype, exact in (
        (8192, 14_336, "BF16", False),
        (8192, 14_336, "BF16", True),
        (2048, 129_280, "F32", False),
        (2048, 129_280, "F32", True),
    ):
        path = written(folder, rows, columns, dtype)
        tracemalloc.start()
        probed(path, ProbeQuestion(exact=exact))
        peak = tracemalloc.get_traced_memory()[1] / (1 << 20)
        tracemalloc.stop()
        how = "exact" if exact else "sampled"
        print(f"{rows} x {columns} {dtype}, {how}: {peak:.0f} MiB at most (wanted {MOST_MIB})")
        path.unlink()


PARTS: dict[str, Callable[[str], None]] = {"speed": speed, "memory": memory}

if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as scratch:
        for name in sys.argv[1:] or PARTS:
            PARTS[name](scratch)
