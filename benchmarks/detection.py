"""Measure the faults that `verify` finds: damage real shards in every way, count, and write the table into its page.

Run as `python benchmarks/detection.py` (some twenty minutes on two cores, all in memory); `--quick` takes every 50th
bit. With replicas two complete files are read per flipped bit, so only a few thousand bits per row are flipped.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import permutations
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import ckpttool  # noqa: E402  after the path to this checkout
from ckpttool.core.domain.shard import FormatName  # noqa: E402
from ckpttool.core.domain.verdict import Level  # noqa: E402
from ckpttool.types import TreeQuestion  # noqa: E402
from tests.support import fault_detection as broken  # noqa: E402
from tests.support import healthy_trees as healthy  # noqa: E402
from tests.support.fault_detection import ALONE, CRC, MANIFEST, PAIR, REPLICAS, SIBLINGS, Scene, Tally  # noqa: E402

FIXTURES = ROOT / "fixtures"
PAGE = ROOT / "ckpttool" / "guide" / "verify.md"
BEGIN, END = "<!-- detection:begin -->", "<!-- detection:end -->"
BITS_A_TASK = 4000
MOST_BESIDE_REPLICAS = 3000
"""Bits flipped per row if there are replicas: each needs two reads of all tensors, and a comparison."""
HEALTHY_TREES = 1000
MOST_HEADER_MISSES = 0.001
"""Share of flipped header bits of a 1 MB shard that may remain undetected."""

FORMATS = {"ckpt": ("sink2_ckpt", ".ckpt"), "st": ("sink2_safetensors", ".safetensors")}
"""Short name -> fixture tree and suffix. The damaged shard is that of rank 0 in `20_2`, with `15_2` next to it."""


PLAIN = "plain"
"""Shards without a checksum, the large ones slices. Other kinds of scenes: CRC, with one; REPLICAS, all equal."""


@cache
def scene(fmt: str, size: str, kind: str) -> Scene:
    """Build the scene once in each process."""

    def change(path: str, data: bytes) -> bytes:
        place = path.rpartition("-")[2] if kind == REPLICAS else path
        large = broken.megabyte(place, data) if size == "1 MB" else data
        return broken.with_crc(path, large) if kind == CRC else large

    return broken.scene(FIXTURES / FORMATS[fmt][0] / "output", "20_2", change=change)


MEANS = {PLAIN: broken.means_of, CRC: broken.means_with_crc, REPLICAS: broken.means_with_replicas}
"""The questions to a scene."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One row of the table."""

    what: str
    formats: tuple[str, ...]
    size: str
    make: Callable[[Scene], Iterable[tuple[broken.Data, str]]] | None = None
    """Function that damages the shard; None: bits are flipped."""
    tally: Callable[[str, str], Tally] | None = None
    """Function that does everything, for a format and a kind of scene."""
    header_only: bool = False
    bar: float | None = None
    """Share that may be missed with siblings available; None: misses are only allowed in tensor data."""


