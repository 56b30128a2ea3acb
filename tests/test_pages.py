"""README.md and the manual's pages: what is generated is fresh, every link leads somewhere, and nothing is left out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from ckpttool.cli.main import COMMANDS
from ckpttool.core.errors import ExitCode
from ckpttool.core.extensions import rows
from ckpttool.core.render import guide
from ckpttool.health.policies.registry import POLICIES
from tests.pages import (
    FENCE,
    GUIDE,
    MAKERS,
    MEASURED,
    PAGES,
    README,
    ROOT,
    blocks,
    fresh,
    layers,
    meanings,
    slug,
)
from tests.support import library_module

LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\((?P<target>[^)\s]+)\)")


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return FENCE.sub("", text_of(page))


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors that GitHub makes of a page's headings, and those that the page has itself."""
    headings = re.findall(r"^#{1,6} (.*)$", prose(page), re.MULTILINE)
    made = (re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)
    return frozenset([*made, *re.findall(r'<a id="([a-z0-9-]+)"></a>', prose(page))])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_generates_is_fresh(page: Path) -> None:
    assert fresh(page, text_of(page)) == text_of(page), "python -m tests.pages writes it anew"


def test_the_functions_of_the_library_have_the_options_of_today() -> None:
    assert library_module.LIBRARY.read_text(encoding="utf-8") == library_module.module()


def test_a_block_that_is_stale_is_written_anew_and_the_rest_of_the_page_stays() -> None:
    stale = "a\n<!-- exits:begin -->\nold\n<!-- exits:end -->\n<!-- detection:begin -->\n1\n<!-- detection:end -->\nb\n"
    now = fresh(GUIDE / "exits.md", stale)
    assert now.startswith("a\n<!-- exits:begin -->\n| exit | meaning |\n")
    assert now.endswith("<!-- exits:end -->\n<!-- detection:begin -->\n1\n<!-- detection:end -->\nb\n")


def test_every_maker_has_a_page_that_shows_it_and_every_command_a_page() -> None:
    shown = {name for page in PAGES for name in blocks(text_of(page))}
    assert {name.partition("-")[0] for name in shown} == MAKERS.keys() | MEASURED
    assert [command for command in COMMANDS if guide.page_of(command) is None] == []


def test_no_page_lists_options_that_help_lists() -> None:
    assert [page.name for page in PAGES if "| option | effect |" in text_of(page)] == []


def test_every_room_has_its_row() -> None:
    folders = [*(ROOT / "ckpttool").iterdir(), *(ROOT / "ckpttool" / "core").iterdir()]
    rooms = {path.relative_to(ROOT / "ckpttool").as_posix() for path in folders if (path / "__init__.py").exists()}
    single = {"core/errors", "core/extensions", "core/findings", "features"}  # modules
    assert {room for layer in layers() for room in re.split(r" [|:] ", layer)} == rooms - {"core"} | single


def test_every_file_and_folder_that_the_page_about_the_code_names_is_there() -> None:
    named = re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:/|\.py|/[a-z_]+))`", prose(GUIDE / "architecture.md"))
    assert {"trainers/registry.py", "core/verify/checks", "core/commands/output.py"} <= set(named)
    ours = [*named, *(f"{name}.py" for name in named)]
    there = {
        name.removesuffix(".py") for name in ours if any((top / name).exists() for top in (ROOT, ROOT / "ckpttool"))
    }
    assert {name.removesuffix(".py") for name in named} - there == set()


def test_the_page_about_policies_names_each() -> None:
    assert [name for name in POLICIES if f"`{name}`" not in text_of(GUIDE / "replay.md")] == []


def paths(value: object, path: str = "") -> Iterator[str]:
    """Return every field of a printed document, but none of a document inside of it."""
    if isinstance(value, dict) and not (path and "schema" in value):
        for key, inner in value.items():
            yield f"{path}{key}"
            yield from paths(inner, f"{path}{key}.")
    for each in value if isinstance(value, list) else ():
        yield from paths(each, f"{path.rstrip('.')}[].")


def parents(path: str) -> list[str]:
    """Return what a field lies in, whatever its own name is made of."""
    parts = path.split(".")
    return [".".join(parts[:place]) for place in range(1, len(parts))]


def test_the_page_about_json_has_every_field_of_a_golden_document() -> None:
    """Judged by what is printed, not by the schemas that the tables are made of."""
    text = str(guide.page("json"))
    parts = text[text.index("### An advice\n") :]
    for golden in (ROOT / "tests" / "golden").rglob("*.json"):
        document = json.loads(golden.read_text(encoding="utf-8"))
        section = text.partition(f"### {document.pop('schema')}\n")[2].partition("\n### ckpttool")[0]
        for path in paths(document):
            leaf = path.rpartition(".")[2]
            if any(f"| `{above}` | object |" in section and f"| `{above}." not in section for above in parents(path)):
                continue  # its keys are not ours: settings by their names
            assert f"| `{path}` |" in section or re.search(rf"[`.]{re.escape(leaf)}` \|", parts), (golden.name, path)


