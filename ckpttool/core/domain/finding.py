"""What is wrong, said once, with a stable code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, overload

from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.units import Rank, on_lines, on_nodes, on_ranks
from ckpttool.core.domain.view import USUAL, View

if TYPE_CHECKING:
    from typing import TypedDict

    from typing_extensions import Unpack

    class _Extras(TypedDict, total=False):
        """What a finding may say beside its sentence; the fields of `Finding` of the same names."""

        path: str | None
        tensor: str | None
        expected: str | None
        actual: str | None
        remedy: str | None
        line: int | None
        ranks: tuple[Rank, ...]


class Severity(IntEnum):
    """How much a finding weighs; the order is what counts."""

    NOTE = 0
    """Worth knowing; changes no verdict."""
    SUSPECT = 1
    """May be legal, may be damage; the shard is not counted as good."""
    UNKNOWN = 2
    """Could not be looked at, or changed meanwhile; never counted as good."""
    DAMAGE = 3
    UNSAFE = 4
    """Refused; reading on would be dangerous."""

    @property
    def word(self) -> str:
        """The lower-case word that tables and JSON show."""
        return self.name.lower()


class Code(str, Enum):
    """Every kind of finding. A promise to scripts: codes are added, never renamed."""

    RANK_MISSING = "rank-missing"
    SHARD_MISSING = "shard-missing"
    SHARD_ELSEWHERE = "shard-elsewhere"
    SHARD_RESPELLED = "shard-respelled"
    EXTRA_SAFETENSORS = "extra-safetensors"
    SHARD_EMPTY = "shard-empty"
    SHARD_TRUNCATED = "shard-truncated"
    SHARD_ZEROED = "shard-zeroed"
    ZERO_TAIL = "zero-tail"
    HEADER_INVALID = "header-invalid"
    HEADER_NOT_CANONICAL = "header-not-canonical"
    OFFSETS_NOT_CONTIGUOUS = "offsets-not-contiguous"
    TRAILING_BYTES = "trailing-bytes"
    ENTRIES_MISSING = "entries-missing"
    SCHEMA_DIFFERS = "schema-differs"
    SCALARS_MISSING = "scalars-missing"
    CHECKSUM_MISMATCH = "checksum-mismatch"
    FOUND_DAMAGED = "found-damaged"
    CHECKSUM_MISSING = "checksum-missing"
    NONFINITE_VALUES = "nonfinite-values"
    ALL_ZERO_TENSOR = "all-zero-tensor"
    NORM_JUMP = "norm-jump"
    REPLICA_DIFFERS = "replica-differs"
    REPLICA_STALE = "replica-stale"
    REPLICA_DRIFTED = "replica-drifted"
    REPLICAS_PARTED = "replicas-parted"
    NAME_DISAGREES = "name-disagrees"
    STEP_DISAGREES = "step-disagrees"
    EPOCH_DISAGREES = "epoch-disagrees"
    STEP_UNKNOWN = "step-unknown"
    WORLD_SIZE_DIFFERS = "world-size-differs"
    WORLD_SIZE_REFUSED = "world-size-refused"
    RUN_MIXED = "run-mixed"
    RUN_REWOUND = "run-rewound"
    ABANDONED_BRANCH = "abandoned-branch"
    TIMES_DISAGREE = "times-disagree"
    NEEDS_RENAMES = "needs-renames"
    DUPLICATE_CHECKPOINT = "duplicate-checkpoint"
    NOT_LOADABLE = "not-loadable"
    WEIGHTS_ONLY = "weights-only"
    BASE_ELSEWHERE = "base-elsewhere"
    RANKS_TO_RESTORE = "ranks-to-restore"
    NO_DONOR = "no-donor"
    CAN_BE_HEALED = "can-be-healed"
    HEALED = "healed"
    META_UNREADABLE = "meta-unreadable"
    META_AHEAD = "meta-ahead"
    META_BEHIND = "meta-behind"
    META_MISSING = "meta-missing"
    META_DISAGREES = "meta-disagrees"
    TRACKER_DISAGREES = "tracker-disagrees"
    TRACKER_MIXES = "tracker-mixes"
    METADATA_INCOMPLETE = "metadata-incomplete"
    UNCOMMITTED_SAVE = "uncommitted-save"
    MARKED_UNHEALTHY = "marked-unhealthy"
    HEALTH_UNKNOWN = "health-unknown"
    HEALTH_UNREADABLE = "health-unreadable"
    HEALTH_UNHEARD = "health-unheard"
    HEALTH_CONTRADICTORY = "health-contradictory"
    HEALTH_NAMES_NOTHING = "health-names-nothing"
    STRAY_FILE = "stray-file"
    STRAY_TAKES_OVER = "stray-takes-over"
    BREAKPOINT_FILE = "breakpoint-file"
    IN_PROGRESS = "in-progress"
    CHANGED_WHILE_READING = "changed-while-reading"
    UNREADABLE = "unreadable"
    NOT_A_REGULAR_FILE = "not-a-regular-file"
    UNSAFE_NAME = "unsafe-name"
    UNSAFE_PICKLE = "unsafe-pickle"
    OVER_LIMIT = "over-limit"
    UNSUPPORTED_FORMAT = "unsupported-format"
    CONFIG_KEY_IGNORED = "config-key-ignored"
    CONFIG_WRONG_TYPE = "config-wrong-type"
    CONFIG_DISAGREES = "config-disagrees"
    COUNTER_ROUNDED = "counter-rounded"
    SINK_SIZE_CHANGED = "sink-size-changed"
    EPOCH_COUNTER_SHIFTS = "epoch-counter-shifts"
    MANIFEST_UNREADABLE = "manifest-unreadable"
    MANIFEST_NEWER = "manifest-newer"
    LOG_UNREADABLE = "log-unreadable"
    LOG_GOES_ON = "log-goes-on"
    NORM_ABOVE_THRESHOLD = "norm-above-threshold"
    SAVED_IN_SPIKE = "saved-in-spike"
    SAVED_AFTER_STRIKE = "saved-after-strike"
    REWOUND_PAST = "rewound-past"
    ONLY_SAVES_STRATEGY = "only-saves-strategy"
    NOT_A_TRAINING = "not-a-training"
    MICRO_BATCHES_FEW = "micro-batches-few"
    DATA_STRATEGY_MISSING = "data-strategy-missing"
    EXCLUSIVE_SWITCHES = "exclusive-switches"
    SKIP_NEEDS_CLIP_GRAD = "skip-needs-clip-grad"
    LOCAL_NORM_MISSING = "local-norm-missing"
    SKIP_UNWATCHED = "skip-unwatched"
    NORM_CHECK_OFF = "norm-check-off"
    THRESHOLD_NOT_FLOAT = "threshold-not-float"
    THRESHOLD_TOO_LOW = "threshold-too-low"
    SPIKE_COUNT_INVALID = "spike-count-invalid"
    SKIP_NAN_HOLE = "skip-nan-hole"
    SKIP_SEES_SOME_STEPS = "skip-sees-some-steps"
    HEALTH_NEEDS_STAGES = "health-needs-stages"
    HEALTH_NEEDS_SLICES = "health-needs-slices"
    HEALTH_NEEDS_MODEL_SIZE = "health-needs-model-size"
    STREAM_STATE_MISSING = "stream-state-missing"
    STREAM_POSITION_FIXED = "stream-position-fixed"
    KEEPS_ONE_CHECKPOINT = "keeps-one-checkpoint"
    SAVE_FORMAT_DIFFERS = "save-format-differs"
    REDUNDANCY_NEEDS_SAFETENSORS = "redundancy-needs-safetensors"
    ASYNC_SAVE_LAGS = "async-save-lags"
    RESUME_BY_MTIME = "resume-by-mtime"
    RESUME_TRUE = "resume-true"
    ONLY_MODEL_SAVED = "only-model-saved"
    KEEPS_BEST_ALONE = "keeps-best-alone"
    SAVES_NOTHING = "saves-nothing"
    UNIVERSAL_STAYS = "universal-stays"
    FP8_HISTORY_SHORT = "fp8-history-short"
    FP8_WGRAD_IGNORED = "fp8-wgrad-ignored"
    FP8_SETTING_IGNORED = "fp8-setting-ignored"
    FP8_BF16_LAYERS_REFUSED = "fp8-bf16-layers-refused"
    FP8_BF16_LAYERS_NONE = "fp8-bf16-layers-none"
    FP8_E4M3_GRADIENTS = "fp8-e4m3-gradients"
    FP8_HYBRID_BLOCKS = "fp8-hybrid-blocks"
    FP8_MARGIN = "fp8-margin"
    FP8_INF_FREEZES_SCALE = "fp8-inf-freezes-scale"
    FP8_AMAX_PER_GROUP = "fp8-amax-per-group"
    FP8_FAST_ACCUMULATION = "fp8-fast-accumulation"
    FP8_ATTENTION = "fp8-attention"
    FP8_OUTPUT_LAYER = "fp8-output-layer"
    FP8_SUBSTRING = "fp8-substring"
    FP8_EMULATE_DROPS_RECIPE = "fp8-emulate-drops-recipe"
    FP8_MX_FLOOR = "fp8-mx-floor"
    FP8_OPTIMIZER_STATE = "fp8-optimizer-state"
    TE_DEBUG_NOT_WIRED = "te-debug-not-wired"
    TE_DEBUG_OVERLAP = "te-debug-overlap"
    TE_DEBUG_TWO_MODIFIERS = "te-debug-two-modifiers"
    TE_DEBUG_EXACT_NAMES = "te-debug-exact-names"
    TE_DEBUG_FAKEQUANT_MX = "te-debug-fakequant-mx"
    TE_DEBUG_NEEDS_DELAYED = "te-debug-needs-delayed"
    TE_DEBUG_UNKNOWN = "te-debug-unknown"
    TE_DEBUG_EMPTY = "te-debug-empty"
    TE_DEBUG_DEPRECATED = "te-debug-deprecated"
    YAML_ODD_NUMBER = "yaml-odd-number"
    YAML_NONE_IS_TEXT = "yaml-none-is-text"
    UNKNOWN_KEY = "unknown-key"
    CONFIG_UNUSABLE = "config-unusable"
    ALLOW_UNUSED = "allow-unused"
    NOTHING_TO_RESUME = "nothing-to-resume"
    NEWER_NOT_CHOSEN = "newer-not-chosen"
    TOO_MUCH_LOST = "too-much-lost"
    CANNOT_ANSWER = "cannot-answer"
    SAVE_INCOMPLETE = "save-incomplete"
    SAVE_OVERDUE = "save-overdue"
    DISK_SPACE_LOW = "disk-space-low"
    DISK_INODES_LOW = "disk-inodes-low"
    FOLDER_NOT_WRITABLE = "folder-not-writable"
    DISK_UNKNOWN = "disk-unknown"
    PREFIX_DIFFERS = "prefix-differs"
    BATCH_SIZE_UNKNOWN = "batch-size-unknown"
    ONE_NODE_ONLY = "one-node-only"
    PART_MISSING = "part-missing"
    PART_STALE = "part-stale"
    NOT_LOOKED_AT = "not-looked-at"
    NODES_DISAGREE = "nodes-disagree"
    RANK_ON_SEVERAL_NODES = "rank-on-several-nodes"
    HALF_GONE = "half-gone"
    TRAINER_KEY_REFUSED = "trainer-key-refused"
    CKPT_BESIDE_RANKS = "ckpt-beside-ranks"
    PREFIX_HOLDS_RANK = "prefix-holds-rank"
    OPTIMIZER_MISSING = "optimizer-missing"
    PATH_IS_PATTERN = "path-is-pattern"
    RANK_FOLDER_ON_ONE_DEVICE = "rank-folder-on-one-device"
    FAULT_TOLERANCE_PICKS = "fault-tolerance-picks"
    REDUNDANCY_NOT_LOADABLE = "redundancy-not-loadable"
    RESLICING_PICKS = "reslicing-picks"
    RESLICING_STOPS = "reslicing-stops"
    TRAINING_COMPLETE = "training-complete"
    SKIP_BEYOND_DATA = "skip-beyond-data"
    DATA_END_EARLY = "data-end-early"
    DATA_RESTARTS = "data-restarts"
    DATA_REORDERED = "data-reordered"
    DATA_MISPLACED = "data-misplaced"
    ENDS_ELSEWHERE = "ends-elsewhere"
    DEVICES_UNKNOWN = "devices-unknown"
    START_DIFFERS = "start-differs"
    START_UNKNOWN = "start-unknown"
    CAPTURE_INCOMPLETE = "capture-incomplete"
    CAPTURE_DAMAGED = "capture-damaged"
    INPUTS_MUTATED = "inputs-mutated"
    ENVIRONMENT_DIFFERS = "environment-differs"
    ENTRY_DOES_NOT_FIT = "entry-does-not-fit"
    FP8_SCALE_MISSING = "fp8-scale-missing"
    FP8_SCALE_SHAPE = "fp8-scale-shape"
    FP8_SCALE_INVALID = "fp8-scale-invalid"
    FP8_RANGE_UNUSED = "fp8-range-unused"
    SWIGLU_ALIGNED = "swiglu-aligned"
    FP8_LR_DIFFERS = "fp8-lr-differs"
    FP8_INTERVAL_DIFFERS = "fp8-interval-differs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong or worth knowing, in one sentence."""

    code: Code
    severity: Severity
    message: str
    """One sentence with what was expected and what is there."""
    path: str | None = None
    """POSIX, relative to the inventory's root (a config's findings: as the user gave it)."""
    tensor: str | None = None
    expected: str | None = None
    actual: str | None = None
    remedy: str | None = None
    """The next command to run or the setting to change."""
    line: int | None = None
    """Line in a text file, from 1."""
    ranks: tuple[Rank, ...] = ()
    """Whose files it is about, ascending: `path` is the first one's. Empty where no rank's, or nobody knows whose."""

    @property
    def is_tie(self) -> bool:
        """Whether it says that one of two saves is wrong and nothing tells which: this one may be whole."""
        return self.code is Code.SCHEMA_DIFFERS and self.severity is Severity.UNKNOWN


