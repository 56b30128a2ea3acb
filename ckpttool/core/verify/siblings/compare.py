"""What only comparison shows: the same rank at another step, other ranks at this one.

A difference is no damage by itself: trainings are reconfigured, layers frozen, checksums switched off. So each rule
asks who else differs in the same way. One shard that alone differs from all it should equal is what damage looks like.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import OWN_FILE, Code, Finding, Severity, damage, note, suspect
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.shard import FormatName, ShardRole
from ckpttool.core.domain.verdict import ShardReport
from ckpttool.core.verify.siblings.neighbours import (
    COMPARED,
    MIN_PEERS,
    Pair,
    Peers,
    Sibling,
    are_all_paired,
    are_slices,
    lacks,
)

if TYPE_CHECKING:
    from ckpttool.core.domain.replicas import TensorDigests


def compare_in_turn(
    reports: Sequence[ShardReport],
    siblings: Iterable[Sibling],
    by_tensors: Collection[str],
    *,
    is_complete: bool,
    sealed: Collection[str] = (),
) -> list[Finding]:
    """As `compare_siblings`: with a second sibling only where the first leaves something open, and so on."""
    if not any(report.role in COMPARED and report.schema_hash is not None for report in reports):
        return []
    compared: list[Sibling] = []
    findings = compare_siblings(reports, compared, by_tensors, is_complete=is_complete, sealed=sealed)
    for sibling in siblings:
        compared.append(sibling)
        findings = compare_siblings(reports, compared, by_tensors, is_complete=is_complete, sealed=sealed)
        if not findings and are_all_paired(reports, compared):
            break
    return findings


def compare_siblings(
    reports: Sequence[ShardReport],
    siblings: Sequence[Sibling],
    by_tensors: Collection[str] = (),
    *,
    is_complete: bool = True,
    sealed: Collection[str] = (),
) -> list[Finding]:
    """Find shards that differ from what their siblings lead us to expect.

    Args:
        reports: All shards of the checkpoint.
        siblings: Headers of other checkpoints of the same training, best first; may be empty.
        by_tensors: Paths of those that were compared tensor by tensor, so that nothing need be guessed from last pages.
        is_complete: Whether no rank is missing: what one of the others holds alone may be what the missing ones held.
        sealed: Paths of those whose header is the one that a manifest recorded: its tensors are beyond dispute.
    """
    findings: list[Finding] = []
    for role in COMPARED:
        sound = [report for report in reports if report.role is role and report.schema_hash is not None]
        if sound:
            peers = Peers(sound, siblings)
            schemas = [*_changed_schemas(peers), *(_outliers(peers) if is_complete else ())]
            findings += [finding for finding in schemas if finding.path not in sealed]
            for rule in (_changed_metadata, _stripped_checksums, _zero_tails):
                findings += rule(peers)
            findings += _copied(peers, by_tensors)
    reported = {finding.path for finding in findings if finding.severity is not Severity.NOTE}
    findings += (finding for finding in _of_another_kind(reports) if finding.path not in {*reported, *sealed})
    return findings


def _of_another_kind(reports: Sequence[ShardReport]) -> Iterator[Finding]:
    """Find an optimizer's file that holds a model's tensors, or the other way round: a copy under another name.

    Few of its own kind hold them, and more of the other's. If all of a kind hold what the other kind does, it is how
    they are saved.
    """
    kinds = {
        role: [
            report for report in reports if report.role is role and report.schema_hash is not None and report.tensors
        ]
        for role in (ShardRole.MODEL, ShardRole.OPTIMIZER)
    }
    counts = {role: Counter(report.schema_hash for report in kind) for role, kind in kinds.items()}
    for role, peer_role in ((ShardRole.MODEL, ShardRole.OPTIMIZER), (ShardRole.OPTIMIZER, ShardRole.MODEL)):
        mine, theirs = counts[role], counts[peer_role]
        if mine.keys() <= theirs.keys():
            continue
        for report in kinds[role]:
            matching = theirs[report.schema_hash]
            if matching * mine.total() > mine[report.schema_hash] * theirs.total():
                twins = [candidate for candidate in kinds[peer_role] if candidate.schema_hash == report.schema_hash]
                twin = next((peer for peer in twins if peer.rank == report.rank), twins[0])
                yield damage(
                    Code.SCHEMA_DIFFERS,
                    f"holds what {twin.path} holds, which is of another kind: a copy under another name",
                    path=report.path,
                    remedy=OWN_FILE,
                )


def _changed_schemas(peers: Peers) -> Iterator[Finding]:
    """Compare each rank's tensors with its own at the other step."""
    for pair in peers.pairs:
        schema = pair.current.schema_hash
        if schema == pair.past.schema_hash:
            continue
        group = peers.by_past_schema[pair.past.schema_hash]
        followed = sum(peer.current.schema_hash == schema for peer in group)
        if len(group) > 1 and 2 * followed > len(group):  # the training changed, not the disk
            continue
        # The sibling may be the damaged one. Two files do not come by the same tensors by accident.
        peer_schemas = [peer.schema_hash for peer, sibling in peers.others(pair.current) if sibling is not pair.sibling]
        if schema in peer_schemas:
            continue
        support = [peer for peer in group if peer.current.schema_hash == pair.past.schema_hash]
        unchanged = sum(
            not _is_copied(pair.past, peer.past, at_another=(pair.current, peer.current)) for peer in support
        )
        finding = _schema_differs(pair.current, pair.past, unchanged=unchanged, same_run=pair.sibling.same_run)
        is_alone = not peers.is_outvoted(pair) and pair.past.path not in pair.sibling.sealed
        may_be_either = not unchanged and (bool(support) or pair.sibling.same_run)
        is_richer = _is_richer(peers, pair.current, pair.past)
        if is_alone and (is_richer or _is_sibling_odd(peers, pair)):
            finding = _noted(finding)
        elif is_richer:
            finding = replace(finding, severity=min(finding.severity, Severity.SUSPECT))
        elif is_alone and may_be_either and pair.current.tensors == pair.past.tensors:
            finding = _tied(finding, pair)
        yield finding


