"""What `repair-meta` makes of the trainer's own records."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.question import ResumeQuestion, TreeQuestion
from ckpttool.core.domain.retention import Repair
from ckpttool.core.errors import CkptToolError, IncompleteError, LockedError, NotDurableError
from ckpttool.core.verbs.changes import assert_unchanged
from ckpttool.core.verbs.scanning import Tree
from ckpttool.core.write.files import locked
from tests.support.prunable_trees import Stop, files, legacy, names_and_inodes, newer
from tests.support.trees import TreeBuilder


def repaired(
    tree: TreeBuilder, *, name: str | None = None, apply: bool = True, grace: float = 300.0, prefix: str | None = None
) -> Repair:
    choice = ResumeQuestion(name=name, prefix=prefix, ignore_health=True)
    return ckpttool.repair_meta(TreeQuestion(path=str(tree.checkpoint)), choice, grace=grace, apply=apply)


def meta(tree: TreeBuilder, rank: int) -> bytes:
    return (tree.checkpoint / f"rank_{rank}/meta.json").read_bytes()


RIGHT = b'{"last_epoch": 30, "last_step": 2, "last_ckpt_file": "llama2_7b_rank_%d_1-30_2.ckpt"}'

TROUBLES: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "is missing"),
    "torn": (b'{"last_epoch": 30, "last_', "is truncated or edited"),
    "empty": (b"", "is truncated or edited"),
    "stale": (RIGHT.replace(b"30", b"25") % 1, "names llama2_7b_rank_1_1-25_2.ckpt"),
    "of a file that is not there": (RIGHT.replace(b"30", b"35") % 1, "names llama2_7b_rank_1_1-35_2.ckpt"),
    "of another rank": (RIGHT % 0, "names llama2_7b_rank_0_1-30_2.ckpt"),
    "with the wrong numbers": (RIGHT.replace(b'"last_epoch": 30', b'"last_epoch": 3') % 1, "names llama2_7b"),
    "leading elsewhere": (b'{"last_epoch": 30, "last_step": 2, "last_ckpt_file": "../../x"}', "names ../../x"),
    "with a flag for a number": (RIGHT.replace(b"2,", b"true,") % 1, "is truncated or edited"),
    "larger than any": (b"[" * 100_000, "cannot be read (more than 65536 bytes)"),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_record_in_trouble_is_written_from_the_shards_and_the_others_are_not_touched(
    trouble: str, tmp_path: Path
) -> None:
    content, said = TROUBLES[trouble]
    tree = legacy(tmp_path)
    path = "checkpoint/rank_1/meta.json"
    tree.remove(path) if content is None else tree.file(path, content)
    before = {name: each for name, each in files(tree).items() if name != "rank_1/meta.json"}
    stamps = {rank: (tree.checkpoint / f"rank_{rank}/meta.json").stat() for rank in (0, 2)}
    dry = repaired(tree, apply=False)
    assert [fix.path for fix in dry.fixes] == ["rank_1/meta.json"]
    assert dry.fixes[0].trouble.startswith(said)
    assert (tree.output / path).exists() == (content is not None)
    assert repaired(tree).applied
    assert meta(tree, 1) == RIGHT % 1
    assert {name: each for name, each in files(tree).items() if name != "rank_1/meta.json"} == before
    assert {rank: (tree.checkpoint / f"rank_{rank}/meta.json").stat() for rank in (0, 2)} == stamps
    assert repaired(tree).fixes == ()


def test_a_new_record_may_be_read_by_who_may_read_the_others(tmp_path: Path) -> None:
    for mode in (0o600, 0o640, 0o644):
        tree = legacy(tmp_path / str(mode)).remove("checkpoint/rank_1/meta.json")
        (tree.checkpoint / "rank_0/meta.json").chmod(mode)
        repaired(tree)
        assert (tree.checkpoint / "rank_1/meta.json").stat().st_mode & 0o777 == mode


def test_where_all_are_missing_the_mode_is_the_trainer_s(tmp_path: Path) -> None:
    tree = legacy(tmp_path)
    for rank in range(3):
        tree.remove(f"checkpoint/rank_{rank}/meta.json")
    (tree.checkpoint / "rank_0/meta.json").unlink(missing_ok=True)
    repaired(tree)
    assert (tree.checkpoint / "rank_0/meta.json").stat().st_mode & 0o777 == 0o640
    assert [meta(tree, rank) for rank in range(3)] == [RIGHT % rank for rank in range(3)]


def test_the_newest_whole_one_decides_not_the_newest(tmp_path: Path) -> None:
    tree = legacy(tmp_path).truncate("checkpoint/rank_2/llama2_7b_rank_2_1-30_2.ckpt", 20)
    repair = repaired(tree)
    assert repair.checkpoint is not None
    assert repair.checkpoint.name == "_1-25_2"
    assert b"_1-25_2" in meta(tree, 0)


def test_an_unhealthy_one_is_the_last_saved_all_the_same(tmp_path: Path) -> None:
    tree = legacy(tmp_path).health([("llama2_7b_rank_0_1-30_2.ckpt", 1)])
    repaired(tree)
    assert meta(tree, 1) == RIGHT % 1


def test_a_named_one_is_taken_instead(tmp_path: Path) -> None:
    tree = legacy(tmp_path)
    repaired(tree, name="15_2")
    assert all(b"-15_2.ckpt" in meta(tree, rank) for rank in range(3))


def test_where_nothing_is_whole_nothing_is_written(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path).legacy(ranks=2, sparse=True).save(epoch=10, step=2)
    tree.truncate(tree.shard(1, 10, 2), 3).file("checkpoint/rank_0/meta.json", "{")
    before = files(tree)
    repair = repaired(tree)
    assert (repair.checkpoint, repair.fixes) == (None, ())
    assert files(tree) == before


@pytest.mark.parametrize("content", [None, b"", b"x", b"20", b"9" * 70, b"999"])
def test_the_tracker_names_the_newest_whole_iteration(content: bytes | None, tmp_path: Path) -> None:
    tree = newer(tmp_path)
    tracker = "checkpoint/latest_checkpointed_iteration.txt"
    if content is None:
        tree.remove(tracker)
    elif content != b"20":  # that it is, as old as that save; written anew it would tell of a training that went back
        tree.file(tracker, content)
    assert repaired(tree).applied
    assert (tree.output / tracker).read_bytes() == b"30"
    assert repaired(tree).fixes == ()


def test_a_tracker_that_was_set_back_by_two_was_meant(tmp_path: Path) -> None:
    tree = newer(tmp_path).tracker("10")
    assert repaired(tree).fixes == ()
    repaired(tree, name="iteration_00000030")
    assert (tree.checkpoint / "latest_checkpointed_iteration.txt").read_bytes() == b"30"


def test_while_somebody_writes_it_is_refused(tmp_path: Path) -> None:
    tree = legacy(tmp_path).file("checkpoint/rank_0/x.tmp")
    before = files(tree)
    repair = repaired(tree)
    assert [one.code for one in repair.refusals] == [Code.IN_PROGRESS]
    assert not repair.applied
    assert files(tree) == before
    with locked(str(tree.checkpoint / ".ckpttool/prune"), timeout=0), pytest.raises(LockedError):
        repaired(tree)


def test_a_tree_that_changed_meanwhile_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = legacy(tmp_path)

    def save_first(found: Tree, question: TreeQuestion, *, grace: float) -> None:
        tree.save(epoch=35, step=2, run=1)
        assert_unchanged(found, question, grace=grace)

    monkeypatch.setattr("ckpttool.retention.verbs_repair.assert_unchanged", save_first)
    with pytest.raises(IncompleteError, match="changed since the plan"):
        repaired(tree)
    assert b"35" in meta(tree, 1)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    tree = legacy(tmp_path)
    (tree.checkpoint / "rank_1").rename(tmp_path / "elsewhere")
    (tree.checkpoint / "rank_1").symlink_to(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere/meta.json").read_bytes()
    assert in_the_way(repaired(tree)) == "rank_1 is a link, and nothing is written through a link"
    assert (tmp_path / "elsewhere/meta.json").read_bytes() == before


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda path: path.symlink_to("nowhere"), "a link"),
        (lambda path: path.symlink_to(path.name), "a link"),
        (lambda path: path.mkdir(), "a folder"),
        (os.mkfifo, "a FIFO or a device"),
    ],
    ids=["dangling", "loop", "folder", "pipe"],
)
def test_what_is_no_file_is_not_written_over_and_a_dry_run_says_so(
    make: Callable[[Path], None], kind: str, tmp_path: Path
) -> None:
    for tree, path in (
        (legacy(tmp_path / "legacy"), "rank_1/meta.json"),
        (newer(tmp_path / "newer"), "latest_checkpointed_iteration.txt"),
    ):
        (tree.checkpoint / path).unlink(missing_ok=True)
        make(tree.checkpoint / path)
        before = names_and_inodes(tree)
        for apply in (False, True):
            assert in_the_way(repaired(tree, apply=apply)) == f"{path} is {kind}, and is not replaced"
        assert names_and_inodes(tree) == before


def in_the_way(repair: Repair) -> str:
    """What alone stands against a repair."""
    (refusal,) = repair.refusals
    assert (refusal.code, refusal.severity, repair.applied) == (Code.NOT_A_REGULAR_FILE, Severity.UNSAFE, False)
    return refusal.message


@pytest.mark.sample(1)
@pytest.mark.parametrize("error", [OSError(errno.EIO, "io"), KeyboardInterrupt()])
def test_wherever_it_stops_every_record_is_the_old_one_or_the_new_one(
    error: BaseException, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for nth in range(1, 100, 1 if request.config.getoption("--nightly") else 3):
        tree = legacy(tmp_path / str(nth)).remove("checkpoint/rank_2/meta.json")
        old = files(tree)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", lambda _: None)
            stop = Stop(patch, nth, error, after=True, for_good=True)
            with suppress(CkptToolError, KeyboardInterrupt, OSError):
                repaired(tree)
        now = files(tree)
        assert now.get("rank_1/meta.json") in {old["rank_1/meta.json"], RIGHT % 1}
        assert now.get("rank_2/meta.json") in {None, RIGHT % 2}
        repaired(tree)
        assert {path for path in files(tree) if path.endswith(".tmp")} == set()
        assert [meta(tree, rank) for rank in range(3)] == [RIGHT % rank for rank in range(3)]
        if not stop.happened:
            return
    pytest.fail("more calls than a repair should need")


def test_a_disk_that_confirms_nothing_lets_every_record_be_written_before_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = legacy(tmp_path)
    for rank in range(3):
        tree.file(f"checkpoint/rank_{rank}/meta.json", b"torn")
    real = os.fsync

    def fsync(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().name == "rank_1":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(NotDurableError, match=r"rank_1/meta\.json"):
        repaired(tree)
    assert [meta(tree, rank) for rank in range(3)] == [RIGHT % rank for rank in range(3)]


def test_no_record_goes_back_while_a_newer_checkpoint_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = legacy(tmp_path)
    before = files(tree)
    newest = f"{tree.checkpoint}/rank_2/llama2_7b_rank_2_1-30_2.ckpt"
    real = os.open

    def failing(path: object, *arguments: int, **options: int) -> int:
        if path == newest:
            raise OSError(errno.EIO, os.strerror(errno.EIO), newest)
        return real(path, *arguments, **options)  # type: ignore[arg-type]  # whatever open takes

    monkeypatch.setattr(os, "open", failing)
    repair = repaired(tree)
    assert repair.checkpoint is not None
    assert (repair.checkpoint.name, repair.applied) == ("_1-25_2", False)
    assert [one.code for one in repair.refusals] == [Code.UNREADABLE]
    assert files(tree) == before
