"""The answer of `part`: one machine's part, and its file. Only an answer that covers all parts judges the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.manifest import Sealing
from ckpttool.core.domain.units import counted
from ckpttool.core.domain.verdict import VerdictWord
from ckpttool.core.render.answers.seals import of_one
from ckpttool.core.render.escape import shown
from ckpttool.core.render.finding_lines import grouped_findings
from ckpttool.core.render.json import Document
from ckpttool.core.render.shell import quote
from ckpttool.core.render.text import line, stack
from ckpttool.nodes.model import PartWritten
from ckpttool.nodes.part_file import seat_fields

if TYPE_CHECKING:
    from rich.console import RenderableType


def document(answer: PartWritten) -> Document:
    """Return the `ckpttool/part/1` document, which is the first line of the part."""
    record: dict[str, Document] = {
        "schema": "ckpttool/part/1",
        **seat_fields(answer.seat, str),
        "version": answer.version,
        "path": answer.path,
        "bytes": answer.nbytes,
        "found": answer.found,
        "shards": {verdict_word.value: count for verdict_word, count in answer.words},
    }
    if answer.sealings is not None:
        record["seals"] = [*map(of_one, reversed(answer.sealings))]
    return record


def table(answer: PartWritten) -> RenderableType:
    """Show the checks on this machine, and the file of the part."""
    seat = answer.seat
    good = {VerdictWord.VERIFIED, VerdictWord.AGREED, VerdictWord.STRUCT_OK}
    is_good = all(verdict_word in good for verdict_word, _ in answer.words)
    counts = ", ".join(f"{count} {verdict_word.value}" for verdict_word, count in answer.words)
    subject = f"{counted(answer.shards, 'shard')} ({counts})" if answer.shards else "no shards"
    where = seat.root if answer.found else f"{seat.root}, which contains no tree that ckpttool recognizes"
    return stack(
        line(
            f"Part {seat.number} of {seat.of}, {seat.host}: {subject} in {where}",
            style="bold" if is_good else "bold red",
        ),
        line(f"written to {quote(answer.path)}, {counted(answer.nbytes, 'byte')}"),
        *map(_sealed, answer.sealings or ()),
        *grouped_findings([finding for sealing in answer.sealings or () for finding in sealing.findings], None),
    )


def _sealed(sealing: Sealing) -> RenderableType:
    if sealing.manifest is None:
        return line(f"{shown(sealing.checkpoint)}: nothing sealed", style="bold red")
    shards = counted(len(sealing.manifest.shards), "shard")
    done = f"{shards} sealed" if sealing.written else "the intact shards were sealed before"
    return line(f"{shown(sealing.checkpoint)}: {done}", style="bold red" if sealing.findings else "bold green")
