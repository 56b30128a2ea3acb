"""File names are other people's text: shown escaped, never obeyed, and JSON holds them as they are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.commands import ask, run
from tests.support.trees import TreeBuilder

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
}


def hostile(here: Path, name: str) -> None:
    """A whole run of that prefix, one shard of which is lost, and a stray file."""
    tree = TreeBuilder(here).legacy(ranks=2, prefix=name, sparse=True)
    for epoch in (10, 15):
        tree.save(epoch=epoch, step=2, meta=False)  # a record that names such a file is refused, and told as unsafe
    tree.remove(tree.shard(1, 15, 2)).file(f"checkpoint/{name}")


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


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_json_gives_it_back_as_it_is(name: str, here: Path) -> None:
    hostile(here, name)
    said = run("scan", "output", "--format", "json")
    assert said.stdout.isascii()
    document = json.loads(said.stdout)
    assert name in document["strays"]
    assert {one["prefix"] for one in document["checkpoints"]} == {name}
    paths = {shard["path"] for one in document["checkpoints"] for shard in one["shards"]}
    assert all((here / "output/checkpoint" / path).exists() for path in paths)
    chosen = ask("resolve", "output", "--format", "json").json["resume"]
    assert isinstance(chosen, dict)
    assert chosen["resume_training"] == f"{name}_rank_0-10_2.ckpt"


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_folder_of_that_name_can_be_asked_about(name: str, here: Path) -> None:
    folder = here / name
    folder.mkdir()
    TreeBuilder(folder).legacy(ranks=2, sparse=True).save(epoch=10, step=2)
    assert run("resolve", name).code == 0
    missing = run("resolve", f"{name}-not")
    assert missing.code == 12
    assert missing.stderr.count("\n") == 1
    assert missing.stderr.removesuffix("\n").isprintable()
