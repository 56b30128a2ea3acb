"""What saves of Hugging Face's Trainer are, by their records and by what lies beside these."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.checkpoint import CommitState, Content
from ckpttool.core.domain.finding import Code, Row, blocking
from ckpttool.core.domain.plan import Outcome
from ckpttool.core.domain.retention import PruneOrder, RetentionPolicy
from ckpttool.core.errors import ExitCode
from ckpttool.core.storage import local
from ckpttool.trainers.huggingface import record
from ckpttool.types import ResumeQuestion
from tests.support.answers import chosen, cli, codes, going, named, plan, refusal, scanned, simulated, verdict, why_not
from tests.support.commands import ask
from tests.support.trainer_trees import edit_json, healthy

NEWEST = "checkpoint-12"


@pytest.fixture
def single(tmp_path: Path) -> Path:
    return healthy("hf_single", tmp_path)


@pytest.fixture
def ddp(tmp_path: Path) -> Path:
    return healthy("hf_ddp2", tmp_path)


def missed(root: Path, name: str = NEWEST) -> set[str]:
    """Files that are missed of a save."""
    findings = named(scanned(root), name).findings
    return {str(each.path).rpartition("/")[2] for each in findings if each.code is Code.SHARD_MISSING}


class TestFewerRanksThanBefore:
    """Nothing but the ranks' own files tells, where sharded saves hold no training_args.bin."""

    @pytest.fixture
    def sharded(self, tmp_path: Path) -> Path:
        root = healthy("hf_fsdp2ranks", tmp_path)
        shutil.copyfile(root / "checkpoint-3/rng_state_1.pth", root / "checkpoint-3/rng_state_2.pth")
        return root

    def test_with_as_many_steps_an_epoch_the_others_are_missed(self, sharded: Path) -> None:
        assert Code.RANK_MISSING in codes(named(scanned(sharded), "checkpoint-6").findings)

    def test_with_more_steps_an_epoch_the_run_became_smaller(self, sharded: Path) -> None:
        edit_json(sharded / "checkpoint-6/trainer_state.json", epoch=0.4)
        assert blocking(named(scanned(sharded), "checkpoint-6").findings) == ()


class TestTheRecordThatIsWrittenLast:
    def test_the_best_save_never_goes(self, single: Path) -> None:
        edit_json(single / NEWEST / "trainer_state.json", best_model_checkpoint="out/checkpoint-4")
        answer = cli("prune", str(single), "--keep-last", "1", "--grace", "0")
        kept = {line.split()[1] for line in answer.output.splitlines() if line.startswith("keep")}
        assert {"checkpoint-4", NEWEST} <= kept
        assert "checkpoint-8" not in kept

    def test_one_that_nobody_may_read_is_unknown(self, single: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        small_file = local.LocalStorage.small_file

        def withheld(self: local.LocalStorage, path: str, *, limit: int) -> bytes:
            if path == f"{NEWEST}/trainer_state.json":
                raise PermissionError(13, "Permission denied", path)
            return small_file(self, path, limit=limit)

        monkeypatch.setattr(local.LocalStorage, "small_file", withheld)
        save = named(scanned(single), NEWEST)
        assert save.commit is CommitState.UNKNOWN
        answer = cli("verify", str(single))
        assert answer.exit_code == ExitCode.INCOMPLETE
        assert "as the user of the training" in answer.output


def test_where_the_arguments_cannot_be_read_the_batch_size_is_unknown_and_the_save_is_whole(single: Path) -> None:
    (single / NEWEST / "training_args.bin").write_bytes(b"PK\x03\x04 no archive")
    save = named(scanned(single), NEWEST)
    assert (save.scalars.global_batch_size, blocking(save.findings)) == (None, ())


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("section", "values", "code"),
    [
        ("weight_map", {"extra": "model-00001-of-00004.safetensors"}, Code.ENTRIES_MISSING),
        ("weight_map", {"extra": "model-00009-of-00009.safetensors"}, Code.SHARD_MISSING),
        ("weight_map", {"extra": "../../etc/passwd"}, Code.UNSAFE_NAME),
        ("metadata", {"total_size": 10**6}, Code.ENTRIES_MISSING),
        ("metadata", {"total_size": 10**400}, Code.ENTRIES_MISSING),
        ("weight_map", None, Code.META_UNREADABLE),
    ],
)
def test_an_index_must_fit_the_files(section: str, values: dict[str, object] | None, code: Row, tmp_path: Path) -> None:
    root = healthy("hf_sharded_index", tmp_path)
    index = root / "checkpoint-6/model.safetensors.index.json"
    told = json.loads(index.read_text())
    edit_json(index, **{section: None if values is None else told[section] | values})
    assert code in codes(blocking(verdict(root, "checkpoint-6").findings))
    assert chosen(plan(root)) == ("checkpoint-3", 3)


