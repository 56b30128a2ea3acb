"""Rules for how much of a tensor FP8 loses, based on measurements, and for the selection of tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ckpttool.core.domain.contents import elements_in
from ckpttool.core.domain.finding import Code, Finding, note, unknown
from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.domain.units import counted
from ckpttool.fp8.findings import Fp8Code
from ckpttool.fp8.model.fp8 import Fp8Format
from ckpttool.fp8.model.probe import (
    CastNumbers,
    GatedNumbers,
    LayerRisk,
    Lines,
    ProbedTensor,
    ProbeQuestion,
    Risk,
    TensorNumbers,
    TensorRole,
)
from ckpttool.inspect.rules_contents import WEIGHTS, as_counted, kind_of, whole_name

GAUSSIAN_DB = {Fp8Format.E4M3: 30.1, Fp8Format.E5M2: 24.2}
"""Signal-to-error ratio in dB of the worst channels of normally distributed numbers, the best possible value."""

LOST_DB = 10.0
"""Number of dB below the best ratio at which nearly two mantissa bits are lost: worse than one bit less."""
WEAK_DB = 5.0

LOST_LINES = 0.01
"""Share of the non-zero rows or columns from which vanished ones count as lost, and faint ones as weak.

A vanished row is an output that is always zero. A few of them may be units that weight decay shrank, which is harmless.
"""
WEAK_SATURATED = 0.001

LOST_STATE, WEAK_STATE = 0.05, 0.005
"""Shares of an optimizer's state that change by more than half a step, because every element of it is used."""

_MOMENTS = {
    **dict.fromkeys(("adam_m", "exp_avg", "moment1", "momentum", "momentum_buffer"), TensorRole.FIRST_MOMENT),
    **dict.fromkeys(("adam_v", "exp_avg_sq", "max_exp_avg_sq", "moment2", "square_avg"), TensorRole.SECOND_MOMENT),
}
_STATES = frozenset(_MOMENTS.values())
_EMBEDDINGS = re.compile(r".*embed.*|(?:.*_)?emb|wte|wpe|relative_(?:attention|position)_bias(?:_table)?")
_SHARED = ["shared", "weight"]
"""The end of the name of T5's single embedding."""
_NO_PRODUCT = re.compile(r"(?:.*_)?conv(?:[0-9]*|[0-9]d)(?:_.*)?|(?:.*_)?bias(?:_.*)?|a_log|d")
"""Pattern of convolutions, biases, and decay and skip parameters of state spaces. No FP8 product uses them."""
_ROUTERS = frozenset({"router", "gate", "shared_expert_gate", "gating"})
_HEADS = frozenset({"lm_head", "output_layer", "head", "classifier", "score", "unembed", "unembedding"})
_NORM = re.compile(r".*norm.*|ln_?(?:[0-9]+|f|[a-z]+)?")
_LAYER = re.compile(r"(?:.*?[./])?(?:layers?|blocks?|h|resblocks)[._/][0-9]+(?=[./])")
_MATRIX = 2
"""Minimum number of dimensions larger than 1 in a matrix."""


def is_probed(entry: TensorEntry, *, optimizer: bool) -> bool:
    """Return whether a tensor is probed. Scalars never are, and optimizer states only on request.

    A layer's extra state is the history of its scales, and contains none of its weights.
    """
    if whole_name(entry.name).endswith("_extra_state"):
        return False
    return elements_in(entry.shape) != 1 and (optimizer or kind_of(entry.name) == WEIGHTS)


def role_of(name: str, shape: Sequence[int]) -> TensorRole:
    """Return a tensor's role, based on its name and shape. Any other matrix is a linear layer's weight."""
    kind = kind_of(name)
    if kind != WEIGHTS:
        return _MOMENTS.get(kind, TensorRole.OTHER)
    parts = re.split(r"[./]", whole_name(name).lower())
    if any(_NORM.fullmatch(part) for part in parts):
        return TensorRole.NORM
    is_embedding = parts[-2:] == _SHARED or any(map(_EMBEDDINGS.fullmatch, parts))
    if is_embedding and _HEADS.isdisjoint(parts):
        return TensorRole.EMBEDDING
    if not _ROUTERS.isdisjoint(parts):
        return TensorRole.ROUTER
    if not _HEADS.isdisjoint(parts) or ("output" in parts and layer_of(name) is None):
        return TensorRole.HEAD
    is_matrix = sum(size != 1 for size in shape) >= _MATRIX
    return TensorRole.LINEAR if is_matrix and not any(map(_NO_PRODUCT.fullmatch, parts)) else TensorRole.OTHER


def layer_of(name: str) -> str | None:
    """Return the part of a name that identifies a layer, or None if the name has no numbered layer."""
    match = _LAYER.match(name)
    return None if match is None else match[0]


