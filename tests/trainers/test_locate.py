"""One tree, many ways to point at it; and a plain word where there is none."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ckpttool.core.errors import ExitCode, IncompleteError, UnknownLayoutError
from ckpttool.trainers.common import LOOSE_FILE_LAYOUT
from ckpttool.trainers.locate import locate, signs
from ckpttool.trainers.mindformers.layouts.names import RANK_LAYOUT
from tests.support.answers import cli, document
from tests.support.trainer_trees import healthy
from tests.support.trees import TreeBuilder

SHARD = "llama2_7b_rank_2_1-10_2.ckpt"


@pytest.fixture
def tree(tmp_path: Path) -> TreeBuilder:
    """A second run's save on four ranks."""
    return TreeBuilder(tmp_path).legacy().save(epoch=10, step=2, run=1)


@pytest.fixture
def newer(tmp_path: Path) -> TreeBuilder:
    """Two iterations."""
    return TreeBuilder(tmp_path / "newer").iteration(step=10).iteration(step=20)


class TestPlaces:
    @pytest.mark.parametrize(
        ("path", "root", "focus"),
        [
            ("output/checkpoint", "output/checkpoint", None),
            ("output/checkpoint/", "output/checkpoint", None),
            ("output//checkpoint/.", "output/checkpoint", None),
            ("./output/checkpoint/rank_0/..", "output/checkpoint", None),
            ("output", "output/checkpoint", None),
            (".", "output/checkpoint", None),
            ("output/checkpoint/rank_2", "output/checkpoint", None),
            ("output/checkpoint/rank_2/", "output/checkpoint", None),
            (f"output/checkpoint/rank_2/{SHARD}", "output/checkpoint", SHARD),
        ],
    )
    def test_the_tree_is_found_from_any_of_its_parts(
        self, tree: TreeBuilder, monkeypatch: pytest.MonkeyPatch, path: str, root: str, focus: str | None
    ) -> None:
        monkeypatch.chdir(tree.base)
        found = locate(path)
        assert (found.storage.root, found.focus) == (root, focus)
        assert found.layout.name == RANK_LAYOUT
        assert (found.resolved_from is None) == (os.path.normpath(path) == root)
        absolute = locate(str(tree.base / path))
        assert (absolute.storage.root, absolute.focus) == (str(tree.base / root), focus)

    @pytest.mark.parametrize(
        ("inside", "path", "focus"),
        [
            ("", ".", None),
            ("", "rank_2", None),
            ("", f"rank_2/{SHARD}", SHARD),
            ("rank_2", "..", None),
            ("rank_2", "../rank_1", None),
            ("rank_2", ".", None),  # the path does not say the rank's folder, the disk does
            ("rank_2", SHARD, SHARD),
            ("rank_2", f"./{SHARD}", SHARD),
            ("rank_2/deep", "..", None),
            ("rank_2/deep", f"../{SHARD}", SHARD),
            ("rank_2/deep/er", "../..", None),
        ],
    )
    def test_from_inside_the_tree_too(
        self, tree: TreeBuilder, monkeypatch: pytest.MonkeyPatch, inside: str, path: str, focus: str | None
    ) -> None:
        tree.folder("checkpoint/rank_2/deep/er")
        monkeypatch.chdir(tree.checkpoint / inside)
        found = locate(path)
        assert (Path(found.storage.root).resolve(), found.focus) == (tree.checkpoint.resolve(), focus)

    def test_an_iteration_or_one_of_its_shards_is_that_checkpoint_on_all_ranks(self, newer: TreeBuilder) -> None:
        folder = newer.checkpoint / "iteration_00000010"
        for path in (folder, *folder.glob("*.safetensors"), folder / "common.json"):
            found = locate(str(path))
            assert (found.storage.root, found.focus) == (str(newer.checkpoint), "iteration_00000010")
        assert locate(str(newer.output)).focus is None

    def test_the_tracker_is_the_tree_and_not_one_checkpoint(self, newer: TreeBuilder) -> None:
        found = locate(str(newer.checkpoint / "latest_checkpointed_iteration.txt"))
        assert (found.storage.root, found.focus) == (str(newer.checkpoint), None)

    @pytest.mark.parametrize("name", ["best.ckpt", "best.safetensors", "best.pt"])
    def test_a_file_beside_the_ranks_is_itself_and_not_the_newest_of_them(self, tree: TreeBuilder, name: str) -> None:
        tree.file(f"checkpoint/{name}", (tree.checkpoint / "rank_2" / SHARD).read_bytes())
        found = locate(str(tree.checkpoint / name))
        assert (found.layout.name, found.focus) == (LOOSE_FILE_LAYOUT, name)
        said = cli("resolve", str(tree.checkpoint / name))
        assert said.exit_code == ExitCode.UNKNOWN_LAYOUT
        assert f"is not in a {signs()[0]} folder" in said.stderr


