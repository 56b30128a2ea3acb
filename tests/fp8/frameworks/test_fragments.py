"""What each framework is told to run an experiment, and what it says that it cannot be told."""

from __future__ import annotations

import pytest
import yaml

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import UsageError
from ckpttool.fp8.frameworks.frameworks import Setting, framework_of, regrouped
from ckpttool.fp8.frameworks.inspect_log import layers_of
from ckpttool.fp8.frameworks.lint import version
from ckpttool.fp8.model.curves import CurveClass
from ckpttool.fp8.model.fp8 import Gemm, Recipe
from ckpttool.fp8.model.plan import AsPlanned, Change, Outcome, Trial, VerdictKind
from ckpttool.fp8.model.settings import RunArithmetic, TensorStatistic
from ckpttool.fp8.rules.experiments import first_round, next_round
from tests.fp8.rules.test_experiments import found
from tests.support.fp8_runs import experiment, known


def setting() -> Setting:
    return Setting(
        folder="/plans/E",
        first_step=Step(100),
        last_step=Step(700),
        load="/runs/checkpoints",
        recipe=Recipe.DELAYED,
        framework_version=None,
        engine_version=None,
        arguments=None,
        in_e5m2=True,
    )


KNOWN = replace(known(CurveClass.EARLY), recipes=(Recipe.TENSORWISE, Recipe.ROWWISE, Recipe.BLOCKWISE, Recipe.MXFP8))
CULPRITS = found(VerdictKind.CULPRIT, Gemm.DGRAD, Gemm.WGRAD, E3=Outcome.RESTORES)
TRIALS: dict[str, Trial] = {
    trial.id: trial
    for trial in (
        *first_round(KNOWN),
        *next_round(2, KNOWN, found(VerdictKind.UNDECIDED), ()),
        *next_round(3, KNOWN, CULPRITS, ()),
    )
}


def change(name: str, trial: str | Trial, **more: object) -> Change:
    asked = trial if isinstance(trial, Trial) else TRIALS[trial]
    answer = framework_of(name).change(asked, replace(setting(), **more))  # type: ignore[arg-type]
    assert isinstance(answer, Change), answer
    return answer


def refusal(name: str, trial: str, **more: object) -> str:
    answer = framework_of(name).change(TRIALS[trial], replace(setting(), **more))  # type: ignore[arg-type]
    assert isinstance(answer, str), answer
    return answer


def expressible(name: str, **more: object) -> set[str]:
    framework, where = framework_of(name), replace(setting(), **more)  # type: ignore[arg-type]
    return {trial.id for trial in TRIALS.values() if isinstance(framework.change(trial, where), Change)}


E4 = {"E4f", "E4d", "E4w", "E4fd", "E4fw", "E4dw"}
E7 = {"E7q1", "E7q2", "E7q3", "E7q4"}
E8 = {"E8-activation", "E8-weight", "E8-gradient"}
ALWAYS = {"B", "E0", "C", "E1", "E2"}
TE_RECIPES = {"E6-tensorwise", "E6-blockwise", "E6-mxfp8"}


def test_each_framework_expresses_its_part_and_says_so_of_the_rest() -> None:
    assert expressible("te") == ALWAYS | E4 | E7 | E8 | TE_RECIPES | {"E3", "E5", "F"}
    assert expressible("megatron") == ALWAYS | TE_RECIPES
    assert expressible("megatron", recipe=Recipe.TENSORWISE) == ALWAYS | TE_RECIPES | E7 | {"E4dw"}
    assert expressible("torchtitan", recipe=Recipe.ROWWISE) == ALWAYS | E7 | {"E4w", "E6-tensorwise", "E6-rowwise"}
    assert expressible("torchao", recipe=Recipe.ROWWISE) == ALWAYS | E4 | E7 | {"E6-tensorwise", "E6-rowwise"}


