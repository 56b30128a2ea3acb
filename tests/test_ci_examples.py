"""The jobs of the page about CI, run as a user's CI runs them: a shell, an exit code, and the files that are left."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from ckpttool.cli.main import app
from tests.conftest import FIXTURES, TESTS
from tests.pages import GUIDE
from tests.support.commands import ask
from tests.support.json_schemas import code_quality_entries, junit_file, sarif_run

PAGE = (GUIDE / "ci.md").read_text(encoding="utf-8")
GOOD = (FIXTURES / "configs" / "pretrain_sink2.yaml").read_text()
BAD = GOOD.replace("run_mode: 'train'", "run_mode: 'predict'")


def example(key: str) -> Any:  # noqa: ANN401  foreign YAML
    """Return the page's YAML block that has a key at its top."""
    blocks = [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]
    (found,) = [block for block in blocks if isinstance(block, dict) and key in block]
    return found[key]


def github_job() -> tuple[str, dict[str, str]]:
    job = example("jobs")["preflight"]
    (step,) = [step for step in job["steps"] if "run" in step]
    (upload,) = [step for step in job["steps"] if "upload-sarif" in str(step.get("uses"))]
    assert upload["if"] == "always()"  # a no-go is what the report is for
    assert upload["with"]["sarif_file"] in step["run"]
    assert set(job["env"]) == {"RUN"}
    return step["run"], {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": "summary.md"}


REPORTS = {"junit": "junit", "gitlab": "codequality"}
"""By our name, that of the artifact in GitLab."""


def gitlab_job() -> tuple[str, dict[str, str]]:
    job = example("preflight")
    assert job["artifacts"]["when"] == "always"
    assert all(f"{form}={job['artifacts']['reports'][kind]}" in job["script"][0] for form, kind in REPORTS.items())
    return "\n".join(job["script"]), {"GITLAB_CI": "true"}


def slurm_script() -> tuple[str, dict[str, str]]:
    (script,) = [
        text for text in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) if "#SBATCH" in text
    ]
    return script, {
        "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "DEVICES_PER_NODE": "2", "CONFIG": "configs/pretrain.yaml",
    }  # fmt: skip


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A user's repository beside the folder of a run."""
    shutil.copytree(FIXTURES / "sink2_ckpt" / "output", tmp_path / "run" / "output")
    (tmp_path / "repo" / "configs").mkdir(parents=True)
    (tmp_path / "repo" / "configs" / "pretrain.yaml").write_text(GOOD)
    return tmp_path / "repo"


def as_ci(job: Callable[[], tuple[str, dict[str, str]]], checkout: Path) -> subprocess.CompletedProcess[str]:
    """Run a job's script as GitHub runs it (and GitLab and Slurm do no less): stop at the first error."""
    script, extra = job()
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(checkout),
        "RUN": str(checkout.parent / "run"),
        **extra,
    }
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)


def unhealthy_config(checkout: Path) -> int:
    (checkout / "configs" / "pretrain.yaml").write_text(BAD)
    return 10


def lost_rank(checkout: Path) -> int:
    shutil.rmtree(checkout.parent / "run/output/checkpoint/rank_2")
    return 11


def no_tree(checkout: Path) -> int:
    shutil.rmtree(checkout.parent / "run/output")
    return 12


def torn_config(checkout: Path) -> int:
    (checkout / "configs" / "pretrain.yaml").write_text(GOOD + "seed: 1\n")
    return 2


def nothing_wrong(checkout: Path) -> int:
    assert checkout.exists()
    return 0


SITUATIONS = [lost_rank, unhealthy_config, nothing_wrong, no_tree, torn_config]
"""A commit tries one with each job and two with the first: it is what a job does after a no-go that matters."""


