"""The guard in the real DeepSpeed, on two ranks: a dropped update takes the path of an overflow on both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.nightly.borrowing import deepspeed_python
from tests.nightly.engines import PRECISIONS, Ran, bits, changeless, kinds, run

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="installs DeepSpeed: --nightly")

HUGGING_FACE = (
    "transformers==5.23.0", "accelerate==1.15.0", "safetensors==0.8.0", "huggingface-hub==2.4.0", "tokenizers==0.23.3",
    "numpy", "packaging", "pyyaml", "regex", "filelock", "fsspec", "httpx2", "httpcore2", "h11", "anyio", "idna",
    "truststore", "click", "typing-extensions", "hf-xet",
)  # fmt: skip
STAGES = (1, 2, 3)
BAD = {"3": "inf", "4": "loss", "5": "spike"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return deepspeed_python(tmp_path_factory.mktemp("deepspeed") / "venv", *HUGGING_FACE)


@pytest.fixture(scope="module")
def ran(python: str, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    cases: dict[str, Any] = {}
    for stage in STAGES:
        for precision in PRECISIONS:
            usual = {"stage": stage, "precision": precision, "accumulate": 1 + stage % 2, "steps": 6, "clip": 1.0}
            cases[f"{stage}-{precision}-bad"] = usual | {"bad": BAD, "policy": 20.0}
            cases[f"{stage}-{precision}-healthy"] = usual | {"bad": {}, "policy": 20.0}
            cases[f"{stage}-{precision}-alone"] = usual | {"bad": {}, "without": True}
        usual = {"stage": stage, "precision": "bf16", "accumulate": 2, "steps": 6, "clip": 0.0}
        cases[f"{stage}-zclip"] = usual | {"bad": {"5": "spike"}, "policy": "zclip"}
        cases[f"{stage}-unclipped"] = usual | {"bad": {"5": "spike"}, "without": True}
        cases[f"{stage}-watch"] = usual | {"bad": BAD, "policy": 20.0, "mode": "watch"}
        cases[f"{stage}-watched"] = usual | {"bad": BAD, "without": True}
        cases[f"{stage}-overflow"] = usual | {"bad": {}, "precision": "16", "scale": 24}
    return run(python, "deepspeed_guard.py", tmp_path_factory.mktemp("ran"), cases, *cases)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("stage", STAGES)
def test_a_dropped_update_is_an_overflow_of_all_ranks(ran: Ran, stage: int, precision: str) -> None:
    for rank in ran[f"{stage}-{precision}-bad"]:
        assert changeless(rank) == [3, 4, 5]
        assert kinds(rank) == [("nonfinite", 3), ("nonfinite", 4), ("skip", 5)]
        seen = rank["seen"]
        assert [step["applied"] for step in seen] == [True, True, False, False, False, True]
        assert [step["skipped"] for step in seen] == [0, 0, 1, 2, 3, 3]
        assert seen[1]["lr"] == seen[4]["lr"] > seen[5]["lr"]
        scales = [1024, 1024, 512, 256, 128, 128] if precision == "16" else [1] * 6
        assert [step["scale"] for step in seen] == scales


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("stage", STAGES)
def test_a_healthy_training_is_equal_in_every_bit(ran: Ran, stage: int, precision: str) -> None:
    healthy, alone = ran[f"{stage}-{precision}-healthy"], ran[f"{stage}-{precision}-alone"]
    assert bits(healthy) == bits(alone)
    assert [kinds(rank) for rank in healthy] == [[], []]
    norms = [event[2]["global_norm"] for event in healthy[0]["events"] if event[0] == "step"]
    assert norms == pytest.approx([step["norm"] for step in alone[0]["seen"]], rel=1e-5)


@pytest.mark.parametrize("stage", STAGES)
def test_a_policy_that_clips_lowers_the_clipping_of_that_step(ran: Ran, stage: int) -> None:
    clipped, unclipped = ran[f"{stage}-zclip"], ran[f"{stage}-unclipped"]
    assert kinds(clipped[0]) == [("clip", 5)]
    for own, other in zip(bits(clipped), bits(unclipped), strict=True):
        assert own[:4] == other[:4]
        assert own[4] != other[4]


@pytest.mark.parametrize("stage", STAGES)
def test_a_guard_that_watches_changes_nothing(ran: Ran, stage: int) -> None:
    assert bits(ran[f"{stage}-watch"]) == bits(ran[f"{stage}-watched"])
    assert kinds(ran[f"{stage}-watch"][0])[1:] == [("nonfinite", 4), ("skip", 5)]


@pytest.mark.parametrize("stage", STAGES)
def test_an_overflow_is_the_business_of_its_loss_scaler(ran: Ran, stage: int) -> None:
    for rank in ran[f"{stage}-overflow"]:
        assert kinds(rank) == [("overflow", step) for step in range(1, 7)]
        assert [step["scale"] for step in rank["seen"]] == [2.0**power for power in range(23, 17, -1)]


def test_the_environment_alone_guards_it(ran: Ran, python: str, tmp_path: Path) -> None:
    usual = {"precision": "bf16", "accumulate": 2, "steps": 6, "clip": 1.0, "without": True}
    cases = {str(stage): usual | {"stage": stage, "bad": BAD} for stage in STAGES}
    cases["healthy"] = usual | {"stage": 1, "bad": {}}
    guarded = run(python, "deepspeed_guard.py", tmp_path, cases, *cases, guard=f"{tmp_path}/events")
    assert bits(guarded["healthy"]) == bits(ran["1-bf16-alone"])
    assert [changeless(rank) for stage in STAGES for rank in guarded[str(stage)]] == [[3, 4]] * 6


@pytest.mark.parametrize("stage", [2, 3])
def test_in_hugging_faces_trainer(python: str, tmp_path: Path, stage: int) -> None:
    def trained(name: str, guard: str = "", **settings: object) -> list[dict[str, Any]]:
        asked = {"stage": stage, "bad": [3], "steps": 5, **settings}
        return run(python, "hf_deepspeed_guard.py", tmp_path / name, asked, guard=guard)[""]

    for rank in trained("code"):
        assert (changeless(rank), kinds(rank), rank["ends"]) == ([3], [("nonfinite", 3)], 5)
    assert [changeless(rank) for rank in trained("alone", f"{tmp_path}/events", without=True)] == [[3], [3]]
    for rank in trained("stopped", bad=[2, 3], count=2):
        assert (changeless(rank), rank["ends"]) == ([2, 3], 3)
        assert rank["stopped"].startswith("step 3: 2 updates in a row")
    assert bits(trained("healthy", bad=[])) == bits(trained("plain", bad=[], without=True))
