"""The recipes for launchers in the guide: what can be tried without a cluster is tried, word for word."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ckpttool.records.part_wire import parts_in
from tests.conftest import FIXTURES

GUIDE = Path(__file__).parent.parent / "ckpttool" / "guide" / "many-nodes.md"
BLOCKS = re.findall(r"^```(sh|yaml)\n(.*?)^```", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
SHELL = [text for kind, text in BLOCKS if kind == "sh"]
(JOB,) = [yaml.safe_load(text) for kind, text in BLOCKS if kind == "yaml"]


@pytest.mark.parametrize("recipe", SHELL)
def test_every_recipe_is_a_script(recipe: str) -> None:
    subprocess.run(["bash", "-n"], input=recipe, text=True, check=True)


def commands(folder: Path, **scripts: str) -> dict[str, str]:
    """Return an environment in which these commands, and ckpttool, are what is given here."""
    folder.mkdir()
    for name, script in {"ckpttool": f'exec "{sys.executable}" -m ckpttool "$@"', **scripts}.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    here = str(Path(__file__).parent.parent)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join([here, *sys.path])}


def test_the_lines_of_a_loop_over_ssh_hold_a_part_of_each_host(tmp_path: Path) -> None:
    (recipe,) = [text for text in SHELL if "ssh " in text]
    recipe = recipe.replace("/data/run", "$host").partition("ckpttool resolve")[0]
    for rank in range(4):
        ranks = tmp_path / f"node{rank + 1}" / "output" / "checkpoint"
        shutil.copytree(FIXTURES / "health_pp2" / "output" / "checkpoint" / f"rank_{rank}", ranks / f"rank_{rank}")
    environment = commands(tmp_path / "bin", ssh='shift; exec sh -c "$*"')
    subprocess.run(["bash", "-ec", recipe], cwd=tmp_path, env=environment, capture_output=True, check=True)
    received = parts_in((tmp_path / "look.lines").read_bytes().splitlines(keepends=True))
    assert [(name.run, name.index, name.count) for name, _ in received.parts] == [("look", n, 4) for n in (1, 2, 3, 4)]


def test_the_job_of_kubernetes_has_as_many_pods_as_its_command_says_and_its_log_carries_them(tmp_path: Path) -> None:
    spec, (container,) = JOB["spec"], JOB["spec"]["template"]["spec"]["containers"]
    command = container["command"]
    assert command[command.index("--part") + 1] == f"auto/{spec['completions']}"
    assert spec["completions"] == spec["parallelism"]
    shutil.copytree(FIXTURES / "health_pp2" / "output", tmp_path / "output")
    line = [word.replace("/data", str(tmp_path)) for word in command]
    log = []
    for index in (0, 3):
        environment = {**commands(tmp_path / f"bin{index}"), "JOB_COMPLETION_INDEX": str(index)}
        told = subprocess.run(line, env=environment, capture_output=True, check=True).stdout
        log += [f"[pod/look-{index}-x7k2p/look] ".encode() + each for each in told.splitlines(keepends=True)]
    assert [name.index for name, _ in parts_in(reversed(log)).parts] == [1, 4]
