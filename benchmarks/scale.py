"""Growth of the cost with the number of ranks, up to 100,000 ranks and 10 PB.

    python benchmarks/scale.py [ranks...]        (default: 256 1024 4096)

The following are measured on this machine for each number of ranks, and marked so: an object store at 20 ms per request
(the tests' relay, whose own speed is included); parts of machines with 8 ranks each and three checkpoints, against the
same tree on one disk; and the speed at which every byte of a shard is read and hashed.

The following are extrapolated from the last of these in proportion to the ranks, and marked so: 8,192 ranks of 2.5 GB,
and 100,000 of 33 GB. The speed of a real store, a real network or real disks is unknown here.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from benchmarks.objects import DELAY_SECONDS, Cost, measured  # noqa: E402  found by the line above
from tests.support.shard_writers import entries_json, safetensors_file  # noqa: E402
from tests.support.split_trees import seat, written  # noqa: E402
from tests.support.trees import TreeBuilder  # noqa: E402

RANKS = (256, 1024, 4096)
RANKS_A_MACHINE = 8
CHECKPOINTS = 3
LARGE = ((8192, 2.5e9, 64), (100_000, 33e9, 1000))
"""Ranks, bytes of a shard, and machines that read."""
CONTENT_BYTES = 256 << 20


class Merge(NamedTuple):
    """Cost of an answer from parts, and from one disk."""

    parts: int
    bytes_a_shard: float
    seconds: float
    disk_seconds: float
    rss_mib: float


class Base(NamedTuple):
    """The measurements, and their number of ranks."""

    ranks: int
    cost: Cost
    merge: Merge
    bytes_a_second: float


def answer(root: str) -> None:
    """Resolve, and print seconds and memory."""
    import ckpttool
    from ckpttool.types import TreeQuestion

    began = time.monotonic()
    ckpttool.resolve(TreeQuestion(path=root))
    print(json.dumps([time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))


def answered(root: Path) -> tuple[float, float]:
    """Return the seconds and MiB of a process that resolves: the least of three."""
    command = [sys.executable, __file__, "answer", str(root)]
    runs = [json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(3)]
    return min(seconds for seconds, _ in runs), min(mib for _, mib in runs)


def merged(ranks: int) -> Merge:
    """Write a tree of this many ranks on one disk, view it from machines with 8 ranks each, and resolve both."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        builder = TreeBuilder(folder / "disk", sparse=True).legacy(ranks=ranks)
        for epoch in range(1, CHECKPOINTS + 1):
            builder.save(epoch=epoch, step=1)
        (folder / "parts").mkdir()
        machines = ranks // RANKS_A_MACHINE
        link = folder / "run"  # each machine has its ranks at the same place
        for machine in range(machines):
            home = folder / "machine"
            for rank in range(machine * RANKS_A_MACHINE, (machine + 1) * RANKS_A_MACHINE):
                (home / "checkpoint").mkdir(parents=True, exist_ok=True)
                (home / "checkpoint" / f"rank_{rank}").symlink_to(builder.checkpoint / f"rank_{rank}")
            link.unlink(missing_ok=True)
            link.symlink_to(home)
            data = written(seat(machine + 1, machines, link / "checkpoint"))
            (folder / "parts" / f"r.{machine + 1:05}-of-{machines:05}.ckptpart").write_bytes(data)
            shutil.rmtree(home)
        size = sum(path.stat().st_size for path in (folder / "parts").iterdir())
        seconds, mib = answered(folder / "parts")
        disk, _ = answered(builder.checkpoint)
    return Merge(machines, size / ranks / CHECKPOINTS, seconds, disk, mib)


def read_speed() -> float:
    """Return the bytes per second at which one process reads and hashes a shard in the page cache."""
    from ckpttool import verify
    from ckpttool.types import CheckQuestion, Level, TreeQuestion

    with tempfile.TemporaryDirectory() as folder:
        shard = Path(folder) / "checkpoint/rank_0/net_rank_0-1_1.safetensors"
        shard.parent.mkdir(parents=True)
        header = entries_json([("w", "I8", [CONTENT_BYTES], CONTENT_BYTES)])
        shard.write_bytes(safetensors_file(header, os.urandom(CONTENT_BYTES)))
        question = CheckQuestion(level=Level.CHECKSUM, max_age=None, jobs=1, replicas=False)
        seconds = []
        for _ in range(4):
            began = time.perf_counter()
            list(verify(TreeQuestion(path=str(shard.parent.parent)), question))
            seconds.append(time.perf_counter() - began)
    return CONTENT_BYTES / min(seconds)


def reckoned(ranks: int, size: float, machines: int, base: Base) -> str:
    """Print the cost of this many ranks."""
    times = ranks / base.ranks
    lists = -(-ranks * (CHECKPOINTS + 1) // 1000)
    headers = 2 * base.cost.header_seconds * times  # the newest checkpoint, and one for comparison
    alone = ranks * size / base.bytes_a_second
    shared = alone / machines / 60
    return "\n".join(
        [
            f"reckoned for {ranks:,} ranks of {size / 1e9:g} GB, {CHECKPOINTS * ranks * size / 1e15:.2g} PB in all:",
            f"  {lists} LIST, one after another: {lists * DELAY_SECONDS:.1f} s",
            f"  headers of two checkpoints: {2 * ranks:,} GET, {headers:.0f} s from one machine",
            f"  all parts: {base.merge.bytes_a_shard * ranks * CHECKPOINTS / 1e6:.0f} MB",
            f"  an answer from them: {base.merge.seconds * times:.0f} s",
            f"  every byte of one checkpoint: {alone / 3600:,.1f} h by one process;",
            f"  by one process on each of {machines} machines: {shared:.0f} min",
        ]
    )


def main(sizes: list[int]) -> None:
    """Measure each size, and extrapolate from the last."""
    for ranks in sizes:
        cost, merge = measured(ranks), merged(ranks)
        print(f"measured with {ranks:,} ranks:")
        print(f"  store: {cost.lists} LIST, {cost.heads} HEAD, {cost.gets / ranks:.3f} GET a shard; ", end="")
        print(f"scan {cost.scan_seconds:.2f} s, headers {cost.header_seconds:.2f} s ", end="")
        print(f"({cost.header_seconds / cost.one_thread_seconds:.3f} of one thread), {cost.rss_mib:.0f} MiB")
        print(
            f"  {merge.parts} parts: {merge.bytes_a_shard:.0f} bytes a shard, resolve {merge.seconds:.2f} s, ", end=""
        )
        print(f"{merge.seconds / merge.disk_seconds:.2f} x one disk, {merge.rss_mib:.0f} MiB", flush=True)
    speed = read_speed()  # last: what this process has in memory counts for those that it starts
    print(f"measured: one process reads and hashes {speed / 1e9:.1f} GB/s from the page cache")
    for large in LARGE:
        print(reckoned(*large, Base(sizes[-1], cost, merge, speed)))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["answer", root]:
            answer(root)
        case words:
            main([int(word) for word in words] or list(RANKS))
