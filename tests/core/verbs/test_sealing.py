"""To seal writes what is whole, blesses no damage, and loses nothing that was recorded, whoever else seals."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

import ckpttool
from ckpttool import __version__
from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.health import HealthBook
from ckpttool.core.domain.manifest import Manifest, Sealing
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.question import CheckQuestion
from ckpttool.core.domain.retention import PruneOrder, RetentionPolicy
from ckpttool.core.domain.verdict import Level, Verdict
from ckpttool.core.errors import LockedError, NotDurableError, UnsafeError, WriteFailedError
from ckpttool.core.records.manifest import read_manifest
from ckpttool.core.storage.local import LocalStorage
from ckpttool.core.verbs import sealing as seal_module
from ckpttool.core.verbs.scanning import Tree
from ckpttool.core.verbs.sealing import seal_checkpoint
from ckpttool.core.verify.engines.waiting import WaitingEngine
from ckpttool.core.verify.plan import plan_checks
from ckpttool.core.verify.report import collect
from ckpttool.core.verify.session import reports_of
from ckpttool.core.write.files import locked
from ckpttool.trainers.base import ScanOptions
from ckpttool.trainers.locate import locate
from ckpttool.trainers.mindformers.layouts.names import ITERATION_LAYOUT
from tests.support import trees
from tests.support.answers import codes
from tests.support.faulty_storages import layout_of
from tests.support.inventories import finding
from tests.support.shard_writers import crc_trailer
from tests.support.trees import TreeBuilder, training_scalars, weights

FIRST = "2023-11-14T22:13:20Z"
NOW = 1_700_000_000.9
LATER = 1_700_000_060.0


def scanned(root: Path) -> Inventory:
    located = locate(str(root))
    return located.layout.scan(located.storage, located.listing, ScanOptions(sizes=True))


def read_whole(inventory: Inventory, checkpoint: Checkpoint) -> Verdict:
    tasks = plan_checks(inventory.root, checkpoint, Level.CHECKSUM, hashes=True)
    return collect(checkpoint, reports_of(tasks, WaitingEngine()), Level.CHECKSUM)


def tree_of(inventory: Inventory) -> Tree:
    layout = layout_of(inventory.layout)
    storage = LocalStorage(inventory.root)
    book = HealthBook(path=None, records=())
    return Tree(inventory=inventory, layout=layout, storage=storage, focus=None, resolved_from=None, book=book)


def sealed(root: Path, now: float = NOW, *, name: str | None = None, reseal: bool = False) -> Sealing:
    inventory = scanned(root)
    checkpoint = next(one for one in reversed(inventory.checkpoints) if name in {None, one.name})
    verdict = read_whole(inventory, checkpoint)
    return seal_checkpoint(tree_of(inventory), checkpoint, verdict, now=now, reseal=reseal)


def recorded(root: Path) -> Manifest:
    inventory = scanned(root)
    place = tree_of(inventory).seal_place(inventory.checkpoints[-1])
    assert place is not None
    found = read_manifest(LocalStorage(inventory.root), place)
    assert isinstance(found, Manifest)
    return found


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def flip(path: Path, at: int = 100) -> None:
    """Flip a bit in the first tensor's data, which nothing but a checksum sees."""
    trees.flip(path, at)


@pytest.fixture
def tree(tmp_path: Path) -> TreeBuilder:
    return TreeBuilder(tmp_path).legacy(ranks=2).save(epoch=1, step=2)


def shard_of(tree: TreeBuilder, rank: int = 1) -> Path:
    return tree.output / tree.shard(rank, 1, 2)


def test_a_whole_checkpoint_is_recorded_as_it_is(tree: TreeBuilder) -> None:
    answer = sealed(tree.checkpoint)
    assert (answer.checkpoint, answer.written, answer.findings) == ("1_2", True, ())
    assert answer.path == ".ckpttool/llama2_7b-1_2.ckpt.manifest.json"
    assert answer.manifest == recorded(tree.checkpoint)
    found = recorded(tree.checkpoint)
    assert (found.sealed_at, found.sealed_by) == (FIRST, __version__)
    assert [one.path for one in found.shards] == [tree.shard(rank, 1, 2)[len("checkpoint/") :] for rank in (0, 1)]
    one = found.shards[0]
    assert one.size == shard_of(tree).stat().st_size
    assert one.chunks == (one.xxh3_128,)
    assert (dict(one.scalars)["step_num"], one.first_seen) == (2, FIRST)


