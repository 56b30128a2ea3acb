"""Faults of shards and records on a disk that works: each is made on a copy of a real tree."""

from __future__ import annotations

import os
import shutil
import zipfile

from tests.faults.records import recorded_healthy
from tests.faults.scenes import (
    BEFORE,
    ITERATIONS,
    NEWEST,
    ONE_CARD,
    SAFETENSORS,
    Site,
    checksummed,
    flip,
    floats,
    large,
    large_and_sealed,
    patch_bytes,
    scene,
    sealed,
    tensor,
)

# --- ranks and files that are gone -----------------------------------------------------------------------------------


@scene(1, where="rank_2/")
def folder_gone(site: Site) -> None:
    shutil.rmtree(site.checkpoint / "rank_2")


@scene(1)
def last_folder_gone_without_a_trace(site: Site) -> None:
    shutil.rmtree(site.checkpoint / "rank_3")


@scene(1, where="rank_3/")
def last_folder_gone(site: Site) -> None:
    shutil.rmtree(site.checkpoint / "rank_3")


def _with_strategies(site: Site) -> None:
    (site.output / "strategy").mkdir()
    for rank in range(4):
        (site.output / f"strategy/ckpt_strategy_rank_{rank}.ckpt").touch()


@scene(1, where="rank_3/", prepare=_with_strategies)
def last_folder_gone_but_strategies_left(site: Site) -> None:
    shutil.rmtree(site.checkpoint / "rank_3")


@scene(38, where="")
def seen_from_one_machine_of_two(site: Site) -> None:
    for rank in (2, 3):
        shutil.rmtree(site.checkpoint / f"rank_{rank}")
    site.patch.setenv("SLURM_NNODES", "2")
    site.patch.setattr("ckpttool.core.storage.mounts.mount_table", lambda: "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n")


@scene(2, where="rank_3/", words="rank 3")
def shard_missing(site: Site) -> None:
    site.shard(3).unlink()


@scene(2, where="iteration_00000030/llama2_7b-opt-0000002", tree=ITERATIONS)
def iteration_shard_missing(site: Site) -> None:
    next(site.checkpoint.glob("iteration_00000030/*opt-0000002*")).unlink()


# --- files that were cut, emptied or zeroed --------------------------------------------------------------------------


@scene(3, tree=SAFETENSORS)
def tensors_cut(site: Site) -> None:
    os.truncate(site.shard(1), site.shard(1).stat().st_size - 100)


@scene(3, tree=SAFETENSORS)
def header_cut(site: Site) -> None:
    os.truncate(site.shard(1), 500)


@scene(4)
def cut_inside_a_tensor(site: Site) -> None:
    os.truncate(site.shard(1), tensor(site.shard(1), "dense.bias")[0] + 2)


@scene(4)
def cut_between_tensors(site: Site) -> None:
    os.truncate(site.shard(1), tensor(site.shard(1), "dense.bias")[1])


@scene(4, prepare=checksummed)
def cut_between_tensors_with_a_checksum(site: Site) -> None:
    os.truncate(site.shard(1), tensor(site.shard(1), "dense.bias")[1])


@scene(5, where="rank_2/")
def empty(site: Site) -> None:
    os.truncate(site.shard(2), 0)


def _zeroed(site: Site) -> None:
    site.shard(2).write_bytes(bytes(site.shard(2).stat().st_size))


@scene(5, where="rank_2/")
def ckpt_of_zeros(site: Site) -> None:
    _zeroed(site)


@scene(5, where="rank_2/", tree=SAFETENSORS)
def safetensors_of_zeros(site: Site) -> None:
    _zeroed(site)


@scene(5, where="rank_0/")
def power_cut_after_the_save(site: Site) -> None:
    """Every rank's meta.json names the save, and no rank's shard has a byte."""
    for path in site.shards():
        os.truncate(path, 0)


def _all_data_of_a_small_file(site: Site) -> None:
    """All of a shard's tensors became zeros, so that only what they were before tells."""
    path = next(site.checkpoint.glob("iteration_00000030/*model-0000001*"))
    begin = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    patch_bytes(path, begin, bytes(path.stat().st_size - begin))


@scene(6, where="iteration_00000030/llama2_7b-model-0000001", tree=ITERATIONS)
def zero_tail(site: Site) -> None:
    _all_data_of_a_small_file(site)


