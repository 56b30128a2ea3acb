"""Inside the training process: drop what would poison the weights, and keep what is needed to see why.

>>> from ckpttool.guard import Guard, RobustZPolicy  # doctest: +SKIP

For training: `Guard` in `step`; afterwards: `ckpttool guard`, `ckpttool nan`. The public names, in `__init__.pyi`, need
torch. Reading the files of a guarded training does not.

In each step `Guard` takes norm and losses (`gradients`), asks the rule (`rules.guarding`), agrees with the other ranks
(`agree`), and applies or drops the update. Beside it work `buffers` (restored after a drop), `features` and `checks`
(devices that compute wrongly), `capture` (what a replay needs) and `files.events` (the event file and the sinks);
`contain` keeps the exceptions of all in. A trainer joins by an adapter that calls `Guard.micro` and `Guard.clip_`, a
receiver of events by a sink. `replay` computes a capture again; `writer` and `resume` are the checkpoints.
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
