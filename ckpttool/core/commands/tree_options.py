"""Options that mean the same in every command that looks at a tree: which tree, which saves, and who reads."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from enum import Enum
from typing import IO, Annotated, Any, cast

import typer

import ckpttool
from ckpttool.core.commands import completing, output
from ckpttool.core.commands.options import Segments, Verbose, duration, is_count, segments
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.question import DEFAULT_DIR, AskedSizes
from ckpttool.core.domain.units import Step, counted
from ckpttool.core.domain.verdict import Level
from ckpttool.core.domain.view import View
from ckpttool.core.errors import UsageError
from ckpttool.trainers.registry import LAYOUT_NAMES

Grace = Annotated[
    float,
    typer.Option(
        parser=duration("s"),
        metavar="TIME",
        show_default="5m",
        help="Refuse while a file is younger (5m, or seconds): somebody is saving.",
        rich_help_panel="What stays",
    ),
]
Jobs = Annotated[
    int | None, typer.Option(min=1, help="Threads that read; default: one a core.", rich_help_panel="Evidence")
]
Timeout = Annotated[
    float,
    typer.Option(
        parser=duration("s", least=1),
        metavar="TIME",
        show_default="10m",
        help="When a read counts as hung (10m, or seconds).",
        rich_help_panel="Evidence",
    ),
]
Prefix = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Only file names that begin so, where trainings share DIR.",
        rich_help_panel="Which checkpoint",
    ),
]
MaxAge = Annotated[
    float,
    typer.Option(
        parser=duration("h"),
        metavar="TIME",
        show_default="24h",
        help="Trust an earlier check of an unchanged file for so long (7d, or hours).",
        rich_help_panel="Evidence",
    ),
]


class LevelName(str, Enum):
    """How hard to look."""

    STRUCTURE = "structure"
    CHECKSUM = "checksum"
    NUMERICS = "numerics"

    @property
    def level(self) -> Level:
        """The level of that name."""
        return Level[self.name]


LevelOpt = Annotated[LevelName, typer.Option(help="Headers, every byte, or every element.", rich_help_panel="Evidence")]
Dir = Annotated[
    str | None,
    typer.Argument(
        metavar="[DIR]",
        show_default=DEFAULT_DIR,
        help="Checkpoint folder, output folder, one rank's folder, or one shard.",
        rich_help_panel="Which tree",
    ),
]
MoreDirs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DIR...", help="More of them: a result for each, and the worst exit code.", rich_help_panel="Which tree"
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--checkpoint",
        metavar="NAME",
        help="A name, latest (the default) or all; repeat it.",
        autocompletion=completing.checkpoints,
        rich_help_panel="Which checkpoint",
    ),
]
ConfigPath = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Training config: world size, batch size, sink size.",
        rich_help_panel="Which tree",
    ),
]


# What follows names trainers: here, so that no command need do so.
OldBatch = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Samples a batch before, where the shards do not hold it (MindFormers 1.2).",
        rich_help_panel="Data position",
    ),
]
EntryScript = Annotated[
    str | None,
    typer.Option(
        metavar="F", help="MindFormers' entry script.  [default: run_mindformer.py]", rich_help_panel="Launch"
    ),
]
Simulate = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[@VERSION]",
        autocompletion=completing.simulated,
        help="Also say what the trainer would take by itself: own, or its name.",
    ),
]
SimulateMindFormers = Annotated[
    str | None, typer.Option("--simulate-mindformers", metavar="VERSION", help="The same of that MindFormers.")
]


def _layout(name: str) -> str:
    if name not in LAYOUT_NAMES:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(map(repr, LAYOUT_NAMES))}.")
    return name


LayoutOpt = Annotated[
    str | None,
    typer.Option(
        "--layout",
        metavar="LAYOUT",
        parser=_layout,
        autocompletion=completing.layouts,
        help=f"Look for this one alone: {', '.join(LAYOUT_NAMES)}.",
        rich_help_panel="Which tree",
    ),
]
OneName = Annotated[
    list[str] | None,
    typer.Option(
        "--checkpoint",
        metavar="NAME",
        autocompletion=completing.checkpoints,
        help="A checkpoint of DIR; default: the newest.",
        rich_help_panel="Which checkpoint",
    ),
]

What = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILE|DIR|NAME]",
        show_default=DEFAULT_DIR,
        help="A shard of any format, a checkpoint folder, DIR:NAME, or a checkpoint's name.",
        rich_help_panel="Which tree",
    ),
]
Patterns = Annotated[
    list[str] | None,
    typer.Option(
        "--tensor",
        metavar="PATTERN",
        help="Only tensors of this name, * and ? as in a shell; repeat it.",
        rich_help_panel="Which checkpoint",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOptions:
    """How much of what was found is shown, and in which machines; JSON always has all of it."""

    ranks_per_node: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tell damage by nodes, too: each has N ranks in a row.")
    ] = None
    verbose: Verbose = False

    def view(self) -> View:
        """Ask the tables."""
        return View(ranks_per_node=self.ranks_per_node, everything=self.verbose)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions:
    """How much of a long table is shown; JSON always has all of it."""

    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Rows of the table at most.")] = 50
    all_rows: Annotated[bool, typer.Option("--all", "-a", help="Every row.")] = False

    @property
    def most(self) -> int | None:
        """Rows at most; None: all."""
        return None if self.all_rows else self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOptions:
    """Which tree, and what is known about it beforehand."""

    path: Dir = None
    layout: LayoutOpt = None
    world_size: Annotated[
        int | None,
        typer.Option(
            min=1, help="Ranks the training had, where the folders cannot tell.", rich_help_panel="Which tree"
        ),
    ] = None
    sink_size: Annotated[
        int | None,
        typer.Option(
            min=1, help="Batches a data sink (without sinking: steps an epoch).", rich_help_panel="Which tree"
        ),
    ] = None
    health_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="health_ckpts.json; else found in or above DIR.", rich_help_panel="Evidence"),
    ] = None
    root: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Of parts: what the tree is called.", rich_help_panel="Which tree"),
    ] = None
    skew: Annotated[
        float | None,
        typer.Option(
            parser=duration("s"),
            metavar="TIME",
            help="Of parts: clocks may differ so (60s).",
            rich_help_panel="Which tree",
        ),
    ] = None

    def question(
        self, *, config: str | None = None, sizes: bool = False, path: str | None = None
    ) -> ckpttool.TreeQuestion:
        """Ask the library about DIR, or about another path."""
        return ckpttool.TreeQuestion(
            path=self.path if path is None else path,
            layout=self.layout,
            world_size=self.world_size,
            steps_per_epoch=self.sink_size,
            health_file=self.health_file,
            sizes=sizes,
            config=ckpttool.read_config(config) if config is not None else None,
            environment=os.environ,
            root=self.root,
            skew=self.skew,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceOptions:
    """Which checkpoints may be chosen."""

    level: Annotated[LevelName, typer.Option(help="How hard to look at the shards.", rich_help_panel="Evidence")] = (
        LevelName.STRUCTURE
    )
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            autocompletion=completing.checkpoints,
            help="This one or none: 20_2, _1-25_2, …",
            rich_help_panel="Which checkpoint",
        ),
    ] = None
    prefix: Prefix = None
    require_health: Annotated[
        bool | None,
        typer.Option(
            "--require-health/--allow-unknown-health",
            help="Unknown health is not good enough; or it is, even where the record of it cannot be read.",
            rich_help_panel="Evidence",
        ),
    ] = None
    ignore_health: Annotated[
        bool, typer.Option("--ignore-health", help="Take unhealthy ones too.", rich_help_panel="Evidence")
    ] = False
    before: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="STEP", help="Only what is at this step or before it.", rich_help_panel="Which checkpoint"
        ),
    ] = None
    allow_renames: Annotated[
        bool,
        typer.Option(
            "--allow-renames",
            help="Take one that needs files renamed first, and list them.",
            rich_help_panel="Which checkpoint",
        ),
    ] = False
    allow_weights_only: Annotated[
        bool,
        typer.Option(
            "--allow-weights-only",
            help="Take one without optimizer state: that begins anew.",
            rich_help_panel="Which checkpoint",
        ),
    ] = False
    tp: Annotated[
        int | None,
        typer.Option(
            "--tp",
            min=1,
            help="Tensor-parallel ranks of the run to come, where saves mind.",
            rich_help_panel="Which checkpoint",
        ),
    ] = None
    pp: Annotated[
        int | None,
        typer.Option("--pp", min=1, help="Pipeline stages of the run to come.", rich_help_panel="Which checkpoint"),
    ] = None
    dp: Annotated[
        int | None,
        typer.Option("--dp", min=1, help="Data-parallel ranks of the run to come.", rich_help_panel="Which checkpoint"),
    ] = None
    max_lost_steps: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Exit 10 where more steps are to be done again.",
            rich_help_panel="Which checkpoint",
        ),
    ] = None
    max_lost_time: Annotated[
        float | None,
        typer.Option(
            parser=duration(None),
            metavar="TIME",
            help="The same in time: 90m, 2h, 1d. Exit 14: not known.",
            rich_help_panel="Which checkpoint",
        ),
    ] = None

    def question(self, logs: ckpttool.EvidenceQuestion | None = None) -> ckpttool.ResumeQuestion:
        """Ask the library.

        Raises:
            UsageError: Two options contradict each other.
        """
        if self.require_health and self.ignore_health:
            raise UsageError("--require-health and --ignore-health contradict each other: give one")
        return ckpttool.ResumeQuestion(
            evidence=self.level.level,
            name=one_name(self.checkpoint),
            prefix=self.prefix,
            before=None if self.before is None else Step(self.before),
            allow_renames=self.allow_renames,
            allow_weights_only=self.allow_weights_only,
            require_health=bool(self.require_health),
            allow_unknown_health=self.require_health is False,
            ignore_health=self.ignore_health,
            logs=logs,
            sizes=AskedSizes(tensor=self.tp, pipeline=self.pp, data=self.dp),
            max_lost_steps=self.max_lost_steps,
            max_lost_seconds=self.max_lost_time,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """What changes about the data."""

    gbs: Annotated[
        int | None,
        typer.Option(
            "--gbs",
            "--new-gbs",
            min=1,
            help="Samples a batch in the resumed run: says, sets nothing. Default: what --config makes, or unchanged.",
            rich_help_panel="Data position",
        ),
    ] = None
    old_gbs: OldBatch = None
    segment: Segments = None
    new_dataset: Annotated[
        bool, typer.Option("--new-dataset", help="Start the data at its beginning.", rich_help_panel="Data position")
    ] = False
    dataset_changed_at: Annotated[
        str | None,
        typer.Option(
            metavar="STEP[:GBS]",
            help="The data was replaced at this step (in batches of GBS samples): skip only what came since.",
            rich_help_panel="Data position",
        ),
    ] = None

    def question(self, *, sink_size: int | None) -> ckpttool.DataQuestion:
        """Ask the library.

        Raises:
            UsageError: Two options contradict each other, or one cannot be meant.
        """
        if self.new_dataset and self.dataset_changed_at is not None:
            raise UsageError(
                "--new-dataset starts the data now and --dataset-changed-at started them earlier: give one"
            )
        changed_at, changed_batch = _step_of_change(self.dataset_changed_at)
        return ckpttool.DataQuestion(
            new_global_batch=self.gbs,
            old_global_batch=self.old_gbs,
            sink_size=sink_size,
            new_dataset=self.new_dataset,
            dataset_changed_at=changed_at,
            dataset_changed_batch=changed_batch,
            segments=segments(self.segment),
        )


def _step_of_change(text: str | None) -> tuple[Step | None, int | None]:
    if text is None:
        return None, None
    step, colon, batch = text.partition(":")
    if not is_count(step) or (colon and not (is_count(batch) and int(batch))):
        raise UsageError(f"--dataset-changed-at takes STEP or STEP:GBS, such as 800 or 800:512, not {text!r}")
    return Step(int(step)), int(batch) if colon else None


def say_tree(tree: ckpttool.Tree, *, quiet: bool, verbose: bool) -> None:
    """Say which tree is looked at: where another path was given, and with `--verbose` always."""
    inventory = tree.inventory
    health = "no health file" if tree.book.path is None else f"health file {tree.book.path}"
    saves = counted(len(inventory.checkpoints), "checkpoint")
    more = f"tree {inventory.root}, layout {inventory.layout}, {saves}, {health}"
    output.looking_at(tree.resolved_from, quiet=quiet, more=more if verbose else None)


def one_name(names: list[str] | None) -> str | None:
    """Return the one checkpoint that is named, if any is.

    Raises:
        UsageError: Several are, and the last one must not win in silence.
    """
    if names and len(names) > 1:
        raise UsageError(f"--checkpoint is given {len(names)} times ({', '.join(names)}), and only one can be chosen")
    return names[0] if names else None


class EngineName(str, Enum):
    """Who does the reading."""

    THREADS = "threads"
    RAY = "ray"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Who reads."""

    engine: Annotated[
        EngineName,
        typer.Option(
            help="Who reads: this process, or the nodes of a Ray cluster that is there.", rich_help_panel="Evidence"
        ),
    ] = EngineName.THREADS
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Which cluster; default: RAY_ADDRESS. None is started.",
            rich_help_panel="Evidence",
        ),
    ] = None

    @property
    def address(self) -> str | None:
        """The cluster's; None where nobody names one.

        Raises:
            UsageError: One is named, and none is to read.
        """
        if self.engine is EngineName.THREADS and self.ray_address is not None:
            raise UsageError("--ray-address names a cluster, and --engine ray lets it read: give both")
        return self.ray_address or os.environ.get("RAY_ADDRESS")

    @contextmanager
    def reading(self, *, quiet: bool) -> Iterator[None]:
        """Read inside as was asked for, and show how far it has come.

        Raises:
            UsageError, IncompleteError: As `ckpttool.on_ray`.
        """
        from ckpttool.core.commands import progress  # a scan shows none

        address = self.address
        if self.engine is EngineName.THREADS:
            with progress.watched(quiet=quiet):
                yield
            return
        stream = None if sys.stdout is None else _Ours(sys.stdout)
        guarded = nullcontext() if stream is None else stream.let_through()
        with redirect_stdout(cast("Any", stream)), ckpttool.on_ray(address), guarded, progress.watched(quiet=quiet):
            yield


class _Ours:
    """Stdout without what Ray writes there about its nodes: by threads of its own, and as it is joined and left."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._thread: int | None = None

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Write inside what this thread writes."""
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None

    def write(self, text: str) -> int:
        """Write, or do as if."""
        return self._stream.write(text) if threading.get_ident() == self._thread else len(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)
