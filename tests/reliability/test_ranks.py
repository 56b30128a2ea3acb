"""Ten thousand ranks, hundreds of faults: each is named, and of nothing else more than a note is said."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ckpttool.core.errors import ExitCode
from tests.reliability.big_tree import EPOCHS, STAGES, BigTree, Planted, Spot
from tests.reliability.big_tree_faults import CKPT_ONLY, IN_LISTINGS, IN_SHARDS, SEALED_ONLY, Fault, companions
from tests.reliability.figures import Figure, Programme
from tests.support.trees import Fmt

OLDER, NEWER = EPOCHS

# A process of its own in between: what a child of ours used most would count our own memory at the moment of the fork.
_MEASURE = """
import os, sys, time
began = time.monotonic()
_, status, usage = os.wait4(os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:]), 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss, time.monotonic() - began, file=sys.stderr)
"""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a command said, and what it took."""

    code: int
    mebibytes: float
    seconds: float
    document: Mapping[str, Any]

    @property
    def findings(self) -> list[Mapping[str, Any]]:
        """What is said of the tree and of every checkpoint, or why one is not chosen."""
        listed = [one.get("findings", ()) for one in self.document.get("checkpoints", ())]
        listed += [one["reasons"] for one in self.document.get("rejected", ())]
        return [*self.document.get("findings", ()), *(finding for findings in listed for finding in findings)]

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s and {self.mebibytes:.0f} MiB"


def ran(*argv: str, folder: Path) -> Ran:
    """Run a command as a program, and measure it."""
    said = folder / "said.json"
    command = [sys.executable, "-m", "ckpttool", *argv, "--format", "json", "-q"]
    with said.open("wb") as out:
        measured = [sys.executable, "-S", "-c", _MEASURE, *command]
        done = subprocess.run(measured, stdout=out, stderr=subprocess.PIPE, text=True, check=True, timeout=1200)
    *errors, last = done.stderr.splitlines()
    assert not errors, errors
    code, kibibytes, seconds = last.split()
    document = json.loads(said.read_bytes())
    return Ran(code=int(code), mebibytes=int(kibibytes) / 1024, seconds=float(seconds), document=document)


