"""Weights in files that contain complete tensors: safetensors files, and archives of `torch.save`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ckpttool.core.domain.weights import Record, Target
from ckpttool.core.formats.base import ZIP_MAGIC, quoted
from ckpttool.core.formats.torch.pickle_objects import Global, Made, Tensor
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
    if not found and part is None and _has_tensors(archive.tree) and not _has_models(archive.tree):
        return archive.tree
    if len(found) == 1:
        return next(iter(found.values()))
    listed = ", ".join(found) or "none of the usual keys"
    others = archive.tree if isinstance(archive.tree, Mapping) else {}
    words = [*found, *(key for key, state in others.items() if isinstance(key, str) and _has_tensors(state))]
    remedy = f"name the model's key, such as --part {words[0]}" if words else CONVERT
    raise ambiguous_part(f"The file has a model under {listed}.", path=archive.path, remedy=remedy)


def _has_models(tree: object) -> bool:
    """Return whether one of an object's values is a dictionary of tensors: then its own tensors are not the model."""
    pairs = tree.items() if isinstance(tree, Mapping) else ()
    return any(_has_tensors(state) for name, state in pairs if not _is_extra(name))


def _is_extra(name: object) -> bool:
    """Return whether `Module.get_extra_state` gave an entry its value: it may be of any kind, and is not a weight."""
    return isinstance(name, str) and name.rpartition(".")[2] == "_extra_state"


def _has_tensors(state: object) -> bool:
    return isinstance(state, Mapping) and any(isinstance(value, Tensor) for value in state.values())


def state_dict_targets(archive: Archive, state: object) -> tuple[list[Target], dict[str, str]]:
    """Return the tensors of a state dictionary in an archive, in its order.

    Args:
        archive: The archive.
        state: The dictionary in its tree.

    Returns:
        The tensors, and the names that share the data of an earlier tensor, which are left out.

    Raises:
        NotExportableError: It is not a dictionary of tensors, or a weight in it has a form that is not supported.
    """
    if not isinstance(state, Mapping) or not _has_tensors(state):
        raise not_understood("The file contains no dictionary of tensors.", path=archive.path, remedy=CONVERT)
    targets: list[Target] = []
    tied: dict[str, str] = {}
    views: dict[Tensor, str] = {}
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            _assert_no_weight(archive, name, value)
            continue
        first = views.setdefault(value, name) if value.shape and 0 not in value.shape else name
        if first != name:
            tied[name] = first
            continue
        piece = archive.piece(value)
        targets.append(Target(name=name, dtype=piece.dtype, shape=piece.shape, pieces=(piece,)))
    return targets, tied


def _assert_no_weight(archive: Archive, name: object, value: object) -> None:
    """Refuse an entry that is left out although it is a weight, because the output would be incomplete.

    Raises:
        NotExportableError: It is sparse, quantized or without data, or is a list or dictionary of tensors.
    """
    if not _is_extra(name) and _contains_tensor(value):
        text = quoted(ascii(name).strip("'")) if isinstance(name, (str, int)) else "of an object"
        message = f"The entry {text} is a weight in a form that ckpttool does not read, such as sparse or nested."
        raise not_understood(message, path=archive.path, remedy=CONVERT)


def _contains_tensor(value: object) -> bool:
    """Return whether a value is a tensor of any kind, or contains one at any depth."""
    left = [value]
    seen: set[int] = set()
    while left:
        value = left.pop()
        if isinstance(value, Tensor):
            return True
        if isinstance(value, Made) and isinstance(value.by, Global) and value.by.name.startswith("_rebuild_"):
            return True
        if id(value) in seen:  # a list can contain itself
            continue
        seen.add(id(value))
        if isinstance(value, Made):
            left += (*value.args, *value.members.values())
        elif isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, (list, tuple)):
            left += value
    return False
