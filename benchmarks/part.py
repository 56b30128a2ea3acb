r"""Cost of recording the view of one of many machines, against `verify` of the same files.

    python benchmarks/part.py [rounds]

A machine's 8 ranks with three checkpoints, in the page cache. Both in turns, the median of the ratios of each turn: of
the time that passed, in which `part` waits twice for the disk and `verify` never, and of the CPU's.

    structure            `part` over `verify --checkpoint all`; target 1.3
    checksum             the same, reading every byte of every checkpoint; target 1.3
    commands             both as whole commands, at `structure`; target 1.3
    bytes                of a part, a shard; target 500 at `structure`
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROUNDS = 9
ROOT = Path(__file__).resolve().parent.parent

sys.path.insert(0, str(ROOT))

from ckpttool import verify  # noqa: E402  found by the line above
from ckpttool.library import part  # noqa: E402  found by the line above
from ckpttool.types import CheckQuestion, Level, PartQuestion, TreeQuestion  # noqa: E402  found by the line above
from tests.support.trees import TreeBuilder  # noqa: E402

RANKS = 8


def ratio(one: Callable[[], object], other: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Return the median ratios of the first to the second: time, and CPU time of this process."""
    ratios = []
    for _ in range(rounds + 1):
        times = []
        for function in (one, other):
            began = time.perf_counter(), time.process_time()
            function()
            times.append((time.perf_counter() - began[0], time.process_time() - began[1]))
        ratios.append([first / second for first, second in zip(*times, strict=True)])
    passed, cpu = zip(*ratios[1:], strict=True)
    return statistics.median(passed), statistics.median(cpu)


def command(*words: str) -> None:
    """Run ckpttool as a program."""
    program = [sys.executable, "-m", "ckpttool", *words, "--quiet"]
    subprocess.run(program, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)


def main() -> None:
    """Build the tree and measure."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        builder = TreeBuilder(Path(folder)).legacy(ranks=RANKS)
        for epoch in (10, 15, 20):
            builder.save(epoch=epoch, step=2)
        tree, file = str(builder.checkpoint), f"{folder}/a.ckptpart"
        for level in (Level.STRUCTURE, Level.CHECKSUM):
            check = CheckQuestion(level=level, name="all", max_age=None)
            question = PartQuestion(tree=TreeQuestion(path=tree), check=check, out=file, part="1/1024")
            measured, cpu = ratio(lambda q=question: part(q), lambda c=check: list(verify(tree, c)), rounds)  # type: ignore[misc]
            size = Path(file).stat().st_size / RANKS / 3
            print(f"{level.word:10} part {measured:.2f} x verify, CPU {cpu:.2f} x, {size:.0f} bytes a shard")
        words = ("--out", file, "--part", "1/1024")
        measured, _ = ratio(
            lambda: command("part", tree, *words), lambda: command("verify", tree, "--checkpoint", "all"), rounds
        )
        print(f"{'commands':10} part {measured:.2f} x verify")


if __name__ == "__main__":
    main()
