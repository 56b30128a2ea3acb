"""What a user of `postflight` sees. Read the golden files as a user would, before you update them."""

from __future__ import annotations

import json
import os
import struct
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.errors import ExitCode, UsageError
from ckpttool.postflight import verbs
from ckpttool.types import PostflightQuestion
from tests.cli.test_exit_codes import assert_error
from tests.conftest import FIXTURES, Golden
from tests.core.logs.test_tensorboard import VERSION, event, record, scalar
from tests.postflight.logged_runs import BEFORE, after, mindformers_lines, rows_of, up_to, write_rows
from tests.support.commands import Said, ask
from tests.support.trees import TreeBuilder

FORMATS = {"table": "txt", "json": "json", "github": "github", "markdown": "md", "junit": "junit"}


def compare(way: str, *options: str) -> Said:
    return ask("postflight", "--before", BEFORE, "--after", after(way), "--from-step", "500", *options)


def codes(said: Said) -> list[str]:
    return [finding["code"] for finding in said.json["findings"]]


def states(said: Said) -> list[str]:
    return [part["state"] for part in said.json["parts"]]


class TestTwoLogs:
    @pytest.mark.parametrize(("way", "form"), [("exact", "table"), *(("optimizer_lost", form) for form in FORMATS)])
    def test_the_answer_is_the_golden_one(
        self, way: str, form: str, golden: Golden, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(Path(BEFORE).parent)
        logs = ("--before", "before.csv", "--after", f"after_{way}.csv", "--from-step", "500")
        golden(f"postflight/{way}.{FORMATS[form]}", ask("postflight", *logs, "--format", form).stdout)

    @pytest.mark.parametrize("way", ["exact", "other_arithmetic", "weights_in_bf16"])
    def test_a_right_resume_exits_with_0(self, way: str) -> None:
        said = compare(way, "--json")
        assert (said.code, said.json["outcome"], codes(said)) == (ExitCode.OK, "resumed", [])
        assert states(said) == ["proven"] * 4

    @pytest.mark.parametrize(
        ("way", "code"),
        [
            ("optimizer_lost", "resume-optimizer-lost"),
            ("lr_restarted", "resume-learning-rate-restarted"),
            ("data_from_start", "resume-data-repeated"),
            ("other_shuffle", "resume-data-other"),
            ("from_scratch", "resume-weights-lost"),
            ("older_save", "resume-position-wrong"),
        ],
    )
    def test_a_wrong_resume_exits_with_10_and_a_finding(self, way: str, code: str) -> None:
        said = compare(way, "--json")
        assert (said.code, said.json["outcome"]) == (ExitCode.DAMAGE, "wrong")
        assert codes(said) == [code]
        assert said.json["exit_code"] == ExitCode.DAMAGE

    def test_an_accepted_fault_is_listed_and_does_not_count(self) -> None:
        said = compare("lr_restarted", "--json", "--allow", "resume-learning-rate-restarted")
        assert (said.code, codes(said)) == (ExitCode.OK, [])
        assert [finding["code"] for finding in said.json["allowed"]] == ["resume-learning-rate-restarted"]
        assert compare("optimizer_lost", "--allow", "resume-learning-rate-restarted").code == ExitCode.DAMAGE

    def test_an_accepted_fault_of_the_data_leaves_the_weights_unknown(self) -> None:
        said = compare("other_shuffle", "--json", "--allow", "resume-data-other")
        assert (said.code, codes(said)) == (ExitCode.INCOMPLETE, ["resume-not-shown"])

    def test_few_steps_are_not_enough_and_the_missing_ones_are_counted(self, tmp_path: Path) -> None:
        log = write_rows(tmp_path / "after.csv", up_to(rows_of(after("exact")), 502))
        said = ask("postflight", "--before", BEFORE, "--after", log, "--from-step", "500", "--json")
        assert (said.code, codes(said)) == (ExitCode.INCOMPLETE, ["resume-not-shown"])
        assert said.json["missing"] == "8 more logged steps of the resumed run, up to step 510"
        assert not said.json["is_final"]

    def test_too_few_rows_before_the_save_do_not_show_the_noise(self, tmp_path: Path) -> None:
        before = [row for row in rows_of(BEFORE) if int(row["step"]) > 481]
        log = write_rows(tmp_path / "before.csv", before)
        said = ask("postflight", "--before", log, "--after", after("other_shuffle"), "--from-step", "500", "--json")
        assert (said.code, said.json["step_noise"]) == (ExitCode.INCOMPLETE, None)
        assert "19 rows" in said.json["missing"]
        log = write_rows(tmp_path / "before.csv", [rows_of(BEFORE)[480], *before])
        said = ask("postflight", "--before", log, "--after", after("other_shuffle"), "--from-step", "500", "--json")
        assert said.code == ExitCode.DAMAGE

    def test_a_crash_right_after_the_save_leaves_nothing_to_compare(self, tmp_path: Path) -> None:
        log = write_rows(tmp_path / "before.csv", up_to(rows_of(BEFORE), 500))
        said = ask("postflight", "--before", log, "--after", after("exact"), "--from-step", "500", "--json")
        assert (said.code, said.json["is_final"]) == (ExitCode.INCOMPLETE, True)
        assert "logged no step after step 500" in said.json["missing"]

    def test_losses_with_few_digits_prove_nothing(self, tmp_path: Path) -> None:
        logs = []
        for name, path in (("before", BEFORE), ("after", after("exact"))):
            rows = [{"step": row["step"], "loss": f"{float(row['loss']):.1f}"} for row in rows_of(path)]
            logs += [f"--{name}", write_rows(tmp_path / f"{name}.csv", rows)]
        said = ask("postflight", *logs, "--from-step", "500", "--json")
        assert said.code == ExitCode.INCOMPLETE
        assert "too few digits" in said.json["missing"]

    @pytest.mark.parametrize("form", ["json", "github", "junit", "sarif", "gitlab", "markdown"])
    def test_a_report_replaces_its_own_earlier_one_and_nothing_else(self, form: str, tmp_path: Path) -> None:
        report = tmp_path / "report"
        for way in ("exact", "optimizer_lost", "exact"):
            assert compare(way, "--report", f"{form}={report}").code in {ExitCode.OK, ExitCode.DAMAGE}
        report.write_text("a note of mine\n")
        assert compare("exact", "--report", f"{form}={report}").code == ExitCode.USAGE

    @pytest.mark.parametrize("form", ["sarif", "gitlab"])
    def test_ci_services_get_the_finding_at_the_resumed_log(self, form: str) -> None:
        text = compare("optimizer_lost", "--format", form).stdout
        assert "resume-optimizer-lost" in text
        assert "after_optimizer_lost.csv" in text
        assert "resume-optimizer-lost" not in compare("exact", "--format", form).stdout

    def test_another_column_name_is_an_option(self, tmp_path: Path) -> None:
        logs = []
        for option, path in (("--before", BEFORE), ("--after", after("exact"))):
            renamed = [{"lm" if name == "loss" else name: text for name, text in row.items()} for row in rows_of(path)]
            logs += [option, write_rows(tmp_path / f"{option.strip('-')}.csv", renamed)]
        assert ask("postflight", *logs, "--from-step", "500", "--columns", "loss=lm").code == ExitCode.OK


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TreeBuilder:
    """A tree with saves at steps 450 and 500."""
    monkeypatch.chdir(tmp_path)
    return TreeBuilder(tmp_path).legacy(ranks=1).save(epoch=225, step=2).save(epoch=250, step=2)


class TestTree:
    def test_one_log_with_both_runs_is_split_where_it_goes_back(self, tree: TreeBuilder) -> None:
        log = tree.output / "log" / "rank_0" / "info.log"
        log.parent.mkdir(parents=True)
        log.write_text(mindformers_lines(rows_of(BEFORE)) + mindformers_lines(rows_of(after("exact"))))
        said = ask("postflight", "--json")
        assert (said.code, said.json["saved_step"], said.json["saved_step_source"]) == (ExitCode.OK, 500, "tree")
        assert said.json["summary"].startswith("Resumed from step 500: steps 501 to 530 equal")
        assert said.json["logs"]["before"] == said.json["logs"]["after"]

    @pytest.mark.parametrize(("way", "code"), [("exact", ExitCode.OK), ("optimizer_lost", ExitCode.DAMAGE)])
    def test_a_resume_is_compared_with_the_run_that_saved_and_not_with_a_wrong_resume_before_it(
        self, tree: TreeBuilder, way: str, code: ExitCode
    ) -> None:
        log = tree.output / "log" / "rank_0" / "info.log"
        log.parent.mkdir(parents=True)
        starts = (rows_of(BEFORE), rows_of(after("optimizer_lost")), rows_of(after(way)))
        log.write_text("".join(map(mindformers_lines, starts)))
        assert ask("postflight").code == code

    def test_a_log_with_one_run_shows_no_resume(self, tree: TreeBuilder) -> None:
        log = tree.output / "log" / "rank_0" / "info.log"
        log.parent.mkdir(parents=True)
        log.write_text(mindformers_lines(rows_of(BEFORE)))
        said = ask("postflight", "--json")
        assert (said.code, said.json["is_final"], said.json["first_step"]) == (ExitCode.INCOMPLETE, False, None)
        assert "the logs show one run" in said.json["missing"]

    def test_a_rotated_log_is_read_file_by_file(self, tree: TreeBuilder) -> None:
        folder = tree.output / "log" / "rank_0"
        folder.mkdir(parents=True)
        (folder / "info.log.1").write_text(mindformers_lines(rows_of(BEFORE)))
        (folder / "info.log").write_text(mindformers_lines(rows_of(after("exact"))))
        assert ask("postflight").code == ExitCode.OK, "an exact repetition is not another rank of the same run"

    @pytest.mark.usefixtures("tree")
    def test_the_newest_save_before_the_first_new_step_is_assumed_unless_the_first_run_passed_a_newer_one(self) -> None:
        logs = ("--before", BEFORE, "--after", after("older_save"), "--json")
        said = ask("postflight", *logs)
        assert (said.json["saved_step"], said.code, codes(said)) == (450, ExitCode.INCOMPLETE, ["resume-not-shown"])
        assert "the tree has step 500" in said.json["missing"]
        assert "--from-step 450" in said.json["missing"]
        assert ask("postflight", *logs, "--from-step", "450").code == ExitCode.OK
        said = ask("postflight", "--before", BEFORE, "--after", after("exact"), "--json")
        assert (said.code, said.json["assumptions"]) == (ExitCode.OK, [])

    @pytest.mark.usefixtures("tree")
    def test_another_save_in_the_tree_is_recognized(self) -> None:
        said = ask(
            "postflight", "output", "--before", BEFORE, "--after", after("older_save"), "--from-step", "500", "--json"
        )
        assert (said.code, said.json["loaded_step"], codes(said)) == (10, 450, ["resume-position-wrong"])

    @pytest.mark.usefixtures("tree")
    def test_the_remedy_names_the_usual_cause_in_the_trainer_of_the_tree(self) -> None:
        said = ask("postflight", "--before", BEFORE, "--after", after("optimizer_lost"), "--json")
        assert said.json["findings"][0]["remedy"].startswith("usual cause in MindFormers: ")

    @pytest.mark.usefixtures("tree")
    def test_a_newer_save_than_the_planned_one_is_a_wrong_position_too(self) -> None:
        logs = ("--before", BEFORE, "--from-step", "450", "--json")
        said = ask("postflight", "output", *logs, "--after", after("exact"))
        assert (said.code, said.json["loaded_step"], codes(said)) == (10, 500, ["resume-position-wrong"])
        assert states(said)[1:] == ["proven"] * 3
        assert said.json["summary"].endswith("it continues at step 501, not after step 450")

    @pytest.mark.usefixtures("tree")
    def test_a_step_that_only_the_resumed_run_reached_is_not_where_it_began(self, tmp_path: Path) -> None:
        before = write_rows(tmp_path / "before.csv", up_to(rows_of(BEFORE), 520))
        logs = ("--before", before, "--after", after("exact"), "--json")
        said = ask("postflight", *logs, "--from-step", "550")
        assert (said.code, codes(said)) == (ExitCode.INCOMPLETE, ["resume-not-shown"])
        assert "the first run did not reach" in said.json["missing"]
        assert ask("postflight", *logs, "--from-step", "500").code == ExitCode.OK

    @pytest.mark.usefixtures("tree")
    def test_another_number_of_ranks_changes_the_arithmetic_lawfully(self) -> None:
        assert compare("rng_lost").code == ExitCode.INCOMPLETE  # the trainer is unknown
        logs = ("--before", BEFORE, "--after", after("rng_lost"), "--json")
        assert "MindFormers restores no random-number state" in ask("postflight", "output", *logs).json["missing"]
        said = ask("postflight", "output", *logs, "--config", str(FIXTURES / "configs" / "pretrain_sink2.yaml"))
        assert (said.code, codes(said)) == (ExitCode.INCOMPLETE, ["resume-not-shown"])
        assert not said.json["assumptions"]

    @pytest.mark.usefixtures("tree")
    def test_no_log_near_the_tree_is_an_error(self) -> None:
        assert_error(ask("postflight"), ExitCode.USAGE, "no training log was found near the checkpoints")


def varint(number: int) -> bytes:
    return bytes([number]) if number < 1 << 7 else bytes([number & 0x7F | 0x80, number >> 7])


def plan(**changes: object) -> str:
    """The plan of the tree, as a pipe has it."""
    return json.dumps(json.loads(ask("resolve", "output", "--json").stdout) | changes)


def piped(text: str, way: str) -> Said:
    return ask("postflight", "-", "--before", BEFORE, "--after", after(way), "--json", stdin=text)


def doubled(batch: int = 16) -> str:
    """The plan of a resume with another batch size, whose steps are counted in its own batches."""
    return plan(data=json.loads(plan())["data"] | {"global_batch_size": batch, "next_step": 251})


class TestNotFinite:
    @pytest.mark.parametrize("column", ["loss", "grad_norm"])
    @pytest.mark.parametrize("value", ["nan", "inf"])
    @pytest.mark.parametrize("first", [501, 502, 515])
    def test_a_value_that_is_no_longer_finite_is_a_fault(
        self, column: str, value: str, first: int, tmp_path: Path
    ) -> None:
        rows = [{**row, column: value} if int(row["step"]) >= first else row for row in rows_of(after("exact"))]
        log = write_rows(tmp_path / "after.csv", rows)
        said = ask("postflight", "--before", BEFORE, "--after", log, "--from-step", "500", "--json")
        assert (said.code, codes(said)) == (ExitCode.DAMAGE, ["resume-differs"])
        assert f"of step {first} is {value}" in said.json["findings"][0]["message"]

    def test_a_first_run_that_was_not_finite_is_compared_up_to_there(self, tmp_path: Path) -> None:
        rows = [{**row, "loss": "nan"} if int(row["step"]) >= 520 else row for row in rows_of(BEFORE)]
        log = write_rows(tmp_path / "before.csv", rows)
        said = ask("postflight", "--before", log, "--after", after("exact"), "--from-step", "500", "--json")
        assert said.code == ExitCode.OK
        assert "steps 501 to 519" in said.json["summary"]

    def test_a_log_without_a_loss_is_the_reason(self, tmp_path: Path) -> None:
        rows = [{name: value for name, value in row.items() if name != "loss"} for row in rows_of(after("exact"))]
        log = write_rows(tmp_path / "after.csv", rows)
        said = ask("postflight", "--before", BEFORE, "--after", log, "--from-step", "500", "--json")
        assert said.code == ExitCode.INCOMPLETE
        assert "logged no finite loss" in said.json["missing"]


class TestPlan:
    @pytest.mark.usefixtures("tree")
    @pytest.mark.parametrize(("way", "code"), [("exact", ExitCode.OK), ("older_save", ExitCode.DAMAGE)])
    def test_a_plan_from_a_pipe_names_the_save(self, way: str, code: ExitCode) -> None:
        said = piped(plan(), way)
        assert (said.code, said.json["saved_step"], said.json["saved_step_source"]) == (code, 500, "plan")

    @pytest.mark.usefixtures("tree")
    def test_a_plan_in_a_file_is_recognized_by_its_content(self, tmp_path: Path) -> None:
        (tmp_path / "plan.json").write_text(plan())
        said = ask("postflight", "plan.json", "--before", BEFORE, "--after", after("exact"), "--json")
        assert (said.code, said.json["saved_step_source"]) == (ExitCode.OK, "plan")
        assert said.json["summary"].startswith("Resumed as planned: ")

    @pytest.mark.parametrize(("seconds", "code"), [(50, ExitCode.DAMAGE), (10_050, ExitCode.INCOMPLETE)])
    def test_a_plan_of_a_save_that_the_resumed_run_wrote_again_proves_nothing(
        self, tree: TreeBuilder, tmp_path: Path, seconds: int, code: ExitCode
    ) -> None:
        at_450 = datetime(2026, 11, 20, 3, tzinfo=timezone.utc).timestamp()
        for path in (tree.output / "checkpoint").rglob("*.ckpt"):
            os.utime(path, (at_450 + seconds,) * 2 if "250_2" in path.name else (at_450,) * 2)
        logs = []
        for name, first, start in (("before", 1, at_450), ("after", 451, at_450 + 10_000)):
            rows = [
                {**row, "time": datetime.fromtimestamp(start + int(row["step"]) - 450, timezone.utc).isoformat()[:19]}
                for row in rows_of(BEFORE)
                if int(row["step"]) >= first
            ]
            logs += [f"--{name}", write_rows(tmp_path / f"{name}.csv", rows)]
        said = ask("postflight", "-", *logs, "--json", stdin=plan())
        assert said.code == code
        assert ("saved again" in said.stdout) == (code == ExitCode.INCOMPLETE)

    @pytest.mark.usefixtures("tree")
    def test_a_plan_of_another_machine_needs_no_tree(self) -> None:
        said = piped(plan(root="/nowhere/output"), "exact")
        assert (said.code, said.json["root"]) == (ExitCode.OK, None)

    @pytest.mark.usefixtures("tree")
    def test_a_preflight_has_a_plan_too(self) -> None:
        text = json.dumps({"schema": "ckpttool/preflight/1", "plan": json.loads(plan())})
        assert piped(text, "exact").json["saved_step_source"] == "plan"

    @pytest.mark.usefixtures("tree")
    def test_a_doubled_batch_is_compared_by_the_losses_of_the_same_samples(self) -> None:
        said = piped(doubled(), "batch_doubled")
        assert (said.code, codes(said)) == (ExitCode.INCOMPLETE, ["resume-not-shown"])
        assert states(said) == ["proven", "consistent", "not-shown", "not-shown"]
        assert "from 8 to 16" in said.json["missing"]

    @pytest.mark.usefixtures("tree")
    def test_other_data_in_a_doubled_batch_are_a_fault(self, tmp_path: Path) -> None:
        rows = rows_of(after("batch_doubled"))
        moved = [{**row, "loss": other["loss"]} for row, other in zip(rows, rows[7:] + rows[:7], strict=True)]
        other_data = write_rows(tmp_path / "after.csv", moved)
        said = ask("postflight", "-", "--before", BEFORE, "--after", other_data, "--json", stdin=doubled())
        assert (said.code, codes(said)) == (ExitCode.DAMAGE, ["resume-data-other"])

    @pytest.mark.usefixtures("tree")
    def test_fresh_weights_with_a_doubled_batch_are_a_fault(self, tmp_path: Path) -> None:
        fresh = [{**row, "step": str(int(row["step"]) + 250)} for row in rows_of(BEFORE)[:50]]
        scratch = write_rows(tmp_path / "after.csv", fresh)
        said = ask("postflight", "-", "--before", BEFORE, "--after", scratch, "--json", stdin=doubled())
        assert (said.code, codes(said)) == (ExitCode.DAMAGE, ["resume-weights-lost"])

    @pytest.mark.usefixtures("tree")
    @pytest.mark.parametrize("batch", [4, 12])
    def test_a_batch_that_is_no_multiple_of_the_old_one_shows_the_position_alone(self, batch: int) -> None:
        said = piped(doubled(batch), "batch_doubled")
        assert said.code == ExitCode.INCOMPLETE
        assert states(said) == ["proven", "not-shown", "not-shown", "not-shown"]

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("no JSON", "not JSON"),
            ('{"schema": "ckpttool/health/1"}', "expected ckpttool/plan/1"),
            ('{"schema": "ckpttool/plan/1", "root": "x", "resume": {"step": -1}}', "step"),
        ],
    )
    def test_anything_but_a_plan_is_refused(self, text: str, why: str) -> None:
        said = ask("postflight", "-", "--before", BEFORE, "--after", after("exact"), stdin=text)
        assert_error(said, ExitCode.USAGE, why)

    def test_a_plan_without_a_checkpoint_exits_with_11(self) -> None:
        text = '{"schema": "ckpttool/plan/1", "root": "x", "resume": null}'
        said = ask("postflight", "-", "--before", BEFORE, "--after", after("exact"), stdin=text)
        assert_error(said, ExitCode.NOTHING_TO_RESUME, "chooses no checkpoint")


