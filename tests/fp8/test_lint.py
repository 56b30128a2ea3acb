"""Settings of FP8, as a pre-commit hook or a person asks about them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Golden
from tests.fp8.frameworks.test_ran import dumped
from tests.support.commands import ask

GOOD = "torchrun pretrain_gpt.py --fp8-format e4m3 --fp8-recipe blockwise\n"
BAD = """\
torchrun pretrain_gpt.py \\
    --fp8-format e4m3 --fp8-recipe delayed \\
    --fp8-amax-history-len 1 \\
    --fp8-margin -2
"""
DEBUG = """\
e4d:
  enabled: True
  layers:
    layer_name_regex_pattern: '.*layers.1'
  transformer_engine:
    DisableQuantizationGEMM: {enabled: True, gemms: [dgrad]}
"""


@pytest.fixture
def files(here: Path) -> Path:
    (here / "good.sh").write_text(GOOD)
    (here / "bad.sh").write_text(BAD)
    (here / "e4d.yaml").write_text(DEBUG)
    (here / "notes.md").write_text("nothing\n")
    return here


def test_the_answer_is_the_golden_one(files: Path, golden: Golden) -> None:
    assert files.exists()
    three = ("fp8", "lint", "good.sh", "bad.sh", "e4d.yaml", "--te-version", "2.14")
    golden("fp8-lint/three.txt", ask(*three).stdout)
    golden("fp8-lint/three.json", ask(*three, "--format", "json").stdout)
    golden("fp8-lint/three.md", ask(*three, "--format", "markdown").stdout)


def test_a_finding_that_was_seen_stops_nothing(files: Path) -> None:
    assert files.exists()
    allowed = [word for code in ("fp8-history-short", "fp8-margin") for word in ("--allow", code)]
    assert ask("fp8", "lint", "bad.sh", *allowed).code == 10
    said = ask("fp8", "lint", "bad.sh", *allowed, "--allow", "fp8-e4m3-gradients", "--json")
    assert said.code == 0
    assert json.loads(said.stdout)["go"] is True


@pytest.mark.parametrize(("option", "said"), [("--te-version", "write it as 2.13"), ("--layers", "cannot be read")])
def test_an_option_that_cannot_be_meant_is_refused(option: str, said: str, files: Path) -> None:
    assert files.exists()
    answer = ask("fp8", "lint", "good.sh", option, "none")
    assert (answer.code, answer.stdout) == (2, "")
    assert said in answer.stderr


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain.yaml", "model: {hidden_size: 64}\nlr: 0.001\n"),
        ("off.yaml", "fp8: null\nfp8_recipe: delayed\n"),
        ("plain.sh", "torchrun pretrain_gpt.py --bf16 --num-layers 4\n"),
        ("plain.log", dumped(fp8=None, fp8_recipe="delayed", bf16=True)),
    ],
)
def test_a_sound_file_without_fp8_is_said_to_switch_none_on(name: str, text: str, here: Path) -> None:
    (here / name).write_text(text)
    said = ask("fp8", "lint", name)
    assert said.code == 0
    assert "FP8 is not enabled in it" in said.stdout
    (here / "good.sh").write_text(GOOD)
    beside = ask("fp8", "lint", name, "good.sh")
    assert beside.code == 0
    assert beside.stdout.count("FP8 is not enabled") == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("accelerate.yaml", "mixed_precision: fp8\n"),
        ("words.sh", "train.py --bf16 ${FP8_ARGS[@]}\n"),
        ("train.log", "step 1 loss 2.0\nstep 2 loss 1.9\n"),
    ],
)
def test_a_file_that_may_switch_fp8_on_in_another_way_is_asked_for_another(name: str, text: str, here: Path) -> None:
    (here / name).write_text(text)
    said = ask("fp8", "lint", name)
    assert said.code == 2
    assert "not enabled" not in said.stdout
    assert "fix: give a file that sets FP8" in said.stdout
