"""Whatever is asked of a tree is asked of its parts: on a machine that has none of the files the answer is the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from difflib import unified_diff
from pathlib import Path
from random import Random

import pytest

from ckpttool.core.domain.node import Room
from ckpttool.core.domain.verdict import Level
from ckpttool.core.storage.disk import LocalDisk
from tests.support.commands import ask
from tests.support.split_trees import aged, parts_of
from tests.support.trees import FIXTURES, writable

CONFIG = str(FIXTURES / "configs" / "pretrain_sink2.yaml")
LOG = str(FIXTURES / "health_pp2" / "train_log_first_rank_0.jsonl")

QUESTIONS = {
    "scan": "scan TREE",
    "structure": "verify TREE --checkpoint all",
    "checksum": "verify TREE --checkpoint all --level checksum",
    "numerics": "verify TREE --checkpoint all --level numerics",
    "numerics of the newest": "verify TREE --level numerics",
    "dry run": "verify TREE --level checksum --dry-run",
    "resolve": "resolve TREE --gbs 16 --simulate own",
    "resolve at checksum": "resolve TREE --level checksum --world-size 4",
    "resolve at numerics": "resolve TREE --level numerics",
    "health": f"health TREE --log {LOG} --threshold 0.5",
    "preflight": f"preflight TREE --config {CONFIG}",
    "preflight at checksum": f"preflight TREE --config {CONFIG} --level checksum",
    "launch": f"launch TREE --config {CONFIG} --output OUT",
    "launch at numerics": f"launch TREE --config {CONFIG} --output OUT --level numerics",
    "report": "report TREE --output OUT",
    "report at checksum": f"report TREE --level checksum --log {LOG} --format markdown --output OUT",
}

Divided = Callable[[str, str], tuple[Path, Path]]


@pytest.fixture
def divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Divided:
    """Return what copies a tree, damages it, and lets two machines look at it; the tree and the folder of parts."""
    for name in ("HOME", "XDG_CACHE_HOME"):  # where a machine remembers what it found
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(LocalDisk, "room", lambda *_: Room(free_bytes=1 << 40, free_files=1 << 20))

    def divide(name: str, level: str) -> tuple[Path, Path]:
        output, parts = writable(FIXTURES / name / "output", tmp_path / "output"), tmp_path / "parts"
        tree = output / "checkpoint"
        newest = sorted(path for path in tree.rglob("*-15_2.ckpt") if "rank_3" in str(path))
        for path in newest[:1]:
            path.write_bytes(path.read_bytes()[:-100])
        aged(output)
        parts.mkdir()
        for number, part in enumerate(parts_of(output, tree, 2, Random(1), Level[level.upper()])):  # noqa: S311
            (parts / f"{number}.ckptpart").write_bytes(part)
        return tree, parts

    return divide


def told(question: str, tree: Path, tmp_path: Path, form: str) -> tuple[int, str, str]:
    """Return the exit code, the answer, and what was written."""
    out = tmp_path / "out"
    out.unlink(missing_ok=True)
    words = [{"TREE": str(tree), "OUT": str(out)}.get(word, word) for word in question.split()]
    answer = ask(*words, *([form] if form else []))
    return answer.code, plain(answer.stdout), plain(out.read_text("utf-8")) if out.exists() else ""


def plain(text: str) -> str:
    """Leave out of an answer what no two have alike, and what is said of parts alone."""
    text = re.sub(r',\s*"parts": \{[^{}]*\}|, "host": "node[0-9]+"|,\s*"host": "node[0-9]+"', "", text)
    text = re.sub(r" on node[0-9]+, which has the least room", "", text)
    text = re.sub(r"saves of [^;]*;", "saves;", text)  # on one machine's disk there are fewer files
    text = re.sub(r'"(save_(bytes|files)|seconds)": [0-9.e-]+', r'"\1": 0', text)
    text = re.sub(r"<dt>(free on this disk|room for)</dt><dd>[^<]*</dd>\n*", "", text)  # no disk is at hand
    return re.sub(r"[0-9.]+ (ms|s)\b|[0-9-]+ [0-9:]+ UTC, for [^<|\n]*|[0-9.]+ seconds", "T", text)


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", ["health_pp2", "newfmt_4rank", "sink2_ckpt"])
@pytest.mark.parametrize("asked", QUESTIONS)
def test_parts_are_told_as_the_tree_is_where_all_of_it_lies(
    asked: str, name: str, divided: Divided, tmp_path: Path
) -> None:
    question = QUESTIONS[asked]
    level = re.search("--level ([a-z]+)", question)
    tree, parts = divided(name, level[1] if level else "structure")
    for form in ("", "--json") if "report" not in question else ("",):
        (tmp_path / "whole").exists() and (tmp_path / "whole").rename(tree.parent)
        whole = told(question, tree, tmp_path, form)
        tree.parent.rename(tmp_path / "whole")
        seen = told(question, parts, tmp_path, form)
        assert seen[0] == whole[0]
        for one, other in zip(whole[1:], seen[1:], strict=True):
            assert not [*unified_diff(one.splitlines(), other.splitlines(), "tree", "parts", n=0, lineterm="")]


PRUNE = ("--keep-last", "1", "--grace", "0")


@pytest.mark.parametrize("name", ["health_pp2", "newfmt_4rank", "sink2_ckpt"])
def test_prune_plans_for_all_machines_what_it_would_do_on_one(name: str, divided: Divided) -> None:
    tree, parts = divided(name, "checksum")
    whole = ask("prune", str(tree), *PRUNE, "--json")
    planned = ask("prune", str(parts), *PRUNE, "--json")
    assert planned.code == whole.code == 0, planned.stderr
    answer, expected = json.loads(planned.stdout), json.loads(whole.stdout)
    places = answer.pop("elsewhere")
    assert expected["checkpoints"] == answer["checkpoints"]
    assert {place["host"] for place in places} == {"node01", "node02"}

    before = {path: path.stat().st_size for path in tree.rglob("*") if path.is_file()}
    assert ask("prune", str(tree), *PRUNE, "--apply").code == 0
    gone = {str(path.relative_to(tree)): size for path, size in before.items() if not path.exists()}
    assert sorted(path for place in places for path in place["paths"]) == sorted(gone)
    assert sum(place["bytes"] for place in places) == sum(gone.values())


def test_prune_says_of_each_machine_what_would_go(divided: Divided) -> None:
    _, parts = divided("sink2_ckpt", "structure")
    said = ask("prune", str(parts), *PRUNE)
    assert said.code == 0
    assert re.search(r"on node01: [0-9]+ files, .* KiB: 10_2, 20_2, _1-25_2", said.stdout)
    assert "Plan only: nothing is deleted." in said.stdout
    assert "--apply" not in said.stdout


def test_nothing_is_deleted_by_what_machines_wrote_down(divided: Divided) -> None:
    tree, parts = divided("sink2_ckpt", "structure")
    before = sorted(tree.rglob("*"))
    said = ask("prune", str(parts), *PRUNE, "--apply")
    assert said.code == 15
    assert "nothing can be deleted through parts" in said.stderr
    assert sorted(tree.rglob("*")) == before


def test_nothing_goes_while_a_machine_has_not_told_what_it_has(divided: Divided) -> None:
    _, parts = divided("sink2_ckpt", "structure")
    (parts / "1.ckptpart").unlink()
    said = ask("prune", str(parts), *PRUNE, "--json")
    assert said.code == 14
    answer = json.loads(said.stdout)
    assert answer["elsewhere"] == []
    assert "part-missing" in {finding["code"] for finding in answer["findings"]}
