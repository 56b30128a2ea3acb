"""`ckpttool log replay`: what a policy would have done, and what follows for checkpoints and data."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import FIXTURES, Golden
from tests.support.commands import Said, ask
from tests.support.training_logs import write_log
from tests.support.trees import TreeBuilder

LOGS = FIXTURES / "logs"
FORMATS = {"table": "txt", "json": "json"}
BLOOM = str(LOGS / "bloom176b_chronicles.log")


def replayed(*arguments: str) -> Said:
    return ask("replay", *arguments, "--format", "json")


def column(here: Path, norms: Sequence[object]) -> str:
    """A log of one column."""
    (here / "norms.csv").write_text("step,global_norm\n" + "".join(f"{i},{n}\n" for i, n in enumerate(norms, 1)))
    return "norms.csv"


@pytest.mark.parametrize(("form", "suffix"), [("table", "txt"), ("json", "json")])
def test_blooms_spike_comes_out_as_published(form: str, suffix: str, here: Path, golden: Golden) -> None:
    shutil.copy(BLOOM, here / "bloom.log")
    options = ["--threshold", "1.0", "--around-spike", "31216", "--every", "100"]
    said = ask("replay", "bloom.log", *options, "--format", form)
    assert said.code == 0
    golden(f"replay/bloom.{suffix}", said.stdout)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dialect", ["torch_npu", "mindspore", "mindformers"])
def test_a_detectors_own_log_is_the_golden_one(dialect: str, form: str, here: Path, golden: Golden) -> None:
    shutil.copy(LOGS / f"asd_{dialect}_made.log", here / "asd.log")
    said = ask("replay", "asd.log", "--policy", "features", "--dialect", dialect, "--format", form)
    assert said.code == 0
    golden(f"replay/{dialect}.{FORMATS[form]}", said.stdout)


def states(said: Said) -> list[str]:
    marks = said.json["checkpoints"]
    return [mark["state"] for mark in marks]


@pytest.mark.parametrize("name", ["apart", "ranks"])
def test_several_logs_are_one_training_after_the_other_or_rank_beside_rank(name: str, here: Path) -> None:
    if name == "apart":
        write_log(here / "run_2.log", range(1, 11))
        write_log(here / "run_10.log", range(11, 21))
    else:
        write_log(here / "run_2.log", range(1, 21))
        write_log(here / "run_10.log", range(1, 21))
    answer = replayed("run_*.log").json
    assert (answer["first_step"], answer["last_step"], answer["steps_seen"], answer["notes"]) == (1, 20, 20, [])


def test_a_log_comes_from_stdin_gzipped_or_not(here: Path) -> None:
    import subprocess

    from tests.support.commands import MODULE, environment

    data = Path(BLOOM).read_bytes()
    for sent in (data, gzip.compress(data)):
        command = [*MODULE, "replay", "-", "--policy", "skip"]
        done = subprocess.run(command, input=sent, capture_output=True, check=False, env=environment(), cwd=here)
        assert b"6 updates would have been lost" in done.stdout


def test_14_where_a_log_cannot_be_read_to_its_end_or_shows_no_step(here: Path) -> None:
    (here / "cut.log.gz").write_bytes(gzip.compress(Path(BLOOM).read_bytes())[:-40])
    (here / "poem.txt").write_text("Full fathom five\nthy father lies\n")
    (here / "empty.log").touch()
    for name in ("cut.log.gz", "poem.txt", "empty.log"):
        assert ask("replay", name).code == 14
    assert "The logs contain no steps" in ask("replay", "poem.txt").stdout


JUST_LONG_ENOUGH = {"zscore": 65, "zclip": 26, "olmo": 64, "features": 11}


@pytest.mark.sample(2)
@pytest.mark.parametrize("policy", JUST_LONG_ENOUGH)
def test_a_policy_that_never_left_its_warm_up_judges_no_checkpoint(policy: str, here: Path) -> None:
    enough = JUST_LONG_ENOUGH[policy]
    builder = TreeBuilder(here).legacy(ranks=1, sparse=True)
    builder.save(epoch=1, step=1)
    builder.save(epoch=1, step=enough)
    options = ["--policy", policy, "--tree", "output"]
    write_log(here / "enough.log", range(1, enough + 1))
    said = replayed("enough.log", *options)
    assert (said.code, states(said)[-1]) == (0, "clear")
    write_log(here / "few.log", range(1, enough))
    said = replayed("few.log", *options)
    assert (said.code, states(said)) == (14, ["unknown"] * 2)
    judged = said.json["judged"]
    assert (judged["first"], judged["last"]) == (None, None)
    assert ask("replay", "few.log", *options).stdout.startswith("Not judged: ")


def test_a_log_too_short_to_judge_says_so_beside_what_it_shows(here: Path) -> None:
    short = "step,global_norm\n1,1.0\n2,inf\n3,1.0\n"
    (here / "short.csv").write_text(short)
    said = ask("replay", "short.csv")
    assert said.code == 14
    assert said.stdout.startswith("Noticed: 1 nonfinite\nNot judged: zscore needs 64 steps ")
    (here / "long.csv").write_text(short + "".join(f"{step},1.0\n" for step in range(4, 101)))
    said = ask("replay", "long.csv")
    assert (said.code, said.stdout.splitlines()[0]) == (0, "Noticed: 1 nonfinite")
    assert "Not judged" not in said.stdout


def test_a_log_is_replayed_by_the_rule_of_its_own_trainer_unless_another_is_named(here: Path) -> None:
    write_log(here / "mindformers.log", range(1, 101))
    (here / "other.csv").write_text("step,global_norm\n" + "".join(f"{step},{3.5}\n" for step in range(1, 101)))
    assert replayed("mindformers.log").json["policy"] == "skip"
    said = replayed("other.csv")
    assert (said.code, said.json["policy"], said.json["events"]) == (0, "zscore", [])
    assert replayed(BLOOM).json["policy"] == "zscore"
    for setting in (["--threshold", "3.0"], ["--count", "5"], ["--nan", "strict"], ["--policy", "skip"]):
        assert replayed("other.csv", *setting).json["policy"] == "skip"


def test_stdin_is_not_read_twice(here: Path) -> None:
    import subprocess

    from tests.support.commands import MODULE, environment

    command = [*MODULE, "replay", "-", "--policy", "features"]
    done = subprocess.run(
        command, input=Path(BLOOM).read_bytes(), capture_output=True, check=False, env=environment(), cwd=here
    )
    assert done.returncode == 2
    assert b"give a file instead of -" in done.stderr


def test_a_long_story_is_cut_for_people_and_whole_in_json(here: Path) -> None:
    write_log(here / "train.log", range(1, 400), norms=dict.fromkeys(range(100, 400, 15), 9.0))
    assert "and 8 more: --format json" in ask("replay", "train.log").stdout
    spans = replayed("train.log").json["spans"]
    assert len(spans) == 20
