"""The base model of an adapter's saves, which the PyNative trainer compares with the config's base model.

Source: `_prepare_adapter_load`, `get_adapter_manifest_path` and `get_base_checkpoint_fingerprint` of MindFormers 2.1.0,
and starts of the real trainer.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from ckpttool.core.formats.strict_json import ParseError, get_optional_str, parse_object
from ckpttool.trainers.common import TRACKER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpttool.core.storage.base import Storage

_RECORD = "mindformers_adapter_config.json"
_BY_CONTENT = frozenset({"config.json", "model.safetensors.index.json", "metadata.json", "common.json"})
_FINGERPRINT = "base_fingerprint"
_LIMIT = 1 << 20


def record_in(folder: Storage, names: set[str], chosen: str) -> str | None:
    """Return the path of the adapter's record; None if there is no record.

    The record is in the folder itself, or in the save that the tracker names.

    Args:
        folder: The folder that `load_path` names.
        names: The entries of that folder.
        chosen: The name of the save.
    """
    if _RECORD in names:
        return _RECORD
    if TRACKER not in names or chosen not in names:
        return None
    is_there = any(entry.name == _RECORD for entry in folder.entries(chosen))
    return f"{chosen}/{_RECORD}" if is_there else None


def differs(folder: Storage, record: str, base: str) -> bool | None:
    """Return whether the trainer stops because the base model is a different one; None if unknown.

    Args:
        folder: The folder that `load_path` names.
        record: The adapter's record in that folder.
        base: The base model of the config.
    """
    try:
        expected = get_optional_str(parse_object(folder.small_file(record, limit=_LIMIT), where=record), _FINGERPRINT)
    except (OSError, ParseError):
        return None
    if not os.path.exists(base):
        return None
    actual = _fingerprint(base)
    return expected is not None and actual is not None and actual != expected


def _fingerprint(base: str) -> str | None:
    """Return the digest of a model's records and of the sizes and times of its files; None if neither exists."""
    digest = hashlib.sha256()
    parts = [part for path in _files(base) for part in _parts(path, base)]
    for part in parts:
        digest.update(part)
    return digest.hexdigest() if parts else None


def _files(base: str) -> Iterator[str]:
    if os.path.isfile(base):
        yield base
        return
    for folder, folders, files in os.walk(base):
        folders.sort()
        yield from (os.path.join(folder, name) for name in sorted(files))


def _parts(path: str, base: str) -> Iterator[bytes]:
    name = os.path.basename(path)
    relative = name if path == base else os.path.relpath(path, base)
    if name in _BY_CONTENT and path != base:
        yield relative.encode()
        with open(path, "rb") as file:
            yield file.read()
    elif name.endswith(".safetensors") or path == base:
        found = os.stat(path)
        yield from (relative.encode(), str(found.st_size).encode(), str(found.st_mtime_ns).encode())