def without_sample(
    reports: Sequence[ShardReport], siblings: Iterable[Sibling], later: Iterable[Sibling], *, sealed: Collection[str]
) -> Iterator[Finding]:
    """Doubt what no other checkpoint bears out, if all of a later start contradict it and each other.

    Args:
        reports: All shards of the checkpoint.
        siblings: Of the same start and the one before, with which it was compared if they could be.
        later: Of the start after it; as soon as two of these agree, they hold what was changed on purpose.
        sealed: Paths of those whose header is the one that a manifest recorded.
    """
    alone = [
        report for report in reports if report.role in COMPARED and report.schema_hash and report.path not in sealed
    ]
    if not alone:
        return  # before a sibling is read
    for sibling in siblings:
        paired = {pair.current.path for pair in Peers(alone, [sibling]).pairs}
        alone = [report for report in alone if report.path not in paired]
        if not alone:
            return
    pairs_by_path: dict[str, list[Pair]] = defaultdict(list)
    for sibling in later:
        for pair in Peers(alone, [sibling]).pairs:
            pairs_by_path[pair.current.path].append(pair)
        alone = [report for report in alone if _are_all_different(report, pairs_by_path[report.path])]
        if not alone:
            return
    for report in alone:
        if len(pairs := pairs_by_path[report.path]) > 1:
            yield _tied(_schema_differs(report, pairs[-1].past, unchanged=0, same_run=False), pairs[-1])


def _are_all_different(report: ShardReport, pairs: Sequence[Pair]) -> bool:
    """Tell whether a shard and its own of other steps hold as many tensors, and no two the same."""
    all_of_them = [report, *(pair.past for pair in pairs)]
    are_as_many = len({shard.tensors for shard in all_of_them}) == 1
    return are_as_many and len({shard.schema_hash for shard in all_of_them}) == len(all_of_them)


