"""A real training in FP8 that goes wrong, from two curves to the culprits and their cure: each run is a training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TOY = ROOT / "benchmarks" / "fp8_toy.py"

nightly = pytest.mark.skipif("not config.getoption('--nightly')", reason="trains for minutes: --nightly")


def asked(*command: str, folder: Path) -> dict[str, Any]:
    """Ask a command of `ckpttool fp8` for JSON."""
    line = [sys.executable, "-m", "ckpttool", "fp8", *command, "--json", "--no-config"]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 10, 14}, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def train(*command: str, folder: Path) -> None:
    subprocess.run([sys.executable, str(TOY), *command], cwd=folder, capture_output=True, check=True)


@nightly
def test_real_trainings_name_both_backward_products_and_current_scaling_as_their_cure(tmp_path: Path) -> None:
    train("train", "trained", folder=tmp_path)
    baseline, candidate, repeat = (f"trained/{run}/log.csv" for run in ("bf16", "fp8", "bf16_regrouped"))
    compared = asked("compare", baseline, candidate, "--repeat", repeat, folder=tmp_path)
    assert (compared["class"], compared["effect"], compared["matters"]) == ("early", "yes", True)
    logs = ("--baseline", baseline, "--candidate", candidate, "--repeat", repeat)
    there = ("--framework", "te", "--recipe", "delayed", "--output", "plan")
    plan = asked("plan", "trained/fp8/saves", "--checkpoint-step", "10", *logs, *there, folder=tmp_path)
    starts = {each["from_last"]: each["start_step"] for each in plan["experiments"] if each["expressible"]}
    assert starts == {False: 10, True: 200}  # before the damage, and where the baseline's log can still judge
    train("run", "plan", "trained", folder=tmp_path)
    first = asked("verdict", "plan", folder=tmp_path)
    restored = {shown["id"]: shown["recovered"] for shown in first["experiments"]}
    assert first["culprits"] == []
    assert max(restored["E4f"], restored["E4d"], restored["E4w"]) < 0.9 <= restored["E3"]
    asked("plan", "--round", "2", *there[:2], "--output", "plan", folder=tmp_path)
    train("run", "plan", "trained", folder=tmp_path)
    second = asked("verdict", "plan", folder=tmp_path)
    assert (second["verdict"], second["culprits"]) == ("culprit", ["dgrad", "wgrad"])
    assert second["explains"] >= 0.9
    assert second["shares"] is not None
    assert {shown["as_planned"] for shown in second["experiments"] if shown["id"].startswith("E4")} == {"yes"}
    asked("plan", "--round", "3", *there[:2], "--output", "plan", folder=tmp_path)
    train("run", "plan", "trained", folder=tmp_path)
    third = asked("verdict", "plan", folder=tmp_path)
    assert third["culprits"] == ["dgrad", "wgrad"]
    assert third["cure"]["restores"]
