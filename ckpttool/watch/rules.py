"""Interpretation of a poll: new saves, saves to read, and events to report.

A save is first in progress, then complete, then good or bad, and disappears with its files. Two cases resemble damage
but are not: a save in progress, and a save that the trainer's own retention deletes. An incomplete save is therefore
reported only after its files have not changed for longer than the patience, and a result counts only if the files have
not changed since. The clock is the watch's own, and never goes back.
"""

from __future__ import annotations

from math import inf
from statistics import median

from ckpttool.core.domain.finding import Code, Finding, Severity, blocking, summary_of, suspect, unknown, worst
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import counted, in_gib, lasting, on_ranks
from ckpttool.core.domain.verdict import VerdictWord, word_of
from ckpttool.health.findings import HealthCode
from ckpttool.nodes.findings import NodesCode
from ckpttool.watch.findings import WatchCode
from ckpttool.watch.model import (
    UNKNOWN_WORDS,
    Action,
    EventKind,
    Judge,
    Judgement,
    KnownNode,
    KnownSave,
    SaveState,
    SeenSave,
    Sighting,
    Watched,
    WatchEvent,
    WatchRule,
)

LEAST_PATIENCE = 600.0
"""Minimum patience in seconds. A save of a large training run takes minutes."""

USUAL = 8
"""Number of saves that determine the usual pace: enough to ignore an outlier, few enough to follow a change."""

LEAST_INTERVALS = 2
"""Minimum number of intervals from which the usual pace is known."""

TIMES_USUAL = 3
"""Multiple of the usual interval after which a save is overdue."""

_OF_CONTENT = frozenset({
    Code.NONFINITE_VALUES, Code.ALL_ZERO_TENSOR, Code.NORM_JUMP, Code.REPLICA_DIFFERS, Code.REPLICA_STALE,
    Code.REPLICA_DRIFTED, Code.MARKED_BAD, Code.MARKED_UNHEALTHY, HealthCode.NORM_ABOVE_THRESHOLD,
})  # fmt: skip
"""Codes that a save in progress never has. They are therefore reported immediately."""

_WHILE_REWRITTEN = frozenset(
    {Code.CHECKSUM_MISMATCH, Code.REPLICA_DIFFERS, Code.REPLICA_STALE, Code.REPLICA_DRIFTED, Code.SCHEMA_DIFFERS}
)
"""Codes that a good save may have while it is rewritten, rank after rank."""

_NOT_KNOWN = frozenset({EventKind.UNREADABLE, EventKind.HEALTH_UNKNOWN})

_MAY_CHANGE = frozenset({VerdictWord.UNREADABLE, VerdictWord.UNSTABLE})
"""Verdicts without evidence about the files."""


def observe(watched: Watched, sighting: Sighting, rule: WatchRule, *, now: float) -> tuple[Watched, tuple[Action, ...]]:
    """Update the state with a poll, and return the actions.

    Args:
        watched: The state before this poll.
        sighting: The result of this poll.
        rule: The rules for reporting events.
        now: Seconds of the watch's clock. A clock that went back counts as unchanged.

    Returns:
        The new state, and the actions: first the events to report, then the saves to read, newest first.
    """
    now = max(now, watched.now)
    if watched.saves and not sighting.saves:  # no trainer deletes its newest save: more likely, the disk is not mounted
        return unseen(watched, rule, "it has no checkpoint any more", now=now)
    moves = sighting.under_way != watched.under_way
    # A save that appeared since the last poll cannot be quiet for longer, even if its files are older: they are being
    # copied.
    passed = inf if watched.last_new is None else now - watched.now
    watched = replace(watched, now=now, unseen_since=None, unseen_told=False, under_way=sighting.under_way)
    before = {save.key: save for save in watched.saves}
    longest = 0.0 if rule.rested is None else passed
    aged = [replace(save, age=min(save.age or 0.0, longest)) for save in sighting.saves]
    saves = [_seen(before.get(save.key), save, rule, now, moves=moves) for save in aged]
    if not sighting.is_complete:
        keys = {save.key for save in saves}
        saves += [save for save in watched.saves if save.key not in keys]
    watched = _with_new(watched, saves, before, sighting)
    actions: list[Action] = []
    judges: list[Action] = []
    by_key = {save.key: save for save in sighting.saves}
    patience = patience_of(watched, rule)
    for at, save in enumerate(saves):
        if save.key not in by_key:
            continue
        replaced = any(newer.state is SaveState.GOOD for newer in saves[:at])
        if save.state is SaveState.GOOD:
            action: Action | None = _again(save, rule, now, is_replaced=replaced)
        elif save.state is SaveState.BAD:
            action = _once_more(save, rule, patience, now)
        else:
            usual = next((save.good_files for save in saves[at + 1 :] if save.state is SaveState.GOOD), 0)
            after, action = _next(save, by_key[save.key], rule, watched, usual=usual)
            saves[at] = after
            if after.told_incomplete and not save.told_incomplete and after.word in UNKNOWN_WORDS:
                judges.append(_judge(after, rule, final=True))  # its content may show damage that the listing does not
        if action is not None:
            (judges if isinstance(action, Judge) else actions).append(action)
    watched = replace(watched, saves=tuple(saves))
    watched, late = _overdue(watched)
    watched, low = _room(watched, sighting)
    watched, running_out = _running_out(watched, sighting, rule)
    watched, silent = _silent_parts(watched, sighting, patience)
    return watched, (*actions, *late, *low, *running_out, *silent, *judges)