def _is_copied(first: ShardReport, second: ShardReport, *, at_another: tuple[ShardReport, ShardReport]) -> bool:
    """Tell whether one rank's file may be a copy of the other's: they end alike, and at another step they do not."""
    ends = {report.tail_hash for report in at_another}
    return first.tail_hash == second.tail_hash and len(ends) > 1


def _tied(finding: Finding, pair: Pair) -> Finding:
    """Say that one of two saves is wrong and nothing tells which: nobody knows, which is not damage."""
    return replace(
        finding,
        severity=Severity.UNKNOWN,
        message=f"{finding.message}: one of the two is wrong, and nothing tells which",
        remedy=f"ckpttool diff of {pair.past.path} and this file shows which names differ; --checkpoint takes a save "
        "in spite of it, and a manifest (ckpttool seal) would have told",
    )


def _is_sibling_odd(peers: Peers, pair: Pair) -> bool:
    """Tell whether the sibling held what nobody else did, where ranks hold what others hold as well.

    And now it holds what several did then and do now, or what all do now: two files do not come by the same tensors
    by accident. Nor does one come by a tensor more.
    """
    schema = pair.current.schema_hash
    if len(peers.by_past_schema[pair.past.schema_hash]) > 1 or (pair.current.tensors or 0) < (pair.past.tensors or 0):
        return False
    unchanged = sum(peer.current.schema_hash == schema for peer in peers.by_past_schema.get(schema, ()))
    if not unchanged:
        return False
    if all(peer.schema_hash == schema for peer in peers.reports):
        if len(peers.reports) >= MIN_PEERS:
            return True
        # Two ranks that end alike now and did not then are one file, and prove nothing.
        both = [(peer.current, peer.past) for peer in peers.pairs if peer is not pair]
        return any(not _is_copied(pair.current, current, at_another=(pair.past, past)) for current, past in both)
    loners = sum(len(group) == 1 for group in peers.by_past_schema.values())
    return unchanged >= MIN_PEERS - 1 and 2 * loners < len(peers.pairs)


def _is_richer(peers: Peers, current: ShardReport, past: ShardReport) -> bool:
    """Tell whether a shard holds more, and what no other rank holds: nothing is lost, and it is no copy of another."""
    if (current.tensors or 0) <= (past.tensors or 0):
        return False
    was_known = any(pair.past.schema_hash == current.schema_hash for pair in peers.pairs)
    return not was_known and sum(peer.schema_hash == current.schema_hash for peer in peers.reports) == 1


def _outliers(peers: Peers) -> Iterator[Finding]:
    """Compare with the other ranks where there is no other step to compare with, and all of them hold the same."""
    paired = {pair.current.path for pair in peers.pairs}
    usual, times = Counter(report.schema_hash for report in peers.reports).most_common(1)[0]
    if times != len(peers.reports) - 1 or len(peers.reports) < MIN_PEERS:
        return
    for report in peers.reports:
        # Only the legacy layout has files that all ranks fill alike.
        if report.path not in paired and report.role is ShardRole.FULL and report.schema_hash != usual:
            peer = next(peer for peer in peers.reports if peer.schema_hash == usual)
            finding = _schema_differs(report, peer, unchanged=times, same_run=True)
            yield _noted(finding) if _is_richer(peers, report, peer) else finding


def _noted(finding: Finding) -> Finding:
    """Say a difference of which nobody can tell what is right."""
    message = f"{finding.message}; that alone is no sign of damage"
    return replace(finding, code=Code.SCHEMA_DIFFERS, severity=Severity.NOTE, message=message, remedy=None)


