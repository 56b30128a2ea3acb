"""The guard without code: a training that knows nothing of it is guarded, and otherwise equal in every bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.errors import UsageError
from ckpttool.guard.autoload import autoload
from ckpttool.guard.switch import REPLAY_VARIABLE, VARIABLE, Switch, environment
from tests.support.answers import cli, document

SCRIPT = Path(__file__).with_name("unguarded.py")
ROOT = SCRIPT.parents[2]


class Ended:
    """A training that ended."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.errors = done.returncode, done.stderr
        self.told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}


def train(folder: Path, guard: str = "", *, before: tuple[str, ...] = (), **settings: Any) -> Ended:  # noqa: ANN401  JSON
    """Train in a process of its own, in a folder, with this value of the variable."""
    inherited = {name: value for name, value in os.environ.items() if name != VARIABLE}
    places = {"PYTHONPATH": str(ROOT)} | ({VARIABLE: guard} if guard else {})
    command = [*before, sys.executable, str(SCRIPT), json.dumps(settings)]
    done = subprocess.run(
        command, cwd=folder, env=inherited | places, capture_output=True, text=True, check=False, timeout=120
    )
    return Ended(done)


def events(folder: Path, kind: str, file: str = "output/guard/events-00000.jsonl") -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / file).read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


@pytest.mark.parametrize(
    "settings",
    [
        {"accumulate": 2},
        *(
            pytest.param(settings, marks=pytest.mark.slow)
            for settings in ({}, {"autocast": True, "accumulate": 2}, {"scaler": True}, {"clip": False}, {"workers": 2})
        ),
    ],
    ids=str,
)
def test_a_guarded_training_is_equal_in_every_bit(settings: dict[str, Any], tmp_path: Path) -> None:
    alone, guarded = train(tmp_path, **settings), train(tmp_path, "output,policy=zscore", **settings)
    assert (alone.code, guarded.code) == (0, 0), guarded.errors
    assert guarded.told["digest"] == alone.told["digest"]
    assert (alone.told["wrapped"], guarded.told["wrapped"]) == (False, True)
    assert len(events(tmp_path, "step")) == 12
    assert [line["switched_on"] for line in events(tmp_path, "run")] == [VARIABLE]
    assert guarded.errors.count("is guarded, by CKPTTOOL_GUARD") == 1
    assert not events(tmp_path, "alarm")


def test_an_update_that_is_not_finite_is_dropped_and_captured(tmp_path: Path) -> None:
    assert not train(tmp_path, bad={"5": "inf"}).told["finite"]
    guarded = train(tmp_path, "output", bad={"5": "inf"})
    assert guarded.told["finite"]
    assert [line["step"] for line in events(tmp_path, "nonfinite")] == [5]
    assert [line["step"] for line in events(tmp_path, "capture")] == [5]
    report = document("guard", "report", str(tmp_path / "output"))
    assert report["switched_on"] == [VARIABLE]


def test_a_spike_is_judged_before_the_training_clips_it(tmp_path: Path) -> None:
    guarded = train(tmp_path, "output,policy=skip,threshold=1000", bad={"7": "spike"})
    assert guarded.code == 0
    assert [line["step"] for line in events(tmp_path, "skip")] == [7]
    watched = train(tmp_path, "watched,policy=skip,threshold=1000,mode=watch", bad={"7": "spike"})
    assert watched.told["digest"] == train(tmp_path, bad={"7": "spike"}).told["digest"]
    (skip,) = events(tmp_path, "skip", "watched/guard/events-00000.jsonl")
    assert (skip["step"], skip["dropped"]) == (7, False)


@pytest.mark.slow
def test_a_loss_is_taken_without_its_scale(tmp_path: Path) -> None:
    train(tmp_path, "plain")
    train(tmp_path, "scaled", scaler=True)
    plain, scaled = (events(tmp_path, "step", f"{name}/guard/events-00000.jsonl") for name in ("plain", "scaled"))
    assert [line["loss"] for line in scaled] == pytest.approx([line["loss"] for line in plain], rel=1e-3)
    assert all(line["overflow"] is False for line in scaled)


