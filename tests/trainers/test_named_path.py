"""Whether a path in a config leads into the tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool.trainers.common.named_path import inside, is_gone, started_in


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tree = tmp_path / "run" / "output" / "checkpoint"
    tree.mkdir(parents=True)
    return tree


@pytest.mark.parametrize(
    ("path", "below"),
    [
        ("./output/checkpoint", ""),
        ("output/checkpoint/", ""),
        ("../run/output/checkpoint/rank_0/a.ckpt", "rank_0/a.ckpt"),
        ("checkpoint/.hidden", ".hidden"),
        ("./output", None),
        ("./other/checkpoint/rank_0", None),
        ("/output/checkpoint", None),
        ("checkpoint-12", None),
    ],
)
def test_a_relative_path_is_of_the_tree_where_the_trees_own_ends_so(path: str, below: str | None, root: Path) -> None:
    assert inside(str(root), path) == below


def test_an_absolute_path_is_the_trees_own_or_below_it(root: Path) -> None:
    assert inside(str(root), str(root)) == ""
    assert inside(str(root), f"{root}/a/../b") == "b"
    assert inside(str(root), f"{root}-old") is None
    assert inside(str(root), f"{root}/..") is None


def test_a_path_below_where_we_stand_is_the_trees_own(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    assert inside("checkpoint", "checkpoint/step-3") == "step-3"
    assert inside("checkpoint", "./elsewhere") is None


def test_what_is_not_there_is_gone_and_what_may_be_elsewhere_is_not(root: Path) -> None:
    assert is_gone(str(root), "/nope/step-3")
    assert is_gone(str(root), "checkpoint/step-3")
    assert not is_gone(str(root), str(root.parent))
    assert not is_gone(str(root), "other/step-3")
    assert not is_gone(str(root), "s3://b/step-3")
    assert not is_gone("s3://b", "/nope/step-3")


def test_in_a_bucket_texts_are_compared() -> None:
    assert inside("s3://b/run", "s3://b/run/") == ""
    assert inside("s3://b/run", "s3://b/run/step-3") == "step-3"
    assert inside("s3://b/run", "s3://b/running") is None
    assert inside("s3://b/run", "./run") is None


def test_a_path_to_another_folder_is_not_its_own(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other/output/checkpoint").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "other")
    assert inside(str(root), "./output/checkpoint") is None
    monkeypatch.chdir(tmp_path / "run")
    assert inside(str(root), "./output/checkpoint") == ""


@pytest.mark.parametrize(
    ("path", "start"),
    [
        ("./output/checkpoint/rank_0", ""),
        ("../run/output/checkpoint", "/.."),
        ("./elsewhere", None),
        ("{root}/rank_0", None),
    ],
)
def test_a_path_that_leads_nowhere_from_here_leads_into_the_tree_from_one_folder(
    path: str, start: str | None, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {"": f"{tmp_path}/run", "/..": f"{tmp_path}/*"}
    named = path.format(root=root)
    assert started_in(str(root), named) == (None if start is None else expected[start])
    monkeypatch.chdir(tmp_path / "run")
    root.joinpath("rank_0").mkdir()
    assert started_in(str(root), named) is None


@pytest.mark.parametrize("here", ["", "rank_0"])
def test_asked_in_the_tree_a_path_leads_where_something_is(
    here: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.joinpath("rank_0").mkdir()
    monkeypatch.chdir(root / here)
    assert inside(str(root), "./output/checkpoint") == ""
    assert started_in(str(root), "./output/checkpoint") == f"{tmp_path}/run"
    root.joinpath(here, "output/checkpoint").mkdir(parents=True)
    assert inside(str(root), "./output/checkpoint") == f"{here}/output/checkpoint".lstrip("/")
    assert started_in(str(root), "./output/checkpoint") is None


def test_a_name_that_no_file_can_have_leads_nowhere(root: Path) -> None:
    assert inside(str(root), "checkpoint\0") is None
    assert started_in(str(root), "checkpoint\0") is None
