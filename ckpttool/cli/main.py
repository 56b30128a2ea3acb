"""The app, and the only code that turns an error into an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import typer

from ckpttool import __version__
from ckpttool.core.commands import output
from ckpttool.core.commands.helped import Command, Group, in_plain_words, is_all_shown
from ckpttool.core.errors import CkptToolError, ExitCode


class Place(NamedTuple):
    """The module of a command, and its summary."""

    module: str
    """Module in the package, with a function of this name, or an `app` with several commands."""
    summary: str


MAIN = {
    "scan": Place("core.commands.scan", "List checkpoints with their ranks, true step, size and health."),
    "verify": Place("core.commands.verify", "Check the headers, all bytes or all elements of every shard."),
    "resolve": Place("core.commands.resolve", "Choose the newest checkpoint that is intact on every rank."),
    "health": Place("health.commands", "Show which checkpoints are healthy, based on the logged norms."),
    "preflight": Place("core.commands.preflight", "Decide go or no-go before a launch. Changes nothing."),
    "launch": Place("core.commands.launch", "Write a config that resumes the run, and print the command."),
    "postflight": Place("postflight.commands", "Check by the logs of both runs whether a resume worked."),
    "scale-skip": Place("core.commands.scale_skip", "Compute data_skip_steps for a new global batch size."),
    "report": Place("report.commands", "Write a report page with everything known about a tree."),
    "seal": Place("core.commands.seal", "Record the checksums of a checkpoint, to detect later damage."),
    "watch": Place("watch.commands", "Verify, seal and report each checkpoint as it is saved."),
    "prune": Place("retention.commands", "Delete superseded checkpoints (dry run unless --apply)."),
    "repair": Place("cli.repair", "Repair damaged shards and records (dry run unless --apply)."),
}
"""The commands of the first help screen."""

MORE = {
    "inspect": Place("inspect.commands", "Show the tensors and scalars of a shard or a checkpoint."),
    "diff": Place("inspect.commands_diff", "Compare two shards or checkpoints, down to their values."),
    "export": Place("export.commands", "Write the weights of a checkpoint as safetensors, without torch."),
    "lint": Place("cli.lint", "Check configs for mistakes that trainers report late, or never."),
    "mark": Place("marks.commands", "Mark a checkpoint as bad or good for resolve, launch and prune."),
    "trash": Place("retention.commands_trash", "List, restore or delete what prune moved to the trash."),
    "log": Place("health.commands_log", "Replay a policy on a training log, or compute thresholds from it."),
    "guard": Place("guard.commands", "Show what happened in a guarded run, and replay a NaN step."),
    "fp8": Place("fp8.commands", "Find out whether FP8 hurts a training run, why, and how to fix it."),
    "asd": Place("health.commands_asd", "Check or write the settings of Ascend's feature detection."),
    "explain": Place("cli.explain", "Explain a finding, a verdict or an exit code."),
    "guide": Place("core.commands.guide", "Show a page of the manual, offline."),
    "demo": Place("core.commands.demo", "Write a small damaged tree to try the commands on."),
}
"""The commands that the first help screen lists in one line, with those of `PLUMBING`."""

PLUMBING = {
    "part": Place("nodes.commands", "Record the part of a tree that this machine can see."),
    "schema": Place("core.commands.schema", "Print the JSON Schema of a command's output."),
}

OLD_NAMES = {
    "lint-config": Place(
        "core.commands.lint_config", "Check training configs for mistakes that trainers report late, or never."
    ),
    "heal": Place("replicas.commands", "Rebuild lost or damaged shards from verified copies."),
    "repair-meta": Place(
        "retention.commands_repair_meta", "Point meta.json or the tracker at the newest intact checkpoint."
    ),
    "replay": Place("health.commands_replay", "Show what a skip or health policy would have done in a logged run."),
    "calibrate": Place("health.commands_calibrate", "Compute thresholds for a run from its training log."),
    "nan": Place("guard.commands_nan", "Show captured NaN steps, and recompute one."),
}
"""Earlier names of `lint`, `repair`, `log` and `guard`: scripts still call them, but help does not list them."""

LISTED = MAIN | MORE | PLUMBING
COMMANDS = LISTED | OLD_NAMES
"""Every command. Its module is imported when it is called, not before."""

TASKS = {"scan": "Check and resume", "seal": "Keep"}
"""Headings of the main commands, by the first command under each."""

_MORE = (
    "Every command takes --help, --format or --json, --quiet, --verbose, --debug.",
    "All but --help may also come before the command.",
    "More: ckpttool help COMMAND, ckpttool guide, ckpttool help --all",
)


_AS_JSON = ({"--json"}, {"--format=json"}, {"--format", "json"})
"""Options allowed with `--version`."""


class _Group(Group):
    """The group of all commands.

    It imports a command when it is called: `--help` does not wait for the imports of `launch`.
    """

    def main(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401  the base class's signature
        """Run a command line, and end with an exit code and at most one line on stderr, instead of typer's four."""
        output.ending = output.Ending()
        arguments = extra.get("args")
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except typer.TyperException as error:
            _answer_usage(error)
            code = ExitCode.USAGE
        except (CkptToolError, OSError) as error:  # before a command was reached, such as in --version
            code = _report(error, debug=False)
        if _is_json_requested(sys.argv[1:] if arguments is None else arguments):
            _print_error_document(int(code or ExitCode.OK))
        sys.exit(code or ExitCode.OK)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  as above
        """Turn an error of a command into one line and its exit code, once for all commands."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.TyperException):
            raise
        except KeyboardInterrupt as interrupt:
            output.note(f"interrupted {interrupt}".rstrip())
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except Exception as error:  # noqa: BLE001  the last stop: whatever comes is one line for people
            raise typer.Exit(_report(error, debug=bool(ctx.params.get("debug")))) from None

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002  as above
        """List the commands in the order of their use."""
        return list(LISTED)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401  as above
        """Find the command by its current name or an earlier one."""
        if args[0] in OLD_NAMES:
            return args[0], self.get_command(ctx, args[0]), args[1:]
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401, ARG002  as above
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        attribute = cmd_name.replace("-", "_")
        module = import_module(f"ckpttool.{COMMANDS[cmd_name].module}")
        if hasattr(module, "app"):  # a group of commands
            return typer.main.get_command(module.app)
        single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        single.command(cmd_name, cls=Command)(getattr(module, attribute))
        return typer.main.get_command(single)

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  as above
        """Show the main commands by task and name the others; with --help-all, show all. Imports no command."""
        tasks: dict[str, list[tuple[str, str]]] = {}
        shown = LISTED if is_all_shown(ctx) else MAIN
        width = max(map(len, shown))
        headings = TASKS | {next(iter(MORE)): "More", next(iter(PLUMBING)): "Plumbing"}
        for name, place in shown.items():
            if name in headings:
                tasks[headings[name]] = []
            tasks[next(reversed(tasks))].append((name.ljust(width), place.summary))
        for task, rows in tasks.items():
            with formatter.section(task):
                formatter.write_dl(rows)
        if not is_all_shown(ctx):
            with formatter.section("More"):
                formatter.write_text(", ".join((*MORE, *PLUMBING)))
        with formatter.section("Options"):
            formatter.write_dl([row for param in self.get_params(ctx) if (row := param.get_help_record(ctx))])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002  as above
        """Show the hints that apply to all commands."""
        formatter.write_paragraph()
        for text in _MORE:
            formatter.write_text(text)
        # As gettext chooses a language: the first of these that is set.
        locale = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
        if locale.startswith("zh"):
            formatter.write_text("中文快速上手: ckpttool guide zh")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  as above
        """Treat `help COMMAND` as `COMMAND --help`, and `version` as `--version`."""
        if args[:1] == ["version"]:
            args = ["--version", *args[1:]]
        version_flags = {"--version", "-V"} & {*args}
        if version_flags and {*args} - version_flags in _AS_JSON:
            _print_version_document()
            raise typer.Exit
        if args[:1] == ["help"]:
            shown = "--help-all" if {"-a", "--all", "--help-all"} & {*args} else "--help"
            args = [*(arg for arg in args[1:] if not arg.startswith("-")), shown]
        return super().parse_args(ctx, args)


def _is_json_requested(arguments: Sequence[str]) -> bool:
    """Return whether a command line, even an invalid one, requests JSON."""
    before_dashes = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    forms = [argument.removeprefix("--format=") for argument in before_dashes if argument.startswith("--format=")]
    forms += [form for argument, form in pairwise(before_dashes) if argument == "--format"]
    return "--json" in before_dashes or (forms or [os.environ.get("CKPTTOOL_FORMAT", "")])[-1] == "json"


def _print_error_document(code: int) -> None:
    """Print `ckpttool/error/1`: the reason why there is no result, in one line."""
    if output.ending.error is None or output.ending.result_begun:
        return
    from json import dumps

    with suppress(CkptToolError):  # if stdout is not writable, the exit code was already reported
        output.result(dumps({"schema": "ckpttool/error/1", "error": output.ending.error, "exit": code}))


def _answer_usage(error: typer.TyperException) -> None:
    """Report a usage error in one line, or show the usage if the command line is empty."""
    text, context = in_plain_words(error), getattr(error, "ctx", None)
    if context is not None and text == context.get_help():
        output.usage(text)
        return
    if context is not None and context.command.hidden:
        context = context.parent
    hint = f"see {context.command_path} --help" if context is not None else ""
    output.error(" ".join(filter(None, (text if text.endswith("?") else f"{text.rstrip('.')};", hint))).rstrip(";"))


def _report(error: Exception, *, debug: bool) -> ExitCode:
    """Report the error that stopped a command; a traceback only on request."""
    if debug:
        import traceback

        traceback.print_exception(error)
    if isinstance(error, CkptToolError):
        output.error(str(error))
        return error.exit_code
    if isinstance(error, OSError):  # unforeseen errors: for example, the current folder is gone
        place = f" at {error.filename!r}" if error.filename else ""
        output.error(f"operating system error{place}: {error.strerror or error}; ckpttool --debug … shows a traceback")
        return ExitCode.FAILED
    kind = type(error).__name__
    tracker = _tracker()
    reader = "to the person who installed ckpttool" if tracker is None else f"at {tracker}"
    output.error(
        f"internal error ({kind}: {error}): this is a bug in ckpttool. Report it {reader}, with the output of "
        "`ckpttool --debug …` and `ckpttool --version`"
    )
    return ExitCode.FAILED


def _tracker() -> str | None:
    """Return the bug tracker's address from the package's metadata, or None if the metadata lacks it."""
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        links = metadata("ckpttool").get_all("Project-URL") or []
    except PackageNotFoundError:  # run from a folder that was never installed
        return None
    places = {label.lower(): place for label, _, place in (link.partition(", ") for link in links)}
    return next((places[label] for label in ("issues", "bug tracker", "bug reports") if label in places), None)


app = typer.Typer(
    cls=_Group,
    name="ckpttool",
    help="fsck and flight plan for training checkpoints: which one can we resume from, and how?",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version_document() -> None:
    """Print `ckpttool/version/1`: the version of ckpttool, and its environment."""
    import platform
    from sysconfig import get_platform

    from ckpttool.core.render.json import dumps

    python, system = platform.python_version(), get_platform()
    output.result(dumps({"schema": "ckpttool/version/1", "version": __version__, "python": python, "platform": system}))


def _print_version(*, is_requested: bool) -> None:
    if is_requested:
        output.result(f"ckpttool {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            callback=lambda value: _print_version(is_requested=value),
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback if ckpttool fails.")] = False,
) -> None:
    """Find the checkpoint to resume a stopped run from, the data steps to skip, and the command to launch."""


def run() -> int:
    """Run the command line with the arguments of this process, and return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        # Names that are not UTF-8 are escaped already; other characters must not stop a result on an ASCII terminal,
        # and neither must a stream that cannot be reconfigured.
        if hasattr(stream, "reconfigure"):
            with suppress(OSError):
                stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except SystemExit as end:
        return int(end.code or 0)
    except (ImportError, OSError) as error:  # before a command was reached: its own files cannot be read
        return int(_report(error, debug=False))
    raise AssertionError("a command line that neither ends nor fails")