def unseen(watched: Watched, rule: WatchRule, why: str, *, now: float) -> tuple[Watched, tuple[WatchEvent, ...]]:
    """Record that the tree cannot be read, leave the state unchanged, and report the problem once.

    Args:
        watched: The state before.
        rule: The rules for reporting events.
        why: The reason, as a complete sentence.
        now: As in `observe`.
    """
    now = max(now, watched.now)
    since = now if watched.unseen_since is None else watched.unseen_since
    watched = replace(watched, now=now, unseen_since=since)
    if not watched.saves or watched.unseen_told or now - since < patience_of(watched, rule):
        return watched, ()
    finding = unknown(
        Code.UNREADABLE,
        f"the tree has not been readable for {lasting(now - since)}: {why}",
        remedy="check whether its disk is mounted and responds",
    )
    newest = watched.saves[0]
    event = replace(_event(EventKind.UNREADABLE, newest, findings=(finding,)), name=None, step=None, word=None)
    return replace(watched, unseen_told=True), (replace(event, subject=f"tree {event.subject}"),)


def patience_of(watched: Watched, rule: WatchRule) -> float:
    """Return how many seconds a save may stay unchanged before missing files are reported."""
    if rule.patience is not None:
        return rule.patience
    return max(LEAST_PATIENCE, TIMES_USUAL * median(watched.durations) if watched.durations else 0.0)


def _seen(known_save: KnownSave | None, seen_save: SeenSave, rule: WatchRule, now: float, *, moves: bool) -> KnownSave:
    """Return the state of a save after a poll.

    Args:
        known_save: The state before the poll.
        seen_save: The save in this poll. Its age shows how long it has been quiet.
        rule: The rule for a save that is no longer written.
        now: Time by the watch's clock.
        moves: Whether a rank is still writing temporary files anywhere in the tree.
    """
    if known_save is not None and known_save.fingerprint == seen_save.fingerprint:
        if (
            known_save.state is SaveState.GOOD
            or "" in {known_save.beside, seen_save.beside}
            or known_save.beside == seen_save.beside
        ):
            changed = now if moves and seen_save.incomplete else known_save.changed_at
            settled_polls = min(known_save.still + 1, rule.settle)
            return replace(
                known_save, still=settled_polls, changed_at=changed, beside=seen_save.beside or known_save.beside
            )
        return replace(  # one of its records, which may have been incomplete when it was read
            known_save, beside=seen_save.beside, state=SaveState.SAVING, changed_at=now, still=0, judged_at=None
        )
    if (
        known_save is not None and known_save.good_as == seen_save.fingerprint
    ):  # a folder could not be listed for a while
        return replace(
            known_save, fingerprint=seen_save.fingerprint, state=SaveState.GOOD, judged_at=now, read_again=False
        )
    at = now - (seen_save.age or 0.0)
    good_ns = None if known_save is None else known_save.good_ns
    newly = seen_save.written_ns is not None and good_ns is not None and seen_save.written_ns[0] > good_ns
    was_told = known_save is None or known_save.state in {SaveState.GOOD, SaveState.BAD}
    return KnownSave(
        key=seen_save.key,
        name=seen_save.name,
        step=seen_save.step,
        fingerprint=seen_save.fingerprint,
        state=SaveState.SAVING,
        first_seen=at if known_save is None or was_told else known_save.first_seen,
        changed_at=at,
        was_good=known_save is not None and known_save.was_good and not newly,
        good_as="" if known_save is None else known_save.good_as,
        newest_ns=None if seen_save.written_ns is None else seen_save.written_ns[1],
        good_ns=good_ns,
        rewritten=newly,
        files=seen_save.files,
        good_files=0 if known_save is None else known_save.good_files,
        beside=seen_save.beside,
    )


