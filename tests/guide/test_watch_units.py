"""What the manual ships to keep a watch running is what its readers' tools take."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.pages import GUIDE

UNITS = GUIDE / "watch"


def run(*words: str | Path) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    return f"{done.returncode} {done.stdout}{done.stderr}"


@pytest.mark.parametrize(("name", "kind"), [("sidecar", "Pod"), ("daemonset", "DaemonSet")])
def test_the_manifests_for_kubernetes_watch_by_a_command_that_there_is(name: str, kind: str) -> None:
    document = yaml.safe_load((UNITS / f"{name}.yaml").read_text(encoding="utf-8"))
    assert document["kind"] == kind
    spec = document["spec"] if kind == "Pod" else document["spec"]["template"]["spec"]
    containers = [*spec.get("initContainers", []), *spec["containers"]]
    watch = next(each for each in containers if each["name"] == "ckpttool")
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert {mount["name"] for mount in watch["volumeMounts"]} <= volumes
    assert watch["command"][:2] == ["ckpttool", "watch"]


def test_the_fragment_for_slurm_is_bash() -> None:
    assert run("bash", "-n", UNITS / "watch.sbatch") == "0 "


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = shutil.copy(UNITS / "ckpttool-watch@.service", tmp_path / "ckpttool-watch@data.service")
    assert run("systemd-analyze", "verify", "--man=no", unit) == "0 "
