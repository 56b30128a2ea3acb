"""A manifest is believed to the last bit or not at all; and not believed is never fine, damaged or a crash."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, Row, Severity
from ckpttool.core.domain.manifest import CHUNK_BYTES, Manifest
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.records import SealPlace
from ckpttool.core.records import manifest as record
from ckpttool.core.records.hashed_json import is_intact
from ckpttool.core.records.manifest import ManifestProblem, manifest_bytes, read_manifest
from ckpttool.core.storage.local import LocalStorage
from ckpttool.trainers.base import ScanOptions
from ckpttool.trainers.common import LOOSE_FILE_LAYOUT
from ckpttool.trainers.locate import locate
from ckpttool.trainers.mindformers.layouts.names import ITERATION_LAYOUT, RANK_LAYOUT, UNIFIED_LAYOUT
from tests.support.faulty_storages import layout_of
from tests.support.inventories import checkpoint
from tests.support.manifests import NAMES, any_manifest, manifest, reworded, seal, sealed_checkpoint
from tests.support.trees import TreeBuilder

PATH = ".ckpttool/llama-10_2.ckpt.manifest.json"
PLACE = SealPlace(path=PATH, layout=RANK_LAYOUT, checkpoint="10_2", prefix="llama")
WHOLE = manifest(seal())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".ckpttool").mkdir()
    return tmp_path


class OneFile(LocalStorage):
    """A tree whose only file is in memory, for thousands of versions of it."""

    def __init__(self, data: bytes) -> None:
        super().__init__("/nowhere")
        self._data = data

    def small_file(self, path: str, *, limit: int) -> bytes:
        assert path == PATH
        assert len(self._data) <= limit
        return self._data


def place_of(layout: str, one: Checkpoint) -> SealPlace:
    place = layout_of(layout).seal_place(one)
    assert isinstance(place, SealPlace)
    return place


def read(folder: Path, data: bytes, place: SealPlace = PLACE) -> Manifest | ManifestProblem | None:
    (folder / place.path).write_bytes(data)
    return read_manifest(LocalStorage(str(folder)), place)


def assert_not_verified(found: Manifest | ManifestProblem | None, code: Row = Code.MANIFEST_UNREADABLE) -> None:
    assert isinstance(found, ManifestProblem)
    assert (found.finding.code, found.finding.severity) == (code, Severity.UNKNOWN)
    assert "not verified" in found.finding.message
    assert "\n" not in found.finding.message
    assert found.newer is (code is Code.MANIFEST_NEWER)


def test_no_manifest_is_none(tmp_path: Path) -> None:
    assert read_manifest(LocalStorage(str(tmp_path)), PLACE) is None


def test_every_flipped_bit_is_not_verified() -> None:
    whole = manifest_bytes(WHOLE)
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        found = read_manifest(OneFile(bytes(damaged)), PLACE)
        assert isinstance(found, ManifestProblem), bit
        assert found.finding.severity is Severity.UNKNOWN


def test_every_truncation_is_not_verified() -> None:
    whole = manifest_bytes(WHOLE)
    for length in range(len(whole)):
        assert_not_verified(read_manifest(OneFile(whole[:length]), PLACE))


@given(st.binary(min_size=1, max_size=80), st.booleans())
def test_whatever_is_put_before_or_behind_shows(more: bytes, before: bool) -> None:
    whole = manifest_bytes(WHOLE)
    assert is_intact(whole)
    assert not is_intact(more + whole if before else whole + more)


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 4096, b"{}", b"[]", b"null", b"\xff\xfe", b'{"hash": 1}\n', b"[" * 100_000]
)
def test_what_a_power_cut_or_a_stranger_leaves_is_not_verified(folder: Path, data: bytes) -> None:
    assert_not_verified(read(folder, data))


def test_a_newer_version_is_not_verified_even_where_nothing_of_it_is_known(folder: Path) -> None:
    newer = reworded(manifest_bytes(WHOLE), "ckpttool/manifest/1", "ckpttool/manifest/2")
    assert_not_verified(read(folder, newer), Code.MANIFEST_NEWER)
    other = b'{"schema": "ckpttool/manifest/7", "what": "ever", "hash": "sha256:00"}'
    assert_not_verified(read(folder, other), Code.MANIFEST_NEWER)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ckpttool/manifest/1", "ckpttool/manifest/0"),
        ("ckpttool/manifest/1", "ckpttool/ledger/1"),
        ('"schema": "ckpttool/manifest/1"', '"schema": true'),
        (str(CHUNK_BYTES), "1048576"),
        ('"mindformers-rank"', '"of another trainer"'),
        ('"world_size": 4', '"world_size": 0'),
        ('"world_size": 4', '"world_size": true'),
        ('"2025-01-31T23:59:59Z"', '"yesterday"'),
        ('"sealed_by": "0.1.0"', '"sealed_by": null'),
        ('"10_2"', '"15_2"'),
        ('"prefix": "llama"', '"prefix": "qwen"'),
        ('"prefix": "llama"', '"prefix": "ll%61ma"'),
        ('"path": "rank_0/', '"path": "../rank_0/'),
        ('"path": "rank_0/', '"path": "/rank_0/'),
        ('"path": "rank_0/', '"path": "rank_0/./'),
        ('"path": "rank_0/', '"path": "rank_0//'),
        ('"path": "rank_0/', '"path": "rank_0/\\u0000'),
        ('"path": "rank_0/', '"path": "%2e%2e/'),
        ('"path": "rank_0/', '"path": "\\ud800/'),
        ('"size": ', '"size": -'),
        ('"size": ', '"size": 9'),
        (f'"chunks": "{1:032x}"', '"chunks": ""'),
        (f'"chunks": "{1:032x}"', f'"chunks": "{1:032X} "'),
        (f'"xxh3_128": "{1000:032x}"', '"xxh3_128": "0"'),
        (f'"schema_hash": "{77:032x}"', '"schema_hash": "77"'),
        ('"mindspore-ckpt"', '"zip"'),
        ('"step_num": 20', '"step_num": "20"'),
        ('"step_num": 20', '"step_num": 20, "step_num": 20'),
        ('"loss_scale": 65536.0', '"loss_scale": NaN'),
        ('"shards": [', '"shards": [7, '),
        ('"shards": [', '"shards": [[[['),
    ],
)
def test_a_manifest_that_ckpttool_would_not_write_is_not_verified_whatever_its_hash(
    folder: Path, old: str, new: str
) -> None:
    assert_not_verified(read(folder, reworded(manifest_bytes(WHOLE), old, new)))


def test_more_than_the_limit_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MANIFEST_LIMIT", 100)
    assert_not_verified(read(folder, manifest_bytes(WHOLE)))


@pytest.mark.parametrize(
    "make",
    [Path.mkdir, lambda path: path.symlink_to(path.name), lambda path: path.symlink_to("/dev/zero"), os.mkfifo],
    ids=["folder", "loop", "link to a device", "pipe"],
)
def test_what_is_no_file_is_not_verified_and_nothing_waits_for_it(folder: Path, make: Callable[[Path], None]) -> None:
    make(folder / PATH)
    assert_not_verified(read_manifest(LocalStorage(str(folder)), PLACE))


def test_a_link_to_a_manifest_is_followed_for_reading(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "m.json"
    elsewhere.write_bytes(manifest_bytes(WHOLE))
    (folder / PATH).symlink_to(elsewhere)
    assert read_manifest(LocalStorage(str(folder)), PLACE) == WHOLE


def test_a_manifest_copied_to_another_checkpoint_is_not_verified(folder: Path) -> None:
    assert_not_verified(read(folder, manifest_bytes(WHOLE), place_of(RANK_LAYOUT, checkpoint("15_2"))))


def test_in_its_own_folder_a_checkpoint_is_told_by_its_name_whatever_its_files_are_called(folder: Path) -> None:
    in_own_folder = replace(PLACE, prefix=None)
    assert isinstance(read(folder, manifest_bytes(replace(WHOLE, prefix="renamed")), in_own_folder), Manifest)
    assert_not_verified(read(folder, manifest_bytes(replace(WHOLE, prefix="renamed"))))
    assert_not_verified(read(folder, manifest_bytes(replace(WHOLE, checkpoint="10_3")), in_own_folder))
    assert_not_verified(read(folder, manifest_bytes(replace(WHOLE, layout="toy-dcp")), in_own_folder))


@pytest.mark.parametrize(
    ("layout", "name", "expected"),
    [
        (RANK_LAYOUT, "10_2", ".ckpttool/llama-10_2.ckpt.manifest.json"),
        (RANK_LAYOUT, "_1-10_2", ".ckpttool/llama-_1-10_2.ckpt.manifest.json"),
        (ITERATION_LAYOUT, "iteration_00000030", "iteration_00000030/ckpttool.manifest.json"),
        (UNIFIED_LAYOUT, "unified", "ckpttool.manifest.json"),
        (LOOSE_FILE_LAYOUT, "model.pt", ".ckpttool/model.pt.file.manifest.json"),
    ],
)
def test_every_layout_has_its_place(layout: str, name: str, expected: str) -> None:
    place = place_of(layout, replace(checkpoint(), name=name))
    assert (place.path, place.layout, place.checkpoint) == (expected, layout, name)
    assert place.is_apart is expected.startswith(".ckpttool/")


def places(*checkpoints: Checkpoint) -> set[str]:
    return {place_of(RANK_LAYOUT, one).path for one in checkpoints}


def test_no_two_checkpoints_of_a_tree_share_a_manifest() -> None:
    long = "p" * 300
    assert (
        len(
            places(
                checkpoint("25_2", prefix="x", run=1),
                checkpoint("25_2", prefix="x-_1"),  # would have the same name, put together plainly
                checkpoint("25_2", prefix="x", run=1, fmt=FormatName.SAFETENSORS),
                checkpoint("25_2", prefix=long),
                checkpoint("25_2", prefix=f"{long}p"),
                checkpoint("26_2", prefix=long),
            )
        )
        == 6
    )


@given(NAMES)
def test_the_place_is_one_name_below_our_folder_that_any_disk_takes(prefix: str) -> None:
    for long in (prefix, prefix * 60):
        (place,) = places(checkpoint("25_2", prefix=long))
        folder, _, name = place.partition("/")
        assert folder == ".ckpttool"
        assert "/" not in name
        assert name not in {".", ".."}
        assert len(f"{name}.softlock".encode("utf-8", "surrogateescape")) < 255


def test_our_own_files_are_no_strays_in_any_layout(tmp_path: Path, copy_tree: Callable[[str], Path]) -> None:
    legacy = TreeBuilder(tmp_path / "legacy").legacy(ranks=2).save(epoch=1, step=2)
    legacy.file("checkpoint/.ckpttool/llama2_7b-1_2.ckpt.manifest.json").file("checkpoint/.ckpttool/seal.lock")
    newer = TreeBuilder(tmp_path / "newer").iteration(step=2)
    newer.file("checkpoint/.ckpttool/seal.lock").file("checkpoint/iteration_00000002/ckpttool.manifest.json")
    unified = copy_tree("unified") / "merged"
    (unified / ".ckpttool").mkdir()
    (unified / "ckpttool.manifest.json").write_bytes(b"")
    for root in (legacy.checkpoint, newer.checkpoint, unified):
        located = locate(str(root))
        found = located.layout.scan(located.storage, located.listing, ScanOptions())
        findings = [*found.findings, *(finding for one in found.checkpoints for finding in one.findings)]
        assert (found.strays, [one for one in findings if one.code is Code.STRAY_FILE]) == ((), [])
        assert all(".ckpttool" not in shard.path for one in found.checkpoints for shard in one.shards)


@given(any_manifest(), st.randoms())
def test_reading_what_was_written_gives_the_same_value_and_the_order_of_shards_does_not_matter(
    one: Manifest, chance: Random
) -> None:
    with TemporaryDirectory() as folder:
        # The place may be a name of any bytes; what counts is that it is the one that is asked for.
        place = place_of(one.layout, sealed_checkpoint(one.checkpoint, one.prefix, FormatName.SAFETENSORS))
        path = Path(folder, place.path)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(manifest_bytes(one))
        assert read_manifest(LocalStorage(folder), place) == one
    shuffled = list(one.shards)
    chance.shuffle(shuffled)
    assert manifest_bytes(replace(one, shards=tuple(shuffled))) == manifest_bytes(one)


def test_scalars_are_spelled_as_from_the_first_version_on_and_another_trainers_beside_them() -> None:
    """Who sealed yesterday compares today: no key is dropped, renamed or moved."""
    data = manifest_bytes(
        manifest(replace(seal("a"), scalars=(("iteration", 7), ("loss_scale", 1.0), ("step_num", 20))))
    )
    (line,) = [line for line in data.splitlines() if b'"path"' in line]
    assert (
        b'"scalars": {"epoch_num": null, "step_num": 20, "global_step": null, "loss_scale": 1.0, '
        b'"global_batch_size": null, "consumed_samples": null, "iteration": 7}'
    ) in line


def test_a_manifest_is_json_with_one_shard_a_line_and_its_own_hash_last() -> None:
    data = manifest_bytes(manifest(seal("rank_0/a", chunks=(1, 2)), seal("rank_1/b")))
    document = json.loads(data)
    assert document["schema"] == "ckpttool/manifest/1"
    assert list(document)[-1] == "hash"
    assert document["shards"][0]["chunks"].split() == [f"{1:032x}", f"{2:032x}"]
    assert [line.count(b'"path"') for line in data.splitlines() if b"rank_" in line] == [1, 1]
    assert data.isascii()
    assert data.endswith(b"\n}\n")
