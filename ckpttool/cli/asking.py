"""The functions of `import ckpttool`: each passes its keywords to the command of the same name.

A function therefore has the options, defaults and limits of its command, and returns the answer that the command would
print. Question objects are those that the command itself uses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from enum import Enum, IntEnum
from functools import cache
from importlib import import_module
from inspect import signature
from keyword import iskeyword
from typing import Any, NamedTuple

from ckpttool.core.domain.frozen import is_frozen
from ckpttool.core.errors import UsageError, unknown_word


class Verb(NamedTuple):
    """A function of the library."""

    place: str
    """`"module:name"`, within the package, of the function that answers the questions and has the docstring."""
    answers: str = ""
    """`"module:name"` of the command's answer, if that differs; several answers are separated by `|`."""
    alone: bool = False
    """Whether a path is a complete question without options."""
    positional: tuple[str, ...] = ()
    """Options that may be passed without their names, after the arguments."""
    command: str = ""
    """The words of the command, if they differ from the function's name: `"trash list"`."""
    without: frozenset[str] = frozenset()
    """Parameters of the command that are for people, besides those of every command."""


VERBS: Mapping[str, Verb] = {
    "scan": Verb("core.verbs.scanning:scan"),
    "verify": Verb("core.verbs.verifying:verify", "core.domain.verdict:Verification", without=frozenset({"dry_run"})),
    "inspect": Verb("inspect.verbs:inspect"),
    "diff": Verb("inspect.verbs_diff:diff"),
    "export": Verb("export.verbs:export"),
    "resolve": Verb("core.verbs.first_start:resolve_or_start"),
    "health": Verb("health.verbs.health:health", without=frozenset({"dry_run"})),
    "scale_skip": Verb("core.verbs.skipping:scale_skip"),
    "launch": Verb(
        "core.verbs.launching:launch",
        "core.domain.launch:Launch|core.domain.launch:Fragment|core.domain.preflight:Preflight",
    ),
    "preflight": Verb("core.verbs.preflighting:preflight", positional=("config",)),
    "postflight": Verb("postflight.verbs:postflight", "postflight.model.answers:Postflight"),
    "report": Verb("report.verbs:report", "core.domain.plan:Resolution", alone=True, without=frozenset({"dry_run"})),
    "lint_config": Verb("core.verbs.configs:lint_config", without=frozenset({"diff", "dry_run"})),
    "seal": Verb("core.verbs.sealing:seal", "core.domain.manifest:Sealed", without=frozenset({"dry_run"})),
    "mark": Verb("marks.verbs:mark"),
    "heal": Verb("replicas.verbs:heal"),
    "prune": Verb("retention.verbs:prune"),
    "repair_meta": Verb("retention.verbs_repair:repair_meta"),
    "replay": Verb("health.verbs.replay:replay"),
    "calibrate": Verb("health.verbs.replay:calibrate"),
    "explain": Verb("core.verbs.explaining:explain"),
    "demo": Verb("core.verbs.trying:demo"),
    "trash": Verb("retention.verbs_trash:trash", command="trash list"),
    "empty_trash": Verb("retention.verbs_trash:empty_trash", command="trash empty"),
    "replay_nan": Verb("guard.verbs.nan:replay_nan", command="guard replay"),
    "fp8_compare": Verb("fp8.verbs.compare:fp8_compare", command="fp8 compare"),
    "fp8_plan": Verb("fp8.verbs.plan:fp8_plan", command="fp8 plan"),
    "fp8_probe": Verb("fp8.verbs.probe:fp8_probe", command="fp8 probe"),
    "part": Verb("nodes.verbs:part"),
}
"""Functions by name; each has the same name as its command."""

FOR_PEOPLE = frozenset(
    {"more", "below", "verbose", "quiet", "json", "no_config", "debug", "fmt", "form", "field", "limit", "all_rows"}
    | {"ranks_per_node"}
)
"""Parameters for the format of an answer, and for DIRs after the first one."""


def answer(verb: str, given: dict[str, Any]) -> Any:  # noqa: ANN401  each function says what it returns
    """Return the answer of a function of the library.

    Args:
        verb: Name of the function.
        given: The arguments, by the parameters' names; `unknown` has all others.

    Raises:
        CkptToolError: The question is invalid, or cannot be answered.
    """
    function = getattr(import_module("ckpttool.library"), verb)
    subject, default = next(iter(signature(function).parameters)), function.__kwdefaults__ or {}
    unknown = given.pop("unknown")
    given = {name: value for name, value in given.items() if value is not None and value is not default.get(name)}
    questions = {type(value).__name__ for value in given.values() if is_frozen(type(value))}
    if questions and not unknown:  # without the command: it has no arguments
        return _by_question(verb, subject, given, questions)
    options, operands = options_of(verb), operands_of(verb)
    if unknown:
        where = f"{verb} takes {', '.join([*operands, *options])}"
        raise unknown_word("option", min(unknown), list(options), where)
    questions = {name for name in given if name not in options and name not in operands}
    if questions or (VERBS[verb].alone and {*given} <= {subject}):
        return _by_question(verb, subject, given, questions)
    return by_command(verb, given)


def _by_question(verb: str, subject: str, given: Mapping[str, Any], questions: set[str]) -> Any:  # noqa: ANN401
    """Call the function with the command's own questions.

    Raises:
        UsageError: Options were passed as well.
    """
    function = question_function(verb)
    parameters = signature(function).parameters
    first, *_ = parameters
    renamed = {first if name == subject else name: value for name, value in given.items()}
    options = sorted({*renamed} - {*parameters})
    if options:
        both = f"{', '.join(options)} and {' and '.join(sorted(questions))}"
        raise UsageError(f"{verb} takes options or a question, not both: {both}")
    for name in renamed.keys() - {first}:
        is_plain = isinstance(renamed[name], (str, bytes, int, float))
        if is_plain and "str" not in str(parameters[name].annotation) and name not in options_of(verb):
            raise UsageError(f"{verb}: {name} takes an object of ckpttool.types, not {renamed[name]!r}")
    return function(**renamed)


