"""Cost of reading a shard's header, as ratios to references that ran in the same minute.

    python benchmarks/formats.py [rounds]

Everything is measured in turns and in CPU time, and the median of the rounds' ratios is printed: absolute times are not
valid for another machine, nor for this machine an hour later. All files are in the page cache.

The reference for safetensors is the package itself: open the file and list the keys. Targets: 1.4 for a header seen for
the first time; 0.15 for the complete *check* of a shard whose header another rank already had, in two reads; and 12 for
a shard of 100,000 tensors over one of 10,000.

The reference for `.ckpt` is `mindspore.load_checkpoint` of the same file, if MindSpore is installed; targets 0.01 with
300 tensors and 0.03 with 3,000. Reading the file is *not* the reference: the speed of copying from the page cache
depends on the machine, and shows nothing about either parser.
"""

from __future__ import annotations

import gc
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from ckpttool.__main__ import COLLECTIONS
from ckpttool.core.domain.shard import FormatName, ShardRole
from ckpttool.core.domain.units import ByteCount, Rank
from ckpttool.core.domain.verdict import CheckTask, Level
from ckpttool.core.formats import read_header
from ckpttool.core.formats.safetensors import shard as safetensors
from ckpttool.core.storage.base import ByteSource
from ckpttool.core.storage.local import LocalStorage
from ckpttool.core.verify.check import check
from ckpttool.core.verify.checks.structure import observe_header
from ckpttool.trainers.mindformers.scalars import FACTS

ROUNDS = 41
CALLS = 8
ELEMENTS = {300: 512 * 1024, 3000: 16 * 1024}
"""Float32 elements of a tensor, by number of tensors: 600 MB in big tensors, 200 MB in small ones."""

MOST_OF_MINDSPORE = {300: 0.01, 3000: 0.03}
"""Target as a share of its loader's time, by number of tensors."""


def varint(value: int) -> bytes:
    """Encode a number as protobuf does."""
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def delimited(key: int, body: bytes) -> bytes:
    """Encode a field of some length."""
    return bytes([key]) + varint(len(body)) + body


def write_ckpt(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Write the same bytes as `mindspore.save_checkpoint` for these tensors."""
    with path.open("wb") as file:
        for name, array in tensors.items():
            dims = b"".join(b"\x08" + varint(dim) for dim in array.shape)
            tensor = dims + delimited(0x12, b"Float32") + delimited(0x1A, array.tobytes())
            file.write(delimited(0x0A, delimited(0x0A, name.encode()) + delimited(0x12, tensor)))


def cpu_seconds(function: Callable[[], object]) -> float:
    """Run something a few times, as it is run for one rank after the other."""
    begin = time.process_time()
    for _ in range(CALLS):
        function()
    return time.process_time() - begin


def ratio(ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> float:
    """Run both in turns, and return the median cost of ours per second of theirs."""
    ratios = []
    for _ in range(rounds):
        reference = cpu_seconds(theirs)
        ratios.append(cpu_seconds(ours) / reference)
    return statistics.median(ratios)


def show(name: str, value: float, target: float) -> None:
    """Print one figure next to its target."""
    print(f"{name:58s} {value:8.4f}   target {target:6.2f}   {'ok' if value <= target else 'MISSED'}", flush=True)


def task(folder: Path, name: str) -> CheckTask:
    """Return the task of checking one header."""
    return CheckTask(
        facts=FACTS,
        root=str(folder),
        path=name,
        rank=Rank(0),
        role=ShardRole.MODEL,
        named_format=FormatName.SAFETENSORS,
        level=Level.STRUCTURE,
        cost=ByteCount(0),
    )


class Counted:
    """An open file that counts its reads."""

    def __init__(self, source: ByteSource) -> None:
        """Wrap an open file."""
        self._source = source
        self.stamp = source.stamp
        self.reads = 0

    def read(self, offset: int, length: int) -> bytes:
        """Read a range."""
        self.reads += 1
        return self._source.read(offset, length)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Read a range."""
        self.reads += 1
        return self._source.read_into(offset, buffer)


def reads(folder: Path, name: str) -> int:
    """Count the reads of a header check."""
    with LocalStorage(str(folder)).open(name) as source:
        counted = Counted(source)
        observe_header(task(folder, name), counted)
    return counted.reads


def header(folder: Path, name: str, named: FormatName, *, first: bool = False) -> object:
    """Read a header; for `first`, forget all headers before."""
    if first:
        safetensors.forget_headers()
    with LocalStorage(str(folder)).open(name) as source:
        return read_header(source, named=named, facts=FACTS)


def package(path: Path) -> object:
    """Read the file with the safetensors package."""
    with safe_open(path, "np") as file:
        return file.keys()


def against_the_package(folder: Path, count: int, rounds: int) -> None:
    """Compare with safetensors' own package."""
    name = "shard.safetensors"
    theirs = partial(package, folder / name)
    first = partial(header, folder, name, FormatName.SAFETENSORS, first=True)
    again = partial(check, task(folder, name))
    show(f"safetensors, {count} tensors, first header / safe_open", ratio(first, theirs, rounds), 1.4)
    show(f"safetensors, {count} tensors, check of a sibling / safe_open", ratio(again, theirs, rounds), 0.15)
    show(f"safetensors, {count} tensors, reads of that check", reads(folder, name), 2)


def against_mindspore(folder: Path, count: int, rounds: int) -> None:
    """Compare with the loader of MindSpore, if it is installed."""
    if importlib.util.find_spec("mindspore") is None:
        print(f"ckpt, {count} tensors: skipped, for mindspore is not installed; reading the file is no reference")
        return
    import mindspore

    theirs = partial(mindspore.load_checkpoint, str(folder / "shard.ckpt"))
    ours = partial(header, folder, "shard.ckpt", FormatName.MINDSPORE_CKPT)
    show(f"ckpt, {count} tensors / load_checkpoint", ratio(ours, theirs, max(3, rounds // 8)), MOST_OF_MINDSPORE[count])


def measure(folder: Path, count: int, rounds: int) -> None:
    """Write both formats with `count` tensors and print how they compare."""
    random = np.random.default_rng(0)
    tensors = {
        f"model.layers.{number // 9}.attention.w{number % 9}.weight": random.random(
            (ELEMENTS[count] // 512, 512), dtype=np.float32
        )
        for number in range(count)
    }
    save_file(tensors, folder / "shard.safetensors", {"format": "ms"})
    write_ckpt(folder / "shard.ckpt", tensors)
    against_the_package(folder, count, rounds)
    against_mindspore(folder, count, rounds)


def long_headers(folder: Path, rounds: int) -> None:
    """Compare a header of 10 MB with one of 1 MB."""
    for count in (10_000, 100_000):
        one = {f"model.layers.{number:06d}.attention.weight": np.zeros((2, 2), np.float32) for number in range(count)}
        save_file(one, folder / f"{count}.safetensors")
    long, short = (
        partial(header, folder, f"{count}.safetensors", FormatName.SAFETENSORS, first=True)
        for count in (100_000, 10_000)
    )
    show("safetensors, 100,000 tensors / 10,000, first header", ratio(long, short, max(5, rounds // 4)), 12)


def main() -> None:
    """Measure shards of few big and of many small tensors."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    gc.set_threshold(*COLLECTIONS)  # as the command does
    for count in ELEMENTS:
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), count, rounds)
    with tempfile.TemporaryDirectory() as folder:
        long_headers(Path(folder), rounds)


if __name__ == "__main__":
    main()