class TestTrackerOfWhom:
    """MindFormers, Megatron-LM and verl all write `latest_checkpointed_iteration.txt`."""

    @pytest.mark.parametrize(
        ("beside", "whose"),
        [
            ("iter_0000006", "iter_0000006 beside .* looks like a tree of Megatron-LM"),
            ("global_step_6", "global_step_6 beside .* looks like a tree of verl"),
            ("iter_6_bak", "a tracker of Megatron-LM, verl or MindFormers, but there is no checkpoint$"),
            ("iteration_bak", "but there is no checkpoint$"),
        ],
    )
    def test_a_tracker_alone_is_no_tree_of_mindformers(self, tmp_path: Path, beside: str, whose: str) -> None:
        (tmp_path / "latest_checkpointed_iteration.txt").write_text("6")
        (tmp_path / beside).mkdir()
        for path in (tmp_path, tmp_path / "latest_checkpointed_iteration.txt"):
            with pytest.raises(UnknownLayoutError, match=whose):
                locate(str(path))
        answer = cli("resolve", str(tmp_path))
        assert answer.exit_code == ExitCode.UNKNOWN_LAYOUT

    def test_nor_is_latest_one_of_deepspeed(self, tmp_path: Path) -> None:
        (tmp_path / "latest").write_text("global_step6")
        for path in (tmp_path, tmp_path / "latest"):
            with pytest.raises(UnknownLayoutError, match="latest is a tracker of DeepSpeed, but there is"):
                locate(str(path))


class TestNoTree:
    @pytest.mark.parametrize("path", ["missing", "missing/rank_0", "file/rank_0", "file", "empty"])
    def test_where_there_is_none_it_is_said_and_the_path_named(self, tmp_path: Path, path: str) -> None:
        (tmp_path / "file").write_text("x")
        (tmp_path / "empty").mkdir()
        with pytest.raises(UnknownLayoutError, match=path):
            locate(str(tmp_path / path))
        assert cli("scan", str(tmp_path / path)).exit_code == ExitCode.UNKNOWN_LAYOUT

    @pytest.mark.parametrize("name", ["meta.json", "llama2_7b_rank_2-network-1_2.ckpt", "llama2_7b_rank_1-10_2.ckpt"])
    def test_a_file_in_a_ranks_folder_may_be_no_shard(self, tree: TreeBuilder, name: str) -> None:
        tree.file(f"checkpoint/rank_2/{name}", b"x")
        with pytest.raises(UnknownLayoutError, match="expected NAME_rank_2-EPOCH_STEP"):
            locate(str(tree.checkpoint / "rank_2" / name))

    @pytest.mark.parametrize("folder", ["rank_0_bak", "rank_02", "iteration_bak"])
    def test_a_folder_that_only_looks_like_a_part_is_none(self, tree: TreeBuilder, folder: str) -> None:
        tree.folder(f"checkpoint/{folder}")
        with pytest.raises(UnknownLayoutError):
            locate(str(tree.checkpoint / folder))

    def test_a_fifo_is_neither_opened_nor_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(UnknownLayoutError, match="neither a folder nor a shard"):
            locate(str(tmp_path / "pipe"))


