"""A function of the library that is asked by keywords answers as the command of its name, and prints nothing."""

from __future__ import annotations

import inspect
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ckpttool
from ckpttool.cli.asking import VERBS, command_of, keyword, options_of
from ckpttool.core.domain.answers import Answered
from ckpttool.types import DataQuestion, Level, PruneOrder, ResumeQuestion, RetentionPolicy, TreeQuestion
from tests.support.commands import ask, environment
from tests.support.training_logs import write_log

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
LAYOUTS = {
    "mindformers": FIXTURES / "sink2_ckpt" / "output",
    "huggingface": FIXTURES / "layouts" / "hf_single",
    "dcp": FIXTURES / "layouts" / "dcp_fsdp2_4ranks",
}

Asked = Callable[[], Answered]

SAME: dict[str, Asked] = {
    "scan {tree}": lambda: ckpttool.scan("{tree}"),
    "verify {tree} --level checksum --checkpoint all": lambda: ckpttool.verify(
        "{tree}", level="checksum", checkpoint="all"
    ),
    "resolve {tree} --before 1000 --max-lost-time 2h": lambda: ckpttool.resolve(
        "{tree}", before=1000, max_lost_time="2h"
    ),
    "prune {tree} --keep-last 1 --grace 0": lambda: ckpttool.prune("{tree}", keep_last=1, grace=0),
    "preflight {tree}": lambda: ckpttool.preflight("{tree}"),
    "inspect {tree}": lambda: ckpttool.inspect("{tree}"),
}


@pytest.fixture(params=LAYOUTS)
def trees(request: pytest.FixtureRequest, here: Path) -> Path:
    """A copy of a real trainer's tree, called `{tree}`: as it stands in the questions above."""
    shutil.copytree(LAYOUTS[request.param], here / "{tree}", copy_function=shutil.copy)
    shutil.rmtree(here / "{tree}" / "checkpoint" / ".ckpttool", ignore_errors=True)
    return here


