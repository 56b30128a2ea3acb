"""Which files of a loop of one's own are saves, what each holds, and which is resumed from."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import ckpttool
from ckpttool.core.domain.checkpoint import Content
from ckpttool.core.domain.data_position import Unknown
from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.plan import NoResumePoint
from ckpttool.core.domain.retention import RetentionPolicy
from ckpttool.core.domain.verdict import Level, VerdictWord
from ckpttool.core.errors import ExitCode, UnknownLayoutError
from ckpttool.trainers.locate import locate
from ckpttool.trainers.torch_files import may_be_save, scan
from ckpttool.trainers.torch_files.record import record_of
from ckpttool.types import ResumeQuestion, TreeQuestion
from tests.support.answers import (
    FIXTURES,
    chosen,
    cli,
    codes,
    decide,
    going,
    named,
    names,
    plan,
    reasons,
    scanned,
    simulated,
    verdict,
    why_not,
)
from tests.support.shard_writers import torch_file
from tests.support.trainer_trees import LAYOUTS, flip_tensor, healthy

REAL = FIXTURES / "torch_files"


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    """Steps 100, 200 and 300; `best.pt` is a copy of 200, `llama-70b-init.pt` has weights alone."""
    root = healthy("files_loop", tmp_path)
    shutil.copy(root / "ckpt_200.pt", root / "best.pt")
    return root


def state(**more: object) -> dict[str, Any]:
    """What a loop saves: a model and an optimizer."""
    import torch

    groups = [{"lr": 0.1, "params": [0]}]
    return {
        "model": {"weight": torch.ones(2)},
        "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": groups},
        **more,
    }


def lay(folder: Path, **files: object) -> Path:
    """Save each dictionary under its name and `.pt`."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.pt").write_bytes(torch_file(content))
    return folder


