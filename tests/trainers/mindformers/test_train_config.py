"""Proves what a training config is read as, and that what would spoil a resume in it is found and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.finding import Code, Finding, Row, Severity
from ckpttool.core.errors import CkptToolError, UsageError
from ckpttool.core.formats.safe_yaml import parse_document
from ckpttool.trainers.findings import TrainersCode
from ckpttool.trainers.mindformers.config import train_config_of
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.train_config import TrainConfig
from tests.support.training_configs import read_train_config

CONFIGS = Path(__file__).parents[2] / "configs"


def read(text: str, *, devices: int | None = None) -> TrainConfig:
    return train_config_of(parse_document(text.encode(), where="base.yaml"), path="base.yaml", devices=devices)


def findings(text: str) -> list[Finding]:
    return list(read(text).findings)


def only(text: str) -> Finding:
    found = findings(text)
    assert len(found) == 1, found
    return found[0]


PARALLEL = """\
use_parallel: True
runner_config: {batch_size: 2, gradient_accumulation_steps: 3}
parallel_config: {data_parallel: 4, model_parallel: 2, context_parallel: 2, expert_parallel: 4}
"""


class TestDefaults:
    def test_an_almost_empty_config_means_what_it_means_to_mindformers(self) -> None:
        config = read("seed: 0")
        assert (config.world_size, config.global_batch_size, config.epochs) == (1, 1, 1)
        assert (config.sink_mode, config.sink_size) == (True, 1)
        assert (config.load_ckpt_format, config.auto_trans_ckpt) == ("ckpt", False)
        assert config.use_legacy_format
        assert not config.health_check_picks
        assert (config.prefix, config.resume_training) == (None, None)
        assert config.findings == ()

    def test_the_real_shapes_are_read_without_a_false_alarm(self) -> None:
        legacy = read_train_config(str(CONFIGS / "llama2_legacy.yaml"))
        assert (legacy.world_size, legacy.global_batch_size, legacy.sink_size, legacy.epochs) == (16, 32, 2, 3)
        assert (legacy.prefix, legacy.resume_training) == ("llama2_7b", False)
        assert legacy.findings == ()
        newer = read_train_config(str(CONFIGS / "newer_checkpoint_section.yaml"))
        assert (newer.world_size, newer.global_batch_size, newer.sink_mode, newer.sink_size) == (4, 4, False, None)
        assert not newer.use_legacy_format
        assert newer.has_checkpoint_section
        assert newer.no_load_optim
        assert newer.health_check_picks
        assert newer.prefix == "llama2_7b"
        assert newer.findings == ()

    def test_in_a_documented_place_that_stops_every_start_a_setting_is_found_in_a_real_shape(self) -> None:
        config = read_train_config(str(CONFIGS / "qwen3_safetensors.yaml"))
        assert (config.world_size, config.global_batch_size, config.global_batch_size_1_3) == (16, 64, 128)
        assert [(finding.code, finding.line) for finding in config.findings] == [
            (MindFormersCode.TRAINER_KEY_REFUSED, 17)
        ]


COUNTS = """
micro_batch_interleave_num runner_config.batch_size runner_config.epochs runner_config.gradient_accumulation_steps
parallel_config.data_parallel parallel_config.model_parallel parallel_config.pipeline_stage
parallel_config.context_parallel parallel_config.micro_batch_num
"""


class TestSizes:
    def test_without_pipeline_stages_accumulation_counts(self) -> None:
        config = read(PARALLEL)
        assert (config.world_size, config.global_batch_size) == (16, 2 * 4 * 3)

    def test_with_pipeline_stages_micro_batches_count_instead(self) -> None:
        config = read(PARALLEL.replace("expert_parallel: 4", "pipeline_stage: 2, micro_batch_num: 8"))
        assert (config.world_size, config.global_batch_size) == (32, 2 * 4 * 8)

    def test_without_use_parallel_there_is_one_rank_and_no_accumulation(self) -> None:
        config = read(PARALLEL.replace("True", "False"))
        assert (config.world_size, config.global_batch_size) == (1, 2)

    def test_in_data_parallel_mode_only_the_devices_tell(self) -> None:
        text = PARALLEL + "parallel: {parallel_mode: 0}\n"
        assert (read(text).world_size, read(text).global_batch_size) == (None, None)
        assert (read(text, devices=8).world_size, read(text, devices=8).global_batch_size) == (8, 16)

    def test_old_versions_count_every_device_where_the_batch_is_sliced(self) -> None:
        sliced = "parallel: {full_batch: False, dataset_strategy: [[4, 1]]}\n"
        assert read(PARALLEL + sliced).global_batch_size_1_3 == 2 * 3 * 16
        assert read(PARALLEL).global_batch_size_1_3 is None
        alone = PARALLEL.replace("model_parallel: 2, context_parallel: 2, ", "")
        assert read(alone + sliced).global_batch_size_1_3 is None

    @pytest.mark.parametrize("bad", ["'4'", "0", "-1", "4.0", "True", "null", "[4]"])
    def test_a_size_that_is_none_makes_the_product_unknown_and_is_found(self, bad: str) -> None:
        config = read(PARALLEL.replace("data_parallel: 4", f"data_parallel: {bad}"))
        assert (config.world_size, config.global_batch_size) == (None, None)
        assert [finding.code for finding in config.findings] == [TrainersCode.CONFIG_WRONG_TYPE]
        assert config.findings[0].line == 3
        assert config.findings[0].severity is Severity.SUSPECT

    @pytest.mark.parametrize("key", COUNTS.split())
    @pytest.mark.parametrize(("value", "is_wrong"), [("0", True), ("-1", True), ("'2'", True), ("1", False)])
    def test_each_count_must_be_one_of_at_least_1(self, key: str, value: str, is_wrong: bool) -> None:
        section, _, name = key.rpartition(".")
        text = f"{section}:\n  {name}: {value}\n" if section else f"{name}: {value}\n"
        found = [each for each in read(text).findings if each.code is TrainersCode.CONFIG_WRONG_TYPE]
        assert [(each.line, each.severity) for each in found] == (
            [(2 if section else 1, Severity.SUSPECT)] if is_wrong else []
        )

    @pytest.mark.parametrize("name", ["save_checkpoint_steps", "keep_checkpoint_max"])
    @pytest.mark.parametrize(("value", "is_wrong"), [("0", True), ("-1", True), ("1", False), ("null", False)])
    def test_what_saves_saves_every_so_many_steps_and_keeps_some(self, name: str, value: str, is_wrong: bool) -> None:
        text = f"callbacks:\n  - type: MFLossMonitor\n  - type: CheckpointMonitor\n    {name}: {value}\n"
        found = [each for each in read(text).findings if each.code is TrainersCode.CONFIG_WRONG_TYPE]
        assert [each.line for each in found] == ([4] if is_wrong else [])

    @pytest.mark.parametrize(
        ("loader", "samples"),
        [
            ("{type: BlendedMegatronDatasetDataLoader, sizes: [1000, 0, 0]}", 1000),
            ("{type: BlendedMegatronDatasetDataLoader, sizes: [-1, 0, 0]}", None),
            ("{type: BlendedMegatronDatasetDataLoader, sizes: [True]}", None),
            ("{type: BlendedMegatronDatasetDataLoader, sizes: [1.5]}", None),
            ("{type: BlendedMegatronDatasetDataLoader, sizes: []}", None),
            ("{type: BlendedMegatronDatasetDataLoader, sizes: 1000}", None),
            ("{type: MindDataset, sizes: [1000, 0, 0]}", None),
            ("text", None),
        ],
    )
    def test_samples_are_taken_where_the_config_counts_them(self, loader: str, samples: int | None) -> None:
        assert read(f"train_dataset: {{data_loader: {loader}}}").dataset_samples == samples

    def test_sinking_the_whole_data_set_has_no_size_and_says_so(self) -> None:
        text = "runner_config: {sink_size: -1}"
        assert (read(text).sink_mode, read(text).sink_size) == (True, None)
        assert "--sink-size" in str(only(text).remedy)
        assert findings("runner_config: {sink_size: -1, sink_mode: False}") == []

    @pytest.mark.parametrize("bad", ["0", "-2", "'2'", "2.5", "null"])
    def test_a_sink_size_that_is_none_is_found(self, bad: str) -> None:
        assert only(f"runner_config: {{sink_size: {bad}}}").code is TrainersCode.CONFIG_WRONG_TYPE


class TestLayout:
    @pytest.mark.parametrize(
        ("text", "picks"),
        [
            ("use_checkpoint_health_monitor: True", True),
            ("monitor_config: {health_checkpoint: {embedding_local_norm_threshold: 270.0}}", True),
            ("monitor_config: {health_checkpoint: {global_norm_spike_threshold: 3.0}}", False),
            ("use_checkpoint_health_monitor: False", False),
        ],
    )
    def test_the_health_check_is_on_where_a_threshold_is_or_will_be_set(self, text: str, *, picks: bool) -> None:
        assert read(text).health_check_picks is picks


class TestNumbersReadAsText:
    @pytest.mark.parametrize(
        ("text", "right"), [("1e-5", "1.0e-5"), ("3E8", "3.0e+8"), ("1.5e3", "1.5e+3"), (".5e3", ".5e+3")]
    )
    def test_an_exponent_without_point_or_sign_is_found_with_its_cure(self, text: str, right: str) -> None:
        finding = only(f"optimizer:\n  learning_rate: {text}\n")
        assert (finding.code, finding.severity, finding.line) == (TrainersCode.CONFIG_WRONG_TYPE, Severity.SUSPECT, 2)
        assert f"write {right}," in str(finding.remedy)
        assert isinstance(yaml.safe_load(right), float)

    @pytest.mark.parametrize("text", ["1.0e-5", "1.0e+5", "0.1", "'1e-5'", "1", "3e", "e5", "1e5b", "v1e5", ".inf"])
    def test_a_number_or_a_text_that_is_meant_is_left_alone(self, text: str) -> None:
        assert findings(f"optimizer:\n  learning_rate: {text}\n") == []

    def test_in_a_list_and_under_an_unknown_key_it_is_found_too(self) -> None:
        assert only("optimizer: {betas: [0.9, 95e-2]}").message.startswith("`optimizer.betas[1]` is 95e-2")
        assert only("commit: 1234e5").severity is Severity.NOTE
        assert only("model: {rms_norm_eps: 1e-6}").severity is Severity.SUSPECT

    @given(
        st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["{:e}", "{:g}", "{:.0e}", "{:.3e}", "{}"])
    )
    def test_every_spelling_of_a_float_is_a_number_to_yaml_or_is_found(self, number: float, spelling: str) -> None:
        text = spelling.format(number)
        is_number = isinstance(yaml.safe_load(text), int | float)
        assert bool(findings(f"lr: {text}")) is not is_number


NOTE, SUSPECT = Severity.NOTE, Severity.SUSPECT
STEPS = "runner_config: {gradient_accumulation_steps: 4}\n"
SLICED = "parallel_config: {{data_parallel: 4}}\nparallel: {{full_batch: False, dataset_strategy: {}}}"


@pytest.mark.parametrize(
    ("text", "code", "severity", "words"),
    [
        # A wrong type is a note where a launch writes the key itself.
        ("auto_trans_ckpt: 'False'", TrainersCode.CONFIG_WRONG_TYPE, SUSPECT, ""),
        ("use_parallel: 1", TrainersCode.CONFIG_WRONG_TYPE, SUSPECT, ""),
        ("runner_config: {sink_mode: 'no'}", TrainersCode.CONFIG_WRONG_TYPE, SUSPECT, ""),
        ("ignore_data_skip: 1", TrainersCode.CONFIG_WRONG_TYPE, NOTE, ""),
        ("load_ckpt_format: .ckpt", TrainersCode.CONFIG_WRONG_TYPE, NOTE, ""),
        ("load_ckpt_format: [ckpt]", TrainersCode.CONFIG_WRONG_TYPE, NOTE, ""),
        ("resume_training: 'True'", TrainersCode.CONFIG_WRONG_TYPE, NOTE, ""),
        ("resume_training: 1", TrainersCode.CONFIG_WRONG_TYPE, NOTE, ""),
        ("data_skip_steps: '5'", TrainersCode.CONFIG_WRONG_TYPE, NOTE, ""),
        ("data_skip_steps: -5", TrainersCode.CONFIG_WRONG_TYPE, NOTE, ""),
        ("data_skip_steps: True", TrainersCode.CONFIG_WRONG_TYPE, NOTE, ""),
        # 0 means unset.
        ("data_skip_steps: 0", TrainersCode.CONFIG_KEY_IGNORED, NOTE, "ignore_data_skip"),
        ("model: {data_skip_steps: 5}\ndata_skip_steps: 5", TrainersCode.CONFIG_KEY_IGNORED, NOTE, ""),
        ("model: {data_skip_steps: 5}\ndata_skip_steps: 6", TrainersCode.CONFIG_KEY_IGNORED, SUSPECT, ""),
        ("trainer: {type: x, auto_register: m.T, data_skip_steps: 5}", TrainersCode.CONFIG_KEY_IGNORED, SUSPECT, ""),
        ("sink_size: 2", TrainersCode.CONFIG_KEY_IGNORED, SUSPECT, "_config:"),
        ("batch_size: 4", TrainersCode.CONFIG_KEY_IGNORED, SUSPECT, "_config:"),
        ("data_parallel: 2", TrainersCode.CONFIG_KEY_IGNORED, SUSPECT, "_config:"),
        ("epochs: 2", TrainersCode.CONFIG_KEY_IGNORED, SUSPECT, "_config:"),
        ("use_legacy_format: True\ncheckpoint: {save_max: 3}", Code.CONFIG_DISAGREES, NOTE, ""),
        ("parallel_config: {micro_batch_num: 4}", TrainersCode.CONFIG_KEY_IGNORED, NOTE, ""),
        (STEPS, TrainersCode.CONFIG_KEY_IGNORED, NOTE, "without use_parallel"),
        (
            f"{STEPS}use_parallel: True\nparallel_config: {{pipeline_stage: 2}}\n",
            TrainersCode.CONFIG_KEY_IGNORED,
            NOTE,
            "with pipeline stages",
        ),
        *(
            (SLICED.format(strategy), Code.CONFIG_DISAGREES, SUSPECT, "")
            for strategy in ("[[2, 1]]", "[2]", "[[]]", "['full']")
        ),
    ],
)
def test_a_setting_that_does_nothing_is_found_alone(text: str, code: Row, severity: Severity, words: str) -> None:
    finding = only(text)
    assert (finding.code, finding.severity, finding.path) == (code, severity, "base.yaml")
    assert finding.line == 1 or "\n" in text.rstrip()
    assert finding.remedy
    assert words in finding.message + finding.remedy


@pytest.mark.parametrize(
    "text",
    [
        "auto_trans_ckpt: True",
        "auto_trans_ckpt:",
        "load_ckpt_format: safetensors",
        "resume_training: llama_rank_0-1_2.ckpt",
        "data_skip_steps:",
        "data_skip_steps: 5",
        "checkpoint: {save_max: 3}\nuse_legacy_format: False",
        "train_dataset: {batch_size: 4}\neval_dataset: {batch_size: 1}",
        "parallel_config: {micro_batch_num: 4, pipeline_stage: 2}",
        f"{STEPS}use_parallel: True\n",
        SLICED.format("[[4, 1], [4, 1]]"),
        SLICED.format("[[2, 1]]").replace("full_batch: False", "full_batch: True"),
        SLICED.format("full_batch"),
        SLICED.format("[]"),
        *(f"callbacks: {other}" for other in ("null", "[a, 1]", "{a: 1}", "[{type: Other, prefix: rank_1}]")),
        *(
            f"trainer: {own}\ndata_skip_steps: 5\n"
            for own in (
                "{type: T, model_name: n}",
                "{type: T}",
                "",
                "text",
                "[data_skip_steps]",
                "{}",
                "{type: x, auto_register: m.T, own: 1}",
            )
        ),
    ],
)
def test_a_setting_that_counts_is_left_alone(text: str) -> None:
    assert findings(text) == []


class TestPlaces:
    @pytest.mark.parametrize("section", ["runner_config", "parallel_config", "checkpoint", "model"])
    def test_resume_training_in_a_section_is_suspect(self, section: str) -> None:
        finding = only(f"{section}:\n  resume_training: True\n")
        assert (finding.code, finding.severity, finding.line) == (TrainersCode.CONFIG_KEY_IGNORED, Severity.SUSPECT, 2)
        assert ("KeyError" in finding.message) is section.endswith("_config")

    @pytest.mark.parametrize(
        ("text", "remedy"),
        [
            ("trainer:\n  data_skip_steps: 5", "move `data_skip_steps` to the top level"),
            ("trainer:\n  data_skip_steps: 5\ndata_skip_steps: 6", "move `data_skip_steps` to the top level"),
            ("trainer:\n  resume_training: 1\nresume_training: True\n", "move `resume_training` to the top level"),
            (
                "trainer:\n  data_skip_steps: 5\ndata_skip_steps: 5",
                "delete it: the top level has the same value, written by an older `ckpttool launch`",
            ),
            ("trainer:\n  seed: 5\nseed: 5", "delete it: the top level has the same value"),
            ("trainer:\n  epochs: 5\n", "delete it"),
            ("trainer:\n  5: 5\n", "delete it"),
            ("trainer:\n  a.b: 5\n", "delete it"),
        ],
    )
    def test_any_key_of_the_trainer_but_two_stops_every_start(self, text: str, remedy: str) -> None:
        (finding,) = [each for each in findings(text) if each.code is MindFormersCode.TRAINER_KEY_REFUSED]
        assert (finding.severity, finding.line, finding.remedy) == (Severity.SUSPECT, 2, remedy)
        assert "every start ends in a TypeError" in finding.message
        assert not [each for each in findings(text) if each.code is TrainersCode.CONFIG_KEY_IGNORED]


class TestDisagreements:
    @pytest.mark.parametrize(
        ("prefix", "more", "found"),
        [
            ("my_rank_7_model", "", True),
            ("llama3.1", "auto_trans_ckpt: True", True),
            ("llama3.1", "", False),
            ("llama-7b", "", False),
            ("llama_7b", "auto_trans_ckpt: True", False),
        ],
    )
    def test_a_prefix_that_breaks_a_resume_is_suspect(self, prefix: str, more: str, *, found: bool) -> None:
        text = f"callbacks:\n  - type: MFLossMonitor\n  - type: CheckpointMonitor\n    prefix: {prefix}\n{more}\n"
        assert [finding.line for finding in findings(text)] == ([4] if found else [])


class TestHostileYaml:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a: 1\nb: 2\na: 3\n", "line 3: 'a' was set before, on line 1"),
            ("{a: 1, a: 2}", "line 1: 'a' was set before, on line 1"),
            ("a:\n  b: 1\n  b: 1\n", "line 3: 'b' was set before"),
            ("a: !!python/object/apply:os.system [true]\n", "is not allowed in a config"),
            ("a: !mine 1\n", "the tag '!mine'"),
            ("!mine a: 1\n", "the tag '!mine'"),
            ("a: !!binary aGk=\n", "is not allowed in a config"),
            ("? [1]\n: 2\n", "cannot be a key"),
            (f"a: {'1' * 2000}\n", "line 1: a number of 2000 characters is not allowed in a config"),
            ("a: &x [*x]\n", "contains itself"),
            ("a: [1\n", "line 2"),
            ("a: \x07\n", "is not valid YAML"),
            ("a: 2024-13-45\n", "cannot be read"),
            ("a: *nowhere\n", "line 1"),
            ("", "has no settings"),
            ("# only a comment\n", "has no settings"),
            ("- a\n", "has no settings"),
            ("a: 1\n---\nb: 2\n", "expected a single document"),
        ],
    )
    def test_what_cannot_be_a_config_is_one_clear_line(self, text: str, message: str) -> None:
        with pytest.raises(UsageError, match=r".") as error:
            parse_document(text.encode(), where="base.yaml")
        assert message in str(error.value)
        assert "base.yaml" in str(error.value)
        assert "\n" not in str(error.value)

    def test_aliases_anchors_and_merges_of_a_real_config_are_followed(self) -> None:
        text = "base: &b {epochs: 2, batch_size: 4}\nrunner_config:\n  <<: *b\n  batch_size: 8\nother: *b\n"
        assert parse_document(text.encode(), where="base.yaml").data == yaml.safe_load(text)
        assert read(text).global_batch_size == 8

    @given(st.text(alphabet="ab:-[]{}&*!|>'\"#%@,? \n\t019.e<", max_size=40))
    def test_whatever_the_text_it_is_read_as_pyyaml_reads_it_or_refused(self, text: str) -> None:
        try:
            document = parse_document(text.encode(), where="base.yaml")
        except CkptToolError as error:
            assert "\n" not in str(error)  # noqa: PT017  # most such texts are no YAML; the few that are must agree
        else:
            assert document.data == yaml.safe_load(text)


def test_a_value_as_long_as_a_file_is_not_repeated_in_full() -> None:
    text = f"parallel: {{full_batch: False, dataset_strategy: [[{'x' * 100_000}, 1]]}}\nlr: {'1' * 90_000}e5\n"
    findings = read(text).findings
    assert {Code.CONFIG_DISAGREES, TrainersCode.CONFIG_WRONG_TYPE} <= {finding.code for finding in findings}
    assert all(len(f"{one.message}{one.expected}{one.actual}{one.remedy}") < 4100 for one in findings)
    assert any(one.message.startswith("`dataset_strategy` slices the data xx") for one in findings)
    assert any(one.message.endswith("stop unless they are equal") for one in findings)


class TestStreaming:
    LOADER = "train_dataset:\n  data_loader:\n    type: {}\n    streaming: {}\n    dataset_state_dir: states\n"
    STREAMS = LOADER.format("HFDataLoader", "True")

    @pytest.mark.parametrize(
        ("kind", "streaming", "expected"),
        [("HFDataLoader", True, True), ("CommonDataLoader", True, True), ("HFDataLoader", False, False),
         ("MindDataset", True, False), ("[HFDataLoader]", True, False)],
    )  # fmt: skip
    def test_is_what_the_loader_says(self, kind: str, streaming: bool, expected: bool) -> None:
        assert (read(self.LOADER.format(kind, streaming)).streaming is not None) is expected

    @pytest.mark.parametrize(
        ("more", "slices"),
        [
            ("", None),
            ("parallel: {dataset_strategy: [[4, 1], [4, 1]]}", 4),
            ("parallel: {dataset_strategy: full_batch}", None),
            ("parallel: {dataset_strategy: []}", None),
            ("parallel: {dataset_strategy: [[x]]}", None),
            ("parallel: {dataset_strategy: [[0, 1]]}", None),
            ("parallel: {dataset_strategy: [[True, 1]]}", None),
            ("parallel_config: {data_parallel: 2}", None),
        ],
    )
    def test_slices_are_told_by_the_strategy(self, more: str, slices: int | None) -> None:
        stream = read(f"use_parallel: True\n{self.STREAMS}{more}\n").streaming
        assert stream is not None
        assert stream.slices == slices
        assert (stream.state_dir, stream.broadcast, stream.level) == ("states", True, 3)

    @pytest.mark.parametrize(
        "more", ["handler: [{type: PackingHandler}]", "create_attention_mask: True", "create_compressed_eod_mask: True"]
    )
    def test_packed_data_are_sliced_for_each_data_parallel_rank(self, more: str) -> None:
        stream = read(f"{self.STREAMS}    {more}\nparallel_config: {{data_parallel: 2}}\n").streaming
        assert stream is not None
        assert stream.slices == 2