@pytest.mark.slow
def test_a_second_optimizer_of_a_model_is_left_alone(tmp_path: Path) -> None:
    guarded = train(tmp_path, "output", second=True)
    assert guarded.code == 0
    assert "is not guarded: another optimizer of the same model is" in guarded.errors
    assert len(events(tmp_path, "step")) == 12


@pytest.mark.slow
def test_two_ranks_decide_together(tmp_path: Path) -> None:
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python")
    guarded = train(tmp_path, "output", before=launcher, bad={"5": "inf"})
    assert guarded.code == 0, guarded.errors
    for rank in (0, 1):
        file = f"output/guard/events-{rank:05}.jsonl"
        assert [line["step"] for line in events(tmp_path, "nonfinite", file)] == [5]


class TestAWrongSetting:
    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("policy=zscore", "must begin with the output folder"),
            ("output,policy=zz", "unknown policy"),
            ("output,polcy=zscore", "unknown setting 'polcy=zscore'"),
            ("output,patrol=often", "must be a number"),
            ("output,mode=on", "act or watch"),
            ("output,threshold=3", "needs a policy"),
        ],
    )
    def test_is_refused_in_one_line(self, text: str, why: str) -> None:
        with pytest.raises(UsageError, match=why):
            Switch.parsed(text)

    def test_leaves_the_training_alone(self, tmp_path: Path) -> None:
        ended = train(tmp_path, "output,policy=zz")
        assert (ended.code, ended.told["wrapped"]) == (0, False)
        assert ended.errors.startswith("ckpttool guard: not switched on: unknown policy 'zz'")
        assert not (tmp_path / "output").exists()

    def test_ends_a_training_that_should_replay_a_step(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv(VARIABLE, "output,policy=zz")
        monkeypatch.setenv(REPLAY_VARIABLE, "output")
        with pytest.raises(SystemExit) as ended:
            autoload()
        assert ended.value.code == 14
        assert capsys.readouterr().err.splitlines()[-1] == "ckpttool guard: replay result: not-replayed"


def test_a_setting_with_commas_goes_on_to_the_next_name() -> None:
    switch = Switch.parsed("output,features=enable:true,with_checksum:true,patrol=5,policy=skip,threshold=2.5")
    assert (switch.features, switch.patrol, switch.threshold) == ("enable:true,with_checksum:true", 5, 2.5)
    assert Switch.parsed(str(switch)) == switch
    assert environment(switch, [("A", "b")])["A"] == "b"


class TestRun:
    def test_starts_the_command_and_ends_as_it_does(self, tmp_path: Path) -> None:
        options = ("-m", "ckpttool", "guard", "run", "--output", "output", "--policy", "skip", "--threshold", "1000")
        ended = train(tmp_path, before=(sys.executable, *options, "--"), bad={"7": "spike"})
        assert ended.code == 0, ended.errors
        assert [line["step"] for line in events(tmp_path, "skip")] == [7]
        code = [sys.executable, *options, "--", sys.executable, "-c", "raise SystemExit(7)"]
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        assert subprocess.run(code, cwd=tmp_path, env=environ, check=False).returncode == 7

    def test_shows_the_variable_and_starts_nothing(self) -> None:
        said = cli("guard", "run", "--policy", "zscore", "--dry-run", "--", "python", "train.py", "--config", "x")
        assert said.stdout.strip() == "CKPTTOOL_GUARD=output,policy=zscore python train.py --config x"

    def test_refuses_before_it_starts(self, tmp_path: Path) -> None:
        assert cli("guard", "run", "--threshold", "3", "--", "true").exit_code == 2
        said = cli("guard", "run", "--", str(tmp_path / "missing"))
        assert (said.exit_code, "cannot be started" in said.stderr) == (2, True)
