"""A launch of a run that has never saved starts from scratch, and keeps the weights of another model that it loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import ckpttool
from ckpttool.core.domain.launch import Fragment, Launch
from ckpttool.core.domain.plan import FreshStart
from ckpttool.core.domain.preflight import Preflight
from tests.conftest import FIXTURES
from tests.support.commands import Said, ask

CONFIG = FIXTURES / "configs" / "pretrain_sink2.yaml"
PYNATIVE = FIXTURES / "pynative" / "pretrain.yaml"
LOADS, RESUMES = "load_checkpoint: './output/checkpoint'", "resume_training: True"


@pytest.fixture
def config(here: Path) -> Callable[..., str]:
    """Return `config(*changes)`, which writes the usual config with some texts replaced."""

    def written(*changes: tuple[str, str], base: Path = CONFIG) -> str:
        text = base.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (here / "base.yaml").write_text(text)
        return "base.yaml"

    return written


def launched(config: str, *options: str) -> tuple[Said, dict[str, Any]]:
    said = ask("launch", "output", "--or-start", "--config", config, "--output", "new.yaml", *options)
    return said, yaml.safe_load(Path("new.yaml").read_text()) if Path("new.yaml").exists() else {}


def test_a_config_that_resumes_is_written_to_start_from_scratch(config: Callable[..., str]) -> None:
    said, new = launched(config(("seed: 0", "seed: 0\ndata_skip_steps: 40")), "--json")
    assert said.code == 0
    changes = {change["key"]: (change["before"], change["after"]) for change in said.json["changes"]}
    assert changes == {
        "load_checkpoint": ("./output/checkpoint", "''"),
        "resume_training": ("True", "False"),
        "data_skip_steps": ("40", "null"),
    }
    assert (said.json["plan"]["start"], said.json["plan"]["resume"]) == ("scratch", None)
    assert "new.yaml" in said.json["command"]
    old = yaml.safe_load(Path("base.yaml").read_text())
    assert new == {**old, "load_checkpoint": "", "resume_training": False, "data_skip_steps": None}


@pytest.mark.parametrize(
    "path", ["./output/checkpoint", "output", "{here}/output/checkpoint", "./output/checkpoint/rank_0/a.ckpt"]
)
def test_any_path_into_the_folder_of_the_run_is_removed(here: Path, config: Callable[..., str], path: str) -> None:
    _, new = launched(config((LOADS, f"load_checkpoint: '{path.format(here=here)}'")))
    assert (new["load_checkpoint"], new["resume_training"]) == ("", False)


def test_weights_of_another_model_stay(config: Callable[..., str]) -> None:
    base = config((LOADS, "load_checkpoint: '/models/llama.ckpt'"), (RESUMES, "resume_training: False"))
    said, new = launched(base)
    assert said.code == 0
    assert new == yaml.safe_load(Path(base).read_text())
    assert "starts from scratch" in said.stdout


def test_a_config_that_resumes_another_run_is_refused(config: Callable[..., str]) -> None:
    said, new = launched(config((LOADS, "load_checkpoint: '/runs/other/output/checkpoint'")))
    assert (said.code, new) == (10, {})
    assert "/runs/other/output/checkpoint" in said.stdout
    assert "Start from scratch" not in said.stdout


def test_the_newer_section_is_edited_too(config: Callable[..., str]) -> None:
    section = "checkpoint:\n  load_path: './output/checkpoint'\n  save_max: 2\n\ncallbacks:"
    _, new = launched(config(("callbacks:", section)))
    assert new["checkpoint"] == {"load_path": "", "save_max": 2}


def test_the_pynative_trainer_starts_without_its_own_path(config: Callable[..., str]) -> None:
    base = config(('\n  load_path: ""\n', "\n  load_path: ./output/checkpoint\n"), base=PYNATIVE)
    said, new = launched(base, "--devices-per-node", "2")
    assert said.code == 0, said.output
    assert new["checkpoint"] == {**yaml.safe_load(PYNATIVE.read_text())["checkpoint"], "load_path": ""}
    said = ask("launch", "output", "--or-start", "--config", base, "--output", "other.yaml")
    assert said.code == 2
    assert "--devices-per-node" in said.stderr


def test_a_run_with_a_checkpoint_is_launched_as_without_the_option(copy_tree: Callable[[str], Path]) -> None:
    tree = copy_tree("sink2_ckpt") / "output"
    plain = ask("launch", str(tree), "--config", str(CONFIG), "--output", str(tree / "a.yaml"), "--json")
    said = ask("launch", str(tree), "--or-start", "--config", str(CONFIG), "--output", str(tree / "b.yaml"), "--json")
    assert said.json["plan"] == {**plain.json["plan"], "start": "resume"}
    assert (tree / "a.yaml").read_text() == (tree / "b.yaml").read_text()


def test_a_lost_tree_is_not_launched(here: Path, config: Callable[..., str]) -> None:
    (here / "output" / "checkpoint").mkdir(parents=True)
    (here / "output" / "checkpoint" / "meta.json").touch()
    said, new = launched(config())
    assert (said.code, new) == (11, {})
    assert "meta.json" in said.stderr


def test_a_dry_run_writes_nothing(config: Callable[..., str]) -> None:
    said, new = launched(config(), "--dry-run")
    assert (said.code, new) == (0, {})


@pytest.mark.parametrize(
    ("options", "remark"),
    [((), None), (("--layout", "megatron"), "--exit-on-missing-checkpoint"), (("--layout", "hf-trainer"), "stops")],
)
def test_without_a_config_the_start_needs_no_setting(here: Path, options: tuple[str, ...], remark: str | None) -> None:
    said = ask("launch", "output", "--or-start", *options, "--json")
    assert (said.code, said.json["fragment"], said.json["plan"]["start"]) == (0, [], "scratch")
    assert [remark in text for text in said.json["remarks"]] == ([] if remark is None else [True])
    table = ask("launch", str(here / "output"), "--or-start", *options)
    assert (table.code, (remark or "without any setting") in table.stdout) == (0, True)


@pytest.mark.parametrize("options", [(), ("--config", str(CONFIG), "--output", "new.yaml", "--force")])
def test_starts_before_the_first_save_are_reported_as_not_counted(here: Path, options: tuple[str, ...]) -> None:
    """A supervisor would otherwise start such a run for ever without a word."""
    assert "Not counted" not in ask("launch", "output", "--or-start", *options).stdout
    for _ in range(3):
        said = ask("launch", "output", "--or-start", *options, "--after-failed-starts", "2")
        assert said.code == 0, said.output
        assert "Not counted by --after-failed-starts" in said.stdout
    assert not (here / "output").exists()


def test_the_library_launches_it(here: Path) -> None:
    answer = ckpttool.launch("output", or_start=True, config=str(CONFIG), output="new.yaml")
    assert isinstance(answer, Launch)
    assert isinstance(answer.plan, FreshStart)
    assert answer.chosen is None
    assert isinstance(ckpttool.launch(str(here / "output"), or_start=True), Fragment)


# --------------------------------------------------------- preflight


def checks(answer: Preflight) -> dict[str, str]:
    return {check.name: check.outcome.value for check in answer.checks}


def test_preflight_is_one_gate_for_the_first_start_and_all_later_ones(config: Callable[..., str]) -> None:
    resumes = config()
    refused = ckpttool.preflight(config=resumes, path="output", or_start=True)
    assert (refused.exit_code, checks(refused)["start"]) == (10, "failed")
    assert ask("preflight", "output", "--config", resumes).code == 12
    allowed = ckpttool.preflight(config=resumes, path="output", or_start=True, allow=["start-differs"])
    assert (allowed.exit_code, allowed.go, set(checks(allowed).values())) == (0, True, {"passed"})
    fresh = config((LOADS, "load_checkpoint: ''"), (RESUMES, "resume_training: False"))
    said = ask("preflight", "output", "--config", fresh, "--or-start", "--json")
    assert (said.code, said.json["plan"]["start"]) == (0, "scratch")
    assert "GO: a launch now starts from scratch" in ask("preflight", "output", "--config", fresh, "--or-start").stdout


def test_preflight_without_a_config_and_for_a_lost_tree(here: Path) -> None:
    assert ask("preflight", "output", "--or-start").code == 0
    (here / "output").mkdir()
    (here / "output" / "latest").touch()
    said = ask("preflight", "output", "--or-start", "--json")
    assert said.code == 11
    (finding,) = [finding for check in said.json["checks"] for finding in check["findings"]]
    assert finding["code"] == "nothing-to-resume"
    assert "output/latest" in finding["message"]


def test_preflight_refuses_a_config_with_which_the_run_would_not_start_from_scratch(here: Path) -> None:
    arguments = "output_dir: output\nper_device_train_batch_size: 1\nsave_steps: 10\nresume_from_checkpoint: {value}\n"
    for value, code in (("true", 10), ("false", 0)):
        (here / "args.yaml").write_text(arguments.format(value=value))
        said = ask("preflight", "output", "--or-start", "--config", "args.yaml", "--json")
        assert said.code == code, said.output


def test_preflight_needs_the_number_of_devices_and_a_folder_that_can_be_written(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = ask("preflight", "output", "--or-start", "--config", str(PYNATIVE), "--json")
    assert said.code == 14
    assert "devices-unknown" in said.stdout
    assert ask("preflight", "output", "--or-start", "--config", str(PYNATIVE), "--devices", "2").code == 0
    monkeypatch.setattr("ckpttool.core.storage.disk.LocalDisk.is_writable", lambda _disk, _folder: False)
    said = ask("preflight", str(here / "output"), "--or-start", "--json")
    assert said.code == 10
    assert "folder-not-writable" in said.stdout
