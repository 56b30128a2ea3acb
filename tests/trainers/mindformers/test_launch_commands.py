"""Proves by running bash and a launcher that does what the real one does that a command starts what was meant."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ckpttool.core.domain.launch import LaunchJob
from ckpttool.core.errors import UsageError
from ckpttool.trainers.mindformers.launch import launch_commands

# The launcher's way with its arguments: how many it takes, and the unquoted eval at the end.
LAUNCHER = r"""
case $# in
  1|2|6|9) ;;
  *) echo "usage"; exit 1 ;;
esac
if [ $# == 1 ]; then N=8; L=8; ADDR=127.0.0.1; PORT=8118; NODE=0; LOG=output/msrun_log; JOIN=False; WAIT=7200; fi
if [ $# == 2 ]; then N=$2; L=$2; ADDR=127.0.0.1; PORT=8118; NODE=0; LOG=output/msrun_log; JOIN=False; WAIT=7200; fi
if [ $# == 6 ]; then N=$2; L=$2; ADDR=127.0.0.1; PORT=$3; NODE=0; LOG=$4; JOIN=$5; WAIT=$6; fi
if [ $# == 9 ]; then N=$2; L=$3; ADDR=$4; PORT=$5; NODE=$6; LOG=$7; JOIN=$8; WAIT=$9; fi
if [ $N == 1 ]; then echo "use python"; exit 0; fi
ALL="msrun --worker_num=$N --local_worker_num=$L --master_addr=$ADDR --master_port=$PORT --node_rank=$NODE"
ALL="$ALL --log_dir=$LOG --join=$JOIN --cluster_time_out=$WAIT $1"
eval $ALL
"""
SHOW = """#!/bin/sh
printf '%s\\0' "${0##*/}" "$@"
"""
HOSTILE_PATHS = [
    "/data/new.yaml",
    "/a b/new.yaml",
    "/a  b\t/new.yaml",
    '/it\'s/"new".yaml',
    "/$HOME/`id`/$(id).yaml",
    "/*/[ab]?/{a,b}.yaml",
    "/line\nend/new.yaml",
    "/back\\slash/\\n.yaml",
    "/#;&|<>()!/~.yaml",
    "/caf\udce9/日本.yaml",
]


def run(command: str, folder: Path) -> list[str]:
    """Run a command where `msrun` and `python` print their arguments; return them."""
    (folder / "scripts").mkdir(exist_ok=True)
    (folder / "scripts/msrun_launcher.sh").write_text(LAUNCHER)
    for name in ("msrun", "python"):
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin" / name).write_text(SHOW)
        (folder / "bin" / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": "/home/someone"}
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, check=True, capture_output=True)
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


@pytest.mark.sample(9)
@pytest.mark.parametrize("config", HOSTILE_PATHS)
@pytest.mark.parametrize(("nodes", "devices"), [(1, 8), (2, 8), (2, 1)])
def test_the_launcher_starts_the_script_with_the_path(tmp_path: Path, config: str, nodes: int, devices: int) -> None:
    job = LaunchJob(
        config=config, nodes=nodes, devices_per_node=devices, master_addr="10.0.0.1", script="a b/run it.py"
    )
    for rank, command in enumerate(launch_commands(job)):
        started = run(command, tmp_path)
        assert started[0] == "msrun"
        assert started[-4:] == ["python", "a b/run it.py", "--config", config]
        assert f"--worker_num={nodes * devices}" in started
        assert f"--local_worker_num={devices}" in started
        assert f"--node_rank={rank}" in started
        assert "\n" not in command


@pytest.mark.sample(5)
@pytest.mark.parametrize("config", HOSTILE_PATHS)
def test_one_device_is_started_without_the_launcher_which_would_not_train(tmp_path: Path, config: str) -> None:
    (command,) = launch_commands(LaunchJob(config=config, devices_per_node=1))
    assert "msrun" not in command
    assert run(command, tmp_path) == ["python", "run_mindformer.py", "--config", config]


def test_every_setting_reaches_msrun(tmp_path: Path) -> None:
    job = LaunchJob(config="/new.yaml", nodes=2, devices_per_node=4, master_addr="host-0.example")
    assert " ".join(run(launch_commands(job)[1], tmp_path)) == (
        "msrun --worker_num=8 --local_worker_num=4 --master_addr=host-0.example --master_port=8118 --node_rank=1 "
        "--log_dir=output/msrun_log --join=True --cluster_time_out=7200 python run_mindformer.py --config /new.yaml"
    )


def test_a_plain_job_is_a_plain_line() -> None:
    (command,) = launch_commands(LaunchJob(config="/run/new.yaml"))
    quoted = "'python run_mindformer.py --config /run/new.yaml'"
    assert command == f"bash scripts/msrun_launcher.sh {quoted} 8 8118 output/msrun_log True 7200"


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (LaunchJob(config="/new.yaml", nodes=0), "at least one node"),
        (LaunchJob(config="/new.yaml", devices_per_node=0), "one device"),
        (LaunchJob(config="/new.yaml", nodes=2), "--master-addr"),
        (LaunchJob(config="/new.conf"), "must end in .yaml"),
        (LaunchJob(config="new.yaml"), "must be absolute"),
    ],
)
def test_a_job_that_cannot_be_started_is_refused(job: LaunchJob, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        launch_commands(job)