class TestDebugFeatures:
    @pytest.mark.parametrize(
        ("numbers", "feature"),
        [
            ((2, 4), "DisableFP8GEMM"),
            ((2, 12, 0), "DisableFP8GEMM"),
            ((2, 13), "DisableQuantizationGEMM"),
            (None, "DisableFP8GEMM"),
        ],
    )
    def test_the_feature_has_the_name_of_this_version(self, numbers: tuple[int, ...] | None, feature: str) -> None:
        ((name, text),) = change("te", "E4d", engine_version=numbers).files
        assert name == "inspect.yaml"
        assert yaml.safe_load(text) == {
            "e4d": {
                "enabled": True,
                "layers": {"layer_name_regex_pattern": ".*"},
                "transformer_engine": {feature: {"enabled": True, "gemms": ["dgrad"]}},
            }
        }

    def test_before_2_4_there_are_none(self) -> None:
        assert "2.4" in refusal("te", "E4d", engine_version=(2, 3))

    def test_rounding_takes_gradients_in_the_format_of_the_run(self) -> None:
        for in_e5m2, format_ in ((True, "FP8E5M2"), (False, "FP8E4M3")):
            text = change("te", "E3", in_e5m2=in_e5m2).files[0][1]
            fake = yaml.safe_load(text)["e3"]["transformer_engine"]["FakeQuant"]
            assert fake["gemms"] == ["fprop", "dgrad", "wgrad"]
            assert {each["tensor"]: each["quant_format"] for each in fake["tensors_struct"]} == {
                "activation": "FP8E4M3", "weight": "FP8E4M3", "gradient": format_,
            }  # fmt: skip

    def test_a_current_scale_needs_a_delayed_one_to_replace(self) -> None:
        assert "there is no history" in refusal("te", "E5", recipe=Recipe.TENSORWISE)
        assert change("te", "E5", recipe=None).files

    def test_layers_are_named_with_a_dot_on_both_sides(self) -> None:
        section = yaml.safe_load(change("te", "E7q1").files[0][1])["e7q1"]
        assert section["layers"]["layer_name_regex_pattern"] == r".*layers\.(1|2)\..*"

    def test_a_recipe_that_came_later_is_refused(self) -> None:
        assert "2.3" in refusal("te", "E6-blockwise", engine_version=(2, 2))
        assert "2.3" in refusal("megatron", "E6-blockwise", engine_version=(2, 2))
        assert "no recipe rowwise" in refusal("te", "E6-rowwise")
        assert "Hopper" in change("te", "E6-blockwise").notes[-1]