class TestDeepSpeedInside:
    """Put together from two real trees: DeepSpeed's tag takes the place of weights and optimizer."""

    @pytest.fixture
    def inside(self, ddp: Path, tmp_path: Path) -> Path:
        tags = healthy("ds_zero1_2ranks", tmp_path / "tags")
        for save in ("checkpoint-4", "checkpoint-8"):
            for file in ("optimizer.pt", "scheduler.pt", "model.safetensors"):
                (ddp / save / file).unlink()
            shutil.copytree(tags / "global_step6", ddp / save / "global_step6")
            (ddp / save / "latest").write_text("global_step6")
        return ddp

    def test_it_is_whole_and_known_for_trainers(self, inside: Path) -> None:
        inventory = scanned(inside)
        assert inventory.layout == "hf-trainer"
        assert [(save.content, blocking(save.findings)) for save in inventory.checkpoints] == [(Content.FULL, ())] * 2
        assert chosen(plan(inside)) == ("checkpoint-8", 8)

    @pytest.mark.parametrize("what", ["model", "optim"])
    def test_a_file_of_a_rank_is_missed(self, inside: Path, what: str) -> None:
        *_, lost = sorted((inside / "checkpoint-8/global_step6").glob(f"*{what}_states.pt"))
        lost.unlink()
        assert missed(inside, "checkpoint-8") <= {lost.name, "global_step6"}
        assert chosen(plan(inside)) == ("checkpoint-4", 4)

    def test_where_no_rank_has_an_optimizer_that_is_missed_too(self, inside: Path) -> None:
        for file in (inside / "checkpoint-8/global_step6").glob("*_optim_states.pt"):
            file.unlink()
        assert chosen(plan(inside)) == ("checkpoint-4", 4)

    @pytest.mark.parametrize("text", ["global_step9", "../checkpoint-4", ""])
    def test_latest_must_name_a_tag_that_is_there(self, inside: Path, text: str) -> None:
        (inside / "checkpoint-8/latest").write_text(text)
        assert chosen(plan(inside)) == ("checkpoint-4", 4)

    def test_without_latest_nothing_would_be_loaded(self, inside: Path) -> None:
        (inside / "checkpoint-8/latest").unlink()
        assert Code.METADATA_INCOMPLETE in codes(named(scanned(inside), "checkpoint-8").findings)


