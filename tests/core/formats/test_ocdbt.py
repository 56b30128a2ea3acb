"""OCDBT stores are followed from the manifest to where each value lies; what does not hold together is named."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.formats import ocdbt, read_header
from ckpttool.core.formats.crc32c import crc32c
from ckpttool.core.formats.ocdbt import MANIFEST, BrokenStoreError, OverLimitError, Store, read_store
from ckpttool.core.storage.local import LocalStorage
from tests.support.shard_writers import varint
from tests.support.trainer_trees import LAYOUTS

REAL = sorted((LAYOUTS / "orbax_standard").glob("*/default"))
NODE = "0cdb20de"
NOWHERE = 2**64 - 1


def varints(*numbers: int) -> bytes:
    return b"".join(map(varint, numbers))


def framed(magic: str, body: bytes, *, packed: bool = False, version: int = 0, length: int | None = None) -> bytes:
    """Put a body into its frame."""
    content = zstandard.ZstdCompressor().compress(body) if packed else body
    size = 4 + 8 + 2 + len(content) + 4 if length is None else length
    data = bytes.fromhex(magic) + size.to_bytes(8, "little") + varints(version, int(packed)) + content
    return data + crc32c(data).to_bytes(4, "little")


def texts(*found: bytes, column: tuple[int, ...] = ()) -> bytes:
    """Spell texts, each with what it shares with the one before, and a column beside them."""
    shared = [
        next(at for at in range(min(map(len, pair)), -1, -1) if pair[0][:at] == pair[1][:at])
        for pair in pairwise(found)
    ]
    suffixes = [text[at:] for text, at in zip(found, [0, *shared], strict=True)] if found else []
    lengths = varints(*map(len, suffixes))
    return varint(len(found)) + varints(*shared) + lengths + varints(*column) + b"".join(suffixes)


def files(*paths: str, bases: tuple[int, ...] | None = None) -> bytes:
    return texts(*(path.encode() for path in paths), column=bases or (0,) * len(paths))


def manifest(
    extent: tuple[int, int] | None, *, height: int = 0, kind: int = 0, path: str = "d/a", packs: bool = True
) -> bytes:
    body = bytes(16) + varints(kind, 1024, 8 << 20) + b"\x04" + (varints(1) + bytes(4) if packs else varints(0))
    if extent is None:
        body += files() + varints(0)
    else:
        body += files(path) + varints(1, 7) + bytes([height]) + varints(0, *extent, 1, 1, 1)
    return framed("0cdb3a2a", body)


def leaf(*values: tuple[bytes, int, int], inline: tuple[bytes, ...] = (), paths: tuple[str, ...] = ("d/a",)) -> bytes:
    """Make a node of values that lie outside, each with offset and length, and of some inside."""
    keys = (*(key for key, _, _ in values), *inline)
    body = b"\0" + files(*paths) + texts(*keys)
    body += varints(*(length for _, _, length in values), *(1 for _ in inline))
    body += varints(*(1 for _ in values), *(0 for _ in inline))
    body += varints(*(0 for _ in values)) + varints(*(offset for _, offset, _ in values)) + b"x" * len(inline)
    return framed(NODE, body, packed=True)


def store(read: dict[str, bytes]) -> Store:
    def part(path: str, offset: int, length: int | None) -> bytes | None:
        data = read.get(path)
        return None if data is None else data[offset : None if length is None else offset + length]

    return read_store(part)


def one_leaf(node: bytes, **more: bytes) -> Store:
    return store({MANIFEST: manifest((0, len(node))), "d/a": node, **more})


@pytest.mark.parametrize("folder", REAL, ids=lambda folder: folder.parent.name)
def test_real_stores_are_followed_to_data_files_that_are_there_and_long_enough(folder: Path) -> None:
    def read(path: str, offset: int, length: int | None) -> bytes:
        data = (folder / path).read_bytes()
        return data[offset : None if length is None else offset + length]

    found = read_store(read)
    assert found.broken == ()
    assert {"params.dense.kernel", "opt_state.mu.kernel", "rng", "step"} <= found.arrays
    assert all((folder / path).stat().st_size >= least for path, least in found.least.items())
    assert any(path.startswith("ocdbt.process_0/d/") for path in found.least)


def test_the_checksum_is_castagnoli_s() -> None:
    assert crc32c(b"123456789") == 0xE3069283


class TestWhatIsFollowed:
    def test_values_outside_of_a_node_say_how_long_their_files_must_be(self) -> None:
        node = leaf((b"a/.zarray", 100, 5), (b"a/0", 105, 95), inline=(b"b/zarr.json",))
        found = one_leaf(node)
        assert found.least == {"d/a": 200}
        assert found.arrays == {"a", "b"}

    def test_nodes_lead_to_nodes_each_once_and_paths_go_on_from_theirs(self) -> None:
        low = leaf((b"rray/0", 0, 50), (b"rray/.zarray", 50, 10), paths=("d/values",))
        body = b"\1" + files("sub/d/low", "sub/d/low", bases=(4, 4)) + texts(b"array/", b"b", column=(1, 1))
        body += varints(0, 0) + varints(0, 0) + varints(len(low), len(low)) + varints(1, 1, 1, 1, 1, 1)
        top = framed(NODE, body)
        read = {MANIFEST: manifest((3, len(top)), height=1, path="d/top"), "d/top": b"---" + top, "sub/d/low": low}
        found = store(read)
        assert found.broken == ()
        assert found.least == {"d/top": 3 + len(top), "sub/d/low": len(low), "sub/d/values": 60}
        assert found.arrays == {"array", "brray"}
        twice = body.replace(texts(b"array/", b"b", column=(1, 1)), texts(b"array/", b"array/", column=(1, 1)))
        again = framed(NODE, twice)
        same = {MANIFEST: manifest((0, len(again)), height=1, path="d/top"), "d/top": again, "sub/d/low": low}
        assert store(same).arrays == {"array"}

    @pytest.mark.parametrize("content", [None, b"short"])
    def test_below_a_node_that_is_missing_or_cut_nothing_is_known_but_its_own_length(
        self, content: bytes | None
    ) -> None:
        read = {MANIFEST: manifest((10, 30))} | ({} if content is None else {"d/a": content})
        found = store(read)
        assert (found.least, found.broken) == ({"d/a": 40}, ())

    def test_a_store_may_be_empty(self) -> None:
        assert store({MANIFEST: manifest(None)}).least == store({MANIFEST: manifest(None, packs=False)}).least == {}
        assert store({MANIFEST: manifest((NOWHERE, 0))}).least == {}


class TestWhatIsBroken:
    def test_a_manifest_that_is_not_there(self) -> None:
        with pytest.raises(BrokenStoreError, match="is missing") as broken:
            store({})
        assert (broken.value.code, broken.value.path) == (Code.SHARD_MISSING, MANIFEST)

    @pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda data: data[:20] + b"?", lambda _: b""])
    def test_a_manifest_with_another_checksum(self, spoil: Callable[[bytes], bytes]) -> None:
        with pytest.raises(BrokenStoreError, match="CRC-32C") as broken:
            store({MANIFEST: spoil(manifest((0, 30)))})
        assert broken.value.code is Code.CHECKSUM_MISMATCH

    @pytest.mark.parametrize(
        "data",
        [
            framed("deadbeef", b""),
            framed("0cdb3a2a", b"", length=9),
            framed("0cdb3a2a", b"", version=1),
            framed("0cdb3a2a", bytes(16) + b"\xff" * 12),
            framed("0cdb3a2a", bytes(10)),
            manifest((0, 30), kind=1),
        ],
        ids=["magic", "length", "version", "number", "short", "several"],
    )
    def test_a_manifest_that_is_none_although_its_checksum_agrees(self, data: bytes) -> None:
        with pytest.raises(BrokenStoreError, match="is inconsistent") as broken:
            store({MANIFEST: data})
        assert broken.value.code is Code.HEADER_INVALID

    @pytest.mark.parametrize(
        "node",
        [
            framed(NODE, b"\1" + files() + varint(0)),
            framed(NODE, b"\0" + files("d/a") + texts(b"k") + varints(5, 1, 3, 0)),
            framed(NODE, b"\0" + files() + varint(200)),
            framed("0cdb20de", b"?", packed=False).replace(b"\0\0?", b"\0\1?"),
        ],
        ids=["height", "file", "count", "crc"],
    )
    def test_a_node_is_named_by_its_file_and_nothing_else_is_lost(self, node: bytes) -> None:
        found = one_leaf(node)
        assert [error.path for error in found.broken] == ["d/a"]
        assert found.least == {"d/a": len(node)}

    def test_a_node_that_zstd_cannot_unpack(self) -> None:
        data = bytes.fromhex(NODE) + (14 + 3 + 4).to_bytes(8, "little") + b"\0\1" + b"???"
        found = one_leaf(data + crc32c(data).to_bytes(4, "little"))
        assert [error.code for error in found.broken] == [Code.HEADER_INVALID]


class TestBounds:
    def test_a_node_that_says_it_is_huge_is_not_read(self) -> None:
        with pytest.raises(OverLimitError, match="node of"):
            store({MANIFEST: manifest((0, ocdbt.MOST_NODE_BYTES + 1))})

    @pytest.mark.parametrize(
        ("bound", "most"),
        [("MOST_NODES", 0), ("MOST_VALUES", 1), ("MOST_NODE_BYTES", 60), ("MOST_BYTES", 99), ("MOST_TEXT", 99)],
    )
    def test_what_is_larger_than_any_is_refused(self, bound: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
        node = framed(NODE, b"\0" + files("d/a" * 40) + texts(b"k" * 99, b"l") + bytes(4), packed=True)
        monkeypatch.setattr(ocdbt, bound, most if bound != "MOST_NODE_BYTES" else len(node))
        with pytest.raises(OverLimitError):
            one_leaf(node)


def body_of(node: bytes) -> bytes:
    """Return what is in a frame."""
    return zstandard.ZstdDecompressor().stream_reader(node[14:-4]).read() if node[13] else node[14:-4]


@given(data=st.data())
def test_whatever_a_node_or_manifest_holds_it_is_followed_or_refused(data: st.DataObject) -> None:
    """Bytes are changed, and the checksum made to agree: no damage does that, an author does."""
    node = leaf((b"a/.zarray", 100, 5), (b"a/0", 105, 95), inline=(b"b/zarr.json",))
    contents = {NODE: body_of(node), "0cdb3a2a": body_of(manifest((0, len(node))))}
    magic = data.draw(st.sampled_from(sorted(contents)))
    content = bytearray(contents[magic])
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    changed = framed(magic, bytes(content[: data.draw(st.integers(0, len(content)))]), packed=data.draw(st.booleans()))
    parts = {MANIFEST: manifest((0, len(changed))), "d/a": changed}
    with suppress(BrokenStoreError, OverLimitError):
        store(parts if magic == NODE else {MANIFEST: changed, "d/a": node})


@pytest.mark.parametrize("content", [b"PK\3\4", bytes(64), b"\x80\2.", b"any"])
def test_what_values_begin_with_tells_nothing(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(content)
    with LocalStorage(str(tmp_path)).open("data") as source:
        header = read_header(source, named=FormatName.OCDBT)
    assert (header.format, header.findings) == (FormatName.OCDBT, ())
