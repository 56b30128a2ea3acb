"""Options are the fields of a command's questions; typer sees each field as one option.

The options of every command (`--json`, `--quiet`, `--verbose`, `--no-config`, `--debug`) are added to commands that do
not define them. The options of a tree are in `tree_options`, so that a command that reads no tree does not import them.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from enum import Enum, IntEnum
from functools import partial, wraps
from keyword import iskeyword
from operator import not_
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import typer
from typer.models import OptionInfo

from ckpttool.core.commands import output
from ckpttool.core.domain.frozen import dataclass, defaults, is_frozen
from ckpttool.core.domain.option import LAYOUTS, QUESTION, UNSET, WITHOUT_BATCH_SIZE, Option
from ckpttool.core.errors import UsageError
from ckpttool.trainers.registry import LAYOUT_NAMES

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_LONGEST = 1000 * 365 * _SECONDS["d"]
"""Maximum number of seconds; adding more to a date would exceed the range of the calendar."""
_WORDS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_PART = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"


class Time(float):
    """A time and its original text, because another option may use a different unit for the same number."""

    typed: str


def duration(bare: str | None, *, to: str | None = None, least: float = 0) -> Callable[[str], float]:
    """Return the parser of an option that takes a time.

    Args:
        bare: The unit of a bare number: s, m, h or d; None requires a unit.
        to: The unit of the result; by default the unit of a bare number, or seconds if a unit is required.
        least: The shortest time, in the same unit.
    """
    into = to or bare or "s"
    without = "" if bare is None else f"; a bare number is {_WORDS[bare]}"

    def parse(given: str | float) -> Time:
        text, unit = str(given), bare
        number = given if isinstance(given, float) else _number(text)  # defaults and values from a file are numbers
        if isinstance(given, str):
            # Each unit at most once, the longest first: 1h30m.
            parts = re.findall(rf"({_PART})([smhdw])", text)
            units = "".join(unit for _, unit in parts)
            if parts and re.fullmatch(rf"(?:{_PART}[smhdw])+", text) and re.fullmatch("w?d?h?m?s?", units):
                number, unit = float(sum(float(part) * _SECONDS[part_unit] for part, part_unit in parts)), "s"
        if number is not None and not math.isfinite(number):
            raise typer.BadParameter(f"{text!r} is not a finite number")
        if number is None or unit is None:
            raise typer.BadParameter(f"{text!r} is not a time such as 90s, 5m, 12h or 7d{without}")
        seconds = number * _SECONDS[unit] / _SECONDS[into]
        if seconds * _SECONDS[into] > _LONGEST:
            raise typer.BadParameter(f"{text!r} is longer than 1000 years")
        if seconds < least:
            raise typer.BadParameter(f"{text!r} is less than {least:g}{into}")
        time = Time(seconds)
        time.typed = text
        return time

    vars(parse)["takes_number"] = bare is not None
    return parse


def _number(text: str) -> float | None:
    # A subset of float(): no digits of other scripts, no _, nothing too small to distinguish from 0.
    number = r"-?(?:[0-9]{1,15}(?:\.[0-9]{0,15})?(?:e\+?[0-9]{1,3}|e-[0-9]{1,2})?|inf|nan)"
    return float(text) if re.fullmatch(number, text, re.IGNORECASE) else None


class Format(str, Enum):
    """Output format of the result."""

    TABLE = "table"
    JSON = "json"


def finite(value: float | None) -> float | None:
    """Reject `inf` and `nan`, for which every comparison is false. This is the callback of every numeric option.

    Raises:
        BadParameter: The value is not a number.
    """
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


FormatOpt = Annotated[Format, typer.Option("--format", help="Output format.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show all details and the settings in effect.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors on stderr.")]


def _trace(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        ctx.find_root().params["debug"] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """Options that every command accepts, even if they have no effect."""

    json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False
    verbose: Verbose = False
    quiet: Quiet = False
    no_config: Annotated[bool, typer.Option("--no-config", help="Ignore ckpttool.toml.")] = False
    debug: Annotated[bool, typer.Option("--debug", callback=_trace, help="Show a traceback on failure.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Options of every command that makes changes only with --apply."""

    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the plan and change nothing, which is the default without --apply.",
            rich_help_panel="Evidence",
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options that all other commands accept but ignore, for scripts that always pass them."""

    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing.", hidden=True)] = False


DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the result without writing anything.")]
"""The `--dry-run` option of commands that write without --apply."""


OF_A_TREE = {
    12: "No checkpoint folder was recognized.",
    14: "A file or folder could not be read, or changed during the read.",
    15: "The input was refused for safety: a link, a pipe, or a pickle that would run code.",
}
"""Exit codes of every command that reads a tree."""

OF_WRITING = {
    13: "Another ckpttool process is changing the tree.",
    16: "The data was written, but the disk did not confirm it.",
}
"""Exit codes of every command that changes a tree on the disk."""


def exits(meanings: Mapping[int, str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare the exit codes below 130 of a command or a group, with their meanings; the help shows them."""

    def noted(command: Callable[..., None]) -> Callable[..., None]:
        vars(command)["exits"] = meanings
        return command

    return noted


