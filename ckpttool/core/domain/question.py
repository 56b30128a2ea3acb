"""What a user asks: which tree, which checkpoints may be chosen, what changes about the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Step
from ckpttool.core.domain.verdict import Level
from ckpttool.core.domain.view import USUAL, View

if TYPE_CHECKING:
    from ckpttool.core.domain.finding import Code
    from ckpttool.core.domain.log_question import EvidenceQuestion
    from ckpttool.core.domain.settings import RunConfig


DEFAULT_DIR = "./output/checkpoint"
"""Where to look if nobody says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeQuestion:
    """Which tree, and what is known about it beforehand."""

    path: str | None = None
    """Output folder, checkpoint folder, a rank's folder, or one shard; None: `DEFAULT_DIR`, else the tree in or around
    the current folder."""
    layout: str | None = None
    """Look for this layout alone, where a folder holds several."""
    world_size: int | None = None
    """Ranks that the training had; None: what the tree shows."""
    steps_per_epoch: int | None = None
    """Sink size, or batches in the data set, for files that do not hold their step."""
    health_file: str | None = None
    sizes: bool = False
    """Take every shard's size: one more call a file."""
    config: RunConfig | None = None
    environment: Mapping[str, str] | None = None
    """As the start will see it: some trainers go by it. None: not known."""
    root: str | None = None
    """Of parts that several machines wrote: what the tree is called, where they call it differently."""
    skew: float | None = None
    """Of such parts: seconds by which the machines' clocks may differ; None: the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSizes:
    """Into how many parts a training is cut, in ranks; None: not said."""

    world: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    data: int | None = None

    def differing(self, saved: AskedSizes) -> list[tuple[str, int, int]]:
        """Return by its option what both know and differ in: what is asked for, and what was saved."""
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
class ResumeQuestion:
    """What the user allows and forbids."""

    evidence: Level = Level.STRUCTURE
    name: str | None = None
    """This checkpoint or none: its name, or the file name of one of its shards."""
    prefix: str | None = None
    """Only checkpoints whose file names begin so."""
    before: Step | None = None
    """Only what is at this step or before it, and what does not tell its step; None: any."""
    saves_as: str | None = None
    """The prefix under which the config saves: it says which is meant where several trainings share the folder."""
    allow_renames: bool = False
    allow_weights_only: bool = False
    """Take what holds no optimizer state, too."""
    require_health: bool = False
    allow_unknown_health: bool = False
    """Unknown health will do even where a record of it is there and cannot be read."""
    ignore_health: bool = False
    logs: EvidenceQuestion | None = None
    """What training logs shall have to say about it."""
    sizes: AskedSizes = AskedSizes()
    """Of the run that resumes; its world size where it is not the tree's question."""
    max_lost_steps: int | None = None
    """Steps that may be done again; None: any number."""
    max_lost_seconds: float | None = None
    """How much training may be done again, in seconds; None: any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """What to write, and for which machines."""

    base: str
    """The user's training config."""
    output: str
    """The launch config."""
    force: bool = False
    """Replace an output that exists; its old content stays as `.bak`."""
    strict: bool = False
    """Write nothing where a newer checkpoint was rejected."""
    nodes: int = 1
    devices_per_node: int | None = None
    """None: the ranks of the config (else of the checkpoint), spread evenly."""
    master_addr: str | None = None
    script: str | None = None
    """What the trainer is started by; None: its own entry script."""
    allowed: tuple[Code, ...] = ()
    """Findings that the user has seen and accepts; any other that weighs more than a note stops the launch."""
    view: View = USUAL
    """How what stops the launch is to be told."""
    load_checkpoint: str | None = None
    """The folder to which a tree of an object store was copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckQuestion:
    """Which shards to check, and how hard."""

    level: Level = Level.STRUCTURE
    name: str | tuple[str, ...] | None = None
    """A checkpoint's name, `latest` or `all`, or several of these; None or none: latest."""
    bucket: tuple[int, int] | None = None
    """(n, t): only the shards whose path falls into the n-th of t buckets, n from 1; of others headers and sizes."""
    jobs: int | None = None
    """Threads that read content; None: one a core."""
    timeout: float = 600.0
    """Seconds after which a read counts as hung, for each shard or GiB of one."""
    jump: float | None = None
    """Factor between two checkpoints' norms that is suspect; None: the default; 0: do not compare."""
    hashes: bool = False
    """Also hash every file as a whole, for sealing, and compare nothing with what is recorded."""
    digests: bool = False
    """Also hash every file as a whole, beside all that is compared."""
    max_age: float | None = None
    """Seconds for which an earlier check of an unchanged file is trusted; None: read everything."""
    replicas: bool = True
    """Compare ranks that hold the same, and where no record tells which do, read one other checkpoint, too."""
