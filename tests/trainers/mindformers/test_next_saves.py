"""Where the next saves go and how many must fit."""

from __future__ import annotations

import pytest

from ckpttool.core.domain.preflight import NextSaves
from ckpttool.core.formats.safe_yaml import parse_document, settings_of
from ckpttool.trainers.mindformers.launch import next_saves

MONITOR = "callbacks: [{{type: MFLossMonitor}}, {{type: CheckpointMonitor, {0}}}]\n"


def asked(text: str) -> NextSaves:
    return next_saves(settings_of(parse_document(text.encode(), where="base.yaml"), path="base.yaml"), "out/checkpoint")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("seed: 1", 6),
        (MONITOR.format("prefix: x"), 6),
        (MONITOR.format("keep_checkpoint_max: 3"), 4),
        (MONITOR.format("keep_checkpoint_max: 0"), 2),
        (MONITOR.format("keep_checkpoint_max: '3'"), 6),
        ("checkpoint: {save_max: 2}", 3),
        (MONITOR.format("keep_checkpoint_max: 3") + "checkpoint: {save_max: 2}", 3),
        (MONITOR.format("keep_checkpoint_max: 3") + "use_legacy_format: False", 4),
    ],
)
def test_as_many_must_fit_as_are_kept_and_one_more(text: str, count: int) -> None:
    assert asked(text).count == count


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("seed: 1", "out/checkpoint"),
        ("output_dir: ./output", "out/checkpoint"),
        ("output_dir: /big/run/", "/big/run/checkpoint"),
        ("output_dir: [/big]", "out/checkpoint"),
        (MONITOR.format("directory: /other") + "output_dir: /big", "/other/checkpoint"),
        ("checkpoint: {save_path: /new/place}\noutput_dir: /big", "/new/place"),
        ("checkpoint: {save_path: new/place}\noutput_dir: /big", "/big/checkpoint"),
        ("checkpoint: {save_max: 2}", "out/checkpoint"),
    ],
)
def test_an_absolute_folder_of_the_config_counts_and_else_the_one_that_is_there(text: str, folder: str) -> None:
    assert asked(text).folder == folder
