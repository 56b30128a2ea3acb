"""Choice of the checkpoint to load: the newest intact and healthy checkpoint on the current lineage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from operator import itemgetter
from typing import TypeAlias

from ckpttool.core.decide.lineage import CLEARLY_NS, Lineage
from ckpttool.core.decide.lost import lost_steps, perhaps_lost
from ckpttool.core.decide.naming import LATEST, named, none_called
from ckpttool.core.decide.recorded_health import against, health_reason
from ckpttool.core.decide.steps import (
    doubtful,
    is_left_to_the_user,
    is_named_beyond,
    is_out_of_place,
    leaves_newest_open,
    step_unknown,
)
from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey, Content, Inventory
from ckpttool.core.domain.finding import Code, Finding, Severity, blocking, note, seen_in_part, suspect, unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.plan import NoResumePoint, Rejection, ResumePoint
from ckpttool.core.domain.progress import newest_first
from ckpttool.core.domain.question import ResumeQuestion
from ckpttool.core.domain.shard import Shard
from ckpttool.core.domain.units import Rank, Step, counted, on_ranks, step_and_name
from ckpttool.core.domain.verdict import Verdict
from ckpttool.core.errors import UsageError

Pick: TypeAlias = "Callable[[Inventory], ResumePoint | NoResumePoint]"
"""Function that chooses a checkpoint from a tree whose checkpoints have the findings against them."""


def against_refused(inventory: Inventory, refusals: Mapping[CheckpointKey, str]) -> Inventory:
    """Add a finding to each checkpoint that cannot be loaded according to its layout.

    Args:
        inventory: The tree.
        refusals: The reason for each such checkpoint, as a clause that follows the checkpoint's name.
    """
    return replace(
        inventory,
        checkpoints=tuple(
            replace(checkpoint, findings=(*checkpoint.findings, _not_loadable(checkpoint, refusals[checkpoint.key])))
            if checkpoint.key in refusals
            else checkpoint
            for checkpoint in inventory.checkpoints
        ),
    )


def objected(inventory: Inventory, objections: Callable[[Checkpoint], Sequence[Finding]]) -> Inventory:
    """Add the trainer's objections to the requested sizes to each checkpoint.

    Args:
        inventory: The tree.
        objections: Function that returns the objections to one checkpoint.
    """
    pairs = [(checkpoint, tuple(objections(checkpoint))) for checkpoint in inventory.checkpoints]
    if not any(reasons for _, reasons in pairs):
        return inventory
    return replace(
        inventory,
        checkpoints=tuple(
            replace(checkpoint, findings=(*checkpoint.findings, *reasons)) if reasons else checkpoint
            for checkpoint, reasons in pairs
        ),
    )


def choose(
    inventory: Inventory, question: ResumeQuestion, verdict_of: Callable[[Checkpoint], Verdict]
) -> ResumePoint | NoResumePoint:
    """Choose the newest good checkpoint; nothing older than the choice is checked.

    Args:
        inventory: The checkpoints, with expected ranks and recorded health.
        question: The user's request.
        verdict_of: Function that checks one checkpoint's shards; called only if names alone do not rule it out.

    Raises:
        UsageError: The requested name or prefix does not exist.
    """
    prefix, by_config = _selected_prefix(inventory, question)
    lineage = Lineage(inventory)
    tree_findings = [*lineage.rewinds(), *by_config]
    is_named = question.name not in {None, LATEST}
    if is_named:
        candidates = _named(inventory, question.name or "", prefix, question.before)
    else:
        candidates = newest_first(_of_prefix(inventory, prefix))
        mixed = _mixed_prefixes(candidates, question.saves_as)
        if mixed is not None:
            return _nothing(inventory, question, (), (mixed, *tree_findings), verdict_of)
        tree_findings += _passed_over(candidates)
        late = [checkpoint for checkpoint in candidates if _is_beyond(checkpoint, question.before)]
        candidates = [checkpoint for checkpoint in candidates if not _is_beyond(checkpoint, question.before)]
        tree_findings += _all_beyond(late, question.before) if late and not candidates else []
    rejected: list[Rejection] = []
    for checkpoint in lineage.best_first(candidates):
        reasons = _reasons_by_name(checkpoint, lineage, question)
        if not reasons:
            verdict = verdict_of(checkpoint)
            reasons = _reasons_by_content(checkpoint, question, verdict)
            if not reasons and _is_open(rejected, inventory):
                return _nothing(inventory, question, _in_order_of(candidates, rejected), tree_findings, verdict_of)
            if not reasons and checkpoint.step is not None:
                rejected = _newest_in_full(rejected, question, verdict_of)
                lost, samples = lost_steps(checkpoint, lineage)
                all_rejected = (*rejected, *_branches(checkpoint, candidates, rejected, lineage))
                notes = (
                    *lineage.overlaps(checkpoint, is_named=is_named),
                    *lineage.rewinds(),
                    *_passed_over(candidates),
                )
                notes += tuple(replace(tie, severity=Severity.NOTE) for tie in verdict.findings if tie.is_tie)
                return ResumePoint(
                    checkpoint=checkpoint,
                    step=checkpoint.step,
                    evidence=verdict.level,
                    verdict=verdict.word,
                    lost_steps=lost,
                    lost_samples=samples,
                    rejected=_in_order_of(candidates, all_rejected),
                    findings=(
                        *doubtful(checkpoint),
                        *notes,
                        *gap_notes(verdict),
                        *(finding for finding in verdict.findings if finding.code is Code.CHANGED_SINCE_SEAL),
                        *perhaps_lost(rejected),
                        *by_config,
                    ),
                    unlisted=inventory.unlisted,
                )
        elif any(reason.code.taken_with for reason in reasons):
            reasons = _with_true_remedies(checkpoint, question, reasons, verdict_of)
        rejected.append(Rejection(checkpoint=checkpoint, reasons=tuple(reasons)))
    return _nothing(inventory, question, _in_order_of(candidates, rejected), tree_findings, verdict_of)


def _nothing(
    inventory: Inventory,
    question: ResumeQuestion,
    rejected: Sequence[Rejection],
    findings: Sequence[Finding],
    verdict_of: Callable[[Checkpoint], Verdict],
) -> NoResumePoint:
    """Return the result if no checkpoint is usable, with the files to restore according to the newest one's headers."""
    opened = not question.evidence.reads_content
    if rejected and opened:
        rejected = [_in_full(rejected[0], question, verdict_of), *rejected[1:]]
    remaining = _only_left(rejected, inventory, question, verdict_of)
    return NoResumePoint(
        root=inventory.root,
        evidence=question.evidence,
        rejected=tuple(rejected),
        findings=(*ranks_to_restore(rejected, opened=opened), *remaining, *findings),
        is_named=question.name not in {None, LATEST},
    )


