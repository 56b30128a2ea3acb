"""Functions that list, inspect and replay captures of non-finite steps."""

from __future__ import annotations

import os

from ckpttool.core.domain.finding import Finding, note, unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import MAX_RANKS, Rank, Step, counted, on_ranks
from ckpttool.core.errors import IncompleteError
from ckpttool.core.formats.strict_json import ParseError
from ckpttool.core.logs.guard_events import GuardFiles
from ckpttool.core.storage import open_storage
from ckpttool.core.storage.base import Storage
from ckpttool.guard.files.capture import (
    HEAD,
    RECORD_LIMIT,
    CaptureHead,
    head_step,
    rank_of_record,
    read_head,
    read_rank,
    record_name,
    shard_name,
)
from ckpttool.guard.files.parts import capture_folders, is_capture, only_capture, shard_digest
from ckpttool.guard.files.replayed import record
from ckpttool.guard.findings import GuardCode
from ckpttool.guard.model.attribution import RecordedReplay
from ckpttool.guard.model.capture import Capture, Captures, NanQuestion, NanReplay, RankCapture
from ckpttool.guard.rules.nan_diagnosis import culprits, in_a_row
from ckpttool.guard.verbs.reports import guard_report


def list_nan(path: str) -> Captures:
    """List the captures in a folder, without reading any tensors.

    Args:
        path: A capture, the folder of captures, the guard's folder, or the output folder of a training run.

    Raises:
        UnknownLayoutError: There is no capture.
    """
    storage, shown = open_storage(path), path.rstrip("/")
    captures = [
        _read(storage, folder, f"{shown}/{folder}" if folder else path, shards=False)
        for folder in capture_folders(path)
    ]
    by_step = tuple(sorted(captures, key=lambda capture: (capture.step, capture.path)))
    return Captures(path=path, captures=by_step, in_a_row=in_a_row(by_step))


def inspect_nan(path: str) -> Capture | Captures:
    """Show the contents of a capture after comparing each shard with its digest, or list the captures of a folder.

    Raises:
        UnknownLayoutError: There is no capture.
    """
    storage = open_storage(path)
    if not is_capture(storage):
        return list_nan(path)
    return replace(_read(storage, "", path, shards=True), has_stopped=_has_stopped(path))


def _has_stopped(path: str) -> bool | None:
    """Return whether the training run stopped, from the events next to the captures."""
    folder, _, captures = os.path.dirname(os.path.abspath(path)).rpartition("/")
    if captures != "captures" or not (files := GuardFiles().inside(folder)):
        return None
    report = guard_report(files)
    return report.stopped_at is not None if report.ranks else None


def replay_nan(question: NanQuestion) -> NanReplay:
    """Recompute a captured step in this process, with the user's model.

    Raises:
        UnknownLayoutError: There is no capture, or there are several.
        UsageError: There is no such entry, rank or device.
        IncompleteError: torch is not installed, or the replay exceeded the timeout.
        WriteFailedError: The result cannot be recorded.
    """
    path = only_capture(question.path)
    capture = _read(open_storage(path), "", path, shards=True)
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise IncompleteError("a replay needs torch and the training's own code: run it in the training's environment")
    from ckpttool.guard.replay.run import replay

    answer = replay(capture, question)
    if question.record:
        record(
            path,
            RecordedReplay(
                host=os.uname().nodename,
                device=answer.device,
                verdict=answer.verdict.value,
                why=answer.why,
                ranks=tuple(rank.rank for rank in answer.ranks),
            ),
        )
    return answer