@pytest.mark.sample(8)
@pytest.mark.parametrize("command", SAME)
@pytest.mark.usefixtures("trees")
def test_keywords_answer_as_options_do(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    answer = SAME[command]()
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")
    told = ask(*shlex.split(command), "--json")
    assert (answer.exit_code, bool(answer)) == (told.code, told.code == 0)
    assert timeless(answer.to_dict()) == timeless(told.json)
    assert "\n" not in repr(answer)
    assert f"exit_code={told.code}" in repr(answer)


def timeless(document: Any) -> Any:  # noqa: ANN401  any JSON
    """Leave out what differs between two looks."""
    if isinstance(document, dict):
        if document.get("name") == "disk":
            return None
        return {key: timeless(value) for key, value in document.items() if key not in {"seconds", "disk"}}
    return [timeless(value) for value in document] if isinstance(document, list) else document


@pytest.fixture
def run_folder(here: Path) -> Path:
    """A run of MindFormers with its config and a log."""
    shutil.copytree(LAYOUTS["mindformers"], here / "output", copy_function=shutil.copy)
    shutil.copy(FIXTURES / "configs" / "pretrain_sink2.yaml", here / "pretrain.yaml")
    write_log(here / "train.log", range(1, 401), embeddings={60: 100.0})
    return here


@pytest.mark.usefixtures("run_folder")
class TestOptions:
    def test_a_plan_says_in_short_which_checkpoint_and_how_many_batches(self) -> None:
        plan = ckpttool.resolve(Path("output"), level="checksum", gbs=12)
        assert repr(plan) == "<Answer name='_1-30_2' step=60 data_skip_steps=40 exit_code=0>"
        assert (plan.name, plan.step, plan.data_skip_steps, plan.exit_code) == ("_1-30_2", 60, 40, 0)
        assert not ckpttool.resolve("output", checkpoint="20_2", max_lost_steps=0)

    def test_a_config_says_what_the_command_line_says(self) -> None:
        told = ask("resolve", "output", "--config", "pretrain.yaml", "--gbs", "12", "--json").json
        assert ckpttool.resolve("output", config="pretrain.yaml", gbs=12).to_dict() == told

    def test_a_launch_writes_its_config_and_names_the_checkpoint(self, capfd: pytest.CaptureFixture[str]) -> None:
        launch = ckpttool.launch("output", config="pretrain.yaml", output=Path("new.yaml"))
        assert (type(launch).__name__, launch.name, launch.exit_code) == ("Launch", "_1-30_2", 0)
        assert "1-30_2" in Path("new.yaml").read_text(encoding="utf-8")
        refused = ckpttool.launch("output", config="pretrain.yaml", output="other.yaml", gbs=12)
        assert not refused
        assert not os.path.lexists("other.yaml")
        said = capfd.readouterr()
        assert (said.out, said.err) == ("", ""), "the command says on stderr that nothing was written"

    def test_a_config_may_be_the_second_argument_of_preflight(self) -> None:
        assert ckpttool.preflight("output", "pretrain.yaml").config == "pretrain.yaml"

    def test_an_option_with_an_opposite_takes_true_and_false(self) -> None:
        assert ckpttool.resolve("output", require_health=True).exit_code == 11
        assert ckpttool.resolve("output", require_health=False)
        assert ckpttool.resolve("output", allow_unknown_health=True)

    def test_a_threshold_of_health_is_a_number(self) -> None:
        judged = ckpttool.health("output", threshold=270, log=["train.log"])
        assert judged.exit_code == ask("health", "output", "--threshold", "270", "--log", "train.log").code

    def test_an_option_that_is_a_word_of_python_has_a_line_behind_it(self) -> None:
        assert ckpttool.heal("output", from_=1).exit_code == ask("heal", "output", "--from", "1").code

    def test_an_option_of_two_names_is_asked_by_either(self) -> None:
        by_names = (
            ckpttool.scale_skip(old_gbs=512, steps=1000, new_gbs=768),
            ckpttool.scale_skip(old_gbs=512, step=1000, gbs=768),
        )
        assert [answer.data_skip_steps for answer in by_names] == [666, 666]

    def test_what_is_written_is_written_only_with_apply(self) -> None:
        before = sorted(Path("output").rglob("*"))
        assert ckpttool.prune("output", keep_last=1, grace=0, dry_run=True)
        assert sorted(path for path in Path("output").rglob("*") if ".ckpttool" not in path.parts) == [
            path for path in before if ".ckpttool" not in path.parts
        ]
        assert ckpttool.prune("output", keep_last=1, grace=0, apply=True)
        assert len(ckpttool.scan("output").inventory.checkpoints) == 1

    def test_variables_and_files_say_nothing_to_a_program(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CKPTTOOL_LEVEL", "numerics")
        Path("ckpttool.toml").write_text('level = "checksum"\n', encoding="utf-8")
        assert ckpttool.verify("output").level is Level.STRUCTURE
        assert ask("verify", "output", "--json").json["level"] == "numerics"

    def test_questions_are_answered_as_before(self) -> None:
        tree, choice = TreeQuestion(path="output"), ResumeQuestion(evidence=Level.CHECKSUM)
        assert ckpttool.resolve(tree, choice, DataQuestion(new_global_batch=12)).data_skip_steps == 40
        assert ckpttool.resolve("output", choice).name == "_1-30_2"
        running = ckpttool.verify(ckpttool.scan("output"))
        assert repr(running) == "<Running found=0>"
        assert running
        assert running.answer().exit_code == running.exit_code == 0
        assert ckpttool.prune(tree, RetentionPolicy(keep_last=1), PruneOrder(grace=0)).exit_code == 0


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "an unknown keyword": (
        lambda: ckpttool.resolve("output", gsb=12),  # type: ignore[arg-type]
        "unknown option 'gsb': did you mean gbs?",
    ),
    "a keyword like none": (
        lambda: ckpttool.scale_skip(qqqqqq=1),  # type: ignore[arg-type]
        "unknown option 'qqqqqq': scale_skip takes path, new_gbs, gbs, old_gbs, steps, step, segment, sink_size",
    ),
    "an option for people": (
        lambda: ckpttool.scan("output", quiet=True),  # type: ignore[arg-type]
        "unknown option 'quiet': scan takes path, layout, world_size, sink_size, health_file, root, skew",
    ),
    "a word that is no choice": (
        lambda: ckpttool.verify("output", level="deep"),  # type: ignore[call-overload]
        "verify: level: 'deep' is not one of 'structure', 'checksum', 'numerics'",
    ),
    "no number": (
        lambda: ckpttool.resolve("output", gbs="x"),  # type: ignore[arg-type]
        "resolve: gbs takes a whole number from 1, not 'x'",
    ),
    "a number out of range": (
        lambda: ckpttool.resolve("output", gbs=0),
        "resolve: gbs takes a whole number from 1, not 0",
    ),
    "a truth for a number": (lambda: ckpttool.resolve("output", gbs=True), "resolve: gbs takes a number, not True"),
    "a number for a time that needs a unit": (
        lambda: ckpttool.resolve("output", max_lost_time=30),  # type: ignore[arg-type]
        "resolve: max_lost_time takes text, not 30",
    ),
    "an option by position": (
        lambda: ckpttool.resolve("output", "checksum"),  # type: ignore[arg-type]
        "resolve: choice takes an object of ckpttool.types, not 'checksum'",
    ),
    "a zero byte": (lambda: ckpttool.scan("out\0put"), "scan: path contains a zero byte: 'out\\x00put'"),
    "a number for a path": (lambda: ckpttool.scan(3), "scan: path takes text, not 3"),  # type: ignore[arg-type]
    "a text for a truth": (
        lambda: ckpttool.resolve("output", strict="yes"),  # type: ignore[arg-type]
        "resolve: strict is True or False, not 'yes'",
    ),
    "two values for one": (
        lambda: ckpttool.resolve("output", config=["a", "b"]),  # type: ignore[arg-type]
        "resolve: config takes one value, not ['a', 'b']",
    ),
    "no time": (
        lambda: ckpttool.resolve("output", max_lost_time="soon"),
        "resolve: max_lost_time: 'soon' is not a time such as 90s, 5m, 12h or 7d",
    ),
    "an option that is missing": (lambda: ckpttool.prune("output"), "prune: keep_last N is missing"),
    "one option by both names": (
        lambda: ckpttool.scale_skip(new_gbs=1, gbs=1),
        "--new-gbs and --gbs are the same option: give one of them",
    ),
    "an option beside a question": (
        lambda: ckpttool.resolve(TreeQuestion(path="output"), gbs=12),
        "resolve takes options or a question, not both: gbs and TreeQuestion",
    ),
    "an option beside a second question": (
        lambda: ckpttool.resolve("output", ResumeQuestion(), gbs=12),
        "resolve takes options or a question, not both: gbs and ResumeQuestion",
    ),
    "no config": (
        lambda: ckpttool.preflight("output", config="nosuch.yaml"),
        "not found: 'nosuch.yaml'; give the training config",
    ),
}


@pytest.mark.usefixtures("run_folder")
@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_meant_is_refused_in_one_line(what: str, capfd: pytest.CaptureFixture[str]) -> None:
    wrong, says = REFUSED[what]
    with pytest.raises(ckpttool.UsageError) as refused:
        wrong()
    assert str(refused.value) == says
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")


def test_a_folder_that_is_missing_is_no_tree(here: Path) -> None:
    with pytest.raises(ckpttool.UnknownLayoutError, match="nosuch does not exist") as refused:
        ckpttool.verify(here / "nosuch")
    assert refused.value.exit_code == 12


@pytest.mark.parametrize("verb", VERBS)
def test_a_function_has_the_options_of_its_command(verb: str) -> None:
    names = {*inspect.signature(getattr(ckpttool.library, verb)).parameters}
    assert names >= {*options_of(verb)}
    typed = {keyword(opt) for param in command_of(verb).params for opt in param.opts if opt.startswith("--")}
    typed = {name for name in typed if name.isidentifier()}  # `--16bit` has a second name
    for_people = {"all", "json", "verbose", "quiet", "debug", "no_config", "format", "print", "limit", "ranks_per_node"}
    assert typed - names <= for_people | {"dry_run", "diff"}


def test_a_fresh_program_of_texts_alone_imports_nothing_heavy(run_folder: Path) -> None:
    code = (
        "import sys, ckpttool; assert sum(name.startswith('ckpttool') for name in sys.modules) == 1; "
        "assert ckpttool.scan('output') and ckpttool.resolve('output', gbs=12).data_skip_steps == 40; "
        "assert not {'torch', 'numpy', 'rich', 'yaml'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], cwd=run_folder, check=True, env=environment())


def test_a_question_is_answered_without_the_command_line(run_folder: Path) -> None:
    code = (
        "import sys, ckpttool; from ckpttool.types import TreeQuestion; "
        "assert ckpttool.resolve(TreeQuestion(path='output')).step == 60; assert 'typer' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=run_folder, check=True, env=environment())


def test_a_wrong_value_is_reported_by_its_keyword_and_a_command_by_its_function() -> None:
    with pytest.raises(ckpttool.UsageError, match=r"^resolve: level: 'full' is not one of"):
        ckpttool.resolve("output", level="full")  # type: ignore[arg-type]
    with pytest.raises(ckpttool.UsageError, match=r"^prune: keep_last N is missing"):
        ckpttool.prune("output")
    with pytest.raises(AttributeError, match=r"no attribute 'lint': it is lint_config"):
        ckpttool.lint  # type: ignore[attr-defined]  # noqa: B018
