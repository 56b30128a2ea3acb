"""The command `ckpttool watch`."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from ckpttool.core.commands import completing, output
from ckpttool.core.commands.options import (
    OF_A_TREE,
    Format,
    FormatOpt,
    Quiet,
    always_writes,
    duration,
    exits,
    finite,
    grouped,
)
from ckpttool.core.commands.reports import codes
from ckpttool.core.commands.tree_options import ConfigPath, LevelName, LevelOpt, from_here
from ckpttool.core.domain.amounts import Amount, amount, share
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.option import Option
from ckpttool.core.domain.question import COLUMNS, LOG, CheckQuestion, LogQuestion, TreeQuestion
from ckpttool.core.errors import ExitCode, UsageError
from ckpttool.nodes.commands import PartNumber
from ckpttool.nodes.model import PartQuestion, Split
from ckpttool.nodes.names import process_of_part
from ckpttool.postflight.findings import PostflightCode
from ckpttool.watch.model import WatchQuestion, WatchRule

if TYPE_CHECKING:
    from ckpttool.watch.model import WatchEvent
    from ckpttool.watch.verbs import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """The polling, the level, and the actions on events."""

    once: Annotated[bool, typer.Option("--once", help="Check once and exit, for cron.", rich_help_panel="Watch")] = (
        False
    )
    every: Annotated[
        float,
        typer.Option(
            parser=duration("s", least=0.05),
            metavar="TIME",
            show_default="30s",
            help="Time between checks (a bare number is seconds).",
            rich_help_panel="Watch",
        ),
    ] = 30.0
    settle: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of checks without changes after which a save is considered complete.",
            rich_help_panel="Watch",
        ),
    ] = 2
    patience: Annotated[
        float | None,
        typer.Option(
            parser=duration("m", to="s"),
            metavar="TIME",
            help="Time after which missing files are reported (a bare number is minutes). "
            "Default: 3 times a save's duration, at least 10m.",
            rich_help_panel="Watch",
        ),
    ] = None
    level: LevelOpt = LevelName.CHECKSUM
    threshold: Annotated[
        float | None,
        typer.Option(
            callback=finite,
            min=0,
            help="Embedding local norm (sum of squares) at which a checkpoint is unhealthy.",
            rich_help_panel="Evidence",
        ),
    ] = None
    log: Annotated[tuple[str, ...], LOG] = ()
    columns: Annotated[str | None, COLUMNS] = None
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CODE",
            autocompletion=completing.codes,
            help="Accept this fault of a resume, such as resume-differs; repeatable.",
            rich_help_panel="Evidence",
        ),
    ] = None
    seal: Annotated[
        bool, typer.Option("--seal", help="Record the checksums of good checkpoints.", rich_help_panel="Watch")
    ] = False
    again: Annotated[
        float,
        Option(
            "--again",
            "Time after which a good checkpoint is read again (a bare number is minutes); 0: never.",
            "Watch",
            metavar="TIME",
            unit="m",
            into="s",
            shown="60m",
        ),
    ] = 3600.0
    max_rate: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Maximum read rate per second, such as 200M. Default: no limit.",
            rich_help_panel="Watch",
        ),
    ] = None
    free_below: Annotated[
        Amount | None,
        Option(
            "--free-below",
            "Report, one save in advance, that less than this will be free on the disk or in a quota, such as 10% or "
            "500GiB.",
            "Watch",
            metavar="SIZE",
            parse=partial(amount, "--free-below"),
            typed=str | None,
        ),
    ] = None
    on_event: Annotated[
        str | None,
        typer.Option(
            metavar="CMD",
            help="Command to run for each event, without a shell, with the event as JSON on stdin.",
            rich_help_panel="Watch",
        ),
    ] = None
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write metrics to this .prom file, for the Prometheus node exporter.",
            rich_help_panel="Watch",
        ),
    ] = None
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve metrics at this address, such as 127.0.0.1:9464. Default: off.",
            rich_help_panel="Watch",
        ),
    ] = None

    def question(self, tree: TreeQuestion) -> WatchQuestion:
        """Return the question for the library.

        Raises:
            UsageError: The value of an option is invalid.
        """
        rate = None if self.max_rate is None else share(self.max_rate)
        if self.max_rate is not None and not isinstance(rate, int):
            raise UsageError(f"--max-rate takes a size such as 200M, not {self.max_rate!r}")
        try:
            hook = tuple(shlex.split(self.on_event or ""))
        except ValueError as error:
            raise UsageError(f"--on-event: {error}: {self.on_event}") from None
        for code in self.allow or ():
            if code not in {row.value for row in PostflightCode}:
                raise UsageError(f"--allow {code}: a watch accepts only faults of a resume, such as resume-differs")
        rested = self.settle * self.every if self.once else None
        return WatchQuestion(
            tree=tree,
            rule=WatchRule(
                settle=self.settle,
                patience=self.patience,
                again=self.again,
                rested=rested,
                free_below=self.free_below,
            ),
            every=self.every,
            once=self.once,
            level=self.level.level,
            seal=self.seal,
            threshold=self.threshold,
            logs=LogQuestion(patterns=self.log, columns=self.columns),
            allowed=codes(self.allow),
            hook=hook,
            max_rate=rate if isinstance(rate, int) else None,
            metrics=self._metrics,
            listen=self._listen,
            environment=os.environ,
        )

    @property
    def _metrics(self) -> str | None:
        if self.metrics is not None and not self.metrics.endswith(".prom"):
            raise UsageError(f"--metrics {self.metrics}: the node exporter reads only files whose names end with .prom")
        return self.metrics

    @property
    def _listen(self) -> tuple[str, int] | None:
        if self.listen is None:
            return None
        if self.once:
            raise UsageError("--listen needs a running watch: with --once, use --metrics FILE")
        from urllib.parse import urlsplit

        try:
            place = urlsplit(f"//{self.listen}")
            if place.hostname and place.port is not None and not place.path:
                return place.hostname, place.port
        except ValueError:  # no such port
            pass
        raise UsageError(f"--listen takes HOST:PORT such as 127.0.0.1:9464, not {self.listen!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepOptions:
    """This machine's part of a tree for a watch elsewhere, and its output folder."""

    part_out: Annotated[
        str | None,
        typer.Option(
            "--part-out",
            metavar="FOLDER",
            help="Write this machine's part to this folder, for another watch to read.",
            rich_help_panel="Watch",
        ),
    ] = None
    part: PartNumber = "auto"
    run_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Name of the run, the same on all machines. Default: from the launcher.",
            rich_help_panel="Which part",
        ),
    ] = None

    def question(self, tree: TreeQuestion) -> PartQuestion | None:
        """Return the question about the part for the library, or None if no part is written.

        Raises:
            UsageError: An option describes a part, but no part is written.
        """
        if self.part_out is None:
            if self.part != "auto" or self.run_id is not None:
                raise UsageError("--part and --run-id apply to the part that --part-out writes: give --part-out")
            return None
        return PartQuestion(
            tree=tree,
            check=CheckQuestion(),
            out=f"{self.part_out.rstrip('/')}/",
            part=self.part,
            split=Split.NONE,
            run=self.run_id,
        )


