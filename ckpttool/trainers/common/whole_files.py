"""Weights in files that contain complete tensors: safetensors files, and archives of `torch.save`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ckpttool.core.domain.weights import Record, Target
from ckpttool.core.formats.base import ZIP_MAGIC
from ckpttool.core.formats.torch.pickle_objects import Tensor
from ckpttool.core.formats.torch.plain import value_at
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.common.archives import Archive, read_archive
from ckpttool.trainers.common.stored_tensors import CONVERT, read_stored
from ckpttool.trainers.export_findings import ambiguous_part, not_understood

MODEL_KEYS: tuple[tuple[str, ...], ...] = (
    ("model",),
    ("state_dict",),
    ("state", "model"),
    ("app", "model"),
    ("model_state_dict",),
    ("module",),
)
"""Keys under which trainers and training loops save the model in one object."""


def whole_targets(
    storage: Storage, paths: Iterable[str], part: str | None = None
) -> tuple[tuple[Target, ...], dict[str, str], list[Record]]:
    """Return the tensors of files in any of the formats, in the order of the paths and their headers.

    Args:
        storage: The tree.
        paths: The files.
        part: Key of the model in an archive, such as `app.model`; None if it is one of the usual ones.

    Returns:
        The tensors, the names that share the data of another tensor of their file, and the records to prove.

    Raises:
        NotExportableError: A file is damaged, or is not a dictionary of tensors.
        OSError: The disk did not answer.
    """
    targets: list[Target] = []
    tied: dict[str, str] = {}
    records: list[Record] = []
    for path in paths:
        with storage.open(path) as source:
            is_archive = source.read(0, len(ZIP_MAGIC)) == ZIP_MAGIC
        if is_archive:
            with storage.open(path) as source:
                archive = read_archive(source, path)
            more, shared = state_dict_targets(archive, model_in(archive, part))
            targets += more
            tied |= shared
            records += archive.records
        else:
            stored = read_stored(storage, path)
            targets += map(stored.target, stored.entries.values())
    return tuple(targets), tied, records


def model_in(archive: Archive, part: str | None) -> object:
    """Return the model's dictionary of tensors in an archive: under a usual key, or the saved object itself.

    Raises:
        NotExportableError: There are several models, or none.
    """
    keys = MODEL_KEYS if part is None else (tuple(part.split(".")),)
    found = {".".join(key): state for key in keys if _has_tensors(state := value_at(archive.tree, *key))}
    if not found and part is None and _has_tensors(archive.tree):
        return archive.tree
    if len(found) == 1:
        return next(iter(found.values()))
    listed = ", ".join(found) or "none of the usual keys"
    others = archive.tree if isinstance(archive.tree, Mapping) else {}
    words = [*found, *(key for key, state in others.items() if isinstance(key, str) and _has_tensors(state))]
    remedy = f"name the model's key, such as --part {words[0]}" if words else CONVERT
    raise ambiguous_part(f"The file has a model under {listed}.", path=archive.path, remedy=remedy)


def _has_tensors(state: object) -> bool:
    return isinstance(state, Mapping) and any(isinstance(value, Tensor) for value in state.values())


def state_dict_targets(archive: Archive, state: object, prefix: str = "") -> tuple[list[Target], dict[str, str]]:
    """Return the tensors of a state dictionary in an archive, in its order.

    Args:
        archive: The archive.
        state: The dictionary in its tree.
        prefix: Beginning of the names to take, which is removed.

    Returns:
        The tensors, and the names that share the data of an earlier tensor, which are left out.

    Raises:
        NotExportableError: It is not a dictionary of tensors.
    """
    if not isinstance(state, Mapping) or not _has_tensors(state):
        raise not_understood("The file contains no dictionary of tensors.", path=archive.path, remedy=CONVERT)
    targets: list[Target] = []
    tied: dict[str, str] = {}
    views: dict[Tensor, str] = {}
    for name, value in state.items():
        if not isinstance(name, str) or not name.startswith(prefix) or not isinstance(value, Tensor):
            continue
        first = views.setdefault(value, name) if value.shape and 0 not in value.shape else name
        if first != name:
            tied[name.removeprefix(prefix)] = first.removeprefix(prefix)
            continue
        piece = archive.piece(value)
        targets.append(Target(name=name.removeprefix(prefix), dtype=piece.dtype, shape=piece.shape, pieces=(piece,)))
    return targets, tied