def _with_new(watched: Watched, saves: list[KnownSave], before: dict[str, KnownSave], sighting: Sighting) -> Watched:
    """Record the arrival of the latest save. At the first poll, file times determine it."""
    if watched.last_new is None:
        ages = {save.key: save.age or 0.0 for save in sighting.saves}
        newest = min(ages, key=lambda key: ages[key], default=None)
        return watched if newest is None else replace(watched, last_new=watched.now - ages[newest], newest=newest)
    written_again = {save.key for save in saves if not save.was_good} & {
        key for key, earlier in before.items() if earlier.was_good
    }
    new = [save for save in saves if save.key not in before or save.key in written_again]
    if not new:
        return watched
    intervals = (*watched.intervals, watched.now - watched.last_new)[-USUAL:]
    return replace(watched, last_new=watched.now, newest=new[0].key, intervals=intervals, overdue_told=False)


def _next(
    save: KnownSave, seen_save: SeenSave, rule: WatchRule, watched: Watched, *, usual: int
) -> tuple[KnownSave, Action | None]:
    """Return the next state of a save, and the action to take.

    Args:
        save: The known state of the save.
        seen_save: The save in this poll.
        rule: The rules for reporting events.
        watched: The other known facts, and their time.
        usual: Number of files of the previous good save. A save with fewer files and without a record of its end may be
            in progress, even if no required file is missing.
    """
    unchanged = watched.now - save.changed_at
    rests = save.still >= rule.settle or (rule.rested is not None and unchanged >= rule.rested)
    final = rests and unchanged >= patience_of(watched, rule)
    if not seen_save.incomplete:
        if not rests or (seen_save.files < usual and not seen_save.is_committed and not final):
            return save, None
        save = replace(save, state=SaveState.COMPLETE, told_incomplete=False)
        return save, _judge(save, rule, final=final) if final or save.judged_at is None else None
    save = replace(save, state=SaveState.SAVING)
    if not final or save.told_incomplete:
        return save, None
    if save.was_good:  # reading it will show the missing files
        return save, _judge(save, rule, final=True)
    word = max(map(word_of, seen_save.incomplete), key=tuple(VerdictWord).index)
    return replace(save, told_incomplete=True, word=word, why=_why(seen_save.incomplete)), _event(
        EventKind.SAVE_INCOMPLETE,
        save,
        findings=(_incomplete(save, seen_save, unchanged), *seen_save.incomplete),
    )


def _again(save: KnownSave, rule: WatchRule, now: float, *, is_replaced: bool) -> Judge | None:
    """Return a request for another read of a good save, or None if there is no reason for a read."""
    if rule.seal and not save.seal_tried:  # an earlier watch did not seal
        return _judge(save, rule, cold=True)
    if not rule.again or save.read_again:
        return None
    if now - (save.judged_at or 0.0) >= rule.again:
        return _judge(save, rule, cold=True)
    return replace(_judge(save, rule, cold=True), early=True) if is_replaced else None


def _once_more(save: KnownSave, rule: WatchRule, patience: float, now: float) -> Judge | None:
    """Return a request for another read of a save that could not be read, because it may be readable later."""
    waits = now - (save.judged_at or 0.0) < patience
    return None if waits or save.word not in _MAY_CHANGE else _judge(save, rule, final=True)


