"""The answer of `scan`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ckpttool.core.domain.checkpoint import Checkpoint, Content, Inventory, Listing, Rename, shorter_shards
from ckpttool.core.domain.finding import blocking
from ckpttool.core.domain.progress import newest_first
from ckpttool.core.domain.shard import Shard
from ckpttool.core.domain.units import counted, lasting, moment_if_any, step_and_name
from ckpttool.core.render.escape import shown, size
from ckpttool.core.render.json import Document, EncodedList, finding_document, parts_document

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.text import Text

NS = 1e9
"""Nanoseconds per second."""

SAVED = "SAVED (UTC)"


def document(answer: Listing) -> Document:
    """Return `ckpttool/inventory/1`, the answer of `scan`."""
    inventory = answer.inventory
    return {
        "schema": "ckpttool/inventory/1",
        "root": inventory.root,
        "layout": inventory.layout,
        "world_size": world_size(inventory),
        "checkpoints": [_checkpoint(checkpoint) for checkpoint in inventory.checkpoints],
        "findings": [finding_document(finding) for finding in inventory.findings],
        "strays": list(inventory.strays),
        **parts_document(inventory.parts),
    }


def world_size(inventory: Inventory) -> int | None:
    """Return the number of ranks that the newest checkpoint must have, or None if unknown."""
    return next((checkpoint.topology.world_size for checkpoint in newest_first(inventory.checkpoints)), None)


def _checkpoint(checkpoint: Checkpoint) -> Document:
    facts = dict(checkpoint.facts)
    return {
        "name": checkpoint.name,
        **({"aliases": list(checkpoint.aliases)} if checkpoint.aliases else {}),
        "prefix": checkpoint.prefix,
        "run": checkpoint.run,
        "epoch": facts.get("epoch"),
        "step_in_epoch": facts.get("step_in_epoch"),
        "step": checkpoint.step,
        "step_source": checkpoint.step_source.value,
        "optimizer_step": facts.get("optimizer_step"),
        "global_batch_size": checkpoint.scalars.global_batch_size,
        "samples": checkpoint.samples,
        "ranks": list(checkpoint.ranks),
        "world_size": checkpoint.topology.world_size,
        "shared": checkpoint.topology.shared,
        "bytes": checkpoint.nbytes,
        "saved_at": saved_at(checkpoint.saved_ns),
        "format": checkpoint.format.value,
        "commit": checkpoint.commit.value,
        **({"content": checkpoint.content.value} if checkpoint.content is Content.WEIGHTS_ONLY else {}),
        "health": checkpoint.health.value,
        "renames": [rename_document(rename) for rename in checkpoint.renames],
        "shards": _Shards(checkpoint.shards),
        "findings": [finding_document(finding) for finding in checkpoint.findings],
    }


def saved_at(saved_ns: int | None) -> str | None:
    """Return the time of a save for JSON, in UTC, or None if no file shows it."""
    return None if saved_ns is None else moment_if_any(saved_ns / NS)


class _Shards(EncodedList):
    """The shards of a checkpoint, encoded directly as text because there is at least one per rank."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, index: int | slice) -> Any:  # noqa: ANN401  one document, or several
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        shard = self._shards[index]
        return {"path": shard.path, "rank": shard.rank, "bytes": shard.stamp.size if shard.stamp else None}

    def encoded(self, line: str) -> str:
        path, rank, nbytes = (f'{line}  "{key}": ' for key in ("path", "rank", "bytes"))
        return f",{line}".join(
            [
                f"{{{path}{quoted(shard.path)}"
                f",{rank}{'null' if shard.rank is None else shard.rank}"
                f",{nbytes}{shard.stamp.size if shard.stamp else 'null'}{line}}}"
                for shard in self._shards
            ]
        )


def rename_document(rename: Rename) -> dict[str, Document]:
    """Describe the current and the new name of each file."""
    return {"from": rename.source, "to": rename.target}


