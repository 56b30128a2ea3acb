"""What each command answers, one module an answer: its JSON beside its table."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def as_read(noun: str, answer: object) -> Any:  # noqa: ANN401  what a script gets
    """Return the document of an answer as a script reads it.

    Args:
        noun: Names the module of such answers.
        answer: One of them.
    """
    from ckpttool.render import json

    return json.as_read(import_module(f"{__name__}.{noun.replace('-', '_')}").document(answer))