class TestHistories:
    """`trainer_state.json` has the steps of all starts that led to its save."""

    def history(self, path: Path, log: str) -> str:
        entries = [
            {"step": int(row["step"]), "loss": float(row["loss"]), "grad_norm": float(row["grad_norm"])}
            for row in [*up_to(rows_of(BEFORE), 500), *(row for row in rows_of(log) if int(row["step"]) > 500)]
        ]
        path.write_text(json.dumps({"log_history": entries}))
        return str(path)

    def test_it_does_not_show_where_the_resumed_run_began(self, tmp_path: Path) -> None:
        log = self.history(tmp_path / "trainer_state.json", after("exact"))
        said = ask("postflight", "--before", BEFORE, "--after", log, "--from-step", "500", "--json")
        assert (said.code, codes(said)) == (ExitCode.INCOMPLETE, ["resume-not-shown"])
        assert "does not show where the run began" in said.json["missing"]

    def test_its_steps_after_the_save_may_be_those_of_the_resumed_run(self, tmp_path: Path) -> None:
        log = self.history(tmp_path / "trainer_state.json", BEFORE)
        said = ask("postflight", "--before", log, "--after", after("optimizer_lost"), "--from-step", "500", "--json")
        assert (said.code, codes(said)) == (ExitCode.INCOMPLETE, ["resume-not-shown"])
        assert "logged no step after step 500" in said.json["missing"]


