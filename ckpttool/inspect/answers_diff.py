"""Output for the differences between two shards or two checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.contents import Contents, Shape
from ckpttool.core.domain.units import Rank, counted, on_ranks
from ckpttool.core.domain.verdict import Level
from ckpttool.core.formats.base import CHECKSUM_KEY
from ckpttool.core.render.escape import shown
from ckpttool.core.render.json import Document, finding_document
from ckpttool.inspect.answers import dims, left_out, named, number, value_text
from ckpttool.inspect.model import Difference, Group, Movement, ScalarChange, TensorChange

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_MOST_SCALARS = 16
_ODD = 10.0
"""Multiple of the median above which a change is shown in yellow."""
_DIGITS = 6
"""Number of digits of a displayed distance, because further digits of a sum in F64 differ between machines."""

_Held = Sequence[tuple[str, Shape, tuple[Rank, ...]]]


def document(answer: Difference) -> Document:
    """Return the document of `ckpttool/difference/1`, with every differing tensor, regardless of a table's rows."""
    return {
        "schema": "ckpttool/difference/1",
        "level": answer.level.word,
        "a": _side_document(answer.a),
        "b": _side_document(answer.b),
        "same": answer.same,
        "uncompared": answer.uncompared,
        "groups": [
            {"kind": group.kind, "equal": group.equal, "moved": group.moved, "median": _rounded(group.median)}
            for group in answer.groups
        ],
        "scalars": [
            {"name": row.name, "before": number(row.before), "after": number(row.after)} for row in answer.scalars
        ],
        "tensors": [_tensor(change) for change in answer.tensors],
        "findings": [finding_document(finding) for finding in answer.findings],
    }


def _side_document(side: Contents) -> Document:
    return {
        "root": side.inventory.root,
        "checkpoint": side.checkpoint,
        "step": side.step,
        "file": side.file,
        "files": len(side.files),
        "tensors": len(side.tensors),
    }


def _tensor(change: TensorChange) -> Document:
    return {
        "name": change.name,
        "kind": change.kind,
        "what": list(change.what),
        "before": _variants_document(change.before),
        "after": _variants_document(change.after),
        "movement": None if change.movement is None else _movement(change.movement),
    }


def _variants_document(variants: _Held) -> Document:
    return [{"dtype": dtype, "shape": list(shape), "ranks": list(ranks)} for dtype, shape, ranks in variants]


def _movement(movement: Movement) -> Document:
    return {
        "relative_l2": _rounded(movement.relative),
        "cosine": _rounded(movement.cosine),
        "largest": _rounded(movement.largest),
        "largest_rank": movement.largest_rank,
        "nonfinite_before": movement.nonfinite[0],
        "nonfinite_after": movement.nonfinite[1],
        "times_median": _rounded(movement.times_median),
    }


def _rounded(value: float | None) -> Document:
    return None if value is None else number(float(f"{value:.{_DIGITS}g}"))


def table(answer: Difference) -> RenderableType:
    """Return a table of the differences, the most unusual first, then the scalars, then the problems."""
    from ckpttool.core.render.finding_lines import grouped_findings, pointer
    from ckpttool.core.render.text import line, stack

    parts: list[RenderableType] = [_headline(answer)]
    parts += [line(f"{sign} {shown(_side(side))}", style="dim") for sign, side in (("A", answer.a), ("B", answer.b))]
    parts += [line(text) for text in (*_notes(answer), *_apart(answer))]
    if answer.tensors:
        parts += [line(), _tensors(answer), *left_out(len(answer.tensors), answer.most_rows)]
    parts += _scalars(answer)
    parts += grouped_findings(answer.findings)
    return stack(*parts, *pointer(answer.findings))


