"""`ckpttool verify` as it is asked: each fault's word and exit code, options that make no sense, what is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.verdict import ShardReport, Verdict
from ckpttool.core.errors import ExitCode
from tests.support.commands import ask
from tests.support.shard_writers import crc_trailer
from tests.support.trees import TreeBuilder, weights
from tests.support.verifying import flip


@pytest.fixture
def tree(tmp_path: Path) -> TreeBuilder:
    return TreeBuilder(tmp_path).legacy(ranks=3).save(epoch=5, step=2).save(epoch=10, step=2)


def shard(tree: TreeBuilder) -> Path:
    return tree.output / tree.shard(1, 10, 2)


def _whole(tree: TreeBuilder) -> None:
    assert shard(tree).exists()


def _with_checksums(tree: TreeBuilder) -> None:
    for path in tree.checkpoint.rglob("*.ckpt"):
        path.write_bytes(path.read_bytes() + crc_trailer(path.read_bytes()))


def _flipped(tree: TreeBuilder) -> None:
    _with_checksums(tree)
    flip(shard(tree), 100)


def _cut(tree: TreeBuilder) -> None:
    os.truncate(shard(tree), 500)


def _missing(tree: TreeBuilder) -> None:
    shard(tree).unlink()


def _misnamed(tree: TreeBuilder) -> None:
    for rank in range(3):
        (tree.output / tree.shard(rank, 10, 2)).rename(tree.output / tree.shard(rank, 11, 2))


def _unsupported(tree: TreeBuilder) -> None:
    shard(tree).write_bytes(b"\xd8\x5e\x3a\x7f" + bytes(100))


def _hostile(tree: TreeBuilder) -> None:
    shard(tree).write_bytes(b"\x0a\xff\xff\xff\xff\x0f\x0a\xff\xff\xff\x0f" + b"w" * 200_000)


FAULTS: list[tuple[Callable[[TreeBuilder], None], str, str, ExitCode]] = [
    (_whole, "structure", "struct-ok", ExitCode.OK),
    (_whole, "checksum", "agreed", ExitCode.OK),
    (_whole, "numerics", "agreed", ExitCode.OK),
    (_with_checksums, "structure", "struct-ok", ExitCode.OK),
    (_with_checksums, "checksum", "verified", ExitCode.OK),
    (_with_checksums, "numerics", "verified", ExitCode.OK),
    (_flipped, "structure", "struct-ok", ExitCode.OK),
    (_flipped, "checksum", "damaged", ExitCode.DAMAGE),
    (_cut, "structure", "damaged", ExitCode.DAMAGE),
    (_missing, "structure", "missing", ExitCode.DAMAGE),
    (_misnamed, "structure", "suspect", ExitCode.DAMAGE),
    (_unsupported, "checksum", "unsupported", ExitCode.INCOMPLETE),
    (_hostile, "structure", "unsafe", ExitCode.UNSAFE),
]


@pytest.mark.parametrize(("fault", "level", "word", "code"), FAULTS)
def test_each_fault_has_its_word_and_its_exit_code(
    tree: TreeBuilder, fault: Callable[[TreeBuilder], None], level: str, word: str, code: ExitCode
) -> None:
    fault(tree)
    question = ("verify", str(tree.output), "--level", level, "--no-ledger")
    said = ask(*question, "--format", "json")
    assert said.code == code
    checkpoints = said.json["checkpoints"]
    assert isinstance(checkpoints, list)
    assert [one["verdict"] for one in checkpoints] == [word]


def test_a_file_that_vanishes_after_it_was_listed_leaves_the_check_incomplete(
    tree: TreeBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckpttool.core.verify.session import Session

    events = Session.events

    def pruned(
        one: Session, checkpoint: Checkpoint, *, followed_by: Checkpoint | None = None
    ) -> Iterator[ShardReport | Verdict]:
        shard(tree).unlink(missing_ok=True)
        return events(one, checkpoint, followed_by=followed_by)

    monkeypatch.setattr(Session, "events", pruned)
    said = ask("verify", str(tree.output), "--format", "json")
    assert said.code == ExitCode.INCOMPLETE
    assert '"unstable"' in said.stdout


def test_where_there_is_no_checkpoint_nothing_was_proven(tmp_path: Path) -> None:
    (tmp_path / "rank_0").mkdir()
    assert ask("verify", str(tmp_path)).code == ExitCode.NOTHING_TO_RESUME


def test_older_checkpoints_are_looked_at_only_where_they_are_asked_for(tree: TreeBuilder) -> None:
    os.truncate(tree.output / tree.shard(0, 5, 2), 10)
    assert ask("verify", str(tree.output)).code == ExitCode.OK
    assert ask("verify", str(tree.output), "--checkpoint", "5_2").code == ExitCode.DAMAGE
    assert ask("verify", str(tree.output), "--checkpoint", "all").code == ExitCode.DAMAGE


class TestOptions:
    @pytest.mark.parametrize("jump", ["0.5", "1", "nan"])
    def test_a_factor_that_is_none_is_refused(self, tree: TreeBuilder, jump: str) -> None:
        assert ask("verify", str(tree.output), "--level", "numerics", f"--jump={jump}").code == ExitCode.USAGE

    def test_numbers_cannot_be_written_where_none_are_looked_at(self, tree: TreeBuilder, tmp_path: Path) -> None:
        place = tmp_path / "stats.jsonl"
        assert ask("verify", str(tree.output), "--stats", str(place)).code == ExitCode.USAGE
        assert not place.exists()


class TestParts:
    def test_a_table_of_a_part_says_that_it_is_one(self, tree: TreeBuilder) -> None:
        parts = [ask("verify", str(tree.output), "--subset", f"{number}/2", "-q").stdout for number in (1, 2)]
        assert {"1/3" in part for part in parts} == {"2/3" in part for part in parts} == {True, False}
        assert all("of 3 shards are not in this part" in part for part in parts)

    def test_a_save_without_a_shard_in_the_part_is_not_called_whole_unseen(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy(ranks=1).save(epoch=5, step=2).save(epoch=10, step=2)
        parts = [f"--subset={number}/2" for number in (1, 2)]
        asked = ("verify", str(tree.output), "--level", "checksum", "--checkpoint", "10_2", "-q")
        said = [ask(*asked, part) for part in parts]
        assert [each.code for each in said] == [ExitCode.OK] * 2
        assert sum("0 of 1 shards: no tensor data was read; the others: headers" in each.stdout for each in said) == 1
        os.truncate(tree.output / tree.shard(0, 10, 2), 100)
        cut = [ask(*asked, part, "--format", "json") for part in parts]
        assert [each.code for each in cut] == [ExitCode.DAMAGE] * 2
        assert [save["verdict"] for each in cut for save in each.json["checkpoints"]] == ["damaged"] * 2


class TestSealing:
    @pytest.mark.parametrize(
        ("manifest", "why"),
        [(b"", "cannot be trusted"), (b'{"schema": "ckpttool/manifest/9"}', "it was sealed by a newer ckpttool")],
    )
    def test_a_refusal_for_the_old_manifest_does_not_say_that_the_checkpoint_is_damaged(
        self, tree: TreeBuilder, manifest: bytes, why: str
    ) -> None:
        assert ask("seal", str(tree.output)).code == ExitCode.OK
        (place,) = tree.checkpoint.rglob("*.manifest.json")
        place.write_bytes(manifest)
        said = ask("seal", str(tree.output), "-q")
        assert said.code == ExitCode.INCOMPLETE
        assert why in said.stdout
        assert "not intact" not in said.stdout

    def test_where_there_is_no_checkpoint_nothing_was_sealed(self, tmp_path: Path) -> None:
        (tmp_path / "rank_0").mkdir()
        assert ask("seal", str(tmp_path)).code == ExitCode.NOTHING_TO_RESUME


class TestStatistics:
    def test_every_floating_point_tensor_of_every_rank_is_a_line(self, tree: TreeBuilder, tmp_path: Path) -> None:
        place = tmp_path / "stats.jsonl"
        said = ask("verify", str(tree.output), "--level", "numerics", "--stats", str(place))
        assert said.code == ExitCode.OK
        lines = [json.loads(line) for line in place.read_text(encoding="ascii").splitlines()]
        assert {line["rank"] for line in lines} == {0, 1, 2}
        assert {line["tensor"] for line in lines} == {*(one.name for one in weights()), "loss_scale"}
        assert {line["checkpoint"] for line in lines} == {"10_2"}
        assert all(line["norm"] > 0 and not line["denormal_only"] for line in lines)
