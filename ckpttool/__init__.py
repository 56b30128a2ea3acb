"""fsck and flight plan for training checkpoints.

The verbs and nouns of the library are here by name, and none is imported before it is asked for:

    >>> import ckpttool
    >>> tree = ckpttool.scan(ckpttool.TreeQuestion(path="output/checkpoint"))  # doctest: +SKIP
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # without importing `typing`: whoever imports the package alone waits for nothing
if TYPE_CHECKING:
    from ckpttool.api.checks import verify
    from ckpttool.api.healths import health
    from ckpttool.api.launches import launch
    from ckpttool.api.preflights import lint_configs, preflight
    from ckpttool.api.replays import calibrate, replay
    from ckpttool.api.resumes import Answer, resolve, scale_skip, simulate
    from ckpttool.api.trees import Tree, read_config, scan
    from ckpttool.domain.checkpoint import Checkpoint, Inventory, LayoutName, Rename, Topology
    from ckpttool.domain.data_position import DataPosition, Samples, SkipBatches, Stateful, Tokens, Unknown
    from ckpttool.domain.finding import Code, Finding, Severity
    from ckpttool.domain.health import Health
    from ckpttool.domain.launch import ConfigChange, Launch
    from ckpttool.domain.load_settings import LoadSettings
    from ckpttool.domain.log_answer import CalibrationAnswer, HealthAnswer, ReplayAnswer
    from ckpttool.domain.log_question import (
        EvidenceQuestion,
        HealthQuestion,
        LogQuestion,
        ReplayQuestion,
        SpikeQuestion,
    )
    from ckpttool.domain.metrics import StepMetrics
    from ckpttool.domain.plan import (
        BatchSegment,
        NoResumePoint,
        Rejection,
        ResumePlan,
        ResumePoint,
        Simulation,
        SkipAnswer,
    )
    from ckpttool.domain.preflight import Lint, Preflight, PreflightQuestion
    from ckpttool.domain.question import CheckQuestion, DataQuestion, LaunchOrder, ResumeQuestion, TreeQuestion
    from ckpttool.domain.shard import FormatName, Scalars, Shard
    from ckpttool.domain.units import ByteCount, Rank, Step
    from ckpttool.domain.verdict import Level, ShardReport, Verdict
    from ckpttool.errors import CkptToolError, ExitCode
    from ckpttool.trainers.mindformers.train_config import TrainConfig

__version__ = "0.1.0"

_NAMES = {
    "ckpttool.api.checks": ("verify",),
    "ckpttool.api.healths": ("health",),
    "ckpttool.api.launches": ("launch",),
    "ckpttool.api.preflights": ("lint_configs", "preflight"),
    "ckpttool.api.replays": ("calibrate", "replay"),
    "ckpttool.api.resumes": ("Answer", "resolve", "scale_skip", "simulate"),
    "ckpttool.api.trees": ("Tree", "read_config", "scan"),
    "ckpttool.domain.checkpoint": ("Checkpoint", "Inventory", "LayoutName", "Rename", "Topology"),
    "ckpttool.domain.data_position": (
        "DataPosition",
        "Samples",
        "SkipBatches",
        "Stateful",
        "Tokens",
        "Unknown",
    ),
    "ckpttool.domain.finding": ("Code", "Finding", "Severity"),
    "ckpttool.domain.health": ("Health",),
    "ckpttool.domain.launch": ("ConfigChange", "Launch"),
    "ckpttool.domain.log_answer": ("CalibrationAnswer", "HealthAnswer", "ReplayAnswer"),
    "ckpttool.domain.log_question": (
        "EvidenceQuestion",
        "HealthQuestion",
        "LogQuestion",
        "ReplayQuestion",
        "SpikeQuestion",
    ),
    "ckpttool.domain.metrics": ("StepMetrics",),
    "ckpttool.domain.load_settings": ("LoadSettings",),
    "ckpttool.domain.plan": (
        "BatchSegment",
        "NoResumePoint",
        "Rejection",
        "ResumePlan",
        "ResumePoint",
        "Simulation",
        "SkipAnswer",
    ),
    "ckpttool.domain.preflight": ("Lint", "Preflight", "PreflightQuestion"),
    "ckpttool.domain.question": ("CheckQuestion", "DataQuestion", "LaunchOrder", "ResumeQuestion", "TreeQuestion"),
    "ckpttool.domain.shard": ("FormatName", "Scalars", "Shard"),
    "ckpttool.trainers.mindformers.train_config": ("TrainConfig",),
    "ckpttool.domain.units": ("ByteCount", "Rank", "Step"),
    "ckpttool.domain.verdict": ("Level", "ShardReport", "Verdict"),
    "ckpttool.errors": ("CkptToolError", "ExitCode"),
}
"""Where each public name lives. The imports above say the same to type checkers."""

__all__ = [
    "Answer",
    "BatchSegment",
    "ByteCount",
    "CalibrationAnswer",
    "CheckQuestion",
    "Checkpoint",
    "CkptToolError",
    "Code",
    "ConfigChange",
    "DataPosition",
    "DataQuestion",
    "EvidenceQuestion",
    "ExitCode",
    "Finding",
    "FormatName",
    "Health",
    "HealthAnswer",
    "HealthQuestion",
    "Inventory",
    "Launch",
    "LaunchOrder",
    "LayoutName",
    "Level",
    "Lint",
    "LoadSettings",
    "LogQuestion",
    "NoResumePoint",
    "Preflight",
    "PreflightQuestion",
    "Rank",
    "Rejection",
    "Rename",
    "ReplayAnswer",
    "ReplayQuestion",
    "ResumePlan",
    "ResumePoint",
    "ResumeQuestion",
    "Samples",
    "Scalars",
    "Severity",
    "Shard",
    "ShardReport",
    "Simulation",
    "SkipAnswer",
    "SkipBatches",
    "SpikeQuestion",
    "Stateful",
    "Step",
    "StepMetrics",
    "Tokens",
    "Topology",
    "TrainConfig",
    "Tree",
    "TreeQuestion",
    "Unknown",
    "Verdict",
    "__version__",
    "calibrate",
    "health",
    "launch",
    "lint_configs",
    "preflight",
    "read_config",
    "replay",
    "resolve",
    "scale_skip",
    "scan",
    "simulate",
    "verify",
]


if not TYPE_CHECKING:  # they must see a misspelt name

    def __getattr__(name: str) -> object:
        """Import a public name when it is first asked for (PEP 562)."""
        for module, names in _NAMES.items():
            if name in names:
                from importlib import import_module

                globals()[name] = value = getattr(import_module(module), name)
                if f"{__name__}.verify" in sys.modules:
                    # The import system has just put the room of that name here; the public name is the verb.
                    globals()["verify"] = import_module("ckpttool.api.checks").verify
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