class TestMegatron:
    def test_bf16_drops_all_that_is_fp8_and_keeps_the_schedule(self) -> None:
        made = change("megatron", "B")
        assert "--fp8-format" in made.remove
        assert made.set == (
            ("--load", "/runs/checkpoints"),
            ("--ckpt-step", "100"),
            ("--save", "/plans/E/checkpoints"),
            ("--exit-interval", "700"),
            ("--bf16", ""),
        )

    def test_from_scratch_nothing_is_loaded(self) -> None:
        assert "--load" not in dict(change("megatron", "B", load=None).set)

    def test_the_backward_pass_in_bf16_needs_a_version_that_knows_it(self) -> None:
        made = change("megatron", "E4dw", recipe=Recipe.TENSORWISE, engine_version=(2, 15))
        assert made.env == (("NVTE_BACKWARD_OVERRIDE", "high_precision"),)
        assert "2.15" in refusal("megatron", "E4dw", recipe=Recipe.TENSORWISE, engine_version=(2, 14))
        assert "delayed" in refusal("megatron", "E4dw")
        assert "never starts the debug features" in refusal("megatron", "E4d", recipe=Recipe.TENSORWISE)

    def test_layers_are_files_of_modules(self) -> None:
        made = change("megatron", "E7q1", recipe=Recipe.TENSORWISE)
        ((name, text),) = made.files
        assert dict(made.set)["--te-precision-config-file"] == f"/plans/E/{name}"
        parsed = yaml.safe_load(text)
        assert [matcher["pattern"] for matcher in parsed["matchers"].values()] == ["*layers.1.*", "*layers.2.*"]
        assert parsed["configs"]["bf16"]["training_recipe"] == {}
        assert "0.16" in refusal("megatron", "E7q1", recipe=Recipe.TENSORWISE, framework_version=(0, 15))
        several = {"pipeline_model_parallel_size": "2"}
        assert "stage" in refusal("megatron", "E7q1", recipe=Recipe.TENSORWISE, arguments=several)

    def test_only_what_is_on_is_switched_off(self) -> None:
        framework = framework_of("megatron")
        printed = {"sequence_parallel": "True", "tp_comm_overlap": "False", "recompute_granularity": "None"}
        assert framework.extras(printed) == ("--sequence-parallel",)
        assert len(framework.extras(None)) == 11

    def test_what_megatron_refuses_without_an_extra_goes_with_it(self) -> None:
        def removed(flag: str) -> set[str]:
            return set(change("megatron", replace(TRIALS["E1"], without=(flag,))).remove)

        assert removed("--sequence-parallel") == {"--sequence-parallel", "--tp-comm-overlap"}
        assert {"--overlap-param-gather", "--overlap-grad-reduce"} <= removed("--overlap-grad-reduce")
        assert "--overlap-grad-reduce" not in removed("--overlap-param-gather")
        assert "--recompute-method" in removed("--recompute-granularity")
        assert removed("--fp8-dot-product-attention") == {"--fp8-dot-product-attention"}
        experts = {"sequence_parallel": "True", "num_experts": "8", "overlap_grad_reduce": "True"}
        extras = framework_of("megatron").extras
        assert extras(experts) == ("--overlap-grad-reduce",)
        assert extras({**experts, "num_experts": "None"})[0] == "--sequence-parallel"

    def test_bf16_takes_what_only_fp8_may_have_with_it(self) -> None:
        only_fp8 = {"--moe-router-padding-for-fp8", "--reuse-grad-buf-for-mxfp8-param-ag"}
        assert only_fp8 <= set(change("megatron", "B").remove)
        assert "--reuse-grad-buf-for-mxfp8-param-ag" in change("megatron", "E6-blockwise").remove
        assert "--reuse-grad-buf-for-mxfp8-param-ag" not in change("megatron", "E6-mxfp8").remove
        assert not change("megatron", "C").remove

    def test_a_recipe_that_its_version_does_not_have_is_refused(self) -> None:
        assert "0.13" in refusal("megatron", "E6-blockwise", framework_version=(0, 12, 3))
        assert change("megatron", "E6-blockwise", framework_version=(0, 13)).set
        assert "--fp8-param-gather" in change("megatron", "E6-mxfp8", framework_version=(0, 12)).remove
        assert "--fp8-param-gather" not in change("megatron", "E6-mxfp8", framework_version=(0, 13)).remove

    def test_a_run_that_saves_nothing_is_given_no_folder_to_save_in(self) -> None:
        assert "--save" not in dict(change("megatron", "C", arguments={"save_interval": "None"}).set)
        assert "--save" in dict(change("megatron", "C", arguments={"save_interval": "500"}).set)

    def test_samples_are_regrouped_only_as_they_divide(self) -> None:
        def regrouped_to(batch: int, micro: int, ranks: int) -> tuple[str, str]:
            sizes = {"global_batch_size": f"{batch}", "micro_batch_size": f"{micro}", "data_parallel_size": f"{ranks}"}
            made = change("megatron", "E0", arguments=sizes)
            return dict(made.set)["--micro-batch-size"], made.notes[1]

        assert regrouped_to(64, 4, 8)[0] == "2"
        assert regrouped_to(64, 1, 8)[0] == "2"
        for batch in (8, 24):
            size, told = regrouped_to(batch, 1, 8)
            assert size == "1"
            assert "half as many devices" in told
        assert dict(change("megatron", "E0").set)["--micro-batch-size"] == "<half of the old value>"

    def test_its_printed_arguments_tell_whether_it_ran_as_planned(self) -> None:
        def told(name: str, **arguments: str) -> tuple[AsPlanned, str | None]:
            made = change("megatron", name, arguments={"micro_batch_size": "4"})
            run = replace(experiment(TRIALS[name]), change=made)
            return framework_of("megatron").as_planned(run, printed(arguments))

        assert told("B", fp8="None") == (AsPlanned.YES, None)
        assert told("B", fp8="hybrid") == (AsPlanned.NO, "its log prints fp8 = hybrid")
        assert told("C", fp8="hybrid")[0] is AsPlanned.YES
        assert told("C", fp8="None")[0] is AsPlanned.NO
        assert told("E6-blockwise", fp8="e4m3", fp8_recipe="blockwise")[0] is AsPlanned.YES
        assert told("E6-blockwise", fp8="e4m3", fp8_recipe="delayed")[0] is AsPlanned.NO
        assert told("E0", fp8="None", micro_batch_size="2")[0] is AsPlanned.YES
        assert told("E0", fp8="None", micro_batch_size="4")[0] is AsPlanned.NO
        assert told("C")[0] is AsPlanned.UNKNOWN

    def test_extras_that_are_still_on_are_seen(self) -> None:
        trial = replace(TRIALS["E1"], without=("--sequence-parallel",))
        run = replace(experiment(trial), change=change("megatron", trial))
        told = framework_of("megatron").as_planned
        assert told(run, seen(fp8="hybrid", sequence_parallel="True"))[0] is AsPlanned.NO
        assert told(run, seen(fp8="hybrid", sequence_parallel="False"))[0] is AsPlanned.YES

    def test_what_single_products_did_its_arguments_do_not_tell(self) -> None:
        made = change("megatron", "E4dw", recipe=Recipe.TENSORWISE)
        run = replace(experiment(TRIALS["E4dw"]), change=made)
        assert framework_of("megatron").as_planned(run, seen(fp8="hybrid"))[0] is AsPlanned.UNKNOWN


