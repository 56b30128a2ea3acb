"""The rule that determines a checkpoint's step, for every layout and every command.

The step is read from the contents of a checkpoint or, if it is not there, from the name. A name counts only after the
stem that the checkpoints of the tree share, and only if the content, the siblings and the commit times do not
contradict it. A checkpoint whose step fails this rule is not deleted, sealed, repaired or named in a tracker.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from ckpttool.core.domain.checkpoint import (
    Checkpoint,
    CheckpointKey,
    Content,
    Inventory,
    NamedStep,
    RunSummary,
    StepSource,
)
from ckpttool.core.domain.finding import Code, Finding, Severity, blocking, note, suspect, unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import STEP_DIGITS, Step

_COUNTS_STEPS = frozenset({"step", "steps", "globalstep", "iter", "iters", "iteration", "iterations", "ba"})
"""Words that introduce a number of steps in any folder name."""
_MAY_COUNT_STEPS = frozenset({"ckpt", "chkpt", "checkpoint"})
"""Words that introduce either a step or a number of checkpoints."""
# These are strings, because most trees need none of the patterns, and compiling five of them takes a millisecond.
_NAME = r"(?s:(?P<stem>(?:.*[^A-Za-z0-9])?(?P<word>[A-Za-z]+)[-_=. ]?)?(?P<number>[0-9]+))"
_ENDS_IN_NUMBER = rf"(?s:(.*?)([0-9]{{1,{STEP_DIGITS}}}))"
_EPOCH = r"(?i)(?<![a-z0-9])(ep|epoch)[-_=]?[0-9]+"
_DATE = r"(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])(?:[0-9]{4}|[0-9]{6})?"
_UNIX_TIME = r"1[0-9]{9}(?:[0-9]{3})?"
_OFF_BY_ONE = 1
"""Possible difference between two counts of the same step, because a loop may count its first step as 0 or as 1."""
_SEVERAL = 3
"""Number of checkpoints with the same step under different names that refutes a counter."""

_OUT_OF_PLACE = frozenset({Code.DUPLICATE_CHECKPOINT, Code.TIMES_DISAGREE, Code.RUN_MIXED})
"""Codes of findings that show that a number is unrelated to the training's progress."""

_LAW = _OUT_OF_PLACE | {Code.STEP_UNKNOWN, Code.STEP_DISAGREES}

NAME_REMEDY = "save the step in it (an integer called step), or name all checkpoints of the tree alike: step_N"


def read_name(name: str) -> NamedStep:
    """Parse the name of a folder that a person or a script chose; its number is None if it is not a step.

    Args:
        name: The folder's name.
    """
    match = re.fullmatch(_NAME, name)
    number = "" if match is None else match["number"]
    if match is None or len(number) > STEP_DIGITS or re.fullmatch(_DATE, number) or re.fullmatch(_UNIX_TIME, number):
        return NamedStep(stem=name, number=None, is_free=True)
    suffix_word = (match["word"] or "").lower()
    if match["stem"] is not None and suffix_word not in _COUNTS_STEPS | _MAY_COUNT_STEPS:
        return NamedStep(stem=name, number=None, is_free=True)
    stem = re.sub(_EPOCH, r"\1#", match["stem"] or "")
    return NamedStep(stem=stem, number=Step(int(number)), is_free=True, is_sure=suffix_word in _COUNTS_STEPS)


