"""The library and the wiring: each verb takes and returns frozen values; nothing is printed here.

The verbs live in one module each for what they wire, and are imported when they are asked for: `scan` need not wait for
what `launch` imports. `__init__.pyi` is the list.
"""

from __future__ import annotations

from ckpttool import _imported, _modules_by_name

_MODULES = _modules_by_name(f"{__file__}i")

__all__ = sorted(_MODULES)  # noqa: PLE0605  the list is the stub


def __getattr__(name: str) -> object:
    return _imported(name, _MODULES, __name__)
