"""The types of the library: results of its functions, question objects, policies, and the remaining errors.

    >>> from ckpttool.types import Level, ResumePlan, TreeQuestion  # doctest: +SKIP

Everything is imported on first use.
"""

from __future__ import annotations

from ckpttool import imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ckpttool.codes import Code as Code
    from ckpttool.core.domain.amounts import Amount as Amount
    from ckpttool.core.domain.checkpoint import Checkpoint as Checkpoint
    from ckpttool.core.domain.checkpoint import Inventory as Inventory
    from ckpttool.core.domain.checkpoint import Rename as Rename
    from ckpttool.core.domain.checkpoint import Topology as Topology
    from ckpttool.core.domain.contents import Contents as Contents
    from ckpttool.core.domain.contents import ElementStats as ElementStats
    from ckpttool.core.domain.contents import FileRow as FileRow
    from ckpttool.core.domain.contents import ScalarRow as ScalarRow
    from ckpttool.core.domain.contents import TensorRow as TensorRow
    from ckpttool.core.domain.data_position import BatchSegment as BatchSegment
    from ckpttool.core.domain.data_position import DataPosition as DataPosition
    from ckpttool.core.domain.data_position import DataQuestion as DataQuestion
    from ckpttool.core.domain.data_position import GoesOn as GoesOn
    from ckpttool.core.domain.data_position import SkipAnswer as SkipAnswer
    from ckpttool.core.domain.data_position import SkipBatches as SkipBatches
    from ckpttool.core.domain.data_position import Unknown as Unknown
    from ckpttool.core.domain.demo import Demo as Demo
    from ckpttool.core.domain.finding import Finding as Finding
    from ckpttool.core.domain.finding import Severity as Severity
    from ckpttool.core.domain.forecast import CheckpointForecast as CheckpointForecast
    from ckpttool.core.domain.forecast import Forecast as Forecast
    from ckpttool.core.domain.guarding import GuardEvent as GuardEvent
    from ckpttool.core.domain.guarding import GuardEventKind as GuardEventKind
    from ckpttool.core.domain.health import Health as Health
    from ckpttool.core.domain.launch import ConfigChange as ConfigChange
    from ckpttool.core.domain.launch import Fragment as Fragment
    from ckpttool.core.domain.launch import Launch as Launch
    from ckpttool.core.domain.load_settings import LoadSettings as LoadSettings
    from ckpttool.core.domain.manifest import Sealed as Sealed
    from ckpttool.core.domain.manifest import Sealing as Sealing
    from ckpttool.core.domain.metrics import StepMetrics as StepMetrics
    from ckpttool.core.domain.plan import FreshStart as FreshStart
    from ckpttool.core.domain.plan import NoResumePoint as NoResumePoint
    from ckpttool.core.domain.plan import Rejection as Rejection
    from ckpttool.core.domain.plan import ResumePlan as ResumePlan
    from ckpttool.core.domain.plan import ResumePoint as ResumePoint
    from ckpttool.core.domain.plan import Simulation as Simulation
    from ckpttool.core.domain.preflight import FixedConfig as FixedConfig
    from ckpttool.core.domain.preflight import Lint as Lint
    from ckpttool.core.domain.preflight import Preflight as Preflight
    from ckpttool.core.domain.preflight import PreflightQuestion as PreflightQuestion
    from ckpttool.core.domain.preflight import Refused as Refused
    from ckpttool.core.domain.question import CheckQuestion as CheckQuestion
    from ckpttool.core.domain.question import EvidenceQuestion as EvidenceQuestion
    from ckpttool.core.domain.question import LaunchOrder as LaunchOrder
    from ckpttool.core.domain.question import LogQuestion as LogQuestion
    from ckpttool.core.domain.question import ResumeQuestion as ResumeQuestion
    from ckpttool.core.domain.question import SpikeQuestion as SpikeQuestion
    from ckpttool.core.domain.question import StartQuestion as StartQuestion
    from ckpttool.core.domain.question import TreeQuestion as TreeQuestion
    from ckpttool.core.domain.retention import Aim as Aim
    from ckpttool.core.domain.retention import PruneOrder as PruneOrder
    from ckpttool.core.domain.retention import Pruning as Pruning
    from ckpttool.core.domain.retention import Repair as Repair
    from ckpttool.core.domain.retention import RetentionPolicy as RetentionPolicy
    from ckpttool.core.domain.retention import Trash as Trash
    from ckpttool.core.domain.scalars import Scalars as Scalars
    from ckpttool.core.domain.settings import RunConfig as RunConfig
    from ckpttool.core.domain.shard import FormatName as FormatName
    from ckpttool.core.domain.shard import Shard as Shard
    from ckpttool.core.domain.units import ByteCount as ByteCount
    from ckpttool.core.domain.units import Rank as Rank
    from ckpttool.core.domain.units import Step as Step
    from ckpttool.core.domain.verdict import Level as Level
    from ckpttool.core.domain.verdict import ShardReport as ShardReport
    from ckpttool.core.domain.verdict import Verdict as Verdict
    from ckpttool.core.domain.verdict import Verification as Verification
    from ckpttool.core.domain.view import View as View
    from ckpttool.core.errors import ExitCode as ExitCode
    from ckpttool.core.errors import ForeignConfigError as ForeignConfigError
    from ckpttool.core.errors import NotDurableError as NotDurableError
    from ckpttool.core.errors import WriteFailedError as WriteFailedError
    from ckpttool.core.findings import Row as Row
    from ckpttool.core.verbs.explaining import Explained as Explained
    from ckpttool.core.verbs.resolving import Answer as Answer
    from ckpttool.core.verbs.scanning import Tree as Tree
    from ckpttool.core.verbs.verifying import Running as Running
    from ckpttool.export.model import Exported as Exported
    from ckpttool.export.model import ExportQuestion as ExportQuestion
    from ckpttool.fp8.model.curves import Comparison as Comparison
    from ckpttool.fp8.model.curves import CurveClass as CurveClass
    from ckpttool.fp8.model.curves import CurveMetric as CurveMetric
    from ckpttool.fp8.model.curves import CurvesAnswer as CurvesAnswer
    from ckpttool.fp8.model.curves import CurveShape as CurveShape
    from ckpttool.fp8.model.curves import CurvesQuestion as CurvesQuestion
    from ckpttool.fp8.model.curves import Downstream as Downstream
    from ckpttool.fp8.model.curves import Effect as Effect
    from ckpttool.fp8.model.curves import Evals as Evals
    from ckpttool.fp8.model.curves import Floor as Floor
    from ckpttool.fp8.model.curves import FloorFrom as FloorFrom
    from ckpttool.fp8.model.curves import Gap as Gap
    from ckpttool.fp8.model.curves import GapWindow as GapWindow
    from ckpttool.fp8.model.curves import Onset as Onset
    from ckpttool.fp8.model.curves import PairedBy as PairedBy
    from ckpttool.fp8.model.curves import Spike as Spike
    from ckpttool.fp8.model.curves import TaskChange as TaskChange
    from ckpttool.fp8.model.curves import Tolerance as Tolerance
    from ckpttool.fp8.model.fp8 import Fp8Format as Fp8Format
    from ckpttool.fp8.model.fp8 import Recipe as Recipe
    from ckpttool.fp8.model.plan import AsPlanned as AsPlanned
    from ckpttool.fp8.model.plan import Change as Change
    from ckpttool.fp8.model.plan import Cure as Cure
    from ckpttool.fp8.model.plan import Evidence as Evidence
    from ckpttool.fp8.model.plan import Experiment as Experiment
    from ckpttool.fp8.model.plan import Fp8Plan as Fp8Plan
    from ckpttool.fp8.model.plan import Fp8Verdict as Fp8Verdict
    from ckpttool.fp8.model.plan import Gate as Gate
    from ckpttool.fp8.model.plan import NextRound as NextRound
    from ckpttool.fp8.model.plan import NoPlan as NoPlan
    from ckpttool.fp8.model.plan import Outcome as Outcome
    from ckpttool.fp8.model.plan import PlanQuestion as PlanQuestion
    from ckpttool.fp8.model.plan import Products as Products
    from ckpttool.fp8.model.plan import Shown as Shown
    from ckpttool.fp8.model.plan import StartPoint as StartPoint
    from ckpttool.fp8.model.plan import Suspicion as Suspicion
    from ckpttool.fp8.model.plan import Trial as Trial
    from ckpttool.fp8.model.plan import VerdictKind as VerdictKind
    from ckpttool.fp8.model.probe import CastNumbers as CastNumbers
    from ckpttool.fp8.model.probe import Fp8Probe as Fp8Probe
    from ckpttool.fp8.model.probe import LayerRisk as LayerRisk
    from ckpttool.fp8.model.probe import Lines as Lines
    from ckpttool.fp8.model.probe import ProbedTensor as ProbedTensor
    from ckpttool.fp8.model.probe import ProbeQuestion as ProbeQuestion
    from ckpttool.fp8.model.probe import Risk as Risk
    from ckpttool.fp8.model.probe import TensorNumbers as TensorNumbers
    from ckpttool.fp8.model.probe import TensorRole as TensorRole
    from ckpttool.guard.files.events import EventFile as EventFile
    from ckpttool.guard.model.capture import Capture as Capture
    from ckpttool.guard.model.capture import Captures as Captures
    from ckpttool.guard.model.capture import NanQuestion as NanQuestion
    from ckpttool.guard.model.capture import NanReplay as NanReplay
    from ckpttool.guard.model.capture import NanVerdict as NanVerdict
    from ckpttool.guard.model.guarding import Action as Action
    from ckpttool.guard.model.guarding import Decision as Decision
    from ckpttool.guard.model.guarding import GuardMode as GuardMode
    from ckpttool.guard.model.guarding import Proposal as Proposal
    from ckpttool.guard.model.report import CaptureTold as CaptureTold
    from ckpttool.guard.model.report import DroppedUpdate as DroppedUpdate
    from ckpttool.guard.model.report import FaultTold as FaultTold
    from ckpttool.guard.model.report import GuardReport as GuardReport
    from ckpttool.guard.model.report import RankReport as RankReport
    from ckpttool.health.model.answers import AsdAnswer as AsdAnswer
    from ckpttool.health.model.answers import CalibrationAnswer as CalibrationAnswer
    from ckpttool.health.model.answers import HealthAnswer as HealthAnswer
    from ckpttool.health.model.answers import ReplayAnswer as ReplayAnswer
    from ckpttool.health.model.asd import AsdConfig as AsdConfig
    from ckpttool.health.model.questions import HealthQuestion as HealthQuestion
    from ckpttool.health.model.questions import ReplayQuestion as ReplayQuestion
    from ckpttool.health.policies.olmo import OlmoPolicy as OlmoPolicy
    from ckpttool.health.policies.robust_z import RobustZPolicy as RobustZPolicy
    from ckpttool.health.policies.skip import SkipPolicy as SkipPolicy
    from ckpttool.health.policies.zclip import ZClipPolicy as ZClipPolicy
    from ckpttool.inspect.model import Difference as Difference
    from ckpttool.inspect.model import Group as Group
    from ckpttool.inspect.model import Movement as Movement
    from ckpttool.inspect.model import ScalarChange as ScalarChange
    from ckpttool.inspect.model import TensorChange as TensorChange
    from ckpttool.marks.model import Mark as Mark
    from ckpttool.marks.model import MarkedSave as MarkedSave
    from ckpttool.marks.model import MarkKind as MarkKind
    from ckpttool.marks.model import MarkQuestion as MarkQuestion
    from ckpttool.marks.model import Marks as Marks
    from ckpttool.marks.model import MarkState as MarkState
    from ckpttool.nodes.model import PartQuestion as PartQuestion
    from ckpttool.nodes.model import PartWritten as PartWritten
    from ckpttool.nodes.model import Split as Split
    from ckpttool.postflight.model.answers import Postflight as Postflight
    from ckpttool.postflight.model.questions import PostflightQuestion as PostflightQuestion
    from ckpttool.replicas.model import Healing as Healing
    from ckpttool.replicas.model import HealOrder as HealOrder
    from ckpttool.report.model import PageForm as PageForm
    from ckpttool.report.model import ReportQuestion as ReportQuestion
    from ckpttool.report.model import TreeReport as TreeReport
    from ckpttool.trainers.mindformers.train_config import TrainConfig as TrainConfig
    from ckpttool.watch.model import WatchEvent as WatchEvent
    from ckpttool.watch.model import WatchQuestion as WatchQuestion
    from ckpttool.watch.model import WatchRule as WatchRule
    from ckpttool.watch.verbs import Watch as Watch

