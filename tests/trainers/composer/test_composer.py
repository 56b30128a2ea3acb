"""Composer's trees: names, links and copies of links, contents, sizes, and the data after a resume."""

from __future__ import annotations

import shutil
from pathlib import Path
from zipfile import ZipFile

import pytest

import ckpttool
from ckpttool.core.domain.checkpoint import Content, StepSource
from ckpttool.core.domain.data_position import DataEffect, GoesOn
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.plan import Outcome, ResumePlan
from ckpttool.core.domain.preflight import Outcome as Ended
from ckpttool.core.domain.question import AskedSizes
from ckpttool.trainers.base import Members, Refusal
from ckpttool.types import DataQuestion, PreflightQuestion, ResumeQuestion, TreeQuestion
from tests.support.answers import chosen, codes, going, named, plan, scanned, simulated, start_check, why_not
from tests.support.shard_writers import torch_file
from tests.support.trainer_trees import healthy

NEWEST, LATEST = "ep1-ba14-rank0.pt", "latest-rank0.pt"


@pytest.fixture
def single(tmp_path: Path) -> Path:
    return healthy("composer_single", tmp_path)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return healthy("composer_fsdp", tmp_path / "sharded")


def test_the_step_is_the_count_of_batches_and_the_name_of_a_copy_changes_nothing(sharded: Path) -> None:
    """`Timestamp.iteration` stays 0 unless a length is given for it, and the names count epochs and batches."""
    saves = {save.name: (save.step, save.samples, dict(save.facts)["epoch"]) for save in scanned(sharded).checkpoints}
    assert saves == {"ep0-ba6": (6, 24, 0), "ep1-ba12": (12, 48, 1)}
    shutil.copytree(sharded / "ep0-ba6", sharded / "ep9-ba900")
    assert plan(sharded).point.checkpoint.name == "ep1-ba12"
    assert going(sharded) == {"ep0-ba6"}


def test_a_folder_that_the_user_named_is_known_by_the_counters_in_it(sharded: Path) -> None:
    (sharded / LATEST).unlink()
    (sharded / "ep0-ba6").rename(sharded / "ba6-shards")
    (sharded / "ep1-ba12").rename(sharded / "ba12-shards")
    inventory = scanned(sharded)
    assert (inventory.layout, [save.step for save in inventory.checkpoints]) == ("composer", [6, 12])


@pytest.mark.parametrize("tree", ["composer_single", "composer_fsdp"])
def test_the_link_is_another_name_of_its_target_which_no_prune_takes(tree: str, tmp_path: Path) -> None:
    scan = ckpttool.scan(TreeQuestion(path=str(healthy(tree, tmp_path))))
    *others, last = scan.inventory.checkpoints
    assert last.aliases == (LATEST,)
    assert isinstance(scan.layout.members(last), Refusal)
    assert all(isinstance(scan.layout.members(save), Members) for save in others)


class TestACopyInThePlaceOfTheLink:
    """As a machine has it that fetched the last save from a store."""

    def test_is_chosen_if_the_save_itself_is_cut(self, single: Path) -> None:
        (single / LATEST).unlink()
        shutil.copyfile(single / NEWEST, single / LATEST)
        assert plan(single).point.checkpoint.name == NEWEST
        (single / NEWEST).write_bytes((single / NEWEST).read_bytes()[:-100])
        assert plan(single).point.checkpoint.name == LATEST

    def test_is_a_save_if_it_is_all_that_is_there(self, single: Path) -> None:
        content = (single / NEWEST).read_bytes()
        for path in single.iterdir():
            path.unlink()
        (single / LATEST).write_bytes(content)
        point = plan(single).point
        assert (point.checkpoint.name, point.step) == (LATEST, 14)

    def test_stops_a_run_whose_saves_are_folders(self, sharded: Path) -> None:
        (sharded / LATEST).unlink()
        shutil.copytree(sharded / "ep1-ba12", sharded / LATEST)
        assert simulated(sharded).outcome is Outcome.STOPS
        assert plan(sharded).point.step == 12


def test_weights_alone_have_the_step_of_their_name_and_are_not_chosen(tmp_path: Path) -> None:
    root = healthy("composer_weights", tmp_path)
    (save,) = scanned(root).checkpoints
    assert (save.step, save.step_source, save.content) == (14, StepSource.NAME, Content.WEIGHTS_ONLY)
    told = simulated(root)
    assert (told.outcome, "FileExistsError" in told.because) == (Outcome.STOPS, True)


