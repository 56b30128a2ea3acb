"""`ckpttool report`: what it writes, where it may, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.answers import writable_copy
from tests.support.commands import ask

ROOT = Path(__file__).resolve().parent.parent.parent
TREE = str(ROOT / "fixtures" / "sink2_ckpt" / "output")


def test_a_file_for_markdown_is_markdown_and_a_setting_is_said_once(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert ask("report", TREE, "--output", str(page)).code == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!-- ckpttool report -->")
    assert text.replace("\\", "").count("ignore_data_skip") == 1
    other = tmp_path / "page.html"
    assert ask("report", TREE, "--output", str(other)).code == 0
    assert other.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_page_names_the_folder_to_load_as_it_works_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = writable_copy("sink2_ckpt", tmp_path / "copy")
    monkeypatch.chdir(output.parent)
    done = ask("report", output.name, "--format", "markdown", "--output", "-")
    assert f"load_checkpoint: {output}/checkpoint\n" in done.stdout


def test_as_json_the_answer_is_that_of_resolve(tmp_path: Path) -> None:
    done = ask("report", TREE, "--output", str(tmp_path / "report.html"), "--json")
    assert json.loads(done.stdout) == json.loads(ask("resolve", TREE, "--json").stdout)


def test_an_earlier_report_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    page, other = tmp_path / "report.html", tmp_path / "other.html"
    other.write_text("<!doctype html>\n<html lang='en'>mine")
    assert ask("report", TREE, "--output", str(page)).code == 0
    assert ask("report", TREE, "--output", str(page)).code == 0
    assert ask("report", TREE, "--output", str(page), "--format", "markdown").code == 2
    assert ask("report", TREE, "--output", str(other)).code == 2
    assert other.read_text() == "<!doctype html>\n<html lang='en'>mine"


@pytest.mark.sample(2)
@pytest.mark.parametrize("place", ["report.html", "checkpoint/report.html", "checkpoint/rank_0/report.html"])
def test_nothing_is_written_into_the_tree_and_beside_it_a_file_may_lie(tmp_path: Path, place: str) -> None:
    output = writable_copy("sink2_ckpt", tmp_path / "copy")
    done = ask("report", str(output), "--output", str(output / place))
    inside = place.startswith("checkpoint/")
    assert (done.code, (output / place).exists()) == ((2, False) if inside else (0, True))


def test_where_nothing_can_be_resumed_from_the_page_says_so_and_the_exit_is_that_of_resolve(tmp_path: Path) -> None:
    output = writable_copy("sink2_ckpt", tmp_path / "copy")
    for shard in (output / "checkpoint" / "rank_2").iterdir():
        shard.unlink()
    page = tmp_path / "report.html"
    done = ask("report", str(output), "--output", str(page))
    assert done.code == ask("resolve", str(output)).code == 11
    assert "<h1>Nothing to resume from</h1>" in page.read_text(encoding="utf-8")


def test_the_threshold_of_the_page_is_that_of_the_answer(tmp_path: Path) -> None:
    tree, log = ROOT / "fixtures" / "health_pp2" / "output", ROOT / "fixtures/health_pp2/train_log_first_rank_0.jsonl"
    page = tmp_path / "report.html"
    done = ask("report", str(tree), "--threshold", "0.2", "--log", str(log), "--output", str(page))
    assert done.stdout.startswith("Resume from step 20 (10_2)\n")
    text = page.read_text(encoding="utf-8")
    assert "threshold 0.2, 1 step at or above it" in text
    assert "<b>step 30 (15_2)</b> was not chosen: the log has the embedding local norm" in text


def test_what_stops_a_prune_stops_no_report(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert ask("report", TREE, "--keep-last", "2", "--prefix", "llama2_7b", "--output", str(page)).code == 0
    assert "With <code>ckpttool prune --keep-last 2</code>, 3 checkpoints would be deleted" in page.read_text(
        encoding="utf-8"
    )
