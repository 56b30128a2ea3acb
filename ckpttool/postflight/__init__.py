"""Judge a resume by the logs of both runs: position, data, weights, and updates of the resumed run.

Used by `ckpttool postflight`. It starts in `verbs.py`; `rules/judge.py` compares the two logs, and `conclusion.py`
decides whether that is enough for an answer.
"""

from __future__ import annotations

from ckpttool.core.extensions import Feature

FEATURE = Feature(
    findings="ckpttool.postflight.findings:PostflightCode",
    answers={"postflight": "ckpttool.postflight.answers"},
    before_launch="ckpttool.postflight.before_launch:launch_notes",
)
