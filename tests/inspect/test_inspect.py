"""`ckpttool inspect`: what a user sees of files of each format, whole and torn."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from tests.conftest import FIXTURES, Golden
from tests.support.commands import ask
from tests.support.situations import SITUATIONS, real

FORMS = {"table": "txt", "json": "json"}
QUESTIONS = {
    "ckpt": ["fixtures/crc/split.ckpt"],
    "ckpt-stats": ["fixtures/crc/split.ckpt", "--stats"],
    "safetensors-tensor": ["fixtures/crc/with_scalars.safetensors", "--tensor", "*.weight", "--tensor", "flag"],
    "torch": ["fixtures/torch/checkpoint_700.pt", "--stats"],
    "torch-optimizer": ["fixtures/torch/adamw.pt", "--limit", "2"],
    "checkpoint": ["fixtures/sink2_ckpt/output"],
    "one-of-many-files": ["fixtures/newfmt_tp2dp2/output:iteration_00000020", "--limit", "4"],
}


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("beside_fixtures")
def test_the_answer_is_the_golden_one(name: str, form: str, golden: Golden) -> None:
    said = ask("inspect", *QUESTIONS[name], "--format", form)
    assert said.code == 0
    golden(f"inspect/{name}.{FORMS[form]}", said.stdout)
    if form == "json":
        assert said.json["schema"] == "ckpttool/contents/1"


@pytest.mark.parametrize("words", [["output:15_2"], ["output", "--checkpoint", "15_2"], ["15_2"]])
def test_a_checkpoint_is_found_however_it_is_named(words: list[str], here: Path) -> None:
    real(here, "sink2_ckpt")
    said = ask("inspect", *words, "--format", "json").json
    assert (said["checkpoint"], said["step"], said["file"]) == ("15_2", 30, None)


def test_a_file_of_a_tree_is_looked_at_alone_and_knows_its_rank(here: Path) -> None:
    path = real(here, "sink2_ckpt") / "rank_2" / "llama2_7b_rank_2-15_2.ckpt"
    said = ask("inspect", str(path), "--format", "json").json
    assert [(file["path"], file["rank"]) for file in said["files"]] == [("rank_2/llama2_7b_rank_2-15_2.ckpt", 2)]


def test_slices_of_torch_distributed_checkpoint_have_the_names_and_shapes_of_the_record(here: Path) -> None:
    shutil.copytree(FIXTURES / "layouts" / "composer_fsdp", here / "run", symlinks=True)
    tensors = ask("inspect", str(here / "run" / "ep0-ba6"), "--json").json["tensors"]
    assert isinstance(tensors, list)
    parts = ["state.model.module.0.bias (part 1 of 2)", "state.model.module.0.bias (part 2 of 2)"]
    assert [each["shape"] for each in tensors if each["name"] in parts] == [[4], [4]]
    assert len(tensors) == 30


@pytest.mark.parametrize(
    "file",
    ["crc/with_scalars.safetensors", "crc/split.ckpt", "torch/adamw.pt"],
    ids=lambda file: file.rpartition(".")[2],
)
def test_a_torn_file_is_told_as_verify_tells_it_with_what_can_still_be_read(file: str, here: Path) -> None:
    torn = here / Path(file).name
    torn.write_bytes((FIXTURES / file).read_bytes()[: -30 if torn.suffix == ".safetensors" else -700])
    said, verified = ask("inspect", str(torn), "--format", "json"), ask("verify", str(torn), "--format", "json")
    assert said.code == verified.code == 10
    findings = verified.json["checkpoints"][0]["findings"]
    assert said.json["findings"] == findings
    assert len(said.json["tensors"]) > 2


def test_a_missing_rank_and_a_scalar_that_differs_are_said(here: Path) -> None:
    SITUATIONS["missing-shard"](here)
    assert ask("inspect", "output:20_2").code == 10
    shutil.rmtree(here / "output")
    tree = real(here, "sink2_ckpt")
    shutil.copy(tree / "rank_1" / "llama2_7b_rank_1-10_2.ckpt", tree / "rank_1" / "llama2_7b_rank_1-15_2.ckpt")
    said = ask("inspect", "output:15_2")
    assert said.code == 10
    assert "30, but 20 on rank 1" in said.stdout


def test_names_cannot_act_on_a_terminal(here: Path) -> None:
    save_file({"a\x1b[31mb\n\u202ec": np.ones(1, np.float32)}, here / "a.safetensors")
    said = ask("inspect", "a.safetensors", "--all")
    assert "a\\x1b[31mb\\x0a\\u202ec" in said.stdout
    assert "\x1b" not in said.stdout
    torch.save({"evil\x1b]0;title\x07": "\x1b[2J", "w": torch.ones(1)}, here / "a.pt")
    said = ask("inspect", "a.pt")
    assert "\x1b" not in said.stdout
    assert "\x07" not in said.stdout


def test_a_name_is_looked_up_in_the_folder_where_we_are(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(real(here, "sink2_ckpt"))
    assert ask("inspect", "15_2").stdout.startswith("15_2: 20 tensors")
    (here / "empty").mkdir()
    monkeypatch.chdir(here / "empty")
    assert "there is no file or folder 'modle.pt'" in ask("inspect", "modle.pt").stderr


@pytest.mark.sample(1)
@pytest.mark.parametrize("columns", ["30", "60", "80"])
def test_a_narrow_terminal_leaves_columns_out_and_says_which_but_cuts_no_name(
    columns: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real(here, "sink2_ckpt")
    monkeypatch.setenv("COLUMNS", columns)
    name = "optimizer.adam_v.model.tok_embeddings.embedding_weight"
    for words in (["inspect", "output", "--stats"], ["diff", "10_2", "20_2", "--level", "numerics"]):
        said = ask(*words).stdout
        assert name in said
        assert "not shown:" in " ".join(said.split())
    monkeypatch.setenv("COLUMNS", "200")
    assert "no room" not in ask("inspect", "output", "--stats").stdout


def test_a_long_value_is_shown_whole_and_only_of_a_page_the_rest_is_counted(here: Path) -> None:
    command = "python train.py " + "--set key=value " * 40 + "\x1b[31mEND"
    assert here.is_dir()
    torch.save({"cmd": command, "page": "x" * 10_003, "sha": "a" * 64, "w": torch.zeros(2)}, "a.pt")
    said = ask("inspect", "a.pt")
    assert command.replace("\x1b", "\\x1b") in said.stdout.replace("\n        ", " ")
    assert "a" * 64 in said.stdout
    assert f"{'x' * 10_000}… and 3 more characters" in " ".join(said.stdout.split())
    scalars = ask("inspect", "a.pt", "--format", "json").json["scalars"]
    assert {"a" * 64, command} <= {scalar["value"] for scalar in scalars}
    torch.save({"cmd": f"{command} again", "w": torch.zeros(2)}, "b.pt")
    assert "END again" in " ".join(ask("diff", "a.pt", "b.pt").stdout.split())
