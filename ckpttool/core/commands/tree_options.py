"""Options common to every command that reads a tree: the tree, the saves, and the engine."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from enum import Enum
from typing import IO, TYPE_CHECKING, Annotated, Any, cast

import typer

from ckpttool.core.commands import completing, output
from ckpttool.core.commands.options import duration
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.question import DEFAULT_DIR, TreeQuestion
from ckpttool.core.domain.units import counted
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import UsageError

if TYPE_CHECKING:
    from ckpttool.core.verbs.scanning import Tree

Grace = Annotated[
    float,
    typer.Option(
        parser=duration("s"),
        metavar="TIME",
        show_default="5m",
        help="Refuse if a file changed more recently than this: a save may be in progress (a bare number is seconds).",
        rich_help_panel="What stays",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Number of reader threads. Default: one per core.", rich_help_panel="Evidence"),
]
Timeout = Annotated[
    float,
    typer.Option(
        parser=duration("s", least=1),
        metavar="TIME",
        show_default="10m",
        help="Time after which a read is considered hung (a bare number is seconds).",
        rich_help_panel="Evidence",
    ),
]
MaxAge = Annotated[
    float,
    typer.Option(
        parser=duration("h"),
        metavar="TIME",
        show_default="24h",
        help="Reuse the result for an unchanged file for this long, such as 7d (a bare number is hours).",
        rich_help_panel="Evidence",
    ),
]


class LevelName(str, Enum):
    """The level of a check."""

    STRUCTURE = "structure"
    CHECKSUM = "checksum"
    NUMERICS = "numerics"

    @property
    def level(self) -> Level:
        """The level with that name."""
        return Level[self.name]


LevelOpt = Annotated[
    LevelName, typer.Option(help="Check headers, every byte, or every element.", rich_help_panel="Evidence")
]
MoreDirs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DIR...",
        help="More trees. Each has its own result; the exit code is the worst of all.",
        rich_help_panel="Which tree",
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--checkpoint",
        metavar="NAME",
        help="Checkpoint name, latest (the default) or all; repeatable.",
        autocompletion=completing.checkpoints,
        rich_help_panel="Which checkpoint",
    ),
]
ConfigPath = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Training config, to read world size, batch size and sink size from.",
        rich_help_panel="Which tree",
    ),
]


# The help below names trainers here, so that no command has to.
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
        help="Also show what the trainer itself would load: own (this tree's trainer) or a trainer's name.",
    ),
]
SimulateMindFormers = Annotated[
    str | None,
    typer.Option(
        "--simulate-mindformers", metavar="VERSION", help="Same as --simulate, for this version of MindFormers."
    ),
]


OneName = Annotated[
    list[str] | None,
    typer.Option(
        "--checkpoint",
        metavar="NAME",
        autocompletion=completing.checkpoints,
        help="Name of a checkpoint. Default: the newest.",
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
        help="Use only tensors whose name matches (* and ? as in a shell); repeatable.",
        rich_help_panel="Which checkpoint",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions:
    """The number of rows of a long table; JSON always has all of them."""

    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Maximum number of rows in the table.")] = 50
    all_rows: Annotated[bool, typer.Option("--all", "-a", help="Show every row.")] = False

    @property
    def most(self) -> int | None:
        """Maximum number of rows; None shows all rows."""
        return None if self.all_rows else self.limit


def from_here(
    tree: TreeQuestion, *, config: str | None = None, sizes: bool = False, path: str | None = None
) -> TreeQuestion:
    """Return the question about DIR or another path, with the config and environment of a start on this machine."""
    from ckpttool.core.verbs import scanning

    return replace(
        tree,
        path=tree.path if path is None else path,
        sizes=sizes,
        config=scanning.read_config(config) if config is not None else None,
        environment=os.environ,
    )


def say_tree(tree: Tree, *, quiet: bool, verbose: bool) -> None:
    """Report the tree that is read if it differs from the requested path, and always with `--verbose`."""
    inventory = tree.inventory
    health = "no health file" if tree.book.path is None else f"health file {tree.book.path}"
    saves = counted(len(inventory.checkpoints), "checkpoint")
    more = f"tree {inventory.root}, layout {inventory.layout}, {saves}, {health}"
    output.looking_at(tree.resolved_from, quiet=quiet, more=more if verbose else None)


def one_name(names: list[str] | None) -> str | None:
    """Return the only requested checkpoint, if there is one.

    Raises:
        UsageError: There are several, and the last one must not win silently.
    """
    if names and len(names) > 1:
        raise UsageError(f"--checkpoint is given {len(names)} times ({', '.join(names)}), and only one can be chosen")
    return names[0] if names else None


class EngineName(str, Enum):
    """The engine that reads."""

    THREADS = "threads"
    RAY = "ray"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The engine that reads, and its address."""

    engine: Annotated[
        EngineName,
        typer.Option(
            help="Read in this process, or on the nodes of a running Ray cluster.", rich_help_panel="Evidence"
        ),
    ] = EngineName.THREADS
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of a running Ray cluster. Default: RAY_ADDRESS.",
            rich_help_panel="Evidence",
        ),
    ] = None

    @property
    def address(self) -> str | None:
        """The cluster's address; None if it is not set.

        Raises:
            UsageError: An address was given, but Ray is not the engine.
        """
        if self.engine is EngineName.THREADS and self.ray_address is not None:
            raise UsageError("--ray-address needs --engine ray: give both")
        return self.ray_address or os.environ.get("RAY_ADDRESS")

    @contextmanager
    def reading(self, *, quiet: bool) -> Iterator[None]:
        """Read with the selected engine within this context, and show the progress.

        Raises:
            UsageError, IncompleteError: As `ckpttool.library.on_ray`.
        """
        from ckpttool.core.commands import progress  # a scan shows no progress
        from ckpttool.core.verbs import verifying

        address = self.address
        if self.engine is EngineName.THREADS:
            with progress.watched(quiet=quiet):
                yield
            return
        stream = None if sys.stdout is None else _Ours(sys.stdout)
        guarded = nullcontext() if stream is None else stream.let_through()
        with redirect_stdout(cast("Any", stream)), verifying.on_ray(address), guarded, progress.watched(quiet=quiet):
            yield


class _Ours:
    """Stdout that drops messages about nodes from Ray's threads, and from Ray itself on connect and disconnect."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._thread: int | None = None

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Let this thread write to stdout."""
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None

    def write(self, text: str) -> int:
        """Write the text if this thread may; otherwise drop it and return its length."""
        return self._stream.write(text) if threading.get_ident() == self._thread else len(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)