def note(code: Code, message: str, **extras: Unpack[_Extras]) -> Finding:
    """Return what is worth knowing and changes no verdict."""
    return Finding(code=code, severity=Severity.NOTE, message=message, **extras)


def suspect(code: Code, message: str, **extras: Unpack[_Extras]) -> Finding:
    """Return what may be legal or may be damage, so that it is not counted as good."""
    return Finding(code=code, severity=Severity.SUSPECT, message=message, **extras)


def unknown(code: Code, message: str, **extras: Unpack[_Extras]) -> Finding:
    """Return what could not be looked at or changed meanwhile, so that nobody knows."""
    return Finding(code=code, severity=Severity.UNKNOWN, message=message, **extras)


def damage(code: Code, message: str, **extras: Unpack[_Extras]) -> Finding:
    """Return what is wrong for certain."""
    return Finding(code=code, severity=Severity.DAMAGE, message=message, **extras)


def unsafe(code: Code, message: str, **extras: Unpack[_Extras]) -> Finding:
    """Return what is refused, because to read on would be dangerous."""
    return Finding(code=code, severity=Severity.UNSAFE, message=message, **extras)


_MOST_CHARS = 1000


def brief(finding: Finding) -> Finding:
    """Return the same, said in words that can be read: a value may be quoted that is as long as a file."""
    return replace(
        finding,
        message=_brief(finding.message),
        expected=_brief(finding.expected),
        actual=_brief(finding.actual),
        remedy=_brief(finding.remedy),
    )


