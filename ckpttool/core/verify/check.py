"""The check of one task, which returns one observation. A damaged shard is reported and never raises an exception."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from ckpttool.core.domain.finding import Code, Finding, Severity, unknown, unsafe, worst
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.shard import FileStamp, FormatName, TensorEntry
from ckpttool.core.domain.units import ByteCount, counted
from ckpttool.core.domain.verdict import CheckTask, Level, ShardReport
from ckpttool.core.storage import open_storage
from ckpttool.core.storage.base import ByteSource, NotRegularError, ReplacedError, ShrankError, Storage, unreadable
from ckpttool.core.verify.checks.structure import observe_header
from ckpttool.core.verify.observation import Observation

TRIES = 2
"""Maximum number of reads of a file that changes during the read, because the save may just have ended."""


class CompareShard(Protocol):
    """A function for an open file: a check, a probe, or a comparison."""

    def __call__(
        self, task: CheckTask, source: ByteSource, *, passed: Callable[[int], None] | None = None
    ) -> Observation:
        """Read the file, and report the number of bytes after each block of content."""
        ...


def check(
    task: CheckTask,
    *,
    storage: Storage | None = None,
    compare: CompareShard | None = None,
    passed: Callable[[int], None] | None = None,
) -> Observation:
    """Check one shard, or a part of it.

    Args:
        task: The task.
        storage: The storage to read; None to open the task's root, as a remote process does.
        compare: The function to run on the open file; None for a check at the task's level.
        passed: Called after each block of content with its number of bytes.
    """
    storage, looking = storage or open_storage(task.root), partial(compare or _observed, passed=passed)
    observed = _attempt(task, storage, looking)
    for _ in range(TRIES - 1):
        if all(finding.code is not Code.CHANGED_WHILE_READING for finding in observed.report.findings):
            break
        retried = _attempt(task, storage, looking)
        # It is stable now but was just written, so it may count as intact, but not as damaged.
        observed = observed if worst(retried.report.findings) >= Severity.SUSPECT else retried
    return observed


def guarded(task: CheckTask, work: Callable[[CheckTask], Observation] = check) -> Observation:
    """Run a task so that no error can affect the reports of other shards. Every engine calls this function."""
    try:
        return work(task)
    except Exception as error:  # noqa: BLE001  a shard that no rule foresaw, or our own mistake about one
        message = (
            f"the check itself failed ({type(error).__name__}: {error}): unknown, not damaged; this is a bug in "
            f"ckpttool, report it"
        )
        return failed(task, message)


def _attempt(task: CheckTask, storage: Storage, compare: CompareShard) -> Observation:
    try:
        with storage.open(task.path) as source:
            observed = compare(task, source)
        after = storage.stamp(task.path)
    except FileNotFoundError:
        message = "disappeared after the folder was listed: another process is deleting or renaming files"
        return changed(task, message)
    except ShrankError as error:
        message = f"was truncated while it was read ({error.strerror}): another process is writing it"
        return changed(task, message)
    except ReplacedError as error:
        return changed(task, f"was {error}: another process is writing it")
    except NotRegularError:
        message = "expected a regular file, found a FIFO, a device or a folder"
        return refused(task, unsafe(Code.NOT_A_REGULAR_FILE, message, path=task.path))
    except OSError as error:
        return refused(task, unreadable(task.path, error, task.rank))
    return _steady(observed, after)


def _observed(task: CheckTask, source: ByteSource, *, passed: Callable[[int], None] | None = None) -> Observation:
    observed = observe_header(task, source)
    if not task.level.reads_content or worst(observed.report.findings) >= Severity.DAMAGE:
        # Without the entries, because thousands of ranks' headers together would not fit into memory.
        return Observation(task=task, report=observed.report)
    from ckpttool.core.verify.checks.checksum import read_content, too_many

    refusal = too_many(observed)
    if refusal is not None:
        return Observation(task=task, report=replace(observed.report, findings=(*observed.report.findings, refusal)))
    numbers: tuple[Finding, ...] = ()
    if observed.records is not None and task.level is Level.NUMERICS:
        observed, numbers = _with_tensors(observed, source)
    elif observed.report.format is FormatName.TORCH_ZIP and task.digests:
        observed, _ = _with_tensors(observed, source)
    elif observed.report.format is FormatName.OCDBT and task.level is Level.NUMERICS:
        numbers = (_without_packed_numbers(task.path),)
    content = read_content(observed, source, passed)
    return replace(
        observed,
        content=content,
        report=replace(
            observed.report,
            bytes_read=ByteCount(observed.report.bytes_read + content.bytes_read),
            findings=(*observed.report.findings, *numbers),
        ),
    )


def _with_tensors(observed: Observation, source: ByteSource) -> tuple[Observation, tuple[Finding, ...]]:
    """Add the records of a torch file that are tensors, and report the tensors whose elements cannot be checked."""
    from ckpttool.core.verify.checks.structure import contents_of_torch

    records, contents = contents_of_torch(observed, source)
    if observed.header is None or records is None:  # a file without a record has nothing to check
        return observed, ()
    spans = {record.as_entry().spans for record in records.entries}
    by_spans: dict[tuple[tuple[int, int], ...], TensorEntry] = {}
    for entry in contents.entries:
        if entry.spans in spans:
            by_spans.setdefault(entry.spans, entry)
    remaining = (
        sum(bool(entry.nbytes or not entry.spans) and entry.spans not in by_spans for entry in contents.entries)
        + contents.unread
    )
    header = replace(observed.header, entries=tuple(by_spans.values()))
    return replace(observed, header=header), (_without_numbers(observed.task.path, remaining),) if remaining else ()


def _without_numbers(path: str, tensors: int) -> Finding:
    """Report tensors in a torch file whose elements were to be checked but were not."""
    return unknown(
        Code.UNSUPPORTED_FORMAT,
        f"every byte was read, but {counted(tensors, 'tensor')} in it share storage with others or are not "
        f"contiguous: NaN would not be detected there",
        path=path,
        expected="each tensor in its own record",
        actual=f"{counted(tensors, 'tensor')} that are not",
        remedy="--level checksum verifies its bytes by the checksums inside",
    )


def _without_packed_numbers(path: str) -> Finding:
    """Report that elements were to be checked but were not, because they are packed."""
    return unknown(
        Code.UNSUPPORTED_FORMAT,
        "every byte was read, but the values in an OCDBT file are not checked: NaN would not be detected",
        path=path,
        expected="a .ckpt or safetensors file",
        actual="an OCDBT file",
    )


def _steady(observed: Observation, after: FileStamp) -> Observation:
    """Return the observation, unless the file changed during the read and so proves nothing.

    A header is read within microseconds, and a running save pauses for longer. If there is damage, the file must
    therefore also be unchanged since the listing.
    """
    listed = observed.task.listed
    if after == observed.report.stamp and (
        listed in {None, after} or worst(observed.report.findings) < Severity.SUSPECT
    ):
        return observed
    before = observed.report.stamp if after != observed.report.stamp else listed
    sizes = f"{before.size if before else 0} bytes before, {after.size} after"
    message = f"changed while it was read ({sizes}): another process is writing it"
    return changed(observed.task, message)


def changed(task: CheckTask, message: str) -> Observation:
    """Report a shard that another process writes, renames or removes."""
    remedy = "run again when nothing is writing here"
    return refused(task, unknown(Code.CHANGED_WHILE_READING, message, path=task.path, remedy=remedy))


def failed(task: CheckTask, message: str) -> Observation:
    """Report that it is unknown whether a shard is damaged."""
    return refused(task, unknown(Code.UNREADABLE, message, path=task.path))


def hung(task: CheckTask, seconds: float) -> Observation:
    """Report a shard whose disk did not respond within the timeout."""
    return failed(task, f"no answer from the disk within {seconds:g} s: unknown, not damaged")


def refused(task: CheckTask, finding: Finding) -> Observation:
    """Return the report of a shard with this single finding."""
    report = ShardReport(
        path=task.path,
        rank=task.rank,
        role=task.role,
        level=task.level,
        format=None,
        stamp=None,
        scalars=(),
        schema_hash=None,
        tensors=None,
        checksum_matched=False,
        bytes_read=ByteCount(0),
        findings=(finding,),
    )
    return Observation(task=task, report=report)
