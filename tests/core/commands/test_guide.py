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


def on_a_terminal(*arguments: str, pager: str = "cat") -> str:
    """Return what a terminal of 80 columns would get."""
    ours, theirs = pty.openpty()
    environ = environment({"TERM": "xterm-256color", "COLUMNS": "80", "PAGER": pager})
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
    said = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal("guide", "verify"))
    command = next(line for line in ask("guide", "verify").stdout.splitlines() if line.startswith("$ printf X | dd "))
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


def test_a_long_page_goes_through_the_pager_of_the_user(tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text(f"#!/bin/sh\ncat > {tmp_path}/paged\necho LESS=$LESS\n")
    pager.chmod(0o755)
    said = on_a_terminal("guide", "concepts", pager=str(pager))
    assert "LESS=FRX" in said
    assert "Concepts" in (tmp_path / "paged").read_text()
    assert "LESS=FRX" not in on_a_terminal("guide", "--help", pager=str(pager))


@pytest.mark.parametrize("pager", ["no-such-pager", "LESS=R /no/such/less -x"])
def test_a_page_is_shown_if_the_pager_is_not_there(pager: str) -> None:
    said = on_a_terminal("guide", "concepts", pager=pager)
    assert said == on_a_terminal("guide", "concepts", pager="cat")


@pytest.mark.parametrize(
    ("word", "page", "begins"),
    [
        ("s3", "object-stores", "# Checkpoints in a bucket\n"),
        ("cron", "ci", "## Every night\n"),
        ("batch-size", "data-skip", "# "),
        ("ci-github", "ci", "## GitHub Actions\n"),
        ("seal", "verify", "## Seal a checkpoint when it is new\n"),
        ("retention", "prune", "# Delete superseded checkpoints\n"),
    ],
)
def test_a_word_that_people_search_for_leads_to_its_section(word: str, page: str, begins: str) -> None:
    said = ask("guide", word)
    assert (said.code, said.stderr) == (0, "")
    assert said.stdout.startswith(begins)
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    assert said.stdout.rstrip("\n") in text
    assert (len(said.stdout) < len(text)) is begins.startswith("## ")


def test_every_word_leads_somewhere_and_a_section_ends_before_the_next_one() -> None:
    assert len(guide.topics()) > len(guide.pages()) + 40
    assert [word for word in guide.topics() if not str(guide.page(word)).startswith("#")] == []
    section = str(guide.page("cron"))
    assert "[Service]" in section  # a comment in a block of code is no heading
    assert "## Reading the result" not in section


def test_a_search_lists_the_sections_that_mention_a_word() -> None:
    said = ask("guide", "--search", "SBATCH")
    assert (said.code, said.stderr) == (0, "")
    assert "ci: Slurm\n    #SBATCH " in said.stdout
    pages = ask("guide", "--search", "sbatch", "--json").json["pages"]
    assert {page["name"] for page in pages} < set(guide.pages())
    assert {page["markdown"] for page in pages} == {None}
    assert any(match["heading"] == "Slurm" for page in pages for match in page["matches"])
    nothing = ask("guide", "--search", "xyzzy")
    assert (nothing.code, nothing.stdout) == (2, "")


def test_a_search_for_several_words_finds_sections_with_all_of_them_and_shows_the_line() -> None:
    said = ask("guide", "--search", "Disk full").stdout.splitlines()
    symptoms = said.index("on-call: Symptoms")
    assert "the disk is full" in said[symptoms + 1]
    assert said[-1] == "Show one: ckpttool guide PAGE"
    pages = [
        line.partition(":")[0] for line in ask("guide", "--search", "slurm").stdout.splitlines() if line[0:1] > " "
    ]
    assert pages.index("ci") < pages.index("zh")


def test_the_line_of_a_match_is_cut_so_that_the_word_stays_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for word in ("corruption", "ABSMAX", "exporter"):
        lines = [line for line in ask("guide", "--search", word).stdout.splitlines() if line.startswith("    ")]
        assert [line for line in lines if word.lower() not in line.lower() or len(line) > 80] == []
        assert lines
