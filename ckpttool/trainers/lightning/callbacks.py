"""Keys of the fit settings and of the saving callbacks in the YAML of Lightning's command line."""

from __future__ import annotations

from ckpttool.core.decide.lint_engine import View
from ckpttool.core.domain.settings import Nested

_CALLBACK = "ModelCheckpoint"


def fit_prefix(view: View) -> str:
    """Return the prefix of the keys of the fit settings."""
    return "fit." if view.is_section("fit.trainer") else ""


def items_of(view: View, key: str) -> list[str]:
    """Return the keys of a list's items, or of the single value in place of the list."""
    if view.get(key) is Nested.LIST:
        return [f"{key}.{index}" for index, _ in enumerate(view.inside(key))]
    return [key]


def saving_callbacks(view: View) -> list[str]:
    """Return the key prefix of each callback that saves."""
    return [
        f"{key}.init_args"
        for key in items_of(view, f"{fit_prefix(view)}trainer.callbacks")
        if str(view.get(f"{key}.class_path")).rpartition(".")[2] == _CALLBACK
    ]
