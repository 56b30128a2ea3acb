"""Every row of the truth table about copies is a save: the code concludes from it what the row says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pytest

from ckpttool.core.domain.finding import Code, Finding, Severity, damage, note
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.replicas import RecordedSlices, TensorDigests
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.domain.verdict import ShardReport
from ckpttool.core.verify.copies import tensors_of
from ckpttool.replicas.comparing import weight
from ckpttool.replicas.comparing.compare import Context, SavedTensors, compare_replicas
from ckpttool.replicas.model import HealOrder, SavedShards, Target
from ckpttool.replicas.rules import find_donors
from tests.replicas.comparing.held import NAMES, changed, held
from tests.support.verifying import report

NOW = 3
"""The step of the checkpoint that is judged: those before it are older, and the one after it is later."""

TENSORS = {"one": NAMES[5:6], "most": NAMES[:8]}
"""In which tensors the copies differ."""


class Row(NamedTuple):
    """A row of the table, as it is written."""

    copies: str
    tensors: str
    source: str
    evidence: str
    finding: str
    weight: str
    blamed: str
    donor: str


def rows_of(text: str) -> list[Row]:
    """Return the rows between the second and the third line of the table's frame."""
    _, _, body, _ = text.split("====\n", 3)
    bounds = [(at, at + len(line)) for at, line in _columns(text)]
    return [Row(*(line[begin:end].strip() for begin, end in bounds)) for line in body.splitlines() if line.strip("= ")]


def _columns(text: str) -> list[tuple[int, str]]:
    frame = next(line for line in text.splitlines() if line.startswith("===="))
    columns = []
    at = 0
    for marks in frame.split(" "):
        columns.append((at, marks + " "))
        at += len(marks) + 1
    return columns


class Save:
    """The checkpoint that a row describes, with all that is known beside it."""

    def __init__(self, row: Row) -> None:
        self.copies = row.copies.split()
        self.ranks = [Rank(rank) for rank, content in enumerate(self.copies)]
        self.names = TENSORS[row.tensors]
        self.evidence = [tuple(words.split()) for words in row.evidence.split(", ")]
        known = {"record": 0, "nothing": 0, "1 save": 1, "2 saves": 2}[row.source]
        self.others = {NOW - age: held(self.ranks, NOW - age) for age in range(1, known + 1)}
        if self.all_of("later"):
            self.others[NOW + 1] = self.with_content(NOW + 1)
        alike = {name: dict.fromkeys(self.ranks, 0) for name in NAMES}
        self.record = RecordedSlices(source="record", slices=alike) if row.source == "record" else None

    def all_of(self, word: str) -> list[Rank]:
        """Return the ranks of which the row says a word."""
        return [Rank(int(words[1])) for words in self.evidence if words[0] == word]

    def with_content(self, step: int) -> dict[Rank, TensorDigests]:
        """Return what the ranks that are there hold at a step: A is what a replica should hold."""
        there = [rank for rank in self.ranks if self.copies[rank] != "."]
        digests = held(there, step)
        for rank in there:
            if self.copies[rank] != "A":
                digests[rank] = changed(digests[rank], *self.names, by=(step, self.copies[rank]))
        for rank in self.all_of("older"):
            digests[rank] = self.others[NOW - 1][rank]
        return digests

    def report_of(self, rank: Rank, digests: TensorDigests) -> ShardReport:
        findings: list[Finding] = []
        if rank in self.all_of("jump"):
            findings.append(note(Code.NORM_JUMP, "the norm jumped"))
        if rank in self.all_of("damaged"):
            findings.append(damage(Code.NONFINITE_VALUES, "a NaN"))
        whole = report(rank, tensors=len(NAMES), matched=rank in (*self.all_of("checksum"), *self.all_of("seal")))
        return replace(whole, path=path_of(rank), stamp=None, tensor_digests=digests, findings=tuple(findings))

    def reports(self) -> list[ShardReport]:
        """Return what a check of every byte finds."""
        return [self.report_of(rank, digests) for rank, digests in self.with_content(NOW).items()]

    def findings(self) -> tuple[Finding, ...]:
        """Compare the copies."""
        saves = [
            SavedTensors(
                name=f"step-{step}",
                step=Step(step),
                older=step < NOW,
                same_run=True,
                shards=tensors_of(plain(digests).values()),
            )
            for step, digests in self.others.items()
        ]
        healed = {path_of(rank): path_of(Rank(0)) for rank in self.all_of("healed")}
        sealed = [path_of(rank) for rank in self.all_of("seal")]
        context = Context(recorded=self.record, sealed=sealed, rebuilt=healed, ranks=self.ranks)
        return compare_replicas(self.reports(), saves, context).findings

    def donor(self, findings: tuple[Finding, ...]) -> str:
        """Say from which rank the first missing or damaged shard is rebuilt."""
        reports = {
            (report.rank, report.role): replace(
                report,
                findings=(*report.findings, *(finding for finding in findings if finding.path == report.path)),
            )
            for report in self.reports()
            if report.rank is not None
        }
        damaged = [
            Target(rank=rank, role=ShardRole.FULL, path=path_of(rank), is_missing=place not in reports, findings=())
            for rank in self.ranks
            for place in [(rank, ShardRole.FULL)]
            if place not in reports or any(one.severity is Severity.DAMAGE for one in reports[place].findings)
        ]
        saves = [
            SavedShards(
                name=f"step-{step}",
                step=Step(step),
                same_run=True,
                shards={(rank, ShardRole.FULL): report for rank, report in plain(digests).items()},
            )
            for step, digests in self.others.items()
        ]
        healings = find_donors(damaged, reports, saves, self.record, HealOrder())
        if not healings:
            return "-"
        return "none" if healings[0].donor is None else str(healings[0].donor.rank)


def path_of(rank: Rank) -> str:
    return f"rank_{rank}"


def plain(digests: Mapping[Rank, TensorDigests]) -> dict[Rank, ShardReport]:
    return {
        rank: replace(report(rank, tensors=len(NAMES)), stamp=None, tensor_digests=tensors)
        for rank, tensors in digests.items()
    }


def concluded(row: Row) -> tuple[str, ...]:
    """Return what the code concludes of the save that a row describes."""
    save = Save(row)
    findings = save.findings()
    codes = {finding.code.value for finding in findings}
    weights = {finding.severity.name.lower() for finding in findings}
    ranks = sorted({rank for finding in findings for rank in finding.ranks or (int((finding.path or "_0")[5:]),)})
    words = (" ".join(sorted(codes)), " ".join(sorted(weights)), " ".join(map(str, ranks)))
    return (*(text or "-" for text in words), save.donor(findings))


ROWS = rows_of(weight.__doc__ or "")


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_code_concludes_what_the_row_says(row: Row) -> None:
    assert concluded(row) == (row.finding, row.weight, row.blamed, row.donor)
