"""Which machines write their part of a watched tree no longer."""

from __future__ import annotations

from ckpttool.core.domain.finding import unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import lasting
from ckpttool.nodes.findings import NodesCode
from ckpttool.watch.model import EventKind, KnownNode, Sighting, Watched, WatchEvent


def silent_parts(watched: Watched, sighting: Sighting, patience: float) -> tuple[Watched, tuple[WatchEvent, ...]]:
    """Say once of each machine that its part is written no longer, or is not there."""
    before = {node.number: node for node in watched.nodes}
    nodes, reported = [], []
    for node_state in sighting.nodes:
        node = before.get(node_state.number)
        if node is None or node.mark != node_state.mark:
            node = KnownNode(number=node_state.number, name=node_state.name, mark=node_state.mark, since=watched.now)
        elif not node.told and watched.now - node.since >= patience:
            node = replace(node, told=True)
            reported.append(_of_node(node, watched.now))
        nodes.append(node)
    return replace(watched, nodes=tuple(nodes)), tuple(reported)


def _of_node(node: KnownNode, now: float) -> WatchEvent:
    passed = lasting(now - node.since)
    if node.mark:
        kind, code, message = EventKind.PART_STALE, NodesCode.PART_STALE, f"was written {passed} ago, and not since"
    else:
        kind, code, message = EventKind.PART_MISSING, NodesCode.PART_MISSING, f"is not here for {passed}"
    finding = unknown(
        code,
        f"{node.name} {message}: what that machine has now, nobody knows",
        remedy="see whether it answers, and whether ckpttool watch --part-out runs there",
    )
    subject = f"part {node.number} {node.mark or round(node.since)}"
    return WatchEvent(kind=kind, subject=subject, name=None, step=None, findings=(finding,))


def is_silent(watched: Watched, number: int, patience: float) -> bool:
    """Tell whether a machine's part is so old that what others took away since may still stand in it."""
    return any(node.number == number and watched.now - node.since >= patience / 2 for node in watched.nodes)
