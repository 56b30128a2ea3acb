"""A run without a checkpoint starts from scratch only if nothing shows that it ever saved: every trace prevents it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.plan import FreshStart
from ckpttool.core.storage import mounts
from ckpttool.core.storage.mounts import PlannedMount
from ckpttool.core.verbs import first_start
from tests.conftest import FIXTURES
from tests.support.commands import Said, ask

LAYOUTS = FIXTURES / "layouts"
CONFIG = FIXTURES / "configs" / "pretrain_sink2.yaml"
LOG = FIXTURES / "logs" / "mindformers_health_stage0_made.log"
EVENTS = FIXTURES / "logs" / "tensorboard" / "resumed.tfevents"


def start(path: Path | str, *options: str) -> Said:
    return ask("resolve", str(path), "--or-start", *options)


def assert_fresh(path: Path, *options: str) -> None:
    said = start(path, *options, "--json")
    assert (said.code, said.json["start"], said.json["resume"]) == (0, "scratch", None), said.output
    printed = start(path, *options, "--print", "start")
    assert (printed.code, printed.stdout) == (0, "scratch\n")


def assert_trace(path: Path, trace: Path | str, *options: str) -> None:
    said = start(path, *options)
    assert said.code == 11, said.output
    assert str(trace) in said.stderr
    assert not said.stdout


def copied(name: str, to: Path) -> Path:
    shutil.copytree(FIXTURES / name, to, symlinks=True)
    return to


# ------------------------------------------------------------ nothing was ever saved


def test_a_folder_that_is_not_there_or_has_only_other_things_is_a_start_from_scratch(tmp_path: Path) -> None:
    assert_fresh(tmp_path / "new" / "deeper")
    output = tmp_path / "output"
    (output / "tensorboard").mkdir(parents=True)
    assert_fresh(output)
    (output / "strategy").mkdir()
    (output / "strategy" / "ckpt_strategy_rank_0.ckpt").write_bytes(b"x")  # written before the first save
    (output / "checkpoint" / "rank_0").mkdir(parents=True)  # made when the callback is built
    (output / "config.yaml").write_text("seed: 1\n")
    (output / "run.log").write_text("loading the data, saving memory by gradient checkpointing\n")
    (output / "empty.log").touch()
    (output / ".ckpttool").mkdir()
    (output / ".ckpttool" / "prune.lock").touch()  # of a command that found nothing
    (output / "run-7").mkdir()
    (output / "latest-run").symlink_to("run-7")
    assert_fresh(output)


@pytest.mark.parametrize(
    ("tree", "name"),
    [
        ("layouts/hf_single", "checkpoint-16"),
        ("layouts/hf_single", "output"),
        ("layouts/mcore_dist_tp2dp2", "iter_0000099"),
        ("layouts/ds_zero1_2ranks", "new"),
        ("sink2_ckpt/output/checkpoint", "rank_7"),
    ],
)
def test_a_folder_among_the_saves_of_a_run_is_no_first_start(tree: str, name: str, tmp_path: Path) -> None:
    """A start from scratch one level too deep would repeat all training of a run whose saves are there."""
    run = copied(tree, tmp_path / "run")
    assert_trace(run / name, f"the folder above it, {run}, has ")
    (run / name).mkdir()
    said = start(run / name)
    assert said.code == 11, said.output
    assert_fresh(tmp_path / name)  # next to the run


def test_without_the_option_nothing_changes(tmp_path: Path) -> None:
    missing = ask("resolve", str(tmp_path / "new"))
    assert (missing.code, missing.stdout) == (12, "")
    whole = ask("resolve", str(LAYOUTS / "hf_single"), "--json")
    assert "start" not in whole.json


@pytest.mark.parametrize("layout", ["hf_single", "ds_zero1_2ranks", "mcore_dist_tp2dp2", "dcp_fsdp2_4ranks"])
def test_a_run_with_a_checkpoint_resumes(layout: str) -> None:
    said, plain = start(LAYOUTS / layout, "--json"), ask("resolve", str(LAYOUTS / layout), "--json")
    assert said.json == {**plain.json, "start": "resume"}
    assert start(LAYOUTS / layout, "--print", "start").stdout == "resume\n"


def test_the_library_has_the_same_answer(tmp_path: Path) -> None:
    answer = ckpttool.resolve(str(tmp_path / "new"), or_start=True)
    assert isinstance(answer.decision, FreshStart)
    assert answer.exit_code == 0
    assert answer.chosen is None
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "trainer_state.json").touch()
    with pytest.raises(ckpttool.NothingToResumeError, match="trainer_state"):
        ckpttool.resolve(str(tmp_path / "old"), or_start=True)


# ------------------------------------------------------------ traces in names


@pytest.mark.parametrize(
    "trace",
    [
        "latest",  # DeepSpeed
        "zero_to_fp32.py",
        "latest_checkpointed_iteration.txt",  # Megatron-LM, verl, MindFormers
        "latest_ckpt_global_step.txt",  # SkyRL
        "LATEST",  # NeMo AutoModel
        "latest-rank0.pt.symlink",  # Composer
        "trainer_state.json",
        "all_results.json",
        "sub/checkpoint/rank_0/meta.json",
        "health_ckpts.json",
        "sub/common.json",
        "sub/_CHECKPOINT_METADATA",  # Orbax
        "sub/.metadata.json",  # OLMo-core
        ".ckpttool/prune.json",
        ".ckpttool/trash/20260101T000000Z-x/model.txt",
        ".ckpttool/seals/x.manifest.json",
        ".ckpttool/marks.json",
        "sub/ckpttool.manifest.json",
        "sub/model.safetensors",
        "weights.bin",
        "sub/optimizer.pt",
        "last.ckpt",
        "sub/last.pth.tar",
        "checkpoint-500/",
        "global_step100/",
        "iter_0000100/",
        "sub/step-10/",
        "epoch=1-step=20/",
        "ep0-ba6/",
        "sub/100/",
        "checkpoint-500/notes.md",
    ],
)
def test_every_name_that_only_a_save_leaves_is_a_trace(tmp_path: Path, trace: str) -> None:
    output = tmp_path / "output"
    (output / "logs").mkdir(parents=True)
    assert_fresh(output)
    path = output / trace
    if trace.endswith("/"):
        path.mkdir(parents=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    named = output / trace.partition("/")[0] if trace == "checkpoint-500/notes.md" else path
    assert_trace(output, named)
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink()
        if path.parent.name == "checkpoint-500":
            path.parent.rmdir()
    assert_fresh(output)


def test_records_next_to_the_folder_of_the_saves_are_traces(tmp_path: Path) -> None:
    saves = tmp_path / "output" / "checkpoint"
    (tmp_path / "output" / "resume_record").mkdir(parents=True)
    assert_fresh(saves)
    for record in ("health_ckpts.json", "resume_record/latest_checkpointed_iteration.txt"):
        path = tmp_path / "output" / record
        path.touch()
        assert_trace(saves, path)
        assert_trace(tmp_path / "output", path)
        path.unlink()
    derived = tmp_path / "output" / "unified_checkpoint" / "model.safetensors"
    derived.parent.mkdir()
    derived.touch()
    assert_trace(saves, derived)
    # A run in a folder of its own has nothing to do with what lies next to it.
    assert_fresh(tmp_path / "output" / "another")


def test_a_checkpoint_that_was_verified_and_is_gone_is_remembered(
    tmp_path: Path, copy_tree: Callable[[str], Path]
) -> None:
    tree = copy_tree("layouts/hf_single")
    assert ask("seal", str(tree)).code == 0
    assert ask("verify", str(tree), "--level", "checksum").code == 0
    shutil.rmtree(tree)
    assert_trace(tree, "ledger")
    assert_fresh(tmp_path / "other")


@pytest.mark.parametrize(
    ("fixture", "removed", "trace"),
    [
        ("sink2_ckpt/output", "checkpoint/*/*.ckpt", "checkpoint/rank_0/meta.json"),
        ("newfmt_4rank/output", "checkpoint/iteration_*", "checkpoint/latest_checkpointed_iteration.txt"),
        ("layouts/ds_zero1_2ranks", "global_step*", "latest"),
        ("layouts/mcore_dist_tp2dp2", "iter_*", "latest_checkpointed_iteration.txt"),
        ("layouts/verl_2ranks", "global_step_*", "latest_checkpointed_iteration.txt"),
        ("layouts/light_single", "checkpoints/*", None),
        ("layouts/hf_single", "checkpoint-*", None),
        ("layouts/dcp_fsdp2_4ranks", "step_*", None),
    ],
)
def test_a_tree_whose_saves_were_deleted_is_lost_if_a_record_remains(
    tmp_path: Path, fixture: str, removed: str, trace: str | None
) -> None:
    tree = copied(fixture, tmp_path / "tree")
    assert start(tree, "--print", "start").stdout == "resume\n"
    for path in tree.glob(removed):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    if trace is None:  # the folder is as before the first start
        assert_fresh(tree)
    else:
        assert_trace(tree, tree / trace)


@pytest.mark.parametrize("layout", ["hf_single", "light_modelparallel2", "dcp_fsdp2_4ranks", "titan_4ranks"])
def test_the_empty_folders_of_saves_are_traces(tmp_path: Path, layout: str) -> None:
    tree = copied(f"layouts/{layout}", tmp_path / "tree")
    for path in tree.rglob("*"):
        if path.is_file():
            path.unlink()
    said = start(tree)
    assert (said.code, said.stdout) == (11, "") or "Nothing to resume from" in said.stdout
    assert said.code == 11


# ------------------------------------------------------------ traces in logs


def test_a_log_with_steps_is_a_trace_unless_it_ends_before_the_first_save(tmp_path: Path) -> None:
    output = tmp_path / "output"
    (output / "log" / "rank_0").mkdir(parents=True)
    log = output / "log" / "rank_0" / "info.log"
    shutil.copyfile(LOG, log)
    assert_trace(output, log)
    assert "step 2" in start(output).stderr
    assert_trace(output, log, "--save-every", "2")
    assert_fresh(output, "--save-every", "3")
    # By the config, MindFormers saves every 10 steps here.
    config = tmp_path / "config.yaml"
    text = CONFIG.read_text()
    assert "save_checkpoint_steps: 10" in text
    config.write_text(text)
    assert_fresh(output, "--config", str(config))
    config.write_text(text.replace("save_checkpoint_steps: 10", "save_checkpoint_steps: 2"))
    assert_trace(output, log, "--config", str(config))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.log", "epoch 1 step 37 loss 2.0\n"),
        ("slurm-7.out", " iteration 20/ 500 | consumed\n"),
        ("wandb/run-1/files/wandb-summary.json", '{"_step": 12, "loss": 2}'),
        ("metrics.csv", "step,loss\n1,2.0\n2,1.9\n"),
        ("trainer_log.jsonl", '{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.9}\n'),
    ],
)
def test_a_log_in_any_form_is_read_for_steps(tmp_path: Path, name: str, text: str) -> None:
    log = tmp_path / "output" / name
    log.parent.mkdir(parents=True)
    log.write_text(text)
    assert_trace(tmp_path / "output", log)
    assert_fresh(tmp_path / "output", "--save-every", "1000")


def test_event_files_are_read_for_steps(tmp_path: Path) -> None:
    log = tmp_path / "output" / "runs" / "events.out.tfevents.1700000000.host"
    log.parent.mkdir(parents=True)
    shutil.copyfile(EVENTS, log)
    assert_trace(tmp_path / "output", log)
    assert_fresh(tmp_path / "output", "--save-every", "1000")


@pytest.mark.parametrize(
    "line",
    [
        "Saving model checkpoint to out/checkpoint-5",
        "saving checkpoint at iteration     100 to /out in torch_dist format",
        "  successfully saved checkpoint from iteration     100 to /out",
        "[Torch] Saved out/global_step100/mp_rank_00_model_states.pt.",
        "Finished saving the checkpoint in 0.50 seconds.",
        "Finish saving ckpt of epoch 5 step 2 using 3.2 seconds",
        "Saving current state to out/checkpoint_0",
    ],
)
def test_a_log_that_reports_a_save_is_a_trace_whatever_the_interval(tmp_path: Path, line: str) -> None:
    log = tmp_path / "output" / "train.log"
    log.parent.mkdir()
    log.write_text(f"starting\n{line}\n")
    assert_trace(tmp_path / "output", log, "--save-every", "1000000")
    log.write_text("starting\nsaving a checkpoint every 100 steps\n")
    assert_fresh(tmp_path / "output", "--save-every", "1000000")


def test_a_log_that_was_given_counts_and_may_be_missing_before_the_first_start(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "train.log"
    assert_fresh(tmp_path / "output", "--log", str(log))
    log.parent.mkdir()
    shutil.copyfile(LOG, log)
    assert_trace(tmp_path / "output", log, "--log", str(log))
    assert_fresh(tmp_path / "output")


def test_a_log_that_cannot_be_read_to_its_end_leaves_the_answer_unknown(tmp_path: Path) -> None:
    import gzip

    log = tmp_path / "output" / "train.log.gz"
    log.parent.mkdir()
    log.write_bytes(gzip.compress(b"starting\n" * 1000)[:-20])
    said = start(tmp_path / "output")
    assert (said.code, said.stdout) == (14, "")
    assert str(log) in said.stderr
    log.write_bytes(gzip.compress(b"starting\n" * 1000))
    assert_fresh(tmp_path / "output")


# ------------------------------------------------------------ the first save is torn


@pytest.mark.parametrize(
    ("layout", "others", "mark", "aside"),
    [
        ("hf_single", ("checkpoint-8", "checkpoint-12"), "checkpoint-4/trainer_state.json", "checkpoint-4"),
        ("dcp_fsdp2_4ranks", ("step_000010", "step_000015"), "step_000005/.metadata", "step_000005"),
        ("titan_4ranks", ("checkpoint/step-10",), "checkpoint/step-5/.metadata", "step-5"),
        ("olmo_2ranks", ("step10", "step12"), "step6/.metadata.json", "step6"),
        (
            "mcore_dist_tp2dp2",
            ("iter_0000006", "latest_checkpointed_iteration.txt", "iter_0000003/.metadata"),
            "iter_0000003/metadata.json",
            "iter_0000003",
        ),
    ],
)
def test_a_first_save_that_its_layout_proves_unfinished_is_set_aside(
    tmp_path: Path, layout: str, others: tuple[str, ...], mark: str, aside: str
) -> None:
    tree = copied(f"layouts/{layout}", tmp_path / "tree")
    for name in others:
        path = tree / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    (tree / mark).unlink()
    said = start(tree, "--json")
    assert (said.code, said.json["start"], said.json["set_aside"]) == (0, "scratch", [aside])
    assert aside in start(tree).stdout
    assert start(tree / mark.rpartition("/")[0]).code == 11  # the save itself was named
    # With a second unfinished save, one that was finished must have come before.
    second = tree / others[0]
    shutil.copytree(LAYOUTS / layout / others[0], second)
    for record in (".metadata", "metadata.json", "trainer_state.json", ".metadata.json"):
        (second / record).unlink(missing_ok=True)
    assert start(tree).code == 11


@pytest.mark.parametrize(
    ("fixture", "removed"),
    [
        ("layouts/ds_zero1_2ranks", ("global_step6", "latest", "global_step3/mp_rank_00_model_states.pt")),
        ("layouts/light_single", ()),
    ],
)
def test_a_torn_save_without_a_mark_of_its_layout_stays_lost(
    tmp_path: Path, fixture: str, removed: tuple[str, ...]
) -> None:
    tree = copied(fixture, tmp_path / "tree")
    for name in removed:
        path = tree / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    for path in [*tree.rglob("*.ckpt"), *tree.rglob("*.pt")]:
        os.truncate(path, 1000)
    assert start(tree).code == 11


def test_the_folder_of_a_save_without_a_shard_is_no_unfinished_save(tmp_path: Path) -> None:
    save = tmp_path / "output" / "checkpoint" / "iteration_00000010"
    save.mkdir(parents=True)
    assert start(tmp_path / "output").code == 11
    (save / "common.json").touch()
    assert start(tmp_path / "output").code == 11


def test_an_unfinished_save_is_the_first_one_only_as_far_as_logs_and_intervals_agree(tmp_path: Path) -> None:
    tree = copied("layouts/hf_single", tmp_path / "tree")
    shutil.rmtree(tree / "checkpoint-8")
    shutil.rmtree(tree / "checkpoint-12")
    (tree / "checkpoint-4" / "trainer_state.json").unlink()
    assert_fresh(tree, "--save-every", "4")
    assert_trace(tree, "checkpoint-4", "--save-every", "2")
    log = tree / "train.log"
    log.write_text("step 4 loss 2\nSaving model checkpoint to out/checkpoint-4\n")
    assert_fresh(tree)
    log.write_text("step 4 loss 2\nSaving model checkpoint to out/checkpoint-2\n")
    assert_trace(tree, log)
    log.write_text("step 4 loss 2\nsaved checkpoint-4\n")
    assert_trace(tree, log)
    log.write_text("step 5 loss 2\n")
    assert_trace(tree, log)


def test_temporary_files_of_one_save_are_set_aside_and_those_of_two_are_a_trace(tmp_path: Path) -> None:
    tree = copied("layouts/orbax_standard", tmp_path / "tree")
    shutil.rmtree(tree / "30")
    (tree / "10").rename(tree / "10.orbax-checkpoint-tmp-3")
    assert start(tree, "--print", "start").stdout == "resume\n"
    (tree / "20").rename(tree / "20.orbax-checkpoint-tmp-4")
    assert_trace(tree, "10.orbax-checkpoint-tmp-3")
    shutil.rmtree(tree / "20.orbax-checkpoint-tmp-4")
    assert start(tree, "--json").json["set_aside"] == ["10.orbax-checkpoint-tmp-3"]


# ------------------------------------------------------------ what is not known


def test_a_table_without_a_known_step_is_unknown_until_its_column_is_named(tmp_path: Path) -> None:
    for name, text in (("a.csv", "it,loss\n1,2.0\n"), ("a.jsonl", '{"it": 1, "loss": 2.0}\n')):
        log = tmp_path / "output" / name
        log.parent.mkdir(exist_ok=True)
        log.write_text(text)
        said = start(log.parent)
        assert (said.code, said.stdout) == (14, "")
        assert str(log) in said.stderr
        assert_trace(log.parent, log, "--columns", "step=it", "--health-threshold", "1")
        log.unlink()


def test_a_trace_decides_before_a_place_that_cannot_be_searched(tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.mkdir()
    (output / "a").symlink_to(tmp_path / "not mounted")
    assert start(output).code == 14
    (output / "latest").touch()
    assert_trace(output, output / "latest")


def test_the_whole_tree_is_searched_if_the_path_is_a_part_of_it(tmp_path: Path) -> None:
    ranks = [tmp_path / "checkpoint" / f"rank_{rank}" for rank in (0, 1)]
    for rank in ranks:
        rank.mkdir(parents=True)
    assert start(ranks[0]).code == 0
    (ranks[1] / "meta.json").touch()
    assert start(ranks[0]).code == 11


def test_the_check_of_an_unfinished_save_is_no_trace(copy_tree: Callable[[str], Path]) -> None:
    tree = copy_tree("layouts/hf_single")
    for name in ("checkpoint-8", "checkpoint-12"):
        shutil.rmtree(tree / name)
    assert ask("seal", str(tree)).code == 0
    assert ask("verify", str(tree), "--level", "checksum").code == 0
    (tree / "checkpoint-4" / "ckpttool.manifest.json").unlink(missing_ok=True)
    shutil.rmtree(tree / ".ckpttool", ignore_errors=True)
    (tree / "checkpoint-4" / "trainer_state.json").unlink()
    assert start(tree, "--json").json["set_aside"] == ["checkpoint-4"]


def test_a_place_that_cannot_be_searched_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "output"
    output.mkdir()
    (output / "gone").symlink_to(tmp_path / "not mounted")
    assert start(output).code == 14
    (output / "gone").unlink()
    (output / "elsewhere").symlink_to(FIXTURES)
    assert start(output).code == 14
    (output / "elsewhere").unlink()
    assert_fresh(output)
    (output / "many").mkdir()
    (output / "many" / "a").touch()
    monkeypatch.setattr(first_start, "MOST_ENTRIES", 1)
    assert start(output).code == 14


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_without_permission_is_unknown(tmp_path: Path) -> None:  # pragma: no cover  as root
    closed = tmp_path / "output" / "closed"
    closed.mkdir(parents=True)
    closed.chmod(0)
    try:
        assert start(tmp_path / "output").code == 14
        assert start(closed / "x").code == 14
    finally:
        closed.chmod(0o755)


def test_a_file_system_that_should_be_mounted_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "data" / "run"
    output.mkdir(parents=True)
    assert_fresh(output)
    planned = (PlannedMount(str(tmp_path / "data"), "/etc/fstab"),)
    monkeypatch.setattr(first_start, "planned_mounts", lambda: planned)
    for path in (output, output / "new"):
        said = start(path)
        assert (said.code, said.stdout) == (14, "")
        assert "/etc/fstab" in said.stderr
    table = f"{mounts.mount_table()}99 1 0:99 / {tmp_path}/data rw - nfs filer:/data rw\n"
    monkeypatch.setattr(first_start, "mount_table", lambda: table)
    assert_fresh(output)


def test_a_path_that_is_no_folder_is_an_error_as_without_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "broken").symlink_to("gone")
    os.mkfifo(tmp_path / "pipe")
    for name in ("file", "file/below", "broken", "broken/below", "pipe"):
        plain, said = ask("resolve", str(tmp_path / name)), start(tmp_path / name)
        assert (said.code, said.stderr) == (plain.code, plain.stderr)
        assert said.code == 12
    others = tmp_path / "others"
    for name in ("weights", "context"):
        (others / "a" / name).mkdir(parents=True)
    assert start(others).stderr == ask("resolve", str(others)).stderr


@pytest.mark.parametrize("options", [("--checkpoint", "5"), ("--save-every", "0")])
def test_options_that_contradict_it_are_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    assert start(tmp_path / "new", *options).code == 2
    assert ask("resolve", str(tmp_path / "new"), "--save-every", "5").code == 2