class TestStarts:
    """Logs of several starts in a folder."""

    def test_an_exact_repetition_is_not_another_rank_of_the_first_run(self, tmp_path: Path) -> None:
        for started, log in ((1700000000, BEFORE), (1700009000, after("exact"))):
            data = record(VERSION)
            for row in rows_of(log):
                values = [scalar("loss", float(row["loss"])), scalar("grad_norm", float(row["grad_norm"]))]
                data += record(b"\x09" + struct.pack("<d", started) + event(varint(int(row["step"])), *values))
            (tmp_path / f"events.out.tfevents.{started}.host").write_bytes(data)
        for option in ("--before", "--after"):
            assert ask("postflight", option, str(tmp_path), "--from-step", "500").code == ExitCode.OK


class TestErrors:
    def test_a_log_that_does_not_exist(self) -> None:
        said = ask("postflight", "--before", "absent.log", "--after", after("exact"), "--from-step", "500")
        assert_error(said, ExitCode.USAGE, "no log matches 'absent.log'")

    def test_a_file_that_is_not_a_log(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("nothing to see\n" * 50)
        said = ask("postflight", "--before", str(tmp_path / "notes.txt"), "--after", after("exact"), "--from-step", "1")
        assert_error(said, ExitCode.INCOMPLETE, "is not a log that ckpttool recognizes")

    def test_two_logs_without_a_step_or_a_tree(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        said = ask("postflight", "--before", BEFORE, "--after", after("exact"))
        assert_error(said, ExitCode.USAGE, "the step of the save is unknown")

    def test_a_folder_without_a_tree(self, tmp_path: Path) -> None:
        said = ask("postflight", str(tmp_path), "--before", BEFORE, "--after", after("exact"))
        assert_error(said, ExitCode.UNKNOWN_LAYOUT, str(tmp_path))


class TestWaiting:
    def test_the_log_is_read_again_until_it_shows_the_answer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log, pauses = tmp_path / "after.csv", []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            write_rows(log, up_to(rows_of(after("exact")), (502, 530)[len(pauses) - 1]))

        monkeypatch.setattr(time, "sleep", pause)
        logs = ("--before", BEFORE, "--after", str(log), "--from-step", "500")
        said = ask("postflight", *logs, "--wait", "1h")
        assert (said.code, pauses) == (ExitCode.OK, [verbs.POLL_SECONDS] * 2), "first absent, then too short"

    def test_a_difference_of_few_steps_is_read_again_until_its_cause_shows(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows = rows_of(after("older_weights_newer_counter"))
        log = write_rows(tmp_path / "after.csv", up_to(rows, 510))
        logs = ("--before", BEFORE, "--after", log, "--from-step", "500", "--json")
        said = ask("postflight", *logs)
        assert (said.code, codes(said)) == (ExitCode.DAMAGE, ["resume-differs"])
        assert (said.json["missing_until_step"], said.json["is_final"]) == (520, False)
        monkeypatch.setattr(time, "sleep", lambda _seconds: write_rows(tmp_path / "after.csv", rows))
        said = ask("postflight", *logs, "--wait", "1h")
        assert (said.code, codes(said)) == (ExitCode.DAMAGE, ["resume-other-checkpoint"])

    def test_a_log_without_a_step_yet_is_read_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = tmp_path / "after.csv"
        log.write_text("loading the weights\n")
        logs = ("--before", BEFORE, "--after", str(log), "--from-step", "500")
        assert ask("postflight", *logs).code == ExitCode.INCOMPLETE
        monkeypatch.setattr(time, "sleep", lambda _seconds: write_rows(log, rows_of(after("exact"))))
        assert ask("postflight", *logs, "--wait", "1h").code == ExitCode.OK

    def test_a_final_answer_needs_no_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(time, "sleep", lambda _seconds: pytest.fail("it waits"))
        assert compare("optimizer_lost", "--wait", "1h").code == ExitCode.DAMAGE


class TestLibrary:
    def test_the_function_takes_the_options_of_the_command(self) -> None:
        answer = ckpttool.postflight(before=BEFORE, after=after("optimizer_lost"), from_step=500)
        assert (answer.exit_code, answer.step) == (ExitCode.DAMAGE, 500)
        assert answer.faults == ("resume-optimizer-lost",)
        assert not answer

    def test_the_function_takes_a_question(self) -> None:
        question = PostflightQuestion(before=(BEFORE,), after=(after("exact"),), from_step=ckpttool.types.Step(500))
        assert ckpttool.postflight(None, question)

    def test_a_wrong_option_is_an_error(self) -> None:
        with pytest.raises(UsageError, match="unknown option 'beforre'"):
            ckpttool.postflight(beforre=BEFORE)  # type: ignore[call-overload]
