"""Starts of the real MindFormers that ended, or trained from something else, behind a GO: each with its neighbour."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
import yaml

import ckpttool
from ckpttool.core.domain.finding import Code, Row
from ckpttool.core.domain.launch import Launch
from ckpttool.core.errors import ExitCode
from ckpttool.core.extensions import rows
from ckpttool.trainers.findings import TrainersCode
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.types import DataQuestion, LaunchOrder, ResumeQuestion, TreeQuestion
from tests.support.answers import FIXTURES, preflighted
from tests.support.commands import ask
from tests.support.training_configs import read_train_config

CONFIG = FIXTURES / "configs" / "pretrain_sink2.yaml"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return Path(shutil.copy(CONFIG, tmp_path / "base.yaml"))


def edited(config: Path, *changes: tuple[str, str]) -> Path:
    text = config.read_text()
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after, 1)
    config.write_text(text)
    return config


def stopped_by(tree: Path, config: Path, *, devices: int | None = None, **tree_options: object) -> Row:
    code, (finding,) = preflighted(tree, config, devices=devices, **tree_options)
    assert code is ExitCode.DAMAGE
    assert finding.remedy
    return finding.code


@pytest.mark.parametrize("fmt", ["ckpt", "safetensors"])
def test_a_folder_named_like_a_pattern_stops_safetensors_alone(tmp_path: Path, config: Path, fmt: str) -> None:
    tree = tmp_path / "run[1]" / "output"
    shutil.copytree(FIXTURES / f"sink2_{fmt}" / "output", tree)
    link = tmp_path / "link"
    link.symlink_to(tree)
    if fmt == "ckpt":
        assert preflighted(tree, config) == (ExitCode.OK, [])
    else:
        assert stopped_by(tree, config) is MindFormersCode.PATH_IS_PATTERN
    assert preflighted(link, config) == (ExitCode.OK, [])


DATA_PARALLEL = ("parallel_mode: 1 ", "parallel_mode: 0 ")


@pytest.mark.parametrize("removed", ["True", "False"])
def test_saves_in_parts_cannot_be_loaded_in_data_parallel_mode(tmp_path: Path, config: Path, removed: str) -> None:
    output = tmp_path / "output"
    shutil.copytree(FIXTURES / "sink2_safetensors" / "output", output)
    for shard in output.rglob("*.safetensors"):
        shard.chmod(0o600)
        content = shard.read_bytes()
        assert content.count(b'"remove_redundancy":"False"') == 1
        value = f'"remove_redundancy":"{removed}"'.ljust(len('"remove_redundancy":"False"')).encode()
        shard.write_bytes(content.replace(b'"remove_redundancy":"False"', value))
    assert preflighted(output, config) == (ExitCode.OK, [])
    edited(config, DATA_PARALLEL)
    if removed == "False":
        assert preflighted(output, config, devices=4) == (ExitCode.OK, [])
    else:
        assert stopped_by(output, config, devices=4) is MindFormersCode.REDUNDANCY_NOT_LOADABLE


def test_a_shard_that_cannot_be_asked_is_no_go_and_no_guess(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    edited(config, DATA_PARALLEL)
    output = FIXTURES / "sink2_safetensors" / "output"
    assert preflighted(output, config, devices=4) == (ExitCode.OK, [])
    monkeypatch.setattr("ckpttool.trainers.mindformers.effects.read_header", broken)
    code, (finding,) = preflighted(output, config, devices=4)
    assert (code, finding.code) == (ExitCode.INCOMPLETE, Code.CANNOT_ANSWER)
    assert "Input/output error" in finding.message


def test_fault_tolerance_stops_a_named_file(tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is the command line's; the library is told."""
    output = shutil.copytree(FIXTURES / "sink2_ckpt" / "output", tmp_path / "output")
    assert preflighted(output, config) == (ExitCode.OK, [])
    assert stopped_by(output, config, environment={"MS_ENABLE_TFT": "{TTP:1}"}) is MindFormersCode.FAULT_TOLERANCE_PICKS
    new = tmp_path / "new.yaml"
    line = ("launch", str(output), "--config", str(config), "--output", str(new))
    monkeypatch.setenv("MS_ENABLE_TFT", "{TTP:1,UCE:1}")
    said = ask(*line)
    assert (said.code, new.exists()) == (ExitCode.DAMAGE, False)
    assert "unset MS_ENABLE_TFT" in said.stdout
    assert ask("preflight", *line[1:4]).code == ExitCode.DAMAGE
    monkeypatch.setenv("MS_ENABLE_TFT", "{TRE:1}")
    assert ask(*line).code == ExitCode.OK


