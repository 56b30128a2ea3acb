"""Every kind of answer: what it is called, how a command that gives it ends, and the one way in which it is shown.

A new command is `cli/NAME.py`, its line in `main.COMMANDS`, one line here, a module of the answer's noun in
`render/answers` (with `document` for JSON and `table` for people; the noun also names the document's JSON Schema), and
a module in `api`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from ckpttool.cli import output
from ckpttool.cli.options import Format
from ckpttool.domain import exits
from ckpttool.errors import CkptToolError, ExitCode
from ckpttool.render.escape import shown

A = TypeVar("A")

if TYPE_CHECKING:
    from typing import Protocol

    from rich.console import RenderableType

    from ckpttool.domain.demo import Demo
    from ckpttool.domain.fp8_plan import Fp8Plan, NoPlan
    from ckpttool.domain.part import PartWritten
    from ckpttool.domain.plan import SkipAnswer
    from ckpttool.render.json import Document

    A_contra = TypeVar("A_contra", contravariant=True)

    class Render(Protocol[A_contra]):
        """What a module of `render/answers` offers."""

        def document(self, answer: A_contra, /) -> Document:
            """Spell it for scripts."""
            ...

        def table(self, answer: A_contra, /) -> RenderableType:
            """Draw it for people."""
            ...


class Answer(Generic[A]):
    """One kind. Its module is imported when it is shown: a command must not wait for the texts of the others."""

    def __init__(self, noun: str, exit_code: Callable[[A], ExitCode]) -> None:
        """Take the noun, and what tells from an answer how the command ends."""
        self.noun = noun
        self.exit_code = exit_code

    @property
    def render(self) -> Render[A]:
        """The module of `render/answers`."""
        return cast("Render[A]", import_module(f"ckpttool.render.answers.{self.noun.replace('-', '_')}"))


INVENTORY = Answer("inventory", exits.of_listing)
VERDICTS = Answer("verdicts", exits.of_verification)
FORECAST = Answer("forecast", exits.of_forecast)
CONTENTS = Answer("contents", exits.of_contents)
DIFFERENCE = Answer("difference", exits.of_difference)
PART: Answer[PartWritten] = Answer("part", lambda _: ExitCode.OK)
SEALS = Answer("seals", exits.of_sealed)
EVENT = Answer("event", exits.of_event)
PLAN = Answer("plan", exits.of_resolution)
SKIP: Answer[SkipAnswer] = Answer("skip", lambda _: ExitCode.OK)
LAUNCH = Answer("launch", exits.of_launch)
PREFLIGHT = Answer("preflight", exits.of_report)
HEALTH = Answer("health", exits.of_health)
REPLAY = Answer("replay", exits.of_replay)
CALIBRATION = Answer("calibration", exits.of_calibration)
ASD = Answer("asd", exits.of_asd)
FP8_COMPARE = Answer("fp8-compare", exits.of_curves)
FP8_PLAN: Answer[Fp8Plan | NoPlan] = Answer("fp8-plan", exits.of_experiments)
FP8_PROBE = Answer("fp8-probe", exits.of_probe)
FP8_VERDICT = Answer("fp8-verdict", exits.of_verdict)
GUARD_REPORT = Answer("guard-report", exits.of_guard_report)
PRUNE = Answer("prune", exits.of_pruning)
TRASH = Answer("trash", exits.of_trash)
HEAL = Answer("heal", exits.of_healing)
REPAIR = Answer("repair", exits.of_repair)
NAN_CAPTURE = Answer("nan-capture", exits.of_capture)
NAN_CAPTURES = Answer("nan-captures", exits.of_capture)
NAN_REPLAY = Answer("nan-replay", exits.of_nan_replay)
DEMO: Answer[Demo] = Answer("demo", lambda _: ExitCode.OK)


def show(kind: Answer[A], answer: A, fmt: Format) -> ExitCode:
    """Write an answer in the format that was asked for, and return how the command ends.

    Raises:
        WriteFailedError: It could not be written.
    """
    match fmt:
        case Format.JSON:
            from ckpttool.render.json import pieces

            output.result(*pieces(kind.render.document(answer)))
        case Format.TABLE:
            output.table(kind.render.table(answer))
    return kind.exit_code(answer)


def show_each(kind: Answer[A], ask: Callable[[str | None], A], paths: Sequence[str | None], fmt: Format) -> ExitCode:
    """Ask about each tree, show all answers as one, and return the worst exit code; of one tree just as `show` does.

    Raises:
        CkptToolError: There is one tree, and no answer.
        WriteFailedError: The answer could not be written.
    """
    return show(kind, ask(paths[0]), fmt) if len(paths) == 1 else show_trees(kind, ask, paths, fmt)


def show_trees(
    kind: Answer[A], ask: Callable[[str | None], A | None], paths: Iterable[str | None], fmt: Format
) -> ExitCode:
    """As `show_each`, but as one document whatever their number.

    What stops the question about one tree is said, and does not stop the others. An answer of None is left out.

    Raises:
        WriteFailedError: The answer could not be written.
    """
    told: list[dict[str, Document]] = []
    codes: list[ExitCode] = []
    for path in paths:
        try:
            answer = ask(path)
        except CkptToolError as error:
            told_path = str(error).startswith(f"{path} ")
            output.error(str(error) if told_path else f"{path}: {error}")
            codes.append(error.exit_code)
            told.append({"path": path, "exit_code": codes[-1], "error": str(error), "result": None})
            continue
        if answer is None:
            continue
        codes.append(kind.exit_code(answer))
        if fmt is Format.JSON:
            told.append({"path": path, "exit_code": codes[-1], "error": None, "result": kind.render.document(answer)})
            continue
        output.result("" if len(codes) == 1 else "\n", f"{shown(str(path))}:")
        output.table(kind.render.table(answer))
    if fmt is Format.JSON:
        from ckpttool.render.json import pieces

        output.result(*pieces({"schema": "ckpttool/trees/1", "trees": told}))
    return exits.of_trees(codes)
