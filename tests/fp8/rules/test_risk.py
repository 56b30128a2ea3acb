"""How much of a tensor is lost in FP8, by its numbers; and what a tensor is for, by its name."""

from __future__ import annotations

import pytest

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.shard import TensorEntry
from ckpttool.fp8.findings import Fp8Code
from ckpttool.fp8.model.fp8 import Fp8Format, Recipe
from ckpttool.fp8.model.probe import (
    CastNumbers,
    GatedNumbers,
    Lines,
    ProbeQuestion,
    Risk,
    TensorNumbers,
    TensorRole,
)
from ckpttool.fp8.rules.risk import (
    aligned,
    is_probed,
    judged,
    layer_of,
    layers_of,
    most_amplifying,
    ranked,
    risk_of,
    role_of,
    scattered,
)

NONE = Lines(rows=0, columns=0)

HEALTHY = CastNumbers(
    recipe=Recipe.TENSORWISE,
    format=Fp8Format.E4M3,
    scale=448.0,
    channel_snr_db=30.0,
    gone=NONE,
    faint=NONE,
    underflow=0.0,
    subnormal=0.0,
    saturated=0.0,
    lost=0.0001,
    lost_error=None,
    snr_db=31.5,
    cosine=0.9996,
)

WEIGHT = TensorNumbers(
    name="layers.0.w1.weight",
    path="model.safetensors",
    rank=None,
    dtype="BF16",
    shape=(1000, 500),
    elements=500_000,
    sampled=500_000,
    amax=1.0,
    nonfinite=0,
    amax_over_rms=5.0,
    bits=20.0,
    live=Lines(rows=1000, columns=500),
    recipes=(HEALTHY,),
)


@pytest.mark.parametrize(
    ("changes", "risk"),
    [
        ({}, Risk.FINE),
        ({"channel_snr_db": 25.2}, Risk.FINE),
        ({"channel_snr_db": 25.0}, Risk.WEAK),
        ({"channel_snr_db": 20.2}, Risk.WEAK),
        ({"channel_snr_db": 20.0}, Risk.LOST),
        ({"gone": Lines(rows=1, columns=0)}, Risk.WEAK),
        ({"gone": Lines(rows=0, columns=4)}, Risk.WEAK),
        ({"gone": Lines(rows=0, columns=5)}, Risk.LOST),
        ({"gone": Lines(rows=10, columns=0)}, Risk.LOST),
        ({"faint": Lines(rows=9, columns=0)}, Risk.FINE),
        ({"faint": Lines(rows=10, columns=0)}, Risk.WEAK),
        ({"saturated": 0.0009}, Risk.FINE),
        ({"saturated": 0.001}, Risk.WEAK),
        ({"saturated": None}, Risk.FINE),
        ({"gone": None, "faint": None}, Risk.FINE),
        ({"channel_snr_db": None, "lost": None}, Risk.FINE),
        ({"format": Fp8Format.E5M2, "channel_snr_db": 20.0}, Risk.FINE),
        ({"format": Fp8Format.E5M2, "channel_snr_db": 14.0}, Risk.LOST),
        ({"lost": 0.5, "snr_db": 3.0, "cosine": 0.1}, Risk.FINE),  # shown, and judged by nobody
    ],
)
def test_a_weight_is_judged_by_its_channels_and_by_the_rows_that_are_gone(
    changes: dict[str, object], risk: Risk
) -> None:
    assert risk_of(replace(HEALTHY, **changes), WEIGHT, TensorRole.LINEAR) is risk  # type: ignore[arg-type]


def test_rows_are_counted_against_those_that_hold_something() -> None:
    few = replace(WEIGHT, live=Lines(rows=100, columns=500))
    cast = replace(HEALTHY, gone=Lines(rows=1, columns=0))
    assert risk_of(cast, few, TensorRole.LINEAR) is Risk.LOST
    assert risk_of(cast, replace(WEIGHT, live=None), TensorRole.LINEAR) is Risk.FINE


@pytest.mark.parametrize(("lost", "risk"), [(0.0049, Risk.FINE), (0.005, Risk.WEAK), (0.05, Risk.LOST)])
@pytest.mark.parametrize("role", [TensorRole.FIRST_MOMENT, TensorRole.SECOND_MOMENT])
def test_an_optimizers_state_is_judged_by_the_elements_that_change(lost: float, risk: Risk, role: TensorRole) -> None:
    assert risk_of(replace(HEALTHY, lost=lost, channel_snr_db=1.0), WEIGHT, role) is risk


def test_what_is_not_finite_is_lost_whatever_the_rest_says_and_also_where_nothing_is_cast() -> None:
    sick = replace(WEIGHT, nonfinite=1)
    assert risk_of(HEALTHY, sick, TensorRole.LINEAR) is Risk.LOST
    assert judged(replace(sick, recipes=()), ProbeQuestion()).risk is Risk.LOST
    assert judged(replace(WEIGHT, recipes=()), ProbeQuestion()).risk is Risk.FINE