@pytest.mark.parametrize(
    ("fixture", "below"),
    [
        ("health_pp2", "output/checkpoint"),
        ("sink2_safetensors", "output/checkpoint"),
        ("newfmt_4rank", "output/checkpoint"),
        ("newfmt_1rank", "output/checkpoint"),
    ],
)
def test_real_trees_are_sealed_and_scanned_afterwards_as_before(
    copy_tree: Callable[[str], Path], fixture: str, below: str
) -> None:
    root = copy_tree(fixture) / below
    before = scanned(root)
    answer = sealed(root)
    assert answer.written, answer.findings
    assert answer.manifest == recorded(root)
    assert scanned(root) == before


def test_a_unified_checkpoint_keeps_its_manifest_beside_its_parts(copy_tree: Callable[[str], Path]) -> None:
    root = copy_tree("unified") / "merged"
    inventory = scanned(root)
    (checkpoint,) = inventory.checkpoints
    # The real one was merged from weights alone: what is said about its training scalars is not the point here.
    verdict = replace(read_whole(inventory, checkpoint), findings=())
    answer = seal_checkpoint(tree_of(inventory), checkpoint, verdict, now=NOW)
    assert (answer.path, answer.written) == ("ckpttool.manifest.json", True)
    assert answer.manifest == recorded(root)
    assert scanned(root) == inventory


def test_to_seal_twice_writes_once(tree: TreeBuilder) -> None:
    sealed(tree.checkpoint)
    before = snapshot(tree.checkpoint)
    answer = sealed(tree.checkpoint, LATER)
    assert (answer.written, answer.findings, answer.manifest) == (False, (), recorded(tree.checkpoint))
    assert snapshot(tree.checkpoint) == before


def test_what_differs_is_reported_and_the_old_value_stays(tree: TreeBuilder) -> None:
    sealed(tree.checkpoint)
    before = recorded(tree.checkpoint)
    flip(shard_of(tree))
    answer = sealed(tree.checkpoint, LATER)
    assert codes(answer.findings) == {Code.CHECKSUM_MISMATCH}
    assert (answer.manifest, answer.written) == (before, False)
    assert recorded(tree.checkpoint) == before


def test_reseal_takes_the_new_value_and_its_age(tree: TreeBuilder) -> None:
    sealed(tree.checkpoint)
    flip(shard_of(tree))
    answer = sealed(tree.checkpoint, LATER, reseal=True)
    assert answer.written
    assert [(each.code, each.severity) for each in answer.findings] == [(Code.CHECKSUM_MISMATCH, Severity.NOTE)]
    assert [one.first_seen for one in recorded(tree.checkpoint).shards] == [FIRST, "2023-11-14T22:14:20Z"]
    assert sealed(tree.checkpoint, LATER, reseal=True).findings == ()


def test_damage_is_not_blessed(tree: TreeBuilder) -> None:
    tree.truncate(tree.shard(1, 1, 2), 600)
    before = snapshot(tree.checkpoint)
    answer = sealed(tree.checkpoint)
    assert (answer.manifest, answer.written) == (None, False)
    assert any(one.severity is Severity.DAMAGE for one in answer.findings)
    assert snapshot(tree.checkpoint) == before


@pytest.mark.parametrize("severity", [Severity.SUSPECT, Severity.UNKNOWN, Severity.DAMAGE, Severity.UNSAFE])
def test_whatever_weighs_more_than_a_note_stands_against_it(tree: TreeBuilder, severity: Severity) -> None:
    inventory = scanned(tree.checkpoint)
    verdict = read_whole(inventory, inventory.checkpoints[0])
    against = finding(severity=severity)
    note = finding(severity=Severity.NOTE)
    answer = seal_checkpoint(
        tree_of(inventory),
        inventory.checkpoints[0],
        replace(verdict, findings=(*verdict.findings, note, against)),
        now=NOW,
        reseal=True,
    )
    assert (answer.manifest, answer.findings) == (None, (against,))
    assert not (tree.checkpoint / ".ckpttool").exists()


def with_crc(tree: TreeBuilder, *, right: bool) -> None:
    path = shard_of(tree)
    body = path.read_bytes()
    trailer = crc_trailer(body)
    path.write_bytes(body + (trailer if right else trailer[:-1] + bytes([trailer[-1] ^ 1])))
    assert zlib.crc32(body) == int.from_bytes(trailer[-10:], "big")


def test_a_checksum_inside_that_does_not_match_is_not_blessed(tree: TreeBuilder) -> None:
    with_crc(tree, right=False)
    answer = sealed(tree.checkpoint, reseal=True)
    assert answer.manifest is None
    assert codes(answer.findings) == {Code.CHECKSUM_MISMATCH}
    assert not (tree.checkpoint / ".ckpttool").exists()


