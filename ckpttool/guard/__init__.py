"""The guard in the training process: it drops harmful updates and captures the data to find their cause.

>>> from ckpttool.guard import Guard, RobustZPolicy  # doctest: +SKIP

Use `Guard` in a training loop, and the command `ckpttool guard` afterwards. The public names need torch. Reading the
files of a guarded run does not.

In each step `Guard` reads the norm and the losses (`gradients`), applies the rule (`rules.guarding`), agrees with the
other ranks (`agree`), and applies or drops the update. It also uses `buffers` (restored after a drop), `features` and
`checks` (devices that compute wrong results), `capture` (the data for a replay) and `files.events` (the event file and
the sinks). `contain` catches the exceptions of all these modules. A trainer connects through an adapter that calls
`Guard.micro` and `Guard.clip_`. A receiver of events connects through a sink. `replay` recomputes a captured step.
`writer` and `resume` handle checkpoints.
"""

from __future__ import annotations

from ckpttool import imported
from ckpttool.core.extensions import Feature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ckpttool.core.domain.asd import MINDSPORE as MINDSPORE
    from ckpttool.core.domain.asd import TORCH_NPU as TORCH_NPU
    from ckpttool.guard.capture.store import CaptureBudget as CaptureBudget
    from ckpttool.guard.capture.store import CaptureSettings as CaptureSettings
    from ckpttool.guard.replay.run import ReplayTask as ReplayTask
    from ckpttool.guard.resume import Resumed as Resumed
    from ckpttool.guard.resume import SeededByIndex as SeededByIndex
    from ckpttool.guard.rules.detector import FeatureValueDetector as FeatureValueDetector
    from ckpttool.guard.state_tree import Unsaveable as Unsaveable
    from ckpttool.guard.step import Guard as Guard
    from ckpttool.guard.step import GuardStop as GuardStop
    from ckpttool.guard.writer import CheckpointWriter as CheckpointWriter
    from ckpttool.health.policies.olmo import OlmoPolicy as OlmoPolicy
    from ckpttool.health.policies.robust_z import RobustZPolicy as RobustZPolicy
    from ckpttool.health.policies.skip import SkipPolicy as SkipPolicy
    from ckpttool.health.policies.zclip import ZClipPolicy as ZClipPolicy

FEATURE = Feature(
    findings="ckpttool.guard.findings:GuardCode",
    answers={
        "guard-report": "ckpttool.guard.answers.report",
        "nan-capture": "ckpttool.guard.answers.nan_capture",
        "nan-captures": "ckpttool.guard.answers.nan_captures",
        "nan-replay": "ckpttool.guard.answers.nan_replay",
    },
)

# `python -m tests.pages` writes this table from the imports above.
_PLACES = {
    "ckpttool.core.domain.asd": "MINDSPORE TORCH_NPU",
    "ckpttool.guard.capture.store": "CaptureBudget CaptureSettings",
    "ckpttool.guard.replay.run": "ReplayTask",
    "ckpttool.guard.resume": "Resumed SeededByIndex",
    "ckpttool.guard.rules.detector": "FeatureValueDetector",
    "ckpttool.guard.state_tree": "Unsaveable",
    "ckpttool.guard.step": "Guard GuardStop",
    "ckpttool.guard.writer": "CheckpointWriter",
    "ckpttool.health.policies.olmo": "OlmoPolicy",
    "ckpttool.health.policies.robust_z": "RobustZPolicy",
    "ckpttool.health.policies.skip": "SkipPolicy",
    "ckpttool.health.policies.zclip": "ZClipPolicy",
}

__all__ = sorted(" ".join(_PLACES.values()).split())  # noqa: PLE0605  the list is the imports


def assert_torch() -> None:
    """Raise an error if torch is not installed.

    Raises:
        UsageError: torch is not installed.
    """
    from importlib.util import find_spec

    from ckpttool.core.errors import UsageError

    if find_spec("torch") is None:
        raise UsageError("the guard needs torch, which is not installed: pip install 'ckpttool[torch]'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # otherwise a type checker would accept every name

    def __getattr__(name: str) -> object:
        """Import a name on first use.

        Raises:
            UsageError: torch is not installed.
        """
        if name in __all__:
            assert_torch()
        return imported(name, _PLACES, __name__)
