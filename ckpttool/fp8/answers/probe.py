"""Output for the effect of FP8 on the tensors of a checkpoint."""

from __future__ import annotations

import json
import math
import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ckpttool.core.domain.units import counted
from ckpttool.core.render.escape import shown
from ckpttool.core.render.finding_lines import grouped_findings, pointer
from ckpttool.core.render.json import Document, finding_document
from ckpttool.core.render.text import Columns, line, stack
from ckpttool.fp8.files.document import as_json, fields_of
from ckpttool.fp8.model.fp8 import Recipe
from ckpttool.fp8.model.probe import CastNumbers, Fp8Probe, GatedNumbers, Lines, ProbedTensor, Risk, TensorRole
from ckpttool.inspect.answers import dims, named

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_STATES = frozenset({TensorRole.FIRST_MOMENT, TensorRole.SECOND_MOMENT})
_STYLE = {Risk.FINE: "", Risk.WEAK: "yellow", Risk.LOST: "bold red"}


def document(answer: Fp8Probe) -> Document:
    """Return the document of `ckpttool/fp8-probe/1`: every checked tensor under every requested recipe, worst first."""
    return {
        "schema": "ckpttool/fp8-probe/1",
        "root": answer.inventory.root,
        "checkpoint": answer.checkpoint,
        "step": answer.step,
        "read_all": answer.read_all,
        "exact": answer.question.exact,
        "judged_by": [
            {"recipe": recipe.value, "format": answer.question.formats[0].value} for recipe in answer.question.judged
        ],
        "tensors": [tensor_document(tensor) for tensor in answer.tensors],
        "layers": as_json(answer.layers),
        "swiglu": [_gate(pair) for pair in answer.gated],
        "history": list(answer.history),
        "findings": [finding_document(finding) for finding in answer.findings],
    }


def tensor_document(tensor: ProbedTensor) -> Document:
    """Encode one tensor. Each row of `--stats` has this form."""
    numbers = fields_of(tensor.numbers, _figure)
    recipes = [_cast(cast, risk) for cast, risk in zip(tensor.numbers.recipes, tensor.risks, strict=True)]
    place = {name: numbers[name] for name in ("name", "path", "rank")}
    judged = {"layer": tensor.layer, "role": tensor.role.value, "risk": tensor.risk.value}
    return {**place, **judged, **numbers, "recipes": recipes}


def _cast(cast: CastNumbers, risk: Risk) -> Document:
    return {
        **fields_of(cast, _figure),
        "channel_snr_db": _decibels(cast.channel_snr_db),
        "snr_db": _decibels(cast.snr_db),
        "cosine": None if cast.cosine is None else round(cast.cosine, 6),
        "risk": risk.value,
    }


def _gate(pair: GatedNumbers) -> Document:
    gain = pair.gain_over_median
    shown_gain = float(f"{gain:.4g}") if math.isfinite(gain) else "inf"
    return {**fields_of(pair), "gain_over_median": shown_gain, "alignment": round(pair.alignment, 4)}


def stats_lines(answer: Fp8Probe) -> Iterator[str]:
    """Encode every tensor on its own line."""
    for tensor in answer.tensors:
        yield json.dumps(tensor_document(tensor)) + "\n"


def _figure(value: float) -> float:
    """Round a value to the precision of sums in F32, so that every machine gives the same result."""
    return float(f"{value:.5g}")


def _decibels(value: float | None) -> float | None:
    return None if value is None else round(value, 2) + 0.0


def table(answer: Fp8Probe) -> RenderableType:
    """Return a table of the weights with the greatest loss, tensors that are never cast, and optimizer states."""
    cast = [tensor for tensor in answer.tensors if tensor.numbers.recipes]
    weights = [tensor for tensor in cast if tensor.role is TensorRole.LINEAR]
    states = [tensor for tensor in cast if tensor.role in _STATES]
    parts: list[RenderableType] = [_headline(answer, weights), line(shown(_about(answer)), style="dim")]
    if weights:
        parts += [line(), *_weights(answer, weights)]
    if states:
        parts += [line(), line("Optimizer states in FP8, by loss of precision", style="bold")]
        parts += _states(answer, states)
    parts += [line(shown(text), style="dim") for text in _apart(answer)]
    parts += grouped_findings(answer.findings)
    return stack(*parts, *pointer(answer.findings))


