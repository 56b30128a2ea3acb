"""Inside the training process: drop what would poison the weights, and keep what is needed to see why.

>>> from ckpttool.guard import Guard, RobustZPolicy  # doctest: +SKIP

For who trains: `Guard` in `step.py`; for who looks afterwards: `ckpttool guard`, `ckpttool nan`. The public names are
in `__init__.pyi` and need torch; to read what a guarded training wrote needs none.
"""

from __future__ import annotations

from ckpttool import _imported, _modules_by_name
from ckpttool.core.extensions import Feature

FEATURE = Feature(
    findings="ckpttool.guard.findings:GuardCode",
    answers={
        "guard-report": "ckpttool.guard.answers.report",
        "nan-capture": "ckpttool.guard.answers.nan_capture",
        "nan-captures": "ckpttool.guard.answers.nan_captures",
        "nan-replay": "ckpttool.guard.answers.nan_replay",
    },
)

_MODULES = _modules_by_name(f"{__file__}i")

__all__ = sorted(_MODULES)  # noqa: PLE0605  the list is the stub


def assert_torch() -> None:
    """Refuse to work inside a training that there cannot be.

    Raises:
        UsageError: torch is not installed.
    """
    from importlib.util import find_spec

    from ckpttool.core.errors import UsageError

    if find_spec("torch") is None:
        raise UsageError("the guard needs torch, which is not installed: pip install 'ckpttool[torch]'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    """Import a name when it is first asked for.

    Raises:
        UsageError: torch is not installed.
    """
    if name in _MODULES:
        assert_torch()
    return _imported(name, _MODULES, __name__)