def risk_of(cast: CastNumbers, tensor: TensorNumbers, role: TensorRole) -> Risk:
    """Return the risk of one tensor under one recipe in one format."""
    if tensor.nonfinite:
        return Risk.LOST
    if cast.channel_snr_db is None or cast.lost is None:
        return Risk.FINE  # no elements, or only zeros
    if role in _STATES:
        if cast.lost >= LOST_STATE:
            return Risk.LOST
        return Risk.WEAK if cast.lost >= WEAK_STATE else Risk.FINE
    shortfall = GAUSSIAN_DB[cast.format] - cast.channel_snr_db
    lost, faint = (_shares(lines, tensor) for lines in (cast.gone, cast.faint))
    if shortfall >= LOST_DB or lost >= LOST_LINES:
        return Risk.LOST
    weak = (shortfall >= WEAK_DB, lost > 0, faint >= LOST_LINES, (cast.saturated or 0) >= WEAK_SATURATED)
    return Risk.WEAK if any(weak) else Risk.FINE


def _shares(lines: Lines | None, tensor: TensorNumbers) -> float:
    """Return the larger of the two shares of affected rows and columns, among those that are not all zero."""
    if lines is None or tensor.live is None:
        return 0.0
    return max(lines.rows / max(tensor.live.rows, 1), lines.columns / max(tensor.live.columns, 1))


_GRAVITY = {risk: at for at, risk in enumerate(Risk)}


def judged(tensor: TensorNumbers, question: ProbeQuestion) -> ProbedTensor:
    """Judge a tensor by its statistics."""
    role = role_of(tensor.name, tensor.shape)
    risks = tuple(risk_of(cast, tensor, role) for cast in tensor.recipes)
    decides = (risk for cast, risk in zip(tensor.recipes, risks, strict=True) if question.decides(cast))
    return ProbedTensor(
        numbers=tensor,
        whole_name=whole_name(tensor.name),
        role=role,
        layer=None if role in _STATES else layer_of(tensor.name),
        risks=risks,
        risk=max(decides, key=_GRAVITY.__getitem__, default=Risk.LOST if tensor.nonfinite else Risk.FINE),
    )


def ranked(tensors: Iterable[TensorNumbers], question: ProbeQuestion) -> tuple[ProbedTensor, ...]:
    """Judge tensors, and sort them, worst first, by risk, then by the quality of their channels, then by name."""

    def order(tensor: ProbedTensor) -> tuple[object, ...]:
        numbers = tensor.numbers
        ratios = [cast.channel_snr_db for cast in numbers.recipes if question.decides(cast)]
        least = min((ratio for ratio in ratios if ratio is not None), default=float("inf"))
        return -_GRAVITY[tensor.risk], least, as_counted(numbers.name), as_counted(numbers.path)

    return tuple(sorted((judged(tensor, question) for tensor in tensors), key=order))


def layers_of(tensors: Sequence[ProbedTensor]) -> tuple[LayerRisk, ...]:
    """Return each layer with its worst weight, worst first.

    Args:
        tensors: Tensors in the order of `ranked`.
    """
    worst: dict[str, LayerRisk] = {}
    for tensor in tensors:
        if tensor.layer is not None and tensor.role is TensorRole.LINEAR and tensor.layer not in worst:
            worst[tensor.layer] = LayerRisk(layer=tensor.layer, risk=tensor.risk, worst=tensor.numbers.name)
    return tuple(worst.values())


_FLAT = frozenset({"flat_param", "_flat_param"})
"""PyTorch's names for the concatenated weights of several layers, which are cut into pieces for the ranks."""


def scattered(tensors: Iterable[ProbedTensor]) -> tuple[Finding, ...]:
    """Report linear weights that are stored as parts that are not matrices, or only as names.

    Some trainers cut weights regardless of rows. They leave a name without elements for a weight that is elsewhere in
    the save, and give several concatenated weights a separate name. A rank whose part of a tensor is empty is a
    different case.
    """
    names: dict[str, bool] = {}
    for tensor in tensors:
        name, shape = tensor.whole_name, tensor.numbers.shape
        flat = re.split(r"[./]", name)[-1] in _FLAT and len(shape) < _MATRIX
        names[name] = names.get(name, True) and (flat or (shape == (0,) and role_of(name, (0, 0)) is TensorRole.LINEAR))
    count = counted(sum(names.values()), "weight")
    if not any(names.values()):
        return ()
    message = f"{count} could not be checked: the trainer split them into flat pieces without rows or columns"
    return (unknown(Code.UNSUPPORTED_FORMAT, message),)


ALIGNED = 4.0
"""Minimum ratio of the worst hidden unit's amplification to the median that is reported. Fresh weights have 1.1."""


def aligned(gated: Iterable[GatedNumbers]) -> tuple[Finding, ...]:
    """Return a note about gates that amplify one unit far more than others.

    Args:
        gated: The gates, worst first.
    """
    return tuple(
        note(
            Fp8Code.SWIGLU_ALIGNED,
            f"unit {pair.unit} of {pair.units} of '{pair.name}' amplifies {pair.gain_over_median:.1f} times as much "
            f"as the median, and gate and up rows align up to {pair.alignment:.2f}: FP8 after it may overflow",
            path=pair.path,
            tensor=pair.name,
        )
        for pair in gated
        if pair.gain_over_median >= ALIGNED
    )


def most_amplifying(gated: Iterable[GatedNumbers]) -> tuple[GatedNumbers, ...]:
    """Sort the gates by the amplification of their worst unit, relative to the median."""
    return tuple(sorted(gated, key=lambda pair: (-pair.gain_over_median, as_counted(pair.name), pair.path)))
