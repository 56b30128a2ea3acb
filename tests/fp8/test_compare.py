"""`ckpttool fp8 compare`: logs in, class, numbers and exit code out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.conftest import Golden
from tests.fp8.rules.curves import Runs, stepped
from tests.support.commands import ask
from tests.support.loss_logs import FORMATS, csv, megatron


def write_runs(here: Path, *, seed: int = 3, steps: int = 400) -> Runs:
    """A baseline, a repeat of it, a run that matches and one that is worse since a step."""
    runs = Runs(seed, steps=steps, wander=0.002)
    (here / "base.csv").write_text(csv(runs.run()))
    (here / "repeat.csv").write_text(csv(runs.run()))
    (here / "same.csv").write_text(csv(runs.run()))
    (here / "worse.csv").write_text(csv(stepped(runs.run(), by=0.06, since=240)))
    return runs


@pytest.mark.parametrize(("form", "suffix"), [("table", "txt"), ("json", "json")])
def test_a_run_that_is_worse_since_a_step_gives_the_golden_answer(
    form: str, suffix: str, here: Path, golden: Golden
) -> None:
    write_runs(here)
    said = ask("fp8", "compare", "base.csv", "worse.csv", "--repeat", "repeat.csv", "--format", form)
    assert said.code == 10
    golden(f"fp8-compare/step.{suffix}", said.stdout)
    if form == "json":
        assert said.json["class"] == "step"


def test_0_where_it_matches_and_14_where_one_baseline_cannot_tell(here: Path) -> None:
    runs = write_runs(here)
    assert ask("fp8", "compare", "base.csv", "same.csv", "--repeat", "repeat.csv").code == 0
    (here / "slightly.csv").write_text(csv(stepped(runs.run(), by=0.01, since=0)))
    said = ask("fp8", "compare", "base.csv", "slightly.csv", "--json")
    assert (said.code, said.json["class"], said.json["floor_from"]) == (14, "inconclusive", "sampling")
    assert "--repeat LOG" in ask("fp8", "compare", "base.csv", "slightly.csv").stdout


@pytest.mark.sample(1)
@pytest.mark.parametrize("form", FORMATS)
def test_each_trainers_log_gives_the_same_class(form: str, here: Path) -> None:
    runs = Runs(3, steps=400, wander=0.002)
    logs = [runs.run(), runs.run(), stepped(runs.run(), by=0.06, since=240)]
    for name, losses in zip(("base", "repeat", "worse"), logs, strict=True):
        (here / name).write_text(FORMATS[form](losses))
    said = ask("fp8", "compare", "base", "worse", "--repeat", "repeat", "--json")
    assert (said.code, said.json["class"], said.json["pairs"], said.json["findings"]) == (10, "step", 400, [])
    assert said.json["gradient_norm"] is not None


def test_14_where_a_log_cannot_be_read_to_its_end(here: Path) -> None:
    write_runs(here)
    whole = gzip.compress((here / "same.csv").read_bytes())
    (here / "cut.csv.gz").write_bytes(whole[:-200])
    assert ask("fp8", "compare", "base.csv", "cut.csv.gz", "--repeat", "repeat.csv").code == 14


def test_a_tolerance_is_a_share_or_a_loss_and_nothing_else(here: Path) -> None:
    write_runs(here)
    shares = [
        ask("fp8", "compare", "base.csv", "same.csv", "--tolerance", text, "--json").json["tolerance"]
        for text in ("1%", "0.01", "1e-2")
    ]
    assert shares[0] == pytest.approx(0.0203, rel=0.01)
    assert shares[1:] == [0.01, 0.01]
    for wrong in ("-1%", "nan", "a", "1 %%", ""):
        assert ask("fp8", "compare", "base.csv", "same.csv", "--tolerance", wrong).code == 2


def scores(**tasks: float) -> str:
    """A results file of lm-evaluation-harness."""
    results = {
        task: {"alias": task, "acc,none": value - 0.2, "acc_norm,none": value, "acc_norm_stderr,none": 0.008}
        for task, value in tasks.items()
    }
    return json.dumps({"results": results, "group_subtasks": {"group": ["part"]}, "higher_is_better": {}})


BASE = {"arc": 0.5, "boolq": 0.7, "hellaswag": 0.6, "mmlu": 0.55, "piqa": 0.75}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("change", "case", "code", "word"),
    [
        ({}, None, 0, "0 changed, 0 dropped"),
        ({"mmlu": 0.51}, "3b", 10, "worse at some downstream tasks"),
        ({task: value - 0.05 for task, value in BASE.items()}, "3a", 10, "hardly in any downstream task"),
    ],
)
def test_downstream_tasks_tell_what_a_loss_does_not(
    change: dict[str, float], case: str | None, code: int, word: str, here: Path
) -> None:
    write_runs(here)
    (here / "base.json").write_text(scores(**BASE, part=0.1))
    (here / "cand.json").write_text(scores(**{**BASE, **change}, part=0.9))
    asked = ("fp8", "compare", "base.csv", "same.csv", "--repeat", "repeat.csv", "--evals", "base.json", "cand.json")
    said = ask(*asked, "--json")
    assert (said.code, said.json["case"], said.json["class"]) == (code, case, "match")
    assert word in " ".join(ask(*asked).stdout.split())


def test_validation_losses_are_compared_where_they_are_asked_for(here: Path) -> None:
    runs = Runs(5, steps=600, wander=0.001)
    losses = runs.run()
    (here / "base").write_text(megatron(losses, validated=20))
    (here / "worse").write_text(megatron(stepped(losses, by=0.1, since=0), validated=20))
    said = ask("fp8", "compare", "base", "worse", "--metric", "validation", "--json")
    assert (said.code, said.json["pairs"], said.json["metric"], said.json["class"]) == (10, 30, "validation", "early")
    (here / "none").write_text(megatron(losses))
    refused = ask("fp8", "compare", "base", "none", "--metric", "validation")
    assert refused.code == 14
    assert "0 pairs of values are not enough: 12 are needed" in " ".join(refused.stdout.split())
