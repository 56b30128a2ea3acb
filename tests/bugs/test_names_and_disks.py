"""B20 to B33: cut files, single disks, strange prefixes, and other ways to a wrong resume.

`B…` are the rows of the list of faults that were reproduced with the real trainer.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from ckpttool import api
from ckpttool.domain.finding import Code
from ckpttool.errors import ExitCode, UnknownLayoutError
from ckpttool.trainers.mindformers.launch_check import check
from ckpttool.trainers.mindformers.load import load_keys, planned_skip
from tests.support.answers import (
    FIXTURES,
    chosen,
    cli,
    coded,
    codes,
    document,
    named,
    notes,
    plan,
    reasons,
    refusal,
    scanned,
    why_not,
    without_runs,
    writable_copy,
)
from tests.support.training_configs import read_train_config
from tests.support.trees import MINUTE_NS, TreeBuilder, floats, safetensors_bytes, training_scalars


@pytest.fixture
def first_run(tmp_path: Path) -> Path:
    """The output folder of a real first run: 10_2 15_2 20_2, at the steps 20, 30, 40."""
    return without_runs(writable_copy("sink2_ckpt", tmp_path / "sink2"), 1)


class TestB20FilesCutBetweenTwoEntries:
    @staticmethod
    def cut_after_epoch(shard: Path) -> None:
        data = shard.read_bytes()
        step_num = data.index(b"\x0a\x08step_num") - 2  # before the entry's own tag and length
        assert data[step_num : step_num + 1] == b"\x0a"
        shard.write_bytes(data[:step_num])

    def test_a_file_without_its_step_is_damaged_and_not_at_step_zero(self, first_run: Path) -> None:
        """It is a valid file: MindSpore loads it, and training starts over at step 0 of epoch 20, without a word."""
        self.cut_after_epoch(first_run / "checkpoint/rank_2/llama2_7b_rank_2-20_2.ckpt")
        answer = plan(first_run)
        assert chosen(answer) == ("15_2", 30)
        (reason,) = coded(reasons(answer, "20_2"), Code.SCALARS_MISSING)
        assert reason.path == "rank_2/llama2_7b_rank_2-20_2.ckpt"

    def test_on_rank_zero_too_where_the_step_is_read_first(self, first_run: Path) -> None:
        self.cut_after_epoch(first_run / "checkpoint/rank_0/llama2_7b_rank_0-20_2.ckpt")
        answer = plan(first_run)
        assert Code.SCALARS_MISSING in codes(reasons(answer, "20_2"))
        assert named(scanned(first_run), "20_2").step == 40


class TestB21To23DisksAndTimes:
    def test_b21_a_rank_whose_disk_is_behind_takes_all_ranks_back_by_an_explicit_name(self, first_run: Path) -> None:
        """With separate disks each rank takes its own newest, so ranks go on from 20 and from 40."""
        for name in ("15_2", "20_2"):
            (first_run / f"checkpoint/rank_1/llama2_7b_rank_1-{name}.ckpt").unlink()
        answer = plan(first_run)
        assert chosen(answer) == ("10_2", 20)
        assert load_keys(answer.load).resume_training == "llama2_7b_rank_0-10_2.ckpt"
        assert answer.point.lost_steps == 20

    def test_b22_touching_or_copying_an_old_file_does_not_make_it_new(self, first_run: Path) -> None:
        before = document("resolve", str(first_run))
        for shard in first_run.glob("checkpoint/rank_*/*-10_2.ckpt"):
            os.utime(shard, ns=(2_000_000_000 * MINUTE_NS // 60, 2_000_000_000 * MINUTE_NS // 60))
        assert before["resume"]["name"] == "20_2"
        assert document("resolve", str(first_run)) == before

    def test_b23_what_the_environment_calls_shared_does_not_change_the_answer(
        self, first_run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """MindFormers compares paths as strings: `/x/share1` makes `/x/share10` a shared disk."""
        before = document("resolve", str(first_run))
        monkeypatch.setenv("SHARED_PATHS", str(first_run)[:-1])
        monkeypatch.setenv("MA_LOG_DIR", str(first_run))
        assert document("resolve", str(first_run)) == before


class TestB24To28Names:
    @pytest.mark.parametrize(
        ("prefix", "told"),
        [
            *((prefix, set[Code]()) for prefix in ("llama-7b", "llama3.1_8b", "a-1_2", "rank_0")),
            *((prefix, {Code.PREFIX_HOLDS_RANK}) for prefix in ("my_rank_7_model", "llama_rank_7")),
        ],
    )
    def test_any_prefix_is_told_from_rank_epoch_and_step(self, tmp_path: Path, prefix: str, told: set[Code]) -> None:
        """B24: a `-` fails up to 1.3.2. B25: a rank in the prefix fails everywhere. B28: a `.` breaks 1.8 to 2.1."""
        tree = TreeBuilder(tmp_path).legacy(ranks=8, prefix=prefix)
        tree.save(epoch=10, step=2).save(epoch=15, step=2).save(epoch=20, step=2, run=1)
        answer = plan(tree.checkpoint)
        assert chosen(answer) == ("_1-20_2", 40)
        assert load_keys(answer.load).resume_training == f"{prefix}_rank_0_1-20_2.ckpt"
        assert answer.point.checkpoint.prefix == prefix
        assert answer.point.checkpoint.ranks == tuple(range(8))
        assert codes(answer.findings) == told

    @pytest.mark.parametrize("prefix", ["llama-7b", "my_rank_7_model", "llama3.1_8b"])
    def test_a_lost_shard_is_named_as_it_was_called(self, tmp_path: Path, prefix: str) -> None:
        tree = TreeBuilder(tmp_path).legacy(ranks=8, prefix=prefix).save(epoch=10, step=2).save(epoch=15, step=2)
        tree.remove(tree.shard(7, 15, 2))
        answer = plan(tree.checkpoint)
        assert chosen(answer) == ("10_2", 20)
        assert [reason.path for reason in reasons(answer, "15_2")] == [f"rank_7/{prefix}_rank_7-15_2.ckpt"]

    def test_b26_name_and_format_are_given_together_so_that_no_suffix_is_appended(self, tmp_path: Path) -> None:
        """`x.safetensors` with `load_ckpt_format: ckpt` makes MindFormers look for `x.safetensors.ckpt`."""
        answer = plan(FIXTURES / "sink2_safetensors" / "output")
        assert load_keys(answer.load).resume_training == "llama2_7b_rank_0_1-30_2.safetensors"
        assert load_keys(answer.load).load_ckpt_format == "safetensors"
        config = tmp_path / "base.yaml"
        config.write_text("resume_training: x.safetensors\nload_ckpt_format: ckpt\n")
        said = " ".join(finding.message for finding in check(read_train_config(str(config)), answer))
        assert "x.safetensors.ckpt" in said
        config.write_text("resume_training: x.safetensors\nload_ckpt_format: safetensors\n")
        said = " ".join(finding.message for finding in check(read_train_config(str(config)), answer))
        assert ".safetensors." not in said

    @pytest.mark.parametrize("name", ["20_2", "llama2_7b_rank_0-20_2.ckpt", "llama2_7b_rank_1-20_2.ckpt"])
    def test_b27_a_named_checkpoint_that_one_rank_lacks_is_refused_before_anything_starts(
        self, first_run: Path, name: str
    ) -> None:
        """MindFormers lets the other ranks load it, and the one rank crashes later."""
        assert chosen(plan(first_run, choice=api.ResumeQuestion(name=name))) == ("20_2", 40)
        (first_run / "checkpoint/rank_3/llama2_7b_rank_3-20_2.ckpt").unlink()
        answer = refusal(first_run, choice=api.ResumeQuestion(name=name))
        assert [reason.path for reason in reasons(answer, "20_2")] == ["rank_3/llama2_7b_rank_3-20_2.ckpt"]
        result = cli("resolve", str(first_run), "--checkpoint", name)
        assert result.exit_code == ExitCode.NOTHING_TO_RESUME


class TestB29And30OtherWeights:
    def test_b29_network_weights_beside_the_shards_are_not_chosen(self, tmp_path: Path) -> None:
        """MindFormers takes the rank's name and epoch from them and resumes without optimizer state."""
        output = writable_copy("sink2_safetensors", tmp_path / "tree")
        for rank in range(4):
            for source in (output / f"checkpoint_network/rank_{rank}").iterdir():
                shutil.copy(source, output / f"checkpoint/rank_{rank}")
        answer = plan(output)
        assert chosen(answer) == ("_1-30_2", 60)
        assert load_keys(answer.load).resume_training == "llama2_7b_rank_0_1-30_2.safetensors"
        assert Code.STRAY_FILE in notes(answer)

    def test_b29_a_folder_of_network_weights_alone_holds_nothing_to_resume_from(self, tmp_path: Path) -> None:
        output = writable_copy("sink2_safetensors", tmp_path / "tree")
        answer = refusal(output / "checkpoint_network")
        assert answer.rejected == ()
        assert Code.STRAY_FILE in notes(answer)

    @staticmethod
    def unified(folder: Path, *, global_batch_size: int | None) -> Path:
        folder.mkdir()
        scalars = training_scalars(epoch=15, true_step=30, global_batch_size=global_batch_size)
        (folder / "hyper_param.safetensors").write_bytes(safetensors_bytes(scalars, {"format": "ms"}))
        (folder / "part0.safetensors").write_bytes(safetensors_bytes([floats("dense.bias", [8])], {"format": "ms"}))
        (folder / "param_name_map.json").write_text('{"weight_map": {"dense.bias": "part0.safetensors"}}')
        return folder

    def test_b30_unified_weights_without_a_batch_size_are_refused_because_no_version_loads_them(
        self, tmp_path: Path
    ) -> None:
        """1.6 to 2.1 stop with a KeyError, so a plan that names them would be a start that fails."""
        folder = self.unified(tmp_path / "unified_checkpoint", global_batch_size=None)
        answer = refusal(folder)
        assert why_not(answer) == [("unified", {Code.SCALARS_MISSING})]

    def test_b30_with_one_they_are_resumed_from(self, tmp_path: Path) -> None:
        answer = plan(self.unified(tmp_path / "unified_checkpoint", global_batch_size=8))
        assert chosen(answer) == ("unified", 30)
        assert (load_keys(answer.load).resume_training, planned_skip(answer).batches) == (True, 30)


