"""Each answer, in the format that was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.cli import output
from ckpttool.cli.options import Format
from ckpttool.render import json as document

# Only named here: a command must not wait for the nouns and texts of the others.
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckpttool.domain.checkpoint import Inventory
    from ckpttool.domain.launch import Launch
    from ckpttool.domain.manifest import Sealing
    from ckpttool.domain.plan import NoResumePoint, ResumePlan, Simulation, SkipAnswer
    from ckpttool.domain.preflight import Preflight
    from ckpttool.domain.retention import Pruning, Repair
    from ckpttool.domain.verdict import Level, Verdict
    from ckpttool.errors import ExitCode
    from ckpttool.render.findings import Explanation


def took(place: str | None, *, quiet: bool) -> None:
    """Say what was taken instead of the path that was given."""
    if place is not None and not quiet:
        output.note(f"looking at {place}")


def inventory(found: Inventory, fmt: Format) -> None:
    """Show a scan."""
    match fmt:
        case Format.JSON:
            output.result(*document.pieces(document.inventory_document(found)))
        case Format.TABLE:
            from ckpttool.render.answers import plan as table

            output.table(table.inventory_table(found))


def plan(answer: ResumePlan | NoResumePoint, fmt: Format, code: ExitCode, simulation: Simulation | None = None) -> None:
    """Show a decision."""
    match fmt:
        case Format.JSON:
            output.result(document.dumps(document.plan_document(answer, simulation)))
        case Format.TABLE:
            from ckpttool.render.answers import plan as table

            output.table(table.plan_table(answer, simulation, code=code))


def skip(answer: SkipAnswer, fmt: Format) -> None:
    """Show a data position."""
    match fmt:
        case Format.JSON:
            output.result(document.dumps(document.skip_document(answer)))
        case Format.TABLE:
            from ckpttool.render.answers import plan as table

            output.table(table.skip_table(answer))


def explanation(one: Explanation | None, fmt: Format, *, width: int) -> None:
    """Show what a finding means; None: every one in a line."""
    from ckpttool.render.answers import explanation as explain

    match fmt:
        case Format.JSON:
            output.result(document.dumps(explain.list_document() if one is None else explain.one_document(one)))
        case Format.TABLE:
            output.result(explain.list_text(width=width) if one is None else explain.one_text(one, width=width))


def refusal(answer: Preflight, fmt: Format, code: ExitCode, path: str) -> None:
    """Show why a launch config was not written; where nothing can be resumed from, each checkpoint's reasons."""
    from ckpttool.domain.plan import NoResumePoint

    if fmt is Format.JSON:
        from ckpttool.render.answers.preflight_document import refusal_document

        output.result(document.dumps(refusal_document(answer, code)))
    elif isinstance(answer.decision, NoResumePoint):
        plan(answer.decision, fmt, code)
    else:
        from ckpttool.render.answers.preflight import report_table

        output.table(report_table(answer, code))
    output.error(f"{path} was not written: what stands against it is in the result")


def launch(answer: Launch, fmt: Format) -> None:
    """Show a launch. The commands stand alone on their lines, so that they can be copied whole."""
    match fmt:
        case Format.JSON:
            output.result(document.dumps(document.launch_document(answer)))
        case Format.TABLE:
            from ckpttool.render.answers import plan as table

            output.table(table.launch_table(answer))
            output.result("\n".join(answer.commands))


def verdicts(found: Inventory, judged: Sequence[Verdict], level: Level, fmt: Format, *, seconds: float) -> None:
    """Show a verification."""
    match fmt:
        case Format.JSON:
            output.result(*document.pieces(document.verdicts_document(found, judged, level, seconds=seconds)))
        case Format.TABLE:
            from ckpttool.render.answers import verdicts as tables

            output.table(tables.verdicts_table(found, judged, level))


def seals(found: Inventory, sealings: Sequence[Sealing], fmt: Format) -> None:
    """Show what was sealed."""
    match fmt:
        case Format.JSON:
            output.result(document.dumps(document.seals_document(sealings)))
        case Format.TABLE:
            from ckpttool.render.answers import verdicts as tables

            output.table(tables.seals_table(found, sealings))


def pruning(answer: Pruning, fmt: Format) -> None:
    """Show a pruning, planned or done."""
    match fmt:
        case Format.JSON:
            from ckpttool.render.answers.prune_document import pruning_document

            output.result(document.dumps(pruning_document(answer)))
        case Format.TABLE:
            from ckpttool.render.answers.prune import pruning_table

            output.table(pruning_table(answer))


def repair(answer: Repair, fmt: Format) -> None:
    """Show a repair of the trainer's records, planned or done."""
    match fmt:
        case Format.JSON:
            from ckpttool.render.answers.prune_document import repair_document

            output.result(document.dumps(repair_document(answer)))
        case Format.TABLE:
            from ckpttool.render.answers.prune import repair_table

            output.table(repair_table(answer))


def stats(judged: Sequence[Verdict], path: str) -> None:
    """Write each tensor's numbers to a file."""
    from ckpttool.write import replace

    replace(path, document.stats_lines(judged).encode("ascii"), overwrite=True, backup=False)