class TestWhatASaveIs:
    def test_contents_decide_what_a_save_is_and_what_is_in_it(self, loop: Path) -> None:
        inventory = scanned(loop)
        assert names(inventory) == ["ckpt_100.pt", "best.pt", "ckpt_200.pt", "ckpt_300.pt"]
        assert [save.step for save in inventory.checkpoints] == [100, 200, 200, 300]
        assert {save.content for save in inventory.checkpoints} == {Content.FULL}
        assert inventory.strays == ("llama-70b-init.pt",)

    @pytest.mark.parametrize(
        "content",
        [b"version https://git-lfs.github.com/spec/v1", b"<html>404</html>", torch_file({"step": 300, "lr": 0.1})],
        ids=["git-lfs", "html", "no-tensor"],
    )
    def test_another_file_under_the_name_of_the_newest_save_is_reported(self, content: bytes, loop: Path) -> None:
        (loop / "ckpt_300.pt").write_bytes(content)
        (loop / "notes.pt").write_bytes(content)
        answer = plan(loop)
        assert chosen(answer) == ("ckpt_200.pt", 200)
        assert [name for name, _ in why_not(answer)] == ["ckpt_300.pt"]
        assert "notes.pt" in scanned(loop).strays

    @pytest.mark.parametrize(
        ("place", "step"),
        [
            ({"step": 7}, 7),
            ({"iter_num": 7, "best_val_loss": 2.5}, 7),
            ({"iteration": 7}, 7),
            ({"epoch": 2, "global_step": 7, "step": 3}, 7),
            ({"meta": {"iter": 7, "epoch": 2}}, 7),
            ({"train_state": {"step": 7}, "args": {"step": 9}}, 7),
            ({"optimizer_history": [{"num_updates": 3}, {"num_updates": 7}]}, 7),
            ({"step": 7, "iteration": 7}, 7),
            ({"step": 7, "iteration": 28}, None),
            ({"step": True}, None),
            ({"step": -1}, None),
            ({"step": 7.0}, None),
            ({"args": {"step": 7}}, None),
            ({"epoch": 7}, None),
            ({}, None),
        ],
    )
    def test_a_step_is_a_whole_number_under_a_counters_name(
        self, place: dict[str, object], step: int | None, tmp_path: Path
    ) -> None:
        root = lay(tmp_path / "run", ckpt_7=state(**place))
        (save,) = scanned(root).checkpoints
        assert (save.step, save.content) == (step, Content.FULL)
        if step is None:
            answer = decide(root)
            assert isinstance(answer, NoResumePoint)
            assert codes(reasons(answer, "ckpt_7.pt")) == {Code.STEP_UNKNOWN}

    def test_a_counter_that_is_a_tensor_is_named(self, tmp_path: Path) -> None:
        import torch

        (save,) = scanned(lay(tmp_path / "run", ckpt=state(step=torch.tensor(7)))).checkpoints
        assert (save.step, "its step is a tensor" in str(save.step_remedy)) == (None, True)

    @pytest.mark.parametrize(
        ("change", "content"),
        [
            ({}, Content.FULL),
            ({"optimizer": [state()["optimizer"], state()["optimizer"]]}, Content.FULL),
            ({"optimizer": {"d": state()["optimizer"], "g": state()["optimizer"]}}, Content.FULL),
            ({"optimizer": state()["model"]}, Content.FULL),
            ({"optimizer": None}, Content.WEIGHTS_ONLY),
            ({"optimizer": {"step": 7}}, Content.UNKNOWN),
            ({"optimizer": {"state": {}, "param_groups": []}}, Content.UNKNOWN),
        ],
    )
    def test_an_optimizer_has_groups_of_parameters_or_tensors(
        self, change: dict[str, object], content: Content, tmp_path: Path
    ) -> None:
        root = lay(tmp_path / "run", ckpt_100=state(step=100), ckpt_200=state(step=200) | change)
        save = named(scanned(root), "ckpt_200.pt")
        assert (save.step, save.content) == (200, content)
        assert chosen(plan(root)) == (("ckpt_200.pt", 200) if content is Content.FULL else ("ckpt_100.pt", 100))
        if content is Content.WEIGHTS_ONLY:
            anyway = plan(root, choice=ResumeQuestion(allow_weights_only=True))
            assert chosen(anyway) == ("ckpt_200.pt", 200)

    @pytest.mark.parametrize(
        "content",
        [
            {"weight": 1},
            {"step": 7, "model": {"weight": 2.0}},
            state()["optimizer"],
            state()["model"],
            {"step": 7, "optimizer": state()["optimizer"]},
            {"model": state()["model"], "step": 7},
            [state(step=7)],
        ],
        ids=["numbers", "no tensor", "an optimizer", "a state_dict", "no model", "no optimizer", "a list"],
    )
    def test_a_folder_without_a_full_save_is_refused_and_each_file_can_be_verified(
        self, content: object, tmp_path: Path
    ) -> None:
        root = lay(tmp_path / "run", ckpt_7=content)
        with pytest.raises(UnknownLayoutError, match=r"only files such as ckpt_7\.pt, which ckpttool verify FILE"):
            locate(str(root))
        assert cli("verify", str(root / "ckpt_7.pt")).exit_code == ExitCode.OK

    @pytest.mark.parametrize(
        "name",
        [
            "ckpt_200_rank0.pt", "mp_rank_00_model_states.pt", "model_world_size_2_rank_0.pt",
            "pytorch_model-00001-of-00002.bin", "optimizer.pt", "rng_state_0.pth", "training_args.bin",
            "model_optim_rng.pt", "lit_model.pth", ".ckpt_200.pt", "ckpt_200.pt.tmp", "ckpt_200.txt",
        ],
    )  # fmt: skip
    def test_a_part_of_a_save_is_none_whatever_it_contains(self, name: str, tmp_path: Path) -> None:
        assert not may_be_save(name)
        root = lay(tmp_path / "run", ckpt=state(step=7))
        (root / "ckpt.pt").rename(root / name)
        with pytest.raises(UnknownLayoutError):
            locate(str(root))

    @pytest.mark.parametrize("name", ["ckpt.pt", "epoch_3.pth", "last.pth.tar", "model_200.ckpt", "step=7.bin"])
    def test_usual_names_may_be_saves(self, name: str, tmp_path: Path) -> None:
        root = lay(tmp_path / "run", ckpt=state(step=7))
        (root / "ckpt.pt").rename(root / name)
        assert chosen(plan(root)) == (name, 7)

    def test_a_legacy_file_tells_its_step_but_is_not_taken_for_its_tensors_are_not_checked(
        self, tmp_path: Path
    ) -> None:
        root = lay(tmp_path / "run", ckpt_100=state(step=100))
        (root / "ckpt_200.pt").write_bytes(torch_file(state(step=200), _use_new_zipfile_serialization=False))
        save = named(scanned(root), "ckpt_200.pt")
        assert (save.step, save.content) == (200, Content.FULL)
        assert chosen(plan(root)) == ("ckpt_100.pt", 100)
        assert codes(reasons(plan(root), "ckpt_200.pt")) == {Code.UNSUPPORTED_FORMAT}

    def test_values_of_no_dictionary_have_no_facts(self) -> None:
        assert not record_of(None).has_tensors
        assert not record_of([{}]).is_save


