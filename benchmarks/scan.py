r"""Time of a scan, as ratios to references that ran in the same minute.

    python benchmarks/scan.py [rounds]

Trees of 1,024 and 8,192 ranks with three checkpoints and a meta.json each, in the page cache. Everything runs in turns,
and what is shown is the median of the ratios of each turn, by the processor's clock, so that a busy machine does not
count; if a disk waits, by the wall's. Absolute times say nothing about another machine.

    names + meta         over `find DIR -printf '%s %p\n'`; target 1.25
    with sizes           over the same; target 1.75
    JSON                 `scan --format json` over `scan`, both whole commands; target 1.0
    slow disk            2 ms a call, over the same scan in one thread; target 0.06
    automatic threads    warm disk, over one thread forced; target 1.1
    memory               a fresh process that scans 8,192 x 3; target 64 MiB
    saves                1,000 folders `checkpoint-N` with a record each that is read whole, over `find`; asked for are
                         1.5, which a program that reads records cannot reach: it opens 2,000 files, find none

Not here, because it needs MindSpore: MindFormers' own `get_resume_checkpoint_by_meta` of rank 0, over which names +
meta takes 0.3 at 8,192 ranks and 0.5 at 1,024 (MindFormers 2.1.0); target 0.40 at 8,192.
"""

from __future__ import annotations

import gc
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from unittest import mock

ROUNDS = 9
ROOT = Path(__file__).resolve().parent.parent

sys.path.insert(0, str(ROOT))

from ckpttool import scan  # noqa: E402  found by the line above
from ckpttool.__main__ import COLLECTIONS  # noqa: E402
from ckpttool.core.domain.shard import FileStamp  # noqa: E402
from ckpttool.core.storage import fan_out  # noqa: E402
from ckpttool.core.storage.base import ByteSource, Entry, Kind, Storage  # noqa: E402
from ckpttool.core.storage.local import LocalStorage  # noqa: E402
from ckpttool.trainers.base import ScanOptions  # noqa: E402
from ckpttool.trainers.listing import list_root  # noqa: E402
from ckpttool.trainers.parts import recognised  # noqa: E402
from ckpttool.types import TreeQuestion  # noqa: E402  found by the line above
from tests.support.trees import TreeBuilder  # noqa: E402

RANKS = (1024, 8192)
SLOW_RANKS = 1024
SAVES = 1000
LATENCY = 0.002
"""Seconds per call, as on a busy network file system."""

MEMORY = """
import resource, sys
from ckpttool import scan
from ckpttool.types import TreeQuestion
found = scan(TreeQuestion(path=sys.argv[1], sizes=sys.argv[2] == "sizes"))
assert len(found.inventory.checkpoints) == 3
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


class SlowStorage:
    """A folder on a disk far away: every call waits."""

    def __init__(self, root: str) -> None:
        """Wrap a local folder."""
        self.root = root
        self._inner = LocalStorage(root)

    def entries(self, folder: str) -> list[Entry]:
        """List a folder."""
        time.sleep(LATENCY)
        return self._inner.entries(folder)

    def kind(self, path: str) -> Kind:
        """Return the kind of the entry at a path."""
        time.sleep(LATENCY)
        return self._inner.kind(path)

    def stamp(self, path: str) -> FileStamp:
        """Look at a file."""
        time.sleep(LATENCY)
        return self._inner.stamp(path)

    def small_file(self, path: str, *, limit: int) -> bytes:
        """Read a record."""
        time.sleep(LATENCY)
        return self._inner.small_file(path, limit=limit)

    def open(self, path: str) -> AbstractContextManager[ByteSource]:
        """Open a shard."""
        time.sleep(LATENCY)
        return self._inner.open(path)


def one_thread() -> AbstractContextManager[object]:
    """Disable the pool, as for a disk that never waits."""
    return mock.patch.object(fan_out, "sleeps", return_value=0)


def processor_seconds() -> float:
    """Return the time that this process and its children have used."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


