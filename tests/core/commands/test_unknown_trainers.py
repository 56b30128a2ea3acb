"""A trainer of which ckpttool knows the trees alone is refused in one sentence, not served by another's rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.settings import RunConfig, SafeFix, Settings
from ckpttool.core.formats.config_text import ConfigFile
from ckpttool.trainers import registry
from ckpttool.trainers.base import Trainer
from tests.support.commands import ask
from tests.support.trees import TreeBuilder
from tests.trainers import toy

OF_A_TOY = b"toy\n"


class ToyConfigs:
    """A config is one that says so."""

    def may_be_own(self, content: bytes) -> bool:
        del content
        return True

    def read(self, file: ConfigFile, *, devices: int | None = None) -> RunConfig | None:
        """Return nothing but whose it is."""
        if file.content != OF_A_TOY:
            return None
        return RunConfig(
            trainer="toy",
            path=file.path,
            text=file.content.decode(),
            settings=Settings(path=file.path, entries=()),
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


READ_TOY = replace(toy.TOY, configs_at="tests.core.commands.test_unknown_trainers:ToyConfigs")
"""As the toy, but its configs are read."""


def known(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TRAINERS", (trainer, *registry.TRAINERS))


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tree of the toy's, of which nothing else is known."""
    known(toy.TOY, monkeypatch)
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


def test_what_it_would_take_by_itself_is_not_told_by_another_s_rules(tree: str) -> None:
    assert "is a tree of Toy: use --simulate own" in refused("resolve", tree, "--simulate-mindformers", "2.1")
    sentence = refused("resolve", tree, "--simulate", "own")
    assert "ckpttool does not know which checkpoint Toy would load on its own" in sentence


def test_a_config_that_is_read_starts_nothing_that_ckpttool_cannot_start(
    tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(READ_TOY, monkeypatch)
    toy.save(tmp_path / "saves", 20)
    tree, new = str(tmp_path / "saves"), str(tmp_path / "new.yaml")
    words = f"ckpttool cannot write a launch config for Toy ({tree}"
    assert words in refused("launch", tree, "--config", config, "--output", new)
    assert not Path(new).exists()
    assert "`ckpttool launch` without --config and --output shows the settings to use" in refused(
        "launch", tree, "--config", config, "--output", new
    )
    assert "Toy loads it through arguments" in ask("preflight", tree, "--config", config).stdout
    assert ask("lint-config", config).code == 0


def test_its_config_is_refused_for_checkpoints_of_another(
    tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(READ_TOY, monkeypatch)
    TreeBuilder(tmp_path / "run").legacy(ranks=2).save(epoch=10, step=2)
    sentence = refused("resolve", str(tmp_path / "run"), "--config", config)
    assert f"{config} is a config for Toy, but" in sentence
    assert "contains checkpoints of MindFormers" in sentence
