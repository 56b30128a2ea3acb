"""Checkpoints that can be compared with a given checkpoint, nearest first, and pairs of their shards, by role."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Severity, worst
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.progress import Progress
from ckpttool.core.domain.scalars import ScalarValues
from ckpttool.core.domain.shard import FormatName, ShardRole
from ckpttool.core.domain.verdict import ShardReport

MOST_SIBLINGS = 2
"""Number of checkpoints to compare with: one may be damaged or older than a change; more would only cost time."""

MOST_WITNESSES = 6
"""Maximum number of checkpoints to compare with if the nearest contradict a checkpoint, or cannot be used."""

_Place = tuple[int | None, ShardRole, str]

COMPARED = tuple(role for role in ShardRole if role not in {ShardRole.INDEX, ShardRole.DATA, ShardRole.STATE})
"""Roles whose files have equal structure at every step. Records and the slices of a writer do not."""

MIN_PEERS = 3
"""Minimum number of shards of a role that can outvote a single different shard."""

_SLICES_AMONG = 10
"""At most one in this many ranks with slices has the same content as another."""


def are_slices(ranks: int, contents: int) -> bool:
    """Return whether ranks have slices, because nearly every rank has different content."""
    return ranks >= MIN_PEERS and (ranks - contents) * _SLICES_AMONG <= ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Sibling:
    """The headers of another checkpoint."""

    reports: tuple[ShardReport, ...]
    older: bool
    """Whether the sibling was saved before the judged checkpoint."""
    same_run: bool
    """Whether the same start of the run wrote the sibling; between two starts, the configuration may change."""
    sealed: frozenset[str] = frozenset()
    """Paths of the shards whose header matches a manifest."""


class Neighbours:
    """The comparable checkpoints of a tree, sorted once for all questions."""

    def __init__(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Store all checkpoints of the tree, in the order of the inventory: by run, then by progress."""
        self._progress = Progress(checkpoints)
        self._trainings: dict[_Kind, _Training] = {}
        for checkpoint in checkpoints:
            training = self._trainings.setdefault(_kind(checkpoint), _Training())
            training.add(checkpoint, self._progress.of(checkpoint))

    def is_older(self, checkpoint: Checkpoint, later: Checkpoint) -> bool:
        """Return whether a checkpoint was saved before another, in an earlier run or at an earlier position."""
        first, second = (self._progress.of(save) if save.label is None else save.step for save in (checkpoint, later))
        return (checkpoint.run, -1 if first is None else first) < (later.run, -1 if second is None else second)

    def siblings(self, checkpoint: Checkpoint, *, most: int = MOST_SIBLINGS) -> tuple[Checkpoint, ...]:
        """Return the checkpoints to compare with: the nearest of the same run, then the last of an earlier run."""
        training = self._trainings.get(_kind(checkpoint), _Training())
        own_run = training.runs.get(checkpoint.run, _Run())
        at = own_run.places.get(checkpoint.name, len(own_run.saved))
        before, after = own_run.saved[max(0, at - most) : at][::-1], own_run.saved[at + 1 : at + 1 + most]
        in_turn = [save for pair in zip_longest(before, after) for save in pair if save is not None]
        near = [*before[:MOST_SIBLINGS], *after[:MOST_SIBLINGS]]
        nearest, farther = ([save for save in in_turn if (save in near) is is_near] for is_near in (True, False))
        # One checkpoint of another start is enough if no question is open.
        others = 1 if most == MOST_SIBLINGS else MOST_SIBLINGS
        earlier = [run.saved[: -others - 1 : -1] for run in islice(training.before(checkpoint.run), 1)]
        return (*nearest, *farther, *(save for saved in earlier for save in saved))[:most]

    def later_start(self, checkpoint: Checkpoint) -> tuple[Checkpoint, ...]:
        """Return the first checkpoints of the run that was started after a checkpoint's run."""
        runs = self._trainings.get(_kind(checkpoint), _Training()).runs
        following = min((number for number in runs if number > checkpoint.run), default=None)
        return () if following is None else tuple(runs[following].saved[:MOST_WITNESSES])

    def in_line(self, checkpoint: Checkpoint) -> tuple[list[Checkpoint], list[Checkpoint]]:
        """Return the checkpoints of the training run before and after a checkpoint, both nearest first."""
        training = self._trainings.get(_kind(checkpoint), _Training())
        own_run = training.runs.get(checkpoint.run, _Run())
        at = own_run.places.get(checkpoint.name, len(own_run.saved))
        earlier = [
            saved_checkpoint for run in training.before(checkpoint.run) for saved_checkpoint in reversed(run.saved)
        ]
        later = [
            saved_checkpoint
            for number in sorted(training.runs)
            if number > checkpoint.run
            for saved_checkpoint in training.runs[number].saved
        ]
        return own_run.saved[:at][::-1] + earlier, own_run.saved[at + 1 :] + later

    def earlier(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """Return the previous checkpoint of the training run; None if there is no such checkpoint or no step is known.

        A resumed run continues from an earlier run's checkpoint; the later saves of the earlier run are another branch.
        """
        training = self._trainings.get(_kind(checkpoint))
        place = self._progress.of(checkpoint)
        if place is None or training is None:
            return None
        for run in training.before(checkpoint.run + 1):
            places = run.ascending()
            if (at := bisect_left(places, place)) > 0:
                return run.by_place[places[at - 1]]
        return None


_Kind = tuple[str, FormatName, int | None]


def _kind(checkpoint: Checkpoint) -> _Kind:
    return checkpoint.prefix, checkpoint.format, checkpoint.topology.world_size


class _Run:
    """The saves of one start of a training run."""

    def __init__(self) -> None:
        self.saved: list[Checkpoint] = []
        self.places: dict[str, int] = {}
        """Name -> its first position in `saved`."""
        self.by_place: dict[int, Checkpoint] = {}
        """Progress of the training run -> checkpoint."""
        self._ascending: list[int] | None = None

    def add(self, checkpoint: Checkpoint, place: int | None) -> None:
        self.places.setdefault(checkpoint.name, len(self.saved))
        self.saved.append(checkpoint)
        if place is not None:
            self.by_place.setdefault(place, checkpoint)

    def ascending(self) -> list[int]:
        """Return the known positions of the run's saves."""
        if self._ascending is None:
            self._ascending = sorted(self.by_place)
        return self._ascending


class _Training:
    """All runs that wrote checkpoints of one kind."""

    def __init__(self) -> None:
        self.runs: dict[int, _Run] = {}
        self._numbers: list[int] | None = None

    def add(self, checkpoint: Checkpoint, place: int | None) -> None:
        self.runs.setdefault(checkpoint.run, _Run()).add(checkpoint, place)

    def before(self, number: int) -> Iterator[_Run]:
        """Yield the runs below a number, latest first."""
        if self._numbers is None:
            self._numbers = sorted(self.runs)
        for at in range(bisect_left(self._numbers, number) - 1, -1, -1):
            yield self.runs[self._numbers[at]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A shard, and the same rank's shard at another step."""

    current: ShardReport
    past: ShardReport
    sibling: Sibling
    """The sibling to which `past` belongs."""


class Peers:
    """The inputs of the rules for one role."""

    def __init__(self, reports: Sequence[ShardReport], siblings: Sequence[Sibling]) -> None:
        """Store the shards whose headers could be parsed, and the siblings, best first."""
        self.reports = reports
        self._known = [(sibling, _by_place(sibling)) for sibling in siblings]
        self.pairs = [pair for report in reports if (pair := self._pair(report)) is not None]
        self.by_past_schema: dict[str | None, list[Pair]] = defaultdict(list)
        """The pairs by their schema at the other step."""
        for pair in self.pairs:
            self.by_past_schema[pair.past.schema_hash].append(pair)

    def _pair(self, report: ShardReport) -> Pair | None:
        for sibling, past_reports in self._known:
            past = past_reports.get(_place(report))
            if past is not None and _is_sound(past, current=report):
                return Pair(current=report, past=past, sibling=sibling)
        return None

    def by_sibling(self) -> Iterator[tuple[Sibling, dict[str, ShardReport]]]:
        """Return each sibling with its shards of the same ranks, by the path of our shard."""
        for sibling, past_reports in self._known:
            pairs = (
                (report, past_reports[_place(report)]) for report in self.reports if _place(report) in past_reports
            )
            yield sibling, {report.path: past for report, past in pairs if _is_sound(past, current=report)}

    def is_outvoted(self, pair: Pair) -> bool:
        """Return whether another sibling agrees with a pair's sibling."""
        return any(
            past.schema_hash == pair.past.schema_hash
            for past, sibling in self.others(pair.current)
            if sibling is not pair.sibling
        )

    def others(self, report: ShardReport) -> Iterator[tuple[ShardReport, Sibling]]:
        """Return the same rank's shards of all siblings."""
        return (
            (past_reports[_place(report)], sibling)
            for sibling, past_reports in self._known
            if _place(report) in past_reports
        )


def unpaired(reports: Sequence[ShardReport], siblings: Sequence[Sibling]) -> list[ShardReport]:
    """Return the parsed shards without a comparable file in any sibling."""
    known = [_by_place(sibling) for sibling in siblings]
    return [
        report
        for report in reports
        if report.schema_hash is not None
        and not any(
            (past := past_reports.get(_place(report))) is not None and _is_sound(past, current=report)
            for past_reports in known
        )
    ]


def are_damaged_there(reports: Sequence[ShardReport], siblings: Sequence[Sibling]) -> bool:
    """Return whether a sibling has a file for one of these shards, so that another may have an intact file."""
    places = {_place(past) for sibling in siblings for past in sibling.reports}
    return any(_place(report) in places for report in reports)


def lacks(scalars: ScalarValues, sibling_scalars: ScalarValues) -> bool:
    """Return whether one file lacks a training scalar that the other has."""
    return scalars != sibling_scalars and not dict(sibling_scalars).keys() <= dict(scalars).keys()


def _place(report: ShardReport) -> _Place:
    # Several files that all ranks share have the same role; among these, files with the same name correspond.
    return report.rank, report.role, report.path.rpartition("/")[2] if report.rank is None else ""


def _by_place(sibling: Sibling) -> dict[_Place, ShardReport]:
    """Return the parsed shards, excluding shards at a different step from most shards of their checkpoint."""
    usual = {role: _usual_scalars([report for report in sibling.reports if report.role is role]) for role in ShardRole}
    return {
        _place(report): report
        for report in sibling.reports
        if report.schema_hash is not None and usual[report.role] in {None, report.scalars}
    }


def _usual_scalars(reports: Sequence[ShardReport]) -> ScalarValues | None:
    """Return the training scalars of the majority of a checkpoint's shards, or None if there is no majority."""
    counts = Counter(report.scalars for report in reports if report.schema_hash is not None)
    usual, times = counts.most_common(1)[0] if counts else (None, 0)
    return usual if 2 * times > counts.total() else None


def _is_sound(past: ShardReport, *, current: ShardReport) -> bool:
    """Return whether a sibling's shard is comparable: intact, and with the scalars that this shard has."""
    return worst(past.findings) < Severity.SUSPECT and not lacks(past.scalars, current.scalars)
