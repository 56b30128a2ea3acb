"""`ckpttool lint` recognizes what it is given by its content, and answers as the command for that alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpttool.core.domain.metrics import LogProblem
from ckpttool.core.logs.base import Block
from ckpttool.core.logs.reading import blocks_of
from tests.conftest import FIXTURES
from tests.support.commands import ask

CONFIG = (FIXTURES / "configs" / "pretrain_sink2.yaml").read_text()
BAD = CONFIG.replace("keep_checkpoint_max: 3", "keep_checkpoint_max: 1")
FP8_LOG = FIXTURES / "fp8" / "megatron_0.14_hybrid.log"


@pytest.fixture
def files(here: Path) -> Path:
    (here / "good.yaml").write_text(CONFIG)
    (here / "bad.yaml").write_text(BAD)
    (here / "fp8.log").write_bytes(FP8_LOG.read_bytes())
    return here


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("names", [["good.yaml"], ["bad.yaml"], ["good.yaml", "bad.yaml"], ["none.yaml"]])
def test_of_training_configs_it_says_what_lint_config_says(names: list[str]) -> None:
    new, old = ask("lint", *names, "--json"), ask("lint-config", *names, "--json")
    assert (new.code, new.json) == (old.code, old.json)


@pytest.mark.usefixtures("files")
def test_of_fp8_settings_it_says_what_fp8_lint_says() -> None:
    new, old = ask("lint", "fp8.log", "--json"), ask("fp8", "lint", "fp8.log", "--json")
    assert (new.code, new.json) == (old.code, old.json)
    assert new.json["checks"] != []
    assert [check["name"] for check in ask("lint", "bad.yaml", "fp8.log", "--json").json["checks"]] == [
        "bad.yaml",
        "fp8.log",
    ]


@pytest.mark.usefixtures("files")
def test_a_folder_is_searched_for_fp8_settings_too() -> None:
    folder = ask("lint", ".", "--json")
    configs = ask("lint-config", ".", "--json").json["checks"]
    (log,) = ask("fp8", "lint", "./fp8.log", "--json").json["checks"]
    assert folder.json["checks"] == [*configs, log]
    assert log["findings"] != []
    assert folder.code == 10


def test_a_folder_with_fp8_settings_alone_needs_no_training_config(here: Path) -> None:
    (here / "notes.md").write_text("--fp8-format e4m3\n")
    (here / "arguments.py").write_text("parser.add_argument('--fp8-format', default='e4m3')\n")
    (here / "plain.sh").write_text("torchrun pretrain_gpt.py --bf16\n")
    (here / "weights.bin").write_bytes(bytes(64) + b"fp8")
    assert ask("lint", ".").code == 2
    (here / "train.sh").write_text("torchrun pretrain_gpt.py --fp8-format e4m3 --fp8-recipe delayed --fp8-margin -2\n")
    done = ask("lint", ".", "--json")
    assert [check["name"] for check in done.json["checks"]] == ["./train.sh"]
    assert done.code == ask("lint", "train.sh").code == 10


def test_files_of_a_folder_are_no_single_run(here: Path) -> None:
    (here / "a.sh").write_text("torchrun pretrain_gpt.py --fp8-format hybrid --fp8-recipe delayed\n")
    (here / "b.sh").write_text("torchrun pretrain_gpt.py --fp8-format e4m3 --fp8-recipe blockwise\n")
    alone = [ask("lint", f"./{name}.sh", "--json").json["checks"][0] for name in "ab"]
    assert ask("lint", ".", "--json").json["checks"] == alone


def test_a_log_is_read_once(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def counting(path: str) -> Iterator[Block | LogProblem]:
        opened.append(path)
        return blocks_of(path)

    monkeypatch.setattr("ckpttool.fp8.frameworks.settings.blocks_of", counting)
    ask("lint", str(files / "fp8.log"))
    assert opened == [str(files / "fp8.log")]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("enable:true,cooldown:5", 0),
        ("enable:true, with_checksum:true", 10),
        ("NPU_ASD_CONFIG=enable:true", 0),
        ("with_checksum:true", 10),
    ],
)
def test_of_a_detection_string_it_says_what_asd_check_says(text: str, code: int, here: Path) -> None:
    new, old = ask("lint", text, "--json"), ask("asd", "check", text, "--json")
    assert (new.code, new.json) == (old.code, old.json)
    assert new.json["schema"] == "ckpttool/asd/1"
    assert new.code == code
    (here / text).write_text(CONFIG)  # a file of that name is a file
    assert ask("lint", text, "--json").json["schema"] == "ckpttool/lint/1"


@pytest.mark.usefixtures("files")
def test_a_detection_string_has_no_report_and_an_address_is_no_string() -> None:
    refused = ask("lint", "enable:true", "--format", "sarif")
    assert (refused.code, refused.stdout) == (2, "")
    assert "value of NPU_ASD_CONFIG" in refused.stderr
    assert ask("lint", "s3://bucket/config.yaml").code == 2
    assert "missing.yaml" in ask("lint", "missing.yaml").stderr


def test_a_training_config_with_fp8_settings_is_checked_as_both(here: Path) -> None:
    (here / "both.yaml").write_text(
        BAD + "\nfp8_format: e4m3\nfp8_recipe: delayed\nfp8_amax_history_len: 1\nfp8_margin: -2\n"
    )
    fp8 = ask("fp8", "lint", "both.yaml", "--json").json["checks"]
    config = ask("lint-config", "both.yaml", "--json").json["checks"]
    checks = ask("lint", "both.yaml", "--json").json["checks"]
    assert checks[: len(config)] == config
    assert [check["name"] for check in checks[len(config) :]] == ["both.yaml (FP8)"]
    assert checks[-1]["findings"] == fp8[-1]["findings"] != []


def test_a_dry_run_fixes_nothing(files: Path) -> None:
    text = CONFIG + "\noptimizer:\n  eps: 1e-8\n"
    (files / "mine.yaml").write_text(text)
    assert ask("lint", "mine.yaml", "--fix", "--dry-run").stdout == ask("lint", "mine.yaml", "--diff").stdout
    assert (files / "mine.yaml").read_text() == text


def test_an_earlier_report_of_either_name_may_be_replaced(files: Path) -> None:
    for form in ("markdown", "junit", "json", "sarif"):
        for command in ("lint-config", "lint", "lint-config"):
            assert ask(command, "bad.yaml", "--report", f"{form}={files}/out.{form}").code == 10, (form, command)
