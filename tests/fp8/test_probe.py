"""`ckpttool fp8 probe`: what a user sees of real trees, and what each option changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ckpttool.core.errors import ExitCode
from tests.conftest import Golden
from tests.support.commands import ask
from tests.support.situations import real

FORMS = {"table": "txt", "json": "json"}
QUESTIONS = {
    "checkpoint": ["fixtures/sink2_ckpt/output"],
    "slices": [
        "fixtures/layouts/mcore_dist_tp2dp2",
        "--recipe",
        "mxfp8",
        "--format-of",
        "weight=e4m3,e5m2",
    ],
    "optimizer": ["fixtures/torch/adamw.pt", "--optimizer", "--top", "3"],
    "delayed": ["fixtures/sink2_ckpt/output", "--recipe", "delayed", "--history", "30"],
}


def weights(**tensors: torch.Tensor) -> str:
    save_file({f"{name}.weight": tensor for name, tensor in tensors.items()}, "w.safetensors")
    return "w.safetensors"


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.02


def unequal() -> torch.Tensor:
    return normal(256, 256) * torch.logspace(0, -8, 256)[:, None]


def told(*arguments: str) -> dict[str, Any]:
    return dict(ask("fp8", "probe", *arguments, "--json").json)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("beside_fixtures")
def test_the_answer_is_the_golden_one(name: str, form: str, golden: Golden) -> None:
    said = ask("fp8", "probe", *QUESTIONS[name], "--format", form)
    assert said.code == 0
    golden(f"fp8/probe-{name}.{FORMS[form]}", said.stdout)


@pytest.mark.usefixtures("beside_fixtures")
def test_a_weight_that_would_be_lost_ends_with_10_and_only_under_the_recipe_that_is_asked_about() -> None:
    path = weights(bad=unequal(), good=normal(256, 256))
    said = ask("fp8", "probe", path)
    assert said.code == ExitCode.DAMAGE
    assert "2 weights in FP8 (e4m3, tensorwise): 1 lost, 0 weak, 1 fine" in said.stdout
    assert ask("fp8", "probe", path, "--recipe", "rowwise").code == ExitCode.OK
    assert ask("fp8", "probe", path, "--recipe", "rowwise", "--recipe", "tensorwise").code == ExitCode.DAMAGE


@pytest.mark.usefixtures("beside_fixtures")
def test_numbers_go_to_a_file_a_line_each_and_never_over_somebody_elses(tmp_path: Path) -> None:
    path = weights(good=normal(64, 64), bad=unequal())
    for _ in range(2):  # its own earlier one may go
        assert ask("fp8", "probe", path, "--stats", "numbers.jsonl").code == ExitCode.DAMAGE
    lines = (tmp_path / "numbers.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == told(path)["tensors"]
    (tmp_path / "mine.txt").write_text("mine\n")
    for target, why in (
        ("mine.txt", "contains no numbers of ckpttool"),
        (path, "is the input file"),
        ("no/x", "does not exist"),
    ):
        said = ask("fp8", "probe", path, "--stats", target)
        assert (said.code, why in said.stderr) == (ExitCode.USAGE, True)
    tree = real(tmp_path, "sink2_ckpt")
    assert ask("fp8", "probe", str(tree), "--stats", str(tree / "x.jsonl")).code == ExitCode.USAGE


@pytest.mark.usefixtures("beside_fixtures")
def test_a_torn_shard_is_told_and_the_others_are_looked_at(tmp_path: Path) -> None:
    path = real(tmp_path, "sink2_ckpt") / "rank_2" / "llama2_7b_rank_2_1-30_2.ckpt"
    path.write_bytes(path.read_bytes()[:-700])
    said = ask("fp8", "probe", "output", "--checkpoint", "_1-30_2", "--json")
    assert said.code == ExitCode.DAMAGE
    tensors = said.json["tensors"]
    assert {tensor["rank"] for tensor in tensors} == {0, 1, 3}


@pytest.mark.usefixtures("beside_fixtures")
def test_a_tensor_that_cannot_be_read_ends_with_14() -> None:
    torch.save({"a.weight": normal(64, 64), "b.weight": normal(64, 64)[:, ::2]}, "a.pt")
    said = ask("fp8", "probe", "a.pt", "--json")
    assert (said.code, said.json["read_all"]) == (ExitCode.INCOMPLETE, False)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.usefixtures("beside_fixtures")
def test_gates_whose_unit_is_aligned_are_noted_and_fresh_ones_are_not(fused: bool) -> None:
    gate, up = normal(512, 256), normal(512, 256, seed=2)
    worse = gate.clone(), up.clone()
    worse[0][7] *= 3
    worse[1][7] = worse[0][7]

    def stored(gate: torch.Tensor, up: torch.Tensor) -> str:
        if fused:
            both = {"mlp.linear_fc1.weight": torch.cat([gate, up]), "mlp.linear_fc2.weight": normal(256, 512)}
        else:
            both = {"mlp.w1.weight": gate.bfloat16(), "mlp.w3.weight": up.bfloat16()}
        save_file(both, "w.safetensors")
        return "w.safetensors"

    (fresh,) = told(stored(gate, up))["swiglu"]
    assert fresh["gain_over_median"] == pytest.approx(1.2, abs=0.15)
    path = stored(*worse)
    assert ask("fp8", "probe", path).code == ExitCode.OK
    (pair,) = told(path)["swiglu"]
    assert (pair["unit"], pair["units"]) == (7, 512)
    assert pair["gain_over_median"] == pytest.approx(18, abs=1.5)
    assert "swiglu-aligned" in ask("fp8", "probe", "w.safetensors").stdout
    assert told("w.safetensors", "--no-swiglu")["swiglu"] == []


@pytest.mark.usefixtures("beside_fixtures")
def test_weights_of_which_a_save_has_flat_pieces_alone_are_not_called_fine() -> None:
    said = ask("fp8", "probe", "fixtures/layouts/ds_zero3_2ranks")
    assert said.code == ExitCode.INCOMPLETE
    assert "no weight of a linear layer could be checked" in said.stdout
    assert "3 weights could not be checked" in said.stdout
    assert "No FP8 in any recipe" not in said.stdout
    healthy = ask("fp8", "probe", "fixtures/layouts/ds_zero1_2ranks")
    assert (healthy.code, "could not be checked" in healthy.stdout) == (ExitCode.OK, False)
