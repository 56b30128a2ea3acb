"""Shards of one role, each beside the same rank's at the first other step that can be compared."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from ckpttool.domain.finding import Severity, worst
from ckpttool.domain.frozen import dataclass
from ckpttool.domain.scalars import ScalarValues
from ckpttool.domain.shard import ShardRole
from ckpttool.domain.verdict import ShardReport
from ckpttool.verify.siblings.neighbours import Sibling

_Place = tuple[int | None, ShardRole]

MIN_PEERS = 3
"""Shards of one role from which on a single odd one is outvoted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A shard, and the same rank's at another step."""

    now: ShardReport
    then: ShardReport
    sibling: Sibling
    """Where `then` comes from."""


class Peers:
    """All that the rules of one role compare."""

    def __init__(self, reports: Sequence[ShardReport], siblings: Sequence[Sibling]) -> None:
        """Take the shards, whose headers could be parsed, and the siblings, best first."""
        self.reports = reports
        self._known = [(sibling, _by_place(sibling)) for sibling in siblings]
        self.pairs = [pair for report in reports if (pair := self._pair(report)) is not None]
        self.alike: dict[str | None, list[Pair]] = defaultdict(list)
        """The pairs by the schema that they had then."""
        for pair in self.pairs:
            self.alike[pair.then.schema_hash].append(pair)

    def _pair(self, report: ShardReport) -> Pair | None:
        for sibling, known in self._known:
            then = known.get(_place(report))
            if then is not None and _is_sound(then, beside=report):
                return Pair(now=report, then=then, sibling=sibling)
        return None

    def by_sibling(self) -> Iterator[tuple[Sibling, dict[str, ShardReport]]]:
        """Return each sibling with its shards of the same ranks, by the path of ours."""
        for sibling, known in self._known:
            pairs = ((report, known[_place(report)]) for report in self.reports if _place(report) in known)
            yield sibling, {report.path: then for report, then in pairs if _is_sound(then, beside=report)}

    def others(self, report: ShardReport) -> Iterator[tuple[ShardReport, Sibling]]:
        """Return the same rank's shards of all siblings."""
        return ((known[_place(report)], sibling) for sibling, known in self._known if _place(report) in known)


def are_all_paired(reports: Sequence[ShardReport], siblings: Sequence[Sibling]) -> bool:
    """Tell whether some sibling holds the same rank as every shard that could be parsed."""
    known = {place for sibling in siblings for place in _by_place(sibling)}
    return all(_place(report) in known for report in reports if report.schema_hash is not None)


def lacks(scalars: ScalarValues, others: ScalarValues) -> bool:
    """Tell whether one file lacks a training scalar that the other has."""
    return scalars != others and not dict(others).keys() <= dict(scalars).keys()


def _place(report: ShardReport) -> _Place:
    return report.rank, report.role


def _by_place(sibling: Sibling) -> dict[_Place, ShardReport]:
    """Return the shards that could be parsed, but for those that are of another step than most of their checkpoint."""
    usual = {role: _usual_scalars([report for report in sibling.reports if report.role is role]) for role in ShardRole}
    return {
        _place(report): report
        for report in sibling.reports
        if report.schema_hash is not None and usual[report.role] in {None, report.scalars}
    }


def _usual_scalars(reports: Sequence[ShardReport]) -> ScalarValues | None:
    """Return the training scalars that most of a checkpoint's shards hold; None where there is no majority."""
    told = Counter(report.scalars for report in reports if report.schema_hash is not None)
    usual, times = told.most_common(1)[0] if told else (None, 0)
    return usual if 2 * times > told.total() else None


def _is_sound(then: ShardReport, *, beside: ShardReport) -> bool:
    """Tell whether a sibling's shard may be compared with: whole by itself, and with the scalars that this one has."""
    return worst(then.findings) < Severity.SUSPECT and not lacks(then.scalars, beside.scalars)
