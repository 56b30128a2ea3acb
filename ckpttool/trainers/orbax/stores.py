"""Read the stores of a save's arrays, and compare them with the save's own list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Code, Finding, damage, helped, suspect, unsafe
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.shard import Shard, ShardRole
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.formats.base import MAX_FINDINGS, over_limit, quoted
from ckpttool.core.formats.strict_json import ParseError, as_object, get_object, parse_object
from ckpttool.core.records import leads_out
from ckpttool.core.storage.base import Storage, unreadable
from ckpttool.trainers.common.listed import stamp_if_there
from ckpttool.trainers.orbax import TREE

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.formats.ocdbt import Store

_TREE_LIMIT = 64 << 20
_MOST_READ = 64 << 20
_IN_STORE = {"jax.Array", "np.ndarray", "scalar"}
"""Kinds of values that the store contains; others, such as texts, are in separate files, or not saved."""


def followed(storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
    """Add the data files that a save's stores need, with their minimum lengths.

    Args:
        storage: The tree.
        checkpoint: The checkpoint from the scan.
    """
    for manifest in [shard.path for shard in checkpoint.shards if shard.role is ShardRole.INDEX]:
        checkpoint = _followed(storage, checkpoint, manifest.rpartition("/")[0])
    return checkpoint


def _followed(storage: Storage, checkpoint: Checkpoint, folder: str) -> Checkpoint:
    from ckpttool.core.formats.ocdbt import BrokenStoreError, OverLimitError, read_store

    def read(path: str, offset: int, length: int | None) -> bytes | None:
        if leads_out(path):
            return None
        try:
            with storage.open(f"{folder}/{path}") as source:
                return source.read(offset, _MOST_READ if length is None else length)
        except FileNotFoundError:
            return None

    try:
        store = read_store(read)
    except BrokenStoreError as error:
        findings = (helped(damage(error.code, str(error), path=f"{folder}/{error.path}")),)
        return replace(checkpoint, findings=(*checkpoint.findings, *findings))
    except OverLimitError as error:
        return replace(checkpoint, findings=(*checkpoint.findings, replace(over_limit(str(error)), path=folder)))
    except OSError as error:
        return replace(checkpoint, findings=(*checkpoint.findings, unreadable(folder, error)))
    by_path = {shard.path: shard for shard in checkpoint.shards if shard.path.startswith(f"{folder}/")}
    needed = {f"{folder}/{path}": least for path, least in store.least.items() if not leads_out(path)}
    shards = [_needed(storage, by_path, path, least) for path, least in sorted(needed.items())]
    rest = (shard for shard in checkpoint.shards if shard.path not in by_path or shard.role is ShardRole.INDEX)
    return replace(
        checkpoint,
        shards=tuple(sorted((*rest, *(shard for shard in shards if shard is not None)), key=lambda shard: shard.path)),
        findings=(*checkpoint.findings, *_against(storage, folder, store, needed, shards)),
    )


def _needed(storage: Storage, by_path: dict[str, Shard], path: str, least: int) -> Shard | None:
    """Return a data file that the store refers to; None if the file is missing."""
    shard = by_path.get(path)
    if shard is not None:
        return replace(shard, least=ByteCount(least))
    stamp = stamp_if_there(storage, path)
    if stamp is None:
        return None
    like = next(iter(by_path.values()))
    return replace(like, path=path, role=ShardRole.DATA, stamp=stamp, least=ByteCount(least))


def _against(
    storage: Storage, folder: str, store: Store, needed: dict[str, int], shards: list[Shard | None]
) -> Iterator[Finding]:
    """Report missing, broken, or implausible files."""
    paths = {shard.path for shard in shards if shard is not None}
    for path in sorted(path for path in store.least if leads_out(path))[:1]:
        message = f"names {quoted(path)}, which is outside the save; it is not followed"
        yield unsafe(Code.UNSAFE_NAME, message, path=folder)
    for path in sorted(needed.keys() - paths):
        message = "the store's own index refers to this file, but it does not exist"
        yield helped(damage(Code.SHARD_MISSING, message, path=path))
    for error in store.broken[:MAX_FINDINGS]:
        yield helped(damage(error.code, f"a node of the store: {error}", path=f"{folder}/{error.path}"))
    if not store.broken and paths >= needed.keys():  # otherwise the reason for missing arrays is known
        yield from _absent(storage, folder, store.arrays)


def _absent(storage: Storage, folder: str, arrays: frozenset[str]) -> Iterator[Finding]:
    """Report arrays that are in the item's own list, but not in its store."""
    path = f"{folder}/{TREE}"
    try:
        names = _named(storage.small_file(path, limit=_TREE_LIMIT), path)
    except FileNotFoundError:
        message = "is missing: the arrays can be restored only with knowledge of how they are nested"
        yield suspect(Code.METADATA_INCOMPLETE, message, path=path, remedy="restore it from a copy")
    except OSError as error:
        yield unreadable(path, error)
    except ParseError as error:
        yield suspect(Code.METADATA_INCOMPLETE, str(error), path=path, remedy="restore it from a copy")
    else:
        for name in sorted(names - arrays)[:MAX_FINDINGS]:
            yield helped(
                damage(Code.ENTRIES_MISSING, f"names {quoted(name)}, but the store has no data of it", path=path)
            )


def _named(data: bytes, path: str) -> frozenset[str]:
    """Return the names of all arrays.

    Raises:
        ParseError: The file is not such a list.
    """
    names = set()
    for key, value in get_object(parse_object(data, where=path), "tree_metadata", where=path).items():
        leaf = as_object(value, where=path, key=key)
        keys, kind = leaf.get("key_metadata"), as_object(leaf.get("value_metadata"), where=path, key=key)
        if isinstance(keys, list) and kind.get("value_type") in _IN_STORE:
            names.add(".".join(str(key.get("key")) if isinstance(key, dict) else "?" for key in keys))
    return frozenset(names)