def plant(
    tree: BigTree, kinds: Mapping[str, Fault], count: int, chance: Random, epochs: Sequence[int] = EPOCHS
) -> list[tuple[str, Planted]]:
    """Plant that many faults, of every kind as many, each on ranks of its own."""
    free = list(range(tree.ranks - 1))  # without the last rank's folder nobody knows how many there were
    chance.shuffle(free)
    # A tail of zeros needs a page; and of a copy the last page tells, where it holds what its rank has for itself.
    pools = {
        "zero tail": [rank for rank in free if rank % STAGES == STAGES - 1],
        "another rank's": [rank for rank in free if rank % STAGES != STAGES - 1],
    }
    used: set[int] = set()
    plan = []
    for number in range(count):
        kind = list(kinds)[number % len(kinds)]
        rank = next(rank for rank in pools.get(kind, free) if used.isdisjoint({rank, *companions(tree, rank)}))
        used |= {rank, *companions(tree, rank)}
        epoch = epochs[(number + number // len(kinds)) % len(epochs)]
        plan.append((kind, kinds[kind](Spot(tree=tree, rank=rank, epoch=epoch, chance=chance))))
    return plan


def not_named(plan: Sequence[tuple[str, Planted]], findings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say what was planted and is not told by a finding of the right code and path."""
    said = {(path, finding["code"]) for finding in findings for path in _paths(finding)}
    for kind, planted in plan:
        for path in planted.paths:
            if not any((path, code) in said for code in planted.codes):
                yield f"{kind}: {path} is not named as {' or '.join(sorted(planted.codes))}"


def _paths(finding: Mapping[str, Any]) -> Iterator[str]:
    """Yield every path that a finding is about: where it tells of several ranks, the first one's is spelled."""
    yield str(finding["path"])
    first, *others = finding["ranks"] or [None]
    for rank in others:
        yield re.sub(rf"rank_{first}(?![0-9])", f"rank_{rank}", str(finding["path"]))


def invented(plan: Sequence[tuple[str, Planted]], findings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say what weighs more than a note and was not planted. Notes are not judged."""
    planted = {path for _, one in plan for path in (*one.paths, *one.also)}
    for finding in findings:
        if finding["severity"] != "note":
            for path in {*_paths(finding)} - planted:
                yield f"invented: {finding['severity']} {finding['code']} {path}: {finding['message']}"


@pytest.mark.parametrize(("fmt", "sealed"), [("ckpt", False), ("safetensors", False), ("ckpt", True)])
def test_every_fault_planted_in_thousands_of_ranks_is_named_and_of_no_other_more_than_a_note_is_said(
    fmt: Fmt, sealed: bool, tmp_path: Path, programme: Programme
) -> None:
    started = time.monotonic()
    ranks, count = (10_000, 500) if programme.nightly else (1_000, 50)
    tree = BigTree(root=tmp_path / "output/checkpoint", ranks=ranks, fmt=fmt)
    tree.build()
    verify = ("verify", str(tree.root), "--checkpoint", "all", *(("--level", "checksum", "--no-ledger") * sealed))
    kinds = {**IN_SHARDS, **(CKPT_ONLY if fmt == "ckpt" else {})}
    if sealed:
        assert ran("seal", str(tree.root), "--checkpoint", "all", folder=tmp_path).code == 0
        kinds |= SEALED_ONLY
    for command in (("scan", str(tree.root)), verify):
        healthy = ran(*command, folder=tmp_path)
        assert (healthy.code, list(healthy.findings)) == (0, [])
    plan = plant(tree, {**kinds, **IN_LISTINGS}, count, Random(10))  # noqa: S311  the same faults in every run
    scanned, verified = ran("scan", str(tree.root), folder=tmp_path), ran(*verify, folder=tmp_path)
    wrong = [
        *not_named([one for one in plan if one[0] in kinds], verified.findings),
        *not_named([one for one in plan if one[0] in IN_LISTINGS], scanned.findings),
        *invented(plan, [*scanned.findings, *verified.findings]),
    ]
    assert not wrong, f"{len(wrong)} wrong: {wrong[:5]}"
    assert (scanned.code, verified.code) == (ExitCode.UNSAFE, ExitCode.UNSAFE)  # a FIFO, a pickle
    what = f"sealed `.{fmt}`, every byte" if sealed else f"`.{fmt}`"
    cores = len(os.sched_getaffinity(0))
    programme.report(
        "ranks",
        Figure(
            tried=len(plan),
            unit="faults",
            seconds=round(time.monotonic() - started, 1),
            note=f"{what}, {2 * ranks:,} shards: `verify` {verified}, `scan` {scanned} ({cores} cores, page cache)"
            + ("; notes on other files are not judged" if sealed else ""),
        ),
    )


NEWER_ONLY = {
    kind: fault for kind, fault in IN_SHARDS.items() if kind not in {"missing", "rank missing", "another stage's"}
}
"""Faults of one save for which its headers must be read. Of two saves whose tensors differ nobody can tell which one is
right: then neither is taken."""


@pytest.mark.parametrize("fmt", ["ckpt", "safetensors"])
def test_resolve_takes_the_older_save_of_thousands_of_ranks_where_only_the_newer_one_has_faults(
    fmt: Fmt, tmp_path: Path, programme: Programme
) -> None:
    started = time.monotonic()
    ranks, count = (10_000, 500) if programme.nightly else (1_000, 50)
    tree = BigTree(root=tmp_path / "output/checkpoint", ranks=ranks, fmt=fmt)
    tree.build()
    resolve = ("resolve", str(tree.root))
    before = ran(*resolve, folder=tmp_path)
    assert (before.code, before.document["resume"]["name"]) == (ExitCode.OK, f"{NEWER}_2")
    plan = plant(tree, NEWER_ONLY, count, Random(11), epochs=(NEWER,))  # noqa: S311  the same faults in every run
    resolved = ran(*resolve, folder=tmp_path)
    assert resolved.document["resume"], resolved.document["rejected"][-1]
    assert (resolved.code, resolved.document["resume"]["name"]) == (ExitCode.OK, f"{OLDER}_2")
    assert [one["name"] for one in resolved.document["rejected"]] == [f"{NEWER}_2"]
    wrong = [*not_named(plan, resolved.findings), *invented(plan, resolved.findings)]
    assert not wrong, f"{len(wrong)} wrong: {wrong[:5]}"
    note = f"`.{fmt}`, faults in the newer save alone: `resolve` takes the older one, {resolved}"
    seconds = round(time.monotonic() - started, 1)
    programme.report("ranks", Figure(tried=len(plan), unit="faults", seconds=seconds, note=note))


def test_a_fault_that_is_not_named_and_one_that_was_not_planted_are_seen(tmp_path: Path) -> None:
    tree = BigTree(root=tmp_path / "output/checkpoint", ranks=40, fmt="safetensors")
    tree.build()
    plan = plant(tree, IN_SHARDS, len(IN_SHARDS) // 3, Random(1))  # noqa: S311  as above
    findings = ran("verify", str(tree.root), "--checkpoint", "all", folder=tmp_path).findings
    assert not [*not_named(plan, findings), *invented(plan, findings)]
    for kind, planted in plan:
        others = [one for one in plan if one[0] != kind]
        about_it = [finding for finding in findings if finding["path"] in planted.paths]
        assert list(invented(others, about_it))
        silent = [finding for finding in findings if finding not in about_it]
        assert list(not_named(plan, silent)) == list(not_named([(kind, planted)], []))
