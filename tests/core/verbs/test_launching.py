"""A launch starts every rank, and does not hide what the plan had to pass over."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import ckpttool
from ckpttool.core.domain.finding import Code, Finding, Row
from ckpttool.core.domain.launch import Launch
from ckpttool.core.domain.preflight import Check, Preflight
from ckpttool.core.errors import ExitCode, UsageError
from ckpttool.core.formats.safe_yaml import read_bytes
from ckpttool.core.storage.disk import LocalDisk, Room
from ckpttool.types import DataQuestion, LaunchOrder, PreflightQuestion, ResumeQuestion, TreeQuestion
from tests.conftest import FIXTURES
from tests.support.commands import ask
from tests.support.trees import TreeBuilder
from tests.trainers.mindformers.test_own_start import RANK

CONFIG = FIXTURES / "configs" / "pretrain_sink2.yaml"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / "sink2_ckpt" / "output", tmp_path / "output"))


def launched(run: Path, *, base: Path = CONFIG, **settings: object) -> Launch | Preflight:
    order = LaunchOrder(base=str(base), output=str(run / "new.yaml"), **settings)  # type: ignore[arg-type]  # as the test gives them
    return ckpttool.launch(
        TreeQuestion(path=str(run)),
        ResumeQuestion(),
        DataQuestion(),
        order=order,
    )


def test_ranks_that_do_not_spread_evenly_are_not_started_in_part(run: Path) -> None:
    with pytest.raises(UsageError, match="4 ranks cannot be spread evenly over 3 nodes"):
        launched(run, nodes=3, master_addr="host")
    assert not (run / "new.yaml").exists()


@pytest.mark.parametrize(("nodes", "devices"), [(2, 8), (1, 1)])
def test_another_number_of_devices_than_ranks_stops_a_launch_unless_it_is_accepted(
    run: Path, nodes: int, devices: int
) -> None:
    machines: dict[str, Any] = {"nodes": nodes, "devices_per_node": devices, "master_addr": "host"}
    refused = launched(run, **machines)
    assert isinstance(refused, Preflight)
    (reason,) = [reason for check in refused.checks for reason in check.reasons if reason.blocks]
    assert reason.finding.code is Code.CONFIG_DISAGREES
    assert f"{nodes * devices} will start" in reason.finding.message
    assert reason.finding.remedy
    assert not (run / "new.yaml").exists()
    for strict in (False, True):
        accepted = launched(run, allowed=(Code.CONFIG_DISAGREES,), strict=strict, force=strict, **machines)
        assert isinstance(accepted, Launch)


class SomeDisk(LocalDisk):
    def __init__(self, free: int) -> None:
        self.free = free

    def room(self, folder: str) -> Room:  # noqa: ARG002  # the same everywhere
        return Room(free_bytes=self.free, free_files=None)


def without_start(answer: Preflight) -> tuple[Check, ...]:
    """Return all but the start: preflight's is the one with the base config, launch's with the one that it writes."""
    return tuple(check for check in answer.checks if check.name != "start")


def test_a_launch_and_the_preflight_before_it_say_the_same(run: Path) -> None:
    """Wherever preflight says no-go nothing is written, with the same reasons: of the config, the batch, the disk."""
    odd = run / "odd.yaml"
    odd.write_text(CONFIG.read_text().replace("run_mode: 'train'", "run_mode: 'predict'"))
    tree, choice = TreeQuestion(path=str(run)), ResumeQuestion()
    for base, data, disk, code in (
        (odd, DataQuestion(), SomeDisk(1 << 40), Code.NOT_A_TRAINING),
        (CONFIG, DataQuestion(new_global_batch=12), SomeDisk(1 << 40), Code.CONFIG_DISAGREES),
        (CONFIG, DataQuestion(), SomeDisk(0), Code.DISK_SPACE_LOW),
    ):
        asked = PreflightQuestion(config=str(base), tree=tree, choice=choice, data=data, devices=4)
        ready = ckpttool.preflight(asked, disk=disk)
        assert [reason.finding.code for check in ready.checks for reason in check.reasons if reason.blocks] == [code]
        order = LaunchOrder(base=str(base), output=str(run / "new.yaml"))
        refused = ckpttool.launch(tree, choice, data, order=order, disk=disk)
        assert isinstance(refused, Preflight)
        assert without_start(refused) == without_start(ready)
        assert not (run / "new.yaml").exists()
        allowed = ckpttool.launch(tree, choice, data, order=replace(order, allowed=(code,)), disk=disk)
        assert isinstance(allowed, Launch)
        assert [one.code for one in allowed.plan.findings].count(code) == 1
        (run / "new.yaml").unlink()


def test_a_command_stands_alone_on_its_line_however_narrow_the_terminal_is(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    words = ("launch", str(run), "--config", str(CONFIG), "--output", str(run / "new.yaml"), "--force")
    commands = ask(*words, "--json").json["commands"]
    assert isinstance(commands, list)
    assert commands
    assert {*commands} <= {*ask(*words).stdout.splitlines()}


KEPT_BY_AN_OLDER_LAUNCH = "  data_skip_steps: 60\n  ignore_data_skip: False\n"


def with_trainer_keys(run: Path, keys: str) -> Path:
    base = run / "base.yaml"
    base.write_text(CONFIG.read_text().replace("trainer:\n", f"trainer:\n{keys}", 1))
    return base


def test_no_launch_config_has_more_under_trainer_than_its_base(run: Path) -> None:
    assert isinstance(launched(run), Launch)
    before, after = (yaml.safe_load(path.read_text()) for path in (CONFIG, run / "new.yaml"))
    assert after["trainer"] == before["trainer"]
    assert (after["data_skip_steps"], after["ignore_data_skip"]) == (60, False)


@pytest.mark.parametrize("keys", [KEPT_BY_AN_OLDER_LAUNCH, "  ignore_data_skip: True\n", "  own: 1\n"])
def test_a_base_that_cannot_start_is_refused(run: Path, keys: str) -> None:
    base = with_trainer_keys(run, keys)
    refused = launched(run, base=base)
    assert isinstance(refused, Preflight)
    assert not (run / "new.yaml").exists()
    assert refused.exit_code is ExitCode.DAMAGE


def test_what_is_launched_is_made_of_the_text_that_was_judged(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = run / "base.yaml"
    base.write_bytes(CONFIG.read_bytes())

    def read_and_replaced(path: str) -> bytes:
        content = read_bytes(path)
        base.write_text("run_mode: eval\n")  # by somebody, a moment later
        return content

    monkeypatch.setattr("ckpttool.core.verbs.configs.read_bytes", read_and_replaced)
    assert isinstance(launched(run, base=base), Launch)
    before, after = yaml.safe_load(CONFIG.read_text()), yaml.safe_load((run / "new.yaml").read_text())
    assert after["runner_config"] == before["runner_config"]


class TestWhatAStartWithTheWrittenConfigLoads:
    """Something that `launch` does not write may overrule what it writes."""

    @staticmethod
    def launch(tmp_path: Path, text: str, *allowed: Row) -> Launch | Preflight:
        (tmp_path / "base.yaml").write_text(text)
        tree = TreeQuestion(path=str(tmp_path / "output"))
        order = LaunchOrder(base=str(tmp_path / "base.yaml"), output=str(tmp_path / "new.yaml"), allowed=allowed)
        return ckpttool.launch(tree, order=order)

    @staticmethod
    def against(answer: Launch | Preflight) -> Finding:
        assert isinstance(answer, Preflight)
        blocking = [reason.finding for check in answer.checks for reason in check.reasons if reason.blocks]
        assert len(blocking) == 1, blocking
        return blocking[0]

    @pytest.fixture
    def text(self, tmp_path: Path) -> str:
        tree = TreeBuilder(tmp_path).legacy()
        tree.save(epoch=15, step=2)
        tree.save(epoch=20, step=2)
        return RANK.format(load="''", resume="False", fmt="ckpt")

    def test_a_launch_whose_start_would_stop_at_a_model_beside_the_saves_writes_nothing(
        self, text: str, tmp_path: Path
    ) -> None:
        model = tmp_path / "output/checkpoint/model.safetensors"
        model.write_bytes(b"")
        refused = self.launch(tmp_path, text)
        found = self.against(refused)
        assert (found.code, found.remedy) == (Code.START_DIFFERS, f"move {model} out of its folder, and run again")
        assert found.message.startswith("with the config that `ckpttool launch` writes, MindFormers would stop without")
        assert isinstance(refused, Preflight)
        assert refused.exit_code is ExitCode.DAMAGE
        assert not (tmp_path / "new.yaml").exists()
        accepted = self.launch(tmp_path, text, Code.START_DIFFERS)
        assert isinstance(accepted, Launch)
        assert Code.START_DIFFERS in {finding.code for finding in accepted.plan.findings}
        (tmp_path / "new.yaml").unlink()
        model.unlink()
        assert isinstance(self.launch(tmp_path, text), Launch)