def test_a_text_of_a_store_stands_for_the_link(sharded: Path) -> None:
    (sharded / LATEST).unlink()
    text = sharded / f"{LATEST}.symlink"
    text.write_text("runs/one/checkpoints/ep0-ba6")
    assert simulated(sharded).would_resume == "ep0-ba6"
    assert scanned(sharded).strays == ()
    text.write_text("runs/one/checkpoints/ep7-ba99")
    assert simulated(sharded).outcome is Outcome.STOPS


def test_a_newer_file_that_remains_must_be_overwritten_or_moved(single: Path, sharded: Path) -> None:
    assert "save_overwrite" not in {str(setting.place) for setting in plan(single).load.settings}
    (single / NEWEST).write_bytes(b"")
    load = plan(single).load
    assert (load.path, load.value("config:save_overwrite")) == (f"{single}/ep1-ba12-rank0.pt", True)
    (sharded / "ep1-ba12" / ".metadata").unlink()
    assert plan(sharded).load.value("config:save_overwrite") is None


@pytest.mark.parametrize(
    "content",
    [
        {"weights": 1},
        {"state": {"x": 1}},
        {"state": {"timestamp": {"Timestamp": {"batch": 20}}, "optimizers": {"Adam": {"state": 1}}}},
    ],
    ids=["another-file", "another-state", "no-model"],
)
def test_a_file_of_another_kind_under_the_name_of_a_save_is_not_chosen(content: object, single: Path) -> None:
    (single / "ep9-ba20-rank0.pt").write_bytes(torch_file(content))
    answer = plan(single)
    assert chosen(answer) == ("ep1-ba14-rank0.pt", 14)
    assert why_not(answer) == [("ep9-ba20-rank0.pt", {Code.METADATA_INCOMPLETE})]


def retrained(file: Path) -> None:
    """Change a tensor and its checksum, as another training run would."""
    with ZipFile(file) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with ZipFile(file, "w") as archive:
        for name, data in records.items():
            archive.writestr(name, data[::-1] if name.endswith("/data/0") else data)


def test_a_file_of_another_run_in_the_place_of_the_link_is_no_copy(single: Path) -> None:
    (single / "latest-rank0.pt").unlink()
    shutil.copyfile(single / "ep1-ba14-rank0.pt", single / "latest-rank0.pt")
    assert named(scanned(single), "ep1-ba14-rank0.pt").aliases == ("latest-rank0.pt",)
    retrained(single / "latest-rank0.pt")
    inventory = scanned(single)
    assert named(inventory, "ep1-ba14-rank0.pt").aliases == ()
    assert Code.RUN_MIXED in codes(inventory.findings)
    assert chosen(plan(single)) == ("ep1-ba14-rank0.pt", 14)
    assert simulated(single).would_resume == "latest-rank0.pt"


@pytest.mark.parametrize("tree", ["composer_single", "composer_fsdp"])
def test_another_number_of_ranks_is_a_note(tree: str, tmp_path: Path) -> None:
    told = plan(healthy(tree, tmp_path), choice=ResumeQuestion(sizes=AskedSizes(world=4)))
    assert Code.WORLD_SIZE_DIFFERS in {finding.code for finding in told.findings}


class TestWhereTheDataGoOn:
    @staticmethod
    def position(root: Path, gbs: int | None = None) -> GoesOn:
        data = plan(root, data=DataQuestion(new_global_batch=gbs)).data
        assert isinstance(data, GoesOn)
        return data

    def test_a_data_set_that_keeps_its_place_goes_on_if_nothing_changed(self, tmp_path: Path) -> None:
        root = healthy("composer_streamed", tmp_path)
        data = self.position(root)
        assert (data.effect, data.samples, bool(data.exact_if)) == (DataEffect.EXACT, 56, True)
        assert self.position(root, 8).effect is DataEffect.REORDERS

    @pytest.mark.parametrize(
        ("gbs", "effect", "lost", "repeated"),
        [
            (None, DataEffect.UNKNOWN, None, None),
            (4, DataEffect.UNKNOWN, None, None),
            (8, DataEffect.LOSES, 16, 0),
            (2, DataEffect.REPEATS, 0, 8),
        ],
    )
    def test_any_other_is_read_again_by_batches(
        self, single: Path, gbs: int | None, effect: DataEffect, lost: int | None, repeated: int | None
    ) -> None:
        """As run: with 8 the first batch began at 32 of an epoch of which 16 were read, with 2 at 8."""
        data = self.position(single, gbs)
        assert (data.effect, data.lost, data.repeated) == (effect, lost, repeated)


