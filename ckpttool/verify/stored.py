"""What a store keeps of a shard beside its bytes, against what is recorded of it: not a byte of it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from ckpttool.domain.finding import Code, Finding, Severity, damage, note, suspect, worst
from ckpttool.domain.frozen import dataclass, replace
from ckpttool.domain.manifest import ShardSeal
from ckpttool.domain.shard import FileStamp
from ckpttool.domain.stored import Claim, CrcName, Store, StoredChecksum
from ckpttool.domain.units import ByteCount
from ckpttool.domain.verdict import CheckTask, Level, ShardReport
from ckpttool.storage.base import ReplacedError, unreadable
from ckpttool.verify.check import changed, refused
from ckpttool.verify.engines.waiting import WaitingEngine
from ckpttool.verify.observation import Observation

_READ_IT = "ckpttool verify --level checksum reads every byte"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReading:
    """Who is asked for what a store keeps."""

    of: Callable[[str, FileStamp], StoredChecksum]
    """Asks about one object, by its path; raises what a storage raises."""
    store: Store
    timeout: float
    """Seconds after which a question counts as hung."""

    def compared(
        self, reports: Iterable[ShardReport], seals: Mapping[str, ShardSeal], *, root: str
    ) -> Iterator[ShardReport]:
        """Ask the store about shards, by one request each, and compare what it keeps with what is recorded.

        Of one whose header shows damage it is not asked: that it arrived as it was sent would help nobody.

        Args:
            reports: On their headers.
            seals: What was recorded of them, by path.
            root: Of the tree.
        """
        headers = {report.path: report for report in reports}
        stamps = {path: report.stamp for path, report in headers.items() if report.stamp is not None}

        def ask(task: CheckTask) -> Observation:
            try:
                kept = self.of(task.path, stamps[task.path])
            except (FileNotFoundError, ReplacedError) as error:
                return changed(task, f"was replaced or removed since it was listed ({error.strerror or error})")
            except OSError as error:
                return refused(task, unreadable(task.path, error, task.rank))
            return Observation(task=task, report=judged(headers[task.path], task.seal, kept, self.store))

        engine = WaitingEngine(timeout=self.timeout, work=ask)
        observations = engine.run(list(_tasks(headers.values(), seals, root)))
        asked = {observed.task.path: observed.report for observed in observations}
        for path, header in headers.items():
            report = asked.get(path, header)
            if report.stamp is None and header.stamp is not None:  # the store did not say
                report = replace(header, findings=(*header.findings, *report.findings))
            yield replace(report, level=Level.STORED)


def _tasks(reports: Iterable[ShardReport], seals: Mapping[str, ShardSeal], root: str) -> Iterator[CheckTask]:
    for report in reports:
        if report.stamp is not None and report.format is not None and worst(report.findings) < Severity.UNKNOWN:
            yield CheckTask(
                root=root,
                path=report.path,
                rank=report.rank,
                role=report.role,
                named_format=report.format,
                level=Level.STORED,
                cost=ByteCount(0),
                seal=seals.get(report.path),
                listed=report.stamp,
            )


def judged(report: ShardReport, seal: ShardSeal | None, kept: StoredChecksum, store: Store) -> ShardReport:
    """Compare what a store keeps of one shard with what is recorded of it, by its seal and by itself."""
    uploaded = None if report.stamp is None else report.stamp.modified_ns
    findings, agreed = [], []
    for crc, value in kept.crcs:
        is_checked = store.checked(claim := Claim(crc=crc, in_parts=kept.in_parts), uploaded)
        for expected, by in _recorded(crc, seal, report):
            if value != expected:
                findings.append(_differs(report.path, crc, (expected, value), by, is_checked=is_checked))
            else:
                agreed.append((claim, is_checked))
    attested = not findings and any(is_checked for _, is_checked in agreed)
    if agreed and not findings and not attested:
        findings.append(_unsure(report, agreed[0][0], store))
    if not agreed and not findings:
        findings.append(_not_compared(report.path, seal, kept))
    return replace(report, attested=attested, findings=(*report.findings, *findings))


def _recorded(crc: CrcName, seal: ShardSeal | None, report: ShardReport) -> Iterator[tuple[int, str]]:
    """Yield what a checksum of the whole file must be, and what says so."""
    size = None if report.stamp is None else report.stamp.size
    if seal is not None and seal.size == size and (sealed := dict(seal.crcs).get(crc)) is not None:
        yield sealed, f"the manifest recorded on {seal.first_seen}"
    if crc is CrcName.CRC32 and report.file_crc32 is not None:
        yield report.file_crc32, "follows from the checksum at its end"


def _differs(path: str, crc: CrcName, values: tuple[int, int], by: str, *, is_checked: bool) -> Finding:
    expected, actual = map(crc.spelled, values)
    message = f"the store keeps {crc.value.upper()} {actual} of it, and {expected} is what {by}"
    if is_checked:
        told = f"{message}: what it received is not what was saved"
        remedy = "upload it again from where it is whole, or resume from another checkpoint"
        return damage(Code.STORE_CHECKSUM_DIFFERS, told, path=path, expected=expected, actual=actual, remedy=remedy)
    told = f"{message}; whether the store compared it with what it received is not known"
    return suspect(Code.STORE_CHECKSUM_DIFFERS, told, path=path, expected=expected, actual=actual, remedy=_READ_IT)


def _unsure(report: ShardReport, claim: Claim, store: Store) -> Finding:
    what = f"the store keeps the {claim.crc.value.upper()} that was recorded"
    took = next((trial for _, trial in store.trials if claim in trial.taken), None)
    refused_at = next((trial.tried_at for _, trial in store.trials if claim in trial.refused), None)
    remedy = _READ_IT
    if took is not None:
        why = f"{store.address} took a wrong one on {took.tried_at}"
    elif refused_at is not None:
        why = f"it was uploaded before {store.address} was first seen to refuse a wrong one, on {refused_at}"
    else:
        why = f"whether {store.address} refuses a wrong one is not known"
        remedy = f"verify --level stored --try-store finds it out for what is uploaded from then on; {_READ_IT}"
    told = f"{what}, but {why}: that proves no more than what the sender read"
    return note(Code.STORE_UNRELIABLE, told, path=report.path, remedy=remedy)


def _not_compared(path: str, seal: ShardSeal | None, kept: StoredChecksum) -> Finding:
    """Say why nothing could be compared."""
    names = [crc.value.upper() for crc, _ in kept.crcs]
    remedy = _READ_IT
    if kept.of_parts:
        why = f"what the store keeps of it ({', '.join(kept.of_parts)}) is of its parts, not of the whole"
        remedy = f"upload it with ChecksumType=FULL_OBJECT; {_READ_IT}"
    elif not names:
        why = "the store keeps no checksum of it"
    elif seal is None:
        why = f"the store keeps its {' and '.join(names)}, and nothing is recorded that it could be compared with"
        remedy = f"seal it before the next upload; {_READ_IT}"
    else:
        sealed = " and ".join(crc.value.upper() for crc, _ in seal.crcs) or "none that a store keeps"
        why = f"the store keeps its {' and '.join(names)}, and the manifest has {sealed}"
        remedy = f"seal with ckpttool[attest] before the next upload; {_READ_IT}"
    told = f"{why}: not compared, so changed tensor data would not be seen"
    return note(Code.CHECKSUM_MISSING, told, path=path, remedy=remedy)
