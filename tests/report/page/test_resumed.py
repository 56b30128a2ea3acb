"""The section of a page about the last resume that the logs show."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import ckpttool
from ckpttool.types import EvidenceQuestion, LogQuestion, ReportQuestion, ResumeQuestion, TreeQuestion
from tests.postflight.logged_runs import BEFORE, Row, after, mindformers_lines, rows_of, up_to
from tests.support.commands import ask
from tests.support.trees import TreeBuilder

TITLE = "Did the resume work?"

Reported = Callable[..., str]


@pytest.fixture
def reported(tmp_path: Path) -> Reported:
    """Write a page about a tree with saves at steps 450 and 500, and with the log of some starts."""
    tree = TreeBuilder(tmp_path).legacy(ranks=1).save(epoch=225, step=2).save(epoch=250, step=2)
    log = tree.output / "log" / "rank_0" / "info.log"
    log.parent.mkdir(parents=True)

    def report(*starts: Sequence[Row], form: str = "html") -> str:
        texts = (mindformers_lines(rows, minutes_later=10 * number) for number, rows in enumerate(starts))
        log.write_text("".join(texts))
        return ckpttool.report(str(tree.output), form=form)

    return report


@pytest.mark.parametrize(
    ("way", "headline", "states"),
    [
        ("exact", "Resumed from step 500: ", ["consistent", "proven", "proven", "proven"]),
        ("optimizer_lost", "The resume is wrong: the opt", ["consistent", "proven", "proven", "contradicted"]),
    ],
)
def test_the_page_has_the_answer_its_four_parts_and_both_losses(
    reported: Reported, way: str, headline: str, states: list[str]
) -> None:
    starts = rows_of(BEFORE), rows_of(after(way))
    page = reported(*starts)
    section = page[page.index(TITLE) : page.index("<h2>Findings</h2>")]
    assert headline in section
    assert re.findall(r'<td class="says v-\w+">([\w ]+)</td>', section) == states
    curves = [re.search(rf'<path class="{name}" d="(M[^"]+L[^"]+)"', section) for name in ("earlier", "curve")]
    first, resumed = (found[1] for found in curves if found is not None)
    assert (first == resumed) == (way == "exact")
    assert first.count("L") == 29, "30 repeated steps"
    assert ("resume-optimizer-lost" in page) == (way == "optimizer_lost")
    text = reported(*starts, form="markdown")
    assert f"**{TITLE}** {headline}" in text
    assert f"| update | {states[-1]} |" in text


def test_one_run_has_no_such_section(reported: Reported) -> None:
    for form in ("html", "markdown"):
        assert TITLE not in reported(rows_of(BEFORE), form=form)


def test_a_run_that_just_began_is_unknown_and_no_finding(reported: Reported) -> None:
    page = reported(rows_of(BEFORE), up_to(rows_of(after("optimizer_lost")), 501))
    assert "Cannot tell yet: 9 more logged steps" in page
    assert "resume-not-shown" not in page
    assert 'class="earlier"' not in page, "one step is no curve"


def test_a_wrong_resume_and_an_unreadable_log_change_neither_the_exit_code_nor_the_choice(
    reported: Reported, tmp_path: Path
) -> None:
    reported(rows_of(BEFORE), rows_of(after("optimizer_lost")))
    said = ask("report", str(tmp_path / "output"), "--output", str(tmp_path / "page.html"))
    assert said.code == ask("resolve", str(tmp_path / "output")).code == 0
    (tmp_path / "notes.txt").write_text("nothing\n" * 9)
    logs = LogQuestion(patterns=(str(tmp_path / "notes.txt"),))
    question = ReportQuestion(
        tree=TreeQuestion(path=str(tmp_path / "output")), choice=ResumeQuestion(logs=EvidenceQuestion(logs=logs))
    )
    assert TITLE not in ckpttool.report(question)
