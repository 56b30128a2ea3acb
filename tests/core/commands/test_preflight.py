"""Go or no-go, situation by situation, as a user, a script and a CI service see it."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ckpttool.core.errors import ExitCode
from ckpttool.core.render.answers.preflight import MOST_REASONS
from ckpttool.core.storage.disk import LocalDisk, Room
from tests.conftest import FIXTURES, TESTS, Golden
from tests.core.commands.test_answers import FORMATS, lines_too_long
from tests.core.commands.test_hostile_names import NAMES
from tests.support.commands import Said, ask
from tests.support.json_schemas import junit_suite, sarif_run
from tests.support.situations import SITUATIONS, before_morning, real
from tests.support.trees import TreeBuilder

GOOD = (FIXTURES / "configs" / "pretrain_sink2.yaml").read_text()
NEWER = """\
run_mode: train
use_parallel: True
checkpoint: {load_path: '', save_max: 5, save_interleaved_steps: 10, prefix: llama2_7b}
runner_config: {epochs: 2, batch_size: 4, sink_mode: True, sink_size: 2}
parallel: {parallel_mode: 1, full_batch: True}
parallel_config: {data_parallel: 2, model_parallel: 2, micro_batch_num: 1}
load_ckpt_format: safetensors
"""
ALL = ("table", "json", "github", "junit", "sarif", "gitlab", "markdown")
REPORTS = tuple(option for form in ALL[1:] for option in ("--report", f"{form}=report.{form}"))

NOTHING = {"checkpoint": "failed", **dict.fromkeys(("health", "launch", "start", "disk"), "skipped")}
WRITTEN = ("--allow", "start-differs")
"""Asks for what `launch` would write, whatever the config as it stands does."""

# Exit code, and the checks that did not pass.
ANSWERS: dict[str, tuple[int, dict[str, str]]] = {
    "whole": (0, {}),
    "missing-shard": (10, {"start": "failed"}),
    "truncated": (10, {"start": "failed"}),
    "all-damaged": (11, NOTHING),
    "unhealthy": (10, {"start": "failed"}),
    "torn-health-file": (14, {"health": "unknown"}),
    "replaced-node": (11, NOTHING),
    "stray-folder": (10, {"start": "failed"}),
}


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Answer for the file system: the same everywhere, and as a test says."""

    def answer(*, free: int = 1 << 40, files: int | None = 1 << 20, locked: tuple[str, ...] = ()) -> None:
        monkeypatch.setattr(LocalDisk, "room", lambda *_: Room(free_bytes=free, free_files=files))
        monkeypatch.setattr(LocalDisk, "is_writable", lambda _, folder: folder not in locked)

    answer()
    return answer


def asked(here: Path, *options: str, config: str = GOOD) -> Said:
    (here / "base.yaml").write_text(config)
    return ask("preflight", "output", "--config", "base.yaml", *options)


def outcomes(said: Said) -> dict[str, str]:
    return {one["name"]: one["outcome"] for one in said.json["checks"]}


def codes(said: Said, *, blocking: bool = True) -> set[str]:
    """Return the codes of what stands against a launch (or of everything)."""
    return {
        finding["code"]
        for check in said.json["checks"]
        for finding in check["findings"]
        if finding["severity"] != "note" or not blocking
    }


@pytest.mark.parametrize("situation", ANSWERS)
@pytest.mark.parametrize("form", FORMATS)
def test_the_answer_is_the_golden_one(situation: str, form: str, here: Path, golden: Golden) -> None:
    SITUATIONS[situation](here)
    before_morning(here)
    said = asked(here, "--format", form)
    code, not_passed = ANSWERS[situation]
    assert said.code == code
    golden(f"preflight/{situation}.{FORMATS[form]}", said.stdout)
    if form == "table":
        assert lines_too_long(said) == []
        return
    found = outcomes(said)
    assert list(found) == ["config", "checkpoint", "health", "launch", "start", "disk"]
    assert {name: word for name, word in found.items() if word != "passed"} == not_passed
    assert (said.json["go"], said.json["exit_code"]) == (code == 0, code)


def unmounted(here: Path) -> None:
    """The newest checkpoint's shard on one rank is a link to a disk that is not there."""
    path = real(here, "sink2_ckpt") / "rank_2/llama2_7b_rank_2_1-30_2.ckpt"
    path.unlink()
    path.symlink_to("/mnt/not-mounted/shard.ckpt")


