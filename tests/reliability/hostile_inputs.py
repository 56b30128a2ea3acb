"""Every hostile situation, and every command line that is tried in each of a kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ckpttool.core.errors import ExitCode
from tests.reliability import hostile_configs, hostile_logs, hostile_names, hostile_records, hostile_shards
from tests.reliability.hostile_situation import Situation

_TREE = (
    "scan output --format json",
    "verify output --checkpoint all --level checksum",
    "verify output --checkpoint all --level numerics --format json",
    "seal output --checkpoint all",
    "resolve output --level checksum",
    "resolve output --format json --simulate-mindformers 1.6",
    "health output --threshold 1",
    "health output --from-weights",
    "scale-skip output --new-gbs 16",
    "launch output --config config.yaml --output new.yaml",
    "preflight output --config config.yaml",
    "preflight output --config config.yaml --format github",
    "preflight output --config config.yaml --format junit",
    "preflight output --config config.yaml --format sarif",
    "prune output --keep-last 1 --grace 0",
    "prune output --keep-last 1 --grace 0 --apply",
    "repair-meta output --grace 0",
    "repair-meta output --grace 0 --apply",
)
_AROUND = "replay train.log --policy zclip --around-spike last --every 10"
_LOG = (
    "replay train.log --policy features",
    "replay train.log --policy zscore --format json",
    _AROUND,
    "replay train.log --health-timeline output",
    "calibrate train.log --format json",
    "resolve output --health-timeline train.log",
    "resolve output --health-threshold 1 --log train.log",
    "replay train.log train.log",
)
_CONFIG = (
    "lint-config config.yaml --format json",
    "lint-config config.yaml --format sarif",
    "lint-config config.yaml --format junit",
    "lint-config config.yaml --format github",
    "preflight output --config config.yaml --format json",
    "health output --threshold 1 --config config.yaml",
    "prune output --keep-last 1 --config config.yaml",
    "repair-meta output --config config.yaml",
)
SWEEPS: Mapping[str, tuple[str, ...]] = {
    "tree": _TREE,
    "changed": _TREE,
    "unified": _TREE,
    "log": _LOG,
    "no log": _LOG,
    "config": _CONFIG,
    "none": (),
}
"""What a nightly run tries besides, in every situation of a kind: any answer will do that is one."""

SENSIBLE: Mapping[str, frozenset[ExitCode]] = {
    "scan": frozenset({ExitCode.OK, ExitCode.DAMAGE, ExitCode.INCOMPLETE, ExitCode.UNSAFE}),
    "verify": frozenset({ExitCode.OK, ExitCode.DAMAGE, ExitCode.INCOMPLETE, ExitCode.UNSAFE}),
    "seal": frozenset({ExitCode.OK, ExitCode.DAMAGE, ExitCode.INCOMPLETE, ExitCode.UNSAFE}),
    "resolve": frozenset({ExitCode.OK}),
    "launch": frozenset({ExitCode.OK, ExitCode.DAMAGE, ExitCode.INCOMPLETE, ExitCode.UNSAFE}),
    "scale-skip": frozenset({ExitCode.OK}),
    "health": frozenset({ExitCode.OK, ExitCode.DAMAGE, ExitCode.INCOMPLETE}),
    "preflight": frozenset({ExitCode.OK, ExitCode.DAMAGE, ExitCode.INCOMPLETE, ExitCode.UNSAFE}),
    "prune": frozenset({ExitCode.OK, ExitCode.INCOMPLETE, ExitCode.UNSAFE}),
    "repair-meta": frozenset({ExitCode.OK, ExitCode.INCOMPLETE, ExitCode.UNSAFE}),
    "replay": frozenset({ExitCode.OK, ExitCode.INCOMPLETE}),
    "calibrate": frozenset({ExitCode.OK, ExitCode.INCOMPLETE}),
}


_OF_UNIFIED = {
    **dict.fromkeys(("resolve", "launch", "scale-skip", "preflight"), frozenset({ExitCode.NOTHING_TO_RESUME})),
    **dict.fromkeys(("prune", "repair-meta"), frozenset({ExitCode.UNKNOWN_LAYOUT})),
}
"""One checkpoint, whose map of names is in doubt: nothing to choose from, and no tree."""


_OF_LOG: Mapping[str, frozenset[int]] = {
    _AROUND: frozenset({ExitCode.OK, ExitCode.USAGE, ExitCode.INCOMPLETE}),
    **dict.fromkeys(
        ("resolve output --health-timeline train.log", "resolve output --health-threshold 1 --log train.log"),
        frozenset({ExitCode.OK, ExitCode.INCOMPLETE, ExitCode.NOTHING_TO_RESUME}),
    ),
}
"""A log with steps may show no spike to go around, one that spoils all checkpoints, or break off."""

CHANGING = ("seal ", "launch ", "--apply", "--write")
"""Command lines that change something: they get a tree of their own."""


def sensible(situation: Situation, line: str) -> frozenset[int]:
    """Return how a command may end that is tried besides: as where it is asked exactly, or as it may anywhere."""
    command = line.split(maxsplit=1)[0]
    if situation.kind == "config":  # as the commands do that are asked exactly; of health there is no log
        own = frozenset(one.exit for one in situation.asks)
        return own | {ExitCode.INCOMPLETE} if command == "health" else own
    if situation.kind == "unified" and command in _OF_UNIFIED:
        return _OF_UNIFIED[command]
    if situation.kind == "no log":
        return frozenset({ExitCode.INCOMPLETE})
    if situation.kind == "log" and line in _OF_LOG:
        return _OF_LOG[line]
    kind = command, _changes(line)
    own = frozenset(one.exit for one in situation.asks if (one.line.split(maxsplit=1)[0], _changes(one.line)) == kind)
    return own | SENSIBLE["verify" if "--from-weights" in line else command]


def _changes(line: str) -> bool:
    return any(word in line for word in CHANGING)


def situations() -> Iterator[Situation]:
    """Return all of them."""
    for part in (hostile_shards, hostile_records, hostile_configs, hostile_logs, hostile_names):
        yield from part.situations()
