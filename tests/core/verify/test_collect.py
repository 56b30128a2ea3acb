"""What all ranks together show: training state that is missing, or of another step than the name and the others say."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from ckpttool.core.domain.finding import Code, Row, Severity
from ckpttool.core.domain.scalars import NO_RULES, AgreedScalar, NameClaim, RequestedScalar, ScalarRules, ScalarValues
from ckpttool.core.domain.shard import FormatName, ShardRole
from ckpttool.core.domain.verdict import Level, ShardReport, Verdict, VerdictWord
from ckpttool.core.verify.report import collect
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.scalars import TrainState
from tests.support.inventories import checkpoint, finding
from tests.support.verifying import report

STATE = TrainState(epoch_num=10, step_num=20, global_step=20, loss_scale=65536.0, global_batch_size=8)


def reports(*states: TrainState, role: ShardRole = ShardRole.FULL) -> list[ShardReport]:
    one = checkpoint("10_2", ranks=range(len(states)))
    return [
        replace(report(rank, state=state, role=role), path=shard.path)
        for rank, (state, shard) in enumerate(zip(states, one.shards, strict=True))
    ]


def judged(*states: TrainState, label: str = "10_2") -> Verdict:
    one = checkpoint(label, ranks=range(len(states)))
    return collect(one, reports(*states), Level.STRUCTURE)


def said(verdict: Verdict) -> list[tuple[Row, Severity, str]]:
    return [(one.code, one.severity, (one.path or "").split("/")[0]) for one in verdict.findings]


def test_ranks_that_agree_with_each_other_and_with_the_name_are_left_alone() -> None:
    assert judged(STATE, STATE, STATE).findings == ()


def test_the_order_of_the_reports_changes_nothing() -> None:
    one = checkpoint("10_2", ranks=range(4))
    some = reports(STATE, replace(STATE, step_num=30), TrainState(), STATE)
    expected = collect(one, some, Level.STRUCTURE)
    for seed in range(10):
        shuffled = Random(seed).sample(some, len(some))  # noqa: S311  no secret
        assert collect(one, shuffled, Level.STRUCTURE) == expected


@pytest.mark.parametrize(
    ("field", "code", "severity"),
    [
        ("step_num", Code.STEP_DISAGREES, Severity.DAMAGE),
        ("global_step", Code.STEP_DISAGREES, Severity.DAMAGE),
        ("epoch_num", MindFormersCode.EPOCH_DISAGREES, Severity.DAMAGE),
        ("global_batch_size", Code.SCHEMA_DIFFERS, Severity.DAMAGE),
        ("loss_scale", Code.SCHEMA_DIFFERS, Severity.SUSPECT),
    ],
)
def test_one_rank_of_another_state_than_the_others_is_named(field: str, code: Row, severity: Severity) -> None:
    other = replace(STATE, **{field: getattr(STATE, field) + 10})
    verdict = judged(STATE, STATE, other)
    assert (code, severity, "rank_2") in said(verdict)
    assert {path for _, _, path in said(verdict)} == {"rank_2"}
    first = verdict.findings[0]
    assert (first.expected, first.actual) == (str(getattr(STATE, field)), str(getattr(other, field)))


def test_two_ranks_that_contradict_each_other_make_the_checkpoint_damaged() -> None:
    assert judged(STATE, replace(STATE, step_num=40)).word is VerdictWord.DAMAGED


@pytest.mark.parametrize("field", ["epoch_num", "step_num", "global_step", "loss_scale"])
def test_state_that_no_rank_has_is_missed_because_a_resume_needs_it(field: str) -> None:
    without: dict[str, Any] = {field: None}
    verdict = judged(*[replace(STATE, **without)] * 2)
    assert said(verdict) == [
        (Code.SCALARS_MISSING, Severity.DAMAGE, "rank_0"),
        (Code.SCALARS_MISSING, Severity.DAMAGE, "rank_1"),
    ]
    assert field in verdict.findings[0].message


def test_a_batch_size_is_missed_only_where_other_ranks_have_one() -> None:
    """Files of MindFormers 1.2 have none."""
    without = replace(STATE, global_batch_size=None)
    assert judged(without, without).findings == ()
    assert said(judged(STATE, without)) == [(Code.SCALARS_MISSING, Severity.DAMAGE, "rank_1")]


def test_only_a_ckpt_is_said_to_be_cut() -> None:
    one = checkpoint("10_2", ranks=[0])
    (cut,) = reports(TrainState())
    words = {
        fmt: collect(one, [replace(cut, format=fmt)], Level.STRUCTURE).findings[0].message
        for fmt in (FormatName.MINDSPORE_CKPT, FormatName.SAFETENSORS)
    }
    assert "truncated at the end of a tensor" in words[FormatName.MINDSPORE_CKPT]
    assert "truncated" not in words[FormatName.SAFETENSORS]


def test_a_file_that_could_not_be_parsed_is_not_blamed_for_missing_state_too() -> None:
    one = checkpoint("10_2", ranks=[0])
    (damaged,) = reports(TrainState())
    damaged = replace(damaged, schema_hash=None, findings=(finding(),))
    assert collect(one, [damaged], Level.STRUCTURE).findings == (finding(),)


def test_an_encrypted_file_is_unsupported_not_damaged() -> None:
    one = checkpoint("10_2", ranks=[0])
    (closed,) = reports(TrainState())
    closed = replace(closed, schema_hash=None, findings=(finding(Code.UNSUPPORTED_FORMAT, Severity.UNKNOWN),))
    assert collect(one, [closed], Level.STRUCTURE).word is VerdictWord.UNSUPPORTED


@pytest.mark.parametrize("role", [ShardRole.MODEL, ShardRole.OPTIMIZER, ShardRole.UNIFIED])
def test_files_of_layouts_that_keep_the_state_elsewhere_need_none(role: ShardRole) -> None:
    one = checkpoint("10_2", ranks=range(2))
    assert collect(one, reports(TrainState(), TrainState(), role=role), Level.STRUCTURE).findings == ()


def test_an_optimizer_of_an_older_save_in_the_newer_layout_is_found_by_its_own_counter() -> None:
    one = checkpoint("10_2", ranks=range(3))
    some = reports(
        TrainState(global_step=20), TrainState(global_step=20), TrainState(global_step=10), role=ShardRole.OPTIMIZER
    )
    assert said(collect(one, some, Level.STRUCTURE)) == [(Code.STEP_DISAGREES, Severity.DAMAGE, "rank_2")]


def test_a_name_of_another_epoch_than_the_content_is_suspect() -> None:
    verdict = judged(STATE, STATE, label="15_2")
    assert [one.code for one in verdict.findings] == [Code.NAME_DISAGREES] * 2
    assert verdict.word is VerdictWord.SUSPECT


def test_a_name_with_more_steps_than_were_done_is_suspect() -> None:
    verdict = judged(replace(STATE, step_num=20), label="10_21")
    assert said(verdict) == [(Code.NAME_DISAGREES, Severity.SUSPECT, "rank_0")]


def test_a_name_with_the_step_in_the_epoch_is_left_alone() -> None:
    """Without data sinking the label counts inside the epoch, and after a resume anew."""
    assert judged(replace(STATE, step_num=1000), label="10_3").findings == ()


class TestTheVerdict:
    def test_it_is_verified_only_where_every_shard_is(self) -> None:
        one = checkpoint("10_2", ranks=range(2))
        good = [replace(each, checksum_matched=True) for each in reports(STATE, STATE)]
        assert collect(one, good, Level.CHECKSUM).word is VerdictWord.VERIFIED
        assert (
            collect(one, [good[0], replace(good[1], checksum_matched=False)], Level.CHECKSUM).word
            is VerdictWord.STRUCT_OK
        )

    def test_a_part_of_the_shards_never_verifies_the_whole(self) -> None:
        one = checkpoint("10_2", ranks=range(2))
        half = [replace(each, checksum_matched=True) for each in reports(STATE, STATE)][:1]
        verdict = collect(one, half, Level.CHECKSUM)
        assert (verdict.word, verdict.unseen, verdict.looked_at) == (VerdictWord.STRUCT_OK, 1, True)

    def test_nothing_that_was_looked_at_has_no_word(self) -> None:
        assert not collect(checkpoint("10_2", ranks=range(2)), [], Level.CHECKSUM).looked_at

    def test_it_is_as_good_as_its_worst_shard(self) -> None:
        one = checkpoint("10_2", ranks=range(2))
        some = reports(STATE, STATE)
        for severity, word in (
            (Severity.NOTE, VerdictWord.STRUCT_OK),
            (Severity.SUSPECT, VerdictWord.SUSPECT),
            (Severity.UNKNOWN, VerdictWord.UNREADABLE),
            (Severity.DAMAGE, VerdictWord.DAMAGED),
            (Severity.UNSAFE, VerdictWord.UNSAFE),
        ):
            bad = [replace(some[0], findings=(finding(Code.OVER_LIMIT, severity),)), some[1]]
            assert collect(one, bad, Level.STRUCTURE).word is word

    def test_what_the_listing_showed_counts_too(self) -> None:
        one = checkpoint("10_2", ranks=range(2), findings=[finding(Code.RANK_MISSING)])
        assert collect(one, reports(STATE, STATE), Level.STRUCTURE).word is VerdictWord.MISSING


class TestAnotherTrainersScalars:
    """What must hold is what the layout says: no name is known here."""

    RULES = ScalarRules(
        requested=(RequestedScalar(name="iteration"), RequestedScalar(name="seen")),
        required=((ShardRole.FULL, ("iteration",)),),
        agreed=(AgreedScalar(name="iteration", code=Code.STEP_DISAGREES, severity=Severity.DAMAGE),),
    )

    def judged(self, *scalars: ScalarValues, claims: tuple[NameClaim, ...] = ()) -> Verdict:
        one = replace(checkpoint("10_2", ranks=range(len(scalars))), rules=self.RULES, claims=claims)
        told = [replace(report(rank), scalars=values, path=f"rank_{rank}/x") for rank, values in enumerate(scalars)]
        return collect(one, told, Level.STRUCTURE)

    def test_what_agrees_is_left_alone(self) -> None:
        assert self.judged((("iteration", 7),), (("iteration", 7),)).findings == ()

    def test_a_rank_of_another_iteration_is_named(self) -> None:
        verdict = self.judged((("iteration", 7),), (("iteration", 7),), (("iteration", 6),))
        assert said(verdict) == [(Code.STEP_DISAGREES, Severity.DAMAGE, "rank_2")]

    def test_what_is_required_or_what_others_have_is_missed_and_nothing_is_said_of_another_trainer(self) -> None:
        (lost,) = self.judged((("iteration", 7),), ()).findings
        assert (lost.code, lost.remedy) == (Code.SCALARS_MISSING, "resume from another checkpoint")
        (fewer,) = self.judged((("iteration", 7), ("seen", 1)), (("iteration", 7),)).findings
        assert "no seen inside" in fewer.message

    def test_a_name_that_claims_another_iteration_disagrees(self) -> None:
        claim = NameClaim(scalar="iteration", value=9, message="the name says 9, the content says %d")
        (found,) = self.judged((("iteration", 7),), claims=(claim,)).findings
        assert (found.code, found.message) == (Code.NAME_DISAGREES, "the name says 9, the content says 7")
        assert self.judged((("iteration", 9),), claims=(claim,)).findings == ()

    def test_without_rules_nothing_is_missed(self) -> None:
        one = replace(checkpoint("10_2", ranks=range(2)), rules=NO_RULES, claims=())
        told = [replace(report(rank), scalars=(), path=f"rank_{rank}/x") for rank in range(2)]
        assert collect(one, told, Level.STRUCTURE).findings == ()
