"""Damage that only shows in a comparison with the same rank at another step, or with other ranks at this step.

A difference alone is not damage: runs are reconfigured, layers are frozen, checksums are switched off. Therefore each
rule searches for other shards that differ in the same way. A shard is damaged if no other shard differs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import OWN_FILE, Code, Finding, Severity, damage, note, suspect
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.shard import FormatName, ShardRole
from ckpttool.core.domain.verdict import MIN_COPIES, ShardReport
from ckpttool.core.verify.siblings.neighbours import (
    COMPARED,
    MIN_PEERS,
    Pair,
    Peers,
    Sibling,
    are_slices,
    lacks,
    unpaired,
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
    """Compare as `compare_siblings` does, but add siblings only if the earlier ones leave a question open."""
    if not any(report.role in COMPARED and report.schema_hash is not None for report in reports):
        return []
    compared: list[Sibling] = []
    findings = compare_siblings(reports, compared, by_tensors, is_complete=is_complete, sealed=sealed)
    for sibling in siblings:
        compared.append(sibling)
        findings = compare_siblings(reports, compared, by_tensors, is_complete=is_complete, sealed=sealed)
        if not findings and not unpaired(reports, compared):
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
    """Find shards that differ from their siblings in a way that no healthy training explains.

    Args:
        reports: All shards of the checkpoint.
        siblings: Headers of other checkpoints of the same training run, best first; may be empty.
        by_tensors: Paths of the shards that were compared tensor by tensor, so that last pages add nothing.
        is_complete: Whether no rank is missing; otherwise the missing ranks may have the same tensors as a rank that
        differs.
        sealed: Paths of the shards whose header matches the manifest, which proves their tensors.
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
    """Find an optimizer's file with the tensors of a model, or the reverse, which is a copy under a wrong name.

    Few files of the same kind have these tensors, but more files of the other kind do. If all files of a kind have the
    tensors of the other kind, the trainer saves files in this way.
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
                equal = [candidate for candidate in kinds[peer_role] if candidate.schema_hash == report.schema_hash]
                peer = next((candidate for candidate in equal if candidate.rank == report.rank), equal[0])
                yield damage(
                    Code.SCHEMA_DIFFERS,
                    (
                        f"has the same content as {peer.path}, which is a different kind of file: a copy under "
                        "another name"
                    ),
                    path=report.path,
                    remedy=OWN_FILE,
                )


def _changed_schemas(peers: Peers) -> Iterator[Finding]:
    """Compare the tensors of each rank with the same rank's tensors at another step."""
    for pair in peers.pairs:
        schema = pair.current.schema_hash
        if schema == pair.past.schema_hash:
            continue
        group = peers.by_past_schema[pair.past.schema_hash]
        followed = sum(peer.current.schema_hash == schema for peer in group)
        if len(group) > 1 and 2 * followed > len(group):  # the run changed, not the disk
            continue
        # The sibling may be the damaged one. Two files do not have the same tensors by accident.
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
        if is_alone and (is_richer or _is_sibling_outlier(peers, pair)):
            finding = _noted(finding)
        elif is_richer:
            finding = replace(finding, severity=min(finding.severity, Severity.SUSPECT))
        elif is_alone and may_be_either and pair.current.tensors == pair.past.tensors:
            finding = _tied(finding, pair)
        yield finding


def without_sample(
    reports: Sequence[ShardReport], siblings: Iterable[Sibling], later: Iterable[Sibling], *, sealed: Collection[str]
) -> Iterator[Finding]:
    """Find shards that no other checkpoint confirms, if all shards of a later start contradict them and each other.

    Args:
        reports: All shards of the checkpoint.
        siblings: Checkpoints of the same start and of the previous start.
        later: Checkpoints of the next start; if two of these agree, the change was intended.
        sealed: Paths of the shards whose header matches a manifest.
    """
    alone = [
        report for report in reports if report.role in COMPARED and report.schema_hash and report.path not in sealed
    ]
    if not alone:
        return  # before any sibling is read
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
    """Return whether a shard and its counterparts at other steps have the same number of tensors, all different."""
    all_of_them = [report, *(pair.past for pair in pairs)]
    are_as_many = len({shard.tensors for shard in all_of_them}) == 1
    return are_as_many and len({shard.schema_hash for shard in all_of_them}) == len(all_of_them)


