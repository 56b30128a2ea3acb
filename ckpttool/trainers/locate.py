"""Find the checkpoint tree that a path means: the output folder, the checkpoint folder, a rank's folder, a shard."""

from __future__ import annotations

import os
import re
import stat
from typing import NamedTuple

from ckpttool.domain.checkpoint import LayoutName
from ckpttool.errors import IncompleteError, UnknownLayoutError
from ckpttool.storage.base import Entry, Kind, Storage
from ckpttool.storage.local import LocalStorage
from ckpttool.trainers.base import Layout, Listing
from ckpttool.trainers.mindformers.layouts.iteration import TRACKER, is_iteration
from ckpttool.trainers.mindformers.layouts.names import FileKind, checkpoint_name, parse_shape, rank_of_folder, shape_of
from ckpttool.trainers.registry import list_root, recognise

_KNOWN_PLACES = ("checkpoint", "output/checkpoint", "unified_checkpoint", "output/unified_checkpoint")
"""Where MindFormers puts checkpoints below an output folder or a working directory, a training's own saves first."""

_OTHER_TRAINERS = {"Megatron-LM": r"iter_[0-9]{7,18}", "verl": r"global_step_[0-9]{1,18}"}
"""Folders of one save, by whoever else writes a tracker file of MindFormers' name beside them."""


class Located(NamedTuple):
    """The tree that a path means."""

    storage: Storage
    listing: Listing
    layout: Layout
    focus: str | None
    """The shard's or the iteration's own name, where the path was one."""
    took: str | None
    """What was taken instead of the path itself, for people; None where it is the path."""


def locate(path: str, *, layout: LayoutName | None = None) -> Located:
    """Find the tree that `path` means.

    Raises:
        UnknownLayoutError: There is none, with what was looked for.
        IncompleteError: The folder is there but cannot be read.
    """
    path = os.path.normpath(path)
    try:
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode):
            return _around_shard(path, layout)
        if not stat.S_ISDIR(status.st_mode):
            raise UnknownLayoutError(f"{path} is neither a folder nor a shard")
        return _around_folder(path, layout)
    except (FileNotFoundError, NotADirectoryError):
        raise UnknownLayoutError(f"{path} does not exist; give the folder that holds rank_N/ or iteration_*/") from None
    except OSError as error:
        raise IncompleteError(f"{path} cannot be read: {error.strerror or error}") from None


def _around_shard(path: str, wanted: LayoutName | None) -> Located:
    folder, name = os.path.split(path)
    parent, own = _parent_of(folder or ".")
    rank = rank_of_folder(own)
    if rank is not None:
        parsed = parse_shape(shape_of(name, f"_rank_{rank}"))
        if parsed.kind is not FileKind.CHECKPOINT:
            raise UnknownLayoutError(f"{path} is no checkpoint shard: expected NAME_rank_{rank}-EPOCH_STEP.ckpt")
        label = checkpoint_name(parsed.run, parsed.position)
        wanted = wanted or LayoutName.MINDFORMERS_RANK
        # By the file's own name: others may have the same label in another format, or in another training.
        return _tree(parent or ".", wanted, focus=name, took=f"checkpoint {label} on all ranks of {parent or '.'}")
    if is_iteration(own):
        wanted = wanted or LayoutName.MINDFORMERS_ITERATION
        return _tree(parent or ".", wanted, focus=own, took=f"checkpoint {own} of {parent or '.'}")
    found = _try(folder or ".", wanted)
    if found is None and name == TRACKER:
        raise UnknownLayoutError(
            f"{folder or '.'} holds no checkpoints that ckpttool knows{_looks_like(folder or '.')}"
        )
    # Beside rank_N/ or iteration_*/ it is none of theirs: nobody who names it means the newest of them.
    is_part = found is not None and (name == TRACKER or found.layout.name is LayoutName.MINDFORMERS_UNIFIED)
    return found if found is not None and is_part else _loose(folder or ".", name)


def _loose(folder: str, name: str) -> Located:
    from ckpttool.trainers.common.loose_file import LooseFile

    listing, layout = Listing(entries=(Entry(name, Kind.FILE),)), LooseFile()
    if not layout.recognise(listing):
        raise UnknownLayoutError(
            f"{folder}/{name} is no shard: expected .ckpt, .safetensors, .pt, .pth, .bin or .metadata"
        )
    return Located(storage=LocalStorage(folder), listing=listing, layout=layout, focus=name, took=None)


def _around_folder(path: str, wanted: LayoutName | None) -> Located:
    found = _try(path, wanted)
    if found is not None:
        return found
    for place in _KNOWN_PLACES:
        inner = os.path.join(path, place) if path != "." else place
        if os.path.isdir(inner) and (found := _try(inner, wanted, took=inner)) is not None:
            return found
    parent, own = _parent_of(path)
    if rank_of_folder(own) is not None:
        wanted = wanted or LayoutName.MINDFORMERS_RANK
        return _tree(parent or ".", wanted, focus=None, took=f"all ranks of {parent or '.'}")
    if is_iteration(own):
        wanted = wanted or LayoutName.MINDFORMERS_ITERATION
        return _tree(parent or ".", wanted, focus=own, took=f"checkpoint {own} of {parent or '.'}")
    raise UnknownLayoutError(
        f"{path} holds no checkpoints that ckpttool knows: no rank_N/ or iteration_*/ folder, "
        f"no hyper_param.safetensors{_looks_like(path)}"
    )


def _looks_like(path: str) -> str:
    """Say whose checkpoints a folder with a tracker file, but without an iteration, seems to hold."""
    names = [entry.name for entry in list_root(LocalStorage(path)).entries]
    if TRACKER not in names:
        return ""
    for trainer, pattern in _OTHER_TRAINERS.items():
        seen = next((name for name in names if re.fullmatch(pattern, name)), None)
        if seen is not None:
            return f"; {seen} beside {TRACKER} looks like a tree of {trainer}, which ckpttool does not read"
    return f"; {TRACKER} alone is no checkpoint (MindFormers, Megatron-LM and verl all write such a file)"


def _parent_of(folder: str) -> tuple[str, str]:
    """Split a folder's own name off, also where the path does not say it: `.`, `..` and `../..`."""
    says_it = os.path.basename(folder) not in {".", ".."}
    return os.path.split(folder if says_it else os.path.abspath(folder))


def _tree(root: str, wanted: LayoutName | None, *, focus: str | None, took: str) -> Located:
    found = _try(root, wanted, focus=focus, took=took)
    if found is None:
        raise UnknownLayoutError(f"{root} holds no checkpoints that ckpttool knows")
    return found


def _try(root: str, wanted: LayoutName | None, *, focus: str | None = None, took: str | None = None) -> Located | None:
    storage = LocalStorage(root)
    listing = list_root(storage)
    layout = recognise(listing, wanted=wanted)
    if layout is None:
        return None
    return Located(storage=storage, listing=listing, layout=layout, focus=focus, took=took)
