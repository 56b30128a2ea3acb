"""Cost of reading logs, against a Python loop that only splits the lines; and the memory of `calibrate`.

    python benchmarks/logs.py [MEGABYTES]

There are three generated logs: `monitored` is the kind that grows to gigabytes (a run that logs the local norms of some
layers at each step); `health` has the embedding norm at each step; `bare` has only step lines and progress bars, which
is the worst case: every second line has to be parsed, not skipped.

Both run in turns and are measured in CPU time, so that the ratio is valid on a busy machine, too.
"""

from __future__ import annotations

import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from ckpttool.trainers.registry import log_reader

LAYERS = {"monitored": 12, "health": 0, "bare": 0}
TARGETS = {"monitored": "  (target 1.5)", "bare": "  (target 2.0)"}
ROUNDS = 7
CALIBRATE_MEBIBYTES = 64
"""Memory limit for a log of 200 MB."""


def lines(kind: str) -> Iterator[str]:
    """Yield a log without end."""
    chance = random.Random(1)  # noqa: S311 (a curve, no secret)
    for step in count(1):
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(1.7e9 + step))
        head = f"{stamp},{step % 1000:03d} - mindformers[mindformers/core/callback/callback.py:"
        yield (
            f"{head}540] - INFO - {{ Epoch:[{1 + step // 900_000:3d}/ 99], step:[{step % 900_000 + 1:5d}/900000], "
            f"loss: {chance.random() * 5:5.3f}, per_step_time: {1500 + step % 100}ms, lr: {1e-5 + step * 1e-12:.7g}, "
            f"overflow cond: False, loss_scale: 1.0, global_norm: [{chance.random() * 3:.6f}], "
            "train_throughput_per_npu: 170.849T\n"
        )
        bar = "█" * (step % 50)
        yield f"{head}562] - INFO -   {step % 1000 / 10:4.1f}% |{bar:50s}| 0.00600 samples/s/p  25 days, 2:07:47 }}\n"
        if kind != "bare":
            yield f"{head}811] - INFO - embedding_local_norm: {chance.random() * 300:.5f}\n"
        for layer in range(LAYERS[kind]):
            yield f"{head}700] - INFO - local_norm/model.layers.{layer}.attention.wq.weight: {chance.random():.6f}\n"


def seconds(run: Callable[[], object]) -> float:
    """Return the CPU time of a run."""
    start = time.process_time()
    run()
    return time.process_time() - start


def read_all(path: Path) -> int:
    """Read the log as every command does, and return its number of items."""
    return sum(1 for _ in log_reader().read(str(path)))


def split_all(path: Path) -> None:
    """Split every line, and discard it."""
    with path.open(encoding="utf-8") as log:
        for line in log:
            line.split()


def mebibytes_of_calibrate(path: Path) -> float:
    """Return the peak memory of a process that calibrates from the log."""
    subprocess.run([sys.executable, "-m", "ckpttool", "calibrate", str(path)], check=False, capture_output=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def measure(kind: str, size: int, folder: Path) -> None:
    """Print the cost of one kind of log."""
    path = folder / f"{kind}.log"
    with path.open("w", encoding="utf-8") as log:
        made = lines(kind)
        while log.tell() < size:
            log.writelines(line for line, _ in zip(made, range(10_000), strict=False))
    steps = read_all(path)
    rounds = [(seconds(lambda: read_all(path)), seconds(lambda: split_all(path))) for _ in range(ROUNDS)]
    ratio = statistics.median(ours / split for ours, split in rounds)
    print(f"{kind}: {path.stat().st_size / 1e6:.0f} MB, {steps} steps, {min(ours for ours, _ in rounds):.2f} s of CPU")
    print(f"  {ratio:6.2f} x a Python loop that only splits the lines{TARGETS.get(kind, '')}")
    if kind == "bare":
        print(f"  {mebibytes_of_calibrate(path):6.0f} MiB for calibrate  (target {CALIBRATE_MEBIBYTES} for 200 MB)")
    path.unlink()


def main() -> None:
    """Measure each kind of log."""
    size = int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 200_000_000
    with tempfile.TemporaryDirectory() as folder:
        for kind in LAYERS:
            measure(kind, size, Path(folder))


if __name__ == "__main__":
    main()
