"""Trees of trainers that are not known: refused by name, with what is known and what can be done; never blamed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckpttool.core.errors import ExitCode, UnknownLayoutError
from ckpttool.trainers.below import trees_below
from ckpttool.trainers.locate import locate
from ckpttool.trainers.registry import trainers
from tests.support.answers import chosen, cli, plan
from tests.support.trainer_trees import LAYOUTS, healthy

_DCP = LAYOUTS / "dcp_plain_2ranks" / "8"
_TORCH = LAYOUTS / "loose_models" / "a" / "model.pt"
_SAFETENSORS = LAYOUTS / "hf_single" / "checkpoint-4" / "model.safetensors"


def lay(root: Path, *files: str) -> Path:
    """Lay files of the kind that their names say; a name that ends in `/` is a folder of torch's slices."""
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if file.endswith("/"):
            shutil.copytree(_DCP, path)
        elif path.suffix in {".pt", ".pth", ".bin", ".ckpt"}:
            shutil.copyfile(_TORCH, path)
        elif path.suffix == ".safetensors":
            shutil.copyfile(_SAFETENSORS, path)
        else:
            path.write_text("{}")
    return root


SAVES_TOLD = """\
OLMo: step1000-unsharded step2000-unsharded: model.pt optim.pt train.pt config.yaml
NeMo: gpt--step=9-last gpt--step=19-last: weights/ weights/common.pt weights/metadata.json context/model.yaml
PaddleNLP: checkpoint-10 checkpoint-20: model_state.pdparams optimizer.pdopt scheduler.pdparams rng_state.pth
    trainer_state.json training_args.bin config.json
PaddlePaddle: 1 2: 0.metadata 0_0.distcp
nanotron: 10 20: checkpoint_metadata.json model/model/model_weight_pp-rank-0-of-1_tp-rank-0-of-1.safetensors
    optimizer/optimizer_pp-0-of-1_tp-0-of-1.pt random/tp-0-of-1_dp-0-of-1_pp-0-of-1.pt
ColossalAI: epoch-0_step-100 epoch-0_step-200: modeling/pytorch_model-00001.bin
    modeling/pytorch_model.bin.index.json optimizer/pytorch_optim-00001.bin lr_scheduler running_states.json
Levanter: step-1000 step-2000: metadata.json manifest.ocdbt
T5X: checkpoint_1000 checkpoint_2000: checkpoint target.decoder.kernel/.zarray
fairseq2: step_100 step_200: model/pp_00/tp_00/sdp_00.pt trainer/rank_00.pt data_reader/dp_00.pt
LitGPT: step-00001000 step-00002000: lit_model.pth model_config.yaml
SpeechBrain: CKPT+2024-01-01+10-00-00+00 CKPT+2024-01-02+10-00-00+00: CKPT.yaml model.ckpt optimizer.ckpt brain.ckpt
"""
"""Whose they are, folders that are saves, and what lies in each."""


def saves_told() -> dict[str, tuple[list[str], list[str]]]:
    lines = SAVES_TOLD.replace("\n    ", " ").splitlines()
    rows = (line.split(": ") for line in lines)
    return {title: (names.split(), files.split()) for title, names, files in rows}


SAVES = saves_told()

FILES = {
    "Composer with compression": ("ep0-ba50-rank0.pt.lz4", "ep1-ba100-rank0.pt.lz4", "latest-rank0.pt.lz4"),
    "NeMo": ("gpt.nemo",),
    "Keras": ("model.01.keras", "model.02.keras"),
    "TensorFlow": ("checkpoint", "ckpt-1.index", "ckpt-1.data-00000-of-00001"),
    "PaddlePaddle": ("model_1.pdparams", "model_1.pdopt"),
    "fairseq": ("checkpoint1.pt", "checkpoint_2_1000.pt", "checkpoint_best.pt", "checkpoint_last.pt"),
    "torchtune": ("epoch_0/model.safetensors", "epoch_1/model.safetensors", "recipe_state/recipe_state.pt"),
    "MMEngine or Detectron2": ("epoch_1.pth", "epoch_2.pth", "last_checkpoint"),
    "Flax": ("checkpoint_1000", "checkpoint_2000"),
}
"""Trees whose saves are files, by whose."""

ALONE = {
    "nanoGPT": ("ckpt.pt",),
    "a loop of one's own": ("ckpt_100.pt", "ckpt_200.pt"),
    "another one": ("model_100.ckpt", "model_200.ckpt"),
    "one that names them as Lightning does": ("epoch=1-step=10.ckpt", "last.ckpt"),
    "exports": ("a_100.safetensors", "a_200.safetensors"),
}


def said_of(path: Path, command: str = "resolve") -> str:
    """Ask about what is not known; return what is said, in one line."""
    said = cli(command, str(path))
    assert said.exit_code == ExitCode.UNKNOWN_LAYOUT
    return " ".join(said.output.split())


