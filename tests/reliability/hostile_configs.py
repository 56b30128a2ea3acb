"""Training configs that are hostile, and settings of the feature-value detection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ckpttool.core.errors import ExitCode
from tests.reliability.hostile_situation import (
    CANARY,
    NO_FILES,
    Maker,
    Situation,
    ask,
    in_place_of,
    sound_tree,
    sparse,
    text,
)

_NINE = "[x,x,x,x,x,x,x,x,x]"
_LAUGHS = f"a0: &a0 {_NINE}\n" + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
_MERGES = "m0: &m0 {a: 1}\n" + "".join(f"m{i}: &m{i} {{<<: [{','.join([f'*m{i - 1}'] * 9)}]}}\n" for i in range(1, 12))
_UNSAFE, _USAGE = ExitCode.UNSAFE, ExitCode.USAGE

REFUSED: dict[str, tuple[Maker, int]] = {
    "a billion laughs": (text(_LAUGHS), _UNSAFE),
    "a billion merges": (text(_MERGES), _UNSAFE),
    "lists 10,000 deep": (text("a: " + "[" * 10_000 + "]" * 10_000), _UNSAFE),
    "mappings 10,000 deep, never closed": (text("{a: " * 10_000), _UNSAFE),
    "mappings 1,400 deep, by blanks": (text("".join(" " * depth + "a:\n" for depth in range(1400))), _UNSAFE),
    "5,000 keys in one another": (text("? " * 5_000), _UNSAFE),
    "5,000 lists in one another": (text("- " * 5_000), _UNSAFE),
    "a sparse terabyte": (sparse(1 << 40, b"a: 1\n"), _UNSAFE),
    "a tag that runs a command": (text(f'a: !!python/object/apply:os.system ["touch {CANARY}"]\n'), _USAGE),
    "a tag that starts a process": (text(f"a: !!python/object/new:subprocess.Popen [[touch, {CANARY}]]\n"), _USAGE),
    "a tag that names a function": (text("a: !!python/name:os.system\n"), _USAGE),
    "a tag that imports": (text("a: !!python/module:antigravity\n"), _USAGE),
    "a tag of its own": (text("%TAG ! tag:x,\n---\na: !x 1\n"), _USAGE),
    "a key twice": (text("seed: 1\nseed: 2\n"), _USAGE),
    "a NUL": (text("a: \0b\n"), _USAGE),
    "an escape sequence": (text("a: \x1b[31m\n"), _USAGE),
    "no UTF-8": (text(b"a: \xff\xfe\n"), _USAGE),
    "UTF-16": (text("a: 1\n".encode("utf-16")), _USAGE),
    "an integer of 900,000 digits": (text("parallel_config: {data_parallel: " + "9" * 900_000 + "}\n"), _USAGE),
    "a hexadecimal of 900,000 digits": (text("runner_config: {epochs: 0x" + "f" * 900_000 + "}\n"), _USAGE),
    "a hundred thousand sixtieths": (text("runner_config: {epochs: 1" + ":59" * 100_000 + "}\n"), _USAGE),
    "a quote that never ends": (text('a: "' + "x" * 900_000), _USAGE),
    "a list that contains itself": (text("a: &a [*a]\n"), _USAGE),
    "two documents": (text("a: 1\n---\nb: 2\n"), _USAGE),
    "a date that is none": (text("a: 2024-13-45\n"), _USAGE),
    "nothing": (text(""), _USAGE),
    **{name: (put, _USAGE) for name, put in NO_FILES.items()},
}
"""With the exit of every command that is given one: a bad config is its user's error, a bomb is refused for safety."""

READ: dict[str, tuple[Maker, int]] = {
    "a megabyte of comments": (text("a: 1\n" + "# x\n" * 262_000), 0),
    "70,000 keys": (text("".join(f"k{number}: {number}\n" for number in range(70_000))), 0),
    "a million blanks": (text("a:" + " " * 1_000_000), 0),
    "names with escape sequences and markup": (text('run_mode: train\nload_checkpoint: "\\e[31m\\n[/red]\u202e"\n'), 0),
    "a key of 900,000 letters": (text("? " + "k" * 900_000 + "\n: 1\n"), 0),
    "a value of 900,000 letters": (text("load_checkpoint: " + "k" * 900_000 + "\n"), 0),
    "a checkpoint of 900,000 letters": (text("load_checkpoint: /x\nresume_training: " + "k" * 900_000 + "\n"), 0),
    "numbers without end": (text("a: .nan\nrunner_config: {epochs: .inf, batch_size: 1e999}\n"), ExitCode.DAMAGE),
}
"""YAML like any other, though of one rank, which this tree of two does not fit: with what `lint-config` says."""

HEAVY = {
    "70,000 keys",
    "a megabyte of comments",
    "a million blanks",
    "a key of 900,000 letters",
    "a value of 900,000 letters",
}

STRINGS: dict[str, tuple[str, int]] = {
    "100,000 commas": ("," * 100_000, ExitCode.DAMAGE),
    "100,000 letters": ("x" * 100_000, ExitCode.DAMAGE),
    "100,000 colons": (":" * 100_000, ExitCode.DAMAGE),
    "a flag of 100,000 digits": ("enable:" + "9" * 100_000, ExitCode.DAMAGE),
    "a count of 100,000 digits": ("enable:true,cooldown:" + "9" * 100_000, ExitCode.DAMAGE),
    "a threshold of 5,000 digits": ("enable:true,upper_thresh1:" + "9" * 5_000, ExitCode.DAMAGE),
    "one key 10,000 times": ("enable:true," * 10_000, ExitCode.DAMAGE),
    "30,000 pairs": ("a:1," * 30_000, ExitCode.DAMAGE),
    "escape sequences": ("\x1b[31m:true,[/red]:1\n", ExitCode.DAMAGE),
}
"""As long as an argument of a program can be on Linux."""


def _with(put: Maker) -> Maker:
    def make(here: Path) -> None:
        sound_tree(here)
        in_place_of(here / "config.yaml", put)

    return make


def situations() -> Iterator[Situation]:
    """Every config with every command that takes one."""
    commands = (
        "lint-config config.yaml",
        "resolve output --config config.yaml",
        "preflight output --config config.yaml",
        "launch output --config config.yaml --output new.yaml",
    )
    for name, (put, code) in REFUSED.items():
        asks = tuple(ask(line, code, "config.yaml") for line in commands)
        if code == _UNSAFE:  # told by what it would do, not by its name alone
            asks = tuple(ask(line, code, "config") for line in commands)
        yield Situation(name=f"config: {name}", kind="config", make=_with(put), asks=asks)
    for name, (put, code) in READ.items():
        asks = (ask(commands[0], code), *(ask(line, ExitCode.NOTHING_TO_RESUME) for line in commands[1:]))
        yield Situation(name=f"config: {name}", kind="config", make=_with(put), asks=asks, heavy=name in HEAVY)
    for name, (string, code) in STRINGS.items():
        yield Situation(
            name=f"asd: {name}",
            kind="none",
            make=lambda _: None,
            asks=(ask("asd check STRING", code),),
            string=string,
        )
