"""Configs alone, as a pre-commit hook asks about them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.running import ask
from tests.cli.test_answers import Golden, lines_too_long
from tests.conftest import FIXTURES, TESTS
from tests.published import junit_suite, sarif_run

ROOT = TESTS.parent
GOOD = (FIXTURES / "configs" / "pretrain_sink2.yaml").read_text()
BAD = GOOD.replace("keep_checkpoint_max: 3", "keep_checkpoint_max: 1")


@pytest.fixture
def configs(here: Path) -> Path:
    (here / "good.yaml").write_text(GOOD)
    (here / "bad.yaml").write_text(BAD)
    (here / "torn.yaml").write_text("a: 1\na: 2\n")
    return here


@pytest.mark.parametrize(
    ("files", "code"),
    [(["good.yaml"], 0), (["good.yaml", "bad.yaml"], 10), (["bad.yaml", "torn.yaml"], 2), (["none.yaml"], 2)],
)
@pytest.mark.parametrize("form", ["table", "json", "github", "junit", "sarif", "gitlab", "markdown"])
def test_the_worst_file_decides(files: list[str], code: int, form: str, configs: Path) -> None:
    said = ask("lint-config", *files, "--format", form)
    assert said.code == code
    assert configs.exists()
    if form == "sarif":
        sarif_run(said.stdout)
    if form == "junit":
        junit_suite(said.stdout)
    if form == "table":
        assert lines_too_long(said) == []


def test_the_answer_is_the_golden_one(configs: Path, golden: Golden) -> None:
    assert configs.exists()
    golden("lint-config/three.txt", ask("lint-config", "good.yaml", "bad.yaml", "torn.yaml").stdout)
    golden(
        "lint-config/three.json", ask("lint-config", "good.yaml", "bad.yaml", "torn.yaml", "--format", "json").stdout
    )


def test_a_file_that_cannot_be_used_is_told_with_its_line(configs: Path) -> None:
    said = ask("lint-config", "torn.yaml", "--format", "github")
    assert said.stdout.startswith("::error file=torn.yaml,line=2,title=ckpttool config-unusable::")
    assert configs.exists()


def test_what_is_allowed_stops_nothing(configs: Path) -> None:
    assert configs.exists()
    assert ask("lint-config", "bad.yaml", "--allow", "keeps-one-checkpoint").code == 0


def test_2_for_no_file(here: Path) -> None:
    assert here.exists()
    said = ask("lint-config")
    assert (said.code, said.stdout) == (2, "")


def test_a_report_is_written_beside_the_result(configs: Path) -> None:
    said = ask("lint-config", "bad.yaml", "--report", "json=out.json")
    assert said.code == 10
    assert json.loads((configs / "out.json").read_text())["schema"] == "ckpttool/lint/1"


def test_the_pre_commit_hook_runs_a_command_that_there_is(configs: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert (hook["id"], hook["language"], hook["types"]) == ("ckpttool-lint-config", "python", ["yaml"])
    program, *arguments = hook["entry"].split()
    script = Path(sys.executable).parent / program
    for name, code in (("good.yaml", 0), ("bad.yaml", 10)):
        done = subprocess.run([script, *arguments, name], cwd=configs, capture_output=True, check=False)
        assert done.returncode == code
