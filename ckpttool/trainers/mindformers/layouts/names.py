"""The meaning of file and folder names, parsed once per *shape* of a name in a rank folder.

A tree of 8,192 ranks contains tens of thousands of names but only a few shapes, because the names differ only in the
rank. So ckpttool cuts the rank out and looks the rest up, which is three times as fast as a regular expression per
file.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from ckpttool.core.domain.shard import FORMAT_OF_SUFFIX, FormatName
from ckpttool.core.domain.units import MAX_RANKS, Step
from ckpttool.trainers.base import WHOLE_TREE, LayoutSigns, Part, Refusal
from ckpttool.trainers.common import TRACKER
from ckpttool.trainers.mindformers.scalars import EpochStep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpttool.trainers.listing import Listing


RANK_LAYOUT, ITERATION_LAYOUT, UNIFIED_LAYOUT = "mindformers-rank", "mindformers-iteration", "mindformers-unified"
"""Names for `--layout` and JSON. Only modules in this package compare layouts by these names."""

SCALARS_FILE = "hyper_param.safetensors"
"""The file of training scalars next to unified weights."""

BESIDE_THE_SAVES = "the rank_N layout"
"""The layout with a file next to the saves that records their health."""

RANK_MARK = "\0"
"""Placeholder for the rank in a shape.

No file name can contain it.
"""

MAX_RANK_DIGITS = 9
"""Maximum number of digits in a rank, because int() of a million digits takes seconds."""

ITERATION_START = "iteration_"
"""Beginning of a save folder's name in the newer layout."""

_ITERATION = rf"{ITERATION_START}[0-9]{{8,18}}"

SUFFIX_OF_FORMAT = {name: suffix for suffix, name in FORMAT_OF_SUFFIX.items()}


WRITTEN = ("common.json", "metadata.json")
"""Files next to the shards in every save of the newer layout, excluding the tracker, which ckpttool writes itself."""


class FileKind(Enum):
    """The purpose of a file in a rank folder."""

    CHECKPOINT = "checkpoint"
    META = "meta"
    NETWORK = "network"
    """Weights only, without optimizer state: no training can continue from it."""
    TRAINABLE = "trainable"
    BREAKPOINT = "breakpoint"
    """A file written while an exception propagated, with the step *in the epoch*."""
    IN_PROGRESS = "in-progress"
    GRAPH = "graph"
    OTHER_RANK = "other-rank"
    """A checkpoint's name with a rank that differs from the folder's rank."""
    RESPELLED = "respelled"
    """A checkpoint's name with numbers in a different form.

    MindFormers does not search for such a file.
    """
    STRAY = "stray"


class FileName(NamedTuple):
    """A parsed shape. Checkpoints have all the fields after `kind`; `.tmp` files have these except the format."""

    kind: FileKind
    prefix: str = ""
    run: int = 0
    position: EpochStep = EpochStep(epoch=0, step=0)
    format: FormatName = FormatName.MINDSPORE_CKPT


# At most 18 digits: no run has larger step numbers, and int() of a million digits takes seconds. The companion
# files that macOS writes when it copies files to a disk with another file system begin with `._`: they are not shards.
# A pattern is compiled at the first name that needs it: many trees have no such names, and strays are rare.
_CHECKPOINT = (
    rf"(?s:(?P<prefix>(?!\._).+))_rank_(?P<rank>{RANK_MARK}|[0-9]{{1,9}})(?:_(?P<run>[0-9]{{1,9}}))?"
    r"-(?P<epoch>[0-9]{1,18})_(?P<step>[0-9]{1,18})(?P<tail>_breakpoint)?\.(?P<suffix>ckpt|safetensors)"
)
_PARTIAL = (
    rf"(?s:.+)_rank_{RANK_MARK}(?:_[0-9]+)?-(?P<what>network|trainable_params)(?:-[0-9]+_[0-9]+)?\.(?:ckpt|safetensors)"
)
# MindSpore writes a shard under this name, then renames it.
_UNFINISHED = (
    rf"(?s:(?P<prefix>(?!\._).+))_rank_{RANK_MARK}(?:_(?P<run>[0-9]{{1,9}}))?"
    r"-(?P<epoch>[0-9]{1,18})_(?P<step>[0-9]{1,18})(?:\.ckpt|\.safetensors)?\.tmp"
)
# `tmp` and eight characters: Python's NamedTemporaryFile, which MindFormers renames to meta.json or common.json;
# `.tmp` and six: the library of the safetensors format, before MindSpore's own temporary name.
_TEMPORARY = r"(?s:.+)\.tmp|tmp[a-z0-9_]{8}|\.tmp[A-Za-z0-9]{6}"


