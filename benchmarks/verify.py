"""Print the cost of reading, checksums and numbers, as ratios to `dd` and others, each next to its target.

Everything is run in turn, round after round, and the median of the rounds' ratios is printed: so a machine that
becomes slower half-way slows both sides. Warm figures are ratios of CPU time, which other work on the machine disturbs
least; those of two threads and of a cold disk say which they are. Run as `python benchmarks/verify.py`; its files,
2 GiB, go to `--dir` and are deleted.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from isal import isal_zlib
from xxhash import xxh3_64

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.finding import Severity, worst
from ckpttool.core.domain.manifest import ShardSeal
from ckpttool.core.domain.shard import FormatName, ShardRole, TensorEntry
from ckpttool.core.domain.units import ByteCount, Rank
from ckpttool.core.domain.verdict import CheckTask, Level
from ckpttool.core.formats.torch.zip_directory import read_zip_directory
from ckpttool.core.storage.local import LocalStorage
from ckpttool.core.storage.stream import BLOCK_BYTES, read_blocks
from ckpttool.core.verify.check import check
from ckpttool.core.verify.kernels.digest import digest_pass
from ckpttool.core.verify.kernels.fold import NumericFold, Scratch
from ckpttool.core.verify.kernels.passes import Wants
from ckpttool.core.verify.report import judge
from tests.support.shard_writers import crc_trailer, record

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
DD = ("/bin/dd", "of=/dev/null", "bs=1M")
TENSORS = 4
"""Number of tensors per file, each a quarter of it."""
FIGURES = {
    "CRC32 / dd": 1.6,
    "xxh3-128 / dd": 1.7,
    "NaN, Inf, absmax of F32 / dd": 1.8,
    "NaN, Inf, absmax of BF16 / dd": 1.8,
    "NaN, Inf, absmax of F32 / torch.isfinite": 0.1,
    "NaN, Inf, absmax of BF16 / torch.isfinite": 0.05,
    "numbers and CRC32 of F32 / numpy loop": 1.15,
    "numbers and CRC32 of BF16 / dd": 4.5,
    "CRC32 of two files, two threads / one": 0.8,
    "CRC32 of two files, two threads / one, CPU": 1.1,
    "numbers of F32, two threads / one": 0.8,
    "numbers of F32, two threads / one, CPU": 1.1,
    "numbers of BF16, two threads / one": 0.8,
    "numbers of BF16, two threads / one, CPU": 1.1,
    "cold CRC32, wall / cold dd": 1.0,
    "cold CRC32, CPU / cold dd": 0.6,
    "big tensors' digests: a manifest / without": 1.1,
    "big tensors' digests: numbers and CRC32 / without": 1.1,
    "big tensors' digests: CRC32 / without": 1.1,
    "big tensors' digests: reading / without": 1.1,
    "small tensors' digests: a manifest / without": 1.1,
    "small tensors' digests: numbers and CRC32 / without": 1.1,
    "small tensors' digests: CRC32 / without": 1.1,
    "small tensors' digests: reading / without": 1.1,
    "a hash of each block beside CRC32 / without": 1.1,
    "a hash of each block beside reading / without": 1.1,
    "a XOR of each block beside reading / without": 1.1,
    "tensor digests: cold CRC32, wall / without": 1.1,
    "zip of 300 tensors / zipfile": 0.6,
    "zip of 3000 tensors / zipfile": 0.6,
    "peak memory of a sparse file, MiB": 44,
    "digests of 8,192 ranks x 300 tensors, twice, MiB": 256,
}
MANY_CHILD = """
import random
from ckpttool.core.domain.shard import FormatName, ShardRole
from ckpttool.core.domain.verdict import Level, ShardReport
from ckpttool.core.verify.kernels.tensors import TensorsSeen
from ckpttool.core.verify.copies import tensors_of
from ckpttool.replicas.comparing.compare import SavedTensors, compare_replicas

def peak():
    return next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

