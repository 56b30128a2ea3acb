"""`ckpttool asd`: what the real parsers make of a configuration."""

from __future__ import annotations

import pytest

from tests.conftest import Golden
from tests.support.commands import ask

FORMATS = {"table": "txt", "json": "json"}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("good", "enable:true,cooldown:10", 0),
        ("space-before-key", "enable:true, with_checksum:true", 10),
        ("does-not-start", "enable: true", 10),
        ("impossible", "enable:true,cooldown:500,strikes_window:480", 10),
    ],
)
def test_a_check_is_the_golden_one(name: str, text: str, code: int, form: str, golden: Golden) -> None:
    said = ask("asd", "check", text, "--format", form)
    assert said.code == code
    golden(f"asd/{name}.{FORMATS[form]}", said.stdout)


@pytest.mark.parametrize("dialect", ["torch_npu", "torch-npu", "mindspore"])
def test_what_is_emitted_is_read_back_without_a_trap(dialect: str) -> None:
    options = ["--with-checksum", "--cooldown", "10", "--strikes-num", "4", "--upper-thresh1", "5000"]
    said = ask("asd", "emit", *options, "--dialect", dialect)
    assert (said.code, said.stderr) == (0, "")
    name, _, text = said.stdout.strip().partition("=")
    assert name == ("MS_NPU_ASD_CONFIG" if dialect == "mindspore" else "NPU_ASD_CONFIG")
    config = ask("asd", "check", text, "--dialect", dialect, "--format", "json").json["config"]
    assert (config["with_checksum"], config["cooldown"], config["strikes_num"]) == (True, 10, 4)
    assert (config["upper_thresh1"], config["strikes_window"]) == (5000, 480)


def test_settings_that_do_not_fit_together_are_said_beside_the_string() -> None:
    said = ask("asd", "emit", "--cooldown", "500")
    assert said.code == 10
    assert said.stdout == "NPU_ASD_CONFIG=enable:true,cooldown:500\n"
    assert "a strike-out is impossible" in said.stderr


def test_the_group_alone_shows_its_commands() -> None:
    said = ask("asd")
    assert said.code == 2
    assert "check" in said.stderr
    assert "emit" in said.stderr