@pytest.mark.sample(2)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_github_job_annotates_and_leaves_a_sarif_file(situation: Callable[[Path], int], checkout: Path) -> None:
    code = situation(checkout)
    done = as_ci(github_job, checkout)
    assert done.returncode == code, done.stderr
    run = sarif_run((checkout / "preflight.sarif").read_text(encoding="utf-8"))
    assert run["invocations"][0]["exitCode"] == code
    assert any(result["level"] == "error" for result in run["results"]) is (code != 0)
    assert any(line.startswith("::error ") for line in done.stdout.splitlines()) is (code != 0)
    assert f"\n## ckpttool preflight: {'NO-GO' if code else 'GO'}: " in (checkout / "summary.md").read_text()
    if code == 10:
        assert "::error file=configs/pretrain.yaml,line=7,title=ckpttool not-a-training::" in done.stdout


@pytest.mark.sample(1)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_gitlab_job_leaves_a_junit_file_and_the_quality_of_the_code(
    situation: Callable[[Path], int], checkout: Path
) -> None:
    code = situation(checkout)
    done = as_ci(gitlab_job, checkout)
    assert done.returncode == code, done.stderr
    suite = junit_file(checkout / "preflight.xml")
    assert (suite.get("failures") == suite.get("errors") == "0") is (code == 0)
    assert done.stdout.startswith("GO: " if code == 0 else "NO-GO: ")
    entries = code_quality_entries((checkout / "preflight.json").read_text())
    assert any(entry["severity"] != "info" for entry in entries) is (code != 0)