def test_a_seal_says_how_many_shards_nothing_proved_before_it(tree: TreeBuilder) -> None:
    assert sealed(tree.checkpoint).unproven == 2
    assert sealed(tree.checkpoint).unproven == 0  # an earlier seal proves them
    shard_of(tree).write_bytes(shard_of(tree).read_bytes() + crc_trailer(shard_of(tree).read_bytes()))
    assert sealed(tree.checkpoint, reseal=True).unproven == 0


def test_a_checksum_inside_that_matches_is_sealed_over(tree: TreeBuilder) -> None:
    with_crc(tree, right=True)
    assert sealed(tree.checkpoint).written


def test_a_shard_without_a_digest_is_a_mistake_of_the_caller(tree: TreeBuilder) -> None:
    inventory = scanned(tree.checkpoint)
    (checkpoint,) = inventory.checkpoints
    verdict = collect(
        checkpoint,
        reports_of(plan_checks(inventory.root, checkpoint, Level.CHECKSUM), WaitingEngine()),
        Level.CHECKSUM,
    )
    if all(report.digest is None for report in verdict.reports):
        with pytest.raises(ValueError, match="not hashed"):
            seal_checkpoint(tree_of(inventory), checkpoint, verdict, now=NOW)
    without = replace(read_whole(inventory, checkpoint), reports=verdict.reports[:1])
    with pytest.raises(ValueError, match="does not cover all its shards"):
        seal_checkpoint(tree_of(inventory), checkpoint, without, now=NOW)


@pytest.mark.parametrize("harm", [b"", b"{", b"\0" * 100])
def test_a_manifest_that_cannot_be_believed_stays_until_reseal(tree: TreeBuilder, harm: bytes) -> None:
    path = tree.checkpoint / sealed(tree.checkpoint).path
    path.write_bytes(harm)
    answer = sealed(tree.checkpoint, LATER)
    assert (answer.manifest, codes(answer.findings)) == (None, {Code.MANIFEST_UNREADABLE})
    assert path.read_bytes() == harm
    assert sealed(tree.checkpoint, LATER, reseal=True).written
    assert recorded(tree.checkpoint).sealed_at == "2023-11-14T22:14:20Z"


def test_a_newer_manifest_stays_even_at_a_reseal(tree: TreeBuilder) -> None:
    path = tree.checkpoint / sealed(tree.checkpoint).path
    newer = path.read_bytes().replace(b"manifest/1", b"manifest/2")
    path.write_bytes(newer)
    answer = sealed(tree.checkpoint, LATER, reseal=True)
    assert (answer.manifest, codes(answer.findings)) == (None, {Code.MANIFEST_NEWER})
    assert path.read_bytes() == newer


@pytest.mark.parametrize("change", [Path.unlink, flip])
def test_a_file_that_changes_between_reading_and_sealing_is_not_sealed(
    tree: TreeBuilder, change: Callable[[Path], None]
) -> None:
    inventory = scanned(tree.checkpoint)
    (checkpoint,) = inventory.checkpoints
    verdict = read_whole(inventory, checkpoint)
    change(shard_of(tree))
    answer = seal_checkpoint(tree_of(inventory), checkpoint, verdict, now=NOW)
    assert (answer.manifest, codes(answer.findings)) == (None, {Code.CHANGED_WHILE_READING})
    assert not (tree.checkpoint / answer.path).exists()


def test_a_link_in_the_place_of_the_manifest_is_not_written_through(tree: TreeBuilder, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    folder = tree.checkpoint / ".ckpttool"
    folder.mkdir()
    (folder / "llama2_7b-1_2.ckpt.manifest.json").symlink_to(tmp_path / "precious")
    with pytest.raises(UnsafeError, match="symbolic link"):
        sealed(tree.checkpoint, reseal=True)
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_nothing_is_written_through_a_link_that_leaves_the_tree(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path / "here", world=2).iteration(step=2)
    folder = tree.checkpoint / "iteration_00000002"
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    before = snapshot(elsewhere)
    with pytest.raises(UnsafeError, match="a folder outside the tree"):
        sealed(tree.checkpoint)
    assert snapshot(elsewhere) == before


def test_our_folder_may_be_no_link(tree: TreeBuilder, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tree.checkpoint / ".ckpttool").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WriteFailedError, match="symbolic link"):
        sealed(tree.checkpoint)
    assert snapshot(tmp_path / "elsewhere") == {}