def _schema_differs(current: ShardReport, past: ShardReport, *, unchanged: int, same_run: bool) -> Finding:
    """Say how a shard differs.

    Args:
        current: The shard.
        past: What it is compared with.
        unchanged: How many other ranks still hold what they held together with this one.
        same_run: Whether one start of the training wrote both: then no configuration changed between them.
    """
    fewer = (current.tensors or 0) < (past.tensors or 0)
    # A `.ckpt` that ends too early is valid otherwise. The training scalars stand last, so with them it is not cut.
    is_ckpt = current.format is FormatName.MINDSPORE_CKPT
    may_be_cut = fewer and is_ckpt and (current.role is not ShardRole.FULL or lacks(current.scalars, past.scalars))
    severity = Severity.DAMAGE if unchanged or may_be_cut else Severity.SUSPECT if same_run else Severity.NOTE
    contents = f"{current.tensors} tensors, but {past.tensors} in {past.path}"
    if current.tensors == past.tensors:
        contents = f"as many tensors ({current.tensors}) as {past.path}, but of other names, types or shapes"
    support = f"; {unchanged} other ranks hold what it held" if unchanged else ""
    return Finding(
        code=Code.ENTRIES_MISSING if fewer and severity is Severity.DAMAGE else Code.SCHEMA_DIFFERS,
        severity=severity,
        message=f"holds {contents}{support}",
        path=current.path,
        expected=str(past.tensors),
        actual=str(current.tensors),
        remedy="resume from another checkpoint; a loader takes this one in silence and leaves the rest as initialised",
    )


def _changed_metadata(peers: Peers) -> Iterator[Finding]:
    """Compare the free text of the headers: nothing else would show a flipped bit in it."""
    # What a ledger remembers of a shard does not hold it.
    comparable = [report for report in peers.reports if not report.remembered]
    usual, times = Counter(report.metadata_hash for report in comparable).most_common(1)[0] if comparable else (None, 0)
    is_common = 2 * times > len(comparable)
    past_reports = {pair.current.path: pair.past for pair in peers.pairs}
    for report in comparable:
        if is_common and report.metadata_hash == usual:
            continue
        sibling = past_reports.get(report.path)
        if sibling is None and is_common and len(comparable) >= MIN_PEERS:
            sibling = next(peer for peer in comparable if peer.metadata_hash == usual)
        if sibling is None or report.metadata_hash == sibling.metadata_hash:
            continue
        # Where each rank has a text of its own, the sibling's may be the one whose bits flipped.
        witnesses = [*comparable, *(peer for peer, _ in peers.others(report) if peer is not sibling)]
        is_told = is_common or any(sample.metadata_hash == sibling.metadata_hash for sample in witnesses)
        yield Finding(
            code=Code.SCHEMA_DIFFERS,
            severity=Severity.SUSPECT if is_told else Severity.UNKNOWN,
            message=f"the free text of its header (__metadata__) is not that of {sibling.path}: bits flipped, or "
            "another program wrote it",
            path=report.path,
            remedy="compare the two headers, or resume from another checkpoint",
        )


def _stripped_checksums(peers: Peers) -> Iterator[Finding]:
    """Find a checksum that was stripped: a cut file may look as if it never had one."""
    carriers = [report for report in peers.reports if report.embedded_checksum]
    before = [pair for pair in peers.pairs if pair.past.embedded_checksum and pair.sibling.same_run]
    # Several shards, none with a checksum, all with one before: it was switched off.
    switched_off = not carriers and len(before) == len(peers.reports) > 1
    lost = {pair.current.path: pair.past.path for pair in before if not switched_off}
    for report in peers.reports:
        is_told = report.copy_matched  # by one that has a checksum: every tensor is there, and whole
        if report.embedded_checksum or is_told or not (carriers or report.path in lost):
            continue
        who_has = f"{len(carriers)} of {len(peers.reports)} shards do" if carriers else f"{lost[report.path]} does"
        yield suspect(
            Code.CHECKSUM_MISSING,
            f"carries no checksum of its own, but {who_has}: its end may have been cut off",
            path=report.path,
            remedy="compare its size with its siblings', or resume from another checkpoint",
        )


