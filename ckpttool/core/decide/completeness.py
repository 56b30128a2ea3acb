"""Completeness of a save by names and sizes: compares the listed files with the files that the layout expects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from ckpttool.core.decide.lineage import Lineage
from ckpttool.core.decide.recorded_health import attach_health
from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Inventory
from ckpttool.core.domain.expectation import (
    Evidence,
    Expectation,
    Expected,
    ExpectedFiles,
    FilesByPath,
    FilesByRank,
    of_other_length,
)
from ckpttool.core.domain.finding import Code, Finding, blocking, damage, helped, in_order, note, unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.health import HealthBook
from ckpttool.core.domain.units import MAX_RANKS, Rank, counted
from ckpttool.core.errors import UsageError

MOST_NAMED = 4096
"""Maximum number of missing files per checkpoint with a separate finding; the rest are counted."""


def believable(evidence: Evidence) -> Evidence:
    """Return the evidence unchanged if it is plausible.

    Raises:
        UsageError: The evidence claims more ranks than any real training run has.
    """
    for world in evidence.worlds:
        if world.world_size > MAX_RANKS:
            raise UsageError(f"{world.world_size} ranks, for {world.source}: more ranks than any training has")
    return evidence


def without_effect(world_size: int | None, expected: Expected) -> list[Finding]:
    """Report that the user's world size has no effect on some of the saves.

    Args:
        world_size: The world size that the user gave, if any.
        expected: The files that the layout expects by all evidence, including that world size.
    """
    answers = [
        checkpoint
        for checkpoint in expected.checkpoints
        if checkpoint.topology.world_size != world_size
        and all(finding.code is not Code.WORLD_SIZE_DIFFERS for finding in (*checkpoint.doubts, *checkpoint.notes))
    ]
    if world_size is None or not answers:
        return []
    shared = all(answer.topology.shared for answer in answers)
    why = "all ranks load the same files" if shared else "this layout does not assign the files of a save to ranks"
    return [
        note(
            Code.WORLD_SIZE_DIFFERS,
            f"--world-size {world_size} has no effect on {counted(len(answers), 'checkpoint')}: {why}",
            remedy="remove the option",
        )
    ]


def no_objections(_: Checkpoint) -> Sequence[Finding]:
    """Return no findings; used when the question is not about a next run."""
    return ()


def assess(  # noqa: PLR0913  facts about the tree other than its listing, by keyword
    inventory: Inventory,
    expected: Expected,
    book: HealthBook,
    names: Sequence[str | None],
    *,
    world_size: int | None = None,
    objections: Callable[[Checkpoint], Sequence[Finding]] = no_objections,
    under_way: tuple[Finding, ...] = (),
) -> Inventory:
    """Return the inventory with the recorded health of each save and the findings of all listing rules.

    Args:
        inventory: The inventory as scanned.
        expected: The expected files of each save.
        book: The trainer's health file.
        names: The name of each save in the health file; None if the record is inside the save.
        world_size: Number of ranks, if the user sets it.
        objections: The trainer's objections to a save at the sizes of the next run.
        under_way: Findings about a change of the tree that is running or was interrupted.
    """
    inventory = attach_health(compare(inventory, expected), book, names)
    context = Context(inventory, expected, world_size, objections, under_way)
    findings = in_order(finding for rule in OF_TREE for finding in rule(context))
    rewinds = Lineage(inventory).rewinds()
    return replace(inventory, findings=in_order((*rewinds, *findings)) if under_way else (*rewinds, *findings))


class Context(NamedTuple):
    """Facts about a listed tree, as input for its rules."""

    inventory: Inventory
    """The inventory, with the missing files and the recorded health of each save."""
    expected: Expected
    world_size: int | None
    objections: Callable[[Checkpoint], Sequence[Finding]]
    under_way: tuple[Finding, ...]


def _listed(context: Context) -> Iterable[Finding]:
    return context.inventory.findings


def _no_effect(context: Context) -> Iterable[Finding]:
    """Report a world size that has no effect, unless the trainer itself reports it."""
    findings = without_effect(context.world_size, context.expected)
    if findings and any(context.objections(checkpoint) for checkpoint in context.inventory.checkpoints):
        return ()
    return findings


def _under_way(context: Context) -> Iterable[Finding]:
    """Report a change in progress, because checkpoints look incomplete while it moves them."""
    return context.under_way


OF_TREE: tuple[Callable[[Context], Iterable[Finding]], ...] = (_listed, _no_effect, _under_way)
"""Rules about a tree. Each rule adds its findings once, and never removes the findings of other rules."""


def compare(inventory: Inventory, expected: Expected) -> Inventory:
    """Return the inventory with the findings about missing files, and the other findings of the listing."""
    pairs = zip(inventory.checkpoints, expected.checkpoints, strict=True)
    return replace(
        inventory,
        checkpoints=tuple(
            replace(
                checkpoint,
                topology=expectation.topology,
                findings=tuple(finding for rule in OF_SAVE for finding in rule(checkpoint, expectation)),
            )
            for checkpoint, expectation in pairs
        ),
        runs=expected.runs,
        findings=in_order((*inventory.findings, *expected.findings)),
    )


def _seen(checkpoint: Checkpoint, _: Expectation) -> Iterable[Finding]:
    return checkpoint.findings


def _uncommitted(checkpoint: Checkpoint, _: Expectation) -> list[Finding]:
    """Report that a save is or may be unfinished, unless the scan has already reported its missing files."""
    if blocking(checkpoint.findings):
        return []
    if checkpoint.commit is CommitState.UNKNOWN:
        message = "the record that the trainer writes last cannot be read: it is unknown whether the save is complete"
        return [unknown(Code.UNCOMMITTED_SAVE, message, path=checkpoint.name)]
    if checkpoint.commit is not CommitState.UNCOMMITTED:
        return []
    return [
        damage(
            Code.UNCOMMITTED_SAVE,
            "the save is not complete: the record that the trainer writes last is missing, or does not cover it",
            path=checkpoint.name,
            remedy="resume from an older checkpoint; if a save is in progress, wait for it",
        )
    ]


def _names_any(files: ExpectedFiles | None) -> bool:
    """Return whether any file is required, because an empty folder would otherwise count as complete."""
    match files:
        case FilesByPath():
            return bool(files.paths)
        case FilesByRank():
            return files.size.world > 0 and bool(files.roles)
        case None:  # pragma: no branch  mypy proves that there are no other cases
            return False


def _uncertain(_: Checkpoint, expectation: Expectation) -> Iterable[Finding]:
    return expectation.doubts


def _noted(_: Checkpoint, expectation: Expectation) -> Iterable[Finding]:
    return expectation.notes


def _missing(checkpoint: Checkpoint, expectation: Expectation) -> list[Finding]:
    match expectation.files:
        case FilesByPath() as files:
            return _missing_paths(checkpoint, files)
        case FilesByRank() as files:
            return _missing_ranks(checkpoint, files)
        case None:  # pragma: no branch  mypy proves that there are no other cases
            return []


def _missing_paths(checkpoint: Checkpoint, files: FilesByPath) -> list[Finding]:
    present = {shard.path for shard in checkpoint.shards}
    lacking = [path for path in files.paths if path not in present]
    named = [
        helped(
            damage(
                Code.SHARD_MISSING,
                "the checkpoint's own record names this file, but it is missing",
                path=path,
                ranks=(files.ranks[path],) if path in files.ranks else (),
            )
        )
        for path in lacking[:MOST_NAMED]
    ]
    if len(lacking) > MOST_NAMED:
        more = f"{len(lacking) - MOST_NAMED} more files named by the checkpoint's own record are missing"
        named.append(helped(damage(Code.SHARD_MISSING, more, path=checkpoint.name)))
    return named


def _missing_ranks(checkpoint: Checkpoint, files: FilesByRank) -> list[Finding]:
    expected_ranks = range(files.size.world)
    present = {role: {shard.rank for shard in checkpoint.shards if shard.role is role} for role in files.roles}
    lacking = sorted((rank, role) for role in files.roles for rank in set(expected_ranks) - present[role])
    named = [files.absent(Rank(rank), role) for rank, role in lacking[:MOST_NAMED]]
    return named + _and_more(checkpoint.name, [rank for rank, _ in lacking[MOST_NAMED:]], files)


def _and_more(name: str, ranks: Sequence[int], files: FilesByRank) -> list[Finding]:
    """Report in one finding the missing files beyond `MOST_NAMED`."""
    if not ranks:
        return []
    message = f"{len(ranks)} more shards are missing, of ranks {ranks[0]} to {ranks[-1]}"
    return [files.size.missing(message, Code.SHARD_MISSING, name, sorted(set(ranks)))]


def _empty(checkpoint: Checkpoint, _: Expectation) -> list[Finding]:
    """Report empty shards, which are the most common trace of a power failure, if the listing has sizes."""
    return [
        helped(
            damage(
                Code.SHARD_EMPTY,
                "the file is empty",
                path=shard.path,
                ranks=() if shard.rank is None else (shard.rank,),
            )
        )
        for shard in checkpoint.shards
        if shard.stamp is not None and shard.stamp.size == 0
    ]


def _of_other_length(checkpoint: Checkpoint, _: Expectation) -> Iterable[Finding]:
    return of_other_length(
        checkpoint.shards, {shard.path: shard.stamp for shard in checkpoint.shards if shard.stamp is not None}
    )


def _files_unknown(checkpoint: Checkpoint, expectation: Expectation) -> list[Finding]:
    """Report that the expected files of a save are unknown, unless the save is known to be bad for another reason."""
    if _names_any(expectation.files):
        return []
    reported = (finding for rule in OF_FILES for finding in rule(checkpoint, expectation))
    if blocking(tuple(reported)):
        return []
    message = "it is unknown which files belong to this save, and therefore whether it is intact"
    return [unknown(Code.METADATA_INCOMPLETE, message, path=checkpoint.name)]


Rule: TypeAlias = Callable[[Checkpoint, Expectation], Iterable[Finding]]

OF_FILES: tuple[Rule, ...] = (_seen, _uncommitted, _uncertain, _missing, _noted)
OF_SAVE: tuple[Rule, ...] = (*OF_FILES, _files_unknown, _empty, _of_other_length)
"""Rules about a save. Each rule adds its findings once, and never removes the findings of other rules."""
