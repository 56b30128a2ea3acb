"""One rank's file in another rank's place: they end alike now, and at another step they did not."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ckpttool.domain.finding import Code, Finding, Severity
from ckpttool.domain.frozen import dataclass
from ckpttool.domain.verdict import ShardReport
from ckpttool.verify.siblings.pairs import MIN_PEERS, Peers

_SLICES_AMONG = 10
"""Ranks of which at most one may end like another where they hold slices."""


def copied(peers: Peers) -> Iterator[Finding]:
    """Find one rank's file in another rank's place, where their tensors have the same names and shapes.

    Ranks that held different last pages before hold different slices, and slices never become equal. (The other
    way round is no sign: slices that nobody has trained yet are equal, and part later.)
    """
    steps = _steps(peers)
    alike: dict[tuple[str | None, str], list[ShardReport]] = defaultdict(list)
    for report in peers.reports:
        if report.tail_hash is not None and not report.zero_tail:
            alike[report.schema_hash, report.tail_hash].append(report)
    for group in alike.values():
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
    for sibling, known in peers.by_sibling():
        pages = {place: then.tail_hash for place, then in known.items() if then.tail_hash is not None}
        everyone: dict[str | None, Counter[str]] = defaultdict(Counter)
        for report in peers.reports:
            if report.path in pages:
                everyone[report.schema_hash][pages[report.path]] += 1
        zeros = frozenset(pages[place] for place, then in known.items() if then.zero_tail and place in pages)
        steps.append(_Step(same_run=sibling.same_run, pages=pages, everyone=everyone, zeros=zeros))
    return steps


def _copies(group: Sequence[ShardReport], steps: Sequence[_Step]) -> Iterator[Finding]:
    """Yield what is to be said of each of a group that is odd at some step, at its worst."""
    # Who is known at most steps says most about the others.
    group = sorted(group, key=lambda report: -sum(report.path in step.pages for step in steps))
    family = _families(group, steps)
    found: dict[str, Finding] = {}
    for index, step in enumerate(steps):
        then = _GroupAtStep(group, step, family)
        for report in then.odd_ones() if step.same_run else ():
            severity = Severity.SUSPECT
            # Where ranks share pages, the step itself may hold the copy: any other that knows the two as equal tells.
            comparable = steps[:index] if then.are_slices else steps
            like = then.other_slice(report)
            if like is None or any(_are_equal(report, like, step) for step in comparable):
                like = then.other_family(report)
                if like is None:
                    continue
                # The step may be the damaged one. A second step must know the two as different.
                times = sum({report.path, like.path} <= step.pages.keys() for step in steps)
                severity = Severity.NOTE if times == 1 else Severity.SUSPECT
            known = found.get(report.path)
            if known is None or known.severity < severity:
                found[report.path] = _copy(report, like, severity)
    yield from found.values()


def _are_equal(report: ShardReport, other: ShardReport, step: _Step) -> bool:
    return report.path in step.pages and step.pages[report.path] == step.pages.get(other.path)


def _families(group: Sequence[ShardReport], steps: Sequence[_Step]) -> dict[str, str]:
    """Join those that were equal at any step, and those that were equal to the same one: they may be replicas."""
    parent = {report.path: report.path for report in group}

    def head(one: str) -> str:
        while parent[one] != one:
            parent[one] = one = parent[parent[one]]
        return one

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
        self.are_slices = (
            everyone.total() >= MIN_PEERS and (everyone.total() - len(everyone)) * _SLICES_AMONG <= everyone.total()
        )
        self._shared = [page for page in self._ours if everyone[page] > 1 and page not in step.zeros]
        self._left = [page for page in self._shared if everyone[page] > self._ours[page]]

    def odd_ones(self) -> Iterator[ShardReport]:
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
            candidates = self._shared if page in self._left else self._left
        other = next((candidate for candidate in candidates if candidate != page), None)
        return None if other is None else self._by_page[other]

    def other_family(self, report: ShardReport) -> ShardReport | None:
        """Return one that ended differently then, and that nothing shows to be a replica of this one."""
        mine = self._family[report.path]
        return next((one for family, one in self._by_family.items() if family != mine), None)


def _copy(report: ShardReport, like: ShardReport, severity: Severity) -> Finding:
    return Finding(
        code=Code.SCHEMA_DIFFERS,
        severity=severity,
        message=f"ends like {like.path}, and at another step these two ranks differ: one is a copy of the other",
        path=report.path,
        remedy="find the rank's own file on its disk, or resume from another checkpoint",
    )
