"""Logs of real Lightning runs, killed and resumed: steps from 0, no random-number state, a folder for each start."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest

from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import ExitCode
from ckpttool.core.verbs.scanning import scan
from ckpttool.postflight.read.new_order import draws_new_order
from ckpttool.trainers.lightning.places import start_logs
from tests.postflight.logged_runs import RUNS
from tests.support.commands import Said, ask
from tests.support.trainer_trees import healthy

LOGS = RUNS / "lightning"
BEFORE = str(LOGS / "before.csv")
SAVED = "30"


def states(said: Said) -> list[str]:
    return [part["state"] for part in said.json["parts"]]


def codes(said: Said) -> list[str]:
    return [finding["code"] for finding in said.json["findings"]]


def write(path: Path, rows: list[dict[str, str]]) -> str:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=[*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree of Lightning, whose saves are not those of the logs."""
    return healthy("light_single", tmp_path) / "checkpoints"


@pytest.mark.parametrize(
    ("way", "code", "found"),
    [
        ("right", ExitCode.INCOMPLETE, ["resume-not-shown"]),
        ("optimizer_lost", ExitCode.DAMAGE, ["resume-optimizer-lost"]),
        ("loader_restarted", ExitCode.DAMAGE, ["resume-data-repeated"]),
    ],
)
def test_a_resume_of_lightning_is_judged(root: Path, way: str, code: ExitCode, found: list[str]) -> None:
    said = ask(
        "postflight", str(root), "--before", BEFORE, "--after", str(LOGS / f"{way}.csv"), "--from-step", SAVED, "--json"
    )
    assert (said.code, codes(said)) == (code, found)
    assert (said.json["first_step"], states(said)[0]) == (31, "proven")
    assert "step 31 has the number 30 in the logs" in said.json["assumptions"][0]


def test_other_dropout_masks_are_no_fault_of_a_trainer_that_restores_no_random_state(root: Path) -> None:
    logs = ("--before", BEFORE, "--after", str(LOGS / "right.csv"), "--from-step", SAVED, "--json")
    said = ask("postflight", str(root), *logs)
    assert states(said) == ["proven", "proven", "not-shown", "consistent"]
    assert "Lightning restores no random-number state" in said.json["missing"]
    assert ask("postflight", *logs).json["first_step"] == 31, "the log begins with step 0, and the second run with 30"


def test_a_log_that_begins_with_step_1_counts_as_the_saves_do(root: Path, tmp_path: Path) -> None:
    logs = []
    for option, name in (("--before", "before"), ("--after", "right")):
        with (LOGS / f"{name}.csv").open(newline="") as file:
            rows = [row | {"step": str(int(row["step"]) + 1)} for row in csv.DictReader(file)]
        logs += [option, write(tmp_path / f"{name}.csv", rows)]
    said = ask("postflight", str(root), *logs, "--from-step", SAVED, "--json")
    assert (said.json["first_step"], said.json["parts"][0]["state"]) == (31, "proven")
    assert "the first step 0" not in " ".join(said.json["assumptions"])


class TestPlaces:
    @pytest.fixture
    def versions(self, tmp_path: Path) -> Path:
        """A run and its resume, as CSVLogger writes them."""
        for number, name in ((2, "before"), (10, "right")):
            folder = tmp_path / "lightning_logs" / f"version_{number}"
            folder.mkdir(parents=True)
            shutil.copyfile(LOGS / f"{name}.csv", folder / "metrics.csv")
        return tmp_path / "lightning_logs"

    def test_the_logs_of_each_start_are_found_beside_the_saves(self, versions: Path, tmp_path: Path) -> None:
        logs = tuple(f"{versions}/version_{number}/metrics.csv" for number in (2, 10))
        for root in (tmp_path, tmp_path / "checkpoints", versions / "version_2" / "checkpoints"):
            assert start_logs(str(root)) == logs
        assert start_logs(str(tmp_path / "elsewhere" / "checkpoints")) == ()

    @pytest.mark.usefixtures("versions")
    def test_the_last_start_is_the_resumed_run(self, root: Path, tmp_path: Path) -> None:
        root = shutil.copytree(root, tmp_path / "checkpoints", dirs_exist_ok=True)
        said = ask("postflight", str(root), "--from-step", SAVED, "--json")
        assert (said.code, said.json["first_step"]) == (ExitCode.INCOMPLETE, 31)
        assert "Lightning restores no random-number state" in said.json["missing"]

    def test_a_start_without_a_step_is_the_resumed_run_too(self, versions: Path, root: Path, tmp_path: Path) -> None:
        root = shutil.copytree(root, tmp_path / "checkpoints", dirs_exist_ok=True)
        (versions / "version_11").mkdir()
        (versions / "version_11" / "metrics.csv").write_text("epoch,step,train_loss\n")
        said = ask("postflight", str(root), "--from-step", SAVED, "--json")
        assert (said.code, said.json["is_final"], said.json["first_step"]) == (ExitCode.INCOMPLETE, False, None)

    def test_the_folders_of_the_starts_can_be_given(self, versions: Path) -> None:
        folders = ("--before", str(versions / "version_2"), "--after", str(versions / "version_10"))
        assert ask("postflight", *folders, "--from-step", SAVED, "--json").json["first_step"] == 31


@pytest.mark.parametrize(("tree", "is_lawful"), [("stateful", True), ("light_single", False), ("hf_single", False)])
def test_a_new_order_is_lawful_only_if_the_position_in_the_data_is_right(
    tree: str, is_lawful: bool, tmp_path: Path
) -> None:
    if tree == "stateful":
        shutil.copy(LOGS / "epoch=0-step=4.ckpt", tmp_path)
    question = TreeQuestion(path=str(tmp_path if tree == "stateful" else healthy(tree, tmp_path)))
    scanned = scan(question)
    newest = max(save.step for save in scanned.inventory.checkpoints if save.step is not None)
    assert draws_new_order(scanned, question, newest) == is_lawful
    assert not draws_new_order(scanned, question, Step(1)), "no save of that step"
