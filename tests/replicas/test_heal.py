"""Shards rebuilt from another rank's that is proven to hold the same."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code, Severity, blocking
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.manifest import Manifest, ShardSeal
from ckpttool.core.domain.plan import NoResumePoint
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.domain.replicas import Proof, Trust
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.domain.units import Rank
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import ExitCode, IncompleteError
from ckpttool.core.formats import read_header
from ckpttool.core.records.manifest import manifest_bytes, read_manifest
from ckpttool.core.storage import open_storage
from ckpttool.core.verbs.changes import assert_unchanged
from ckpttool.core.verbs.scanning import Tree
from ckpttool.core.write.puts import lay_ready
from ckpttool.replicas import write
from ckpttool.replicas.findings import ReplicasCode
from ckpttool.replicas.model import Donor, Healing, HealOrder
from ckpttool.types import CheckQuestion
from tests.conftest import FIXTURES
from tests.support.answers import writable_copy
from tests.support.commands import ask
from tests.support.trees import TreeBuilder, flip, floats


def copied(fixture: str, folder: Path) -> Path:
    """A copy of a real tree's checkpoint folder."""
    return writable_copy(fixture, folder / "tree") / "checkpoint"


def asked(
    tree: Path, name: str | None = None, *, donor: int | None = None, tensor: str | None = None, apply: bool = False
) -> Healing:
    """Heal as the command does."""
    rank = None if donor is None else Rank(donor)
    return ckpttool.heal(str(tree), HealOrder(checkpoint=name, donor=rank, tensor=tensor, grace=0, apply=apply))


def donors(healing: Healing) -> list[Donor]:
    """What each shard would be rebuilt from."""
    found = [shard.donor for shard in healing.shards if shard.donor is not None]
    assert len(found) == len(healing.shards) > 0
    return found


def only_donor(healing: Healing) -> Donor:
    """What the only shard would be rebuilt from."""
    (donor,) = donors(healing)
    return donor


def refusal(healing: Healing) -> str:
    """Why the first shard is not rebuilt."""
    found = healing.shards[0].refusal
    assert found is not None
    return found.message


@pytest.mark.sample(3)
@pytest.mark.parametrize("fixture", ["sink2_ckpt", "sink2_safetensors"])
@pytest.mark.parametrize("rank", range(4))
def test_a_lost_shard_is_found_on_a_rank_that_was_equal_at_two_other_steps(
    fixture: str, rank: int, tmp_path: Path
) -> None:
    tree = copied(fixture, tmp_path)
    (lost,) = (tree / f"rank_{rank}").glob(f"*_rank_{rank}-20_2.*")
    lost.unlink()
    (found,) = asked(tree, "20_2").shards
    assert found.target.is_missing
    assert str(tree / found.target.path) == str(lost)
    assert found.donor is not None
    assert found.donor.rank == (0 if rank else 1)
    assert (found.donor.proof, found.donor.witnesses) == (Proof.LEARNED, ("15_2", "10_2"))
    assert found.donor.trust is Trust.COPY


def test_what_was_sealed_of_a_lost_shard_proves_its_copy_without_any_other_checkpoint(tmp_path: Path) -> None:
    tree = copied("sink2_ckpt", tmp_path)
    for other in tree.glob("rank_?/*.ckpt"):
        if not other.stem.endswith("-20_2"):
            other.unlink()
    shards = [tree / f"rank_{rank}/llama2_7b_rank_{rank}-20_2.ckpt" for rank in range(4)]
    right = shards[3].read_bytes()
    assert all(
        sealing.written for sealing in ckpttool.seal(ckpttool.scan(TreeQuestion(path=str(tree), sizes=True)), "20_2")
    )
    shards[3].unlink()
    flip(shards[1], 1000)
    flip(shards[2], 1000)
    healing = asked(tree, "20_2", apply=True)
    assert [found.target.rank for found in healing.shards] == [1, 2, 3]
    for chosen in donors(healing):
        assert (chosen.rank, chosen.proof, chosen.trust) == (0, Proof.SEALED, Trust.CHECKSUM)
    assert {shard.read_bytes() for shard in shards} == {right}
    assert asked(tree, "20_2").shards == ()


def test_two_names_of_one_file_are_no_donor_and_its_copy(tmp_path: Path) -> None:
    tree = copied("sink2_ckpt", tmp_path)
    paths = [tree / f"rank_{rank}/llama2_7b_rank_{rank}-20_2.ckpt" for rank in range(4)]
    for path in paths[1:]:
        path.unlink()
    os.link(paths[0], paths[1])
    for chosen in donors(asked(tree, "20_2")):
        assert (chosen.trust, chosen.agrees) == (Trust.NUMERICS, None)


def test_after_a_lone_resume_one_other_step_is_too_few_but_an_earlier_start_s_is_the_second(tmp_path: Path) -> None:
    tree = copied("sink2_ckpt", tmp_path)
    (tree / "rank_3/llama2_7b_rank_3_1-30_2.ckpt").unlink()
    chosen = only_donor(asked(tree))
    assert (chosen.witnesses, chosen.trust) == (("_1-25_2", "20_2"), Trust.COPY)
    for earlier in tree.glob("rank_?/*_rank_?-*.ckpt"):
        earlier.unlink()
    healing = asked(tree)
    assert healing.exit_code is ExitCode.NOTHING_TO_RESUME
    assert "ranks 0-2 were equal at 1 other checkpoint of the run" in refusal(healing)