def _only_left(
    rejected: Iterable[Rejection],
    inventory: Inventory,
    question: ResumeQuestion,
    verdict_of: Callable[[Checkpoint], Verdict],
) -> Iterator[Finding]:
    """Report a checkpoint whose only problem is that the training seems to have abandoned it.

    Only headers are read for this; the full content of a checkpoint that is not chosen is never read.
    """
    for rejection in rejected:
        save = rejection.checkpoint
        is_left = {why.code for why in rejection.reasons} == {Code.ABANDONED_BRANCH}
        if not is_left:
            continue
        if not question.evidence.reads_content and _reasons_by_content(save, question, verdict_of(save)):
            continue
        message = f"{save.name} is rejected only as part of an abandoned branch, and the later checkpoints are lost"
        remedy = f"--checkpoint {save.name} chooses it"
        if inventory.tracked is not None:
            is_there = inventory.named(inventory.tracked.name) is not None
            which = "which is not intact" if is_there else "which is missing"
            message = (
                f"the tracker names {inventory.tracked.name}, {which}; {save.name} is rejected only as part of an "
                "abandoned branch"
            )
            from shlex import quote  # most trees need no check

            repair = f"ckpttool repair pointer {quote(inventory.root)} --checkpoint {save.name} --apply"
            remedy += f"; {repair} points the tracker at it"
        yield unknown(Code.ABANDONED_BRANCH, message, path=save.name, remedy=remedy)
        return