def test_14_where_a_newer_checkpoint_could_not_be_looked_at(here: Path) -> None:
    unmounted(here)
    said = asked(here, "--strict", *WRITTEN, "--format", "json")
    assert (said.code, codes(said)) == (14, {"newer-not-chosen"})
    assert outcomes(said)["checkpoint"] == "unknown"
    assert asked(here, "--strict", *WRITTEN, "--allow", "newer-not-chosen").code == 0


def start_row(said: Said) -> str:
    """Return the row of the start, without its line breaks."""
    return " ".join(said.stdout.partition("  start ")[2].partition("  disk ")[0].split())


def test_an_allowed_start_is_not_simply_called_ok(here: Path) -> None:
    SITUATIONS["truncated"](here)
    assert "start-differs is allowed" in start_row(asked(here, *WRITTEN))
    (here / "output").rename(here / "damaged")
    SITUATIONS["whole"](here)
    assert "is allowed" not in start_row(asked(here, *WRITTEN))


class TestConfig:
    @pytest.mark.parametrize(
        ("old", "new", "code", "found"),
        [
            ("run_mode: 'train'", "run_mode: 'predict'", 10, {"not-a-training"}),
            ("1.0e-8", "1e-8", 10, {"config-wrong-type"}),  # which is found where the config is read
            ("data_parallel: 4", "data_parallel: 6", 11, {"nothing-to-resume", "rank-missing"}),  # four ranks are there
        ],
    )
    def test_what_is_wrong_with_it_stops_a_launch_and_is_told_once(
        self, old: str, new: str, code: int, found: set[str], here: Path
    ) -> None:
        SITUATIONS["whole"](here)
        said = asked(here, "--format", "json", config=GOOD.replace(old, new))
        assert (said.code, codes(said)) == (code, found)
        assert code != 10 or [json.dumps(said.json["checks"]).count(each) for each in found] == [1]

    def test_15_for_a_config_that_is_a_bomb(self, here: Path) -> None:
        assert asked(here, config=f"a: {'[' * 1000}").code == ExitCode.UNSAFE

    @pytest.mark.parametrize(("config", "line"), [("seed: 1\nseed: 2\n", 2), ("a: [\n", 2), ("", None), ("a: !x 1", 1)])
    def test_2_for_a_config_that_cannot_be_used_with_its_line(self, config: str, line: int | None, here: Path) -> None:
        SITUATIONS["whole"](here)
        said = asked(here, "--format", "json", config=config)
        assert (said.code, said.stderr) == (ExitCode.USAGE, "")
        (finding,) = json.loads(said.stdout)["checks"][0]["findings"]
        assert (finding["code"], finding["file"], finding["line"]) == ("config-unusable", "base.yaml", line)
        assert set(outcomes(said).values()) == {"failed", "skipped"}

    @pytest.mark.parametrize("form", ["json", "junit"])
    def test_what_others_read_is_a_report_even_where_the_config_is_not_there(self, form: str, here: Path) -> None:
        SITUATIONS["whole"](here)
        table = ask("preflight", "output", "--config", "none.yaml")
        assert (table.code, table.stdout, table.stderr.count("\n")) == (ExitCode.USAGE, "", 1)
        said = ask("preflight", "output", "--config", "none.yaml", "--format", form)
        assert (said.code, said.stderr) == (ExitCode.USAGE, "")
        assert "none.yaml" in said.stdout
        reported = ask("preflight", "output", "--config", "none.yaml", "--report", f"{form}=report")
        assert reported.code == ExitCode.USAGE
        assert (here / "report").read_text() == said.stdout

    def test_a_config_of_which_no_launch_config_can_be_made_stops_it(self, here: Path) -> None:
        SITUATIONS["whole"](here)
        folder = "'./output/checkpoint'"
        shared = GOOD.replace(f"load_checkpoint: {folder}", f"load_checkpoint: &x {folder}\nother: *x")
        said = asked(here, "--format", "json", config=shared)
        assert (said.code, codes(said), outcomes(said)["launch"]) == (10, {"config-disagrees"}, "failed")
        assert "cannot make a launch config from it" in said.stdout
        launched = ask("launch", "output", "--config", "base.yaml", "--output", "new.yaml")
        assert (launched.code, (here / "new.yaml").exists()) == (10, False)