def settle(inventory: Inventory) -> Inventory:
    """Return the inventory with the step of each checkpoint, and with findings for contradictions.

    Args:
        inventory: The inventory as scanned, with the steps in the contents, or in names that the trainer chose.
    """
    saves = inventory.checkpoints
    steps = _steps_of_free_names(saves)
    saves = tuple(_with_step(save, steps[save.key]) if save.key in steps else save for save in saves)
    findings_by_save: dict[CheckpointKey, list[Finding]] = defaultdict(list)
    tracked = None if inventory.tracked is None else inventory.tracked.name
    copies = tuple(_copies(saves, tracked))
    late = _out_of_order(saves, frozenset(key for key, _ in copies))
    for key, finding in (*_against_names(saves), *copies, *late, *_unconfirmed(saves)):
        findings_by_save[key].append(finding)
    if not findings_by_save and not steps:
        return inventory
    saves = tuple(
        replace(save, findings=(*save.findings, *findings_by_save[save.key])) if save.key in findings_by_save else save
        for save in saves
    )
    if not steps:
        return replace(inventory, checkpoints=saves)
    in_order = sorted(saves, key=lambda save: (save.step is not None, save.step or 0, save.name))
    runs = tuple(_summary(run, saves) for run in inventory.runs)
    return replace(inventory, checkpoints=tuple(in_order), runs=runs)


def is_left_to_the_user(finding: Finding) -> bool:
    """Return whether a user may override a finding of the listing by naming the checkpoint."""
    is_doubt = finding.code is Code.STEP_DISAGREES and finding.severity is Severity.UNKNOWN
    return is_doubt or finding.code in _OUT_OF_PLACE


def not_acted_on(checkpoint: Checkpoint) -> tuple[Finding, ...]:
    """Return the findings that keep commands from changing a checkpoint, because its step is not certain.

    Args:
        checkpoint: A checkpoint of a tree whose steps are determined.
    """
    findings = [finding for finding in checkpoint.findings if finding.code in _LAW]
    if checkpoint.step is None and checkpoint.content is Content.FULL:  # weights may have no step
        findings.append(step_unknown(checkpoint))
    return blocking(
        replace(finding, severity=Severity.UNKNOWN) if finding.code is Code.STEP_UNKNOWN else finding
        for finding in findings
    )


def step_unknown(checkpoint: Checkpoint) -> Finding:
    """Report that the step of a checkpoint is unknown."""
    return unknown(
        Code.STEP_UNKNOWN,
        f"no shard of {checkpoint.name} records its step, and a name alone is not proof",
        remedy=checkpoint.step_remedy,
    )


def left_by_name(saves: Sequence[Checkpoint]) -> dict[CheckpointKey, str]:
    """Return the reason why a save's name may have been chosen by a person, for each such save.

    The step in such a name does not decide on its own.

    Args:
        saves: The saves of one training run, of a tree whose steps are determined.
    """
    numbered = [save for save in saves if save.named is not None and save.named.number is not None]
    stems = Counter(save.named.stem for save in numbered if save.named is not None).most_common(2)
    usual = stems[0][0] if stems and stems[0][1] > sum(count for _, count in stems[1:]) else None
    reasons: dict[CheckpointKey, str] = {}
    for save in saves:
        is_free = save.named is not None and save.named.is_free
        if save.named is None or not is_free:
            if any(finding.code is Code.STEP_DISAGREES for finding in save.findings):
                reasons[save.key] = "is named for a different step than it contains"
        elif usual is not None and (save.named.number is None or save.named.stem != usual):
            reasons[save.key] = "is not named like the other checkpoints, so a person may have put it there"
    counted = [save for save in numbered if save.named is not None and save.named.counts_saves]
    furthest: Checkpoint | None = None
    for save in sorted((save for save in counted if save.step is not None), key=_number):
        if furthest is None or (save.step or 0) >= (furthest.step or 0):
            furthest = save
        else:
            reasons[save.key] = f"is numbered after {furthest.name}, which contains a later step"
    return reasons


