"""What FP8 would do to the tensors of a checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ckpttool.domain.fp8 import Fp8Format, Recipe
from ckpttool.domain.fp8_probe import CastNumbers, Fp8Probe, Lines, ProbedTensor, Risk, TensorRole
from ckpttool.domain.units import counted
from ckpttool.render.answers.contents import dims, left_out, named
from ckpttool.render.escape import shown
from ckpttool.render.json import Document, finding_document

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_STATES = frozenset({TensorRole.FIRST_MOMENT, TensorRole.SECOND_MOMENT})
_STYLE = {Risk.FINE: "", Risk.WEAK: "yellow", Risk.LOST: "bold red"}


def document(answer: Fp8Probe) -> Document:
    """`ckpttool/fp8-probe/1`: every tensor that was looked at, worst first, under every recipe that was asked for."""
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
        "layers": [{"layer": layer.layer, "risk": layer.risk.value, "worst": layer.worst} for layer in answer.layers],
        "findings": [finding_document(finding) for finding in answer.findings],
    }


def tensor_document(tensor: ProbedTensor) -> Document:
    """Spell one tensor: a row of `--stats`, too."""
    numbers = tensor.numbers
    return {
        "name": numbers.name,
        "path": numbers.path,
        "rank": numbers.rank,
        "layer": tensor.layer,
        "role": tensor.role.value,
        "risk": tensor.risk.value,
        "dtype": numbers.dtype,
        "shape": list(numbers.shape),
        "elements": numbers.elements,
        "sampled": numbers.sampled,
        "amax": _figure(numbers.amax),
        "nonfinite": numbers.nonfinite,
        "amax_over_rms": _figure(numbers.amax_over_rms),
        "bits": _figure(numbers.bits),
        "live": _lines(numbers.live),
        "recipes": [_cast(cast, risk) for cast, risk in zip(numbers.recipes, tensor.risks, strict=True)],
    }


def _cast(cast: CastNumbers, risk: Risk) -> Document:
    return {
        "recipe": cast.recipe.value,
        "format": cast.format.value,
        "scale": _figure(cast.scale),
        "channel_snr_db": _decibels(cast.channel_snr_db),
        "gone": _lines(cast.gone),
        "faint": _lines(cast.faint),
        "underflow": _figure(cast.underflow),
        "subnormal": _figure(cast.subnormal),
        "saturated": _figure(cast.saturated),
        "lost": _figure(cast.lost),
        "lost_error": _figure(cast.lost_error),
        "snr_db": _decibels(cast.snr_db),
        "cosine": None if cast.cosine is None else round(cast.cosine, 6),
        "risk": risk.value,
    }


def _lines(lines: Lines | None) -> Document | None:
    return None if lines is None else {"rows": lines.rows, "columns": lines.columns}


def _figure(value: float | None) -> float | None:
    """Round to as many digits as sums of F32 are good for, so that every machine says the same."""
    return None if value is None else float(f"{value:.5g}")


def _decibels(value: float | None) -> float | None:
    return None if value is None else round(value, 2) + 0.0


def table(answer: Fp8Probe) -> RenderableType:
    """Show the weights that lose most, what no recipe puts into FP8, and the states of an optimizer."""
    from ckpttool.render.text import grouped_findings, line, pointer, stack

    weights = [tensor for tensor in answer.tensors if tensor.role is TensorRole.LINEAR]
    states = [tensor for tensor in answer.tensors if tensor.role in _STATES]
    parts: list[RenderableType] = [_headline(answer, weights), line(shown(_about(answer)), style="dim")]
    if weights:
        parts += [line(), *_weights(answer, weights)]
    if states:
        parts += [line(), line("States of the optimizer in FP8, by what is lost", style="bold")]
        parts += _states(answer, states)
    parts += [line(shown(text), style="dim") for text in _apart(answer)]
    parts += grouped_findings(answer.findings)
    return stack(*parts, *pointer(answer.findings))


def _judged(tensor: ProbedTensor, answer: Fp8Probe) -> Iterator[CastNumbers]:
    question = answer.question
    for cast in tensor.numbers.recipes:
        if cast.recipe in question.judged and cast.format is question.formats[0]:
            yield cast


def _headline(answer: Fp8Probe, weights: Sequence[ProbedTensor]) -> Text:
    from ckpttool.render.text import line

    by = " or ".join(recipe.value for recipe in answer.question.judged)
    count = Counter(tensor.risk for tensor, _ in _by_name(weights))
    worst = Risk.LOST if count[Risk.LOST] else Risk.WEAK if count[Risk.WEAK] else Risk.FINE
    told = f"{count[Risk.LOST]} lost, {count[Risk.WEAK]} weak, {count[Risk.FINE]} fine"
    what = counted(count.total(), "weight") if weights else "no weight of a linear layer"
    said = f"{what} in FP8 ({answer.question.formats[0].value}, {by}){f': {told}' if weights else ''}"
    return line(f"{shown(answer.checkpoint.rpartition('/')[2])}: {said}", style=_STYLE[worst] or "bold")


def _about(answer: Fp8Probe) -> str:
    step = "" if answer.step is None else f", step {answer.step}"
    cast = sum(tensor.numbers.sampled for tensor in answer.tensors)
    of = sum(tensor.numbers.elements for tensor in answer.tensors)
    sample = "every element was cast" if cast == of else f"{cast:,} of {of:,} elements were cast, all were read"
    return f"{answer.inventory.root}{step}; {sample}"


def _by_name(tensors: Sequence[ProbedTensor]) -> list[tuple[ProbedTensor, int]]:
    """Return the worst of the tensors of each name, in their order, and how many there are."""
    files = Counter(tensor.numbers.name for tensor in tensors)
    worst: dict[str, ProbedTensor] = {}
    for tensor in tensors:
        worst.setdefault(tensor.numbers.name, tensor)
    return [(tensor, files[name]) for name, tensor in worst.items()]


def _weights(answer: Fp8Probe, weights: Sequence[ProbedTensor]) -> Iterator[RenderableType]:
    from ckpttool.render.text import Columns, line

    rows, question = _by_name(weights), answer.question
    several = any(files > 1 for _, files in rows)
    casts = [(recipe, format_) for recipe in question.shown for format_ in question.formats]
    headers = [("TENSOR", 0), ("RISK", 0)]
    headers += [(f" {_title(answer, *cast)}", 1 + at) for at, cast in enumerate(casts)]
    headers += [(" LOST", 20), (" GONE", 21), (" AMAX/RMS", 22), ("SHAPE", 23)]
    headers += [(" FILES", 24)] if several else []
    cells = []
    for tensor, files in rows[: answer.most_rows]:
        numbers = tensor.numbers
        first = next(_judged(tensor, answer))
        row: list[str | Text] = [named(numbers.name), line(tensor.risk.value, style=_STYLE[tensor.risk])]
        row += [_kept(cast, risk) for cast, risk in zip(numbers.recipes, tensor.risks, strict=True)]
        row += [_percent(first.lost), _gone(first.gone)]
        row += ["–" if numbers.amax_over_rms is None else f"{numbers.amax_over_rms:.1f}", dims(numbers.shape)]
        cells.append([*row, str(files)] if several else row)
    yield Columns(headers, cells)
    yield from left_out(len(rows), answer.most_rows)
    yield line("dB that the worst channels keep (30 is as good as e4m3 gets, e5m2 24); ! weak, !! lost", style="dim")


def _title(answer: Fp8Probe, recipe: Recipe, format_: Fp8Format) -> str:
    return f"{recipe.value} {format_.value}".upper() if len(answer.question.formats) > 1 else recipe.value.upper()


_MARK = {Risk.FINE: "", Risk.WEAK: "!", Risk.LOST: "!!"}


def _kept(cast: CastNumbers, risk: Risk) -> Text:
    from ckpttool.render.text import line

    kept = "–" if cast.channel_snr_db is None else f"{_decibels(cast.channel_snr_db):.1f}"
    return line(f"{_MARK[risk]}{kept}", style=_STYLE[risk])


def _percent(share: float | None) -> str:
    return "–" if share is None else "0%" if not share else f"{max(100 * share, 0.01):.2f}%"


def _gone(gone: Lines | None) -> str:
    return "–" if gone is None else "0" if not (gone.rows or gone.columns) else f"{gone.rows}+{gone.columns}"


def _states(answer: Fp8Probe, states: Sequence[ProbedTensor]) -> Iterator[RenderableType]:
    from ckpttool.render.text import Columns, line

    rows, question = _by_name(states), answer.question
    casts = [(recipe, format_) for recipe in question.shown for format_ in question.formats]
    headers = [("TENSOR", 0), ("RISK", 0), *((f" {_title(answer, *cast)}", 1 + at) for at, cast in enumerate(casts))]
    cells: list[list[str | Text]] = [
        [
            named(tensor.numbers.name),
            line(tensor.risk.value, style=_STYLE[tensor.risk]),
            *(
                line(_percent(cast.lost), style=_STYLE[risk])
                for cast, risk in zip(tensor.numbers.recipes, tensor.risks, strict=True)
            ),
        ]
        for tensor, _ in rows[: answer.most_rows]
    ]
    yield Columns(headers, cells)
    yield from left_out(len(rows), answer.most_rows)
    yield line("Share that changes by over half a step. A first moment also hints at gradients (wgrad).", style="dim")


def _apart(answer: Fp8Probe) -> Iterator[str]:
    """Say what is not in the tables, and what no checkpoint can tell."""
    others = Counter(tensor.role for tensor in answer.tensors if tensor.role not in {*_STATES, TensorRole.LINEAR})
    if others:
        told = ", ".join(counted(others[role], _WORDS[role]) for role in TensorRole if role in others)
        yield f"No FP8 in any recipe: {told}."
    yield "Weights are 2 of the 6 operands: activations and gradients lie in no checkpoint."


_WORDS = {
    TensorRole.EMBEDDING: "embedding",
    TensorRole.HEAD: "head",
    TensorRole.ROUTER: "router",
    TensorRole.NORM: "norm",
    TensorRole.OTHER: "other tensor",
}