def _headline(answer: Fp8Probe, weights: Sequence[ProbedTensor]) -> Text:
    by = " or ".join(recipe.value for recipe in answer.question.judged)
    count = Counter(row.worst.risk for row in _by_name(weights))
    worst = next((risk for risk in (Risk.LOST, Risk.WEAK) if count[risk]), Risk.FINE)
    risks = f"{count[Risk.LOST]} lost, {count[Risk.WEAK]} weak, {count[Risk.FINE]} fine"
    headline = f"{counted(count.total(), 'weight')} in FP8 ({answer.question.formats[0].value}, {by}): {risks}"
    if not weights:
        headline = f"no weight of a linear layer could be {'put into FP8' if answer.read_all else 'checked'}"
    return line(f"{shown(answer.checkpoint.rpartition('/')[2])}: {headline}", style=_STYLE[worst] or "bold")


def _about(answer: Fp8Probe) -> str:
    step = "" if answer.step is None else f", step {answer.step}"
    measured = [tensor.numbers for tensor in answer.tensors if tensor.numbers.recipes]
    cast, of = sum(numbers.sampled for numbers in measured), sum(numbers.elements for numbers in measured)
    sample = f"; {cast:,} of {of:,} elements were cast, all were read" if cast < of else ""
    return f"{answer.inventory.root}{step}{sample or ('; every element was cast' if of else '')}"


class _Row(NamedTuple):
    """One tensor, with all of its parts."""

    name: str
    worst: ProbedTensor
    """The worst part of the tensor, over all files that contain it."""
    places: int
    """Number of the tensor's parts, over all files."""


def _by_name(tensors: Sequence[ProbedTensor]) -> list[_Row]:
    """Group tensors by name, in the given order."""
    places = Counter(tensor.whole_name for tensor in tensors)
    worst: dict[str, ProbedTensor] = {}
    for tensor in tensors:
        worst.setdefault(tensor.whole_name, tensor)
    return [_Row(name, tensor, places[name]) for name, tensor in worst.items()]


def _common(rows: Sequence[_Row]) -> str:
    """Return the common prefix of all names, up to a dot or slash, or an empty string for a single name."""
    begin = posixpath.commonprefix([row.name for row in rows]) if len(rows) > 1 else ""
    return begin[: max(begin.rfind("."), begin.rfind("/")) + 1]


def _weights(answer: Fp8Probe, weights: Sequence[ProbedTensor]) -> Iterator[RenderableType]:
    rows = _by_name(weights)
    several = any(row.places > 1 for row in rows)
    headers = [("TENSOR", 0), ("RISK", 0), *_recipes(answer)]
    headers += [(" LOST", 20), (" GONE", 21), (" AMAX/RMS", 22), ("SHAPE", 23)]
    headers += [(" PARTS", 24)] if several else []
    common, cells = _common(rows), []
    for row in rows[: answer.most_rows]:
        tensor, numbers = row.worst, row.worst.numbers
        first = next(cast for cast in numbers.recipes if answer.question.decides(cast))
        row_cells: list[str | Text] = [
            named(row.name[len(common) :]),
            line(tensor.risk.value, style=_STYLE[tensor.risk]),
        ]
        row_cells += [_ratio_cell(cast, risk) for cast, risk in zip(numbers.recipes, tensor.risks, strict=True)]
        row_cells += [_percent(first.lost), _vanished(first.gone)]
        row_cells += ["–" if numbers.amax_over_rms is None else f"{numbers.amax_over_rms:.1f}", dims(numbers.shape)]
        cells.append([*row_cells, str(row.places)] if several else row_cells)
    yield Columns(headers, cells)
    yield from _left_out(answer, rows, common)
    yield line("dB that the worst channels keep (e4m3 30 at best, e5m2 24); ! weak, !! lost", style="dim")
    yield from _by_recipe(answer, rows)


def _left_out(answer: Fp8Probe, rows: Sequence[_Row], common: str) -> Iterator[RenderableType]:
    if answer.most_rows is not None and len(rows) > answer.most_rows:
        yield line(f"… and {counted(len(rows) - answer.most_rows, 'more row')}: --top N shows the first N", style="dim")
    if common:
        yield line(f"All names begin with {shown(common)}", style="dim")


