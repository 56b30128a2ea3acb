"""Marks on saves: a person or a supervisor records that a checkpoint is bad, or good, and every command reads it.

Its command is `ckpttool mark`. Start reading in `verbs.py`; `reading.py` applies the marks to a scanned tree.
"""

from __future__ import annotations

from ckpttool.core.extensions import Feature

FEATURE = Feature(
    findings="ckpttool.marks.findings:MarkCode",
    answers={"marks": "ckpttool.marks.answers"},
    marks="ckpttool.marks.reading:with_marks",
    starts="ckpttool.marks.launches:LaunchCounter",
)
