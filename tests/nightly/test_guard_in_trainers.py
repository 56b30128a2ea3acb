"""The guard in Lightning, Hugging Face's Trainer and Accelerate, the real ones: what is dropped is in no checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.nightly.borrowing import SCRIPTS, told, trainer_python
from tests.nightly.engines import changeless

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="installs a trainer: --nightly")

LIGHTNING = ("lightning==2.6.6", "lightning-utilities", "torchmetrics", "tqdm", "fsspec", "packaging", "pyyaml")
HUGGING_FACE = (
    "transformers==5.23.0", "accelerate==1.15.0", "safetensors==0.8.0", "huggingface-hub==2.4.0", "tokenizers==0.23.3",
    "numpy", "packaging", "pyyaml", "regex", "tqdm", "psutil", "filelock", "fsspec", "httpx2", "httpcore2", "h11",
    "anyio", "idna", "truststore", "click", "typing-extensions", "hf-xet",
)  # fmt: skip
TRAINERS = {"lightning_guard.py": LIGHTNING, "hf_guard.py": HUGGING_FACE, "accelerate_guard.py": HUGGING_FACE}

BAD = {"3": "inf", "5": "padding", "7": "spike"}
KINDS = {"32": ["nonfinite", "nonfinite", "skip"], "bf16": ["nonfinite", "nonfinite", "skip"]}
KINDS["16"] = ["nonfinite", "nonfinite", "overflow"]  # what is too large for the loss scaler is its own business

Told: TypeAlias = dict[str, Any]


class Run:
    """Trains in one of the trainers, and tells what came of it."""

    def __init__(self, script: str, home: Path) -> None:
        self._script = script
        self._python = trainer_python(home / "venv", *TRAINERS[script])

    def __call__(self, folder: Path, **settings: object) -> Told:
        usual = {"precision": "32", "accumulate": 1, "clip": 1.0, "steps": 8, "bad": BAD}
        done: Told = told(self._python, self._script, str(folder), json.dumps(usual | settings))
        return done

    def again(self, capture: Path) -> Told:
        """Compute a captured step again in another process."""
        entry = f"{self._script.removesuffix('.py')}:replay"
        done: Told = told(self._python, "nan_replay.py", str(capture), entry)
        return done

    def by_itself(self, capture: Path, **settings: object) -> subprocess.CompletedProcess[str]:
        """Let the script begin with a captured step, on healthy data."""
        usual = {"precision": "32", "accumulate": 1, "clip": 1.0, "steps": 4, "bad": {}}
        script = SCRIPTS / self._script
        return subprocess.run(
            [self._python, str(script), str(capture.parent / "again"), json.dumps(usual | settings)],
            env=os.environ | {"CKPTTOOL_GUARD_REPLAY": str(capture)},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )


@pytest.fixture(scope="module")
def lightning(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run("lightning_guard.py", tmp_path_factory.mktemp("lightning"))


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run("hf_guard.py", tmp_path_factory.mktemp("huggingface"))


@pytest.fixture(scope="module", params=["lightning", "hugging_face"])
def run(request: pytest.FixtureRequest) -> Run:
    trained: Run = request.getfixturevalue(request.param)
    return trained


def kinds(found: Told) -> list[str]:
    """Return what was decided: numbers and captures of steps have tests of their own."""
    return [event["kind"] for event in found["events"] if event["kind"] not in {"step", "capture"}]


def checkpoint(folder: Path, step: int) -> str:
    """Return the path of the checkpoint that either trainer saved at a step."""
    (found,) = [*folder.glob(f"checkpoints/step={step}.ckpt"), *folder.glob(f"checkpoint-{step}")]
    return str(found)


@pytest.mark.parametrize("clip", [1.0, None])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("precision", ["32", "bf16", "16"])
def test_a_dropped_step_leaves_weights_moments_and_buffers_as_they_were_in_every_bit(
    run: Run, tmp_path: Path, precision: str, accumulate: int, clip: float | None
) -> None:
    found = run(tmp_path, precision=precision, accumulate=accumulate, clip=clip)
    saved = {each["step"]: each for each in found["checkpoints"]}
    assert list(saved) == list(range(1, 9))
    assert all(each["finite"] for each in saved.values())
    assert [each["updates"] for each in saved.values()] == [1, 2, 2, 3, 3, 4, 4, 5]
    assert [step for step in range(2, 9) if saved[step]["bits"] == saved[step - 1]["bits"]] == [3, 5, 7]
    assert kinds(found) == KINDS[precision]


@pytest.mark.parametrize("clip", [0.01, None])
@pytest.mark.parametrize(("precision", "accumulate"), [("32", 3), ("bf16", 1), ("16", 3)])
def test_where_nothing_is_dropped_a_guarded_training_is_the_same_in_every_bit(
    run: Run, tmp_path: Path, precision: str, accumulate: int, clip: float | None
) -> None:
    settings = {"precision": precision, "accumulate": accumulate, "clip": clip, "bad": {}, "steps": 4}
    guarded = run(tmp_path / "guarded", **settings)
    plain = run(tmp_path / "plain", **settings, without=True)
    assert [each["bits"] for each in guarded["checkpoints"]] == [each["bits"] for each in plain["checkpoints"]]
    assert kinds(guarded) == []


@pytest.mark.parametrize(("precision", "accumulate"), [("32", 1), ("bf16", 2), ("16", 2)])
def test_the_environment_alone_guards_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, accumulate: int
) -> None:
    settings = {"precision": precision, "accumulate": accumulate, "without": True}
    plain = run(tmp_path / "plain", **settings, bad={}, steps=4)
    monkeypatch.setenv("CKPTTOOL_GUARD", f"{tmp_path / 'events'},policy=skip,threshold=30")
    equal = run(tmp_path / "equal", **settings, bad={}, steps=4)
    assert [each["bits"] for each in equal["checkpoints"]] == [each["bits"] for each in plain["checkpoints"]]
    found = run(tmp_path / "guarded", **settings)
    assert all(each["finite"] and each["guard"] is not None for each in found["checkpoints"])
    assert [each["updates"] for each in found["checkpoints"]] == [1, 2, 2, 3, 3, 4, 4, 5]
    lines = (tmp_path / "events" / "guard" / "events-00000.jsonl").read_text().splitlines()
    assert {event["switched_on"] for line in lines if (event := json.loads(line))["kind"] == "run"} == {
        "CKPTTOOL_GUARD"
    }


def test_the_environment_leaves_a_guard_in_the_code_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPTTOOL_GUARD", str(tmp_path / "events"))
    guarded = run(tmp_path)
    assert kinds(guarded) == KINDS["32"]
    assert not (tmp_path / "events").exists()


def test_what_was_counted_before_a_restart_goes_on_and_ends_the_training(run: Run, tmp_path: Path) -> None:
    bad = {"3": "inf", "4": "padding", "5": "spike"}
    before = run(tmp_path, bad=bad, steps=4, count=3)
    found = run(tmp_path, bad=bad, steps=8, count=3, resume=checkpoint(tmp_path, 4), begin=4)
    assert (kinds(before), kinds(found)) == (["nonfinite", "nonfinite"], ["skip", "stop"])
    assert found["ends"] == 5
    assert found["checkpoints"][-1]["bits"] == before["checkpoints"][1]["bits"]


def test_a_checkpoint_that_was_saved_without_a_guard_is_gone_on_from_with_one(run: Run, tmp_path: Path) -> None:
    run(tmp_path, bad={}, steps=2, without=True)
    found = run(tmp_path, bad={"4": "inf"}, steps=5, resume=checkpoint(tmp_path, 2), begin=2)
    assert kinds(found) == ["blind", "nonfinite"]
    assert found["checkpoints"][-1]["guard"] is not None


def test_and_one_with_a_guard_without_it(run: Run, tmp_path: Path) -> None:
    run(tmp_path, bad={}, steps=2)
    assert run(tmp_path, bad={}, steps=4, resume=checkpoint(tmp_path, 2), without=True)["ends"] == 4


@pytest.mark.parametrize("kind", ["inf", "padding"])
@pytest.mark.parametrize(("precision", "accumulate"), [("32", 1), ("bf16", 3), ("16", 3)])
def test_a_step_that_was_not_finite_is_captured_and_comes_out_the_same_in_another_process(
    run: Run, tmp_path: Path, precision: str, accumulate: int, kind: str
) -> None:
    found = run(tmp_path, bad={"3": kind}, steps=4, precision=precision, accumulate=accumulate)
    assert [event["kind"] for event in found["events"] if event["step"] == "3"][-3:] == ["capture", "step", "nonfinite"]
    again = run.again(tmp_path / "guard/captures/nan-at-00000003")
    assert (again["exit"], again["reproduced"], again["step"]) == (0, True, 3)
    (rank,) = again["ranks"]
    assert (rank["losses_equal"], rank["gradients_equal"]) == (accumulate, rank["gradients"])
    assert again["origin"]["kind"] == ("input" if kind == "inf" else "op")


@pytest.mark.parametrize("without", [False, True], ids=["in code", "by the environment"])
@pytest.mark.parametrize(
    ("precision", "accumulate", "kind"),
    [("32", 1, "inf"), ("32", 3, "padding"), ("bf16", 3, "padding"), ("16", 2, "padding")],
)
def test_its_own_script_begins_with_the_captured_step(  # noqa: PLR0917  as parametrized
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    accumulate: int,
    kind: str,
    *,
    without: bool,
) -> None:
    settings = {"precision": precision, "accumulate": accumulate, "without": without}
    if without:
        monkeypatch.setenv("CKPTTOOL_GUARD", str(tmp_path))
    run(tmp_path, bad={"3": kind}, steps=4, **settings)
    monkeypatch.delenv("CKPTTOOL_GUARD", raising=False)
    done = run.by_itself(tmp_path / "guard/captures/nan-at-00000003", **settings)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    equal = f"{accumulate} of {accumulate} losses and 6 of 6 gradients are equal in every bit"
    assert f"step 3 was reproduced: {equal}" in done.stderr
    other = run.by_itself(tmp_path / "guard/captures/nan-at-00000003", **settings | {"accumulate": accumulate + 1})
    assert (other.returncode, "begins another one before its update" in other.stderr) == (14, True), other.stderr


def test_lightning_that_may_not_stop_yet_ends_by_an_error_two_dropped_steps_later(
    lightning: Run, tmp_path: Path
) -> None:
    bad = dict.fromkeys("345678", "inf")
    found = lightning(tmp_path, bad=bad, count=3, least=8)
    assert kinds(found) == ["nonfinite"] * 2 + ["alarm"] + ["nonfinite", "stop"] * 3
    assert [event["name"] for event in found["events"] if event["kind"] == "alarm"] == ["captures-in-a-row"]
    assert found["stopped"].startswith("step 7: 5 updates in a row")
    found = lightning(tmp_path / "free", bad=bad, count=3)
    assert (found["stopped"], found["ends"]) == (None, 5)


def test_what_hugging_face_logs_is_the_norm_before_clipping_also_of_a_dropped_step(
    hugging_face: Run, tmp_path: Path
) -> None:
    logged = hugging_face(tmp_path, bad={"2": "spike"}, steps=2, clip=0.5)["logged"]
    assert 0.5 < logged[0] < 100 < logged[1]


def test_hugging_face_that_restores_its_callbacks_by_itself_keeps_one_guard(hugging_face: Run, tmp_path: Path) -> None:
    bad = {"2": "inf", "3": "inf"}
    hugging_face(tmp_path, bad=bad, steps=2)
    found = hugging_face(tmp_path, bad=bad, steps=4, count=2, resume=checkpoint(tmp_path, 2), restores=True)
    assert kinds(found) == ["nonfinite", "stop"]
    assert [event["step"] for event in found["events"] if event["kind"] == "step"] == ["3"]
    assert found["left"]


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_the_loop_that_the_manual_has_for_accelerate_drops_replays_and_resumes(
    precision: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = Run("accelerate_guard.py", tmp_path_factory.mktemp("accelerate"))
    first = run(tmp_path, precision=precision, bad=5, resume=False)
    assert first["events"] == [["capture", 3], ["nonfinite", 3]]
    assert (first["step"], first["dropped"], first["untouched"], first["finite"]) == (6, 1, [True], True)
    answer = run.again(tmp_path / "guard/captures/nan-at-00000003")
    (rank,) = answer["ranks"]
    assert (answer["exit"], answer["reproduced"], answer["origin"]["kind"]) == (0, True, "input")
    assert rank["gradients_equal"] == rank["gradients"] == 6
    assert answer["findings"] == []
    second = run(tmp_path, precision=precision, bad=None, resume=True)
    assert (second["began"], second["step"], second["dropped"], second["events"]) == (6, 12, 1, [])


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_the_environment_alone_guards_a_loop_with_accelerate(
    precision: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run("accelerate_guard.py", tmp_path_factory.mktemp("accelerate"))
    plain = run(tmp_path, precision=precision, bad=None, without=True)
    monkeypatch.setenv("CKPTTOOL_GUARD", str(tmp_path / "events"))
    assert run(tmp_path, precision=precision, bad=None, without=True) == plain
    assert changeless(run(tmp_path, precision=precision, bad=5, without=True)) == [3]
    lines = (tmp_path / "events" / "guard" / "events-00000.jsonl").read_text().splitlines()
    dropped = [event for line in lines if (event := json.loads(line))["kind"] == "nonfinite"]
    assert [event["step"] for event in dropped] == [3]