class TestUnreadable:
    @pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE])
    def test_an_unlisted_folder_is_unknown(self, tree: TreeBuilder, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
        deny(monkeypatch, str(tree.checkpoint), code)
        with pytest.raises(IncompleteError, match=os.strerror(code)):
            locate(str(tree.checkpoint))
        result = cli("resolve", str(tree.output))
        assert (result.exit_code, result.stdout) == (ExitCode.INCOMPLETE, "")

    def test_one_unlisted_rank_makes_saves_unknown(self, tree: TreeBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
        deny(monkeypatch, str(tree.checkpoint / "rank_3"), errno.EACCES)
        found = document("resolve", str(tree.checkpoint))
        assert found["resume"] is None
        assert [(reason["code"], reason["severity"]) for reason in found["rejected"][0]["reasons"]] == [
            ("unreadable", "unknown")
        ]
        assert cli("scan", str(tree.checkpoint)).exit_code == ExitCode.INCOMPLETE


def deny(monkeypatch: pytest.MonkeyPatch, folder: str, code: int) -> None:
    """Let one folder answer with an error: tests may run as root, whom no mode keeps out."""
    real = os.scandir

    def scandir(path: str | int) -> object:
        if isinstance(path, str) and os.path.normpath(path) == folder:
            raise OSError(code, os.strerror(code), path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)


class TestWhereWeStand:
    """Without a path: `./output/checkpoint`, else what is in or around the current folder."""

    @pytest.mark.parametrize(
        ("inside", "took"),
        [
            ("", None),
            ("output", "output/checkpoint"),
            ("output/checkpoint", "the current folder"),
            ("output/checkpoint/rank_2", "the tree around the current folder"),
            ("output/checkpoint/rank_2/a/b", "the tree around the current folder"),
        ],
    )
    def test_the_tree_is_found_from_inside_it_and_it_is_said_what_was_taken(
        self, tree: TreeBuilder, monkeypatch: pytest.MonkeyPatch, inside: str, took: str | None
    ) -> None:
        tree.folder("checkpoint/rank_2/a/b")
        monkeypatch.chdir(tree.base / inside)
        found = locate(None)
        root = str(tree.checkpoint) if inside else "output/checkpoint"  # what a config elsewhere can be told
        assert (found.storage.root, found.focus) == (root, None)
        assert found.resolved_from == took if took is None else (found.resolved_from or "").endswith(took)

    @pytest.mark.parametrize("inside", ["rank_2/a/b/c", "notes"])
    def test_more_than_three_levels_up_is_not_looked_at_nor_from_a_folder_beside_the_saves(
        self, tree: TreeBuilder, monkeypatch: pytest.MonkeyPatch, inside: str
    ) -> None:
        tree.folder(f"checkpoint/{inside}")
        monkeypatch.chdir(tree.checkpoint / inside)
        with pytest.raises(UnknownLayoutError, match="output/checkpoint does not exist"):
            locate(None)

    def test_a_link_to_nowhere_is_not_passed_over(self, tree: TreeBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
        tree.file("checkpoint/output/notes.txt", "")
        (tree.checkpoint / "output/checkpoint").symlink_to(tree.base / "gone")
        monkeypatch.chdir(tree.checkpoint)
        with pytest.raises(UnknownLayoutError):
            locate(None)

    @pytest.mark.sample(5)
    @pytest.mark.parametrize("inside", ["output", "output/checkpoint", "output/checkpoint/rank_0"])
    @pytest.mark.parametrize("command", ["scan", "verify", "resolve", "inspect", "prune --keep-last 1 --grace 0"])
    def test_every_command_finds_it_from_inside(
        self, tree: TreeBuilder, monkeypatch: pytest.MonkeyPatch, inside: str, command: str
    ) -> None:
        monkeypatch.chdir(tree.base / inside)
        said = cli(*command.split())
        assert said.exit_code == ExitCode.OK, said.stderr
        assert command == "inspect" or "checking " in said.stderr


def test_a_link_that_leads_nowhere_is_no_tree_and_one_in_a_loop_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "lost").symlink_to("gone")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UnknownLayoutError, match="lost is a broken link"):
        locate(str(tmp_path / "lost"))
    with pytest.raises(IncompleteError, match=r"loop cannot be read: Too many levels of symbolic links$"):
        locate(str(tmp_path / "loop"))


def test_a_tree_of_another_layout_than_was_asked_for_is_not_offered_as_another_folder(tmp_path: Path) -> None:
    tree = healthy("hf_single", tmp_path)
    with pytest.raises(UnknownLayoutError) as refused:
        locate(str(tree), layout="verl")
    assert str(refused.value).endswith("in this layout; omit --layout to detect the layout")
    with pytest.raises(UnknownLayoutError, match=rf"did you mean {tree}"):
        locate(str(tmp_path), layout="verl")
