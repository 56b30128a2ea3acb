"""Answers of postflight about real runs of Transformers and Lightning, killed and resumed rightly and with faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool.core.errors import ExitCode
from tests.nightly.borrowing import told, trainer_python
from tests.nightly.test_huggingface_resumes import PACKAGES as HUGGING_FACE
from tests.nightly.test_lightning_resumes import PACKAGES as LIGHTNING
from tests.support.commands import Said, ask

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("not config.getoption('--nightly')", reason="installs trainers: --nightly"),
]

TENSORBOARD = ("tensorboard==2.21.0", "absl-py", "protobuf")

OK, WRONG, UNKNOWN = ExitCode.OK, ExitCode.DAMAGE, ExitCode.INCOMPLETE
NOT_SHOWN = {"resume-not-shown"}
REPEATED_OR_OTHER = {"resume-data-repeated", "resume-data-other"}

Expected = tuple[ExitCode, set[str]]

IN_TRANSFORMERS: dict[str, Expected] = {
    "right": (OK, set()),
    "scheduler_missing": (WRONG, {"resume-learning-rate-restarted"}),
    "optimizer_missing": (WRONG, {"resume-learning-rate-restarted"}),  # without one file, Trainer loads neither
    "optimizer_new": (WRONG, {"resume-optimizer-lost"}),
    "random_state_missing": (UNKNOWN, {"resume-random-state-lost"}),
    "other_weights": (WRONG, {"resume-other-checkpoint"}),
    "data_from_start": (WRONG, REPEATED_OR_OTHER),
    "other_order": (WRONG, {"resume-data-other"}),
    "older": (WRONG, {"resume-position-wrong"}),
    "scratch": (WRONG, {"resume-position-wrong", "resume-weights-lost"}),
    "only_weights": (WRONG, {"resume-position-wrong"}),
    "by_default": (UNKNOWN, NOT_SHOWN),
}

IN_LIGHTNING: dict[str, Expected] = {
    "right": (UNKNOWN, NOT_SHOWN),  # other dropout masks
    "seed_by_step": (OK, set()),
    "next_epoch": (UNKNOWN, NOT_SHOWN),
    "scheduler_lost": (WRONG, {"resume-learning-rate-restarted"}),
    "optimizer_lost": (WRONG, {"resume-optimizer-lost"}),
    "loader_restarted": (WRONG, REPEATED_OR_OTHER),
    "plain_loader": (WRONG, REPEATED_OR_OTHER),
    "plain_loader_at_the_end_of_an_epoch": (UNKNOWN, NOT_SHOWN),
    "other_weights": (WRONG, {"resume-other-checkpoint"}),
    "older": (WRONG, {"resume-position-wrong"}),
    "scratch": (WRONG, {"resume-position-wrong", "resume-weights-lost"}),
    "only_weights": (WRONG, {"resume-position-wrong"}),
    "by_default": (UNKNOWN, NOT_SHOWN),
}

WITH_THE_PLAN_OF_ANOTHER_SAVE = {"scheduler_missing", "optimizer_missing", "random_state_missing"}
"""Ways in which `resolve` rejects the save that the run loaded, because a file is missing."""


def assert_expected(said: Said, expected: Expected) -> None:
    code, findings = expected
    found = {finding["code"] for finding in said.json["findings"]}
    assert (said.code, bool(found), found <= findings) == (code, bool(findings), True), said.json["summary"]
    if findings is not REPEATED_OR_OTHER:
        assert found == findings


def planned(tree: str) -> Said:
    """The answer with the plan from a pipe."""
    return ask("postflight", "-", "--json", stdin=ask("resolve", tree, "--json").stdout)


@pytest.fixture(scope="module")
def transformers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("transformers")
    ways = told(trainer_python(home / "venv", *HUGGING_FACE, *TENSORBOARD), "hf_postflight.py", str(home / "runs"))
    assert {*ways} == {*IN_TRANSFORMERS}
    return home / "runs"


@pytest.fixture(scope="module")
def lightning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("lightning")
    ways = told(trainer_python(home / "venv", *LIGHTNING), "lightning_postflight.py", str(home / "runs"))
    assert {*ways} == {*IN_LIGHTNING}
    return home / "runs"


class TestTransformers:
    @pytest.mark.parametrize("way", IN_TRANSFORMERS)
    def test_the_answer(self, transformers: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(transformers / way)
        expected = IN_TRANSFORMERS[way]
        assert_expected(ask("postflight", "out", "--from-step", "60", "--json"), expected)
        if way in WITH_THE_PLAN_OF_ANOTHER_SAVE:
            assert planned("out").json["findings"][0]["code"] == "resume-position-wrong"
        else:
            assert_expected(planned("out"), expected)
        if way != "by_default":  # nothing was printed but the progress bar
            printed = ("--before", "first.log", "--after", "second.log", "--from-step", "60")
            assert_expected(ask("postflight", *printed, "--json"), expected)

    def test_the_console_of_a_run_without_an_entry_is_no_log(self, transformers: Path) -> None:
        logs = (
            "--before",
            str(transformers / "by_default/first.log"),
            "--after",
            str(transformers / "by_default/second.log"),
        )
        assert ask("postflight", *logs, "--from-step", "60").code == UNKNOWN

    @pytest.mark.parametrize("way", ["older", "scratch", "only_weights"])
    def test_without_a_plan_an_older_start_is_never_right(self, transformers: Path, way: str) -> None:
        assert ask("postflight", str(transformers / way / "out")).code == UNKNOWN


class TestLightning:
    @pytest.mark.parametrize("way", IN_LIGHTNING)
    def test_the_answer(self, lightning: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(lightning / way)
        expected = IN_LIGHTNING[way]
        tree = "lightning_logs/version_0/checkpoints"
        assert_expected(ask("postflight", tree, "--from-step", "50", "--json"), expected)
        folders = ("--before", "lightning_logs/version_0", "--after", "lightning_logs/version_1")
        if way != "by_default":  # the resumed run has no log yet
            assert_expected(ask("postflight", tree, *folders, "--from-step", "50", "--json"), expected)
        assert_expected(planned(tree), expected)

    @pytest.mark.parametrize("way", ["older", "scratch", "only_weights"])
    def test_without_a_plan_an_older_start_is_never_right(self, lightning: Path, way: str) -> None:
        assert ask("postflight", str(lightning / way / "lightning_logs/version_0/checkpoints")).code == UNKNOWN