def _is_open(rejected: Iterable[Rejection], inventory: Inventory) -> bool:
    """Return whether the newest of the checkpoints is unknown."""
    doubtful_names = {rejection.checkpoint.name for rejection in rejected if is_out_of_place(rejection.checkpoint)}
    is_tracked = inventory.tracked is not None and inventory.tracked.name not in doubtful_names
    return any(
        leaves_newest_open(rejection.checkpoint, rejection.reasons, is_tracked=is_tracked) for rejection in rejected
    )


def _newest_in_full(
    rejected: list[Rejection], question: ResumeQuestion, verdict_of: Callable[[Checkpoint], Verdict]
) -> list[Rejection]:
    """Report all problems of a newest save that lacks files, so that restoring these is known to be enough.

    Only headers are read for this; to read every byte of a checkpoint that is not chosen would take too long.
    """
    if not rejected or question.evidence.reads_content or not list(blocking(rejected[0].checkpoint.findings)):
        return rejected
    return [_in_full(rejected[0], question, verdict_of), *rejected[1:]]


def _in_full(rejection: Rejection, question: ResumeQuestion, verdict_of: Callable[[Checkpoint], Verdict]) -> Rejection:
    """Add the findings from a checkpoint's headers to its rejection."""
    reasons = _reasons_by_content(rejection.checkpoint, question, verdict_of(rejection.checkpoint))
    return replace(rejection, reasons=(*rejection.reasons, *_unreported(reasons, rejection.reasons)))


def _in_order_of(candidates: Sequence[Checkpoint], rejected: Sequence[Rejection]) -> tuple[Rejection, ...]:
    place = {checkpoint.key: index for index, checkpoint in enumerate(candidates)}
    return tuple(sorted(rejected, key=lambda rejection: place[rejection.checkpoint.key]))


def _reasons_by_name(checkpoint: Checkpoint, lineage: Lineage, question: ResumeQuestion) -> list[Finding]:
    """Return the findings against a checkpoint that are known without opening its shards."""
    reasons = against(checkpoint.findings, ignore=question.ignore_health)
    if question.name not in {None, LATEST}:
        reasons = _without_suspicions(reasons, checkpoint)
    else:
        reasons += _suspicions(checkpoint, lineage, lineage.abandoned(checkpoint))
    if checkpoint.content is Content.WEIGHTS_ONLY and not question.allow_weights_only:
        reasons.append(_weights_only(checkpoint))
    is_bad = checkpoint.mark is not None and checkpoint.mark.code is Code.MARKED_BAD
    ignore = question.ignore_health and not (question.skips_marked and is_bad and question.name in {None, LATEST})
    health = health_reason(checkpoint, require=question.require_health, ignore=ignore)
    if health is not None:
        reasons.append(health)
    return reasons


def _suspicions(checkpoint: Checkpoint, lineage: Lineage, branch: Finding | None) -> list[Finding]:
    """Return the suspicions about a checkpoint, which the user can override by naming the checkpoint."""
    suspicions = [warning for warning in (branch, two_runs_in(checkpoint, lineage.inventory)) if warning is not None]
    is_damaged = bool(list(blocking(checkpoint.findings)))
    return [replace(warning, remedy=None) for warning in suspicions] if is_damaged else suspicions


def _without_suspicions(reasons: Iterable[Finding], checkpoint: Checkpoint) -> list[Finding]:
    """Remove the suspicions about which of several checkpoints is intended, because the user named it."""
    suspicions = {finding for finding in checkpoint.findings if is_left_to_the_user(finding)}
    return [reason for reason in reasons if reason not in suspicions]


