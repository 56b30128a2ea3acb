"""Startup time of commands, as ratios to `python -c pass` that ran in the same minute.

    python benchmarks/startup.py [rounds]
    python benchmarks/startup.py where

All commands run in turns, and what is shown is the median of the ratios of each turn: absolute times say nothing about
another machine. The wall clock and the processor's clock are both shown; on a busy machine trust the second. The last
column is the processor's without what importing typer alone takes: our own share, which is all that can be cut here.
Targets of the processor's: 5.5 for `--help`, 7.5 for `resolve --format json`. With `where` it is shown in which rooms
`resolve` spends what importing takes, and on how many modules: the least of seven runs for each module.
"""

from __future__ import annotations

import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROUNDS = 31
RANKS = 64
NOTHING = "python -c pass"
ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "tests" / "configs" / "llama2_legacy.yaml"

sys.path.insert(0, str(ROOT))

from ckpttool.__main__ import COLLECTIONS  # noqa: E402  found by the line above
from tests.support.trees import TreeBuilder  # noqa: E402


def environment() -> dict[str, str]:
    """Return our environment without the variables that disable Python's bytecode cache, because users have it."""
    names = dict(os.environ)
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONPROFILEIMPORTTIME"):
        names.pop(name, None)
    return names


def processor_seconds() -> float:
    """Return the time that all children have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


TYPER = f"import gc, os; gc.set_threshold(*{COLLECTIONS}); import typer; os._exit(0)"
"""typer as ckpttool imports it: collecting seldom, and not taking the interpreter apart at the end."""


class Turn(NamedTuple):
    """Times of one run of a command."""

    wall: float
    processor: float


def run(commands: dict[str, list[str]], rounds: int) -> list[dict[str, Turn]]:
    """Run all commands in turns; the first turn, which compiles, is left out."""
    names = environment()
    turns = []
    for _ in range(rounds + 1):
        turn = {}
        for name, command in commands.items():
            used, begin = processor_seconds(), time.perf_counter()
            subprocess.run(command, env=names, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            turn[name] = Turn(time.perf_counter() - begin, processor_seconds() - used)
        turns.append(turn)
    return turns[1:]


def where(command: list[str], runs: int = 7) -> dict[str, tuple[int, float]]:
    """Return for each room, for typer and for all else how many modules a command imports, and their milliseconds."""
    least: dict[str, int] = {}
    for _ in range(runs):
        told = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "ckpttool", *command],
            env=environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        for line in told.stderr.splitlines():
            found = re.fullmatch(r"import time: +(?P<took>[0-9]+) \| +[0-9]+ \| +(?P<name>.+)", line)
            if found is not None:
                took, name = int(found["took"]), found["name"]
                least[name] = min(took, least.get(name, took))
    rooms: dict[str, list[int]] = {}
    for name, took in least.items():
        top, *below = name.split(".")
        room = ".".join([top, *below[:1]]) if top == "ckpttool" else top if top == "typer" else "Python and others"
        rooms.setdefault(room, []).append(took)
    return {room: (len(each), sum(each) / 1000) for room, each in rooms.items()}


def main() -> None:
    """Measure and print."""
    asked = sys.argv[1] if len(sys.argv) > 1 else str(ROUNDS)
    if asked == "where":
        with tempfile.TemporaryDirectory() as folder:
            tree = TreeBuilder(Path(folder)).legacy(ranks=4).save(epoch=10, step=2)
            found = where(["resolve", str(tree.checkpoint), "--format", "json"])
        for room, (modules, took) in sorted(found.items(), key=lambda each: -each[1][1]):
            print(f"{room:24} {modules:4} modules {took:6.1f} ms")
        return
    rounds = int(asked)
    with tempfile.TemporaryDirectory() as folder:
        tree = TreeBuilder(Path(folder)).legacy(ranks=RANKS)
        for epoch in (10, 15, 20):
            tree.save(epoch=epoch, step=2)
        script = str(Path(sys.executable).parent / "ckpttool")
        checkpoint = str(tree.checkpoint)
        preflight = [script, "preflight", checkpoint, "--config", str(CONFIG), "--format", "json"]
        turns = run(
            {
                NOTHING: [sys.executable, "-c", "pass"],
                "import typer": [sys.executable, "-c", TYPER],
                "ckpttool --help": [script, "--help"],
                f"ckpttool resolve --format json, {RANKS} ranks": [script, "resolve", checkpoint, "--format", "json"],
                f"ckpttool scan --format json, {RANKS} ranks": [script, "scan", checkpoint, "--format", "json"],
                f"ckpttool scan, {RANKS} ranks": [script, "scan", checkpoint],
                f"ckpttool resolve, {RANKS} ranks": [script, "resolve", checkpoint],
                f"ckpttool preflight --format json, {RANKS} ranks": preflight,
            },
            rounds,
        )
    print(f"{'times python -c pass':45} {'wall':>6} {'CPU':>6} {'without typer':>14}")
    for name in turns[0]:
        wall = statistics.median(turn[name].wall / turn[NOTHING].wall for turn in turns)
        processor = statistics.median(turn[name].processor / turn[NOTHING].processor for turn in turns)
        typer = statistics.median(turn["import typer"].processor / turn[NOTHING].processor for turn in turns)
        own = f"{processor - typer:14.2f}" if name.startswith("ckpttool") else ""
        print(f"{name:45} {wall:6.2f} {processor:6.2f} {own}".rstrip())


if __name__ == "__main__":
    main()
