"""The page for a comment: short, whole, and what stands in a name does nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import ckpttool
from ckpttool.core.domain.checkpoint import Rename
from ckpttool.core.domain.finding import Code, damage
from ckpttool.report.page.markdown import MOST_CHARACTERS, MOST_FINDINGS
from ckpttool.report.verbs import page
from ckpttool.types import PageForm, ResumePlan, TreeReport
from tests.support.trees import TreeBuilder

NAME = "a|b`c`<img src=x onerror=y>@everyone [x](http:evil) ![y](z) www.evil.org #17 **b** \\| $x$ ~~s~~ &amp;"


def surveyed(folder: Path, *, prefix: str = "llama2_7b") -> TreeReport:
    builder = TreeBuilder(folder).legacy(ranks=2, prefix=prefix).save(epoch=1, step=2).save(epoch=2, step=2)
    builder.truncate(builder.shard(1, 2, 2), 40)
    return ckpttool.library.survey(str(builder.output))


def many(answer: TreeReport, number: int, message: str) -> TreeReport:
    found = tuple(damage(Code.SHARD_EMPTY, f"{message} {at}", path=f"rank_{at}/a.ckpt") for at in range(number))
    newest, *older = answer.verification.verdicts
    verdicts = (replace(newest, findings=found), *older)
    return replace(answer, verification=replace(answer.verification, verdicts=verdicts))


def renaming(answer: TreeReport, *renames: Rename) -> TreeReport:
    plan = answer.resolution.decision
    assert isinstance(plan, ResumePlan)
    decision = replace(plan, load=replace(plan.load, first=renames))
    return replace(answer, resolution=replace(answer.resolution, decision=decision))


def test_whatever_a_name_holds_is_shown_and_does_nothing(tmp_path: Path) -> None:
    text = page(surveyed(tmp_path, prefix=NAME), PageForm.MARKDOWN)
    parser = MarkdownIt("gfm-like", {"linkify": False})
    tokens = [child for token in parser.parse(text) for child in (token, *(token.children or ()))]
    used = {token.type for token in tokens if token.type.endswith("_open") or token.type in {"image", "code_inline"}}
    assert used <= {
        f"{kind}_open"
        for kind in (
            "heading",
            "paragraph",
            "strong",
            "table",
            "bullet_list",
            "list_item",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
        )
    }
    assert [token.content for token in tokens if token.type.startswith("html")] == ["<!-- ckpttool report -->\n"]
    assert NAME in "".join(token.content for token in tokens if token.type.startswith("text")).replace("\u200b", "")
    (block,) = [token for token in tokens if token.type == "fence"]  # what is to be copied is as it is
    assert NAME in block.content
    outside = text.replace(block.content, "")
    assert all(mark not in outside for mark in ("www.", "@everyone", "http:evil", "#17"))


@pytest.mark.parametrize("run", ["``", "```", "`````", "~~~"])
def test_no_name_ends_the_block_of_what_is_to_be_copied(tmp_path: Path, run: str) -> None:
    name = f"a{run} {run}b <b>"
    text = page(surveyed(tmp_path, prefix=name), PageForm.MARKDOWN)
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(text)
    (block,) = [token for token in tokens if token.type == "fence"]
    assert block.content.splitlines()[1] == f"resume_training: {name}_rank_0-1_2.ckpt"
    assert text.splitlines()[-1].startswith(str(tmp_path)[:4])


def test_a_thousand_renames_leave_room_for_what_was_found(tmp_path: Path) -> None:
    renames = [Rename(source=f"rank_{at}/{'a' * 90}", target=f"rank_{at}/b", why="") for at in range(1000)]
    many_renames = renaming(surveyed(tmp_path), *renames)
    text = page(many_renames, PageForm.MARKDOWN)
    assert "rank_19/b\n" in text
    assert "and 980 more files" in text
    assert "| damage |" in text
    assert "and 980 more files" in page(many_renames, PageForm.HTML)


def test_twenty_findings_are_told_and_the_rest_is_counted(tmp_path: Path) -> None:
    answer = surveyed(tmp_path)
    text = page(many(answer, MOST_FINDINGS + 7, "the file is empty"), PageForm.MARKDOWN)
    assert text.count("| damage |") == MOST_FINDINGS
    assert "\nand 8 other findings\n" in text  # and why it was not chosen
    assert "other finding" not in page(answer, PageForm.MARKDOWN)


def test_a_page_fits_a_comment_whatever_names_and_messages_hold(tmp_path: Path) -> None:
    answer = surveyed(tmp_path)
    is_cut = set()
    for length in range(57_000, 60_500, 70):
        text = page(renaming(answer, Rename(source="a" * length, target="b", why="")), PageForm.MARKDOWN)
        assert len(text) <= MOST_CHARACTERS
        is_cut.add(text.endswith("shows all)"))
        assert text.endswith(("shows all)", "nothing was changed"))
    assert is_cut == {True, False}
