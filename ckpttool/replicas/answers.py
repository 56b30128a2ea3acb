"""The answer of `repair shards`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckpttool.core.domain.plan import may_be_good
from ckpttool.core.domain.replicas import Proof, Trust
from ckpttool.core.domain.units import counted, step_and_name
from ckpttool.core.render.changes import grace_option, refused
from ckpttool.core.render.escape import shown
from ckpttool.core.render.finding_lines import grouped_findings, pointer
from ckpttool.core.render.json import Document, finding_document
from ckpttool.core.render.pointer_records import record_lines, records_document
from ckpttool.core.render.shell import join
from ckpttool.core.render.text import Indented, line, stack
from ckpttool.replicas.model import Donor, Healing, ShardHealing

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

MOST_SHARDS = 16
"""Maximum number of shards that a table lists individually."""


def document(healing: Healing) -> Document:
    """Return `ckpttool/heal/1`, the shards that can be rebuilt, and their donors."""
    return {
        "schema": "ckpttool/heal/1",
        "root": healing.root,
        "layout": healing.layout,
        "checkpoint": healing.checkpoint.name,
        "step": healing.checkpoint.step,
        "applied": healing.applied,
        "shards": [_shard(shard) for shard in healing.shards],
        "records": records_document(healing.fixes),
        "trash": healing.trash if healing.applied else None,
        "lost": [finding_document(finding) for finding in healing.lost],
        "findings": [finding_document(finding) for finding in healing.refusals],
    }


def _shard(shard: ShardHealing) -> Document:
    target, donor = shard.target, shard.donor
    return {
        "path": target.path,
        "rank": target.rank,
        "role": target.role.value,
        "missing": target.is_missing,
        "tensor": shard.tensor,
        "donor": None
        if donor is None
        else {
            "rank": donor.rank,
            "path": donor.path,
            "proof": donor.proof.value,
            "record": donor.record,
            "checkpoints": list(donor.witnesses),
            "rest_agrees": donor.rest_agrees,
            "trust": donor.trust.value,
            "agrees": donor.agrees,
        },
        "findings": [finding_document(finding) for finding in (*target.findings, *filter(None, (shard.refusal,)))],
    }


def table(healing: Healing) -> RenderableType:
    """Show the copy from which each shard can be rebuilt, with the proof."""
    parts: list[RenderableType] = [_headline(healing), line(shown(healing.root), style="dim")]
    for shard in healing.shards[:MOST_SHARDS]:
        parts += [line(), *_shard_lines(shard, done=healing.applied)]
    if len(healing.shards) > MOST_SHARDS:
        parts.append(line(f"and {len(healing.shards) - MOST_SHARDS} more: --format json", style="dim"))
    refused = [shard.refusal for shard in healing.shards if shard.refusal is not None]
    findings = [*refused, *healing.lost, *healing.refusals]
    parts += [*grouped_findings(findings), *pointer(findings)]
    if healing.healable and not healing.refusals:
        parts += [line(), *record_lines(healing.fixes)] if healing.fixes else []
        parts += [line(), *_outcome(healing)]
    return stack(*parts)


def _headline(healing: Healing) -> Text:
    able = len(healing.healable)
    name = step_and_name(healing.checkpoint.step, shown(healing.checkpoint.name))
    if not healing.shards:
        if not healing.lost and not healing.refusals:
            return line(f"{name}: no shard is missing or damaged", style="bold green")
        if may_be_good(healing.lost):
            return line(f"{name}: whether it is intact is unknown, and no copy shows it", style="bold red")
        return line(f"{name}: it is not intact, and no copy can repair it", style="bold red")
    target = counted(len(healing.shards), "shard")
    if not able:
        return line(f"{name}: {target} missing or damaged, and no copy is proven", style="bold red")
    of = target if able == len(healing.shards) else f"{able} of {target}"
    if healing.refusals:
        return line(refused(f"{name}: {of} could be rebuilt", apply=healing.order.apply), style="bold red")
    verb = "can be rebuilt"
    if healing.applied:
        verb = "was rebuilt" if able == 1 else "were rebuilt"
    style = "bold green" if able == len(healing.shards) else "bold yellow"
    return line(f"{name}: {of} {verb} from a copy", style=style)


def _outcome(healing: Healing) -> Iterator[Text]:
    if not healing.order.apply:
        them = "it" if len(healing.healable) == 1 else "them"
        yield line(f"Dry run: nothing was changed. To rebuild {them}:")
        yield line(_command(healing), no_wrap=True)
    elif healing.trash is not None:
        yield line(f"The damaged files are kept in {shown(healing.trash)} until the next `prune --apply`")


def _command(healing: Healing) -> str:
    """Return the command that rebuilds the shards."""
    order = healing.order
    options = [] if order.donor is None else ["--from", str(order.donor)]
    options += [] if order.tensor is None else ["--tensor", order.tensor]
    options += grace_option(order.grace)
    name = healing.checkpoint.name
    return join(["ckpttool", "repair", "shards", healing.root, "--checkpoint", name, *options, "--apply"])


def _shard_lines(shard: ShardHealing, *, done: bool) -> Iterator[RenderableType]:
    wrong = "missing" if shard.target.is_missing else "damaged"
    yield line(f"{shown(shard.target.path)}: {wrong}")
    if shard.donor is None:
        return
    verb = "rebuilt" if done else "can be rebuilt"
    predicate = verb if shard.tensor is None else f"{shown(shard.tensor)} {verb}"
    yield Indented(line(f"{predicate} from rank {shard.donor.rank}: {_same(shard.donor)};"))
    yield Indented(line(_trust(shard.donor)))


def _same(donor: Donor) -> str:
    if donor.proof is Proof.SEALED:
        return f"every tensor equals the one that {shown(donor.record or '')} records for this shard"
    if donor.record is not None:
        return f"it has the same slices, according to {shown(donor.record)}"
    rest = ", and now in all of its intact data" if donor.rest_agrees else ""
    return f"equal in every tensor at {' and '.join(map(shown, donor.witnesses))}{rest}"


def _trust(donor: Donor) -> str:
    match donor.trust:
        case Trust.CHECKSUM:
            return f"rank {donor.rank}'s shard is verified by a checksum"
        case Trust.COPY if donor.agrees is None:  # its seal was written by a heal
            return f"rank {donor.rank}'s shard is unchanged since a heal, when another rank had equal content"
        case Trust.COPY:
            return f"rank {donor.agrees} has equal content now, bit for bit"
        case Trust.NUMERICS:
            return f"rank {donor.rank}'s shard is intact, its numbers are plausible, and there is no third copy"