def _is_copied(first: ShardReport, second: ShardReport, *, at_another: tuple[ShardReport, ShardReport]) -> bool:
    """Return whether two ranks' files may be copies: their last pages are equal here but different at another step."""
    ends = {report.tail_hash for report in at_another}
    return first.tail_hash == second.tail_hash and len(ends) > 1


def _tied(finding: Finding, pair: Pair) -> Finding:
    """Change a finding to report that one of two saves is damaged, and that it is unknown which."""
    return replace(
        finding,
        severity=Severity.UNKNOWN,
        message=f"{finding.message}: one of the two is wrong, and there is no evidence which",
        remedy=f"ckpttool diff of {pair.past.path} and this file shows which names differ; --checkpoint chooses a "
        "save anyway; ckpttool seal avoids this for later saves",
    )


def _is_sibling_outlier(peers: Peers, pair: Pair) -> bool:
    """Return whether the sibling is the damaged one: only it had its tensors at its step, but other ranks share theirs.

    The current shard has the tensors that several ranks have at both steps, or that all ranks have now, because two
    files do not get the same tensors by accident, and a file does not gain a tensor by accident.
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
        # Two ranks with equal ends now but not then are copies of one file, and prove nothing.
        both = [(peer.current, peer.past) for peer in peers.pairs if peer is not pair]
        return any(not _is_copied(pair.current, current, at_another=(pair.past, past)) for current, past in both)
    alone = sum(len(group) == 1 for group in peers.by_past_schema.values())
    return unchanged >= MIN_PEERS - 1 and 2 * alone < len(peers.pairs)


def _is_richer(peers: Peers, current: ShardReport, past: ShardReport) -> bool:
    """Return whether a shard has more tensors than before, unlike any other rank, so that nothing is lost or copied."""
    if (current.tensors or 0) <= (past.tensors or 0):
        return False
    was_known = any(pair.past.schema_hash == current.schema_hash for pair in peers.pairs)
    return not was_known and sum(peer.schema_hash == current.schema_hash for peer in peers.reports) == 1


def _outliers(peers: Peers) -> Iterator[Finding]:
    """Compare with the other ranks if there is no other step, and all other ranks have the same tensors."""
    paired = {pair.current.path for pair in peers.pairs}
    usual, times = Counter(report.schema_hash for report in peers.reports).most_common(1)[0]
    if times != len(peers.reports) - 1 or len(peers.reports) < MIN_PEERS:
        return
    for report in peers.reports:
        # Only the legacy layout has files with the same tensors for all ranks.
        if report.path not in paired and report.role is ShardRole.FULL and report.schema_hash != usual:
            peer = next(peer for peer in peers.reports if peer.schema_hash == usual)
            finding = _schema_differs(report, peer, unchanged=times, same_run=True)
            if _is_richer(peers, report, peer):
                finding = _noted(finding)
            elif times < MIN_COPIES and report.tensors == peer.tensors:  # both may have the same damage
                message = f"{finding.message}, and only {times} agree: there is no proof that they are right"
                finding = replace(finding, severity=Severity.SUSPECT, message=message)
            yield finding


def _noted(finding: Finding) -> Finding:
    """Change a finding to a note, because it is unknown which of the two is right."""
    message = f"{finding.message}; this alone is not a sign of damage"
    return replace(finding, code=Code.SCHEMA_DIFFERS, severity=Severity.NOTE, message=message, remedy=None)


def _schema_differs(current: ShardReport, past: ShardReport, *, unchanged: int, same_run: bool) -> Finding:
    """Return the finding that a shard differs.

    Args:
        current: The shard.
        past: The shard that it is compared with.
        unchanged: Number of other ranks that still have the tensors that they shared with this rank.
        same_run: Whether the same start of the training run wrote both, so that the configuration did not change in
        between.
    """
    fewer = (current.tensors or 0) < (past.tensors or 0)
    # A `.ckpt` that ends too early is otherwise valid. The training scalars come last, so a file with them is complete.
    is_ckpt = current.format is FormatName.MINDSPORE_CKPT
    may_be_cut = fewer and is_ckpt and (current.role is not ShardRole.FULL or lacks(current.scalars, past.scalars))
    severity = Severity.SUSPECT if same_run else Severity.NOTE
    if unchanged or may_be_cut:
        severity = Severity.DAMAGE
    contents = f"{current.tensors} tensors, but {past.path} has {past.tensors}"
    if current.tensors == past.tensors:
        contents = f"as many tensors ({current.tensors}) as {past.path}, but with different names, types or shapes"
    support = f"; {unchanged} other ranks still have the same structure" if unchanged else ""
    return Finding(
        code=Code.ENTRIES_MISSING if fewer and severity is Severity.DAMAGE else Code.SCHEMA_DIFFERS,
        severity=severity,
        message=f"has {contents}{support}",
        path=current.path,
        expected=str(past.tensors),
        actual=str(current.tensors),
        remedy="resume from another checkpoint; a loader accepts this one silently and leaves missing tensors as "
        "initialized",
    )


def _changed_metadata(peers: Peers) -> Iterator[Finding]:
    """Compare the text of the headers, because nothing else would show a flipped bit in this text."""
    # A ledger's entry about a shard does not include it.
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
        # If each rank has its own text, the flipped bit may be in the sibling's text.
        witnesses = [*comparable, *(peer for peer, _ in peers.others(report) if peer is not sibling)]
        is_confirmed = is_common or any(sample.metadata_hash == sibling.metadata_hash for sample in witnesses)
        yield Finding(
            code=Code.SCHEMA_DIFFERS,
            severity=Severity.SUSPECT if is_confirmed else Severity.UNKNOWN,
            message=f"the free text of its header (__metadata__) differs from that of {sibling.path}: bits "
            f"flipped, or another program wrote it",
            path=report.path,
            remedy="compare the two headers, or resume from another checkpoint",
        )


def _stripped_checksums(peers: Peers) -> Iterator[Finding]:
    """Find shards that lost their checksum: a truncated file may look as if it never had one."""
    carriers = [report for report in peers.reports if report.embedded_checksum]
    before = [pair for pair in peers.pairs if pair.past.embedded_checksum and pair.sibling.same_run]
    # If several shards all had a checksum before and none has one now, checksums were switched off.
    switched_off = not carriers and len(before) == len(peers.reports) > 1
    lost = {pair.current.path: pair.past.path for pair in before if not switched_off}
    for report in peers.reports:
        if report.embedded_checksum or not (carriers or report.path in lost):
            continue
        if report.copy_matched:  # a copy with a checksum proves that every tensor is present and intact
            continue
        who_has = (
            f"{len(carriers)} of {len(peers.reports)} shards have one" if carriers else f"{lost[report.path]} has one"
        )
        yield suspect(
            Code.CHECKSUM_MISSING,
            f"has no checksum of its own, but {who_has}: its end may have been cut off",
            path=report.path,
            remedy="compare its size with those of related files, or resume from another checkpoint",
        )


def _zero_tails(peers: Peers) -> Iterator[Finding]:
    """Find a last page of tensor data that is zero but should not be.

    Some pages are legitimately zero: moments of a layer that is not trained, rows of an embedding for unused tokens.
    Such pages are zero from the first step, so a page that was not zero *before* was lost. If there is no earlier step,
    replicas decide; if there are no replicas either, the finding is a note.
    """
    for report in peers.reports:
        if not report.zero_tail:
            continue
        similar = [(past, sibling) for past, sibling in peers.others(report) if past.schema_hash == report.schema_hash]
        if not any(past.zero_tail for past, _ in similar):
            earlier = [past for past, sibling in similar if sibling.older]
            yield _zero_tail(report, against=earlier or _replicas(peers, report))


def _replicas(peers: Peers, report: ShardReport) -> Sequence[ShardReport]:
    """Return the other ranks with the same tensors if all have the same last page; otherwise an empty list.

    Slices of a sharded model have different pages, and only one slice has the unused rows.
    """
    replicas = [peer for peer in peers.reports if peer is not report and peer.schema_hash == report.schema_hash]
    pages = {peer.tail_hash for peer in replicas}
    return replicas if len(replicas) >= MIN_PEERS - 1 and len(pages) == 1 and not replicas[0].zero_tail else ()


def _zero_tail(report: ShardReport, *, against: Sequence[ShardReport]) -> Finding:
    if not against:
        return note(
            Code.ZERO_TAIL,
            (
                "the last page of tensor data is all zeros, and there is no other file to compare it with; the zeros "
                "may be intended"
            ),
            path=report.path,
        )
    return suspect(
        Code.ZERO_TAIL,
        f"the last page of tensor data is all zeros, unlike in {against[0].path}: typical of a power failure",
        path=report.path,
        remedy="resume from another checkpoint, or verify it against a manifest: ckpttool verify --level checksum",
    )


def _copied(peers: Peers, by_tensors: Collection[str]) -> Iterator[Finding]:
    """Find a rank's file under another rank's name, by the last pages of files with the same names and shapes.

    Ranks whose files had different last pages at another step have different slices, and different slices never become
    equal. (Equal pages at another step prove nothing: untrained slices are equal, and differ later.) If every byte was
    read, the files must be equal in all tensors.
    """
    steps = [
        _OtherStep(peers.reports, past_reports, same_run=sibling.same_run)
        for sibling, past_reports in peers.by_sibling()
    ]
    by_content: dict[tuple[str | None, str, TensorDigests | None], list[ShardReport]] = defaultdict(list)
    for report in peers.reports:
        if report.tail_hash is not None and not report.zero_tail and report.path not in by_tensors:
            by_content[report.schema_hash, report.tail_hash, report.tensor_digests].append(report)
    for group in by_content.values():
        if any(len({step.pages.get(report.path) for report in group} - {None}) > 1 for step in steps):
            yield from _copies(group, steps)


class _OtherStep:
    """A different step, at which ranks are compared with each other because last pages differ between steps."""

    def __init__(
        self, reports: Sequence[ShardReport], past_reports: Mapping[str, ShardReport], *, same_run: bool
    ) -> None:
        """Store the shards of this step, and the shards of the other step by the path of our shard."""
        self.same_run = same_run
        self.pages: dict[str, str] = {}
        """The last page that each of our shards had at that step, by its current path."""
        self.zeros: set[str] = set()
        """Pages that are zero."""
        self.pages_of_schema: dict[str | None, Counter[str]] = defaultdict(Counter)
        """Current schema -> number of shards that had each page."""
        for report in reports:
            past = past_reports.get(report.path)
            if past is None or past.tail_hash is None:
                continue
            # The last page of a `.ckpt` includes names: with other names, it shows nothing about the data after them.
            if past.format is FormatName.MINDSPORE_CKPT and past.schema_hash != report.schema_hash:
                continue
            self.pages[report.path] = past.tail_hash
            self.pages_of_schema[report.schema_hash][past.tail_hash] += 1
            if past.zero_tail:
                self.zeros.add(past.tail_hash)


def _copies(group: Sequence[ShardReport], steps: Sequence[_OtherStep]) -> Iterator[Finding]:
    """Yield the most severe finding about each of several shards with equal last pages."""
    # The shards that are known at most steps provide the most evidence about the others.
    group = sorted(group, key=lambda report: -sum(report.path in step.pages for step in steps))
    replica_sets = _possible_replicas(group, steps)
    by_path: dict[str, Finding] = {}
    for index, step in enumerate(steps):
        if not step.same_run:
            continue
        past = _GroupAtStep(group, step, replica_sets)
        for report in past.minority():
            severity = Severity.SUSPECT
            # If ranks share pages, this step itself may have the copy; any other step may then show the two as equal.
            comparable = steps[:index] if past.are_slices else steps
            peer = past.other_slice(report)
            if peer is None or any(_were_equal(report, peer, other) for other in comparable):
                peer = past.no_replica(report)
                if peer is None:
                    continue
                # The step may be the damaged one, so a second step must show the two as different.
                times = sum({report.path, peer.path} <= other.pages.keys() for other in steps)
                severity = Severity.NOTE if times == 1 else Severity.SUSPECT
            known = by_path.get(report.path)
            if known is None or known.severity < severity:
                by_path[report.path] = Finding(
                    code=Code.SCHEMA_DIFFERS,
                    severity=severity,
                    message=f"ends like {peer.path}, but at another step these two ranks differ: one is a copy of "
                    f"the other",
                    path=report.path,
                    remedy=OWN_FILE,
                )
    yield from by_path.values()


def _were_equal(report: ShardReport, peer: ShardReport, step: _OtherStep) -> bool:
    return report.path in step.pages and step.pages[report.path] == step.pages.get(peer.path)


def _possible_replicas(group: Sequence[ShardReport], steps: Sequence[_OtherStep]) -> dict[str, str]:
    """Return each path's first possible replica: equal to it at some step, or equal to the same third shard."""
    parent = {report.path: report.path for report in group}

    def first_of(path: str) -> str:
        while parent[path] != path:
            parent[path] = path = parent[parent[path]]
        return path

    for step in steps:
        first: dict[str, str] = {}
        for report in group:
            if report.path in step.pages:
                parent[first_of(report.path)] = first_of(first.setdefault(step.pages[report.path], report.path))
    return {path: first_of(path) for path in parent}


