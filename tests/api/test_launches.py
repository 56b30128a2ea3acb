"""A launch starts every rank, and does not hide what the plan had to pass over."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ckpttool import api
from ckpttool.cli import exits
from ckpttool.domain.finding import Code
from ckpttool.domain.launch import Launch
from ckpttool.errors import CkptToolError, ExitCode, UnsafeError, UsageError
from tests.conftest import FIXTURES

CONFIG = FIXTURES / "configs" / "pretrain_sink2.yaml"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / "sink2_ckpt" / "output", tmp_path / "output"))


def launched(run: Path, *, base: Path = CONFIG, **settings: object) -> Launch | api.Answer:
    order = api.LaunchOrder(base=str(base), output=str(run / "new.yaml"), **settings)  # type: ignore[arg-type]  # as the test gives them
    question = api.TreeQuestion(path=str(run), config=api.read_config(str(CONFIG)))
    return api.launch(question, api.ResumeQuestion(), api.DataQuestion(), order)


def test_ranks_that_do_not_spread_evenly_are_not_started_in_part(run: Path) -> None:
    with pytest.raises(UsageError, match="4 ranks cannot be spread evenly over 3 nodes"):
        launched(run, nodes=3, master_addr="host")
    assert not (run / "new.yaml").exists()


def test_ranks_that_spread_evenly_are_all_started(run: Path) -> None:
    launch = launched(run, nodes=2, master_addr="host", strict=True)
    assert isinstance(launch, Launch)
    assert [" 4 2 host " in command for command in launch.commands] == [True, True]


@pytest.mark.parametrize(("nodes", "devices"), [(2, 8), (1, 1)])
def test_another_number_of_devices_than_ranks_is_said_and_stops_a_strict_launch(
    run: Path, nodes: int, devices: int
) -> None:
    machines = {"nodes": nodes, "devices_per_node": devices, "master_addr": "host"}
    assert not isinstance(launched(run, strict=True, **machines), Launch)  # type: ignore[arg-type]  # none is the base
    assert not (run / "new.yaml").exists()
    launch = launched(run, **machines)  # type: ignore[arg-type]  # as above
    assert isinstance(launch, Launch)
    said = [one.message for one in launch.plan.findings if one.code is Code.CONFIG_DISAGREES]
    assert any(f"{nodes * devices} will be started" in message for message in said)


def test_a_strict_launch_does_not_fall_back(run: Path) -> None:
    shard = run / "checkpoint" / "rank_2" / "llama2_7b_rank_2_1-30_2.ckpt"
    shard.write_bytes(shard.read_bytes()[:-100])
    assert not isinstance(launched(run, strict=True), Launch)
    assert not (run / "new.yaml").exists()
    fallen_back = launched(run)
    assert isinstance(fallen_back, Launch)
    assert [one.checkpoint.name for one in fallen_back.plan.point.rejected] == ["_1-30_2"]


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
    order = api.LaunchOrder(base=str(base), output=str(run / "new.yaml"))
    question = api.TreeQuestion(path=str(run), config=api.read_config(str(base)))
    refused = api.launch(question, api.ResumeQuestion(), api.DataQuestion(), order)
    assert not isinstance(refused, Launch)
    assert not (run / "new.yaml").exists()
    assert exits.of_refusal(refused.decision) is ExitCode.DAMAGE
    question = replace(question, config=None)
    ready = api.PreflightQuestion(config=str(base), tree=question, choice=api.ResumeQuestion(), data=api.DataQuestion())
    assert exits.of_preflight(api.preflight(ready).checks) is ExitCode.DAMAGE


@pytest.mark.parametrize(
    ("content", "error", "reason"),
    [
        (b"#" * (1 << 20) + b"\n", UnsafeError, "more than 1048576 bytes"),
        (b"# \xff\n" + CONFIG.read_bytes(), UsageError, "'utf-8' codec"),
        (None, UsageError, "not a regular file"),
    ],
)
def test_a_library_that_gives_another_base_than_it_read_gets_a_clear_error(
    run: Path, content: bytes | None, error: type[CkptToolError], reason: str
) -> None:
    base = run / "base.yaml"
    if content is None:
        os.mkfifo(base)  # nobody will ever write into it
    else:
        base.write_bytes(content)
    with pytest.raises(error, match=reason):
        launched(run, base=base)
    assert not (run / "new.yaml").exists()


@pytest.mark.parametrize("name", ["\ud800.yaml", "a\0.yaml"])
def test_a_name_that_no_file_can_have_is_a_clear_error(run: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot read the config"):
        launched(run, base=Path(name))
