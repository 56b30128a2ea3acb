"""A folder that holds both layouts is not guessed about: neither names nor steps tell which training goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckpttool import api
from ckpttool.errors import UsageError
from ckpttool.trainers.mindformers.layouts.names import ITERATION_LAYOUT, RANK_LAYOUT
from tests.conftest import FIXTURES

LEGACY, NEWER = RANK_LAYOUT, ITERATION_LAYOUT


@pytest.fixture
def both(tmp_path: Path) -> Path:
    root = tmp_path / "output" / "checkpoint"
    shutil.copytree(FIXTURES / "sink2_ckpt" / "output" / "checkpoint", root)
    shutil.copytree(FIXTURES / "newfmt_4rank" / "output" / "checkpoint", root, dirs_exist_ok=True)
    return root


def layout_of(path: Path, *, layout: str | None = None) -> str:
    return api.scan(api.TreeQuestion(path=str(path), layout=layout)).inventory.layout


def test_two_layouts_in_one_folder_are_asked_about(both: Path) -> None:
    with pytest.raises(UsageError, match=r"mindformers-iteration and mindformers-rank side by side.*--layout"):
        layout_of(both)


@pytest.mark.parametrize("wanted", [LEGACY, NEWER])
def test_the_layout_that_is_named_is_taken(both: Path, wanted: str) -> None:
    assert layout_of(both, layout=wanted) is wanted


@pytest.mark.parametrize(
    ("place", "meant"),
    [
        ("rank_0", LEGACY),
        ("rank_1/llama2_7b_rank_1-15_2.ckpt", LEGACY),
        ("iteration_00000020", NEWER),
        ("iteration_00000020/llama2_7b-model-0000001-0000004.safetensors", NEWER),
    ],
)
def test_a_path_inside_says_which_is_meant(both: Path, place: str, meant: str) -> None:
    assert layout_of(both / place) is meant


@pytest.mark.parametrize(("text", "meant"), [("", LEGACY), ("use_legacy_format: False", NEWER)])
def test_a_config_says_which_is_meant(both: Path, tmp_path: Path, text: str, meant: str) -> None:
    config = tmp_path / "pretrain.yaml"
    config.write_text(f"use_parallel: True\n{text}\n", encoding="utf-8")
    tree = api.scan(api.TreeQuestion(path=str(both), config=api.read_config(str(config))))
    assert tree.inventory.layout is meant


def test_one_layout_alone_is_not_asked_about() -> None:
    assert layout_of(FIXTURES / "sink2_ckpt") is LEGACY