class TestFilesThatAreSavedTogether:
    """As those of two models that are trained against each other."""

    @pytest.fixture
    def pairs(self, tmp_path: Path) -> Path:
        import torch

        files = {}
        for step in (100, 200, 300):
            files[f"G_{step}"] = state(step=step)
            files[f"D_{step}"] = state(step=step) | {"model": {"w": torch.zeros(3)}}
        return lay(tmp_path / "run", **files)

    @pytest.mark.parametrize("is_cut", [True, False])
    def test_without_one_of_them_the_other_is_not_chosen(self, is_cut: bool, pairs: Path) -> None:
        assert chosen(plan(pairs))[1] == 300
        newest = pairs / "D_300.pt"
        if is_cut:
            newest.write_bytes(newest.read_bytes()[:-100])
        else:
            newest.unlink()
        answer = plan(pairs)
        assert chosen(answer)[1] == 200
        assert ("G_300.pt", {Code.METADATA_INCOMPLETE}) in why_not(answer)

    def test_copies_and_saves_of_another_rhythm_are_no_parts(self, pairs: Path) -> None:
        for step in (100, 200, 300):
            (pairs / f"D_{step}.pt").unlink()
        for step in (100, 200):
            shutil.copy(pairs / f"G_{step}.pt", pairs / f"best_{step}.pt")
        assert chosen(plan(pairs)) == ("G_300.pt", 300)
        lay(pairs, G_400=state(step=400), H_100=state(step=100, x=1), H_200=state(step=200, x=1))
        assert chosen(plan(pairs)) == ("G_400.pt", 400)


class TestLibraries:
    def test_nanogpts_only_file_is_resumed_from(self) -> None:
        assert chosen(plan(REAL / "nanogpt")) == ("ckpt.pt", 2000)
        assert chosen(plan(REAL / "nanogpt" / "ckpt.pt")) == ("ckpt.pt", 2000)

    def test_mmengines_step_is_in_its_meta_and_its_own_start_goes_by_last_checkpoint(self, tmp_path: Path) -> None:
        root = Path(shutil.copytree(REAL / "mmengine", tmp_path / "run"))
        assert chosen(plan(root)) == ("epoch_3.pth", 15)
        (root / "last_checkpoint").write_text(str(root / "epoch_3.pth"))
        assert (simulated(root).would_resume, simulated(root).outcome) == ("epoch_3.pth", "loads")
        (root / "last_checkpoint").write_text("epoch_2.pth")
        assert simulated(root).would_resume == "epoch_2.pth"
        assert chosen(plan(root)) == ("epoch_3.pth", 15)
        assert "epoch_2.pth" not in going(root)
        for elsewhere in ("/elsewhere/epoch_9.pth", "/elsewhere/epoch_3.pth"):
            (root / "last_checkpoint").write_text(elsewhere)
            assert (simulated(root).would_resume, simulated(root).outcome) == (elsewhere, "unknown")
        (root / "last_checkpoint").write_text("epoch_3.pth")
        (root / "epoch_3.pth").write_bytes((root / "epoch_3.pth").read_bytes()[:-100])
        assert chosen(plan(root)) == ("epoch_2.pth", 10)
        assert simulated(root).outcome == "stops"
        assert cli("preflight", str(root)).exit_code == ExitCode.DAMAGE
        (root / "last_checkpoint").unlink()
        assert simulated(root).outcome == "unknown"

    @pytest.mark.parametrize(
        ("folder", "newest"),
        [("timm", "checkpoint-2.pth.tar"), ("ultralytics/weights", "epoch2.pt and last.pt")],
    )
    def test_an_epoch_is_no_step_and_the_highest_one_is_named(self, folder: str, newest: str) -> None:
        inventory = scanned(REAL / folder)
        assert {(save.step, save.content) for save in inventory.checkpoints} == {(None, Content.FULL)}
        said = cli("resolve", str(REAL / folder))
        assert said.exit_code == ExitCode.INCOMPLETE
        text = " ".join(said.output.split())
        assert "It is unknown which checkpoint" in text
        assert f"the highest epoch inside is 2, in {newest}" in text
        assert going(REAL / folder) == set()