def is_out_of_place(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint's number shows no training progress.

    The checkpoint may be a copy, another run's save, or have a number without meaning.

    Args:
        checkpoint: A checkpoint of a tree whose steps are determined.
    """
    codes = {finding.code for finding in checkpoint.findings}
    is_mere_name = checkpoint.step_source is StepSource.NAME and Code.STEP_DISAGREES in codes
    return is_mere_name or not codes.isdisjoint(_OUT_OF_PLACE)


def leaves_newest_open(checkpoint: Checkpoint, findings: Iterable[Finding], *, is_tracked: bool) -> bool:
    """Return whether a skipped checkpoint may be further than all others, so that the newest one is unknown.

    Args:
        checkpoint: A checkpoint of a tree whose steps are determined.
        findings: The findings against it.
        is_tracked: Whether a record of the trainer names the last checkpoint.
    """
    against = {(finding.code, finding.severity) for finding in findings}
    if (Code.DUPLICATE_CHECKPOINT, Severity.UNKNOWN) in against:
        return True
    is_mere_name = checkpoint.step_source is StepSource.NAME and (Code.STEP_DISAGREES, Severity.UNKNOWN) in against
    return is_mere_name and not is_tracked and (Code.DUPLICATE_CHECKPOINT, Severity.SUSPECT) not in against


def is_named_beyond(checkpoint: Checkpoint, chosen: Checkpoint) -> bool:
    """Return whether a checkpoint is further than the chosen one by its name only, as a copy or a mixture is.

    Args:
        checkpoint: A checkpoint of a tree whose steps are determined.
        chosen: The chosen checkpoint of the same tree.
    """
    mine, theirs = (re.fullmatch(_ENDS_IN_NUMBER, save.name) for save in (checkpoint, chosen))
    if mine is None or theirs is None or mine[1] != theirs[1] or int(mine[2]) <= int(theirs[2]):
        return False
    return bool(not_acted_on(checkpoint))


def latest(newest_first: Sequence[Checkpoint]) -> Sequence[Checkpoint]:
    """Return the checkpoint that `latest` selects.

    A copy or a folder without a step is selected only if there is nothing else.

    Args:
        newest_first: All checkpoints of a tree whose steps are determined.
    """
    candidates = [save for save in newest_first if not is_out_of_place(save) and not _is_anything(save)]
    return (candidates or newest_first)[:1]


def _is_anything(save: Checkpoint) -> bool:
    """Return whether a folder may not belong to any run, because a person named it and its step is unknown."""
    return save.step is None and save.named is not None and save.named.is_free


def doubtful(checkpoint: Checkpoint) -> tuple[Finding, ...]:
    """Return the findings about the step of a checkpoint that may still be chosen."""
    codes = {Code.STEP_UNKNOWN, Code.STEP_DISAGREES}
    return tuple(finding for finding in checkpoint.findings if finding.code in codes)


def _steps_of_free_names(saves: Sequence[Checkpoint]) -> dict[CheckpointKey, Step | None]:
    """Return the step in each checkpoint's name; None if the name's number is a counter that is not a step."""
    free = [save for save in saves if save.named is not None and save.named.is_free]
    steps: dict[CheckpointKey, Step | None] = {save.key: None for save in _without_evidence(free)}
    stems = _believed_stems([save for save in free if save.key not in steps], len(steps))
    for save in free:
        silent = save.step is None and save.key not in steps
        if silent and save.named is not None and save.named.number is not None and save.named.stem in stems:
            steps[save.key] = save.named.number
    return steps


def _without_evidence(saves: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the checkpoints whose counters have the same step although their names have different steps."""
    by_step: dict[Step, list[Checkpoint]] = defaultdict(list)
    for save in saves:
        if save.step is not None:
            by_step[save.step].append(save)
    copies: list[Checkpoint] = []
    for step, group in by_step.items():
        numbers = {save.named.number for save in group if save.named is not None} - {None}
        if step not in numbers and (len(numbers) > 1 or len(group) >= _SEVERAL):
            copies += group
    return copies


def _believed_stems(saves: Sequence[Checkpoint], refuted: int) -> frozenset[str]:
    """Return the stems before numbers that are steps: proven by the content, or otherwise used by most checkpoints."""
    votes: Counter[str] = Counter()
    proven: set[str] = set()
    denied: set[str] = set()
    for save in saves:
        if save.named is None or save.named.number is None:
            continue
        votes[save.named.stem] += 1
        if save.step is not None:
            (proven if save.step == save.named.number else denied).add(save.named.stem)
    if proven or denied or refuted:
        return frozenset(proven)
    most = [stem for stem, count in votes.items() if 2 * count > votes.total()]
    return frozenset(most)


def _with_step(save: Checkpoint, step: Step | None) -> Checkpoint:
    source = StepSource.UNKNOWN if step is None else StepSource.NAME
    return replace(save, step=step, step_source=source)


def _summary(run: RunSummary, saves: Iterable[Checkpoint]) -> RunSummary:
    steps = [save.step for save in saves if save.step is not None]
    return replace(run, first_step=min(steps, default=None), last_step=max(steps, default=None))


def _against_names(saves: Sequence[Checkpoint]) -> Iterable[tuple[CheckpointKey, Finding]]:
    by_stem: dict[str, list[tuple[Checkpoint, NamedStep, Step]]] = defaultdict(list)
    for save in saves:
        if save.named is not None and save.named.number is not None and save.step_source is StepSource.CONTENT:
            by_stem[save.named.stem].append((save, save.named, save.step or Step(0)))
    for group in by_stem.values():
        agree = any(step == named.number for _, named, step in group)
        for save, named, step in group:
            number = named.number or 0
            if step == number or named.counts_saves:
                continue
            alone = len(group) == 1 and named.is_sure and abs(step - number) > _OFF_BY_ONE
            if alone:
                yield (
                    save.key,
                    replace(
                        _other_step(save, number, step),
                        severity=Severity.UNKNOWN,
                        remedy=f"--checkpoint {save.name} loads it; rename the folder to the step in its files",
                    ),
                )
            elif agree or not named.is_free:
                yield save.key, _other_step(save, number, step)
            else:
                message = f"the name says step {number}, the content step {step}; the content is used"
                expected, actual = str(number), str(step)
                yield (
                    save.key,
                    note(Code.STEP_DISAGREES, message, path=save.name, expected=expected, actual=actual),
                )


def _other_step(save: Checkpoint, number: int, step: int) -> Finding:
    fact = f"the name says step {number}, the content step {step}"
    return suspect(
        Code.STEP_DISAGREES,
        f"{fact}: a copy, or files of two checkpoints",
        fact=fact,
        path=save.name,
        expected=str(number),
        actual=str(step),
        remedy="resume from another checkpoint, or rename the folder to the step in its files",
    )


def _copies(saves: Sequence[Checkpoint], tracked: str | None) -> Iterable[tuple[CheckpointKey, Finding]]:
    """Find checkpoints that are copies of another checkpoint under a different name."""
    by_identity: dict[str, list[Checkpoint]] = defaultdict(list)
    for save in saves:
        if save.identity is not None:
            by_identity[save.identity].append(save)
    for group in by_identity.values():
        if len(group) > 1:
            original = _original(group, saves, tracked)
            for save in group:
                original_save = next(saved for saved in (original, *group) if saved is not None and saved is not save)
                if save is not original:
                    yield save.key, _copy(save, original_save, is_sure=original is not None)
    counted = [save for save in saves if save.named is not None and save.named.counts_saves]
    for save in counted:
        original = next((saved for saved in counted if _is_copied(saved, save, counted)), None)
        if original is not None:
            yield save.key, _copy(save, original, is_sure=True)


def _is_copied(original: Checkpoint, save: Checkpoint, saves: Iterable[Checkpoint]) -> bool:
    """Return whether a checkpoint has the step of an earlier one although a higher step is between them."""
    if original.step is None or original.step != save.step:
        return False
    between = (candidate for candidate in saves if _number(original) < _number(candidate) < _number(save))
    return any(candidate.step is not None and candidate.step > original.step for candidate in between)


def _number(save: Checkpoint) -> int:
    number = None if save.named is None else save.named.number
    return -1 if number is None else number


def _original(group: Sequence[Checkpoint], saves: Iterable[Checkpoint], tracked: str | None) -> Checkpoint | None:
    """Return the checkpoint whose number best fits the order of the others; at a tie, the tracked or certain one."""
    rest = [save for save in saves if all(save is not saved for saved in group)]
    misfits = sorted((_misfits(save, rest), save.name) for save in group)
    if misfits[0][0] == misfits[1][0]:
        names = {name for count, name in misfits if count == misfits[0][0]}
        best = [save for save in group if save.name in names]
        preferred = [save for save in best if save.name == tracked] or [save for save in best if not not_acted_on(save)]
        return preferred[0] if len(preferred) == 1 else None
    return next(save for save in group if save.name == misfits[0][1])


def _misfits(save: Checkpoint, checkpoints: Iterable[Checkpoint]) -> int:
    return sum(
        (save.step < candidate.step) != (save.order < candidate.order)
        for candidate in checkpoints
        if save.step is not None
        and candidate.step is not None
        and save.order is not None
        and candidate.order is not None
    )


def _copy(save: Checkpoint, original: Checkpoint, *, is_sure: bool) -> Finding:
    message = f"a copy of {original.name} under another name"
    if not is_sure:
        message = f"{save.name} and {original.name} are a checkpoint and its copy, and it is unknown which is which"
    remedy = f"move it out of the tree; --checkpoint {save.name} loads it anyway"
    severity = Severity.SUSPECT if is_sure else Severity.UNKNOWN
    return Finding(code=Code.DUPLICATE_CHECKPOINT, severity=severity, message=message, path=save.name, remedy=remedy)


def _out_of_order(
    saves: Sequence[Checkpoint], copies: AbstractSet[CheckpointKey]
) -> Iterable[tuple[CheckpointKey, Finding]]:
    """Find checkpoints that were committed before one with a lower step: copies, or leftovers of an earlier run."""
    by_prefix: Mapping[str, list[tuple[Step, int, Checkpoint]]] = defaultdict(list)
    for save in saves:
        if save.committed_ns is not None and save.step is not None and save.key not in copies:
            by_prefix[save.prefix].append((save.step, save.committed_ns, save))
    for group in by_prefix.values():
        latest: tuple[int, Checkpoint] | None = None
        for _, committed, save in sorted(group, key=lambda item: item[:2]):
            if latest is not None and committed < latest[0]:
                fact = f"{save.name} was committed before {latest[1].name}, which has a lower step"
                message = f"{fact}: it is a copy, or from an earlier run"
                remedy = f"move it out of the tree; --checkpoint {save.name} loads it anyway"
                yield save.key, suspect(Code.TIMES_DISAGREE, message, path=save.name, remedy=remedy, fact=fact)
            else:
                latest = committed, save


def _unconfirmed(saves: Sequence[Checkpoint]) -> Iterable[tuple[CheckpointKey, Finding]]:
    """Find steps that are known only from a name, if the tree's checkpoints do not share the stem of that name."""
    # If a name has no number, its stem is the full name: `step_` and `step_50` share no stem.
    stems: dict[str, set[tuple[str, bool] | None]] = defaultdict(set)
    for save in saves:
        stems[save.prefix].add(None if save.named is None else (save.named.stem, save.named.number is None))
    for save in saves:
        if save.named is not None and save.step_source is StepSource.NAME and len(stems[save.prefix]) > 1:
            fact = f"only its name says step {save.step}, and the checkpoints of this tree are not all named alike"
            message = f"{fact}: prune, seal and repair do not change it"
            yield save.key, note(Code.STEP_UNKNOWN, message, path=save.name, remedy=NAME_REMEDY, fact=fact)
