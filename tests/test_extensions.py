"""What features add to the main job, which neither needs them nor knows their names."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.plan import NoResumePoint, ResumePlan
from ckpttool.core.domain.question import CheckQuestion, EvidenceQuestion, LogQuestion, ResumeQuestion
from ckpttool.core.domain.verdict import Level, VerdictWord
from ckpttool.core.errors import IncompleteError, UnknownLayoutError, UsageError
from ckpttool.core.extensions import features, imported
from ckpttool.core.storage import STORAGES
from ckpttool.core.verbs.resolving import PassedOver, ReadsLogs
from ckpttool.core.verify.copies import CopiesBegun
from ckpttool.features import FEATURES
from ckpttool.health.findings import HealthCode
from ckpttool.health.verbs.evidence import gather
from ckpttool.replicas.comparing.in_turn import Replicas
from tests.conftest import FIXTURES
from tests.support.answers import writable_copy

ROOMS = {"cli", "core", "guide", "schemas", "trainers"}


def test_every_folder_that_is_no_part_of_the_main_job_is_listed_as_a_feature() -> None:
    folders = {file.parent.name for file in Path(ckpttool.__file__).parent.glob("*/__init__.py")}
    assert {*FEATURES} == folders - ROOMS


def test_what_a_feature_adds_about_saves_that_were_passed_over_is_there_and_takes_one_value() -> None:
    rules = [imported(each.on_passed_over) for each in features() if each.on_passed_over is not None]
    assert rules
    for rule in rules:
        (seen,) = inspect.signature(rule).parameters.values()
        assert seen.annotation == PassedOver.__name__


@pytest.mark.parametrize("listed", [FEATURES, ()], ids=["with features", "without"])
def test_a_choice_needs_no_feature_and_is_given_what_features_know(
    listed: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpttool.core.extensions.FEATURES", listed)
    tree = writable_copy("sink2_ckpt", tmp_path / "tree") / "checkpoint"
    (tree / "rank_3/llama2_7b_rank_3_1-30_2.ckpt").unlink()
    plan = ckpttool.resolve(str(tree)).decision
    assert isinstance(plan, ResumePlan)
    assert plan.point.checkpoint.name == "_1-25_2"
    assert (Code.CAN_BE_HEALED in {finding.code for finding in plan.findings}) is bool(listed)


def test_parts_of_a_tree_are_read_by_the_feature_that_writes_them_and_by_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.ckptpart").write_text("torn")
    with pytest.raises(IncompleteError, match="no readable part"):
        ckpttool.scan(str(tmp_path))
    monkeypatch.setattr("ckpttool.core.extensions.FEATURES", ())
    with pytest.raises(UnknownLayoutError, match="does not read"):
        ckpttool.scan(str(tmp_path))


def test_each_kind_of_place_that_a_feature_opens_has_a_scheme_that_nobody_else_has() -> None:
    schemes = [scheme for feature in features() for scheme in feature.storages or ()]
    assert schemes
    assert len({*schemes, *STORAGES}) == len(schemes) + len(STORAGES)
    for each in features():
        for reference in (each.storages or {}).values():
            (root,) = inspect.signature(imported(reference)).parameters.values()
            assert root.annotation == "str"


def test_logs_have_a_say_by_the_feature_that_reads_them_and_are_never_left_out_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: ReadsLogs = gather
    assert [imported(each.log_evidence) for each in features() if each.log_evidence is not None] == [reads]
    tree = str(writable_copy("health_pp2", tmp_path / "tree") / "checkpoint")
    log = str(FIXTURES / "health_pp2" / "train_log_first_rank_0.jsonl")
    choice = ResumeQuestion(logs=EvidenceQuestion(threshold=1e-9, logs=LogQuestion(patterns=(log,))))
    decision = ckpttool.resolve(tree, choice).decision
    assert isinstance(decision, NoResumePoint)
    assert all(HealthCode.NORM_ABOVE_THRESHOLD in {why.code for why in each.reasons} for each in decision.rejected)
    monkeypatch.setattr("ckpttool.core.extensions.FEATURES", ())
    assert isinstance(ckpttool.resolve(tree).decision, ResumePlan)
    with pytest.raises(UsageError, match="no feature"):
        ckpttool.resolve(tree, choice)


def test_whether_copies_agree_is_said_by_the_feature_that_compares_them_and_else_not_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: CopiesBegun = Replicas
    assert [imported(each.copies) for each in features() if each.copies is not None] == [begun]
    tree = writable_copy("sink2_ckpt", tmp_path / "tree") / "checkpoint"
    question = CheckQuestion(level=Level.CHECKSUM, name="20_2", jump=0)
    (verdict,) = ckpttool.verify(str(tree), question).answer().verdicts
    assert (verdict.word, verdict.is_proven) == (VerdictWord.AGREED, True)
    monkeypatch.setattr("ckpttool.core.extensions.FEATURES", ())
    (verdict,) = ckpttool.verify(str(tree), question).answer().verdicts
    assert (verdict.word, verdict.is_proven, verdict.compared_with) == (VerdictWord.STRUCT_OK, False, ())
