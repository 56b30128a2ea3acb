"""`ckpttool fp8 plan` and `fp8 verdict`: from two logs and a tree to folders, and from their logs to a culprit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.conftest import Golden
from tests.fp8.rules.curves import Runs, stepped
from tests.support.commands import Said, ask
from tests.support.fp8_runs import TOY
from tests.support.loss_logs import csv
from tests.support.trees import TreeBuilder

LAST = 400
SINCE = 240


def runs(here: Path) -> None:
    """A baseline, a repeat of it, a candidate that is worse since step 240, and its checkpoints."""
    found = Runs(3, steps=LAST, wander=0.002)
    (here / "base.csv").write_text(csv(found.run()))
    (here / "repeat.csv").write_text(csv(found.run()))
    (here / "same.csv").write_text(csv(found.run()))
    (here / "worse.csv").write_text(csv(stepped(found.run(), by=0.06, since=SINCE)))
    tree = TreeBuilder(here).legacy(ranks=2)
    for epoch in (25, 50, 100, 200):
        tree.save(epoch=epoch, step=2)


RUNS = ("--baseline", "base.csv", "--candidate", "worse.csv", "--repeat", "repeat.csv")


def planned(*options: str, framework: str = "te") -> Said:
    return ask("fp8", "plan", *RUNS, "--framework", framework, "--output", "plan", *options)


@pytest.fixture
def here_with_runs(here: Path) -> Path:
    runs(here)
    return here


def read(here: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((here / "plan" / "plan.json").read_text())
    return document


def log_all(here: Path, gaps: Mapping[str, float | None] = TOY) -> None:
    """Write a log into each folder that has none."""
    experiments = read(here)["experiments"]
    rows = [line.split(",") for line in (here / "base.csv").read_text().splitlines()[1:]]
    bf16 = {int(row[0]): float(row[1]) for row in rows}
    for each in experiments:
        gap = gaps.get(each["id"])
        folder = here / "plan" / each["id"]
        if gap is None or not each["expressible"] or (folder / "train.csv").exists():
            continue
        noise = Random(each["id"])  # noqa: S311  the same in every run
        steps = range(each["start_step"] + 5, each["last_step"] + 1, 5)
        lines = [f"{step},{bf16.get(step, 2.0) + gap + noise.gauss(0, 0.0005):.6f}" for step in steps]
        (folder / "train.csv").write_text("\n".join(["step,loss", *lines, ""]))


@pytest.mark.parametrize(("form", "suffix"), [("table", "txt"), ("json", "json")])
def test_a_plan_gives_the_golden_answer(
    form: str, suffix: str, here_with_runs: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # a path of any length stays on its line
    said = planned("--recipe", "delayed", "--devices", "8", "--format", form)
    assert said.code == 0
    golden(f"fp8-plan/first.{suffix}", said.stdout.replace(str(here_with_runs), "HERE"))
    if form == "json":
        assert said.json == read(here_with_runs)


def test_each_folder_says_what_to_run_and_what_each_outcome_means(here_with_runs: Path, golden: Golden) -> None:
    planned("--recipe", "delayed")
    folder = here_with_runs / "plan" / "E4d"
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "experiment.json", "flags.txt", "inspect.yaml",
    ]  # fmt: skip
    text = "".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(folder.iterdir()))
    golden("fp8-plan/E4d.txt", text.replace(str(here_with_runs), "HERE"))


def test_it_starts_from_the_newest_good_checkpoint_before_the_gap(here_with_runs: Path) -> None:
    document = planned("--json").json
    assert (document["start"]["name"], document["start"]["step"], document["start"]["evidence"]) == (
        "50_2", 100, "resolved",
    )  # fmt: skip
    tree = TreeBuilder(here_with_runs).legacy(ranks=2)
    tree.remove(tree.shard(1, 50, 2))
    again = planned("--json").json
    assert again["start"]["name"] == "25_2"


def test_11_where_no_good_checkpoint_lies_before_the_gap_and_one_can_be_taken_on_trust(here_with_runs: Path) -> None:
    tree = TreeBuilder(here_with_runs).legacy(ranks=2)
    for epoch in (25, 50):
        tree.remove(tree.shard(1, epoch, 2))
    said = planned()
    assert said.code == 11
    assert "ckpttool resolve --before" in said.stderr
    assert not (here_with_runs / "plan").exists()
    trusted = planned("--checkpoint-step", "100", "--json")
    assert trusted.code == 0
    assert "used without a check" in " ".join(map(str, trusted.json["notes"]))


class TestFromLast:
    """BF16 from the candidate's last checkpoint is held against the old baseline, which must have gone on so far."""

    def last(self, *options: str) -> dict[str, Any]:
        experiments: Any = planned(*options, "--json").json["experiments"]
        (found,) = (each for each in experiments if each["id"] == "E2")
        assert isinstance(found, dict)
        return found

    def test_it_is_found_where_all_else_starts_from_scratch(self, here_with_runs: Path) -> None:
        found = Runs(3, steps=LAST, wander=0.002)
        found.run()
        (here_with_runs / "worse.csv").write_text(csv(stepped(found.run(), by=0.06, since=0)))
        tree = TreeBuilder(here_with_runs).legacy(ranks=2)
        for epoch in (25, 50, 100):
            tree.remove(tree.shard(1, epoch, 2))
        found_last = self.last("--horizon", "80")
        assert read(here_with_runs)["start"]["evidence"] == "scratch"
        load = f"load the checkpoint of step 400 from {here_with_runs / 'output' / 'checkpoint'}"
        assert load in found_last["change"]["notes"]

    def test_without_a_tree_it_is_said_that_it_is_not_known(self, here_with_runs: Path) -> None:
        (here_with_runs / "output").rename(here_with_runs / "elsewhere")
        reason = self.last("--checkpoint-step", "100")["reason"]
        assert "last checkpoint is unknown: name the folder of its checkpoints (DIR)" in reason
        (here_with_runs / "output").write_text("mine")
        assert self.last("--checkpoint-step", "100")["reason"].startswith("not expressible here: the candidate's last")


