"""Starts of the real MindFormers that ended, or trained from something else, behind a GO: each with its neighbour."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ckpttool import api
from ckpttool.cli import exits
from ckpttool.domain.finding import Code, Finding
from ckpttool.errors import ExitCode
from tests.conftest import FIXTURES

CONFIG = FIXTURES / "configs" / "pretrain_sink2.yaml"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return Path(shutil.copy(CONFIG, tmp_path / "base.yaml"))


def edited(config: Path, *changes: tuple[str, str]) -> Path:
    text = config.read_text()
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after, 1)
    config.write_text(text)
    return config


def preflighted(tree: Path, config: Path, **tree_options: object) -> tuple[ExitCode, list[Finding]]:
    """Return the exit code, and what stands against the launch."""
    question = api.TreeQuestion(path=str(tree), **tree_options)  # type: ignore[arg-type]  # as the test gives them
    answer = api.preflight(
        api.PreflightQuestion(config=str(config), tree=question, choice=api.ResumeQuestion(), data=api.DataQuestion())
    )
    found = [reason.finding for check in answer.checks for reason in check.reasons if reason.blocks]
    return exits.of_preflight(answer.checks), found


def stopped_by(tree: Path, config: Path, **tree_options: object) -> Code:
    code, (finding,) = preflighted(tree, config, **tree_options)
    assert code is ExitCode.DAMAGE
    assert finding.remedy
    return finding.code


@pytest.mark.parametrize("fmt", ["ckpt", "safetensors"])
def test_a_folder_whose_name_is_a_pattern_stops_a_launch_from_safetensors_alone(
    tmp_path: Path, config: Path, fmt: str
) -> None:
    tree = tmp_path / "run[1]" / "output"
    shutil.copytree(FIXTURES / f"sink2_{fmt}" / "output", tree)
    link = tmp_path / "link"
    link.symlink_to(tree)
    if fmt == "ckpt":
        assert preflighted(tree, config) == (ExitCode.OK, [])
    else:
        assert stopped_by(tree, config) is Code.PATH_IS_PATTERN
    assert preflighted(link, config) == (ExitCode.OK, [])


@pytest.mark.parametrize("fmt", ["ckpt", "safetensors"])
def test_one_device_cannot_load_safetensors_from_rank_folders(tmp_path: Path, config: Path, fmt: str) -> None:
    tree = tmp_path / "output" / "checkpoint"
    shutil.copytree(FIXTURES / f"sink2_{fmt}" / "output" / "checkpoint" / "rank_0", tree / "rank_0")
    edited(config, ("use_parallel: True", "use_parallel: False"), ("batch_size: 2", "batch_size: 8"))
    if fmt == "ckpt":
        assert preflighted(tree, config) == (ExitCode.OK, [])
    else:
        assert stopped_by(tree, config) is Code.RANK_FOLDER_ON_ONE_DEVICE
        edited(config, ("use_parallel: False\n", ""))  # which is the default
        assert stopped_by(tree, config) is Code.RANK_FOLDER_ON_ONE_DEVICE


def test_resolve_tells_it_too_where_it_needs_no_config(tmp_path: Path) -> None:
    tree = tmp_path / "run[1]" / "output"
    shutil.copytree(FIXTURES / "sink2_safetensors" / "output", tree)
    question = api.TreeQuestion(path=str(tree))
    decision = api.resolve(question, api.ResumeQuestion(), api.DataQuestion()).decision
    assert [finding.code for finding in decision.findings] == [Code.PATH_IS_PATTERN]
    whole = replace(question, path=str(FIXTURES / "sink2_safetensors" / "output"))
    assert api.resolve(whole, api.ResumeQuestion(), api.DataQuestion()).decision.findings == ()
