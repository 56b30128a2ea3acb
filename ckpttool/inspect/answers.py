"""Output for the contents of a shard or a checkpoint."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.decide.loader_positions import described
from ckpttool.core.domain.contents import Contents, ElementStats, FileRow, Shape, TensorRow, Value
from ckpttool.core.domain.loader_state import LoaderState, SavedLoader
from ckpttool.core.domain.units import Rank, counted, on_ranks
from ckpttool.core.render.escape import shown, size
from ckpttool.core.render.json import Document, finding_document

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_MOST_SCALARS = 16
_MOST_NAME_CHARS = 500


def document(answer: Contents) -> Document:
    """Return the document of `ckpttool/contents/1`, with every requested tensor, regardless of a table's rows."""
    return {
        "schema": "ckpttool/contents/1",
        "root": answer.inventory.root,
        "checkpoint": answer.checkpoint,
        "step": answer.step,
        "file": answer.file,
        "total": {
            "tensors": len(answer.tensors),
            "elements": sum(row.elements for row in answer.tensors),
            "parameters": answer.parameters,
            "bytes": sum(row.nbytes * row.files for row in answer.tensors),
            "left_out": answer.left_out,
        },
        "files": [_file(row) for row in answer.files],
        "scalars": [
            {
                "name": row.name,
                "value": number(row.value),
                "differ": [{"value": number(value), "ranks": list(ranks)} for value, ranks in row.others],
            }
            for row in answer.scalars
        ],
        "tensors": [_tensor(row) for row in answer.tensors],
        "loaders": [_loader(loader) for loader in answer.loaders],
        "findings": [finding_document(finding) for finding in answer.findings],
    }


def _file(row: FileRow) -> Document:
    return {
        "path": row.path,
        "rank": row.rank,
        "format": None if row.format is None else row.format.value,
        "producer": row.producer,
        "bytes": row.nbytes,
        "tensors": row.tensors,
        "unread": row.unread,
        "metadata": dict(row.metadata),
        "checksum": None if row.checksum is None else {"algorithm": row.checksum[0], "value": row.checksum[1]},
        "seal": None if row.seal is None else {"xxh3_128": row.seal.xxh3_128, "first_seen": row.seal.first_seen},
    }


def _loader(loader: SavedLoader) -> Document:
    state = LoaderState(kind="") if loader.state is None else loader.state
    return {
        "path": loader.path,
        "key": loader.key,
        "rank": loader.rank,
        "kind": state.kind or None,
        "epoch": state.epoch,
        "batches": state.batches,
        "samples": state.samples,
        "is_total": state.is_total,
        "workers": state.workers,
        "finished": state.finished,
        "place": state.place,
        "problem": loader.problem,
    }


def _tensor(row: TensorRow) -> Document:
    return {
        "name": row.name,
        "dtype": row.dtype,
        "shape": list(row.shape),
        "elements": row.elements,
        "bytes": row.nbytes,
        "files": row.files,
        "ranks": list(row.ranks),
        "differ": [{"dtype": dtype, "shape": list(shape), "ranks": list(ranks)} for dtype, shape, ranks in row.others],
        "stats": None if row.stats is None else _stats(row.stats),
    }


def _stats(stats: ElementStats) -> Document:
    return {
        "elements": stats.elements,
        "norm": number(stats.norm),
        "absmax": number(stats.absmax),
        "min": number(stats.least),
        "max": number(stats.greatest),
        "nans": stats.nans,
        "infinities": stats.infinities,
        "zeros": stats.zeros,
    }