def test_a_sealer_waits_for_another_and_then_says_so(tree: TreeBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal_module, "PATIENCE_SECONDS", 0.0)
    sealed(tree.checkpoint)
    flip(shard_of(tree))
    before = snapshot(tree.checkpoint)
    with (
        locked(f"{tree.checkpoint}/.ckpttool/seal", timeout=0),
        pytest.raises(LockedError, match="another ckpttool"),
    ):
        sealed(tree.checkpoint, LATER, reseal=True)
    assert snapshot(tree.checkpoint) == before


def all_at_once(works: Iterable[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_sealers_beside_one_another_lose_nothing(tmp_path: Path) -> None:
    ranks = 8
    tree = TreeBuilder(tmp_path).legacy(ranks=ranks).save(epoch=1, step=2)
    inventory = scanned(tree.checkpoint)
    (checkpoint,) = inventory.checkpoints

    def seal_one(index: int) -> None:
        """Seal as a process that saw only one rank's folder, because the others had not been copied yet."""
        part = replace(checkpoint, shards=checkpoint.shards[index : index + 1])
        seal_checkpoint(tree_of(inventory), part, read_whole(inventory, part), now=NOW + index)

    all_at_once(lambda index=index: seal_one(index) for index in range(ranks))  # type: ignore[misc]
    found = recorded(tree.checkpoint)
    assert [one.path for one in found.shards] == sorted(shard.path for shard in checkpoint.shards)
    assert len({one.first_seen for one in found.shards}) == ranks


_SEAL_IN_ANOTHER_PROCESS = """
import os, sys
from pathlib import Path
from tests.core.verbs.test_sealing import LATER, sealed
fatal = sys.argv[2]
if fatal:
    setattr(os, fatal, lambda *_, **__: os._exit(9))
sealed(Path(sys.argv[1]), LATER + int(sys.argv[3]), reseal=True)
"""


def seal_in_another_process(root: Path, *, killed_at: str = "", later: int = 0) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _SEAL_IN_ANOTHER_PROCESS, str(root), killed_at, str(later)],
        cwd=Path(__file__).parents[3],
    )


