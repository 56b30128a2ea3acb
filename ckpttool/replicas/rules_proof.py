"""What proves that two ranks' shards are copies: a record of the layout, or what other checkpoints show of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ckpttool.core.domain.finding import Code, Severity, worst
from ckpttool.core.domain.replicas import Proof, RecordedSlices
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.units import Rank, counted
from ckpttool.core.domain.verdict import ShardReport
from ckpttool.replicas.model import Place, SavedShards, Sealed

MIN_WITNESSES = 2
"""Other checkpoints that must show two ranks equal: at one alone, they may be equal by chance, as at the start."""

_BEGINNING = 0
"""The step at which slices may be equal that are no copies: nothing was trained yet."""


_BY_COPIES = frozenset({Code.REPLICA_DIFFERS, Code.REPLICA_STALE, Code.REPLICA_DRIFTED})
"""What is said of a shard only for its copies' sake."""

_OF_NUMBERS = frozenset({Code.NONFINITE_VALUES, Code.NORM_JUMP, Code.ALL_ZERO_TENSOR})
"""What speaks against one of two that differ, however light it is by itself."""


class CopyProof(NamedTuple):
    """Why two shards are known to hold the same."""

    proof: Proof
    record: str | None = None
    witnesses: tuple[str, ...] = ()
    rest_agrees: bool = False


class _Digests(NamedTuple):
    """What a shard holds."""

    schema: str | None
    digests: Mapping[str, bytes]


class _Equal(NamedTuple):
    """Another checkpoint at which a shard was what a donor's was."""

    saved: SavedShards
    digests: Mapping[str, bytes]


class _BorneOut(NamedTuple):
    """What the whole shards of a checkpoint show of a record."""

    is_shown: bool
    """Whether some that are copies by it are equal, and all that are."""
    shared: frozenset[str]
    """Tensors that all of them hold alike, so that any other one would, too."""


