"""`ckpttool log calibrate`: thresholds that fit, or why there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool.core.formats.safe_yaml import parse_document
from tests.conftest import Golden
from tests.support.commands import ask
from tests.support.training_logs import calm, write_log


def normal(here: Path, steps: int = 400, bad: int = 2) -> None:
    """A normal stretch with some spikes in it."""
    norms = {100 + 40 * index: 9.0 for index in range(bad)}
    embeddings = {step: 100 * calm(step) for step in range(1, steps + 1)}
    write_log(here / "train.log", range(1, steps + 1), norms=norms, embeddings=embeddings)


@pytest.mark.parametrize(("form", "suffix"), [("table", "txt"), ("json", "json")])
def test_a_normal_stretch_gives_the_golden_thresholds(form: str, suffix: str, here: Path, golden: Golden) -> None:
    normal(here)
    said = ask("calibrate", "train.log", "--format", form)
    assert said.code == 0
    golden(f"calibrate/normal.{suffix}", said.stdout)


def test_the_yaml_is_read_back_as_floats(here: Path) -> None:
    normal(here)
    yaml = ask("calibrate", "train.log", "--format", "json").json["yaml"]
    assert isinstance(yaml, str)
    data = parse_document(yaml.encode(), where="pasted").data
    monitor, callbacks = data["monitor_config"], data["callbacks"]
    assert isinstance(monitor, dict)
    assert isinstance(callbacks, list)
    assert type(monitor["global_norm_spike_threshold"]) is float
    assert type(monitor["global_norm_spike_count_threshold"]) is int
    assert type(callbacks[0]["embedding_local_norm_threshold"]) is float


def test_200_points_are_enough_and_199_are_refused(here: Path) -> None:
    write_log(here / "train.log", range(1, 201))
    enough = ask("calibrate", "train.log", "--warm-up", "0")
    assert enough.code == 0
    refused = ask("calibrate", "train.log", "--warm-up", "1", "--format", "json")
    assert (refused.code, refused.json["yaml"]) == (14, None)
    table = " ".join(ask("calibrate", "train.log", "--warm-up", "1").stdout.split())
    assert "199 values after the warm-up are not enough: 200 are needed" in table