def _zero_tails(peers: Peers) -> Iterator[Finding]:
    """Find a last page of tensor data that is zero where it should not be.

    It often is by right: moments of a layer that is not trained, rows of an embedding for tokens that never came.
    Those are zero from the first step on. So a page that was not zero *before* and is zero now was lost. With
    no earlier step to compare with, replicas tell; without any, it stays a note.
    """
    for report in peers.reports:
        if not report.zero_tail:
            continue
        similar = [(past, sibling) for past, sibling in peers.others(report) if past.schema_hash == report.schema_hash]
        if not any(past.zero_tail for past, _ in similar):
            earlier = [past for past, sibling in similar if sibling.older]
            yield _zero_tail(report, against=earlier or _replicas(peers, report))


def _replicas(peers: Peers, report: ShardReport) -> Sequence[ShardReport]:
    """Return the other ranks with the same tensors where they have one and the same last page; else none.

    Slices of a sharded model have pages of their own, and only one of them holds the rows that nobody uses.
    """
    replicas = [peer for peer in peers.reports if peer is not report and peer.schema_hash == report.schema_hash]
    pages = {peer.tail_hash for peer in replicas}
    return replicas if len(replicas) >= MIN_PEERS - 1 and len(pages) == 1 and not replicas[0].zero_tail else ()


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


