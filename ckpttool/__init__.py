"""fsck and flight plan for training checkpoints.

    >>> import ckpttool
    >>> plan = ckpttool.resolve("output", level="checksum", gbs=768)  # doctest: +SKIP
    >>> plan.name, plan.step, plan.data_skip_steps, plan.exit_code  # doctest: +SKIP

This module has the functions, which take the options of their commands as keywords, and the errors that they raise.
Their results are in `ckpttool.types`, and more functions are in `ckpttool.library`. Everything is imported on first
use.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # `typing` would be most of the cost of `import ckpttool`
if TYPE_CHECKING:
    from types import ModuleType

    from ckpttool import library as library
    from ckpttool import types as types
    from ckpttool.core.errors import CkptToolError as CkptToolError
    from ckpttool.core.errors import ConfigError as ConfigError
    from ckpttool.core.errors import IncompleteError as IncompleteError
    from ckpttool.core.errors import LockedError as LockedError
    from ckpttool.core.errors import NothingToResumeError as NothingToResumeError
    from ckpttool.core.errors import UnknownLayoutError as UnknownLayoutError
    from ckpttool.core.errors import UnsafeError as UnsafeError
    from ckpttool.core.errors import UsageError as UsageError
    from ckpttool.guard.rules.guarding import SpikeGuard as SpikeGuard
    from ckpttool.guard.verbs.training import checkpoint_writer as checkpoint_writer
    from ckpttool.guard.verbs.training import resume_training as resume_training
    from ckpttool.library import calibrate as calibrate
    from ckpttool.library import demo as demo
    from ckpttool.library import diff as diff
    from ckpttool.library import explain as explain
    from ckpttool.library import heal as heal
    from ckpttool.library import health as health
    from ckpttool.library import inspect as inspect
    from ckpttool.library import launch as launch
    from ckpttool.library import lint_config as lint_config
    from ckpttool.library import postflight as postflight
    from ckpttool.library import preflight as preflight
    from ckpttool.library import prune as prune
    from ckpttool.library import repair_meta as repair_meta
    from ckpttool.library import replay as replay
    from ckpttool.library import report as report
    from ckpttool.library import resolve as resolve
    from ckpttool.library import scale_skip as scale_skip
    from ckpttool.library import scan as scan
    from ckpttool.library import seal as seal
    from ckpttool.library import verify as verify

__version__ = "0.1.0"

# `python -m tests.pages` writes this table from the imports above.
_PLACES = {
    "ckpttool.core.errors": (
        "CkptToolError ConfigError IncompleteError LockedError NothingToResumeError UnknownLayoutError UnsafeError "
        "UsageError"
    ),
    "ckpttool.guard.rules.guarding": "SpikeGuard",
    "ckpttool.guard.verbs.training": "checkpoint_writer resume_training",
    "ckpttool.library": (
        "calibrate demo diff explain heal health inspect launch lint_config postflight preflight prune repair_meta "
        "replay report resolve scale_skip scan seal verify"
    ),
}

__all__ = sorted(" ".join(_PLACES.values()).split())  # noqa: PLE0605  the list is the imports


if not TYPE_CHECKING:

    class _Library(type(sys)):  # `types` of the standard library would cost a module
        """The package itself. Importing a folder with the name of a function does not replace the function."""

        def __setattr__(self, name: str, value: object) -> None:
            if not (name in __all__ and isinstance(value, type(sys))):
                super().__setattr__(name, value)

    sys.modules[__name__].__class__ = _Library

    def __getattr__(name: str) -> object:
        if name in {"library", "types"}:
            return _module(f"ckpttool.{name}")
        try:
            return imported(name, _PLACES, __name__)
        except AttributeError as error:
            for more in ("ckpttool.types", "ckpttool.library"):
                if not name.startswith("_") and name in _module(more).__all__:
                    raise AttributeError(f"{error}: it is {more}.{name}") from None
            if name in _BY_COMMAND:
                raise AttributeError(f"{error}: it is {_BY_COMMAND[name]}") from None
            raise


_BY_COMMAND = {"lint": "lint_config", "repair": "heal and repair_meta", "log": "replay and calibrate"}
"""Commands whose functions have other names."""


def _module(name: str) -> ModuleType:
    from importlib import import_module

    return import_module(name)


def imported(name: str, places: dict[str, str], package: str) -> object:
    """Import a name on first use (PEP 562), and return it. `places` maps modules to their names.

    Raises:
        AttributeError: There is no such name.
    """
    module = next((module for module, names in places.items() if name in names.split()), None)
    if module is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    namespace = vars(sys.modules[package])
    namespace[name] = value = getattr(_module(module), name)
    return value


def document_of(answer: object) -> dict[str, object]:
    """Return the document of an answer, for `to_dict`. The layer of the answers must not import the rendering."""
    document: dict[str, object] = _module("ckpttool.core.render.answers").as_read(answer)
    return document


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "library", "types"})
