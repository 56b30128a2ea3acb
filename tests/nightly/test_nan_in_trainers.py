"""What was not finite in the real Lightning and the real Hugging Face Trainer is so again in another process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nightly.borrowing import told, trainer_python
from tests.nightly.test_guard_in_trainers import HUGGING_FACE, LIGHTNING

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="installs a trainer: --nightly")


@pytest.fixture(scope="module")
def lightning(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trainer_python(tmp_path_factory.mktemp("lightning") / "venv", *LIGHTNING)


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trainer_python(tmp_path_factory.mktemp("hugging_face") / "venv", *HUGGING_FACE)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_step_of_lightning_comes_out_in_every_bit(lightning: str, precision: str, tmp_path: Path) -> None:
    told(lightning, "nan_lightning.py", "train", str(tmp_path), precision)
    answer = told(lightning, "nan_lightning.py", "replay", str(tmp_path))
    assert (answer["reproduced"], answer["step"], answer["environment"]) == (True, 4, [])
    (rank,) = answer["ranks"]
    assert [rank[name] for name in ("losses_equal", "gradients_equal", "gradients")] == [2, 6, 6]
    assert (answer["origin"]["op"], answer["origin"]["phase"], answer["origin"]["micro_batch"]) == (
        "sqrt",
        "backward",
        1,
    )


@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_a_step_of_hugging_faces_trainer_comes_out_in_every_bit(
    hugging_face: str, precision: str, tmp_path: Path
) -> None:
    told(hugging_face, "nan_hf.py", "train", str(tmp_path), precision)
    answer = told(hugging_face, "nan_hf.py", "replay", str(tmp_path))
    assert (answer["reproduced"], answer["step"]) == (True, 3)
    (rank,) = answer["ranks"]
    assert [rank[name] for name in ("losses_equal", "gradients_equal", "gradients")] == [2, 28, 28]
    assert (answer["origin"]["op"], answer["origin"]["phase"]) == ("div", "forward")
    assert [difference["what"] for difference in answer["environment"]] == ["config.use_cache"]  # which it sets itself