def _copied(peers: Peers, by_tensors: Collection[str]) -> Iterator[Finding]:
    """Find one rank's file in another rank's place, where their tensors have the same names and shapes.

    Ranks that held different last pages before hold different slices, and slices never become equal. (The other
    way round is no sign: slices that nobody has trained yet are equal, and part later.) Where every byte was read, only
    files that are equal before their end, too.
    """
    steps = _steps(peers)
    by_content: dict[tuple[str | None, str, TensorDigests | None], list[ShardReport]] = defaultdict(list)
    for report in peers.reports:
        if report.tail_hash is not None and not report.zero_tail and report.path not in by_tensors:
            by_content[report.schema_hash, report.tail_hash, report.tensor_digests].append(report)
    for group in by_content.values():
        if any(len({step.pages.get(report.path) for report in group} - {None}) > 1 for step in steps):
            yield from _copies(group, steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """Another step, at which the ranks are compared with each other: every step has pages of its own."""

    same_run: bool
    pages: dict[str, str]
    """How each of our shards ended there, by its path now."""
    everyone: dict[str | None, Counter[str]]
    """The same, counted for each schema that ranks hold now."""
    zeros: frozenset[str]


def _steps(peers: Peers) -> list[_Step]:
    steps = []
    schemas = {report.path: report.schema_hash for report in peers.reports}
    for sibling, past_reports in peers.by_sibling():
        pages = {
            place: past.tail_hash
            for place, past in past_reports.items()
            # The end of a `.ckpt` holds names, too: one with other names tells nothing of what follows them.
            if past.tail_hash is not None
            and (past.format is not FormatName.MINDSPORE_CKPT or past.schema_hash == schemas[place])
        }
        everyone: dict[str | None, Counter[str]] = defaultdict(Counter)
        for report in peers.reports:
            if report.path in pages:
                everyone[report.schema_hash][pages[report.path]] += 1
        zeros = frozenset(pages[place] for place, past in past_reports.items() if past.zero_tail and place in pages)
        steps.append(_Step(same_run=sibling.same_run, pages=pages, everyone=everyone, zeros=zeros))
    return steps


def _copies(group: Sequence[ShardReport], steps: Sequence[_Step]) -> Iterator[Finding]:
    """Yield what is to be said of each of a group that is odd at some step, at its worst."""
    # Who is known at most steps says most about the others.
    group = sorted(group, key=lambda report: -sum(report.path in step.pages for step in steps))
    family = _families(group, steps)
    by_path: dict[str, Finding] = {}
    for index, step in enumerate(steps):
        group_then = _GroupAtStep(group, step, family)
        for report in group_then.outliers() if step.same_run else ():
            severity = Severity.SUSPECT
            # Where ranks share pages, the step itself may hold the copy: any other that knows the two as equal tells.
            comparable = steps[:index] if group_then.are_slices else steps
            like = group_then.other_slice(report)
            if like is None or any(_are_equal(report, like, step) for step in comparable):
                like = group_then.other_family(report)
                if like is None:
                    continue
                # The step may be the damaged one. A second step must know the two as different.
                times = sum({report.path, like.path} <= step.pages.keys() for step in steps)
                severity = Severity.NOTE if times == 1 else Severity.SUSPECT
            finding = by_path.get(report.path)
            if finding is None or finding.severity < severity:
                by_path[report.path] = Finding(
                    code=Code.SCHEMA_DIFFERS,
                    severity=severity,
                    message=f"ends like {like.path}, and at another step these two ranks differ: "
                    "one is a copy of the other",
                    path=report.path,
                    remedy=OWN_FILE,
                )
    yield from by_path.values()


def _are_equal(report: ShardReport, peer: ShardReport, step: _Step) -> bool:
    return report.path in step.pages and step.pages[report.path] == step.pages.get(peer.path)


def _families(group: Sequence[ShardReport], steps: Sequence[_Step]) -> dict[str, str]:
    """Join those that were equal at any step, and those that were equal to the same one: they may be replicas."""
    parent = {report.path: report.path for report in group}

    def head(path: str) -> str:
        while parent[path] != path:
            parent[path] = path = parent[parent[path]]
        return path

    for step in steps:
        first: dict[str, str] = {}
        for report in group:
            if report.path in step.pages:
                parent[head(report.path)] = head(first.setdefault(step.pages[report.path], report.path))
    return {place: head(place) for place in parent}


class _GroupAtStep:
    """A group of ranks that end alike now, as they were at one other step."""

    def __init__(self, group: Sequence[ShardReport], step: _Step, family: dict[str, str]) -> None:
        self._pages = step.pages
        self._family = family
        self._known = [report for report in group if report.path in step.pages]
        self._ours = Counter(step.pages[report.path] for report in self._known)
        self._by_page: dict[str, ShardReport] = {}
        self._by_family: dict[str, ShardReport] = {}
        for report in self._known:
            self._by_page.setdefault(step.pages[report.path], report)
            self._by_family.setdefault(family[report.path], report)
        everyone = step.everyone[group[0].schema_hash]
        self.are_slices = are_slices(everyone.total(), len(everyone))
        self._shared = [page for page in self._ours if everyone[page] > 1 and page not in step.zeros]
        self._shared_elsewhere = [page for page in self._shared if everyone[page] > self._ours[page]]

    def outliers(self) -> Iterator[ShardReport]:
        """Yield those that did not belong to the group."""
        if len(self._ours) > 1:
            usual, times = self._ours.most_common(1)[0]
            # Without a majority nobody can tell which is the copy: then all are named.
            is_open = 2 * times <= len(self._known)
            yield from (report for report in self._known if is_open or self._pages[report.path] != usual)

    def other_slice(self, report: ShardReport) -> ShardReport | None:
        """Return one that held another slice; None where they need not be slices, but a replica was damaged then.

        They are slices where nearly every rank had a page of its own. Or where others had the pages of both, and not
        all of those are in the group now: what each rank counts for itself becomes equal on all of them.
        """
        page = self._pages[report.path]
        candidates: Iterable[str] = ()
        if self.are_slices:
            candidates = self._by_page
        elif page in self._shared:
            candidates = self._shared if page in self._shared_elsewhere else self._shared_elsewhere
        page_other = next((candidate for candidate in candidates if candidate != page), None)
        return None if page_other is None else self._by_page[page_other]

    def other_family(self, report: ShardReport) -> ShardReport | None:
        """Return one that ended differently then, and that nothing shows to be a replica of this one."""
        mine = self._family[report.path]
        return next((candidate for family, candidate in self._by_family.items() if family != mine), None)
