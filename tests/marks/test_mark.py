"""A mark on a save counts in every command, for this save only, and for its files only."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

import ckpttool
from ckpttool import library
from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.health import Health
from ckpttool.core.records import MARKS
from ckpttool.core.write.files import locked
from ckpttool.marks.model import MarkKind, MarkQuestion
from tests.conftest import FIXTURES, Golden
from tests.support.commands import Said, ask, environment
from tests.support.s3_relay import relay_over
from tests.support.situations import SITUATIONS
from tests.support.split_trees import aged, parts_of
from tests.support.trees import TreeBuilder, writable

TREES = {
    "sink2_ckpt/output": ("_1-30_2", "_1-25_2"),
    "newfmt_4rank": ("iteration_00000030", "iteration_00000020"),
    "layouts/hf_single": ("checkpoint-12", "checkpoint-8"),
    "layouts/hf_ddp2": ("checkpoint-8", "checkpoint-4"),
    "layouts/dcp_fsdp2_4ranks": ("step_000015", "step_000010"),
    "layouts/mcore_dist_tp2dp2": ("iter_0000006", "iter_0000003"),
    "layouts/ds_zero1_2ranks": ("global_step6", "global_step3"),
    "layouts/titan_4ranks": ("step-10", "step-5"),
    "layouts/light_single": ("epoch=1-step=12.ckpt", "epoch=0-step=8.ckpt"),
    "layouts/olmo_2ranks": ("step12", "step10"),
    "layouts/files_loop": ("ckpt_300.pt", "ckpt_200.pt"),
    "layouts/verl_2ranks": ("global_step_3", "global_step_2"),
}
"""The newest save of a tree, and the next."""

REASON = "loss diverged after it"


@pytest.fixture
def tree(tmp_path: Path) -> str:
    return str(writable(FIXTURES / "sink2_ckpt/output", tmp_path / "output"))


def resumed(tree: str, *options: str) -> str | None:
    document = ask("resolve", tree, *options, "--json").json
    return document["resume"] and str(document["resume"]["name"])


def marks_of(tree: str) -> dict[str, tuple[str, str]]:
    return {mark["name"]: (mark["mark"], mark["state"]) for mark in ask("mark", tree, "--json").json["marks"]}


def records(tree: str) -> list[Path]:
    return sorted(path for path in Path(tree).rglob(f"{MARKS}/*.json"))


def codes(said: Said, name: str) -> set[str]:
    (save,) = (save for save in said.json["checkpoints"] if save["name"] == name)
    return {finding["code"] for finding in save["findings"]}


@pytest.mark.sample(4)
@pytest.mark.parametrize(("fixture", "saves"), TREES.items())
def test_a_bad_save_is_passed_over_in_every_layout_and_chosen_again_once_cleared(
    tmp_path: Path, fixture: str, saves: tuple[str, str]
) -> None:
    newest, older = saves
    tree = str(writable(FIXTURES / fixture, tmp_path / "tree"))
    assert resumed(tree) == newest
    assert ask("mark", newest, tree, "--bad", REASON).code == 0
    assert resumed(tree) == older
    assert resumed(tree, "--checkpoint", newest) is None
    assert resumed(tree, "--checkpoint", newest, "--ignore-health") == newest
    assert ask("mark", newest, tree, "--clear").code == 0
    assert resumed(tree) == newest


def test_the_reason_the_user_and_the_way_on_are_shown(tree: str) -> None:
    ask("mark", "_1-30_2", tree, "--bad", REASON)
    said = ask("resolve", tree)
    text = " ".join(said.stdout.split())
    assert REASON in text
    assert f"@{os.uname().nodename} at 20" in text
    assert "ckpttool mark _1-30_2" in text
    assert "--clear removes the mark; --ignore-health chooses it anyway" in text
    (rejected,) = ask("resolve", tree, "--json").json["rejected"]
    assert (rejected["name"], [reason["code"] for reason in rejected["reasons"]]) == ("_1-30_2", ["marked-bad"])


def test_an_ignored_mark_is_still_a_note_of_the_plan(tree: str) -> None:
    ask("mark", "_1-30_2", tree, "--bad", REASON)
    (plan,) = [ask("resolve", tree, "--checkpoint", "_1-30_2", "--ignore-health", "--json").json]
    assert {(finding["code"], finding["severity"]) for finding in plan["findings"]} >= {("marked-bad", "note")}


def test_scan_and_verify_note_the_mark_of_this_save_and_call_nothing_damaged(tree: str) -> None:
    ask("mark", "_1-30_2", tree, "--bad", REASON)
    for command in ("scan", "verify"):
        said = ask(command, tree, *(["--checkpoint", "all"] if command == "verify" else []), "--json")
        assert said.code == 0
        assert codes(said, "_1-30_2") == {"marked-bad"}
        assert not codes(said, "_1-25_2")
    healths = {save["name"]: save["health"] for save in ask("scan", tree, "--json").json["checkpoints"]}
    assert (healths["_1-30_2"], healths["_1-25_2"]) == ("unhealthy", "unknown")


def test_a_marked_save_can_be_sealed_and_a_bad_mark_hides_no_damage(tree: str) -> None:
    ask("mark", "_1-30_2", tree, "--good")
    assert ask("seal", tree).code == 0
    Path(tree, "checkpoint/rank_1/llama2_7b_rank_1_1-30_2.ckpt").write_bytes(b"")
    assert ask("verify", tree).code == 10
    assert resumed(tree) == "_1-25_2"


def test_prune_counts_no_bad_save_and_never_deletes_the_last_good_one(tree: str) -> None:
    def kept(*options: str) -> set[str]:
        document = ask("prune", tree, "--grace", "0", *options, "--json").json
        return {save["name"] for save in document["checkpoints"] if save["fate"] == "keep"}

    assert kept("--keep-last", "1") == {"_1-30_2"}
    ask("mark", "_1-30_2", tree, "--bad", REASON)
    assert kept("--keep-last", "1") == {"_1-30_2", "_1-25_2"}
    assert kept("--keep-last", "2") == {"_1-30_2", "_1-25_2", "20_2"}
    for name in ("_1-25_2", "20_2", "15_2"):
        ask("mark", name, tree, "--bad", REASON)
    assert "10_2" in kept("--keep-last", "1")


def test_if_every_save_is_bad_nothing_is_chosen_and_all_reasons_are_shown(tree: str) -> None:
    for name in ("_1-30_2", "_1-25_2", "20_2", "15_2", "10_2"):
        ask("mark", name, tree, "--bad", f"bad {name}")
    said = ask("resolve", tree, "--json")
    assert said.code == 11
    assert [[reason["code"] for reason in one["reasons"]] for one in said.json["rejected"]] == [["marked-bad"]] * 5


def test_preflight_and_launch_take_the_older_save(tree: str, tmp_path: Path) -> None:
    config = str(FIXTURES / "configs/pretrain_sink2.yaml")
    ask("mark", "_1-30_2", tree, "--bad", REASON)
    said = ask(
        "preflight", tree, "--config", config, "--allow", "start-differs", "--allow", "newer-not-chosen", "--json"
    )
    assert said.json["plan"]["resume"]["name"] == "_1-25_2"
    new = tmp_path / "new.yaml"
    launch = ("launch", tree, "--config", config, "--output", str(new))
    assert ask(*launch, "--strict").code == 10
    assert ask(*launch).code == 0
    assert "_1-25_2" in new.read_text()


def test_repair_pointer_names_the_newest_save_that_is_not_bad_or_the_named_one(tree: str) -> None:
    ask("mark", "_1-30_2", tree, "--bad", REASON)
    assert ask("repair", "pointer", tree, "--grace", "0", "--json").json["checkpoint"] == "_1-25_2"
    said = ask("repair", "pointer", tree, "--grace", "0", "--checkpoint", "_1-30_2", "--json")
    assert said.json["checkpoint"] == "_1-30_2"


def test_watch_reports_a_bad_save_and_only_that(tree: str) -> None:
    ask("mark", "_1-30_2", tree, "--bad", REASON)
    events = [json.loads(line) for line in ask("watch", tree, "--once", "--json").stdout.splitlines()]
    kinds = {event["checkpoint"]: event["event"] for event in events if event.get("checkpoint")}
    assert kinds["_1-30_2"] == "bad"
    assert kinds["_1-25_2"] == "good"


def test_health_shows_who_judged(tree: str) -> None:
    ask("mark", "_1-30_2", tree, "--good")
    ask("mark", "_1-25_2", tree, "--bad", REASON)
    said = ask("health", tree, "--json")
    shown = {save["name"]: (save["health"], save["source"]) for save in said.json["checkpoints"]}
    assert (shown["_1-30_2"], shown["_1-25_2"], shown["20_2"]) == (
        ("healthy", "mark"),
        ("unhealthy", "mark"),
        ("unknown", "none"),
    )
    assert said.code == 0


class TestGood:
    """A good mark is a healthy record, and no more."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> str:
        return str(writable(FIXTURES / "health_pp2/output", tmp_path / "output"))

    def test_replaces_the_unhealthy_record_of_the_trainer(self, tree: str) -> None:
        assert resumed(tree) == "10_2"
        ask("mark", "15_2", tree, "--good", "--reason", "the norm was a logging bug")
        assert resumed(tree) == resumed(tree, "--require-health") == "15_2"
        (found,) = [one for one in ask("resolve", tree, "--json").json["findings"] if one["code"] == "marked-good"]
        assert "the norm was a logging bug, in place of the unhealthy record of the trainer" in found["message"]

    def test_is_health_evidence_where_health_is_required(self, tmp_path: Path) -> None:
        tree = str(writable(FIXTURES / "sink2_ckpt/output", tmp_path / "sink"))
        assert resumed(tree, "--require-health") is None
        ask("mark", "20_2", tree, "--good")
        assert resumed(tree, "--require-health") == "20_2"

    def test_does_not_outweigh_the_log(self, tree: str) -> None:
        log = str(Path(tree).parent / "log.jsonl")
        shutil.copy(FIXTURES / "health_pp2/train_log_first_rank_0.jsonl", log)
        judged = ("--health-threshold", "0.0000001", "--log", log)
        before = ask("resolve", tree, *judged, "--json").json["rejected"]
        ask("mark", "15_2", tree, "--good")
        assert "norm-above-threshold" in json.dumps(ask("resolve", tree, *judged, "--json").json["rejected"])
        assert "norm-above-threshold" in json.dumps(before)

    def test_a_bad_mark_outweighs_a_log_that_shows_nothing(self, tree: str) -> None:
        log = str(FIXTURES / "health_pp2/train_log_first_rank_0.jsonl")
        judged = ("--health-threshold", "1e30", "--log", log)
        assert resumed(tree, *judged) == "15_2"
        ask("mark", "15_2", tree, "--bad", REASON)
        assert resumed(tree, *judged) == "10_2"