CONFIG = "global_train_batch_size: 4\nsave_folder: {root}\n"
CONFIGS = [
    ("autoresume: true", Ended.PASSED, "would load"),
    ("autoresume: true\nload_path: {root}/ep0-ba8-rank0.pt", Ended.PASSED, "would load"),
    ("autoresume: true\nsave_folder: /elsewhere", Ended.FAILED, "would load /elsewhere"),
    ("autoresume: true\nsave_folder: s3://bucket/run", Ended.UNKNOWN, "was not checked"),
    ("autoresume: true\nsave_latest_filename: newest.pt", Ended.UNKNOWN, "only latest-rank0.pt was looked for"),
    ("load_path: {root}/ep1-ba14-rank0.pt", Ended.PASSED, "would load"),
    ("load_path: {root}/ep1-ba14-rank{rank}.pt", Ended.PASSED, "would load"),
    ("load_path: {root}/latest-rank0.pt", Ended.PASSED, "would load"),
    ("load_path: {root}/ep1-ba12-rank0.pt", Ended.FAILED, "would load ep1-ba12-rank0.pt and then stop"),
    ("load_path: {root}/ep1-ba12-rank0.pt\nsave_overwrite: true", Ended.FAILED, "would load ep1-ba12-rank0.pt, not"),
    ("load_path: {root}/ep1-ba13-rank0.pt", Ended.FAILED, "would stop"),
    ("load_path: s3://bucket/ep1-ba14-rank0.pt", Ended.UNKNOWN, "was not checked"),
    ("load_path: [newest]", Ended.UNKNOWN, "`load_path` is not a path"),
    ("load_path: ''", Ended.UNKNOWN, "`load_path` is not a path"),
    ("load_path: {root}/ep1-ba14-rank0.pt\nload_weights_only: true", Ended.FAILED, "without a part of it"),
    ("", Ended.FAILED, "would stop"),
    ("save_overwrite: true", Ended.FAILED, "at step 0"),
]


@pytest.mark.parametrize(("more", "ended", "words"), CONFIGS)
def test_what_a_config_names_must_be_the_choice(
    more: str, ended: Ended, words: str, single: Path, tmp_path: Path
) -> None:
    config = tmp_path / "pretrain.yaml"
    text = CONFIG.replace("save_folder: {root}\n", "") if "save_folder" in more else CONFIG
    config.write_text((text + more).replace("{root}", str(single)) + "\n")
    answer = ckpttool.preflight(PreflightQuestion(config=str(config), tree=TreeQuestion(path=str(single))))
    assert isinstance(answer.decision, ResumePlan)
    check = start_check(answer)
    assert (check.outcome, words in check.summary) == (ended, True), check.summary


@pytest.mark.parametrize(
    ("length", "is_done"),
    [("14ba", True), ("15ba", False), ("1ep", True), ("1", True), ("2ep", False), ("56sp", True), ("57sp", False)],
)
def test_a_run_that_is_complete_is_no_go(length: str, is_done: bool, single: Path, tmp_path: Path) -> None:
    """As run: Composer stops with a ValueError."""
    config = tmp_path / "pretrain.yaml"
    config.write_text(f"global_train_batch_size: 4\nload_path: {single}/{NEWEST}\nmax_duration: {length}\n")
    answer = ckpttool.preflight(PreflightQuestion(config=str(config), tree=TreeQuestion(path=str(single))))
    assert ("training-complete" in str(answer.to_dict())) is is_done


def test_files_of_several_ranks_are_not_called_whole(single: Path) -> None:
    shutil.copyfile(single / NEWEST, single / "ep1-ba14-rank1.pt")
    assert plan(single).point.checkpoint.name == "ep1-ba12-rank0.pt"
    assert named(scanned(single), NEWEST).findings[0].code is Code.UNSUPPORTED_FORMAT
