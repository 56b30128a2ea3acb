"""The weights of saves with complete models are written bit by bit, with what belongs to them and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FIXTURES
from tests.export.truth import exported, of_tensors
from tests.support.commands import ask, environment

LAYOUTS = FIXTURES / "layouts"
TREES = {"hf_single": "checkpoint-12", "hf_only_model": "checkpoint-6", "hf_sharded_index": "checkpoint-6"}
TREES |= {"hf_ddp2": "checkpoint-8", "accel_ddp2": "checkpoints/checkpoint_2", "hf_lora": "checkpoint-6"}


@pytest.mark.parametrize("tree", TREES)
def test_the_weights_are_those_that_safetensors_loads_from_the_save(tree: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    said = ask("export", str(LAYOUTS / tree / TREES[tree]), "--output", str(tmp_path / "out"), "--json")
    assert said.code == 0, said.output
    truth: dict[str, Any] = {}
    for file in (LAYOUTS / tree / TREES[tree]).glob("*model*.safetensors"):
        truth |= load_file(file)
    found = exported(tmp_path / "out")
    assert found == of_tensors(truth)
    assert said.json["output"]["total"]["tensors"] == len(truth) > 0


def test_files_are_as_large_as_requested_and_the_index_names_them(tmp_path: Path) -> None:
    from ckpttool.export.model import ExportQuestion
    from ckpttool.export.verbs import export

    one = export(str(LAYOUTS / "hf_single"), ExportQuestion(output=str(tmp_path / "one")))
    many = export(str(LAYOUTS / "hf_single"), ExportQuestion(output=str(tmp_path / "many"), max_shard=1500))
    assert one.output is not None
    assert many.output is not None
    assert len(many.output.files) > 2
    assert exported(tmp_path / "one") == exported(tmp_path / "many")
    for file in many.output.files:
        assert file.nbytes == (tmp_path / "many" / file.name).stat().st_size
    listed = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    assert listed["metadata"]["ckpttool"]["step"] == 12


def test_only_what_belongs_to_the_model_is_copied_and_the_rest_from_the_base_model(
    tmp_path: Path, copy_tree: Callable[[str], Path]
) -> None:
    tree = copy_tree("layouts/hf_single")
    (tree / "checkpoint-12" / "modeling_own.py").write_text("raise SystemExit('run')")
    base = tmp_path / "base"
    base.mkdir()
    for name in ("tokenizer.json", "config.json", "modeling_own.py", "model.safetensors"):
        (base / name).write_text(f"base {name}")
    said = ask("export", str(tree), "--output", str(tmp_path / "out"), "--config-from", str(base), "--json")
    assert said.json["output"]["copied"] == ["config.json", "generation_config.json", "tokenizer.json"]
    assert said.json["output"]["missing"] == []
    assert (tmp_path / "out/config.json").read_bytes() == (tree / "checkpoint-12/config.json").read_bytes()
    assert (tmp_path / "out/tokenizer.json").read_text() == "base tokenizer.json"
    assert not list((tmp_path / "out").glob("*.py"))


@pytest.mark.parametrize(("fault", "code"), [("truncated", 10), ("missing", 10), ("zeroed", 10), ("unfinished", 0)])
def test_a_damaged_save_is_not_exported_and_the_exit_is_that_of_verify(
    fault: str, code: int, tmp_path: Path, copy_tree: Callable[[str], Path]
) -> None:
    tree = copy_tree("layouts/hf_sharded_index")
    shard = tree / "checkpoint-6" / "model-00002-of-00004.safetensors"
    if fault == "truncated":
        shard.write_bytes(shard.read_bytes()[:-4])
    elif fault == "missing":
        shard.unlink()
    elif fault == "zeroed":
        shard.write_bytes(bytes(shard.stat().st_size))
    said = ask("export", str(tree), "--output", str(tmp_path / "out"), "--json")
    assert said.code == ask("verify", str(tree)).code == code
    assert (said.json["output"] is None) == (code != 0)
    assert (tmp_path / "out").exists() == (code == 0)
    assert not (tmp_path / "out.part").exists()


def test_a_type_on_request_is_that_of_torch(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    said = ask("export", str(LAYOUTS / "hf_single"), "--output", str(tmp_path / "out"), "--dtype", "bf16", "--json")
    assert said.json["output"]["dtypes"] == {"BF16": 16}
    truth = load_file(LAYOUTS / "hf_single/checkpoint-12/model.safetensors")
    assert exported(tmp_path / "out") == of_tensors({name: each.to(torch.bfloat16) for name, each in truth.items()})


def test_a_weight_that_is_not_a_plain_tensor_is_never_left_out_silently(tmp_path: Path) -> None:
    import torch

    plain = torch.ones(2)
    saves: dict[str, tuple[Any, str]] = {
        "sparse": ({"w": torch.eye(3).to_sparse(), "b": plain}, "'w'"),
        "without data": ({"w": torch.empty(3, device="meta"), "b": plain}, "'w'"),
        "negated": ({"w": torch.ones(3, dtype=torch.complex64).conj().imag, "b": plain}, "'w'"),
        "conjugated": ({"w": torch.ones(3, dtype=torch.complex64).conj(), "b": plain}, "'w'"),
        "list": ({"w": [torch.ones(3)], "b": plain}, "'w'"),
        "nested": ({"model": {"w": {"inner": torch.ones(3)}, "b": plain}}, "'w'"),
        "number as name": ({1: torch.ones(3), "b": plain}, "'1'"),
        "model under another key": ({"loss": torch.tensor(0.5), "net": {"w": torch.ones(3)}}, "--part net"),
    }
    for name, (saved, expected) in saves.items():
        torch.save(saved, tmp_path / "w.pt")
        said = ask("export", str(tmp_path / "w.pt"), "--output", str(tmp_path / "out"), "--json")
        assert said.code == 14, (name, said.output)
        (finding,) = said.json["findings"]
        assert expected in finding["message"] + finding["remedy"], (name, finding)
        assert not (tmp_path / "out").exists()


def test_values_that_are_not_weights_do_not_hinder_an_export(tmp_path: Path) -> None:
    import torch

    weights = {"w": torch.ones(2, 3).t(), "b": torch.zeros(())}
    more = {"layer._extra_state": {"scale": torch.ones(1)}, "step": 3, "history": [1, 2], "args": {"lr": 0.5}}
    torch.save({**weights, **more}, tmp_path / "w.pt")
    said = ask("export", str(tmp_path / "w.pt"), "--output", str(tmp_path / "out"), "--json")
    assert said.code == 0, said.output
    assert exported(tmp_path / "out") == of_tensors(weights)


def test_a_folder_in_use_and_a_wrong_request_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    tree = str(LAYOUTS / "hf_single")
    assert ask("export", tree, "--output", str(tmp_path)).code == 2
    assert ask("export", tree, "--output", str(tmp_path / "a"), "--max-shard", "5").code == 2
    assert ask("export", tree, "--output", str(tmp_path / "a"), "--config-from", str(tmp_path / "no")).code == 2
    said = ask("export", tree, "--output", str(tmp_path / "no" / "a"))
    assert said.code == 2
    assert "create that folder first" in said.output
    assert ask("export", tree, "--checkpoint", "no", "--output", str(tmp_path / "a")).code == 2
    assert ask("export", str(tmp_path / "no"), "--output", str(tmp_path / "a")).code == 12
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_no_torch_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys, ckpttool; answer = ckpttool.library.export(sys.argv[1], output=sys.argv[2]); "
        "assert answer.output.tensors == 16; assert not {'torch', 'safetensors'} & {*sys.modules}"
    )
    arguments = [sys.executable, "-c", code, str(LAYOUTS / "hf_single"), str(tmp_path / "out")]
    subprocess.run(arguments, check=True, env=environment())
