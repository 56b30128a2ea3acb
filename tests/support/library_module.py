"""Spells `ckpttool/library.py` from the commands' own options, and the tables of names beside lists of imports."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ckpttool.cli.asking import VERBS, keyword, operands_of, options_of, question_function, takes_number

PACKAGE = Path(__file__).resolve().parents[2] / "ckpttool"
LIBRARY = PACKAGE / "library.py"
WITH_TABLES = tuple(PACKAGE / name for name in ("__init__.py", "types.py", "guard/__init__.py"))

WIDTH = 120
_MOST_WORDS = 80
"""Characters of the values in an annotation: more do not fit into a line, and help lists them."""
PATHS = re.compile(r"FILE|DIR|PATH|FOLDER|LOG\b|GLOB|yaml|^[ABF]$|^(?:OUT|BASELINE|CANDIDATE)$")
"""What a value is called that is a path."""

OTHERS: Mapping[str, str] = {
    "ckpttool.core.verbs.fixing": "fix_config",
    "ckpttool.core.verbs.launching": "fragment",
    "ckpttool.core.verbs.resolving": "simulate",
    "ckpttool.core.verbs.scanning": "read_config trees_below",
    "ckpttool.core.verbs.verifying": "forecast on_ray",
    "ckpttool.fp8.verbs.lint": "fp8_lint",
    "ckpttool.fp8.verbs.verdict": "fp8_verdict",
    "ckpttool.guard.verbs.nan": "inspect_nan list_nan",
    "ckpttool.guard.verbs.reports": "guard_report",
    "ckpttool.health.verbs.asd": "asd_defaults check_asd emit_asd",
    "ckpttool.nodes.verbs": "parts_of_nodes",
    "ckpttool.report.verbs": "survey",
    "ckpttool.retention.verbs_trash": "restore",
}
"""By their modules, the functions that have no options: of commands of a group, and of parts of a command."""

HEAD = '''"""The functions of `import ckpttool`: each has the options of its command as keywords, and prints nothing.

