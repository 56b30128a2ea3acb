"""`ckpttool inspect`: what a user sees of files of each format, whole and torn."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

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


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([""], 2, "it is empty: is a shell variable not set?"),
        (["fixtures"], 12, "holds no checkpoints"),
        (["fixtures/README.md"], 12, "is no shard"),
        (["nowhere/x.pt"], 12, "does not exist"),
        (["fixtures/sink2_ckpt/output:99_9"], 2, "there is no checkpoint '99_9'"),
        (["fixtures/torch/adamw.pt", "--tensor", "nothing*"], 2, "none of 6 tensors is called 'nothing*'"),
    ],
)
@pytest.mark.usefixtures("beside_fixtures")
def test_what_is_not_there_is_said_in_one_line(words: list[str], code: int, message: str) -> None:
    said = ask("inspect", *words)
    assert (said.code, said.stdout) == (code, "")
    assert message in said.stderr


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


def test_shapes_that_do_not_agree_between_ranks_are_said(here: Path) -> None:
    tree = real(here, "sink2_safetensors")
    file = tree / "rank_3" / "llama2_7b_rank_3-15_2.safetensors"
    save_file({"dense.bias": np.zeros((2, 4), np.float16)}, file)
    said = ask("inspect", "output:15_2")
    assert "all 4, but F16 2×4 on rank 3" in said.stdout
    rows = ask("inspect", "output:15_2", "--format", "json").json["tensors"]
    (bias,) = [row for row in rows if row["name"] == "dense.bias"]
    assert bias["differ"] == [{"dtype": "F16", "shape": [2, 4], "ranks": [3]}]
    (other,) = [row for row in rows if row["name"] == "dense.weight"]
    assert (other["ranks"], other["differ"]) == ([0, 1, 2], [])


def test_numbers_are_those_that_numpy_finds(here: Path) -> None:
    made = np.random.default_rng(7).normal(size=(300, 500)).astype(np.float32)
    made[3, 4:9], made[5, 5], made[0] = np.nan, -np.inf, 0
    half = torch.tensor(made).to(torch.bfloat16)
    eight = torch.tensor([0.0, -2.0, 448.0]).to(torch.float8_e4m3fn)
    tensors = {
        "w": torch.tensor(made),
        "half": half,
        "eight": eight,
        "none": torch.zeros(0, 3),
        "i": torch.arange(-3, 4),
    }
    save_torch(tensors, here / "a.safetensors")
    torch.save(tensors, here / "a.pt")
    for name in ("a.safetensors", "a.pt"):
        said = ask("inspect", name, "--stats", "--format", "json")
        assert said.code == 10  # NaN
        found = {row["name"]: row["stats"] for row in said.json["tensors"]}
        finite = made[np.isfinite(made)].astype(np.float64)
        assert found["w"]["norm"] == pytest.approx(np.linalg.norm(finite), rel=1e-5)
        assert (found["w"]["min"], found["w"]["max"]) == (finite.min(), finite.max())
        assert (found["w"]["nans"], found["w"]["infinities"], found["w"]["zeros"]) == (5, 1, 500)
        assert found["half"]["max"] == float(half[torch.isfinite(half)].max())
        assert (found["eight"]["min"], found["eight"]["max"], found["eight"]["zeros"]) == (-2.0, 448.0, 1)
        assert (found["none"]["elements"], found["none"]["min"], found["none"]["norm"]) == (0, None, 0)
        assert (found["i"]["min"], found["i"]["max"], found["i"]["absmax"], found["i"]["zeros"]) == (-3, 3, 3, 1)


def test_nan_in_a_tensor_that_was_not_asked_for_is_not_looked_for(here: Path) -> None:
    save_file({"a": np.array([np.nan], np.float32), "b": np.ones(3, np.float32)}, here / "a.safetensors")
    assert ask("inspect", "a.safetensors", "--stats", "--tensor", "b").code == 0
    said = ask("inspect", "a.safetensors", "--stats", "--tensor", "a")
    assert said.code == 10
    assert "nonfinite-values" in said.stdout


def test_names_cannot_act_on_a_terminal(here: Path) -> None:
    save_file({"a\x1b[31mb\n\u202ec": np.ones(1, np.float32)}, here / "a.safetensors")
    said = ask("inspect", "a.safetensors", "--all")
    assert "a\\x1b[31mb\\x0a\\u202ec" in said.stdout
    assert "\x1b" not in said.stdout
    torch.save({"evil\x1b]0;title\x07": "\x1b[2J", "w": torch.ones(1)}, here / "a.pt")
    said = ask("inspect", "a.pt")
    assert "\x1b" not in said.stdout
    assert "\x07" not in said.stdout


def test_a_long_table_says_how_many_rows_it_leaves_out(here: Path) -> None:
    save_file({f"layers.{at}.w": np.zeros(1, np.float32) for at in range(120)}, here / "a.safetensors")
    assert "… and 70 more rows: --all shows them, --limit N the first N" in ask("inspect", "a.safetensors").stdout
    assert "… and 117 more rows" in ask("inspect", "a.safetensors", "--limit", "3").stdout
    whole = ask("inspect", "a.safetensors", "--all").stdout
    assert "more" not in whole
    assert whole.index("layers.2.w") < whole.index("layers.10.w")


def test_a_sealed_checkpoint_says_so(here: Path) -> None:
    real(here, "sink2_ckpt")
    assert ask("seal", "output", "--checkpoint", "15_2").code == 0
    assert ", sealed 2" in ask("inspect", "output:15_2").stdout.replace("; sealed", ", sealed")
    files = ask("inspect", "output:15_2", "--format", "json").json["files"]
    manifest = json.loads(next((here / "output" / "checkpoint" / ".ckpttool").glob("*manifest.json")).read_text())
    assert [file["seal"]["xxh3_128"] for file in files] == [shard["xxh3_128"] for shard in manifest["shards"]]


def test_a_file_that_lies_among_shards_and_is_none_is_shown_alone(here: Path) -> None:
    tree = real(here, "sink2_ckpt")
    for place in (tree / "rank_0" / "strategy.ckpt", tree / "other.ckpt", here / "output" / "x.ckpt"):
        shutil.copy(FIXTURES / "crc" / "split.ckpt", place)
        said = ask("inspect", str(place))
        assert said.code == 0
        assert said.stdout.startswith(f"{place.name}: 12 tensors")


def test_a_name_is_looked_up_in_the_folder_where_we_are(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(real(here, "sink2_ckpt"))
    assert ask("inspect", "15_2").stdout.startswith("15_2: 20 tensors")
    (here / "empty").mkdir()
    monkeypatch.chdir(here / "empty")
    assert "there is no file or folder 'modle.pt'" in ask("inspect", "modle.pt").stderr


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
        assert "no room for" in " ".join(said.split())
    monkeypatch.setenv("COLUMNS", "200")
    assert "no room" not in ask("inspect", "output", "--stats").stdout


def test_an_empty_file_is_not_said_to_be_written_by_anybody(here: Path) -> None:
    (here / "a.pt").write_bytes(b"")
    said = ask("inspect", "a.pt")
    assert said.code == 10
    assert "written by" not in said.stdout


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
