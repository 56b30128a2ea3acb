"""The page for a browser: what its HTML, its style sheet and its pictures must hold to."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code, damage
from ckpttool.core.domain.units import Rank
from ckpttool.report.page import svg
from ckpttool.report.page.html import MOST_FINDINGS
from ckpttool.report.verbs import page
from ckpttool.types import (
    DataQuestion,
    EvidenceQuestion,
    LogQuestion,
    PageForm,
    ReportQuestion,
    ResumeQuestion,
    Step,
    TreeQuestion,
    TreeReport,
)
from tests.support.report_pages import Element, findings, read
from tests.support.trees import TreeBuilder

ROOT = Path(__file__).resolve().parents[3]
CSS = (ROOT / "ckpttool" / "report" / "page" / "page.css").read_text(encoding="utf-8")
TREE = ROOT / "fixtures" / "health_pp2"
QUESTION = ReportQuestion(
    tree=TreeQuestion(path=str(TREE / "output")),
    choice=ResumeQuestion(
        logs=EvidenceQuestion(threshold=0.2, logs=LogQuestion(patterns=(str(TREE / "train_log_first_rank_0.jsonl"),)))
    ),
    keep_last=2,
)


@cache
def answer() -> TreeReport:
    return ckpttool.library.survey(QUESTION)


@cache
def shown() -> Element:
    return read(page(answer(), PageForm.HTML))


def test_every_heading_of_a_table_says_of_what_and_every_picture_what_it_shows() -> None:
    assert {each.attributes["scope"] for each in shown().all("th")} == {"col", "row"}
    pictures = [each for each in shown().all("svg") if "aria-hidden" not in each.attributes]
    assert len(pictures) > 3
    assert all(each.attributes["role"] == "img" and each.attributes["aria-label"] for each in pictures)


def test_the_page_asks_for_nothing() -> None:
    text = page(answer(), PageForm.HTML)
    assert re.findall(r"(?i)<(?:script|link|img|iframe|object|embed|base|form|a)\b", text) == []
    assert re.findall(r"(?i)(?:src|href|srcset|action|style=\"[^\"]*url)\s*=", text) == []
    assert re.findall(r"(?i)url\(|@import|@font-face|https?:", text) == []
    (policy,) = [each for each in shown().all("meta") if each.attributes.get("http-equiv") == "Content-Security-Policy"]
    assert policy.attributes["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_a_strict_parser_accepts_the_page() -> None:
    strict = import_module("html5lib").HTMLParser(strict=True)  # it brings no types
    strict.parse(page(answer(), PageForm.HTML))
    with pytest.raises(Exception, match="Expected DOCTYPE"):
        import_module("html5lib").HTMLParser(strict=True).parse("<p>no doctype")


def colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", block))


LIGHT, DARK, PAPER = map(colours, re.findall(r":root \{(.*?)\}", CSS, re.DOTALL))


def luminance(colour: str) -> float:
    def linear(part: str) -> float:
        value = int(part, 16) / 255
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(colour[at : at + 2]) for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("look", [LIGHT, DARK, PAPER], ids=["light", "dark", "paper"])
def test_every_text_can_be_read_on_everything_it_stands_on(look: dict[str, str]) -> None:
    assert look.keys() == LIGHT.keys()
    grounds = ("page", "card", "code", "good-card", "doubt-card", "bad-card")
    pairs = {(text, ground): contrast(look[text], look[ground]) for text in ("ink", "soft") for ground in grounds}
    for tone in ("good", "doubt", "bad"):
        pairs |= {(tone, ground): contrast(look[tone], look[ground]) for ground in ("page", "card", f"{tone}-card")}
        pairs[tone, "good-card"] = contrast(look[tone], look["good-card"])  # in the row that is chosen
    assert {pair: round(ratio, 2) for pair, ratio in pairs.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("look", [LIGHT, DARK, PAPER], ids=["light", "dark", "paper"])
def test_what_is_bad_stands_out_from_what_is_whole_without_colour(look: dict[str, str]) -> None:
    assert contrast(look["bad-fill"], look["good-fill"]) > 2.5
    assert contrast(look["bad-fill"], look["page"]) > 3


def test_every_colour_of_the_style_sheet_has_a_name() -> None:
    outside = re.sub(r":root \{.*?\}", "", CSS, flags=re.DOTALL)
    assert re.findall(r"#[0-9a-f]{3,8}\b|rgb|hsl", outside) == []


HOSTILE = '"><script>alert(1)<svg onload=x>&amp;{{ 7*7 }}'


def test_a_name_does_nothing_but_stand_there(tmp_path: Path) -> None:
    builder = TreeBuilder(tmp_path).legacy(ranks=2, prefix=HOSTILE)
    builder.save(epoch=1, step=2).save(epoch=2, step=2)
    builder.remove(builder.shard(1, 2, 2))
    text = ckpttool.report(ReportQuestion(tree=TreeQuestion(path=str(builder.output))))
    root = read(text)
    assert root.all("script") == []
    assert all("onload" not in each.attributes for each in root.walk())
    assert "<script>alert(1)" in root.all("pre")[0].text


@pytest.mark.parametrize("form", PageForm)
def test_no_name_turns_a_line_around(tmp_path: Path, form: PageForm) -> None:
    builder = TreeBuilder(tmp_path / "\u2066of\u202e").legacy(ranks=2, prefix="\u202egnp.evil").save(epoch=1, step=2)
    text = ckpttool.report(str(builder.output), form=form)
    assert not {"\u202e", "\u2066"} & {*text}
    assert "u202egnp.evil" in text


def with_findings(number: int) -> TreeReport:
    """Let the newest checkpoint have so many findings."""
    whole = answer().verification
    many = tuple(
        damage(Code.SHARD_EMPTY, f"the file of rank {rank} is empty", ranks=(Rank(rank),)) for rank in range(number)
    )
    newest, *older = whole.verdicts
    verdicts = (replace(newest, findings=many), *older)
    return replace(answer(), verification=replace(whole, verdicts=verdicts))


def test_two_hundred_findings_are_told_one_by_one_and_the_rest_is_counted() -> None:
    text = page(with_findings(MOST_FINDINGS + 50), PageForm.HTML)
    told = [found for found in findings(read(text)) if found[1] == "shard-empty"]
    assert len(told) == MOST_FINDINGS
    assert "and 50 more of this kind" in text
    text = page(with_findings(MOST_FINDINGS), PageForm.HTML)
    assert "more of this kind" not in text


def test_a_curve_of_a_million_steps_is_drawn_with_its_highest_value() -> None:
    points = tuple((Step(step), 1.0) for step in range(1, 100_000))
    points = (*points[:50_000], (Step(50_001), 9.0), *points[50_001:])
    scale = svg.Scale.over([step for step, _ in points], [value for _, value in points])
    assert scale is not None
    drawn = svg.curve(points, scale, threshold=None, spikes=(), summary="norm")
    assert len(drawn) < 30_000
    assert f" {scale.y(9.0) * svg.HIGH:.2f}" in drawn


@pytest.mark.parametrize("values", [(1.0, 1.0), (0.0, 0.0), (-3.0, 5.0), (1e-30, 1e30), (float("nan"), 2.0)])
def test_every_scale_has_its_values_inside(values: tuple[float, float]) -> None:
    scale = svg.Scale.over([Step(1), Step(2)], values)
    assert scale is not None
    assert all(0 <= scale.y(value) <= 1 for value in values)
    assert 1 <= len(scale.ticks()) <= 7


def test_the_page_says_what_was_asked_for_and_nothing_where_that_is_usual() -> None:
    plain = page(answer(), PageForm.HTML)
    assert "<dt>asked for</dt>" not in plain
    choice = replace(QUESTION.choice, before=Step(25), require_health=True)
    data = DataQuestion(new_global_batch=16)
    text = ckpttool.report(replace(QUESTION, choice=choice, data=data))
    assert "<dt>asked for</dt><dd>before 25, require health, batches of 16 samples from now on</dd>" in text