class TestLaunch:
    def test_devices_that_do_not_fit_stop_it(self, here: Path) -> None:
        SITUATIONS["whole"](here)
        assert asked(here, "--devices", "4").code == 0
        said = asked(here, "--devices", "8", "--format", "json")
        assert (said.code, outcomes(said)["launch"]) == (10, "failed")

    def test_resolve_s_options_count(self, here: Path) -> None:
        SITUATIONS["unhealthy"](here)
        config = GOOD.replace("data_parallel: 4", "data_parallel: 2").replace("pipeline_stage: 1", "pipeline_stage: 2")
        config = config.replace("stage: 2", "stage: 2\n  micro_batch_num: 2")
        plain = asked(here, "--format", "json", config=config).json["plan"]
        said = asked(here, "--ignore-health", "--format", "json", config=config)
        other = said.json["plan"]
        assert (plain["resume"]["name"], other["resume"]["name"]) == ("10_2", "15_2")

    def test_a_checkpoint_that_is_not_there_is_a_reason_like_any_other(self, here: Path) -> None:
        SITUATIONS["whole"](here)
        said = asked(here, "--checkpoint", "99_9", "--format", "json")
        assert (said.code, codes(said)) == (2, {"cannot-answer"})

    def test_the_newer_layout(self, here: Path) -> None:
        SITUATIONS["newer-layout"](here)
        said = asked(here, "--format", "json", config=NEWER)
        assert (said.code, codes(said)) == (10, {"start-differs"})  # `load_path` is empty: it begins at step 0
        said = asked(here, "--format", "json", config=NEWER.replace("''", "./output/checkpoint, no_load_optim: False"))
        assert (said.code, codes(said)) == (0, set())
        disk = said.json["disk"]
        assert disk["saves"] == 6

    def test_12_where_there_is_no_tree_and_the_config_is_judged_all_the_same(self, here: Path) -> None:
        said = asked(here, "--format", "json", config=GOOD.replace("run_mode: 'train'", "run_mode: 'predict'"))
        assert (said.code, codes(said)) == (12, {"cannot-answer", "not-a-training"})
        assert outcomes(said)["disk"] == "skipped"
        assert said.json["root"] is None