def test_the_length_of_runs_can_be_chosen_for_a_new_plan_alone(here_with_runs: Path) -> None:
    assert here_with_runs.exists()
    document = planned("--horizon", "90", "--json").json
    assert (document["horizon"], document["window"]) == (90, [160, 190])
    said = planned("--horizon", "90", "--round", "2")
    assert (said.code, "--horizon is only for a new folder" in said.stderr) == (2, True)


def test_14_where_there_is_nothing_to_explain(here_with_runs: Path) -> None:
    said = ask(
        "fp8", "plan", "--baseline", "base.csv", "--candidate", "same.csv", "--repeat", "repeat.csv",
        "--framework", "te", "--output", "plan", "--json",
    )  # fmt: skip
    assert (said.code, said.json["reason"]) == (14, "the candidate matches its baseline: there is no gap to explain")
    assert not (here_with_runs / "plan").exists()


def test_15_where_the_folder_is_no_plan_of_ours(here_with_runs: Path) -> None:
    (here_with_runs / "plan").mkdir()
    (here_with_runs / "plan" / "notes.txt").write_text("mine")
    assert planned().code == 15
    (here_with_runs / "plan" / "plan.json").write_text('{"schema": "mine/1"}')
    said = planned()
    assert said.code == 15
    assert "not a plan of ckpttool" in said.stderr
    assert ask("fp8", "verdict", "plan").code == 15
    assert sorted(path.name for path in (here_with_runs / "plan").iterdir()) == ["notes.txt", "plan.json"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--framework", "mindformers"), "MindFormers 2.1.0 does not train in FP8"),
        (("--framework", "te", "--te-version", "new"), "--te-version 'new' is not a version"),
    ],
)
def test_2_where_it_cannot_be_meant(options: tuple[str, ...], words: str, here_with_runs: Path) -> None:
    assert here_with_runs.exists()
    said = ask("fp8", "plan", *RUNS, "--output", "plan", *options)
    assert said.code == 2
    assert words in " ".join(said.stderr.split())


