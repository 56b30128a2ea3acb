"""What stands against a launch, and under which check it is told."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import replace

import pytest

from ckpttool.core.decide import preflight as judge
from ckpttool.core.domain.finding import Code, Finding, Row, Severity
from ckpttool.core.domain.plan import NoResumePoint, Rejection, ResumePlan
from ckpttool.core.domain.preflight import DiskNeed
from ckpttool.core.domain.units import Step
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import ExitCode
from ckpttool.core.extensions import rows
from ckpttool.health.findings import HealthCode
from ckpttool.trainers.findings import TrainersCode
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.launch_check import other_devices
from tests.support.plans import resume_plan
from tests.trainers.mindformers.test_launch_check import FITS

NEED = DiskNeed(
    folder="out", saves=4, save_bytes=100, save_files=2, free_bytes=400, free_files=8, unwritable=()
)  # just enough
MISSING = Finding(code=Code.SHARD_MISSING, severity=Severity.DAMAGE, message="rank 3 has no shard", path="rank_3/x")
SUSPECTED = Finding(code=Code.MARKED_UNHEALTHY, severity=Severity.SUSPECT, message="recorded as unhealthy")
UNREAD = Finding(code=Code.UNREADABLE, severity=Severity.UNKNOWN, message="cannot be read", path="rank_3/x")
NOTE = Finding(code=MindFormersCode.META_BEHIND, severity=Severity.NOTE, message="meta.json is older")


def codes(findings: tuple[Finding, ...]) -> list[Row]:
    return [finding.code for finding in findings]


def rejected(name: str, step: int | None, *reasons: Finding) -> Rejection:
    checkpoint = replace(resume_plan().point.checkpoint, name=name, step=None if step is None else Step(step))
    return Rejection(checkpoint=checkpoint, reasons=reasons)


def plan_with(*findings: Finding, rejections: tuple[Rejection, ...] = ()) -> ResumePlan:
    plan = resume_plan()
    return replace(plan, findings=findings, point=replace(plan.point, rejected=rejections))


class TestDisk:
    def test_just_enough_is_enough(self) -> None:
        assert judge.disk_findings(NEED) == ()

    def test_one_byte_less_is_not(self) -> None:
        (finding,) = judge.disk_findings(replace(NEED, free_bytes=399))
        assert (finding.code, finding.severity, finding.path) == (Code.DISK_SPACE_LOW, Severity.SUSPECT, "out")
        assert "3 more saves would fit" in finding.message
        assert finding.remedy == "free space: ckpttool prune, then ckpttool trash empty; or keep fewer checkpoints"

    def test_what_the_trainer_never_removes_is_told_where_room_is_to_be_made(self) -> None:
        (finding,) = judge.disk_findings(replace(NEED, free_bytes=0, stays="old saves stay"))
        assert (
            finding.remedy
            == "free space (old saves stay): ckpttool prune, then ckpttool trash empty; or keep fewer checkpoints"
        )

    def test_one_inode_less_is_not(self) -> None:
        (finding,) = judge.disk_findings(replace(NEED, free_files=7))
        assert (finding.code, finding.expected, finding.actual) == (Code.DISK_INODES_LOW, "8", "7")

    def test_a_file_system_without_inodes_lacks_none(self) -> None:
        assert judge.disk_findings(replace(NEED, free_files=None)) == ()

    def test_each_folder_that_cannot_be_written_to_is_named(self) -> None:
        found = judge.disk_findings(replace(NEED, unwritable=("out", "out/rank_1")))
        assert [(one.code, one.path) for one in found] == [
            (Code.FOLDER_NOT_WRITABLE, "out"), (Code.FOLDER_NOT_WRITABLE, "out/rank_1"),
        ]  # fmt: skip

    def test_large_sizes_are_told_in_gib(self) -> None:
        (finding,) = judge.disk_findings(replace(NEED, save_bytes=3 << 30, free_bytes=5 << 30))
        assert "4 saves of 3.0 GiB need 12.0 GiB, but 5.0 GiB are free: 1 more save would fit" in finding.message

    def test_what_a_disk_does_not_tell_is_unknown_and_not_damage(self) -> None:
        assert judge.disk_unknown("out", "Input/output error").severity is Severity.UNKNOWN


class TestNewerOnes:
    def test_a_newer_one_that_was_not_chosen_is_a_note_and_with_strict_suspect(self) -> None:
        plan = plan_with(rejections=(rejected("20_2", 40, NOTE, MISSING),))
        for strict, severity in ((False, Severity.NOTE), (True, Severity.SUSPECT)):
            (finding,) = judge.by_check(plan, FITS, strict=strict)["checkpoint"]
            assert (finding.code, finding.severity, finding.path) == (Code.NEWER_NOT_CHOSEN, severity, "rank_3/x")
            assert "20_2 (step 40) is newer and was not chosen: shard-missing" in finding.message

    def test_one_without_a_step_is_told_all_the_same(self) -> None:
        plan = plan_with(rejections=(rejected("20_2", None, MISSING),))
        (finding,) = judge.by_check(plan, FITS, strict=False)["checkpoint"]
        assert "its step is unknown" in finding.message

    def test_one_that_only_contradicts_another_is_unknown_for_it_may_be_whole(self) -> None:
        tie = Finding(code=Code.SCHEMA_DIFFERS, severity=Severity.UNKNOWN, message="one of the two is wrong")
        for reason, severity in ((tie, Severity.UNKNOWN), (replace(tie, severity=Severity.SUSPECT), Severity.NOTE)):
            plan = plan_with(rejections=(rejected("20_2", 40, reason),))
            (finding,) = judge.by_check(plan, FITS, strict=False)["checkpoint"]
            assert (finding.code, finding.severity) == (Code.NEWER_NOT_CHOSEN, severity)

    def test_one_that_could_not_be_looked_at_is_unknown_however_many_are_newer(self) -> None:
        damaged = [rejected(f"{n}_2", n, MISSING) for n in range(100)]
        for reasons in ((UNREAD,), (NOTE, UNREAD, SUSPECTED)):
            plan = plan_with(rejections=(*damaged, rejected("20_2", 40, *reasons)))
            for strict in (False, True):
                told = judge.by_check(plan, FITS, strict=strict)["checkpoint"]
                assert [one.severity for one in told if "20_2" in one.message] == [Severity.UNKNOWN]

    def test_one_that_is_known_to_be_damaged_need_not_be_looked_at_further(self) -> None:
        plan = plan_with(rejections=(rejected("20_2", 40, UNREAD, MISSING),))
        (finding,) = judge.by_check(plan, FITS, strict=False)["checkpoint"]
        assert finding.severity is Severity.NOTE

    def test_a_hundred_of_them_are_not_all_told(self) -> None:
        plan = plan_with(rejections=tuple(rejected(f"{n}_2", n, MISSING) for n in range(100)))
        assert len(judge.by_check(plan, FITS, strict=True)["checkpoint"]) == 8


class TestNothing:
    NONE = NoResumePoint(root="out", evidence=Level.STRUCTURE, rejected=(), findings=(NOTE,))

    def test_an_empty_tree_and_a_broken_one_are_told_apart(self) -> None:
        empty = judge.by_check(self.NONE, FITS, strict=False)["checkpoint"]
        assert codes(empty) == [Code.NOTHING_TO_RESUME, MindFormersCode.META_BEHIND]
        broken = replace(self.NONE, rejected=(rejected("20_2", 40, NOTE, MISSING),))
        found = judge.by_check(broken, FITS, strict=False)["checkpoint"]
        assert codes(found) == [
            Code.NOTHING_TO_RESUME,
            MindFormersCode.META_BEHIND,
            Code.SHARD_MISSING,
            MindFormersCode.META_BEHIND,
        ]
        assert "none of the 1 checkpoints" in found[0].message

    def test_more_is_to_look_at_where_one_was_named_or_prunes_moved_some_away(self) -> None:
        named = replace(self.NONE, rejected=(rejected("20_2", 40, MISSING),), is_named=True)
        found = judge.by_check(named, FITS, strict=False)["checkpoint"][0]
        assert found.message == "20_2 in out cannot be resumed from"
        assert found.remedy == "no other checkpoint was checked: ckpttool resolve out"
        moved = judge.by_check(replace(self.NONE, in_trash=1), FITS, strict=False)["checkpoint"][0]
        assert moved.remedy == "1 checkpoint is in the trash: ckpttool trash list out"

    def test_what_the_config_or_the_ranks_that_are_lost_tell_is_the_cause(self) -> None:
        restore = replace(MISSING, code=Code.RANKS_TO_RESTORE, message="bring back rank 3", remedy="copy rank_3/")
        size = replace(MISSING, code=Code.WORLD_SIZE_DIFFERS, message="4 ranks, not 8", remedy="--world-size 4")
        lost = replace(self.NONE, rejected=(rejected("20_2", 40, MISSING),), findings=(restore,))
        other = replace(self.NONE, rejected=(rejected("20_2", 40, MISSING, size),))
        for nothing, cause in ((lost, restore), (other, size)):
            found = judge.by_check(nothing, FITS, strict=False)["checkpoint"][0]
            assert found.message.endswith(f": {cause.message}")
            assert found.remedy == cause.remedy

    def test_every_lost_shard_of_the_newest_one_is_named_and_of_the_others_the_gravest_reason(self) -> None:
        lost = [replace(MISSING, path=f"rank_{rank}/x") for rank in range(500)]
        both = replace(self.NONE, rejected=(rejected("20_2", 40, *lost), rejected("15_2", 30, NOTE, *lost)))
        found = judge.by_check(both, FITS, strict=False)["checkpoint"]
        assert [finding.path for finding in found[1:501]] == [finding.path for finding in lost]
        assert codes(found[501:]) == [Code.SHARD_MISSING, MindFormersCode.META_BEHIND]


class TestWhereAFindingBelongs:
    @pytest.mark.parametrize(
        ("finding", "check"),
        [
            (NOTE, "checkpoint"),
            (replace(NOTE, code=Code.HEALTH_UNREADABLE), "health"),
            (replace(NOTE, code=HealthCode.SAVED_IN_SPIKE), "health"),
            (replace(NOTE, code=MindFormersCode.SINK_SIZE_CHANGED), "launch"),
            (replace(NOTE, code=Code.CONFIG_DISAGREES, path="base.yaml"), "launch"),
        ],
    )
    def test_it_is_told_under_one_check(self, finding: Finding, check: str) -> None:
        found = judge.by_check(plan_with(finding), FITS, strict=False)
        assert {name: findings for name, findings in found.items() if findings} == {check: (finding,)}

    def test_what_the_config_s_own_check_tells_is_not_told_again(self) -> None:
        own = replace(NOTE, code=TrainersCode.CONFIG_WRONG_TYPE, path="base.yaml", line=3)
        found = judge.by_check(plan_with(own), replace(FITS, findings=(own,)), strict=False)
        assert set(found.values()) == {()}

    def test_devices_that_do_not_fit_the_config_stand_against_the_launch(self) -> None:
        assert judge.by_check(resume_plan(), FITS, strict=False)["launch"] == ()
        unfit = tuple(other_devices(FITS, 8))
        assert judge.by_check(resume_plan(), FITS, strict=False, of_devices=unfit)["launch"] == unfit

    @pytest.mark.parametrize("name", ["counters", "launch_check", "loaded_instead", "run_length", "streaming"])
    def test_whatever_a_trainer_makes_of_a_plan_is_told_under_the_launch(self, name: str) -> None:
        module = importlib.import_module(f"ckpttool.trainers.mindformers.{name}")
        named = set(re.findall(r"Code\.([A-Z_0-9]+)", inspect.getsource(module))) - {"BREAKPOINT_FILE"}
        assert named
        assert {row.name: row.check for row in rows() if row.name in named} == dict.fromkeys(named, "launch")


class TestAllowed:
    def test_what_is_allowed_becomes_a_note_and_nothing_else_does(self) -> None:
        one, other = (
            replace(MISSING, code=Code.KEEPS_ONE_CHECKPOINT),
            replace(MISSING, code=MindFormersCode.UNKNOWN_KEY),
        )
        allowed = judge.allow([one, other], [MindFormersCode.UNKNOWN_KEY])
        assert [finding.severity for finding in allowed] == [Severity.DAMAGE, Severity.NOTE]

    @pytest.mark.parametrize("code", [row for row in rows() if not row.may_be_allowed])
    def test_that_there_is_nothing_to_launch_cannot_be_allowed(self, code: Row) -> None:
        finding = replace(MISSING, code=code)
        assert judge.allow([finding], [code]) == (finding,)


class TestWords:
    def test_an_error_for_safety_is_no_mere_unknown(self) -> None:
        assert judge.stopped("x", ExitCode.UNSAFE).severity is Severity.UNSAFE
        assert judge.stopped("x", ExitCode.UNKNOWN_LAYOUT).severity is Severity.UNKNOWN

    def test_a_config_that_cannot_be_used_or_edited_is_found_in_its_file(self) -> None:
        unusable = judge.unusable("x", "a.yaml", 3)
        assert unusable.remedy == "repair the file, or pass another one: its trainer cannot read it either"
        assert (unusable.path, unusable.line) == ("a.yaml", 3)
        assert judge.not_editable("x", "a.yaml").path == "a.yaml"

    def test_a_launch_of_which_nothing_tells_its_devices_is_unknown(self) -> None:
        plan, silent = resume_plan(), replace(FITS, world_size=None)
        nobody_knows = resume_plan(ranks=0)
        assert codes(judge.devices_unknown(nobody_knows, silent)) == [Code.DEVICES_UNKNOWN]
        assert judge.devices_unknown(nobody_knows, FITS) == judge.devices_unknown(plan, silent) == ()