def _headline(answer: Difference) -> Text:
    from ckpttool.core.render.text import line

    by_word = dict.fromkeys(_WORDS, 0)
    for change in answer.tensors:
        by_word[change.what[0]] += 1
    counts = [f"{by_word[kind]} {text}" for kind, text in _WORDS.items() if by_word[kind]]
    of = len({row.name for side in (answer.a, answer.b) for row in side.tensors})
    if counts:
        return line(f"{counted(of, 'tensor')}: {', '.join(counts)}", style="bold yellow")
    if answer.level is Level.STRUCTURE:
        same, compared_how = of, "in type and shape; values were not compared"
    else:
        # Single numbers are reported as scalars.
        same, compared_how = sum(group.equal for group in answer.groups) - answer.uncompared, "bit for bit"
    if answer.uncompared or not same:
        return line(f"{counted(same, 'tensor')} compared, none differs; {_rest(answer)}", style="bold yellow")
    tensors = "the one tensor is" if same == 1 else f"all {same} tensors are"
    return line(f"{tensors} the same, {compared_how}", style="bold green")


def _rest(answer: Difference) -> str:
    return f"{answer.uncompared} not compared, or not on every rank" if answer.uncompared else "there are no others"


_WORDS = {
    "gone": "removed",
    "added": "added",
    "dtype": "with another dtype",
    "shape": "with another shape",
    "ranks": "on other ranks",
    "values": "moved",
}


def _side(side: Contents) -> str:
    tree = side.inventory
    where = f"{tree.root}:{side.checkpoint}" if side.file is None else tree.path_of(side.file)
    ranks = len({row.rank for row in side.files if row.rank is not None})
    over = f", {counted(ranks, 'rank')}" if ranks else ""
    return where if side.step is None else f"{where} (step {side.step}{over})"


def _notes(answer: Difference) -> Iterator[str]:
    """Yield descriptions of the equal and moved tensors of each kind, and of anything unusual."""
    if answer.level is Level.STRUCTURE and answer.tensors:
        yield f"{counted(answer.same, 'tensor')} the same in type and shape; --level numerics compares values"
    elif answer.level is Level.STRUCTURE:
        yield "values were not compared: --level checksum compares every bit, --level numerics measures the change"
    for group in answer.groups:
        yield f"{_group(group)}{', as far as compared' if answer.uncompared else ''}"
    if nonfinite := sum(change.movement is not None and any(change.movement.nonfinite) for change in answer.tensors):
        yield f"{counted(nonfinite, 'tensor')} with NaN or infinity: distances leave those elements out"
    weights = [group for group in answer.groups if group.kind == "weights"]
    states = [group for group in answer.groups if group.kind != "weights"]
    if states and weights:
        learned, moved = (any(group.moved for group in groups) for groups in (weights, states))
        if learned and not moved:
            yield (
                "weights changed but optimizer states did not: they were not saved again, or the optimizer does not "
                "continue"
            )
        if moved and not learned:
            yield "optimizer states changed but weights did not: they are frozen, or were not saved again"


def _apart(answer: Difference) -> Iterator[str]:
    """Yield descriptions of tensors that could not be compared, and of other differences between the files."""
    if answer.uncompared:
        tensors = counted(answer.uncompared, "tensor")
        yield f"{tensors} could not be compared on every rank: damaged, scattered, no numbers, or on one side only"
    for sign, side, peer in (("A", answer.a, answer.b), ("B", answer.b, answer.a)):
        alone = {row.rank for row in side.files} - {row.rank for row in peer.files} - {None}
        if alone and len(alone) < len(side.files):
            yield f"{on_ranks(sorted(rank for rank in alone if rank is not None))} in {sign} only"
    for sign, side in (("A", answer.a), ("B", answer.b)):
        if unread := sum(row.unread for row in side.files):
            yield f"{counted(unread, 'tensor')} of {sign} not compared: of kinds that are not read"
    # The checksum follows the values.
    before, after = ({pair for row in side.files for pair in row.metadata} for side in (answer.a, answer.b))
    keys = {key for key, _ in before ^ after} - {CHECKSUM_KEY}
    if keys:
        yield f"metadata differs: {', '.join(shown(key) for key in sorted(keys))}"


