"""Every rule about settings of FP8: a file that shows it, and a healthy neighbour that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.preflight import Lint
from ckpttool.fp8.frameworks.ran import read_arithmetic
from tests.conftest import FIXTURES
from tests.fp8.frameworks.test_ran import dumped

HEALTHY = {
    "bf16": True, "check_for_nan_in_loss_and_grad": True, "exp_avg_dtype": "torch.float32",
    "exp_avg_sq_dtype": "torch.float32", "first_last_layers_bf16": False, "fp8": "hybrid",
    "fp8_amax_compute_algo": "max", "fp8_amax_history_len": 1024, "fp8_dot_product_attention": False, "fp8_interval": 1,
    "fp8_margin": 0, "fp8_multi_head_attention": False, "fp8_output_proj": False, "fp8_recipe": "delayed",
    "fp8_wgrad": True, "num_layers_at_end_in_bf16": 1, "num_layers_at_start_in_bf16": 1, "tp_only_amax_red": False,
}  # fmt: skip
"""As Megatron prints it at a start that nothing is to be said against, but what is true of every delayed scale."""

DELAYED = ("note fp8-inf-freezes-scale",)
CURRENT = ("note fp8-fast-accumulation",)


def linted(
    tmp_path: Path, text: str, name: str = "run.log", *, te_version: str | None = None, layers: str | None = None
) -> Lint:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return ckpttool.library.fp8_lint(str(path), te_version=te_version, layers=layers)


def codes(answer: Lint) -> tuple[str, ...]:
    reasons = [reason for check in answer.checks for reason in check.reasons]
    return tuple(sorted(f"{each.finding.severity.word} {each.finding.code.value}" for each in reasons))


@pytest.mark.parametrize(
    ("switch", "is_on"),
    [("false", False), ("null", False), ("None", False), ("'no'", False), ("'False'", False), ("hybrid", True)],
)
def test_where_fp8_is_off_nothing_is_said_of_other_settings(tmp_path: Path, switch: str, *, is_on: bool) -> None:
    text = f"fp8: {switch}\nfp8_recipe: tensorwise\nfp8_wgrad: false\n"
    assert ("suspect fp8-wgrad-ignored" in codes(linted(tmp_path, text, "model.yaml"))) is is_on


def test_what_megatron_really_prints_is_read(tmp_path: Path) -> None:
    defaults = (FIXTURES / "fp8" / "megatron_0.14_hybrid.log").read_text(encoding="utf-8")
    assert codes(linted(tmp_path, defaults)) == (*DELAYED, "suspect fp8-history-short")
    assert codes(linted(tmp_path, defaults.replace(". hybrid", ". None"))) == ()
    several = FIXTURES / "fp8" / "megatron_0.16_tensorwise.log"
    assert codes(ckpttool.library.fp8_lint(str(several))) == (
        *CURRENT, "note fp8-optimizer-state", "suspect fp8-bf16-layers-none", "suspect fp8-e4m3-gradients",
        "suspect fp8-setting-ignored", "suspect fp8-wgrad-ignored",
    )  # fmt: skip
    ran = read_arithmetic([str(several)])
    assert ran.argument("fp8_wgrad") == "False"
    assert ran.arguments is not None
    assert len(ran.arguments) == several.read_text(encoding="utf-8").count(" ..")


def test_a_run_in_bf16_has_no_settings_of_fp8(tmp_path: Path) -> None:
    settings = {**HEALTHY, "fp8": "None", "fp8_amax_history_len": 1, "fp8_margin": -3, "fp8_wgrad": False}
    assert codes(linted(tmp_path, dumped(**settings))) == ()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"fp8_amax_history_len": 1}, "suspect fp8-history-short"),
        ({"fp8_amax_compute_algo": "most_recent"}, "suspect fp8-history-short"),
        ({"fp8_wgrad": False}, "suspect fp8-wgrad-ignored"),
        ({"fp8_interval": 4}, "suspect fp8-setting-ignored"),
        ({"first_last_layers_bf16": True}, "suspect fp8-bf16-layers-refused"),
        ({"fp8": "e4m3"}, "suspect fp8-e4m3-gradients"),
        ({"fp8_margin": -1}, "suspect fp8-margin"),
        ({"fp8_margin": 2}, "note fp8-margin"),
        ({"tp_only_amax_red": True}, "note fp8-amax-per-group"),
        ({"fp8_dot_product_attention": True}, "note fp8-attention"),
        ({"fp8_multi_head_attention": True}, "note fp8-attention"),
        ({"fp8_output_proj": True}, "note fp8-output-layer"),
        ({"exp_avg_dtype": "torch.uint8"}, "note fp8-optimizer-state"),
        ({"exp_avg_sq_dtype": "fp8"}, "note fp8-optimizer-state"),
    ],
)
def test_a_dump_shows_what_is_wrong_with_delayed_scaling(tmp_path: Path, changes: dict[str, object], code: str) -> None:
    assert codes(linted(tmp_path, dumped(**{**HEALTHY, **changes}))) == tuple(sorted((code, *DELAYED)))


OTHER = {**HEALTHY, "fp8_amax_compute_algo": "most_recent", "fp8_amax_history_len": 1}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"fp8_recipe": "tensorwise"}, CURRENT),
        ({"fp8_recipe": "blockwise", "fp8": "e4m3"}, ()),
        ({"fp8_recipe": "mxfp8", "fp8": "e4m3"}, ()),
        ({"fp8_recipe": "blockwise"}, ("note fp8-hybrid-blocks",)),
        ({"fp8_recipe": "mxfp8"}, ("note fp8-hybrid-blocks",)),
        ({"fp8_recipe": "tensorwise", "fp8": "e4m3"}, (*CURRENT, "suspect fp8-e4m3-gradients")),
        ({"fp8_recipe": "tensorwise", "fp8_wgrad": False}, (*CURRENT, "suspect fp8-wgrad-ignored")),
        ({"fp8_recipe": "tensorwise", "fp8_margin": 1}, (*CURRENT, "suspect fp8-setting-ignored")),
        ({"fp8_recipe": "tensorwise", "fp8_amax_history_len": 16}, (*CURRENT, "suspect fp8-setting-ignored")),
        ({"fp8_recipe": "tensorwise", "fp8_amax_compute_algo": "max"}, (*CURRENT, "suspect fp8-setting-ignored")),
        ({"fp8_recipe": "tensorwise", "first_last_layers_bf16": True}, CURRENT),
        (
            {
                "fp8_recipe": "tensorwise", "first_last_layers_bf16": True, "num_layers_at_start_in_bf16": 0,
                "num_layers_at_end_in_bf16": 0,
            },
            (*CURRENT, "suspect fp8-bf16-layers-none"),
        ),
        ({"fp8_recipe": "custom", "fp8_margin": 3}, ()),
    ],
)  # fmt: skip
def test_other_recipes_have_their_own_rules(tmp_path: Path, changes: dict[str, object], found: tuple[str, ...]) -> None:
    assert codes(linted(tmp_path, dumped(**{**OTHER, **changes}))) == found


def test_what_an_old_version_does_not_print_it_goes_by_all_the_same(tmp_path: Path) -> None:
    found = codes(linted(tmp_path, dumped(fp8="hybrid")))
    assert found == (*DELAYED, "suspect fp8-history-short")
    assert codes(linted(tmp_path, dumped(bf16=True))) == ()


@pytest.mark.parametrize(("version", "is_ignored"), [("1.7", False), ("1.8", True)])
def test_a_version_tells_whether_the_interval_is_ignored(tmp_path: Path, version: str, *, is_ignored: bool) -> None:
    answer = linted(tmp_path, dumped(**{**HEALTHY, "fp8_interval": 8}), te_version=version)
    assert ("suspect fp8-setting-ignored" in codes(answer)) is is_ignored


@pytest.mark.parametrize(("version", "is_ignored"), [("1.13", False), ("2.0", True), ("v2.4.0+cu12", True)])
def test_a_version_tells_whether_wgrad_is_kept_out(tmp_path: Path, version: str, *, is_ignored: bool) -> None:
    answer = linted(tmp_path, dumped(**{**HEALTHY, "fp8_wgrad": False}), te_version=version)
    assert ("suspect fp8-wgrad-ignored" in codes(answer)) is is_ignored


def test_an_old_version_has_a_switch_for_each_format(tmp_path: Path) -> None:
    off = {"fp8_amax_compute_algo": "max", "fp8_amax_history_len": 1024, "fp8_e4m3": False, "fp8_hybrid": False}
    assert codes(linted(tmp_path, dumped(**off))) == ()
    assert codes(linted(tmp_path, dumped(**{**off, "fp8_hybrid": True}))) == DELAYED
    assert codes(linted(tmp_path, dumped(**{**off, "fp8_e4m3": True}))) == (*DELAYED, "suspect fp8-e4m3-gradients")
    assert codes(linted(tmp_path, "pretrain_gpt.py --fp8-hybrid --fp8-margin 4\n", "run.sh")) == ()


def test_a_finding_stands_on_the_line_of_the_dump(tmp_path: Path) -> None:
    text = "starting\n" * 10 + dumped(**{**HEALTHY, "fp8_margin": -1})
    (reason,) = [
        reason for reason in linted(tmp_path, text).checks[0].reasons if reason.finding.code.value == "fp8-margin"
    ]
    assert reason.finding.line is not None
    assert text.split("\n")[reason.finding.line - 1].lstrip().startswith("fp8_margin")


SCRIPT = """\
#!/bin/bash
# --fp8-margin -5
FP8_ARGS=(
    --fp8-format hybrid   # --fp8-margin -5
    --fp8-recipe delayed \\
    --fp8-amax-history-len 1024
    "--fp8-amax-compute-algo" "max"
)
torchrun pretrain_gpt.py ${FP8_ARGS[@]} --bf16 {more}
"""


def test_of_two_branches_nobody_knows_which_is_taken(tmp_path: Path) -> None:
    branch = "if [ $OLD = 1 ]; then A='--fp8-amax-history-len 1'\nelse A='--fp8-amax-history-len 512'; fi\n"
    assert codes(linted(tmp_path, branch + SCRIPT.replace("{more}", "$A"), "run.sh")) == DELAYED
    alike = branch.replace("512", "1").replace("1024", "1")
    script = SCRIPT.replace("{more}", "$A").replace("1024", "1")
    assert "suspect fp8-history-short" in codes(linted(tmp_path, alike + script, "run.sh"))


OWN_CONFIG = """\
model:
  num_layers: 4
