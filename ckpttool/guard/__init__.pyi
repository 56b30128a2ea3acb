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

def assert_torch() -> None: ...