class TestStale:
    """A mark is about files, not about a name."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> str:
        builder = TreeBuilder(tmp_path).legacy(ranks=2).save(epoch=10, step=2).save(epoch=20, step=2)
        ask("mark", "20_2", str(builder.checkpoint), "--bad", REASON)
        return str(builder.checkpoint)

    @staticmethod
    def rewritten(tree: str) -> None:
        for path in Path(tree).glob("rank_*/*-20_2.ckpt"):
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
            os.utime(path, (1_800_000_000, 1_800_000_000))

    def test_a_save_that_was_written_again_is_not_blamed(self, tree: str) -> None:
        assert resumed(tree) == "10_2"
        self.rewritten(tree)
        assert resumed(tree) == "20_2"
        assert codes(ask("scan", tree, "--json"), "20_2") == {"mark-stale"}
        assert marks_of(tree) == {"20_2": ("bad", "stale")}
        assert "written again" in " ".join(ask("resolve", tree).stdout.split())

    def test_it_can_be_marked_again(self, tree: str) -> None:
        self.rewritten(tree)
        ask("mark", "20_2", tree, "--bad", REASON)
        assert marks_of(tree) == {"20_2": ("bad", "counts")}
        assert resumed(tree) == "10_2"

    def test_a_file_of_another_size_is_another_save(self, tree: str) -> None:
        path = next(Path(tree).glob("rank_0/*-20_2.ckpt"))
        path.write_bytes(path.read_bytes() + b"x")
        assert marks_of(tree) == {"20_2": ("bad", "stale")}

    def test_a_copy_with_other_times_is_the_same_save(self, tree: str, tmp_path: Path) -> None:
        shutil.copytree(tree, tmp_path / "copy", copy_function=shutil.copyfile)
        assert marks_of(str(tmp_path / "copy")) == {"20_2": ("bad", "counts")}
        assert resumed(str(tmp_path / "copy")) == "10_2"

    def test_content_that_cannot_be_compared_is_unknown(self, tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for path in Path(tree).glob("rank_*/*-20_2.ckpt"):
            os.utime(path, (1_800_000_000, 1_800_000_000))

        def fails(*_: object) -> str:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("ckpttool.marks.identity._sample", fails)
        assert ask("scan", tree).code == 14
        said = ask("resolve", tree, "--json")
        assert said.code == 14
        assert said.json["resume"]["name"] == "10_2"

    def test_a_deleted_save_keeps_its_mark_in_the_list_and_disturbs_nothing(self, tree: str) -> None:
        for path in Path(tree).glob("rank_*/*-20_2.ckpt"):
            path.unlink()
        assert marks_of(tree) == {"20_2": ("bad", "absent")}
        assert ask("scan", tree).code == 0
        assert resumed(tree) == "10_2"

    def test_a_save_that_returns_from_the_trash_is_still_marked(self, tree: str) -> None:
        ask("mark", "20_2", tree, "--clear")
        ask("mark", "10_2", tree, "--bad", REASON)
        assert ask("prune", tree, "--keep-last", "1", "--trash-days", "9", "--grace", "0", "--apply").code == 0
        assert marks_of(tree) == {"10_2": ("bad", "absent")}
        assert ask("trash", "restore", "10_2", tree, "--grace", "0").code == 0
        assert marks_of(tree) == {"10_2": ("bad", "counts")}


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _edited(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"bad"', b'"good"'))


def _rewrite(path: Path, **changes: str) -> None:
    """Write a record with other values and its right hash."""
    from ckpttool.core.records.hashed_json import closed

    record = json.loads(path.read_bytes())
    del record["hash"]
    path.write_bytes(closed(json.dumps({**record, **changes}, indent=2).removesuffix("\n}")))


def _newer(path: Path) -> None:
    _rewrite(path, schema="ckpttool/mark/2")


def _impossible_time(path: Path) -> None:
    _rewrite(path, at="2026-13-45T99:99:99Z")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _lost_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/not/there.json")


class TestUnreadable:
    """A record that cannot be read is never taken for no mark."""

    @pytest.fixture
    def tree(self, tree: str) -> str:
        ask("mark", "_1-30_2", tree, "--bad", REASON)
        return tree

    @pytest.mark.parametrize("damage", [_truncated, _empty, _edited, _newer, _impossible_time, _folder, _lost_link])
    def test_a_damaged_record_leaves_its_save_unknown_and_no_other(
        self, tree: str, damage: Callable[[Path], None]
    ) -> None:
        damage(*records(tree))
        said = ask("scan", tree, "--json")
        assert said.code == 14
        assert codes(said, "_1-30_2") == {"mark-unreadable"}
        assert not codes(said, "_1-25_2")
        assert ask("verify", tree).code == 14
        resolved = ask("resolve", tree, "--json")
        assert (resolved.code, resolved.json["resume"]["name"]) == (14, "_1-25_2")
        assert ask("mark", tree).code == 14
        pruned = ask("prune", tree, "--keep-last", "1", "--grace", "0", "--json").json
        assert {save["name"] for save in pruned["checkpoints"] if save["fate"] == "keep"} == {"_1-30_2", "_1-25_2"}

    @pytest.mark.parametrize("again", [("--bad", REASON), ("--good",), ("--clear",)])
    def test_a_new_mark_replaces_it(self, tree: str, again: tuple[str, ...]) -> None:
        _truncated(*records(tree))
        assert ask("mark", "_1-30_2", tree, *again).code == 0
        assert ask("scan", tree).code == 0
        assert resumed(tree) == ("_1-25_2" if again[0] == "--bad" else "_1-30_2")

    def test_an_older_record_does_not_matter(self, tree: str) -> None:
        (first,) = records(tree)
        ask("mark", "_1-30_2", tree, "--clear")
        _truncated(first)
        assert ask("scan", tree).code == 0
        assert resumed(tree) == "_1-30_2"

    def test_a_damaged_record_of_an_unknown_save_leaves_the_choice_open(self, tree: str) -> None:
        (record,) = records(tree)
        _truncated(record)
        record.rename(record.with_name(record.name.replace("_1-30_2", "gone")))
        resolved = ask("resolve", tree, "--json")
        assert (resolved.code, resolved.json["resume"]["name"]) == (14, "_1-30_2")

    @pytest.mark.parametrize("name", ["notes.txt", "_1-30_2.json", "x.0123456789abcdef.1-0123456789abcde.json"])
    def test_a_file_with_a_foreign_name_may_be_a_mark(self, tree: str, name: str) -> None:
        (record,) = records(tree)
        record.with_name(name).write_bytes(record.read_bytes())
        assert ask("resolve", tree).code == 14
        assert ask("mark", tree).code == 14

    def test_a_mark_under_a_changed_name_is_found_by_the_files_of_its_save(self, tree: str) -> None:
        (record,) = records(tree)
        record.rename(record.with_name(f"save.{'0' * 16}.1-{'0' * 16}.json"))
        assert resumed(tree) == "_1-25_2"

    def test_then_a_later_mark_under_the_new_name_counts(self, tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
        (record,) = records(tree)
        record.rename(record.with_name(f"save.{'0' * 16}.1-{'0' * 16}.json"))
        later = time.time() + 60
        monkeypatch.setattr("ckpttool.marks.setting.time.time", lambda: later)
        assert ask("mark", "_1-30_2", tree, "--clear").code == 0
        assert resumed(tree) == "_1-30_2"

    def test_a_temporary_file_of_a_killed_process_is_no_mark(self, tree: str) -> None:
        (record,) = records(tree)
        record.with_name(".ckpttool-0123456789abcdef.tmp").write_bytes(b"half")
        assert ask("scan", tree).code == 0

    def test_a_folder_that_cannot_be_listed_leaves_every_save_unknown(self, tree: str) -> None:
        shutil.rmtree(records(tree)[0].parent)
        Path(tree, "checkpoint", MARKS).write_text("a file")
        said = ask("resolve", tree, "--json")
        assert (said.code, said.json["resume"]) == (14, None)
        assert ask("mark", "_1-30_2", tree, "--bad", REASON).code == 1

    def test_a_record_that_names_a_path_outside_the_tree_is_refused(self, tree: str) -> None:
        from ckpttool.core.records.hashed_json import closed

        (record,) = records(tree)
        content = json.loads(record.read_bytes())
        del content["hash"]
        content["files"][0]["path"] = "../../etc/passwd"
        record.write_bytes(closed(json.dumps(content, indent=2).removesuffix("\n}")))
        assert codes(ask("scan", tree, "--json"), "_1-30_2") == {"mark-unreadable"}


class TestCommand:
    """What a user types, and what goes wrong."""

    def test_a_dry_run_writes_nothing(self, tree: str) -> None:
        said = ask("mark", "20_2", tree, "--bad", REASON, "--dry-run", "--json")
        assert said.json["dry_run"]
        assert said.json["written"]["mark"] == "bad"
        assert said.json["marks"] == []
        assert not Path(tree, "checkpoint/.ckpttool").exists()

    def test_the_path_of_a_save_names_it(self, tmp_path: Path) -> None:
        tree = writable(FIXTURES / "layouts/hf_single", tmp_path / "tree")
        assert ask("mark", str(tree / "checkpoint-12"), "--bad", REASON).code == 0
        assert marks_of(str(tree)) == {"checkpoint-12": ("bad", "counts")}

    def test_the_tree_may_be_the_default_one(self, tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(Path(tree).parent)
        assert ask("mark", "20_2", "--bad", REASON).code == 0
        assert "20_2" in ask("mark").stdout

    @pytest.mark.parametrize(
        "arguments",
        [
            ("20_2", "{tree}"),
            ("{tree}", "--bad", "x"),
            ("latest", "{tree}", "--bad", "x"),
            ("20_2", "{tree}", "--bad", " "),
            ("20_2", "{tree}", "--bad", "x" * 501),
            ("20_2", "{tree}", "--bad", "--quiet"),
            ("20_2", "{tree}", "--bad", "x", "--good"),
            ("20_2", "{tree}", "--reason", "x"),
            ("99_2", "{tree}", "--bad", "x"),
            ("--clear", "{tree}"),
        ],
    )
    def test_an_unclear_request_is_refused_and_nothing_is_written(self, tree: str, arguments: tuple[str, ...]) -> None:
        said = ask("mark", *(argument.format(tree=tree) for argument in arguments))
        assert said.code == 2
        assert said.stderr.count("\n") <= 2
        assert not Path(tree, "checkpoint/.ckpttool").exists()

    def test_a_reason_is_text_and_never_a_command_for_the_terminal(self, tree: str) -> None:
        ask("mark", "20_2", tree, "--bad", "\x1b[31mred\nline")
        assert "\x1b" not in ask("mark", tree).stdout + ask("scan", tree).stdout
        assert ask("mark", tree, "--json").json["marks"][0]["reason"] == "\x1b[31mred\nline"

    def test_names_and_reasons_of_any_bytes_are_recorded_and_the_command_to_clear_them_can_be_copied(
        self, tmp_path: Path
    ) -> None:
        tree = writable(FIXTURES / "layouts/dcp_fsdp2_4ranks", tmp_path / "tree")
        odd = os.fsdecode(b"we ird'$(id)\n\xe9_15")
        (tree / "step_000015").rename(tree / odd)
        reason = os.fsdecode(b'caf\xe9 "$(id)" \xe4\xb8\xad')
        assert ask("mark", odd, str(tree), "--bad", reason).code == 0
        assert ask("mark", str(tree), "--json").json["marks"][0]["state"] == "counts"
        assert resumed(str(tree)) == "step_000010"
        said = ask("mark", str(tree))
        assert said.code == 0
        command = said.stdout.partition("To remove a mark: ")[2]
        command = " ".join(command.split())
        done = subprocess.run(
            ["bash", "-c", f'for word in {command}; do printf "%s\\0" "$word"; done'], capture_output=True, check=True
        )
        assert done.stdout.split(b"\0")[2:4] == [os.fsencode(odd), os.fsencode(tree)]

    def test_the_same_mark_is_written_once(self, tree: str) -> None:
        assert ask("mark", "20_2", tree, "--bad", REASON).code == 0
        said = ask("mark", "20_2", tree, "--bad", REASON, "--json")
        assert said.code == 0
        assert "was already marked as bad" in said.json["unchanged"]
        assert len(records(tree)) == 1
        ask("mark", "20_2", tree, "--bad", "another reason")
        assert len(records(tree)) == 2

    def test_without_a_mark_there_is_nothing_to_clear(self, tree: str) -> None:
        said = ask("mark", "20_2", tree, "--clear", "--json")
        assert (said.code, said.json["unchanged"], said.json["written"]) == (0, "20_2 has no mark", None)
        assert not Path(tree, "checkpoint/.ckpttool").exists()
        ask("mark", "20_2", tree, "--good")
        ask("mark", "20_2", tree, "--clear")
        assert "was removed at" in ask("mark", "20_2", tree, "--clear", "--json").json["unchanged"]

    def test_a_name_at_the_beginning_of_a_sentence_keeps_its_case(self, tmp_path: Path) -> None:
        tree = str(writable(FIXTURES / "layouts/hf_single", tmp_path / "tree"))
        said = ask("mark", "checkpoint-12", tree, "--clear")
        assert said.stdout.startswith("checkpoint-12 has no mark")

    def test_only_a_mark_that_can_be_removed_has_the_command_for_it(self, tmp_path: Path) -> None:
        tree = writable(FIXTURES / "layouts/hf_single", tmp_path / "tree")
        ask("mark", "checkpoint-12", str(tree), "--bad", REASON)
        assert "To remove a mark" in ask("mark", str(tree)).stdout
        (tree / "checkpoint-12").rename(tree.parent / "elsewhere")
        said = ask("mark", str(tree))
        assert "no such checkpoint" in said.stdout
        assert "To remove a mark" not in said.stdout

    def test_a_folder_without_a_tree_and_an_empty_tree_have_their_codes(self, tmp_path: Path) -> None:
        assert ask("mark", "1", str(tmp_path), "--bad", "x").code == 12
        assert ask("mark", "1", str(tmp_path / "none"), "--bad", "x").code == 12

    def test_the_library_marks_as_the_command_does(self, tree: str) -> None:
        answer = library.mark("20_2", tree, bad=REASON)
        assert answer
        assert answer.written is not None
        assert answer.written.kind is MarkKind.BAD
        assert library.mark("20_2", tree, clear=True).marks == ()

    @pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES])
    def test_a_tree_that_is_not_writable_is_refused_in_one_line(
        self, tree: str, monkeypatch: pytest.MonkeyPatch, error: int
    ) -> None:
        def refuses(path: str, *_: object) -> None:
            raise OSError(error, os.strerror(error), path)

        monkeypatch.setattr(os, "mkdir", refuses)
        said = ask("mark", "20_2", tree, "--bad", REASON, "-q")
        assert said.code == 1
        assert ".ckpttool" in said.stderr
        assert os.strerror(error) in said.stderr
        assert said.stderr.count("\n") == 1

    def test_a_tree_without_seals_or_marks_reads_no_folder_of_marks(self, tree: str) -> None:
        code = (
            "import sys, ckpttool; from ckpttool.types import TreeQuestion; "
            f"ckpttool.scan({tree!r}); print('ckpttool.marks' in sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, text=True, env=environment()
        )
        assert done.stdout.strip() == "False"


class TestTogether:
    """Several processes and several machines."""

    def test_marks_at_once_are_all_kept(self, tree: str) -> None:
        from ckpttool.marks.verbs import mark

        def marked(number: int) -> None:
            question = MarkQuestion(name=("20_2", "15_2")[number % 2], kind=MarkKind.BAD, reason=f"number {number}")
            mark(tree, question)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(marked, range(16)))
        numbers = sorted(int(path.name.rpartition("-")[0].rpartition(".")[2]) for path in records(tree))
        assert numbers == sorted([*range(1, 9)] * 2)

    def test_a_writer_waits_for_the_lock(self, tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
        ask("mark", "20_2", tree, "--good")
        monkeypatch.setattr("ckpttool.marks.setting.PATIENCE_SECONDS", 0.0)
        with locked(f"{tree}/checkpoint/{MARKS}", timeout=0):
            assert ask("mark", "20_2", tree, "--bad", REASON).code == 13
        assert marks_of(tree)["20_2"][0] == "good"

    def test_of_two_marks_with_one_number_the_bad_one_counts(self, tree: str, tmp_path: Path) -> None:
        other = tmp_path / "other"
        shutil.copytree(tree, other)
        ask("mark", "_1-30_2", tree, "--good")
        ask("mark", "_1-30_2", str(other), "--bad", REASON)
        (theirs,) = records(str(other))
        shutil.copy(theirs, records(tree)[0].parent)
        assert marks_of(tree) == {"_1-30_2": ("bad", "counts")}

    def test_parts_of_several_machines_carry_the_marks(self, tree: str, tmp_path: Path) -> None:
        aged(Path(tree))
        ask("mark", "_1-30_2", tree, "--bad", REASON)
        parts = tmp_path / "parts"
        parts.mkdir()
        root = Path(tree, "checkpoint")
        from ckpttool.core.domain.verdict import Level

        for number, part in enumerate(parts_of(Path(tree), root, 2, Random(1), Level.STRUCTURE)):  # noqa: S311
            (parts / f"{number}.ckptpart").write_bytes(part)
        assert resumed(str(parts)) == "_1-25_2"
        assert marks_of(str(parts)) == {"_1-30_2": ("bad", "counts")}
        assert ask("mark", "20_2", str(parts), "--bad", REASON).code == 15

    def test_a_tree_in_an_object_store_is_marked_by_added_objects(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bucket = tmp_path / "stores" / "bucket"
        bucket.mkdir(parents=True)
        writable(FIXTURES / "layouts/hf_single", bucket / "run")
        with relay_over(tmp_path / "stores", monkeypatch):
            tree = "s3://bucket/run"
            assert resumed(tree) == "checkpoint-12"
            said = ask("mark", "checkpoint-12", tree, "--bad", REASON, "--json")
            assert said.code == 0
            assert said.json["marks"][0]["state"] == "counts"
            assert resumed(tree) == "checkpoint-8"
            assert ask("mark", "checkpoint-12", tree, "--clear").code == 0
            assert resumed(tree) == "checkpoint-12"
        assert len(records(str(bucket))) == 2


def test_a_mark_is_no_finding_that_blocks(tree: str) -> None:
    ask("mark", "20_2", tree, "--bad", REASON)
    save = ckpttool.scan(tree).inventory.named("20_2")
    assert save is not None
    assert save.mark is not None
    assert (save.health, save.mark.severity) == (Health.UNHEALTHY, Severity.NOTE)


def test_a_link_out_of_the_tree_is_not_followed(tree: str, tmp_path: Path) -> None:
    own = Path(tree, "checkpoint/.ckpttool")
    own.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (own / "marks").symlink_to(tmp_path / "elsewhere")
    said = ask("mark", "20_2", tree, "--bad", REASON)
    assert said.code != 0
    assert not list((tmp_path / "elsewhere").iterdir())


ALIKE = {
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ": "2026-11-20T03:00:00Z",
    r"\d{4}-\d\d-\d\d \d\d:\d\d(?!:)": "2026-11-20 03:00",
    r"[0-9a-f]{16}\.json": "0123456789abcdef.json",
}


@pytest.mark.parametrize(("form", "suffix"), [("table", "txt"), ("json", "json")])
def test_the_answer_is_the_golden_one(
    here: Path, monkeypatch: pytest.MonkeyPatch, form: str, suffix: str, golden: Golden
) -> None:
    SITUATIONS["whole"](here)
    monkeypatch.setattr("ckpttool.marks.setting._user", lambda: "alice@node-1")
    for name, arguments in {
        "none": ("output",),
        "dry": ("20_2", "output", "--bad", REASON, "--dry-run"),
        "bad": ("20_2", "output", "--bad", REASON),
        "good": ("15_2", "output", "--good"),
        "again": ("15_2", "output", "--good"),
        "list": ("output",),
        "clear": ("20_2", "output", "--clear"),
    }.items():
        text = ask("mark", *arguments, "--format", form).stdout
        for pattern, replacement in ALIKE.items():
            text = re.sub(pattern, replacement, text)
        golden(f"mark/{name}.{suffix}", text)
