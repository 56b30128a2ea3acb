"""What a start of MindFormers loads with its config as it stands: the modes of `load_checkpoint` × `resume_training`.

Source: starts of MindFormers 2.1.0 with each of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.launch import Launch
from ckpttool.core.domain.plan import JudgedStart, Outcome, ResumePlan
from ckpttool.core.domain.preflight import Outcome as Ended
from ckpttool.core.errors import ExitCode
from ckpttool.core.verbs.starting import judged_start
from ckpttool.types import LaunchOrder, PreflightQuestion, ResumeQuestion, TreeQuestion
from tests.support.answers import start_check
from tests.support.healthy_trees import unified_tree
from tests.support.trees import TreeBuilder

RANK = """\
load_checkpoint: {load}
resume_training: {resume}
load_ckpt_format: {fmt}
run_mode: train
use_parallel: True
runner_config: {{epochs: 40, batch_size: 2, sink_mode: True, sink_size: 2}}
parallel: {{parallel_mode: 1, full_batch: True}}
parallel_config: {{data_parallel: 4, model_parallel: 1}}
callbacks: [{{type: CheckpointMonitor, prefix: llama2_7b, keep_checkpoint_max: 3}}]
"""
NEWER = """\
run_mode: train
use_parallel: True
load_checkpoint: {load}
resume_training: {resume}
{switch}
runner_config: {{epochs: 4, batch_size: 4, sink_mode: True, sink_size: 2}}
parallel: {{parallel_mode: 1, full_batch: True}}
parallel_config: {{data_parallel: 2, model_parallel: 2, micro_batch_num: 1}}
load_ckpt_format: safetensors
"""
DIR = "./output/checkpoint"


def whole(folder: Path) -> TreeBuilder:
    tree = TreeBuilder(folder).legacy()
    for epoch in (10, 15, 20):
        tree.save(epoch=epoch, step=2)
    return tree


NEWEST = TreeBuilder(Path()).shard(1, 20, 2)


def cut(tree: TreeBuilder) -> object:
    return tree.truncate(NEWEST, (tree.output / NEWEST).stat().st_size - 100)


def records_behind(tree: TreeBuilder) -> object:
    return [tree.meta(rank, 15, 2, f"llama2_7b_rank_{rank}-15_2.ckpt") for rank in range(4)]


FAULTS: dict[str, tuple[Callable[[TreeBuilder], object], str, str | None]] = {
    "nothing": (lambda tree: tree, "20_2", "20_2"),
    "resumed once": (lambda tree: tree.save(epoch=25, step=2, run=1), "_1-25_2", "_1-25_2"),
    "a record gone": (lambda tree: tree.remove("checkpoint/rank_2/meta.json"), "20_2", "20_2"),
    "all records gone": (
        lambda tree: [tree.remove(f"checkpoint/rank_{rank}/meta.json") for rank in range(4)], "20_2", "20_2",
    ),
    "a rank died before its save": (lambda tree: tree.save(epoch=25, step=2, ranks=[0, 1, 2]), "20_2", "20_2"),
    "a shard gone": (lambda tree: tree.remove(NEWEST), "15_2", "15_2"),
    "records behind": (records_behind, "20_2", "15_2"),
    "a shard cut": (cut, "15_2", "20_2"),
    "a shard emptied": (lambda tree: tree.truncate(NEWEST, 0), "15_2", "20_2"),
    "a shard zeroed": (
        lambda tree: tree.file(NEWEST, bytes((tree.output / NEWEST).stat().st_size)), "15_2", "20_2",
    ),
    "a folder kept beside": (
        lambda tree: shutil.copytree(tree.checkpoint / "rank_0", tree.checkpoint / "rank_0_bak"), "20_2", None,
    ),
    "a breakpoint beside": (
        lambda tree: tree.file("checkpoint/rank_1/llama2_7b_rank_1-20_2_breakpoint.ckpt"), "20_2", None,
    ),
}  # fmt: skip
"""What is done to a tree; what is resumed from; what MindFormers takes by itself, None where it stops."""

MODES = {
    "named": (DIR, "llama2_7b_rank_0-20_2"),
    "chosen by itself": (DIR, "True"),
    "only weights": (DIR, "False"),
    "from scratch": ("''", "False"),
}


def asked(folder: Path, text: str) -> PreflightQuestion:
    path = folder / "train.yaml"
    path.write_text(text)
    return PreflightQuestion(config=str(path), tree=TreeQuestion(path=str(folder / "output")))


def judged(folder: Path, text: str) -> JudgedStart:
    path = folder / "train.yaml"
    path.write_text(text)
    question = TreeQuestion(path=str(folder / "output"), config=ckpttool.library.read_config(str(path)))
    start = judged_start(ckpttool.resolve(question))
    assert start is not None
    return start


def told(start: JudgedStart) -> tuple[str | None, Outcome]:
    assert start.simulation is not None, start
    return start.simulation.would_resume, start.simulation.outcome


@pytest.mark.sample(16)
@pytest.mark.parametrize(
    ("fault", "mode"),
    [
        *((fault, mode) for fault in FAULTS for mode in ("named", "chosen by itself")),
        *((fault, mode) for fault in ("nothing", "a shard cut") for mode in ("only weights", "from scratch")),
    ],
)
def test_go_is_said_only_of_a_start_that_loads_what_was_chosen(fault: str, mode: str, tmp_path: Path) -> None:
    spoil, chosen, by_itself = FAULTS[fault]
    spoil(whole(tmp_path))
    load, resume = MODES[mode]
    answer = ckpttool.preflight(asked(tmp_path, RANK.format(load=load, resume=resume, fmt="ckpt")))
    assert isinstance(answer.decision, ResumePlan)
    assert answer.decision.point.checkpoint.name == chosen
    takes = {"named": "20_2" if chosen == "20_2" else None, "chosen by itself": by_itself}.get(mode)
    is_go = takes == chosen
    assert start_check(answer).outcome is (Ended.PASSED if is_go else Ended.FAILED)
    assert answer.exit_code is (ExitCode.OK if is_go else ExitCode.DAMAGE)
    if not is_go:
        (reason,) = start_check(answer).reasons
        assert reason.finding.code is Code.START_DIFFERS
        assert "ckpttool launch" in (reason.finding.remedy or "")


@pytest.mark.sample(2)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_launch_writes_is_go(fault: str, tmp_path: Path) -> None:
    FAULTS[fault][0](whole(tmp_path))
    question, new = asked(tmp_path, RANK.format(load="''", resume="False", fmt="ckpt")), tmp_path / "new.yaml"
    order = LaunchOrder(base=str(question.config), output=str(new))
    assert isinstance(ckpttool.launch(question.tree, order=order), Launch)
    answer = ckpttool.preflight(replace(question, config=str(new)))
    assert answer.go, answer.checks


@pytest.mark.sample(1)
@pytest.mark.parametrize("fault", ["a shard cut", "records behind"])
def test_the_cure_that_is_offered_cures(fault: str, tmp_path: Path) -> None:
    spoil, name, _ = FAULTS[fault]
    spoil(whole(tmp_path))
    question = asked(tmp_path, RANK.format(load=DIR, resume="True", fmt="ckpt"))
    (reason,) = start_check(ckpttool.preflight(question)).reasons
    assert "repair pointer" in (reason.finding.remedy or "")
    ckpttool.repair_meta(str(tmp_path / "output"), ResumeQuestion(name=name), grace=0, apply=True)
    assert start_check(ckpttool.preflight(question)).outcome is Ended.PASSED


@pytest.mark.parametrize(
    ("load", "resume", "ends", "words"),
    [
        ("''", "True", (None, Outcome.SCRATCH), "`load_checkpoint` is empty"),
        ("''", "model.ckpt", (None, Outcome.STOPS), "names no folder for it"),
        ("null", "False", (None, Outcome.SCRATCH), "is empty"),
        ("null", "True", (None, Outcome.STOPS), "`load_checkpoint` has no value"),
        ("7", "True", (None, Outcome.STOPS), "is not text"),
        ("./elsewhere/checkpoint", "True", ("./elsewhere/checkpoint", Outcome.UNKNOWN), "is a different folder from"),
        ("/elsewhere/output/checkpoint", "True", (None, Outcome.STOPS), "does not exist"),
        ("~/output/checkpoint", "True", (None, Outcome.STOPS), "MindFormers does not expand `~`"),
        ("/", "True", ("/", Outcome.UNKNOWN), "a different folder"),
        ("./output/checkpoint/rank_9", "True", (None, Outcome.STOPS), "does not exist"),
        ("./output/checkpoint/rank_0", "True", (None, Outcome.STOPS), "finds no rank_0"),
        (DIR, "llama2_7b-20_2.ckpt", (None, Outcome.STOPS), "no rank in the name"),
        (DIR, "llama2_7b_rank_3-15_2.ckpt", ("15_2", Outcome.LOADS), "names llama2_7b_rank_3-15_2.ckpt"),
        (
            DIR,
            "llama2_7b_rank_0-99_2",
            (None, Outcome.STOPS),
            "makes rank 0 look for rank_0/llama2_7b_rank_0-99_2.ckpt",
        ),
    ],
)
def test_each_mode_ends_as_the_real_start_does(
    load: str, resume: str, ends: tuple[str | None, Outcome], words: str, tmp_path: Path
) -> None:
    whole(tmp_path)
    start = judged(tmp_path, RANK.format(load=load, resume=resume, fmt="ckpt"))
    assert told(start) == ends
    assert words in start.reason


class TestOneFile:
    FILE = "./output/checkpoint/rank_0/llama2_7b_rank_0-20_2.ckpt"

    @pytest.mark.parametrize("resume", ["True", "llama2_7b_rank_0-15_2.ckpt"])
    def test_a_resume_from_the_file_of_one_rank_stops(self, resume: str, tmp_path: Path) -> None:
        whole(tmp_path)
        start = judged(tmp_path, RANK.format(load=self.FILE, resume=resume, fmt="ckpt"))
        assert told(start) == (None, Outcome.STOPS)
        assert "names a file" in start.reason

    @pytest.mark.parametrize("name", ["model.safetensors", "tiny_model.safetensors.index.json"])
    def test_a_folder_with_a_model_of_hugging_face_stops_a_resume(self, name: str, tmp_path: Path) -> None:
        whole(tmp_path).file(f"checkpoint/{name}")
        start = judged(tmp_path, RANK.format(load=DIR, resume="True", fmt="ckpt"))
        assert told(start) == (None, Outcome.STOPS)
        assert name in start.reason

    def test_a_named_file_that_is_no_checkpoints_is_no_save(self, tmp_path: Path) -> None:
        tree = whole(tmp_path)
        for rank in range(4):
            tree.file(f"checkpoint/rank_{rank}/odd_rank_{rank}.ckpt")
        start = judged(tmp_path, RANK.format(load=DIR, resume="odd_rank_0", fmt="ckpt"))
        assert told(start) == ("odd_rank_0", Outcome.UNKNOWN)


class TestWhereItIsStarted:
    """A relative path is one of the folder in which the training is started."""

    CONFIG = RANK.format(load=DIR, resume="True", fmt="ckpt")

    def test_another_run_of_that_path_is_no_go(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "one").mkdir()
        whole(tmp_path / "one")
        whole(tmp_path / "two")
        monkeypatch.chdir(tmp_path / "two")
        check = start_check(ckpttool.preflight(asked(tmp_path / "one", self.CONFIG)))
        assert check.outcome is Ended.FAILED
        assert "a different folder" in check.reasons[0].finding.message
        monkeypatch.chdir(tmp_path / "one")
        check = start_check(ckpttool.preflight(asked(tmp_path / "one", self.CONFIG)))
        assert (check.outcome, check.summary) == (Ended.PASSED, "as configured, it would load 20_2")

    def test_a_path_to_nowhere_is_go_from_another_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "empty").mkdir()
        whole(tmp_path)
        monkeypatch.chdir(tmp_path / "empty")
        check = start_check(ckpttool.preflight(asked(tmp_path, self.CONFIG)))
        assert check.outcome is Ended.PASSED
        assert check.summary == f"as configured, it would load 20_2, if started in {tmp_path}"


class TestTypes:
    """Of values that MindFormers refuses, or that nobody can count with."""

    CONFIG = RANK.format(load=DIR, resume="True", fmt="ckpt")

    @pytest.mark.sample(6)
    @pytest.mark.parametrize(
        ("skip", "words"),
        [
            ("'40'", "must be a whole number"),
            ("[40]", "must be a whole number"),
            ("40.0", "must be a whole number"),
            ("True", "it skips 0 batches of the data, but 40 are right"),
            ("-3", "it skips 0 batches of the data, but 40 are right"),
            *((skip, None) for skip in ("40", "0", "''", "False", "0.0", "null")),
        ],
    )
    def test_steps_to_skip_that_are_no_count_are_no_go(self, skip: str, words: str | None, tmp_path: Path) -> None:
        whole(tmp_path)
        check = start_check(ckpttool.preflight(asked(tmp_path, f"{self.CONFIG}data_skip_steps: {skip}\n")))
        assert check.outcome is (Ended.FAILED if words else Ended.PASSED)
        assert [words in reason.finding.message for reason in check.reasons if words] == [True] * len(check.reasons)

    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ("\n", "\nauto_trans_ckpt: 1\n", "must be True or False"),
            ("\n", "\nauto_trans_ckpt: 'False'\n", "must be True or False"),
            ("\n", "\nauto_trans_ckpt: null\n", None),
            ("\n", "\nauto_trans_ckpt: True\n", None),
            ("load_ckpt_format: ckpt", "load_ckpt_format: null", ""),
            ("load_ckpt_format: ckpt", "", None),  # what is not there is ckpt
            ("resume_training: True", "resume_training: 1", "must be True, False or the name of a file"),
            ("resume_training: True", "resume_training: [True]", "must be True, False or the name of a file"),
            ("resume_training: True", "resume_training: null", None),
        ],
    )
    def test_a_switch_that_is_none_stops(self, old: str, new: str, words: str | None, tmp_path: Path) -> None:
        whole(tmp_path)
        start = judged(tmp_path, self.CONFIG.replace(old, new, 1))
        assert (told(start)[1] is Outcome.STOPS) is (words is not None)
        assert (words or "") in start.reason

    @pytest.mark.parametrize(
        ("switch", "resume", "words"),
        [
            ("use_legacy_format: False", "1", "must be True or False"),
            ("use_legacy_format: False", "null", "needs True or False"),
            ("checkpoint: {no_load_optim: False}", "null", "the tracker names it"),
            ("use_legacy_format: False", "True", "the tracker names it"),
        ],
    )
    def test_the_newer_layout_takes_only_a_switch(self, switch: str, resume: str, words: str, tmp_path: Path) -> None:
        TreeBuilder(tmp_path, prefix="llama2_7b").iteration(step=20)
        assert words in judged(tmp_path, NEWER.format(load=DIR, resume=resume, switch=switch)).reason


class TestItsLine:
    """A finding stands on the line of the setting that decides, so that a comment there can allow it."""

    @pytest.mark.sample(3)
    @pytest.mark.parametrize(
        ("setting", "by"),
        [
            ("load_checkpoint: ''", "load_checkpoint: ./output/checkpoint"),
            ("resume_training: False", "resume_training: True"),
            ("load_checkpoint: null", "load_checkpoint: ./output/checkpoint"),
            ("resume_training: 1", "resume_training: True"),
            ("data_skip_steps: 20", "data_skip_steps: 40"),
            ("ignore_data_skip: True", "ignore_data_skip: False"),
            ("auto_trans_ckpt: 1", "auto_trans_ckpt: False"),
        ],
    )
    def test_a_comment_on_what_decides_allows_another_start(self, setting: str, by: str, tmp_path: Path) -> None:
        whole(tmp_path)
        text = RANK.format(load=DIR, resume="True", fmt="ckpt")
        text = text.replace(by, setting) if by in text else f"{text}{setting}\n"
        check = start_check(ckpttool.preflight(asked(tmp_path, text)))
        (line,) = [reason.finding.line for reason in check.reasons]
        assert line is not None
        assert text.split("\n")[line - 1] == setting
        commented = text.replace(setting, f"{setting}  # ckpttool: allow start-differs")
        check = start_check(ckpttool.preflight(asked(tmp_path, commented)))
        assert (check.outcome, [reason.finding.code for reason in check.allowed]) == (
            Ended.PASSED,
            [Code.START_DIFFERS],
        )


class TestData:
    TEXT = RANK.format(load=DIR, resume="True", fmt="ckpt")

    @pytest.mark.parametrize("more", ["", "data_skip_steps: 4", "ignore_data_skip: True"])
    def test_where_mindformers_alone_counts_a_setting_overrules_it(self, more: str, tmp_path: Path) -> None:
        """Of merged weights nobody knows how many devices will load them."""
        folder = unified_tree(tmp_path)
        text = RANK.replace("parallel_mode: 1", "parallel_mode: 0")
        start, _ = of_merged(tmp_path, folder, f"{text}{more}\n")
        assert ("overrides" in (start.data or "")) is bool(more)

    @pytest.mark.parametrize(
        ("more", "words"),
        [
            ("", None),
            ("data_skip_steps: 40", None),
            ("data_skip_steps: 41", None),  # rounded down to whole sinks
            ("data_skip_steps: 20", "it skips 20 batches of the data, but 40 are right"),
            ("ignore_data_skip: True", "it skips 0 batches of the data, but 40 are right"),
            ("ignore_data_skip: True\ntrain_dataset: {data_loader: {type: HFDataLoader, streaming: True}}", None),
        ],
    )
    def test_a_setting_of_another_start_moves_the_data(self, more: str, words: str | None, tmp_path: Path) -> None:
        whole(tmp_path)
        start = judged(tmp_path, f"{self.TEXT}{more}\n")
        assert (start.data or "").endswith(words or "")
        assert start.takes("20_2") is (words is None)


class TestNewerLayout:
    NAME = "iteration_00000020"

    @pytest.fixture(autouse=True)
    def tree(self, tmp_path: Path) -> TreeBuilder:
        tree = TreeBuilder(tmp_path, prefix="llama2_7b")
        return tree.iteration(step=10).iteration(step=20)

    @pytest.mark.parametrize(
        ("load", "resume", "switch", "ends"),
        [
            (DIR, "True", "use_legacy_format: False", (NAME, Outcome.UNKNOWN)),
            (f"{DIR}/iteration_00000010", "True", "use_legacy_format: False", ("iteration_00000010", Outcome.UNKNOWN)),
            (DIR, "False", "use_legacy_format: False", (None, Outcome.SCRATCH)),
            ("''", "True", "use_legacy_format: False", (None, Outcome.SCRATCH)),
            (DIR, "llama2_7b", "use_legacy_format: False", (None, Outcome.STOPS)),
            (DIR, "True", "use_legacy_format: True", (None, Outcome.STOPS)),
            (DIR, "False", "checkpoint: {no_load_optim: False}", (NAME, Outcome.UNKNOWN)),
            (DIR, "True", "checkpoint: {no_load_optim: True}", (None, Outcome.SCRATCH)),
            (DIR, "True", "checkpoint: {load_path: ''}", (None, Outcome.SCRATCH)),
            ("''", "True", f"checkpoint: {{load_path: {DIR}}}", (None, Outcome.SCRATCH)),
            ("''", "True", f"checkpoint: {{load_path: {DIR}, no_load_optim: False}}", (NAME, Outcome.UNKNOWN)),
            ("./nowhere", "True", f"checkpoint: {{load_path: {DIR}}}", (NAME, Outcome.UNKNOWN)),
        ],
    )
    def test_each_mode_ends_as_the_real_start_does(
        self, load: str, resume: str, switch: str, ends: tuple[str | None, Outcome], tmp_path: Path
    ) -> None:
        assert told(judged(tmp_path, NEWER.format(load=load, resume=resume, switch=switch))) == ends

    def test_with_its_health_monitor_it_takes_what_is_recorded_healthy(self, tmp_path: Path) -> None:
        TreeBuilder(tmp_path, prefix="llama2_7b").iteration(step=10, ckpt_status=0).iteration(step=20, ckpt_status=1)
        monitor = "use_legacy_format: False\nmonitor_config: {health_checkpoint: {embedding_local_norm_threshold: 1.0}}"
        start = judged(tmp_path, NEWER.format(load=f"{DIR}/{self.NAME}", resume="True", switch=monitor))
        assert told(start) == ("iteration_00000010", Outcome.UNKNOWN)

    @pytest.mark.parametrize("line", ["", "load_ckpt_format: ckpt\n"])
    def test_it_stops_unless_the_config_says_safetensors(self, line: str, tmp_path: Path) -> None:
        text = NEWER.format(load=DIR, resume="True", switch="use_legacy_format: False")
        question = asked(tmp_path, text.replace("load_ckpt_format: safetensors\n", line))
        check = start_check(ckpttool.preflight(question))
        assert check.outcome is Ended.FAILED
        assert "needs `load_ckpt_format: safetensors`" in check.reasons[0].finding.message
        assert start_check(ckpttool.preflight(asked(tmp_path, text))).outcome is Ended.PASSED

    @pytest.mark.parametrize("value", ["null", "''", "7"])
    def test_any_value_but_ckpt_is_as_good(self, value: str, tmp_path: Path) -> None:
        text = NEWER.format(load=DIR, resume="True", switch="use_legacy_format: False")
        question = asked(tmp_path, text.replace("load_ckpt_format: safetensors", f"load_ckpt_format: {value}"))
        assert start_check(ckpttool.preflight(question)).outcome is Ended.PASSED


class TestModelInTheWay:
    """A model of Hugging Face's beside the saves stops a resume, whatever config names their folder."""

    def test_moving_it_out_is_the_cure_for_what_a_launch_config_would_name_too(self, tmp_path: Path) -> None:
        whole(tmp_path).file("checkpoint/model.safetensors")
        question = asked(tmp_path, RANK.format(load=DIR, resume="True", fmt="ckpt"))
        (reason,) = start_check(ckpttool.preflight(question)).reasons
        model = tmp_path / "output/checkpoint/model.safetensors"
        assert reason.finding.remedy == f"move {model} out of its folder, and run again"
        model.unlink()
        assert start_check(ckpttool.preflight(question)).outcome is Ended.PASSED