def _judge(save: KnownSave, rule: WatchRule, *, final: bool = False, cold: bool = False) -> Judge:
    return Judge(
        key=save.key,
        fingerprint=save.fingerprint,
        final=final,
        cold=cold,
        seal=rule.seal,
        fresh=not save.was_good,
        rewritten=save.rewritten,
        grown=save.was_good and not cold and save.files > save.good_files > 0,
        beside=save.beside,
        good_ns=save.good_ns,
    )


def _why(against: tuple[Finding, ...]) -> str:
    """Return the findings against a save in one sentence, or an empty string without findings."""
    if not against:
        return ""
    path = against[0].path
    return summary_of(against).rstrip(".") if path is None else f"{path}: {summary_of(against).rstrip('.')}"


def _incomplete(save: KnownSave, seen_save: SeenSave, unchanged: float) -> Finding:
    where = f" on {on_ranks(seen_save.ranks)}" if seen_save.ranks else ""
    why = "" if seen_save.ranks else f": {seen_save.incomplete[0].message}"
    return unknown(
        WatchCode.SAVE_INCOMPLETE,
        f"{save.name} is not complete{where}, and none of its files has changed for {lasting(unchanged)}{why}",
        remedy="look for a hanging rank: its log ends first",
        ranks=seen_save.ranks,
    )


def _overdue(watched: Watched) -> tuple[Watched, tuple[WatchEvent, ...]]:
    """Report once that no save has arrived for much longer than usual."""
    if (
        watched.last_new is None
        or len(watched.intervals) < LEAST_INTERVALS
        or not watched.saves
        or watched.overdue_told
    ):
        return watched, ()
    usual, passed = median(watched.intervals), watched.now - watched.last_new
    if passed <= TIMES_USUAL * usual:
        return watched, ()
    last = next((save for save in watched.saves if save.key == watched.newest), watched.saves[0])
    finding = suspect(
        WatchCode.SAVE_OVERDUE,
        f"no checkpoint for {lasting(passed)} since {last.name}; usually there is one every {lasting(usual)}",
        remedy="check whether the training still makes steps",
    )
    event = _event(EventKind.SAVE_OVERDUE, last, findings=(finding,))
    # Changes in a save's own files are not a sign of the next save.
    subject = f"{watched.newest} {round(watched.last_new)}"
    return replace(watched, overdue_told=True), (replace(event, subject=subject),)


def _room(watched: Watched, sighting: Sighting) -> tuple[Watched, tuple[WatchEvent, ...]]:
    """Report once that there is no space for the next save, but not while a save is being written."""
    typical = _typical(watched, sighting)
    if sighting.free_bytes is None or typical is None:
        return watched, ()
    good, need = typical
    if sighting.free_bytes >= need or watched.low_told:
        return replace(watched, low_told=sighting.free_bytes < need), ()
    finding = suspect(
        Code.DISK_SPACE_LOW,
        f"the next checkpoint will not fit: {in_gib(sighting.free_bytes)} are free, and {good.name} has {in_gib(need)}",
        remedy="ckpttool prune shows what can be deleted",
    )
    return replace(watched, low_told=True), (_event(EventKind.DISK_SPACE_LOW, good, findings=(finding,)),)


def _running_out(watched: Watched, sighting: Sighting, rule: WatchRule) -> tuple[Watched, tuple[WatchEvent, ...]]:
    """Report once that less space than requested will be free after the next save."""
    typical, limit = _typical(watched, sighting), rule.free_below
    if limit is None or typical is None or not sighting.spaces:
        return watched, ()
    good, need = typical
    space = min(sighting.spaces, key=lambda space: space.free_bytes - limit.of(space.total_bytes))
    free_bytes, least = max(0, space.free_bytes), limit.of(space.total_bytes)
    is_low = space.free_bytes - need < least
    if not is_low or watched.room_told:
        return replace(watched, room_told=is_low), ()
    saves = free_bytes // need
    room = f"room for {counted(saves, 'more save')}"
    if saves and len(watched.intervals) >= LEAST_INTERVALS:
        room += f", about {lasting(saves * median(watched.intervals))}"
    finding = suspect(
        WatchCode.ROOM_LOW,
        f"after the next checkpoint, {space.limit} will have less than {in_gib(least)} free: {in_gib(free_bytes)} are "
        f"free, and {good.name} has {in_gib(need)} ({room})",
        remedy="ckpttool prune shows what can be deleted",
    )
    return replace(watched, room_told=True), (_event(EventKind.ROOM_LOW, good, findings=(finding,)),)