@pytest.mark.parametrize("title", SAVES)
class TestSavesOfATrainerThatIsNotKnown:
    @pytest.fixture
    def tree(self, title: str, tmp_path: Path) -> Path:
        """Two saves."""
        names, files = SAVES[title]
        return lay(tmp_path / "run", *(f"{name}/{file}" for name in names for file in files))

    @pytest.mark.sample(10)
    @pytest.mark.parametrize("command", ["scan", "resolve"])
    def test_are_refused_by_name_with_what_is_known(self, title: str, tree: Path, command: str) -> None:
        said = said_of(tree, command)
        assert f"some that look like those of {title}; it knows those of MindFormers, Orbax" in said
        assert all(trainer.title in said for trainer in trainers())
        assert "ckpttool verify FILE checks a single file" in said

    @pytest.mark.sample(8)
    def test_send_nobody_into_the_folder_of_one(self, title: str, tree: Path) -> None:
        name = SAVES[title][0][-1]
        assert f"{tree}/{name}" not in said_of(tree)
        assert f"{name} looks like a save of {title}, which ckpttool does not know yet" in said_of(tree / name)
        assert list(trees_below(str(tree.parent))) == []

    @pytest.mark.sample(8)
    def test_are_named_from_the_folder_around_theirs(self, title: str, tree: Path) -> None:
        assert f"{tree} has some that look like those of {title}" in said_of(tree.parent)

    @pytest.mark.sample(8)
    def test_one_alone_is_none_either(self, title: str, tree: Path) -> None:
        shutil.rmtree(tree / SAVES[title][0][0])
        assert f"look like those of {title}" in said_of(tree)


@pytest.mark.parametrize("title", FILES)
def test_a_tree_whose_saves_are_files_is_refused_by_name(title: str, tmp_path: Path) -> None:
    assert f"look like those of {title}; it knows those of" in said_of(lay(tmp_path / "run", *FILES[title]))


@pytest.mark.parametrize("files", ALONE.values(), ids=ALONE)
def test_files_that_tell_of_no_trainer_can_be_verified_one_by_one(files: tuple[str, ...], tmp_path: Path) -> None:
    tree = lay(tmp_path / "run", *files)
    said = said_of(tree)
    assert f"only files such as {files[-1]}, which ckpttool verify FILE checks one by one" in said
    assert cli("verify", str(tree / files[-1])).exit_code == ExitCode.OK


def test_an_empty_folder_is_said_to_be_so_as_before_a_first_launch(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for command in ("scan", "resolve", "preflight"):
        assert "it is empty, as before the first start" in said_of(tmp_path / "run", command)
    (tmp_path / "run" / "notes.txt").write_text("x")
    assert "it is empty" not in said_of(tmp_path / "run")


class TestBesideAKnownTree:
    @pytest.mark.parametrize("is_of_others", [True, False])
    def test_a_part_of_a_save_of_others_is_refused_by_their_name(self, is_of_others: bool, tmp_path: Path) -> None:
        """A plain save of torch may be a part of a larger one, beside what loaders and counters need."""
        save = "CKPT+2024-01-01+10-00-00+00"
        folder = f"{save}/slices" if is_of_others else "mine/step_100"
        run = tmp_path / "run"
        shutil.copytree(healthy("dcp_fsdp2_4ranks", tmp_path / "torch") / "step_000005", run / folder)
        lay(run, f"{save}/CKPT.yaml", f"{save}/brain.ckpt")
        if is_of_others:
            assert f"{save} looks like a save of SpeechBrain" in said_of(run / folder, "resolve")
            assert locate(str(run / folder), layout="torch-dcp").layout.name == "torch-dcp"
        else:
            assert locate(str(run / folder)).layout.name == "torch-dcp"

    def test_slices_in_a_save_of_a_known_trainer_are_a_part_of_it(self, tmp_path: Path) -> None:
        found = locate(str(healthy("olmo_2ranks", tmp_path) / "step12" / "model_and_optim"))
        assert (found.layout.name, found.focus) == ("olmo-core", "step12")

    def test_a_ckpt_without_its_version_is_not_lightnings_and_one_with_it_is(self, tmp_path: Path) -> None:
        run = healthy("light_single", tmp_path) / "checkpoints"
        assert locate(str(run)).layout.name == "lightning"
        lay(run, "ema.ckpt")
        assert chosen(plan(run)) == ("epoch=1-step=12.ckpt", 12)
        for file in run.glob("epoch=*"):
            file.unlink()
        (run / "last.ckpt").unlink(missing_ok=True)
        with pytest.raises(UnknownLayoutError, match=r"only files such as ema\.ckpt"):
            locate(str(run))
