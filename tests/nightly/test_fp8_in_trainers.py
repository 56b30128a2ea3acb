"""What an FP8 experiment changes is taken by the real Megatron-LM and the real torchtitan, and does what the plan says.

CKPTTOOL_MEGATRON=CHECKOUT[:CHECKOUT…]    folders of Megatron-LM; its wheel has no `megatron.training`
CKPTTOOL_MEGATRON_PYTHON=PYTHON           with torch, triton, six, einops, regex, pyyaml, psutil, pydantic
CKPTTOOL_TORCHTITAN_PYTHON=PYTHON         with torch and torchtitan 0.2
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.domain.frozen import replace
from ckpttool.fp8.frameworks.frameworks import Framework, Setting, framework_of
from ckpttool.fp8.model.curves import CurveClass
from ckpttool.fp8.model.fp8 import Arithmetic, Gemm, Recipe
from ckpttool.fp8.model.plan import AsPlanned, Change, Outcome, Products, Trial, VerdictKind
from ckpttool.fp8.rules.experiments import first_round, next_round
from tests.fp8.frameworks.test_fragments import printed as seen
from tests.fp8.frameworks.test_fragments import setting
from tests.fp8.rules.test_experiments import found
from tests.support.fp8_runs import experiment, known

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="real packages: --nightly")

HERE = Path(__file__).parent
CHECKOUTS = [path for path in os.environ.get("CKPTTOOL_MEGATRON", "").split(":") if path]
ENGINE = "2.15.0"
LAYERS = tuple(f"decoder.layers.{number}.mlp.linear_fc1" for number in (0, 1, 2, 3, 10, 11))


def python(variable: str) -> str:
    """Return the interpreter that has the real packages."""
    path = os.environ.get(variable)
    if not path:
        pytest.skip(f"{variable} names no interpreter with the real packages")
    return path


def asked(command: Sequence[str | Path], questions: Sequence[object]) -> list[dict[str, Any]]:
    """Put questions to a script, a line each, and return its answers."""
    lines = "".join(f"{json.dumps(question)}\n" for question in questions)
    done = subprocess.run([*map(str, command)], input=lines, capture_output=True, text=True, check=False)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(questions), done.stderr[-3000:]
    return answers


def all_trials(recipes: tuple[Recipe, ...], extras: tuple[str, ...]) -> list[Trial]:
    """Return every trial of a candidate with these extras, and one without each of them alone."""
    of = replace(known(CurveClass.EARLY), recipes=recipes, extras=extras)
    rounds = [
        first_round(of),
        next_round(2, of, found(VerdictKind.UNDECIDED), ()),
        next_round(3, of, found(VerdictKind.CULPRIT, Gemm.DGRAD, Gemm.WGRAD, E3=Outcome.RESTORES), ()),
    ]
    by_id = {trial.id: trial for each in rounds for trial in each}
    alone = [replace(by_id["E1"], id=f"E1-{extra}", without=(extra,)) for extra in extras]
    return [*by_id.values(), *alone]


def changes(framework: Framework, where: Setting, extras: tuple[str, ...]) -> list[tuple[Trial, Change]]:
    """Return what the framework is told in each experiment that it can express."""
    made = (
        (trial, framework.change(trial, replace(where, folder=f"{where.folder}/{trial.id}")))
        for trial in all_trials(framework.recipes, extras)
    )
    return [(trial, change) for trial, change in made if isinstance(change, Change)]


# --- Megatron-LM -----------------------------------------------------------------------------------------------------

PLAIN = [
    "--num-layers=12", "--hidden-size=512", "--num-attention-heads=8", "--seq-length=1024", "--lr=3e-4", "--bf16",
    "--max-position-embeddings=1024", "--micro-batch-size=4", "--global-batch-size=64", "--train-iters=100000",
    "--tensor-model-parallel-size=2", "--transformer-impl=transformer_engine", "--tokenizer-type=NullTokenizer",
    "--vocab-size=1000", "--use-distributed-optimizer", "--load=/old", "--save=/old", "--save-interval=100",
    "--exit-interval=50", "--sequence-parallel", "--tp-comm-overlap", "--overlap-grad-reduce",
    "--overlap-param-gather",
    "--recompute-granularity=full", "--recompute-method=uniform", "--recompute-num-layers=1",
]  # fmt: skip
EXPERTS = [
    *PLAIN, "--num-experts=8", "--expert-model-parallel-size=2", "--moe-grouped-gemm", "--disable-bias-linear",
    "--moe-router-load-balancing-type=aux_loss", "--moe-token-dispatcher-type=alltoall",
    "--moe-router-padding-for-fp8",
]  # fmt: skip
DELAYED = ["--fp8-format=hybrid", "--fp8-recipe=delayed", "--fp8-amax-history-len=1024", "--fp8-margin=0"]
CURRENT = ["--fp8-format=hybrid", "--fp8-recipe=tensorwise", "--first-last-layers-bf16", "--fp8-param-gather"]
MXFP8 = ["--fp8-format=e4m3", "--fp8-recipe=mxfp8", "--fp8-param-gather", "--reuse-grad-buf-for-mxfp8-param-ag"]
CANDIDATES = {
    "delayed": (PLAIN + DELAYED, Recipe.DELAYED),
    "tensorwise": (PLAIN + CURRENT, Recipe.TENSORWISE),
    "mxfp8": (PLAIN + MXFP8, Recipe.MXFP8),
    "experts": (EXPERTS + MXFP8, Recipe.MXFP8),
}
SINCE = {"mxfp8": "core_v0.13", "experts": "core_v0.13"}


def with_change(words: Sequence[str], change: Change) -> list[str]:
    """Do by hand what flags.txt asks for: take flags out, and set others."""
    kept = [word for word in words if word.partition("=")[0] not in {*change.remove, *dict(change.set)}]
    return [*kept, *(f"{flag}={value}" if value else flag for flag, value in change.set)]


@pytest.mark.parametrize("candidate", CANDIDATES)
@pytest.mark.parametrize("checkout", CHECKOUTS or [""])
def test_megatron_starts_every_experiment_with_what_the_plan_says(
    checkout: str, candidate: str, tmp_path: Path
) -> None:
    interpreter = python("CKPTTOOL_MEGATRON_PYTHON")
    if not checkout:
        pytest.skip("CKPTTOOL_MEGATRON names no checkout of Megatron-LM: its wheel has no megatron.training")
    if Path(checkout).name < SINCE.get(candidate, ""):
        pytest.skip(f"{candidate} came with {SINCE[candidate]}")
    words, recipe = CANDIDATES[candidate]
    command = (interpreter, HERE / "inject" / "ask_megatron.py", checkout, ENGINE, ",".join(LAYERS))
    (before,) = asked(command, [words])
    assert "error" not in before, before["error"]
    printed = {name: f"{value}" for name, value in before.items() if name != "precisions"}
    framework = framework_of("megatron")
    number = tuple(map(int, Path(checkout).name.removeprefix("core_v").split("."))) if "core_v" in checkout else None
    where = replace(
        setting(), folder=f"{tmp_path}", recipe=recipe, arguments=printed, framework_version=number,
        engine_version=tuple(map(int, ENGINE.split("."))),
    )  # fmt: skip
    extras = framework.extras(printed)
    assert set(extras) >= {"--overlap-grad-reduce", "--recompute-granularity", "--overlap-param-gather"}
    made = changes(framework, where, extras)
    assert len(made) >= 12
    for trial, change in made:
        (tmp_path / trial.id).mkdir()
        for name, text in change.files:
            (tmp_path / trial.id / name).write_text(text)
    for (trial, change), after in zip(
        made, asked(command, [with_change(words, change) for _, change in made]), strict=True
    ):
        assert "error" not in after, (trial.id, after["error"])
        assert_as_planned(trial, before, after, f"{tmp_path}/{trial.id}")
        told = framework.as_planned(
            replace(experiment(trial), change=change), seen({name: f"{value}" for name, value in after.items()})
        )
        assert told[0] is not AsPlanned.NO, (trial.id, told)


def assert_as_planned(trial: Trial, before: dict[str, Any], after: dict[str, Any], folder: str) -> None:
    same = {"train_iters", "lr_decay_iters", "global_batch_size", "bf16"}
    assert {name: after[name] for name in same} == {name: before[name] for name in same}, trial.id
    started = {"load": "/runs/checkpoints", "ckpt_step": 100, "save": f"{folder}/checkpoints", "exit_interval": 700}
    assert {name: after[name] for name in started} == started, trial.id
    assert after["micro_batch_size"] == (2 if trial.is_regrouped else 4), trial.id
    if trial.products == Products.all(Arithmetic.BF16):
        assert (after["fp8"], after["config_fp8"]) == (None, None), trial.id
    else:
        assert after["fp8"] == after["config_fp8"] == before["fp8"], trial.id
        assert after["fp8_recipe"] == (before["fp8_recipe"] if trial.recipe is None else trial.recipe.value), trial.id
    for flag in trial.without:
        assert after[flag.lstrip("-").replace("-", "_")] in {False, None, "none"}, (trial.id, flag)
    if trial.layers is not None:
        in_fp8 = {layer: re.fullmatch(trial.layers, layer) is None for layer in LAYERS}
        assert after["precisions"] == in_fp8, trial.id


# --- torchtitan ------------------------------------------------------------------------------------------------------

TITAN = {
    "job.dump_folder": "/old",
    "model.converters": ["quantize.linear.float8"],
    "training.steps": 1000,
    "training.local_batch_size": 4,
    "training.global_batch_size": 64,
    "lr_scheduler.warmup_steps": 100,
    "lr_scheduler.decay_ratio": 0.5,
    "checkpoint.enable": True,
    "checkpoint.initial_load_in_hf": True,
    "compile.enable": True,
    "parallelism.enable_async_tensor_parallel": True,
    "activation_checkpoint.mode": "full",
    "quantize.linear.float8.filter_fqns": ["output"],
}
TITANS: dict[str, tuple[dict[str, object], Recipe]] = {
    "gathered": ({"quantize.linear.float8.enable_fsdp_float8_all_gather": True}, Recipe.TENSORWISE),
    "tensorwise": ({"quantize.linear.float8.recipe_name": "tensorwise"}, Recipe.TENSORWISE),
    "rowwise": ({"quantize.linear.float8.recipe_name": "rowwise"}, Recipe.ROWWISE),
}
FILLED = {"<the old training.steps>": "1000", "<half of the old value>": "2", "<the old value>": "64"}
MODULES = (*(f"layers.{number}.feed_forward.w1" for number in (0, 1, 2, 3, 10, 11)), "output")
GRAINS = {Recipe.TENSORWISE: "tensorwise", Recipe.ROWWISE: "axiswise"}


def with_keys(keys: Mapping[str, object], change: Change) -> dict[str, object]:
    """Do by hand what flags.txt asks for: take a converter out, set keys, and fill in what was."""
    found = dict(keys)
    for removed in change.remove:
        key, _, word = removed.partition(": ")
        values = found[key]
        assert isinstance(values, list)
        found[key] = [value for value in values if value != word]
    for key, value in change.set:
        text = value.replace(", <the old value>]", ', "output"]') if key.endswith("fqns") else FILLED.get(value, value)
        found[key] = json.loads(text) if text[0] in "[0123456789" or text in {"true", "false"} else text
    return found


def toml(keys: Mapping[str, object]) -> str:
    """Write keys as a config; JSON's values are TOML's."""
    sections: dict[str, list[str]] = {}
    for key, value in keys.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}")
    return "".join(f"[{section}]\n{chr(10).join(lines)}\n" for section, lines in sections.items())


@pytest.mark.parametrize("candidate", TITANS)
def test_torchtitan_starts_every_experiment_with_what_the_plan_says(candidate: str, tmp_path: Path) -> None:
    interpreter = python("CKPTTOOL_TORCHTITAN_PYTHON")
    (tmp_path / "tree" / "step-100").mkdir(parents=True)
    command = (interpreter, HERE / "inject" / "ask_torchtitan.py", ",".join(MODULES))
    more, recipe = TITANS[candidate]
    keys = {**TITAN, **more}
    (before,) = asked(command, [toml({**keys, "checkpoint.initial_load_in_hf": False})])
    assert "error" not in before, before["error"]
    framework = framework_of("torchtitan")
    where = replace(
        setting(), folder=f"{tmp_path}", load=f"{tmp_path / 'tree'}", recipe=recipe, framework_version=(0, 2, 2),
        arguments={"local_batch_size": "4"},
    )  # fmt: skip
    extras = framework.extras(None)
    made = changes(framework, where, extras)
    assert len(made) >= 13
    answers = asked(command, [toml(with_keys(keys, change)) for _, change in made])
    for (trial, _), after in zip(made, answers, strict=True):
        assert "error" not in after, (trial.id, after["error"])
        start = (trial.id, "step-100")
        assert after["loaded"] == [["all", f"{tmp_path / 'tree' / start[1]}", False]], trial.id
        assert after["rates"] == before["rates"], trial.id
        assert after["config"]["training"]["steps"] == 700, trial.id
        assert after["config"]["training"]["local_batch_size"] == (2 if trial.is_regrouped else 4), trial.id
        assert after["products"] == products_of(trial, recipe), trial.id
        if "compile" in trial.without:
            assert after["config"]["compile"]["enable"] is False
        if "FP8 all-gather" in trial.without:
            assert after["gathers"] is False


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"compile.enable": False}, "Async TP requires"),
        (
            {
                "quantize.linear.float8.recipe_name": "rowwise",
                "quantize.linear.float8.enable_fsdp_float8_all_gather": True,
            },
            "is not supported",
        ),
        (
            {"checkpoint.initial_load_model_only": False, "checkpoint.initial_load_path": "."},
            "Only model can be loaded",
        ),
        ({"lr_scheduler.total": 1000}, "Invalid field names"),
    ],
)
def test_torchtitan_stops_at_what_the_experiments_go_around(more: dict[str, object], why: str) -> None:
    interpreter = python("CKPTTOOL_TORCHTITAN_PYTHON")
    command = (interpreter, HERE / "inject" / "ask_torchtitan.py", ",".join(MODULES))
    (answer,) = asked(command, [toml({**TITAN, **more})])
    assert why in answer["error"]


def products_of(trial: Trial, recipe: Recipe) -> dict[str, dict[str, str]]:
    """Return what the plan says computes each product of every module."""
    told = {}
    for name in MODULES:
        meant = name != "output" and (trial.layers is None or re.fullmatch(trial.layers, name) is not None)
        in_fp8 = name != "output"
        own = {gemm: trial.products.of(gemm) if meant else Arithmetic.FP8 for gemm in Gemm}
        if meant and trial.layers is not None:  # a filter is a module's: all its products are in BF16
            own = dict.fromkeys(Gemm, Arithmetic.BF16)
        told[name] = {
            gemm.value: GRAINS[trial.recipe or recipe] if in_fp8 and own[gemm] is Arithmetic.FP8 else "bf16"
            for gemm in Gemm
        }
        if trial.products.changed == {Gemm.WGRAD} and in_fp8 and trial.layers is None:
            told[name]["dgrad"] = "axiswise-tensorwise"  # that recipe's own; the experiment says so
    return told
