"""The manifests for Kubernetes that the manual ships, by the schema of Kubernetes' own API."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import GUIDE

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="installs a package: --nightly")


@pytest.fixture(scope="module")
def validate(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Install what knows the schemas, beside everything else."""
    there = tmp_path_factory.mktemp("kubernetes")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", there, "kubernetes-validate"], check=True)
    return ["env", f"PYTHONPATH={there}", sys.executable, "-m", "kubernetes_validate", "--strict"]


def verdict(command: list[str], file: Path) -> tuple[int, str]:
    done = subprocess.run([*command, file], capture_output=True, text=True, check=False, env=dict(os.environ))
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("name", "resources"), [("sidecar", 1), ("daemonset", 3)])
def test_kubernetes_knows_every_field_and_misses_none(validate: list[str], name: str, resources: int) -> None:
    code, said = verdict(validate, GUIDE / "watch" / f"{name}.yaml")
    assert (code, said.count(" passed for resource ")) == (0, resources), said


def test_a_field_that_there_is_not_is_found(validate: list[str], tmp_path: Path) -> None:
    text = (GUIDE / "watch" / "sidecar.yaml").read_text(encoding="utf-8")
    (tmp_path / "odd.yaml").write_text(text.replace("restartPolicy:", "restartPolice:"), encoding="utf-8")
    assert verdict(validate, tmp_path / "odd.yaml")[0] != 0
