"""Exports of saves that real torch writes on four ranks now, their memory, and loading one as a model."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FIXTURES
from tests.export.truth import by_dcp_to_torch, exported, flattened, of_tensors
from tests.support.commands import MODULE, ask, environment

pytestmark = pytest.mark.slow
RANKS = 4
MIB = 1 << 20


@pytest.fixture(scope="module")
def saves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write folders with every kind of slice, one process per rank."""
    folder = tmp_path_factory.mktemp("dcp")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = Path(__file__).parent / "dcp_saves.py"
    command = [sys.executable, "-W", "ignore", str(script), str(folder)]
    ranks = [subprocess.Popen([*command, str(rank), str(RANKS), port]) for rank in range(RANKS)]
    assert [rank.wait() for rank in ranks] == [0] * RANKS
    return folder


@pytest.mark.parametrize("save", ["kinds", "fsdp_under_tp", "file_per_slice"])
def test_what_torch_writes_today_is_exported_bit_by_bit(save: str, saves: Path, tmp_path: Path) -> None:
    said = ask("export", str(saves / save), "--output", str(tmp_path / "out"), "--json")
    assert said.code == 0, said.output
    truth = by_dcp_to_torch(saves / save, tmp_path / "torch")["model"]
    assert exported(tmp_path / "out") == of_tensors(flattened(truth))


def test_memory_does_not_grow_with_a_tensor(tmp_path: Path) -> None:
    """A tensor of 512 MiB that is stored transposed, of which no row is contiguous."""
    import torch

    torch.save({"model": {"w": torch.zeros(16384, 8192).t(), "v": torch.zeros(8)}}, tmp_path / "ckpt_1.pt")
    code = (
        "import ckpttool, sys; ckpttool.library.export(sys.argv[1], output=sys.argv[2]); "
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
    )
    run = [sys.executable, "-c", code, str(tmp_path / "ckpt_1.pt"), str(tmp_path / "out")]
    done = subprocess.run(run, capture_output=True, text=True, check=True, env=environment())
    assert int(done.stdout) * 1024 < 200 * MIB
    assert (tmp_path / "out" / "model.safetensors").stat().st_size > 512 * MIB


def test_transformers_loads_an_export_of_slices_as_a_model(tmp_path: Path) -> None:
    transformers = pytest.importorskip(
        "transformers", reason="models are loaded by transformers, which is not installed"
    )
    import torch

    base = FIXTURES / "layouts/hf_single/checkpoint-12"
    tree, out = FIXTURES / "layouts/hf_fsdp2ranks", tmp_path / "out"
    subprocess.run(
        [*MODULE, "export", str(tree), "--output", str(out), "--config-from", str(base)], check=True, env=os.environ
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    found, loaded = exported(out), of_tensors(dict(model.state_dict()))
    assert {name: loaded[name] for name in found} == found
    assert bool(torch.isfinite(model(torch.tensor([[1, 2, 3]])).logits).all())