def of_merged(here: Path, folder: Path, text: str) -> tuple[JudgedStart, str]:
    """Return what a start would do, and the name of what was chosen."""
    path = here / "train.yaml"
    path.write_text(text.format(load=folder, resume="True", fmt="safetensors"))
    answer = ckpttool.resolve(TreeQuestion(path=str(folder), config=ckpttool.library.read_config(str(path))))
    start = judged_start(answer)
    assert isinstance(answer.decision, ResumePlan)
    assert start is not None
    return start, answer.decision.point.checkpoint.name


def test_what_another_file_may_say_is_not_judged(tmp_path: Path) -> None:
    whole(tmp_path)
    text = RANK.format(load=DIR, resume="True", fmt="ckpt")
    start = judged(tmp_path, f"base_config: base.yaml\n{text.replace('resume_training: True', '')}")
    assert (start.is_known, start.line) == (False, 1)
    assert "`base_config` names another file, which was not read" in start.reason
    assert judged(tmp_path, f"base_config: base.yaml\n{text}").is_known


def test_without_a_config_it_is_not_judged_and_no_go(tmp_path: Path) -> None:
    whole(tmp_path)
    answer = ckpttool.preflight(PreflightQuestion(config=None, tree=TreeQuestion(path=str(tmp_path / "output"))))
    assert [check.name for check in answer.checks] == ["checkpoint", "health", "launch", "start", "disk"]
    assert {check.summary for check in answer.checks} >= {"unknown: no --config"}
    assert answer.exit_code is ExitCode.INCOMPLETE
    (reason,) = start_check(answer).reasons
    assert reason.finding.code is Code.START_UNKNOWN
