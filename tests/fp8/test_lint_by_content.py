"""`ckpttool lint` tells scripts and logs from training configs by their content."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

from tests.conftest import FIXTURES
from tests.fp8.test_lint import BAD, GOOD
from tests.support.commands import ask

LOG = FIXTURES / "fp8" / "megatron_0.14_hybrid.log"
BROKEN = "trainer:\n  a: b: c  # --fp8-format hybrid --lr 3\n"


@pytest.fixture
def files(here: Path) -> Path:
    (here / "good.sh").write_text(GOOD)
    (here / "bad.sh").write_text(BAD)
    (here / "without.sh").write_text("#!/bin/bash\ntorchrun pretrain_gpt.py --bf16 --lr 1e-4\n")
    (here / "train.log.gz").write_bytes(gzip.compress(LOG.read_bytes()))
    shutil.copy(LOG, here / "train.log")
    shutil.copy(FIXTURES / "configs/pretrain_sink2.yaml", here / "c.yaml")
    (here / "broken.yaml").write_text(BROKEN)
    (here / "broken.cfg").write_text(f"runner_config: 1\n{BROKEN}")
    (here / "notes.log").write_text("step: 1: loss: 3\n")
    return here


@pytest.mark.parametrize("name", ["good.sh", "bad.sh", "without.sh", "train.log", "train.log.gz"])
def test_a_script_and_a_log_are_checked_for_fp8_alone(name: str, files: Path) -> None:
    assert files.exists()
    said, alone = ask("lint", name, "--json"), ask("fp8", "lint", name, "--json")
    assert (said.code, said.json["checks"]) == (alone.code, alone.json["checks"])


@pytest.mark.parametrize("name", ["broken.yaml", "broken.cfg", "notes.log"])
def test_what_cannot_be_read_and_may_be_a_config_is_a_problem(name: str, files: Path) -> None:
    assert files.exists()
    assert ask("lint", name).code == ask("lint-config", name).code == 2


def test_configs_and_scripts_are_checked_together(files: Path) -> None:
    assert files.exists()
    said = ask("lint", "without.sh", "c.yaml", "--json")
    assert (said.code, [check["name"] for check in said.json["checks"]]) == (0, ["c.yaml", "without.sh"])
    assert ask("lint", "train.log", "c.yaml").code == 10
