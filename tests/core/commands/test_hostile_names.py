"""Names are untrusted text: none moves a cursor, changes a colour or stops a scan, and JSON holds them as they are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.answers import document
from tests.support.commands import ask, run
from tests.support.trees import FIXTURES, TreeBuilder, writable

NAMES = {
    "markup": "[red]x[bold]",
    "broken markup": "[red",
    "link": "[link=file:x]x",
    "escape": "x\x1b[2J\x1b]0;title\x07",
    "newline": "x\ny",
    "carriage return": "x\ry",
    "no UTF-8": os.fsdecode(b"x\xff\xfe"),
    "right to left": "x\u202e\u2066y",
    "emoji code": ":warning:",
    "template": "{x!r} %s $HOME `id`",
    "line separator": "x\u2028y",
    "nothing to see": "x\u200b\ufeffy",
    "wide": "模型",
    "space and quotes": " a'\"$(x)`y` ",
}


def hostile(here: Path, name: str) -> None:
    """A whole run of that prefix, one shard of which is lost, and a stray file."""
    tree = TreeBuilder(here).legacy(ranks=2, prefix=name, sparse=True)
    for epoch in (10, 15):
        tree.save(epoch=epoch, step=2, meta=False)  # a record that names such a file is refused, and told as unsafe
    tree.remove(tree.shard(1, 15, 2)).file(f"checkpoint/{name}")


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("command", ["scan", "resolve"])
def test_a_table_shows_it_without_obeying_it(command: str, name: str, here: Path) -> None:
    hostile(here, name)
    said = ask(command, "output")
    assert said.code == {"scan": 10, "resolve": 0}[command]
    assert [each for each in said.stdout if not each.isprintable() and each != "\n"] == []
    assert max(map(len, said.stdout.splitlines())) <= 80
    if name.isprintable():
        assert name in said.stdout.replace("\n    ", "").replace("\n", "")


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_json_gives_it_back_as_it_is(name: str, here: Path) -> None:
    hostile(here, name)
    said = ask("scan", "output", "--format", "json")
    assert said.stdout.isascii()
    document = json.loads(said.stdout)
    assert document["strays"] == [name]
    assert {one["prefix"] for one in document["checkpoints"]} == {name}
    paths = {shard["path"] for one in document["checkpoints"] for shard in one["shards"]}
    assert all((here / "output/checkpoint" / path).exists() for path in paths)
    chosen = json.loads(ask("resolve", "output", "--format", "json").stdout)
    assert chosen["resume"]["resume_training"] == f"{name}_rank_0-10_2.ckpt"
    assert [reason["path"] for reason in chosen["rejected"][0]["reasons"]] == [f"rank_1/{name}_rank_1-15_2.ckpt"]


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_folder_of_that_name_can_be_asked_about(name: str, here: Path) -> None:
    folder = here / name
    folder.mkdir()
    TreeBuilder(folder).legacy(ranks=2, sparse=True).save(epoch=10, step=2)
    assert json.loads(ask("resolve", name, "--json").stdout)["root"] == f"{name}/output/checkpoint"
    found, missing = ask("resolve", name), ask("resolve", f"{name}-not")
    assert (found.code, missing.code) == (0, 12)
    for text in (found.stdout, found.stderr, missing.stderr):
        assert [each for each in text if not each.isprintable() and each != "\n"] == []
    assert missing.stderr.count("\n") == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_bytes_that_are_no_text_come_through_a_real_process_in_any_locale(locale: str, here: Path) -> None:
    TreeBuilder(here).legacy(prefix=NAMES["no UTF-8"], ranks=2).save(epoch=10, step=2)
    names = {"LC_ALL": locale, "PYTHONUTF8": "0"}
    table = run("resolve", "output/checkpoint", env=names)
    assert (table.code, table.stderr) == (0, "")
    assert r"x\xff\xfe_rank_0-10_2.ckpt" in table.stdout
    found = json.loads(run("resolve", "output/checkpoint", "--format", "json", env=names).stdout)
    assert os.fsencode(found["resume"]["resume_training"]) == b"x\xff\xfe_rank_0-10_2.ckpt"


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "tree",
    ["sink2_ckpt", "sink2_safetensors", "nosink_ckpt", "newfmt_4rank", "layouts/hf_ddp2", "layouts/light_single"],
)
def test_what_a_mac_leaves_beside_each_file_that_it_copies_is_no_shard(tree: str, here: Path) -> None:
    plain, copied = (writable(FIXTURES / tree, here / name) for name in ("plain", "copied"))
    for path in [path for path in copied.rglob("*") if path.is_file()]:
        path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X        " + bytes(140))
    chosen = [document("resolve", str(place))["resume"]["name"] for place in (plain, copied)]
    assert chosen[0] == chosen[1]
