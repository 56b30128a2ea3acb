"""A save in Hugging Face's form, written by `last_save_in_hf`: safetensors and an index that names them.

Source:
    `torchtitan/components/checkpoint.py` of torchtitan 0.3.0; not tested with a real run.
"""

from __future__ import annotations

from ckpttool.core.domain.checkpoint import CommitState
from ckpttool.core.domain.finding import Code, Finding, damage, unsafe
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.formats.base import quoted
from ckpttool.core.formats.strict_json import ParseError
from ckpttool.core.records import leads_out
from ckpttool.core.storage.base import Kind, Storage, unreadable
from ckpttool.trainers.common.listed import stamp_if_there
from ckpttool.trainers.hf_saves.save_folder import read_index
from ckpttool.trainers.torch_dcp import METADATA
from ckpttool.trainers.torch_dcp.store import DcpStore, read_store
from ckpttool.trainers.torchtitan import INDEX


def look_at_either(storage: Storage, folder: str, *, sizes: bool, most: int) -> DcpStore:
    """List a save's files and read its record, in either of the two forms.

    Raises:
        OSError: The folder cannot be listed.
    """
    names = {entry.name for entry in storage.entries(folder) if entry.kind in {Kind.FILE, Kind.LOST}}
    if INDEX not in names or METADATA in names:
        return read_store(storage, folder, sizes=sizes, most=most)
    shards = tuple(
        _shard(storage, f"{folder}/{name}", sizes=sizes) for name in sorted(names) if name.endswith(".safetensors")
    )
    expected, findings = _expected(storage, folder)
    commit = CommitState.UNKNOWN if expected is None else CommitState.COMMITTED
    return DcpStore(shards=shards, expected=expected, commit=commit, findings=findings, metadata=None)


def _shard(storage: Storage, path: str, *, sizes: bool) -> Shard:
    stamp = stamp_if_there(storage, path) if sizes else None
    return Shard(path=path, rank=None, role=ShardRole.MODEL, format=FormatName.SAFETENSORS, stamp=stamp)


def _expected(storage: Storage, folder: str) -> tuple[tuple[str, ...] | None, tuple[Finding, ...]]:
    path = f"{folder}/{INDEX}"
    try:
        files = read_index(storage, path).tensors.keys()
    except ParseError as error:
        return None, (damage(Code.META_UNREADABLE, error.within(path), path=path),)
    except OSError as error:
        return None, (unreadable(path, error),)
    escaping = sorted(filter(leads_out, files))
    if escaping:
        message = f"names {quoted(escaping[0])}, which is outside the folder; it is not followed"
        return None, (unsafe(Code.UNSAFE_NAME, message, path=path),)
    return tuple(sorted(f"{folder}/{file}" for file in files)), ()