def always_writes(command: Callable[..., None]) -> Callable[..., None]:
    """Mark a command that has no dry run."""
    vars(command)["always_writes"] = True
    return command


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Give typer one option per field of a command's questions, and give the command the completed questions.

    `resolve`, `launch` and related commands share about twenty options; their questions declare each option once.
    """
    # Not with `get_type_hints`: for a default of None Python 3.10 hides typer's annotation.
    signature = inspect.signature(command, eval_str=True)
    requested = [
        _field(parameter.name, parameter.annotation, parameter.default) for parameter in signature.parameters.values()
    ]
    fields = [*_flat(requested)]
    names = {field.parameter.name for field in fields}
    common = [*_fields_of(CommonOptions), *_fields_of(PlanOptions if "apply" in names else ReadOptions)]
    has_dry_run = not getattr(command, "always_writes", False)
    added = [field.parameter for field in _flat(common) if field.parameter.name not in names]
    parameters = [*(field.parameter for field in fields), *added]

    @wraps(command)
    def call(**values: Any) -> None:  # noqa: ANN401  whatever typer parsed
        if values["json"] and "fmt" in values:
            values["fmt"] = Format.JSON if values["fmt"] is None else type(values["fmt"])("json")
        if values.get("apply") and values.get("dry_run"):
            raise UsageError("--dry-run and --apply cannot be used together")
        if values["dry_run"] and not has_dry_run:
            raise UsageError(f"{command.__name__} has no dry run; it changes no checkpoint")
        settings = [field.parameter for field in fields if field.parameter.name != "verbose"]
        if values["verbose"] and not values["quiet"] and (text := _settings(settings, values)):
            from ckpttool.core.storage import without_passwords

            output.note(f"settings: {without_passwords(text)}")
        with output.dry_run(requested=values["dry_run"]):
            command(**_filled(requested, values))

    vars(call)["__signature__"] = inspect.Signature(parameters)
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


class _Field(NamedTuple):
    """A field that is set from the command line, and typer's parameter for it."""

    name: str
    parameter: inspect.Parameter
    parse: Callable[[Any], Any] | None = None
    """The function that converts typer's value to the field's value.

    If typer's value is None, the field keeps its default.
    """
    also: str | None = None
    """A second field that is set from the same option."""


class _Question(NamedTuple):
    """Fields that form one value."""

    name: str
    kind: type
    fields: Sequence[_Field | _Question]
    optional: bool
    """Whether the value is None if no option is given."""


def _flat(fields: Iterable[_Field | _Question]) -> Iterator[_Field]:
    for field in fields:
        if isinstance(field, _Question):
            yield from _flat(field.fields)
        else:
            yield field


def _fields_of(question: type) -> list[_Field | _Question]:
    """Return the fields of a question that are annotated with an option, or are a question themselves."""
    own_defaults = defaults(question)
    fields = []
    for base in reversed(question.__mro__):
        names = vars(sys.modules[base.__module__])
        for name, text in vars(base).get("__annotations__", {}).items():
            if text.startswith("Annotated[") or get_origin(names.get(text)) is Annotated:
                annotation = eval(text, names)  # noqa: S307  an annotation of ours, which no other start evaluates
                fields.append(_field(name, annotation, own_defaults.get(name, inspect.Parameter.empty)))
    return fields


