"""Questions of a user: the tree, the allowed checkpoints, and the evidence from training logs.

Commands use these questions directly: each field with an `Option` becomes a command-line option.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.option import LAYOUTS, QUESTION, Option
from ckpttool.core.domain.units import Step, is_count
from ckpttool.core.domain.verdict import Level
from ckpttool.core.domain.view import USUAL, View
from ckpttool.core.errors import UsageError

if TYPE_CHECKING:
    from ckpttool.core.domain.finding import Row
    from ckpttool.core.domain.settings import RunConfig


DEFAULT_DIR = "./output/checkpoint"
"""Path of the default tree."""

STDIN = "-"
"""Name of the standard input, as a log."""

DIR: Final = Option(
    "[DIR]",
    "Checkpoint folder, output folder, one rank's folder, or one shard.",
    "Which tree",
    shown=DEFAULT_DIR,
)
LAYOUT: Final = Option(
    "--layout",
    f"Look only for checkpoints of this layout: {LAYOUTS}.",
    "Which tree",
    metavar="LAYOUT",
    completes="layouts",
)
PREFIX: Final = Option(
    "--prefix", "Use only files with this name prefix, if several runs share DIR.", "Which checkpoint", metavar="TEXT"
)
GRACE_SECONDS: Final = 300.0
"""Default age in seconds; a younger file is a sign of a save in progress."""
GRACE: Final = Option(
    "--grace",
    "Refuse if a file changed more recently than this: a save may be in progress (a bare number is seconds).",
    "What stays",
    metavar="TIME",
    unit="s",
    shown="5m",
)
MAX_AGE: Final = Option(
    "--max-age",
    "Reuse the result for an unchanged file for this long, such as 7d (a bare number is hours).",
    "Evidence",
    metavar="TIME",
    unit="h",
    into="s",
    default=86400.0,
    shown="24h",
)
ONE_NAME: Final = Option(
    "--checkpoint",
    "Name of a checkpoint. Default: the newest.",
    "Which checkpoint",
    metavar="NAME",
    completes="checkpoints",
    once=True,
)
LOG: Final = Option(
    "--log", "Training log; repeatable. Default: the logs in the parent folders of DIR.", "Evidence", metavar="GLOB"
)
COLUMNS: Final = Option(
    "--columns",
    "CSV columns, JSON fields or TensorBoard tags to read: step=iter,loss=train/loss.",
    "Evidence",
    metavar="F=C,...",
)
MARGIN: Final = Option(
    "--margin",
    "Time before a strike's first event that is also suspect, such as 2h (a bare number is minutes).",
    "Evidence",
    metavar="TIME",
    unit="m",
    shown="0",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSizes:
    """Requested parallel sizes of a training run, in ranks; None if not set."""

    world: int | None = None
    tensor: Annotated[
        int | None,
        Option("--tp", "Tensor-parallel size of the next run.", "Which checkpoint", least=1),
    ] = None
    pipeline: Annotated[int | None, Option("--pp", "Pipeline stages of the next run.", "Which checkpoint", least=1)] = (
        None
    )
    data: Annotated[int | None, Option("--dp", "Data-parallel size of the next run.", "Which checkpoint", least=1)] = (
        None
    )

    def differing(self, saved: AskedSizes) -> list[tuple[str, int, int]]:
        """Return the option, the requested size and the saved size for each size that differs."""
        pairs = (
            ("--world-size", self.world, saved.world),
            ("--tp", self.tensor, saved.tensor),
            ("--pp", self.pipeline, saved.pipeline),
            ("--dp", self.data, saved.data),
        )
        return [
            (name, current, before)
            for name, current, before in pairs
            if current is not None and before not in {None, current}
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeQuestion:
    """Question about a tree, with facts about it that are known in advance."""

    path: Annotated[str | None, DIR] = None
    """Path of the output folder, checkpoint folder, a rank's folder, or one shard.

    None for `DEFAULT_DIR` or, if it does not exist, the tree in or around the current folder.
    """
    layout: Annotated[str | None, LAYOUT] = None
    """Name of the layout to use, if a folder has several."""
    world_size: Annotated[
        int | None,
        Option("--world-size", "World size of the run, if the folders do not show it.", "Which tree", least=1),
    ] = None
    """Number of ranks in the training run; None if the tree shows the number."""
    steps_per_epoch: Annotated[
        int | None,
        Option("--sink-size", "Batches per data sink, or steps per epoch without data sinking.", "Which tree", least=1),
    ] = None
    """Sink size, or number of batches in the data set, for files that do not record their step."""
    health_file: Annotated[
        str | None,
        Option(
            "--health-file", "Path of health_ckpts.json. Default: the file in or above DIR.", "Evidence", metavar="FILE"
        ),
    ] = None
    root: Annotated[
        str | None,
        Option(
            "--root",
            "Path of the checkpoint folder on the machines that wrote the parts.",
            "Which tree",
            metavar="PATH",
        ),
    ] = None
    """Path of the tree on the machines that wrote its parts, if their paths differ."""
    skew: Annotated[
        float | None,
        Option(
            "--skew",
            "Allowed clock difference between the machines that wrote the parts. Default: 60s.",
            "Which tree",
            metavar="TIME",
            unit="s",
        ),
    ] = None
    """Allowed difference between the clocks of these machines, in seconds; None for the default."""
    sizes: bool = False
    """Whether to get the size of every shard, with one more system call per file."""
    config: RunConfig | None = None
    environment: Mapping[str, str] | None = None
    """Environment variables of the start, which some trainers read; None if unknown."""
    requested: AskedSizes = AskedSizes()
    """Sizes of the next run, if a checkpoint is chosen for it.

    If the tree's trainer reports on the number of ranks, there is no note that the number has no effect.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuestion:
    """Question about logs, with the meaning of their columns."""

    patterns: Annotated[tuple[str, ...], LOG] = ()
    """Files, folders of logs, globs, or `-`."""
    columns: Annotated[str | None, COLUMNS] = None
    """Column names for logs with named columns, such as `step=iter,global_norm=gnorm`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeQuestion:
    """Question about a spike, with the checkpoints to choose from."""

    around: Step | None = None
    """Step near the spike; None for the last spike, or for the stop if training ended in a stop."""
    every: int | None = None
    """Number of steps between saves, all assumed to be good; None to use the checkpoints of the tree."""


def spike(text: str) -> SpikeQuestion:
    """Parse the value of `--around-spike`.

    Raises:
        UsageError: The value is neither a step nor `last`.
    """
    if text == "last":
        return SpikeQuestion()
    if is_count(text):
        return SpikeQuestion(around=Step(int(text)))
    raise UsageError(f"--around-spike takes a step or the word last, not {text!r}")


AROUND_SPIKE: Final = Option(
    "--around-spike",
    "Resume past the spike at STEP or the last spike, or after a stop.",
    "Evidence",
    metavar="STEP|last",
    parse=spike,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceQuestion:
    """Question about the logs that serve as evidence for the choice of a checkpoint."""

    threshold: Annotated[
        float | None,
        Option(
            "--health-threshold --threshold",
            "Embedding local norm (sum of squares) at which a checkpoint is unhealthy; needs a log. Also: --threshold.",
            "Evidence",
            metavar="X",
            least=0,
        ),
    ] = None
    """The same as in `HealthQuestion`."""
    logs: Annotated[LogQuestion, QUESTION] = LogQuestion()
    timeline: Annotated[
        tuple[str, ...],
        Option(
            "--spikes-from --health-timeline",
            "Skip checkpoints that are suspect by this log or the JSON of `log replay`. Also: --health-timeline.",
            "Evidence",
            metavar="LOG",
        ),
    ] = ()
    """Logs, or the JSON of `ckpttool log replay`; checkpoints in their suspect stretches are skipped."""
    spike_threshold: Annotated[
        float | None,
        Option(
            "--spike-threshold",
            "Global norm at which a step is a spike. Default: a robust z-score.",
            "Evidence",
            metavar="X",
            least=0,
        ),
    ] = None
    spike: Annotated[SpikeQuestion | None, AROUND_SPIKE] = None
    """Spike to avoid, or stop to continue after."""
    margin_minutes: Annotated[float, MARGIN] = 0.0
    """Time in minutes by which a strike's damage may have begun before its first event."""

    def assert_consistent(self) -> None:
        """Raise an error if an option is given without another option that it requires.

        Raises:
            UsageError: An option is given without the option that it requires.
        """
        if self.margin_minutes and not self.timeline:
            raise UsageError("--margin needs --spikes-from: give both")
        if self.spike_threshold is not None and not self.timeline and self.spike is None:
            raise UsageError("--spike-threshold needs --spikes-from or --around-spike: give one of them")
        is_judging = self.threshold is not None or bool(self.timeline) or self.spike is not None
        if self.logs.columns is not None and not self.logs.patterns and not is_judging:
            raise UsageError("--log needs --health-threshold, --spikes-from or --around-spike: give one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeQuestion:
    """Question about the checkpoint to resume from, with the user's conditions."""

    evidence: Annotated[Level, Option("--level", "How thoroughly to check the shards.", "Evidence")] = Level.STRUCTURE
    name: Annotated[
        str | None,
        Option(
            "--checkpoint",
            "Use exactly this checkpoint, or fail: 20_2, _1-25_2, …",
            "Which checkpoint",
            metavar="NAME",
            completes="checkpoints",
            once=True,
        ),
    ] = None
    """Name of the only checkpoint to choose, or the file name of one of its shards."""
    prefix: Annotated[str | None, PREFIX] = None
    """Prefix of file names; only checkpoints with this prefix are considered."""
    require_health: Annotated[
        bool,
        Option(
            "--require-health/--allow-unknown-health",
            "Reject checkpoints of unknown health, or accept them even if the health record is unreadable.",
            "Evidence",
            parse=lambda required: (required, not required),
            typed=bool | None,
            also="allow_unknown_health",
        ),
    ] = False
    allow_unknown_health: bool = False
    """Whether to accept unknown health, even if its record exists but cannot be read."""
    ignore_health: Annotated[bool, Option("--ignore-health", "Also accept unhealthy checkpoints.", "Evidence")] = False
    skips_marked: bool = False
    """Whether a checkpoint marked as bad is skipped even if health is ignored, because the user did not name it."""
    before: Annotated[
        Step | None,
        Option("--before", "Use only checkpoints at or before this step.", "Which checkpoint", metavar="STEP", least=0),
    ] = None
    """Maximum step; checkpoints without a known step are also considered. None for any step."""
    saves_as: str | None = None
    """Prefix of the config's saves, which selects one of several training runs in the folder."""
    allow_renames: Annotated[
        bool,
        Option(
            "--allow-renames",
            "Accept a checkpoint whose files must be renamed first, and list the files.",
            "Which checkpoint",
        ),
    ] = False
    allow_weights_only: Annotated[
        bool,
        Option(
            "--allow-weights-only",
            "Accept a checkpoint without optimizer state, which is re-initialized.",
            "Which checkpoint",
        ),
    ] = False
    sizes: Annotated[AskedSizes, QUESTION] = AskedSizes()
    """Sizes of the resumed run; the world size only if it differs from the one in the tree's question."""
    max_lost_steps: Annotated[
        int | None,
        Option(
            "--max-lost-steps",
            "Exit with 10 if more than N steps must be redone.",
            "Which checkpoint",
            metavar="N",
            least=0,
        ),
    ] = None
    """Maximum number of steps to redo; None for any number."""
    max_lost_seconds: Annotated[
        float | None,
        Option(
            "--max-lost-time",
            "Exit with 10 if more than this time must be redone (90m, 2h, 1d); with 14 if unknown.",
            "Which checkpoint",
            metavar="TIME",
            unit="-",
        ),
    ] = None
    """Maximum training time to redo, in seconds; None for any time."""
    logs: Annotated[EvidenceQuestion | None, QUESTION] = None
    """Evidence to use from training logs."""

    def assert_consistent(self) -> None:
        """Raise an error if options contradict each other.

        Raises:
            UsageError: Two options contradict each other.
        """
        if self.require_health and self.ignore_health:
            raise UsageError("--require-health and --ignore-health cannot be used together")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartQuestion:
    """Question about a run that may not have saved yet."""

    or_start: Annotated[
        bool,
        Option(
            "--or-start",
            "Also accept a run without any save or trace of one: it starts from scratch, exit 0.",
            "Which checkpoint",
        ),
    ] = False
    save_every: Annotated[
        int | None,
        Option(
            "--save-every",
            "With --or-start: steps between saves; a log that ends before the first is ignored. Default: --config.",
            "Which checkpoint",
            metavar="STEPS",
            least=1,
        ),
    ] = None
    """Number of steps between saves; None to use the config's."""

    def assert_consistent(self) -> None:
        """Raise an error if an option is given without another option that it requires.

        Raises:
            UsageError: An option is given without the option that it requires.
        """
        if self.save_every is not None and not self.or_start:
            raise UsageError("--save-every needs --or-start: give both")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """Config to write, and machines to start."""

    base: str
    """Path of the user's training config."""
    output: str
    """Path of the launch config."""
    force: bool = False
    """Whether to replace an existing output; its old content stays as `.bak`."""
    strict: bool = False
    """Whether to write nothing if a newer checkpoint was rejected."""
    nodes: int = 1
    devices_per_node: int | None = None
    """Number of devices per machine.

    None to distribute the ranks of the config or, if unknown, of the checkpoint evenly.
    """
    master_addr: str | None = None
    script: str | None = None
    """Path of the start script; None for the trainer's own script."""
    allowed: tuple[Row, ...] = ()
    """Findings that the user accepts; any other finding above a note stops the launch."""
    view: View = USUAL
    """Display options for the reasons against the launch."""
    load_checkpoint: str | None = None
    """Folder to which a tree from an object store was copied."""
    dry_run: bool = False
    """Whether to write nothing, and return the same answer."""
    after_failed_starts: int | None = None
    """Number of launches from one save without a newer save after which it is marked as bad; None to count none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckQuestion:
    """Question about the shards to check, and the level of the check."""

    level: Level = Level.STRUCTURE
    name: str | tuple[str, ...] | None = None
    """Names of checkpoints, `latest` or `all`; None or an empty tuple for the latest."""
    bucket: tuple[int, int] | None = None
    """(n, t): only the shards whose path falls into the n-th of t buckets, n from 1.

    For all other shards, only headers and sizes are read.
    """
    jobs: int | None = None
    """Number of threads that read content; None for one per core."""
    timeout: float = 600.0
    """Time in seconds after which a read counts as hung, per shard, or per GiB of a large shard."""
    jump: float | None = None
    """Ratio between the norms of two checkpoints that counts as suspect; None for the default; 0 for no comparison."""
    hashes: bool = False
    """Whether to also hash every complete file, for sealing, without comparison with records."""
    digests: bool = False
    """Whether to also hash every complete file, in addition to all comparisons."""
    max_age: float | None = None
    """Maximum age in seconds of an earlier check of an unchanged file; None to read everything."""
    replicas: bool = True
    """Whether to compare ranks with equal tensors.

    If no record shows which ranks have them, one other checkpoint is also read.
    """
