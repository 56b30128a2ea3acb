"""The traps of the real parsers are told, and what we write is read back as meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.asd import MINDSPORE, AsdDialect
from ckpttool.core.domain.asd import TORCH_NPU as TORCH
from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.frozen import replace
from ckpttool.core.errors import UsageError
from ckpttool.health.asd.config import check_asd_config, config_in_force, defaults, dialect_of, emit_asd_config
from ckpttool.health.model.asd import AsdCheck, AsdConfig
from ckpttool.trainers.findings import TrainersCode


def complaints(check: AsdCheck) -> list[str]:
    return [finding.message for finding in check.findings if finding.severity > Severity.NOTE]


@pytest.mark.parametrize("dialect", [TORCH, MINDSPORE])
def test_a_correct_string_is_read_without_complaint(dialect: AsdDialect) -> None:
    check = check_asd_config("enable:true,with_checksum:true,cooldown:10,upper_thresh1:500000", dialect)
    assert (check.error, complaints(check)) == (None, [])
    assert (check.config.enable, check.config.with_checksum, check.config.cooldown) == (True, True, 10)
    assert (check.config.upper_thresh1, check.config.strikes_num) == (500000, 3)


def test_nothing_set_is_the_default_of_each_dialect() -> None:
    assert check_asd_config("", TORCH).config == AsdConfig()
    assert check_asd_config("", TORCH).findings == ()
    assert check_asd_config("", MINDSPORE).config.grad_sample_interval == 10


def test_torch_npu_raises_at_a_flag_with_a_space() -> None:
    check = check_asd_config("enable: true", TORCH)
    assert check.error is not None
    assert check.config == AsdConfig()


def test_torch_npu_ignores_a_key_with_a_space_without_a_word() -> None:
    check = check_asd_config("enable:true, with_checksum:true", TORCH)
    assert check.error is None
    assert check.config.with_checksum is False
    (message,) = complaints(check)
    assert "without spaces" in message


def test_mindspore_takes_spaces_and_equals_signs() -> None:
    check = check_asd_config("enable = true, with_checksum: true", MINDSPORE)
    assert (check.config.enable, check.config.with_checksum, complaints(check)) == (True, True, [])


@pytest.mark.parametrize("value", ["True", "TRUE", "1", "yes", ""])
def test_a_flag_that_is_not_exactly_true_or_false_stops_torch_npu_and_not_mindspore(value: str) -> None:
    assert check_asd_config(f"enable:{value}", TORCH).error is not None
    lenient = check_asd_config(f"enable:{value}", MINDSPORE)
    assert (lenient.error, lenient.config.enable) == (None, False)
    assert len(complaints(lenient)) == 1


def test_a_wrong_checksum_flag_stops_torch_npu_only_where_it_is_enabled() -> None:
    assert check_asd_config("with_checksum:on,enable:true", TORCH).error is not None
    check = check_asd_config("with_checksum:on,enable:false", TORCH)
    assert check.error is None
    assert len(complaints(check)) == 1


@pytest.mark.parametrize("value", ["0", "-1", "+5", "5.0", " 5", "", "five"])
def test_a_number_that_is_not_digits_is_the_default(value: str) -> None:
    check = check_asd_config(f"enable:true,strikes_window:{value}", TORCH)
    assert check.config.strikes_window == 480
    assert [finding.code for finding in check.findings if finding.severity > Severity.NOTE] == [
        TrainersCode.CONFIG_WRONG_TYPE
    ]


@pytest.mark.parametrize(("value", "kept"), [("2", 1_000_000), ("00", 1_000_000), ("101", 101)])
def test_a_threshold_below_three_is_the_default(value: str, kept: int) -> None:
    assert check_asd_config(f"upper_thresh1:{value}", TORCH).config.upper_thresh1 == kept


def test_a_double_zero_passes_as_zero_and_is_told() -> None:
    check = check_asd_config("enable:true,grad_sample_interval:00", TORCH)
    assert check.config.grad_sample_interval == 0
    assert any("at least 1" in message for message in complaints(check))


def test_a_superscript_passes_the_parsers_test_and_then_raises() -> None:
    assert check_asd_config("cooldown:²", TORCH).error is not None
    assert check_asd_config("cooldown:²", MINDSPORE).error is None


@pytest.mark.parametrize("item", ["cooldown", "cooldown:1:2", "colldown:7", ""])
def test_an_item_that_is_dropped_is_told(item: str) -> None:
    check = check_asd_config(f"enable:true,{item}", TORCH)
    assert [finding.code for finding in check.findings if finding.severity > Severity.NOTE] == [
        TrainersCode.CONFIG_KEY_IGNORED
    ]


def test_of_two_values_the_later_one_counts_and_is_told() -> None:
    check = check_asd_config("cooldown:7,cooldown:8", TORCH)
    assert check.config.cooldown == 8
    assert any("set twice" in message for message in complaints(check))


def test_setting_the_variable_at_all_switches_the_older_one_off() -> None:
    assert any("NPU_ASD_ENABLE" in finding.message for finding in check_asd_config("enable:false", TORCH).findings)
    assert check_asd_config("enable:false", MINDSPORE).findings == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("strikes_window:9", "impossible"),
        ("cooldown:480,strikes_num:1,checksum_cooldown:500", "events are lost"),
        ("strikes_num:2", "already counted for a strike"),
        ("enable:false,with_checksum:true", "without enable"),
        ("checksum_cooldown:4", "longer than its own cooldown"),
        ("upper_thresh1:100", "must be above"),
    ],
)
def test_settings_that_do_not_fit_together_are_told(text: str, words: str) -> None:
    config = text if text.startswith("enable") else f"enable:true,{text}"
    messages = [f.message for f in check_asd_config(config, TORCH).findings if f.code is Code.CONFIG_DISAGREES]
    assert len(messages) == 1
    assert words in messages[0]


CONFIGS = st.builds(
    AsdConfig,
    enable=st.booleans(),
    with_checksum=st.booleans(),
    cooldown=st.integers(1, 1000),
    strikes_num=st.integers(1, 9),
    strikes_window=st.integers(1, 1000),
    checksum_cooldown=st.integers(1, 1000),
    upper_thresh1=st.integers(3, 10**9),
    upper_thresh2=st.integers(3, 10**9),
    grad_sample_interval=st.integers(1, 50),
)


@given(CONFIGS, st.sampled_from([TORCH, MINDSPORE]))
def test_what_we_write_is_read_back_as_meant(config: AsdConfig, dialect: AsdDialect) -> None:
    check = check_asd_config(emit_asd_config(config, dialect), dialect)
    assert (check.config, check.error) == (config, None)
    assert not {finding.code for finding in check.findings if finding.severity > Severity.NOTE} - {
        Code.CONFIG_DISAGREES
    }


@given(st.text(alphabet="enabletruefalsecooldown_:=, 0123456789²", max_size=60))
def test_no_string_breaks_the_check(text: str) -> None:
    for dialect in (TORCH, MINDSPORE):
        assert check_asd_config(text, dialect).dialect is dialect


def test_only_what_differs_is_written_and_nothing_that_the_parser_refuses() -> None:
    assert emit_asd_config(AsdConfig(enable=True, cooldown=7), TORCH) == "enable:true,cooldown:7"
    assert emit_asd_config(defaults(MINDSPORE), MINDSPORE) == "enable:false"
    with pytest.raises(ValueError, match="upper_thresh2 must be at least 3"):
        emit_asd_config(AsdConfig(upper_thresh2=2), TORCH)


@pytest.mark.parametrize(("digits", "stops"), [(4_301, True), (4_300, False)])
def test_a_number_that_python_does_not_read_stops_torch_npu_and_is_told_in_short(digits: int, stops: bool) -> None:
    check = check_asd_config(f"cooldown:{'7' * digits}", TORCH)
    assert (check.error is not None) == stops
    assert all(len(message) < 200 for message in complaints(check)) or not stops
    assert check_asd_config(f"cooldown:{'7' * digits}", MINDSPORE).error is None


def test_of_more_items_without_effect_than_anybody_reads_the_rest_is_counted() -> None:
    items = [f"spam{number}:1" for number in range(103)]
    told = complaints(check_asd_config(",".join(["enable:true", *items]), TORCH))
    assert len(told) == 101
    assert told[-1] == "3 more items are ignored or set twice"
    assert len(complaints(check_asd_config(",".join(["enable:true", *items[:100]]), TORCH))) == 100


def test_a_dialect_is_found_by_its_name_however_it_is_spelled() -> None:
    known = (TORCH, MINDSPORE)
    assert dialect_of(None, known) is TORCH
    assert dialect_of(MINDSPORE.name.upper().replace("-", "_"), known) is MINDSPORE
    assert dialect_of("Torch_NPU", known) is TORCH
    with pytest.raises(UsageError, match=f"unknown dialect 'jax'; known dialects: {TORCH.name}, {MINDSPORE.name}"):
        dialect_of("jax", known)


def test_settings_are_in_force_switched_on_and_what_would_stop_the_training_is_refused() -> None:
    assert config_in_force(None, MINDSPORE) == replace(defaults(MINDSPORE), enable=True)
    found = config_in_force("cooldown:10", TORCH)
    assert (found.enable, found.cooldown) == (True, 10)
    with pytest.raises(UsageError, match="ckpttool asd check shows all problems"):
        config_in_force("enable: true", TORCH)
