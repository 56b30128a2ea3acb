"""The real Trainer and the real Accelerate resume from what a plan names, at its step, and read what it says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.data_position import DataEffect, GoesOn
from ckpttool.core.domain.plan import Outcome, ResumePlan
from ckpttool.types import DataQuestion, TreeQuestion
from tests.nightly.borrowing import told, trainer_python
from tests.support.answers import plan

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="installs a trainer: --nightly")

BATCH, EPOCH = 4, 40
IN_CODE = "code:trainer.train(..., resume_from_checkpoint)"

PACKAGES = (
    "transformers==5.23.0", "accelerate==1.15.0",
    "safetensors==0.8.0", "huggingface-hub==2.4.0", "tokenizers==0.23.3", "numpy", "packaging", "pyyaml", "regex",
    "tqdm", "psutil", "filelock", "fsspec", "httpx2", "httpcore2", "h11", "anyio", "idna", "truststore", "click",
    "typing-extensions", "hf-xet",
)  # fmt: skip


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("huggingface") / "venv"
    return trainer_python(home, *PACKAGES)


@pytest.fixture(scope="module")
def reference(python: str, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """What a run reads that nothing stops."""
    out = tmp_path_factory.mktemp("reference") / "out"
    read: list[int] = told(python, "hf_run.py", str(out), str(BATCH), "1", "30")["read"]
    return read


class TestTrainer:
    @pytest.fixture
    def saves(self, python: str, tmp_path: Path) -> Path:
        told(python, "hf_run.py", str(tmp_path / "out"), str(BATCH), "1", "14")
        return tmp_path / "out"

    @pytest.mark.parametrize(("micro", "accumulation"), [(4, 1), (2, 2), (8, 1), (2, 1)])
    def test_it_reads_next_what_the_plan_says(
        self, python: str, saves: Path, reference: list[int], micro: int, accumulation: int
    ) -> None:
        new = micro * accumulation
        answer = plan(saves, data=DataQuestion(new_global_batch=new))
        assert isinstance(answer.data, GoesOn)
        assert answer.data.samples is not None
        assert (answer.data.effect is DataEffect.UNKNOWN) == (new == BATCH)  # the second epoch: exact under a condition
        assert ("accelerate is 1.15 or newer" in answer.data.exact_if) == (new == BATCH)
        there = answer.data.samples + (answer.data.lost or 0) - (answer.data.repeated or 0)
        path, until = str(answer.load.value(IN_CODE)), str(answer.point.step + 1)
        resumed = told(python, "hf_run.py", str(saves), str(micro), str(accumulation), until, path)
        assert resumed == {"step": answer.point.step, "read": reference[there : there + new]}

    def test_what_it_takes_by_itself_and_what_comes_of_it_is_told(self, python: str, saves: Path) -> None:
        newest = saves / "checkpoint-14"
        (newest / "optimizer.pt").unlink()
        own = ckpttool.library.simulate(ckpttool.resolve(TreeQuestion(path=str(saves))))
        assert (own.would_resume, own.outcome) == ("checkpoint-14", Outcome.LOADS)
        assert told(python, "hf_run.py", str(saves), str(BATCH), "1", "15", "True")["step"] == 14
        shutil.rmtree(saves / "checkpoint-15")
        (newest / "model.safetensors").write_bytes((newest / "model.safetensors").read_bytes()[:100])
        assert ckpttool.library.simulate(ckpttool.resolve(TreeQuestion(path=str(saves)))).outcome is Outcome.STOPS
        with pytest.raises(AssertionError):
            told(python, "hf_run.py", str(saves), str(BATCH), "1", "15", "True")
        assert plan(saves).point.step == 12


class TestAccelerate:
    @pytest.fixture
    def project(self, python: str, tmp_path: Path) -> Path:
        told(python, "accelerate_run.py", str(tmp_path), "14")
        return tmp_path

    def asked(self, project: Path) -> tuple[ResumePlan, list[str]]:
        answer = plan(project, data=DataQuestion(old_global_batch=BATCH))
        return answer, [str(setting.value) for setting in answer.load.settings]

    def test_it_goes_on_at_the_step_and_the_sample_and_numbers_on(self, python: str, project: Path) -> None:
        answer, told_it = self.asked(project)
        assert isinstance(answer.data, GoesOn)
        begin = (answer.data.samples or 0) % EPOCH
        resumed = told(python, "accelerate_run.py", str(project), "16", *told_it)
        assert resumed == {"step": answer.point.step, "batch": list(range(begin, begin + BATCH))}
        assert {save.name for save in (project / "checkpoints").iterdir()} == {f"checkpoint_{n}" for n in range(4)}

    def test_nothing_of_ours_comes_in_its_way_and_a_copy_does(self, python: str, project: Path) -> None:
        tree = TreeQuestion(path=str(project / "checkpoints"))
        list(ckpttool.seal(ckpttool.scan(tree), "all"))
        assert told(python, "accelerate_run.py", str(project), "14", "-", "9")["step"] == 12
        shutil.copytree(project / "checkpoints/checkpoint_0", project / "checkpoints/checkpoint_9.bak")
        assert told(python, "accelerate_run.py", str(project), "6", "-", "9")["step"] == 4
        answer, told_it = self.asked(project)
        assert answer.point.step == 12
        assert told(python, "accelerate_run.py", str(project), "14", *told_it)["step"] == 12
