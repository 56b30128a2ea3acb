"""Shards rebuilt from another rank's that is proven to hold the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ckpttool import api
from ckpttool.domain.exits import of_healing
from ckpttool.domain.finding import Code
from ckpttool.domain.healing import Healing, HealOrder, SameSlice, Trust
from ckpttool.domain.units import Rank
from ckpttool.errors import ExitCode
from tests.conftest import FIXTURES


def copied(fixture: str, folder: Path) -> Path:
    """A copy of a real tree's checkpoint folder."""
    shutil.copytree(FIXTURES / fixture / "output", folder / "output")
    return folder / "output" / "checkpoint"


def asked(tree: Path, name: str | None = None, *, donor: int | None = None) -> Healing:
    return api.heal(str(tree), HealOrder(checkpoint=name, donor=None if donor is None else Rank(donor)))


def flip(path: Path, at: int) -> None:
    """Flip one bit."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)


@pytest.mark.parametrize("fixture", ["sink2_ckpt", "sink2_safetensors"])
@pytest.mark.parametrize("rank", range(4))
def test_a_lost_shard_is_found_on_a_rank_that_was_equal_at_two_other_steps(
    fixture: str, rank: int, tmp_path: Path
) -> None:
    tree = copied(fixture, tmp_path)
    (lost,) = (tree / f"rank_{rank}").glob(f"*_rank_{rank}-20_2.*")
    lost.unlink()
    (found,) = asked(tree, "20_2").shards
    assert found.sick.is_missing
    assert str(tree / found.sick.path) == str(lost)
    assert found.donor is not None
    assert found.donor.rank == (0 if rank else 1)
    assert (found.donor.same, found.donor.witnesses) == (SameSlice.LEARNED, ("15_2", "10_2"))
    assert found.donor.trust is Trust.COPY


def test_after_a_lone_resume_one_other_step_is_too_few(tmp_path: Path) -> None:
    tree = copied("sink2_ckpt", tmp_path)
    (tree / "rank_3/llama2_7b_rank_3_1-30_2.ckpt").unlink()
    healing = asked(tree)
    assert of_healing(healing) is ExitCode.NOTHING_TO_RESUME
    (found,) = healing.shards
    assert found.refusal is not None
    assert "rank 0 was equal at 1 other checkpoint of the run" in found.refusal.message


@pytest.mark.parametrize("rank", range(4))
def test_the_newer_layout_s_record_tells_tensor_parallel_neighbours_from_copies(rank: int, tmp_path: Path) -> None:
    tree = copied("newfmt_tp2dp2", tmp_path)
    for lost in tree.glob(f"iteration_00000030/*-{rank:07}-0000004.safetensors"):
        lost.unlink()
    healing = asked(tree)
    assert [(found.sick.rank, found.sick.role.value) for found in healing.shards] == [
        (rank, "model"),
        (rank, "optimizer"),
    ]
    for found in healing.shards:
        assert found.donor is not None
        assert (found.donor.rank, found.donor.same) == ((rank + 2) % 4, SameSlice.RECORDED)
        assert (found.donor.record, found.donor.trust) == ("iteration_00000030/metadata.json", Trust.NUMERICS)
    for neighbour in {0, 1, 2, 3} - {rank, (rank + 2) % 4}:
        refused = asked(tree, donor=neighbour).shards[0].refusal
        assert refused is not None
        assert f"rank {neighbour} holds another slice of" in refused.message


def test_without_its_record_one_other_step_does_not_tell_them(tmp_path: Path) -> None:
    tree = copied("newfmt_tp2dp2", tmp_path)
    (tree / "iteration_00000030/metadata.json").unlink()
    (tree / "iteration_00000030/llama2_7b-model-0000003-0000004.safetensors").unlink()
    healing = asked(tree)
    assert of_healing(healing) is ExitCode.NOTHING_TO_RESUME
    assert {finding.code for finding in healing.lost} == {Code.METADATA_INCOMPLETE}


def test_a_whole_checkpoint_has_nothing_to_heal(tmp_path: Path) -> None:
    healing = asked(copied("sink2_ckpt", tmp_path))
    assert (healing.shards, healing.lost, of_healing(healing)) == ((), (), ExitCode.OK)


OTHERS: dict[str, Callable[[Path], Path]] = {
    "ds_zero3_2ranks": lambda tree: next(tree.rglob("*zero_pp_rank_1*optim_states.pt")),
    "mcore_dist_tp2dp2": lambda tree: max(tree.rglob("*.distcp")),
    "dcp_fsdp2_4ranks": lambda tree: max(tree.rglob("*.distcp")),
    "hf_fsdp2ranks": lambda tree: max(tree.rglob("*.distcp")),
}


@pytest.mark.parametrize("fixture", OTHERS)
def test_a_trainer_that_saves_each_slice_once_has_no_copy_and_it_is_said(fixture: str, tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "layouts" / fixture, tmp_path / "tree")
    lost = OTHERS[fixture](tmp_path / "tree")
    lost.unlink()
    healing = api.heal(str(lost.parent), HealOrder())
    assert healing.shards == ()
    assert healing.lost
    assert [(finding.code, "saves each slice once" in finding.message) for finding in healing.refusals] == [
        (Code.NO_DONOR, True)
    ]
    assert of_healing(healing) is ExitCode.NOTHING_TO_RESUME
