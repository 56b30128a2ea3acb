"""A sample of what `benchmarks/detection.py` measures in full, with its bars; and trees in which nothing is wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

import pytest

from ckpttool.core.domain.verdict import Level
from tests.conftest import FIXTURES
from tests.support import fault_detection as broken
from tests.support.fault_detection import ALONE, CRC, MANIFEST, PAIR, REPLICAS, SIBLINGS, Scene
from tests.support.healthy_trees import alarms, healthy_tree

TREES = {"ckpt": "sink2_ckpt", "safetensors": "sink2_safetensors"}
FORMATS = pytest.mark.parametrize("fmt", TREES)
SAMPLE = 150
HEALTHY = 50


@cache
def scene(fmt: str, *, large: bool = False, crc: bool = False) -> Scene:
    def change(path: str, data: bytes) -> bytes:
        data = broken.megabyte(path, data) if large else data
        return broken.with_crc(path, data) if crc else data

    return broken.scene(FIXTURES / TREES[fmt] / "output", "20_2", change=change)


def sample(bits: list[int], seed: str) -> list[int]:
    return Random(seed).sample(bits, min(SAMPLE, len(bits)))  # noqa: S311  no secret


@pytest.mark.sample(2)
@FORMATS
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("crc", [False, True])
def test_whole_shards_are_left_alone_by_every_means(fmt: str, large: bool, crc: bool) -> None:
    one = scene(fmt, large=large, crc=crc)
    for level in (Level.STRUCTURE, Level.CHECKSUM):
        assert one.alone(one.data, level) == ()
        assert one.among_siblings(one.data, level) == ()
    assert one.with_manifest(one.data) == ()


@FORMATS
def test_without_a_checksum_every_flip_that_goes_unseen_lies_in_tensor_data(fmt: str) -> None:
    one = scene(fmt)
    tally = broken.count_flips(one, sample(list(range(8 * len(one.data))), fmt), broken.means_of(one))
    assert set(tally.misses[SIBLINGS]) == {"tensor data"}
    assert tally.found[MANIFEST] == tally.tried[MANIFEST] == SAMPLE
    assert tally.found[ALONE] < tally.found[SIBLINGS] < SAMPLE


@FORMATS
def test_no_bit_of_header_and_training_state_flips_unseen_beside_siblings(fmt: str) -> None:
    one = scene(fmt)
    bits = sample(broken.header_bits(one), fmt)
    tally = broken.count_flips(one, bits, broken.means_of(one))
    assert tally.found[SIBLINGS] == tally.found[MANIFEST] == len(bits)


@FORMATS
def test_with_a_checksum_no_bit_flips_unseen(fmt: str) -> None:
    one = scene(fmt, crc=True)
    tally = broken.count_flips(one, sample(list(range(8 * len(one.data))), fmt), broken.means_with_crc(one))
    assert tally.found[CRC] == SAMPLE


@pytest.mark.sample(3)
@pytest.mark.parametrize("path", sorted((FIXTURES / "crc").glob("*.[cs]*")), ids=lambda path: path.name)
def test_in_a_file_that_mindspore_wrote_with_a_checksum_no_bit_flips_unseen_even_alone(path: Path) -> None:
    tally = broken.count_loose_flips(path.name, path.read_bytes(), every=17)
    assert tally.found[CRC] == tally.found[MANIFEST] == tally.tried[CRC] > 100


@pytest.mark.slow
@FORMATS
def test_of_the_header_bits_of_a_megabyte_at_most_one_in_a_thousand_flips_unseen(fmt: str) -> None:
    one = scene(fmt, large=True)
    bits = sample(broken.header_bits(one), fmt)
    tally = broken.count_flips(one, bits, lambda data: {SIBLINGS: bool(one.among_siblings(data))})
    assert tally.found[SIBLINGS] >= 0.999 * len(bits)


@FORMATS
def test_every_cut_is_seen(fmt: str) -> None:
    one, with_crc = scene(fmt), scene(fmt, crc=True)
    tally = broken.count(list(broken.truncations(one))[::7], broken.means_of(one))
    assert tally.found[SIBLINGS] == tally.found[MANIFEST] == tally.tried[SIBLINGS]
    assert broken.count(list(broken.truncations(with_crc))[::17], broken.means_with_crc(with_crc)).misses == {}


@pytest.mark.slow
@FORMATS
@pytest.mark.parametrize(
    "breaking", [broken.zeroed_pages, broken.swapped_pages, lambda one: broken.zeroed_tails(one, 4096)]
)
def test_pages_that_are_lost_or_swapped_are_seen_unless_they_hold_tensor_data_alone(
    fmt: str, breaking: Callable[[Scene], object]
) -> None:
    one, with_crc = scene(fmt, large=True), scene(fmt, large=True, crc=True)
    files = list(breaking(one))[::10]  # type: ignore[call-overload]
    tally = broken.count(files, broken.means_of(one))
    assert set(tally.misses.get(SIBLINGS, {})) <= {"tensor data"}
    assert tally.found[MANIFEST] == len(files)
    with_crcs = list(breaking(with_crc))[::10]  # type: ignore[call-overload]
    assert broken.count(with_crcs, broken.means_with_crc(with_crc)).misses == {}


@pytest.mark.sample(1)
@FORMATS
def test_zeros_from_anywhere_to_the_end_are_seen_beside_siblings(fmt: str) -> None:
    one = scene(fmt, large=True)
    tally = broken.count(broken.zeroed_tails(one, 90_000), broken.means_of(one))
    assert tally.found[SIBLINGS] == tally.found[MANIFEST] == tally.tried[SIBLINGS]


@pytest.mark.sample(1)
@FORMATS
def test_another_ranks_shard_is_seen_beside_siblings_and_by_the_manifest(fmt: str) -> None:
    one = scene(fmt, large=True)
    for report in one.neighbours:
        assert one.alone(one.files[report.path]) == ()
        assert one.among_siblings(one.files[report.path])
        assert one.with_manifest(one.files[report.path])


@pytest.mark.sample(1)
@FORMATS
def test_a_shard_of_another_run_at_the_same_step_is_seen_by_the_manifest_alone(fmt: str) -> None:
    one = scene(fmt, large=True)
    other = broken.megabyte("another run", scene(fmt).data)
    assert one.among_siblings(other) == ()
    assert one.with_manifest(other)


# What a guard or a look for NaN wrote is a run's output without a checkpoint.
REAL_TREES = sorted(path.parent.parent.name for path in FIXTURES.glob("*/output/checkpoint"))


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("tree", REAL_TREES)
def test_a_real_tree_raises_no_alarm(tree: str, level: Level) -> None:
    assert alarms(FIXTURES / tree, level) == ()


@pytest.mark.slow
@pytest.mark.parametrize("level", Level)
def test_trees_of_every_way_of_saving_raise_no_alarm(tmp_path: Path, level: Level) -> None:
    ways = set()
    for seed in range(HEALTHY):
        folder, how = healthy_tree(tmp_path / str(seed), seed)
        ways.add(how.partition("(")[0])
        assert alarms(folder, level) == (), how
    assert ways == {"Habits", "iterations", "unified"}


def test_a_fault_in_such_a_tree_is_an_alarm(tmp_path: Path) -> None:
    """Else the test above would prove nothing."""
    folder, _ = healthy_tree(tmp_path, 7)
    shard = max((folder / "checkpoint").rglob("*_rank_*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    assert alarms(folder, Level.STRUCTURE) != ()


def test_the_checksum_that_the_tests_add_is_the_one_that_mindspore_writes() -> None:
    """Of a file that it wrote: taken off and put back."""
    data = (FIXTURES / "crc/with_scalars.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    text = data[8 : 8 + length].rstrip(b" ")
    bare = text.replace(b',"crc_num":"3200552088"', b"")
    assert bare != text
    bare += b" " * (-len(bare) % 8)
    assert broken.with_crc("", len(bare).to_bytes(8, "little") + bare + data[8 + length :]) == data
    ckpt = (FIXTURES / "crc/with_scalars.ckpt").read_bytes()
    assert broken.with_crc("", ckpt[:-17]) == ckpt


def test_a_megabyte_has_its_size_and_the_training_state_of_the_real_shard() -> None:
    one = scene("ckpt", large=True)
    assert 1 << 20 <= len(one.data) < 1.2 * (1 << 20)
    assert len(one.header()) > 250
    assert {entry.name for entry in one.header()} >= broken.SCALARS


@cache
def replicated(fmt: str, *, large: bool = False) -> Scene:
    """The scene with shards that are replicas of each other: real ones are; the large ones are made so."""

    def change(path: str, data: bytes) -> bytes:
        return broken.megabyte(path.rpartition("-")[2], data) if large else data

    return broken.scene(FIXTURES / TREES[fmt] / "output", "20_2", change=change)


@pytest.mark.sample(1)
@FORMATS
@pytest.mark.parametrize("large", [False, True])
def test_whole_replicas_are_left_alone(fmt: str, large: bool) -> None:
    one = replicated(fmt, large=large)
    assert one.beside_replicas(one.data, copies=3) == one.beside_replicas(one.data, copies=2) == ()


@pytest.mark.sample(1)
@FORMATS
def test_of_three_replicas_every_flipped_bit_is_found_in_its_file_and_of_two_it_is_noticed(fmt: str) -> None:
    one = replicated(fmt)
    bits = sample(list(range(8 * len(one.data))), fmt)
    tally = broken.count_flips(one, bits, broken.means_with_replicas(one))
    assert tally.found[REPLICAS] == tally.found[PAIR] == SAMPLE


@pytest.mark.slow
@FORMATS
@pytest.mark.parametrize("breaking", [broken.zeroed_pages, broken.swapped_pages])
def test_lost_and_swapped_pages_of_replicas_are_found(fmt: str, breaking: Callable[[Scene], object]) -> None:
    one = replicated(fmt, large=True)
    files = list(breaking(one))[::20]  # type: ignore[call-overload]
    tally = broken.count(files, broken.means_with_replicas(one))
    assert tally.found[REPLICAS] == tally.found[PAIR] == len(files)


@pytest.mark.slow
@FORMATS
def test_a_shard_of_another_run_at_the_same_step_is_found_by_replicas(fmt: str) -> None:
    one = replicated(fmt, large=True)
    other = broken.megabyte("another run", scene(fmt).data)
    assert broken.means_with_replicas(one)(other) == {REPLICAS: True, PAIR: True}
