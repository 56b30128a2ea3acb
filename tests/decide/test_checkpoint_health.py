"""Numbers of a checkpoint from the numbers of its tensors."""

from __future__ import annotations

import pytest

from ckpttool.decide.checkpoint_health import unread, weigh
from ckpttool.domain.finding import Code, Finding, Severity
from ckpttool.domain.shard import FormatName, ShardRole
from ckpttool.domain.units import ByteCount, Rank, Step
from ckpttool.domain.verdict import Level, ShardReport, TensorStat, Verdict


def stat(name: str, norm: float, *, nans: int = 0, infinities: int = 0) -> TensorStat:
    return TensorStat(
        name=name,
        dtype="F32",
        elements=8,
        nans=nans,
        infinities=infinities,
        absmax=1.0,
        norm=norm,
        denormal_only=False,
    )


def verdict(*ranks: list[TensorStat], findings: tuple[Finding, ...] = ()) -> Verdict:
    reports = tuple(
        ShardReport(
            path=f"rank_{rank}/x",
            rank=Rank(rank),
            role=ShardRole.FULL,
            level=Level.NUMERICS,
            format=None,
            stamp=None,
            scalars=(),
            schema_hash=None,
            tensors=None,
            checksum_matched=False,
            bytes_read=ByteCount(0),
            findings=(),
            stats=tuple(stats),
        )
        for rank, stats in enumerate(ranks)
    )
    key = ("", "10_2", FormatName.MINDSPORE_CKPT)
    return Verdict(key=key, name="10_2", step=Step(20), level=Level.NUMERICS, reports=reports, findings=findings)


def test_the_rank_where_it_is_largest_speaks_and_copies_are_not_added_up() -> None:
    numbers = weigh(verdict([stat("model.tok_embeddings.embedding_weight", 3.0)] * 1, [stat("word_Embedding.w", 4.0)]))
    assert numbers.embedding_l2 == 4.0


def test_parts_of_one_rank_are_added_up() -> None:
    numbers = weigh(verdict([stat("embedding.a", 3.0), stat("embedding.b", 4.0), stat("adam_m.embedding.a", 2.0)]))
    assert (numbers.embedding_l2, numbers.embedding_moment) == (5.0, 4.0)


@pytest.mark.parametrize(
    "name", ["adam_v.embedding.w", "accu_grads.embedding.w", "position_embeddings.w", "dense.weight", "adam_m.dense"]
)
def test_what_is_no_embedding_is_left_out(name: str) -> None:
    numbers = weigh(verdict([stat(name, 3.0)]))
    assert (numbers.embedding_l2, numbers.embedding_moment) == (None, None)


def test_nan_and_infinity_count_wherever_they_are() -> None:
    numbers = weigh(verdict([stat("dense", 1.0, nans=2)], [stat("adam_v.dense", 1.0, infinities=3)]))
    assert numbers.nonfinite == 5


@pytest.mark.parametrize(
    ("severity", "read_all"), [(Severity.NOTE, True), (Severity.SUSPECT, True), (Severity.UNKNOWN, False)]
)
def test_only_what_kept_us_from_reading_makes_it_incomplete(severity: Severity, read_all: bool) -> None:
    finding = Finding(code=Code.UNREADABLE, severity=severity, message="m")
    one = verdict([stat("dense", 1.0)], findings=(finding,))
    assert weigh(one).read_all is read_all
    assert unread(one) == (() if read_all else (finding,))
