"""What a trainer does with a save: its own choice, where its data go on, which sizes it refuses, what it is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ckpttool.core.decide.data_effects import against_size, by_step, consumed, effect_findings
from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.finding import Finding, blocking
from ckpttool.core.domain.load_settings import LoadSettings, Place, TrainerSetting
from ckpttool.core.domain.plan import JudgedStart, Outcome, ResumePlan, Simulation
from ckpttool.core.domain.question import AskedSizes
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.errors import ExitCode
from ckpttool.trainers import registry
from ckpttool.trainers.abilities import OwnStart
from ckpttool.trainers.base import Effects, Refusal, Resume
from tests.support.answers import cli, document
from tests.support.json_schemas import problems_of
from tests.trainers import toy
from tests.trainers.toy import save

BATCH = 4


class PicksByName:
    """Takes the highest number, and finds out later."""

    def pick(self, start: OwnStart, version: str | None) -> Simulation:
        """Stop where the files of that save do not hold together."""
        if not start.inventory.checkpoints:
            return self._told(None, Outcome.SCRATCH, "there is none, and it only warns", version)
        newest = max(start.inventory.checkpoints, key=lambda checkpoint: checkpoint.step or 0)
        whole = not blocking(start.checked(newest).findings)
        outcome = Outcome.LOADS if whole else Outcome.STOPS
        return self._told(newest.name, outcome, "the highest number is taken, whatever is in it", version)

    def as_it_stands(self, start: OwnStart, plan: ResumePlan) -> JudgedStart:
        """Take the same."""
        del plan
        return JudgedStart(simulation=self.pick(start, None))

    def _told(self, name: str | None, outcome: Outcome, because: str, version: str | None) -> Simulation:
        return Simulation(
            trainer="toy", title="Toy", version=version, would_resume=name, outcome=outcome, because=because
        )


class Told(toy.ToyLayout):
    """Every kind of place."""

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Name the save on the command line or in code, and in a tracker first."""
        path = f"{inventory.root}/{checkpoint.name}"

        def at(place: str, value: str | bool | int, **beside: bool) -> TrainerSetting:
            return TrainerSetting(place=Place.parsed(place), value=value, **beside)

        settings = (
            at("argument:--load", path, is_path=True),
            at("argument:--step", checkpoint.step or 0),
            at("argument:--strict", value=True),
            at("environment:TOY_RESUME", "yes, do"),
            at("config:train.resume", path, is_path=True),
            at("code:toy.fit(..., ckpt_path)", path, is_path=True, is_alternative=True),
            at("code:toy.fit(..., step)", checkpoint.step or 0, is_alternative=True),
            at("file:latest", checkpoint.name),
        )
        remarks = ("never --load latest",)
        return LoadSettings(trainer="toy", path=path, settings=settings, remarks=remarks)


def objections(checkpoint: Checkpoint, asked: AskedSizes) -> tuple[Finding, ...]:
    """Refuse another number of tensor-parallel ranks; cut anew for any other world."""
    tensor = against_size(checkpoint, asked, saved=AskedSizes(tensor=2), refuses="its optimizer state is cut")
    return (*tensor, *against_size(checkpoint, asked, saved=AskedSizes(world=4), refuses=None))


def effects(resume: Resume) -> Effects:
    """Recompute the place from the step."""
    checkpoint = replace(resume.plan.point.checkpoint, scalars=Scalars(global_batch_size=BATCH))
    resumed = replace(resume.plan, point=replace(resume.plan.point, checkpoint=checkpoint))
    read = consumed(resumed, resume.inventory, resume.data)
    position = by_step(resume.plan.point.step, read, epoch_steps=10, why="Toy recomputes it from the step")
    if position.lost or position.repeated:
        size = TrainerSetting(place=Place.parsed("argument:--batch"), value=BATCH)
        position = replace(position, exact_with=(size,))
    return Effects(position=position, settings=(), findings=effect_findings(position, title=toy.TOY.title))


