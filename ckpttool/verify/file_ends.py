"""What the ends of files show beside their siblings: a lost checksum, a lost page, another rank's page."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from ckpttool.domain.finding import Code, Finding, Severity
from ckpttool.domain.verdict import ShardReport
from ckpttool.verify.bench import JURY, Bench, Pair

_SLICES_AMONG = 10
"""Ranks of which at most one may end like another where they hold slices."""


def stripped_checksums(bench: Bench) -> Iterator[Finding]:
    """Find a checksum that was stripped: a cut file may look as if it never had one."""
    carriers = [report for report in bench.reports if report.embedded_checksum]
    before = [pair for pair in bench.pairs if pair.then.embedded_checksum and pair.witness.same_run]
    # Several shards, none with a checksum, all with one before: it was switched off.
    switched_off = not carriers and len(before) == len(bench.reports) > 1
    bereft = {id(pair.now): pair.then.path for pair in before if not switched_off}
    for report in bench.reports:
        if report.embedded_checksum or not (carriers or id(report) in bereft):
            continue
        who = f"{len(carriers)} of {len(bench.reports)} shards do" if carriers else f"{bereft[id(report)]} does"
        yield Finding(
            code=Code.CHECKSUM_MISSING,
            severity=Severity.SUSPECT,
            message=f"carries no checksum of its own, but {who}: its end may have been cut off",
            path=report.path,
            remedy="compare its size with its siblings', or resume from another checkpoint",
        )


def zero_tails(bench: Bench) -> Iterator[Finding]:
    """Find a last page of tensor data that is zero where it should not be.

    It often is by right: moments of a layer that is not trained, rows of an embedding for tokens that never came.
    Those are zero from the first step on. So a page that was not zero *before* and is zero now was lost. With
    no earlier step to ask, replicas speak; with nobody to ask, it stays a note.
    """
    for report in bench.reports:
        if not report.zero_tail:
            continue
        alike = [(one, witness) for one, witness in bench.others(report) if one.schema_hash == report.schema_hash]
        if not any(one.zero_tail for one, _ in alike):
            earlier = [one for one, witness in alike if witness.older]
            yield _zero_tail(report, against=earlier or _replicas(bench, report))


def _replicas(bench: Bench, report: ShardReport) -> Sequence[ShardReport]:
    """Return the other ranks with the same tensors where they have one and the same last page; else none.

    Slices of a sharded model have pages of their own, and only one of them holds the rows that nobody uses.
    """
    peers = [one for one in bench.reports if one is not report and one.schema_hash == report.schema_hash]
    pages = {peer.tail_hash for peer in peers}
    return peers if len(peers) >= JURY - 1 and len(pages) == 1 and not peers[0].zero_tail else ()


def _zero_tail(report: ShardReport, *, against: Sequence[ShardReport]) -> Finding:
    if not against:
        return Finding(
            code=Code.ZERO_TAIL,
            severity=Severity.NOTE,
            message="the last page of tensor data is zero, and there is nothing to compare it with; it may be meant so",
            path=report.path,
        )
    return Finding(
        code=Code.ZERO_TAIL,
        severity=Severity.SUSPECT,
        message=f"the last page of tensor data is zero, and in {against[0].path} it is not: as after a power cut",
        path=report.path,
        remedy="resume from another checkpoint, or prove it with a manifest: ckpttool verify --level checksum",
    )


def copied(bench: Bench) -> Iterator[Finding]:
    """Find one rank's file in another rank's place, where their tensors have the same names and shapes.

    Ranks that held different last pages before hold different slices, and slices never become equal. (The other
    way round is no sign: slices that nobody has trained yet are equal, and part later.)
    """
    # Two ranks are compared at the same other step: every step has pages of its own, in replicas too.
    alike: dict[tuple[int, str | None, str | None], list[Pair]] = defaultdict(list)
    for pair in bench.pairs:
        if pair.now.tail_hash is not None and not pair.now.zero_tail and pair.witness.same_run:
            alike[id(pair.witness), pair.now.schema_hash, pair.now.tail_hash].append(pair)
    for (witness, schema, _), group in alike.items():
        then = Counter(pair.then.tail_hash for pair in group)
        if len(then) > 1:
            known = (pair for pair in bench.pairs if id(pair.witness) == witness)
            everyone = Counter(pair.then.tail_hash for pair in known if pair.now.schema_hash == schema)
            for pair, like in _odd_ones(group, then):
                if (severity := _certainty(bench, pair, like, everyone)) is not None:
                    yield _copy(pair.now, like.now, severity)


def _certainty(bench: Bench, pair: Pair, like: Pair, everyone: Counter[str | None]) -> Severity | None:
    """Weigh that one is a copy of another: they end alike now, and did not at another step.

    They may as well be replicas, one of which was damaged at that step. It was not where both pages were those of
    other ranks too, or where nearly every rank had its own. Else a second witness must know the two as different.
    """
    are_slices = everyone.total() >= JURY and (everyone.total() - len(everyone)) * _SLICES_AMONG <= everyone.total()
    if are_slices or min(everyone[pair.then.tail_hash], everyone[like.then.tail_hash]) > 1:
        return Severity.SUSPECT
    pages = {id(witness): [other.tail_hash] for other, witness in bench.others(pair.now)}
    for other, witness in bench.others(like.now):
        pages.get(id(witness), []).append(other.tail_hash)
    pairs = [both for both in pages.values() if len(both) > 1]
    if len(pairs) == 1:
        return Severity.NOTE
    return Severity.SUSPECT if all(one != other for one, other in pairs) else None


def _odd_ones(group: Sequence[Pair], then: Counter[str | None]) -> Iterator[tuple[Pair, Pair]]:
    """Yield those that did not belong to the group, each with one that it is like now."""
    usual, times = then.most_common(1)[0]
    for pair in group:
        # Without a majority nobody can tell which is the copy: then all are named.
        if 2 * times <= len(group) or pair.then.tail_hash != usual:
            like = next(one for one in group if one.then.tail_hash != pair.then.tail_hash)
            yield pair, like


def _copy(report: ShardReport, like: ShardReport, severity: Severity) -> Finding:
    return Finding(
        code=Code.SCHEMA_DIFFERS,
        severity=severity,
        message=f"ends like {like.path}, and at another step these two ranks differ: one is a copy of the other",
        path=report.path,
        remedy="find the rank's own file on its disk, or resume from another checkpoint",
    )
