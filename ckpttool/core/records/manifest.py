"""Manifests that `ckpttool seal` writes as JSON, with one shard per line and the same bytes for the same seal.

A manifest is used only if it is intact, of this version, and in its own location.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from enum import Enum
from typing import NamedTuple, TypeAlias

from ckpttool.core.domain.finding import Code, Finding, damage, unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.manifest import CHUNK_BYTES, VERSION, Manifest, ShardSeal
from ckpttool.core.domain.replicas import Healed, Proof, TensorDigests, Trust
from ckpttool.core.domain.scalars import encode_scalars
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.domain.units import ByteCount, Rank
from ckpttool.core.formats.strict_json import (
    OWN_MEMORY,
    JsonObject,
    ParseError,
    as_object,
    get_int,
    get_list,
    get_object,
    get_optional_int,
    get_optional_str,
    get_str,
    parse_object,
)
from ckpttool.core.records import SealPlace, leads_out
from ckpttool.core.records.hashed_json import closed, is_intact, scalars_of
from ckpttool.core.records.tensor_table import TensorTable, row_of, tensor_rows
from ckpttool.core.storage import is_object_store
from ckpttool.core.storage.base import OfSeveral, Storage

MANIFEST_LIMIT = ByteCount(128 << 20)
"""Maximum size in bytes: 8,192 ranks with 10 GB each need 50 MB."""

MOST_BESIDE = 1000
"""Maximum number of a save's seals in an object store that are combined, latest first."""

_BESIDE = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{16}\.json")
_SHARE = re.compile(r"[1-9][0-9]{0,5}-of-[1-9][0-9]{0,5}\.json")
_HEAD = re.compile(rb'\{\s*"schema":\s*"ckpttool/manifest/([0-9]{1,9})"')
_DIGEST = re.compile(r"[0-9a-f]{32}")
_DIGESTS = re.compile(r"(?:[0-9a-f]{32}(?: [0-9a-f]{32})*)?")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_ESCAPE = re.compile("%(25|[89A-F][0-9A-F])?")
_TO_ESCAPE = re.compile("[%\udc80-\udcff]")


class ManifestProblem(NamedTuple):
    """Error of an invalid manifest, which makes the checkpoint neither verified nor damaged."""

    finding: Finding

    @property
    def newer(self) -> bool:
        """Whether a newer ckpttool wrote the manifest, which may be intact and must not be replaced."""
        return self.finding.code is Code.MANIFEST_NEWER


def manifest_bytes(manifest: Manifest) -> bytes:
    """Encode a manifest; `read_manifest` decodes it.

    There is one line per shard, so that `grep` and `diff` work. All digests of a shard's chunks are one text, because a
    list would make the manifests of the largest runs five times as slow to read.
    """
    head = {
        "schema": f"ckpttool/manifest/{manifest.version}",
        "layout": manifest.layout,
        "checkpoint": _escaped(manifest.checkpoint),
        "prefix": _escaped(manifest.prefix),
        "world_size": manifest.world_size,
        "chunk_bytes": manifest.chunk_bytes,
        "sealed_at": manifest.sealed_at,
        "sealed_by": manifest.sealed_by,
    }
    members = json.dumps(head, indent=2, ensure_ascii=True).removesuffix("\n}")
    seals, table = sorted(manifest.shards, key=lambda seal: seal.path), TensorTable()
    shards = ",\n".join(f"    {_shard_line(seal, table.add(seal.tensors))}" for seal in seals)
    return closed(f'{members},\n  "shards": [\n{shards}\n  ]{table.member()}')


def _shard_line(seal: ShardSeal, tensors: int | None) -> str:
    line: dict[str, object] = {
        "path": _escaped(seal.path),
        "size": seal.size,
        "xxh3_128": seal.xxh3_128,
        "chunks": " ".join(seal.chunks),
        "format": seal.format.value,
        "schema_hash": seal.schema_hash,
        "scalars": encode_scalars(seal.scalars),
        "first_seen": seal.first_seen,
        **({} if seal.healed is None else {"healed": _healed_encoded(seal.healed)}),
        **({} if tensors is None else {"tensors": tensors}),
    }
    return json.dumps(line, ensure_ascii=True, allow_nan=False)


