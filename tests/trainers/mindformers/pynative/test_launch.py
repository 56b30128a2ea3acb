"""The config and the command that resume from a chosen save, and where the next saves go."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ckpttool.core.domain.finding import Code
from ckpttool.core.errors import ExitCode
from ckpttool.trainers.mindformers.launch import MindFormersLaunch
from ckpttool.trainers.mindformers.pynative.launch import next_saves
from tests.support.answers import FIXTURES, cli, codes, document
from tests.trainers.mindformers.pynative.support import BASE, changed, config_of, tree_of


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run killed at step 34, seen from the folder in which it was started."""
    monkeypatch.chdir(tmp_path)
    return tree_of("one_rank_killed_34", tmp_path)


def launched(tree: Path, text: str, *options: str) -> dict[str, object]:
    Path("base.yaml").write_text(text)
    said = cli("launch", str(tree), "--config", "base.yaml", "--output", "new.yaml", *options)
    assert said.exit_code == ExitCode.OK, said.output
    written: dict[str, object] = yaml.safe_load(Path("new.yaml").read_text())
    return written


def test_only_the_settings_that_load_the_save_change(tree: Path) -> None:
    text = changed(no_load_optim=True, load_balanced=True) + "# a comment that stays\n"
    written = launched(tree, text)
    expected = yaml.safe_load(text)
    expected["checkpoint"] |= {
        "load_path": str(tree / "iteration_00000030"),
        "no_load_optim": False,
        "load_balanced": False,
    }
    assert written == expected
    assert Path("new.yaml").read_text().endswith("# a comment that stays\n")


def test_settings_that_the_section_lacks_are_added(tree: Path) -> None:
    text = "\n".join(line for line in BASE.splitlines() if "load_" not in line) + "\n"
    section = launched(tree, text)["checkpoint"]
    assert isinstance(section, dict)
    assert [section[key] for key in ("load_path", "no_load_optim", "load_balanced")] == [
        str(tree / "iteration_00000030"),
        False,
        False,
    ]


def test_the_command_selects_the_pynative_trainer(tree: Path) -> None:
    Path("base.yaml").write_text(BASE)
    config = Path("new.yaml").absolute()
    order = ("launch", str(tree), "--config", "base.yaml", "--output", "new.yaml", "--dry-run")
    assert document(*order)["commands"] == [f"python run_mindformer.py --config {config} --mode 1"]
    own = document(*order, "--script", "/my/train.py")["commands"]
    assert own == [f"python /my/train.py --config {config}"]
    (several,) = document(*order, "--devices-per-node", "2")["commands"]
    assert several.startswith("bash scripts/msrun_launcher.sh 'python run_mindformer.py --config")
    assert several.endswith("--mode 1' 2 8118 output/msrun_log True 7200")


def test_a_config_without_the_section_is_refused(tree: Path) -> None:
    Path("base.yaml").write_text(BASE.partition("training:")[1] + BASE.partition("training:")[2])
    said = cli("launch", str(tree), "--config", "base.yaml", "--output", "new.yaml")
    assert said.exit_code != ExitCode.OK
    assert not Path("new.yaml").exists()


def test_a_run_without_a_step_to_train_is_refused(tree: Path) -> None:
    Path("base.yaml").write_text(changed(steps=30))
    said = cli("launch", str(tree), "--config", "base.yaml", "--output", "new.yaml")
    assert said.exit_code == ExitCode.DAMAGE
    assert "it trains nothing" in " ".join(said.output.split())
    assert "raise training.steps above 30" in " ".join(said.output.split())
    assert not Path("new.yaml").exists()


class TestAConfigOfTheOtherTrainer:
    def test_of_the_static_one_is_refused(self, tree: Path) -> None:
        static = str(FIXTURES / "configs" / "pretrain_sink2.yaml")
        said = cli("launch", str(tree), "--config", static, "--output", "new.yaml")
        assert said.exit_code != ExitCode.OK
        assert "was saved by the PyNative trainer" in " ".join(said.output.split())
        assert not Path("new.yaml").exists()

    def test_of_this_one_is_refused_for_rank_folders(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("base.yaml").write_text(BASE)
        static = str(FIXTURES / "nosink_ckpt" / "output" / "checkpoint")
        said = cli("launch", static, "--config", "base.yaml", "--output", "new.yaml")
        assert said.exit_code != ExitCode.OK
        assert "was saved by the static trainer" in " ".join(said.output.split())
        assert not Path("new.yaml").exists()

    def test_of_this_one_is_suspect_for_iterations_of_the_static_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("base.yaml").write_text(BASE)
        static = str(FIXTURES / "newfmt_1rank" / "output" / "checkpoint")
        said = cli("launch", static, "--config", "base.yaml", "--output", "new.yaml")
        assert said.exit_code == ExitCode.DAMAGE
        assert "nothing shows that it wrote" in " ".join(said.output.split())


class TestDevices:
    @pytest.mark.parametrize(
        ("values", "devices", "fits"),
        [
            ({}, 1, True),
            ({}, 4, True),
            ({}, 8, False),
            ({"tensor_parallel": "4\n  sequence_parallel: True"}, 4, True),
            ({"tensor_parallel": "4\n  sequence_parallel: True"}, 2, False),
            ({"tensor_parallel": "2\n  sequence_parallel: True"}, 3, False),
            ({"global_batch_size": 16, "seed": "42\n  rampup_batch_size: [4, 4, 96]"}, 2, True),
            ({"global_batch_size": 16, "seed": "42\n  rampup_batch_size: [16, 3, 96]"}, 2, True),
            ({"global_batch_size": 16, "seed": "42\n  rampup_batch_size: [4, 4, 96]"}, 4, False),
        ],
        ids=str,
    )
    def test_that_divide_no_batch_are_reported(self, values: dict[str, object], devices: int, fits: bool) -> None:
        found = MindFormersLaunch().other_devices(config_of(changed(**values)), devices)
        assert codes(found) == (set() if fits else {Code.CONFIG_DISAGREES})

    def test_any_number_loads_the_save(self, tree: Path) -> None:
        Path("base.yaml").write_text(BASE)
        said = cli("preflight", str(tree), "--config", "base.yaml", "--devices", "2", "--allow", "start-differs")
        assert said.exit_code == ExitCode.OK, said.output


def test_next_saves_need_one_more_than_are_kept(tmp_path: Path) -> None:
    relative = next_saves(config_of(changed(save_max=3)), str(tmp_path))
    assert (relative.folder, relative.count) == (str(tmp_path), 4)
    assert next_saves(config_of(changed(save_path='"/data/saves/"')), str(tmp_path)).folder == "/data/saves"