@scene(6, where="iteration_00000030/llama2_7b-model-0000001", tree=ITERATIONS, prepare=sealed)
def zero_tail_sealed(site: Site) -> None:
    _all_data_of_a_small_file(site)


@scene(6, tree=SAFETENSORS, prepare=large)
def zero_tail_over_the_training_state(site: Site) -> None:
    patch_bytes(site.shard(1), site.shard(1).stat().st_size - (64 << 10), bytes(64 << 10))


def _hole(site: Site) -> None:
    patch_bytes(site.shard(1), 512 << 10, bytes(64 << 10))


@scene(7, tree=SAFETENSORS, prepare=large, words="would not be detected")
def hole(site: Site) -> None:
    _hole(site)


@scene(7, tree=SAFETENSORS, prepare=large_and_sealed)
def hole_sealed(site: Site) -> None:
    _hole(site)


@scene(7, tree=SAFETENSORS, prepare=large_and_sealed)
def pages_swapped_sealed(site: Site) -> None:
    data = site.shard(1).read_bytes()
    patch_bytes(site.shard(1), 512 << 10, data[516 << 10 : 520 << 10] + data[512 << 10 : 516 << 10])


# --- bits that flipped -----------------------------------------------------------------------------------------------


@scene(8)
def bit_of_a_ckpt_header(site: Site) -> None:
    flip(site.shard(1), site.shard(1).read_bytes().index(b"dense.bias"))


@scene(8, prepare=large)
def bit_of_a_large_ckpt_header(site: Site) -> None:
    bit_of_a_ckpt_header(site)


@scene(8, tree=SAFETENSORS)
def bit_of_a_safetensors_header(site: Site) -> None:
    flip(site.shard(1), site.shard(1).read_bytes().index(b"dense.bias"))


@scene(8, tree=SAFETENSORS)
def bit_of_the_metadata(site: Site) -> None:
    flip(site.shard(1), site.shard(1).read_bytes().index(b'"ms"') + 1)


def _weight(site: Site) -> None:
    flip(site.shard(1), tensor(site.shard(1), "dense.bias")[0])


@scene(9, words="would not be detected")
def bit_of_a_weight(site: Site) -> None:
    _weight(site)


@scene(9, prepare=sealed, words="dense.bias")
def bit_of_a_weight_sealed(site: Site) -> None:
    _weight(site)


@scene(9, prepare=checksummed)
def bit_of_a_weight_ckpt_crc(site: Site) -> None:
    _weight(site)


@scene(9, tree=SAFETENSORS, prepare=checksummed)
def bit_of_a_weight_safetensors_crc(site: Site) -> None:
    _weight(site)


@scene(9, where="tensors.ckpt", tree="crc")
def bit_of_a_file_that_mindspore_summed(site: Site) -> None:
    flip(site.output / "tensors.ckpt", tensor(site.output / "tensors.ckpt", "")[0])


def _zip_of_torch(site: Site) -> None:
    with zipfile.ZipFile(site.output / "model.pt", "w") as archive:
        for name, content in {"data.pkl": b"\x80\x02}.", "data/0": bytes(range(256)), "version": b"3\n"}.items():
            archive.writestr(f"model/{name}", content)


@scene(9, where="model.pt", prepare=_zip_of_torch, words="model/data/0")
def bit_of_a_zip_record(site: Site) -> None:
    flip(site.output / "model.pt", (site.output / "model.pt").read_bytes().index(bytes(range(256))) + 5)


# --- values that no training leaves ----------------------------------------------------------------------------------


@scene(10, prepare=recorded_healthy)
def nan(site: Site) -> None:
    floats(site.shard(1), "dense.bias", lambda _: float("nan"))


@scene(10)
def all_zero(site: Site) -> None:
    floats(site.shard(1), "dense.bias", lambda _: 0.0)


@scene(10)
def exploded_norm(site: Site) -> None:
    floats(site.shard(1), "dense.bias", lambda old: old * 1e6)


# --- the wrong file --------------------------------------------------------------------------------------------------


@scene(11, where="iteration_00000030/llama2_7b-model-0000001", tree=ITERATIONS)
def slices_of_another_rank(site: Site) -> None:
    first, second = (next(site.checkpoint.glob(f"iteration_00000030/*model-000000{rank}-*")) for rank in (0, 1))
    assert first.read_bytes() != second.read_bytes()
    shutil.copy(first, second)