def reports(seed, odd):
    chance = random.Random(seed)
    slices = [[chance.randbytes(8) for _ in range(300)] for _ in range(8)]
    for rank in range(8192):
        digests = list(slices[rank % 8])
        if rank in odd:
            digests[5] = chance.randbytes(8)
        whole = tuple((f"model.layers.{index}.weight", digest) for index, digest in enumerate(digests))
        yield ShardReport(path=f"rank_{rank}/{seed}.ckpt", rank=rank, role=ShardRole.FULL, level=Level.CHECKSUM,
            format=FormatName.MINDSPORE_CKPT, stamp=None, scalars=(), schema_hash="0" * 32, tensors=300,
            checksum_matched=False, bytes_read=0, findings=(), tensor_digests=TensorsSeen(whole=whole).digests())

begin = peak()
other = SavedTensors(name="then", step=10, older=True, same_run=True, shards=tensors_of(reports(1, ())))
odd = range(7, 8192, 1000)
found = compare_replicas(list(reports(2, odd)), [other]).findings
assert [finding.path for finding in found] == [f"rank_{rank}/2.ckpt" for rank in odd], found
print(peak() - begin)
"""
MEMORY_CHILD = """
import sys
sys.path.insert(0, sys.argv[2])
import benchmarks_verify as bench
bench.everything(bench.Path(sys.argv[1]), bench.DType.F32)
# Not ru_maxrss: a child begins with that of the process that started it.
print(next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds that one run took."""

    wall: float
    cpu: float
    """User and system, of this process and of those that it waited for."""


def cost_of(work: Callable[[], object]) -> Cost:
    """Run something once."""
    before, begin = cpu_seconds(), time.perf_counter()
    work()
    return Cost(wall=time.perf_counter() - begin, cpu=cpu_seconds() - before)


def cpu_seconds() -> float:
    """Return the time that this process and its ended children have used."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def in_turn(rounds: int, **works: Callable[[], object]) -> dict[str, list[Cost]]:
    """Run all tasks one after the other, this many times."""
    costs: dict[str, list[Cost]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            costs[name].append(cost_of(work))
    return costs


def ratio(costs: dict[str, list[Cost]], ours: str, theirs: str, *, of: str = "wall") -> float:
    """Return the median over the rounds of our cost per second of theirs."""
    pairs = zip(costs[ours], costs[theirs], strict=True)
    return float(statistics.median(getattr(mine, of) / getattr(other, of) for mine, other in pairs))


def show(name: str, value: float, note: str = "") -> None:
    """Print one figure next to its target."""
    target = FIGURES[name]
    print(
        f"{name:45s} {value:7.2f}   target {target:5.2f}   {'ok' if value <= target else 'MISSED'} {note}", flush=True
    )


def dd(path: Path) -> None:
    """Read a file as `dd` does."""
    subprocess.run([*DD, f"if={path}"], check=True, stderr=subprocess.DEVNULL)


def drop(path: Path) -> None:
    """Remove a file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def entries(path: Path, dtype: DType, tensors: int = TENSORS) -> list[TensorEntry]:
    """Say that a file is nothing but so many tensors."""
    step = path.stat().st_size // tensors // 8 * 8
    shape = (step * 8 // dtype.bits,)
    return [
        TensorEntry(name=f"t{i}", dtype=dtype, shape=shape, spans=((i * step, (i + 1) * step),)) for i in range(tensors)
    ]


def passed(path: Path, wants: Wants, dtype: DType | None = None) -> Any:  # noqa: ANN401  (thrown away)
    """Run our pass over a file."""
    with LocalStorage(str(path.parent)).open(path.name) as source:
        return digest_pass(source, entries=() if dtype is None else entries(path, dtype), wants=wants)


def everything(path: Path, dtype: DType) -> Any:  # noqa: ANN401  (thrown away)
    """Compute all statistics."""
    return passed(path, Wants(crc_end=path.stat().st_size, xxh=True, entry_crcs=True, numerics=True), dtype)


class WithoutNorm(NumericFold):
    """NaN, infinity and absmax alone: what the others do too."""

    __slots__ = ()

    def _squares(self, *_: object) -> int:
        return 0


def finite(path: Path, dtype: DType) -> None:
    """Search for NaN and infinity in a file."""
    fold = WithoutNorm(dtype, Scratch())
    with LocalStorage(str(path.parent)).open(path.name) as source:
        for offset, block in read_blocks(source, 0, source.stamp.size):
            fold.feed(offset, block)
    if not fold.partial().stats("weight").finite:
        raise SystemExit("the file is not what was written")


@contextmanager
def files(folder: Path, mebibytes: int) -> Iterator[tuple[Path, Path]]:
    """Create a file of F32 and a file of BF16, and delete them afterwards."""
    paths = folder / "f32.bin", folder / "bf16.bin"
    rng = np.random.default_rng(0)
    with paths[0].open("wb") as wide, paths[1].open("wb") as narrow:
        for _ in range(mebibytes // 16):
            values = rng.normal(size=8 * MIB).astype(np.float32)
            wide.write(values[: 4 * MIB].tobytes())
            narrow.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())
    try:
        yield paths
    finally:
        for path in paths:
            path.unlink()


def bare_loop(path: Path) -> tuple[int, int, float]:
    """Check F32 with the least possible work: each block once for CRC32, the two maxima and one dot product."""
    buffer = bytearray(BLOCK_BYTES)
    words = np.frombuffer(buffer, np.uint32)
    signed, floats = words.view(np.int32), words.view(np.float32)
    crc, highest, squares = 0, 0, 0.0
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):  # the file has whole blocks
            crc = isal_zlib.crc32(buffer, crc)
            highest = max(highest, int(np.maximum.reduce(words)), int(np.maximum.reduce(signed)))
            squares += float(np.dot(floats, floats))
    return crc, highest, squares


def warm_figures(f32: Path, bf16: Path, rounds: int) -> None:
    """Compare with a file in the page cache."""
    crc = Wants(crc_end=f32.stat().st_size)
    numbers = Wants(crc_end=f32.stat().st_size, numerics=True)
    costs = in_turn(
        rounds,
        dd=lambda: dd(f32),
        crc=lambda: passed(f32, crc),
        xxh=lambda: passed(f32, Wants(xxh=True)),
        finite_f32=lambda: finite(f32, DType.F32),
        f32=lambda: passed(f32, numbers, DType.F32),
        bare=lambda: bare_loop(f32),
        dd_bf16=lambda: dd(bf16),
        finite_bf16=lambda: finite(bf16, DType.BF16),
        bf16=lambda: passed(bf16, numbers, DType.BF16),
    )
    rate = f32.stat().st_size / statistics.median(cost.wall for cost in costs["dd"]) / 1e9
    show("CRC32 / dd", ratio(costs, "crc", "dd", of="cpu"), f"(dd: {rate:.1f} GB/s)")
    show("xxh3-128 / dd", ratio(costs, "xxh", "dd", of="cpu"), "(of the file and of each 64 MiB)")
    show("NaN, Inf, absmax of F32 / dd", ratio(costs, "finite_f32", "dd", of="cpu"))
    show("NaN, Inf, absmax of BF16 / dd", ratio(costs, "finite_bf16", "dd_bf16", of="cpu"))
    show("numbers and CRC32 of F32 / numpy loop", ratio(costs, "f32", "bare", of="cpu"))
    show("numbers and CRC32 of BF16 / dd", ratio(costs, "bf16", "dd_bf16", of="cpu"))


def all_finite(tensor: torch.Tensor) -> bool:
    """Compute with torch."""
    return bool(torch.isfinite(tensor).all())


def torch_figures(f32: Path, bf16: Path, rounds: int) -> None:
    """Compare with torch on a tensor that is already in memory, on one core."""
    torch.set_num_threads(1)
    for path, dtype, torch_dtype in ((f32, DType.F32, torch.float32), (bf16, DType.BF16, torch.bfloat16)):
        size = path.stat().st_size
        tensor = torch.from_file(str(path), size=size * 8 // dtype.bits, dtype=torch_dtype).clone()
        costs = in_turn(
            max(3, rounds // 2),
            torch=partial(all_finite, tensor),
            ours=partial(finite, path, dtype),
        )
        show(f"NaN, Inf, absmax of {dtype.value} / torch.isfinite", ratio(costs, "ours", "torch", of="cpu"))


def at_once(works: Sequence[Callable[[], object]]) -> None:
    """Run each in a separate thread."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_one(works: Sequence[Callable[[], object]]) -> None:
    """Run one after the other."""
    for work in works:
        work()


def thread_figures(f32: Path, bf16: Path, rounds: int) -> None:
    """Compare two threads with one, for each kind of work separately; wall times are valid only on an idle machine."""
    size = f32.stat().st_size
    numbers = Wants(crc_end=size, numerics=True)
    kinds = {
        "CRC32 of two files": [partial(passed, path, Wants(crc_end=size)) for path in (f32, bf16)],
        "numbers of F32": [partial(passed, f32, numbers, DType.F32)] * 2,
        "numbers of BF16": [partial(passed, bf16, numbers, DType.BF16)] * 2,
    }
    for name, works in kinds.items():
        costs = in_turn(rounds, one=partial(in_one, works), two=partial(at_once, works))
        show(f"{name}, two threads / one", ratio(costs, "two", "one"))
        show(f"{name}, two threads / one, CPU", ratio(costs, "two", "one", of="cpu"))


def cold_figures(f32: Path, rounds: int) -> None:
    """Compare with a file that is only on the disk."""
    costs: dict[str, list[Cost]] = {"dd": [], "ours": []}
    for _ in range(max(3, rounds // 2)):
        drop(f32)
        costs["dd"].append(cost_of(lambda: dd(f32)))
        drop(f32)
        costs["ours"].append(cost_of(lambda: passed(f32, Wants(crc_end=f32.stat().st_size))))
    note = ", ".join(f"{cost.wall:.2f}" for cost in costs["dd"])
    show("cold CRC32, wall / cold dd", ratio(costs, "ours", "dd"), f"(dd: {note} s)")
    show("cold CRC32, CPU / cold dd", ratio(costs, "ours", "dd", of="cpu"))


def digest_figures(folder: Path, f32: Path, rounds: int) -> None:
    """Compare the check of a `.ckpt` that computes the digest of each tensor, too, with a check without digests.

    The file has 300 tensors, of about 3 MiB and of 30 KiB. Without a manifest with digests, each byte is read once
    more, even if from the core's cache: the cost of that, without any of our code, is the lower bound.
    """
    for name, size in (("big", f32.stat().st_size), ("small", 300 * 30 << 10)):
        path = folder / "of_tensors.ckpt"
        write_ckpt(path, size // 300 // 8 * 8, f32)
        times = max(1, 64 * MIB // size)
        for kind, task in asked(path):
            works = {of: partial(checked, replace(task, digests=of == "ours"), times) for of in ("without", "ours")}
            costs = in_turn(2 * rounds, **works)
            show(f"{name} tensors' digests: {kind} / without", ratio(costs, "ours", "without", of="cpu"))
        path.unlink()
    whats = ("read", "read hash", "read xor", "read crc", "read crc hash")
    costs = in_turn(2 * rounds, **{what: partial(bare_pass, f32, what.split()) for what in whats})
    show("a hash of each block beside CRC32 / without", ratio(costs, "read crc hash", "read crc", of="cpu"))
    show("a hash of each block beside reading / without", ratio(costs, "read hash", "read", of="cpu"))
    show("a XOR of each block beside reading / without", ratio(costs, "read xor", "read", of="cpu"))
    costs = {"without": [], "ours": []}
    wants, tensors = Wants(crc_end=f32.stat().st_size), entries(f32, DType.F32, 300)
    for _ in range(max(3, rounds // 2)):
        for name, each in (("without", wants), ("ours", replace(wants, tensors=tensors))):
            drop(f32)
            costs[name].append(cost_of(partial(passed, f32, each)))
    show("tensor digests: cold CRC32, wall / without", ratio(costs, "ours", "without"))


def bare_pass(path: Path, what: Sequence[str]) -> None:
    """Read a file in blocks, and do only the requested work on each."""
    buffer = bytearray(BLOCK_BYTES)
    words, crc, digest = np.frombuffer(buffer, np.uint64), 0, xxh3_64()
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            if "crc" in what:
                crc = isal_zlib.crc32(buffer, crc)
            if "hash" in what:
                digest.update(buffer)
            if "xor" in what:
                np.bitwise_xor.reduce(words)


def write_ckpt(path: Path, step: int, numbers: Path) -> None:
    """Write 300 tensors, each of so many bytes of a file of numbers, and the CRC32 of all of it."""
    crc = 0
    with path.open("wb") as file, numbers.open("rb") as given:
        for index in range(300):
            part = record(f"model.layers.{index}.feed_forward.w1.weight", [step // 4], "Float32", given.read(step))
            crc = isal_zlib.crc32(part, crc)
            file.write(part)
        file.write(crc_trailer(b"")[:-4] + crc.to_bytes(4, "big"))


def asked(path: Path) -> Iterator[tuple[str, CheckTask]]:
    """Yield what a check of a file may have to do; the last ones when the CRC32 at its end is gone."""
    task = CheckTask(
        root=str(path.parent),
        path=path.name,
        rank=Rank(0),
        role=ShardRole.FULL,
        named_format=FormatName.MINDSPORE_CKPT,
        level=Level.CHECKSUM,
        cost=ByteCount(path.stat().st_size),
    )
    yield "numbers and CRC32", replace(task, level=Level.NUMERICS)
    yield "CRC32", task
    os.truncate(path, path.stat().st_size - len(crc_trailer(b"")))
    yield "reading", task
    report = judge([check(replace(task, hashes=True))])
    if report.digest is None or report.stamp is None:
        raise SystemExit("the file is not what was written")
    seal = ShardSeal(
        path=path.name,
        size=report.stamp.size,
        xxh3_128=report.digest.xxh3_128,
        chunks=report.digest.chunks,
        format=FormatName.MINDSPORE_CKPT,
        schema_hash=report.schema_hash,
        scalars=report.scalars,
        first_seen="2026-01-01T00:00:00Z",
        tensors=report.tensor_digests,
    )
    yield "a manifest", replace(task, seal=seal)


def checked(task: CheckTask, times: int) -> None:
    """Check a file this many times."""
    for _ in range(times):
        report = judge([check(task)])
        if (report.tensor_digests is not None) is not task.digests or worst(report.findings) > Severity.NOTE:
            raise SystemExit("the file is not what was written")


def many_ranks_figure() -> None:
    """Measure what the digests of two checkpoints of the largest training take, with some ranks that differ."""
    done = subprocess.run(
        [sys.executable, "-c", MANY_CHILD],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    show("digests of 8,192 ranks x 300 tensors, twice, MiB", int(done.stdout))


def zip_figures(folder: Path, rounds: int) -> None:
    """Compare with zipfile doing the same: the directory, and every local header."""
    for count in (300, 3000):
        path = folder / "model.pt"
        torch.save({f"layers.{i}.weight": torch.randn(1000) for i in range(count)}, path)

        def theirs(path: Path = path) -> None:
            with zipfile.ZipFile(path) as archive:
                for record in archive.infolist():
                    archive.open(record).close()

        def ours(path: Path = path) -> None:
            with LocalStorage(str(path.parent)).open(path.name) as source:
                if read_zip_directory(source).findings:
                    raise SystemExit("findings in a healthy file")

        costs = in_turn(3 * rounds, theirs=theirs, ours=ours)
        show(f"zip of {count} tensors / zipfile", ratio(costs, "ours", "theirs", of="cpu"))
        path.unlink()


def memory_figure(folder: Path, gibibytes: int) -> None:
    """Measure the peak of a process of its own that finds out everything about a large sparse file."""
    path, module = folder / "sparse.bin", folder / "benchmarks_verify.py"
    with path.open("wb") as file:
        file.truncate(gibibytes << 30)
    # Without torch, which verify does not load.
    text = Path(__file__).read_text(encoding="utf-8").replace("\nimport torch\n", "\n")
    module.write_text(text, encoding="utf-8")
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_CHILD, str(path), str(folder)],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    show("peak memory of a sparse file, MiB", int(done.stdout), f"({gibibytes} GiB, one worker)")
    path.unlink()


def main() -> None:
    """Run all benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", default=None, help="where the files go; a disk, for the cold figures")
    parser.add_argument("--size", type=int, default=1024, help="MiB of each of the two files")
    parser.add_argument("--sparse", type=int, default=10, help="GiB of the sparse file")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--digests", action="store_true", help="measure what tensor digests cost, and nothing else")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        folder = Path(name)
        with files(folder, options.size) as (f32, bf16):
            if options.digests:
                digest_figures(folder, f32, options.rounds)
                return
            warm_figures(f32, bf16, options.rounds)
            torch_figures(f32, bf16, options.rounds)
            thread_figures(f32, bf16, options.rounds)
            cold_figures(f32, options.rounds)
            digest_figures(folder, f32, options.rounds)
        zip_figures(folder, options.rounds)
        memory_figure(folder, options.sparse)
    many_ranks_figure()


if __name__ == "__main__":
    main()
