"""Select the checkpoints to delete: only those superseded by newer checkpoints with equal proof.

The rules, which the tests state independently:

1. A checkpoint is deleted only if `keep_last` newer good ones stay, each with at least equal proof: if a checksum can
   prove a checkpoint, only checkpoints that a checksum did prove replace it.
2. A checkpoint that is damaged, incomplete, unreadable or of unknown step stays: only a person decides about it. A
branch that the training run abandoned also stays, unless the policy includes it. 3. A deletion removes no evidence: an
incomplete checkpoint does not look intact afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ckpttool.core.decide.lineage import Lineage
from ckpttool.core.decide.naming import named
from ckpttool.core.decide.resume import two_runs_in
from ckpttool.core.decide.steps import is_out_of_place, left_by_name, not_acted_on
from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey, Content, Inventory
from ckpttool.core.domain.finding import Code, blocking
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.plan import may_be_good
from ckpttool.core.domain.progress import newest_first
from ckpttool.core.domain.retention import Fate, RetentionPlan, RetentionPolicy, Why
from ckpttool.core.domain.units import counted, lasting
from ckpttool.core.domain.verdict import Verdict, VerdictWord
from ckpttool.core.errors import IncompleteError, UsageError
from ckpttool.retention.times import NS, Period, saved, unknown_times


class Verifier(Protocol):
    """The checks of checkpoints that the rules request."""

    def headers(self, checkpoint: Checkpoint) -> Verdict:
        """Judge a checkpoint by headers and sizes."""
        ...

    def has_checksums(self, checkpoint: Checkpoint) -> bool:
        """Return whether every shard has a checksum to compare."""
        ...

    def content(self, checkpoint: Checkpoint) -> Verdict | None:
        """Return the verdict on all bytes of a checkpoint, or None if headers are enough."""
        ...

    def is_intact_in(self, remaining: Inventory, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint is intact by its headers, as if only these other checkpoints existed."""
        ...