class Evidence(NamedTuple):
    """All there is to tell which shards are copies."""

    companions: Sequence[SavedShards]
    recorded: RecordedSlices | None
    tensor: str | None
    """The one that is to be replaced; None: all must be the same."""
    reports: Mapping[Place, ShardReport]
    doubtful: Collection[Place]
    steady: dict[tuple[str, ShardRole, str | None], bool]
    """What `_is_steady` found before: thousands of donors ask the same."""
    sealed: Mapping[Place, Sealed]
    """What was sealed of the shards in question."""
    borne_out: dict[tuple[ShardRole, str | None], _BorneOut]
    """What `_borne_out` found before."""

    def digests_of(self, report: ShardReport) -> dict[str, bytes] | None:
        """Return the digests that count; None where one of them is not known."""
        if self.tensor is None:
            return _all_held(report)
        by_name = {} if report.tensor_digests is None else report.tensor_digests.by_name
        return {self.tensor: by_name[self.tensor]} if self.tensor in by_name else None

    def of(self, sick: Place, like: Place, report: ShardReport) -> CopyProof | str:
        """Return what proves that two shards are copies, or say why nothing does."""
        held_now = self.digests_of(report) or {}
        if self.is_as_sealed(sick, report):
            return CopyProof(Proof.SEALED, record=self.sealed[sick].record)
        recorded = self._recorded(sick, like, report.schema_hash, held_now)
        return self._learned(sick, like, report, held_now) if recorded is None else recorded

    def is_as_sealed(self, sick: Place, report: ShardReport) -> bool:
        """Tell whether a shard holds what the manifest has of another one, in all that counts."""
        sealed, current = self.sealed.get(sick), self.digests_of(report)
        if sealed is None or current is None:
            return False
        if self.tensor is not None:
            return sealed.tensors.by_name.get(self.tensor) == current[self.tensor]
        return (sealed.schema_hash, sealed.tensors.by_name) == (report.schema_hash, current)

    def blamed(self, sick: Place, copies: Mapping[Place, ShardReport]) -> tuple[dict[Place, ShardReport], int]:
        """Return who is doubted for nothing but that copies differ, and count who may be a copy and says nothing.

        Args:
            sick: Which shard's copies, it among them.
            copies: Those that are proven and not doubted.
        """
        like = next(iter(copies.values()))
        blamed: dict[Place, ShardReport] = {}
        silent = 0
        for place in {*self.reports, *self.doubtful} - copies.keys():
            report = self.reports.get(place)
            if place[1] is not sick[1] or not self._may_be_copy(sick, place):
                continue
            if report is None or not _is_only_outvoted(report) or self.digests_of(report) is None:
                silent += 1
            elif report.schema_hash == like.schema_hash and not self.is_older_than(place, like):
                blamed[place] = report
        return blamed, silent

    def _may_be_copy(self, sick: Place, like: Place) -> bool:
        """Tell whether nothing speaks against it that a shard is, or was, a copy."""
        slices = {} if self.recorded is None else self.recorded.slices
        if any(sick[0] in ranks and ranks[sick[0]] != ranks.get(like[0]) for ranks in slices.values()):
            return False
        pairs = ((self._sound(saved, sick), self._sound(saved, like)) for saved in self.companions if saved.same_run)
        return all(ours is None or theirs is None or ours == theirs for ours, theirs in pairs)

    def is_older_than(self, place: Place, later_report: ShardReport) -> bool:
        """Tell whether a shard's tensors are most of them not another's, and its own at another save of the run."""
        report = self.reports[place]
        ours, theirs = self.digests_of(report) or {}, self.digests_of(later_report) or {}
        differing = [name for name in ours if ours[name] != theirs.get(name)]
        if 2 * len(differing) <= len(ours):
            return False
        earlier_reports = (self._sound(saved, place) for saved in self.companions if saved.same_run)
        return any(
            saved is not None and 2 * sum(saved.digests.get(name) == ours[name] for name in differing) > len(differing)
            for saved in earlier_reports
        )

    def _recorded(
        self, sick: Place, like: Place, schema: str | None, tensors: Collection[str]
    ) -> CopyProof | str | None:
        """Return what a record proves or says against it; None where it does not tell of all tensors.

        One that was not written with the save proves nothing alone: another checkpoint of the run, or other copies in
        this one, must bear it out. What it does not tell of is the same slice where all whole shards hold the same.
        """
        if self.recorded is None:
            return None
        slices = self.recorded.slices
        for name in sorted(slices) if self.tensor is None else tensors:
            digests = slices.get(name, {})
            if digests.get(sick[0]) != digests.get(like[0]):
                return f"rank {like[0]} holds another slice of {name} by {self.recorded.source}"
        untold = {name for name in tensors if not {sick[0], like[0]} <= slices.get(name, {}).keys()}
        if not self.recorded.is_of_save:
            borne_out = self._borne_out(like[1], schema, slices)
            untold -= borne_out.shared
            if not borne_out.is_shown and not any(map(partial(self._were_equal, sick, like), self.companions)):
                return None
        return None if untold else CopyProof(Proof.RECORDED, record=self.recorded.source)

    def _were_equal(self, sick: Place, like: Place, saved: SavedShards) -> bool:
        ours = self._sound(saved, sick)
        return saved.same_run and ours is not None and ours == self._sound(saved, like)

    def _borne_out(self, role: ShardRole, schema: str | None, slices: Mapping[str, Mapping[Rank, int]]) -> _BorneOut:
        """Tell what the whole shards of a kind show of a record."""
        if (role, schema) not in self.borne_out:
            candidates = [
                (tuple(ranks.get(place[0]) for ranks in slices.values()), report, digests)
                for place, report in self.reports.items()
                if place[1] is role and place not in self.doubtful and is_sound(report)
                if report.schema_hash == schema and (digests := self.digests_of(report)) is not None
            ]
            firsts: dict[tuple[int | None, ...], tuple[ShardReport, Mapping[str, bytes]]] = {}
            for slots, report, digests in candidates:
                firsts.setdefault(slots, (report, digests))
            is_shown = any(are_two_files(report, firsts[slots][0]) for slots, report, _ in candidates)
            is_shown = is_shown and all(digests == firsts[slots][1] for slots, _, digests in candidates)
            is_shown = is_shown and self._hold_what_is_told(role, slices)
            every = [set(digests.items()) for _, _, digests in candidates]
            shared = {name for name, _ in set.intersection(*every)} if len(every) > 1 else set()
            self.borne_out[role, schema] = _BorneOut(is_shown, frozenset(shared))
        return self.borne_out[role, schema]

    def _hold_what_is_told(self, role: ShardRole, slices: Mapping[str, Mapping[Rank, int]]) -> bool:
        """Tell whether every whole shard has the tensors that a record says its rank has.

        Not what it says of another tensor's states: accumulators are never saved, and moments not always.
        """
        states = {name for name in slices if any(name[at + 1 :] in slices for at in _dots(name))}
        by_index: dict[int, tuple[Mapping[Rank, int], list[str]]] = {}
        for name in slices.keys() - states:
            by_index.setdefault(id(slices[name]), (slices[name], []))[1].append(name)
        return all(
            digests.keys() >= {name for ranks, names in by_index.values() if place[0] in ranks for name in names}
            for place, report in self.reports.items()
            if place[1] is role and place not in self.doubtful and is_sound(report)
            if (digests := _all_held(report)) is not None
        )

    def _learned(self, sick: Place, like: Place, report: ShardReport, held_now: Mapping[str, bytes]) -> CopyProof | str:
        equal: list[_Equal] = []
        elsewhere: list[_Equal] = []
        for saved in self.companions:
            ours, theirs = self._sound(saved, sick), self._sound(saved, like)
            if ours is None or theirs is None:
                continue
            is_alike = theirs.schema == report.schema_hash
            if ours != theirs:
                if saved.same_run or is_alike:
                    return f"rank {like[0]} {_differs_in(ours.digests, theirs.digests)} at {saved.name}"
            elif is_alike:
                (equal if saved.same_run else elsewhere).append(_Equal(saved, ours.digests))
        if len(equal) < MIN_WITNESSES:
            steady = [
                equal_save
                for equal_save in (*equal, *elsewhere)
                if self._is_steady(equal_save.saved, like[1], report.schema_hash)
            ]
            if equal and equal[0] in steady and self._rest_agrees(sick, report, equal[0].saved.shards[like]):
                return CopyProof(Proof.LEARNED, witnesses=(equal[0].saved.name,), rest_agrees=True)
            if not equal or equal[0] not in steady or len(steady) < MIN_WITNESSES:
                return f"rank {like[0]} was equal at {counted(len(equal), 'other checkpoint')} of the run"
            equal = steady
        if (constant := _never_changed(held_now, [equal_save.digests for equal_save in equal])) is not None:
            return f"{constant} did not change where rank {like[0]} was equal, and has changed since"
        return CopyProof(Proof.LEARNED, witnesses=tuple(equal_save.saved.name for equal_save in equal))

    def _sound(self, saved: SavedShards, place: Place) -> _Digests | None:
        """Return what a shard held at another checkpoint; None where that is not known, or in doubt."""
        report = saved.shards.get(place)
        digests = None if report is None or not is_sound(report) else self.digests_of(report)
        return None if report is None or digests is None else _Digests(report.schema_hash, digests)

    def _is_steady(self, saved: SavedShards, role: ShardRole, schema: str | None) -> bool:
        """Tell whether those who held the same of a tensor at another checkpoint, and no others, do so now.

        Between two starts of a training ranks may change places, and what nobody trained yet is equal by chance: both
        show in the ranks that can still be asked.
        """
        key = saved.name, role, schema
        if key not in self.steady:
            pairs = [
                (current, past.digests)
                for place, report in self.reports.items()
                if place[1] is role and place not in self.doubtful and is_sound(report)
                if (current := self.digests_of(report)) is not None and (past := self._sound(saved, place)) is not None
                if report.schema_hash == past.schema == schema
            ]
            columns = (
                {(current[name], past[name]) for current, past in pairs} for name in (pairs[0][0] if pairs else ())
            )
            self.steady[key] = saved.step != _BEGINNING and all(
                len(both) == len({current for current, _ in both}) == len({past for _, past in both})
                for both in columns
            )
        return self.steady[key]

    def _rest_agrees(self, sick: Place, current: ShardReport, past: ShardReport) -> bool:
        """Tell whether what is whole of a damaged file changed as the donor's did, since a witness of the same run.

        Only where most ranks are whole: those who hold another slice are then among them, and would show.
        """
        sick_report = self.reports.get(sick)
        suspect_count = sum(place[1] is sick[1] for place in self.doubtful)
        sound_count = sum(
            place[1] is sick[1] and report.schema_hash == current.schema_hash and place not in self.doubtful
            for place, report in self.reports.items()
        )
        if sick_report is None or sick_report.schema_hash != current.schema_hash or suspect_count >= sound_count:
            return False
        ours, theirs, before = map(_all_held, (sick_report, current, past))
        if ours is None or theirs is None or before is None:
            return False
        differing = sum(ours[name] != theirs[name] for name in theirs)
        changed = sum(ours[name] == theirs[name] != before[name] for name in theirs)
        return changed > differing


