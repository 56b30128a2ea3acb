r"""Cost of a poll of `ckpttool watch` if nothing happened, as a ratio to a full scan in the same minute.

    python benchmarks/watch.py [rounds]

Trees of 1,024 and 8,192 ranks with three good checkpoints each, in the page cache. Both run in turns, and what is shown
is the median of the ratios of each turn, by the processor's clock, so that a busy machine does not count.

    idle poll            a poll that finds that nothing moved, over a scan with sizes; target 0.1
    twenty polls         of which the last one lists everything whatever the folders' times say, over twenty scans
    state                bytes that are kept of each save, after all the polls
"""

from __future__ import annotations

import gc
import sys
import tempfile
from pathlib import Path

ROUNDS = 9
ROOT = Path(__file__).resolve().parent.parent
ONE_POLL = 10
"""Polls a turn: one alone is too short for the clock."""

sys.path.insert(0, str(ROOT))

from benchmarks.scan import Measured, processor_seconds  # noqa: E402  found by the line above
from ckpttool import scan  # noqa: E402
from ckpttool.__main__ import COLLECTIONS  # noqa: E402
from ckpttool.core.domain.verdict import Level  # noqa: E402
from ckpttool.types import TreeQuestion  # noqa: E402
from ckpttool.watch.model import WatchQuestion, WatchRule  # noqa: E402
from ckpttool.watch.rules import is_idle  # noqa: E402
from ckpttool.watch.verbs import FULL_EVERY, Watch  # noqa: E402
from tests.support.trees import TreeBuilder  # noqa: E402

RANKS = (1024, 8192)


def idle(root: str, state: Path) -> Watch:
    """Return a watch that has reported all events."""
    question = WatchQuestion(
        tree=TreeQuestion(path=root),
        rule=WatchRule(settle=1, again=0.0),
        level=Level.STRUCTURE,
        environment={"XDG_STATE_HOME": str(state)},
    )
    return Watch(question, tell=lambda _: None, note=print)


def measure(root: str, ranks: int, rounds: int, state: Path) -> None:
    """Print how polls compare with scans."""
    watch = idle(root, state)
    with watch.begun():
        while not is_idle(watch.known) or not watch.known.saves:
            watch.poll()
            watch.finish_reading()

        def quiet() -> None:
            watch._polls = 0  # noqa: SLF001  no full one is among these
            for _ in range(ONE_POLL):
                watch.poll()

        def twenty() -> None:
            for _ in range(FULL_EVERY):
                watch.poll()

        quiet()
        full = {"scan": lambda: scan(TreeQuestion(path=root, sizes=True))}
        measured = Measured({"idle": quiet, "twenty": twenty, **full}, rounds, processor_seconds)  # type: ignore[dict-item]
        idle_ratio = measured.ratio("idle", "scan") / ONE_POLL
        mean_ratio = measured.ratio("twenty", "scan") / FULL_EVERY
        kept = next(state.rglob("*.json")).stat().st_size / len(watch.known.saves)
    print(f"{ranks} ranks x 3")
    print(f"  idle poll          {idle_ratio:.3f} x a scan with sizes")
    print(f"  twenty polls       {mean_ratio:.3f} x twenty scans")
    print(f"  state              {kept:.0f} bytes a save")


def main() -> None:
    """Build the trees and measure, with the garbage collector set as the command line sets it."""
    gc.set_threshold(*COLLECTIONS)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    for ranks in RANKS:
        with tempfile.TemporaryDirectory() as folder:
            tree = TreeBuilder(Path(folder)).legacy(ranks=ranks, sparse=True)
            for epoch in (10, 15, 20):
                tree.save(epoch=epoch, step=2)
            measure(str(tree.checkpoint), ranks, rounds, Path(folder) / "state")


if __name__ == "__main__":
    main()