def _with_true_remedies(
    checkpoint: Checkpoint,
    question: ResumeQuestion,
    reasons: Sequence[Finding],
    verdict_of: Callable[[Checkpoint], Verdict],
) -> list[Finding]:
    """Offer an option as the remedy only if there is no other finding against the checkpoint.

    Only headers are read for this; to read every byte of a checkpoint that is not chosen would take too long.
    """
    unread = ", if its shards are intact: they were not read"
    if not question.evidence.reads_content:
        unread = ""
        reasons = [*reasons, *_unreported(_reasons_by_content(checkpoint, question, verdict_of(checkpoint)), reasons)]
    options = sorted({reason.code.taken_with for reason in reasons if reason.code.taken_with})
    codes = {reason.code for reason in reasons if not reason.code.taken_with}
    if codes == {Code.ABANDONED_BRANCH}:
        options = [f"--checkpoint {checkpoint.name}", *options]
    promise = None if codes - {Code.ABANDONED_BRANCH} else f"{' '.join(options)} chooses it anyway{unread}"
    return [_with_promise(reason, promise) if reason.code.taken_with else reason for reason in reasons]


def _with_promise(reason: Finding, promise: str | None) -> Finding:
    """Return a finding with the option that chooses the checkpoint in spite of it, and how to remove a mark."""
    if promise is not None and reason.code is Code.MARKED_BAD and reason.remedy is not None:
        promise = f"{reason.remedy.partition('; ')[0]}; {promise}"
    return replace(reason, remedy=promise)


def _unreported(findings: Iterable[Finding], reported: Iterable[Finding]) -> list[Finding]:
    """Return the findings that were not reported yet; a finding with a different remedy was reported."""
    reported_keys = {(finding.code, finding.path, finding.message) for finding in reported}
    return [finding for finding in findings if (finding.code, finding.path, finding.message) not in reported_keys]


def _reasons_by_content(checkpoint: Checkpoint, question: ResumeQuestion, verdict: Verdict) -> list[Finding]:
    reasons = against(verdict.findings, ignore=question.ignore_health)
    if question.name not in {None, LATEST}:
        reasons = [reason for reason in _without_suspicions(reasons, checkpoint) if not reason.is_tie]
    if not reasons and checkpoint.step is None:  # if shards are damaged, the damage is the reason for the unknown step
        reasons.append(step_unknown(checkpoint))
    if not reasons and checkpoint.renames and not question.allow_renames:
        reasons.append(_needs_renames(checkpoint))
    return reasons


def _branches(
    checkpoint: Checkpoint, candidates: Sequence[Checkpoint], rejected: Sequence[Rejection], lineage: Lineage
) -> list[Rejection]:
    """Return rejections for checkpoints that the user may expect: abandoned branches, and names with higher steps."""
    passed = {checkpoint.key, *(rejection.checkpoint.key for rejection in rejected)}
    keys = [candidate.key for candidate in candidates]
    newer = frozenset(keys[: keys.index(checkpoint.key)])
    branches = []
    for candidate in candidates:
        branch = lineage.abandoned(candidate) or (lineage.done_again(candidate) if candidate.key in newer else None)
        if candidate.key not in passed and branch is not None:
            reasons = tuple(_suspicions(candidate, lineage, branch))
            branches.append(Rejection(checkpoint=candidate, reasons=reasons))
        elif candidate.key not in passed and is_named_beyond(candidate, checkpoint):
            branches.append(Rejection(checkpoint=candidate, reasons=blocking(candidate.findings)))
    return branches


def _of_prefix(inventory: Inventory, prefix: str | None) -> list[Checkpoint]:
    if prefix is None:
        return list(inventory.checkpoints)
    chosen = [checkpoint for checkpoint in inventory.checkpoints if checkpoint.prefix == prefix]
    if not chosen:
        prefixes = sorted({checkpoint.prefix for checkpoint in inventory.checkpoints})
        raise UsageError(
            f"no checkpoint has the prefix {prefix!r}; there are: {', '.join(map(repr, prefixes)) or 'none'}"
        )
    return chosen


def _is_beyond(checkpoint: Checkpoint, before: Step | None) -> bool:
    return before is not None and checkpoint.step is not None and checkpoint.step > before


def _all_beyond(late: Sequence[Checkpoint], before: Step | None) -> list[Finding]:
    """Return a finding with the first save's step, if all saves are beyond the requested step."""
    first = min(late, key=lambda checkpoint: (checkpoint.step or 0, checkpoint.name))
    remedy = "allow a later step, or look for older checkpoints that were moved elsewhere"
    message = f"no checkpoint is at or before step {before}: the first is {first.name}, at step {first.step}"
    return [note(Code.REWOUND_PAST, message, path=first.name, remedy=remedy)]


