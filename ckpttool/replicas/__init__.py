"""Copies of a tensor on other ranks: their differences, and rebuilding from a proven one.

For the engineer on call: `ckpttool repair shards`, the advice of `resolve` on a save that it passed over, and the
findings of `verify` and `seal` about copies if every byte is read. Heal begins in `verbs.py`; which copy is proven is
decided in `rules.py`. Comparing begins in `comparing/in_turn.py`; the truth table of its findings is in
`comparing/weight.py`.
"""

from __future__ import annotations

from ckpttool.core.extensions import Feature

FEATURE = Feature(
    findings="ckpttool.replicas.findings:ReplicasCode",
    answers={
        "heal": "ckpttool.replicas.answers",
    },
    copies="ckpttool.replicas.comparing.in_turn:Replicas",
    on_passed_over="ckpttool.replicas.advice:advice_on",
)