def _dots(name: str) -> Iterator[int]:
    at = name.find(".")
    while at >= 0:
        yield at
        at = name.find(".", at + 1)


def _all_held(report: ShardReport) -> dict[str, bytes] | None:
    """Return the digests of all tensors; None where one of them is not known."""
    tensor_digests = report.tensor_digests
    return None if tensor_digests is None or len(tensor_digests) != report.tensors else tensor_digests.by_name


def _is_only_outvoted(report: ShardReport) -> bool:
    """Tell whether all that speaks against a shard is that its copies differ from it."""
    against = {
        finding.code
        for finding in report.findings
        if finding.severity >= Severity.SUSPECT or finding.code in _OF_NUMBERS
    }
    return bool(against) and against <= _BY_COPIES


def are_two_files(report: ShardReport, peer: ShardReport) -> bool:
    """Tell whether they are no two names of one file, which is no copy of itself."""
    return report is not peer and (report.stamp is None or report.stamp != peer.stamp)


def is_sound(report: ShardReport) -> bool:
    """Tell whether nothing speaks against a shard."""
    return worst(report.findings) < Severity.SUSPECT


def _differs_in(a: Mapping[str, bytes], b: Mapping[str, bytes]) -> str:
    if a.keys() != b.keys():
        return "held other tensors"
    first = next((name for name in a if a[name] != b[name]), None)
    return "held tensors of other shapes" if first is None else f"differed in {first}"


def _never_changed(current: Mapping[str, bytes], past: Sequence[Mapping[str, bytes]]) -> str | None:
    """Return a tensor that was the same at all witnesses and is another now: that it was equal taught nothing."""
    return next(
        (
            name
            for name, digest in current.items()
            if len(values := {digests[name] for digests in past}) == 1 and {digest} != values
        ),
        None,
    )