@exits(
    {
        0: "The watch was stopped by SIGTERM; with --once: every checkpoint is good.",
        10: "With --once: a checkpoint is damaged or suspect, or the last resume is wrong.",
        11: "With --once: there is no checkpoint.",
        **OF_A_TREE,
        13: "The tree is already being watched.",
        14: "With --once: a checkpoint was not read, or could not be read.",
    }
)
@grouped
@always_writes
def watch(
    *,
    tree: TreeQuestion,
    config: ConfigPath = None,
    look: WatchOptions,
    keep: KeepOptions,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Verify, seal and report each checkpoint as it is saved.

    Waits until a save is complete, reads it, prints one line, and repeats this until stopped. Also reports ranks
    that hang in a save, overdue saves, and files that change later. Changes nothing except the records of --seal.
    If each machine has only a part of the checkpoints, run one watch per machine with --part-out FOLDER, and
    another on FOLDER.

    Example: ckpttool watch ./output/checkpoint --seal
    """
    where = from_here(tree, config=config)
    part = keep.question(where)
    if part is not None and process_of_part(part.part) is None:
        output.looking_at(None, quiet=quiet, more="this process only coordinates the others and reads nothing")
        return
    from ckpttool.watch.verbs import Watch  # its help does not need it

    watching = Watch(
        replace(look.question(where), part=part),
        tell=lambda event: _print_event(event, fmt),
        note=lambda text: None if quiet else output.note(text),
    )
    with _ended_by_signals(watching), watching.begun():
        watching.run()
    raise typer.Exit(watching.known.exit_code if look.once and part is None else ExitCode.OK)


@contextmanager
def _ended_by_signals(watching: Watch) -> Iterator[None]:
    """Stop cleanly on a signal. A second Ctrl-C does not wait for a hook.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed. Reported events are already saved.
    """
    pressed: list[int] = []

    def interrupted(number: int, _: object) -> None:
        pressed.append(number)
        signal.signal(number, signal.default_int_handler)
        watching.stop()

    with _handled(signal.SIGTERM, lambda *_: watching.stop()), _handled(signal.SIGINT, interrupted):
        yield
    if pressed:
        raise KeyboardInterrupt


@contextmanager
def _handled(number: int, handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def _print_event(event: WatchEvent, fmt: Format) -> None:
    """Print an event in one line, immediately."""
    from ckpttool.watch.answers import one_line, text

    output.result(one_line(event) if fmt is Format.JSON else text(event))
    if sys.stdout is not None:
        sys.stdout.flush()
