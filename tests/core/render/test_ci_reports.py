"""GitHub's log, JUnit and SARIF: what is said, what is escaped, and that others' schemas agree."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt

from ckpttool.core.domain.finding import Code, Finding, Row, Severity, damage
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.preflight import Check, Lint, Reason
from ckpttool.core.domain.units import Rank
from ckpttool.core.extensions import rows
from ckpttool.core.render import markdown
from ckpttool.core.render.escape import shown
from ckpttool.core.render.github import annotate
from ckpttool.core.render.gitlab import code_quality
from ckpttool.core.render.json import dumps
from ckpttool.core.render.junit import junit
from ckpttool.core.render.markdown import summary
from ckpttool.core.render.sarif import sarif
from tests.support.json_schemas import code_quality_entries, junit_suite, sarif_run

HOSTILE = [
    "50% of\r\n::warning::x",
    "a:b,c=d;e",
    "]]><failure/>&amp;<![CDATA[",
    "\x1b[31mred\x00\x07",
    "\ufffe\uffff",
    "\udcff\udcfe",
    "模型 \u202e right",
    "[red]x[/red]",
    "../%2e%2e/a b#c?d",
    "::error::no",
]


def reason(
    severity: Severity = Severity.DAMAGE,
    *,
    text: str = "rank 3 has no shard",
    file: str | None = "out/rank_3/x.ckpt",
    line: int | None = None,
    code: Row = Code.SHARD_MISSING,
    remedy: str | None = "restore it",
) -> Reason:
    finding = Finding(code=code, severity=severity, message=text, remedy=remedy, line=line)
    return Reason(finding=finding, file=file)


def of_rank(rank: int) -> Finding:
    return damage(Code.SHARD_MISSING, "has no shard", ranks=(Rank(rank),))


def check(*reasons: Reason, name: str = "checkpoint", skipped: bool = False) -> Check:
    return Check(name=name, summary="what was seen", reasons=reasons, skipped=skipped)


def annotated(*checks: Check, verdict: str = "", is_file: bool = True) -> str:
    return annotate(checks, verdict, is_file=lambda _: is_file)


def log(*checks: Check, place: str = "out") -> str:
    return dumps(sarif(checks, place=place, version="0.1.0"))


class TestGithub:
    def test_what_stops_a_launch_is_an_error_and_a_note_a_notice(self) -> None:
        lines = annotated(check(reason(Severity.NOTE), reason()), verdict="NO-GO: 1 reason (exit 10)").splitlines()
        assert lines == [
            "::error file=out/rank_3/x.ckpt,title=ckpttool shard-missing::rank 3 has no shard%0AFix: restore it",
            "::notice file=out/rank_3/x.ckpt,title=ckpttool shard-missing::rank 3 has no shard%0AFix: restore it",
            "NO-GO: 1 reason (exit 10)",
        ]

    @pytest.mark.parametrize("severity", [Severity.SUSPECT, Severity.UNKNOWN, Severity.UNSAFE])
    def test_every_other_weight_is_an_error_too(self, severity: Severity) -> None:
        assert annotated(check(reason(severity))).startswith("::error ")

    def test_a_line_is_told_where_there_is_one_and_a_file(self) -> None:
        assert "file=a.yaml,line=3,title=" in annotated(check(reason(file="a.yaml", line=3)))
        assert annotated(check(reason(file=None, line=3, remedy=None))).startswith(
            "::error title=ckpttool shard-missing::rank 3 has no shard\n"
        )

    def test_a_path_that_is_no_file_stands_in_the_message_and_is_no_place_to_annotate(self) -> None:
        said = annotated(check(reason(line=3, remedy=None)), is_file=False)
        assert said == "::error title=ckpttool shard-missing::out/rank_3/x.ckpt: rank 3 has no shard\n"

    def test_a_path_that_is_no_file_is_told_but_once_and_none_for_the_faults_of_several(self) -> None:
        once = annotated(check(reason(text="out/rank_3/x.ckpt is no config", remedy=None)), is_file=False)
        assert once == "::error title=ckpttool shard-missing::out/rank_3/x.ckpt is no config\n"
        own = [replace(reason(remedy=None, file=f"out/rank_{rank}"), finding=of_rank(rank)) for rank in (3, 4)]
        assert "out/rank_" not in annotated(check(*own), is_file=False)

    @pytest.mark.parametrize("text", HOSTILE)
    def test_nothing_in_a_name_or_message_makes_a_command_or_a_property_of_its_own(self, text: str) -> None:
        said = annotated(check(reason(text=text, file=text, line=1, remedy=text)), verdict=text.replace("\n", "\\n"))
        first, *rest = said.split("\n")
        match = re.fullmatch(r"::error file=([^,:]*),line=1,title=ckpttool shard-missing::([^\r]*)", first)
        assert match is not None
        assert len(rest) == 1
        assert re.search(r"[\x00-\x1f\x7f-\x9f]", first) is None


class TestJunit:
    def test_a_check_that_passed_is_one_case_with_its_notes(self) -> None:
        (case,) = junit_suite(junit([check(reason(Severity.NOTE))], "ckpttool preflight"))
        assert (case.get("classname"), case.get("name")) == ("ckpttool.checkpoint", "checkpoint")
        assert case.findtext("system-out") == (
            "what was seen\nout/rank_3/x.ckpt: note shard-missing: rank 3 has no shard (fix: restore it)"
        )

    def test_a_check_that_failed_is_a_case_for_each_kind_of_reason(self) -> None:
        other = reason(code=Code.RANK_MISSING, file=None, remedy=None)
        suite = junit_suite(junit([check(reason(), reason(line=4), other, reason(Severity.NOTE))], "x"))
        assert [case.get("name") for case in suite] == ["shard-missing", "rank-missing"]
        failure = suite.find("testcase/failure")
        assert failure is not None
        assert len((failure.text or "").splitlines()) == 2
        assert "x.ckpt:4: " in (failure.text or "")

    def test_what_could_not_be_looked_at_is_an_error_and_no_failure(self) -> None:
        suite = junit_suite(junit([check(reason(Severity.UNKNOWN))], "x"))
        assert (suite.get("errors"), suite.get("failures")) == ("1", "0")

    def test_a_check_that_was_not_made_is_skipped(self) -> None:
        suite = junit_suite(junit([check(skipped=True), check()], "x"))
        assert (suite.get("tests"), suite.get("skipped")) == ("2", "1")

    @pytest.mark.parametrize("text", HOSTILE)
    def test_any_text_is_xml_that_reads_back(self, text: str) -> None:
        said = junit([check(reason(text=text, file=text, remedy=text), name=text), check(name=text)], text)
        assert said.isascii()
        suite = junit_suite(said)
        assert len(suite) == 2
        assert all(each.isprintable() or each == "\n" for each in "".join(suite.itertext()))


def entries(*checks: Check, place: str = "out") -> list[dict[str, Any]]:
    return code_quality_entries(dumps(code_quality(checks, place=place)))


class TestGitlab:
    def test_an_entry_has_all_that_gitlab_documents(self) -> None:
        (entry,) = entries(check(reason(line=7)))
        del entry["fingerprint"]
        assert entry == {
            "description": "rank 3 has no shard. Fix: restore it.",
            "check_name": "ckpttool/shard-missing",
            "severity": "critical",
            "location": {"path": "out/rank_3/x.ckpt", "lines": {"begin": 7}},
        }

    def test_every_weight_has_a_severity_and_damage_weighs_more_than_a_note(self) -> None:
        found = [entries(check(reason(severity)))[0]["severity"] for severity in sorted(Severity)]
        assert found == ["info", "major", "major", "critical", "blocker"]

    def test_what_is_about_no_file_is_shown_at_the_folder_and_where_no_line_is_known_at_the_first(self) -> None:
        (entry,) = entries(check(reason(file=None, line=3)), place="./run/out")
        assert entry["location"] == {"path": "run/out", "lines": {"begin": 1}}

    def test_a_fingerprint_stays_while_lines_move_and_tells_two_of_a_kind_apart(self) -> None:
        first, second = (each["fingerprint"] for each in entries(check(reason(line=1), reason(line=5))))
        moved = [each["fingerprint"] for each in entries(check(reason(line=3), reason(line=7)))]
        assert first != second
        assert moved == [first, second]

    @pytest.mark.parametrize("text", HOSTILE)
    def test_any_text_is_one_line(self, text: str) -> None:
        (entry,) = entries(check(reason(text=text, file=text, remedy=text)))
        assert (
            re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202e]", f"{entry['description']}{entry['location']['path']}")
            is None
        )


def cells(markdown: str) -> list[list[str]]:
    """Return the rows of all tables as a service shows them, and make sure that nothing else is shown."""
    tokens = MarkdownIt("gfm-like", {"linkify": False, "html": True}).enable("table").parse(markdown)
    rows: list[list[str]] = []
    for token in tokens:
        assert token.type.partition("_")[0] in {
            "heading",
            "inline",
            "table",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
            "paragraph",
        }
        if token.type == "tr_open":
            rows.append([])
        if token.type == "inline":
            assert {child.type for child in token.children or ()} <= {"text", "text_special"}
            text = "".join(child.content for child in token.children or ())
            (rows[-1] if rows else []).append(text)
    return rows


class TestMarkdown:
    def test_the_verdict_the_checks_and_the_reasons_are_told(self) -> None:
        lint = Lint(checks=(check(reason(line=7, file="a.yaml"), name="a.yaml"), check(name="b.yaml")))
        text = summary(lint)
        assert text.startswith("## ckpttool lint-config: NO-GO: 1 reason (exit 10)\n")
        assert cells(text) == [
            ["", "check", "what was seen"],
            ["NO", "a.yaml", "what was seen"],
            ["ok", "b.yaml", "what was seen"],
            ["weight", "finding", "what", "fix"],
            ["damage", "shard-missing", "a.yaml:7: rank 3 has no shard", "restore it"],
        ]

    def test_what_is_unsure_is_no_ok(self) -> None:
        unsure = Check(name="health", summary="unknown", unsure=True)
        assert cells(summary(Lint(checks=(unsure,))))[1][0] == "?"

    @pytest.mark.parametrize(
        "text",
        [*HOSTILE, "a|b\\|c", "<img src=x onerror=y>", "`x` **y** ~~z~~ &lt;", "[a](b)", "# h", "---", "![a](b)"],
    )
    def test_any_text_stays_in_its_cell_and_is_shown_as_it_is(self, text: str) -> None:
        said = summary(Lint(checks=(check(reason(text=text, file=text, remedy=text), name=text),)))
        (_, row, _, found) = cells(said)
        assert row[1] == shown(text).strip()
        assert found[2] == f"{shown(text)}: {shown(text)}".strip()
        assert found[3] == shown(text).strip()

    def test_what_is_left_out_is_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(markdown, "MOST_ROWS", 1)
        lint = Lint(checks=(check(reason(), reason(code=Code.RANK_MISSING), name="a"),))
        assert summary(lint).endswith("\n\nand 1 other kind")


class TestSarif:
    def test_a_result_has_its_rule_its_place_and_its_cure(self) -> None:
        run = sarif_run(log(check(reason(line=7), name="config")))
        (result,) = run["results"]
        assert (result["ruleId"], result["level"]) == ("shard-missing", "error")
        assert result["message"] == {"text": "rank 3 has no shard. Fix: restore it."}
        assert result["locations"] == [
            {"physicalLocation": {"artifactLocation": {"uri": "out/rank_3/x.ckpt"}, "region": {"startLine": 7}}}
        ]

    def test_a_note_is_a_note(self) -> None:
        assert sarif_run(log(check(reason(Severity.NOTE))))["results"][0]["level"] == "note"

    def test_what_is_about_no_file_is_shown_at_the_folder_without_a_line(self) -> None:
        (result,) = sarif_run(log(check(reason(file=None, line=3, remedy=None)), place="/big/out"))["results"]
        assert result["locations"] == [{"physicalLocation": {"artifactLocation": {"uri": "file:///big/out"}}}]

    def test_every_finding_can_be_a_rule(self) -> None:
        text = log(check(*(reason(code=row) for row in rows())))
        sarif_run(text)
        rules = json.loads(text)["runs"][0]["tool"]["driver"]["rules"]
        assert {rule["id"] for rule in rules} == {row.value for row in rows()}

    def test_a_rule_stands_there_once_however_often_it_was_broken(self) -> None:
        run = sarif_run(log(check(reason(), reason(code=Code.RANK_MISSING), reason())))
        assert [result["ruleIndex"] for result in run["results"]] == [1, 0, 1]

    def test_a_fingerprint_stays_while_lines_move_and_tells_files_apart(self) -> None:
        first, moved, other = (
            sarif_run(log(check(each)))["results"][0]["partialFingerprints"]
            for each in (reason(line=1), reason(line=9), reason(file="y"))
        )
        assert first == moved != other

    @pytest.mark.parametrize("text", HOSTILE)
    def test_any_path_is_a_uri_that_leads_back_to_it(self, text: str) -> None:
        (result,) = json.loads(log(check(reason(text=text, file=text, remedy=text))))["runs"][0]["results"]
        sarif_run(log(check(reason(text=text, file=text, remedy=text))))
        uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert uri.isascii()
        assert unquote(uri, errors="surrogateescape") == text
        assert re.fullmatch(r"[A-Za-z0-9%/._~-]*", uri)


def test_a_check_of_which_nobody_knows_is_no_passed_test_of_junit() -> None:
    suite = junit_suite(junit([Check(name="health", summary="unknown", unsure=True), check()], "ckpttool preflight"))
    assert (suite.get("tests"), suite.get("skipped"), suite.get("failures")) == ("2", "1", "0")