SPEAKING = replace(
    toy.TOY,
    layouts_at=("tests.trainers.test_what_it_does_by_itself:TOLD_SIGNS",),
    simulator_at="tests.trainers.test_what_it_does_by_itself:PicksByName",
    objections_at="tests.trainers.test_what_it_does_by_itself:objections",
    effects_at="tests.trainers.test_what_it_does_by_itself:effects",
)
"""Knows what it does."""
TOLD_SIGNS = Told().signs


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TRAINERS", (SPEAKING, *registry.TRAINERS))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three saves; the newest lacks a file."""
    for step in (4, 8, 12):
        save(tmp_path / "saves", step)
    (tmp_path / "saves" / "step-12" / "__1_0.toy").unlink()
    return tmp_path / "saves"


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """Two saves; nothing is wrong."""
    for step in (8, 12):
        save(tmp_path / "saves", step)
    return tmp_path / "saves"


class TestItsOwnChoice:
    def test_json_names_trainer_version_and_outcome(self, tree: Path) -> None:
        answer = document("resolve", str(tree), "--simulate", "toy@1.2")
        told = {key: answer["simulation"][key] for key in ("trainer", "version", "would_resume", "outcome")}
        assert told == {"trainer": "toy", "version": "1.2", "would_resume": "step-12", "outcome": "stops"}
        assert "mindformers" not in answer
        assert problems_of(answer) == []
        assert "simulation" not in document("resolve", str(tree))

    @pytest.mark.parametrize(
        ("asked", "why"),
        [
            (["--simulate", "toyy"], "unknown trainer 'toyy': did you mean toy?"),
            (["--simulate", "mindformers"], "is a tree of Toy: use --simulate own"),
            (["--simulate-mindformers", "2.1"], "is a tree of Toy: use --simulate own"),
            (["--simulate", "own", "--simulate-mindformers", "2.1"], "are equivalent: use only one"),
        ],
    )
    def test_another_trainers_choice_is_refused(self, tree: Path, asked: list[str], why: str) -> None:
        answer = cli("resolve", str(tree), *asked)
        assert (answer.exit_code, why in answer.stderr) == (ExitCode.USAGE, True)


class TestItsData:
    def test_json_has_it_in_samples(self, whole: Path) -> None:
        answer = document("resolve", str(whole), "--gbs", "2")
        position: dict[str, object] = answer["position"]
        told = {key: position[key] for key in ("kind", "effect", "samples", "source", "batches", "repeated", "lost")}
        assert told == {
            "kind": "samples",
            "effect": "repeats",
            "samples": 48,
            "source": "computed",
            "batches": 12,
            "repeated": 24,
            "lost": 0,
        }
        assert position["exact_with"] == [{"place": "argument:--batch", "value": 4}]
        assert problems_of(answer) == []

    @pytest.mark.parametrize("asked", [["--new-dataset"], ["--dataset-changed-at", "4"]])
    def test_what_it_cannot_be_told_is_refused_and_not_passed_over(self, whole: Path, asked: list[str]) -> None:
        answer = cli("resolve", str(whole), *asked)
        assert answer.exit_code == ExitCode.USAGE
        assert f"{asked[0]} applies only to trainers with a setting for the batches to skip; Toy" in answer.stderr


class TestWhatItIsTold:
    def test_each_place_is_a_text_to_copy(self, whole: Path) -> None:
        path = f"{whole}/step-12"
        lines = [" ".join(line.split()) for line in cli("resolve", str(whole)).output.splitlines()]
        start = lines.index("Load it with:")
        assert lines[start + 1 : start + 7] == [
            "first write step-12 to latest",
            "environment TOY_RESUME='yes, do'",
            f"arguments --load {path} --step 12 --strict",
            f"config train.resume: {path}",
            f"or code toy.fit(..., ckpt_path='{path}', step=12)",
            "never --load latest",
        ]

    @pytest.mark.parametrize("command", [["resolve"], ["launch"], ["resolve", "--format", "yaml"]])
    def test_no_text_to_copy_holds_what_a_terminal_would_act_on(self, tmp_path: Path, command: list[str]) -> None:
        root = tmp_path / "it's \x1b[31mred\n"
        save(root, 12)
        text = cli(command[0], str(root), *command[1:]).output
        assert "\x1b" not in text
        assert "toy.fit(..., ckpt_path=" in text


def test_a_place_is_read_as_it_is_spelled() -> None:
    for text in ("code:toy.fit(..., ckpt_path)", "file:latest", "config:a.b", "argument:--x", "environment:X"):
        assert str(Place.parsed(text)) == text
