"""Functions that show an answer and return the exit code of its command.

The architecture page of the manual describes the parts of a command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.commands import output
from ckpttool.core.commands.options import Format
from ckpttool.core.errors import CkptToolError, ExitCode
from ckpttool.core.render.answers import texts_of

if TYPE_CHECKING:
    from ckpttool.core.domain.answers import Answered
    from ckpttool.core.render.json import Document


def show(answer: Answered, fmt: Format) -> ExitCode:
    """Write an answer in the requested format, and return the exit code.

    Raises:
        WriteFailedError: The answer could not be written.
    """
    if output.take(answer):
        return answer.exit_code
    match fmt:
        case Format.JSON:
            from ckpttool.core.render.json import pieces

            output.result(*pieces(texts_of(answer).document(answer)))
        case Format.TABLE:
            output.table(texts_of(answer).table(answer))
    return answer.exit_code


def show_each(ask: Callable[[str | None], Answered], paths: Sequence[str | None], fmt: Format) -> ExitCode:
    """Show the answers for all trees as one, and return the worst exit code; for a single tree, do the same as `show`.

    Raises:
        CkptToolError: There is only one tree, and it has no answer.
        WriteFailedError: The answer could not be written.
    """
    return show(ask(paths[0]), fmt) if len(paths) == 1 else show_trees(ask, paths, fmt)


def show_trees(ask: Callable[[str | None], Answered | None], paths: Iterable[str | None], fmt: Format) -> ExitCode:
    """Show all trees as `show_each` does, but always as one document.

    An error in one tree is reported and does not stop the others. An answer of None is left out.

    Raises:
        WriteFailedError: The answer could not be written.
    """
    from ckpttool.core.domain.finding import of_trees  # the answer about a single tree has its own format
    from ckpttool.core.render.escape import shown

    results: list[dict[str, Document]] = []
    codes: list[ExitCode] = []
    for path in paths:
        try:
            answer = ask(path)
        except CkptToolError as error:
            told_path = str(error).startswith(f"{path} ")
            output.error(str(error) if told_path else f"{path}: {error}")
            codes.append(error.exit_code)
            results.append({"path": path, "exit_code": codes[-1], "error": str(error), "result": None})
            continue
        if answer is None:
            continue
        codes.append(answer.exit_code)
        if fmt is Format.JSON:
            results.append(
                {"path": path, "exit_code": codes[-1], "error": None, "result": texts_of(answer).document(answer)}
            )
            continue
        output.result("" if len(codes) == 1 else "\n", f"{shown(str(path))}:")
        output.table(texts_of(answer).table(answer))
    if fmt is Format.JSON:
        from ckpttool.core.render.json import pieces

        output.result(*pieces({"schema": "ckpttool/trees/1", "trees": results}))
    return of_trees(codes)