def _named(inventory: Inventory, name: str, prefix: str | None, before: Step | None) -> list[Checkpoint]:
    matches = named(_of_prefix(inventory, prefix), name)
    if not matches:
        raise none_called(name, newest_first(inventory.checkpoints), inventory.root)
    mixed = _mixed_prefixes(matches)
    if mixed is not None:
        raise UsageError(mixed.message)
    late = next((checkpoint for checkpoint in matches if _is_beyond(checkpoint, before)), None)
    if late is not None:
        raise UsageError(
            f"{late.name} is at step {late.step}, but the requested checkpoint must be at or before step {before}"
        )
    return newest_first(matches)


def _selected_prefix(inventory: Inventory, question: ResumeQuestion) -> tuple[str | None, tuple[Finding, ...]]:
    """Return the requested prefix or, if there are several training runs, the config's prefix with a note."""
    prefixes = _trainings(inventory.checkpoints)
    named = question.saves_as
    if question.prefix is not None or named is None or len(prefixes) == 1 or named not in prefixes:
        return question.prefix, ()
    names = [prefix or _NO_PREFIX for prefix in prefixes]
    mixed_note = note(
        Code.RUN_MIXED,
        f"checkpoints of several training runs share this folder ({', '.join(names)}); the config saves as "
        f"{named or _NO_PREFIX}, so that one is used",
        remedy=f"choose another with --prefix {next(prefix or _NO_PREFIX for prefix in prefixes if prefix != named)}",
    )
    return named, (mixed_note,)


def _trainings(candidates: Iterable[Checkpoint]) -> list[str]:
    """Return the prefixes that may belong to a training run; a prefix on only a few ranks does not count."""
    return sorted({candidate.prefix for candidate in candidates if _may_be_a_training(candidate)})


def _mixed_prefixes(candidates: Sequence[Checkpoint], saves_as: str | None = None) -> Finding | None:
    """Return a finding if several training runs are possible and the config selects none of them."""
    prefixes = _trainings(candidates)
    if len(prefixes) < 2:  # noqa: PLR2004  several
        return None
    why = "it is unknown which one to use"
    if saves_as is not None:
        why = f"the config selects none of them: it saves as {saves_as}"
    return unknown(
        Code.RUN_MIXED,
        "checkpoints of several training runs share this folder "
        f"({', '.join(prefix or _NO_PREFIX for prefix in prefixes)}), and {why}",
        remedy=f"choose one with --prefix {prefixes[0] or _NO_PREFIX}",
    )


_NO_PREFIX = "''"
"""An empty prefix, as typed in a shell."""


def _may_be_a_training(checkpoint: Checkpoint) -> bool:
    """Return whether this is a save and not a stray copy; if most ranks are present, the others may be lost."""
    if is_out_of_place(checkpoint):
        return False
    world = checkpoint.topology.world_size
    return world is None or 2 * len(checkpoint.ranks) > world


def _passed_over(candidates: Sequence[Checkpoint]) -> list[Finding]:
    """Report the prefixes that were not treated as training runs."""
    trainings = _trainings(candidates)
    strays = {
        candidate.prefix: candidate
        for candidate in candidates
        if candidate.prefix not in trainings and not is_out_of_place(candidate)
    }
    return [
        note(
            Code.RUN_MIXED,
            f"{prefix} exists only on a few ranks: not treated as a training run",
            path=strays[prefix].shards[0].path,
            remedy=f"select it with --prefix {prefix}",
        )
        for prefix in sorted(strays)
        if trainings
    ]


def _not_loadable(checkpoint: Checkpoint, why: str) -> Finding:
    return unknown(Code.NOT_LOADABLE, f"{checkpoint.name} {why}", path=checkpoint.name)


def _weights_only(checkpoint: Checkpoint) -> Finding:
    return suspect(
        Code.WEIGHTS_ONLY,
        "contains weights but no optimizer state, by design: a run that resumes from it re-initializes its optimizer",
        path=checkpoint.name,
    )


