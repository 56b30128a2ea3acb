"""Files that belong to a model besides its weights: the config and the tokenizer, which loaders need next to them."""

from __future__ import annotations

import re

from ckpttool.core.storage.base import Kind, Storage

CONFIG = "config.json"
"""The file without which transformers and vLLM load nothing."""
_COMPANION = re.compile(
    r"(?:config|generation_config|adapter_config|special_tokens_map|added_tokens|preprocessor_config|processor_config)"
    r"\.json|(?:tokenizer|vocab|merges|chat_template)[\w.-]*\.(?:json|txt|jinja|model|tiktoken)|[\w-]+\.model"
)
"""Names of such files. Source code (`.py`) is never one of them."""


def companions_in(storage: Storage, folder: str) -> tuple[str, ...]:
    """Return the paths of a model's further files in a folder, sorted; empty if the folder does not exist.

    Raises:
        OSError: The folder cannot be listed.
    """
    try:
        entries = storage.entries(folder)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    names = sorted(entry.name for entry in entries if entry.kind is Kind.FILE and is_companion(entry.name))
    return tuple(f"{folder}/{name}" if folder else name for name in names)


def is_companion(name: str) -> bool:
    """Return whether a file of this name belongs to a model."""
    return _COMPANION.fullmatch(name) is not None


def has_tokenizer(names: tuple[str, ...]) -> bool:
    """Return whether one of these files contains a vocabulary."""
    return any(
        re.fullmatch(r"tokenizer\.json|tokenizer\.model|vocab\..*|[\w-]+\.model|.*\.tiktoken", name) for name in names
    )
