"""The batch script and the job on the page about launches start, resume or stop a training that is killed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.conftest import FIXTURES
from tests.pages import GUIDE

PAGE = (GUIDE / "launch.md").read_text(encoding="utf-8")

TRAIN = '''\
"""A training of 12 steps that saves after each fourth: the saves are those of a real one, copied file by file."""
import os, shutil, signal, sys
from pathlib import Path

options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
output, every = Path(options["--output_dir"]), int(options["--save_steps"])
resumed = options.get("--resume_from_checkpoint")
first = 0
if resumed:
    assert (Path(resumed) / "trainer_state.json").is_file()
    first = int(resumed.rpartition("-")[2])
with open(os.environ["STARTS"], "a") as starts:
    starts.write(f"{first}\\n")
die, torn = int(os.environ.get("DIE_AT", "99")), int(os.environ.get("TORN_AT", "99"))
for step in range(first + 1, 13):
    print(f"step {step} loss 2.0", flush=True)
    if step % every == 0:
        save = output / f"checkpoint-{step}"
        shutil.rmtree(save, ignore_errors=True)
        save.mkdir(parents=True)
        # As Trainer does: the state is written last.
        source, last = Path(os.environ["SAVES"], save.name), "trainer_state.json"
        for path in sorted(source.iterdir(), key=lambda path: path.name == last):
            if step == torn and path.name == last:
                os.kill(os.getpid(), signal.SIGKILL)
            shutil.copyfile(path, save / path.name)
    if step == die:
        os.kill(os.getpid(), signal.SIGKILL)
'''

STUBS = {
    "torchrun": '#!/bin/bash\nwhile [ "$1" != train.py ]; do shift; done\n"$PYTHON" "$@"\n',
    "srun": '#!/bin/bash\nexec "$@"\n',
    "scontrol": '#!/bin/bash\nif [ "$1" = show ]; then echo node1; else echo "$@" >>requeued; fi\n',
}


class Done(NamedTuple):
    """What came of one start of the job."""

    code: int
    first: int | None
    """The step after which the training began; None if it did not start."""
    stderr: str


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a training, and with stand-ins for the programs of a cluster."""
    (tmp_path / "bin").mkdir()
    for name, text in STUBS.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def started(site: Path, command: list[str], **extra: str) -> Done:
    starts = site / "starts"
    starts.write_text("")
    environment = {
        "PATH": f"{site / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "HOME": str(site),
        "PYTHON": sys.executable,
        "STARTS": str(starts),
        "SAVES": str(FIXTURES / "layouts" / "hf_single"),
        "RUN": str(site / "runs" / "llama2"),
        "SAVE_EVERY": "4",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_NODELIST": "node1",
        **extra,
    }
    done = subprocess.run(command, cwd=site, env=environment, capture_output=True, text=True, check=False)
    lines = starts.read_text().split()
    return Done(done.returncode, int(lines[0]) if lines else None, done.stderr)


def batch_script(site: Path) -> list[str]:
    (script,) = [
        text for text in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) if "#SBATCH" in text
    ]
    path = site / "job.sh"
    path.write_text(script)
    return ["bash", "--noprofile", "--norc", str(path)]


def job() -> dict[str, Any]:
    (text,) = re.findall(r"^```yaml\n(apiVersion: .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    document = yaml.safe_load(text)
    assert isinstance(document, dict)
    return document


def container() -> dict[str, Any]:
    (found,) = job()["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def job_command(site: Path) -> list[str]:
    del site
    command = container()["command"]
    assert isinstance(command, list)
    return [str(word) for word in command]


@pytest.mark.parametrize("command_of", [batch_script, job_command])
def test_a_training_that_is_killed_in_between_starts_resumes_and_ends(
    site: Path, command_of: Callable[[Path], list[str]]
) -> None:
    command = command_of(site)
    run = site / "runs" / "llama2"
    starts = [
        started(site, command, DIE_AT="2").first,  # before the first save: its log shows two steps
        started(site, command, TORN_AT="4").first,  # in the middle of the first save
        started(site, command, DIE_AT="6").first,
        started(site, command, TORN_AT="8").first,  # in the middle of the second save
        started(site, command, DIE_AT="9").first,
    ]
    assert starts == [0, 0, 0, 4, 4]
    last = started(site, command)
    assert (last.code, last.first) == (0, 8), last.stderr
    assert (run / "checkpoints" / "checkpoint-12" / "trainer_state.json").is_file()


@pytest.mark.parametrize("command_of", [batch_script, job_command])
def test_a_run_that_lost_its_saves_stops_before_the_training(
    site: Path, command_of: Callable[[Path], list[str]]
) -> None:
    command = command_of(site)
    assert started(site, command, DIE_AT="6").first == 0
    run = site / "runs" / "llama2"
    shutil.rmtree(run / "checkpoints")
    lost = started(site, command)
    assert (lost.code, lost.first) == (11, None)
    assert str(run / "train.log") in lost.stderr
    shutil.rmtree(run)  # with its log: nothing shows that there ever was a run
    assert started(site, command, DIE_AT="1").first == 0


def test_the_batch_script_requeues_a_training_that_fails_and_nothing_that_stops(site: Path) -> None:
    command, requeued = batch_script(site), site / "requeued"
    assert started(site, command, DIE_AT="6").code == 0
    assert requeued.read_text() == "requeue 7\n"
    requeued.unlink()
    assert started(site, command, DIE_AT="6", SLURM_RESTART_COUNT="50").code != 0
    shutil.rmtree(site / "runs" / "llama2" / "checkpoints")
    assert started(site, command).code == 11
    assert not requeued.exists()


def test_the_job_fails_for_good_if_the_saves_are_lost_and_is_retried_after_a_kill(site: Path) -> None:
    spec = job()["spec"]
    assert (job()["apiVersion"], job()["kind"]) == ("batch/v1", "Job")
    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # which a podFailurePolicy needs
    (rule,) = spec["podFailurePolicy"]["rules"]
    codes = rule["onExitCodes"]
    assert (rule["action"], codes["operator"], codes["containerName"]) == ("FailJob", "In", container()["name"])
    killed = started(site, job_command(site), DIE_AT="6").code
    assert killed not in {0, *codes["values"]}
    shutil.rmtree(site / "runs" / "llama2" / "checkpoints")
    assert started(site, job_command(site)).code in codes["values"]
    names = {variable["name"] for variable in container()["env"]}
    assert names == {"RUN", "SAVE_EVERY"}
    (mount,) = container()["volumeMounts"]
    (run,) = [variable["value"] for variable in container()["env"] if variable["name"] == "RUN"]
    assert run.startswith(f"{mount['mountPath']}/")
    assert mount["name"] in {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
