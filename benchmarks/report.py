r"""Cost of a page besides reading: its size, and its CPU time.

    python benchmarks/report.py

    page                 8,192 ranks x 50 saves with 500 faults; targets 1 MB and 0.5 s, the first page of a process,
                         which imports and reads the template
    more                 100,000 ranks x 20 saves with 2,000 faults
    chess board          8,192 ranks x 50 saves, in each every 16th rank: drawn coarser
    share                of a report on a tree of 512 ranks x 4 saves, all of which is on this disk: what is not reading

The facts about the large trees are generated in memory: reading them takes minutes and shows nothing about the page.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parent.parent

sys.path.insert(0, str(ROOT))

from ckpttool.core.domain.checkpoint import Checkpoint, Topology  # noqa: E402
from ckpttool.core.domain.finding import Code, Finding, damage  # noqa: E402
from ckpttool.core.domain.health import Health  # noqa: E402
from ckpttool.core.domain.shard import FormatName  # noqa: E402
from ckpttool.core.domain.units import ByteCount, Rank  # noqa: E402
from ckpttool.core.domain.verdict import Level, ShardReport, Verdict  # noqa: E402
from ckpttool.health.model.events import HealthJudgement  # noqa: E402
from ckpttool.library import survey  # noqa: E402  found by the line above
from ckpttool.report.model import TreeReport  # noqa: E402
from ckpttool.report.verbs import page  # noqa: E402
from ckpttool.types import PageForm, ReportQuestion, TreeQuestion  # noqa: E402  found by the line above
from tests.support.inventories import checkpoint, tree  # noqa: E402
from tests.support.trees import TreeBuilder  # noqa: E402

MOST_BYTES = 1_000_000
MOST_SECONDS = 0.5
HIDDEN_RANKS, HIDDEN_SAVES = 512, 4


def finding(rank: int, path: str) -> Finding:
    """A truncated file."""
    message = f"The file ends at byte {rank * 977}, but the record that begins before it is longer."
    remedy = "copy it again if it is a copy; what a crash cut off while it was saved is lost"
    return damage(Code.SHARD_TRUNCATED, message, path=path, ranks=(Rank(rank),), remedy=remedy)


def seen(one: Checkpoint, faults: Iterable[int]) -> Verdict:
    """A verdict on a save, some of whose ranks are damaged."""
    bad = {rank: finding(rank, one.shards[rank].path) for rank in sorted(faults)}
    reports = tuple(
        ShardReport(
            path=shard.path,
            rank=shard.rank,
            role=shard.role,
            level=Level.STRUCTURE,
            format=FormatName.MINDSPORE_CKPT,
            stamp=None,
            scalars=(),
            schema_hash=None,
            tensors=12,
            checksum_matched=False,
            bytes_read=ByteCount(4096),
            findings=(bad[number],) if number in bad else (),
        )
        for number, shard in enumerate(one.shards)
    )
    return Verdict(
        key=one.key,
        name=one.name,
        step=one.step,
        level=Level.STRUCTURE,
        reports=reports,
        findings=tuple(bad.values()),
    )


def made_up(like: TreeReport, *, ranks: int, saves: int, faults: dict[int, set[int]]) -> TreeReport:
    """Return a report on a large tree; the answer of `resolve` is that of the small one."""
    topology = Topology(world_size=ranks)
    checkpoints = [
        replace(checkpoint(f"{number}_2", ranks=range(ranks)), topology=topology) for number in range(1, saves + 1)
    ]
    verdicts = [seen(one, faults.get(number, ())) for number, one in enumerate(checkpoints)]
    judgements = tuple(
        HealthJudgement(
            name=one.name,
            step=one.step,
            recorded=Health.UNKNOWN,
            embedding_local_norm=None,
            l2_norm=None,
            health=Health.UNKNOWN,
            source="none",
        )
        for one in checkpoints
    )
    return replace(
        like,
        verification=replace(like.verification, inventory=tree(*checkpoints), verdicts=tuple(verdicts[::-1])),
        health=replace(like.health, report=replace(like.health.report, judgements=judgements)),
    )


def scattered(number: int, *, ranks: int, saves: int) -> dict[int, set[int]]:
    """This many faults, at random places."""
    chance = Random(7)  # noqa: S311  the same page in every run
    found: dict[int, set[int]] = {}
    for _ in range(number):
        found.setdefault(chance.randrange(saves), set()).add(chance.randrange(ranks))
    return found


def measured(what: str, answer: TreeReport) -> tuple[int, float]:
    """Write a page, and print its size and duration."""
    began = time.process_time()
    nbytes = len(page(answer, PageForm.HTML).encode())
    seconds = time.process_time() - began
    print(f"{what:60} {nbytes / 1024:8.0f} KiB {seconds:8.3f} s", flush=True)
    return nbytes, seconds


def main() -> None:
    """Print all figures, and fail if a target is missed."""
    with tempfile.TemporaryDirectory() as folder:
        builder = TreeBuilder(Path(folder)).legacy(ranks=HIDDEN_RANKS)
        for number in range(1, HIDDEN_SAVES + 1):
            builder.save(epoch=number, step=2)
        began = time.process_time()
        small = survey(ReportQuestion(tree=TreeQuestion(path=str(builder.output)), keep_last=2))
        reading = time.process_time() - began
    large = made_up(small, ranks=8192, saves=50, faults=scattered(500, ranks=8192, saves=50))
    nbytes, seconds = measured("page: 8,192 ranks x 50 saves, 500 faults", large)
    del large
    board = {number: set(range(number % 16, 8192, 16)) for number in range(50)}
    measured("chess board: 8,192 x 50, every 16th rank", made_up(small, ranks=8192, saves=50, faults=board))
    more = made_up(small, ranks=100_000, saves=20, faults=scattered(2000, ranks=100_000, saves=20))
    measured("more: 100,000 ranks x 20 saves, 2,000 faults", more)
    del more
    _, own = measured(f"share: {HIDDEN_RANKS} ranks x {HIDDEN_SAVES} saves", small)
    print(f"reading these took {reading:.2f} s, the page {own / reading:.3f} of it")
    if nbytes > MOST_BYTES or seconds > MOST_SECONDS:
        sys.exit(f"missed: {MOST_BYTES} bytes and {MOST_SECONDS} s")


if __name__ == "__main__":
    main()
