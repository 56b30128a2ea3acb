"""Are the weights that `export` writes from MindFormers' saves those that MindFormers and MindSpore load from them?

Saves of random layouts come from the writers of MindFormers, and its own loader reads the same weights from them. Saves
of the PyNative trainer, on one rank and on two, are held to the tensors of the training process, and of a real resume
on one rank. MindSpore's `load_checkpoint` reads the output.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from tests.nightly.pynative_trees import Templates, start
from tests.nightly.real_mindformers import INJECT, Row, environment_of
from tests.nightly.real_pynative import PYNATIVE, PyNative, needs, new_server
from tests.nightly.real_pynative import weights as weights_in
from tests.support.assembled_weights import Tensor, tensors_in
from tests.support.commands import ask

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="takes minutes: --nightly")

CASES = 150
TWO_RANKS = ("copies", "removed", "sharded", "sharded and removed")


def exported(tree: Path, output: Path, *options: str, name: str) -> dict[str, Tensor]:
    """Export a save with the command, and return the tensors of the output."""
    said = ask("export", name, "--tree", str(tree), "--output", str(output), *options)
    assert said.code == 0, said.output
    return {name: tensor for file in output.glob("*.safetensors") for name, tensor in tensors_in(file).items()}


def hashes_of(tensors: dict[str, Tensor]) -> dict[str, str]:
    return {name: sha256(data).hexdigest() for name, (_, _, data) in tensors.items()}


def test_saves_of_random_layouts_give_the_weights_that_mindformers_loads(tmp_path: Path) -> None:
    home = needs()
    script, python = PYNATIVE / "write_iterations.py", home / "venv/bin/python"
    command = [str(python), str(script), str(tmp_path / "cases"), "night", str(CASES)]
    environment = environment_of(home, PYNATIVE)
    run = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    counts: Row = json.loads(run.stdout.splitlines()[-1])
    assert counts["right"] == counts["tensors"] > CASES
    for number in range(CASES):
        case = tmp_path / f"cases/case_{number}"
        found = exported(case, tmp_path / f"exported_{number}", name="iteration_00000010")
        assert found == tensors_in(case / "truth.safetensors"), case


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Templates]:
    needs()
    server = new_server(tmp_path_factory.mktemp("server"))
    yield Templates(tmp_path_factory.mktemp("templates"), server)
    server.close()


def test_one_rank_gives_the_tensors_of_the_training(templates: Templates, tmp_path: Path) -> None:
    training, trace = templates.of("killed")
    found = exported(training.checkpoints, tmp_path / "exported", name="iteration_00000030")
    assert hashes_of(found) == weights_in(trace.steps[30])


@pytest.mark.parametrize("kind", TWO_RANKS)
def test_two_ranks_give_the_tensors_that_a_resume_on_one_rank_loads(
    kind: str, templates: Templates, tmp_path: Path
) -> None:
    training, _ = templates.of(kind)
    found = exported(training.checkpoints, tmp_path / "exported", name="iteration_00000010")
    resumed = training.copy(tmp_path / "run", templates.text(kind, {"load_path": '"./output/checkpoint"'}), ranks=1)
    trace = start(resumed, templates.server, "second", die_at=11)
    began: Row = trace.first("begin")
    assert (hashes_of(found), 10) == (weights_in(began), began["step"])


def test_mindspore_reads_the_same_tensors_from_the_output(templates: Templates, tmp_path: Path) -> None:
    training: PyNative = templates.of("sharded")[0]
    found = exported(training.checkpoints, tmp_path / "exported", name="iteration_00000010")
    (file,) = (tmp_path / "exported").glob("*.safetensors")
    python = training.home / "venv/bin/python"
    command = [str(python), str(INJECT / "weights_of_shards.py"), str(file)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("weights ")]
    assert json.loads(line.removeprefix("weights "))[str(file)] == hashes_of(found)