def _healed_encoded(healed: Healed) -> dict[str, int | str | None]:
    return {
        "from_rank": healed.rank,
        "proof": healed.proof.value,
        "trust": healed.trust.value,
        "tensor": None if healed.tensor is None else _escaped(healed.tensor),
        "at": healed.at,
    }


def _escaped(text: str) -> str:
    """Encode a file name for JSON, with bytes that are not UTF-8 as `%XX` and `%` itself as `%25`."""
    return _TO_ESCAPE.sub(lambda match: f"%{ord(match[0]) & 0xFF:02X}", text)


def read_manifest(storage: Storage, place: SealPlace) -> Manifest | ManifestProblem | None:
    """Read all manifests of a save as one: the save's own manifest, added manifests, and those of each machine.

    If they disagree about a shard, the first record counts. On disks the disagreement is also reported, because one of
    the manifests describes other bytes. However, a save's own manifest overrides the added ones on the same disk,
    because the save was sealed again.

    Args:
        storage: The tree.
        place: The location that the layout returns.

    Returns:
        The manifest; the reason why it is invalid (truncated, edited, of another checkpoint, written by a newer
        ckpttool); or None if there is no manifest.
    """
    matches = [
        (owner, path, manifest)
        for path in [place.path, *added_manifests(storage, place)]
        for owner, manifest in _read_each(storage, place, path)
    ]
    problem = next((manifest for _, _, manifest in matches if isinstance(manifest, ManifestProblem)), None)
    if problem is not None:
        return problem
    manifests = [(owner, path, manifest) for owner, path, manifest in matches if isinstance(manifest, Manifest)]
    if len(manifests) < 2:  # noqa: PLR2004  a single manifest
        return manifests[0][2] if manifests else None
    if is_object_store(storage.root):
        claims = [(seal, path) for _, path, manifest in manifests for seal in manifest.shards]
        return _joined(claims, [manifest for _, _, manifest in manifests], ())
    return _agreed(manifests, place)


def read_alone(storage: Storage, place: SealPlace, path: str | None = None) -> Manifest | ManifestProblem | None:
    """Read one manifest of a save, without additions; by default, the manifest at the save's own location."""
    return _read_one(storage, place, path or place.path)


