"""Fuzz targets: YAML configs, against PyYAML itself, and their editing."""

from __future__ import annotations

from typing import Any

import yaml

from ckpttool.core.errors import CkptToolError, UnsafeError, UsageError
from ckpttool.core.formats.safe_yaml import MAX_DEPTH, parse_document, settings_of
from ckpttool.core.render.yaml_edit import spell
from ckpttool.trainers.mindformers.config import train_config_of
from ckpttool.trainers.mindformers.launch import render_config
from ckpttool.trainers.mindformers.lint import BEFORE_A_START, lint
from ckpttool.trainers.mindformers.load import load_keys
from tests.reliability.fuzz_records import assert_short, depth, same
from tests.support.plans import NEWER_LOAD, resume_plan

LONGEST_MESSAGE = 20_000
"""Characters: a key of the input's own length may be in it several times."""


def config(data: bytes) -> None:
    """Read a config: what is taken is what PyYAML reads, and what is said of it stays short."""
    try:
        document = parse_document(data, where="a.yaml")
    except (UsageError, UnsafeError) as error:
        assert_short(error, LONGEST_MESSAGE)
        return
    assert same(document.data, yaml.safe_load(data.decode()))
    assert depth(document.data) <= MAX_DEPTH
    # PyYAML counts more line ends than Python does.
    last = len(data.decode().splitlines()) + 1
    assert all(1 <= line <= last for line in document.lines.values())
    train = train_config_of(document, path="a.yaml", devices=8)
    assert train.world_size is None or train.world_size > 0
    settings = settings_of(document, path="a.yaml")
    for finding in (*train.findings, *lint(settings, BEFORE_A_START)):
        assert 0 < len(finding.message) <= LONGEST_MESSAGE
        assert finding.line is None or 1 <= finding.line <= last


_PLANS = (resume_plan(), resume_plan(load=NEWER_LOAD, batches=0))
_OURS = frozenset({
    "load_checkpoint", "resume_training", "load_ckpt_format", "data_skip_steps", "ignore_data_skip",
    "use_legacy_format", "ckpt_use_legacy_format", "checkpoint",
})  # fmt: skip


def launch_config(data: bytes) -> None:
    """Write a launch config: all keys that are not ours keep their value, or nothing is written."""
    try:
        before = parse_document(data, where="a.yaml").data
    except (UsageError, UnsafeError):
        return
    text = data.decode()
    for plan in _PLANS:
        try:
            made = render_config(text, plan)
        except CkptToolError as error:
            assert_short(error, LONGEST_MESSAGE)
            continue
        after: Any = yaml.safe_load(made.text)
        assert after["load_checkpoint"] == load_keys(plan.load).load_checkpoint
        assert same(after["resume_training"], load_keys(plan.load).resume_training)
        kept = [{key: value for key, value in one.items() if key not in _OURS} for one in (before, after)]
        assert same(*kept)
        # Once more, nothing is left to change.
        assert render_config(made.text, plan).text == made.text


def spelling(data: bytes) -> None:
    """Spell any text as YAML: it reads back as itself."""
    text = data.decode("utf-8", "surrogateescape")
    for quotes in ("", "'", '"'):
        try:
            spelled = spell(text, quotes=quotes)
        except UsageError:
            assert any("\ud800" <= character <= "\udfff" for character in text)
            continue
        assert yaml.safe_load(f"k: {spelled}\n") == {"k": text}
        assert yaml.safe_load(f"{{k: {spelled}, l: 1}}") == {"k": text, "l": 1}