def number(value: Value | None) -> Value | None:
    """Return a value for JSON. Non-finite numbers become text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def table(answer: Contents) -> RenderableType:
    """Return a table of the tensors, then the scalars, then the problems."""
    from ckpttool.core.render.finding_lines import grouped_findings, pointer
    from ckpttool.core.render.text import line, stack

    about = [line(shown(part), style="dim") for part in _about(answer)]
    parts: list[RenderableType] = [_headline(answer), *about]
    if answer.tensors:
        parts += [line(), _tensors(answer)]
        parts += left_out(len(answer.tensors), answer.most_rows)
    if answer.left_out:
        parts.append(line(f"{counted(answer.left_out, 'other tensor')} not selected by --tensor", style="dim"))
    unread = sum(row.unread for row in answer.files)
    if unread:
        parts.append(line(f"and {counted(unread, 'tensor')} of kinds that ckpttool does not read", style="yellow"))
    parts += _positions(answer)
    parts += _scalars(answer)
    parts += grouped_findings(answer.findings, len(_ranks(answer)) or None)
    return stack(*parts, *pointer(answer.findings))


def left_out(rows: int, most: int | None) -> list[RenderableType]:
    """Return the number of rows that a table omits, and the options that show these rows."""
    from ckpttool.core.render.text import line

    if most is None or rows <= most:
        return []
    return [line(f"… and {counted(rows - most, 'more row')}: --all shows them, --limit N the first N", style="dim")]


def _headline(answer: Contents) -> Text:
    from ckpttool.core.render.text import line

    name = answer.checkpoint if answer.file is None else answer.file.rpartition("/")[2]
    nbytes = sum(row.nbytes * row.files for row in answer.tensors)
    where = "" if len(answer.files) == 1 else f" in {len(answer.files)} files"
    numbers = f"{answer.parameters:,} parameter{'' if answer.parameters == 1 else 's'}"
    of = f"{counted(len(answer.tensors), 'tensor')}, {numbers}, {size(nbytes)}{where}"
    return line(f"{shown(name)}: {of}", style="bold")


_SUMS = {"crc32-records": "a CRC32 of each record"}


def _about(answer: Contents) -> tuple[str, str]:
    """Describe the path of the shard or checkpoint, the program that wrote it, and the checksums."""
    where = answer.inventory.root if answer.file is None else answer.inventory.path_of(answer.file)
    formats = Counter(row.format.value for row in answer.files if row.format is not None)
    producers = Counter(row.producer for row in answer.files if row.producer is not None)
    written = f", written by {' and '.join(sorted(producers))}" if producers else ""
    checked = Counter(row.checksum[0] for row in answer.files if row.checksum is not None)
    of = len(answer.files)
    sums = [
        f"{_SUMS.get(name, name)} inside" if of == 1 else f"{_SUMS.get(name, name)} in {count} of {of} files"
        for name, count in sorted(checked.items())
    ]
    seals = sorted(row.seal.first_seen for row in answer.files if row.seal is not None)
    if seals:
        sums.append(f"sealed {seals[0]}" if len(seals) == of else f"sealed {seals[0]} ({len(seals)} of {of} files)")
    step = "" if answer.step is None else f", step {answer.step}"
    kind = " and ".join(sorted(formats)) or "unreadable"
    return f"{where}{step}", f"{kind}{written}; {', '.join(sums) or 'no checksum inside, not sealed'}"


def _ranks(answer: Contents) -> tuple[Rank, ...]:
    return tuple(sorted({row.rank for row in answer.files if row.rank is not None}))


def _tensors(answer: Contents) -> RenderableType:
    from ckpttool.core.render.text import Columns, line

    ranks = _ranks(answer)
    by_rank = answer.file is None and len(ranks) > 1
    with_stats = any(row.stats is not None for row in answer.tensors)
    headers = [("TENSOR", 0), *(_WITH_STATS if with_stats else (("DTYPE", 3), ("SHAPE", 1), (" BYTES", 4)))]
    rows = []
    for row in answer.tensors[: answer.most_rows]:
        cells: list[str | Text] = [named(row.name), row.dtype, dims(row.shape)]
        cells += _numbers(row.stats) if with_stats else [f"{row.nbytes:,}"]
        if by_rank:
            cells.append(line(_holders_text(row, ranks), style="yellow" if row.others else ""))
        rows.append(cells)
    if by_rank:  # the request is about the disagreement
        headers.append(("RANKS", 0 if any(row.others for row in answer.tensors) else 2))
    return Columns(headers, rows)


def _positions(answer: Contents) -> list[RenderableType]:
    """Return the data position of each loader; ranks at the same position share a row."""
    from ckpttool.core.render.text import Pairs, line

    if not answer.loaders:
        return []
    rows: dict[tuple[str, str], list[SavedLoader]] = {}
    for loader in answer.loaders:
        kind = "data loader" if loader.state is None else loader.state.kind
        rows.setdefault((kind, _position(loader)), []).append(loader)
    pairs = []
    for (kind, text), loaders in list(rows.items())[: answer.most_rows]:
        ranks = [loader.rank for loader in loaders if loader.rank is not None]
        places = [*([on_ranks(ranks)] if ranks else []), f"in {_loader_place(loaders[0])}"]
        style = "yellow" if loaders[0].state is None else ""
        pairs.append((shown(kind), line(f"{shown(text)} ({', '.join(places)})", style=style)))
    return [line(), line("Data position", style="dim"), Pairs(pairs), *left_out(len(rows), answer.most_rows)]


def _position(loader: SavedLoader) -> str:
    if loader.state is None:
        return loader.problem or "unknown"
    workers = loader.state.workers
    return described(loader.state) + ("" if not workers else f"; {counted(workers, 'worker')}")


def _loader_place(loader: SavedLoader) -> str:
    return shown(f"{loader.path}: {loader.key}" if loader.key else loader.path)


_WITH_STATS = (
    *(("DTYPE", 7), ("SHAPE", 8)),
    *((" NORM", 1), (" ABSMAX", 4), (" MIN", 5), (" MAX", 6), (" NAN", 2), (" INF", 2), (" ZERO", 3)),
)
"""Column headers, and the priority of each if space is short."""


def named(name: str) -> str:
    """Encode a tensor's name, truncated if implausibly long, because a file can contain a name of a megabyte."""
    return shown(name if len(name) <= _MOST_NAME_CHARS else f"{name[:_MOST_NAME_CHARS]}…")