def doubled(one: Scene) -> Iterator[tuple[bytes, str]]:
    """Write the file twice, and its second half once more."""
    yield one.data * 2, "doubled"
    yield one.data + one.data[len(one.data) // 2 :], "doubled"


def other_ranks(one: Scene) -> Iterator[tuple[bytes, str]]:
    """Replace the file by that of each other rank."""
    for report in one.neighbours:
        if one.files[report.path] != one.data:
            yield one.files[report.path], "a rank that held the same before"


def from_elsewhere(one: Scene, data: bytes) -> bytes:
    """Give a foreign file a correct checksum, as its own training would."""
    return broken.with_crc(one.path, data) if one.has_crc else data


def short_name(one: Scene) -> str:
    """Return the key of the scene's format in FORMATS."""
    return "ckpt" if one.checkpoint.format is FormatName.MINDSPORE_CKPT else "st"


def other_stages(one: Scene) -> Iterator[tuple[bytes, str]]:
    """Replace the file by that of another pipeline stage: other layers, so other names."""
    plain = scene(short_name(one), "1 MB", PLAIN).data
    for layer in range(1, 10):
        yield from_elsewhere(one, plain.replace(b"layers.0.", b"stage%d.0." % layer)), "another stage"


LEGACY = {"ckpt": ("sink2_ckpt", "nosink_ckpt", "health_pp2", "async_ckpt"), "st": ("sink2_safetensors",)}


def other_steps(fmt: str, kind: str) -> Tally:
    """Replace each file of rank 0 by its file at every other step, in every real tree."""
    tally = Tally()
    change = broken.with_crc if kind == CRC else broken.unchanged
    for tree in LEGACY[fmt]:
        scenes = [broken.scene(FIXTURES / tree / "output", name, change=change) for name in names_in(tree)]
        for here, there in permutations(scenes, 2):
            tally.ask(there.data, MEANS[kind](here), "another step")
    return tally


def names_in(tree: str) -> Sequence[str]:
    """Return the checkpoints of a real tree."""
    return [one.name for one in ckpttool.scan(TreeQuestion(path=str(FIXTURES / tree / "output"))).inventory.checkpoints]


def same_step_of_another_run(one: Scene) -> Iterator[tuple[bytes, str]]:
    """Replace the file by that of another run at the same step: the same scalars, other weights."""
    small = scene(short_name(one), "small", PLAIN).data
    for run in range(1, 10):
        yield from_elsewhere(one, broken.megabyte(f"run {run}", small)), "another run's tensors"


FAULTS = (
    Fault(what="one bit flipped, anywhere", formats=("ckpt",), size="small"),
    Fault(what="one bit flipped, anywhere", formats=("st",), size="small"),
    Fault(
        what="one bit flipped in the header", formats=("ckpt",), size="1 MB", header_only=True, bar=MOST_HEADER_MISSES
    ),
    Fault(what="one bit flipped in the header", formats=("st",), size="1 MB", header_only=True, bar=MOST_HEADER_MISSES),
    Fault(what="cut, at every length", formats=("ckpt",), size="small", make=broken.truncations, bar=0),
    Fault(what="cut, at every length", formats=("st",), size="small", make=broken.truncations, bar=0),
    Fault(what="a 4 KiB page zeroed", formats=("ckpt", "st"), size="1 MB", make=broken.zeroed_pages),
    Fault(
        what="64 KiB zeroed",
        formats=("ckpt", "st"),
        size="1 MB",
        make=lambda one: broken.zeroed_pages(one, 16 * broken.PAGE),
    ),
    Fault(what="two pages swapped", formats=("ckpt", "st"), size="1 MB", make=broken.swapped_pages),
    Fault(
        what="zeros from somewhere to the end",
        formats=("ckpt", "st"),
        size="1 MB",
        make=lambda one: broken.zeroed_tails(one, 512),
    ),
    Fault(what="written twice", formats=("ckpt", "st"), size="1 MB", make=doubled, bar=0),
    Fault(what="another rank's shard, same tensors", formats=("ckpt", "st"), size="1 MB", make=other_ranks),
    Fault(what="another rank's shard, other tensors", formats=("ckpt", "st"), size="1 MB", make=other_stages, bar=0),
    Fault(what="an older shard, of another step", formats=("ckpt", "st"), size="small", tally=other_steps, bar=0),
    Fault(
        what="an earlier run's shard, of the same step",
        formats=("ckpt", "st"),
        size="1 MB",
        make=same_step_of_another_run,
    ),
)

Task = tuple[int, str, str, tuple[int, int, int] | None]
"""Row, format, kind of scene, and the range of its bits (from, to, every n-th); None: all results of `make`."""


def tasks(*, every: int) -> Iterator[Task]:
    """Cut the work into pieces of some seconds."""
    for row, fault in enumerate(FAULTS):
        for fmt in fault.formats:
            for kind in MEANS:
                if fault.make is not None or fault.tally is not None:
                    yield row, fmt, kind, None
                    continue
                bits = len(bits_of(fault, scene(fmt, fault.size, kind)))
                stride = max(every, odd(bits // MOST_BESIDE_REPLICAS)) if kind == REPLICAS else every
                step = BITS_A_TASK * stride // (20 if kind == REPLICAS else 1)
                yield from (
                    (row, fmt, kind, (begin, min(begin + step, bits), stride)) for begin in range(0, bits, step)
                )


def odd(number: int) -> int:
    """Return the next odd number: with odd steps, every bit of a byte is covered."""
    return number | 1


def bits_of(fault: Fault, one: Scene) -> Sequence[int]:
    """The bits that are flipped."""
    return broken.header_bits(one) if fault.header_only else range(8 * len(one.data))


def done(task: Task) -> tuple[int, Tally]:
    """Do one piece of the work, in a separate process."""
    row, fmt, kind, part = task
    fault = FAULTS[row]
    if fault.tally is not None:
        return row, fault.tally(fmt, kind)
    one = scene(fmt, fault.size, kind)
    asked = MEANS[kind](one)
    if fault.make is not None:
        return row, broken.count(fault.make(one), asked)
    begin, end, every = part or (0, 0, 1)
    return row, broken.count_flips(one, bits_of(fault, one)[begin:end:every], asked)


def written_by_mindspore(every: int) -> Tally:
    """Flip every single bit of the files that MindSpore itself wrote with `crc_check`."""
    tally = Tally()
    for path in sorted((FIXTURES / "crc").glob("*.*")):
        if path.suffix in {".ckpt", ".safetensors"}:
            tally.add(broken.count_loose_flips(path.name, path.read_bytes(), every=every))
    return tally


# --- the table -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Outcome:
    """The lines of the table, and the missed limits."""

    lines: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)


def share(tally: Tally, column: str) -> str:
    """Format the share that was detected; never '100 %' if anything was missed."""
    tried, found = tally.tried[column], tally.found[column]
    if not tried:
        return "–"
    if found == tried:
        return "100 %"
    return f"{min(99.99, int(10000 * found / tried) / 100):.4g} %"


def row_of(fault: Fault, tally: Tally, outcome: Outcome) -> None:
    """Write one line, and compare it with its limits."""
    suffixes = " and ".join(FORMATS[fmt][1] for fmt in fault.formats)
    name = f"{fault.what} ({fault.size} {suffixes})" if fault.size != "small" else f"{fault.what} (small {suffixes})"
    misses = tally.misses.get(SIBLINGS, Counter())
    places = ", ".join(f"{place}: {times}" for place, times in sorted(misses.items(), key=lambda item: -item[1])[:3])
    columns = " | ".join(share(tally, column) for column in (ALONE, SIBLINGS, REPLICAS, CRC, MANIFEST))
    outcome.lines.append(f"| {name} | {tally.tried[SIBLINGS]:,} | {columns} | {places or '–'} |")
    if tally.found[MANIFEST] != tally.tried[MANIFEST]:
        outcome.missed.append(f"{name}: with a manifest {share(tally, MANIFEST)}, not 100 %")
    if tally.found[CRC] != tally.tried[CRC] and "shard" not in fault.what:  # a file in the wrong place is intact
        outcome.missed.append(f"{name}: with CRC {share(tally, CRC)}, not 100 % ({dict(tally.misses[CRC])})")
    for column, ranks in ((REPLICAS, "three"), (PAIR, "two")):
        if tally.found[column] != tally.tried[column]:
            outcome.missed.append(
                f"{name}: with {ranks} replicas {share(tally, column)} ({dict(tally.misses[column])})"
            )
    unseen = 1 - tally.found[SIBLINGS] / tally.tried[SIBLINGS]
    if fault.bar is not None and unseen > fault.bar:
        outcome.missed.append(f"{name}: {unseen:.3%} undetected with siblings, the bar is {fault.bar:.1%}")
    if fault.make is None and fault.tally is None and set(misses) - {"tensor data"}:
        outcome.missed.append(f"{name}: misses outside tensor data: {dict(misses)}")


HEAD = (
    (
        "| fault | tried | header alone | with siblings | with replicas (no checksum) | with CRC | with manifest "
        "| missed with siblings |"
    ),
    "|---|---|---|---|---|---|---|---|",
)


def measured(*, every: int, trees: int) -> Outcome:
    """Damage each file in every way, and check the intact ones, too."""
    tallies = [Tally() for _ in FAULTS]
    work = list(tasks(every=every))
    # Forked, so that scenes are built once; each process has its own copy afterwards.
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        for row, tally in pool.imap_unordered(done, work):
            tallies[row].add(tally)
    outcome = Outcome(lines=list(HEAD))
    pairs = Tally()
    for fault, tally in zip(FAULTS, tallies, strict=True):
        row_of(fault, tally, outcome)
        pairs.add(tally)
    alone = written_by_mindspore(every)
    outcome.lines.append(
        f"| one bit flipped in files that MindSpore wrote with `crc_check` | {alone.tried[CRC]:,} | "
        f"{share(alone, ALONE)} | – | – | {share(alone, CRC)} | {share(alone, MANIFEST)} | – |"
    )
    if alone.found[CRC] != alone.tried[CRC]:
        outcome.missed.append(f"MindSpore's own files: CRC {share(alone, CRC)} {dict(alone.misses[CRC])}")
    alarms = list(false_alarms(trees))
    outcome.lines += [
        "",
        "An earlier run's shard is an intact file with a valid CRC: only a manifest or replicas show that it belongs",
        "to another run. Without a checksum, every missed fault is in tensor data.",
        "",
        "With replicas: three ranks have the same tensors, every byte is read, and the damaged file is named. Bit",
        f"flips are sampled there, about {MOST_BESIDE_REPLICAS:,} per row and format. If only two ranks have",
        f"the tensors, {share(pairs, PAIR)} of these {pairs.tried[PAIR]:,} faults are noticed.",
        "",
        f"False alarms: {len(alarms)} in {trees:,} generated healthy trees and all of `fixtures/`, at each level.",
    ]
    outcome.missed += alarms
    return outcome


def false_alarms(trees: int) -> Iterator[str]:
    """Verify intact trees, at every level."""
    real = [path for path in sorted(FIXTURES.iterdir()) if (path / "output").is_dir()]
    for folder in real:
        yield from (f"{folder.name}: {finding}" for level in Level for finding in healthy.alarms(folder, level))
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as place:  # noqa: S108, PTH112
        for seed in range(trees):
            folder, how = healthy.healthy_tree(Path(place) / str(seed), seed)
            yield from (f"{how}: {finding}" for level in Level for finding in healthy.alarms(folder, level))


def write_into(page: Path, lines: Sequence[str]) -> bool:
    """Replace the text between the markers; return whether the page has them."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        return False
    page.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}", encoding="utf-8")
    return True


def main() -> int:
    """Print the table; exit with 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="every 50th bit and 50 trees; the page stays as it is")
    quick = parser.parse_args().quick
    began = time.monotonic()
    outcome = measured(every=50 if quick else 1, trees=50 if quick else HEALTHY_TREES)
    print("\n".join(outcome.lines))
    print(f"\n{time.monotonic() - began:.0f} s")
    if not quick and not write_into(PAGE, outcome.lines):
        print(f"{PAGE} has no markers for the table")
    for missed in outcome.missed:
        print(f"MISSED: {missed}")
    return 1 if outcome.missed else 0


if __name__ == "__main__":
    sys.exit(main())