def printed(arguments: dict[str, str]) -> RunArithmetic:
    return replace(seen(), arguments=tuple(arguments.items()) or None)


def seen(*, recipe: str | None = None, converted: bool = False, **arguments: str) -> RunArithmetic:
    return RunArithmetic(
        sources=("train.log",),
        arguments=tuple(arguments.items()) or None,
        operands=(),
        config_missing=None,
        recipe=recipe,
        converted=converted,
        problems=(),
    )


class TestTorchtitan:
    def test_it_starts_from_a_copy_of_the_state_and_saves_elsewhere(self) -> None:
        settings = dict(change("torchtitan", "C").set)
        assert settings["checkpoint.initial_load_path"] == "/runs/checkpoints/step-100"
        assert settings["checkpoint.initial_load_model_only"] == "false"
        assert settings["job.dump_folder"] == "/plans/E"
        assert settings["training.steps"] == "700"

        assert settings["checkpoint.enable"] == "true"
        assert settings["checkpoint.initial_load_in_hf"] == "false"
        assert "checkpoint.enable" not in dict(change("torchtitan", "C", load=None).set)

    @pytest.mark.parametrize("version", [(0, 2, 0), (0, 2, 1), (0, 1)])
    def test_before_it_can_keep_the_learning_rates_its_steps_stay(self, version: tuple[int, ...]) -> None:
        made = change("torchtitan", "C", framework_version=version)
        assert not {"training.steps", "lr_scheduler.total_steps"} & dict(made.set).keys()
        assert "stop it after step 700" in made.notes[0]
        later = dict(change("torchtitan", "C", framework_version=(0, 2, 2)).set)
        assert {"training.steps", "lr_scheduler.total_steps"} <= later.keys()

    def test_what_it_refuses_together_is_switched_together(self) -> None:
        gather = "quantize.linear.float8.enable_fsdp_float8_all_gather"
        for trial in ("E4w", "E6-tensorwise", "E6-rowwise"):
            assert dict(change("torchtitan", trial, recipe=Recipe.ROWWISE).set)[gather] == "false"
        assert gather not in dict(change("torchtitan", "C").set)
        off = dict(change("torchtitan", replace(TRIALS["E1"], without=("compile",))).set)
        assert off["parallelism.enable_async_tensor_parallel"] == "false"
        assert "activation_checkpoint.mode" not in off

    def test_wgrad_alone_can_stay_in_bf16(self) -> None:
        made = change("torchtitan", "E4w", recipe=Recipe.ROWWISE)
        assert dict(made.set)["quantize.linear.float8.recipe_name"] == "rowwise_with_gw_hp"
        assert "dgrad per tensor" in made.notes[-1]
        assert "change the recipe" in refusal("torchtitan", "E4w", recipe=Recipe.TENSORWISE)
        assert "no other setting" in refusal("torchtitan", "E4d", recipe=Recipe.ROWWISE)
        assert "no delayed scaling" in refusal("torchtitan", "F")
        assert "no recipe mxfp8" in refusal("torchtitan", "E6-mxfp8")

    def test_layers_are_filtered_with_a_dot_behind_their_number(self) -> None:
        made = change("torchtitan", "E7q1")
        assert dict(made.set)["quantize.linear.float8.filter_fqns"] == '["layers.1.", "layers.2.", <the old value>]'

    def test_later_versions_are_told_so(self) -> None:
        assert any("config_registry" in note for note in change("torchtitan", "C", framework_version=(0, 3)).notes)

    def test_the_recipe_that_it_says_is_active_tells_whether_it_ran_as_planned(self) -> None:
        def told(name: str, **more: object) -> AsPlanned:
            run = replace(experiment(TRIALS[name]), change=change("torchtitan", name, recipe=Recipe.ROWWISE))
            return framework_of("torchtitan").as_planned(run, seen(**more))[0]  # type: ignore[arg-type]

        assert told("B", recipe="rowwise") is AsPlanned.NO
        assert told("B", converted=True) is AsPlanned.NO
        assert told("B") is AsPlanned.UNKNOWN
        assert told("C", recipe="rowwise") is AsPlanned.YES
        assert told("C") is AsPlanned.UNKNOWN
        assert told("E4w", recipe="rowwise_with_gw_hp") is AsPlanned.YES
        assert told("E4w", recipe="rowwise") is AsPlanned.NO
        assert told("E7q1", recipe="rowwise") is AsPlanned.UNKNOWN


