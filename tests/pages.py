"""`python -m tests.pages` writes what README.md and the manual's pages generate; a test holds them fresh."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, get_args

import yaml

import ckpttool
from ckpttool.cli.main import LISTED
from ckpttool.core import errors
from ckpttool.core.findings import Row
from ckpttool.core.render import guide
from ckpttool.core.render.answers import explanation
from ckpttool.trainers.mindformers.simulate.versions import KNOWN_VERSIONS, Quirk, quirks_of, series_of
from ckpttool.trainers.registry import trainers
from tests.reliability import figures
from tests.support import library_module

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
GUIDE = ROOT / "ckpttool" / "guide"
PAGES = (README, *sorted(GUIDE.glob("*.md")))

MEASURED = frozenset({"detection", "toy"})
"""Blocks that a benchmark writes: `benchmarks/detection.py` takes a quarter of an hour, and a test must not."""

BLOCK = re.compile(r"(<!-- (?P<name>[a-z0-9-]+):begin -->\n)(?P<body>.*?)(<!-- (?P=name):end -->)", re.DOTALL)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> dict[str, str]:
    """Return what stands between each pair of marks."""
    return {found["name"]: found["body"] for found in BLOCK.finditer(text)}


def fresh(page: Path, text: str) -> str:
    """Return a page with every block made anew that can be."""
    return BLOCK.sub(lambda found: f"{found[1]}{_block(found['name'], page, found['body'])}{found[4]}", text)


def _block(name: str, page: Path, before: str) -> str:
    kind, _, of = name.partition("-")
    return before if name in MEASURED else "".join(f"{line}\n" for line in MAKERS[kind](page, of))


def _folder(page: Path) -> str:
    """Return how a link on this page reaches the manual's folder."""
    return "ckpttool/guide/" if page == README else ""


def _commands(page: Path, _of: str) -> Iterator[str]:
    yield from ("| command | purpose |", "|---|---|")
    for name, place in LISTED.items():
        yield f"| [`{name}`]({_folder(page)}{guide.page_of(name)}.md) | {_cell(place.summary)} |"


def _exits(_page: Path, _of: str) -> Iterator[str]:
    yield from ("| exit | meaning |", "|---|---|")
    for name, meaning in meanings(errors.ExitCode):
        yield f"| {errors.ExitCode[name].value} | {_cell(meaning)} |"


