"""A device that errs once in real trainers: the step is computed again as the trainer does, and leaves no trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.nightly.borrowing import told, trainer_python
from tests.nightly.test_guard_in_trainers import HUGGING_FACE, LIGHTNING

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="installs a trainer: --nightly")

SAME = "this rank's next step, recomputed immediately, had the same bits"

Told: TypeAlias = dict[str, Any]


@pytest.fixture(scope="module")
def lightning(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trainer_python(tmp_path_factory.mktemp("lightning") / "venv", *LIGHTNING)


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trainer_python(tmp_path_factory.mktemp("huggingface") / "venv", *HUGGING_FACE)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
class TestLightning:
    def trained(self, python: str, folder: Path, **settings: object) -> Told:
        usual = {"fault": "none", "again": True, "strike": False}
        found: Told = told(python, "lightning_recheck.py", str(folder), json.dumps(usual | settings))
        return found

    def test_a_fault_is_transient_and_metrics_logs_and_lists_are_as_without_the_recomputation(
        self, lightning: str, tmp_path: Path, precision: str, accumulate: int
    ) -> None:
        settings: dict[str, object] = {"precision": precision, "accumulate": accumulate, "fault": "once"}
        again = self.trained(lightning, tmp_path / "a", **settings)
        alone = self.trained(lightning, tmp_path / "b", **settings, again=False)
        assert [cause[:2] for cause in again.pop("causes")] == [[3, "transient"]]
        assert [cause[:2] for cause in alone.pop("causes")] == [[3, "unknown"]]
        assert again == alone

    def test_a_healthy_step_has_the_same_bits(
        self, lightning: str, tmp_path: Path, precision: str, accumulate: int
    ) -> None:
        settings: dict[str, object] = {"precision": precision, "accumulate": accumulate}
        struck = self.trained(lightning, tmp_path / "a", **settings, strike=True)
        alone = self.trained(lightning, tmp_path / "b", **settings)
        ((_, cause, why),) = struck.pop("causes")
        assert (cause, why.partition(";")[0]) == ("unknown", SAME)
        assert alone.pop("causes") == []
        assert struck == alone


@pytest.mark.parametrize("trainer", ["huggingface", "accelerate", "unaware"])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_fault_is_transient_and_a_healthy_step_has_the_same_bits(
    hugging_face: str, tmp_path: Path, trainer: str, precision: str, accumulate: int
) -> None:
    def trained(name: str, *, fault: str = "none", strike: bool = False) -> Told:
        settings = {"trainer": trainer, "precision": precision, "accumulate": accumulate}
        settings |= {"fault": fault, "strike": strike}
        found: Told = told(hugging_face, "loops_recheck.py", str(tmp_path / name), json.dumps(settings))
        return found

    assert [cause[:2] for cause in trained("a", fault="once")["causes"]] == [[3, "transient"]]
    struck, alone = trained("b", strike=True), trained("c")
    ((_, cause, why),) = struck.pop("causes")
    assert (cause, why.partition(";")[0]) == ("unknown", SAME)
    assert alone.pop("causes") == []
    assert struck == alone