class _GroupAtStep:
    """The state, at one other step, of shards with equal last pages."""

    def __init__(self, group: Sequence[ShardReport], step: _OtherStep, replica_sets: Mapping[str, str]) -> None:
        self._pages = step.pages
        self._replica_sets = replica_sets
        self._known = [report for report in group if report.path in step.pages]
        self._times = Counter(step.pages[report.path] for report in self._known)
        everyone = step.pages_of_schema[group[0].schema_hash]
        self.are_slices = are_slices(everyone.total(), len(everyone))
        self._shared = [page for page in self._times if everyone[page] > 1 and page not in step.zeros]
        self._shared_elsewhere = [page for page in self._shared if everyone[page] > self._times[page]]

    def minority(self) -> list[ShardReport]:
        """Return the shards outside the majority; if there is no majority, return all, because any may be the copy."""
        if len(self._times) <= 1:
            return []
        usual, times = self._times.most_common(1)[0]
        if 2 * times <= len(self._known):
            return self._known
        return [report for report in self._known if self._pages[report.path] != usual]

    def other_slice(self, report: ShardReport) -> ShardReport | None:
        """Return a shard with another slice, or None if the two may be replicas, one of which is damaged at that step.

        The two are slices if nearly every rank had a different page, or if other ranks had the pages of both and some
        of those ranks are not in this group, because counters of each rank become equal on all ranks.
        """
        page = self._pages[report.path]
        candidates: Iterable[str] = ()
        if self.are_slices:
            candidates = self._times
        elif page in self._shared_elsewhere:
            candidates = self._shared
        elif page in self._shared:
            candidates = self._shared_elsewhere
        other_page = next((candidate for candidate in candidates if candidate != page), None)
        return next((peer for peer in self._known if self._pages[peer.path] == other_page), None)

    def no_replica(self, report: ShardReport) -> ShardReport | None:
        """Return a shard that is not known to be a replica of this shard."""
        replica_set = self._replica_sets[report.path]
        return next((peer for peer in self._known if self._replica_sets[peer.path] != replica_set), None)
