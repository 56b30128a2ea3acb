"""Every config of an FP8 experiment is loaded by the packages that it is for, and does what the plan says."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ckpttool.core.domain.frozen import replace
from ckpttool.fp8.frameworks import torchao, transformer_engine
from ckpttool.fp8.frameworks.frameworks import Setting
from ckpttool.fp8.frameworks.lint import version as read
from ckpttool.fp8.model.fp8 import OPERANDS, Arithmetic, Gemm, Recipe
from ckpttool.fp8.model.plan import Change, Outcome, Trial, VerdictKind
from ckpttool.fp8.rules.experiments import first_round, next_round
from tests.fp8.frameworks.test_fragments import setting
from tests.fp8.rules.test_experiments import found
from tests.support.fp8_runs import known

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="real packages: --nightly")

HERE = Path(__file__).parent
VERSIONS = ("2.4.0", "2.12.0", "2.20.2")
LAYERS = ("decoder.layers.1.mlp.linear_fc1", "decoder.layers.3.self_attention.linear_qkv", "decoder.layers.10.mlp.fc2")


def trials() -> list[Trial]:
    """Return all that change single products: with a scale to blame, and without."""
    both = [Gemm.DGRAD, Gemm.WGRAD]
    rounds = [
        first_round(known()),
        next_round(2, known(), found(VerdictKind.UNDECIDED), ()),
        next_round(3, known(), found(VerdictKind.CULPRIT, *both, E3=Outcome.RESTORES), ()),
        next_round(3, known(), found(VerdictKind.CULPRIT, Gemm.DGRAD, E3=Outcome.NO), ()),
    ]
    return [trial for each in rounds for trial in each if transformer_engine.needs_debug(trial)]


def downloaded(folder: Path, *packages: str) -> None:
    """Fetch the wheels of some packages and unpack them, without installing anything."""
    for package in packages:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
        done = subprocess.run([*command, package], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{package} cannot be had: {done.stderr.strip().splitlines()[-1]}")
    for wheel in folder.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(folder)


@pytest.fixture(scope="module")
def inspect(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspect")
    downloaded(folder, "nvdlfw-inspect==0.2.2")
    return folder


def expected(trial: Trial, layer: str) -> dict[str, dict[str, str]]:
    """Return what the plan says becomes of each operand."""
    import re

    modified = dict.fromkeys((Arithmetic.FAKE, Arithmetic.CURRENT), "modified")
    words = {Arithmetic.FP8: "quantized", Arithmetic.BF16: "high", **modified}
    meant = trial.layers is None or re.fullmatch(trial.layers, layer) is not None
    told: dict[str, dict[str, str]] = {}
    for gemm, operands in OPERANDS.items():
        arithmetic = trial.products.of(gemm) if meant else Arithmetic.FP8
        other = Arithmetic.BF16 if arithmetic is Arithmetic.FAKE else Arithmetic.FP8
        told[gemm.value] = {
            operand.value: words[arithmetic if trial.operand in {None, operand} else other] for operand in operands
        }
    return told


@pytest.mark.parametrize("version", VERSIONS)
def test_each_operand_becomes_what_the_plan_says(version: str, inspect: Path, tmp_path: Path) -> None:
    downloaded(tmp_path, f"transformer-engine=={version}")
    where = replace(setting(), engine_version=read(version), folder=str(tmp_path))
    asked = trials()
    assert len(asked) >= 17
    configs = []
    for place, trial in enumerate(asked):
        change = transformer_engine.FRAMEWORK.change(trial, where)
        assert isinstance(change, Change), (trial.id, change)
        ((_, text),) = change.files
        configs.append(tmp_path / f"{place}.yaml")
        configs[-1].write_text(text)
    command = [sys.executable, HERE / "inject" / "ask_te.py", tmp_path, inspect, tmp_path / "logs", ",".join(LAYERS)]
    done = subprocess.run([*map(str, command), *map(str, configs)], capture_output=True, text=True, check=False)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(asked), done.stderr[-2000:]
    for trial, answer in zip(asked, answers, strict=True):
        assert answer == {layer: expected(trial, layer) for layer in LAYERS}, trial.id


def test_torchao_computes_one_product_in_bf16_and_the_others_in_fp8(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    downloaded(packages, "torchao")
    configs = []
    for recipe in (Recipe.TENSORWISE, Recipe.ROWWISE):
        where: Setting = replace(setting(), recipe=recipe)
        rounds = (*first_round(known()), *next_round(2, known(), found(VerdictKind.UNDECIDED), ()))
        for trial in rounds:
            if not trial.id.startswith("E4"):
                continue
            change = torchao.FRAMEWORK.change(trial, where)
            assert isinstance(change, Change)
            ((_, text),) = change.files
            configs.append(tmp_path / f"{recipe.value}-{trial.id}.py")
            configs[-1].write_text(text)
    command = [sys.executable, HERE / "inject" / "ask_torchao.py", packages, *configs]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 12
    letters = {"f": "fprop", "d": "dgrad", "w": "wgrad"}
    for path, answer in zip(configs, answers, strict=True):
        in_bf16 = {letters[letter] for letter in path.stem.rpartition("E4")[2]}
        assert {gemm for gemm, is_equal in answer.items() if is_equal} == in_bf16, path.name


def test_torchao_converts_each_layer_once_where_a_quarter_is_meant(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    downloaded(packages, "torchao")
    trials = next_round(2, known(), found(VerdictKind.CULPRIT, Gemm.DGRAD), ())
    (quarter,) = (trial for trial in trials if trial.id == "E7q1")
    change = torchao.FRAMEWORK.change(quarter, replace(setting(), recipe=Recipe.TENSORWISE))
    assert isinstance(change, Change)
    path = tmp_path / "quarter.py"
    path.write_text(change.files[0][1])
    command = [sys.executable, HERE / "inject" / "ask_torchao.py", packages, "--layers", path]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {"layers.1.fc": ["dgrad"], "layers.2.fc": ["dgrad"], "layers.10.fc": []}