def table(answer: Listing) -> RenderableType:
    """Show the answer of `scan`, newest first."""
    from ckpttool.core.render.finding_lines import grouped_findings, pointer
    from ckpttool.core.render.rank_map import Drawn
    from ckpttool.core.render.text import line, stack

    inventory = answer.inventory
    parts: list[RenderableType] = [_headline(inventory)]
    if inventory.checkpoints:
        parts += [line(), _CheckpointTable(answer)]
        if any(map(_is_marked, newest_first(inventory.checkpoints)[: answer.limit])):
            parts.append(line("!: the checkpoint is not intact, for the reasons below", style="dim"))
        parts += [line(text, style="yellow") for text in _short(answer)]
    else:
        parts.append(line(f"Pruned checkpoints, if any: ckpttool trash list {shown(inventory.root)}"))
    count = len(inventory.checkpoints)
    if answer.limit is not None and answer.limit < count:
        parts.append(line(f"and {count - answer.limit} older: --limit {count}", style="dim"))
    ordered = newest_first(inventory.checkpoints)
    parts.append(Drawn([(checkpoint, checkpoint.findings) for checkpoint in ordered[: answer.limit]]))
    findings = [finding for checkpoint in ordered for finding in checkpoint.findings]
    findings += inventory.findings
    parts += grouped_findings(findings, world_size(inventory), answer.view)
    return stack(*parts, *pointer(findings))


def _headline(inventory: Inventory) -> Text:
    from ckpttool.core.render.text import line

    if not inventory.checkpoints:
        return line(f"No checkpoint in {shown(inventory.root)} ({inventory.layout})", style="bold red")
    ordered = newest_first(inventory.checkpoints)
    intact = [checkpoint for checkpoint in ordered if not blocking(checkpoint.findings)]
    world = world_size(inventory)
    ranks = "complete" if world in {None, 1} else f"on all {world} ranks"
    which = "newest" if intact and intact[0] is ordered[0] else "newest complete"
    newest = f", {which} {step_and_name(intact[0].step, shown(intact[0].name))}" if intact else ""
    answer = f"{counted(len(inventory.checkpoints), 'checkpoint')}, {len(intact)} {ranks}{newest}"
    style = "bold green" if len(intact) == len(inventory.checkpoints) else "bold yellow"
    headline = line().append(answer, style=style)  # a style of the whole line would also colour the appended text
    headline.append(f"\n{shown(inventory.root)} ({inventory.layout})", style="dim")
    headline.append("\nnot verified: ckpttool verify checks every shard")
    warning = unconfirmed(ordered[0], "--world-size")
    return headline if warning is None else headline.append(f"\n{warning}")


def unconfirmed(checkpoint: Checkpoint, option: str) -> str | None:
    """Return a remark that only the rank folders show the number of ranks, or None if something else confirms it.

    Args:
        checkpoint: The checkpoint whose ranks are counted.
        option: The options that confirm the number.
    """
    topology = checkpoint.topology
    if topology.confirmed or topology.world_size is None:
        return None
    folders = counted(topology.world_size, "rank folder")
    return f"({folders} found; {option} confirms the expected number)"


_MOST_SHORT = 3
"""Maximum number of shards shown as shorter than usual; `verify` shows all."""


def _short(answer: Listing) -> list[str]:
    """Name the shards of the displayed saves that may be truncated, judged by their sizes alone."""
    short = [
        (
            f"may be truncated: {shown(shard.path)} has {nbytes} bytes, the same rank's shard of {shown(peer.name)} "
            f"has {usual}"
        )
        for _, peer, shard, nbytes, usual in shorter_shards(newest_first(answer.inventory.checkpoints))
    ]
    rest = len(short) - _MOST_SHORT
    if rest <= 0:
        return short
    return [*short[:_MOST_SHORT], f"and {counted(rest, 'other shard')} {'is' if rest == 1 else 'are'} also shorter"]


class _Column(NamedTuple):
    """A column of the table of checkpoints."""

    header: str
    cells: Sequence[str | Text]
    justify: Literal["left", "right"] = "right"

    @property
    def width(self) -> int:
        return max(len(self.header), *(len(cell) if isinstance(cell, str) else cell.cell_len for cell in self.cells))


_NOT_TOLD = "?"

_NOT_EVERY_TRAINERS = ("OPT STEP", "GBS")
"""Columns with values that only some trainers save; a column is hidden if it has no values."""


def _tells(column: _Column) -> bool:
    return column.header not in _NOT_EVERY_TRAINERS or any(cell != _NOT_TOLD for cell in column.cells)


_FIRST_TO_GO = ("OPT STEP", "GBS", SAVED, "SIZE", "AGE")
"""Columns dropped on a narrow terminal, in this order; JSON has them."""


def _named(checkpoint: Checkpoint) -> str:
    """Return the checkpoint's name, with the checkpoint's other names, and a remark if it has only weights."""
    also = [f"also {shown(alias)}" for alias in checkpoint.aliases]
    also += ["weights only"] if checkpoint.content is Content.WEIGHTS_ONLY else []
    return f"{shown(checkpoint.name)} ({', '.join(also)})" if also else shown(checkpoint.name)


