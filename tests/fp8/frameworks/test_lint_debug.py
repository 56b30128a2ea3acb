"""Every rule about configs of debug features: a file that shows it, and a healthy neighbour that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.errors import UsageError
from tests.fp8.frameworks.test_lint import HEALTHY, OWN_CONFIG, codes, linted
from tests.fp8.frameworks.test_ran import dumped

EVERY = r"layer_name_regex_pattern: '.*'"
DGRAD = "DisableFP8GEMM: {enabled: True, gemms: [dgrad]}"
FAKE = "FakeQuant: {enabled: True, gemms: [dgrad], tensors: [gradient, weight], quant_format: FP8E5M2}"
FAKE_IN_TWO_FORMATS = (
    "FakeQuant: {enabled: True, gemms: [fprop, dgrad, wgrad], tensors_struct: [{tensor: activation, quant_format: "
    "FP8E4M3}, {tensor: gradient, quant_format: FP8E5M2}]}"
)
SCALED = "PerTensorScaling: {enabled: True, gemms: [dgrad], tensors: [gradient]}"


def debug(features: str = DGRAD, layers: str = EVERY, *, name: str = "e4d", enabled: str = "enabled: True") -> str:
    inner = "".join(f"    {feature}\n" for feature in features.split("\n"))
    return f"{name}:\n  {enabled}\n  layers:\n    {layers}\n  transformer_engine:\n{inner}"


UNKNOWN, DEPRECATED = ("suspect te-debug-unknown",), ("note te-debug-deprecated",)
QUANTIZATION = "DisableQuantizationGEMM: {enabled: True, gemms: [dgrad]}"
OFF = "DisableFP8GEMM: {enabled: False, gemms: [dgrad]}"


@pytest.mark.parametrize(
    ("features", "version", "found"),
    [
        (DGRAD, None, ()),
        ("DisableQuantizationGEMM: {enabled: True, gemms: [fprop, dgrad]}", None, ()),
        ("DisableFP8Layer: {enabled: True}", None, ()),
        (FAKE, None, ()),
        (SCALED, None, ()),
        (FAKE_IN_TWO_FORMATS, None, ()),
        (
            "FakeQuant: {enabled: True, quant_format: FP8E4M3, gemms_struct: [{gemm: fprop, tensors: [weight]}]}",
            None,
            (),
        ),
        (
            "LogFp8TensorStats: {enabled: True, tensors_struct: [{tensor: gradient, stats: [underflows%], freq: 10}]}",
            None,
            (),
        ),
        (f"{DGRAD}\nLogTensorStats: {{enabled: True, tensors: [gradient], stats: [min, max]}}", None, ()),
        (f"{DGRAD}\nPerTensorScaling: {{enabled: False}}", None, ()),
        (SCALED + "\nFakeQuant: {enabled: True, gemms: [wgrad], tensors: [gradient], quant_format: FP8E5M2}", None, ()),
        ("DisableFP8GEMM: {enabled: True, gemms: [dgrads]}", None, UNKNOWN),
        ("DisableFP8GEMM: {enabled: True, gemms: dgrad}", None, UNKNOWN),
        ("DisableFP8GEMM: {enabled: True}", None, UNKNOWN),
        ("DisableFP8GEMM: {gemms: [dgrad]}", None, UNKNOWN),
        ("DisableFP8GEMM: {enabled: True, gemms: [dgrad], tensors: [weight]}", None, UNKNOWN),
        ("DisableFP8Layer: {enabled: True, gemms: [dgrad]}", None, UNKNOWN),
        ("DisableFP16GEMM: {enabled: True, gemms: [dgrad]}", None, UNKNOWN),
        (SCALED.replace("gradient", "grad"), None, UNKNOWN),
        (SCALED.replace(", tensors: [gradient]", ""), None, UNKNOWN),
        (FAKE.replace("FP8E5M2", "E5M2"), None, UNKNOWN),
        (FAKE.replace(", quant_format: FP8E5M2", ""), None, UNKNOWN),
        (f"{FAKE}\n{SCALED}", None, ("suspect te-debug-two-modifiers",)),
        (f"{FAKE}\n{SCALED.replace('dgrad', 'wgrad')}", None, ()),
        (FAKE.replace("FP8E5M2", "MXFP8E4M3"), None, ("suspect te-debug-fakequant-mx",)),
        (FAKE.replace("FP8E5M2", "MXFP8E5M2"), None, ("suspect te-debug-fakequant-mx",)),
        (FAKE.replace("FP8E5M2", "FP8E4M3"), None, ()),
        (OFF, None, ("suspect te-debug-empty",)),
        ("DisableFP8GEMM: {}", None, ("suspect te-debug-empty",)),
        (f"{OFF}\n{SCALED}", None, ()),
        (DGRAD, "2.12", ()),
        (DGRAD, "2.13", DEPRECATED),
        ("DisableFP8Layer: {enabled: True}", "2.20.2", DEPRECATED),
        (QUANTIZATION, "2.13", ()),
        (QUANTIZATION, "2.12", UNKNOWN),
    ],
)
def test_features_are_judged_by_version(
    tmp_path: Path, features: str, version: str | None, found: tuple[str, ...]
) -> None:
    assert tuple(dict.fromkeys(codes(linted(tmp_path, debug(features), "e.yaml", te_version=version)))) == found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  enabled: True\n", ""),
        ("  enabled: True\n", "  enabled: False\n"),
        ("  transformer_engine:", "  transformer_engines:"),
        ("    layer_name_regex_pattern", "    layer_name_pattern"),
        ("    layer_name_regex_pattern: '.*'", "    layer_numbers: 1"),
        ("    layer_name_regex_pattern: '.*'", "    layer_types: fc1"),
        ("e4d:\n", "stray: 1\ne4d:\n"),
    ],
)
def test_sections_that_nobody_can_use(tmp_path: Path, old: str, new: str) -> None:
    found = codes(linted(tmp_path, debug().replace(old, new), "e.yaml"))
    assert "suspect te-debug-unknown" in found


@pytest.mark.parametrize(
    ("one", "other", "is_both"),
    [
        (EVERY, r"layer_name_regex_pattern: '.*fc1'", True),
        (r"layer_name_regex_pattern: '.*layers\.1\..*'", r"layer_name_regex_pattern: '.*layers\.2\..*'", False),
        (r"layer_name_regex_pattern: '.*layers\.(1|2)\..*'", r"layer_name_regex_pattern: '.*layers\.2\..*'", True),
        ("layer_types: [fc1]", "layer_types: [fc2]", False),
        ("layer_types: [fc1]", "layer_types: [mlp]", True),
        ("layer_types: [fc1]\n    layer_numbers: [1]", "layer_types: [fc1]\n    layer_numbers: [2]", False),
        ("layer_types: [fc1]\n    layer_numbers: [1, 2]", "layer_types: [fc1]\n    layer_numbers: ['2-4']", True),
        ("layer_numbers: all", "layer_types: [fc1]", True),
    ],
)
def test_two_sections_may_not_pick_one_layer(tmp_path: Path, one: str, other: str, *, is_both: bool) -> None:
    found = codes(linted(tmp_path, debug(layers=one) + debug(layers=other, name="second"), "e.yaml"))
    assert found == (("suspect te-debug-overlap",) if is_both else ())


def test_names_of_layers_tell_what_samples_cannot(tmp_path: Path) -> None:
    text = debug(layers="layer_types: [encoder]") + debug(layers="layer_types: [odd]", name="second")
    (tmp_path / "layers").write_text("# names\nmodel.encoder.odd\r\nmodel.odd\n\n", encoding="utf-8")
    assert codes(linted(tmp_path, text, "e.yaml")) == ()
    found = codes(linted(tmp_path, text, "e.yaml", layers=str(tmp_path / "layers")))
    assert found == ("suspect te-debug-overlap",)


def test_names_of_layers_may_come_from_an_earlier_log(tmp_path: Path) -> None:
    log = (
        "2026-11-22 10:33:57,259 - INFO - Assigned layer name: model.1.fc1\n"
        "2026-11-22 10:33:57,259 - INFO - LAYER=model.2.fc1: Tensor: weight, gemm fprop - Quantize\n"
        "2026-11-22 10:33:57,259 - INFO - Loaded configs for ['a'].\n"
    )
    (tmp_path / "log").write_text(log, encoding="utf-8")
    layers = str(tmp_path / "log")
    assert codes(linted(tmp_path, debug(layers="layer_types: [fc1]"), "e.yaml", layers=layers)) == ()
    found = codes(linted(tmp_path, debug(layers="layer_types: [Loaded]"), "e.yaml", layers=layers))
    assert found == ("suspect te-debug-empty",)


def test_a_file_without_names_of_layers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "layers").write_text("# nothing\n", encoding="utf-8")
    with pytest.raises(UsageError, match="has no names"):
        linted(tmp_path, debug(), "e.yaml", layers=str(tmp_path / "layers"))
    with pytest.raises(UsageError, match="cannot be read"):
        linted(tmp_path, debug(), "e.yaml", layers=str(tmp_path / "none"))


def test_exact_names_stop_at_every_other_layer(tmp_path: Path) -> None:
    exact = debug(layers="exact_layer_names: [model.decoder.layers.1.mlp.linear_fc1]")
    assert codes(linted(tmp_path, exact, "e.yaml")) == ("suspect te-debug-exact-names",)


def test_the_layer_of_an_exact_name_is_matched(tmp_path: Path) -> None:
    exact = debug(layers="exact_layer_names: [model.decoder.layers.1.mlp.linear_fc1]")
    both = exact + debug(name="b", layers="layer_types: [linear_fc1]")
    (tmp_path / "layers").write_text("model.decoder.layers.1.mlp.linear_fc1\n", encoding="utf-8")
    found = codes(linted(tmp_path, both, "e.yaml", layers=str(tmp_path / "layers")))
    assert found == ("suspect te-debug-exact-names", "suspect te-debug-overlap")


@pytest.mark.parametrize(
    ("recipe", "is_bad"), [("delayed", False), ("tensorwise", True), ("blockwise", True), ("custom", False)]
)
def test_a_current_scale_needs_a_delayed_one(tmp_path: Path, recipe: str, *, is_bad: bool) -> None:
    (tmp_path / "run_config.yaml").write_text(OWN_CONFIG.replace("delayed", recipe), encoding="utf-8")
    (tmp_path / "e5.yaml").write_text(debug(SCALED), encoding="utf-8")
    answer = ckpttool.library.fp8_lint([str(tmp_path / "run_config.yaml"), str(tmp_path / "e5.yaml")])
    assert ("suspect te-debug-needs-delayed" in codes(answer)) is is_bad


def test_megatron_never_asks_for_debug_features(tmp_path: Path) -> None:
    (tmp_path / "e4.yaml").write_text(debug(), encoding="utf-8")
    (tmp_path / "run.log").write_text(dumped(**HEALTHY), encoding="utf-8")
    (tmp_path / "run.sh").write_text("torchrun x.py --fp8-format hybrid\n", encoding="utf-8")
    (tmp_path / "run_config.yaml").write_text(OWN_CONFIG, encoding="utf-8")
    for other, is_wired in (("run.log", False), ("run.sh", False), ("run_config.yaml", True)):
        answer = ckpttool.library.fp8_lint([str(tmp_path / "e4.yaml"), str(tmp_path / other)])
        assert ("suspect te-debug-not-wired" in codes(answer)) is not is_wired


@pytest.mark.parametrize(
    ("layers", "is_bad"),
    [
        ("layer_types: ['layers.1']", True),
        ("layer_types: ['layers.1.']", False),
        ("layer_types: [fc1, linear_fc2, w3]", False),
        ("layer_name_regex_pattern: 'layers.1'", True),
        (r"layer_name_regex_pattern: '.*layers\.1'", True),
        (r"layer_name_regex_pattern: '.*layers\.1.*'", True),
        (r"layer_name_regex_pattern: '.*layers\.(0|1)'", True),
        (r"layer_name_regex_pattern: '.*layers\.(0|1)\..*'", False),
        (r"layer_name_regex_pattern: 'layers\.1$'", False),
        (r"layer_name_regex_pattern: '.*fc1'", False),
    ],
)
def test_a_pattern_that_ends_in_a_number_picks_ten_more(tmp_path: Path, layers: str, *, is_bad: bool) -> None:
    found = codes(linted(tmp_path, debug(layers=layers), "e.yaml"))
    assert found == (("suspect fp8-substring",) if is_bad else ())


@pytest.mark.parametrize("pattern", ["(a+)+$", "((a*))*$", "(a|a)*$", "a*a*a*a*a*$", r"(a*)\1\1$", "(", "[[a]$"])
def test_a_pattern_that_would_keep_us_busy_for_hours_is_not_tried(tmp_path: Path, pattern: str) -> None:
    slow = debug(layers=f"layer_name_regex_pattern: '{pattern}'") + debug(name="b", layers="layer_types: [c]")
    (tmp_path / "layers").write_text("a" * 100 + "-\na.c\n", encoding="utf-8")
    found = codes(linted(tmp_path, slow, "e.yaml", layers=str(tmp_path / "layers")))
    assert "suspect te-debug-overlap" not in found
