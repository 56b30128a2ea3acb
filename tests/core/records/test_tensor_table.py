"""Digests of tensors are recorded once for all shards that hold the same, and read back strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.manifest import Manifest
from ckpttool.core.domain.replicas import PIECE_BYTES, TensorDigests
from ckpttool.core.records import SealPlace
from ckpttool.core.records.manifest import ManifestProblem, manifest_bytes, read_manifest
from ckpttool.core.records.tensor_table import TensorTable
from ckpttool.core.storage.local import LocalStorage
from ckpttool.trainers.mindformers.layouts.names import RANK_LAYOUT
from tests.support.manifests import edited, manifest, seal

PLACE = SealPlace(path="a.json", layout=RANK_LAYOUT, checkpoint="10_2", prefix="llama")
FIRST = TensorDigests(names=("bias", 'we"ight\n'), digests=bytes(range(16)))
SECOND = TensorDigests(names=("bias", 'we"ight\n'), digests=bytes(range(1, 17)))


def whole() -> Manifest:
    """Three shards, two of which hold the same, and one of which nothing is known."""
    one = seal()
    held = (FIRST, SECOND, FIRST, None)
    shards = tuple(replace(one, path=f"rank_{rank}/a.ckpt", tensors=tensors) for rank, tensors in enumerate(held))
    return manifest(*shards)


def read(folder: Path, data: bytes) -> Manifest | ManifestProblem | None:
    (folder / PLACE.path).write_bytes(data)
    return read_manifest(LocalStorage(str(folder)), PLACE)


def test_a_manifest_with_digests_is_read_back_and_shares_what_is_equal(tmp_path: Path) -> None:
    found = read(tmp_path, manifest_bytes(whole()))

    assert found == whole()
    assert isinstance(found, Manifest)
    first, second, third, none = (each.tensors for each in found.shards)
    assert first is third
    assert none is None
    assert first is not None
    assert second is not None
    assert first.names is second.names
    assert manifest_bytes(whole()).count(FIRST.digests.hex().encode()) == 1


def test_a_manifest_without_digests_is_spelled_as_ever() -> None:
    plain = manifest(seal())

    assert b"tensors" not in manifest_bytes(plain)
    assert TensorTable([None, TensorDigests(names=(), digests=b"")]).member() == ""


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("tensors"),
        lambda d: d.__setitem__("tensors", []),
        lambda d: d["tensors"].__setitem__("piece_bytes", PIECE_BYTES * 2),
        lambda d: d["tensors"].__setitem__("names", [["b", "a"]]),
        lambda d: d["tensors"].__setitem__("names", [["a", "a"]]),
        lambda d: d["tensors"].__setitem__("names", [[]]),
        lambda d: d["tensors"].__setitem__("names", [["a", 3]]),
        lambda d: d["tensors"].__setitem__("names", ["ab"]),
        lambda d: d["tensors"]["xxh3_64"].__setitem__(0, [1, FIRST.digests.hex()]),
        lambda d: d["tensors"]["xxh3_64"].__setitem__(0, [-1, FIRST.digests.hex()]),
        lambda d: d["tensors"]["xxh3_64"].__setitem__(0, [True, FIRST.digests.hex()]),
        lambda d: d["tensors"]["xxh3_64"].__setitem__(0, [0]),
        lambda d: d["tensors"]["xxh3_64"].__setitem__(0, [0, FIRST.digests.hex()[:-2]]),
        lambda d: d["tensors"]["xxh3_64"].__setitem__(0, [0, FIRST.digests.hex().upper()]),
        lambda d: d["tensors"]["xxh3_64"].__setitem__(0, [0, "g" * 32]),
        lambda d: d["tensors"]["xxh3_64"].__setitem__(0, {"0": ""}),
        lambda d: d["shards"][0].__setitem__("tensors", 2),
        lambda d: d["shards"][0].__setitem__("tensors", -1),
        lambda d: d["shards"][0].update(tensors=True),
        lambda d: d["shards"][0].__setitem__("tensors", "0"),
    ],
)
def test_a_table_that_is_not_spelled_as_we_spell_it_makes_the_manifest_not_believed(
    tmp_path: Path,
    change: Any,  # noqa: ANN401  a lambda
) -> None:
    found = read(tmp_path, edited(manifest_bytes(whole()), change))

    assert isinstance(found, ManifestProblem)
    assert found.finding.code is Code.MANIFEST_UNREADABLE
    assert "\n" not in found.finding.message