def test_the_recipes_that_are_named_decide_and_else_the_first_and_only_in_the_first_format() -> None:
    bad = replace(HEALTHY, recipe=Recipe.BLOCKWISE, channel_snr_db=3.0)
    other = replace(HEALTHY, format=Fp8Format.E5M2, channel_snr_db=3.0)
    tensor = replace(WEIGHT, recipes=(HEALTHY, bad, other))
    usual = judged(tensor, ProbeQuestion(formats=(Fp8Format.E4M3, Fp8Format.E5M2)))
    assert (usual.risk, usual.risks) == (Risk.FINE, (Risk.FINE, Risk.LOST, Risk.LOST))
    assert judged(tensor, ProbeQuestion(recipes=(Recipe.TENSORWISE, Recipe.BLOCKWISE))).risk is Risk.LOST
    assert judged(tensor, ProbeQuestion(formats=(Fp8Format.E5M2,))).risk is Risk.LOST


def test_the_worst_come_first_and_among_equals_those_whose_channels_keep_least_then_by_name_as_people_count() -> None:
    def tensor(name: str, kept: float | None) -> TensorNumbers:
        return replace(WEIGHT, name=name, recipes=(replace(HEALTHY, channel_snr_db=kept),))

    tensors = [tensor("layers.10.w", 29.0), tensor("layers.2.w", 29.0), tensor("a", None), tensor("z", 3.0)]
    tensors += [tensor("layers.3.w", 28.0), tensor("b", 22.0)]
    names = ["z", "b", "layers.3.w", "layers.2.w", "layers.10.w", "a"]
    assert [each.numbers.name for each in ranked(tensors, ProbeQuestion())] == names
    assert [each.numbers.name for each in ranked(reversed(tensors), ProbeQuestion())] == names


def test_a_layer_is_as_good_as_its_worst_weight_and_its_norm_has_no_say() -> None:
    def tensor(name: str, kept: float) -> TensorNumbers:
        return replace(WEIGHT, name=name, recipes=(replace(HEALTHY, channel_snr_db=kept),))

    tensors = [tensor("layers.0.wq.weight", 30.0), tensor("layers.0.w2.weight", 22.0), tensor("layers.0.norm.w", 1.0)]
    tensors += [tensor("layers.1.wq.weight", 3.0), tensor("proj.weight", 2.0)]
    layers = layers_of(ranked(tensors, ProbeQuestion()))
    assert [(layer.layer, layer.risk, layer.worst) for layer in layers] == [
        ("layers.1", Risk.LOST, "layers.1.wq.weight"),
        ("layers.0", Risk.WEAK, "layers.0.w2.weight"),
    ]


@pytest.mark.parametrize(
    ("name", "shape", "role"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (8, 8), TensorRole.LINEAR),
        ("model.layers.0.mlp.gate_proj.weight", (8, 8), TensorRole.LINEAR),
        ("model.layers.0.mlp.gate.weight", (8, 8), TensorRole.ROUTER),
        ("decoder.layers.0.mlp.router.weight", (8, 8), TensorRole.ROUTER),
        ("decoder.layers.0.mlp.linear_fc1.weight", (8, 8), TensorRole.LINEAR),
        ("layers.0.attention.output.dense.weight", (8, 8), TensorRole.LINEAR),
        ("output.weight", (8, 8), TensorRole.HEAD),
        ("model.output.weight", (8, 8), TensorRole.HEAD),
        ("lm_head.weight", (8, 8), TensorRole.HEAD),
        ("model.embed_tokens.weight", (8, 8), TensorRole.EMBEDDING),
        ("tok_embeddings.weight", (8, 8), TensorRole.EMBEDDING),
        ("wte.weight", (8, 8), TensorRole.EMBEDDING),
        ("unembed.weight", (8, 8), TensorRole.HEAD),
        ("model.layers.0.input_layernorm.weight", (8,), TensorRole.NORM),
        ("h.0.ln_1.weight", (8,), TensorRole.NORM),
        ("model.layers.0.self_attn.q_proj.bias", (8,), TensorRole.OTHER),
        ("relative.bias", (8, 8), TensorRole.OTHER),
        ("dense.weight", (8,), TensorRole.OTHER),
        ("model.layers.0.mixer.A_log", (8, 16), TensorRole.OTHER),
        ("model.layers.0.mixer.D", (8, 16), TensorRole.OTHER),
        ("model.layers.0.mixer.conv1d.weight", (8, 1, 4), TensorRole.OTHER),
        ("model.layers.0.mixer.x_conv1d_0.weight", (8, 8, 4), TensorRole.OTHER),
        ("encoder.layers.0.conv.pointwise_conv1.weight", (16, 8, 1), TensorRole.OTHER),
        ("model.layers.0.mixer.in_proj.weight", (8, 8), TensorRole.LINEAR),
        ("model.layers.0.mlp.converter.weight", (8, 8), TensorRole.LINEAR),
        ("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", (32, 8), TensorRole.EMBEDDING),
        ("layers.0.attn.relative_position_bias_table", (169, 4), TensorRole.EMBEDDING),
        ("encoder.block.0.layer.0.SelfAttention.q.weight", (8, 8), TensorRole.LINEAR),
        ("shared.weight", (8, 8), TensorRole.EMBEDDING),
        ("model.shared.weight", (8, 8), TensorRole.EMBEDDING),
        ("layers.0.mlp.shared.up_proj.weight", (8, 8), TensorRole.LINEAR),
        ("layers.0.mlp.shared_experts.linear_fc1.weight", (8, 8), TensorRole.LINEAR),
        ("pos_emb.weight", (8, 8), TensorRole.EMBEDDING),
        ("layers.0.attn.pos_bias_u", (8, 8), TensorRole.OTHER),
        ("layers.0.time_mix_k", (1, 1, 8), TensorRole.OTHER),
        ("layers.0.mlp.experts.down_proj", (4, 8, 8), TensorRole.LINEAR),
        ("exp_avg.layers.0.w1.weight", (8, 8), TensorRole.FIRST_MOMENT),
        ("optimizer.adam_v.layers.0.w1.weight", (8, 8), TensorRole.SECOND_MOMENT),
        ("optimizer.state.master.layers.0.w1", (8, 8), TensorRole.OTHER),
    ],
)
def test_a_name_tells_what_a_tensor_is_for(name: str, shape: tuple[int, ...], role: TensorRole) -> None:
    assert role_of(name, shape) is role


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.10.mlp.up_proj.weight", "model.layers.10"),
        ("h.3.attn.c_attn.weight", "h.3"),
        ("transformer.blocks.7.w", "transformer.blocks.7"),
        ("params/layers_2/kernel", "params/layers_2"),
        ("model.layers.0.mlp.experts.5.w1.weight", "model.layers.0"),
        ("lm_head.weight", None),
        ("player.3.weight", None),
    ],
)
def test_a_name_tells_its_layer(name: str, layer: str | None) -> None:
    assert layer_of(name) == layer