class _CheckpointTable:
    """One line per checkpoint, newest first; on a narrow terminal only the important columns."""

    def __init__(self, answer: Listing) -> None:
        self._newest_first = newest_first(answer.inventory.checkpoints)
        self._limit = answer.limit
        self._now = answer.now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from ckpttool.core.render.text import NARROW, Table, line, no_room

        gap = 1 if options.max_width < NARROW else 2
        names = [line(_named(checkpoint)) for checkpoint in self._newest_first[: self._limit]]
        shown_columns = [_Column("NAME", names, "left"), *filter(_tells, self._columns())]
        lost: list[str] = []
        for header in _FIRST_TO_GO:
            if sum(column.width + gap for column in shown_columns) - gap > options.max_width:
                lost += [column.header for column in shown_columns if column.header == header]
                shown_columns = [column for column in shown_columns if column.header != header]
        table = Table(gap=gap)
        for column in shown_columns:
            table.add_column(column.header, justify=column.justify, no_wrap=column.header != "NAME")
        for row in zip(*(column.cells for column in shown_columns), strict=True):
            table.add_row(*row)
        yield table
        if lost:
            yield no_room(lost)

    def _columns(self) -> Iterator[_Column]:
        from ckpttool.core.render.finding_lines import HEALTH_STYLE
        from ckpttool.core.render.text import line

        checkpoints = self._newest_first[: self._limit]
        # If batch sizes differ, steps do not show the order; a single size needs only its own column.
        sizes = {checkpoint.scalars.global_batch_size for checkpoint in self._newest_first} - {None}
        yield _Column("STEP", [_number(checkpoint.step) for checkpoint in checkpoints])
        updates = [dict(checkpoint.facts).get("optimizer_step") for checkpoint in checkpoints]
        yield _Column("OPT STEP", [_number(update) for update in updates])
        yield _Column("RANKS", [_marked(checkpoint) for checkpoint in checkpoints])
        yield _Column("SIZE", [size(checkpoint.nbytes) for checkpoint in checkpoints])
        yield _Column("GBS", [_number(checkpoint.scalars.global_batch_size) for checkpoint in checkpoints])
        if len(sizes) > 1:
            yield _Column("SAMPLES", [_number(checkpoint.samples) for checkpoint in checkpoints])
        health = [line(checkpoint.health.value, style=HEALTH_STYLE[checkpoint.health]) for checkpoint in checkpoints]
        yield _Column("HEALTH", health, "left")
        yield _Column(SAVED, [minute(checkpoint.saved_ns) or _NOT_TOLD for checkpoint in checkpoints], "left")
        yield _Column("AGE", [age(checkpoint.saved_ns, self._now) or _NOT_TOLD for checkpoint in checkpoints])


def minute(saved_ns: int | None) -> str | None:
    """Return the time of a save for people, in UTC (`2026-11-20 03:00`), or None if no file shows it."""
    time = saved_at(saved_ns)
    return None if time is None else to_the_minute(time)


def to_the_minute(time: str) -> str:
    """Convert JSON's `2026-11-20T03:00:00Z` for people; the header shows that it is in UTC."""
    return f"{time[:10]} {time[11:16]}"


def age(saved_ns: int | None, now: float) -> str | None:
    """Return the age of a save, or None if no file shows it or a wrong clock puts it in the future."""
    since = None if saved_ns is None or saved_at(saved_ns) is None else now - saved_ns / NS
    return None if since is None or since < 0 else lasting(since)


def _marked(checkpoint: Checkpoint) -> Text:
    ranks = _ranks(checkpoint)
    return ranks.append(" !", style="red") if _is_marked(checkpoint) else ranks


def _is_marked(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is not intact although its rank count looks complete."""
    has_all = checkpoint.topology.shared or len(checkpoint.ranks) == checkpoint.topology.world_size
    return has_all and bool(blocking(checkpoint.findings))


def _ranks(checkpoint: Checkpoint) -> Text:
    from ckpttool.core.render.text import line

    expected, have = checkpoint.topology.world_size, len(checkpoint.ranks)
    if checkpoint.topology.shared:
        return line("all")
    if expected is None:
        return line(f"{have}/?" if have else "?")
    return line(f"{have}/{expected}", style="" if have == expected else "red")


def _number(value: int | None) -> str:
    return _NOT_TOLD if value is None else str(value)
