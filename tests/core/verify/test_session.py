"""Whole trees: every fault that one can have is found where it is, and nowhere else."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

import ckpttool
from ckpttool.core.domain.checkpoint import Inventory
from ckpttool.core.domain.finding import Code, Row, Severity
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.domain.verdict import CheckTask, Level, ShardReport, Verdict, VerdictWord
from ckpttool.core.formats import read_header
from ckpttool.core.storage.local import LocalStorage
from ckpttool.core.verify.check import check
from ckpttool.core.verify.engines.waiting import WaitingEngine
from ckpttool.core.verify.observation import Engines, Observation
from ckpttool.core.verify.session import SaveRecords, Scope, Session
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.scalars import FACTS
from ckpttool.types import TreeQuestion
from tests.support.fault_detection import with_crc
from tests.support.shard_writers import MemorySource
from tests.support.trees import TreeBuilder, floats, shard_bytes, training_scalars, weights
from tests.support.verifying import flip, found, seal_whole, verdicts


@pytest.fixture
def real(copy_tree: Callable[[str], Path]) -> Path:
    return copy_tree("sink2_ckpt") / "output" / "checkpoint"


def words(folder: Path, level: Level = Level.STRUCTURE) -> dict[str, VerdictWord]:
    return {verdict.name: verdict.word for verdict in verdicts(folder, level)}


def bad(folder: Path, level: Level = Level.STRUCTURE) -> dict[str, set[Row]]:
    """What is wrong, by checkpoint; only those with something."""
    return {
        verdict.name: codes for verdict in verdicts(folder, level) if (codes := {code for code, _ in found([verdict])})
    }


def lone(base: Path, *steps: int) -> TreeBuilder:
    """A training on one rank."""
    tree = TreeBuilder(base).legacy(ranks=1)
    for step in steps:
        tree.save(epoch=step // 2, step=2)
    return tree


class TestACkptThatWasCutBetweenTwoTensors:
    """Such a file is valid, and MindFormers begins at step 0 with it."""

    def boundaries(self, data: bytes) -> list[int]:
        entries = read_header(MemorySource(data), named=FormatName.MINDSPORE_CKPT, facts=FACTS).entries
        return [entry.spans[-1][1] for entry in entries[:-1]]

    def test_every_cut_on_one_of_four_ranks_is_found_and_the_neighbours_are_left_alone(self, real: Path) -> None:
        path = real / "rank_2/llama2_7b_rank_2-15_2.ckpt"
        whole = path.read_bytes()
        for end in self.boundaries(whole)[::3]:
            path.write_bytes(whole[:end])
            faults = bad(real)
            assert faults.keys() == {"15_2"}, end
            assert faults["15_2"] <= {Code.ENTRIES_MISSING, Code.SCALARS_MISSING}
            assert {where for _, where in found(verdicts(real, name="15_2"))} == {"rank_2/llama2_7b_rank_2-15_2.ckpt"}

    @pytest.mark.sample(1)
    @pytest.mark.parametrize("step", [20, 10, 30])
    def test_every_cut_on_a_lone_rank_is_found(self, tmp_path: Path, step: int) -> None:
        tree = lone(tmp_path, 10, 20, 30)
        path = tree.output / tree.shard(0, step // 2, 2)
        whole = path.read_bytes()
        for end in self.boundaries(whole):
            path.write_bytes(whole[:end])
            assert bad(tree.checkpoint).keys() == {f"{step // 2}_2"}


class TestFilesInTheWrongPlace:
    def test_an_older_shard_under_a_newer_name_is_found(self, real: Path) -> None:
        for rank in (0, 3):
            folder = real / f"rank_{rank}"
            new = folder / f"llama2_7b_rank_{rank}-20_2.ckpt"
            kept = new.read_bytes()
            shutil.copy(folder / f"llama2_7b_rank_{rank}-10_2.ckpt", new)
            assert bad(real) == {"20_2": {Code.STEP_DISAGREES, MindFormersCode.EPOCH_DISAGREES, Code.NAME_DISAGREES}}
            new.write_bytes(kept)

    def test_an_older_save_under_a_newer_name_on_all_ranks_is_found(self, real: Path) -> None:
        for rank in range(4):
            folder = real / f"rank_{rank}"
            shutil.copy(folder / f"llama2_7b_rank_{rank}-10_2.ckpt", folder / f"llama2_7b_rank_{rank}-20_2.ckpt")
        assert bad(real) == {"20_2": {Code.NAME_DISAGREES}}

    @pytest.mark.parametrize("fmt", ["ckpt", "safetensors"])
    def test_another_ranks_shard_of_a_sharded_model_is_found(self, tmp_path: Path, fmt: str) -> None:
        tree = TreeBuilder(tmp_path).legacy(ranks=3, fmt="ckpt" if fmt == "ckpt" else "safetensors")
        for epoch in (5, 10, 15):
            for rank in range(3):
                tree.save(epoch=epoch, step=2, ranks=[rank], tensors=weights(seed=100 * epoch + rank))
        assert bad(tree.checkpoint) == {}
        shutil.copy(tree.output / tree.shard(1, 10, 2), tree.output / tree.shard(2, 10, 2))
        assert bad(tree.checkpoint) == {"10_2": {Code.SCHEMA_DIFFERS}}


class TestLostPagesAndTrailers:
    def test_a_lost_last_page_is_found_and_a_layer_that_is_never_trained_is_not(self, tmp_path: Path) -> None:
        def save(epoch: int, tail: float) -> None:
            tensors = [*weights(seed=epoch), floats("zz", [1024], values=[tail] * 1024)]
            scalars = training_scalars(epoch=epoch, true_step=2 * epoch)
            tree.save(epoch=epoch, step=2, tensors=[*scalars, *tensors], scalars=[])

        tree = TreeBuilder(tmp_path / "lost").legacy(ranks=2)
        save(5, 1.0)
        save(10, 2.0)
        save(15, 0.0)
        assert bad(tree.checkpoint) == {"15_2": {Code.ZERO_TAIL}}
        tree = TreeBuilder(tmp_path / "frozen").legacy(ranks=2)
        for epoch in (5, 10, 15):
            save(epoch, 0.0)
        assert bad(tree.checkpoint) == {}

    @pytest.mark.parametrize("ranks", [1, 3])
    def test_a_stripped_checksum_is_missed(self, tmp_path: Path, ranks: int) -> None:
        tree = TreeBuilder(tmp_path).legacy(ranks=ranks).save(epoch=5, step=2).save(epoch=10, step=2)
        for epoch in (5, 10):
            for rank in range(ranks):
                path = tree.output / tree.shard(rank, epoch, 2)
                path.write_bytes(with_crc("", path.read_bytes()))
        assert set(words(tree.checkpoint, Level.CHECKSUM).values()) == {VerdictWord.VERIFIED}
        path = tree.output / tree.shard(0, 10, 2)
        os.truncate(path, path.stat().st_size - 17)
        for level in Level:
            # Where every byte is read, verified copies show that nothing else was lost.
            is_told = level is not Level.STRUCTURE and ranks > 1
            assert bad(tree.checkpoint, level) == ({} if is_told else {"10_2": {Code.CHECKSUM_MISSING}})


class TestNeighbours:
    def test_checkpoints_of_one_name_and_other_prefixes_or_formats_are_not_mixed_up(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy(ranks=2)
        for prefix, extra in (("llama", "a"), ("qwen", "b")):
            tree.prefix = prefix
            for epoch in (5, 10):
                for fmt in ("ckpt", "safetensors"):
                    tensors = [*weights(seed=epoch), floats(f"{extra}.{fmt}", [4])]
                    tree.save(epoch=epoch, step=2, fmt="ckpt" if fmt == "ckpt" else "safetensors", tensors=tensors)
        assert len(verdicts(tree.checkpoint)) == 8
        for level in Level:
            assert bad(tree.checkpoint, level) == {}

    def test_a_damaged_shard_does_not_make_its_neighbours_suspect(self, tmp_path: Path) -> None:
        """One flipped bit in a name: the file is odd, those before and after it are not."""
        tree = lone(tmp_path, 10, 20, 30)
        path = tree.output / tree.shard(0, 10, 2)
        path.write_bytes(path.read_bytes().replace(b"dense.bias", b"dense.bics"))
        assert bad(tree.checkpoint) == {"10_2": {Code.SCHEMA_DIFFERS}}


class Counting:
    """An engine that counts what it is given, and may do it in any order."""

    def __init__(self, seed: int | None = None) -> None:
        self.paths: Counter[str] = Counter()
        self._seed = seed

    def run(self, tasks: Sequence[CheckTask]) -> Iterator[Observation]:
        self.paths.update(task.path for task in tasks)
        observations = [check(task) for task in tasks]
        if self._seed is not None:
            Random(self._seed).shuffle(observations)  # noqa: S311  no secret
        return iter(observations)


def session(root: Path, level: Level, engine: Counting) -> tuple[Session, Inventory]:
    tree = ckpttool.scan(TreeQuestion(path=str(root), sizes=True))
    storage = LocalStorage(tree.inventory.root)
    headers = engine if level is Level.STRUCTURE else WaitingEngine()
    engines = Engines(tasks=engine, headers=headers)
    records = SaveRecords(
        seal_place=tree.seal_place,
        with_own_records=tree.with_own_records,
        slices=tree.slices,
        with_remedies=tree.with_remedies,
    )
    return Session(storage, tree.inventory, Scope(level=level), engines, records), tree.inventory


class TestReading:
    def test_headers_of_all_checkpoints_are_read_once_each(self, real: Path) -> None:
        engine = Counting()
        one, inventory = session(real, Level.STRUCTURE, engine)
        for checkpoint in reversed(inventory.checkpoints):
            one.verdict(checkpoint)
        assert set(engine.paths.values()) == {1}
        assert len(engine.paths) == 20

    def test_a_healthy_checkpoint_needs_one_witness_and_no_second(self, real: Path) -> None:
        engine = Counting()
        one, inventory = session(real, Level.STRUCTURE, engine)
        one.verdict(inventory.checkpoints[1])
        assert len(engine.paths) == 8

    @pytest.mark.parametrize("level", [Level.CHECKSUM, Level.NUMERICS])
    def test_content_of_all_checkpoints_is_read_once_each(self, real: Path, level: Level) -> None:
        engine = Counting()
        one, inventory = session(real, level, engine)
        events: list[ShardReport | Verdict] = []
        newest_first = [*reversed(inventory.checkpoints)]
        for checkpoint, following in zip(newest_first, [*newest_first[1:], None], strict=True):
            events += one.events(checkpoint, followed_by=following)
        assert set(engine.paths.values()) == {1}
        assert len(engine.paths) == 20
        verdicts = [event for event in events if isinstance(event, Verdict)]
        assert [len(verdict.reports) for verdict in verdicts] == [4] * 5

    def test_the_checkpoint_before_is_read_for_the_newest_alone_and_again_where_nobody_said_that_it_comes_next(
        self, real: Path
    ) -> None:
        engine = Counting()
        one, inventory = session(real, Level.NUMERICS, engine)
        before, newest = inventory.checkpoints[-2:]
        one.verdict(newest)
        assert {path for path, times in engine.paths.items() if times == 1} >= {shard.path for shard in before.shards}
        other, _ = session(real, Level.NUMERICS, Counting())
        later = one.verdict(before)
        assert set(later.compared_with) > set(
            other.verdict(before).compared_with
        )  # the newest was judged, and is known

    def test_the_order_in_which_shards_are_finished_changes_nothing(self, real: Path) -> None:
        (real / "rank_1/llama2_7b_rank_1-20_2.ckpt").write_bytes(b"")
        answers = []
        for seed in range(2):
            one, inventory = session(real, Level.NUMERICS, Counting(seed))
            answers.append([one.verdict(checkpoint) for checkpoint in reversed(inventory.checkpoints)])
        assert all(answer == answers[0] for answer in answers)


class TestNumbers:
    def tree(self, base: Path, *norms: float) -> TreeBuilder:
        tree = TreeBuilder(base).legacy(ranks=2)
        for number, norm in enumerate(norms, 1):
            tensors = [*weights(seed=1), floats("w", [4], values=[norm / 2] * 4)]
            tree.save(epoch=5 * number, step=2, tensors=tensors)
        return tree

    def test_a_norm_that_jumps_is_suspect_and_one_that_creeps_is_not(self, tmp_path: Path) -> None:
        tree = self.tree(tmp_path, 1.0, 2.0, 5000.0, 5100.0)
        assert bad(tree.checkpoint, Level.NUMERICS) == {"15_2": {Code.NORM_JUMP}}
        assert bad(tree.checkpoint, Level.CHECKSUM) == {}

    def test_the_newest_alone_is_compared_with_the_one_before_too(self, tmp_path: Path) -> None:
        tree = self.tree(tmp_path, 1.0, 5000.0)
        (newest,) = verdicts(tree.checkpoint, Level.NUMERICS, name="latest")
        assert {code for code, _ in found([newest])} == {Code.NORM_JUMP}

    @pytest.mark.parametrize(("jump", "expected"), [(0.0, 0), (3.0, 2), (6.0, 0), (None, 0)])
    def test_the_factor_can_be_set_and_the_comparison_left_out(
        self, tmp_path: Path, jump: float | None, expected: int
    ) -> None:
        tree = self.tree(tmp_path, 1.0, 5.0)
        assert len(found(verdicts(tree.checkpoint, Level.NUMERICS, jump=jump))) == expected

    def test_a_rank_that_the_newest_lacks_is_read_in_the_checkpoint_before_all_the_same(self, tmp_path: Path) -> None:
        tree = self.tree(tmp_path, 1.0, 1.0)
        (tree.checkpoint.parent / tree.shard(1, 10, 2)).unlink()
        older = tree.checkpoint.parent / tree.shard(1, 5, 2)
        older.write_bytes(older.read_bytes()[:-10])
        last, first = verdicts(tree.checkpoint, Level.NUMERICS)
        assert [len(last.reports), len(first.reports)] == [1, 2]
        assert Code.SHARD_TRUNCATED in {code for code, _ in found([first])}

    def test_a_part_of_the_shards_is_compared_with_the_same_ranks(self, tmp_path: Path) -> None:
        tree = self.tree(tmp_path, 1.0, 5000.0)
        parts = [verdicts(tree.checkpoint, Level.NUMERICS, bucket=(number, 3)) for number in (1, 2, 3)]
        paths = sorted(path or "" for part in parts for _, path in found(part))
        assert paths == [tree.shard(rank, 10, 2).removeprefix("checkpoint/") for rank in (0, 1)]


class TestParts:
    @pytest.mark.parametrize("level", Level)
    def test_all_parts_together_are_everything(self, real: Path, level: Level) -> None:
        whole = sorted(report.path for verdict in verdicts(real, level) for report in verdict.reports)
        parts = [verdicts(real, level, bucket=(number, 3)) for number in (1, 2, 3)]
        seen = sorted(report.path for part in parts for verdict in part for report in verdict.reports)
        assert seen == whole
        assert all(len(verdict.reports) + verdict.unseen == 4 for part in parts for verdict in part)

    @pytest.mark.parametrize("level", Level)
    def test_what_a_header_or_a_size_tells_is_found_in_every_part(self, real: Path, level: Level) -> None:
        path = real / "rank_2/llama2_7b_rank_2-15_2.ckpt"
        os.truncate(path, path.stat().st_size - 1)
        parts = [found(verdicts(real, level, bucket=(number, 3))) for number in (1, 2, 3)]
        assert parts == [found(verdicts(real, level))] * 3
        assert len(parts[0]) == 1

    def test_what_its_bytes_alone_tell_is_found_in_its_own_part_and_in_no_other(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy(ranks=3).save(epoch=5, step=2, tensors=weights(seed=1))
        seal_whole(tree.checkpoint)
        path = tree.output / tree.shard(1, 5, 2)
        flip(path, path.read_bytes().index(weights(seed=1)[0].data[:16]))
        parts = [verdicts(tree.checkpoint, Level.CHECKSUM, bucket=(number, 3)) for number in (1, 2, 3)]
        assert sorted(len(found(part)) for part in parts) == [0, 0, 1]

    def test_a_save_without_a_shard_in_the_part_was_looked_at_and_is_not_verified(self, real: Path) -> None:
        for verdict in verdicts(real, Level.CHECKSUM, bucket=(1, 9000)):
            assert (verdict.reports, verdict.unseen, len(verdict.beside)) == ((), 4, 4)
            assert (verdict.word, verdict.looked_at) == (VerdictWord.STRUCT_OK, True)
            assert all(report.level is Level.STRUCTURE and report.bytes_read for report in verdict.beside)


class TestManifests:
    @pytest.fixture
    def sealed(self, tmp_path: Path) -> TreeBuilder:
        tree = TreeBuilder(tmp_path).legacy(ranks=3).save(epoch=5, step=2).save(epoch=10, step=2)
        seal_whole(tree.checkpoint)
        return tree

    def test_what_was_sealed_is_verified(self, sealed: TreeBuilder) -> None:
        assert set(words(sealed.checkpoint, Level.CHECKSUM).values()) == {VerdictWord.VERIFIED}
        assert set(words(sealed.checkpoint, Level.NUMERICS).values()) == {VerdictWord.VERIFIED}
        assert set(words(sealed.checkpoint).values()) == {VerdictWord.STRUCT_OK}

    def test_what_it_proves_its_siblings_do_not_doubt(self, sealed: TreeBuilder) -> None:
        """The save before it holds a tensor more on one rank, as if this one had lost it."""
        for rank in range(3):
            more = [floats("more", [4])] if rank == 0 else []
            tensors = [*weights(), *training_scalars(epoch=5, true_step=10), *more]
            sealed.file(sealed.shard(rank, 5, 2), shard_bytes(tensors, "ckpt"))
        for level in (Level.STRUCTURE, Level.CHECKSUM):
            assert "10_2" not in bad(sealed.checkpoint, level)
        manifests = sorted((sealed.checkpoint / ".ckpttool").rglob("*.json"), key=lambda path: "-10_2" in path.name)
        assert [("-10_2" in path.name, path.exists()) for path in manifests] == [(False, True), (True, True)]
        manifests[1].unlink()
        assert "10_2" not in bad(sealed.checkpoint)  # what is not as it was sealed is no witness
        manifests[0].unlink()
        assert bad(sealed.checkpoint)["10_2"] == {Code.SCHEMA_DIFFERS}

    def test_a_flipped_weight_is_found_by_it_and_by_nothing_else(self, sealed: TreeBuilder) -> None:
        path = sealed.output / sealed.shard(1, 10, 2)
        flip(path, path.read_bytes().index(b"dense.bias") + 40)
        assert bad(sealed.checkpoint) == {}
        assert bad(sealed.checkpoint, Level.CHECKSUM) == {"10_2": {Code.CHECKSUM_MISMATCH}}

    def test_of_a_file_under_another_name_it_tells_whose_it_is(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy(ranks=3)
        for rank in range(3):
            tensors = [*weights(seed=rank), *training_scalars(epoch=5, true_step=10)]
            tree.file(tree.shard(rank, 5, 2), shard_bytes(tensors, "ckpt"))
        seal_whole(tree.checkpoint)
        (tree.output / tree.shard(0, 5, 2)).replace(tree.output / tree.shard(1, 5, 2))
        tree.file(tree.shard(0, 5, 2), b"torn")
        (verdict,) = verdicts(tree.checkpoint, Level.CHECKSUM)
        codes = [finding.code for finding in verdict.findings if finding.ranks == (1,)]
        assert codes == [Code.CHECKSUM_MISMATCH, Code.SCHEMA_DIFFERS]
        (told,) = [finding for finding in verdict.findings if "under another name" in finding.message]
        assert f"has the content that was sealed as rank_0/{Path(tree.shard(0, 5, 2)).name} on " in told.message

    def test_sizes_and_headers_are_compared_without_reading_tensors(self, sealed: TreeBuilder) -> None:
        """The same names and shapes on all ranks as if the training had changed: only the manifest knows better."""
        for rank in range(3):
            path = sealed.output / sealed.shard(rank, 10, 2)
            path.write_bytes(path.read_bytes().replace(b"dense.bias", b"dense.bics"))
        assert bad(sealed.checkpoint) == {"10_2": {Code.CHECKSUM_MISMATCH}}
        for rank in range(3):
            path = sealed.output / sealed.shard(rank, 10, 2)
            tensors = [*weights(), *training_scalars(epoch=10, true_step=20), floats("more", [4])]
            path.write_bytes(shard_bytes(tensors, "ckpt"))
        assert bad(sealed.checkpoint) == {"10_2": {Code.CHECKSUM_MISMATCH}}

    def test_a_rank_that_is_gone_is_missed_even_where_no_name_tells_of_it(self, sealed: TreeBuilder) -> None:
        sealed.remove("checkpoint/rank_2")
        lost = {Code.RANK_MISSING, Code.SHARD_MISSING}
        missing = {path for code, path in found(verdicts(sealed.checkpoint)) if code in lost}
        assert missing == {f"rank_2/llama2_7b_rank_2-{epoch}_2.ckpt" for epoch in (5, 10)}

    def test_a_shard_that_the_listing_misses_already_is_said_once(self, sealed: TreeBuilder) -> None:
        sealed.remove(sealed.shard(1, 10, 2))
        paths = [path for code, path in found(verdicts(sealed.checkpoint)) if code is Code.SHARD_MISSING]
        assert paths == ["rank_1/llama2_7b_rank_1-10_2.ckpt"]

    def test_files_of_a_rank_that_cannot_be_listed_are_unknown_not_missing(self, sealed: TreeBuilder) -> None:
        if os.geteuid() == 0:
            pytest.skip("root may list everything")
        (sealed.checkpoint / "rank_1").chmod(0)
        codes = {code for code, _ in found(verdicts(sealed.checkpoint))}
        (sealed.checkpoint / "rank_1").chmod(0o755)
        assert Code.SHARD_MISSING not in codes

    @pytest.mark.parametrize("torn", [b"", b'{"schema": "ckpttool/manifest/9"}'])
    def test_a_manifest_that_cannot_be_believed_verifies_nothing_and_is_a_note_for_headers_alone(
        self, sealed: TreeBuilder, torn: bytes
    ) -> None:
        for path in sealed.checkpoint.rglob(".ckpttool/*.json"):
            path.write_bytes(torn)
        disbelieved = {Code.MANIFEST_UNREADABLE, Code.MANIFEST_NEWER}
        headers, content = verdicts(sealed.checkpoint), verdicts(sealed.checkpoint, Level.CHECKSUM)
        said = [one.severity for verdict in headers for one in verdict.findings if one.code in disbelieved]
        assert set(said) == {Severity.NOTE}
        assert found(headers) == []
        assert VerdictWord.VERIFIED not in {verdict.word for verdict in content}
        assert {code for code, _ in found(content)} <= disbelieved
        assert found(content)

    def test_the_newer_layout_keeps_its_manifest_beside_the_shards(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path, world=2).iteration(step=10).iteration(step=20)
        seal_whole(tree.checkpoint)
        assert set(words(tree.checkpoint, Level.CHECKSUM).values()) == {VerdictWord.VERIFIED}
        (manifest,) = tree.checkpoint.glob("iteration_00000020/**/ckpttool.manifest.json")
        assert json.loads(manifest.read_bytes())["checkpoint"] == "iteration_00000020"


class TestMemory:
    """What was verified is not read again for a while; whatever changed is."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> TreeBuilder:
        tree = TreeBuilder(tmp_path).legacy(ranks=3, fmt="safetensors").save(epoch=5, step=2).save(epoch=10, step=2)
        for path in tree.checkpoint.rglob("*.safetensors"):
            tree.file(str(path.relative_to(tree.output)), with_crc("", path.read_bytes()))
        return tree

    def judged(self, tree: TreeBuilder, *, max_age: float | None = 3600.0) -> Verdict:
        (verdict,) = verdicts(tree.output, Level.CHECKSUM, "10_2", max_age=max_age)
        return verdict

    def test_an_unchanged_checkpoint_is_verified_without_reading_it(self, tree: TreeBuilder) -> None:
        first, second = self.judged(tree), self.judged(tree)
        assert (first.word, second.word) == (VerdictWord.VERIFIED, VerdictWord.VERIFIED)
        assert first.bytes_read > 0 == second.bytes_read
        assert [report.remembered for report in second.reports] == [True] * 3
        assert self.judged(tree, max_age=None).bytes_read == first.bytes_read

    def test_a_shard_that_changed_is_read_and_the_others_are_not(self, tree: TreeBuilder) -> None:
        self.judged(tree)
        flip(tree.output / tree.shard(1, 10, 2), -100)
        verdict = self.judged(tree)
        assert [report.remembered for report in verdict.reports] == [True, False, True]
        assert found([verdict]) == [(Code.CHECKSUM_MISMATCH, "rank_1/llama2_7b_rank_1-10_2.safetensors")]

    def test_a_whole_shard_among_remembered_ones_is_not_accused(self, tree: TreeBuilder) -> None:
        self.judged(tree)
        path = tree.output / tree.shard(1, 10, 2)
        tree.touch(str(path.relative_to(tree.output)), tree.now_ns + 1)
        verdict = self.judged(tree)
        assert [report.remembered for report in verdict.reports] == [True, False, True]
        assert verdict.findings == ()
