"""The page of all findings: read strictly, and what Markdown shows of it is what ckpttool prints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from markdown_it import MarkdownIt

import ckpttool
from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.render import findings
from ckpttool.core.render.answers import explanation as explain
from ckpttool.core.render.findings import Explanation, explanations
from ckpttool.trainers.registry import trainers

if TYPE_CHECKING:
    from markdown_it.token import Token

PAGE = (Path(ckpttool.__file__).parent / "guide" / "findings.md").read_text(encoding="utf-8")

COMMONMARK = MarkdownIt("commonmark").enable(["strikethrough", "table"])

AS_WRITTEN = """\
# Head

Passed over, **What it is:** and all.

## Group

What the group is.

### rank-missing
**A title with `code_`**

**What it is:** It goes
on \\_here\\_ and `C:\\_`.

**How we know:** We look.

**MindFormers:** Stops.

**Weight:** note, damage

**What to do:**

- One step
  on two lines:

      if true; then
        ckpttool resolve DIR
      fi

- Another.
"""


def one_entry(page: str) -> Explanation:
    """Read a page with this entry in the place of that of rank-missing."""
    others = re.sub(r"### rank-missing\n.*?(?=^##)", "", PAGE, flags=re.DOTALL | re.MULTILINE)
    return findings.parsed(f"{page}\n{others}")[0]


def test_an_entry_is_read_part_by_part() -> None:
    assert one_entry(AS_WRITTEN) == Explanation(
        code=Code.RANK_MISSING,
        group="Group",
        title="A title with `code_`",
        severities=(Severity.NOTE, Severity.DAMAGE),
        meaning="It goes on _here_ and `C:\\_`.",
        evidence="We look.",
        trainers=(("MindFormers", "Stops."),),
        remedy=("One step on two lines:", "if true; then", "  ckpttool resolve DIR", "fi", "Another."),
    )


def test_the_page_speaks_of_no_trainer_but_those_that_there_are() -> None:
    assert {title for one in explanations() for title, _ in one.trainers} <= {trainer.title for trainer in trainers()}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("### rank-missing", "### rank-mising", "9: 'rank-mising' is no code"),
        ("### rank-missing", "### `rank-missing`", "9: '`rank-missing`' is no code"),
        ("## Group", "### shard-missing", "7: the title of shard-missing stands here"),
        ("**A title with `code_`**\n", "", "11: the title of rank-missing stands here"),
        ("**A title with", "**A title\nwith", "10: the title of rank-missing stands here"),
        ("**What it is:** It goes\non \\_here\\_ and `C:\\_`.\n\n", "", r"12: expected \*\*What it is:\*\* and found"),
        ("**How we know:** We look.\n\n", "", r"15: expected \*\*How we know:\*\* and found '\*\*MindFormers:"),
        ("**How we know:**", "**Evidence:**", r"15: expected \*\*How we know:\*\* and found '\*\*Evidence:"),
        ("**MindFormers:**", "**MindFormers**", r"17: expected \*\*Weight:\*\* and found '\*\*MindFormers\*\*"),
        ("**MindFormers:** Stops.", "**MindFormers:** ", "17: a line is indented, ends in a blank or says nothing"),
        ("We look.", "We look.\n  And look.", "15: a line is indented"),
        ("note, damage", "note or damage", "19: note or damage is no weight; they are note, suspect, unknown"),
        ("**Weight:** note, damage\n\n", "", r"19: expected \*\*Weight:\*\* and found '\*\*What to do"),
        ("**What to do:**\n", "**What to do:** This.\n", r"21: expected \*\*What to do:\*\* alone"),
        ("- One step\n  on two lines:\n\n", "", "23: expected the first step as an item of a list"),
        ("- One step\n", "One step\n", "23: expected the first step as an item of a list"),
        ("- Another.", "- Another.\n- And one.", "30: neither an item of a list nor commands, indented by 6"),
        ("- Another.", "Another.", "30: neither an item of a list nor commands, indented by 6"),
        ("        ckpttool", "    ckpttool", "26: neither an item of a list nor commands, indented by 6"),
        ("- Another.", "-  Another.", "30: a line is indented"),
        ("- Another.\n", "#### More\n", "30: neither an item of a list"),
    ],
)
def test_an_entry_that_is_not_like_the_others_is_an_error_at_its_line(old: str, new: str, message: str) -> None:
    assert AS_WRITTEN.count(old) == 1
    with pytest.raises(ValueError, match=rf"^findings\.md:{message}"):
        one_entry(AS_WRITTEN.replace(old, new))


def test_an_entry_without_a_remedy_is_an_error() -> None:
    page = AS_WRITTEN[: AS_WRITTEN.index("- One step")]
    with pytest.raises(ValueError, match="9: expected the first step"):
        one_entry(page)


def test_a_code_without_a_heading_and_one_with_two_are_errors_at_a_line() -> None:
    lines = PAGE.count("\n")
    with pytest.raises(ValueError, match=f"{lines}: the page ends without a heading for unreadable, over-limit$"):
        findings.parsed(
            re.sub(r"### (unreadable|over-limit)\n.*?(?=^##)", _as_lines, PAGE, flags=re.DOTALL | re.MULTILINE)
        )
    with pytest.raises(ValueError, match="31: rank-missing is explained twice"):
        findings.parsed(AS_WRITTEN + PAGE[PAGE.index("### rank-missing") :])


def _as_lines(match: re.Match[str]) -> str:
    """Take the words away and leave the lines."""
    return "\n" * match[0].count("\n")


def as_shown(tokens: Sequence[Token]) -> Iterator[str]:
    """Return what a reader of the rendered page sees, a line for each paragraph, item and command."""
    for token in tokens:
        if token.type == "code_block":
            yield from token.content.splitlines()
        if token.children is not None:
            kinds = {child.type for child in token.children}
            assert kinds <= {"text", "softbreak", "code_inline", "strong_open", "strong_close"}, token.content
            yield "".join(" " if child.type == "softbreak" else child.content for child in token.children)


def as_printed(one: Explanation) -> Iterator[str]:
    yield one.code.value
    yield one.title
    yield f"What it is: {one.meaning}"
    yield f"How we know: {one.evidence}"
    for title, text in one.trainers:
        yield f"{title}: {text}"
    yield f"Weight: {', '.join(severity.word for severity in one.severities)}"
    yield "What to do:"
    yield from one.remedy


def entries_as_shown() -> Iterator[list[str]]:
    tokens = COMMONMARK.parse(PAGE)
    starts = [index for index, token in enumerate(tokens) if token.type == "heading_open"]
    for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
        if tokens[start].tag == "h3":
            yield list(as_shown(tokens[start:end]))


def test_what_markdown_shows_of_an_entry_is_what_explain_says() -> None:
    shown = list(entries_as_shown())
    printed = [[line.replace("`", "") for line in as_printed(one)] for one in explanations()]
    assert shown == printed


def test_every_code_is_an_anchor_of_its_own() -> None:
    headings = [line.lstrip("# ").lower().replace(" ", "-") for line in PAGE.splitlines() if line.startswith("#")]
    assert len(set(headings)) == len(headings)
    assert set(explain.codes()) < set(headings)


@pytest.mark.parametrize("severity", Severity)
def test_the_page_says_of_a_weight_what_explain_says(severity: Severity) -> None:
    one = explanations()[0]._replace(severities=(severity,))
    told = re.search(r"^Weight +(.*): (.*)\.$", explain.one_text(one, width=200), re.MULTILINE)
    assert told is not None
    assert f"\n| {told[1]} | {told[2]} |\n" in PAGE