def test_scalars_are_not_asked_about_and_an_optimizers_states_only_on_demand() -> None:
    def entry(name: str, *shape: int) -> TensorEntry:
        return TensorEntry(name=name, dtype=DType.F32, shape=shape, spans=())

    asked = [entry("w", 2, 2), entry("loss_scale"), entry("one", 1), entry("exp_avg.w", 2, 2)]
    assert [is_probed(each, optimizer=False) for each in asked] == [True, False, False, False]
    assert [is_probed(each, optimizer=True) for each in asked] == [True, False, False, True]


def test_a_gate_that_amplifies_one_unit_four_times_as_much_as_most_is_noted_and_the_worst_comes_first() -> None:
    def pair(name: str, gain: float) -> GatedNumbers:
        return GatedNumbers(name=name, path="a", rank=None, units=8, gain_over_median=gain, unit=3, alignment=0.5)

    gates = most_amplifying([pair("c", 3.9), pair("b", 4.0), pair("a", 18.0), pair("d", 3.9)])
    assert [gate.name for gate in gates] == ["a", "b", "c", "d"]
    found = aligned(gates)
    assert [(finding.code, finding.severity, finding.tensor) for finding in found] == [
        (Fp8Code.SWIGLU_ALIGNED, Severity.NOTE, "a"),
        (Fp8Code.SWIGLU_ALIGNED, Severity.NOTE, "b"),
    ]


@pytest.mark.parametrize(("name", "wanted"), [("model.fc1.weight", True), ("model.fc1._extra_state", False)])
def test_the_history_of_a_layers_scales_is_none_of_its_weights(name: str, wanted: bool) -> None:
    entry = TensorEntry(name=name, dtype=DType.F32, shape=(6, 1024), spans=((0, 24576),))
    assert is_probed(entry, optimizer=True) is wanted


@pytest.mark.parametrize(
    ("name", "shape"),
    [("layers.0.w1.weight", (0,)), ("_fsdp_wrapped_module._flat_param", (6000,)), ("flat_param", (3,))],
)
def test_weights_that_were_cut_into_flat_pieces_are_said_to_be_unseen(name: str, shape: tuple[int, ...]) -> None:
    parts = [replace(WEIGHT, name=name, shape=shape, elements=sum(shape), path=path) for path in ("a", "b")]
    (finding,) = scattered(ranked(parts, ProbeQuestion()))
    assert (finding.code, finding.severity) == (Code.UNSUPPORTED_FORMAT, Severity.UNKNOWN)
    assert "1 weight could not be checked" in finding.message


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("layers.0.w1.weight", [(4, 8), (0, 8)]),
        ("layers.0.w1.weight", [(0,), (4,)]),
        ("layers.0.norm.weight", [(0,)]),
        ("layers.0.w1.bias", [(0,)]),
        ("flat_param", [(3, 4)]),
    ],
)
def test_an_empty_part_of_a_tensor_is_no_weight_that_is_unseen(name: str, shapes: list[tuple[int, ...]]) -> None:
    parts = [replace(WEIGHT, name=name, shape=shape, path=str(shape)) for shape in shapes]
    assert scattered(ranked(parts, ProbeQuestion())) == ()