def _holders_text(row: TensorRow, ranks: Sequence[Rank]) -> str:
    """Describe the ranks that have the tensor, and the ranks on which it differs from the majority."""
    if not row.ranks:
        placement = "shared"
    elif row.ranks == tuple(ranks):
        placement = f"all {len(ranks)}"
    else:
        placement = _places(row.ranks)
    variants = (f"{dtype} {dims(shape)} on {_places(on, noun=True)}" for dtype, shape, on in row.others)
    return ", but ".join((placement, *variants))


def _places(ranks: Sequence[Rank], *, noun: bool = False) -> str:
    if not ranks:
        return "another file"
    text = on_ranks(ranks)
    return text if noun else text.partition(" ")[2]


def dims(shape: Shape) -> str:
    """Encode a shape as in `8×4`. A scalar has no dimensions."""
    return "×".join(map(str, shape)) if shape else "–"


def _numbers(stats: ElementStats | None) -> Iterator[str | Text]:
    from ckpttool.core.render.text import line

    if stats is None:
        yield from ("–",) * 7
        return
    for value in (stats.norm, stats.absmax, stats.least, stats.greatest):
        yield "–" if value is None else f"{value:.4g}"
    for count in (stats.nans, stats.infinities):
        yield line(str(count), style="bold red" if count else "")
    yield share(stats.zeros, stats.elements)


def share(part: int, total: int) -> str:
    """Format a share in percent, with 0 % and 100 % only for exact values."""
    if not total:
        return "–"
    if part in {0, total}:
        return "100%" if part else "0%"
    return f"{min(max(100 * part / total, 0.1), 99.9):.1f}%"


def _scalars(answer: Contents) -> list[RenderableType]:
    from ckpttool.core.render.text import Pairs, line

    if not answer.scalars:
        return []
    most = len(answer.scalars) if answer.most_rows is None else _MOST_SCALARS
    pairs = []
    for row in answer.scalars[:most]:
        variants = "".join(f", but {value_text(value)} on {_places(ranks, noun=True)}" for value, ranks in row.others)
        pairs.append((named(row.name), line(f"{value_text(row.value)}{variants}", style="yellow" if variants else "")))
    rest = len(answer.scalars) - most
    more = [line(f"  … and {counted(rest, 'more scalar')}: --all shows them", style="dim")] if rest > 0 else []
    return [line(), line("Scalars", style="dim"), Pairs(pairs), *more]


def value_text(value: Value) -> str:
    """Format a scalar for people, without truncation."""
    return shown(str(value))
