"""`ckpttool guide` shows the manual's pages, wherever it runs."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.render import guide, schemas
from tests.support.commands import MODULE, ask, environment

FOLDER = Path(ckpttool.__file__).parent / "guide"


def on_a_terminal(*arguments: str) -> str:
    """Return what a terminal of 80 columns would get."""
    ours, theirs = pty.openpty()
    environ = environment({"TERM": "xterm-256color", "COLUMNS": "80"})
    environ.pop("NO_COLOR", None)
    process = subprocess.Popen([*MODULE, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environ)
    os.close(theirs)
    said = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal, suppress(OSError):  # how Linux says that the other side left
        while chunk := terminal.read(1 << 16):
            said += chunk
    assert process.wait(timeout=60) == 0
    return said.decode()


def test_in_a_pipe_a_page_comes_out_as_it_was_written() -> None:
    for name in guide.pages():
        said, written = ask("guide", name), (FOLDER / f"{name}.md").read_text(encoding="utf-8")
        if name == "json":  # the tables of fields follow, which are made when they are shown
            assert said.stdout.startswith(written)
            continue
        assert (said.code, said.stdout, said.stderr) == (0, written, "")


def test_the_page_about_json_is_short_and_ends_with_the_fields_of_every_document() -> None:
    said, written = ask("guide", "json"), (FOLDER / "json.md").read_text(encoding="utf-8")
    assert len(written.split()) <= 300
    assert "\n### ckpttool/plan/1\n" not in written
    for name in schemas.names():
        assert f"\n### ckpttool/{name}/1\n" in said.stdout
    assert "\n### A finding\n" in said.stdout


def test_on_a_terminal_a_page_is_laid_out() -> None:
    said = on_a_terminal("guide", "concepts")
    assert "\x1b[" in said
    assert "## Health" not in said
    assert "**" not in said
    assert "findings.md" in said  # where a link leads can be read, and typed


def test_on_a_terminal_no_command_is_broken_and_no_word_is_cut() -> None:
    said = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal("guide", "seal"))
    command = next(line for line in ask("guide", "seal").stdout.splitlines() if line.startswith("$ printf X | dd "))
    assert len(command) > 80
    assert command in said
    assert "…" not in said


def test_every_page_of_the_folder_can_be_asked_for() -> None:
    assert set(guide.pages()) == {path.stem for path in FOLDER.glob("*.md")} - {"README"}


def test_the_help_and_the_list_are_as_agreed(golden: Callable[[str, str], None]) -> None:
    golden("guide/help.txt", ask("guide", "--help").stdout)
    golden("guide/list.txt", ask("guide").stdout)


@pytest.mark.parametrize("topic", ["Concepts", "concepts.md", "concepts.md#health-whole-and-useless"])
def test_a_page_goes_by_its_name_in_any_spelling_that_a_link_has(topic: str) -> None:
    assert ask("guide", topic).stdout.startswith("# Concepts\n")


def test_pages_are_there_for_programs_too() -> None:
    every = ask("guide", "--json").json["pages"]
    assert [page["name"] for page in every] == list(guide.pages())
    assert {page["markdown"] for page in every} == {None}
    pages = ask("guide", "scale-skip", "--format", "json").json["pages"]
    assert [(page["name"], page["markdown"]) for page in pages] == [("data-skip", guide.page("data-skip"))]
    assert ask("guide", "nothing", "--json").json["schema"] == "ckpttool/error/1"
