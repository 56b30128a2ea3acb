"""Copies of a tensor on other ranks: find differences, and rebuild shards from a proven copy.

Used by `ckpttool repair shards`, the advice of `resolve` on a skipped save, and the findings of `verify` and
`seal` about copies if every byte is read. The heal starts in `verbs.py`; `rules.py` decides which copy is proven. The
comparison starts in `comparing/in_turn.py`; the truth table of its findings is in `comparing/weight.py`.
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
