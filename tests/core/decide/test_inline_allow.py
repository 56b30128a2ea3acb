"""Comments that allow a finding: where they stand, and what they do not reach."""

from __future__ import annotations

import pytest

from ckpttool.core.decide.inline_allow import allowed_in, part
from ckpttool.core.domain.finding import Code, Finding, Row, suspect
from ckpttool.trainers.mindformers.findings import MindFormersCode

CODE = MindFormersCode.UNKNOWN_KEY


def at(line: int | None, code: Row = CODE) -> Finding:
    return suspect(code, "x", line=line)


def silenced(text: str, *findings: Finding) -> list[int | None]:
    return [finding.line for finding in part(findings, text, path="c.yaml").silenced]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a: 1  # ckpttool: allow unknown-key\nb: 1\n", [1]),
        ("# ckpttool: allow unknown-key\na: 1\nb: 1\n", [2]),
        ("  #ckpttool:allow unknown-key, yaml-odd-number\n  # and why\n  a: 1\n", [3]),
        ("# ckpttool: allow unknown-key because we said so\r\na: 1\r\n", [2]),
        ("a: 1\n# ckpttool: allow unknown-key\n\nb: 1\n", [3]),  # an empty line is one, too
        ("a: 1  # ckpttool: allow yaml-odd-number\n", []),
        ("a: 1  # ckpttool: allow\n", []),
        ("a: 1  # ckpttool: allows unknown-key\n", []),
        ("a: x#ckpttool: allow unknown-key\n", []),
        ("a: 1  # not ckpttool: allow unknown-key\n", []),
    ],
)
def test_a_comment_speaks_of_its_line_or_alone_of_the_next_that_is_none(text: str, lines: list[int]) -> None:
    assert silenced(text, *map(at, (None, 1, 2, 3, 4))) == lines


def test_all_of_a_code_on_a_line_are_silenced_and_no_other_code() -> None:
    text = "a: 1  # ckpttool: allow unknown-key\n"
    found = part([at(1), at(1), at(1, MindFormersCode.YAML_ODD_NUMBER)], text, path="c.yaml")
    assert len(found.silenced) == 2
    assert found.findings == (at(1, MindFormersCode.YAML_ODD_NUMBER),)


def test_what_no_user_can_accept_no_comment_can() -> None:
    text = "a: 1  # ckpttool: allow config-unusable\n"
    found = part([at(1, Code.CONFIG_UNUSABLE)], text, path="c.yaml")
    assert found.silenced == ()
    assert [finding.code for finding in found.findings] == [Code.CONFIG_UNUSABLE, Code.ALLOW_UNUSED]


def test_a_comment_that_silences_nothing_is_a_note_at_its_own_line() -> None:
    text = "# ckpttool: allow unknown-key\n# ckpttool: allow\na: 1\n# ckpttool: allow zzz"
    found = part([], text, path="c.yaml").findings
    assert [(each.code, each.line, each.remedy) for each in found] == [
        (Code.ALLOW_UNUSED, 1, "remove the code from the comment"),
        (Code.ALLOW_UNUSED, 2, "`ckpttool explain` lists all codes"),
        (Code.ALLOW_UNUSED, 4, "`ckpttool explain` lists all codes"),
    ]


@pytest.mark.parametrize("code", [Code.START_DIFFERS, Code.START_UNKNOWN])
def test_a_comment_about_a_start_is_in_place_where_none_is_judged(code: Row) -> None:
    text = f"a: 1  # ckpttool: allow {code.value}\nb: 1\n"
    assert part([], text, path="c.yaml").findings == ()
    found = at(1, code), at(2, code), at(None, code), at(1)
    assert allowed_in(text, found) == (found[0],)