def _needs_renames(checkpoint: Checkpoint) -> Finding:
    first = checkpoint.renames[0]
    more = f" and {len(checkpoint.renames) - 1} more" if len(checkpoint.renames) > 1 else ""
    return suspect(
        Code.NEEDS_RENAMES,
        f"intact on every rank, but {first.why}: rename {first.source} to {first.target}{more}",
        path=first.source,
        remedy="--allow-renames chooses it and lists every rename",
    )


def ranks_to_restore(rejected: Sequence[Rejection], *, opened: bool) -> tuple[Finding, ...]:
    """Report the ranks that alone prevent a resume from the newest checkpoint, if all other ranks are intact.

    Args:
        rejected: All rejected checkpoints, newest first, with every finding against them.
        opened: Whether the newest checkpoint's shards were opened on all ranks that have a shard.
    """
    ranks = _at_fault(rejected[0]) if rejected else frozenset()
    if not ranks:
        return ()
    newest, topology = rejected[0].checkpoint.name, rejected[0].checkpoint.topology
    subject, everywhere = (
        on_ranks(sorted(ranks)),
        len(rejected) > 1 and all(_at_fault(rejection) == ranks for rejection in rejected),
    )
    name = step_and_name(rejected[0].checkpoint.step, newest)
    failure = f"all {len(rejected)} checkpoints fail" if everywhere else f"{name} fails"
    caveat = "" if topology.confirmed else f", as far as visible here ({counted(topology.world_size or 0, 'rank')})"
    caveat += "" if opened else "; the other ranks' shards were not opened"
    remedy = f"restore intact shards of {subject}, and {newest} is {'intact' if opened else 'complete'}{caveat}"
    moved = {rank for why in rejected[0].reasons if why.code is Code.SHARD_ELSEWHERE for rank in why.ranks}
    if all(why.severity is Severity.UNKNOWN for why in blocking(rejected[0].reasons)):
        remedy = f"make the files of {subject} readable, and run again{caveat}"
    if moved:
        remedy = f"the files saved by {on_ranks(sorted(moved))} are in another rank's folder: move them back first"
    return (
        note(
            Code.RANKS_TO_RESTORE,
            f"{failure} only on {subject}",
            remedy=remedy,
            ranks=tuple(sorted(ranks)),
        ),
    )


def _at_fault(rejection: Rejection) -> frozenset[Rank]:
    """Return the ranks whose shards are the only problem.

    The result is empty if there are other problems, or if all ranks are affected.
    """
    reasons, world = blocking(rejection.reasons), rejection.checkpoint.topology.world_size
    if world is None or any(reason.severity < Severity.UNKNOWN or not reason.ranks for reason in reasons):
        return frozenset()
    if seen_in_part(reasons) or any(reason.is_tie for reason in reasons):  # they may be intact: their state is unknown
        return frozenset()
    ranks = frozenset(rank for reason in reasons for rank in reason.ranks)
    return ranks if len(ranks) < world else frozenset()


HOUR_NS = 3600 * 10**9
"""One hour in nanoseconds, which is longer than any save takes.

If the names of the ranks differ, a shorter time does not prove that there are two saves.
"""


def two_runs_in(checkpoint: Checkpoint, inventory: Inventory) -> Finding | None:
    """Return a finding if some ranks' files are as old as another run's save of the same name on the other ranks.

    Args:
        checkpoint: The suspect checkpoint.
        inventory: Its tree, with times if names are ambiguous.
    """
    if checkpoint.renames and (shards := _distant_shards(checkpoint)) is not None:
        return _hours_apart(checkpoint, *shards)
    later = [save for save in inventory.checkpoints if save.run > checkpoint.run and save.is_named_as(checkpoint)]
    if not later:
        return None
    sure = frozenset(checkpoint.ranks).intersection(*(save.ranks for save in later))
    for peer in later:
        late = list(_as_old_as(peer, checkpoint, sure))
        if late:
            return _mixed(checkpoint, peer, late)
    return None


