"""Options that come together are one value: a command takes the value, typer sees the options.

What every command takes (`--json`, `--quiet`, `--verbose`, `--debug`) is added to those that do not name it themselves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any

import typer

from ckpttool.cli.options import Quiet
from ckpttool.domain.frozen import dataclass


def _trace(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        ctx.find_root().params["debug"] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """What every command takes, whether or not it has anything to do with it."""

    json: Annotated[bool, typer.Option("--json", help="As --format json.")] = False
    verbose: Annotated[bool, typer.Option("--verbose", "-v", hidden=True)] = False
    quiet: Quiet = False
    debug: Annotated[bool, typer.Option("--debug", callback=_trace, help="Show a traceback where it fails.")] = False


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Spread every parameter that is a dataclass into one option for each of its fields.

    `resolve`, `launch` and what comes after them share a score of options. Written out, each command would be a
    page of parameters that must never differ; this keeps them in one place.
    """
    # Not by `get_type_hints`: for a default of None Python 3.10 hides there what typer looks for.
    stated = inspect.signature(command, eval_str=True).parameters.values()
    groups = {each.name: each.annotation for each in stated if _is_group(each.annotation)}
    parameters: list[inspect.Parameter] = []
    for parameter in stated:
        if parameter.name in groups:
            parameters += _spread(groups[parameter.name])
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    own = {parameter.name for parameter in parameters}
    common = [parameter for parameter in _spread(CommonOptions) if parameter.name not in own]
    parameters += common

    @wraps(command)
    def call(**values: Any) -> None:  # noqa: ANN401  whatever typer parsed
        if values["json"] and "fmt" in values:
            values["fmt"] = type(values["fmt"])("json")
        for parameter in common:
            del values[parameter.name]
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    vars(call)["__signature__"] = inspect.Signature(parameters)
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _is_group(annotation: object) -> bool:
    return isinstance(annotation, type) and is_dataclass(annotation)


def _spread(group: type) -> list[inspect.Parameter]:
    kinds = inspect.get_annotations(group, eval_str=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=kinds[field.name],
        )
        for field in fields(group)
    ]
