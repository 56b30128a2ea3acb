"""What several observations of one file make together, in whatever order they come, and what they do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from ckpttool.core.domain.finding import Code, unsafe
from ckpttool.core.domain.manifest import ShardSeal
from ckpttool.core.domain.replicas import Healed, Proof, Trust
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.domain.units import ByteCount, Rank
from ckpttool.core.domain.verdict import CheckTask, Level, VerdictWord
from ckpttool.core.verify.check import check, failed, refused
from ckpttool.core.verify.observation import Observation
from ckpttool.core.verify.report import as_sealed, judge
from ckpttool.core.verify.session import reports_of
from tests.support.verifying import CKPT, SAFETENSORS, codes, task_for

SIZE = CKPT.stat().st_size


@pytest.fixture
def observations() -> list[Observation]:
    return [check(task) for task in parts_of(task_for(CKPT, Level.CHECKSUM), SIZE, 3)]


def test_parts_of_one_file_make_one_report(observations: list[Observation]) -> None:
    report = judge(observations)
    assert report.word is VerdictWord.STRUCT_OK
    assert report.bytes_read == sum(observed.report.bytes_read for observed in observations)


def test_parts_of_a_file_that_changed_between_them_are_not_joined(observations: list[Observation]) -> None:
    stamp = observations[1].report.stamp
    assert stamp is not None
    observations[1] = replace(
        observations[1], report=replace(observations[1].report, stamp=replace(stamp, token=(*stamp.token, 1)))
    )
    assert judge(observations).word is VerdictWord.UNSTABLE


def test_a_file_that_grew_after_its_parts_were_planned_is_not_called_read(observations: list[Observation]) -> None:
    """Nobody looked at what was added, though every part is sound and the file stood still meanwhile."""
    assert judge(observations[:2]).word is VerdictWord.UNSTABLE


def test_parts_with_a_gap_are_unknown_and_do_not_raise(observations: list[Observation]) -> None:
    report = judge([observations[0], observations[2]])
    assert report.word is VerdictWord.UNREADABLE
    assert "do not match" in report.findings[0].message


def test_one_part_that_could_not_be_read_makes_the_file_unreadable_whatever_the_others_say(
    observations: list[Observation],
) -> None:
    observations[2] = failed(observations[2].task, "no answer")
    report = judge(observations)
    assert report.word is VerdictWord.UNREADABLE
    assert not report.checksum_matched


def test_of_several_reasons_the_gravest_speaks_in_whatever_order_they_come(observations: list[Observation]) -> None:
    unread = failed(observations[0].task, "no answer")
    not_a_file = refused(observations[1].task, unsafe(Code.NOT_A_REGULAR_FILE, "a FIFO"))
    for order in ([unread, not_a_file, observations[2]], [observations[2], not_a_file, unread]):
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


class Shuffled:
    """An engine that finishes its tasks in another order each time."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def run(self, tasks: Sequence[CheckTask]) -> Iterator[Observation]:
        observations = [check(task) for task in tasks]
        Random(self._seed).shuffle(observations)  # noqa: S311  no secret
        return iter(observations)


def parts_of(task: CheckTask, size: int, count: int) -> list[CheckTask]:
    edges = [size * number // count for number in range(count + 1)]
    return [replace(task, part=(begin, end)) for begin, end in pairwise(edges)]


def test_the_order_in_which_parts_finish_changes_nothing() -> None:
    ckpt, safetensors = task_for(CKPT, Level.NUMERICS), task_for(SAFETENSORS, Level.NUMERICS)
    tasks = [
        *parts_of(ckpt, CKPT.stat().st_size, 5),
        safetensors,
    ]
    answers = [sorted(reports_of(tasks, Shuffled(seed)), key=lambda report: report.path) for seed in range(20)]
    assert all(answer == answers[0] for answer in answers)
    assert [len(answer) for answer in answers] == [2] * 20


def test_without_tasks_there_are_no_reports() -> None:
    assert list(reports_of([], Shuffled(0))) == []


def test_numbers_of_a_file_in_parts_are_those_of_the_file_in_one() -> None:
    task = task_for(CKPT, Level.NUMERICS)
    (whole,) = reports_of([task], Shuffled(0))
    for count in (2, 3, 7, 50):  # cuts go through elements and through records' heads
        (joined,) = reports_of(parts_of(task, CKPT.stat().st_size, count), Shuffled(count))
        # Sums of F32 depend on where they begin; parts that meet between two blocks are exact (see the engines' tests).
        assert [one.norm for one in joined.stats] == pytest.approx([one.norm for one in whole.stats], rel=1e-6)
        assert [replace(one, norm=0.0) for one in joined.stats] == [replace(one, norm=0.0) for one in whole.stats]
        assert joined.findings == whole.findings


@pytest.mark.parametrize(("trust", "proves"), [(None, True), (Trust.CHECKSUM, True), (Trust.COPY, False)])
def test_the_seal_of_a_heal_bears_out_a_header_only_if_a_checksum_spoke_for_the_donor(
    trust: Trust | None, *, proves: bool
) -> None:
    observed = check(task_for(CKPT)).report
    assert observed.stamp is not None
    healed = None
    if trust is not None:
        healed = Healed(rank=Rank(1), proof=Proof.LEARNED, trust=trust, at="2025-01-31T23:59:59Z")
    sealed = ShardSeal(
        path=observed.path,
        size=observed.stamp.size,
        xxh3_128="0",
        chunks=(),
        format=FormatName.MINDSPORE_CKPT,
        schema_hash=observed.schema_hash,
        scalars=observed.scalars,
        first_seen="2025-01-31T23:59:59Z",
        healed=healed,
    )
    assert as_sealed([observed], {observed.path: sealed}) == ({observed.path} if proves else set())
