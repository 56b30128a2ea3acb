"""A tree that lies on the disks of several machines gets the answers that it would get on one disk."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import ckpttool
from ckpttool.core.domain.question import CheckQuestion, ResumeQuestion, TreeQuestion
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import CkptToolError
from ckpttool.nodes import tree as merged
from ckpttool.nodes.part_file import PartView
from ckpttool.trainers.locate import locate
from tests.support.commands import ask
from tests.support.split_trees import aged, damaged, look_at, looks_at, seat
from tests.support.trees import FIXTURES, writable

TREES = tuple(
    f"{name}/output"
    for name in (
        "async_ckpt", "newfmt_4rank", "sink2_ckpt", "health_pp2", "newfmt_tp2dp2", "nosink_ckpt", "sink2_safetensors",
        "newfmt_1rank",
    )
)  # fmt: skip
COPIES = "byte [0-9]+, [^)]*"
"""Where replicas differ: their bytes are on several machines, and no part holds them."""


def answers(path: str, level: Level) -> dict[str, object]:
    questions: dict[str, Callable[[], dict[str, object]]] = {
        "scan": lambda: ckpttool.scan(TreeQuestion(path=path, sizes=True)).to_dict(),
        "verify": lambda: ckpttool.verify(
            TreeQuestion(path=path, sizes=True), CheckQuestion(level=level, name="all")
        ).to_dict(),
        "resolve": lambda: ckpttool.resolve(TreeQuestion(path=path), ResumeQuestion(evidence=level)).to_dict(),
    }
    found: dict[str, object] = {}
    for name, answered in questions.items():
        try:
            told = answered()
        except CkptToolError:
            found[name] = "no answer"
            continue
        told.pop("parts", None)
        told.pop("seconds", None)
        # Only where the files are can they be rebuilt.
        told["findings"] = [each for each in told["findings"] if each["code"] != "can-be-healed"]  # type: ignore[attr-defined]
        found[name] = json.loads(re.sub(rf" \({COPIES}\)", "", json.dumps(told)))
    return found


def split_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, level: Level
) -> tuple[dict[str, object], dict[str, object], list[str]]:
    """Return what is told of a tree on one disk, and of the same tree on several, damaged at random."""
    chance, output = Random(number), tmp_path / "output"  # noqa: S311
    tree = writable(FIXTURES / TREES[number % len(TREES)], output) / "checkpoint"
    aged(output)
    for name in ("HOME", "XDG_CACHE_HOME"):  # where a machine remembers the damage that it found
        monkeypatch.delenv(name, raising=False)
    if level > Level.STRUCTURE and chance.random() < 0.5:
        ckpttool.seal(TreeQuestion(path=str(tree), sizes=True), chance.choice([None, "all"])).answer()
    done = damaged(tree, chance, chance.choice([0, 0, 1, 1, 2, 4]))
    whole = answers(str(tree), level)
    looks = looks_at(output, tree, chance.randint(1, 4), chance, level)
    chance.shuffle(looks)
    given(monkeypatch, [without_doubt(look) for look in looks])
    parts = answers("x.ckptpart", level)
    if "one-node-only" in json.dumps(whole["resolve"]):  # of which parts say more: all machines were asked
        del whole["resolve"], parts["resolve"]
    for answer in (whole, parts):  # to heal is advised only where the files are
        without_remedies(answer.get("resolve"))
    return whole, parts, done


def without_remedies(plan: object) -> None:
    if isinstance(plan, dict):
        for reason in (each for one in plan["rejected"] for each in one["reasons"]):
            del reason["remedy"]


def without_doubt(look: PartView) -> PartView:
    """Let a machine on which no shard lies see a disk of all: of its own one nobody knows whether it lost them."""
    is_empty = not any(path.endswith((".ckpt", ".safetensors")) for path in look.answers.stamps)
    return replace(look, seat=replace(look.seat, shared=True)) if is_empty else look


def given(monkeypatch: pytest.MonkeyPatch, looks: list[PartView]) -> None:
    monkeypatch.setattr(merged, "read_views", lambda _path: [(f"p{number}", look) for number, look in enumerate(looks)])


@pytest.mark.sample(8)
@pytest.mark.parametrize("number", range(60))
def test_parts_of_a_tree_are_answered_as_the_tree_on_one_disk(
    number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole, parts, done = split_answers(monkeypatch, tmp_path, number, Level.STRUCTURE)
    assert parts == whole, done


@pytest.mark.sample(4)
@pytest.mark.parametrize("number", range(1000, 1040))
def test_so_they_are_where_every_byte_was_read_on_its_machine(
    number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    level = Level.NUMERICS if number % 4 == 0 else Level.CHECKSUM
    whole, parts, done = split_answers(monkeypatch, tmp_path, number, level)
    assert parts == whole, done


LAYOUTS = sorted(
    path.name for path in (FIXTURES / "layouts").iterdir() if path.is_dir() and path.name != "loose_models"
)


@pytest.mark.sample(5)
@pytest.mark.parametrize("level", [Level.STRUCTURE, Level.CHECKSUM])
@pytest.mark.parametrize("name", LAYOUTS)
def test_trees_of_other_trainers_are_answered_so_too(
    name: str, level: Level, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    output, chance = writable(FIXTURES / "layouts" / name, tmp_path / "output"), Random(len(name))  # noqa: S311
    for variable in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    aged(output)
    tree = Path(locate(str(output)).storage.root)
    whole = answers(str(tree), level)
    given(monkeypatch, [without_doubt(look) for look in looks_at(output, tree, 2, chance, level)])
    parts = answers("x.ckptpart", level)
    if "one-node-only" in json.dumps(whole["resolve"]):
        del whole["resolve"], parts["resolve"]
    resolved = parts.get("resolve")
    if isinstance(resolved, dict):  # what each machine must have is asked only where there are several
        resolved["findings"] = [each for each in resolved["findings"] if each["code"] != "shard-elsewhere"]
    assert parts == whole


def two_looks(tmp_path: Path) -> list[PartView]:
    output = tmp_path / "output"
    shutil.copytree(FIXTURES / "async_ckpt" / "output", output)
    aged(output)
    looks = looks_at(output, output / "checkpoint", 2, Random(0), Level.STRUCTURE)  # noqa: S311
    assert all(any(look.report_of(path) for path in look.answers.stamps) for look in looks)
    return looks


def codes(monkeypatch: pytest.MonkeyPatch, looks: list[PartView], **question: object) -> tuple[int, dict[str, str]]:
    """Return how `resolve` would end, and what is said of the tree and the newest save."""
    from ckpttool.core.domain.plan import exit_of

    given(monkeypatch, looks)
    asked = TreeQuestion(path="x.ckptpart", sizes=True, **question)  # type: ignore[arg-type]
    tree = ckpttool.scan(asked)
    found = (*tree.inventory.findings, *(each for save in tree.inventory.checkpoints for each in save.findings))
    return exit_of(ckpttool.resolve(asked).decision, strict=False), {
        each.code.value: each.severity.word for each in found
    }


def test_all_parts_given_one_is_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, found = codes(monkeypatch, two_looks(tmp_path))
    assert code == 0
    assert not {"part-missing", "part-stale", "rank-on-several-nodes"} & found.keys()


@pytest.mark.parametrize("declared", [None, 2])
def test_a_machine_without_shards_leaves_open_whether_the_last_ranks_were_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, declared: int | None
) -> None:
    output = tmp_path / "output"
    shutil.copytree(FIXTURES / "async_ckpt" / "output", output)
    aged(output)
    tree = output / "checkpoint"
    for rank in (2, 3):
        shutil.rmtree(tree / f"rank_{rank}")
    first = look_at(seat(1, 2, tree))
    shutil.rmtree(output)
    nowhere = look_at(seat(2, 2, tree))
    tree.mkdir(parents=True)
    for second in (nowhere, look_at(seat(2, 2, tree))):
        code, found = codes(monkeypatch, [first, second], world_size=declared)
        assert (code, found.get("part-missing")) == ((0, None) if declared else (14, "unknown"))


@pytest.mark.parametrize(("has_record", "word"), [(True, "verified"), (False, "unreadable")])
def test_what_no_machine_compared_with_its_record_is_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_record: bool, word: str
) -> None:
    output = tmp_path / "output"
    shutil.copytree(FIXTURES / "async_ckpt" / "output", output)
    tree = output / "checkpoint"
    assert ask("seal", str(tree)).code == 0
    looks = []
    for number, ranks in enumerate(([2, 3], [0, 1]), 1):
        whole = output.rename(tmp_path / "whole")
        shutil.copytree(whole, output)
        for rank in ranks:
            shutil.rmtree(tree / f"rank_{rank}")
        if number == 2 and not has_record:
            shutil.rmtree(tree / ".ckpttool")
        looks.append(look_at(seat(number, 2, tree, Level.CHECKSUM)))
        shutil.rmtree(output)
        whole.rename(output)
    given(monkeypatch, looks)
    asked = CheckQuestion(level=Level.CHECKSUM, name="latest")
    (verdict,) = ckpttool.verify(TreeQuestion(path="x.ckptpart", sizes=True), asked).answer().verdicts
    assert verdict.word.value == word
    uncompared = {each.path for each in verdict.findings if each.code.value == "not-looked-at"}
    assert uncompared == (set() if has_record else {f"rank_{rank}/llama2_7b_rank_{rank}-15_2.ckpt" for rank in (2, 3)})


@pytest.mark.parametrize("lost", [0, 1])
def test_a_missing_part_is_never_nothing_to_resume_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lost: int
) -> None:
    looks = two_looks(tmp_path)
    del looks[lost]
    code, found = codes(monkeypatch, looks)
    assert (code, found["part-missing"]) == (14, "unknown")
    assert "rank-missing" not in found or found["rank-missing"] == "unknown"


def test_a_save_younger_than_a_look_may_lie_there_by_now(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = two_looks(tmp_path)
    early = replace(first.seat, began_ns=1, ended_ns=2)
    gone = replace(
        first,
        seat=early,
        answers=type(first.answers)(entries={"": ()}),
        report_of=lambda _path: None,
    )
    code, found = codes(monkeypatch, [gone, second], world_size=4)
    assert (code, found.get("part-stale")) == (14, "unknown"), found


def test_copies_on_two_machines_are_a_note_where_they_are_alike_and_doubtful_where_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = two_looks(tmp_path)
    path = next(path for path in first.answers.stamps if first.report_of(path) is not None)
    other = first.report_of(path)
    assert other is not None
    folder, _, name = path.rpartition("/")
    for schema, weight in ((other.schema_hash, "note"), ("00" * 16, "suspect")):
        copy = replace(other, schema_hash=schema)
        answers = type(second.answers)(
            entries={**second.answers.entries, folder: first.answers.entries[folder]},
            stamps={**second.answers.stamps, path: first.answers.stamps[path]},
            files=second.answers.files,
            pieces=second.answers.pieces,
            failures=second.answers.failures,
        )
        told = lambda at, copy=copy: copy if at == path else second.report_of(at)  # noqa: E731
        _, found = codes(monkeypatch, [first, replace(second, answers=answers, report_of=told)])
        assert found["rank-on-several-nodes"] == weight, name
        same_disk = replace(second, seat=replace(second.seat, disk=first.seat.disk), answers=answers, report_of=told)
        _, found = codes(monkeypatch, [first, same_disk])
        assert found.get("nodes-disagree") == (None if weight == "note" else "suspect")


def aged_looks(tmp_path: Path, hours: float, *, run: str = "") -> list[PartView]:
    """Return two looks of one machine each, of which the first was taken so many hours before the second."""
    first, second = two_looks(tmp_path)
    earlier = int(hours * 3600 * 10**9)
    seats = [replace(look.seat, run=run) for look in (first, second)]
    before = replace(seats[0], began_ns=seats[0].began_ns - earlier, ended_ns=seats[0].ended_ns - earlier)
    return [replace(first, seat=before), replace(second, seat=seats[1])]


@pytest.mark.parametrize(
    ("hours", "run", "code"), [(0.9, "", 0), (1.1, "", 14), (24, "", 14), (24, "look", 0)]
)  # fmt: skip
def test_a_part_that_an_older_look_without_a_name_left_behind_is_none_of_the_newest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hours: float, run: str, code: int
) -> None:
    looks = aged_looks(tmp_path, hours, run=run)
    for order in (looks, looks[::-1]):
        ended, found = codes(monkeypatch, order)
        assert ended == code, found
        assert found.get("part-missing") == ("unknown" if code else None)
        assert found.get("part-stale") == ("note" if code or hours > 1 else None)


def test_machines_that_look_one_after_the_other_for_a_whole_day_are_one_look(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = aged_looks(tmp_path, 24)
    slow = replace(first, seat=replace(first.seat, ended_ns=second.seat.began_ns - 1))
    assert codes(monkeypatch, [slow, second])[0] == 0


@pytest.mark.parametrize("tree", ["async_ckpt", "newfmt_4rank"])
@pytest.mark.parametrize(("own", "ends"), [(False, 0), (True, 14)])
def test_disks_of_two_machines_that_were_taken_for_one_are_never_nothing_to_resume_from(
    tmp_path: Path, tree: str, own: bool, ends: int
) -> None:
    whole = FIXTURES / tree / "output" / "checkpoint"
    for number in (1, 2):
        shown = tmp_path / "output" / "checkpoint"
        shutil.copytree(whole, shown)
        if own:
            for path in sorted(shown.rglob("*.*")):
                rank = re.search("rank_([0-9])|-([0-9]{7})-", str(path.relative_to(shown)))
                if rank and (int(rank[1] or rank[2]) < 2) is not (number == 1):
                    path.unlink()
            for folder in shown.glob("rank_*"):
                if not any(folder.iterdir()):
                    folder.rmdir()
        words = ("--split", "all", "--run-id", "r", "--part", f"{number}/2", "--out", f"{tmp_path}/parts/")
        assert ask("part", str(shown), *words).code == 0
        shutil.rmtree(shown)
    done = ask("resolve", str(tmp_path / "parts"), "--json")
    document = json.loads(done.stdout)
    assert done.code == ends, done.stdout
    found = [*document["findings"], *(reason for one in document["rejected"] for reason in one["reasons"])]
    assert ("not-looked-at" in {each["code"] for each in found}) is own
    assert "restore intact" not in done.stdout
    assert "restore it" not in done.stdout