class TestThe17SpellingOfTheSwitch:
    def test_a_config_for_the_newer_layout_is_taken_for_one(self, tmp_path: Path) -> None:
        base, new = tmp_path / "base.yaml", tmp_path / "new.yaml"
        tree = FIXTURES / "newfmt_1rank" / "output"
        base.write_text("ckpt_use_legacy_format: False\nload_ckpt_format: safetensors\nrunner_config: {batch_size: 2}")
        read = read_train_config(str(base))
        assert (read.use_legacy_format, read.legacy_switch) == (False, "ckpt_use_legacy_format")
        order = LaunchOrder(base=str(base), output=str(new), allowed=tuple(rows()))
        launch = ckpttool.launch(
            TreeQuestion(path=str(tree)),
            ResumeQuestion(),
            DataQuestion(),
            order=order,
        )
        assert isinstance(launch, Launch)
        assert yaml.safe_load(new.read_text())["ckpt_use_legacy_format"] is False
        assert "use_legacy_format" not in yaml.safe_load(new.read_text())
        assert not [each for each in launch.plan.findings if "layout" in each.message]


class TestATrainingThatIsOver:
    TREE = FIXTURES / "nosink_ckpt" / "output"
    PLAIN = (("sink_mode: True", "sink_mode: False"), ("  sink_size: 2\n", ""))

    def test_its_last_checkpoint_is_nothing_to_resume(self, config: Path) -> None:
        """Five batches an epoch, as the names of the first run tell; the newest is step 20."""
        edited(config, *self.PLAIN, ("epochs: 2", "epochs: 4"))
        assert stopped_by(self.TREE, config) is TrainersCode.TRAINING_COMPLETE
        edited(config, ("epochs: 4", "epochs: 5"))
        assert preflighted(self.TREE, config) == (ExitCode.OK, [])

    @pytest.mark.parametrize(
        ("samples", "code"), [(240, TrainersCode.TRAINING_COMPLETE), (247, TrainersCode.TRAINING_COMPLETE), (256, None)]
    )
    def test_with_sinks_the_sizes_of_the_data_set_tell(self, config: Path, samples: int, code: Row | None) -> None:
        """Step 60 is the end of two epochs of 30 batches of 8 samples."""
        tree = FIXTURES / "sink2_ckpt" / "output"
        assert preflighted(tree, config) == (ExitCode.OK, [])
        loader = f"{{type: BlendedMegatronDatasetDataLoader, sizes: [{samples}, 0, 0]}}"
        config.write_text(f"{config.read_text()}train_dataset:\n  data_loader: {loader}\n")
        _, found = preflighted(tree, config)
        assert [finding.code for finding in found] == ([] if code is None else [code])


def test_resliced_ckpt_files_are_taken_by_their_folder_alone(tmp_path: Path, config: Path) -> None:
    """The last name of all is taken: that is the newest save of the fixture, and no longer with `zz.ckpt` beside it."""
    edited(config, ("load_checkpoint:", "auto_trans_ckpt: True\nload_checkpoint:"))
    output = shutil.copytree(FIXTURES / "sink2_ckpt" / "output", tmp_path / "output")
    assert preflighted(output, config) == (ExitCode.OK, [])
    beside = output / "checkpoint" / "rank_2" / "zz.ckpt"
    shutil.copy(output / "checkpoint" / "rank_2" / "llama2_7b_rank_2-10_2.ckpt", beside)
    assert stopped_by(output, config) is MindFormersCode.RESLICING_PICKS
    edited(config, ("auto_trans_ckpt: True\n", ""))
    assert preflighted(output, config) == (ExitCode.OK, [])
    edited(config, ("load_checkpoint:", "auto_trans_ckpt: True\ntransform_process_num: 2\nload_checkpoint:"))
    beside.unlink()
    assert stopped_by(output, config) is MindFormersCode.RESLICING_PICKS