class TestNames:
    @pytest.mark.parametrize("copy", ["ckpt_999.pt", "ckpt_999.pth", "latest.pt", "step_999.pt"])
    def test_a_copy_under_another_name_is_no_newer_save(self, copy: str, loop: Path) -> None:
        shutil.copy(loop / "ckpt_100.pt", loop / copy)
        assert chosen(plan(loop)) == ("ckpt_300.pt", 300)
        assert named(scanned(loop), copy).step == 100
        for name in ("ckpt_200.pt", "ckpt_300.pt", "best.pt"):
            (loop / name).unlink()
        assert plan(loop).point.step == 100

    def test_weights_alone_under_a_saves_name_are_told_and_passed_over(self, loop: Path) -> None:
        shutil.copy(loop / "llama-70b-init.pt", loop / "ckpt_400.pt")
        answer = plan(loop)
        assert chosen(answer) == ("ckpt_300.pt", 300)
        assert codes(reasons(answer, "ckpt_400.pt")) == {Code.WEIGHTS_ONLY}
        assert cli("verify", str(loop), "--checkpoint", "all").exit_code == ExitCode.OK

    @pytest.mark.parametrize("name", ["resnet50-19c8e357.pth", "llama-70b-init.pt", "model_999.pt"])
    def test_weights_under_any_other_name_are_a_stray(self, name: str, loop: Path) -> None:
        (loop / "llama-70b-init.pt").rename(loop / name)
        inventory = scanned(loop)
        assert inventory.strays == (name,)
        assert plan(loop).point.step == 300

    def test_links_to_a_save_are_other_names_of_it(self, loop: Path) -> None:
        (loop / "last.pt").symlink_to("ckpt_300.pt")
        os.link(loop / "ckpt_300.pt", loop / "newest.pt")
        save = named(scanned(loop), "ckpt_300.pt")
        assert save.aliases == ("last.pt", "newest.pt")
        (loop / "ckpt_400.pt").write_bytes((loop / "ckpt_300.pt").read_bytes())
        assert "ckpt_300.pt" not in going(loop)

    def test_a_copy_is_checked_itself(self, loop: Path) -> None:
        flip_tensor(loop / "best.pt")
        assert verdict(loop / "best.pt", level=Level.CHECKSUM).word is VerdictWord.DAMAGED
        assert verdict(loop, "ckpt_200.pt", Level.CHECKSUM).word is VerdictWord.VERIFIED

    def test_two_saves_of_one_step_that_differ_are_told_and_copies_are_not(self, loop: Path) -> None:
        assert Code.RUN_MIXED not in codes(scanned(loop).findings)
        lay(loop, other_300=state(step=300))
        (finding,) = (each for each in scanned(loop).findings if each.code is Code.RUN_MIXED)
        assert finding.severity is Severity.NOTE
        assert "ckpt_300.pt and other_300.pt contain step 300, but differ" in finding.message


class TestCountersThatRestart:
    @pytest.mark.parametrize(
        "places",
        [
            [(0, 200), (0, 400), (1, 200)],
            [(0, 400), (1, 400)],
            [(0, 400), (1, 400), (2, 400)],
        ],
    )
    def test_a_counter_within_epochs_is_no_step(self, places: list[tuple[int, int]], tmp_path: Path) -> None:
        files = {f"epoch_{epoch}_step_{step}": state(epoch=epoch, step=step) for epoch, step in places}
        inventory = scanned(lay(tmp_path / "run", **files))
        assert {save.step for save in inventory.checkpoints} == {None}
        assert all("does not grow with its epoch" in str(save.step_remedy) for save in inventory.checkpoints)

    def test_a_save_at_the_end_of_an_epoch_contradicts_nothing(self, tmp_path: Path) -> None:
        places = [(0, 50), (0, 100), (1, 100), (1, 150)]
        files = {f"a{number}": state(epoch=epoch, step=step) for number, (epoch, step) in enumerate(places)}
        assert plan(lay(tmp_path / "run", **files)).point.step == 150