`python -m tests.pages` writes this module from the commands' options; do not edit it by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from ckpttool import imported
'''

REST = """
_PLACES = {
}

__all__ = [
%s]


if not TYPE_CHECKING:  # a type checker would take every name for one of ours

    def __getattr__(name: str) -> object:
        return imported(name, _PLACES, __name__)


def _answer(verb: str, given: dict[str, Any]) -> Any:  # noqa: ANN401  each function says what it returns
    from ckpttool.cli.asking import answer

    return answer(verb, given)


"""

_SECTION = re.compile(r"^(Args|Returns|Yields|Raises):$", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+): ", re.MULTILINE)


class Parameter(NamedTuple):
    """A parameter of a function."""

    name: str
    kind: str
    """Its annotation."""
    default: str
    """As it is spelled."""
    about: str
    """What the docstring says of it."""
    is_required: bool = False
    """Whether the command does not run without it."""

    def __str__(self) -> str:
        """Spell it."""
        return f"{self.name}: {self.kind}" + (f" = {self.default}" if self.default else "")


def module() -> str:
    """Return the text of `ckpttool/library.py`."""
    functions = [Function(verb) for verb in VERBS]
    imports: dict[str, set[str]] = {}
    for function in functions:
        for name in function.names():
            place = _place_of(name, function.module)
            if place is not None:
                imports.setdefault(place, set()).add(name)
    text = "\n\n".join(function.spelled() for function in functions)
    lines = [HEAD, "if TYPE_CHECKING:", "    import os", "    from collections.abc import Callable, Mapping, Sequence"]
    lines += ["    from typing import Literal, NoReturn, TypeAlias", ""]
    lines += [_import(place, sorted(names, key=str.casefold)) for place, names in sorted(imports.items())]
    lines += ["", '    StrPath: TypeAlias = "str | os.PathLike[str]"']
    lines += ["", "if TYPE_CHECKING:"]
    lines += [f"    from {place} import {name} as {name}" for place, names in OTHERS.items() for name in names.split()]
    public = sorted({*VERBS, *" ".join(OTHERS.values()).split()})
    return with_table("\n".join(lines) + "\n" + REST % "".join(f'    "{name}",\n' for name in public) + text)


def answers_of(verb: str) -> str | None:
    """Return the annotation of what a function answers to keywords; None: it has none."""
    return Function(verb).answer if verb in VERBS else None


def _import(place: str, names: list[str]) -> str:
    line = f"    from {place} import {', '.join(names)}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"    from {place} import (", *(f"        {name}," for name in names), "    )"])


class Function:
    """One function of the library."""

    def __init__(self, verb: str) -> None:
        """Look at the command and at what takes its questions."""
        self.verb = verb
        self.place = VERBS[verb]
        self.asks = question_function(verb)
        self.module = import_module(f"ckpttool.{self.place.place.partition(':')[0]}")
        self.signature = inspect.signature(self.asks)
        self.text = _sections(inspect.getdoc(self.asks) or "")
        self.options = {name: _option(name, option, param) for name, (option, param) in options_of(verb).items()}
        self.operands = [_operand(param) for param in operands_of(verb).values()]

    def extras(self, kinds: set[Any]) -> list[Parameter]:
        """Return what only a question takes, of some kinds of parameters."""
        _first, *rest = self.signature.parameters.values()
        names = {*self.options, *(operand.name for operand in self.operands)}
        takes_question = any("Question" in str(each.annotation) for each in rest) or self.takes_question
        return [
            Parameter(each.name, _or_none(str(each.annotation)), "None", self.text.entry("Args", each.name))
            for each in rest
            if takes_question and each.kind in kinds and each.name not in names and each.name != "view"
        ]

    @property
    def takes_question(self) -> bool:
        """Whether its first argument may be more than a path."""
        first = next(iter(self.signature.parameters.values()))
        return bool(re.search(r"Question|Where|Tree", str(first.annotation)))

    def parameters(self) -> tuple[list[Parameter], list[Parameter]]:
        """Return those that may be given by position, and those by name alone."""
        operands = list(self.operands)
        if self.takes_question and operands:
            first = next(iter(self.signature.parameters.values()))
            kind = _or_none(str(first.annotation))
            kind = kind if re.search("Where|Logs|str", kind) else f"StrPath | {kind}"
            questions = re.findall(r"\b[A-Z]\w+", kind.replace("Where", "TreeQuestion").replace("Logs", ""))
            objects = " or ".join(f"`{each}`" for each in questions if each not in {"None", "StrPath", "PathLike"})
            about = f"{operands[0].about} Or {objects}."
            operands[0] = operands[0]._replace(kind=kind, about=about)
            # A question replaces all of them; the command reports those that are missing.
            operands[1:] = [each._replace(kind=_or_none(each.kind), default="None") for each in operands[1:]]
        positional = [self.options[name] for name in self.place.positional]
        named = [self._shared(option) for name, option in self.options.items() if name not in self.place.positional]
        by_place = self.extras({inspect.Parameter.POSITIONAL_OR_KEYWORD})
        return [*operands, *positional, *by_place], [*self.extras({inspect.Parameter.KEYWORD_ONLY}), *named]

    def _shared(self, option: Parameter) -> Parameter:
        """Let an option take what a question has under the same name, too: the tree itself, not its path."""
        asked = self.signature.parameters.get(option.name)
        kinds = set() if asked is None or not self.takes_question else {*str(asked.annotation).split(" | ")}
        more = [kind for kind in sorted(kinds) if kind[0].isupper() and kind not in option.kind]
        return option._replace(kind=" | ".join([*more, option.kind]))

    @property
    def answer(self) -> str:
        """The annotation of what it returns."""
        if not self.place.answers:
            return str(self.signature.return_annotation)
        return " | ".join(place.partition(":")[2] for place in self.place.answers.split("|"))

    @property
    def has_two_answers(self) -> bool:
        """Whether a question is answered otherwise than keywords are."""
        return bool(self.place.answers)

    def names(self) -> set[str]:
        """Return the names that its annotations use."""
        by_place, by_name = self.parameters()
        kinds = [each.kind for each in (*by_place, *by_name)]
        if self.has_two_answers:
            kinds += ["TreeQuestion", *(str(each.annotation) for each in self.signature.parameters.values())]
            kinds.append(str(self.signature.return_annotation))
        return {*re.findall(r"[A-Za-z_]\w*", re.sub(r"Literal\[[^]]*\]", "", " ".join([*kinds, self.answer])))}

    def spelled(self) -> str:
        """Return its definition."""
        if not self.has_two_answers:
            return "".join(self._definition(self.answer, self._doc(), f'return _answer("{self.verb}", locals())'))
        definition = self._definition("Any", self._doc(), f'return _answer("{self.verb}", locals())')
        return "".join([*self._overloads(), *definition])

    def _overloads(self) -> Iterator[str]:
        """Yield how it is asked by keywords, and how by a question, with or without its second one."""
        yield from ("@overload\n", *self._definition(self.answer, None, "...", questions=False), "\n\n")
        first, second, *rest = self.signature.parameters.values()
        by_place = second.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        first = first.replace(name=self.operands[0].name)
        kinds = str(first.annotation).replace("Where", "TreeQuestion") if by_place else first.annotation
        default = inspect.Parameter.empty if by_place else None
        asked = [first.replace(annotation=kinds, default=default), second, *rest]
        yield from ("@overload\n", *_asked(self.verb, asked, self.signature.return_annotation), "\n\n")
        if by_place:  # a path beside a question: without names, for by keyword it would be an option
            none = inspect.Parameter.empty
            only = inspect.Parameter.POSITIONAL_ONLY
            asked = [
                first.replace(annotation="StrPath | None", default=none, kind=only),
                second.replace(default=none, kind=only),
                *rest,
            ]
            yield from ("@overload\n", *_asked(self.verb, asked, self.signature.return_annotation), "\n\n")

    def _definition(self, answer: str, doc: str | None, body: str, *, questions: bool = True) -> Iterator[str]:
        by_place, by_name = self.parameters()
        if not questions:
            by_place = [operand._replace(kind="StrPath | None") for operand in self.operands]
            by_name = [
                option._replace(kind=option.kind.removesuffix(" | None"), default="") if option.is_required else option
                for option in self.options.values()
            ]
        yield f"def {self.verb}(\n"
        yield from (f"    {each},\n" for each in by_place)
        yield from ["    *,\n"] if by_name else []
        yield from (f"    {each},\n" for each in by_name)
        yield "    **unknown: NoReturn,\n"
        yield f") -> {answer}:" + (" ...\n" if doc is None else f"\n{doc}    {body}\n")

    def _doc(self) -> str:
        by_place, by_name = self.parameters()
        lines = [self.text.head]
        if by_place or by_name:
            lines += ["", "Args:", *(_about(each) for each in (*by_place, *by_name))]
        for section in ("Returns", "Raises"):
            if text := self.text.body.get(section):
                lines += ["", f"{section}:", textwrap.indent(text, "    ")]
        text = textwrap.indent('"""' + "\n".join(lines), "    ")
        return f'{text}\n    """\n' if "\n" in text else f'{text}"""\n'


class Sections(NamedTuple):
    """A docstring in its parts."""

    head: str
    body: Mapping[str, str]

    def entry(self, section: str, name: str) -> str:
        """Return what a section says of a name; empty: nothing."""
        parts = _ENTRY.split(self.body.get(section, ""))[1:]
        return dict(zip(parts[::2], (" ".join(text.split()) for text in parts[1::2]), strict=True)).get(name, "")


def _sections(doc: str) -> Sections:
    head, *rest = _SECTION.split(doc)
    bodies = (textwrap.dedent(text.strip("\n")).rstrip() for text in rest[1::2])
    return Sections(head.rstrip(), dict(zip(rest[::2], bodies, strict=True)))


def _about(parameter: Parameter) -> str:
    text = f"{parameter.name}: {parameter.about}"
    return textwrap.fill(
        text, WIDTH - 4, initial_indent="    ", subsequent_indent=" " * 8, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _or_none(kind: str) -> str:
    return kind if re.search(r"\bNone$|^Where$|\bWhere$", kind) else f"{kind} | None"


def _option(name: str, option: str, param: Any) -> Parameter:  # noqa: ANN401  typer's own
    about = " ".join(str(param.help).split())
    if option in param.secondary_opts or keyword(param.opts[0]) != name:
        first = keyword(param.opts[0])
        about = f"The same as `{first}`." if option in param.opts else f"The opposite of `{first}`."
    if param.is_flag:
        both = bool(param.secondary_opts)
        default = "None" if both else str(bool(param.default))
        return Parameter(name, "bool | None" if both else "bool", default, about)
    kind, default = _kind(param), "None"
    if param.default is not None and not param.multiple and param.default != 0.0:
        shown = param.show_default if isinstance(param.show_default, str) else None
        value = getattr(param.default, "value", param.default)
        if hasattr(param.default, "name") and isinstance(value, int) and not isinstance(param.default, int | str):
            value = param.default.name.lower()
        if isinstance(param.default, int) and hasattr(param.default, "name"):
            value = param.default.name.lower()
        default = _quoted(shown or value)
    if param.required:
        return Parameter(name, f"{kind} | None", default, about, is_required=True)
    return Parameter(name, kind if default != "None" else f"{kind} | None", default, about)


def _operand(param: Any) -> Parameter:  # noqa: ANN401  typer's own
    about = " ".join(str(param.help).split())
    kind = "StrPath" if PATHS.search(param.metavar) else "str"
    kind = f"{kind} | Sequence[{kind}]" if param.nargs != 1 else kind
    default = "None" if param.default is None else _quoted(param.default)
    if param.required:
        return Parameter(param.name, kind, "", about)
    return Parameter(param.name, kind if default != "None" else f"{kind} | None", default, about)


def _kind(param: Any) -> str:  # noqa: ANN401  as above
    """Return the annotation of an option's value."""
    name, metavar = param.type.name, str(param.metavar)
    choices = getattr(param.type, "choices", None)
    if choices:
        words = ", ".join(f'"{getattr(choice, "value", choice)}"' for choice in choices)
        kind = f"Literal[{words}]" if len(words) <= _MOST_WORDS else "str"
        if all(hasattr(choice, "name") for choice in choices) and isinstance(next(iter(choices)), int):
            kind = "Literal[" + ", ".join(f'"{choice.name.lower()}"' for choice in choices) + "]"
    elif "int" in name:
        kind = "int"
    elif "float" in name:
        kind = "float"
    elif takes_number(param):
        kind = "str | float" if metavar == "TIME" else "int | str"
    else:
        kind = "StrPath" if PATHS.search(metavar) else "str"
    return f"{kind} | Sequence[{kind}]" if param.multiple else kind


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _asked(verb: str, parameters: list[inspect.Parameter], answer: object) -> Iterator[str]:
    """Yield how a question is asked."""
    yield f"def {verb}(\n"
    by_name = only_by_place = False
    for each in parameters:
        if only_by_place and each.kind is not inspect.Parameter.POSITIONAL_ONLY:
            yield "    /,\n"
        only_by_place = each.kind is inspect.Parameter.POSITIONAL_ONLY
        if each.kind is inspect.Parameter.KEYWORD_ONLY and not by_name:
            by_name = True
            yield "    *,\n"
        default = "" if each.default is inspect.Parameter.empty else " = ..."
        yield f"    {each.name}: {each.annotation}{default},\n"
    yield from ["    /,\n"] if only_by_place else []
    yield f") -> {answer}: ...\n"


def _place_of(name: str, module: ModuleType) -> str | None:
    """Return from where a name is imported that annotations of a module use; None: it is Python's own."""
    if name in {"Callable", "Mapping", "Sequence", "StrPath", "os", "PathLike"} or hasattr(builtins, name):
        return None
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            return str(node.module)
    if hasattr(module, name):
        return str(module.__name__)
    for verb in VERBS.values():
        for place in verb.answers.split("|"):
            if place.partition(":")[2] == name:
                return f"ckpttool.{place.partition(':')[0]}"
    return None


_TABLE = re.compile(r"(?<=^_PLACES = \{\n).*?(?=^\}$)", re.MULTILINE | re.DOTALL)


def with_table(text: str) -> str:
    """Return a module's text with its table of where each name is that it imports for type checkers."""
    places: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom) or node.module == "ckpttool":  # its own modules need no table
            continue
        if all(alias.asname == alias.name for alias in node.names):
            places.setdefault(str(node.module), []).extend(alias.name for alias in node.names)
    return _TABLE.sub(lambda _: "".join(_row(place, sorted(names)) for place, names in sorted(places.items())), text)


def _row(place: str, names: list[str]) -> str:
    line = f'    "{place}": "{" ".join(names)}",\n'
    if len(line) <= WIDTH + 1:
        return line
    text = " ".join(names)
    pieces = [text] if len(text) <= WIDTH - 10 else textwrap.wrap(text, WIDTH - 12)
    spelled = [f'"{piece} "' for piece in pieces[:-1]] + [f'"{pieces[-1]}"']
    return f'    "{place}": (\n' + "".join(f"        {piece}\n" for piece in spelled) + "    ),\n"


def main() -> None:
    """Write all of it anew."""
    LIBRARY.write_text(module(), encoding="utf-8")
    for path in WITH_TABLES:
        path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