class TestLongRuns:
    """A record with the log of a long run: each save has all of it."""

    @staticmethod
    def lengthen(root: Path) -> Path:
        """Give the newest save's record more of a log than a scan reads."""
        file = root / NEWEST / "trainer_state.json"
        state = json.loads(file.read_text())
        state["log_history"] = [{"step": step, "loss": 0.5, "nested": [[1], {}]} for step in range(5000)]
        file.write_text(json.dumps(state, indent=2, sort_keys=True) + "\n")
        return file

    def test_a_scan_reads_no_more_than_the_ends_of_it(self, single: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        before = scanned(single)
        assert self.lengthen(single).stat().st_size > 300_000
        with monkeypatch.context() as during:
            during.setattr(record, "read_state", pytest.fail)
            assert scanned(single).checkpoints == before.checkpoints
        assert chosen(plan(single)) == (NEWEST, 12)

    def test_a_hole_in_the_middle_is_found_where_the_save_is_to_be_taken(self, single: Path) -> None:
        file = self.lengthen(single)
        content = bytearray(file.read_bytes())
        content[100_000:104_096] = bytes(4096)
        file.write_bytes(content)
        assert named(scanned(single), NEWEST).commit is CommitState.COMMITTED
        assert Code.META_UNREADABLE in codes(verdict(single, NEWEST).findings)
        assert chosen(plan(single)) == ("checkpoint-8", 8)

    @pytest.mark.parametrize("left", [5, 20_000, 200_000])
    def test_one_that_is_cut_off_is_no_mark_of_a_finished_save(self, single: Path, left: int) -> None:
        file = self.lengthen(single)
        file.write_bytes(file.read_bytes()[:-left])
        assert named(scanned(single), NEWEST).commit is CommitState.UNCOMMITTED


def of_another_run(root: Path, name: str, *, step: int) -> Path:
    """Lay a save of another run into a tree, which logged other losses from its first step on."""
    shutil.copytree(root / "checkpoint-12", root / name)
    record = json.loads((root / name / "trainer_state.json").read_text())
    log = [{**entry, "loss": entry["loss"] + 0.5} for entry in record["log_history"]]
    edit_json(root / name / "trainer_state.json", global_step=step, log_history=log)
    return root


class TestTwoRunsInOneFolder:
    def test_neither_of_two_runs_whose_logs_contradict_each_other_is_chosen_in_silence(self, single: Path) -> None:
        of_another_run(single, "checkpoint-1000", step=1000)
        answer = refusal(single)
        assert {code for _, found in why_not(answer) for code in found} == {Code.RUN_MIXED}
        assert cli("resolve", str(single)).exit_code == ExitCode.INCOMPLETE
        named_one = plan(single, choice=ResumeQuestion(name="checkpoint-12"))
        assert chosen(named_one) == ("checkpoint-12", 12)

    def test_a_run_rewound_to_the_lowest_save_contradicts_the_run_before(self, single: Path) -> None:
        record = json.loads((single / "checkpoint-8" / "trainer_state.json").read_text())
        log = [{**each, "loss": each["loss"] + (each["step"] > 4)} for each in record["log_history"]]
        edit_json(single / "checkpoint-8" / "trainer_state.json", log_history=log)
        assert {code for _, found in why_not(refusal(single)) for code in found} == {Code.RUN_MIXED}
        pruning = ckpttool.prune(str(single), RetentionPolicy(keep_last=1), PruneOrder(grace=0.0))
        assert pruning.plan.going == ()
        assert not any("not intact" in fate.because for fate in pruning.plan.fates)

    @pytest.mark.parametrize("batch", [4, 64])
    def test_a_save_that_lacks_what_later_ones_logged_is_of_another_run(self, single: Path, batch: int) -> None:
        edit_json(single / "checkpoint-4" / "trainer_state.json", log_history=[], train_batch_size=batch)
        assert {code for _, found in why_not(refusal(single)) for code in found} == {Code.RUN_MIXED}
        assert going(single) == set()

    def test_to_name_a_save_of_two_runs_seals_it(self, single: Path) -> None:
        of_another_run(single, "checkpoint-1000", step=1000)
        (unnamed,) = ckpttool.seal(str(single)).sealings
        assert (unnamed.written, codes(unnamed.findings)) == (False, {Code.RUN_MIXED})
        (sealing,) = ckpttool.seal(str(single), NEWEST)
        assert (sealing.written, sealing.findings) == (True, ())

    def test_a_run_that_logs_more_often_from_some_step_on_is_one_run(self, single: Path) -> None:
        record = json.loads((single / NEWEST / "trainer_state.json").read_text())
        log = [entry for entry in record["log_history"] if entry["step"] <= 8 or entry["step"] % 4 == 0]
        edit_json(single / NEWEST / "trainer_state.json", log_history=log)
        assert chosen(plan(single)) == (NEWEST, 12)

    @pytest.mark.parametrize("entry", ['"step": 1, "loss": ' + "9" * 400, '"a": ' + "[" * 5000 + "]" * 5000, '"a": x'])
    def test_an_entry_that_trainer_never_writes_contradicts_nothing(self, single: Path, entry: str) -> None:
        state = single / NEWEST / "trainer_state.json"
        state.write_text(state.read_text().replace('"log_history": [', f'"log_history": [\n    {{{entry}}},', 1))
        assert chosen(plan(single))[0] in {NEWEST, "checkpoint-8"}

    def test_a_run_without_a_log_contradicts_nothing(self, single: Path) -> None:
        edit_json(single / NEWEST / "trainer_state.json", log_history=[])
        edit_json(
            single / "checkpoint-8" / "trainer_state.json", log_history=[{"step": 1, "eval_loss": 2.0}, {"loss": 1}]
        )
        assert chosen(plan(single)) == (NEWEST, 12)


class TestASaveOnSigterm:
    def test_a_save_whose_mark_says_that_it_is_incomplete_is_not_chosen(self, single: Path) -> None:
        mark = single / NEWEST / "checkpoint-is-incomplete.txt"
        mark.write_text("Checkpoint started at step 12 and in progress...")
        answer = plan(single)
        assert chosen(answer) == ("checkpoint-8", 8)
        assert why_not(answer) == [(NEWEST, {Code.UNCOMMITTED_SAVE})]
        assert going(single) == {"checkpoint-4"}
        mark.unlink()
        assert chosen(plan(single)) == (NEWEST, 12)


class TestASaveUnderAnotherName:
    """`hub_strategy="checkpoint"` pushes one as `last-checkpoint`, beside the model itself."""

    @pytest.fixture
    def save(self, tmp_path: Path) -> Path:
        tree = healthy("hf_single", tmp_path)
        shutil.copytree(tree / "checkpoint-12", tmp_path / "repo" / "last-checkpoint")
        for name in ("model.safetensors", "config.json", "training_args.bin", "trainer_state.json"):
            shutil.copyfile(tree / "checkpoint-12" / name, tmp_path / "repo" / name)
        return tmp_path / "repo" / "last-checkpoint"

    def test_is_resumed_from_by_the_step_inside(self, save: Path) -> None:
        for path in (save, save.parent):
            assert chosen(plan(path)) == ("last-checkpoint", 12)
            assert plan(path).load.path == str(save)

    def test_is_looked_at_file_by_file(self, save: Path) -> None:
        assert len(named(scanned(save), "last-checkpoint").shards) == 4
        assert cli("verify", str(save)).exit_code == ExitCode.OK
        (save / "optimizer.pt").unlink()
        said = cli("verify", str(save))
        assert said.exit_code == ExitCode.DAMAGE
        assert "last-checkpoint/optimizer.pt" in said.stdout

    def test_is_not_what_the_trainer_takes_by_itself_and_nobody_prunes_it(self, save: Path) -> None:
        told = simulated(save.parent)
        assert (told.would_resume, told.outcome) == (None, Outcome.STOPS)
        shutil.copytree(save, save.parent / "an-older-one")
        cli("prune", str(save.parent), "--keep-last", "1", "--grace", "0", "--apply")
        assert {each.name for each in save.parent.iterdir() if each.is_dir()} >= {"last-checkpoint", "an-older-one"}

    def test_is_a_copy_where_others_have_their_own_names(self, save: Path) -> None:
        shutil.copytree(save, save.parent / "checkpoint-12")
        assert [each.name for each in scanned(save.parent).checkpoints] == ["checkpoint-12"]
        assert chosen(plan(save.parent)) == ("checkpoint-12", 12)


def with_long_logs(single: Path, entries: int = 1500) -> None:
    """Give each save a log of one run that is too long to be read whole at a scan."""
    for name in ("checkpoint-400", "checkpoint-800", "checkpoint-1200"):
        last = int(name.rpartition("-")[2])
        shutil.copytree(single / NEWEST, single / name)
        edit_json(single / name / "trainer_state.json", global_step=last, log_history=long_log(min(last, entries)))
    for name in ("checkpoint-4", "checkpoint-8", NEWEST):
        shutil.rmtree(single / name)


def long_log(last: int, *, parts_at: int | None = None) -> list[dict[str, object]]:
    loss = {step: 1000 / (step + 1) + (parts_at is not None and step > parts_at) for step in range(1, last + 1)}
    return [{"epoch": step / 100, "grad_norm": 1.5, "loss": loss[step], "step": step} for step in loss]


class TestLogsThatAreTooLongToBeReadWholeAtAScan:
    @pytest.fixture
    def tree(self, single: Path) -> Path:
        with_long_logs(single)
        assert (single / "checkpoint-800" / "trainer_state.json").stat().st_size > 64 << 10
        return single

    @pytest.mark.sample(2)
    @pytest.mark.parametrize("parts_at", [0, 700])
    @pytest.mark.parametrize("name", ["checkpoint-800", "checkpoint-1200"])
    def test_a_run_that_parts_from_the_other_early_or_late_is_told(self, name: str, parts_at: int, tree: Path) -> None:
        log = long_log(int(name.rpartition("-")[2]), parts_at=parts_at)
        edit_json(tree / name / "trainer_state.json", log_history=log)
        assert {code for _, found in why_not(refusal(tree)) for code in found} == {Code.RUN_MIXED}
        assert cli("resolve", str(tree)).exit_code == ExitCode.INCOMPLETE
        assert going(tree) == set()

    def test_a_save_that_lacks_what_the_one_before_logged_last_is_of_another_run(self, tree: Path) -> None:
        log = [entry for entry in long_log(1200) if entry["step"] != 799]
        edit_json(tree / "checkpoint-1200" / "trainer_state.json", log_history=log)
        assert {code for _, found in why_not(refusal(tree)) for code in found} == {Code.RUN_MIXED}

    @pytest.mark.parametrize("change", ["nan", "an entry more", "shorter than the log before"])
    def test_what_says_nothing_of_another_run_is_no_alarm(self, change: str, tree: Path) -> None:
        log = long_log(1200)
        if change == "nan":
            log[750]["loss"] = float("nan")
        elif change == "an entry more":
            log.insert(790, {"epoch": 7.9, "eval_loss": 1.0, "step": 790})
        else:
            log = log[:750]
        edit_json(tree / "checkpoint-1200" / "trainer_state.json", log_history=log)
        assert chosen(plan(tree)) == ("checkpoint-1200", 1200)

    @pytest.mark.parametrize("odd", ["no log of Trainer's", "one entry of half a megabyte"])
    def test_a_log_that_is_not_what_trainer_writes_is_compared_as_far_as_it_is(self, odd: str, tree: Path) -> None:
        path = tree / "checkpoint-1200" / "trainer_state.json"
        text = path.read_text()
        begins = text.index("    {", text.index('"step": 700,'[:-1]))
        end = text.rindex("\n  ],\n")
        middle = "    {x}" if odd == "no log of Trainer's" else '    {"a": "' + "b" * (600 << 10)
        path.write_text(text[:begins] + middle + text[end:])
        assert Code.RUN_MIXED not in {one.code for save in scanned(tree).checkpoints for one in save.findings}

    def test_a_log_that_cannot_be_read_again_is_no_alarm(self, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> bool:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr("ckpttool.trainers.huggingface.scan.logs_contradict", refuse)
        assert chosen(plan(tree)) == ("checkpoint-1200", 1200)


def one_line(text: str) -> str:
    """Return printed text without its line breaks, which depend on the width."""
    return " ".join(text.split())


def test_a_missing_optimizer_is_named_beside_the_files_that_exist(ddp: Path) -> None:
    (ddp / "checkpoint-8" / "optimizer.pt").unlink()
    said = one_line(ask("scan", str(ddp)).stdout)
    assert "checkpoint-8/optimizer.pt: optimizer.pt is missing, but not scheduler.pt and rng_state_0.pth: " in said


def test_a_torn_record_is_named_once(single: Path) -> None:
    (single / NEWEST / "trainer_state.json").write_bytes(b"")
    said = one_line(ask("scan", str(single)).stdout)
    assert f"meta-unreadable {NEWEST}/trainer_state.json: not JSON: it is empty" in said


def test_without_random_number_state_the_way_to_use_the_save_is_named(ddp: Path) -> None:
    (ddp / "checkpoint-8" / "rng_state_1.pth").unlink()
    said = ask("resolve", str(ddp), "--checkpoint", "8")
    assert said.code == 11
    assert "if new random numbers are acceptable, name this one to the trainer yourself" in one_line(said.stdout)
    assert "Step 8 (checkpoint-8) fails only on rank 1: " in one_line(said.stdout)


def test_a_start_without_a_config_is_not_called_configured(single: Path) -> None:
    (single / NEWEST / "optimizer.pt").unlink()
    said = one_line(ask("preflight", str(single)).stdout)
    assert f"start-differs on its own, Hugging Face's Trainer would load {NEWEST}" in said
    assert "as configured" not in said
    allowed = one_line(ask("preflight", str(single), "--allow", "start-differs").stdout)
    assert "start-differs is allowed, see below" in allowed


def test_health_says_that_the_log_has_no_embedding_norm_and_that_files_are_damaged(single: Path) -> None:
    said = ask("health", str(single))
    assert said.code == 14
    assert "no embedding norm in the log: its other values do not show the health" in one_line(said.stdout)
    assert "files are damaged" not in one_line(said.stdout)
    shard = single / NEWEST / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    said = ask("health", str(single), "--from-weights")
    assert said.code == 10
    assert "no checkpoint is known to be healthy; files are damaged" in one_line(said.stdout)
    assert "+?: some shards could not be read, and may contain more." in one_line(said.stdout)