def added_manifests(storage: Storage, place: SealPlace) -> list[str]:
    """Return the paths of the additions to a save's own manifest, whether or not that manifest exists."""
    name_of = _BESIDE if is_object_store(storage.root) else _SHARE
    try:
        names = sorted(entry.name for entry in storage.entries(place.additions_folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    paths = [f"{place.additions_folder}/{name}" for name in names if name_of.fullmatch(name)]
    return paths[-MOST_BESIDE:] if name_of is _BESIDE else paths


def _read_each(storage: Storage, place: SealPlace, path: str) -> list[tuple[str, Manifest | ManifestProblem | None]]:
    """Read the manifests at a path, one per machine, with the names of the machines."""
    if isinstance(storage, OfSeveral):
        with suppress(OSError):  # the caller's own read reports the problem
            documents = storage.of_each(path)
            if documents:
                return [(host, _parsed(content, place, path)) for host, content in documents]
    return [("", _read_one(storage, place, path))]


_Owned: TypeAlias = tuple[str, str, Manifest]
"""The machine's name (empty if there is only one machine), and the path and contents of its manifest."""


def _agreed(manifests: list[_Owned], place: SealPlace) -> Manifest:
    """Combine several manifests on disks, and report their contradictions."""
    own_seals = {
        (owner, seal.path) for owner, path, manifest in manifests if path == place.path for seal in manifest.shards
    }
    claims = [
        (seal, owner or path)
        for owner, path, manifest in manifests
        for seal in manifest.shards
        if path == place.path or (owner, seal.path) not in own_seals
    ]
    first: dict[str, tuple[ShardSeal, str]] = {}
    disputed: dict[str, Finding] = {}
    for seal, owner in sorted(claims, key=lambda claim: (claim[0].first_seen, claim[1])):
        first_seal, by = first.setdefault(seal.path, (seal, owner))
        if not first_seal.same_content(seal):
            disputed.setdefault(seal.path, _unequal(first_seal, by, seal, owner, place))
    joined = _joined(
        claims, [manifest for _, _, manifest in manifests], tuple(disputed[path] for path in sorted(disputed))
    )
    # A machine that sealed only its own shards does not know the save's number of ranks.
    is_one = len({manifest.shards for _, path, manifest in manifests if path == place.path}) == 1
    return joined if is_one else replace(joined, world_size=None)


def _unequal(first: ShardSeal, by: str, second: ShardSeal, owner: str, place: SealPlace) -> Finding:
    return damage(
        Code.CHECKSUM_MISMATCH,
        f"{by} sealed it on {first.first_seen}, and {owner} on {second.first_seen} with different content: one of "
        "them does not have the saved file",
        path=first.path,
        expected=first.xxh3_128,
        actual=second.xxh3_128,
        remedy="keep the right file on the machine where its rank starts; on the other machine remove the file, "
        f"{place.path!r} and {place.additions_folder!r}",
    )


def _joined(claims: list[tuple[ShardSeal, str]], manifests: list[Manifest], disputed: tuple[Finding, ...]) -> Manifest:
    """Combine several manifests of a save; for each file, the entry that was recorded first counts."""
    seals: dict[str, ShardSeal] = {}
    for seal, _ in sorted(claims, key=lambda claim: claim[0].first_seen):
        joined = seals.setdefault(seal.path, seal)
        if joined is not seal and joined.same_content(seal):
            seals[seal.path] = joined.with_more(seal)
    worlds = {manifest.world_size for manifest in manifests} - {None}
    return replace(
        max(manifests, key=lambda manifest: manifest.sealed_at),
        world_size=worlds.pop() if len(worlds) == 1 else None,
        shards=tuple(seals[path] for path in sorted(seals)),
        disputed=disputed,
    )


def _read_one(storage: Storage, place: SealPlace, path: str) -> Manifest | ManifestProblem | None:
    try:
        data = storage.small_file(path, limit=MANIFEST_LIMIT)
    except FileNotFoundError:
        return None
    except OSError as error:
        return _unreadable(path, f"the manifest cannot be read ({error.strerror or error})")
    return _parsed(data, place, path)


def _parsed(data: bytes, place: SealPlace, path: str) -> Manifest | ManifestProblem:
    head = _HEAD.match(data)
    if head is not None and int(head[1]) > VERSION:
        return _newer(path, int(head[1]))
    try:
        return _validated(data, place, path)
    except ParseError as error:
        return _unreadable(path, f"the manifest cannot be trusted ({error})")


def _validated(data: bytes, place: SealPlace, path: str) -> Manifest:
    """Parse a manifest and check that it is valid.

    Raises:
        ParseError: The manifest is invalid; the error has the complete message, or the invalid key.
    """
    # The hash is checked first, because a damaged file need not be parsed.
    if not is_intact(data):
        raise ParseError("truncated or edited: it does not match its own hash")
    record = parse_object(data, where=path, limit=MANIFEST_LIMIT, most_memory=OWN_MEMORY)
    manifest = _manifest(record, path)
    same_prefix = place.prefix in {None, manifest.prefix}
    if not same_prefix or (place.layout, place.checkpoint) != (manifest.layout, manifest.checkpoint):
        raise ParseError(f"it is the manifest of {manifest.checkpoint!a}, and was copied or renamed to this one")
    return manifest


def _newer(path: str, version: int) -> ManifestProblem:
    finding = unknown(
        Code.MANIFEST_NEWER,
        f"the manifest was written by a newer ckpttool (format version {version}): not verified",
        path=path,
        expected=str(VERSION),
        actual=str(version),
        remedy="update ckpttool",
    )
    return ManifestProblem(finding)


def _unreadable(path: str, problem: str) -> ManifestProblem:
    finding = unknown(
        Code.MANIFEST_UNREADABLE,
        f"{problem}: not verified",
        path=path,
        remedy="restore the manifest from a copy; ckpttool seal --reseal records the current files",
    )
    return ManifestProblem(finding)


def _manifest(record: JsonObject, path: str) -> Manifest:
    # Keys that are not at the start are checked again here, because JSON allows any order.
    schema = get_str(record, "schema", where=path)
    if schema != f"ckpttool/manifest/{VERSION}":
        raise ParseError(f"expected ckpttool/manifest/{VERSION}, found {schema!a:.80}", where=path, key="schema")
    chunk_bytes = get_int(record, "chunk_bytes", where=path)
    if chunk_bytes != CHUNK_BYTES:
        raise ParseError(f"expected {CHUNK_BYTES}, found {chunk_bytes}", where=path, key="chunk_bytes")
    rows = tensor_rows(record, where=path)
    shards = tuple(
        _shard(as_object(value, where=path, key=f"shards[{index}]"), rows, f"{path}: shards[{index}]")
        for index, value in enumerate(get_list(record, "shards", where=path))
    )
    paths = [seal.path for seal in shards]
    if paths != sorted(set(paths)):
        raise ParseError("expected every path once, in order", where=path, key="shards")
    return Manifest(
        layout=get_str(record, "layout", where=path),
        checkpoint=_name(record, "checkpoint", path),
        prefix=_name(record, "prefix", path),
        world_size=get_optional_int(record, "world_size", minimum=1, where=path),
        sealed_at=_matching(_TIME, record, "sealed_at", path),
        sealed_by=get_str(record, "sealed_by", where=path),
        shards=shards,
    )


def _shard(record: JsonObject, rows: tuple[TensorDigests, ...], where: str) -> ShardSeal:
    size = get_int(record, "size", where=where)
    chunks = tuple(_matching(_DIGESTS, record, "chunks", where).split())
    needed = -(-size // CHUNK_BYTES)
    if len(chunks) != needed:
        raise ParseError(f"expected {needed} digests for {size} bytes, found {len(chunks)}", where=where, key="chunks")
    schema_hash = get_optional_str(record, "schema_hash", where=where)
    if schema_hash is not None:
        _matching(_DIGEST, record, "schema_hash", where)
    path = _name(record, "path", where)
    if leads_out(path):
        raise ParseError(f"is outside the tree: {path!a:.80}", where=where, key="path")
    return ShardSeal(
        path=path,
        size=ByteCount(size),
        xxh3_128=_matching(_DIGEST, record, "xxh3_128", where),
        chunks=chunks,
        format=FormatName(_one_of(FormatName, record, "format", where)),
        schema_hash=schema_hash,
        scalars=scalars_of(get_object(record, "scalars", where=where), where=f"{where}: scalars"),
        first_seen=_matching(_TIME, record, "first_seen", where),
        healed=_healed(as_object(record["healed"], where=where, key="healed"), where) if "healed" in record else None,
        tensors=row_of(record, rows, where=where),
    )


def _healed(record: JsonObject, where: str) -> Healed:
    tensor = record.get("tensor")
    return Healed(
        rank=Rank(get_int(record, "from_rank", where=where)),
        proof=Proof(_one_of(Proof, record, "proof", where)),
        trust=Trust(_one_of(Trust, record, "trust", where)),
        tensor=None if tensor is None else _name(record, "tensor", where),
        at=_matching(_TIME, record, "at", where),
    )


def _one_of(members: type[Enum], record: JsonObject, key: str, where: str) -> str:
    """Return the value under `key`, which must be the value of a member of the enumeration."""
    text = get_str(record, key, where=where)
    values = [member.value for member in members]
    if text not in values:
        raise ParseError(f"expected one of {', '.join(values)}, found {text!a:.80}", where=where, key=key)
    return text


def _matching(pattern: re.Pattern[str], record: JsonObject, key: str, where: str) -> str:
    text = get_str(record, key, where=where)
    if pattern.fullmatch(text) is None:
        raise ParseError(f"is not encoded as ckpttool encodes it: {text!a:.80}", where=where, key=key)
    return text


def _name(record: JsonObject, key: str, where: str) -> str:
    """Decode a name in which bytes that are not UTF-8 were encoded as `%XX`."""
    text = get_str(record, key, where=where)

    def unescaped(match: re.Match[str]) -> str:
        if match[1] is None:
            raise ParseError("has a % that is not an escape", where=where, key=key)
        return "%" if match[1] == "25" else chr(0xDC00 + int(match[1], 16))

    return _ESCAPE.sub(unescaped, text)
