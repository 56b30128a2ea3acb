"""The library and the wiring: each verb takes and returns frozen values; nothing is printed here.

The verbs live in one module each for what they wire, and are imported when they are asked for: `scan` need not wait for
what `launch` imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckpttool.api.asd import asd_defaults, check_asd, emit_asd
    from ckpttool.api.checks import bytes_to_read, verify
    from ckpttool.api.healths import health
    from ckpttool.api.launches import launch
    from ckpttool.api.preflights import lint_configs, preflight
    from ckpttool.api.prunings import prune
    from ckpttool.api.repairs import repair_records
    from ckpttool.api.replays import calibrate, replay
    from ckpttool.api.resumes import Answer, resolve, scale_skip, simulate
    from ckpttool.api.sealing import seal
    from ckpttool.api.trees import Tree, read_config, scan
    from ckpttool.domain.log_question import (
        EvidenceQuestion,
        HealthQuestion,
        LogQuestion,
        ReplayQuestion,
        SpikeQuestion,
    )
    from ckpttool.domain.preflight import PreflightQuestion
    from ckpttool.domain.question import (
        DEFAULT_DIR,
        CheckQuestion,
        DataQuestion,
        LaunchOrder,
        ResumeQuestion,
        TreeQuestion,
    )

_NAMES = {
    "ckpttool.api.asd": ("asd_defaults", "check_asd", "emit_asd"),
    "ckpttool.api.checks": ("bytes_to_read", "verify"),
    "ckpttool.api.healths": ("health",),
    "ckpttool.api.launches": ("launch",),
    "ckpttool.api.preflights": ("lint_configs", "preflight"),
    "ckpttool.api.prunings": ("prune",),
    "ckpttool.api.repairs": ("repair_records",),
    "ckpttool.api.replays": ("calibrate", "replay"),
    "ckpttool.api.resumes": ("Answer", "resolve", "scale_skip", "simulate"),
    "ckpttool.api.sealing": ("seal",),
    "ckpttool.api.trees": ("Tree", "read_config", "scan"),
    "ckpttool.domain.log_question": (
        "EvidenceQuestion",
        "HealthQuestion",
        "LogQuestion",
        "ReplayQuestion",
        "SpikeQuestion",
    ),
    "ckpttool.domain.preflight": ("PreflightQuestion",),
    "ckpttool.domain.question": (
        "DEFAULT_DIR",
        "CheckQuestion",
        "DataQuestion",
        "LaunchOrder",
        "ResumeQuestion",
        "TreeQuestion",
    ),
}
"""Where each name lives. The imports above say the same to type checkers."""

__all__ = [
    "DEFAULT_DIR",
    "Answer",
    "CheckQuestion",
    "DataQuestion",
    "EvidenceQuestion",
    "HealthQuestion",
    "LaunchOrder",
    "LogQuestion",
    "PreflightQuestion",
    "ReplayQuestion",
    "ResumeQuestion",
    "SpikeQuestion",
    "Tree",
    "TreeQuestion",
    "asd_defaults",
    "bytes_to_read",
    "calibrate",
    "check_asd",
    "emit_asd",
    "health",
    "launch",
    "lint_configs",
    "preflight",
    "prune",
    "read_config",
    "repair_records",
    "replay",
    "resolve",
    "scale_skip",
    "scan",
    "seal",
    "simulate",
    "verify",
]


def __getattr__(name: str) -> object:
    """Import the module of a name when it is first asked for."""
    for module, names in _NAMES.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
