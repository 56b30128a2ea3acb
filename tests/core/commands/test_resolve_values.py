"""What scripts and configs take from `resolve`: a block of YAML to paste, and one value alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import ckpttool
from ckpttool.core.domain.load_settings import LoadSettings, Place, TrainerSetting
from ckpttool.core.render.answers.resume import yaml_block
from tests.conftest import FIXTURES
from tests.support.commands import Said, ask
from tests.support.plans import resume_plan
from tests.support.situations import SITUATIONS

CONFIG = FIXTURES / "configs" / "pretrain_sink2.yaml"


def pasted(here: Path, said: Said) -> Path:
    """Paste the block at the end of a config, in place of what that says of the same keys."""
    keys = tuple(f"{key}:" for key in yaml.safe_load(said.stdout))
    kept = [line for line in CONFIG.read_text().splitlines() if not line.startswith(keys)]
    (here / "pasted.yaml").write_text("\n".join([*kept, said.stdout]))
    return here / "pasted.yaml"


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("situation", "options"),
    [
        ("whole", []),
        ("truncated", []),
        ("newer-layout", []),
        ("replaced-node", ["--allow-renames"]),
        ("whole", ["--new-dataset"]),
    ],
)
def test_a_pasted_block_is_what_launch_writes(situation: str, options: list[str], here: Path) -> None:
    SITUATIONS[situation](here)
    path = pasted(here, ask("resolve", "output", "--format", "yaml", "--config", str(CONFIG), *options))
    config = ["--config", str(CONFIG), "--output", "new.yaml", "--allow", "needs-renames"]
    assert ask("launch", "output", *config, *options).code == 0
    assert yaml.safe_load(path.read_text()) == yaml.safe_load((here / "new.yaml").read_text())
    assert ckpttool.library.read_config(str(path)).trainer == "mindformers"


def test_names_that_yaml_would_read_otherwise_are_quoted(here: Path) -> None:
    SITUATIONS["whole"](here)
    (here / "output").rename(here / "a: #b\n%c")
    block = ask("resolve", "a: #b\n%c", "--format", "yaml").stdout
    assert yaml.safe_load(block)["load_checkpoint"] == str(here / "a: #b\n%c" / "checkpoint")


def test_what_is_no_setting_is_a_comment(here: Path) -> None:
    SITUATIONS["replaced-node"](here)
    lines = ask("resolve", "output", "--allow-renames", "--format", "yaml").stdout.splitlines()
    assert "# health: unknown" in lines
    assert (
        "# first rename, in the checkpoint folder: mv -- rank_3/llama2_7b_rank_3-20_2.ckpt "
        "rank_3/llama2_7b_rank_3_1-20_2.ckpt"
    ) in lines


def test_keys_below_a_section_are_moved_in_and_places_outside_a_config_are_comments() -> None:
    def setting(place: str, value: str | int) -> TrainerSetting:
        return TrainerSetting(place=Place.parsed(place), value=value)

    plan = resume_plan()
    settings = (
        setting("config:checkpoint.load_path", "/a b"),
        setting("config:seed", 1),
        setting("argument:--load", "/x"),
        setting("config:checkpoint.deep.step", 3),
    )
    plan = type(plan)(
        root=plan.root,
        point=plan.point,
        load=LoadSettings(trainer="x", path="/a b", settings=settings),
        data=plan.data,
        next_step=plan.next_step,
    )
    block = yaml_block(plan, ["one\ntwo"])
    assert block.splitlines()[:2] == ["# one\\x0atwo", "# arguments: --load /x"]
    assert yaml.safe_load(block) == {"checkpoint": {"load_path": "/a b", "deep": {"step": 3}}, "seed": 1}


def test_where_nothing_is_left_the_block_sets_nothing(here: Path) -> None:
    SITUATIONS["all-damaged"](here)
    said = ask("resolve", "output", "--format", "yaml")
    assert (said.code, yaml.safe_load(said.stdout)) == (11, None)


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ("resume_training", "llama2_7b_rank_0-15_2.ckpt"),
        ("lost_steps", "10"),
        ("lost_seconds", "null"),
        ("ignore_data_skip", "false"),
        ("rejected.0.reasons.0.ranks", "[3]"),
    ],
)
def test_one_value_is_one_line(field: str, line: str, here: Path) -> None:
    SITUATIONS["missing-shard"](here)
    said = ask("resolve", "output", "--print", field)
    assert (said.code, said.stdout) == (0, f"{line}\n")


def test_several_values_are_a_line_each_in_the_order_asked_for_and_all_or_none(here: Path) -> None:
    SITUATIONS["missing-shard"](here)
    said = ask("resolve", "output", "--print", "lost_steps", "--print", "resume_training")
    assert (said.code, said.stdout) == (0, "10\nllama2_7b_rank_0-15_2.ckpt\n")
    assert ask("resolve", "output", "--print", "lost_steps", "--print", "zzz").stdout == ""


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("samples", "did you mean resume.samples or data.samples or position.samples?"),
        ("resume_trainin", "did you mean resume.resume_training"),
        ("zzz", "--format json shows them"),
        ("name.0", ""),
    ],
)
def test_a_field_that_is_none_or_several_is_one_line_with_those_near(field: str, words: str, here: Path) -> None:
    SITUATIONS["missing-shard"](here)
    said = ask("resolve", "output", "--print", field)
    assert (said.code, said.stdout, said.stderr.count("\n")) == (2, "", 2)
    assert words in said.stderr


def test_a_value_of_several_lines_is_refused_and_never_changed(here: Path) -> None:
    SITUATIONS["missing-shard"](here)
    (here / "output").rename(here / "a\nb")
    assert ask("resolve", "a\nb", "--print", "root", "-q").code == 2
    assert ask("resolve", "a\nb", "--print", "resume.name", "-q").stdout == "15_2\n"


def test_a_script_that_asks_for_a_value_of_nothing_gets_nothing(here: Path) -> None:
    SITUATIONS["all-damaged"](here)
    for field in ("resume_training", "root", "zzz"):
        said = ask("resolve", "output", "--print", field, "-q")
        assert (said.code, said.stdout, said.stderr.count("\n")) == (11, "", 1)