def test_processes_that_seal_at_the_same_time_leave_one_whole_manifest(tree: TreeBuilder) -> None:
    sealed(tree.checkpoint)
    flip(shard_of(tree))
    processes = [seal_in_another_process(tree.checkpoint, later=later) for later in range(2)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    first, second = recorded(tree.checkpoint).shards
    # Whoever came first took the new value; to the others nothing was new.
    assert first.first_seen == FIRST
    assert second.first_seen in {f"2023-11-14T22:14:2{later}Z" for later in range(2)}


@pytest.mark.sample(1)
@pytest.mark.parametrize("call", ["replace", "fsync", "write"])
def test_a_kill_before_the_rename_leaves_the_old_manifest(tree: TreeBuilder, call: str) -> None:
    sealed(tree.checkpoint)
    before = recorded(tree.checkpoint)
    flip(shard_of(tree))
    assert seal_in_another_process(tree.checkpoint, killed_at=call).wait(timeout=60) == 9
    assert recorded(tree.checkpoint) == before
    # What the dead one left behind is in nobody's way.
    assert sealed(tree.checkpoint, LATER, reseal=True).written


def test_a_failure_before_the_rename_leaves_the_old_manifest_and_nothing_else(
    tree: TreeBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed(tree.checkpoint)
    flip(shard_of(tree))
    before = snapshot(tree.checkpoint)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sealed(tree.checkpoint, LATER, reseal=True)
    assert snapshot(tree.checkpoint) == before


def test_a_folder_that_does_not_reach_the_disk_is_said(tree: TreeBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed(tree.checkpoint)
    flip(shard_of(tree))
    real, calls = os.fsync, []

    def third_fails(fd: int) -> None:  # our folder's parent, the file, our folder
        calls.append(fd)
        if len(calls) == 3:
            raise OSError(5, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fsync", third_fails)
    with pytest.raises(NotDurableError):
        sealed(tree.checkpoint, LATER, reseal=True)
    assert recorded(tree.checkpoint).sealed_at != FIRST


def test_every_checkpoint_of_a_tree_has_its_own_manifest(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path).legacy(ranks=1)
    for run in (0, 1):
        tree.save(epoch=1, step=2, run=run, scalars=training_scalars(epoch=1, true_step=2 + run))
    tree.save(epoch=2, step=2, tensors=weights(seed=5))
    for name in ("1_2", "_1-1_2", "2_2"):
        assert sealed(tree.checkpoint, name=name).written
    assert sorted(path.name for path in (tree.checkpoint / ".ckpttool").glob("*.json")) == [
        "llama2_7b-1_2.ckpt.manifest.json",
        "llama2_7b-2_2.ckpt.manifest.json",
        "llama2_7b-_1-1_2.ckpt.manifest.json",
    ]


def test_a_manifest_that_vanishes_under_the_lock_is_written_anew(tree: TreeBuilder) -> None:
    path = tree.checkpoint / sealed(tree.checkpoint).path
    path.unlink()
    assert sealed(tree.checkpoint).written
    assert recorded(tree.checkpoint).sealed_at == FIRST


def test_the_newer_layout_keeps_the_manifest_beside_the_shards_and_the_lock_elsewhere(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path, world=2).iteration(step=2)
    answer = sealed(tree.checkpoint)
    assert answer.path == "iteration_00000002/ckpttool.manifest.json"
    assert scanned(tree.checkpoint).layout == ITERATION_LAYOUT
    assert {path.name for path in (tree.checkpoint / "iteration_00000002").iterdir() if path.suffix == ".lock"} == set()


CONVICTED = "rank_2/llama2_7b_rank_2_1-30_2.ckpt"


def spoilt(copy_tree: Callable[[str], Path], *paths: str) -> Path:
    """Return a real tree with one byte of a tensor changed alike in some files."""
    root = copy_tree("sink2_ckpt") / "output/checkpoint"
    for path in paths:
        flip(root / path, at=1000)
    return root


@pytest.mark.parametrize("verified", [True, False], ids=["verified-before", "never-verified"])
def test_seal_refuses_a_save_of_which_one_file_is_not_what_its_copies_hold(
    copy_tree: Callable[[str], Path], *, verified: bool
) -> None:
    root = spoilt(copy_tree, CONVICTED)
    if verified:
        answer = ckpttool.verify(str(root), CheckQuestion(level=Level.CHECKSUM)).answer()
        assert Code.REPLICA_DIFFERS in codes(answer.verdicts[0].findings)
    for reseal in (False, True):
        newest, *older = ckpttool.seal(str(root), "all", reseal=reseal).answer().sealings
        assert (newest.checkpoint, newest.manifest) == ("_1-30_2", None)
        (why,) = newest.findings
        assert (why.code, why.severity, why.path) == (Code.REPLICA_DIFFERS, Severity.DAMAGE, CONVICTED)
        assert "ckpttool repair shards" in str(why.remedy)
        assert all(sealing.manifest is not None and not sealing.findings for sealing in older)
    decision = ckpttool.resolve(str(root)).decision
    assert isinstance(decision, ResumePlan)
    assert decision.point.checkpoint.name == "_1-25_2"
    pruned = ckpttool.prune(str(root), RetentionPolicy(keep_last=1), PruneOrder(grace=0, apply=True))
    assert [save.name for save in pruned.plan.good] == ["_1-25_2"]


def test_a_conviction_stands_when_seal_sees_no_copy_that_says_it_again(copy_tree: Callable[[str], Path]) -> None:
    root = spoilt(copy_tree, CONVICTED)
    ckpttool.verify(str(root), CheckQuestion(level=Level.CHECKSUM)).answer()
    for path in root.glob("rank_*/*"):
        if "1-30_2" not in path.name:
            path.unlink()
    (newest,) = ckpttool.seal(str(root)).sealings
    assert newest.manifest is None
    assert Code.FOUND_DAMAGED in codes(newest.findings)
    flip(root / CONVICTED, at=1000)
    (newest,) = ckpttool.seal(str(root)).sealings
    assert newest.manifest is not None


def test_seal_refuses_a_save_whose_copies_tie_and_takes_one_whose_copies_agree(
    copy_tree: Callable[[str], Path],
) -> None:
    one, two = (f"rank_{rank}/llama2_7b_rank_{rank}_1-30_2.ckpt" for rank in (2, 3))
    root = spoilt(copy_tree, one, two)
    newest, before, *_ = ckpttool.seal(str(root), "all").answer().sealings
    assert newest.manifest is None
    assert {Code.REPLICA_DIFFERS} == codes(newest.findings)
    assert before.manifest is not None


def test_what_was_sealed_when_it_was_whole_is_sealed_again_though_a_copy_was_damaged_since(
    copy_tree: Callable[[str], Path],
) -> None:
    root = spoilt(copy_tree)
    (whole,) = ckpttool.seal(str(root)).sealings
    assert whole.written
    flip(root / CONVICTED, at=1000)
    (again,) = ckpttool.seal(str(root)).sealings
    assert again.manifest in {None, whole.manifest}
    assert {finding.path for finding in again.findings} == {CONVICTED}