def meanings(of: type) -> Iterator[tuple[str, str]]:
    """Return the members of an enum, or the fields of a value, each with the text under it, without its full stop."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(of))).body
    assert isinstance(definition, ast.ClassDef)
    for member, text in pairwise(definition.body):
        if isinstance(member, (ast.Assign, ast.AnnAssign)) and isinstance(text, ast.Expr):
            target = member.targets[0] if isinstance(member, ast.Assign) else member.target
            yield ast.unparse(target), " ".join(ast.literal_eval(text.value).split()).rstrip(".")


def _versions(_page: Path, _of: str) -> Iterator[str]:
    yield from (
        f"| MindFormers without ckpttool | {' | '.join(KNOWN_VERSIONS)} |",
        f"|---{'|---' * len(KNOWN_VERSIONS)}|",
    )
    quirks = [quirks_of(series_of(version)) for version in KNOWN_VERSIONS]
    for quirk in Quirk:
        yield f"| {_cell(quirk.effect)} | {' | '.join('yes' if quirk in those else '–' for those in quirks)} |"


def _action(_page: Path, _of: str) -> Iterator[str]:
    yield from ("| input | meaning |", "|---|---|")
    for name, about in yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["inputs"].items():
        default = f" [default: {about['default']}]" if about.get("default") else ""
        yield f"| `{name}` | {_cell(about['description'])}{default} |"


def groups_of_findings() -> dict[str, list[Row]]:
    """Return the rows under each heading of the page, in its order."""
    return {group: list(rows) for group, rows in groupby(explanation.in_groups(), key=lambda row: row.group)}


def _entries(_page: Path, of: str) -> Iterator[str]:
    """Yield a line for each row of a group; `ckpttool explain` has the rest."""
    (rows,) = (rows for heading, rows in groups_of_findings().items() if slug(heading) == of)
    yield from ("| code | severity | problem |", "|---|---|---|")
    for row in rows:
        weights = ", ".join(weight.word for weight in row.weights)
        yield f'| <a id="{row}"></a>`{row}` | {weights} | {_cell(row.headline)} |'


def slug(heading: str) -> str:
    """Return a heading as the name of a block."""
    return heading.lower().replace(" ", "-").replace("'", "")


def _trainers(page: Path, _of: str) -> Iterator[str]:
    yield "| trainer | recognized by | own choice simulated | config by `launch` | `lint` | logs |"
    yield "|---|---|---|---|---|---|"
    for trainer in trainers():
        answers = (trainer.simulator, trainer.launch, trainer.configs, trainer.log_formats or None)
        signs = ", ".join(f"`{layout.sign}`" for layout in trainer.layouts) or "–"
        title = f"[{trainer.title}]({_folder(page)}{trainer.name}.md)"
        yield f"| {title} | {signs} | {' | '.join('–' if each is None else 'yes' for each in answers)} |"
    commands = "`verify`, `seal`, `inspect`, `diff`"
    yield f"| a single file, also of torch: {commands} | – | – | – | – | CSV, JSON lines, TensorBoard |"


def _rooms(_page: Path, _of: str) -> Iterator[str]:
    yield from ("| room | purpose |", "|---|---|")
    for layer in layers():
        for room in re.split(r" [|:] ", layer):
            about = inspect.getdoc(import_module(f"ckpttool.{room.replace('/', '.')}")) or ""
            yield f"| `{room}` | {_cell(about.splitlines()[0])} |"


def _layers(_page: Path, _of: str) -> Iterator[str]:
    yield from ("```", " \u203a ".join(layers()), "```")


def layers() -> list[str]:
    """Return the rooms as the rules for imports have them: each sees what comes after it, and no sibling."""
    rules = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("\nlayers = [\n")[2].partition("]")[0]
    return [layer.replace("ckpttool.", "").replace(".", "/") for layer in re.findall(r'"(.*)"', rules)]


def _pages(page: Path, _of: str) -> Iterator[str]:
    """Keep the order, and say of each page what its first sentence says."""
    for line in blocks(page.read_text(encoding="utf-8"))["pages"].splitlines():
        entry = re.match(r"- \[([a-z0-9-]+)\]", line)
        yield line if entry is None else f"- [{entry[1]}]({entry[1]}.md): {first_sentence(GUIDE / f'{entry[1]}.md')}"


def first_sentence(page: Path) -> str:
    """Return what stands right under the heading."""
    _heading, paragraph, *_rest = page.read_text(encoding="utf-8").split("\n\n")
    return re.split(r"(?<=\.)\s", paragraph)[0].replace("\n", " ")


def _verbs(_page: Path, of: str) -> Iterator[str]:
    """List the functions of `ckpttool`; of `more` those that the library has besides."""
    front = vars(ckpttool)["__all__"]
    names = [name for name in ckpttool.library.__all__ if name not in front] if of == "more" else front
    functions = {name: getattr(ckpttool.library if of == "more" else ckpttool, name) for name in names}
    yield from ("| function | purpose | answer |", "|---|---|---|")
    for name, thing in sorted(functions.items()):
        if inspect.isfunction(thing):
            answer = library_module.answers_of(name) or str(inspect.signature(thing).return_annotation)
            yield f"| `{name}` | {_cell(_about(thing))} | `{_cell(answer)}` |"


def _errors(_page: Path, _of: str) -> Iterator[str]:
    yield from ("| error | exit | meaning |", "|---|---|---|")
    for name in vars(ckpttool)["__all__"]:
        thing = getattr(ckpttool, name)
        if inspect.isclass(thing) and issubclass(thing, errors.CkptToolError):
            yield f"| `{name}` | {int(thing.exit_code)} | {_cell(_about(thing))} |"


def _nouns(_page: Path, _of: str) -> Iterator[str]:
    yield from ("| name | meaning |", "|---|---|")
    for name in ckpttool.types.__all__:
        yield f"| `{name}` | {_cell(_about(getattr(ckpttool.types, name)))} |"


def _about(thing: Any) -> str:  # noqa: ANN401  whatever is public
    if hasattr(thing, "__supertype__"):
        return f"A distinct name for {thing.__supertype__.__name__}"
    if get_args(thing):
        return f"One of {', '.join(f'`{choice.__name__}`' for choice in get_args(thing))}"
    return (inspect.getdoc(thing) or "").splitlines()[0]


def _reliability(_page: Path, _of: str) -> Iterator[str]:
    yield from figures.table(figures.load()).splitlines()


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


MAKERS: dict[str, Callable[[Path, str], Iterator[str]]] = {
    "action": _action,
    "commands": _commands,
    "entries": _entries,
    "errors": _errors,
    "exits": _exits,
    "nouns": _nouns,
    "layers": _layers,
    "pages": _pages,
    "reliability": _reliability,
    "rooms": _rooms,
    "trainers": _trainers,
    "verbs": _verbs,
    "versions": _versions,
}
"""What makes a block, by the first word of its name; the rest says of what."""


def main() -> int:
    """Write every page anew, after the functions that one of them lists."""
    library_module.main()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(fresh(page, text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