class TestDisk:
    def test_room_for_the_saves_that_are_kept_and_one_more(self, here: Path, disk: Callable[..., None]) -> None:
        SITUATIONS["whole"](here)
        size = sum(path.stat().st_size for path in here.glob("output/checkpoint/rank_*/*_1-30_2.ckpt"))
        disk(free=4 * size, files=16)
        assert asked(here).code == 0
        disk(free=4 * size - 1)
        said = asked(here, "--format", "json")
        assert (said.code, codes(said)) == (10, {"disk-space-low"})
        disk(files=15)
        assert codes(asked(here, "--format", "json")) == {"disk-inodes-low"}
        disk(files=None)
        assert asked(here).code == 0

    def test_a_folder_that_this_user_may_not_write_to(self, here: Path, disk: Callable[..., None]) -> None:
        SITUATIONS["whole"](here)
        disk(locked=("output/checkpoint/rank_2",))
        said = asked(here, "--format", "json")
        assert (said.code, codes(said)) == (10, {"folder-not-writable"})
        assert asked(here, "--allow", "folder-not-writable").code == 0

    def test_an_output_folder_elsewhere_is_asked_instead(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        SITUATIONS["whole"](here)
        (here / "big").mkdir()
        asked_for: list[str] = []

        def room(_: object, folder: str) -> Room:
            asked_for.append(folder)
            return Room(free_bytes=1 << 40, free_files=None)

        monkeypatch.setattr(LocalDisk, "room", room)
        config = GOOD.replace("output_dir: './output'", f"output_dir: '{here}/big/new/run'")
        assert asked(here, config=config).code == 0
        assert asked_for == [f"{here}/big"]


class TestAllow:
    CONFIG = GOOD.replace("run_mode: 'train'", "run_mode: 'predict'")

    def test_what_is_allowed_stops_nothing_and_is_told_as_a_note(self, here: Path) -> None:
        SITUATIONS["whole"](here)
        said = asked(here, "--allow", "not-a-training", "--format", "json", config=self.CONFIG)
        assert said.code == 0
        assert "not-a-training" in codes(said, blocking=False)


class TestReports:
    def test_one_run_gives_every_format_and_all_say_the_same(self, here: Path) -> None:
        SITUATIONS["all-damaged"](here)
        said = asked(here, *REPORTS)
        assert said.code == 11
        assert said.stdout.startswith("NO-GO: ")
        for form in ALL[1:]:
            alone = asked(here, "--format", form)
            assert (alone.code, alone.stdout) == (11, (here / f"report.{form}").read_text())

    def test_1_where_a_report_cannot_be_written_after_the_verdict_that_it_does_not_change(
        self, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        SITUATIONS["whole"](here)
        verdict = asked(here).stdout

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full)
        said = asked(here, "--report", "junit=there.xml", "--report", "sarif=too.sarif")
        assert (said.code, said.stdout) == (1, verdict)
        assert "there.xml" in said.stderr
        assert "too.sarif" not in said.stderr
        assert not (here / "there.xml").exists()

    @pytest.mark.sample(2)
    @pytest.mark.parametrize("form", ALL[1:])
    def test_an_earlier_report_of_its_format_is_replaced_and_so_is_an_empty_file(self, form: str, here: Path) -> None:
        SITUATIONS["all-damaged"](here)
        (here / "out").touch()
        assert asked(here, "--report", f"{form}=out").code == 11
        first = (here / "out").read_text()
        assert first
        assert asked(here, "--report", f"{form}=out", "--allow", "shard-empty").code == 11
        assert ask("lint-config", "base.yaml", "--report", f"{form}=out").code == 0
        assert (here / "out").read_text() != first
        assert ask("lint-config", "base.yaml", "--report", f"{form}=out").code == 0
        assert asked(here, "--report", f"{form}=out").code == 11
        assert (here / "out").read_text() == first

    @pytest.mark.sample(2)
    @pytest.mark.parametrize("form", ALL[1:])
    def test_2_where_a_report_would_replace_anything_else(
        self, form: str, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        SITUATIONS["all-damaged"](here)
        others = [each for each in ALL[1:] if each != form]
        asked(here, *(option for each in others for option in ("--report", f"{each}=of.{each}")))
        monkeypatch.setattr("ckpttool.core.verbs.preflighting.preflight", lambda _: pytest.fail("the check ran"))
        precious = {
            "train.yaml": b"train: 1\n",
            "list.json": b"[1]",
            "plan.json": b'{"schema": "ckpttool/plan/1"}',
            "other.sarif": b'{"runs": [{"tool": {"driver": {"name": "ckpttool"}}}, {"tool": {}}]}',
            "runs.sarif": b'{"runs": 1}',
            "all.xml": (here / "of.junit").read_bytes() + b"<testsuite name='mine'/>" if form != "junit" else b"<a/>",
            "notes.txt": b"::error title=ckpttool x::y\nmine\nGO: away\n",
            "cut.txt": b"::error title=ckpttool x::y\n",
            "binary": b"\xff\0",
            **{f"of.{each}": (here / f"of.{each}").read_bytes() for each in others},
        }
        for name, content in precious.items():
            (here / name).write_bytes(content)
            said = asked(here, "--report", f"{form}={name}")
            assert (said.code, said.stdout) == (2, ""), name
            assert f"already exists and contains no {form} report of ckpttool" in said.stderr
            assert (here / name).read_bytes() == content

    def test_2_for_a_report_over_its_own_config_or_in_the_tree_or_nowhere(
        self, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        SITUATIONS["whole"](here)
        (here / "base.yaml").touch()
        (here / "link").symlink_to("base.yaml")
        (here / "into").symlink_to("output/checkpoint")
        (here / "dangling").symlink_to("nowhere")
        os.mkfifo(here / "pipe")
        monkeypatch.setattr("ckpttool.core.verbs.preflighting.preflight", lambda _: pytest.fail("the check ran"))
        for target, words in {
            "base.yaml": "is one of the files to check",
            "./output/../base.yaml": "is one of the files to check",
            "link": "is one of the files to check",
            "output/checkpoint/out.xml": "is in the checkpoint tree",
            "output/checkpoint/rank_0/llama2_7b_rank_0-20_2.ckpt": "is in the checkpoint tree",
            "into/out.xml": "is in the checkpoint tree",
            "none/there.xml": "the folder 'none' does not exist",
            "dangling": "contains no junit report",
            "pipe": "contains no junit report",
            "output": "contains no junit report",
        }.items():
            said = asked(here, "--report", f"junit={target}")
            assert (said.code, said.stdout) == (2, ""), target
            assert words in said.stderr, target
        assert (here / "base.yaml").read_text() == GOOD

    def test_the_summary_of_a_github_step_is_added_to_and_nothing_else_is(
        self, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        SITUATIONS["whole"](here)
        (here / "step").write_text("what the step said before")
        refused = asked(here, "--report", "markdown=step")
        assert (refused.code, refused.stdout) == (2, "")
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(here / "step"))
        alone = asked(here, "--format", "markdown").stdout
        for _ in range(2):
            assert asked(here, "--report", "markdown=step").code == 0
        assert (here / "step").read_text() == f"what the step said before\n{alone}\n{alone}"
        assert asked(here, "--report", "json=step").code == 2
        (here / "step").unlink()
        assert asked(here, "--report", f"markdown={here / 'step'}").code == 0
        assert (here / "step").read_text() == f"\n{alone}"

    def test_1_where_the_summary_of_a_step_is_no_file(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        SITUATIONS["whole"](here)
        os.mkfifo(here / "step")
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(here / "step"))
        said = asked(here, "--report", "markdown=step")
        assert (said.code, said.stdout.splitlines()[0][:4]) == (1, "GO: ")
        assert "step" in said.stderr

    def test_2_for_two_reports_in_one_file(self, here: Path) -> None:
        SITUATIONS["whole"](here)
        (here / "link").symlink_to("output")
        for other in ("out", "./out", str(here / "out"), "link/../out"):
            said = asked(here, "--report", "junit=out", "--report", f"json={other}")
            assert (said.code, said.stdout) == (2, "")
            assert "two reports cannot be written to one file" in said.stderr

    @pytest.mark.sample(2)
    @pytest.mark.parametrize("form", ALL)
    def test_a_log_is_named_as_it_was_given(self, form: str, here: Path) -> None:
        SITUATIONS["whole"](here)
        (here / "l.gz").write_bytes(gzip.compress(b"step,global_norm\n" * 99)[:-12])
        said = asked(here, "--health-threshold", "270", "--log", "l.gz", "--format", form)
        assert said.code == 14
        assert "checkpoint/l.gz" not in said.stdout
        assert "l.gz" in said.stdout

    def test_a_health_file_beside_the_tree_is_named_where_it_is(self, here: Path) -> None:
        SITUATIONS["torn-health-file"](here)
        said = asked(here, "--format", "github")
        (name,) = set(re.findall(r"^::error file=([^,]*health_ckpts.json)", said.stdout, re.MULTILINE))
        assert (here / name).exists()

    def test_github_annotates_files_alone_and_a_shard_that_is_gone_is_named_in_the_message(self, here: Path) -> None:
        SITUATIONS["missing-shard"](here)
        said = asked(here, "--checkpoint", "20_2", "--format", "github").stdout
        files = re.findall(r"^::[a-z]+ file=([^,]*),", said, re.MULTILINE)
        assert all((here / file).is_file() for file in files)
        assert re.search(r"^::error title=ckpttool shard-missing::output/checkpoint/rank_3/.*20_2", said, re.MULTILINE)


class TestOneScreen:
    BAD = (TESTS / "configs" / "everything_wrong.yaml").read_text()

    def test_a_config_with_everything_wrong_fits(self, here: Path, golden: Golden) -> None:
        SITUATIONS["whole"](here)
        said = asked(here, config=self.BAD)
        assert said.code == 10
        assert lines_too_long(said) == []
        assert len(said.stdout.splitlines()) <= 50
        assert said.stdout.count("\n  fix: ") == MOST_REASONS
        golden("preflight/everything-wrong.txt", said.stdout)
        found = codes(asked(here, "--format", "json", config=self.BAD))
        for form in ("github", "junit", "sarif"):
            whole = asked(here, "--format", form, config=self.BAD).stdout
            golden(f"preflight/everything-wrong.{form}", whole)
            assert [code for code in found if code not in whole] == []

    @pytest.mark.sample(2)
    @pytest.mark.parametrize("situation", ANSWERS)
    def test_a_narrow_terminal_breaks_nothing(
        self, situation: str, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        SITUATIONS[situation](here)
        monkeypatch.setenv("COLUMNS", "40")
        said = asked(here)
        assert lines_too_long(said, width=40) == []
        assert "…" not in said.stdout


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_hostile_name_is_shown_without_being_obeyed(name: str, here: Path) -> None:
    tree = TreeBuilder(here).legacy(ranks=2, prefix=name, sparse=True)
    for epoch in (10, 15):
        tree.save(epoch=epoch, step=2, meta=False)
    tree.remove(tree.shard(1, 10, 2)).remove(tree.shard(1, 15, 2))
    config = f"{name.encode('utf-8', 'surrogateescape')[:9]!r}.yaml".replace("/", "")
    (here / config).write_text(GOOD.replace("data_parallel: 4", "data_parallel: 2"))
    said = ask("preflight", "output", "--config", config, *REPORTS)
    assert said.code == 11
    told = {form: (here / f"report.{form}").read_text() for form in ALL[1:]}
    for text in (said.stdout, *told.values()):
        assert [each for each in text if not each.isprintable() and each != "\n"] == []
    sarif_run(told["sarif"])
    junit_suite(told["junit"])
