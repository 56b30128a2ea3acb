"""What a manifest says of a file that is not what was sealed of its name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpttool.core.domain.finding import Code, damage
from ckpttool.core.domain.manifest import ShardSeal
from ckpttool.core.domain.verdict import Level, ShardReport
from ckpttool.core.verify.checks.structure import MOST, capped
from ckpttool.core.verify.report import under_another_name
from tests.support.manifests import seal
from tests.support.verifying import report

OWN, OTHER = "rank_0/a.ckpt", "rank_1/a.ckpt"


def report_of(own: ShardSeal, chunks: tuple[str, ...]) -> ShardReport:
    """A file that holds these chunks, as it is told beside the seal."""
    mismatches = (
        damage(Code.CHECKSUM_MISMATCH, "differs", path=own.path, expected=mine, actual=held)
        for mine, held in zip(own.chunks, chunks, strict=True)
        if mine != held
    )
    of_its_own = damage(Code.CHECKSUM_MISMATCH, "its own CRC32", path=own.path, expected="1", actual="2")
    told = report(schema=own.schema_hash, findings=(of_its_own, *capped(mismatches)))
    return replace(told, path=own.path, level=Level.CHECKSUM, format=own.format, bytes_read=own.size)


@pytest.mark.parametrize("count", [1, MOST, MOST + 1, 5 * MOST])
def test_a_file_is_another_s_however_many_of_its_places_differ(count: int) -> None:
    own, other = seal(OWN, chunks=tuple(range(count))), seal(OTHER, chunks=tuple(range(1000, 1000 + count)))
    copy = seal("rank_2/a.ckpt", chunks=tuple(range(1000, 1000 + count)))
    seals = {each.path: each for each in (copy, other, own)}
    (told,) = under_another_name([report_of(own, other.chunks)], seals)
    assert (told.code, told.path) == (Code.SCHEMA_DIFFERS, OWN)
    assert OTHER in told.message
    damaged = (*other.chunks[:-1], "0" * 32)
    assert (list(under_another_name([report_of(own, damaged)], seals)) == []) is (count <= MOST)
    assert list(under_another_name([report_of(own, ("0" * 32, *own.chunks[1:]))], seals)) == []


def test_a_file_of_another_size_and_one_without_a_seal_are_nobody_s() -> None:
    own, other = seal(OWN, chunks=(1, 2)), seal(OTHER, chunks=(3, 2), size=17)
    seals = {own.path: own, other.path: other}
    assert list(under_another_name([report_of(own, other.chunks)], seals)) == []
    assert list(under_another_name([report_of(own, other.chunks)], {OTHER: other})) == []
    assert list(under_another_name([report_of(own, own.chunks)], seals)) == []
