"""Every finding can be looked up, and what is said there is true of this program."""

from __future__ import annotations

import ast
import inspect
import json
import re
from functools import cache
from pathlib import Path

import pytest

import ckpttool
from ckpttool.cli.main import COMMANDS
from ckpttool.core.domain.finding import Code, Finding, Severity, of_findings
from ckpttool.core.domain.verdict import VerdictWord
from ckpttool.core.errors import ExitCode
from ckpttool.core.extensions import rows
from ckpttool.core.findings import Row
from ckpttool.core.render import guide
from ckpttool.core.render.answers import explanation as explain
from ckpttool.core.render.json import dumps
from ckpttool.core.render.text import WIDTH
from ckpttool.core.verbs.explaining import names_by_title
from ckpttool.trainers.registry import FIRST
from tests.support.commands import ask
from tests.support.json_schemas import problems_of

PACKAGE = Path(ckpttool.__file__).parent


def texts(one: Row) -> str:
    return " ".join([one.headline, one.meaning, one.evidence, *one.trainers.values(), *one.to_do])


def replaced(row: Row, **columns: object) -> Row:
    """Return the row with other content in some columns."""
    names = inspect.signature(Row).parameters.keys() - {"code"}
    return Row(row.value, **{name: getattr(row, name) for name in names} | columns)


@cache
def options_of(command: str) -> set[str]:
    return set(re.findall(r"--[a-z-]+", ask(*command.split(), "--help-all").stdout))


def test_every_code_is_explained_once() -> None:
    assert sorted(explain.codes()) == sorted(row.value for row in rows())


def test_an_explanation_says_everything_in_a_screen() -> None:
    for one in rows():
        assert 4 <= len(one.headline.split()) <= 14, one
        assert [text.endswith(".") for text in (one.headline, one.meaning, one.evidence)] == [False, True, True], one
        assert one.to_do, one
        assert list(one.weights) == sorted(set(one.weights)), one
        lines = explain.one_text(one).splitlines()
        assert 8 <= len(lines) <= 24, one
        assert max(map(len, lines)) <= WIDTH, one


def test_an_explanation_names_only_commands_and_options_that_exist() -> None:
    called = r"\bckpttool ((?:(?:asd|fp8|guard|log|repair|trash) )?[a-z0-9-]+)((?: (?:DIR|--[a-z-]+|[A-Z][A-Za-z.]*))*)"
    for command, rest in (found for one in rows() for found in re.findall(called, texts(one))):
        if command.partition(" ")[0] not in COMMANDS:
            assert rest == ""  # prose, such as `ckpttool reads headers itself`
            continue
        assert set(re.findall(r"--[a-z-]+", rest)) <= options_of(command), command


@pytest.mark.parametrize("severity", Severity)
def test_the_exit_code_that_is_told_is_the_one_that_comes(severity: Severity) -> None:
    one = next(each for each in rows() if severity in each.weights)
    text = explain.one_text(replaced(one, weights=(severity,)), width=200)
    told = re.search(r"exit ([0-9]+)", text)
    code = of_findings([Finding(code=one, severity=severity, message="")])
    assert code == (int(told[1]) if told else ExitCode.OK)


@pytest.mark.parametrize("severity", Severity)
def test_the_page_says_of_a_weight_what_explain_says(severity: Severity) -> None:
    one = replaced(Code.RANK_MISSING, weights=(severity,))
    told = re.search(r"^Severity +(.*): (.*)\.$", explain.one_text(one, width=200), re.MULTILINE)
    assert told is not None
    assert f"\n| {told[1]} | {told[2]} |\n" in (PACKAGE / "guide" / "findings.md").read_text(encoding="utf-8")


def test_what_no_module_reports_is_not_said_to_be_looked_for() -> None:
    named = {
        name
        for path in PACKAGE.rglob("*.py")
        if "render" not in path.parts and path != PACKAGE / "core" / "domain" / "finding.py"
        for name in re.findall(r"Code\.(\w+)\b", path.read_text())
    }
    reported = {row for row in rows() if row.name in named}
    claimed = {one for one in rows() if not one.evidence.startswith("Not looked for yet")}
    assert claimed == reported