def test_a_flipped_bit_after_a_lone_resume_is_put_right_by_what_is_whole_of_the_file(tmp_path: Path) -> None:
    tree = copied("sink2_ckpt", tmp_path)
    shard = tree / "rank_2/llama2_7b_rank_2_1-30_2.ckpt"
    before = shard.read_bytes()
    flip(shard, len(before) * 2 // 3)
    chosen = only_donor(asked(tree, apply=True))
    assert (chosen.witnesses, chosen.rest_agrees) == (("_1-25_2",), True)
    assert shard.read_bytes() == before
    assert asked(tree).shards == ()


@pytest.mark.sample(2)
@pytest.mark.parametrize("rank", range(4))
def test_the_newer_layout_s_record_tells_tensor_parallel_neighbours_from_copies(rank: int, tmp_path: Path) -> None:
    tree = copied("newfmt_tp2dp2", tmp_path)
    for lost in tree.glob(f"iteration_00000030/*-{rank:07}-0000004.safetensors"):
        lost.unlink()
    healing = asked(tree)
    assert [(found.target.rank, found.target.role.value) for found in healing.shards] == [
        (rank, "model"),
        (rank, "optimizer"),
    ]
    for chosen in donors(healing):
        assert (chosen.rank, chosen.proof) == ((rank + 2) % 4, Proof.RECORDED)
        assert (chosen.record, chosen.trust) == ("iteration_00000030/metadata.json", Trust.NUMERICS)
    for neighbour in {0, 1, 2, 3} - {rank, (rank + 2) % 4}:
        assert f"rank {neighbour} has another slice of" in refusal(asked(tree, donor=neighbour))


def test_without_its_record_one_other_step_does_not_tell_them(tmp_path: Path) -> None:
    tree = copied("newfmt_tp2dp2", tmp_path)
    (tree / "iteration_00000030/metadata.json").unlink()
    (tree / "iteration_00000030/llama2_7b-model-0000003-0000004.safetensors").unlink()
    healing = asked(tree)
    assert healing.exit_code is ExitCode.NOTHING_TO_RESUME
    assert {finding.code for finding in healing.lost} == {Code.METADATA_INCOMPLETE}


def test_a_whole_checkpoint_has_nothing_to_heal(tmp_path: Path) -> None:
    healing = asked(copied("sink2_ckpt", tmp_path))
    assert (healing.shards, healing.lost, healing.exit_code) == ((), (), ExitCode.OK)


OTHERS: dict[str, Callable[[Path], Path]] = {
    "ds_zero3_2ranks": lambda tree: next(tree.rglob("*zero_pp_rank_1*optim_states.pt")),
    "mcore_dist_tp2dp2": lambda tree: max(tree.rglob("*.distcp")),
    "dcp_fsdp2_4ranks": lambda tree: max(tree.rglob("*.distcp")),
    "hf_fsdp2ranks": lambda tree: max(tree.rglob("*.distcp")),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("fixture", OTHERS)
def test_a_trainer_that_saves_each_slice_once_has_no_copy_and_it_is_said(fixture: str, tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "layouts" / fixture, tmp_path / "tree")
    lost = OTHERS[fixture](tmp_path / "tree")
    lost.unlink()
    healing = ckpttool.heal(str(lost.parent), HealOrder())
    assert healing.shards == ()
    assert healing.lost
    assert [(finding.code, "saves each slice once" in finding.message) for finding in healing.refusals] == [
        (ReplicasCode.NO_DONOR, True)
    ]
    assert healing.exit_code is ExitCode.NOTHING_TO_RESUME


FAULTS: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "emptied": lambda path: path.write_bytes(b""),
    "zeroed": lambda path: path.write_bytes(bytes(len(path.read_bytes()))),
    "header": lambda path: flip(path, 3),
}

TREES = {
    "sink2_ckpt": ("20_2", "rank_{rank}/llama2_7b_rank_{rank}-20_2.ckpt"),
    "sink2_safetensors": ("20_2", "rank_{rank}/llama2_7b_rank_{rank}-20_2.safetensors"),
    "newfmt_tp2dp2": ("iteration_00000030", "iteration_00000030/llama2_7b-model-{rank:07}-0000004.safetensors"),
    "newfmt_4rank": ("iteration_00000030", "iteration_00000030/llama2_7b-opt-{rank:07}-0000004.safetensors"),
}


@pytest.mark.sample(7)  # of each fault, tree and rank
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("fixture", TREES)
@pytest.mark.parametrize("rank", range(4))
def test_what_is_healed_is_what_was_lost(fixture: str, rank: int, fault: str, tmp_path: Path) -> None:
    tree = copied(fixture, tmp_path)
    name, place = TREES[fixture]
    path = tree / place.format(rank=rank)
    original = path.read_bytes()
    FAULTS[fault](path)
    damaged = path.read_bytes() if path.exists() else None
    healing = asked(tree, name, apply=True)
    assert (healing.applied, healing.exit_code) == (True, ExitCode.OK)
    assert same_tensors(path.read_bytes(), original)
    if healing.trash is None:
        assert damaged is None
    else:
        assert (tree / healing.trash / path.relative_to(tree)).read_bytes() == damaged
    for level in Level:
        (verdict,) = ckpttool.verify(str(tree), CheckQuestion(level=level, name=name)).answer().verdicts
        assert blocking(verdict.findings) == ()
    again = asked(tree, name)
    assert (again.shards, again.lost) == ((), ())


def same_tensors(ours: bytes, theirs: bytes) -> bool:
    """A `.ckpt` byte for byte; of safetensors the tensors, for nobody knows in which order a header has its text."""
    if ours == theirs or ours[8:9] != b"{":
        return ours == theirs
    (a, x), (b, y) = split(ours), split(theirs)
    return x == y and json.loads(a) == json.loads(b)


def split(content: bytes) -> tuple[bytes, bytes]:
    begin = 8 + int.from_bytes(content[:8], "little")
    return content[8:begin], content[begin:]


def test_the_documentation_s_example_goes_on_where_it_was_after_healing(tmp_path: Path) -> None:
    tree = copied("sink2_ckpt", tmp_path)
    for later in tree.glob("rank_*/*_rank_?_1-*.ckpt"):
        later.unlink()
    (tree / "rank_3/llama2_7b_rank_3-20_2.ckpt").unlink()
    assert resumes(tree) == "15_2"
    healing = asked(tree, apply=True)
    assert resumes(tree) == "20_2"
    for found in (
        [finding for one in ckpttool.scan(str(tree)).inventory.checkpoints for finding in one.findings],
        ckpttool.verify(str(tree)).verdicts[0].findings,
        ckpttool.resolve(str(tree)).decision.findings,
    ):
        (told,) = [finding for finding in found if finding.code is Code.HEALED]
        assert told.path == "rank_3/llama2_7b_rank_3-20_2.ckpt"
        assert "from rank 0: its shard is a copy (they were equal at other checkpoints) and equaled" in told.message
    assert {fix.text.name for fix in healing.fixes} == {f"llama2_7b_rank_{rank}-20_2.ckpt" for rank in range(4)}
    last = json.loads((tree / "rank_3/meta.json").read_text())
    assert (last["last_epoch"], last["last_ckpt_file"]) == (20, "llama2_7b_rank_3-20_2.ckpt")
    seal = seal_of(tree, "20_2", "rank_3/llama2_7b_rank_3-20_2.ckpt")
    assert seal.healed is not None
    assert (seal.healed.rank, seal.healed.proof, seal.healed.trust) == (0, Proof.LEARNED, Trust.COPY)


def resumes(tree: Path) -> str | None:
    """The checkpoint that resolve chooses."""
    decision = ckpttool.resolve(str(tree)).decision
    return None if isinstance(decision, NoResumePoint) else decision.point.checkpoint.name


def seal_of(tree: Path, name: str, path: str) -> ShardSeal:
    """What the manifest of a save records of a file."""
    found = ckpttool.scan(str(tree))
    (checkpoint,) = [one for one in found.inventory.checkpoints if one.name == name]
    place = found.seal_place(checkpoint)
    assert place is not None
    manifest = read_manifest(found.storage, place)
    assert isinstance(manifest, Manifest)
    return manifest.by_path[path]


def manifest_without(tree: Path, name: str, path: str) -> Path:
    """Let the manifest of a checkpoint forget a file, as a file is that was never sealed; return where it lies."""
    found = ckpttool.scan(str(tree))
    (place,) = (found.seal_place(save) for save in found.inventory.checkpoints if save.name == name)
    assert place is not None
    manifest = read_manifest(open_storage(str(tree)), place)
    assert isinstance(manifest, Manifest)
    left = tuple(seal for seal in manifest.shards if seal.path != path)
    (tree / place.path).write_bytes(manifest_bytes(replace(manifest, shards=left)))
    return tree / place.path


def test_a_healed_file_looks_as_old_as_its_donor_and_keeps_its_mode(tmp_path: Path) -> None:
    tree = copied("sink2_ckpt", tmp_path)
    path, donor = (tree / f"rank_{rank}/llama2_7b_rank_{rank}-20_2.ckpt" for rank in (3, 0))
    os.utime(donor, ns=(5, 1_700_000_000_123_456_789))
    donor.chmod(0o400)
    path.unlink()
    asked(tree, "20_2", apply=True)
    assert path.stat().st_mtime_ns == donor.stat().st_mtime_ns
    assert path.stat().st_mode & 0o777 == 0o400


def test_a_sealed_save_is_healed_to_what_was_sealed_and_stays_so_when_sealed_again(tmp_path: Path) -> None:
    tree = copied("sink2_safetensors", tmp_path)
    ckpttool.seal(str(tree), "20_2").answer()
    name = "rank_2/llama2_7b_rank_2-20_2.safetensors"
    before = seal_of(tree, "20_2", name)
    flip(tree / name, (tree / name).stat().st_size - 3)
    chosen = only_donor(asked(tree, "20_2", apply=True))
    assert chosen.trust is Trust.CHECKSUM
    healed = seal_of(tree, "20_2", name)
    assert healed.same_content(before)
    assert (healed.first_seen, healed.healed is None) == (before.first_seen, False)
    ckpttool.seal(str(tree), "20_2").answer()
    again = seal_of(tree, "20_2", name)
    assert again == healed


def place_of(path: Path, tensor: str) -> int:
    """Where a tensor's bytes begin in a file."""
    with open_storage(str(path.parent)).open(path.name) as source:
        entries = read_header(source, named=FormatName.MINDSPORE_CKPT).entries
    return next(entry.spans[0][0] for entry in entries if entry.name == tensor)


def test_one_tensor_is_replaced_alone(tmp_path: Path) -> None:
    tree = copied("sink2_ckpt", tmp_path)
    path = tree / "rank_1/llama2_7b_rank_1-15_2.ckpt"
    ckpttool.seal(str(tree), "15_2").answer()
    original = path.read_bytes()
    at = place_of(path, "dense.bias")
    flip(path, at)
    (found,) = asked(tree, "15_2", tensor="dense.bias", apply=True).shards
    assert found.tensor == "dense.bias"
    assert path.read_bytes() == original
    flip(path, at)
    with pytest.raises(IncompleteError, match="as rebuilt differs from its seal; nothing was changed"):
        asked(tree, "15_2", tensor="optimizer.global_step", apply=True)
    assert "it has no tensor no.such" in refusal(asked(tree, "15_2", tensor="no.such"))


def test_the_text_beside_the_tensors_is_the_rank_s_own_of_another_step(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path).legacy(ranks=3, fmt="safetensors", sparse=True)
    for epoch in (10, 15, 20):
        tree.save(epoch=epoch, step=2)
    for rank in range(3):
        for epoch in (10, 15, 20):
            path = tree.output / tree.shard(rank, epoch, 2)
            head, data = split(path.read_bytes())
            header = {"__metadata__": {"rank": str(rank), "format": "ms"}, **without_metadata(head)}
            text = json.dumps(header, separators=(",", ":")).encode()
            text += b" " * (-len(text) % 8)
            path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    path = tree.output / tree.shard(1, 20, 2)
    original = path.read_bytes()
    path.unlink()
    asked(tree.checkpoint, "20_2", apply=True)
    assert json.loads(split(path.read_bytes())[0])["__metadata__"] == {"rank": "1", "format": "ms"}
    assert path.read_bytes() == original


def without_metadata(head: bytes) -> dict[str, object]:
    header = json.loads(head)
    return {name: value for name, value in header.items() if name != "__metadata__"}


def test_of_a_large_save_only_headers_are_asked_and_it_may_be_healed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpttool.replicas.advice.CHEAP_BYTES", 0)
    tree = copied("sink2_ckpt", tmp_path)
    (tree / "rank_3/llama2_7b_rank_3_1-30_2.ckpt").unlink()
    told = [finding for finding in ckpttool.resolve(str(tree)).decision.findings if finding.code is Code.CAN_BE_HEALED]
    assert [finding.remedy for finding in told] == [f"check with ckpttool repair shards {tree} --checkpoint _1-30_2"]


@pytest.mark.parametrize(("lost", "is_promised"), [((0, 3), True), ((0, 1, 2), True), ((0, 1, 2, 3), False)])
def test_every_lost_shard_of_a_large_save_must_have_a_copy_on_a_rank_that_is_whole(
    lost: tuple[int, ...], is_promised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpttool.replicas.advice.CHEAP_BYTES", 0)
    tree = copied("sink2_ckpt", tmp_path)
    for rank in lost:
        (tree / f"rank_{rank}/llama2_7b_rank_{rank}_1-30_2.ckpt").write_bytes(b"")
    codes = {finding.code for finding in ckpttool.resolve(str(tree)).decision.findings}
    assert (Code.CAN_BE_HEALED in codes) is is_promised


def test_of_two_slices_that_lack_their_shard_the_one_without_a_copy_promises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpttool.replicas.advice.CHEAP_BYTES", 0)
    tree = TreeBuilder(tmp_path).legacy(ranks=3)
    for epoch in (10, 15, 20):
        tree.save(epoch=epoch, step=2)
        path = tree.output / tree.shard(2, epoch, 2)
        flip(path, place_of(path, "adam_m.dense.bias") + 1)
    (tree.output / tree.shard(0, 20, 2)).write_bytes(b"")
    assert Code.CAN_BE_HEALED in {finding.code for finding in ckpttool.resolve(str(tree.checkpoint)).decision.findings}
    (tree.output / tree.shard(2, 20, 2)).write_bytes(b"")
    assert Code.CAN_BE_HEALED not in {
        finding.code for finding in ckpttool.resolve(str(tree.checkpoint)).decision.findings
    }


@pytest.mark.parametrize("cut", [(0,), (0, 1, 2)])
def test_what_is_cut_short_hides_from_resolve_no_cost_of_reading_the_rest(
    cut: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = copied("sink2_ckpt", tmp_path)
    for rank in cut:
        (tree / f"rank_{rank}/llama2_7b_rank_{rank}_1-30_2.ckpt").write_bytes(b"")

    def remedies() -> list[str | None]:
        found = ckpttool.resolve(str(tree)).decision.findings
        return [finding.remedy for finding in found if finding.code is Code.CAN_BE_HEALED]

    proven = remedies()
    monkeypatch.setattr("ckpttool.replicas.advice.CHEAP_BYTES", 5_000)  # of files of 1,768 bytes
    assert remedies() == [f"check with ckpttool repair shards {tree} --checkpoint _1-30_2"]
    monkeypatch.setattr("ckpttool.replicas.advice.CHEAP_BYTES", 50_000)
    assert remedies() == proven


def test_of_tensor_parallel_neighbours_alone_nothing_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpttool.replicas.advice.CHEAP_BYTES", 0)
    tree = TreeBuilder(tmp_path).legacy(ranks=2)
    for epoch in (10, 15, 20):
        tree.save(epoch=epoch, step=2)
        path = tree.output / tree.shard(1, epoch, 2)
        flip(path, place_of(path, "adam_m.dense.bias") + 1)
    (tree.output / tree.shard(1, 20, 2)).write_bytes(b"")
    found = ckpttool.resolve(str(tree.checkpoint)).decision.findings
    assert Code.CAN_BE_HEALED not in {finding.code for finding in found}


@pytest.mark.parametrize("when", ["before it is read back", "never"])
def test_a_donor_that_changes_while_it_is_copied_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    tree = copied("sink2_ckpt", tmp_path)
    lost, donor = (tree / f"rank_{rank}/llama2_7b_rank_{rank}-20_2.ckpt" for rank in (3, 0))
    content = lost.read_bytes()
    lost.unlink()
    lay = lay_ready

    def and_then(root: str, path: str, *rest: Any, **options: Any) -> Any:  # noqa: ANN401  as it is passed on
        ready = lay(root, path, *rest, **options)
        if when != "never" and path.endswith(lost.name):
            flip(donor, 1000)
        return ready

    monkeypatch.setattr(write, "lay_ready", and_then)
    if when == "never":
        assert asked(tree, "20_2", apply=True).applied
        assert lost.read_bytes() == content
    else:
        with pytest.raises(IncompleteError, match="changed while it was read; nothing was changed"):
            asked(tree, "20_2", apply=True)
        assert not lost.exists()
        assert not [*tree.rglob("*.tmp")]


def test_a_tree_into_which_somebody_saves_after_it_was_read_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = copied("sink2_ckpt", tmp_path)
    lost = tree / "rank_3/llama2_7b_rank_3-20_2.ckpt"
    lost.unlink()

    def save_first(found: Tree, question: TreeQuestion, *, grace: float) -> None:
        shutil.copy(tree / "rank_0/llama2_7b_rank_0-20_2.ckpt", tree / "rank_0/llama2_7b_rank_0-25_2.ckpt")
        assert_unchanged(found, question, grace=grace)

    monkeypatch.setattr("ckpttool.replicas.verbs.assert_unchanged", save_first)
    with pytest.raises(IncompleteError, match="changed since the plan was made; nothing was changed"):
        asked(tree, "20_2", apply=True)
    assert not lost.exists()


def linked(path: Path, other: Path, *, symbolic: bool) -> None:
    path.unlink()
    if symbolic:
        path.symlink_to(Path("..") / other.parent.name / other.name)
    else:
        os.link(other, path)


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_damaged_file_of_two_names_becomes_two_files_and_nothing_is_written_in_a_link_s_place(
    tmp_path: Path, *, symbolic: bool
) -> None:
    tree = replicated(tmp_path, 5)
    first, second, whole = (tree / f"rank_{rank}/llama2_7b_rank_{rank}-15_2.ckpt" for rank in (0, 1, 2))
    linked(second, first, symbolic=symbolic)
    content = bytearray(first.read_bytes())
    content[content.index(b"layers.3.w") + 40] ^= 1
    with first.open("r+b") as file:  # in place, as a disk does
        file.write(content)
    healing = asked(tree, "15_2", apply=True)
    assert [(each.target.rank, each.donor and each.donor.rank) for each in healing.shards] == [(0, 2), (1, 2)]
    assert healing.applied is not symbolic
    if symbolic:
        assert [finding.message for finding in healing.refusals] == [
            "rank_1/llama2_7b_rank_1-15_2.ckpt is a link, and is not replaced"
        ]
        assert first.read_bytes() == content
    else:
        assert first.read_bytes() == second.read_bytes() == whole.read_bytes()
        assert first.stat().st_ino != second.stat().st_ino


@pytest.mark.parametrize(("alone", "donor"), [((2, 3), 2), ((3,), None)])
def test_a_rank_without_the_optimizer_s_states_is_healed_only_from_one_that_has_none_either(
    tmp_path: Path, alone: tuple[int, ...], donor: int | None
) -> None:
    """As where they are kept on the hosts of some ranks."""
    tree = replicated(tmp_path, 4, without_states=alone)
    (tree / "rank_3/llama2_7b_rank_3-15_2.ckpt").unlink()
    (healing,) = asked(tree, "15_2").shards
    assert (healing.donor and healing.donor.rank) == donor


def replicated(base: Path, ranks: int, *, without_states: Sequence[int] = ()) -> Path:
    """Three saves of copies."""
    tree = TreeBuilder(base).legacy(ranks=0)
    for epoch in (5, 10, 15):
        weights = [floats(f"layers.{number}.w", [4], seed=100 * epoch + number) for number in range(6)]
        states = [floats(f"adam_m.layers.{number}.w", [4], seed=100 * epoch + 50 + number) for number in range(6)]
        for rank in range(ranks):
            tensors = [*weights, *(() if rank in without_states else states)]
            tree.save(epoch=epoch, step=2, ranks=[rank], tensors=tensors)
    return tree.checkpoint


def of_ranks(folder: Path, *ranks: int, fixture: str = "sink2_safetensors") -> Path:
    """A real tree of replicas, with the first start's saves on some of its ranks alone."""
    tree = copied(fixture, folder)
    for path in tree.glob("rank_?"):
        if int(path.name[5:]) not in ranks:
            shutil.rmtree(path)
    for path in tree.glob("rank_?/*_rank_?_1-*"):
        path.unlink()
    return tree


def flip_weight(path: Path) -> None:
    """Flip a bit that no look at one file finds."""
    content = path.read_bytes()
    name = b"model.tok_embeddings.embedding_weight"
    with open_storage(str(path.parent)).open(path.name) as source:
        entries = read_header(source, named=FormatName.SAFETENSORS).entries
    (entry,) = (entry for entry in entries if entry.name == name.decode())
    flip(path, entry.spans[0][0])
    assert path.read_bytes() != content


def flip_trained(path: Path) -> None:
    """Flip a bit of each weight and of its optimizer state."""
    with open_storage(str(path.parent)).open(path.name) as source:
        entries = read_header(source, named=FormatName.SAFETENSORS).entries
    for entry in entries:
        if "model" in entry.name or "adam" in entry.name:
            flip(path, entry.spans[0][0])


def flip_header(path: Path) -> None:
    flip(path, 0 if path.suffix == ".ckpt" else path.read_bytes().index(b"data_offsets") + 3)


def said_of(tree: Path, name: str) -> tuple[str, dict[str, int]]:
    """The verdict by checksums, and how many copies of each shard agree."""
    (verdict,) = ckpttool.verify(str(tree), CheckQuestion(level=Level.CHECKSUM, name=name)).answer().verdicts
    return verdict.word.value, {report.path.split("/")[0]: report.copies for report in verdict.reports}


@pytest.mark.parametrize("fixture", ["sink2_safetensors", "sink2_ckpt"])
def test_data_that_are_right_are_not_replaced_by_a_copy_that_differs_when_the_header_alone_is_broken(
    fixture: str, tmp_path: Path
) -> None:
    tree = of_ranks(tmp_path, 0, 1, fixture=fixture)
    donor, target = (next(tree.glob(f"rank_{rank}/*-20_2.*")) for rank in (0, 1))
    right = target.read_bytes()
    flip_header(target)
    chosen = only_donor(asked(tree, "20_2"))
    assert chosen.trust is Trust.NUMERICS
    flip_weight(donor)
    healing = asked(tree, "20_2", apply=True)
    assert "the data of this file and of rank 0's file differ in model.tok_embeddings" in refusal(healing)
    assert healing.exit_code is ExitCode.NOTHING_TO_RESUME
    assert len([1 for before, now in zip(right, target.read_bytes(), strict=True) if before != now]) == 1


def test_a_page_that_was_lost_with_the_header_contradicts_no_copy(tmp_path: Path) -> None:
    tree = of_ranks(tmp_path, 0, 1)
    target = next(tree.glob("rank_1/*-20_2.*"))
    right = target.read_bytes()
    target.write_bytes(b"\0" * 4096 + right[4096:])
    asked(tree, "20_2", apply=True)
    assert target.read_bytes()[4096:] == right[4096:]
    assert asked(tree, "20_2").shards == ()


def test_a_third_copy_decides_where_the_data_of_two_differ(tmp_path: Path) -> None:
    tree = of_ranks(tmp_path, 0, 1, 2)
    target = next(tree.glob("rank_1/*-20_2.*"))
    right = target.read_bytes()
    flip_weight(target)
    flip_header(target)
    assert asked(tree, "20_2", apply=True).applied
    begin = 8 + int.from_bytes(right[:8], "little")
    assert target.read_bytes()[begin:] == right[begin:]


def test_a_file_and_the_one_that_it_was_rebuilt_from_never_count_as_two(tmp_path: Path) -> None:
    tree = of_ranks(tmp_path, 0, 1)
    assert said_of(tree, "20_2") == ("agreed", {"rank_0": 2, "rank_1": 2})
    next(tree.glob("rank_1/*-20_2.*")).unlink()
    assert asked(tree, "20_2", apply=True).applied
    assert said_of(tree, "20_2") == ("struct-ok", {"rank_0": 1, "rank_1": 1})
    assert said_of(tree, "15_2") == ("agreed", {"rank_0": 2, "rank_1": 2})


def test_they_outvote_no_third_rank_and_agree_with_it_as_one(tmp_path: Path) -> None:
    tree = of_ranks(tmp_path, 0, 1, 2)
    shards = [next(tree.glob(f"rank_{rank}/*-20_2.*")) for rank in range(3)]
    right = shards[2].read_bytes()
    for shard in shards[1:]:
        shard.unlink()
    flip_weight(shards[0])
    assert asked(tree, "20_2", apply=True).applied
    assert said_of(tree, "20_2") == ("struct-ok", dict.fromkeys(("rank_0", "rank_1", "rank_2"), 1))
    shards[2].write_bytes(right)  # from a backup
    seal = manifest_without(tree, "20_2", str(shards[2].relative_to(tree)))
    (verdict,) = ckpttool.verify(str(tree), CheckQuestion(level=Level.CHECKSUM, name="20_2")).answer().verdicts
    against = {(finding.severity, finding.path.split("/")[0]) for finding in blocking(verdict.findings) if finding.path}
    assert against == {(Severity.SUSPECT, f"rank_{rank}") for rank in range(3)}
    for shard in shards[:2]:
        shard.write_bytes(right)
    seal.unlink()
    assert said_of(tree, "20_2") == ("agreed", dict.fromkeys(("rank_0", "rank_1", "rank_2"), 3))


def test_a_rank_that_was_rebuilt_is_no_second_copy_that_speaks_for_its_own_donor(tmp_path: Path) -> None:
    tree = of_ranks(tmp_path, 0, 1, 2)
    shards = [next(tree.glob(f"rank_{rank}/*-20_2.*")) for rank in range(3)]
    shards[2].unlink()
    chosen = only_donor(asked(tree, "20_2"))
    assert (chosen.trust, chosen.agrees) == (Trust.COPY, 1)
    shards[1].unlink()
    assert asked(tree, "20_2", apply=True).applied  # ranks 1 and 2, both from rank 0
    shards[2].unlink()
    for donor in (None, 1):
        chosen = only_donor(asked(tree, "20_2", donor=donor))
        assert (chosen.trust, chosen.agrees) == (Trust.NUMERICS, None)


def test_three_that_were_rebuilt_from_a_wrong_donor_do_not_outvote_it_once_it_is_brought_back_right(
    tmp_path: Path,
) -> None:
    tree = of_ranks(tmp_path, 0, 1, 2, 3)
    shards = [next(tree.glob(f"rank_{rank}/*-20_2.*")) for rank in range(4)]
    right = shards[0].read_bytes()
    for shard in shards[1:]:
        shard.unlink()
    flip_weight(shards[0])
    assert asked(tree, "20_2", apply=True).applied  # nothing tells that the donor was wrong
    shards[0].write_bytes(right)  # from a backup
    (verdict,) = ckpttool.verify(str(tree), CheckQuestion(level=Level.CHECKSUM, name="20_2")).answer().verdicts
    assert {finding.severity for finding in blocking(verdict.findings)} == {Severity.SUSPECT}
    assert not asked(tree, "20_2", apply=True).healable
    assert shards[0].read_bytes() == right


def test_a_healed_file_is_verified_by_its_seal_only_once_its_donor_is_sealed_too(tmp_path: Path) -> None:
    tree = of_ranks(tmp_path, 0, 1, 2)
    shards = [next(tree.glob(f"rank_{rank}/*-20_2.*")) for rank in range(3)]
    shards[1].unlink()
    assert asked(tree, "20_2", apply=True).applied
    assert verified_ranks(tree) == set()
    (sealing,) = ckpttool.seal(str(tree), "20_2").answer().sealings
    assert sealing.manifest is not None
    assert verified_ranks(tree) == {0, 1, 2}


def test_a_healed_file_that_was_sealed_before_it_was_lost_is_verified_by_that_seal_alone(tmp_path: Path) -> None:
    tree = of_ranks(tmp_path, 0, 1, 2)
    shards = [next(tree.glob(f"rank_{rank}/*-20_2.*")) for rank in range(3)]
    assert all(sealing.written for sealing in ckpttool.seal(str(tree), "20_2").answer().sealings)
    shards[1].unlink()
    assert asked(tree, "20_2", apply=True).applied
    manifest_without(tree, "20_2", str(shards[0].relative_to(tree)))
    assert verified_ranks(tree) == {1, 2}


def verified_ranks(tree: Path) -> set[int | None]:
    question = CheckQuestion(level=Level.CHECKSUM, name="20_2")
    (verdict,) = ckpttool.verify(str(tree), question).answer().verdicts
    return {report.rank for report in verdict.reports if report.checksum_matched}


@pytest.mark.parametrize("others", [(), (2,)], ids=["of-two", "of-three"])
def test_the_seal_of_a_wrong_heal_convicts_no_donor_that_was_brought_back_right(
    tmp_path: Path, others: tuple[int, ...]
) -> None:
    tree = of_ranks(tmp_path, 0, 1, *others)
    shards = [next(tree.glob(f"rank_{rank}/*-20_2.*")) for rank in (0, 1, *others)]
    right = [shard.read_bytes() for shard in shards]
    for shard in shards[1:]:
        shard.unlink()
    flip_weight(shards[0])
    assert asked(tree, "20_2", apply=True).applied  # nothing tells that the donor was wrong
    assert seal_of(tree, "20_2", str(shards[1].relative_to(tree))).healed is not None
    manifest = manifest_without(tree, "20_2", str(shards[0].relative_to(tree)))
    shards[0].write_bytes(right[0])  # from a backup, as all others but the one that heal rebuilt
    for shard, content in [*zip(shards, right, strict=True)][2:]:
        shard.write_bytes(content)
        manifest_without(tree, "20_2", str(shard.relative_to(tree)))
    for level in (Level.CHECKSUM, Level.NUMERICS):
        (verdict,) = ckpttool.verify(str(tree), CheckQuestion(level=level, name="20_2")).answer().verdicts
        against = {finding.path: finding.severity for finding in blocking(verdict.findings)}
        assert against[str(shards[1].relative_to(tree))] is Severity.SUSPECT
        assert set(against.values()) == {Severity.SUSPECT}
    assert not asked(tree, "20_2", apply=True).healable
    assert shards[0].read_bytes() == right[0]
    (sealing,) = ckpttool.seal(str(tree), "20_2").answer().sealings
    assert sealing.manifest is None
    assert manifest.exists()


def test_the_last_sound_copy_is_called_no_damage_if_two_others_are_damaged_alike(tmp_path: Path) -> None:
    tree = of_ranks(tmp_path, 0, 1, 2, 3)
    shards = [next(tree.glob(f"rank_{rank}/*-20_2.*")) for rank in range(4)]
    for shard in shards[:2]:
        flip_weight(shard)
    shards[3].unlink()
    healing = asked(tree, "20_2", apply=True)
    assert [(shard.target.path, shard.target.is_missing) for shard in healing.shards] == [
        (str(shards[3].relative_to(tree)), True)
    ]
    assert healing.healable == ()
    (doubt,) = (finding for finding in healing.lost if finding.code is Code.REPLICA_DIFFERS)
    assert (doubt.severity, doubt.path) == (Severity.SUSPECT, str(shards[2].relative_to(tree)))
    assert "differs from its replicas on ranks 0-1 in " in doubt.message
    assert doubt.message.endswith("and only 2 of them agree: there is no proof that they are right")


@pytest.mark.parametrize(
    "saves", [1, 2], ids=["by-names-in-the-only-save", "by-half-of-the-tensors-and-one-other-save"]
)
def test_of_three_copies_the_sound_one_is_no_damage_if_nothing_proves_the_two_that_agree(
    tmp_path: Path, saves: int
) -> None:
    tree = of_ranks(tmp_path, 0, 1, 2)
    shards = [next(tree.glob(f"rank_{rank}/*-20_2.*")) for rank in range(3)]
    for path in tree.glob("rank_?/*-1?_2.*"):
        if saves == 1 or "-10_2" in path.name:
            path.unlink()
    for shard in shards[:2]:
        if saves == 1:
            flip(shard, shard.read_bytes().index(b"scale_sense") + 10)
        else:
            flip_trained(shard)
    healing = asked(tree, "20_2", apply=True)
    assert (healing.shards, healing.applied) == ((), False)
    (doubt,) = (finding for finding in healing.lost if finding.path == str(shards[2].relative_to(tree)))
    assert doubt.severity is Severity.SUSPECT
    assert "no proof" in doubt.message


@pytest.mark.parametrize("ranks", [3, 4])
def test_one_flipped_copy_of_all_three_or_four_is_damaged_and_healed(tmp_path: Path, ranks: int) -> None:
    tree = of_ranks(tmp_path, *range(ranks))
    target = next(tree.glob("rank_2/*-20_2.*"))
    right = target.read_bytes()
    flip_weight(target)
    (verdict,) = ckpttool.verify(str(tree), CheckQuestion(level=Level.CHECKSUM, name="20_2")).answer().verdicts
    assert [(finding.path, finding.severity) for finding in blocking(verdict.findings)] == [
        (str(target.relative_to(tree)), Severity.DAMAGE)
    ]
    assert asked(tree, "20_2", apply=True).applied
    assert same_tensors(target.read_bytes(), right)


@pytest.mark.parametrize("harm", ["lost", "cut short", "damaged by itself"])
def test_two_that_agree_convict_no_third_if_the_fourth_copy_cannot_testify(tmp_path: Path, harm: str) -> None:
    tree = of_ranks(tmp_path, 0, 1, 2, 3)
    shards = [next(tree.glob(f"rank_{rank}/*-20_2.*")) for rank in range(4)]
    flip_weight(shards[2])
    if harm == "lost":
        shards[3].unlink()
    elif harm == "cut short":
        shards[3].write_bytes(shards[3].read_bytes()[:-100])
    else:
        flip_header(shards[3])
    (verdict,) = ckpttool.verify(str(tree), CheckQuestion(level=Level.CHECKSUM, name="20_2")).answer().verdicts
    (doubt,) = (finding for finding in verdict.findings if finding.code is Code.REPLICA_DIFFERS)
    assert (doubt.severity, doubt.path) == (Severity.SUSPECT, str(shards[2].relative_to(tree)))
    assert doubt.message.endswith("only 2 of them agree: there is no proof that they are right")


def test_a_save_at_which_a_rank_was_rebuilt_does_not_prove_copies_at_another(tmp_path: Path) -> None:
    tree = of_ranks(tmp_path, 0, 1)
    lost = [next(tree.glob(f"rank_1/*-{name}.*")) for name in ("15_2", "10_2")]
    lost[1].rename(tmp_path / "kept")
    chosen = only_donor(asked(tree, "10_2"))
    assert (chosen.proof, chosen.witnesses) == (Proof.LEARNED, ("15_2", "20_2"))
    (tmp_path / "kept").rename(lost[1])
    lost[0].unlink()
    assert asked(tree, "15_2", apply=True).applied
    lost[1].unlink()
    assert "rank 0 was equal at 1 other checkpoint of the run" in refusal(asked(tree, "10_2"))


@pytest.mark.parametrize("healed", [(0,), ()], ids=["sealed-by-a-heal", "by-three-files"])
def test_heal_names_a_rank_that_holds_the_same_or_says_that_a_heal_wrote_the_donor(
    copy_tree: Callable[[str], Path], healed: tuple[int, ...]
) -> None:
    root = copy_tree("sink2_ckpt") / "output/checkpoint"
    for rank in healed:
        (root / f"rank_{rank}/llama2_7b_rank_{rank}_1-30_2.ckpt").unlink()
    assert ask("heal", str(root), "--apply", "--grace", "0").code == ExitCode.OK
    target = root / "rank_0/llama2_7b_rank_0_1-30_2.ckpt"
    flip(target, 1000)
    said = ask("heal", str(root), "--grace", "0").stdout
    assert "rank None" not in said
    assert ("unchanged since a heal" in said) == bool(healed)


@pytest.mark.parametrize("name", ["10_2", ("10_2", "_1-30_2"), "all"])
def test_a_damaged_copy_at_another_checkpoint_does_not_part_copies_that_agree(
    name: str | tuple[str, ...], tmp_path: Path
) -> None:
    tree = copied("sink2_safetensors", tmp_path)
    flip_weight(next(tree.glob("rank_1/*_1-30_2.*")))
    next(tree.glob("rank_2/*_1-25_2.*")).unlink()
    verification = ckpttool.verify(str(tree), CheckQuestion(level=Level.CHECKSUM, name=name)).answer()
    words = {verdict.name: verdict.word.value for verdict in verification.verdicts}
    assert words["10_2"] == "agreed"
    assert words.get("_1-30_2", "damaged") == "damaged"
