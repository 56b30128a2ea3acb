"""What the ends of files show beside their siblings: a lost checksum, a lost page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpttool.domain.finding import Code, Finding, note, suspect
from ckpttool.domain.verdict import ShardReport
from ckpttool.verify.siblings.pairs import MIN_PEERS, Peers


def stripped_checksums(peers: Peers) -> Iterator[Finding]:
    """Find a checksum that was stripped: a cut file may look as if it never had one."""
    carriers = [report for report in peers.reports if report.embedded_checksum]
    before = [pair for pair in peers.pairs if pair.then.embedded_checksum and pair.sibling.same_run]
    # Several shards, none with a checksum, all with one before: it was switched off.
    switched_off = not carriers and len(before) == len(peers.reports) > 1
    lost = {pair.now.path: pair.then.path for pair in before if not switched_off}
    for report in peers.reports:
        if report.embedded_checksum or not (carriers or report.path in lost):
            continue
        who = f"{len(carriers)} of {len(peers.reports)} shards do" if carriers else f"{lost[report.path]} does"
        yield suspect(
            Code.CHECKSUM_MISSING,
            f"carries no checksum of its own, but {who}: its end may have been cut off",
            path=report.path,
            remedy="compare its size with its siblings', or resume from another checkpoint",
        )


def zero_tails(peers: Peers) -> Iterator[Finding]:
    """Find a last page of tensor data that is zero where it should not be.

    It often is by right: moments of a layer that is not trained, rows of an embedding for tokens that never came.
    Those are zero from the first step on. So a page that was not zero *before* and is zero now was lost. With
    no earlier step to compare with, replicas tell; without any, it stays a note.
    """
    for report in peers.reports:
        if not report.zero_tail:
            continue
        alike = [(then, sibling) for then, sibling in peers.others(report) if then.schema_hash == report.schema_hash]
        if not any(then.zero_tail for then, _ in alike):
            earlier = [then for then, sibling in alike if sibling.older]
            yield _zero_tail(report, against=earlier or _replicas(peers, report))


def _replicas(peers: Peers, report: ShardReport) -> Sequence[ShardReport]:
    """Return the other ranks with the same tensors where they have one and the same last page; else none.

    Slices of a sharded model have pages of their own, and only one of them holds the rows that nobody uses.
    """
    others = [peer for peer in peers.reports if peer is not report and peer.schema_hash == report.schema_hash]
    pages = {peer.tail_hash for peer in others}
    return others if len(others) >= MIN_PEERS - 1 and len(pages) == 1 and not others[0].zero_tail else ()


def _zero_tail(report: ShardReport, *, against: Sequence[ShardReport]) -> Finding:
    if not against:
        return note(
            Code.ZERO_TAIL,
            "the last page of tensor data is zero, and there is nothing to compare it with; it may be meant so",
            path=report.path,
        )
    return suspect(
        Code.ZERO_TAIL,
        f"the last page of tensor data is zero, and in {against[0].path} it is not: as after a power cut",
        path=report.path,
        remedy="resume from another checkpoint, or prove it with a manifest: ckpttool verify --level checksum",
    )
