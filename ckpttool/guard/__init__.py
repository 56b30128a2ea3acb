"""Inside the training process: drop what would poison the weights, and keep what is needed to see why.

>>> from ckpttool.guard import Guard, RobustZPolicy  # doctest: +SKIP
"""

from __future__ import annotations

from importlib.util import find_spec

from ckpttool.errors import UsageError

if find_spec("torch") is None:
    raise UsageError("the guard needs torch, which is not installed: pip install 'ckpttool[torch]'")

from ckpttool.decide.asd.detector import FeatureValueDetector as FeatureValueDetector
from ckpttool.decide.policies.olmo import OlmoPolicy as OlmoPolicy
from ckpttool.decide.policies.robust_z import RobustZPolicy as RobustZPolicy
from ckpttool.decide.policies.skip import SkipPolicy as SkipPolicy
from ckpttool.decide.policies.zclip import ZClipPolicy as ZClipPolicy
from ckpttool.domain.asd import MINDSPORE as MINDSPORE
from ckpttool.domain.asd import TORCH_NPU as TORCH_NPU
from ckpttool.guard.capture.settings import CaptureBudget as CaptureBudget
from ckpttool.guard.capture.settings import CaptureSettings as CaptureSettings
from ckpttool.guard.replay.run import ReplayTask as ReplayTask
from ckpttool.guard.resume import Resumed as Resumed
from ckpttool.guard.resume import SeededByIndex as SeededByIndex
from ckpttool.guard.state_tree import Unsaveable as Unsaveable
from ckpttool.guard.step import Guard as Guard
from ckpttool.guard.step import GuardStop as GuardStop
from ckpttool.guard.writer import CheckpointWriter as CheckpointWriter