def _read(storage: Storage, folder: str, shown_path: str, *, shards: bool) -> Capture:
    """Read a capture.

    Args:
        storage: The storage that contains it.
        folder: Path relative to the storage's root.
        shown_path: The path, as the user passed it.
        shards: Whether to read the tensors' files and compare them with their digests.
    """
    prefix = f"{folder}/" if folder else ""
    findings: list[Finding] = []
    head = _head(storage, prefix, findings)
    ranks = _ranks(storage, folder, prefix, findings)
    name = os.path.basename(os.path.normpath(shown_path))
    steps = [head.step] if head is not None else [rank.step for rank in ranks]
    step = steps[0] if steps else head_step(name) or Step(0)
    world_size = max([rank.world_size for rank in ranks] + ([head.world_size] if head is not None else [1]))
    missing = sorted(set(range(world_size)) - {int(rank.rank) for rank in ranks})
    if missing:
        finding = unknown(
            GuardCode.CAPTURE_INCOMPLETE,
            f"of {counted(world_size, 'rank')}, {on_ranks(missing)} have no readable files here",
            ranks=tuple(map(Rank, missing)),
            remedy="copy their files from the disks of their machines; each rank wrote its own",
        )
        findings.append(finding)
    for rank in ranks:
        findings += _shard_findings(storage, prefix, rank, shards=shards) + _notes(rank)
    return Capture(
        path=shown_path,
        step=step,
        world_size=world_size,
        time=None if head is None else head.time,
        ranks=tuple(ranks),
        culprits=culprits(ranks),
        findings=tuple(findings),
    )


def _head(storage: Storage, prefix: str, findings: list[Finding]) -> CaptureHead | None:
    path = f"{prefix}{HEAD}"
    try:
        return read_head(storage.small_file(path, limit=RECORD_LIMIT), where=path)
    except FileNotFoundError:
        return None  # ranks do not wait for each other: missing files are reported by rank
    except (OSError, ParseError) as error:
        findings.append(_damaged(path, error))
        return None


def _ranks(storage: Storage, folder: str, prefix: str, findings: list[Finding]) -> list[RankCapture]:
    captures = []
    numbers = sorted(
        rank
        for entry in storage.entries(folder)
        if (rank := rank_of_record(entry.name)) is not None and rank < MAX_RANKS and entry.name == record_name(rank)
    )
    for rank in numbers:
        path = f"{prefix}{record_name(rank)}"
        try:
            captures.append(read_rank(storage.small_file(path, limit=RECORD_LIMIT), rank, where=path))
        except (OSError, ParseError) as error:
            findings.append(_damaged(path, error, rank))
    return captures


def _shard_findings(storage: Storage, prefix: str, rank: RankCapture, *, shards: bool) -> list[Finding]:
    path = f"{prefix}{shard_name(rank.rank)}"
    try:
        size = storage.stamp(path).size
        digest = rank.shard.xxh3_128 if size != rank.shard.size or not shards else shard_digest(storage, path)
    except OSError as error:
        return [
            unknown(
                GuardCode.CAPTURE_INCOMPLETE,
                f"rank {rank.rank}'s tensors cannot be read ({error.strerror or error})",
                path=path,
                ranks=(rank.rank,),
                remedy="copy the file from that rank's machine",
            )
        ]
    if (size, digest) == (rank.shard.size, rank.shard.xxh3_128):
        return []
    return [
        unknown(
            GuardCode.CAPTURE_DAMAGED,
            f"rank {rank.rank}'s tensors were changed after they were written",
            path=path,
            expected=f"{rank.shard.size} bytes, {rank.shard.xxh3_128}",
            actual=f"{size} bytes, {digest}" if size == rank.shard.size else f"{size} bytes",
            ranks=(rank.rank,),
            remedy="copy the file again from that rank's machine",
        )
    ]


def _notes(rank: RankCapture) -> list[Finding]:
    notes = []
    if any(batch.changed for batch in rank.micro_batches):
        notes.append(
            note(
                GuardCode.INPUTS_MUTATED,
                f"rank {rank.rank}'s batch was changed in place during the step: the saved batch is not the one that "
                "its forward pass received",
                ranks=(rank.rank,),
                remedy="the next capture of this run has a copy, because the guard keeps copies from the next step on",
            )
        )
    left_out = next((batch.left_out for batch in rank.micro_batches if batch.left_out is not None), None)
    if left_out is not None:
        notes.append(
            note(
                GuardCode.CAPTURE_INCOMPLETE,
                f"rank {rank.rank}'s batch could not be saved: {left_out.path or 'it'} is {left_out.reason}",
                ranks=(rank.rank,),
                remedy=left_out.remedy,
            )
        )
    return notes


def _damaged(path: str, error: Exception, rank: Rank | None = None) -> Finding:
    return unknown(
        GuardCode.CAPTURE_DAMAGED,
        f"cannot be trusted: {error}",
        path=path,
        ranks=() if rank is None else (rank,),
        remedy="copy the file again from the machine that wrote it",
    )
