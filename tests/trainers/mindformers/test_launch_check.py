"""Proves that a config which does not fit its checkpoint is found, and one that fits is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.settings import Setting, Settings
from ckpttool.trainers.mindformers.launch_check import check, other_devices
from ckpttool.trainers.mindformers.load import LoadKeys
from ckpttool.trainers.mindformers.scalars import TrainState
from ckpttool.trainers.mindformers.train_config import TrainConfig
from tests.support.plans import LEGACY_LOAD, NEWER_LOAD, SCALARS, resume_plan

THRESHOLD = "monitor_config.health_checkpoint.embedding_local_norm_threshold"


def settings_at(**lines: int) -> Settings:
    """Settings that stand on these lines, whatever their values."""
    entries = (Setting(key=tuple(key.split(".")), value=None, line=line) for key, line in lines.items())
    return Settings(path="base.yaml", entries=tuple(entries))


FITS = TrainConfig(
    path="base.yaml",
    world_size=4,
    global_batch_size=8,
    sink_mode=True,
    sink_size=2,
    epochs=1,
    load_ckpt_format="ckpt",
    auto_trans_ckpt=False,
    use_legacy_format=True,
    has_checkpoint_section=False,
    use_checkpoint_health_monitor=False,
    prefix=None,
    findings=(),
    text="",
    settings=settings_at(load_ckpt_format=3, **{THRESHOLD: 9}),
)
FITS_NEWER = replace(FITS, use_legacy_format=False, load_ckpt_format="safetensors")
LEGACY, NEWER = resume_plan(), resume_plan(load=NEWER_LOAD)


UNIFIED = LoadKeys(
    load_checkpoint="unified", resume_training=True, load_ckpt_format="safetensors", use_legacy_format=True
)
STARTS_8 = replace(FITS, world_size=8)
OF_1_3 = replace(FITS, global_batch_size_1_3=32)
BATCH_32 = replace(SCALARS, global_batch_size=32)
ODD_FORMAT = resume_plan(load=replace(LEGACY_LOAD, load_ckpt_format="safetensors"))
NOTE, SUSPECT = Severity.NOTE, Severity.SUSPECT


@pytest.mark.parametrize(
    ("config", "plan", "severity", "words"),
    [
        # A launch changes the format, but renames no file.
        (replace(FITS, load_ckpt_format="safetensors"), LEGACY, NOTE, "load_ckpt_format: ckpt"),
        (replace(FITS, resume_training="x_rank_0-5_2.safetensors"), LEGACY, NOTE, "x_rank_0-5_2.safetensors.ckpt"),
        (replace(FITS, load_ckpt_format="safetensors"), ODD_FORMAT, SUSPECT, "rename"),
        # More ranks than wrote it are suspect unless it is re-sliced, or of a layout that any number can load.
        (STARTS_8, LEGACY, SUSPECT, "written by 4 ranks, but the config starts 8"),
        (STARTS_8, LEGACY, SUSPECT, "auto_trans_ckpt: True"),
        (replace(STARTS_8, auto_trans_ckpt=True), LEGACY, NOTE, ""),
        (replace(FITS_NEWER, world_size=8), NEWER, NOTE, ""),
        (replace(STARTS_8, load_ckpt_format="safetensors"), resume_plan(load=UNIFIED), NOTE, ""),
        (replace(FITS, use_legacy_format=False, has_checkpoint_section=True), LEGACY, SUSPECT, ""),
        (replace(FITS, use_legacy_format=False), LEGACY, NOTE, "use_legacy_format: True"),
        (replace(FITS_NEWER, use_legacy_format=True), NEWER, NOTE, "use_legacy_format: False"),
        # The health monitor of the newer layout overrules the plan.
        (replace(FITS_NEWER, health_check_picks=True), NEWER, SUSPECT, "embedding_local_norm_threshold"),
        # A launch switches it off that weights alone are loaded.
        (replace(FITS_NEWER, has_checkpoint_section=True, no_load_optim=True), NEWER, NOTE, ""),
        (replace(FITS, global_batch_size=16), resume_plan(scalars=TrainState()), SUSPECT, "omit --gbs"),
        (FITS, resume_plan(sink_size=3), SUSPECT, "use --sink-size 2"),
    ],
)
def test_what_does_not_fit_is_found(config: TrainConfig, plan: ResumePlan, severity: Severity, words: str) -> None:
    (finding,) = check(config, plan)
    assert (finding.code, finding.severity) == (Code.CONFIG_DISAGREES, severity)
    assert words in f"{finding.message} {finding.remedy}"


@pytest.mark.parametrize(
    ("config", "plan"),
    [
        (FITS, LEGACY),
        (FITS_NEWER, NEWER),
        # What is not known is no disagreement.
        (replace(FITS, world_size=None, global_batch_size=None, sink_size=None), LEGACY),
        (FITS, resume_plan(ranks=0, global_batch_size=None)),
        (FITS, resume_plan(scalars=TrainState())),
        (replace(FITS, resume_training="x_rank_0-5_2.ckpt"), LEGACY),
        (replace(FITS, resume_training="x_rank_0-5_2"), LEGACY),
        (replace(FITS, health_check_picks=True), LEGACY),
        (FITS, resume_plan(sink_size=2)),
        (OF_1_3, LEGACY),
        (replace(OF_1_3, global_batch_size=None), resume_plan(scalars=BATCH_32)),
        (replace(FITS, sink_mode=False, sink_size=None), LEGACY),
    ],
)
def test_a_config_that_fits_is_left_alone(config: TrainConfig, plan: ResumePlan) -> None:
    assert check(config, plan) == ()


def test_another_number_of_devices_than_the_config_is_for_is_suspect() -> None:
    (finding,) = other_devices(FITS, 8)
    assert "config is for 4 ranks, but 8 will start" in finding.message
    assert [*other_devices(FITS, 4), *other_devices(replace(FITS, world_size=None), 4)] == []


def test_a_finding_stands_on_the_line_of_what_decides() -> None:
    by_switch = replace(FITS_NEWER, health_check_picks=True, settings=settings_at(use_checkpoint_health_monitor=5))
    for config, plan, line in (
        (replace(FITS, load_ckpt_format="safetensors"), LEGACY, 3),
        (replace(FITS_NEWER, health_check_picks=True), NEWER, 9),
        (by_switch, NEWER, 5),
    ):
        assert [finding.line for finding in check(config, plan)] == [line]


def test_a_batch_size_as_old_versions_counted_it_is_suspect() -> None:
    old = resume_plan(scalars=BATCH_32, global_batch_size=8)
    found = [finding for finding in check(OF_1_3, old) if "1.3.2" in finding.message]
    assert "multiply the steps by 4" in found[0].message
    assert "--segment 30:8" in str(found[0].remedy)