@overload
def _brief(text: str) -> str: ...
@overload
def _brief(text: str | None) -> str | None: ...
def _brief(text: str | None) -> str | None:
    half = _MOST_CHARS // 2
    return text if text is None or len(text) <= _MOST_CHARS else f"{text[:half]}…{text[-half:]}"


def summary_of(findings: Sequence[Finding], world: int | None = None, view: View = USUAL) -> str:
    """Say what the first finding says, how many there are beside it, and on which ranks or further lines they are.

    Args:
        findings: Of one kind; at least one.
        world: Ranks that there are, where that is known.
        view: Whether to speak of machines, too, and to name every single rank.
    """
    message = findings[0].message
    ranks = sorted({rank for finding in findings for rank in finding.ranks})
    nodes = ""
    if view.ranks_per_node is not None and ranks:
        nodes = on_nodes(ranks, view.ranks_per_node, everything=view.everything)
    if len(findings) == 1:
        return f"{message.rstrip('.')} ({nodes})" if nodes else message
    more = f"{message.rstrip('.')}, and {len(findings) - 1} more"
    if not ranks:
        lines = sorted({finding.line for finding in findings[1:] if finding.line is not None})
        is_one_file = len({finding.path for finding in findings}) == 1
        return f"{more}: {on_lines(lines)}" if lines and is_one_file else more
    # A tree may hold more ranks than a config starts: of these it is no share.
    of = "" if world is None or not ranks[-1] < world else f" ({len(ranks)} of {world})"
    return f"{more}: {on_ranks(ranks, everything=view.everything)}{of}{nodes and f', {nodes}'}"