def reported_weights() -> set[tuple[str, str]]:
    """Collect code and weight wherever a module spells both: `damage(Code.X, …)`, or a call of `Finding`."""
    calls = [
        node
        for path in PACKAGE.rglob("*.py")
        if "Code." in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    spelled = set()
    for call in calls:
        word = ast.unparse(call.func)
        values = {each.arg: ast.unparse(each.value) for each in call.keywords}
        if word in {severity.word for severity in Severity} and call.args:
            spelled.add((ast.unparse(call.args[0]), f"Severity.{word.upper()}"))
        elif word == "Finding":
            spelled.add((values.get("code", ""), values.get("severity", "")))
    return {
        (code[1], severity[1])
        for code_text, severity_text in spelled
        if (code := re.fullmatch(r"\w*Code\.(\w+)", code_text))
        and (severity := re.fullmatch(r"Severity\.(\w+)", severity_text))
    }


def weights_of_rules() -> set[tuple[str, str]]:
    """Collect code and weight of each rule about configs, whose function makes problems: `Rule(code=…, check=_f)`."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        module = ast.parse(path.read_text()) if "Rule(code=" in path.read_text() else ast.Module([], [])
        functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
        for rule in ast.walk(module):
            if isinstance(rule, ast.Call) and ast.unparse(rule.func) == "Rule":
                values = {each.arg: ast.unparse(each.value) for each in rule.keywords}
                for node in ast.walk(functions.get(values["check"], ast.Pass())):
                    if isinstance(node, ast.Name) and node.id in {"note", "suspect"}:
                        found.add((values["code"].rpartition(".")[2], node.id.upper()))
    return found


def test_every_weight_that_a_module_gives_is_among_those_of_its_row() -> None:
    weights, of_rules = reported_weights(), weights_of_rules()
    assert (len(weights) > 80, len(of_rules) > 40) == (True, True)
    assert (weights | of_rules) - {(row.name, severity.name) for row in rows() for severity in row.weights} == set()


def test_the_list_has_one_line_a_code_where_there_is_room() -> None:
    lines = explain.list_text(width=200).partition("\nVerdicts:")[0].splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(explain.codes())


def test_every_verdict_is_explained_with_what_to_do() -> None:
    assert {each.word for each in guide.verdicts()} == {word.value for word in VerdictWord}
    for each in guide.verdicts():
        text = explain.verdict_text(each, width=60)
        assert text.startswith(f"verdict {each.word}: ")
        assert "What to do   " in text
        assert max(map(len, text.splitlines())) <= 60


def test_the_list_fits_a_narrow_terminal() -> None:
    text = explain.list_text(width=40)
    assert max(map(len, text.splitlines())) <= 40
    assert set(explain.codes()) <= {line.strip() for line in text.splitlines()}


@pytest.mark.parametrize(
    ("texts", "first", "trainers"),
    [
        ({}, None, {}),
        ({"Megatron-LM": "Stops."}, None, {"megatron": "Stops."}),
        (
            {"MindFormers": "Loads it.", "Megatron-LM": "Stops."},
            "Loads it.",
            {"mindformers": "Loads it.", "megatron": "Stops."},
        ),
    ],
)
def test_each_trainer_of_which_something_is_known_stands_under_its_name(
    texts: dict[str, str], first: str | None, trainers: dict[str, str]
) -> None:
    document = explain.one_document(replaced(Code.SHARD_MISSING, trainers=texts), names_by_title(), first=FIRST)
    assert isinstance(document, dict)
    assert (document["mindformers"], document["trainers"]) == (first, trainers)
    assert problems_of(document) == []


def test_json_lists_all_codes() -> None:
    document = json.loads(dumps(explain.list_document(names_by_title(), first=FIRST)))
    assert problems_of(document) == []
    assert document["schema"] == "ckpttool/explanations/1"
    assert [one["code"] for one in document["explanations"]] == list(explain.codes())