def gap_notes(verdict: Verdict) -> list[Finding]:
    """Return a note about a gap of an hour or more between the files of one save, if nothing else suggests two runs.

    A rank folder that was copied from another disk looks the same, so the gap does not reject the save.
    """
    stamps = [(report.stamp, report.path) for report in verdict.reports if report.stamp is not None]
    files = sorted((stamp.modified_ns, path) for stamp, path in stamps if stamp.modified_ns is not None)
    gaps = [after - before for (before, _), (after, _) in pairwise(files)]
    widest = max(gaps, default=0)
    if widest < HOUR_NS:
        return []
    at = gaps.index(widest) + 1
    fewer, than = (files[:at], "before") if 2 * at <= len(files) else (files[at:], "after")
    more = f" and {len(fewer) - 1} more files were" if len(fewer) > 1 else " was"
    return [
        note(
            Code.TIMES_DISAGREE,
            (
                f"{fewer[0][1]}{more} written more than an hour {than} the other files of {verdict.name}: copied, or "
                "from another run with the same name"
            ),
            path=fewer[0][1],
            remedy="if it was not copied, compare it with another rank's file",
        )
    ]


def _distant_shards(checkpoint: Checkpoint) -> tuple[Shard, Shard] | None:
    """Return two files with the names of different runs, an hour or more apart: one save cannot have written both."""
    by_run: dict[int, list[tuple[int, Shard]]] = {}
    for shard in checkpoint.shards:
        if shard.modified_ns is not None:
            by_run.setdefault(shard.run, []).append((shard.modified_ns, shard))
    first, last = ([extreme(files, key=itemgetter(0)) for _, files in sorted(by_run.items())] for extreme in (min, max))
    spans = sorted(zip(first, last, strict=True), key=lambda span: span[0][0])
    for (_, (before, first_shard)), ((after, second_shard), _) in pairwise(spans):
        if after - before >= HOUR_NS:
            return first_shard, second_shard
    return None


def _as_old_as(peer: Checkpoint, checkpoint: Checkpoint, sure: AbstractSet[Rank]) -> Iterator[Shard]:
    """Yield the shards of ranks that lack some of these saves, if the shards are as old as the other save.

    A rank that counts one run fewer names each of these saves after the previous run, so it lacks the last one.
    """
    own_times, later = _times(checkpoint, sure), _times(peer, sure)
    if not own_times or not later or min(later) - max(own_times) < CLEARLY_NS:  # times do not distinguish the two saves
        return
    middle = (max(own_times) + min(later)) // 2
    for shard in checkpoint.shards:
        if shard.rank not in sure and shard.modified_ns is not None and shard.modified_ns > middle:
            yield shard


def _times(checkpoint: Checkpoint, ranks: AbstractSet[Rank]) -> list[int]:
    return [shard.modified_ns for shard in checkpoint.shards if shard.modified_ns is not None and shard.rank in ranks]


def _hours_apart(checkpoint: Checkpoint, first: Shard, second: Shard) -> Finding:
    fact = f"{second.path} was written more than an hour after {first.path}, and their names belong to different runs"
    return suspect(
        Code.TIMES_DISAGREE,
        f"{fact}: {checkpoint.name} may mix two runs' saves",
        fact=fact,
        path=second.path,
        remedy=f"choose it with --checkpoint {checkpoint.name} --allow-renames if only a copy made that file newer",
    )


def _mixed(checkpoint: Checkpoint, peer: Checkpoint, late: list[Shard]) -> Finding:
    ranks = tuple(shard.rank for shard in late if shard.rank is not None)
    when = f"{checkpoint.name} on {on_ranks(ranks)} was written while the other ranks wrote {peer.name}"
    fact = f"{when}, so it may be from that run"
    return suspect(
        Code.TIMES_DISAGREE,
        f"{fact}: two runs under one name",
        fact=fact,
        path=late[0].path,
        expected=f"a file as old as the other ranks' {checkpoint.name}",
        actual=f"as old as their {peer.name}",
        remedy=f"choose it with --checkpoint {checkpoint.name} if that file was only copied later",
        ranks=ranks,
    )