def _group(group: Group) -> str:
    if not group.moved:
        return f"{group.kind}: {group.equal} bit-equal"
    median = "" if group.median is None else f" (relative L2 {group.median:.3g} in the median)"
    return f"{group.kind}: {group.moved} moved{median}, {group.equal} bit-equal"


def _tensors(answer: Difference) -> RenderableType:
    from ckpttool.core.render.text import Columns

    with_numbers = any(change.movement is not None for change in answer.tensors)
    changes = [_change(change) for change in answer.tensors]
    with_words = set(changes) != {_MOVED}
    headers = [("TENSOR", 0), *((("CHANGE", 0),) if with_words else ()), *(_OF_NUMBERS if with_numbers else ())]
    rows = []
    for change, change_text in zip(answer.tensors[: answer.most_rows], changes, strict=False):
        cells: list[str | Text] = [named(change.name), *((change_text,) if with_words else ())]
        cells += _numbers(change.movement) if with_numbers else ()
        rows.append(cells)
    return Columns(headers, rows)


_OF_NUMBERS = ((" REL L2", 1), (" × MEDIAN", 2), (" LARGEST", 3), (" COSINE", 4))


def _change(change: TensorChange) -> str:
    """Describe a change in dtype, shape, number of NaN, or values."""
    before, after = _forms(change.before), _forms(change.after)
    if change.what == ("ranks",):
        return f"{_places(change.before)} → {_places(change.after)}"
    if change.what != ("values",):
        return f"{_WORDS[change.what[0]]} {before or after}" if not (before and after) else f"{before} → {after}"
    movement = change.movement
    if movement is None:
        return "other bits"
    gained, lost = movement.nonfinite
    if gained != lost:
        return f"NaN or infinite: {gained} → {lost}"
    # -0.0, another NaN, an integer beyond the digits of F64: no number shows it.
    return _MOVED if movement.relative or movement.largest else "other bits"


_MOVED = "moved"


def _forms(variants: _Held) -> str:
    return " and ".join(dict.fromkeys(f"{dtype} {dims(shape)}" for dtype, shape, _ in variants))


def _places(variants: _Held) -> str:
    forms = (f"{dtype} {dims(shape)}{' on ' + on_ranks(ranks) if ranks else ''}" for dtype, shape, ranks in variants)
    return ", ".join(forms)


def _numbers(movement: Movement | None) -> Iterator[str | Text]:
    from ckpttool.core.render.text import line

    if movement is None:
        yield from ("–",) * 4
        return
    is_outlier = movement.times_median is not None and movement.times_median >= _ODD
    yield "from 0" if movement.relative is None else f"{movement.relative:.3g}"
    if movement.times_median is None:
        yield "–"
    else:
        yield line(f"{movement.times_median:.3g}", style="bold red" if is_outlier else "")
    yield f"{movement.largest:.3g}"
    yield "–" if movement.cosine is None else f"{movement.cosine:.4f}"


def _scalars(answer: Difference) -> list[RenderableType]:
    from ckpttool.core.render.text import Pairs, line

    if not answer.scalars:
        return []
    most = len(answer.scalars) if answer.most_rows is None else _MOST_SCALARS
    rest = len(answer.scalars) - most
    more = [line(f"  … and {counted(rest, 'more scalar')}: --all shows them", style="dim")] if rest > 0 else []
    pairs = [(named(row.name), _scalar(row)) for row in answer.scalars[:most]]
    return [line(), line("Scalars", style="dim"), Pairs(pairs), *more]


def _scalar(row: ScalarChange) -> str:
    before, after = ("none" if value is None else value_text(value) for value in (row.before, row.after))
    return f"{before} → {after}" if before != after else f"{before}, but not the same on every rank"
