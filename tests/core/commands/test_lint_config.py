"""Configs alone, as a pre-commit hook asks about them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ckpttool.core.errors import ExitCode
from ckpttool.core.formats.safe_yaml import MAX_BYTES
from tests.conftest import FIXTURES, TESTS, Golden
from tests.core.commands.test_answers import lines_too_long
from tests.support.commands import ask
from tests.support.json_schemas import junit_suite, sarif_run

ROOT = TESTS.parent
GOOD = (FIXTURES / "configs" / "pretrain_sink2.yaml").read_text()
BAD = GOOD.replace("keep_checkpoint_max: 3", "keep_checkpoint_max: 1")


@pytest.fixture
def configs(here: Path) -> Path:
    (here / "good.yaml").write_text(GOOD)
    (here / "bad.yaml").write_text(BAD)
    (here / "torn.yaml").write_text("a: 1\na: 2\n")
    return here


@pytest.mark.sample(4)
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


ALLOWED = BAD.replace(
    "keep_checkpoint_max: 1", "keep_checkpoint_max: 1  # ckpttool: allow keeps-one-checkpoint the disk is small"
)


class TestFolders:
    @pytest.fixture
    def folder(self, here: Path) -> Path:
        for name, text in {
            "configs/good.yaml": GOOD,
            "configs/llama/70b/bad.yml": BAD,
            "configs/deploy.yaml": "apiVersion: v1\nkind: Pod\n",
            "configs/jobs.yaml": "- a\n- b\n",
            "configs/empty.yaml": "",
            "configs/readme.md": "runner_config: 1",
            "configs/.hidden/bad.yaml": BAD,
            "others/deploy.yaml": "apiVersion: v1\n",
        }.items():
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            (here / name).write_text(text)
        (here / "none").mkdir()
        return here

    def test_all_configs_below_a_folder_are_one_answer_and_those_of_others_are_counted(
        self, folder: Path, golden: Golden
    ) -> None:
        assert folder.exists()
        said = ask("lint-config", "configs")
        assert said.code == 10
        golden("lint-config/folder.txt", said.stdout)
        document = ask("lint-config", "configs", "configs/good.yaml", "--json").json
        names = [check["name"] for check in document["checks"]]
        assert names == ["configs/good.yaml", "configs/llama/70b/bad.yml"]
        assert document["foreign"] == ["configs/deploy.yaml", "configs/empty.yaml", "configs/jobs.yaml"]

    def test_a_folders_configs_for_inference_are_counted_and_one_that_is_named_is_an_error(self, here: Path) -> None:
        (here / "configs").mkdir()
        (here / "configs" / "train.yaml").write_text(GOOD)
        (here / "configs" / "predict.yaml").write_text(GOOD.replace("run_mode: 'train'", "run_mode: 'predict'"))
        said = ask("lint-config", "configs", "--json")
        assert (said.code, said.json["foreign"]) == (0, ["configs/predict.yaml"])
        assert "1 other YAML file" in ask("lint-config", "configs").stdout
        assert ask("lint-config", "configs/predict.yaml").code == 10

    @pytest.mark.parametrize(
        ("paths", "code"),
        [
            (["others"], 2),
            (["none"], 2),
            (["configs", "none"], 2),
            (["configs/deploy.yaml"], 2),
            (["configs/good.yaml"], 0),
        ],
    )
    def test_2_for_a_folder_without_a_config_and_for_anothers_yaml_that_was_named(
        self, paths: list[str], code: int, folder: Path
    ) -> None:
        assert folder.exists()
        said = ask("lint-config", *paths)
        assert said.code == code
        assert ("give a folder with training configs" in said.stdout) is (paths[-1] in {"others", "none"})

    def test_a_folder_that_cannot_be_listed_is_no_empty_one(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lists = os.scandir

        def refuse(path: str) -> object:
            if str(path).endswith("llama"):
                raise PermissionError(13, "Permission denied", str(path))
            return lists(path)

        monkeypatch.setattr(os, "scandir", refuse)
        assert folder.exists()
        said = ask("lint-config", "configs")
        assert said.code == 14
        assert "'configs/llama' cannot be listed: Permission denied" in " ".join(said.stdout.split())


class TestComments:
    def test_what_a_comment_allows_stops_nothing_and_is_listed_with_verbose(self, here: Path, golden: Golden) -> None:
        (here / "mine.yaml").write_text(ALLOWED)
        said = ask("lint-config", "mine.yaml")
        assert (said.code, said.stdout) == (
            0, "1 config: nothing prevents a launch\n\n  ok  mine.yaml  no problems found; 1 allowed by a comment\n"
        )  # fmt: skip
        golden("lint-config/allowed.txt", ask("lint-config", "mine.yaml", "-v").stdout)
        document = ask("lint-config", "mine.yaml", "--json").json
        assert [each["code"] for each in document["allowed"]] == ["keeps-one-checkpoint"]
        assert "keeps-one" not in ask("lint-config", "mine.yaml", "--format", "github").stdout

    def test_a_comment_of_another_code_or_line_silences_nothing_and_is_a_note(self, here: Path) -> None:
        (here / "mine.yaml").write_text(f"# ckpttool: allow keeps-one-checkpoint, unknown-keg\n{BAD}")
        said = ask("lint-config", "mine.yaml", "--json")
        assert said.code == 10
        check = json.loads(said.stdout)["checks"][0]
        found = [(each["code"], each["line"], each["remedy"]) for each in check["findings"]]
        assert found[:2] == [
            ("allow-unused", 1, "remove the code from the comment"),
            ("allow-unused", 1, "did you mean unknown-key?"),
        ]
        assert found[2][:2] == ("keeps-one-checkpoint", 36)


WRONG = (
    GOOD.replace("eps: 1.0e-8 ", "eps: 1e-8     ").replace("use_parallel: True", 'use_parallel: "True"')
    .replace("  batch_size: 2", "  batch_size: '2'  # two").replace("seed: 0", "seed: 0\r")
)  # fmt: skip


class TestFix:
    def test_one_value_each_is_written_and_every_other_byte_stays(self, here: Path, golden: Golden) -> None:
        (here / "mine.yaml").write_bytes(WRONG.encode())
        assert ask("lint-config", "mine.yaml").code == 10
        said = ask("lint-config", "mine.yaml", "--fix")
        assert said.code == 0
        golden("lint-config/fixed.txt", said.stdout)
        expected = (
            WRONG.replace("eps: 1e-8", "eps: 1.0e-8")
            .replace('"True"', "True")
            .replace("batch_size: '2'", "batch_size: 2")
        )
        assert (here / "mine.yaml").read_bytes() == expected.encode()
        assert sorted(path.name for path in here.iterdir()) == ["mine.yaml"]
        assert ask("lint-config", "mine.yaml", "--fix", "--json").json["fixed"] == []

    def test_a_diff_shows_it_and_writes_nothing(self, here: Path, golden: Golden) -> None:
        (here / "mine.yaml").write_bytes(WRONG.encode())
        for options in (["--diff"], ["--fix", "--diff"]):
            said = ask("lint-config", "mine.yaml", *options)
            assert said.code == 10
            golden("lint-config/diff.txt", said.stdout)
        assert (here / "mine.yaml").read_bytes() == WRONG.encode()

    def test_what_more_than_one_value_could_mend_stays_and_is_told(self, here: Path) -> None:
        text = BAD.replace("use_parallel: True", 'use_parallel: "on"').replace("  epochs: 2", "  epochs: '2.5'")
        (here / "mine.yaml").write_text(text)
        before = ask("lint-config", "mine.yaml")
        after = ask("lint-config", "mine.yaml", "--fix")
        assert (after.code, after.stdout) == (before.code, before.stdout) == (10, before.stdout)
        assert (here / "mine.yaml").read_text() == text

    def test_what_is_allowed_by_a_comment_or_an_option_stays(self, here: Path) -> None:
        text = WRONG.replace("eps: 1e-8 ", "eps: 1e-8 # ckpttool: allow config-wrong-type ")
        (here / "mine.yaml").write_bytes(text.encode())
        assert ask("lint-config", "mine.yaml", "--fix", "--allow", "config-wrong-type").code == 0
        assert (here / "mine.yaml").read_bytes() == text.encode()
        assert ask("lint-config", "mine.yaml", "--fix").code == 0
        assert b"eps: 1e-8 #" in (here / "mine.yaml").read_bytes()
        assert b"use_parallel: True" in (here / "mine.yaml").read_bytes()

    def test_a_link_is_not_replaced(self, here: Path) -> None:
        (here / "real.yaml").write_bytes(WRONG.encode())
        (here / "mine.yaml").symlink_to("real.yaml")
        assert ask("lint-config", "mine.yaml", "--fix").code == 15
        assert (here / "mine.yaml").is_symlink()
        assert (here / "real.yaml").read_bytes() == WRONG.encode()

    def test_a_deep_value_and_one_in_a_list_are_found(self, here: Path) -> None:
        text = GOOD + "\nfoo:\n  - {a: [{lr: 1e-3}]}\n  - bar:\n      baz: {weight_decay: 2E5}\n"
        (here / "mine.yaml").write_text("\ufeff" + text)
        assert ask("lint-config", "mine.yaml", "--fix").code == 0
        mended = text.replace("1e-3", "1.0e-3").replace("2E5", "2.0e+5")
        assert (here / "mine.yaml").read_text() == "\ufeff" + mended


def test_a_report_is_written_beside_the_result(configs: Path) -> None:
    refused = ask("lint-config", "bad.yaml", "--report", "json=-")
    assert (refused.code, refused.stdout) == (2, "")
    assert "use --format json for stdout" in refused.stderr
    said = ask("lint-config", "bad.yaml", "--report", "json=out.json")
    assert said.code == 10
    assert json.loads((configs / "out.json").read_text())["schema"] == "ckpttool/lint/1"


def test_the_pre_commit_hook_runs_a_command_that_there_is(configs: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert (hook["id"], hook["language"], hook["types"]) == ("ckpttool-lint-config", "python", ["yaml"])
    program, *arguments = hook["entry"].split()
    script = Path(sys.executable).parent / program
    done = subprocess.run([script, *arguments, "bad.yaml"], cwd=configs, capture_output=True, check=False)
    assert done.returncode == 10


FOREIGN = {"ci.yaml": "on: push\njobs: {}\n", "two.yaml": "a: 1\n---\nb: 2\n", "list.yaml": "- a\n", "empty.yaml": ""}
UNREAD = {
    "mkdocs.yaml": "emoji: !!python/name:emoji.twemoji\n",
    "chart.yaml": "{{- if .Values.on }}\na: {{ .Values.a }}\n{{- end }}\n",
    "stack.yaml": "Name: !Ref Other\n",
    "lock.yaml": f"packages: {'a' * MAX_BYTES}\n",
}


def test_yaml_of_others_is_passed_over_on_request_and_what_cannot_be_read_is_not(configs: Path) -> None:
    for name, text in FOREIGN.items():
        (configs / name).write_text(text)
        assert ask("lint-config", name).code == ExitCode.USAGE
    said = ask("lint-config", "--skip-foreign", *FOREIGN)
    assert said.code == ExitCode.OK
    assert "no training config: 4 other YAML files" in said.stdout
    assert ask("lint-config", "--skip-foreign", "ci.yaml", "good.yaml").code == ExitCode.OK
    assert ask("lint-config", "--skip-foreign", "ci.yaml", "bad.yaml").code == ExitCode.DAMAGE
    (configs / "torn.yaml").write_text("load_checkpoint: x\nrun_mode: [1\n")
    assert ask("lint-config", "--skip-foreign", "torn.yaml", "ci.yaml").code == ExitCode.USAGE
    assert ask("lint-config", "--skip-foreign", "absent.yaml").code == ExitCode.USAGE


def test_yaml_of_others_that_no_config_s_parser_reads_is_passed_over_too_where_no_trainer_s_words_stand(
    configs: Path,
) -> None:
    for name, text in UNREAD.items():
        (configs / name).write_text(text)
        assert ask("lint-config", name).code in {ExitCode.USAGE, ExitCode.UNSAFE}
    assert ask("lint-config", "--skip-foreign", *UNREAD).code == ExitCode.OK
    (configs / "mine.yaml").write_text("save_strategy: !!python/name:os.system\n")
    assert ask("lint-config", "--skip-foreign", "mine.yaml").code == ExitCode.USAGE
    (configs / "wide.yaml").write_bytes("save_strategy: steps\n".encode("utf-16"))
    assert ask("lint-config", "--skip-foreign", "wide.yaml").code == ExitCode.USAGE


def test_a_report_has_the_name_of_the_command_that_made_it(configs: Path) -> None:
    assert configs.exists()
    for command in ("lint-config", "lint"):
        assert f'<testsuite name="ckpttool {command}"' in ask(command, "bad.yaml", "--format", "junit").stdout
        assert ask(command, "bad.yaml", "--format", "markdown").stdout.startswith(f"## ckpttool {command}: ")
