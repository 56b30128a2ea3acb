"""What is written is what is read, and the same seal is the same bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from ckpttool.domain.manifest import Manifest
from ckpttool.domain.shard import FormatName
from ckpttool.records.manifest import manifest_path, read_manifest
from ckpttool.render.manifest import manifest_bytes
from ckpttool.storage.local import LocalStorage
from tests.manifests import any_manifest, manifest, seal, sealed_checkpoint


def place_of(one: Manifest) -> str:
    return manifest_path(one.layout, sealed_checkpoint(one.checkpoint, one.prefix, FormatName.SAFETENSORS))


@given(any_manifest())
def test_reading_what_was_written_gives_the_same_value(one: Manifest) -> None:
    with TemporaryDirectory() as folder:
        # The place may be a name of any bytes; what counts is that it is the one that is asked for.
        path = Path(folder, place_of(one))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(manifest_bytes(one))
        assert read_manifest(LocalStorage(folder), place_of(one)) == one


@given(any_manifest(), st.randoms())
def test_the_order_of_the_shards_does_not_matter(one: Manifest, chance: st.DataObject) -> None:
    shuffled = list(one.shards)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert manifest_bytes(replace(one, shards=tuple(shuffled))) == manifest_bytes(one)


def test_a_manifest_is_json_with_one_shard_a_line_and_its_own_hash_last() -> None:
    data = manifest_bytes(manifest(seal("rank_0/a", chunks=(1, 2)), seal("rank_1/b")))
    document = json.loads(data)
    assert document["schema"] == "ckpttool/manifest/1"
    assert list(document)[-1] == "hash"
    assert document["shards"][0]["chunks"].split() == [f"{1:032x}", f"{2:032x}"]
    assert [line.count(b'"path"') for line in data.splitlines() if b"rank_" in line] == [1, 1]
    assert data.isascii()
    assert data.endswith(b"\n}\n")