def worst(findings: Iterable[Finding]) -> Severity:
    """Return the gravest severity; NOTE where there is no finding."""
    return max([finding.severity for finding in findings], default=Severity.NOTE)


def blocking(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that keep a checkpoint from being counted as good: all but notes."""
    return tuple(finding for finding in findings if finding.severity > Severity.NOTE)


def without_answer(findings: Iterable[Finding]) -> bool:
    """Tell whether what was to have a say in a choice could not: a log, a health file, ranks elsewhere, a limit."""
    codes = {Code.LOG_UNREADABLE, Code.HEALTH_UNKNOWN, Code.HEALTH_UNHEARD, *_ELSEWHERE}
    codes |= {Code.SHARD_ELSEWHERE, Code.TOO_MUCH_LOST}
    return any(finding.code in codes and finding.severity is Severity.UNKNOWN for finding in findings)


def seen_in_part(findings: Iterable[Finding]) -> bool:
    """Tell whether other machines may have what is missing here, so that nothing can be said of all."""
    return any(finding.code in _ELSEWHERE and finding.severity is Severity.UNKNOWN for finding in findings)


def is_of_absent(finding: Finding) -> bool:
    """Tell whether something is missing that another machine may have, which was not asked, or not late enough."""
    codes = {Code.RANK_MISSING, Code.SHARD_MISSING, Code.UNCOMMITTED_SAVE, Code.METADATA_INCOMPLETE}
    return finding.code in codes and finding.severity >= Severity.UNKNOWN


def withheld(findings: Iterable[Finding]) -> bool:
    """Tell whether something could not be read, or was written meanwhile, so that nobody knows what it holds."""
    return any(finding.code in NOT_SEEN and finding.severity is Severity.UNKNOWN for finding in findings)


NOT_SEEN = frozenset({Code.UNREADABLE, Code.CHANGED_WHILE_READING})
"""What says that nobody could look."""

_ELSEWHERE = frozenset(
    {Code.ONE_NODE_ONLY, Code.PART_MISSING, Code.PART_STALE, Code.NOT_LOOKED_AT, Code.NODES_DISAGREE}
)
"""What says that other machines may have more."""


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings about a tree in the one order that results have: by code, then by path."""
    return tuple(sorted(findings, key=lambda finding: (finding.code.value, finding.path or "")))


_COPY = "copy it again if it is a copy; what a crash cut off while it was saved is lost, and the checkpoint with it"

OWN_FILE = "find the rank's own file on its disk, or resume from another checkpoint"
"""Of a file that lies under another rank's name."""

_REMEDIES = {
    Code.SHARD_EMPTY: _COPY,
    Code.SHARD_TRUNCATED: _COPY,
    Code.SHARD_ZEROED: _COPY,
    Code.ZERO_TAIL: _COPY,
    Code.HEADER_INVALID: _COPY,
    Code.OFFSETS_NOT_CONTIGUOUS: _COPY,
    Code.TRAILING_BYTES: _COPY,
    Code.ENTRIES_MISSING: _COPY,
    Code.CHECKSUM_MISMATCH: _COPY,
    Code.SHARD_MISSING: "bring it back from that rank's disk or from a copy, or resume from an older checkpoint",
}


def helped(finding: Finding) -> Finding:
    """Return the same with what to do, where it weighs something and does not say it itself."""
    if finding.remedy is not None or finding.severity is Severity.NOTE:
        return finding
    return replace(finding, remedy=_REMEDIES.get(finding.code))


FOUND_EARLIER = frozenset({Code.FOUND_DAMAGED, Code.REPLICA_DRIFTED})
"""What an earlier look at content left against a save, while its files are the same."""