def _typical(watched: Watched, sighting: Sighting) -> tuple[KnownSave, int] | None:
    """Return the newest good save and its size in bytes, which the next save will have too.

    None without a good save, and while a save is being written, because part of its size is already used.
    """
    sizes = {save.key: save.nbytes for save in sighting.saves}
    good = next((save for save in watched.saves if save.state is SaveState.GOOD and sizes.get(save.key)), None)
    under_way = any(save.state is SaveState.SAVING and not save.told_incomplete for save in watched.saves)
    return None if good is None or under_way else (good, sizes[good.key] or 0)


def judged(watched: Watched, judgement: Judgement) -> tuple[Watched, tuple[WatchEvent, ...]]:
    """Add the result of reading a save. It does not cover files that changed during the read.

    Returns:
        The new state, and the events to report.
    """
    judge = judgement.request
    save = next((save for save in watched.saves if save.key == judge.key), None)
    if save is None or save.fingerprint != judge.fingerprint:
        return watched, ()
    if save.state is not SaveState.GOOD and save.beside != judge.beside:
        return watched, ()
    against = blocking(judgement.findings)
    after = replace(save, judged_at=watched.now, word=judgement.word, seal_tried=judge.seal, why=_why(against))
    kind = _kind(save, judgement, against)
    if kind is None:  # it may be a save in progress, or unknown: it is read again
        return _with(watched, replace(after, state=SaveState.COMPLETE)), ()
    if kind in _NOT_KNOWN and (save.state is SaveState.BAD or save.told_incomplete):  # already reported
        return _with(watched, after), ()
    if kind in {EventKind.GOOD, EventKind.READ_AGAIN}:
        after = replace(
            after,
            state=SaveState.GOOD,
            was_good=True,
            read_again=judge.cold or judgement.cached is False,  # it was read from the disk
            good_as=save.fingerprint,
            good_ns=save.newest_ns,
            good_files=save.files,
        )
        if not save.was_good:
            took = max(0.0, save.changed_at - save.first_seen)
            watched = replace(watched, durations=(*watched.durations, took)[-USUAL:])
    else:
        after = replace(after, state=SaveState.BAD)
    event = _event(kind, after, findings=against, cached=judgement.cached, sealed=judgement.sealed)
    return _with(watched, after), (event,)


def _kind(save: KnownSave, judgement: Judgement, against: tuple[Finding, ...]) -> EventKind | None:
    """Return the kind of event for a verdict, or None if there is no event yet."""
    judge = judgement.request
    if not against:
        return EventKind.READ_AGAIN if judge.cold else EventKind.GOOD
    codes = {finding.code for finding in against}
    if save.was_good and not (judge.final or judge.cold) and codes <= _WHILE_REWRITTEN:
        # A file that was not written since is damaged; files that were may belong to a save in progress.
        differing = {finding.path for finding in against if finding.code is Code.CHECKSUM_MISMATCH}
        if judgement.written_since and differing <= judgement.written_since:
            return None
    if save.was_good and Code.CHECKSUM_MISMATCH in codes:
        return EventKind.CHECKSUM_MISMATCH
    weight = worst(against)
    if weight is Severity.UNKNOWN:
        kind = EventKind.HEALTH_UNKNOWN if codes == {Code.HEALTH_UNKNOWN} else EventKind.UNREADABLE
        return kind if judge.final else None
    # A save that a trainer overwrites under its old name is truncated or lacks files, but has no contradictions.
    has_changed = save.was_good and codes & {Code.HEADER_INVALID, Code.OFFSETS_NOT_CONTIGUOUS}
    at_once = judge.final or judge.cold or weight is Severity.UNSAFE or has_changed or codes & _OF_CONTENT
    return EventKind.BAD if at_once else None


def _with(watched: Watched, save: KnownSave) -> Watched:
    return replace(
        watched, saves=tuple(save if known_save.key == save.key else known_save for known_save in watched.saves)
    )


def _event(
    kind: EventKind,
    save: KnownSave,
    *,
    findings: tuple[Finding, ...],
    cached: bool | None = None,
    sealed: bool = False,
) -> WatchEvent:
    return WatchEvent(
        kind=kind,
        subject=f"{save.key} {save.fingerprint}",
        name=save.name,
        step=save.step,
        word=save.word,
        findings=findings,
        cached=cached,
        sealed=sealed,
    )