def by_command(verb: str, given: Mapping[str, Any]) -> Any:  # noqa: ANN401  as above
    """Run the command with options, and return its answer."""
    import typer

    from ckpttool.core.commands import output
    from ckpttool.core.commands.helped import in_plain_words

    command, arguments = command_of(verb), arguments_of(verb, given)
    with output.taken() as answers:
        try:
            settings = _group().context_settings  # as the group passes them to its commands
            with command.make_context(f"ckpttool {' '.join(words_of(verb))}", arguments, **settings) as context:
                command.invoke(context)
        except typer.Exit:
            pass
        except typer.TyperException as error:
            text = re.sub(r"--[a-z][a-z-]*", lambda option: keyword(option[0]), in_plain_words(error))
            raise UsageError(f"{verb}: {text.rstrip('.')}") from None
    return answers[-1] if answers else None  # of a process for which there is nothing to do


@cache
def _group() -> Any:  # noqa: ANN401  typer's own
    import typer

    from ckpttool.cli.main import app

    return typer.main.get_command(app)


def words_of(verb: str) -> list[str]:
    """Return the words of a verb's command."""
    return (VERBS[verb].command or verb.replace("_", "-")).split()


@cache
def command_of(verb: str) -> Any:  # noqa: ANN401  typer's own
    """Return the command with these words."""
    command = _group()
    for word in words_of(verb):
        command = command.get_command(None, word)
    return command


def question_function(verb: str) -> Any:  # noqa: ANN401  as above
    """Return the function that takes the questions of a verb."""
    module, _, name = VERBS[verb].place.partition(":")
    return getattr(import_module(f"ckpttool.{module}"), name)


def operands_of(verb: str) -> dict[str, Any]:
    """Return the arguments of a command that Python callers can pass, by name."""
    return {
        param.name: param
        for param in command_of(verb).params
        if param.param_type_name == "argument" and param.name not in FOR_PEOPLE
    }


@cache
def options_of(verb: str) -> Mapping[str, tuple[str, Any]]:
    """Return each option and typer's parameter by keyword; an option with two names has two keywords."""
    hidden = FOR_PEOPLE | VERBS[verb].without
    return {
        keyword(name): (name, param)
        for param in command_of(verb).params
        if param.param_type_name == "option" and not param.hidden and param.name not in hidden
        for name in (*param.opts, *param.secondary_opts)
        if name.startswith("--") and keyword(name).isidentifier()
    }


def keyword(option: str) -> str:
    """Return the keyword for an option: `old_gbs` for `--old-gbs`, `from_` for `--from`."""
    word = option.lstrip("-").replace("-", "_")
    return f"{word}_" if iskeyword(word) else word


def arguments_of(verb: str, given: Mapping[str, Any]) -> list[str]:
    """Format the keywords as a command line.

    Raises:
        UsageError: A value has a type that no option accepts.
    """
    options, operands = options_of(verb), operands_of(verb)
    typed: list[str] = []
    for name, value in given.items():
        if name not in options:
            continue
        option, param = options[name]
        if param.is_flag:
            typed += _flag(verb, name, value, option, param)
        else:
            typed += [f"{option}={text}" for text in _values(verb, name, value, param, several=param.multiple)]
    words = [
        text
        for name, param in operands.items()
        if name in given
        for text in _values(verb, name, given[name], param, several=param.nargs != 1)
    ]
    quiet = ["--quiet"] if any(param.name == "quiet" for param in command_of(verb).params) else []
    return [*quiet, "--no-config", *typed, "--", *words]


def _flag(verb: str, name: str, value: object, option: str, param: Any) -> list[str]:  # noqa: ANN401  typer's own
    if not isinstance(value, bool):
        raise UsageError(f"{verb}: {name} is True or False, not {value!r}")
    if value:
        return [option]
    others = param.secondary_opts if option in param.opts else ()
    return list(others[:1])


def takes_number(param: Any) -> bool:  # noqa: ANN401  as above
    """Return whether an option accepts a number."""
    kind = getattr(param, "type", None)
    if kind is None:  # typer 0.29 does not show it, and checks the value itself
        return True
    has_unit = getattr(getattr(kind, "func", None), "takes_number", False)  # as in the message of `duration`
    return has_unit or kind.name.startswith(("int", "float")) or str(param.metavar).startswith(("STEP|", "STEP["))


def _values(verb: str, name: str, value: object, param: Any, *, several: bool) -> list[str]:  # noqa: ANN401
    """Return one or several values as texts."""
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        if not several:
            raise UsageError(f"{verb}: {name} takes one value, not {value!r}")
        return [_text(verb, name, each, param) for each in value]
    return [_text(verb, name, value, param)]


def _text(verb: str, name: str, value: object, param: Any) -> str:  # noqa: ANN401  as above
    """Return a value as a user would type it."""
    if isinstance(value, IntEnum):
        return value.name.lower()
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    is_number = not isinstance(value, bool) and (hasattr(value, "__index__") or hasattr(value, "__float__"))
    if not isinstance(value, str) and not (is_number and takes_number(param)):
        raise UsageError(f"{verb}: {name} takes {'a number' if takes_number(param) else 'text'}, not {value!r}")
    text = str(value)
    if "\0" in text:  # no command line can contain it
        raise UsageError(f"{verb}: {name} contains a zero byte: {text!r}")
    return text