class TestB31Rewinds:
    def test_a_later_run_outranks_a_larger_step_and_the_branch_that_was_left_is_named(self, tmp_path: Path) -> None:
        """MindFormers prefers the later run by an accident of its health mode, the larger step otherwise.

        The later run is right: somebody went back on purpose, and the higher steps are what they went back from.
        """
        tree = TreeBuilder(tmp_path).legacy()
        for epoch in (10, 15, 20):
            tree.save(epoch=epoch, step=2)
        tree.save(epoch=15, step=2, run=1)
        tree.health([(f"llama2_7b_rank_0{own}.ckpt", 0) for own in ("-10_2", "-15_2", "-20_2", "_1-15_2")])
        answer = plan(tree.checkpoint)
        assert chosen(answer) == ("_1-15_2", 30)
        assert Code.RUN_REWOUND in notes(answer)
        assert why_not(answer) == [("20_2", {Code.ABANDONED_BRANCH})]
        assert answer.point.lost_steps == 0

    def test_the_branch_that_was_left_is_never_a_fallback_but_can_be_named(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy().save(epoch=10, step=2).save(epoch=20, step=2)
        tree.save(epoch=15, step=2, run=1).remove(tree.shard(3, 15, 2, run=1))
        answer = plan(tree.checkpoint)
        assert chosen(answer) == ("10_2", 20)
        assert why_not(answer) == [("_1-15_2", {Code.SHARD_MISSING}), ("20_2", {Code.ABANDONED_BRANCH})]
        assert chosen(plan(tree.checkpoint, choice=api.ResumeQuestion(name="20_2"))) == ("20_2", 40)


INTERRUPTED = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests in the background ignores it
from ckpttool import api
def wait(*_args, **_options):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)
api.resolve = wait
from ckpttool.cli.main import run
sys.argv = ["ckpttool", "resolve", sys.argv[1]]
sys.exit(run())
"""


class TestB32And33NoFalseAnswers:
    def test_b32_an_interrupt_ends_the_command_as_an_interrupt_and_prints_no_result(self, first_run: Path) -> None:
        """MindFormers swallows it on rank 0 and reports a ValueError."""
        done = subprocess.run(
            [sys.executable, "-c", INTERRUPTED, str(first_run)], capture_output=True, text=True, check=False
        )
        assert done.returncode == ExitCode.INTERRUPTED
        assert done.stdout == ""
        assert "Traceback" not in done.stderr

    def test_b33_an_empty_folder_is_no_checkpoint_tree_and_never_a_fresh_start(self, tmp_path: Path) -> None:
        """1.7 to 2.1 begin at random weights, with only a warning."""
        with pytest.raises(UnknownLayoutError, match="holds no checkpoints"):
            plan(tmp_path)
        result = cli("resolve", str(tmp_path))
        assert (result.exit_code, result.stdout) == (ExitCode.UNKNOWN_LAYOUT, "")

    def test_b33_rank_folders_without_a_file_are_a_tree_with_nothing_to_resume_from(self, tmp_path: Path) -> None:
        for rank in range(4):
            (tmp_path / f"checkpoint/rank_{rank}").mkdir(parents=True)
        assert refusal(tmp_path).rejected == ()
        assert cli("resolve", str(tmp_path)).exit_code == ExitCode.NOTHING_TO_RESUME
        assert document("resolve", str(tmp_path))["resume"] is None


def test_the_scalars_that_the_cut_removes_are_those_at_the_end_of_a_real_file() -> None:
    """The premise of B20: parameters come first, the training state last."""
    data = (FIXTURES / "sink2_ckpt/output/checkpoint/rank_0/llama2_7b_rank_0-20_2.ckpt").read_bytes()
    order = [data.index(name) for name in (b"embedding_weight", b"epoch_num", b"step_num", b"global_batch_size")]
    assert order == sorted(order)
    assert struct.pack("<q", 40) in data[order[2] :]
