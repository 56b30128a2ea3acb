"""fsck and flight plan for training checkpoints.

The verbs and nouns of the library are here by name, and none is imported before it is asked for:

    >>> import ckpttool
    >>> tree = ckpttool.scan(ckpttool.TreeQuestion(path="output/checkpoint"))  # doctest: +SKIP

`__init__.pyi` is the one list of these names: type checkers read it, and so does this module.
"""

from __future__ import annotations

import sys

__version__ = "0.1.0"


def _modules_by_name(stub: str) -> dict[str, str]:
    """Return where each name lives that a stub offers, by lines of `from MODULE import NAME as NAME`."""
    with open(stub, encoding="utf-8") as lines:  # noqa: PTH123  pathlib would cost more than all else here
        halves = [line.rstrip("\n").split(" import ") for line in lines if line.startswith("from ")]
    return {name.partition(" as ")[0]: module.removeprefix("from ") for module, name in halves}


def _imported(name: str, modules: dict[str, str], package: str) -> object:
    """Import a name when it is first asked for (PEP 562)."""
    if name not in modules:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    from importlib import import_module

    namespace = vars(sys.modules[package])
    namespace[name] = value = getattr(import_module(modules[name]), name)
    return value


def document_of(answer: object) -> object:
    """Make the document of an answer, for `to_dict`: what makes texts stands above the nouns."""
    from importlib import import_module

    return import_module("ckpttool.core.render.answers").as_read(answer)


_MODULES = _modules_by_name(f"{__file__}i")

__all__ = sorted({"__version__", *_MODULES})  # noqa: PLE0605  the list is the stub


class _Library(type(sys)):  # `types` would cost a module
    """The package itself: a folder that is called like a verb does not take the verb's place when it is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _MODULES and isinstance(value, type(sys))):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Library


def __getattr__(name: str) -> object:
    return _imported(name, _MODULES, __name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