@lru_cache(maxsize=65536)
def parse_shape(shape: str) -> FileName:  # noqa: PLR0911  one return per kind reads best
    """Determine a file's kind from its name, in which RANK_MARK replaces the folder's rank.

    Only complete matches count: `old-llama_rank_0-20_2.ckpt.bak` is a stray.
    """
    if shape == "meta.json":
        return FileName(kind=FileKind.META)
    if match := re.fullmatch(_CHECKPOINT, shape):
        if match["tail"]:
            return FileName(kind=FileKind.BREAKPOINT)
        if match["rank"] != RANK_MARK:
            return FileName(kind=FileKind.OTHER_RANK)
        if any(match[number] != str(int(match[number])) for number in ("epoch", "step")) or (
            match["run"] is not None and match["run"].startswith("0")
        ):
            return FileName(kind=FileKind.RESPELLED)
        return FileName(
            kind=FileKind.CHECKPOINT,
            prefix=match["prefix"],
            run=int(match["run"] or 0),
            position=EpochStep(epoch=int(match["epoch"]), step=int(match["step"])),
            format=FORMAT_OF_SUFFIX[match["suffix"]],
        )
    if match := re.fullmatch(_PARTIAL, shape):
        return FileName(kind=FileKind.NETWORK if match["what"] == "network" else FileKind.TRAINABLE)
    if match := re.fullmatch(_UNFINISHED, shape):
        position = EpochStep(epoch=int(match["epoch"]), step=int(match["step"]))
        return FileName(FileKind.IN_PROGRESS, match["prefix"], int(match["run"] or 0), position)
    if re.fullmatch(_TEMPORARY, shape):
        return FileName(kind=FileKind.IN_PROGRESS)
    if shape.endswith("-graph.meta"):
        return FileName(kind=FileKind.GRAPH)
    return FileName(kind=FileKind.STRAY)


def rank_of_folder(name: str) -> int | None:
    """Return the rank of a folder named exactly `rank_N`; None for `rank_0_bak`, `rank_007`, `rank_9999999`."""
    digits = name[5:]
    if not name.startswith("rank_") or not (digits.isascii() and digits.isdigit()) or len(digits) > MAX_RANK_DIGITS:
        return None
    rank = None if digits[0] == "0" and digits != "0" else int(digits)
    return None if rank is None or rank >= MAX_RANKS else rank


def is_iteration(name: str) -> bool:
    """Return whether a name is a save's folder name in the newer layout."""
    return name.startswith(ITERATION_START) and re.fullmatch(_ITERATION, name) is not None


def iteration_folder(step: int) -> str:
    """Return the folder name of one save in the newer layout."""
    return f"{ITERATION_START}{step:08d}"


def iteration_step(name: str) -> Step:
    """Return the step in the name of a save's folder in the newer layout."""
    return Step(int(name.removeprefix(ITERATION_START)))


def checkpoint_name(run: int, position: EpochStep) -> str:
    """Return the name for `--checkpoint`: `20_2`, or `_1-25_2` for a later run."""
    return f"_{run}-{position}" if run else str(position)


def file_name(prefix: str, rank: int, run: int, position: EpochStep, suffix: str) -> str:
    """Return the name that MindFormers gives to a rank's file."""
    run_part = f"_{run}" if run else ""
    return f"{prefix}_rank_{rank}{run_part}-{position}.{suffix}"


