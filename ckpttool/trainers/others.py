"""Saves of trainers without a layout here.

They are recognized so that they are refused by name, and not reported as damaged.

Sources: the names that these projects give their saved files; no file is opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.storage.base import Kind
from ckpttool.trainers.listing import Listing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Save:
    """The signs of a save's folder."""

    title: str
    folder: str
    """Pattern for the folder's name."""
    holds: tuple[str, ...]
    """Patterns for names in the folder, each of which must match an entry."""


_ANY = "(?s:.+)"

_SAVES = (
    _Save(
        title="OLMo",
        folder="step[0-9]+(?:-unsharded)?",
        holds=(r"model(?:\.pt)?", r"optim(?:\.pt)?", r"train(?:\.pt)?"),
    ),
    _Save(title="NeMo", folder=_ANY, holds=("weights", "context")),
    _Save(title="PaddleNLP", folder="checkpoint-[0-9]+", holds=(r".+\.(?:pdparams|pdopt|pdmodel)",)),
    _Save(title="PaddlePaddle", folder=_ANY, holds=(r"[0-9]+_[0-9]+\.distcp",)),
    _Save(title="nanotron", folder="[0-9]+", holds=(r"checkpoint_metadata\.json",)),
    _Save(title="ColossalAI", folder=_ANY, holds=(r"running_states\.json",)),
    _Save(title="Levanter", folder="step-[0-9]+", holds=(r"metadata\.json", r"manifest\.ocdbt")),
    _Save(title="T5X", folder="checkpoint_[0-9]+", holds=(r"target\..+",)),
    _Save(title="fairseq2", folder="step_[0-9]+", holds=("trainer|data_reader",)),
    _Save(title="LitGPT", folder=_ANY, holds=(r"lit_model\.pth",)),
    _Save(title="SpeechBrain", folder=r"CKPT\+.+", holds=(r"CKPT\.yaml",)),
    _Save(title="torchtune", folder="recipe_state", holds=(r"recipe_state\.pt",)),
)
"""Signs of saves, more specific signs first."""

_BESIDE = (
    ("Composer with compression", r"(?:ep[0-9]+-ba[0-9]+|latest-rank[0-9]+).*\.(?:tar|tgz|pt\.(?!symlink)).*"),
    ("NeMo", r".+\.nemo"),
    ("Keras", r".+\.(?:keras|weights\.h5)"),
    ("TensorFlow", r".+\.data-[0-9]{5}-of-[0-9]{5}"),
    ("PaddlePaddle", r".+\.(?:pdparams|pdopt)"),
    ("fairseq", r"checkpoint_(?:last|best|[0-9]+_[0-9]+)\.pt"),
    ("MMEngine or Detectron2", "last_checkpoint"),
    ("Flax", "checkpoint_[0-9]+"),
)
"""Files in the root: a save in one file, or a record that names the last save."""


def others_saves(listing: Listing, *, by_name: bool = False) -> str | None:
    """Return the unknown trainer whose saves are in a folder; None if the folder contains no such save.

    Args:
        listing: The folder's names.
        by_name: Whether a save must also have the name that its trainer gives it.
    """
    saves = (save for save in _SAVES if not (by_name and save.folder == _ANY))
    return next((save.title for save in saves if _holds_one(listing, save)), None)


def without_others(listing: Listing) -> Listing:
    """Return a folder's names without the saves of unknown trainers.

    If only a few of many folders with similar names are searched, these represent the rest.
    """
    patterns = [save.folder for save in _SAVES if save.folder != _ANY and _holds_one(listing, save)]
    if not patterns:
        return listing
    remaining = (
        entry for entry in listing.entries if not any(re.fullmatch(pattern, entry.name) for pattern in patterns)
    )
    return replace(listing, entries=tuple(remaining))


def looks_like(listing: Listing) -> str | None:
    """Return the trainer that probably wrote a folder's checkpoints, by saves or files in its root; None if unknown."""
    title = others_saves(listing)
    if title is not None:
        return title
    files = [entry.name for entry in listing.entries if entry.kind in {Kind.FILE, Kind.LOST}]
    return next((title for title, pattern in _BESIDE if any(re.fullmatch(pattern, name) for name in files)), None)


def _holds_one(listing: Listing, save: _Save) -> bool:
    try:
        return any(_all_there(save.holds, names) for _, names in listing.inside(save.folder))
    except OSError:  # a folder that cannot be listed identifies no trainer
        return False


def _all_there(patterns: Iterable[str], names: frozenset[str]) -> bool:
    return all(any(re.fullmatch(pattern, name) for name in names) for pattern in patterns)
