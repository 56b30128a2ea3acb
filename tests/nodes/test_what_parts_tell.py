"""A part tells what its machine would, however that is spelled, and nothing that is nobody's business."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.errors import IncompleteError
from ckpttool.nodes import tree as merged
from ckpttool.nodes.part_file import PartView, read_parts
from tests.support.answers import writable_copy
from tests.support.commands import ask
from tests.support.split_trees import aged
from tests.support.trees import FIXTURES, flip

NEWEST = "rank_1/llama2_7b_rank_1-15_2.ckpt"


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the output folder of a training whose newest save its health file calls unhealthy."""
    for name in ("HOME", "XDG_CACHE_HOME"):  # where a machine remembers what it found
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return copied("health_pp2", tmp_path)


def copied(name: str, to: Path) -> Path:
    return writable_copy(name, to / "fixture").rename(to / "output")


def looked(tree: str, parts: str = "parts", *words: str, part: str = "1/1") -> Path:
    """Let this machine look, and return the part."""
    before = {*Path(parts).glob("*.ckptpart")}
    done = ask("part", tree, "--part", part, "--run-id", "a", "--out", f"{parts}/", *words)
    assert done.code == 0, done.stderr
    (new,) = {*Path(parts).glob("*.ckptpart")} - before or before
    return new


def said(question: str, where: str) -> tuple[int, dict[str, object]]:
    done = ask(*question.split(), where, "--json")
    document = json.loads(done.stdout)
    return done.code, {name: document[name] for name in document if name not in {"parts", "seconds"}}


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("stands", "tree", "parts"),
    [
        (".", "output", "parts"),
        ("output", "checkpoint", "../parts"),
        ("output/checkpoint", ".", "../../a!b/parts"),
        ("output/checkpoint/rank_0", "..", "../../../pa%rts"),
        ("elsewhere", "../output", "parts"),
        ("elsewhere", "../output/checkpoint", "../elsewhere/../parts"),
    ],
)
def test_what_lies_beside_a_tree_counts_however_the_tree_and_its_parts_are_spelled(
    output: Path, monkeypatch: pytest.MonkeyPatch, stands: str, tree: str, parts: str
) -> None:
    (output.parent / "elsewhere").mkdir()
    monkeypatch.chdir(output.parent / stands)
    looked(tree, parts)
    for question in ("resolve", "scan", "verify --checkpoint all"):
        assert said(question, parts) == said(question, tree)
    code, document = said("resolve", parts)
    assert (code, document["resume"]["name"], document["resume"]["health"]) == (0, "10_2", "healthy")  # type: ignore[index]


@pytest.mark.parametrize("is_mended", [False, True])
def test_what_a_machine_found_damaged_before_is_told_with_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_mended: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tree = copied("async_ckpt", tmp_path) / "checkpoint"
    aged(tree)
    assert ask("seal", "output").code == 0
    whole = (tree / NEWEST).read_bytes()
    flip(tree / NEWEST, -400, keep_times=True)
    assert ask("verify", "output", "--level", "checksum").code == 10
    if is_mended:
        (tree / NEWEST).write_bytes(whole)
    looked("output")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another's"))  # of the machine that is asked
    _, document = said("resolve", "parts")
    assert document["resume"]["name"] == ("15_2" if is_mended else "10_2")  # type: ignore[index]
    assert ("found-damaged" in json.dumps(document)) is not is_mended
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _, own = said("resolve", "output")
    own["findings"] = [each for each in own["findings"] if each["code"] != "can-be-healed"]  # type: ignore[attr-defined]
    for told in (document, own):  # to heal is advised where the files are
        for reason in (each for one in told["rejected"] for each in one["reasons"]):  # type: ignore[attr-defined]
            del reason["remedy"]
    assert document == own


def test_records_travel_and_nothing_else_that_happens_to_lie_there(output: Path) -> None:
    tree = output / "checkpoint"
    assert ask("seal", "output", "--checkpoint", "all").code == 0
    assert (tree / ".ckpttool" / "reserve").exists()
    trash = tree / ".ckpttool" / "trash" / "20260101T000000Z-1" / "rank_0"
    trash.mkdir(parents=True)
    shutil.copy(tree / "rank_0" / "llama2_7b_rank_0-5_2.ckpt", trash)
    for name in (".netrc", ".git/config", "run.log", "logs/events.out.tfevents.1", "30/extra.json"):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_bytes(b"what this holds")
    ((_, look),) = read_parts(looked("output").read_bytes(), name="x")
    assert isinstance(look, PartView)
    names = {"10_2", "15_2", "5_2"}
    assert {*look.answers.files} == {
        *(f".ckpttool/llama2_7b-{name}.ckpt.manifest.json" for name in names),
        *(f"rank_{rank}/meta.json" for rank in range(4)),
        "../health_ckpts.json",
    }
    # Of the trash its names travel: what one machine let go is half of a checkpoint where another still has it.
    assert any("trash/" in path for path in look.answers.stamps)
    assert said("scan", "parts") == said("scan", "output")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda part: part[:-10], "is truncated: its last lines are missing"),
        (lambda part: part.replace(b"\n", b"\r\n"), "has other line endings than were written"),
        (gzip.compress, "is compressed: gunzip it first"),
    ],
)
def test_a_part_that_cannot_be_read_is_named_with_the_missing_one(output: Path, change: object, why: str) -> None:
    del output
    looked("output", part="1/2")
    second = looked("output", part="2/2")
    assert ask("resolve", "parts").code == 0
    second.write_bytes(change(second.read_bytes()))  # type: ignore[operator]
    done = ask("resolve", "parts")
    assert done.code == 14
    assert f"of 2 parts 2 is missing; a.00002-of-00002.ckptpart {why}" in " ".join(done.stdout.split())


@pytest.mark.parametrize("is_other", [False, True])
def test_records_that_differ_between_machines_are_never_nothing_to_resume_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_other: bool
) -> None:
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        tree = copied("newfmt_4rank", tmp_path / str(number)) / "checkpoint"
        aged(tree)
        if is_other and number == 2:
            for record in tree.rglob("common.json"):
                record.write_bytes(record.read_bytes().replace(b"8", b"9"))
        monkeypatch.chdir(tmp_path / str(number))
        monkeypatch.setattr("ckpttool.nodes.verbs.disk_id", lambda _, number=number: f"disk {number}")
        looked("output", "../parts", part=f"{number}/2")
    monkeypatch.chdir(tmp_path)
    done = ask("resolve", "parts", "--world-size", "4")
    assert done.code == (14 if is_other else 0), done.stdout
    text = " ".join(done.stdout.split())
    assert ("cannot be read (the machines have different records)" in text) is is_other
    assert ("iteration_00000030 may be intact" in text) is is_other
    if is_other:
        config = str(FIXTURES / "configs" / "pretrain_sink2.yaml")
        assert ask("launch", "parts", "--config", config, "--output", "new.yaml").code == 14
        assert not Path("new.yaml").exists()


def test_a_part_is_of_files_and_never_of_parts(output: Path) -> None:
    del output
    part = looked("output")
    for given in ("parts", str(part), "-"):
        done = ask("part", given, "--part", "1/1", "--out", "more/")
        assert (done.code, done.stdout) == (2, ""), given
    assert not Path("more").exists()


def test_an_input_that_is_closed_is_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    merged._standard_input.cache_clear()  # noqa: SLF001  as in a process of its own
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(IncompleteError, match="standard input is closed"):
        ckpttool.scan("-")
