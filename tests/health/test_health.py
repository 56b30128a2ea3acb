"""`ckpttool health`: judged by the log, by the record, by the weights; and the record brought up to date."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.storage.base import Kind
from ckpttool.core.storage.local import LocalStorage
from ckpttool.trainers.base import Refusal
from ckpttool.trainers.mindformers.layouts.rank import MindFormersRank
from tests.conftest import FIXTURES, Golden
from tests.support.commands import Said, ask
from tests.support.situations import real
from tests.support.training_logs import write_log
from tests.support.trees import TreeBuilder

NORMS = {10: 100.0, 20: 269.9, 30: 270.0}
FILES = [f"llama2_7b_rank_0-{epoch}_2.ckpt" for epoch in (5, 10, 15)]


def tree(here: Path, *, recorded: dict[int, int] | None = None) -> TreeBuilder:
    """Three checkpoints, at steps 10, 20 and 30, and what the trainer recorded of them by epoch."""
    builder = TreeBuilder(here).legacy(ranks=2)
    for epoch in (5, 10, 15):
        builder.save(epoch=epoch, step=2)
    if recorded is not None:
        builder.health([(f"llama2_7b_rank_0-{epoch}_2.ckpt", mark) for epoch, mark in recorded.items()])
    return builder


def log(here: Path, embeddings: dict[int, float], rank: int = 0) -> Path:
    return write_log(here / f"output/log/rank_{rank}/info.log", range(1, 41), embeddings=embeddings)


def judged(said: Said) -> dict[str, tuple[str, str]]:
    """Health and what it rests on, by name."""
    found = said.json["checkpoints"]
    return {one["name"]: (one["health"], one["source"]) for one in found}


def recorded(here: Path) -> dict[str, int]:
    entries = json.loads((here / "output/health_ckpts.json").read_text())
    return {entry["ckpt_name"]: entry["is_health"] for entry in entries}


@pytest.mark.parametrize(("form", "suffix"), [("table", "txt"), ("json", "json")])
def test_the_real_tree_with_its_own_log_is_the_golden_one(form: str, suffix: str, here: Path, golden: Golden) -> None:
    real(here, "health_pp2")
    shutil.copy(FIXTURES / "health_pp2/train_log_first_rank_0.jsonl", here / "train.jsonl")
    said = ask("health", "output", "--threshold", "0.2", "--log", "train.jsonl", "--format", form)
    assert said.code == 10
    golden(f"health/real.{suffix}", said.stdout)


def test_a_norm_at_the_threshold_is_unhealthy_and_one_just_below_it_is_not(here: Path) -> None:
    tree(here)
    log(here, NORMS)
    said = ask("health", "--threshold", "270", "--format", "json")
    assert judged(said) == {"5_2": ("healthy", "log"), "10_2": ("healthy", "log"), "15_2": ("unhealthy", "log")}
    assert (said.json["newest_healthy"], said.code) == ("10_2", 10)
    higher = ask("health", "--threshold", "270.1", "--format", "json")
    assert (higher.json["newest_healthy"], higher.code) == ("15_2", 0)


def test_a_log_that_is_named_is_read_instead_of_those_that_lie_there(here: Path) -> None:
    tree(here)
    log(here, dict.fromkeys((10, 20, 30), 900.0))
    write_log(here / "other.log", range(1, 41), embeddings=dict.fromkeys((10, 20, 30), 1.0))
    assert ask("health", "--threshold", "270").code == 10
    assert ask("health", "--threshold", "270", "--log", "other.log").code == 0
    assert ask("health", "--threshold", "270", "--log", "output/log").code == 10


def test_without_a_log_the_record_speaks_and_the_text_says_that_the_threshold_could_not(here: Path) -> None:
    tree(here, recorded={5: 0, 10: 0, 15: 0})
    said = ask("health", "--threshold", "270", "--format", "json")
    assert judged(said)["15_2"] == ("healthy", "record")
    assert said.code == 14
    assert "the threshold could not be applied" in " ".join(ask("health", "--threshold", "270").stdout.split())
    assert ask("health").code == 0


def test_writing_marks_what_the_log_shows_and_a_second_time_changes_nothing(here: Path) -> None:
    tree(here, recorded={5: 0, 15: 0})
    log(here, NORMS)
    said = ask("health", "--threshold", "270", "--write", "--format", "json")
    assert (said.json["written"], said.json["health_file"]) == (True, "output/health_ckpts.json")
    assert recorded(here) == dict(zip(FILES, (0, 0, 1), strict=True))
    kept = json.loads((here / "output/health_ckpts.json.bak").read_text())
    assert {entry["is_health"] for entry in kept} == {0}
    before = (here / "output/health_ckpts.json").stat()
    again = ask("health", "--threshold", "270", "--write", "--format", "json")
    assert again.json["written"] is False
    assert (here / "output/health_ckpts.json").stat().st_ino == before.st_ino


def test_a_save_that_has_no_name_in_the_record_keeps_no_other_one_out(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(here)
    log(here, NORMS)
    real, odd = MindFormersRank.recorded_name, {"10_2"}

    def name(layout: MindFormersRank, checkpoint: Checkpoint) -> str | Refusal:
        return Refusal(why="is an odd one") if checkpoint.name in odd else real(layout, checkpoint)

    monkeypatch.setattr(MindFormersRank, "recorded_name", name)
    odd |= {"5_2", "15_2"}
    assert ask("health", "--threshold", "280", "--write").code == 2
    odd -= {"5_2", "15_2"}
    said = ask("health", "--threshold", "280", "--write")
    assert said.code == 14
    assert "10_2 was not written to the record: --write is an odd one" in " ".join(said.stdout.split())
    assert recorded(here) == {FILES[0]: 0, FILES[2]: 0}
    odd.clear()
    assert ask("health", "--threshold", "280", "--write").code == 0
    assert recorded(here) == dict.fromkeys(FILES, 0)


def test_nothing_is_written_where_nobody_knows_whether_a_health_file_is_there(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(here, recorded={5: 0, 15: 0})
    log(here, NORMS)
    kind = LocalStorage.kind

    def refused(storage: LocalStorage, path: str) -> Kind:
        if storage.root.endswith("checkpoint") and path == "health_ckpts.json":
            raise OSError(errno.EIO, "Input/output error")
        return kind(storage, path)

    monkeypatch.setattr(LocalStorage, "kind", refused)
    said = ask("health", "--threshold", "270", "--write")
    assert said.code == 14
    assert "health_ckpts.json: whether it exists is unknown (Input/output error)" in said.stderr
    assert not (here / "output/checkpoint/health_ckpts.json").exists()
    assert recorded(here) == {FILES[0]: 0, FILES[2]: 0}


def test_what_is_written_is_what_resolve_goes_by(here: Path) -> None:
    tree(here)
    log(here, NORMS)
    assert ask("health", "--threshold", "270", "--write").code == 10
    resume = ask("resolve", "--format", "json").json["resume"]
    assert (resume["name"], resume["health"]) == ("10_2", "healthy")


def test_writing_keeps_what_others_wrote_into_the_file(here: Path) -> None:
    tree(here)
    log(here, NORMS)
    entries = [{"is_health": 0, "ckpt_name": FILES[2], "by": "hand"}, {"is_health": 1, "ckpt_name": "gone.ckpt"}]
    (here / "output/health_ckpts.json").write_text(json.dumps(entries))
    ask("health", "--threshold", "270", "--write")
    after = json.loads((here / "output/health_ckpts.json").read_text())
    assert after[:2] == [{"is_health": 1, "ckpt_name": FILES[2], "by": "hand"}, entries[1]]


def test_a_file_that_is_no_health_file_is_not_overwritten(here: Path) -> None:
    tree(here)
    log(here, NORMS)
    path = here / "output/health_ckpts.json"
    path.write_text('{"a": 1}')
    said = ask("health", "--threshold", "270", "--write")
    assert (said.code, path.read_text()) == (1, '{"a": 1}')
    assert "is not a health file" in said.stderr


def test_another_process_that_writes_is_waited_for_and_then_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import filelock

    from ckpttool.health.verbs import health as judging

    tree(here)
    log(here, NORMS)
    monkeypatch.setattr(judging, "LOCK_SECONDS", 0.1)
    with filelock.FileLock("output/health_ckpts.json.lock"):
        said = ask("health", "--threshold", "270", "--write")
    assert said.code == 13


def test_the_weights_show_a_trend_and_a_stand_in_for_the_norm(here: Path, golden: Golden) -> None:
    real(here, "health_pp2")
    said = ask("health", "output", "--from-weights", "--format", "json")
    found = said.json["checkpoints"]
    assert [round(one["weights"]["embedding_l2"], 3) for one in found] == [0.721, 1.131, 1.634]
    assert [one["weights"]["nonfinite"] for one in found] == [0, 0, 0]
    golden("health/weights.txt", ask("health", "output", "--from-weights").stdout)
