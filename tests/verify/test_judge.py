"""What several looks at one file make together, and what they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpttool.domain.finding import Code, Severity
from ckpttool.domain.units import ByteCount
from ckpttool.domain.verdict import Level, VerdictWord
from ckpttool.verify.check import check, failed
from ckpttool.verify.judge import judge
from ckpttool.verify.look import Look
from tests.verify.looking import CKPT, codes, task_for
from tests.verify.test_reports import parts_of

SIZE = CKPT.stat().st_size


@pytest.fixture
def looks() -> list[Look]:
    return [check(task) for task in parts_of(task_for(CKPT, Level.CHECKSUM), SIZE, 3)]


def test_parts_of_one_file_make_one_report(looks: list[Look]) -> None:
    report = judge(looks)
    assert report.word is VerdictWord.STRUCT_OK
    assert report.bytes_read == sum(look.report.bytes_read for look in looks)


def test_parts_of_a_file_that_changed_between_them_are_not_joined(looks: list[Look]) -> None:
    stamp = looks[1].report.stamp
    assert stamp is not None
    looks[1] = replace(looks[1], report=replace(looks[1].report, stamp=replace(stamp, token=(*stamp.token, 1))))
    assert judge(looks).word is VerdictWord.UNSTABLE


def test_a_file_that_grew_after_its_parts_were_planned_is_not_called_read(looks: list[Look]) -> None:
    """Nobody looked at what was added, though every part is sound and the file stood still meanwhile."""
    assert judge(looks[:2]).word is VerdictWord.UNSTABLE


def test_parts_with_a_gap_are_unknown_and_do_not_raise(looks: list[Look]) -> None:
    report = judge([looks[0], looks[2]])
    assert report.word is VerdictWord.UNREADABLE
    assert "do not fit together" in report.findings[0].message


def test_one_part_that_could_not_be_read_makes_the_file_unreadable_whatever_the_others_say(looks: list[Look]) -> None:
    looks[2] = failed(looks[2].task, Code.UNREADABLE, Severity.UNKNOWN, "no answer")
    report = judge(looks)
    assert report.word is VerdictWord.UNREADABLE
    assert not report.checksum_matched


def test_of_several_reasons_the_gravest_speaks_in_whatever_order_they_come(looks: list[Look]) -> None:
    unread = failed(looks[0].task, Code.UNREADABLE, Severity.UNKNOWN, "no answer")
    refused = failed(looks[1].task, Code.NOT_A_REGULAR_FILE, Severity.UNSAFE, "a FIFO")
    for order in ([unread, refused, looks[2]], [looks[2], refused, unread]):
        assert codes(judge(order).findings) == [Code.NOT_A_REGULAR_FILE]


def test_a_report_carries_digests_only_where_they_were_asked_for() -> None:
    plain = judge([check(task_for(CKPT, Level.CHECKSUM))])
    hashed = judge([check(replace(task_for(CKPT, Level.CHECKSUM), hashes=True))])
    assert plain.digest is None
    assert hashed.digest is not None
    assert hashed.digest.chunks == (hashed.digest.xxh3_128,)  # one chunk is the whole file


def test_a_header_check_has_no_statistics_and_a_numeric_one_has_all_floats() -> None:
    assert judge([check(task_for(CKPT))]).stats == ()
    stats = judge([check(task_for(CKPT, Level.NUMERICS))]).stats
    assert [one.name for one in stats if one.name == "loss_scale"] == ["loss_scale"]
    assert all(one.dtype == "F32" for one in stats)
    assert ByteCount(0) < sum(one.elements for one in stats)
