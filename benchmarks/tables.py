r"""Time of a table with all rows, as a ratio to the same answer in JSON.

    python benchmarks/tables.py [rounds]

Whole commands in turns; what is shown is the median of the ratios of each turn, by the processor's clock. The target is
1.2 for each: `scan` of 2,000 checkpoints, `inspect` of 10,000 tensors, `diff` of 10,000 tensors that all differ.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.scan import Measured, command, processor_seconds
from tests.support.trees import TreeBuilder

ROUNDS = 5
CHECKPOINTS = 2_000
TENSORS = 10_000


def measure(name: str, *arguments: str, rounds: int) -> None:
    """Compare the two forms of one answer."""
    forms = {form: lambda form=form: command(*arguments, "--format", form) for form in ("table", "json")}
    print(f"{name:<28} {Measured(forms, rounds, processor_seconds).ratio('table', 'json'):.2f} x JSON")


def main() -> None:
    """Build a tree and two files, and measure."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        tree = TreeBuilder(Path(folder)).legacy(ranks=1, sparse=True)
        for epoch in range(1, CHECKPOINTS + 1):
            tree.save(epoch=epoch, step=2, meta=False)
        measure(f"scan, {CHECKPOINTS} checkpoints", "scan", str(tree.checkpoint), rounds=rounds)
        a, b = str(Path(folder, "a.safetensors")), str(Path(folder, "b.safetensors"))
        for file, values in ((a, 2), (b, 3)):
            names = (f"layers.{at // 8}.block.{at % 8}.w" for at in range(TENSORS))
            save_file({name: np.ones(values, np.float16) for name in names}, file)
        measure(f"inspect, {TENSORS} tensors", "inspect", a, "--all", rounds=rounds)
        measure(f"diff, {TENSORS} tensors", "diff", a, b, "--all", rounds=rounds)


if __name__ == "__main__":
    main()
