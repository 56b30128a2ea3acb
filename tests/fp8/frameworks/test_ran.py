"""What logs say of the arithmetic that a run really used."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest

from ckpttool.fp8.frameworks.inspect_log import read_statistics
from ckpttool.fp8.frameworks.ran import read_arithmetic
from ckpttool.fp8.model.fp8 import Gemm, Operand
from ckpttool.fp8.model.settings import Computed

BEGIN = "------------------------ arguments ------------------------"
END = "-------------------- end of arguments ---------------------"


def dumped(**arguments: object) -> str:
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in arguments.items()]
    return "\n".join([BEGIN, *lines, END, ""])


def log(tmp_path: Path, text: str, name: str = "run.log") -> str:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_settings_are_those_of_the_last_start(tmp_path: Path) -> None:
    text = dumped(fp8="hybrid", fp8_amax_history_len=1) + "loading ............ done\n" + dumped(fp8="None", lr=0.1)
    ran = read_arithmetic([log(tmp_path, text)])
    assert ran.arguments == (("fp8", "None"), ("lr", "0.1"))
    assert ran.argument("fp8") == "None"
    assert ran.argument("fp8_amax_history_len") is None


def test_settings_that_were_cut_off_are_none(tmp_path: Path) -> None:
    assert read_arithmetic([log(tmp_path, dumped(fp8="hybrid").replace(END, ""))]).arguments is None
    whole = dumped(fp8="e4m3") + dumped(fp8="hybrid").replace(END, "")
    assert read_arithmetic([log(tmp_path, whole)]).argument("fp8") == "e4m3"


def test_dots_that_are_no_settings_are_left_out(tmp_path: Path) -> None:
    text = dumped(fp8="hybrid").replace(END, f"compiling kernels ....... done in 3 s\n{END}")
    assert read_arithmetic([log(tmp_path, text)]).arguments == (("fp8", "hybrid"),)


PLANS = """\
2026-11-22 10:33:57,259 - INFO - LAYER=decoder.layers.1.mlp.linear_fc1: Tensor: weight, gemm fprop - FP8 Quantize
2026-11-22 10:33:57,259 - INFO - LAYER=decoder.layers.1.mlp.linear_fc1: Tensor: weight, gemm dgrad - High Precision
2026-11-22 10:33:57,259 - INFO - LAYER=decoder.layers.1.mlp.linear_fc1: Tensor: activation, gemm fprop - Quantize
2026-11-22 10:33:57,259 - INFO - LAYER=decoder.layers.1.mlp.linear_fc1: Tensor: activation, gemm wgrad - modify_tensor()
INFO - transformer_layer.layernorm_mlp.fc1: Tensor: activation, gemm fprop - High precision
INFO - transformer_layer.layernorm_mlp.fc1: Tensor: gradient, gemm wgrad - FP8 quantization
2026-11-22 10:33:57,259 - INFO - LAYER=decoder.layers.2.mlp: Tensor: output, gemm fprop - High Precision
2026-11-22 10:33:57,259 - INFO - LAYER=decoder.layers.2.mlp: Tensor: weight, gemm fprop - Some New Word
"""


def test_every_version_says_what_an_operand_goes_through_in_words_of_its_own(tmp_path: Path) -> None:
    ran = read_arithmetic([log(tmp_path, PLANS)])
    seen = [(each.layer.split(".")[0], each.gemm.value, each.operand.value, each.computed) for each in ran.operands]
    assert seen == [
        ("decoder", "fprop", "activation", (Computed.QUANTIZED,)),
        ("decoder", "fprop", "weight", (Computed.QUANTIZED,)),
        ("decoder", "dgrad", "weight", (Computed.HIGH,)),
        ("decoder", "wgrad", "activation", (Computed.MODIFIED,)),
        ("transformer_layer", "fprop", "activation", (Computed.HIGH,)),
        ("transformer_layer", "wgrad", "gradient", (Computed.QUANTIZED,)),
    ]
    assert ran.computed(Gemm.FPROP, Operand.ACTIVATION) == {Computed.QUANTIZED, Computed.HIGH}
    assert ran.computed(Gemm.FPROP, Operand.ACTIVATION, ["transformer_layer.layernorm_mlp.fc1"]) == {Computed.HIGH}
    assert ran.computed(Gemm.DGRAD, Operand.GRADIENT) == frozenset()


def test_a_config_that_was_not_found_is_told(tmp_path: Path) -> None:
    text = (
        "[NVDLFW INSPECT WARNING]: Could not find config file at /my runs/e4d.yaml. Please make sure file path to "
        "config exists. Running without config.  \n"
    )
    assert read_arithmetic([log(tmp_path, text)]).config_missing == "/my runs/e4d.yaml"
    assert read_arithmetic([log(tmp_path, PLANS)]).config_missing is None


@pytest.mark.parametrize(
    ("feature", "computed"), [("FakeQuant", Computed.FAKE), ("PerTensorScaling", Computed.CURRENT), ("Mine", None)]
)
def test_the_feature_that_changed_an_operand_is_told(tmp_path: Path, feature: str, computed: Computed | None) -> None:
    head = "2026-11-22 10:33:57,259 - INFO - LAYER=model.1.fc1: "
    text = f"{head}Tensor: gradient, gemm dgrad - modify_tensor()\n{head}Feature={feature}, "
    (seen,) = read_arithmetic([log(tmp_path, text + "API=process_tensor: dgrad, gradient\n")]).operands
    assert seen.computed == (computed or Computed.MODIFIED,)


@pytest.mark.parametrize(
    ("line", "recipe"),
    [
        ("Float8 training active with recipe rowwise_with_gw_hp", "rowwise_with_gw_hp"),
        ("MX training active with recipe mxfp8_cublas", "mxfp8_cublas"),
        ("Float8 tensorwise scaled training active", "tensorwise"),
        ("Float8 training active with recipe rowwise\x1b[39m", "rowwise"),
        ("Float8 training is not active", None),
    ],
)
def test_a_framework_says_which_recipe_is_active(tmp_path: Path, line: str, recipe: str | None) -> None:
    ran = read_arithmetic([log(tmp_path, f"[rank0]:[titan] 2026-08-21 21:30:21,123 - root - INFO - {line}\n")])
    assert ran.recipe == recipe
    assert not ran.converted


@pytest.mark.parametrize(
    "line",
    [
        "Swapped to Float8Linear layers with enable_fsdp_float8_all_gather=False",
        "Swapped to Float8Linear layers",
        "Swapped to MXLinear layers",
        "Converted Linear layers to MXFP8Linear",
    ],
)
def test_a_framework_says_that_it_exchanged_its_layers(tmp_path: Path, line: str) -> None:
    assert read_arithmetic([log(tmp_path, f"[titan] 2026-08-21 21:30:21,123 - root - INFO - {line}\n")]).converted


def test_a_compressed_log_is_read_and_a_torn_one_is_told(tmp_path: Path) -> None:
    whole = gzip.compress(PLANS.encode() * 500)
    (tmp_path / "whole.gz").write_bytes(whole)
    (tmp_path / "torn.gz").write_bytes(whole[:-20])
    assert read_arithmetic([str(tmp_path / "whole.gz")]).problems == ()
    torn = read_arithmetic([str(tmp_path / "torn.gz"), str(tmp_path / "missing.log")])
    assert [problem.ends_the_log for problem in torn.problems] == [True, True]
    assert len(torn.operands) == 6


def measured(name: str, step: int, value: str) -> str:
    head = "2026-11-22 10:33:57,259 - INFO - decoder.layers.1.mlp.linear_fc1"
    return f"{head}_{name} \t\t\t\t iteration={step:06d} \t\t\t\t value={value}\n"


STATISTICS = "".join(
    [
        measured("gradient_underflows%", 2, "12.3457"),
        measured("gradient_underflows%", 4, "20.0000"),
        measured("gradient_underflows%", 6, "nan"),
        measured("weight_mxfp8_scale_inv_min_columnwise", 2, "0.5000"),
        measured("activation_fp8_delayed_scaling_mse", 2, "inf"),
        measured("output_max", 2, "-3.0000"),
        "2026-11-22 10:33:57,259 - INFO - something else iteration=000002 value=1\n",
    ]
)


def test_statistics_are_put_together_by_tensor_and_name(tmp_path: Path) -> None:
    statistics, problems = read_statistics([log(tmp_path, STATISTICS)])
    assert problems == ()
    told = [(each.tensor, each.name, each.recipe, each.columnwise, each.count, each.nonfinite) for each in statistics]
    assert told == [
        ("activation", "mse", "fp8_delayed_scaling", False, 0, 1),
        ("gradient", "underflows%", None, False, 2, 1),
        ("output", "max", None, False, 1, 0),
        ("weight", "scale_inv_min", "mxfp8", True, 1, 0),
    ]
    underflows = statistics[1]
    assert underflows.layer == "decoder.layers.1.mlp.linear_fc1"
    assert (underflows.first_step, underflows.last_step) == (2, 6)
    assert underflows.mean == pytest.approx(16.17285)
    assert underflows.largest == 20.0
    assert math.isnan(statistics[0].mean)
    assert statistics[2].largest == -3.0