def jenkins_step() -> tuple[str, dict[str, str]]:
    (pipeline,) = re.findall(r"^```groovy\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert pipeline.count("{") == pipeline.count("}")
    (script,) = re.findall(r"^ *sh '([^']*)'$", pipeline, re.MULTILINE)
    (report,) = re.findall(r"post \{ always \{ junit '([^']*)' \} \}", pipeline)
    assert f"junit={report}" in script
    return script, {}


@pytest.mark.sample(1)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_jenkins_stage_leaves_a_junit_file(situation: Callable[[Path], int], checkout: Path) -> None:
    code = situation(checkout)
    assert as_ci(jenkins_step, checkout).returncode == code
    suite = junit_file(checkout / "preflight.xml")
    assert (suite.get("failures") == suite.get("errors") == "0") is (code == 0)


ACTION = yaml.safe_load((TESTS.parent / "action.yml").read_text())
OWN_INPUTS = {"dir", "sarif"}


def action_step(given: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the script that asks, and its environment as GitHub makes it of the inputs."""
    inputs = {name: given.get(name, about.get("default")) for name, about in ACTION["inputs"].items()}
    (step,) = [step for step in ACTION["runs"]["steps"] if "env" in step]
    assert step["shell"] == "sh"
    environment = {}
    for name, text in step["env"].items():
        found = re.fullmatch(r"\$\{\{ inputs\.([a-z-]+) \}\}", text)
        assert found is not None
        environment[name] = inputs.pop(found[1])
    assert inputs == {}  # each is handed on
    assert "${{" not in step["run"]  # what an input holds is never read as shell
    return step["run"], environment


def as_action(checkout: Path, **given: str) -> subprocess.CompletedProcess[str]:
    script, environment = action_step({name.replace("_", "-"): value for name, value in given.items()})
    (checkout / "bin").mkdir(exist_ok=True)
    (checkout / "temp" / "ckpttool").mkdir(parents=True, exist_ok=True)
    link = checkout / "temp" / "ckpttool" / "bin"
    if not link.exists():
        link.symlink_to(Path(sys.executable).parent)
    extra = {"RUNNER_TEMP": str(checkout / "temp"), "GITHUB_STEP_SUMMARY": str(checkout / "summary.md")}
    return subprocess.run(
        ["sh", "-e", "-c", script],
        cwd=checkout,
        env={"PATH": os.environ["PATH"], "HOME": str(checkout), **extra, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_the_action_takes_are_options_of_preflight_and_every_one_is_explained() -> None:
    group: Any = typer.main.get_command(app)
    options = {option for param in group.get_command(None, "preflight").params for option in param.opts}
    assert {f"--{name}" for name in ACTION["inputs"].keys() - OWN_INPUTS} <= options
    assert all(about["description"] for about in ACTION["inputs"].values())
    assert all(("default" in about) is not about.get("required", False) for about in ACTION["inputs"].values())


def test_the_action_says_of_the_demo_what_preflight_says(checkout: Path) -> None:
    ask("demo", str(checkout / "d"))
    given = {"config": "d/train.yaml", "dir": "d/output", "allow": "start-differs"}
    good = as_action(checkout, **given)
    assert (good.returncode, good.stdout.splitlines()[-1][:4]) == (0, "GO: "), good.stderr
    assert "## ckpttool preflight: GO: " in (checkout / "summary.md").read_text()
    assert not (checkout / "temp" / "ckpttool.sarif").exists()
    strict = as_action(checkout, **given, strict="true", sarif="true")
    assert (strict.returncode, strict.stdout.splitlines()[-1][:6]) == (10, "NO-GO:")
    sarif_run((checkout / "temp" / "ckpttool.sarif").read_text())


def test_the_action_hands_on_what_it_was_given_and_nothing_else(checkout: Path) -> None:
    program = checkout / "temp" / "ckpttool" / "bin" / "ckpttool"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nprintf '%s|' \"$@\"\n")
    program.chmod(0o755)
    plain = f"preflight|--config|c|--level|structure|--format|github|--report|markdown={checkout}/summary.md|"
    assert as_action(checkout, config="c").stdout == plain
    more = as_action(checkout, config="c", devices="8", max_lost_steps="9", max_lost_time="5m", allow="a *", dir="-d")
    assert more.stdout == f"{plain}--devices|8|--max-lost-steps|9|--max-lost-time|5m|--allow|a|--allow|*|--|-d|"


def test_the_action_takes_no_input_for_shell(checkout: Path) -> None:
    assert as_action(checkout, config="$(touch made); touch made", dir="-x`touch made`").returncode == 2
    assert not (checkout / "made").exists()


def test_the_action_installs_itself_and_uploads_what_it_wrote(checkout: Path) -> None:
    install, _, upload = ACTION["runs"]["steps"]
    (checkout / "temp" / "ckpttool" / "bin").mkdir(parents=True)
    (checkout / "bin").mkdir()
    for name in ("bin/python3", "temp/ckpttool/bin/pip"):
        (checkout / name).write_text(f'#!/bin/sh\necho {Path(name).name} "$@"\n')
        (checkout / name).chmod(0o755)
    environment = {"PATH": f"{checkout / 'bin'}:/usr/bin:/bin", "RUNNER_TEMP": "temp", "GITHUB_ACTION_PATH": "/a b"}
    done = subprocess.run(
        ["sh", "-e", "-c", install["run"]], cwd=checkout, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "python3 -m venv temp/ckpttool\npip install -q /a b\n"
    assert upload["if"].startswith("always()")
    assert upload["with"]["sarif_file"] == "${{ runner.temp }}/ckpttool.sarif"


def test_the_page_gives_the_action_what_it_takes() -> None:
    (found,) = [
        step
        for text in re.findall(r"^```yaml\n(- uses: .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
        for step in yaml.safe_load(text)
    ]
    assert found["with"].keys() <= ACTION["inputs"].keys()


@pytest.mark.sample(1)
@pytest.mark.parametrize("situation", SITUATIONS[::-1])
def test_the_batch_script_goes_on_to_a_launch_config_or_stops(situation: Callable[[Path], int], checkout: Path) -> None:
    code = situation(checkout)
    done = as_ci(slurm_script, checkout)
    assert done.returncode == code, done.stderr
    assert json.loads((checkout / "preflight-7.json").read_text())["exit_code"] == code
    assert (checkout / "resume-7.yaml").exists() is (code == 0)


def test_a_batch_script_on_other_nodes_than_the_config_is_for_stops(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, extra = slurm_script()
    monkeypatch.setattr(sys.modules[__name__], "slurm_script", lambda: (script, {**extra, "SLURM_JOB_NUM_NODES": "4"}))
    assert as_ci(slurm_script, checkout).returncode == 10


def nightly_script() -> tuple[str, dict[str, str]]:
    (script,) = [
        text for text in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) if "ckpttool prune" in text
    ]
    assert "--wait 60 " in script
    return script.replace("--wait 60 ", "--wait 0.001 "), {}


def saved_at(tree: Path, seconds: float) -> None:
    for path in tree.rglob("*.ckpt"):
        os.utime(path, (seconds, seconds))


def test_the_nightly_script_seals_reads_and_prunes_what_nobody_is_saving(checkout: Path) -> None:
    tree = checkout.parent / "run/output/checkpoint"
    saved_at(tree, 1_700_000_000)
    done = as_ci(nightly_script, checkout)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tree.glob(".ckpttool/*.manifest.json")] == ["llama2_7b-_1-30_2.ckpt.manifest.json"]
    assert len(list(tree.glob("rank_0/*.ckpt"))) == 3
    assert len(list(tree.glob(".ckpttool/trash/*"))) == 2


def test_the_nightly_script_reads_and_prunes_though_a_torn_newest_save_cannot_be_sealed(checkout: Path) -> None:
    tree = checkout.parent / "run/output/checkpoint"
    os.truncate(tree / "rank_1/llama2_7b_rank_1_1-30_2.ckpt", 500)
    saved_at(tree, 1_700_000_000)
    done = as_ci(nightly_script, checkout)
    assert done.returncode == 10
    assert "_1-30_2: not sealed" in done.stdout
    assert len(list(tree.glob(".ckpttool/trash/*"))) == 1
    assert not list(tree.glob("rank_0/*-10_2.ckpt"))


def crontab_command(script: Path) -> str:
    """Return what cron gives to sh: the line after five fields, up to a % that no backslash protects."""
    text: str
    (text,) = re.findall(r"^```crontab\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    setting, line = text.splitlines()
    assert re.fullmatch(r"RUN=/[a-z0-9/]+", setting)
    fields = line.split(" ", 5)
    assert [re.fullmatch(r"[0-9]+|\*", field) is not None for field in fields[:5]] == [True] * 5
    assert "%" not in fields[5].replace("\\%", "")
    assert "/usr/local/bin/ckpttool-nightly" in fields[5]
    return fields[5].replace("\\%", "%").replace("/usr/local/bin/ckpttool-nightly", str(script))


def test_the_crontab_says_nothing_of_a_good_night_and_all_of_a_bad_one(checkout: Path) -> None:
    script = checkout / "nightly"
    command = crontab_command(script)
    for code, said in ((0, ""), (10, "all\nof it\n")):
        script.write_text(f"echo all; echo of it >&2; exit {code}")
        done = as_ci(lambda: (f"sh -c {shlex.quote(command)}", {}), checkout)
        assert (done.stdout, done.stderr) == (said, "")


def units() -> dict[str, str]:
    """Return the page's units by their file names."""
    found = re.findall(r"^```ini\n# /etc/systemd/system/(\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return dict(found)


def test_the_units_name_one_another_and_the_script() -> None:
    assert list(units()) == ["ckpttool-nightly@.service", "ckpttool-nightly@.timer"]
    sections = {}
    for name, text in units().items():
        parser = ConfigParser(interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]  # as its documentation says to
        parser.read_string(text)
        sections[name.rpartition(".")[2]] = parser
    service, timer = sections["service"], sections["timer"]
    assert service["Service"]["Type"] == "oneshot"
    assert service["Service"]["ExecStart"] == "/bin/sh -e /usr/local/bin/ckpttool-nightly"
    assert service["Service"]["Environment"] == "RUN=/data/runs/%i"
    assert timer["Install"]["WantedBy"] == "timers.target"


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    systemd = shutil.which("systemd-analyze")
    if systemd is None:
        pytest.skip("there is no systemd-analyze here")
    for name, text in units().items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [systemd, "verify", "--man=no", *units()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if "ckpttool" in line]) == (0, [])


def test_the_hook_of_the_page_is_the_one_that_there_is() -> None:
    (hooks,) = yaml.safe_load((TESTS.parent / ".pre-commit-hooks.yaml").read_text())
    (repo,) = example("repos")
    assert [hook["id"] for hook in repo["hooks"]] == [hooks["id"]]
