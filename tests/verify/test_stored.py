"""What a store keeps of a shard against what is recorded of it: all of that counts, and 64 are asked at once."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from ckpttool.domain.finding import Code, Severity
from ckpttool.domain.manifest import ShardSeal
from ckpttool.domain.shard import FileStamp, FormatName
from ckpttool.domain.stored import CrcName, Crcs, Store, StoredChecksum
from ckpttool.domain.units import ByteCount
from ckpttool.domain.verdict import Level, ShardReport, VerdictWord
from ckpttool.storage.fan_out import STORE_WORKERS
from ckpttool.verify.stored import StoreReading, judged
from tests.support.manifests import seal
from tests.support.verifying import report

KNOWN = Store(address="https://s3.amazonaws.com", is_known=True)
UNKNOWN = Store(address="http://127.0.0.1:8333", is_known=False)
CRC32, CRC32C, CRC64 = (CrcName.CRC32, 1), (CrcName.CRC32C, 2), (CrcName.CRC64NVME, 3)


def kept(*crcs: tuple[CrcName, int]) -> StoredChecksum:
    return StoredChecksum(crcs=crcs, of_parts=(), in_parts=False)


def sealed(*crcs: tuple[CrcName, int], size: int = 100) -> ShardSeal:
    return replace(seal(size=size), crcs=crcs)


def looked(
    stored: StoredChecksum, recorded: ShardSeal | None = None, *, store: Store = KNOWN, own: int | None = None
) -> tuple[VerdictWord, list[tuple[Code, Severity]]]:
    told = judged(replace(report(), file_crc32=own), recorded, stored, store)
    return told.word, [(finding.code, finding.severity) for finding in told.findings]


DIFFERS = (Code.STORE_CHECKSUM_DIFFERS, Severity.DAMAGE)
NOTHING = (Code.CHECKSUM_MISSING, Severity.NOTE)


@pytest.mark.parametrize(
    ("stored", "recorded", "own", "word", "findings"),
    [
        (kept(CRC32), sealed(CRC32), None, VerdictWord.ATTESTED, []),
        (kept(CRC32), sealed((CrcName.CRC32, 9)), None, VerdictWord.DAMAGED, [DIFFERS]),
        (kept(CRC64), sealed(CRC32, CRC64), None, VerdictWord.ATTESTED, []),
        (kept(CRC64), sealed(CRC32), None, VerdictWord.STRUCT_OK, [NOTHING]),
        (kept(CRC64), sealed(), None, VerdictWord.STRUCT_OK, [NOTHING]),
        (kept(CRC32), None, 1, VerdictWord.ATTESTED, []),
        (kept(CRC32), None, 9, VerdictWord.DAMAGED, [DIFFERS]),
        (kept(CRC32), None, None, VerdictWord.STRUCT_OK, [NOTHING]),
        (kept(CRC64), None, 1, VerdictWord.STRUCT_OK, [NOTHING]),
        # Whatever is recorded must agree, not one of it.
        (kept(CRC32), sealed(CRC32), 9, VerdictWord.DAMAGED, [DIFFERS]),
        (kept(CRC32), sealed((CrcName.CRC32, 9)), 1, VerdictWord.DAMAGED, [DIFFERS]),
        (kept(CRC32, (CrcName.CRC32C, 9)), sealed(CRC32, CRC32C), None, VerdictWord.DAMAGED, [DIFFERS]),
        # Of a file of another size the manifest tells nothing that could be compared.
        (kept(CRC32), sealed(CRC32, size=101), None, VerdictWord.STRUCT_OK, [NOTHING]),
        (kept(), sealed(CRC32), 1, VerdictWord.STRUCT_OK, [NOTHING]),
    ],
)
def test_all_that_is_recorded_must_agree_and_something_must_be(
    stored: StoredChecksum,
    recorded: ShardSeal | None,
    own: int | None,
    word: VerdictWord,
    findings: list[tuple[Code, Severity]],
) -> None:
    assert looked(stored, recorded, own=own) == (word, findings)
    if word is VerdictWord.ATTESTED:
        assert looked(stored, recorded, own=own, store=UNKNOWN)[0] is VerdictWord.STRUCT_OK
    if word is VerdictWord.DAMAGED:
        assert looked(stored, recorded, own=own, store=UNKNOWN)[0] is VerdictWord.SUSPECT


def test_a_checkpoint_is_attested_only_as_far_as_its_worst_shard_and_never_proven() -> None:
    attested = judged(report(), sealed(CRC32), kept(CRC32), KNOWN)
    verified = replace(report(), checksum_matched=True)
    order = [VerdictWord.VERIFIED, VerdictWord.AGREED, VerdictWord.ATTESTED, VerdictWord.STRUCT_OK]
    assert list(VerdictWord)[:4] == order
    assert not attested.is_proven
    assert verified.is_proven


def crcs_of(path: str) -> Crcs:
    return ((CrcName.CRC32, int(path.split("/", maxsplit=1)[0].removeprefix("rank_"))),)


def test_as_many_as_a_store_serves_are_asked_at_once() -> None:
    together = threading.Barrier(STORE_WORKERS, timeout=30)  # passes only where so many are there at the same time

    def ask(path: str, _: FileStamp) -> StoredChecksum:
        together.wait()
        return kept(*crcs_of(path))

    reports: list[ShardReport] = [report(rank) for rank in range(STORE_WORKERS)]
    seals = {each.path: replace(sealed(*crcs_of(each.path)), path=each.path) for each in reports}
    told = list(StoreReading(of=ask, store=KNOWN, timeout=60.0).compared(reports, seals, root="s3://bucket/run"))
    assert [each.path for each in told] == [each.path for each in reports]
    assert {(each.word, each.level) for each in told} == {(VerdictWord.ATTESTED, Level.STORED)}


def test_a_store_that_never_answers_is_unknown_and_what_the_header_told_stays() -> None:
    never = threading.Event()

    def ask(_: str, __: FileStamp) -> StoredChecksum:
        never.wait(30)
        return kept()

    (told,) = StoreReading(of=ask, store=KNOWN, timeout=0.2).compared([report()], {}, root="s3://bucket/run")
    never.set()
    assert told.word is VerdictWord.UNREADABLE
    assert (told.format, told.stamp, told.tensors) == (FormatName.SAFETENSORS, report().stamp, 10)
    assert told.stamp is not None
    assert told.stamp.size == ByteCount(100)
