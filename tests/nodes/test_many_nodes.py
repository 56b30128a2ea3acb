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

from tests.conftest import FIXTURES

GUIDE = Path(__file__).parents[2] / "ckpttool" / "guide" / "many-nodes.md"
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
    here = str(Path(__file__).parents[2])
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join([here, *sys.path])}


def test_a_loop_over_ssh_asks_the_parts_of_all_hosts(tmp_path: Path) -> None:
    (recipe,) = [text for text in SHELL if "ssh " in text]
    recipe = recipe.replace("/data/run", "$host")
    for rank in range(4):
        ranks = tmp_path / f"node{rank + 1}" / "output" / "checkpoint"
        shutil.copytree(FIXTURES / "health_pp2" / "output" / "checkpoint" / f"rank_{rank}", ranks / f"rank_{rank}")
    environment = commands(tmp_path / "bin", ssh='shift; exec sh -c "$*"')
    done = subprocess.run(["bash", "-ec", recipe], cwd=tmp_path, env=environment, capture_output=True, check=True)
    assert b"\nResume from step 30 (15_2): intact on all 4 ranks\n" in done.stdout


def test_the_job_of_kubernetes_has_as_many_pods_as_its_command_says_and_leaves_a_part_of_each(tmp_path: Path) -> None:
    spec, (container,) = JOB["spec"], JOB["spec"]["template"]["spec"]["containers"]
    command = container["command"]
    assert command[command.index("--part") + 1] == f"auto/{spec['completions']}"
    assert spec["completions"] == spec["parallelism"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert f"{command[command.index('--out') + 1].rstrip('/')}" in mounts
    shutil.copytree(FIXTURES / "health_pp2" / "output", tmp_path / "output")
    line = [word.replace("/data", str(tmp_path)).replace("/parts", f"{tmp_path}/parts") for word in command]
    for index in (0, 3):
        environment = {**commands(tmp_path / f"bin{index}"), "JOB_COMPLETION_INDEX": str(index)}
        subprocess.run(line, env=environment, capture_output=True, check=True)
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == [
        "look.00001-of-00004.ckptpart",
        "look.00004-of-00004.ckptpart",
    ]