mixed_precision:
  fp8: hybrid
  fp8_recipe: delayed
  fp8_amax_history_len: 1024
  fp8_amax_compute_algo: max
  fp8_margin: 0
  fp8_wgrad: true
  first_last_layers_bf16: false
  num_layers_at_start_in_bf16: 0
  num_layers_at_end_in_bf16: 0
rerun_state_machine:
  check_for_nan_in_loss: true
optimizer:
  exp_avg_dtype: torch.float32
"""


def test_the_switch_for_bf16_layers_needs_counts(tmp_path: Path) -> None:
    on = OWN_CONFIG.replace("first_last_layers_bf16: false", "first_last_layers_bf16: true")
    on = on.replace("recipe: delayed", "recipe: mxfp8").replace("fp8: hybrid", "fp8: e4m3")
    on = on.replace("1024", "1").replace("algo: max", "algo: most_recent")
    assert codes(linted(tmp_path, on, "c.yaml")) == ("suspect fp8-bf16-layers-none",)
    assert codes(linted(tmp_path, on.replace("start_in_bf16: 0", "start_in_bf16: 1"), "c.yaml")) == ()


TITAN = """\
[job]
dump_folder = "./outputs"

[model]
converters = {converters}

[quantize.linear.float8]
{float8}

[quantize.linear.mx]
{mx}
"""


@pytest.mark.parametrize(
    ("float8", "found"),
    [
        ('recipe_name = "rowwise"\nfilter_fqns = ["output"]', ()),
        ('recipe_name = "rowwise"\nfilter_fqns = ["attention.wq"]', ("note fp8-output-layer",)),
        ("filter_fqns = []", ("note fp8-output-layer",)),
        ('filter_fqns = ["output", "layers.1"]', ("suspect fp8-substring",)),
        ('filter_fqns = ["output", "layers.1.", "feed_forward.w1"]', ()),
        ('emulate = true\nrecipe_name = "rowwise"', ("suspect fp8-emulate-drops-recipe",)),
        ("emulate = true", ()),
        ('emulate = false\nrecipe_name = "rowwise"', ()),
    ],
)
def test_a_config_of_torchtitan(tmp_path: Path, float8: str, found: tuple[str, ...]) -> None:
    on = TITAN.format(converters='["quantize.linear.float8"]', float8=float8, mx="")
    assert codes(linted(tmp_path, on, "titan.toml")) == found
    assert codes(linted(tmp_path, on, "titan")) == found
    off = codes(linted(tmp_path, on.replace('"quantize.linear.float8"', ""), "titan.toml"))
    assert off == tuple(code for code in found if code == "suspect fp8-substring")


MX = TITAN.format(converters='["mx"]', float8="", mx='recipe_name = "mxfp8_cublas"\nfilter_fqns = ["output"]')
WORDS = """\
fp8_recipe_of_te:
  _target_: transformer_engine.common.recipe.DelayedScaling
  fp8_format: HYBRID
  amax_history_len: 512
