"""Options that come together are one value: a command takes the value, typer sees the options.

What every command takes (`--json`, `--quiet`, `--verbose`, `--no-config`, `--debug`) is added to those that do not name
it themselves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from enum import Enum
from functools import wraps
from typing import Annotated, Any, get_args

import typer
from typer.models import OptionInfo

from ckpttool.core.commands import output
from ckpttool.core.commands.options import Quiet, Time
from ckpttool.core.domain.frozen import dataclass, defaults, is_frozen
from ckpttool.core.errors import UsageError


def _trace(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        ctx.find_root().params["debug"] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """What every command takes, whether or not it has anything to do with it."""

    json: Annotated[bool, typer.Option("--json", help="As --format json.")] = False
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more: with which settings.")] = False
    quiet: Quiet = False
    no_config: Annotated[bool, typer.Option("--no-config", help="Read no ckpttool.toml.")] = False
    debug: Annotated[bool, typer.Option("--debug", callback=_trace, help="Show a traceback where it fails.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What every command takes that changes something only with --apply."""

    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Change nothing and print the plan, as without --apply.", rich_help_panel="Evidence"
        ),
    ] = False


OF_A_TREE = {
    12: "There is no checkpoint folder that ckpttool knows.",
    14: "Something could not be read, or changed meanwhile.",
    15: "Refused for safety: a link, a pipe, a pickle that would run code.",
}
"""How every command can end that looks at a tree."""

OF_WRITING = {13: "Another ckpttool is writing here.", 16: "Written, but the disk did not confirm it."}
"""How every command can end that changes something on the disk of a tree."""


def exits(meanings: Mapping[int, str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Say with which codes below 130 a command or a group ends, and what each means there; the help shows it."""

    def noted(command: Callable[..., None]) -> Callable[..., None]:
        vars(command)["exits"] = meanings
        return command

    return noted


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Spread every parameter that is a dataclass into one option for each of its fields.

    `resolve`, `launch` and what comes after them share a score of options. Written out, each command would be a
    page of parameters that must never differ; this keeps them in one place.
    """
    # Not by `get_type_hints`: for a default of None Python 3.10 hides there what typer looks for.
    stated = inspect.signature(command, eval_str=True).parameters.values()
    groups = {
        stated_parameter.name: stated_parameter.annotation
        for stated_parameter in stated
        if is_frozen(stated_parameter.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for parameter in stated:
        if parameter.name in groups:
            parameters += _spread(groups[parameter.name])
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    group_names = {parameter.name for parameter in parameters}
    extra = (CommonOptions, PlanOptions) if "apply" in group_names else (CommonOptions,)
    common = [parameter for group in extra for parameter in _spread(group) if parameter.name not in group_names]
    parameters = [_with_metavar(parameter) for parameter in (*parameters, *common)]

    @wraps(command)
    def call(**values: Any) -> None:  # noqa: ANN401  whatever typer parsed
        if values["json"] and "fmt" in values:
            values["fmt"] = type(values["fmt"])("json")
        verbose = values["verbose"] and not values["quiet"]
        if values.get("apply") and values.get("dry_run"):
            raise UsageError("--dry-run changes nothing and --apply does: say one of them")
        for parameter in common:
            del values[parameter.name]
        if verbose and (
            text := _settings(
                [parameter for parameter in parameters if parameter.name in values.keys() - {"verbose"}], values
            )
        ):
            from ckpttool.core.storage import without_passwords

            output.note(f"settings: {without_passwords(text)}")
        for name, group in groups.items():
            values[name] = group(**{field: values.pop(field) for field in group.__slots__})
        command(**values)

    vars(call)["__signature__"] = inspect.Signature(parameters)
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _with_metavar(parameter: inspect.Parameter) -> inspect.Parameter:
    """Name the value of an option that does not name it: N, X, or what it can be."""
    kind, info = get_args(parameter.annotation)
    kinds = get_args(kind) or (kind,)
    if not isinstance(info, OptionInfo) or info.metavar is not None or bool in kinds:
        return parameter
    choices = next((kind for kind in kinds if issubclass(kind, Enum)), None)
    metavar = ("X" if float in kinds else "N") if choices is None else "|".join(str(choice.value) for choice in choices)
    named = copy(info)
    named.metavar = metavar
    return parameter.replace(annotation=Annotated[kind, named])


def _settings(parameters: Sequence[inspect.Parameter], values: Mapping[str, Any]) -> str:
    """Spell the settings with which a command goes to work, defaults included, as they would be typed."""
    import shlex

    arguments = []
    for parameter in parameters:
        info, value = get_args(parameter.annotation)[1], values[parameter.name]
        # The first name stands where a default would, as typer has it.
        names = (str(declaration).partition("/")[0] for declaration in (info.default, *(info.param_decls or ())))
        option = next((name for name in names if name.startswith("--")), f"--{parameter.name.replace('_', '-')}")
        for item in value if isinstance(value, list) else [value]:
            if item is not None and item is not False:
                text = str(item.typed if isinstance(item, Time) else getattr(item, "value", item))
                # No default is typed, but what it would be is known.
                text = text.removesuffix(".0") if isinstance(item, float) else shlex.quote(text)
                arguments += [option] if item is True else [option, text] if isinstance(info, OptionInfo) else [text]
    return " ".join(arguments)


def _spread(group: type) -> list[inspect.Parameter]:
    given, named = defaults(group), inspect.Parameter.KEYWORD_ONLY
    kinds = inspect.get_annotations(group, eval_str=True)
    return [
        inspect.Parameter(name, named, default=given.get(name, inspect.Parameter.empty), annotation=kind)
        for name, kind in kinds.items()
    ]
