"""The real debug features of Transformer Engine run what our rules find nothing against, and stop at what they do.

Its compiled parts are stand-ins: nothing is computed, only asked.
"""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

import ckpttool
from ckpttool.fp8.frameworks.ran import read_arithmetic
from ckpttool.fp8.model.fp8 import Gemm, Operand
from ckpttool.fp8.model.settings import Computed
from tests.fp8.frameworks.test_lint import codes
from tests.fp8.frameworks.test_lint_debug import DGRAD, FAKE, FAKE_IN_TWO_FORMATS, SCALED, debug
from tests.nightly.borrowing import told, trainer_python

nightly = pytest.mark.skipif("not config.getoption('--nightly')", reason="installs Transformer Engine: --nightly")

VERSIONS = ("2.4.0", "2.12.0", "2.20.2")
LAYERS = (
    "model.decoder.layers.1.mlp.linear_fc1",
    "model.decoder.layers.1.mlp.linear_fc2",
    "model.decoder.layers.10.mlp.linear_fc1",
)
MEASURES = "LogFp8TensorStats: {enabled: True, tensors_struct: [{tensor: gradient, stats: [underflows%], freq: 10}]}"

HEALTHY = {
    "one product": debug(),
    "two products": debug("DisableFP8GEMM: {enabled: True, gemms: [fprop, dgrad]}"),
    "a layer": debug("DisableFP8Layer: {enabled: True}", "layer_types: [fc1]"),
    "rounded": debug(FAKE),
    "rounded in two formats": debug(FAKE_IN_TWO_FORMATS),
    "one operand scaled": debug(SCALED),
    "measured": debug(MEASURES),
    "two that leave each other alone": debug(f"{SCALED}\n{FAKE.replace('dgrad', 'wgrad')}"),
    "one of two off": debug(f"{DGRAD}\nPerTensorScaling: {{enabled: False}}"),
    "layers by number": debug(layers="layer_numbers: ['1-3']\n    layer_types: [fc1]"),
    "apart": debug(layers="layer_types: [fc1]") + debug(layers="layer_types: [fc2]", name="second"),
}
STOPS = {
    "a product": debug(DGRAD.replace("dgrad", "dgrads")),
    "products as text": debug("DisableFP8GEMM: {enabled: True, gemms: dgrad}"),
    "no products": debug("DisableFP8GEMM: {enabled: True}"),
    "a feature without enabled": debug("DisableFP8GEMM: {gemms: [dgrad]}"),
    "a key": debug("DisableFP8GEMM: {enabled: True, gemms: [dgrad], tensors: [weight]}"),
    "a key of a layer": debug("DisableFP8Layer: {enabled: True, gemms: [dgrad]}"),
    "a feature": debug(DGRAD.replace("FP8", "FP16")),
    "no tensors": debug(SCALED.replace(", tensors: [gradient]", "")),
    "two on one tensor": debug(f"{FAKE}\n{SCALED}"),
    "a section without enabled": debug().replace("  enabled: True\n", ""),
    "no section": debug().replace("  enabled: True\n", "  enabled: False\n"),
    "a namespace": debug().replace("transformer_engine:", "transformer_engines:"),
    "no layers": debug(layers="layer_name_pattern: '.*'"),
    "exact names": debug(layers=f"exact_layer_names: [{LAYERS[0]}]"),
    "a number for a list": debug(layers="layer_numbers: 1"),
    "overlap": debug() + debug(layers="layer_types: [fc1]", name="second"),
    "a stray key": "stray: 1\n" + debug(),
}
SILENT = {
    "nothing on": debug("DisableFP8GEMM: {enabled: False, gemms: [dgrad]}"),
    "nothing in it": debug("DisableFP8GEMM: {}"),
    "a tensor": debug(SCALED.replace("gradient", "grad")),
}
NEW = debug("DisableQuantizationGEMM: {enabled: True, gemms: [dgrad]}")
CASES = {**HEALTHY, **STOPS, **SILENT, "new": NEW, "substring": debug(layers="layer_types: ['layers.1']")}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a Python that has nvdlfw-inspect, and the torch of these tests."""
    python = trainer_python(tmp_path_factory.mktemp("inspect"), "nvdlfw-inspect==0.2.2")
    done = subprocess.run([python, "-m", "pip", "install", "-q", "pydantic"], check=False, capture_output=True)
    if done.returncode:
        pytest.skip("pydantic cannot be installed")
    return python


class Asked:
    """What one version makes of all configs."""

    def __init__(self, python: str, version: str, home: Path) -> None:
        """Fetch its own code, which needs no compiler, and ask it."""
        self.version, self.home = version, home
        wheel = [python, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(home)]
        if subprocess.run([*wheel, f"transformer-engine=={version}"], check=False, capture_output=True).returncode:
            pytest.skip(f"Transformer Engine {version} cannot be had")
        (archive,) = home.glob("*.whl")
        zipfile.ZipFile(archive).extractall(home / "engine")
        for name, text in CASES.items():
            self.config(name).write_text(text, encoding="utf-8")
        cases = [{"config": str(self.config(name)), "log_dir": str(home / name), "layers": LAYERS} for name in CASES]
        words = {"override_linear_precision": [False, False, True], "ammax_history_len": 1, "interval": 4, "margin": 1}
        (home / "asked.json").write_text(json.dumps({"cases": cases, "words": words}), encoding="utf-8")
        answer: Any = told(python, "debug_features.py", str(home / "engine"), str(home / "asked.json"))
        self.errors = {name: outcome["error"] for name, outcome in zip(CASES, answer["outcomes"], strict=True)}
        self.swallowed = answer["swallowed"]

    def config(self, name: str) -> Path:
        return self.home / f"{name}.yaml"

    def log(self, name: str) -> str:
        return str(self.home / name / "nvdlfw_inspect_logs" / "nvdlfw_inspect_globalrank-0.log")

    def found(self, name: str) -> tuple[str, ...]:
        return codes(ckpttool.library.fp8_lint(str(self.config(name)), te_version=self.version))


@pytest.fixture(scope="module", params=VERSIONS)
def asked(request: pytest.FixtureRequest, python: str, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """Return the answers of one version."""
    return Asked(python, request.param, tmp_path_factory.mktemp("te"))


@nightly
def test_what_our_rules_find_nothing_against_runs(asked: Asked) -> None:
    assert {name: asked.errors[name] for name in HEALTHY} == dict.fromkeys(HEALTHY)
    found = {name: [code for code in asked.found(name) if not code.startswith("note ")] for name in HEALTHY}
    assert found == {name: [] for name in HEALTHY}


@nightly
def test_what_our_rules_say_stops_the_run_stops_it(asked: Asked) -> None:
    assert [name for name in STOPS if asked.errors[name] is None] == []
    assert [name for name in STOPS if not any(code.startswith("suspect te-debug-") for code in asked.found(name))] == []


@nightly
def test_what_our_rules_say_is_silent_runs_plain_fp8(asked: Asked) -> None:
    assert {name: asked.errors[name] for name in SILENT} == dict.fromkeys(SILENT)
    assert [name for name in SILENT if not asked.found(name)] == []
    for name in SILENT:
        operands = read_arithmetic([asked.log(name)]).operands
        assert {computed for seen in operands for computed in seen.computed} == {Computed.QUANTIZED}


@nightly
def test_a_new_name_is_known_from_its_version_on(asked: Asked) -> None:
    is_new = asked.version == "2.20.2"
    assert (asked.errors["new"] is None) is is_new
    assert (asked.found("new") == ()) is is_new
    assert ("note te-debug-deprecated" in asked.found("one product")) is is_new


@nightly
def test_what_the_log_says_each_operand_goes_through_is_read(asked: Asked) -> None:
    high, plain, changed = map(frozenset, ([Computed.HIGH], [Computed.QUANTIZED], [Computed.MODIFIED]))
    expected = {
        "one product": {"dgrad gradient": high, "dgrad weight": high},
        "rounded": {"dgrad gradient": changed, "dgrad weight": changed},
        "one operand scaled": {"dgrad gradient": changed},
        "two products": dict.fromkeys(("fprop activation", "fprop weight", "dgrad gradient", "dgrad weight"), high),
        "measured": {},
    }
    for name, changes in expected.items():
        ran = read_arithmetic([asked.log(name)])
        assert {seen.layer for seen in ran.operands} == set(LAYERS)
        for gemm, operand in ((gemm, operand) for gemm in Gemm for operand in Operand):
            computed = ran.computed(gemm, operand)
            if computed:
                assert (name, computed) == (name, changes.get(f"{gemm.value} {operand.value}", plain))
        assert len(ran.operands) == 6 * len(LAYERS)


@nightly
def test_layers_of_an_earlier_log_are_names_of_layers(asked: Asked) -> None:
    layers = asked.log("measured")
    said = ckpttool.library.fp8_lint(str(asked.config("a layer")), layers=layers)
    assert "suspect te-debug-empty" not in codes(said)
    (asked.home / "none.yaml").write_text(debug(layers="layer_types: [attention]"), encoding="utf-8")
    assert codes(ckpttool.library.fp8_lint(str(asked.home / "none.yaml"), layers=layers)) == ("suspect te-debug-empty",)


@nightly
def test_a_pattern_that_ends_in_a_number_picks_ten_more(asked: Asked) -> None:
    ran = read_arithmetic([asked.log("substring")])
    high = {seen.layer for seen in ran.operands if Computed.HIGH in seen.computed}
    assert high == set(LAYERS)
    assert asked.found("substring")[-1] == "suspect fp8-substring"


@nightly
def test_the_recipes_class_passes_over_words_that_it_does_not_know(asked: Asked) -> None:
    assert asked.swallowed == ["override_linear_precision", "ammax_history_len", "interval"]


@nightly
def test_scales_that_are_rounded_down_saturate_one_block_in_six(tmp_path: Path) -> None:
    python = trainer_python(tmp_path / "torchao", "torchao==0.18.0")
    seen = told(python, "mx_scales.py")
    share, excess = seen["floor"]
    assert share == pytest.approx(1 / 6, abs=0.01)
    assert 0.13 < excess <= 1 / 7 + 1e-6
    assert seen["rceil"][0] == 0