def _filled(fields: Iterable[_Field | _Question], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields by name, converted from typer's values.

    Raises:
        UsageError: An option is invalid, or contradicts another.
    """
    made: dict[str, Any] = {}
    for field in fields:
        if isinstance(field, _Question):
            question = field.kind(**_filled(field.fields, values))
            if hasattr(question, "assert_consistent"):
                question.assert_consistent()
            made[field.name] = None if field.optional and question == field.kind() else question
            continue
        value = values[field.parameter.name]
        if field.parse is None:
            made[field.name] = value
        elif value is not None and field.also is None:
            made[field.name] = field.parse(value)
        elif value is not None:
            made[field.name], made[str(field.also)] = field.parse(value)
    return made


def _field(name: str, annotation: Any, default: Any) -> _Field | _Question:  # noqa: ANN401  as inspect has them
    """Return typer's declaration of a field, or of a command's parameter."""
    kind, option = get_args(annotation)[:2] if get_origin(annotation) is Annotated else (annotation, QUESTION)
    question = _kinds(kind)[0]
    if is_frozen(question) and not isinstance(option, Option):
        return _Question(name, question, _fields_of(question), optional=default is None)
    if not isinstance(option, Option):
        parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        return _Field(name, _with_metavar(parameter))
    first, parse = option.names.split()[0], option.parse
    if option.default is not UNSET:
        default = option.default
    if option.into is not None and default is not None:  # a default is also parsed, as a number without a unit
        default = default * _SECONDS[option.into] / _SECONDS[str(option.unit)]
    if parse is not None:
        kind, default = option.typed, None if option.default is UNSET else default
    elif option.once:
        kind, default, parse = list[str] | None, None, partial(_only_one, first)
    elif kind is bool and default is True and "/" not in first:
        default, parse = False, not_
    else:
        kind, default, parse = _as_typed(kind, default)
    word = first.partition("/")[0].strip("-").replace("-", "_").lower()
    parameter = inspect.Parameter(
        name if iskeyword(word) or not word.isidentifier() else word,  # neither `--from` nor `[DIR]` is a valid name
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, _info(option, kind)],
    )
    return _Field(name, parameter, parse, option.also)


def _as_typed(kind: Any, default: Any) -> tuple[Any, Any, Callable[[Any], Any] | None]:  # noqa: ANN401  as above
    """Return typer's type and default for a field, and the conversion to the field's type if one is needed."""
    kinds = _kinds(kind)
    for each in kinds:
        if get_args(each)[1:] == (...,):  # typer knows lists
            return list[get_args(each)[0]] | None, None, tuple  # type: ignore[misc]
        if isinstance(each, type) and issubclass(each, IntEnum):  # people type plain words
            words: Any = Enum(each.__name__, {member.name: member.name.lower() for member in each}, type=str)  # type: ignore[misc]
            word = words[default.name] if isinstance(default, each) else default
            return words if kinds == (each,) else words | None, word, partial(_member, each)
        if hasattr(each, "__supertype__"):  # a step is a number
            number = each.__supertype__
            return number if kinds == (each,) else number | None, default, None
    return kind, default, None


def _member(kind: type[IntEnum], word: Enum) -> IntEnum:
    return kind[word.name]


def _kinds(kind: Any) -> tuple[Any, ...]:  # noqa: ANN401  as above
    return get_args(kind) if get_origin(kind) in {Union, UnionType} else (kind,)


def _info(option: Option, kind: Any) -> Any:  # noqa: ANN401  as above
    completion = None
    parser: Callable[[str], Any] | None = None
    text = option.help.replace(LAYOUTS, ", ".join(LAYOUT_NAMES)).replace(WITHOUT_BATCH_SIZE, "MindFormers 1.2")
    if option.completes is not None:
        from ckpttool.core.commands import completing  # scale-skip has no completion

        completion = getattr(completing, option.completes)
    if option.completes == "layouts":
        parser = _layout
    if option.unit is not None:
        parser = duration(option.unit.strip("-") or None, to=option.into, least=option.least or 0)
    shown: str | bool = True if option.shown is None else option.shown or False
    if not option.names.startswith("-"):
        return typer.Argument(metavar=option.names, help=text, show_default=shown, rich_help_panel=option.heading)
    kinds = _kinds(kind)
    return typer.Option(
        *option.names.split(),
        help=text,
        rich_help_panel=option.heading,
        metavar=option.metavar or _metavar(kinds),
        min=None if parser else option.least,
        max=option.most,
        parser=parser,
        callback=finite if float in kinds and parser is None else None,
        autocompletion=completion,
        show_default=shown,
    )


def _metavar(kinds: Iterable[Any]) -> str | None:
    """Return the metavar for an option that does not define one: N, X, or the option's choices."""
    if bool in kinds:
        return None
    choices = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Enum)), None)
    if choices is None:
        return "X" if float in kinds else "N"
    return "|".join(str(choice.value) for choice in choices)


def _layout(name: str) -> str:
    if name not in LAYOUT_NAMES:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(map(repr, LAYOUT_NAMES))}.")
    return name


def _only_one(option: str, names: list[str]) -> str:
    """Return the only value of an option.

    Raises:
        UsageError: There are several values, and the last must not win silently.
    """
    if len(names) > 1:
        raise UsageError(f"{option} is given {len(names)} times ({', '.join(names)}), and only one can be chosen")
    return names[0]


def _with_metavar(parameter: inspect.Parameter) -> inspect.Parameter:
    kind, info = get_args(parameter.annotation)
    kinds = get_args(kind) or (kind,)
    if not isinstance(info, OptionInfo) or info.metavar is not None or bool in kinds:
        return parameter
    named = copy(info)
    named.metavar = _metavar(kinds)
    return parameter.replace(annotation=Annotated[kind, named])


def _settings(parameters: Sequence[inspect.Parameter], values: Mapping[str, Any]) -> str:
    """Format the effective settings of a command, including defaults, as they would be typed."""
    import shlex

    arguments = []
    for parameter in parameters:
        info, value = get_args(parameter.annotation)[1], values[parameter.name]
        # As in typer, the first name takes the place of a default.
        names = (str(declaration).partition("/")[0] for declaration in (info.default, *(info.param_decls or ())))
        option = next((name for name in names if name.startswith("--")), f"--{parameter.name.replace('_', '-')}")
        for item in value if isinstance(value, list) else [value]:
            if item is not None and item is not False:
                text = str(item.typed if isinstance(item, Time) else getattr(item, "value", item))
                # A default is not typed, but its value is known.
                text = text.removesuffix(".0") if isinstance(item, float) else shlex.quote(text)
                if item is True or isinstance(info, OptionInfo):
                    arguments.append(option)
                if item is not True:
                    arguments.append(text)
    return " ".join(arguments)
