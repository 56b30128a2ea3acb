"""The training's own script begins with a captured step, and says whether it came out in every bit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.errors import UsageError
from ckpttool.guard.switch import REPLAY_VARIABLE, VARIABLE, ReplaySwitch
from tests.support.answers import cli

SCRIPT = Path(__file__).with_name("scripted.py")
ROOT = SCRIPT.parents[2]
CAPTURE = "output/guard/captures/nan-at-00000004"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python")

IN_CODE: dict[str, Any] = {"code": True, "accumulate": 3}  # in bfloat16, the last bit of a weight does not matter
AUTOMATIC: dict[str, Any] = {"accumulate": 2, "workers": 2, "draws": "list"}
RESULTS = {0: "reproduced", 10: "not-reproduced", 14: "not-replayed"}
EQUAL = "3 of 3 losses and 8 of 8 gradients are equal in every bit"


def run(
    folder: Path, settings: dict[str, Any], *before: str, replay: str = "", types: str = ""
) -> subprocess.CompletedProcess[str]:
    """Start the script in a folder: captured, or replayed."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(VARIABLE)}
    environ["PYTHONPATH"] = str(ROOT)
    if replay:
        environ[REPLAY_VARIABLE] = replay
    elif not settings.get("code"):
        environ[VARIABLE] = "output"
    return subprocess.run(
        [*before, sys.executable, str(SCRIPT), json.dumps(settings)],
        cwd=folder,
        env=environ,
        input=types,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def captured(folder: Path, settings: dict[str, Any], *before: str) -> None:
    done = run(folder, {**settings, "bad": 4}, *before)
    assert done.returncode == 0, done.stderr
    assert (folder / CAPTURE / "capture.json").exists()


def replayed(folder: Path, settings: dict[str, Any], replay: str = "output", **others: Any) -> tuple[int, str]:  # noqa: ANN401  settings
    """Replay with healthy data and another seed: what is not put in place is another value."""
    done = run(folder, {**settings, "seed": 7, **others}, replay=replay)
    assert done.stderr.splitlines()[-1] == f"ckpttool guard: replay result: {RESULTS[done.returncode]}"
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def in_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    captured(folder, IN_CODE)
    return folder


@pytest.fixture(scope="module")
def automatic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("automatic")
    captured(folder, AUTOMATIC)
    return folder


def test_the_step_comes_out_in_every_bit_and_ends_the_training(in_code: Path) -> None:
    done = run(in_code, {**IN_CODE, "seed": 7}, replay="output")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.splitlines() == [
        "ckpttool guard: this step is step 4 of output; no events and captures are written",
        f"ckpttool guard: step 4 was reproduced: {EQUAL}; not finite: side.weight, side.bias",
        "ckpttool guard: replay result: reproduced",
    ]


def test_a_script_without_a_guard_gets_the_labels_from_its_own_loader(automatic: Path) -> None:
    code, said = replayed(automatic, AUTOMATIC)
    assert code == 0, said
    assert "2 of 2 losses and 8 of 8 gradients are equal in every bit" in said


@pytest.mark.sample(1)
@pytest.mark.parametrize("fault", ["weight", "batch", "inside"])
def test_another_weight_batch_or_random_number_does_not_come_out(in_code: Path, fault: str) -> None:
    code, said = replayed(in_code, IN_CODE, fault=fault)
    assert code == 10, said
    assert "step 4 was not reproduced: " in said
    assert "; the environment is the same" in said


@pytest.mark.sample(1)
@pytest.mark.parametrize("fault", ["weight", "labels", "inside"])
def test_nor_does_it_in_a_script_without_a_guard(automatic: Path, fault: str) -> None:
    code, said = replayed(automatic, AUTOMATIC, fault=fault)
    assert code == 10, said
    assert "step 4 was not reproduced: " in said


@pytest.mark.slow
def test_a_change_of_the_weights_in_the_file_is_noticed_before_the_training_begins(
    in_code: Path, tmp_path: Path
) -> None:
    shutil.copytree(in_code / "output", tmp_path / "output")
    shard = tmp_path / CAPTURE / "r00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    code, said = replayed(tmp_path, IN_CODE)
    assert (code, "rank 0's tensors were changed after they were written" in said) == (14, True)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({"width": 32}, "the training's model has another parameter main.0.weight"),
        ({"accumulate": 4}, "the captured step has 3 micro-batches, and this training begins another one"),
        ({"accumulate": 1}, "the captured step has 3 micro-batches, and this training updates after 1"),
        ({"steps": 0}, "was not replayed: the training ended before the end of the step"),
        ({"classes": 3}, "micro-batch 1 differs from the captured one: batch has 4 items, the captured one 3"),
    ],
)
def test_a_training_that_does_not_fit_is_refused(in_code: Path, others: dict[str, Any], why: str) -> None:
    code, said = replayed(in_code, IN_CODE, **others)
    assert (code, why in said) == (14, True), said


@pytest.mark.slow
def test_labels_that_no_loader_returned_are_missing(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"draws": "tensors"}
    captured(tmp_path, settings)
    code, said = replayed(tmp_path, settings)
    assert (code, "its loss is computed outside of the model" in said) == (14, True), said
    inside = {**settings, "inside": True}  # a model that computes its loss needs no labels
    captured(tmp_path, inside)
    assert replayed(tmp_path, inside, replay=f"{CAPTURE}-1")[0] == 0


