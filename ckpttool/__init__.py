"""fsck and flight plan for training checkpoints.

The verbs and nouns of the library are here by name, and none is imported before it is asked for:

    >>> import ckpttool
    >>> tree = ckpttool.scan(ckpttool.TreeQuestion(path="output/checkpoint"))  # doctest: +SKIP

`__init__.pyi` is the one list of these names: type checkers read it, and so does this module.
"""

from __future__ import annotations

import sys

from ckpttool.core.domain.answered import Answered

ModuleType = type(sys)  # `types` would cost a module

__version__ = "0.1.0"


def _modules_by_name(stub: str) -> dict[str, str]:
    """Return where each name lives that a stub offers, by lines of `from MODULE import NAME as NAME`."""
    with open(stub, encoding="utf-8") as lines:  # noqa: PTH123  pathlib would cost more than all else here
        halves = [line.rstrip("\n").split(" import ") for line in lines if line.startswith("from ")]
    return {name.partition(" as ")[0]: module.removeprefix("from ") for module, name in halves}


def _document_of(answer: Answered) -> object:
    """Make the document of an answer, which `to_dict` returns; what makes texts is not imported before."""
    from importlib import import_module

    return import_module("ckpttool.core.render.answers").as_read(answer)


Answered.document_of = staticmethod(_document_of)

_MODULES = _modules_by_name(f"{__file__}i")

__all__ = sorted({"__version__", *_MODULES})  # noqa: PLE0605  the list is the stub


class _Library(ModuleType):
    """The package itself: a folder that is called like a verb does not take the verb's place when it is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Library


def __getattr__(name: str) -> object:
    """Import a name when it is first asked for (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    globals()[name] = value = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
