"""A trainer of which ckpttool knows the trees alone is refused in one sentence, not served by another's rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool.domain.data_position import Unknown
from ckpttool.domain.finding import Finding
from ckpttool.domain.settings import RunConfig, SafeFix, Settings
from ckpttool.trainers import registry
from ckpttool.trainers.abilities import ConfigReader
from ckpttool.trainers.base import Trainer, no_effects
from tests.conftest import FIXTURES
from tests.support.commands import ask
from tests.support.trees import TreeBuilder
from tests.trainers import toy

CONFIG = FIXTURES / "configs" / "pretrain_sink2.yaml"
OF_A_TOY = b"toy\n"


class ToyConfigs:
    """A config is one that says so."""

    def may_be_own(self, content: bytes) -> bool:
        del content
        return True

    def read(self, content: bytes, *, path: str, devices: int | None = None) -> RunConfig | None:
        """Return nothing but whose it is."""
        if content != OF_A_TOY:
            return None
        return RunConfig(
            trainer="toy",
            path=path,
            text=content.decode(),
            settings=Settings(path=path, entries=()),
            world_size=devices,
            global_batch_size=None,
            sink_size=None,
            prefix=None,
            findings=(),
        )

    def saves_in(self, config: RunConfig) -> str | None:
        """Say nothing."""
        del config
        return None

    def lint(self, config: RunConfig) -> tuple[Finding, ...]:
        """Find nothing."""
        return config.findings

    def fixes(self, config: RunConfig) -> tuple[SafeFix, ...]:
        del config
        return ()


class ReadToy(toy.Toy):
    """As the toy, but its configs are read."""

    configs: ConfigReader | None = ToyConfigs()


def known(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TRAINERS", (trainer, *registry.TRAINERS))


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tree of the toy's, of which nothing else is known."""
    known(toy.Toy(), monkeypatch)
    toy.save(tmp_path / "saves", 20)
    return str(tmp_path / "saves")


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A config of the toy's."""
    path = tmp_path / "toy.conf"
    path.write_bytes(OF_A_TOY)
    return str(path)


def refused(*arguments: str) -> str:
    """The one sentence of a refusal."""
    said = ask(*arguments)
    assert said.code == 2, said.stderr + said.stdout
    (sentence,) = (said.stderr or said.stdout).splitlines()
    return sentence


@pytest.mark.parametrize("command", ["resolve", "launch", "health"])
def test_another_trainer_s_config_is_refused(command: str, tree: str, tmp_path: Path) -> None:
    output = ("--output", str(tmp_path / "new.yaml")) if command == "launch" else ()
    sentence = refused(command, tree, "--config", str(CONFIG), *output)
    assert f"{tree} holds checkpoints of Toy, whose configs ckpttool does not read" in sentence
    assert not (tmp_path / "new.yaml").exists()


def test_preflight_says_no_go_and_why(tree: str) -> None:
    said = ask("preflight", tree, "--config", str(CONFIG), "--format", "json")
    assert said.code == 2
    assert "whose configs ckpttool does not read" in said.stdout


def test_what_it_would_take_by_itself_is_not_told_by_another_s_rules(tree: str) -> None:
    assert "is a tree of Toy: --simulate own asks that" in refused("resolve", tree, "--simulate-mindformers", "2.1")
    sentence = refused("resolve", tree, "--simulate", "own")
    assert "ckpttool does not know which checkpoint Toy would take by itself" in sentence


def test_a_config_that_is_read_starts_nothing_that_ckpttool_cannot_start(
    tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(ReadToy(), monkeypatch)
    toy.save(tmp_path / "saves", 20)
    tree, new = str(tmp_path / "saves"), str(tmp_path / "new.yaml")
    words = f"ckpttool does not know how a training is started from Toy: {tree}"
    assert words in refused("launch", tree, "--config", config, "--output", new)
    assert not Path(new).exists()
    assert "without --config and --output `ckpttool launch` says what to tell it" in refused(
        "launch", tree, "--config", config, "--output", new
    )
    assert "Toy is told by" in ask("preflight", tree, "--config", config).stdout
    assert ask("lint-config", config).code == 0


def test_its_config_is_refused_for_checkpoints_of_another(
    tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(ReadToy(), monkeypatch)
    TreeBuilder(tmp_path / "run").legacy(ranks=2).save(epoch=10, step=2)
    sentence = refused("resolve", str(tmp_path / "run"), "--config", config)
    assert f"{config} is a config for Toy, but" in sentence
    assert "holds checkpoints of MindFormers" in sentence


def test_where_its_data_go_on_is_unknown_and_nothing_is_set() -> None:
    effects = no_effects(toy.Toy.title)
    assert effects.position == Unknown(why="ckpttool does not know how Toy resumes")
    assert (effects.settings, effects.findings) == ((), ())


def test_its_checkpoint_is_chosen_all_the_same_and_told_in_its_own_settings(tree: str) -> None:
    document = ask("resolve", tree, "--format", "json").json
    assert document["load"] == {
        "trainer": "toy",
        "path": f"{tree}/step-20",
        "settings": [{"place": "argument:--load", "value": f"{tree}/step-20"}],
        "first": [],
    }
    assert document["data"] is None
    told = ask("resolve", tree)
    assert told.code == 0
    assert "data position  unknown" in told.stdout
    assert "load_checkpoint" not in told.stdout


def test_a_neighbour_that_is_known_is_served_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(ReadToy(), monkeypatch)
    output, new = FIXTURES / "sink2_ckpt" / "output", tmp_path / "new.yaml"
    assert ask("launch", str(output), "--config", str(CONFIG), "--output", str(new)).code == 0
    assert new.exists()
    said = ask("resolve", str(output), "--simulate-mindformers", "2.1", "--format", "json")
    assert (said.code, said.json["resume"] is None) == (0, False)
