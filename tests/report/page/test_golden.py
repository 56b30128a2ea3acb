"""Whole pages, as a reader gets them; the style sheet is left out, for it is the same for all."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import Level
from ckpttool.report.verbs import page
from ckpttool.types import EvidenceQuestion, LogQuestion, PageForm, ReportQuestion, ResumeQuestion, TreeQuestion
from tests.support.trainer_trees import damaged

ROOT = Path(__file__).resolve().parents[3]
MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d")
AGE = re.compile(r"(?<=UTC, )[0-9.]+ \w+(?= before)")
STYLE = re.compile(r"(?<=<style>\n).*?(?=</style>)", re.DOTALL)

LONG_AGO = 1.7e9
"""Seconds since 1970."""

HEALTH = ReportQuestion(
    tree=TreeQuestion(path="health_pp2/output"),
    choice=ResumeQuestion(
        logs=EvidenceQuestion(threshold=0.2, logs=LogQuestion(patterns=("health_pp2/train_log_first_rank_0.jsonl",)))
    ),
    keep_last=2,
)
"""The newest one is unhealthy by the log."""


def steady(text: str) -> str:
    """Return a page without what differs from day to day and from machine to machine."""
    text = STYLE.sub("", text).replace(str(Path.cwd()), "/home/me")
    return AGE.sub("2 h", MOMENT.sub("2026-11-20 03:00", text)) + "\n"


def asked(name: str, folder: Path) -> ReportQuestion:
    """Lay out a tree, every file of which was written at one time: a checkout gives each another one."""
    if name == "health":
        shutil.copytree(ROOT / "fixtures" / "health_pp2", folder / "health_pp2")
    else:
        damaged(name, folder)
    for path in folder.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    if name == "health":
        return HEALTH
    choice = ResumeQuestion(evidence=Level.CHECKSUM)
    return ReportQuestion(tree=TreeQuestion(path="run"), choice=choice, keep_last=1)


@pytest.mark.parametrize("form", PageForm)
@pytest.mark.parametrize("name", ["health", "dcp_fsdp2_4ranks--cut-shard", "mcore_integrity--flipped"])
def test_a_page_is_as_it_was_read_when_it_was_last_changed(
    name: str,
    form: PageForm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    golden: Callable[[str, str], None],
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = ckpttool.library.survey(asked(name, tmp_path))
    answer = replace(answer, free_bytes=ByteCount(1 << 40), seconds=2.0)
    golden(f"report/{name}.{form.value}", steady(page(answer, form)))
