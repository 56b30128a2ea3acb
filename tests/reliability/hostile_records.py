"""Records beside the shards that are hostile: meta.json, the health file, manifests, the journal, the tracker, maps."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from ckpttool.core.errors import ExitCode
from ckpttool.core.records.hashed_json import closed
from tests.reliability.hostile_situation import (
    CONFIG,
    LOST_LINKS,
    NO_FILES,
    Ask,
    Maker,
    Situation,
    ask,
    in_place_of,
    sound_iterations,
    sound_tree,
    sparse,
    text,
)

MEBI = 1 << 20
UNIFIED = Path(__file__).parent.parent.parent / "fixtures" / "unified" / "merged"
META = '"last_step": 2, "last_ckpt_file": "x.ckpt"}'

BOMBS: dict[str, Maker] = {
    "JSON 10,000 deep": text("[" * 10_000 + "]" * 10_000),
    "JSON a million deep": text('{"a":' * 1_000_000),
    "an integer of a million digits": text('{"last_epoch": ' + "9" * 1_000_000 + f", {META}"),
    "an integer of 5,000 digits": text('{"last_epoch": ' + "9" * 5_000 + f", {META}"),
    "NaN and infinity": text(
        '{"last_epoch": NaN, "step_num": Infinity, "last_step": -Infinity, "last_ckpt_file": "x"}'
    ),
    "a float beyond floats": text('{"last_epoch": 1e999, "step_num": 1e999, ' + META),
    "a key twice": text('{"last_epoch": 1, "last_epoch": 2, ' + META),
    "a sparse gigabyte": sparse(1 << 30, b'{"a": "'),
    "a sparse terabyte": sparse(1 << 40, b'{"a": "'),
    "no UTF-8": text(b'{"last_ckpt_file": "\xff\xfe"}'),
    "a lone surrogate": text('{"last_epoch": 1, "last_step": 2, "last_ckpt_file": "\\ud800"}'),
    "twenty million values": lambda path: _write(path, "[" + "{}," * (20 * MEBI) + "{}]"),
    "text that takes four bytes a character": lambda path: _write(path, '["\U0001f4a3' + "a" * (60 * MEBI) + '"]'),
    "three million keys": lambda path: _write(path, "{" + ",".join(f'"{i}":{{}}' for i in range(3_000_000)) + "}"),
    **NO_FILES,
}
HEAVY = {"twenty million values", "text that takes four bytes a character", "three million keys"}

OWN_BOMBS: dict[str, Maker] = {
    "hashed, JSON 100,000 deep": lambda path: _close(path, "[" * 100_000 + "]" * 100_000),
    "hashed, fifteen million values": lambda path: _close(path, "[" + "{}," * (15 * MEBI) + "{}]"),
    "of a version to come": text('{\n  "schema": "ckpttool/manifest/999999999",'),
}
"""For what ckpttool writes itself, and believes where the hash is right."""

PATHS: dict[str, Maker] = {
    "a way out of the tree": text('{"last_epoch": 15, "last_step": 2, "last_ckpt_file": "../../../outside/precious"}'),
    "an absolute path": text('{"last_epoch": 15, "last_step": 2, "last_ckpt_file": "/etc/passwd"}'),
    "control characters": text('{"last_epoch": 15, "last_step": 2, "last_ckpt_file": "\\u001b[31m\\n[/red]"}'),
}

TRACKED: dict[str, Maker] = {
    "a way out of the tree": text("../../../outside"),
    "control characters": text("30\x1b[31m"),
    "sixty digits": text("9" * 60),
}


def _write(path: Path, content: str) -> None:
    path.write_text(content)


def _close(path: Path, value: str) -> None:
    path.write_bytes(closed('{\n  "schema": "ckpttool/manifest/1",\n  "shards": ' + value))


def _legacy(place: str, put: Maker) -> Maker:
    def make(here: Path) -> None:
        in_place_of(sound_tree(here).output / place, put)

    return make


def _iterations(place: str, put: Maker) -> Maker:
    def make(here: Path) -> None:
        in_place_of(sound_iterations(here).output / place, put)

    return make


def _unified(place: str, put: Maker) -> Maker:
    def make(here: Path) -> None:
        (here / "config.yaml").write_text(CONFIG)
        shutil.copytree(UNIFIED, here / "output")
        in_place_of(here / "output" / place, put)

    return make


NEWEST = ask("resolve output", 0, "Resume from step 30 (15_2)")
SIMULATED = ask("resolve output --simulate-mindformers 2.1", 0, "MindFormers 2.1")
OLDER = ask("resolve output", 0, "Resume from step 20 (iteration_00000020)")
NEWEST_ITERATION = ask("resolve output", 0, "Resume from step 30 (iteration_00000030)")

# Which exit each record's trouble has; where a kind of file differs from the rest it is named.
STRANGE = {"a FIFO", "a device", "a link to /dev/zero", "a socket"}
LARGE = {
    "JSON a million deep",
    "an integer of a million digits",
    "a sparse gigabyte",
    "a sparse terabyte",
    *HEAVY,
    *STRANGE,
    *LOST_LINKS,
    "a folder",
    "a link to the process's memory",
}
"""Not read at all: the check is incomplete, and nothing is said to be damaged."""


def _asks_of(place: str, bomb: str) -> tuple[Ask, ...]:
    """Return what each command must say where this lies in that place."""
    unsafe = ExitCode.DAMAGE if bomb == "a folder" else ExitCode.OK
    if bomb in STRANGE or bomb in PATHS:
        unsafe = ExitCode.UNSAFE
    common = ExitCode.INCOMPLETE if bomb in LARGE else ExitCode.DAMAGE
    looked_into = {*HEAVY, "JSON a million deep", "an integer of a million digits"}
    metadata = ExitCode.INCOMPLETE if bomb in LARGE - looked_into else ExitCode.DAMAGE
    tracker = ExitCode.OK if bomb in {"no UTF-8", "a lone surrogate", *TRACKED} else ExitCode.INCOMPLETE
    asks = {
        "meta.json": (NEWEST, ask("scan output", unsafe), ask("verify output", unsafe, "15_2"), SIMULATED),
        "health_ckpts.json": (
            ask("resolve output", ExitCode.INCOMPLETE, "Resume from step 30 (15_2)"),
            ask("scan output", ExitCode.INCOMPLETE),
            ask("health output --threshold 1", ExitCode.INCOMPLETE),
            ask("resolve output --simulate-mindformers 2.1", ExitCode.INCOMPLETE, "MindFormers 2.1"),
            ask("launch output --config config.yaml --output new.yaml", ExitCode.INCOMPLETE),
        ),
        "llama2_7b-15_2.ckpt.manifest.json": (
            NEWEST,
            ask("verify output --level checksum", ExitCode.INCOMPLETE, "15_2"),
        ),
        "prune.json": (
            NEWEST,
            ask("prune output --keep-last 1", ExitCode.INCOMPLETE),
            ask("repair-meta output", ExitCode.INCOMPLETE),
        ),
        "common.json": (ask("scan output", common), ask("verify output", common), OLDER, SIMULATED),
        "metadata.json": (ask("scan output", metadata), ask("verify output", metadata), OLDER, SIMULATED),
        "latest_checkpointed_iteration.txt": (ask("scan output", tracker), NEWEST_ITERATION, SIMULATED),
        "param_name_map.json": (ask("scan output", ExitCode.DAMAGE), ask("verify output", ExitCode.DAMAGE)),
    }
    return asks[place.rpartition("/")[2]]


PLACES: Mapping[str, tuple[str, Mapping[str, Maker]]] = {
    "checkpoint/rank_1/meta.json": ("legacy", {**BOMBS, **PATHS}),
    "health_ckpts.json": ("legacy", BOMBS),
    "checkpoint/.ckpttool/llama2_7b-15_2.ckpt.manifest.json": ("legacy", {**BOMBS, **OWN_BOMBS}),
    "checkpoint/.ckpttool/prune.json": ("legacy", {**BOMBS, **OWN_BOMBS}),
    "checkpoint/iteration_00000030/common.json": ("iterations", BOMBS),
    "checkpoint/iteration_00000030/metadata.json": ("iterations", BOMBS),
    "checkpoint/latest_checkpointed_iteration.txt": ("iterations", {**BOMBS, **TRACKED}),
    "param_name_map.json": ("unified", BOMBS),
}
KEPT = {
    "legacy": "output/checkpoint/rank_*/*-15_2.*",
    "iterations": "output/checkpoint/iteration_00000020/*",
    "tracker": "output/checkpoint/iteration_00000030/*",
    "unified": "output/*.safetensors",
}
"""The checkpoint that must be found whichever record is hostile."""
TREES = {"legacy": _legacy, "iterations": _iterations, "unified": _unified}


def _is_heavy(place: str, bomb: str) -> bool:
    """Tell what a commit goes without: large files but for one, and most things that are no files but for one place."""
    if bomb in HEAVY:
        return (place, bomb) != ("health_ckpts.json", "three million keys")
    few = {"a FIFO", "a device", "a link to itself"}
    return bomb in set(NO_FILES) - few and place != "checkpoint/rank_1/meta.json"


def situations() -> Iterator[Situation]:
    """Every record with every bomb."""
    for place, (tree, bombs) in PLACES.items():
        found = "tracker" if place.endswith(".txt") else tree
        for name, put in bombs.items():
            yield Situation(
                name=f"{place.rpartition('/')[2]}: {name}",
                kind="unified" if tree == "unified" else "tree",
                make=TREES[tree](place, put),
                asks=_asks_of(place, name),
                kept=KEPT[found],
                heavy=_is_heavy(place, name),
            )
