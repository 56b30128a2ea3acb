"""Rules see a config by dotted keys, and what they find comes in the order of the file, on its line."""

from __future__ import annotations

from collections.abc import Iterator

from ckpttool.core.decide.lint_engine import Problem, Rule, View, findings, note, problems, suspect
from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.settings import Nested, Setting, Settings
from ckpttool.trainers.findings import TrainersCode

# As the reader of YAML gives it: `a: 3`, `b: {on: true, half: 1.5}`, `c: [x, {d: 1}]`, `e: {}`, and `f` by an alias.
ENTRIES = (
    Setting(key=("a",), value=3, line=1),
    Setting(key=("b",), value=Nested.MAPPING, line=2),
    Setting(key=("b", "on"), value=True, line=3),
    Setting(key=("b", "half"), value=1.5, line=4),
    Setting(key=("c",), value=Nested.LIST, line=5),
    Setting(key=("c", 0), value="x", line=6),
    Setting(key=("c", 1), value=Nested.MAPPING, line=7),
    Setting(key=("c", 1, "d"), value=1, line=8),
    Setting(key=("e",), value=Nested.MAPPING, line=9),
    Setting(key=("b", "f"), value=1, line=None),
)
VIEW = View(Settings(path="base.yaml", entries=ENTRIES))


def test_a_setting_is_found_by_its_dotted_key() -> None:
    assert [VIEW.get(key) for key in ("a", "b.on", "c.1.d", "b.off")] == [3, True, 1, None]
    found = VIEW.setting("b.on")
    assert found is not None
    assert found.line == 3
    assert VIEW.setting("b.off") is None


def test_a_section_is_what_stands_in_it() -> None:
    assert VIEW.raw("b") == {"on": True, "half": 1.5, "f": 1}
    assert VIEW.raw("c") == ["x", {"d": 1}]
    assert (VIEW.raw("a"), VIEW.raw("none")) == (3, None)
    assert [VIEW.is_section(key) for key in ("b", "e", "a", "none")] == [True, False, False, False]
    assert [entry.key[-1] for entry in VIEW.inside("c")] == [0, 1]
    assert VIEW.inside("a") == ()


def test_only_true_is_on_and_only_a_whole_number_counts() -> None:
    assert [VIEW.is_on(key) for key in ("b.on", "a", "none")] == [True, False, False]
    assert [VIEW.count(key, 7) for key in ("a", "b.on", "b.half", "none")] == [3, 7, 7, 7]
    assert VIEW.count("none") == 1


def test_a_setting_without_a_line_of_its_own_is_on_that_of_its_section() -> None:
    assert [VIEW.line(key) for key in ("b.on", "b.f", "b.off", "c.1.none.more", "none")] == [3, 2, 2, 7, None]
    assert [VIEW.at(key, "a") for key in ("b.on", "b.off", "none")] == ["b.on", "b.off", "a"]


def _two(view: View) -> Iterator[Problem]:
    yield note("c.0", "later in the file", "leave it out", expected="y", actual="x")
    if view.is_on("b.on"):
        yield suspect("b.on", "is on", "switch it off")


def _missing(_: View) -> Iterator[Problem]:
    yield suspect("z", "is missing", "set it")


RULES = (
    Rule(code=TrainersCode.CONFIG_WRONG_TYPE, check=_missing),
    Rule(code=TrainersCode.CONFIG_KEY_IGNORED, check=_two, needs_all=False),
)


def test_what_rules_find_comes_in_the_order_of_the_file() -> None:
    found = findings(VIEW, problems(VIEW, RULES), path="base.yaml")
    assert [(each.code, each.severity, each.line, each.path) for each in found] == [
        (TrainersCode.CONFIG_WRONG_TYPE, Severity.SUSPECT, None, "base.yaml"),
        (TrainersCode.CONFIG_KEY_IGNORED, Severity.SUSPECT, 3, "base.yaml"),
        (TrainersCode.CONFIG_KEY_IGNORED, Severity.NOTE, 6, "base.yaml"),
    ]
    assert (found[2].expected, found[2].actual, found[2].remedy) == ("y", "x", "leave it out")


def test_of_a_part_of_a_config_nothing_is_said_to_be_missing() -> None:
    found = findings(VIEW, problems(VIEW, RULES, is_part=True), path="base.yaml")
    assert {each.code for each in found} == {TrainersCode.CONFIG_KEY_IGNORED}
