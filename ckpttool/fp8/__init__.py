"""FP8 training: find out whether FP8 hurts a run, which part causes it, and how to fix it.

Users call `ckpttool fp8`, or functions of the library such as `ckpttool.library.fp8_probe(...)`. Each command starts in
`verbs`.
"""

from __future__ import annotations

from ckpttool.core.extensions import Feature

FEATURE = Feature(
    findings="ckpttool.fp8.findings:Fp8Code",
    answers={
        "fp8-compare": "ckpttool.fp8.answers.compare",
        "fp8-plan": "ckpttool.fp8.answers.plan",
        "fp8-probe": "ckpttool.fp8.answers.probe",
        "fp8-verdict": "ckpttool.fp8.answers.verdict",
    },
)