class TestRounds:
    def test_nothing_that_has_a_log_is_written_again(self, here_with_runs: Path) -> None:
        planned("--recipe", "delayed")
        readme = here_with_runs / "plan" / "B" / "README.md"
        readme.write_text("old")
        assert planned("--recipe", "delayed").code == 0
        assert readme.read_text() != "old"
        log_all(here_with_runs)
        assert planned("--recipe", "delayed").code == 15
        assert planned("--round", "3").code == 2
        mine = {path: path.read_bytes() for path in (here_with_runs / "plan").glob("*/*")}
        assert planned("--round", "2").code == 0
        assert {path: path.read_bytes() for path in mine} == mine

    def test_a_folder_of_somebody_else_in_the_place_of_a_new_experiment_is_not_passed_over(
        self, here_with_runs: Path
    ) -> None:
        planned("--recipe", "delayed")
        log_all(here_with_runs)
        mine = here_with_runs / "plan" / "E4dw" / "notes.txt"
        mine.parent.mkdir()
        mine.write_text("mine")
        said = planned("--round", "2")
        assert (said.code, "'notes.txt': it is not replaced" in said.stderr) == (15, True)
        assert mine.read_text() == "mine"

    def test_three_rounds_name_the_culprits_and_the_cure_that_keeps_fp8(
        self, here_with_runs: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "400")  # a path of any length stays on its line
        assert planned("--recipe", "delayed").code == 0
        assert ask("fp8", "verdict", "plan").code == 14
        log_all(here_with_runs)
        first = ask("fp8", "verdict", "plan", "--json")
        assert (first.code, first.json["verdict"], first.json["culprits"]) == (14, "undecided", [])
        assert planned("--round", "2").code == 0
        log_all(here_with_runs)
        second = ask("fp8", "verdict", "plan", "--json")
        assert (second.code, second.json["verdict"], second.json["culprits"]) == (10, "culprit", ["dgrad", "wgrad"])
        golden("fp8-verdict/second.json", second.stdout.replace(str(here_with_runs), "HERE"))
        golden("fp8-verdict/second.txt", ask("fp8", "verdict", "plan").stdout.replace(str(here_with_runs), "HERE"))
        assert planned("--round", "3").code == 0
        log_all(here_with_runs)
        third = ask("fp8", "verdict", "plan", "--json")
        assert third.code == 0
        cure = third.json["cure"]
        assert (cure["id"], cure["restores"], cure["keeps_fp8"]) == ("E5", True, True)

    @pytest.mark.parametrize(("version", "is_too_old"), [("0.1", True), ("99.0", False)])
    def test_a_version_that_is_given_with_a_later_round_is_what_that_one_is_for(
        self, here_with_runs: Path, version: str, is_too_old: bool
    ) -> None:
        planned(framework="megatron")
        log_all(here_with_runs)
        assert planned("--round", "2", "--framework-version", version, framework="megatron").code == 0
        reasons = [each["reason"] for each in read(here_with_runs)["experiments"] if each["round"] == 2]
        assert reasons
        assert any("needs Megatron core" in str(reason) for reason in reasons) is is_too_old

    def test_the_rounds_of_a_plan_are_for_one_framework(self, here_with_runs: Path) -> None:
        assert here_with_runs.exists()
        planned("--recipe", "delayed")
        said = planned("--round", "2", framework="torchao")
        assert (said.code, "the plan is for te" in said.stderr) == (2, True)


class TestVerdict:
    def test_a_log_may_lie_elsewhere_and_a_name_that_is_none_is_refused(self, here_with_runs: Path) -> None:
        planned("--recipe", "delayed")
        log_all(here_with_runs)
        moved = here_with_runs / "b.csv"
        (here_with_runs / "plan" / "B" / "train.csv").rename(moved)
        assert "without B" in ask("fp8", "verdict", "plan", "--json").json["because"]
        found = ask("fp8", "verdict", "plan", "--log", "B=b.csv", "--json")
        assert "without B" not in found.json["because"]
        assert ask("fp8", "verdict", "plan", "--log", "E9=b.csv").code == 2
        assert ask("fp8", "verdict", "plan", "--log", "b.csv").code == 2
        assert ask("fp8", "verdict", "nowhere").code == 2