Without = Callable[[Sequence[Checkpoint]], Inventory]


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Facts about a tree that are not in its inventory."""

    refused: Mapping[CheckpointKey, str] = field(default_factory=dict)
    """Saves that their layout forbids moving, each with the reason in words that follow "it"."""
    now_ns: int | None = None
    """The current time in nanoseconds since 1970, to find times in the future; None to skip this."""
    spared: Mapping[CheckpointKey, Why] = field(default_factory=dict)
    """Checkpoints that stay even if they are superseded, each with the reason."""


_Key = tuple[str, ...]


@dataclass(slots=True)
class _Candidate:
    """A checkpoint, and the decision about it."""

    checkpoint: Checkpoint
    word: VerdictWord | None = None
    is_intact: bool = False
    """Whether the headers show no problem."""
    stays: Why | None = None
    """The reason why the checkpoint stays, regardless of counts."""
    because: str = ""
    good: bool = False
    """Whether a run could resume from the checkpoint, as far as it was checked."""
    strong: bool = False
    """Whether a checksum proves the checkpoint, or could prove it."""
    proven: bool = False
    refused: str = ""
    """The reason why the layout forbids moving the checkpoint."""
    why: list[Why] = field(default_factory=list)
    periods: dict[str, str] = field(default_factory=dict)
    """The hour, day or week for which the checkpoint is kept."""
    timeless: str = ""
    """The reason why it is unknown when the checkpoint was saved."""

    @property
    def at(self) -> tuple[int, int]:
        """The run and the step, which are the same for one save in two formats."""
        return self.checkpoint.run, self.checkpoint.step or 0

    def keep(self, why: Why, because: str) -> None:
        """Keep the checkpoint, regardless of counts."""
        self.stays, self.because = why, because


class _Count:
    """Proven good checkpoints so far, newest first: all of them, and those proven by a checksum."""

    def __init__(self, target: int) -> None:
        self._wanted = target
        self._any: set[tuple[int, int]] = set()
        self._strong: set[tuple[int, int]] = set()

    def replaces(self, candidate: _Candidate) -> bool:
        """Return whether enough other checkpoints have at least the same proof as this checkpoint."""
        return len((self._strong if candidate.strong else self._any) - {candidate.at}) >= self._wanted

    def is_full(self, candidate: _Candidate) -> bool:
        """Return whether enough other checkpoints are proven, in any way."""
        return len(self._any - {candidate.at}) >= self._wanted

    def add(self, candidate: _Candidate) -> None:
        self._any.add(candidate.at)
        if candidate.strong:
            self._strong.add(candidate.at)


def retain(
    inventory: Inventory,
    policy: RetentionPolicy,
    verifier: Verifier,
    without: Without,
    given: Circumstances = Circumstances(),
) -> RetentionPlan:
    """Decide about every checkpoint of a tree. Content is read only if a deletion depends on it.

    Args:
        inventory: The inventory, with expected ranks and recorded health.
        policy: The checkpoints to keep.
        verifier: Verifies one checkpoint.
        without: Lists the same tree as if some checkpoints were deleted.
        given: Further facts about the tree.

    Raises:
        UsageError: A name or prefix does not exist, or there are several training runs and none was chosen.
        IncompleteError: The tree changed since its inventory was made.
    """
    checkpoints = newest_first(_of_one_training(inventory, policy.prefix))
    by_name = _named(inventory, policy.keep)
    lineage = Lineage(inventory)
    candidates = [_candidate(checkpoint, lineage, policy, verifier) for checkpoint in checkpoints]
    _keep_last(candidates, policy, verifier)
    _keep_healthy(candidates, policy, verifier)
    _keep_every(candidates, policy, verifier)
    _keep_by_time(candidates, policy, verifier, given.now_ns)
    staying = {candidate.checkpoint.key for candidate in candidates if candidate.stays is not None}
    abandoned = {key: why for key, why in left_by_name(checkpoints).items() if key not in staying}
    refused = {**abandoned, **given.refused}
    for candidate in candidates:
        _keep_what_is_not_ours(candidate, by_name, refused.get(candidate.checkpoint.key))
    for candidate in candidates:
        if _goes(candidate) and candidate.checkpoint.key in given.spared:
            candidate.why.append(given.spared[candidate.checkpoint.key])
    foreign = [checkpoint for checkpoint in inventory.checkpoints if policy.prefix not in {None, checkpoint.prefix}]
    _keep_evidence(candidates, inventory, without, verifier)
    return RetentionPlan(
        root=inventory.root,
        layout=inventory.layout,
        policy=policy,
        fates=(
            *(_fate(candidate, policy) for candidate in candidates),
            *(_other(checkpoint, named=checkpoint in by_name) for checkpoint in newest_first(foreign)),
        ),
    )


def _of_one_training(inventory: Inventory, prefix: str | None) -> list[Checkpoint]:
    prefixes = {checkpoint.prefix for checkpoint in inventory.checkpoints if not is_out_of_place(checkpoint)}
    prefixes_known = sorted(prefixes or {checkpoint.prefix for checkpoint in inventory.checkpoints})
    names = ", ".join(map(repr, prefixes_known)) or "none"
    if prefix is None and len(prefixes_known) > 1:
        raise UsageError(f"there are checkpoints of several training runs here ({names}): choose one with --prefix")
    if prefix is not None and prefix not in prefixes_known:
        raise UsageError(f"no checkpoint has the prefix {prefix!r}; there are: {names}")
    return [checkpoint for checkpoint in inventory.checkpoints if prefix in {None, checkpoint.prefix}]


def _named(inventory: Inventory, names: Iterable[str]) -> list[Checkpoint]:
    """Find the checkpoints to keep. An unknown name is an error, because a typing error must not cost a checkpoint."""
    checkpoints = []
    for name in names:
        matches = named(inventory.checkpoints, name)
        if not matches:
            newest_names = ", ".join(checkpoint.name for checkpoint in newest_first(inventory.checkpoints)[:8])
            raise UsageError(
                f"--keep {name!r} names no checkpoint in {inventory.root}; there are: {newest_names or 'none'}"
            )
        checkpoints += matches
    return checkpoints


def _candidate(checkpoint: Checkpoint, lineage: Lineage, policy: RetentionPolicy, verifier: Verifier) -> _Candidate:
    candidate = _Candidate(checkpoint)
    two_runs = two_runs_in(checkpoint, lineage.inventory)
    against = blocking((*checkpoint.findings, *([] if two_runs is None else [two_runs])))
    if not against:
        verdict = verifier.headers(checkpoint)
        candidate.word = verdict.word
        against = blocking(verdict.findings)
        candidate.is_intact = not against
    warnings = (*not_acted_on(checkpoint), *([] if two_runs is None else [two_runs]))
    if against and all(finding.is_tie for finding in against):
        candidate.keep(
            Why.DISPUTED, (f"one of two saves is wrong ({against[0].code.value}), and there is no evidence which")
        )
    elif may_be_good(against) and any(finding not in warnings for finding in against):
        candidate.keep(Why.DISPUTED, f"whether it is intact is unknown ({against[0].code.value}): it stays")
    elif any(finding not in warnings for finding in against):
        candidate.keep(Why.NOT_WHOLE, f"not intact ({against[0].code.value}): never deleted")
    elif checkpoint.step is None:
        candidate.keep(Why.STEP_UNKNOWN, "no shard shows its step, so which checkpoints are newer is unknown")
    elif warnings:
        candidate.keep(Why.STEP_UNKNOWN, warnings[0].fact or warnings[0].message)
    elif checkpoint.renames:
        candidate.keep(
            Why.NEEDS_RENAMES, ("the ranks disagree about its name, so it is not certain which files belong to it")
        )
    else:
        is_abandoned = lineage.abandoned(checkpoint) is not None
        if is_abandoned and not policy.drop_abandoned:
            by_number = lineage.inventory.tracked is not None
            when = " once enough checkpoints of the lineage have higher numbers" if by_number else ""
            candidate.keep(Why.ABANDONED, f"an abandoned branch; --drop-abandoned deletes it{when}")
        on_course = not is_abandoned and lineage.done_again(checkpoint) is None
        resumable = checkpoint.content is not Content.WEIGHTS_ONLY
        candidate.good = on_course and resumable and checkpoint.health is not Health.UNHEALTHY
        candidate.strong = verifier.has_checksums(checkpoint)
    return candidate


def _prove(candidate: _Candidate, verifier: Verifier) -> bool:
    """Check a good checkpoint at the requested level, and return whether it is still good."""
    if candidate.proven:
        return True
    verdict = verifier.content(candidate.checkpoint)
    if verdict is not None:
        candidate.word = verdict.word
        candidate.strong = verdict.is_proven
        if against := blocking(verdict.findings):
            candidate.good = False
            candidate.keep(Why.NOT_WHOLE, f"not intact ({against[0].code.value}): never deleted")
            return False
    candidate.proven = True
    return True


def _keep_last(candidates: Sequence[_Candidate], policy: RetentionPolicy, verifier: Verifier) -> None:
    count = _Count(policy.keep_last)
    for candidate in candidates:
        if candidate.stays is not None or count.replaces(candidate):
            continue
        if not candidate.good:
            candidate.why.append(Why.NEWER)
        else:
            could_be_proven = candidate.strong
            if _prove(candidate, verifier):
                more = Why.VERIFIED if candidate.strong else Why.UNPROVEN
                candidate.why.append(more if could_be_proven and count.is_full(candidate) else Why.LAST)
                count.add(candidate)


def _keep_healthy(candidates: Sequence[_Candidate], policy: RetentionPolicy, verifier: Verifier) -> None:
    count = _Count(policy.keep_healthy)
    for candidate in candidates:
        healthy = candidate.good and candidate.stays is None and candidate.checkpoint.health is Health.HEALTHY
        if healthy and not count.replaces(candidate) and _prove(candidate, verifier):
            candidate.why.append(Why.HEALTHY)
            count.add(candidate)


def _keep_every(candidates: Sequence[_Candidate], policy: RetentionPolicy, verifier: Verifier) -> None:
    """Keep the first checkpoint at or after each multiple; if several runs saved the same step, the latest run's."""
    if policy.keep_every is None:
        return
    stretches: dict[tuple[int | None, int], list[_Candidate]] = defaultdict(list)
    for candidate in candidates:
        if candidate.good and candidate.stays is None and (stretch := candidate.at[1] // policy.keep_every):
            # Steps of another batch size are not comparable, so each size has separate multiples.
            stretches[candidate.checkpoint.scalars.global_batch_size, stretch].append(candidate)
    for members in stretches.values():
        members.sort(key=lambda candidate: (candidate.at[1], -candidate.at[0], candidate.checkpoint.format.value))
        count = _Count(1)
        for candidate in members:
            # It is alone in its stretch, so no deletion depends on it, and it does not need to be read.
            if not count.replaces(candidate) and (len(members) == 1 or _prove(candidate, verifier)):
                candidate.why.append(Why.EVERY)
                count.add(candidate)


def _keep_by_time(
    candidates: Sequence[_Candidate], policy: RetentionPolicy, verifier: Verifier, now_ns: int | None
) -> None:
    """Keep the newest good checkpoint of each period, and all that are recent, compared with the newest one.

    Recent is not measured from now, because a run that was stopped for a month would lose its last week. A checkpoint
    stays if its time is unknown, because nothing shows that it is old.
    """
    if not policy.uses_times:
        return
    good = [candidate for candidate in candidates if candidate.good and candidate.stays is None]
    unknown = unknown_times([candidate.checkpoint for candidate in reversed(good)], now_ns)
    timed: list[tuple[int, _Candidate]] = []
    for candidate in good:
        time = saved(candidate.checkpoint)
        candidate.timeless = unknown.get(candidate.checkpoint.key, "")
        if candidate.timeless or time is None:
            candidate.why.append(Why.TIME_UNKNOWN)
        else:
            timed.append((time.last, candidate))
    if policy.keep_within is not None and timed:
        since = timed[0][0] - int(policy.keep_within * NS)
        for time_ns, candidate in timed:
            if time_ns >= since:
                candidate.why.append(Why.WITHIN)
    _keep_newest_of_each(Period.HOUR, Why.HOURLY, policy.keep_hourly, timed, verifier)
    _keep_newest_of_each(Period.DAY, Why.DAILY, policy.keep_daily, timed, verifier)
    _keep_newest_of_each(Period.WEEK, Why.WEEKLY, policy.keep_weekly, timed, verifier)


def _keep_newest_of_each(
    period: Period, why: Why, number: int, timed: Sequence[tuple[int, _Candidate]], verifier: Verifier
) -> None:
    """Keep the newest good checkpoint of each of the last periods with a checkpoint, and the oldest if these are few.

    Within a period, as everywhere, only a proven checkpoint replaces one that a checksum can prove.
    """
    counts: dict[str, _Count] = {}
    replaced: list[_Candidate] = []
    for time_ns, candidate in timed if number else ():
        if candidate.stays is not None:
            continue
        name = period.of(time_ns)
        if name not in counts and len(counts) == number:
            return
        count = counts.get(name) or _Count(1)
        if count.replaces(candidate):
            replaced.append(candidate)
        elif _prove(candidate, verifier):
            counts[name] = count
            count.add(candidate)
            candidate.why.append(why)
            candidate.periods[period.value] = name
            replaced.clear()
    if len(counts) == number:
        return
    oldest = next((candidate for candidate in reversed(replaced) if _prove(candidate, verifier)), None)
    if oldest is not None and Why.OLDEST not in oldest.why:
        oldest.why.append(Why.OLDEST)


def _keep_what_is_not_ours(candidate: _Candidate, named: Sequence[Checkpoint], refused: str | None) -> None:
    if refused is not None:
        candidate.refused = refused
        candidate.why.append(Why.NOT_MOVED)
    if candidate.checkpoint in named:
        candidate.why.append(Why.NAMED)
    if candidate.stays is None and any(finding.code is Code.STRAY_FILE for finding in candidate.checkpoint.findings):
        candidate.why.append(Why.UNKNOWN_FILES)


def _keep_evidence(
    candidates: Sequence[_Candidate], inventory: Inventory, without: Without, verifier: Verifier
) -> None:
    """Keep the evidence for other judgements, so that no checkpoint looks better or worse after a deletion.

    Other checkpoints show the number of ranks, the runs that belong together, and the correct one of two headers; this
    module does not know those rules. So the tree is judged as it would be after the deletion. If any remaining
    checkpoint is judged differently, one more checkpoint that removes part of the difference stays, or else the newest
    one. This repeats until nothing differs.
    """
    before = _judgements(inventory)
    looked_at = {_key(candidate.checkpoint): candidate for candidate in candidates if candidate.word is not None}

    def differing(removed: Sequence[_Candidate]) -> frozenset[_Key]:
        """Return the remaining checkpoints that are judged differently."""
        remaining = without([judged_before.checkpoint for judged_before in removed])
        judgements = _judgements(remaining)
        away = {_key(judged_before.checkpoint) for judged_before in removed}
        changed = {key for key, judgement in before.items() if key not in away and judgements.get(key) != judgement}
        for checkpoint in remaining.checkpoints:
            last = looked_at.get(_key(checkpoint))
            if last is not None and verifier.is_intact_in(remaining, checkpoint) != last.is_intact:
                changed.add(_key(checkpoint))
        return frozenset(changed)

    while going := [candidate for candidate in candidates if _goes(candidate)]:
        after = differing(going)
        if not after:
            return
        if differing(()):
            message = f"{inventory.root} changed while the plan was made"
            raise IncompleteError(f"{message}; nothing was changed: run again when nothing changes it")
        mending = _mending(going, lambda staying: differing(_but(going, staying)), after)
        (mending or going[0]).why.append(Why.EVIDENCE)


def _but(going: Sequence[_Candidate], staying: Sequence[_Candidate]) -> list[_Candidate]:
    these = {id(candidate) for candidate in staying}
    return [candidate for candidate in going if id(candidate) not in these]


def _mending(
    group: Sequence[_Candidate],
    staying: Callable[[Sequence[_Candidate]], frozenset[_Key]],
    differing: frozenset[_Key],
) -> _Candidate | None:
    """Return the newest checkpoint that alone restores some differing judgements; a half that restores none is skipped.

    Each check is a scan of the tree, and there may be thousands of deletions.
    """
    middle = (len(group) + 1) // 2
    for half in filter(None, (group[:middle], group[middle:])):
        after = staying(half)
        if len(half) > 1:
            mending = None if differing <= after else _mending(half, staying, differing)
        else:
            mending = half[0] if len(after) < len(differing) else None
        if mending is not None:
            return mending
    return None


def _judgements(inventory: Inventory) -> dict[_Key, tuple[object, ...]]:
    """Return the judgement of each checkpoint that depends on the others."""
    lineage = Lineage(inventory)
    return {
        _key(checkpoint): (
            checkpoint.step,
            frozenset(finding.code for finding in blocking(checkpoint.findings)),
            bool(checkpoint.renames),
            lineage.abandoned(checkpoint) is not None,
            lineage.done_again(checkpoint) is not None,
            two_runs_in(checkpoint, inventory) is not None,
        )
        for checkpoint in inventory.checkpoints
    }


def _key(checkpoint: Checkpoint) -> _Key:
    """Return the identity of a checkpoint that does not change when others are deleted: its files."""
    return tuple(shard.path for shard in checkpoint.shards[:1]) or (checkpoint.name,)


def _goes(candidate: _Candidate) -> bool:
    return candidate.stays is None and not candidate.why


_BECAUSE = {
    Why.LAST: "among the {last} newest good checkpoints",
    Why.VERIFIED: "among the {last} newest checkpoints proven by a checksum",
    Why.UNPROVEN: "a checksum can prove it, and fewer than {last} newer checkpoints are proven by one",
    Why.HEALTHY: "among the {healthy} newest healthy checkpoints",
    Why.EVERY: "the first at or after a multiple of {every} steps",
    Why.WITHIN: "saved within {within} before the newest good one",
    Why.HOURLY: "the newest good one of the hour {hour} (UTC)",
    Why.DAILY: "the newest good one of {day} (UTC)",
    Why.WEEKLY: "the newest good one of the week {week} (UTC)",
    Why.OLDEST: "the oldest good one, because fewer periods have a save than are to be kept",
    Why.TIME_UNKNOWN: "when it was saved is unknown: {timeless}",
    Why.NAMED: "named by --keep",
    Why.NEWER: "fewer than {last} newer good checkpoints",
    Why.UNKNOWN_FILES: "its folder has files that ckpttool does not recognize",
    Why.NOT_MOVED: "must not be moved: it {refused}",
    Why.ROOM: "superseded, but its deletion is not needed for the requested space",
    Why.EVIDENCE: "without it another checkpoint would be judged differently (ranks, branches, headers)",
}
_BECAUSE_OF_ONE = {
    Why.LAST: "the newest good checkpoint",
    Why.VERIFIED: "the newest checkpoint proven by a checksum",
    Why.UNPROVEN: "a checksum can prove it, and no newer checkpoint is proven by one",
    Why.HEALTHY: "the newest healthy checkpoint",
    Why.NEWER: "no newer good checkpoint",
}
"""The same reasons, if the policy keeps only one checkpoint."""


def _fate(candidate: _Candidate, policy: RetentionPolicy) -> Fate:
    if _goes(candidate):
        stay = "stays" if policy.keep_last == 1 else "stay"
        reason = f"{counted(policy.keep_last, 'newer good checkpoint')} {stay}"
        return Fate(checkpoint=candidate.checkpoint, why=(Why.REPLACED,), because=reason, word=candidate.word)
    texts = [_because(why, policy, candidate) for why in candidate.why]
    if candidate.stays is not None:
        return Fate(
            checkpoint=candidate.checkpoint,
            why=(candidate.stays, *candidate.why),
            because="; ".join((candidate.because, *texts)),
            word=candidate.word,
        )
    return Fate(
        checkpoint=candidate.checkpoint, why=tuple(candidate.why), because="; ".join(texts), word=candidate.word
    )


def _because(why: Why, policy: RetentionPolicy, candidate: _Candidate) -> str:
    numbers = {"last": policy.keep_last, "healthy": policy.keep_healthy, "every": policy.keep_every}
    within = lasting(policy.keep_within or 0)
    keeps = policy.keep_healthy if why is Why.HEALTHY else policy.keep_last
    text = _BECAUSE_OF_ONE.get(why, _BECAUSE[why]) if keeps == 1 else _BECAUSE[why]
    facts = {"refused": candidate.refused, "timeless": candidate.timeless, **candidate.periods}
    return text.format(**numbers, within=within, **facts)


def _other(checkpoint: Checkpoint, *, named: bool) -> Fate:
    why = (Why.OTHER_TRAINING, Why.NAMED) if named else (Why.OTHER_TRAINING,)
    return Fate(checkpoint=checkpoint, why=why, because=f"of another training run, {checkpoint.prefix!r}", word=None)