@pytest.mark.slow
def test_a_training_goes_on_and_writes_nothing(in_code: Path) -> None:
    before = sorted(in_code.rglob("*"))
    done = run(in_code, {**IN_CODE, "steps": 2}, replay="output,continue=true")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"finite": True, "steps": 2}), done.stderr
    assert done.stderr.splitlines()[-2:] == [
        "ckpttool guard: replay result: reproduced",
        "ckpttool guard: the training continues; it is guarded, but writes no events and captures",
    ]
    assert sorted(in_code.rglob("*")) == before


@pytest.mark.sample(1)
@pytest.mark.parametrize(("stop", "sees"), [("before", "0 tensors"), ("after", "8 tensors")])
def test_the_debugger_opens_in_the_loop(in_code: Path, stop: str, sees: str) -> None:
    commands = "len([1 for value in model.parameters() if value.grad is not None]), 'tensors'\np batch[0].shape\nc\n"
    done = run(in_code, {**IN_CODE, "seed": 7}, replay=f"output,stop={stop}", types=commands)
    assert done.returncode == 0, done.stderr
    number, noun = sees.split()
    assert f"(Pdb) ({number}, '{noun}')" in done.stdout
    assert "torch.Size([8, 8])" in done.stdout
    quit_it = run(in_code, IN_CODE, replay=f"output,stop={stop}", types="q\n")
    assert (quit_it.returncode, "the training was ended in the debugger" in quit_it.stderr) == (14, True)
    assert quit_it.stderr.splitlines()[-1] == "ckpttool guard: replay result: not-replayed"


@pytest.mark.slow
@pytest.mark.parametrize("guard", [{}, {"code": True}], ids=["automatic", "code"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"bf16": True, "accumulate": 3}, {"scaler": True, "accumulate": 2}, {"workers": 2}, {"inside": True}],
    ids=str,
)
def test_every_kind_of_step_comes_out(settings: dict[str, Any], guard: dict[str, Any], tmp_path: Path) -> None:
    captured(tmp_path, {**settings, **guard})
    code, said = replayed(tmp_path, {**settings, **guard})
    assert (code, "gradients are equal in every bit" in said) == (0, True), said


@pytest.mark.slow
@pytest.mark.parametrize("guard", [{}, {"code": True}], ids=["automatic", "code"])
def test_two_ranks_replay_their_own_parts(guard: dict[str, Any], tmp_path: Path) -> None:
    settings = {"accumulate": 2, **guard}
    captured(tmp_path, settings, *TORCHRUN)
    done = run(tmp_path, {**settings, "seed": 7}, *TORCHRUN, replay="output")
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert f"rank {rank}: step 4 was reproduced: 2 of 2 losses and 8 of 8 gradients" in done.stderr
    done = run(tmp_path, {**settings, "fault": "inside"}, *TORCHRUN, replay="output")
    assert (done.returncode, "was not reproduced" in done.stderr) == (1, True)  # as torchrun ends
    assert "exitcode  : 10" in done.stderr
    assert done.stderr.count("ckpttool guard: replay result: not-reproduced\n") == 2
    code, said = replayed(tmp_path, settings)
    assert (code, "is from 2 ranks, and this training has 1" in said) == (14, True)
    (tmp_path / CAPTURE / "r00001.json").unlink()
    done = run(tmp_path, settings, *TORCHRUN, replay="output")
    assert (done.returncode, "has no files of rank 1" in done.stderr) == (1, True)


@pytest.mark.slow
def test_three_ranks_let_ddp_arrange_its_buckets_first(tmp_path: Path) -> None:
    settings, three = {"code": True, "width": 300}, (*TORCHRUN[:-2], "3", "--no-python")
    captured(tmp_path, settings, *three)
    done = run(tmp_path, {**settings, "seed": 7}, *three, replay="output")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("step 4 was reproduced: 1 of 1 losses and 8 of 8 gradients") == 3


def test_a_training_ends_at_its_first_capture(tmp_path: Path) -> None:
    done = run(tmp_path, {"code": True, "bad": 4, "stops": True})
    assert (done.returncode, done.stdout) == (1, "")
    assert "GuardStop: step 4 was captured, and stop_on_capture is set" in done.stderr
    assert (tmp_path / CAPTURE / "capture.json").exists()


class TestTheRequest:
    @pytest.mark.parametrize(
        "text", ["output", "a,b/nan-at-00000004", "output,stop=before", "a=b,stop=after,continue=true"]
    )
    def test_is_read_as_it_is_written(self, text: str) -> None:
        assert str(ReplaySwitch.parsed(text)) == text

    @pytest.mark.parametrize("text", ["output,stop=now", "output,continue=maybe"])
    def test_is_refused_if_a_value_is_unknown(self, text: str) -> None:
        with pytest.raises(UsageError, match="must be"):
            ReplaySwitch.parsed(text)

    def test_is_shown_by_run(self, in_code: Path) -> None:
        said = cli("guard", "run", "--dry-run", "--replay", str(in_code), "--stop", "after", "--", "python", "train.py")
        assert said.exit_code == 12  # the folder above the output folder
        path = str(in_code / "output")
        said = cli("guard", "run", "--dry-run", "--replay", path, "--stop", "after", "--", "python", "train.py")
        assert said.stdout.strip() == (
            f"CKPTTOOL_GUARD=output CKPTTOOL_GUARD_REPLAY={in_code / CAPTURE},stop=after python train.py"
        )
        assert cli("guard", "run", "--stop", "after", "--", "true").exit_code == 2

    @pytest.mark.slow
    def test_of_run_begins_the_training(self, in_code: Path) -> None:
        command = (sys.executable, "-m", "ckpttool", "guard", "run", "--replay", "output", "--")
        done = run(in_code, {**IN_CODE, "seed": 7}, *command)
        assert (done.returncode, "step 4 was reproduced" in done.stderr) == (0, True), done.stderr