def still_bad(before: Watched, watched: Watched) -> tuple[str, ...]:
    """Return one sentence for each unchanged save that an earlier watch reported as not good.

    Args:
        before: The state before the poll.
        watched: The state after the reads.
    """
    if watched.unseen_since is not None:
        return ()
    reported = {save.key: save for save in before.saves if save.state is SaveState.BAD or save.told_incomplete}
    return tuple(
        f"{save.name} is still not good"
        + (f" ({save.word.value})" if save.word else "")
        + (save.why and f": {save.why}")
        for save in watched.saves
        if save.key in reported and _status(save) == _status(reported[save.key])
    )


def _status(save: KnownSave) -> tuple[object, ...]:
    """Return the facts about a save whose change is an event."""
    return save.fingerprint, save.state, save.word, save.told_incomplete


def unreported(watched: Watched, rule: WatchRule) -> tuple[str, ...]:
    """Return the saves without an event after a single poll, newest first, each with the reason as a sentence."""
    texts = []
    patience = patience_of(watched, rule)
    for save in watched.saves:
        if save.state in {SaveState.GOOD, SaveState.BAD} or save.told_incomplete:
            continue
        unchanged, rested = watched.now - save.changed_at, rule.rested or 0.0
        if save.is_suspended:
            word = "" if save.word is None else f" ({save.word.value})"
            texts.append(
                f"{save.name} is not good{word}: {save.why}; the event follows after {lasting(patience)} without a "
                "change (--patience), because the save may be in progress"
            )
            continue
        if save.files and unchanged < rested:
            why = (
                f"one of its files changed {lasting(unchanged)} ago, and a save is read once it is unchanged for "
                f"{lasting(rested)}"
            )
            advice = f"run again in {lasting(rested - unchanged)}, or reduce --settle and --every"
        else:
            why = f"it is not complete yet, which is reported after {lasting(patience)} (--patience)"
            advice = "run again then, or run ckpttool scan"
        texts.append(f"{save.name} was not read: {why}; {advice}")
    return tuple(texts)


def is_idle(watched: Watched) -> bool:
    """Return whether no save is settling, so that only names need to be checked.

    A save that was reported as not intact does not count as settling, because a crashed run left it.
    """
    return all(
        save.state in {SaveState.GOOD, SaveState.BAD} or (save.state is SaveState.SAVING and save.told_incomplete)
        for save in watched.saves
    )


def _silent_parts(watched: Watched, sighting: Sighting, patience: float) -> tuple[Watched, tuple[WatchEvent, ...]]:
    """Report once each machine whose part is no longer written, or missing."""
    before = {node.number: node for node in watched.nodes}
    nodes, reported = [], []
    for seen in sighting.nodes:
        node = before.get(seen.number)
        if node is None or node.mark != seen.mark:
            node = KnownNode(number=seen.number, name=seen.name, mark=seen.mark, since=watched.now)
        elif not node.told and watched.now - node.since >= patience:
            node = replace(node, told=True)
            reported.append(_part_is_silent(node, watched.now))
        nodes.append(node)
    return replace(watched, nodes=tuple(nodes)), tuple(reported)


def _part_is_silent(node: KnownNode, now: float) -> WatchEvent:
    passed = lasting(now - node.since)
    if node.mark:
        kind, code, message = EventKind.PART_STALE, NodesCode.PART_STALE, f"was last written {passed} ago"
    else:
        kind, code, message = EventKind.PART_MISSING, NodesCode.PART_MISSING, f"has been missing for {passed}"
    finding = unknown(
        code,
        f"{node.name} {message}: the current files of that machine are unknown",
        remedy="check whether it responds, and whether ckpttool watch --part-out runs there",
    )
    subject = f"part {node.number} {node.mark or round(node.since)}"
    return WatchEvent(kind=kind, subject=subject, name=None, step=None, findings=(finding,))


def is_silent(watched: Watched, number: int, patience: float) -> bool:
    """Return whether a machine's part is so old that it may list files that other machines deleted."""
    return any(node.number == number and watched.now - node.since >= patience / 2 for node in watched.nodes)