class TestRetention:
    def test_only_numbered_files_go_whose_contents_confirm_their_step(self, loop: Path) -> None:
        assert going(loop) == {"ckpt_100.pt", "ckpt_200.pt"}

    def test_nothing_goes_for_a_number_in_a_name(self, loop: Path) -> None:
        shutil.copy(loop / "llama-70b-init.pt", loop / "ckpt_400.pt")
        shutil.copy(loop / "ckpt_100.pt", loop / "ckpt_500.pt")
        answer = ckpttool.prune(TreeQuestion(path=str(loop)), RetentionPolicy(keep_last=1))
        assert {save.name for save in answer.plan.going} == {"ckpt_100.pt", "ckpt_200.pt"}
        assert (loop / "ckpt_300.pt").exists()


class TestManyFiles:
    @pytest.fixture
    def many(self, loop: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(scan, "MOST_READ", 2)
        return loop

    def test_older_files_are_listed_by_name_and_never_deleted(self, many: Path) -> None:
        inventory = scanned(many)
        oldest = inventory.checkpoints[0]
        assert (oldest.name, oldest.step, oldest.step_source) == ("ckpt_100.pt", 100, "name")
        assert Code.STEP_UNKNOWN in codes(inventory.findings)
        assert going(many) == {"ckpt_200.pt"}

    @pytest.mark.parametrize(
        ("source", "code"),
        [(None, None), ("ckpt_200.pt", Code.STEP_DISAGREES), ("llama-70b-init.pt", Code.STEP_UNKNOWN)],
    )
    def test_one_is_read_before_it_is_taken(self, source: str | None, code: object, many: Path) -> None:
        if source is not None:
            shutil.copy(many / source, many / "ckpt_100.pt")
        for name in ("ckpt_200.pt", "ckpt_300.pt", "best.pt"):
            (many / name).write_bytes((many / name).read_bytes()[:-1])
        answer = decide(many)
        assert isinstance(answer, NoResumePoint) is (code is not None)
        if code is not None:
            assert code in codes(reasons(answer, "ckpt_100.pt"))

    @pytest.mark.usefixtures("many")
    def test_older_files_whose_names_tell_no_step_are_not_counted(self, tmp_path: Path) -> None:
        files = {f"epoch_{number}": state(epoch=number, step=number * 10) for number in range(1, 5)}
        inventory = scanned(lay(tmp_path / "epochs", **files))
        assert names(inventory) == ["epoch_3.pt", "epoch_4.pt"]
        (finding,) = (each for each in inventory.findings if each.code is Code.STEP_UNKNOWN)
        assert "2 files not at all" in finding.message


class TestAnswers:
    def test_the_path_is_for_the_scripts_own_call_and_no_data_position_is_known(self, loop: Path) -> None:
        answer = plan(loop)
        (setting,) = answer.load.settings
        assert (setting.place.name, setting.value) == ("torch.load(f)", f"{loop}/ckpt_300.pt")
        assert isinstance(answer.data, Unknown)
        said = cli("preflight", str(loop))
        assert (said.exit_code, "it chooses nothing" in said.output) == (ExitCode.OK, True)

    def test_a_seal_finds_a_file_with_right_checksums_in_the_place_of_another(self, loop: Path) -> None:
        assert cli("seal", str(loop), "--checkpoint", "ckpt_300.pt").exit_code == ExitCode.OK
        shutil.copyfile(loop / "ckpt_200.pt", loop / "ckpt_300.pt")
        assert verdict(loop, "ckpt_300.pt", Level.CHECKSUM).word is VerdictWord.DAMAGED

    def test_a_tree_beside_these_files_is_still_whose_it_is(self, loop: Path) -> None:
        shutil.copy(LAYOUTS / "light_single/checkpoints/epoch=0-step=4.ckpt", loop)
        assert scanned(loop).layout == "lightning"
        assert scanned(loop, tree=TreeQuestion(path=str(loop), layout="torch-files")).layout == "torch-files"