class Measured:
    """Times of functions that ran in turns."""

    def __init__(self, functions: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float]) -> None:
        """Run all functions in turns; the first turn warms up."""
        self._turns: list[dict[str, float]] = []
        for _ in range(rounds + 1):
            turn = {}
            for name, function in functions.items():
                begin = clock()
                function()
                turn[name] = clock() - begin
            self._turns.append(turn)

    def ratio(self, name: str, reference: str) -> float:
        """Return the ratio of a function to the reference, as the median over the turns."""
        return statistics.median(turn[name] / turn[reference] for turn in self._turns[1:])


def find(root: str) -> None:
    """List every name and size with the standard tool."""
    subprocess.run(["find", root, "-printf", "%s %p\\n"], stdout=subprocess.DEVNULL, check=True)  # noqa: S607


def command(*arguments: str) -> None:
    """Run ckpttool as a program."""
    program = [sys.executable, "-m", "ckpttool", *arguments]
    subprocess.run(program, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


def list_names(storage: Storage) -> None:
    """Scan without the help of the library's own wiring, so that the storage can be any."""
    listing = list_root(storage)
    (layout,) = recognised(listing)
    layout.scan(storage, listing, ScanOptions())


def measure(root: str, ranks: int, rounds: int) -> None:
    """Compare the scans of one tree."""

    def forced() -> None:
        with one_thread():
            scan(TreeQuestion(path=root))

    measured = Measured(
        {
            "find": lambda: find(root),
            "names": lambda: scan(TreeQuestion(path=root)),
            "sizes": lambda: scan(TreeQuestion(path=root, sizes=True)),
            "one thread": forced,
            "table": lambda: command("scan", root),
            "json": lambda: command("scan", root, "--format", "json"),
        },
        rounds,
        processor_seconds,
    )
    print(f"{ranks} ranks x 3")
    print(f"  names + meta       {measured.ratio('names', 'find'):.2f} x find -printf")
    print(f"  with sizes         {measured.ratio('sizes', 'find'):.2f} x find -printf")
    print(f"  JSON               {measured.ratio('json', 'table'):.2f} x the table")
    print(f"  automatic threads  {measured.ratio('names', 'one thread'):.2f} x one thread")
    for kind in ("names", "sizes"):
        program = [sys.executable, "-c", MEMORY, root, kind]
        done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True)
        print(f"  memory, {kind}      {int(done.stdout) / 1024:.0f} MiB")


def measure_slow(root: str, ranks: int) -> None:
    """Print the gain by threads if every call waits."""
    storage = SlowStorage(root)

    def alone() -> None:
        with one_thread():
            list_names(storage)

    measured = Measured({"threads": lambda: list_names(storage), "one thread": alone}, 2, time.perf_counter)
    print(f"{ranks} ranks x 3, {LATENCY * 1000:.0f} ms a call")
    print(f"  automatic threads  {measured.ratio('threads', 'one thread'):.3f} x one thread")


def measure_saves(root: Path, count: int, rounds: int) -> None:
    """Compare the scan of a tree with one folder and one record per save."""
    for number in range(1, count + 1):
        folder = root / f"checkpoint-{number}"
        shutil.copytree(ROOT / "fixtures" / "layouts" / "hf_single" / "checkpoint-12", folder)
        state = folder / "trainer_state.json"
        state.write_text(state.read_text().replace('"global_step": 12,', f'"global_step": {number},'))
    functions: dict[str, Callable[[], object]] = {
        "find": lambda: find(str(root)),
        "saves": lambda: scan(TreeQuestion(path=str(root))),
    }
    print(f"{count} saves")
    ratio = Measured(functions, rounds, processor_seconds).ratio("saves", "find")
    print(f"  names + records    {ratio:.2f} x find -printf")


def main() -> None:
    """Build the trees and measure, with the garbage collector set as the command line sets it."""
    gc.set_threshold(*COLLECTIONS)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    for ranks in RANKS:
        with tempfile.TemporaryDirectory() as folder:
            tree = TreeBuilder(Path(folder)).legacy(ranks=ranks, sparse=True)
            for epoch in (10, 15, 20):
                tree.save(epoch=epoch, step=2)
            measure(str(tree.checkpoint), ranks, rounds)
            if ranks == SLOW_RANKS:
                measure_slow(str(tree.checkpoint), ranks)
    with tempfile.TemporaryDirectory() as folder:
        measure_saves(Path(folder), SAVES, rounds)


if __name__ == "__main__":
    main()