@scene(11, tree=SAFETENSORS, prepare=large)
def large_slices_of_another_rank(site: Site) -> None:
    shutil.copy(site.shard(0), site.shard(1))


@scene(11, tree=SAFETENSORS, prepare=large_and_sealed)
def large_slices_of_another_rank_sealed(site: Site) -> None:
    shutil.copy(site.shard(0), site.shard(1))


@scene(12)
def older_shard(site: Site) -> None:
    shutil.copy(site.shard(1, BEFORE), site.shard(1))


def _of_an_earlier_run(site: Site) -> None:
    """The same step once more, trained to other weights."""
    floats(site.shard(1), "dense.bias", lambda old: old * 1.25)


@scene(12)
def earlier_run_at_the_same_step(site: Site) -> None:
    _of_an_earlier_run(site)


@scene(12, prepare=sealed)
def earlier_run_at_the_same_step_sealed(site: Site) -> None:
    _of_an_earlier_run(site)


def _second_training(site: Site) -> None:
    for rank in range(4):
        for path in (site.checkpoint / f"rank_{rank}").glob("llama2_7b_*"):
            shutil.copy(path, path.with_name(path.name.replace("llama2_7b", "qwen")))


@scene(13, where="qwen")
def two_prefixes(site: Site) -> None:
    _second_training(site)


@scene(13, where="rank_3")
def node_replaced(site: Site) -> None:
    """Rank 3 went on on an empty disk: its files of the second run have no suffix, and those of the first are gone."""
    for path in (site.checkpoint / "rank_3").glob("llama2_7b_rank_3-*"):
        path.unlink()
    for label in (NEWEST, BEFORE):
        site.shard(3, label).rename(site.checkpoint / f"rank_3/llama2_7b_rank_3{label.removeprefix('_1')}.ckpt")


@scene(14, where="rank_0/")
def name_of_another_epoch(site: Site) -> None:
    for path in site.shards():
        path.rename(path.with_name(path.name.replace("_1-30_2", "_1-31_2")))


# --- shards that are well, and not what would be loaded --------------------------------------------------------------


@scene(37, where="rank_0/")
def shards_gathered_in_one_folder(site: Site) -> None:
    for rank in (1, 2, 3):
        for path in (site.checkpoint / f"rank_{rank}").glob("*.ckpt"):
            path.rename(site.checkpoint / "rank_0" / path.name)
        shutil.rmtree(site.checkpoint / f"rank_{rank}")


@scene(37)
def number_spelled_otherwise(site: Site) -> None:
    path = site.shard(1)
    path.rename(path.with_name(path.name.replace("-30_2", "-030_2")))


@scene(37, where="best.ckpt", words="move files that end in .ckpt out of")
def weights_beside_the_ranks(site: Site) -> None:
    shutil.copy(site.shard(0, BEFORE), site.checkpoint / "best.ckpt")


@scene(37, where="my_rank_7_model_rank_0", words="it looks for my_rank_0_model_rank_0")
def rank_in_the_prefix(site: Site) -> None:
    for rank in range(4):
        for path in (site.checkpoint / f"rank_{rank}").iterdir():
            content = path.read_bytes()
            path.with_name(path.name.replace("llama2_7b", "my_rank_7_model")).write_bytes(
                content.replace(b"llama2_7b", b"my_rank_7_model") if path.suffix == ".json" else content
            )
            if path.suffix != ".json":
                path.unlink()


@scene(37, where="iteration_00000030", tree=ONE_CARD)
def one_card_without_its_model(site: Site) -> None:
    next(site.checkpoint.glob("iteration_00000030/*-model-*")).unlink()


@scene(37, where="iteration_00000030", tree=ONE_CARD)
def one_card_without_any_optimizer(site: Site) -> None:
    for path in site.checkpoint.glob("*/*-opt-*"):
        path.unlink()


@scene(37, where="iteration_00000030/best.safetensors", tree=ONE_CARD)
def weights_beside_one_cards(site: Site) -> None:
    model = next(site.checkpoint.glob("iteration_00000030/*-model-*"))
    shutil.copy(model, model.with_name("best.safetensors"))
