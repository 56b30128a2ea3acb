"""What the manual ships to keep a watch running is what its readers' tools take."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.pages import GUIDE

UNITS = GUIDE / "watch"


def run(*words: str | Path) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    return f"{done.returncode} {done.stdout}{done.stderr}"


def watches(name: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield what a manifest starts: its kind, the pod, and the container with the watch."""
    for document in yaml.safe_load_all((UNITS / f"{name}.yaml").read_text(encoding="utf-8")):
        if document["kind"] != "ConfigMap":
            spec = document["spec"] if document["kind"] == "Pod" else document["spec"]["template"]["spec"]
            containers = [*spec.get("initContainers", []), *spec["containers"]]
            yield document["kind"], spec, next(each for each in containers if each["name"] == "ckpttool")


@pytest.mark.parametrize(("name", "kinds"), [("sidecar", ["Pod"]), ("daemonset", ["DaemonSet", "Deployment"])])
def test_the_manifests_for_kubernetes_watch_by_a_command_that_there_is(name: str, kinds: list[str]) -> None:
    found = list(watches(name))
    assert [kind for kind, _, _ in found] == kinds
    for _, spec, watch in found:
        volumes = {volume["name"] for volume in spec["volumes"]}
        assert {mount["name"] for mount in watch["volumeMounts"]} <= volumes
        assert "ckpttool watch" in " ".join([*watch["command"], *watch.get("args", [])])


def test_each_node_of_the_daemonset_knows_which_part_it_is_and_one_that_is_not_in_the_list_says_so(
    tmp_path: Path,
) -> None:
    text = (UNITS / "daemonset.yaml").read_text(encoding="utf-8")
    nodes = next(each for each in yaml.safe_load_all(text) if each["kind"] == "ConfigMap")
    (tmp_path / "list").write_text(nodes["data"]["list"], encoding="utf-8")
    (tmp_path / "ckpttool").write_text('#!/bin/sh\necho "$@"\n', encoding="utf-8")
    (tmp_path / "ckpttool").chmod(0o755)
    _, _, watch = next(watches("daemonset"))
    (script,) = watch["args"]
    command = [*watch["command"], script.replace("/nodes/list", str(tmp_path / "list"))]

    def on(node: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "NODE_NAME": node}
        return subprocess.run(command, check=False, capture_output=True, text=True, env=env)

    assert "--part 3/4 " in on("node-3").stdout
    stranger = on("node")
    assert stranger.returncode != 0
    assert "node is not in the list" in stranger.stderr


@pytest.mark.parametrize("name", ["watch.sbatch", "watch-parts.sbatch"])
def test_the_fragments_for_slurm_are_bash(name: str) -> None:
    assert run("bash", "-n", UNITS / name) == "0 "


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = shutil.copy(UNITS / "ckpttool-watch@.service", tmp_path / "ckpttool-watch@data.service")
    assert run("systemd-analyze", "verify", "--man=no", unit) == "0 "