# `python -m tests.pages` writes this table from the imports above.
_PLACES = {
    "ckpttool.codes": "Code",
    "ckpttool.core.domain.amounts": "Amount",
    "ckpttool.core.domain.checkpoint": "Checkpoint Inventory Rename Topology",
    "ckpttool.core.domain.contents": "Contents ElementStats FileRow ScalarRow TensorRow",
    "ckpttool.core.domain.data_position": (
        "BatchSegment DataPosition DataQuestion GoesOn SkipAnswer SkipBatches Unknown"
    ),
    "ckpttool.core.domain.demo": "Demo",
    "ckpttool.core.domain.finding": "Finding Severity",
    "ckpttool.core.domain.forecast": "CheckpointForecast Forecast",
    "ckpttool.core.domain.guarding": "GuardEvent GuardEventKind",
    "ckpttool.core.domain.health": "Health",
    "ckpttool.core.domain.launch": "ConfigChange Fragment Launch",
    "ckpttool.core.domain.load_settings": "LoadSettings",
    "ckpttool.core.domain.manifest": "Sealed Sealing",
    "ckpttool.core.domain.metrics": "StepMetrics",
    "ckpttool.core.domain.plan": "FreshStart NoResumePoint Rejection ResumePlan ResumePoint Simulation",
    "ckpttool.core.domain.preflight": "FixedConfig Lint Preflight PreflightQuestion Refused",
    "ckpttool.core.domain.question": (
        "CheckQuestion EvidenceQuestion LaunchOrder LogQuestion ResumeQuestion SpikeQuestion StartQuestion TreeQuestion"
    ),
    "ckpttool.core.domain.retention": "Aim PruneOrder Pruning Repair RetentionPolicy Trash",
    "ckpttool.core.domain.scalars": "Scalars",
    "ckpttool.core.domain.settings": "RunConfig",
    "ckpttool.core.domain.shard": "FormatName Shard",
    "ckpttool.core.domain.units": "ByteCount Rank Step",
    "ckpttool.core.domain.verdict": "Level ShardReport Verdict Verification",
    "ckpttool.core.domain.view": "View",
    "ckpttool.core.errors": "ExitCode ForeignConfigError NotDurableError WriteFailedError",
    "ckpttool.core.findings": "Row",
    "ckpttool.core.verbs.explaining": "Explained",
    "ckpttool.core.verbs.resolving": "Answer",
    "ckpttool.core.verbs.scanning": "Tree",
    "ckpttool.core.verbs.verifying": "Running",
    "ckpttool.export.model": "ExportQuestion Exported",
    "ckpttool.fp8.model.curves": (
        "Comparison CurveClass CurveMetric CurveShape CurvesAnswer CurvesQuestion Downstream Effect Evals Floor "
        "FloorFrom Gap GapWindow Onset PairedBy Spike TaskChange Tolerance"
    ),
    "ckpttool.fp8.model.fp8": "Fp8Format Recipe",
    "ckpttool.fp8.model.plan": (
        "AsPlanned Change Cure Evidence Experiment Fp8Plan Fp8Verdict Gate NextRound NoPlan Outcome PlanQuestion "
        "Products Shown StartPoint Suspicion Trial VerdictKind"
    ),
    "ckpttool.fp8.model.probe": (
        "CastNumbers Fp8Probe LayerRisk Lines ProbeQuestion ProbedTensor Risk TensorNumbers TensorRole"
    ),
    "ckpttool.guard.files.events": "EventFile",
    "ckpttool.guard.model.capture": "Capture Captures NanQuestion NanReplay NanVerdict",
    "ckpttool.guard.model.guarding": "Action Decision GuardMode Proposal",
    "ckpttool.guard.model.report": "CaptureTold DroppedUpdate FaultTold GuardReport RankReport",
    "ckpttool.health.model.answers": "AsdAnswer CalibrationAnswer HealthAnswer ReplayAnswer",
    "ckpttool.health.model.asd": "AsdConfig",
    "ckpttool.health.model.questions": "HealthQuestion ReplayQuestion",
    "ckpttool.health.policies.olmo": "OlmoPolicy",
    "ckpttool.health.policies.robust_z": "RobustZPolicy",
    "ckpttool.health.policies.skip": "SkipPolicy",
    "ckpttool.health.policies.zclip": "ZClipPolicy",
    "ckpttool.inspect.model": "Difference Group Movement ScalarChange TensorChange",
    "ckpttool.marks.model": "Mark MarkKind MarkQuestion MarkState MarkedSave Marks",
    "ckpttool.nodes.model": "PartQuestion PartWritten Split",
    "ckpttool.postflight.model.answers": "Postflight",
    "ckpttool.postflight.model.questions": "PostflightQuestion",
    "ckpttool.replicas.model": "HealOrder Healing",
    "ckpttool.report.model": "PageForm ReportQuestion TreeReport",
    "ckpttool.trainers.mindformers.train_config": "TrainConfig",
    "ckpttool.watch.model": "WatchEvent WatchQuestion WatchRule",
    "ckpttool.watch.verbs": "Watch",
}

__all__ = sorted(" ".join(_PLACES.values()).split())  # noqa: PLE0605  the list is the imports


if not TYPE_CHECKING:  # otherwise a type checker would accept every name

    def __getattr__(name: str) -> object:
        return imported(name, _PLACES, __name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