def _by_recipe(answer: Fp8Probe, rows: Sequence[_Row]) -> Iterator[RenderableType]:
    """Yield the number of tensors that each recipe loses, if any, to show which recipe would help."""
    counts = [Counter(risks) for risks in zip(*(row.worst.risks for row in rows), strict=True)]
    titles = [title.strip().lower() for title, _ in _recipes(answer)]
    if any(count[Risk.LOST] or count[Risk.WEAK] for count in counts):
        parts = (f"{title} {count[Risk.LOST]}, {count[Risk.WEAK]}" for title, count in zip(titles, counts, strict=True))
        yield line(f"Lost, weak by recipe: {'; '.join(parts)}")


def _recipes(answer: Fp8Probe) -> list[tuple[str, int]]:
    """Return a header for each recipe and format, and its priority if space is short."""
    question = answer.question
    casts = [(recipe.value, format_.value) for recipe in question.shown for format_ in question.formats]
    several = len(question.formats) > 1
    return [
        (f" {f'{recipe} {format_}' if several else recipe}".upper(), 1 + at)
        for at, (recipe, format_) in enumerate(casts)
    ]


_MARK = {Risk.FINE: "", Risk.WEAK: "!", Risk.LOST: "!!"}


def _ratio_cell(cast: CastNumbers, risk: Risk) -> Text:
    ratio = _decibels(cast.channel_snr_db)
    return line(_MARK[risk] + ("–" if ratio is None else f"{ratio:.1f}"), style=_STYLE[risk])


def _percent(share: float | None) -> str:
    if share is None:
        return "–"
    return f"{max(100 * share, 0.01):.2f}%" if share else "0%"


def _vanished(lost: Lines | None) -> str:
    if lost is None:
        return "–"
    return f"{lost.rows}+{lost.columns}" if lost.rows or lost.columns else "0"


def _states(answer: Fp8Probe, states: Sequence[ProbedTensor]) -> Iterator[RenderableType]:
    rows = _by_name(states)
    common = _common(rows)
    cells: list[list[str | Text]] = [
        [
            named(row.name[len(common) :]),
            line(row.worst.risk.value, style=_STYLE[row.worst.risk]),
            *(
                line(_percent(cast.lost), style=_STYLE[risk])
                for cast, risk in zip(row.worst.numbers.recipes, row.worst.risks, strict=True)
            ),
        ]
        for row in rows[: answer.most_rows]
    ]
    yield Columns([("TENSOR", 0), ("RISK", 0), *_recipes(answer)], cells)
    yield from _left_out(answer, rows, common)
    yield line("Share that changes by over half a step; a first moment also hints at gradients.", style="dim")


def _apart(answer: Fp8Probe) -> Iterator[str]:
    """Describe the tensors that the tables omit, and the data that no checkpoint contains."""
    resting = {tensor.whole_name for tensor in answer.tensors if not tensor.numbers.recipes}
    if resting:
        yield f"Already in FP8: {counted(len(resting), 'tensor')}; scales and codes were checked."
    roles_left = {
        tensor.whole_name: tensor.role
        for tensor in answer.tensors
        if tensor.numbers.recipes and tensor.numbers.elements and tensor.role not in {*_STATES, TensorRole.LINEAR}
    }
    if Recipe.DELAYED in answer.question.recipes:
        steps = ", ".join(map(str, answer.history))
        yield f"Delayed: the largest of this checkpoint{f' and of steps {steps}' if steps else ' alone (--history)'}."
    if answer.gated:
        yield (
            f"SwiGLU, {counted(len(answer.gated), 'pair')}: the worst unit amplifies "
            f"{answer.gated[0].gain_over_median:.1f} times the median, its rows align up to "
            f"{max(pair.alignment for pair in answer.gated):.2f}."
        )
    if roles_left:
        roles = Counter(roles_left.values())
        counts = ", ".join(counted(roles[role], _WORDS[role]) for role in TensorRole if role in roles)
        yield f"No FP8 in any recipe: {counts}."
    if any(tensor.numbers.recipes for tensor in answer.tensors):
        yield "Weights are 2 of the 6 operands; a checkpoint has no activations or gradients."


_WORDS = {
    TensorRole.EMBEDDING: "embedding",
    TensorRole.HEAD: "head",
    TensorRole.ROUTER: "router",
    TensorRole.NORM: "norm",
    TensorRole.OTHER: "other tensor",
}