class TestTorchao:
    def test_a_product_in_bf16_casts_neither_of_its_operands(self) -> None:
        ((name, text),) = change("torchao", "E4d", recipe=Recipe.TENSORWISE).files
        assert name == "float8_config.py"
        compile(text, name, "exec")
        assert [line.strip().partition("=")[0] for line in text.splitlines() if "=_in_bf16" in line] == [
            "cast_config_grad_output",
            "cast_config_weight_for_grad_input",
        ]

    def test_an_unknown_recipe_is_said(self) -> None:
        assert any("unknown" in note for note in change("torchao", "E4d", recipe=None).notes)
        assert "no recipe mxfp8" in refusal("torchao", "E4d", recipe=Recipe.MXFP8)
        assert "no delayed scaling" in refusal("torchao", "E5", recipe=Recipe.TENSORWISE)
        assert "cannot be rounded" in refusal("torchao", "E3", recipe=Recipe.TENSORWISE)

    @pytest.mark.parametrize("name", ["te", "torchao"])
    def test_what_logs_nothing_of_its_own_tells_nothing(self, name: str) -> None:
        assert framework_of(name).as_planned(experiment(TRIALS["C"]), seen())[0] is AsPlanned.UNKNOWN


def test_mindformers_trains_no_fp8_and_a_typo_is_told() -> None:
    with pytest.raises(UsageError, match=r"MindFormers 2\.1\.0 does not train in FP8"):
        framework_of("mindformers")
    with pytest.raises(UsageError, match="did you mean megatron"):
        framework_of("megatorn")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2.13", (2, 13)), ("v2.12.0", (2, 12, 0)), ("core_v0.16.0", (0, 16, 0)), ("2.20.2+cu12", (2, 20, 2))],
)
def test_versions_are_their_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert version(text, "--framework-version") == numbers


def test_what_is_no_version_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--framework-version 'new' is not a version"):
        version("new", "--framework-version")


@pytest.mark.parametrize(
    ("size", "other"), [("4", "2"), ("1", "2"), ("3", "1"), (None, None), ("many", None), ("0", None)]
)
def test_samples_are_regrouped_in_half_or_pairs(size: str | None, other: str | None) -> None:
    assert regrouped(size) == other


def measured(layer: str, share: float, name: str = "underflows%") -> TensorStatistic:
    return TensorStatistic(
        layer=layer,
        tensor="gradient",
        name=name,
        recipe=None,
        columnwise=False,
        count=1,
        mean=share,
        largest=share,
        nonfinite=0,
        first_step=1,
        last_step=1,
    )


def test_the_layer_of_which_most_becomes_zero_comes_first() -> None:
    shares = [measured("decoder.layers.1.mlp", 2.0), measured("decoder.layers.3.mlp", 9.0), measured("head", 50.0)]
    quiet = measured("decoder.layers.2.mlp", 99.0, name="mse")
    assert layers_of([*shares, quiet], seen(), 1) == ((3, 1, 2), "layers")
    assert layers_of([measured("model.h.7.attn", 1.0)], seen(), 1) == ((7,), "h")


def test_where_no_layer_is_named_their_count_is_taken() -> None:
    assert layers_of([], printed({"num_layers": "3"}), 0) == ((0, 1, 2), "layers")
    assert layers_of([], printed({"num_layers": "many"}), 0) == ((), "layers")
    assert layers_of([], seen(), 1) == ((), "layers")
