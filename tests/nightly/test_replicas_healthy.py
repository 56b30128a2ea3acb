"""A thousand trainings in which nothing went wrong, and a thousand trees of files: no replica may raise an alarm."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool.core.domain.finding import blocking
from ckpttool.core.domain.verdict import Level
from tests.replicas.comparing.test_healthy import BY_REPLICAS, said
from tests.support.healthy_trees import alarms
from tests.support.parallel_trainings import drawn, parallel_tree

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="ten minutes: --nightly")

TREES = 1000


@pytest.mark.parametrize("hundredth", range(100))
def test_no_healthy_training_raises_an_alarm(hundredth: int) -> None:
    for seed in range(hundredth * TREES // 100, (hundredth + 1) * TREES // 100):
        training = drawn(seed)
        assert not [said_of for said_of in said(training) if blocking([said_of[2]])], training


@pytest.mark.parametrize("hundredth", range(100))
def test_no_healthy_tree_raises_an_alarm(tmp_path: Path, hundredth: int) -> None:
    for seed in range(hundredth * TREES // 100, (hundredth + 1) * TREES // 100):
        folder = parallel_tree(tmp_path / str(seed), drawn(seed, most=8))
        found = [finding for level in (Level.CHECKSUM, Level.NUMERICS) for finding in alarms(folder, level)]
        assert not [finding for finding in found if finding.code in BY_REPLICAS], drawn(seed, most=8)
