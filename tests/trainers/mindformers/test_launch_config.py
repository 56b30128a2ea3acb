"""Proves that a config comes back with the plan's keys changed and not one other byte."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.errors import CkptToolError, UsageError
from ckpttool.core.render import yaml_edit
from ckpttool.core.render.yaml_edit import spell
from ckpttool.trainers.mindformers.launch import render_config
from ckpttool.trainers.mindformers.load import LoadKeys, load_keys, planned_skip
from tests.support.plans import NEWER_LOAD, resume_plan

CONFIGS = Path(__file__).parents[2] / "configs"
LEGACY, NEWER = resume_plan(), resume_plan(load=NEWER_LOAD)
NAME = "llama2_7b_rank_0-15_2.ckpt"
TOP = {
    "load_checkpoint": "output/checkpoint",
    "resume_training": NAME,
    "load_ckpt_format": "ckpt",
    "data_skip_steps": 30,
    "ignore_data_skip": False,
}


def difference(before: str, after: str) -> list[str]:
    lines = difflib.ndiff(before.splitlines(keepends=True), after.splitlines(keepends=True))
    return [line for line in lines if line[0] in "+-"]


def expected(document: dict[str, Any], plan: ResumePlan = LEGACY) -> dict[str, Any]:
    """Change a document as the rules say, independently of how the text is edited."""
    skip, load = planned_skip(plan).batches, load_keys(plan.load)

    def data(section: dict[str, Any]) -> dict[str, Any]:
        if skip:
            return {"data_skip_steps": skip, "ignore_data_skip": False}
        return {"ignore_data_skip": True} | ({"data_skip_steps": None} if "data_skip_steps" in section else {})

    return document | {
        "load_checkpoint": load.load_checkpoint,
        "resume_training": load.resume_training,
        "load_ckpt_format": load.load_ckpt_format,
        **data(document),
    }


class TestRealShapes:
    def test_the_legacy_layout_changes_these_lines_and_no_other(self) -> None:
        base = (CONFIGS / "llama2_legacy.yaml").read_text()
        launch = render_config(base, LEGACY)
        assert difference(base, launch.text) == [
            "- load_checkpoint: ''   # a folder to resume from\n",
            "+ load_checkpoint: 'output/checkpoint'   # a folder to resume from\n",
            "- resume_training: False  # see the runbook\n",
            f"+ resume_training: {NAME}  # see the runbook\n",
            "+ load_ckpt_format: ckpt\n",
            "+ data_skip_steps: 30\n",
            "+ ignore_data_skip: False\n",
        ]
        assert [(change.key, change.before, change.after) for change in launch.changes] == [
            ("load_checkpoint", "''", "output/checkpoint"),
            ("resume_training", "False", NAME),
            ("load_ckpt_format", None, "ckpt"),
            ("data_skip_steps", None, "30"),
            ("ignore_data_skip", None, "False"),
        ]

    def test_the_checkpoint_section_wins_so_it_is_changed_too(self) -> None:
        base = (CONFIGS / "newer_checkpoint_section.yaml").read_text()
        launch = render_config(base, resume_plan(load=NEWER_LOAD, batches=0))
        assert difference(base, launch.text) == [
            "+ load_checkpoint: output/checkpoint/iteration_00000030\n",
            "+ resume_training: True\n",
            "+ load_ckpt_format: safetensors\n",
            "+ ignore_data_skip: True\n",
            '-   load_path: "./old/iteration_00000100"\n',
            '+   load_path: "output/checkpoint/iteration_00000030"\n',
            "-   no_load_optim: True            # weights only\n",
            "+   no_load_optim: False            # weights only\n",
        ]

    def test_the_newer_layout_is_switched_on_where_nothing_implies_it(self) -> None:
        base = (CONFIGS / "qwen3_safetensors.yaml").read_text()
        launch = render_config(base, NEWER)
        assert yaml.safe_load(launch.text) == expected(yaml.safe_load(base), NEWER) | {"use_legacy_format": False}
        told = render_config(base + "use_legacy_format: False\n", NEWER)
        assert "use_legacy_format" not in {change.key for change in told.changes}
        assert render_config(launch.text, NEWER).changes == ()

    @pytest.mark.sample(4)
    @pytest.mark.parametrize("name", sorted(path.name for path in CONFIGS.glob("*.yaml")))
    @pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
    @pytest.mark.parametrize("start", ["", "\ufeff"])
    @pytest.mark.parametrize("cut", [False, True])
    def test_line_ends_and_byte_order_mark_stay(self, name: str, ends: str, start: str, *, cut: bool) -> None:
        base = (CONFIGS / name).read_text()
        base = start + (base.rstrip("\n") if cut else base).replace("\n", ends)
        text = render_config(base, NEWER).text
        assert text.startswith("\ufeff") == bool(start)
        assert text.endswith(ends) is not cut
        assert text.replace(ends, "").isprintable() or start
        assert not set(text.replace(ends, "")) & {"\n", "\r"}


class TestDataPosition:
    def test_nothing_to_skip_says_so_and_unsets_an_old_number(self) -> None:
        base = "data_skip_steps: 500  # from last time\ntrainer:\n  type: x\n"
        text = render_config(base, resume_plan(batches=0)).text
        assert "data_skip_steps: null  # from last time\n" in text
        assert yaml.safe_load(text)["ignore_data_skip"] is True
        assert yaml.safe_load(text)["trainer"] == {"type": "x"}


class TestWaysToWriteYaml:
    @pytest.mark.parametrize(
        "base",
        [
            "seed: 0",
            "seed: 0\n...\n",
            "--- # first\nseed: 0 # last",
            "%YAML 1.1\n---\nseed: 0\n",
            "  seed: 0\n  load_checkpoint: x\n",
            "load_checkpoint:\nseed: 0\n",
            "load_checkpoint: # to be set\nseed: 0\n",
            "seed: 0\nload_checkpoint:",
            "seed: 0\nload_ckpt_format:\nload_checkpoint:",
            "load_checkpoint: ~\nresume_training: null\n",
            "load_checkpoint: &here ./old\nseed: 0\n",
            "load_checkpoint: &here !!str ./old\nseed: 0\n",
            "load_checkpoint: &here\nseed: 0\n",
            "other: &o ./x\nload_checkpoint: *o\nthird: *o\n",
            "load_checkpoint: !!str 5\n",
            "load_checkpoint: |\n  ./old\n  path\n\n# comment\nseed: 0\n",
            "load_checkpoint: >-\n  ./old\n\n\nseed: 0",
            "load_checkpoint: |+\n  ./old\n\n",
            "load_checkpoint: one\n  and two\nseed: 0\n",
            'load_checkpoint: "one\n  and two"  # why\nseed: 0\n',
            "\"load_checkpoint\": x\n'resume_training': y\n",
            "load_ckpt_format: ckpt\n? load_checkpoint\n: ./old\n",
            "load_checkpoint: !!str &here ./old\nseed: 0\n",
            "name: &n key\n*n : value\n",
            "trainer: {*n : value}\n".replace("*n", "&n k"),
            "{seed: 0}\n",
            "{load_checkpoint: x, seed: 0}",
            "{seed: 0, }",
            "{\n  seed: 0,  # a comma\n}\n",
            "{\n  seed: 0  # no comma,\n}\n",
            "{}",
            "{ }\n",
            '{"seed":0,"load_checkpoint":"x"}',
            "trainer: {}\n",
            "trainer: { type: x }\n",
            "trainer: &t {type: x}\n",
            "trainer:\n",
            "trainer: text\n",
            "trainer: [1]\n",
            "trainer:\n- 1\n",
            "trainer:\n      type: x\n\n      # deep\n      data_skip_steps: 1 # old\nseed: 0\n",
            "trainer: {data_skip_steps: 1, type: {a: [b]}}\n",
            "trainer: &t\n  type: x\n",
            "base: &b {type: x}\ntrainer:\n  <<: *b\n  model: y\n",
            "defaults: &d\n  load_checkpoint: x\n<<: *d\nseed: 0\n",
            "a: [1, {load_checkpoint: inner}]\nb:\n  load_checkpoint: inner\n",
            "'': 1\n1: 2\nnull: 3\ntrue: 4\n",
            "text: |\n  load_checkpoint: not me\n",
            "# load_checkpoint: not me\nseed: 0\n",
            "name: 日本\nload_checkpoint: naïve\n",
            "inf: .inf\ndate: 2024-01-01\nresume_training: 2024-01-01\n",
        ],
    )
    def test_the_document_changes_as_meant_and_every_other_line_stays(self, base: str) -> None:
        for plan in (LEGACY, resume_plan(batches=0)):
            text = render_config(base, plan).text
            assert yaml.safe_load(text) == expected(yaml.safe_load(base), plan)
            kept = [line for line in base.splitlines() if line.lstrip().startswith("#")]
            assert [line for line in text.splitlines() if line.lstrip().startswith("#")] == kept

    @pytest.mark.parametrize("base", ["trainer: &t {type: x}\nother: *t\n", "other: &t {type: x}\ntrainer: *t\n"])
    def test_a_trainer_section_stays_as_it_is_because_any_key_more_in_it_stops_the_start(self, base: str) -> None:
        text = render_config(base, LEGACY).text
        assert yaml.safe_load(text)["trainer"] == yaml.safe_load(text)["other"] == {"type": "x"}
        assert all(line in text.splitlines() for line in base.splitlines())

    def test_what_a_key_was_before_is_told_as_yaml_on_one_line(self) -> None:
        base = 'load_checkpoint: "two\\nlines"\nresume_training: 2024-01-01\nload_ckpt_format: "\\ud800"\n'
        changes = {change.key: change.before for change in render_config(base, LEGACY).changes}
        assert changes["load_checkpoint"] == '"two\\nlines"'
        assert changes["resume_training"] == "2024-01-01"
        assert changes["load_ckpt_format"] == '"\\uD800"'


class TestRefusals:
    @pytest.mark.parametrize(
        ("base", "message"),
        [
            ("load_checkpoint: &x ./old\nother: *x\n", r"`load_checkpoint` \(line 1\) through `\*x`"),
            ("a: 1\nload_checkpoint: {a: 1}\n", r"is a mapping \(line 2\)"),
            ("load_checkpoint:\n  a: 1\n", "is a mapping"),
            ("load_checkpoint: [a]\n", "is a list"),
            ("? seed\n: 0\n", "not a plain `key: value`"),
            ("checkpoint: {load_path: x}\n", "remove the section"),
            ("- a\n", "has no settings"),
            ("", "has no settings"),
            ("a: 1\n---\nb: 1\n", "not YAML"),
            ("? [a]\n: 1\n", "not YAML"),
            ("a: [\n", "not YAML"),
            ("a: 2024-13-45\n", "not YAML"),
        ],
    )
    def test_what_cannot_be_changed_alone_is_one_clear_line(self, base: str, message: str) -> None:
        with pytest.raises(UsageError, match=message) as error:
            render_config(base, LEGACY)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        ("base", "message"),
        [
            ("checkpoint: &c {load_path: x}\nother: *c\n", "alias or a merge"),
            ("other: &c {load_path: x}\ncheckpoint: *c\n", "alias or a merge"),
            ("other: &c {checkpoint: {load_path: x}}\n<<: *c\n", "alias or a merge"),
            ("checkpoint: yes\n", "must be a section"),
        ],
    )
    def test_a_checkpoint_section_that_cannot_be_changed_alone_is_refused(self, base: str, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            render_config(base, NEWER)

    def test_a_path_that_is_no_text_cannot_be_written(self) -> None:
        load = LoadKeys(
            load_checkpoint="caf\udce9", resume_training=NAME, load_ckpt_format="ckpt", use_legacy_format=True
        )
        with pytest.raises(UsageError, match="not UTF-8"):
            render_config("seed: 0\n", resume_plan(load=load))

    def test_an_edit_that_does_not_read_back_as_meant_gives_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(yaml_edit.Editor, "apply", lambda _: "seed: 1\n")
        with pytest.raises(CkptToolError, match="nothing was written") as error:
            render_config("seed: 0\n", LEGACY)
        assert not isinstance(error.value, UsageError)

    def test_an_edit_that_is_no_yaml_any_more_gives_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(yaml_edit.Editor, "apply", lambda _: "{")
        with pytest.raises(CkptToolError, match="nothing was written"):
            render_config("seed: 0\n", LEGACY)

    @pytest.mark.parametrize("wrong", ["1", "1.0", "[true]", "{a: true}", "null"])
    def test_values_that_only_python_calls_equal_differ(self, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
        base = render_config("flag: True\n", LEGACY).text
        monkeypatch.setattr(yaml_edit.Editor, "apply", lambda _: base.replace("flag: True", f"flag: {wrong}"))
        with pytest.raises(CkptToolError, match="nothing was written"):
            render_config(base, LEGACY)

    def test_a_checkpoint_section_that_says_nothing_about_the_optimizer_is_not_told(self) -> None:
        launch = render_config("checkpoint: {save_max: 3}\nuse_legacy_format: True\n", NEWER)
        assert yaml.safe_load(launch.text)["checkpoint"] == {"save_max": 3, "load_path": NEWER_LOAD.load_checkpoint}
        assert yaml.safe_load(launch.text)["use_legacy_format"] is True


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 99), st.floats(allow_nan=False), st.text("ab #:'\"-é\n\t", max_size=8)
)
sections = st.dictionaries(st.sampled_from(["type", "data_skip_steps", "ignore_data_skip", "x"]), scalars, max_size=3)
documents = st.dictionaries(st.sampled_from([*TOP, "seed", "use_parallel", "a b", "1"]), scalars, min_size=1).flatmap(
    lambda plain: sections.map(lambda section: {**plain, "trainer": section}) | st.just(plain)
)


@given(
    documents,
    st.permutations(range(12)),
    st.sampled_from([None, "'", '"']),
    st.booleans(),
    st.lists(st.sampled_from(["# note", "", "   # load_checkpoint: x"]), max_size=14),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_any_document_reads_back_with_exactly_these_changes(  # noqa: PLR0917  # as hypothesis gives them
    document: dict[str, Any],
    order: list[int],
    style: str | None,
    flow: bool,
    comments: list[str],
    ends: str,
    newer: bool,
) -> None:
    shuffled = {key: document[key] for _, key in sorted(zip(order, document, strict=False))}
    chunks = [
        f"{key}: {yaml.safe_dump(value, default_style=style, default_flow_style=True)}"
        if flow and isinstance(value, dict)
        else yaml.safe_dump({key: value}, default_style=style, default_flow_style=False)
        for key, value in shuffled.items()
    ]
    comments += [""] * len(chunks)
    base = "".join(f"{comment}\n{chunk}" for comment, chunk in zip(comments, chunks, strict=False)).replace("\n", ends)
    if yaml.safe_load(base) != shuffled:
        return  # a comment that is a part of a block scalar before it
    plan = NEWER if newer else LEGACY
    text = render_config(base, plan).text
    want = expected(shuffled, plan)
    assert yaml.safe_load(text) == (want | {"use_legacy_format": False} if newer else want)
    # A line of a replaced quoted value may begin with '#' and go; a comment may not.
    lines = iter(text.split(ends))
    assert all(comment in lines for comment in comments[: len(chunks)] if comment.lstrip().startswith("#"))


@given(st.text(), st.sampled_from(["", "'", '"', "|"]))
def test_whatever_is_spelled_reads_back_as_itself_in_a_block_and_in_braces(text: str, quotes: str) -> None:
    spelled = spell(text, quotes=quotes)
    assert yaml.safe_load(f"k: {spelled}") == yaml.safe_load(f"{{k: {spelled}}}") == {"k": text}
    assert len(f"k: {spelled}".splitlines()) == 1


@pytest.mark.parametrize(
    "value", [None, True, False, 0, 30, "", "True", "30", "null", "a: b", "a #b", "- a", "é", "\x85"]
)
def test_a_scalar_reads_back_with_its_type(value: str | int | bool | None) -> None:
    read = yaml.safe_load(f"k: {spell(value)}")["k"]
    assert (type(read), read) == (type(value), value)


def test_a_key_without_any_before_it_is_added_beside_the_next_that_is_there() -> None:
    base = "seed: 1\nresume_training: True\nrun_mode: train\n"
    keys = [line.partition(":")[0] for line in render_config(base, LEGACY).text.splitlines()]
    assert keys.index("load_checkpoint") == keys.index("resume_training") + 1