def test_every_exit_code_says_what_it_means() -> None:
    assert [name for name, meaning in meanings(ExitCode) if meaning] == [code.name for code in ExitCode]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_dead(page: Path) -> None:
    dead = []
    for target in LINK.findall(prose(page)):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            dead.append(target)
    assert dead == []


def test_the_tables_of_fields_link_to_tables_that_are_there() -> None:
    text = str(guide.page("json"))
    names = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    headings = {re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-") for name in names}
    targets = {target.removeprefix("#") for target in LINK.findall(text) if target.startswith("#")}
    assert {"a-finding", "a-record"} <= targets
    assert targets - headings == set()


def test_the_manual_links_to_nothing_that_does_not_ship_but_what_a_checkout_has_besides() -> None:
    outside = {
        target
        for page in PAGES[1:]
        for target in LINK.findall(prose(page))
        if "://" not in target
        and "/" in target
        and not target.startswith(("../../tests/", "../../benchmarks/", "../../fixtures/"))
    }
    assert outside == set()


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b` (c), d\n\n[x](#a-b-c-d) [y](#nothing) ![no](z)\n\n```sh\n# no heading [z](z.md)\n```\n")
    assert LINK.findall(prose(page)) == ["#a-b-c-d", "#nothing"]
    assert anchors(page) == {"a-b-c-d"}


def test_every_page_is_reached_from_the_readme() -> None:
    assert "ckpttool/guide/README.md" in LINK.findall(prose(README))
    linked = LINK.findall(prose(GUIDE / "README.md"))
    assert {f"{name}.md" for name in guide.pages()} - set(linked) == set()


def test_the_readme_is_read_in_five_minutes() -> None:
    text = text_of(README)
    tables = sum(body.count("\n") for body in blocks(text).values())  # they grow with commands and trainers
    assert text.count("\n") - tables <= 115


def test_the_page_about_mindformers_links_to_the_groups_of_all_rules_about_its_configs() -> None:
    from ckpttool.trainers.mindformers.lint import BEFORE_A_START, WHEN_READ

    page = text_of(GUIDE / "mindformers.md")
    groups = {rule.code.group for rule in (*WHEN_READ, *BEFORE_A_START)}
    assert [group for group in groups if f"[{group}](findings.md#{slug(group)})" not in page] == []


def test_all_pages_about_trainers_have_the_same_heading_for_the_resume_without_ckpttool() -> None:
    contents = text_of(GUIDE / "README.md").partition("## One page per trainer\n")[2].partition("\n## ")[0]
    pages = re.findall(r"^- \[([a-z-]+)\]", contents, re.MULTILINE)
    assert len(pages) >= 10
    begin = "How (?:each version of )?(.*?) resumes without ckpttool"
    for page in pages:
        text = text_of(GUIDE / f"{page}.md")
        title = text.partition("\n")[0].removeprefix("# ").removeprefix("Hugging Face's ")
        assert re.findall(f"^## {begin}$", text, re.MULTILINE) == [title]
        task = r"Resume from .*, and see how (.*?) resumes without ckpttool\.$"
        assert re.findall(f"^{task}", text, re.MULTILINE) == [title]


def test_every_finding_is_in_one_group() -> None:
    entries = re.findall(r'^\| <a id="(.*?)"></a>', text_of(GUIDE / "findings.md"), re.MULTILINE)
    assert sorted(entries) == sorted(row.value for row in rows())


def test_the_two_commands_of_the_readme_stay_as_they_are() -> None:
    commands = [line for line in text_of(README).splitlines() if line.startswith("python3 -m venv .venv && ")]
    main_job, tests = commands
    assert main_job.endswith("&& .venv/bin/ckpttool resolve fixtures/sink2_ckpt/output")
    assert tests == (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()[-1]
