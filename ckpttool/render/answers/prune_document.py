"""Prunings and repairs as JSON."""

from __future__ import annotations

from collections.abc import Iterable

from ckpttool.domain.pointer import PointerFix
from ckpttool.domain.retention import Fate, Pruning, Repair
from ckpttool.render.json import Document, finding_document


def pruning_document(pruning: Pruning) -> Document:
    """`ckpttool/prune/1`: what `prune` decided and did, oldest checkpoint first."""
    plan, policy = pruning.plan, pruning.plan.policy
    return {
        "schema": "ckpttool/prune/1",
        "root": plan.root,
        "layout": plan.layout.value,
        "applied": pruning.applied,
        "evidence": "auto" if pruning.order.level is None else pruning.order.level.word,
        "policy": {
            "keep_last": policy.keep_last,
            "keep_every": policy.keep_every,
            "keep_healthy": policy.keep_healthy,
            "keep": list(policy.keep),
            "drop_abandoned": policy.drop_abandoned,
            "prefix": policy.prefix,
        },
        "checkpoints": [_fate(fate) for fate in reversed(plan.fates)],
        "bytes_to_go": pruning.freed,
        "records": _fixes(pruning.fixes),
        "trash_days": pruning.order.trash_days,
        "trash": [{"name": one.name, "goes": one.goes} for one in pruning.trash],
        "findings": [finding_document(finding) for finding in pruning.refusals],
    }


def _fate(fate: Fate) -> Document:
    one = fate.checkpoint
    return {
        "name": one.name,
        "prefix": one.prefix,
        "run": one.run,
        "step": one.step,
        "format": one.format.value,
        "bytes": one.nbytes,
        "health": one.health.value,
        "verdict": None if fate.word is None else fate.word.value,
        "fate": "go" if fate.goes else "keep",
        "why": [why.value for why in fate.why],
        "because": fate.because,
    }


def repair_document(repair: Repair) -> Document:
    """`ckpttool/repair/1`: what `repair-meta` found and wrote."""
    return {
        "schema": "ckpttool/repair/1",
        "root": repair.root,
        "layout": repair.layout.value,
        "applied": repair.applied,
        "checkpoint": None if repair.checkpoint is None else repair.checkpoint.name,
        "records": _fixes(repair.fixes),
        "findings": [finding_document(finding) for finding in repair.refusals],
    }


def _fixes(fixes: Iterable[PointerFix]) -> list[Document]:
    return [
        {"path": fix.path, "trouble": fix.trouble, "names": fix.text.name, "content": fix.text.content.decode("ascii")}
        for fix in fixes
    ]
