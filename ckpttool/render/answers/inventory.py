"""What `scan` found."""

from __future__ import annotations

from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import TYPE_CHECKING, Any

from ckpttool.domain.checkpoint import Checkpoint, Inventory, Rename
from ckpttool.domain.finding import blocking
from ckpttool.domain.progress import newest_first
from ckpttool.domain.shard import Shard
from ckpttool.domain.units import counted
from ckpttool.render.escape import shown, size
from ckpttool.render.json import Document, Spelled, finding_document

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.text import Text


def document(inventory: Inventory) -> Document:
    """`ckpttool/inventory/1`: what `scan` found."""
    return {
        "schema": "ckpttool/inventory/1",
        "root": inventory.root,
        "layout": inventory.layout,
        "world_size": world_size(inventory),
        "checkpoints": [_checkpoint(checkpoint) for checkpoint in inventory.checkpoints],
        "findings": [finding_document(finding) for finding in inventory.findings],
        "strays": list(inventory.strays),
    }


def world_size(inventory: Inventory) -> int | None:
    """Ranks that the newest checkpoint must have; None where nothing tells."""
    return next((checkpoint.topology.world_size for checkpoint in newest_first(inventory.checkpoints)), None)


def _checkpoint(checkpoint: Checkpoint) -> Document:
    facts = dict(checkpoint.facts)
    return {
        "name": checkpoint.name,
        "prefix": checkpoint.prefix,
        "run": checkpoint.run,
        "epoch": facts.get("epoch"),
        "step_in_epoch": facts.get("step_in_epoch"),
        "step": checkpoint.step,
        "step_source": checkpoint.step_source,
        "optimizer_step": facts.get("optimizer_step"),
        "global_batch_size": checkpoint.scalars.global_batch_size,
        "samples": checkpoint.samples,
        "ranks": list(checkpoint.ranks),
        "world_size": checkpoint.topology.world_size,
        "shared": checkpoint.topology.shared,
        "bytes": checkpoint.nbytes,
        "format": checkpoint.format.value,
        "commit": checkpoint.commit.value,
        "health": checkpoint.health.value,
        "renames": [rename_document(rename) for rename in checkpoint.renames],
        "shards": _Shards(checkpoint.shards),
        "findings": [finding_document(finding) for finding in checkpoint.findings],
    }


class _Shards(Spelled):
    """The shards of a checkpoint, as many as ranks: spelled without making a document of each."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, index: int | slice) -> Any:  # noqa: ANN401  one document, or several
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        shard = self._shards[index]
        return {"path": shard.path, "rank": shard.rank, "bytes": shard.stamp.size if shard.stamp else None}

    def spelled(self, line: str) -> str:
        """Spell all of them, each on lines that are moved in so far."""
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
    """Spell which file is to get which name."""
    return {"from": rename.source, "to": rename.target}


def table(inventory: Inventory) -> RenderableType:
    """Show what `scan` found, newest first."""
    from ckpttool.render.text import grouped_findings, line, pointer, stack

    parts: list[RenderableType] = [_headline(inventory)]
    if inventory.checkpoints:
        parts += [line(), _CheckpointTable(inventory)]
    findings = [finding for checkpoint in newest_first(inventory.checkpoints) for finding in checkpoint.findings]
    findings += inventory.findings
    parts += grouped_findings(findings, world_size(inventory))
    return stack(*parts, *pointer(findings))


def _headline(inventory: Inventory) -> Text:
    from ckpttool.render.text import line

    if not inventory.checkpoints:
        return line(f"No checkpoint in {shown(inventory.root)} ({inventory.layout})", style="bold red")
    ordered = newest_first(inventory.checkpoints)
    whole = [checkpoint for checkpoint in ordered if not blocking(checkpoint.findings)]
    world = world_size(inventory)
    ranks = "complete" if world in {None, 1} else f"on all {world} ranks"
    which = "newest" if whole and whole[0] is ordered[0] else "newest complete"
    newest = f", {which} {shown(whole[0].name)}" if whole else ""
    answer = f"{counted(len(inventory.checkpoints), 'checkpoint')}, {len(whole)} {ranks}{newest}"
    headline = line(answer, style="bold green" if len(whole) == len(inventory.checkpoints) else "bold yellow")
    return headline.append(f"\n{shown(inventory.root)} ({inventory.layout})", style="dim")


class _CheckpointTable:
    """One line a checkpoint, newest first; on a narrow terminal only what the answer needs."""

    def __init__(self, inventory: Inventory) -> None:
        self._newest_first = newest_first(inventory.checkpoints)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from ckpttool.render.text import HEALTH_STYLE, NARROW, columns, line, whole_words

        narrow = options.max_width < NARROW
        # Where batch sizes differ steps are no order; one size needs no more than its own column.
        sizes = {checkpoint.scalars.global_batch_size for checkpoint in self._newest_first} - {None}
        by_samples = ("SAMPLES",) if len(sizes) > 1 else ()
        table = columns(padding=(0, 1, 0, 0) if narrow else (0, 1, 0, 1))
        table.add_column("NAME")
        few = ("STEP", *by_samples, "RANKS")
        for header in few if narrow else ("STEP", "OPT STEP", "RANKS", "SIZE", "GBS", *by_samples):
            table.add_column(header, justify="right", no_wrap=True)
        table.add_column("HEALTH", no_wrap=True)
        for checkpoint in self._newest_first:
            step, ranks, facts = _number(checkpoint.step), _ranks(checkpoint), dict(checkpoint.facts)
            seen = (_number(checkpoint.samples),) if by_samples else ()
            middle = (
                step,
                _number(facts.get("optimizer_step")),
                ranks,
                size(checkpoint.nbytes),
                _number(checkpoint.scalars.global_batch_size),
            )
            health = line(checkpoint.health.value, style=HEALTH_STYLE[checkpoint.health])
            cells = (step, *seen, ranks) if narrow else (*middle, *seen)
            table.add_row(line(shown(checkpoint.name)), *cells, health)
        yield whole_words(table)


def _ranks(checkpoint: Checkpoint) -> Text:
    from ckpttool.render.text import line

    expected, have = checkpoint.topology.world_size, len(checkpoint.ranks)
    if checkpoint.topology.shared:
        return line("all")
    if expected is None:
        return line(f"{have}/?" if have else "?")
    return line(f"{have}/{expected}", style="" if have == expected else "red")


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)
