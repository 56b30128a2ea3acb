"""Proves that a config which does not fit its checkpoint is found, and one that fits is left alone."""

from __future__ import annotations

from dataclasses import replace

from ckpttool.domain.finding import Code, Finding, Severity
from ckpttool.domain.settings import Setting, Settings
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


def only(findings: tuple[Finding, ...]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def test_a_config_that_fits_is_left_alone() -> None:
    assert check(FITS, LEGACY) == ()
    assert check(FITS_NEWER, NEWER) == ()
    assert tuple(other_devices(FITS, 4)) == ()


def test_what_is_not_known_is_no_disagreement() -> None:
    vague = replace(FITS, world_size=None, global_batch_size=None, sink_size=None)
    assert check(vague, LEGACY) == ()
    assert tuple(other_devices(vague, 4)) == ()
    assert check(FITS, resume_plan(ranks=0, global_batch_size=None)) == ()
    assert check(FITS, resume_plan(scalars=TrainState())) == ()


def test_another_format_is_a_note_because_a_launch_changes_it() -> None:
    finding = only(check(replace(FITS, load_ckpt_format="safetensors"), LEGACY))
    assert (finding.code, finding.severity, finding.line) == (Code.CONFIG_DISAGREES, Severity.NOTE, 3)
    assert "load_ckpt_format: ckpt" in str(finding.remedy)


def test_a_file_name_of_another_format_is_found_in_config_and_plan() -> None:
    stale = replace(FITS, resume_training="x_rank_0-5_2.safetensors")
    finding = only(check(stale, LEGACY))
    assert finding.severity is Severity.NOTE
    assert "x_rank_0-5_2.safetensors.ckpt" in finding.message
    odd = replace(LEGACY_LOAD, load_ckpt_format="safetensors")
    finding = only(check(replace(FITS, load_ckpt_format="safetensors"), resume_plan(load=odd)))
    assert finding.severity is Severity.SUSPECT
    assert "rename" in str(finding.remedy)
    assert check(replace(FITS, resume_training="x_rank_0-5_2.ckpt"), LEGACY) == ()
    assert check(replace(FITS, resume_training="x_rank_0-5_2"), LEGACY) == ()


class TestWorldSize:
    def test_more_ranks_than_wrote_it_are_suspect_unless_it_is_resliced(self) -> None:
        finding = only(check(replace(FITS, world_size=8), LEGACY))
        assert (finding.code, finding.severity) == (Code.CONFIG_DISAGREES, Severity.SUSPECT)
        assert "written by 4 ranks, the config starts 8" in finding.message
        assert "auto_trans_ckpt: True" in str(finding.remedy)
        assert only(check(replace(FITS, world_size=8, auto_trans_ckpt=True), LEGACY)).severity is Severity.NOTE

    def test_layouts_that_any_number_of_ranks_can_load_get_a_note(self) -> None:
        assert only(check(replace(FITS_NEWER, world_size=8), NEWER)).severity is Severity.NOTE
        unified = LoadKeys(
            load_checkpoint="unified", resume_training=True, load_ckpt_format="safetensors", use_legacy_format=True
        )
        config = replace(FITS, world_size=8, load_ckpt_format="safetensors")
        assert only(check(config, resume_plan(load=unified))).severity is Severity.NOTE

    def test_the_number_that_the_files_record_is_believed(self) -> None:
        point = LEGACY.point
        topology = replace(point.checkpoint.topology, world_size=8)
        plan = replace(LEGACY, point=replace(point, checkpoint=replace(point.checkpoint, topology=topology)))
        assert check(replace(FITS, world_size=8), plan) == ()

    def test_another_number_of_devices_than_the_config_is_for_is_suspect(self) -> None:
        assert "config is for 4 ranks, but 8 will be started" in only(tuple(other_devices(FITS, 8))).message


class TestLayout:
    def test_a_checkpoint_section_cannot_load_the_legacy_layout(self) -> None:
        config = replace(FITS, use_legacy_format=False, has_checkpoint_section=True)
        assert only(check(config, LEGACY)).severity is Severity.SUSPECT

    def test_a_config_for_the_other_layout_is_a_note(self) -> None:
        finding = only(check(replace(FITS, use_legacy_format=False), LEGACY))
        assert (finding.severity, "use_legacy_format: True" in str(finding.remedy)) == (Severity.NOTE, True)
        finding = only(check(replace(FITS_NEWER, use_legacy_format=True), NEWER))
        assert (finding.severity, "use_legacy_format: False" in str(finding.remedy)) == (Severity.NOTE, True)

    def test_the_health_monitor_of_the_newer_layout_overrides_the_plan(self) -> None:
        by_threshold = only(check(replace(FITS_NEWER, health_check_picks=True), NEWER))
        assert (by_threshold.severity, by_threshold.line) == (Severity.SUSPECT, 9)
        assert "embedding_local_norm_threshold" in str(by_threshold.remedy)
        by_switch = replace(FITS_NEWER, health_check_picks=True, settings=settings_at(use_checkpoint_health_monitor=5))
        assert only(check(by_switch, NEWER)).line == 5
        assert check(replace(FITS, health_check_picks=True), LEGACY) == ()

    def test_weights_alone_are_noted_because_a_launch_changes_it(self) -> None:
        config = replace(FITS_NEWER, has_checkpoint_section=True, no_load_optim=True)
        assert only(check(config, NEWER)).severity is Severity.NOTE


class TestSizes:
    def test_a_plan_for_another_batch_size_is_suspect(self) -> None:
        finding = only(check(replace(FITS, global_batch_size=16), resume_plan(scalars=TrainState())))
        assert "leave --gbs out" in str(finding.remedy)

    def test_a_plan_for_another_sink_size_is_suspect(self) -> None:
        finding = only(check(FITS, resume_plan(sink_size=3)))
        assert "say --sink-size 2" in str(finding.remedy)
        assert check(FITS, resume_plan(sink_size=2)) == ()

    def test_a_batch_size_as_old_versions_counted_it_is_suspect(self) -> None:
        old = resume_plan(scalars=replace(SCALARS, global_batch_size=32), global_batch_size=8)
        config = replace(FITS, global_batch_size_1_3=32)
        found = [finding for finding in check(config, old) if "1.3.2" in finding.message]
        assert "multiply the steps by 4" in found[0].message
        assert "--segment 30:8" in str(found[0].remedy)

    def test_a_batch_size_as_new_versions_count_it_is_left_alone(self) -> None:
        assert check(replace(FITS, global_batch_size_1_3=32), LEGACY) == ()

    def test_an_unknown_batch_size_accuses_no_old_version(self) -> None:
        old = resume_plan(scalars=replace(SCALARS, global_batch_size=32))
        config = replace(FITS, global_batch_size=None, global_batch_size_1_3=32)
        assert check(config, old) == ()

    def test_counters_that_will_be_wrong_are_told(self) -> None:
        assert only(check(replace(FITS, sink_size=5), LEGACY)).code is Code.SINK_SIZE_CHANGED
        assert check(replace(FITS, sink_mode=False, sink_size=None), LEGACY) == ()
