"""`verify --stats FILE` replaces nothing but its own earlier numbers, and says so before anything is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpttool.core.errors import ExitCode
from tests.support.commands import ask
from tests.support.trees import TreeBuilder


@pytest.fixture
def tree(tmp_path: Path) -> TreeBuilder:
    return TreeBuilder(tmp_path).legacy(ranks=2).save(epoch=5, step=2)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where content is read."""

    def reads(*_: object) -> None:
        pytest.fail("the check ran")

    monkeypatch.setattr("ckpttool.core.verbs.verifying.verify", reads)


def refusal(tree: TreeBuilder, target: Path | str) -> str:
    said = ask("verify", str(tree.output), "--level", "numerics", "--stats", str(target))
    assert said.code == ExitCode.USAGE
    assert len(said.stderr.splitlines()) <= 2  # the other line says what is looked at
    return said.stderr


@pytest.mark.usefixtures("unread")
def test_no_shard_is_replaced_by_its_own_numbers(tree: TreeBuilder) -> None:
    shard = tree.output / tree.shard(0, 5, 2)
    before = shard.read_bytes()
    assert "never changed" in refusal(tree, shard)
    assert shard.read_bytes() == before


@pytest.mark.usefixtures("unread")
def test_nothing_new_is_written_into_the_tree_by_whichever_way_it_is_named(tree: TreeBuilder, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tree.checkpoint)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tree.checkpoint / "linked").symlink_to(elsewhere)
    for folder in (tree.checkpoint, tree.checkpoint / "rank_0" / "..", tmp_path / "link", tree.checkpoint / "linked"):
        refusal(tree, folder / "stats.jsonl")
    assert not list(tmp_path.rglob("stats.jsonl"))


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    "content", [b"train: 1\n", b'{"loss": 1}\n{"checkpoint": "1_2", "tensor": "a"}\n', b"[", b"\0", b"\n\n"]
)
def test_a_file_that_is_not_ours_stays(tree: TreeBuilder, tmp_path: Path, content: bytes) -> None:
    target = tmp_path / "precious"
    target.write_bytes(content)
    assert "contains no numbers of ckpttool" in refusal(tree, target)
    assert target.read_bytes() == content


@pytest.mark.usefixtures("unread")
def test_what_is_no_file_is_refused_before_the_check_runs(tree: TreeBuilder, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for target in (tmp_path / "fifo", tmp_path / "link", tmp_path, tmp_path / "no-folder" / "stats.jsonl"):
        refusal(tree, target)


def test_our_own_earlier_numbers_are_replaced_and_so_is_an_empty_file(tree: TreeBuilder, tmp_path: Path) -> None:
    target = tmp_path / "stats.jsonl"
    target.touch()
    for _ in range(2):
        said = ask("verify", str(tree.output), "--level", "numerics", "--stats", str(target))
        assert said.code == ExitCode.OK
        assert target.read_text().startswith('{"checkpoint": "5_2"')


def test_beside_a_lone_file_there_is_no_tree(tree: TreeBuilder, tmp_path: Path) -> None:
    lone = tmp_path / "lone" / "model.ckpt"
    lone.parent.mkdir()
    lone.write_bytes((tree.output / tree.shard(0, 5, 2)).read_bytes())
    before = lone.read_bytes()
    for name, code in (("stats.jsonl", ExitCode.OK), ("model.ckpt", ExitCode.USAGE)):
        said = ask("verify", str(lone), "--level", "numerics", "--stats", str(lone.parent / name))
        assert said.code == code, said.stderr
    assert lone.read_bytes() == before
