"""Faults of records, names, links, times and checksums."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from tests.faults.scenes import (
    BEFORE,
    ITERATIONS,
    NEWEST,
    Site,
    checksummed,
    flip,
    floats,
    scene,
    sealed,
    tensor,
)
from tests.support.commands import ask
from tests.support.training_logs import write_log

# --- meta.json and health_ckpts.json ---------------------------------------------------------------------------------

META = '{"last_epoch": 30, "last_step": 2, "last_ckpt_file": "llama2_7b_rank_1_1-30_2.ckpt"}'


def write_meta(site: Site, content: str, rank: int = 1) -> None:
    """Replace a rank's record."""
    (site.checkpoint / f"rank_{rank}/meta.json").write_text(content)


@scene(15)
def torn(site: Site) -> None:
    write_meta(site, META[:40])


@scene(15)
def empty_record(site: Site) -> None:
    write_meta(site, "")


@scene(15)
def key_twice(site: Site) -> None:
    write_meta(site, META.replace("{", '{"last_epoch": 25, '))


@scene(15)
def nan_for_a_number(site: Site) -> None:
    write_meta(site, META.replace("30,", "NaN,"))


@scene(15)
def flag_for_a_number(site: Site) -> None:
    write_meta(site, META.replace("2,", "true,"))


@scene(15)
def text_for_a_number(site: Site) -> None:
    write_meta(site, META.replace("30,", '"30",'))


@scene(15)
def huge_number(site: Site) -> None:
    write_meta(site, META.replace("30,", "9" * 5000 + ","))


@scene(15)
def nested(site: Site) -> None:
    write_meta(site, "[" * 10_000)


@scene(15)
def too_large(site: Site) -> None:
    write_meta(site, META + " " * 70_000)


@scene(16, where="ranks 0-3")
def meta_ahead(site: Site) -> None:
    for rank in range(4):
        site.shard(rank).unlink()


@scene(16, where="ranks 0-3")
def meta_behind(site: Site) -> None:
    for rank in range(4):
        write_meta(site, META.replace("30", "25").replace("rank_1", f"rank_{rank}"), rank)


@scene(16, where="ranks 0-3")
def meta_gone(site: Site) -> None:
    for rank in range(4):
        (site.checkpoint / f"rank_{rank}/meta.json").unlink()


@scene(16)
def meta_of_one_rank_behind(site: Site) -> None:
    write_meta(site, META.replace("30", "25"))


@scene(17)
def leads_up(site: Site) -> None:
    write_meta(site, META.replace("llama2", "../../llama2"))


@scene(17)
def absolute(site: Site) -> None:
    write_meta(site, META.replace("llama2", "/etc/llama2"))


@scene(17)
def nul(site: Site) -> None:
    write_meta(site, META.replace("llama2", "llama\\u00002"))


@scene(17)
def control_characters(site: Site) -> None:
    write_meta(site, META.replace("llama2", "\\u001b[2Jllama2"))


def _health(site: Site, *marks: tuple[str, int]) -> None:
    entries = [{"is_health": mark, "ckpt_name": f"llama2_7b_rank_0{label}.ckpt"} for label, mark in marks]
    (site.output / "health_ckpts.json").write_text(json.dumps(entries, indent=4))


LABELS = ("-10_2", "-15_2", "-20_2", BEFORE, NEWEST)


def recorded_healthy(site: Site) -> None:
    """A health file in which every checkpoint is healthy."""
    _health(site, *((label, 0) for label in LABELS))


@scene(18, where="health", prepare=recorded_healthy)
def torn_health_file(site: Site) -> None:
    path = site.output / "health_ckpts.json"
    path.write_bytes(path.read_bytes()[:-20])


@scene(18, where=NEWEST, prepare=recorded_healthy)
def contradiction(site: Site) -> None:
    _health(site, *((label, 0) for label in LABELS), (NEWEST, 1))


@scene(18, where=NEWEST, prepare=recorded_healthy)
def all_unhealthy(site: Site) -> None:
    _health(site, *((label, 1) for label in LABELS))


@scene(18, where="_7-99_2", prepare=recorded_healthy)
def names_that_were_never_written(site: Site) -> None:
    _health(site, *((label, 0) for label in LABELS), ("_7-99_2", 0))


@scene(18, where=NEWEST, prepare=recorded_healthy)
def newest_not_recorded(site: Site) -> None:
    _health(site, *((label, 0) for label in LABELS[:-1]))


# --- links, pipes, times and names -----------------------------------------------------------------------------------


def _in_place_of_a_shard(site: Site) -> Path:
    path = site.shard(1)
    path.unlink()
    return path


@scene(19)
def fifo(site: Site) -> None:
    os.mkfifo(_in_place_of_a_shard(site))


@scene(19)
def device(site: Site) -> None:
    _in_place_of_a_shard(site).symlink_to("/dev/zero")


@scene(19)
def memory_of_a_process(site: Site) -> None:
    _in_place_of_a_shard(site).symlink_to("/proc/self/mem")


