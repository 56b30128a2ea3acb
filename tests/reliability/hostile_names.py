"""Names that would move a cursor, break a document or lead elsewhere; and trees whose links lead out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ckpttool.core.errors import ExitCode
from tests.reliability.hostile_situation import CONFIG, Maker, Situation, ask, outside, sound_tree
from tests.support.trees import TreeBuilder

NAMES = {
    "escape sequences": "x\x1b[2J\x1b]0;title\x07",
    "a newline": "x\n::error::y",
    "a carriage return": "x\ry",
    "right to left": "x\u202e\u2066y",
    "markup": "[red]x[link=file:x]",
    "broken markup": "[red",
    "no UTF-8": os.fsdecode(b"x\xff\xfe"),
    "an 8-bit control": "x\x9b31my",
    "XML and quotes": "<x>&'\"]]>%25",
    "as long as a name can be": "n" * (255 - len("_rank_0-15_2.ckpt")),
    "a template": "{x!r} %s $HOME `id`",
}


def _named(name: str) -> Maker:
    """A run of that prefix, of which a newer shard is lost, a stray file and a stray folder of a rank's kind."""

    def make(here: Path) -> None:
        (here / "config.yaml").write_text(CONFIG)
        tree = TreeBuilder(here).legacy(ranks=2, prefix=name, sparse=True)
        for epoch in (10, 15):
            tree.save(epoch=epoch, step=2, meta=False)
        tree.remove(tree.shard(1, 15, 2)).file(f"checkpoint/{name}").folder(f"checkpoint/rank_{name[:200]}")

    return make


def _escaping(kind: str) -> Maker:
    """A whole tree in which something leads out of it."""

    def make(here: Path) -> None:
        tree = sound_tree(here)
        precious = here / "outside"
        match kind:
            case "a rank's folder":
                precious.mkdir()
                (tree.checkpoint / "rank_1").rename(precious / "rank_1")
                (tree.checkpoint / "rank_1").symlink_to("../../outside/rank_1")
            case "a shard":
                precious.mkdir()
                shard = tree.output / tree.shard(1, 10, 2)
                shard.rename(precious / shard.name)
                shard.symlink_to(f"../../../outside/{shard.name}")
            case "a hard link":
                precious.mkdir()
                os.link(tree.output / tree.shard(1, 10, 2), precious / "precious")
            case "meta.json":
                meta = tree.checkpoint / "rank_1/meta.json"
                meta.unlink()
                outside(meta)
            case _:
                (precious / "own").mkdir(parents=True)
                (precious / "own/precious").write_bytes(b"nobody may touch this")
                (tree.checkpoint / ".ckpttool").symlink_to("../../outside/own")

    return make


LAUNCH = "launch output --config config.yaml --output new.yaml"
ESCAPES = ("a rank's folder", "a shard", "a hard link", "meta.json", "our own folder")
CHANGES = ("prune output --keep-last 1 --apply --grace 0", "repair-meta output --apply --grace 0", "seal output")
REFUSED = {
    ("a rank's folder", "prune"): ExitCode.UNSAFE,
    ("a shard", "prune"): ExitCode.UNSAFE,
    ("meta.json", "repair-meta"): ExitCode.UNSAFE,
    ("our own folder", "prune"): ExitCode.FAILED,
    ("our own folder", "repair-meta"): ExitCode.FAILED,
    ("our own folder", "seal"): ExitCode.FAILED,
}
"""Exits where nothing may be done. To write through a link is a write that fails; nothing is changed then."""


def situations() -> Iterator[Situation]:
    """Every name with every form of answer, and every way out with every command that changes something."""
    for name, prefix in NAMES.items():
        launch, preflight = ask(LAUNCH, ExitCode.OK), ExitCode.OK
        if name == "no UTF-8":  # no config can name such a file
            launch, preflight = ask(LAUNCH, ExitCode.DAMAGE, "is not UTF-8"), ExitCode.DAMAGE
        asks = (
            ask("scan output", ExitCode.DAMAGE, "2 checkpoints"),
            ask("resolve output", 0, "Resume from step 20 (10_2)"),
            ask("resolve output --format json", 0),
            ask("verify output --format json", ExitCode.DAMAGE),
            launch,
            *(
                ask(f"preflight output --config config.yaml --allow start-differs --format {form}", preflight)
                for form in ("table", "json", "github", "junit", "sarif")
            ),
        )
        kept = "output/checkpoint/rank_*/*-10_2.*"
        yield Situation(name=f"name: {name}", kind="tree", make=_named(prefix), asks=asks, kept=kept)
    for kind in ESCAPES:
        changes = tuple(ask(line, REFUSED.get((kind, line.split()[0]), 0)) for line in CHANGES)
        asks = (ask("resolve output", 0, "Resume from step 30 (15_2)"), *changes)
        kept = "output/checkpoint/rank_*/*-15_2.*"
        yield Situation(name=f"way out: {kind}", kind="changed", make=_escaping(kind), asks=asks, kept=kept)
