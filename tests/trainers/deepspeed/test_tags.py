"""What DeepSpeed's tags are, by the files that lie in them and by what one of those says."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.checkpoint import Content
from ckpttool.core.domain.finding import Code, Row, Severity, blocking
from ckpttool.core.domain.question import AskedSizes
from ckpttool.core.domain.shard import ShardRole
from ckpttool.trainers.deepspeed_tags import StatesFile, parse
from ckpttool.trainers.deepspeed_tags.record import tag_record
from ckpttool.trainers.findings import TrainersCode
from ckpttool.types import ResumeQuestion
from tests.support.answers import chosen, cli, codes, plan, refusal, scanned
from tests.support.trainer_trees import LAYOUTS, healthy


@pytest.fixture
def zero1(tmp_path: Path) -> Path:
    return healthy("ds_zero1_2ranks", tmp_path)


def model_file(folder: Path, name: str = "mp_rank_00_model_states.pt", **said: object) -> None:
    """Write a model file that says this and no more."""
    usual = {"global_steps": 6, "global_samples": 24, "dp_world_size": 2, "mp_world_size": 1, "optimizer": None}
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr(f"{name[:-3]}/data.pkl", pickle.dumps({**usual, **said}, protocol=2))
        archive.writestr(f"{name[:-3]}/version", "3\n")


def lost(root: Path, name: str = "global_step6") -> set[str]:
    """What is missed of a save."""
    save = next(each for each in scanned(root).checkpoints if each.name == name)
    return {str(finding.path).rpartition("/")[2] for finding in save.findings if finding.code is Code.SHARD_MISSING}


class TestNames:
    @pytest.mark.parametrize(
        ("name", "is_"),
        [
            ("mp_rank_00_model_states.pt", StatesFile(ShardRole.MODEL, 0)),
            ("mp_rank_107_model_states.pt", StatesFile(ShardRole.MODEL, 107)),
            ("zero_pp_rank_3_mp_rank_01_model_states.pt", StatesFile(ShardRole.MODEL, 1, 3)),
            ("zero_pp_rank_12_mp_rank_00_optim_states.pt", StatesFile(ShardRole.OPTIMIZER, 0, 12)),
            ("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", StatesFile(ShardRole.OPTIMIZER, 0, 0, is_bf16=True)),
            ("layer_00-model_00-model_states.pt", StatesFile(ShardRole.MODEL)),
            ("layer_3_expert_7_mp_rank_00_model_states.pt", StatesFile(ShardRole.MODEL)),
            ("expp_rank_1_mp_rank_00_optim_states.pt", StatesFile(ShardRole.OPTIMIZER)),
        ],
    )
    def test_a_file_of_a_tag_is_known_by_its_name(self, name: str, is_: StatesFile) -> None:
        assert parse(name) == is_

    @pytest.mark.parametrize(
        "name",
        [
            "mp_rank_00_optim_states.pt",
            "bf16_zero_pp_rank_0_mp_rank_00_model_states.pt",
            "zero_pp_rank_00_mp_rank_00_optim_states.pt",
            "mp_rank_0_model_states.pt",
            "mp_rank_00_model_states.pt.bak",
            "mp_rank_00_model_states.pt\n",
            "pytorch_model.bin",
        ],
    )
    def test_what_is_spelled_otherwise_is_none(self, name: str) -> None:
        assert parse(name) is None


class TestRecord:
    @pytest.mark.parametrize(
        ("settings", "size"),
        [
            ({"train_batch_size": 12}, 12),
            ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}, 12),
            ({"train_micro_batch_size_per_gpu": 2}, 4),
            ({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}, None),
            ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto"}, None),
            ("ds_config.json", None),
        ],
    )
    def test_the_batch_is_what_the_settings_say_or_its_factors(self, settings: object, size: int | None) -> None:
        assert tag_record({"dp_world_size": 2, "ds_config": settings}).global_batch_size == size

    @pytest.mark.parametrize(
        ("settings", "stage"),
        [
            ({"zero_optimization": {"stage": 2}}, 2),
            ({"zero_optimization": True}, 1),
            ({"zero_optimization": {"stage": "auto"}}, None),
            ({"fp16": {}}, 0),
            ("ds_config.json", None),
        ],
    )
    def test_the_stage_is_what_the_settings_say(self, settings: object, stage: int | None) -> None:
        assert tag_record({"ds_config": settings}).zero_stage == stage


class TestExpected:
    def test_without_zero_no_optimizer_file_is_missed_where_the_model_file_has_its_state(self, zero1: Path) -> None:
        tag = zero1 / "global_step6"
        for file in tag.glob("*_optim_states.pt"):
            file.unlink()
        model_file(tag, optimizer={"state": {}}, ds_config={"train_batch_size": 4})
        save = scanned(zero1).checkpoints[-1]
        assert (lost(zero1), save.content) == (set(), Content.FULL)
        model_file(tag, ds_config={"zero_optimization": {"stage": 1}})
        assert len(lost(zero1)) == 2

    def test_where_the_settings_are_a_path_the_files_tell_the_stage(self, zero1: Path) -> None:
        model_file(zero1 / "global_step6", ds_config="ds_config.json")
        assert lost(zero1) == set()
        (zero1 / "global_step6" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").unlink()
        assert lost(zero1) == {"zero_pp_rank_0_mp_rank_00_optim_states.pt"}

    def test_where_nothing_tells_the_stage_nobody_knows_whether_the_save_is_whole(self, zero1: Path) -> None:
        tag = zero1 / "global_step6"
        model_file(tag, ds_config="ds_config.json")
        for file in tag.glob("*_optim_states.pt"):
            file.unlink()
        save = scanned(zero1).checkpoints[-1]
        assert {finding.code for finding in blocking(save.findings)} == {Code.METADATA_INCOMPLETE}

    def test_the_optimizer_of_bf16_names_its_files_so_at_any_stage(self, zero1: Path) -> None:
        tag = zero1 / "global_step6"
        for file in tag.glob("zero_pp_rank_*"):
            file.rename(tag / f"bf16_{file.name}")
        for settings in ({"zero_optimization": {"stage": 1}}, {"bf16": {"enabled": True}}):
            model_file(tag, ds_config=settings)
            assert lost(zero1) == set()
        (tag / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
        assert lost(zero1) == {"bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"}

    def test_ranks_are_counted_as_a_pipeline_lays_them_out(self) -> None:
        sizes: Mapping[str, object] = {"pp_degree": 2, "tp_degree": 2}
        record = tag_record({"dp_world_size": 3, "mp_world_size": 4, "checkpoint_parallel_dimensions": sizes})
        ranks = [record.rank(StatesFile(ShardRole.OPTIMIZER, mp, dp)) for mp in range(4) for dp in range(3)]
        assert ranks == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


class TestTree:
    def test_a_tag_may_have_any_name_and_a_path_in_it_means_it(self, zero1: Path) -> None:
        (zero1 / "global_step6").rename(zero1 / "best model")
        (zero1 / "latest").write_text("best model")
        assert {save.name for save in scanned(zero1).checkpoints} == {"global_step3", "best model"}
        for path in ("best model", "best model/mp_rank_00_model_states.pt"):
            answer = cli("resolve", str(zero1 / path), "--json")
            assert '"name": "best model"' in answer.stdout

    @pytest.mark.parametrize("text", ["../elsewhere", "/global_step6", "a\0b", "."])
    def test_a_tag_that_leads_elsewhere_is_not_followed(self, zero1: Path, text: str) -> None:
        (zero1 / "latest").write_text(text)
        inventory = scanned(zero1)
        assert inventory.tracked is None
        assert [finding.path for finding in inventory.findings] == ["latest"]

    def test_a_tag_that_is_gone_is_named(self, zero1: Path) -> None:
        assert scanned(zero1).findings == ()
        (zero1 / "latest").write_text("global_step9")
        (found,) = scanned(zero1).findings
        assert (found.code, found.path) == (Code.TRACKER_DISAGREES, "latest")
        assert "names global_step9, which does not exist: without a tag DeepSpeed stops here" in found.message
        assert chosen(plan(zero1)) == ("global_step6", 6)

    @pytest.mark.parametrize(("seconds", "taken"), [(-60, ("global_step6", 6)), (60, ("global_step3", 3))])
    def test_a_latest_that_was_set_back_later_is_a_rewind(
        self, zero1: Path, seconds: int, taken: tuple[str, int]
    ) -> None:
        (zero1 / "latest").write_text("global_step3")
        for path in zero1.rglob("*"):
            os.utime(path, (1_700_000_000,) * 2)
        os.utime(zero1 / "latest", (1_700_000_000 + seconds,) * 2)
        assert chosen(plan(zero1)) == taken

    def test_an_empty_folder_that_is_called_like_a_save_is_one_that_was_cut_off(self, zero1: Path) -> None:
        (zero1 / "global_step9").mkdir()
        (zero1 / "logs").mkdir()
        inventory = scanned(zero1)
        assert [save.name for save in inventory.checkpoints] == ["global_step3", "global_step6", "global_step9"]
        assert inventory.strays == ("logs",)
        assert chosen(plan(zero1)) == ("global_step6", 6)


@pytest.mark.parametrize("tree", ["ds_zero1_2ranks", "ds_zero3_2ranks"])
def test_a_start_is_told_folder_and_tag_and_its_counters_go_on(tree: str) -> None:
    found = plan(LAYOUTS / tree)
    assert found.next_step == 7
    assert [(str(each.place), each.value) for each in found.load.settings] == [
        ("code:load_checkpoint(load_dir)", str(LAYOUTS / tree)),
        ("code:load_checkpoint(..., tag)", "global_step6"),
        ("file:latest", "global_step6"),
    ]


class TestAStartWithoutZero:
    @pytest.fixture
    def plain(self, zero1: Path) -> Path:
        for file in zero1.glob("*/*_optim_states.pt"):
            file.unlink()
        model_file(zero1 / "global_step6", optimizer={"state": {}}, ds_config={"train_batch_size": 4})
        return zero1

    def test_with_other_ranks_loads_it_and_it_is_said(self, plain: Path) -> None:
        told = plan(plain, choice=ResumeQuestion(sizes=AskedSizes(world=4)))
        assert Code.WORLD_SIZE_DIFFERS in codes(told.findings)

    def test_with_another_cut_of_the_model_is_refused(self, plain: Path) -> None:
        refused = refusal(plain, choice=ResumeQuestion(sizes=AskedSizes(world=4, tensor=2)))
        assert refused.rejected


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"train_batch_size": "auto"}', [TrainersCode.BATCH_SIZE_UNKNOWN]),
        ('{"zero_optimization": {"stage": 1}, "train_batch_size": 16}', []),
        ('{"train_batch_size": 16}', [Code.CONFIG_UNUSABLE]),  # a size that others may have, too
        ('{"data": {"train_batch_size": "auto"}}', [Code.CONFIG_UNUSABLE]),
    ],
)
def test_batches_that_the_trainer_fills_in_are_a_note(text: str, found: list[Row], tmp_path: Path) -> None:
    config = tmp_path / "ds.json"
    config.write_text(text)
    (check,) = ckpttool.lint_config(str(config)).checks
    assert [reason.finding.code for reason in check.reasons] == found
    if found == [TrainersCode.BATCH_SIZE_UNKNOWN]:
        (reason,) = check.reasons
        assert reason.finding.severity is Severity.NOTE
        assert "--dp N" in (reason.finding.remedy or "")