def shape_of(name: str, rank_token: str) -> str:
    """Cut the rank out of a file name.

    Args:
        name: The file name.
        rank_token: `_rank_N` of the folder that contains the file. Only the last occurrence is the rank: a prefix such
            as `my_rank_7_model` may contain this text too.
    """
    head, token, tail = name.rpartition(rank_token)
    if token and tail[:1] in {"_", "-"}:
        return f"{head}_rank_{RANK_MARK}{tail}"
    return name


def saves_in(listing: Listing) -> Iterator[str]:
    """Return the folders of a tree that have the name of a save in the newer layout."""
    return filter(is_iteration, listing.folders(ITERATION_START))


def _is_unified(listing: Listing) -> bool:
    """Recognize the layout by the file with the training scalars."""
    return listing.has(SCALARS_FILE)


def _part_of_unified(listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
    """Return the complete tree for any file in the root, because the tree is one save."""
    return None if folder or file is None else WHOLE_TREE


def _is_iteration(listing: Listing) -> bool:
    """Recognize the layout by an `iteration_%08d` folder, because other trainers write the same tracker."""
    return any(saves_in(listing))


def _part_of_iteration(listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
    """Return the save to which a folder and its contents belong; the tracker belongs to all saves."""
    if not folder:
        return WHOLE_TREE if file == TRACKER else None
    save = folder.partition("/")[0]
    return Part.of_save(save) if is_iteration(save) else None


def _is_rank(listing: Listing) -> bool:
    """Recognize folders named exactly `rank_N`, if one of them has its own file or all of them are empty.

    Launchers may store their logs in folders with such names. A run that has just started has saved nothing.
    """
    are_empty: set[bool] = set()
    for folder, names in listing.inside("rank_[0-9]{1,9}", most=None):
        rank = rank_of_folder(folder)
        if rank is not None:
            if any(_is_own(name, rank) for name in names):
                return True
            are_empty.add(not names)
    return are_empty == {True}


def _part_of_rank(listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
    """Return all ranks for a rank's folder, and the save on all ranks for a shard in such a folder.

    A training run that switched from the newer layout leaves its tracker behind.
    """
    if not folder:
        return WHOLE_TREE if file == TRACKER else None
    rank = rank_of_folder(folder)
    if rank is None:
        return None
    if file is None:
        return Part(focus=None, resolved_from="all ranks")
    parsed = parse_shape(shape_of(file, f"_rank_{rank}"))
    if parsed.kind is not FileKind.CHECKPOINT:
        return Refusal(why=f"is not a checkpoint shard: expected NAME_rank_{rank}-EPOCH_STEP.ckpt")
    # Use the file's own name: other files may have the same label in another format, or in another run.
    return Part(focus=file, resolved_from=f"checkpoint {checkpoint_name(parsed.run, parsed.position)} on all ranks")


def _is_own(name: str, rank: int) -> bool:
    """Return whether MindFormers gives a file in a rank's folder this name, finished or not."""
    kind = parse_shape(shape_of(name, f"_rank_{rank}")).kind
    return kind is FileKind.META or ("_rank_" in name and kind is not FileKind.STRAY)


UNIFIED = LayoutSigns(
    name=UNIFIED_LAYOUT,
    sign=SCALARS_FILE,
    recognise=_is_unified,
    part=_part_of_unified,
    reference="ckpttool.trainers.mindformers.layouts.unified:MindFormersUnified",
)
ITERATION = LayoutSigns(
    name=ITERATION_LAYOUT,
    sign="iteration_*/",
    recognise=_is_iteration,
    part=_part_of_iteration,
    reference="ckpttool.trainers.mindformers.layouts.iteration:MindFormersIteration",
)
RANK = LayoutSigns(
    name=RANK_LAYOUT,
    sign="rank_N/",
    recognise=_is_rank,
    part=_part_of_rank,
    reference="ckpttool.trainers.mindformers.layouts.rank:MindFormersRank",
)