"""
MATCHER = "matchers:\n  a: {type: glob, pattern: '*layers.1*', config: bf16}\n"

FILES = {"run.sh": SCRIPT, "run_config.yaml": OWN_CONFIG, "titan.toml": MX, "te.yaml": WORDS}
BLOCKS = "--fp8-recipe blockwise --fp8-amax-history-len 1 --fp8-amax-compute-algo most_recent"
SHORT, E4M3 = (*DELAYED, "suspect fp8-history-short"), (*DELAYED, "suspect fp8-e4m3-gradients")
IGNORED, WGRAD = (*DELAYED, "suspect fp8-setting-ignored"), (*DELAYED, "suspect fp8-wgrad-ignored")


@pytest.mark.parametrize(
    ("name", "old", "new", "found"),
    [
        ("run.sh", "{more}", "", DELAYED),
        ("run.sh", "{more}", "--fp8-amax-history-len 1", SHORT),
        ("run.sh", "{more}", "--fp8-amax-history-len=1", SHORT),
        ("run.sh", "{more}", "--fp8-amax-history-len='1'", SHORT),
        ("run.sh", "{more}", "--fp8-amax-history-len 1 --fp8-amax-history-len 64", DELAYED),
        ("run.sh", "{more}", "--fp8-amax-history-len $LEN", DELAYED),
        ("run.sh", "{more}", "--fp8-amax-history-len ${LEN:-1}", DELAYED),
        ("run.sh", "{more}", "--fp8-recipe $RECIPE --fp8-margin 4", ()),
        ("run.sh", "{more}", "--fp8-format e4m3", E4M3),
        ("run.sh", "{more}", "--no-check-for-nan-in-loss-and-grad", ("suspect fp8-inf-freezes-scale",)),
        ("run.sh", "{more}", "--no-fp8-wgrad", DELAYED),
        ("run.sh", "{more}", f"--no-fp8-wgrad {BLOCKS}", ("note fp8-hybrid-blocks", "suspect fp8-wgrad-ignored")),
        ("run.sh", "{more}", "--exp-avg-dtype fp8", (*DELAYED, "note fp8-optimizer-state")),
        ("run.sh", "{more}", "--first-last-layers-bf16", (*DELAYED, "suspect fp8-bf16-layers-refused")),
        ("run_config.yaml", "", "", DELAYED),
        ("run_config.yaml", "fp8: hybrid", "fp8: null", ()),
        ("run_config.yaml", "history_len: 1024", "history_len: 1", SHORT),
        ("run_config.yaml", "recipe: delayed", "recipe: tensorwise", (*CURRENT, *("suspect fp8-setting-ignored",) * 2)),
        ("run_config.yaml", "nan_in_loss: true", "nan_in_loss: false", ("suspect fp8-inf-freezes-scale",)),
        ("run_config.yaml", "dtype: torch.float32", "dtype: torch.uint8", (*DELAYED, "note fp8-optimizer-state")),
        ("te.yaml", "", "", DELAYED),
        ("te.yaml", "amax_history_len: 512", "reduce_amax: false", ("note fp8-amax-per-group", *DELAYED)),
        ("te.yaml", "amax", "ammax", IGNORED),
        ("te.yaml", "HYBRID", "E4M3", E4M3),
        ("te.yaml", "512", "512\n  override_linear_precision: [false, false, true]", (*IGNORED, WGRAD[-1])),
        ("te.yaml", "512", "512\n  override_linear_precision: (false, false, true)", (*IGNORED, WGRAD[-1])),
        ("te.yaml", "amax_history_len: 512", "override_linear_precision: [false, false, false]", IGNORED),
        ("titan.toml", "", "", ("suspect fp8-mx-floor",)),  # scales of blocks are rounded down
        ("titan.toml", "cublas", "cublas_rceil", ()),
        ("titan.toml", "mxfp8_cublas", "mxfp8_rceil", ()),
    ],
)  # fmt: skip
def test_a_file_of_each_kind_is_read(tmp_path: Path, name: str, old: str, new: str, found: tuple[str, ...]) -> None:
    text = FILES[name].replace(old, new) if old else FILES[name]
    version = "2.12" if name == "te.yaml" else None
    assert codes(linted(tmp_path, text, name, te_version=version)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("mx:\n  scale_calculation_mode: FLOOR\n", ("suspect fp8-mx-floor",)),
        ("mx:\n  scale_calculation_mode: ScaleCalculationMode.RCEIL\n", ()),
        ("float8:\n  gemm_config_output: {use_fast_accum: true}\n", ("note fp8-fast-accumulation",)),
        ("float8:\n  gemm_config_output: {use_fast_accum: false}\n", ()),
        (MATCHER, ("suspect fp8-substring",)),
        (MATCHER.replace("layers.1", "layers.1."), ()),
        (MATCHER.replace("layers.1", "fc1"), ()),
        (MATCHER.replace("'*layers.1*'", "1"), ()),
        ('{"float8": {"emulate": true, "recipe_name": "rowwise"}}', ("suspect fp8-emulate-drops-recipe",)),
    ],
)
def test_settings_of_torchao_and_of_single_modules(tmp_path: Path, text: str, found: tuple[str, ...]) -> None:
    assert codes(linted(tmp_path, text, "config")) == found


def test_a_comment_allows_a_finding_where_it_stands(tmp_path: Path) -> None:
    said = "fp8_amax_history_len: 1  # ckpttool: allow fp8-history-short"
    answer = linted(tmp_path, OWN_CONFIG.replace("fp8_amax_history_len: 1024", said), "c.yaml")
    assert codes(answer) == DELAYED
    assert answer.go


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x7fELF\0\1\2" * 100, "has no FP8 settings"),
        (b"", "has no FP8 settings"),
        (b"mixed_precision: fp8\n", "has no FP8 settings"),
        (b"#!/bin/sh\necho hello\n", "has no FP8 settings"),
        (b"fp8_recipe: [unclosed\n", "line 2"),
        (b"step 1 loss 2.0\n" * 100_000, "has no printed arguments"),
        (dumped(**HEALTHY).encode()[:-30], "has no FP8 settings"),
    ],
)
def test_a_file_without_settings_of_fp8_is_told(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "file").write_bytes(content)
    (check,) = ckpttool.library.fp8_lint(str(tmp_path / "file")).checks
    assert codes(ckpttool.library.fp8_lint(str(tmp_path / "file"))) == ("damage config-unusable",)
    assert why in check.reasons[0].finding.message
    assert check.stopped is not None


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    answer = ckpttool.library.fp8_lint([str(tmp_path / "none"), str(tmp_path)])
    assert codes(answer) == ("damage config-unusable",) * 2