@scene(19)
def loop(site: Site) -> None:
    path = _in_place_of_a_shard(site)
    path.symlink_to(path.name)


@scene(19, words="mount the disk")
def link_to_a_disk_that_is_not_mounted(site: Site) -> None:
    _in_place_of_a_shard(site).symlink_to("/mnt/not-mounted/shard.ckpt")


@scene(19, where="iteration_00000030/llama2_7b-opt-0000002", tree=ITERATIONS)
def iteration_link_to_nowhere(site: Site) -> None:
    path = next(site.checkpoint.glob("iteration_00000030/*opt-0000002*"))
    path.unlink()
    path.symlink_to("nowhere")


@scene(19)
def linked_file(site: Site) -> None:
    path = site.shard(1)
    path.rename(site.folder / path.name)
    path.symlink_to(site.folder / path.name)


@scene(19)
def hard_link(site: Site) -> None:
    (site.folder / "second-name").hardlink_to(site.shard(1))


@scene(19, where="rank_2")
def linked_folder(site: Site) -> None:
    (site.checkpoint / "rank_2").rename(site.folder / "elsewhere")
    (site.checkpoint / "rank_2").symlink_to(site.folder / "elsewhere")


@scene(19, where="rank_0/")
def link_that_would_be_pruned(site: Site) -> None:
    path = site.shard(0, "-10_2")
    path.rename(site.folder / path.name)
    path.symlink_to(site.folder / path.name)


@scene(28)
def times_reversed(site: Site) -> None:
    """The oldest checkpoint has the newest time, all are years ahead, and ranks of one have one time."""
    for path in site.checkpoint.glob("rank_*/*.ckpt"):
        seconds = 4_000_000_000 - 60 * LABELS.index(path.stem[len("llama2_7b_rank_0") :])
        os.utime(path, (seconds, seconds))


@scene(28)
def times_all_the_same(site: Site) -> None:
    for path in site.checkpoint.rglob("*"):
        os.utime(path, (0, 0))


ODD = "x\x1b[2J\x1b]0;t\x07[red]\n\u202e%s" + os.fsdecode(b"\xff")


def shown_safely(site: Site) -> None:
    """Nothing that is shown moves a cursor, and JSON gives the names back in ASCII."""
    for command in ("scan", "resolve", "verify"):
        assert [each for each in ask(command, "output").stdout if not each.isprintable() and each != "\n"] == []
        assert ask(command, "output", "--format", "json").stdout.isascii()
    assert any(ODD in path.name for path in site.checkpoint.rglob("*"))


@scene(29, where=ODD, after=shown_safely)
def odd_stray(site: Site) -> None:
    (site.checkpoint / ODD).touch()


@scene(29, where="ranks 0-3", after=shown_safely)
def odd_prefix(site: Site) -> None:
    for path in site.checkpoint.glob("rank_*/*.ckpt"):
        path.rename(path.with_name(path.name.replace("llama2_7b", ODD)))
    for path in site.checkpoint.glob("rank_*/meta.json"):
        path.unlink()


# --- checksums and manifests that are gone ---------------------------------------------------------------------------


def _strip(site: Site) -> None:
    path = site.shard(1)
    data = path.read_bytes()
    assert data[-17:-10] == b"crc_num"
    path.write_bytes(data[:-17])


@scene(34, prepare=checksummed)
def trailer_stripped(site: Site) -> None:
    _strip(site)


def checksummed_and_sealed(site: Site) -> None:
    """Checksums, and a manifest over them."""
    checksummed(site)
    sealed(site)


@scene(34, prepare=checksummed_and_sealed)
def trailer_stripped_sealed(site: Site) -> None:
    _strip(site)


@scene(34, prepare=checksummed)
def marker_flipped(site: Site) -> None:
    path = site.shard(1)
    path.write_bytes(path.read_bytes().replace(b"crc_num", b"crc_nul"))


def _again(site: Site) -> None:
    """Another weight on all ranks, for `seal` takes no copies that differ, and a manifest of that."""
    for shard in site.shards():
        flip(shard, tensor(shard, "dense.bias")[0])
    shutil.rmtree(site.checkpoint / ".ckpttool", ignore_errors=True)
    sealed(site)


@scene(35, prepare=sealed)
def shard_and_manifest_rewritten(site: Site) -> None:
    _again(site)


def logged(site: Site) -> None:
    """What the training printed, which was well."""
    _log(site, THRESHOLD / 2)


THRESHOLD = 1.0


def _log(site: Site, norm: float) -> None:
    steps = {2 * epoch: THRESHOLD / 2 for epoch in (10, 15, 20, 25)}
    write_log(site.folder / "train.log", steps | {60: norm}, embeddings=steps | {60: norm})


@scene(36, prepare=logged)
def wrong_before_the_save(site: Site) -> None:
    """A weight was wrong in memory on all ranks: it was saved so and sealed so, and the training went astray."""
    for shard in site.shards():
        floats(shard, "dense.bias", lambda old: old * 1.25)
    sealed(site)
    _log(site, THRESHOLD * 2)
