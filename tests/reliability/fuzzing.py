"""Fuzzing of what reads other people's bytes: a plain mutator for every commit, and atheris, which coverage guides.

    python -m tests.reliability.fuzzing TARGET [--seconds 60] [--crashes DIR] [--corpus DIR]

Nothing of ckpttool is imported here before atheris can instrument it.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import TypeAlias

Target: TypeAlias = Callable[[bytes], None]

CORPUS = Path(__file__).with_name("corpus")
ROOT = CORPUS.parents[2]

MOST_BYTES = 8192
"""Of one input: room for every seed, and small enough for thousands of runs a second."""

HANG_SECONDS = 20
"""Of its own time: no input of that size may take as long, on the slowest machine."""

WAIT_SECONDS = 600
"""Of wall time, for what waits for ever: a machine that has other work to do may take long for an input."""

_RUNNER = "tests.reliability.fuzzing"
_INSIDE = (sys.executable, "-m", _RUNNER, "--inside")
_TARGETS = "tests.reliability.fuzz_targets"
_PLANTED = "planted"
_MOST_MEGABYTES = 3072
_FORBIDDEN = frozenset({
    "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile", "os.system", "subprocess.Popen",
    "pickle.find_class", "socket.connect", "ctypes.dlopen", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree",
})  # fmt: skip
"""Audit events that no parser has a reason for."""


# --- what a target must not do ---------------------------------------------------------------------------------------


class _Watch:
    """An audit hook can never be taken off again, so there is one for all, which looks only while a target runs."""

    def __init__(self) -> None:
        self.installed = False
        self.on = False
        self.seen: list[str] = []

    def __call__(self, event: str, _: object) -> None:
        if self.on and event in _FORBIDDEN:
            self.seen.append(event)  # whoever swallows the error is found all the same
            raise AssertionError(f"a parser does {event}")


_WATCH = _Watch()


def watched(target: Target) -> Target:
    """Return the target, which then fails where its input gets anything executed, deleted or sent."""
    if not _WATCH.installed:
        sys.addaudithook(_WATCH)
        _WATCH.installed = True

    def run(data: bytes) -> None:
        _WATCH.seen.clear()
        _WATCH.on = True
        try:
            target(data)
        finally:
            _WATCH.on = False
        assert not _WATCH.seen, f"a parser does {_WATCH.seen[0]}"

    return run


class HangError(BaseException):
    """An input takes far too long. Not an Exception: a TimeoutError would be taken for a disk that does not answer."""


@contextmanager
def no_hang(seconds: float = HANG_SECONDS) -> Iterator[None]:
    """End what takes too long with an error. For the main thread, which alone gets signals."""

    def ring(*_: object) -> None:
        raise HangError(f"took more than {seconds} s, or waits")

    timers = ((signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, WAIT_SECONDS))
    before = [signal.signal(number, ring) for number, _, _ in timers]
    for _, timer, most in timers:
        signal.setitimer(timer, most)
    try:
        yield
    finally:
        for _, timer, _ in timers:
            signal.setitimer(timer, 0)
        for (number, _, _), handler in zip(timers, before, strict=True):
            signal.signal(number, handler)


# --- the plain mutator -----------------------------------------------------------------------------------------------

_EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
_WORDS = (b"0", b"-1", b"1e999", b"-0.0", b"NaN", b"null", b"true", b"9" * 19, b"9" * 30, b'"', b"\\", b"\0", b"\n")
_DIGITS = re.compile(rb"[0-9]+")


def seeds(target: str) -> list[bytes]:
    """Return the corpus of a target, in the order of its names."""
    return [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]


def mutations(own: Sequence[bytes], tokens: Sequence[bytes], seed: str) -> Iterator[bytes]:
    """Yield changed seeds for ever, always the same for the same `seed`."""
    chance = Random(seed)  # noqa: S311  to be repeated, not to keep a secret
    while True:
        data = bytearray(chance.choice(own))
        for _ in range(chance.choice((1, 1, 2, 3, 5, 9))):
            change = chance.choice((_flip, _overwrite, _cut, _double, _splice, _number, _token, _token))
            change(data, own, (*tokens, *_WORDS), chance)
        yield bytes(data[:MOST_BYTES])


def _range(data: bytearray, chance: Random, longest: int = 64) -> tuple[int, int]:
    begin = chance.randint(0, len(data))
    return begin, min(len(data), begin + chance.randint(1, longest))


def _flip(data: bytearray, _: Sequence[bytes], __: Sequence[bytes], chance: Random) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _overwrite(data: bytearray, _: Sequence[bytes], __: Sequence[bytes], chance: Random) -> None:
    width = chance.choice((1, 2, 4, 8))
    value = chance.choice(_EDGES) % (1 << 8 * width)
    begin = chance.randint(0, len(data))
    data[begin : begin + width] = value.to_bytes(width, chance.choice(("little", "big")))


def _cut(data: bytearray, _: Sequence[bytes], __: Sequence[bytes], chance: Random) -> None:
    begin, end = _range(data, chance)
    del data[begin : chance.choice((end, end, end, len(data)))]


def _double(data: bytearray, _: Sequence[bytes], __: Sequence[bytes], chance: Random) -> None:
    begin, end = _range(data, chance)
    data[begin:begin] = data[begin:end] * chance.choice((1, 1, 1, 40))


def _splice(data: bytearray, own: Sequence[bytes], _: Sequence[bytes], chance: Random) -> None:
    other = chance.choice(own)
    begin, end = _range(data, chance)
    data[begin:end] = other[chance.randint(0, len(other)) :][: chance.choice((8, 64, MOST_BYTES))]


def _number(data: bytearray, _: Sequence[bytes], __: Sequence[bytes], chance: Random) -> None:
    found = list(_DIGITS.finditer(data))
    if found:
        begin, end = chance.choice(found).span()
        data[begin:end] = str(chance.choice(_EDGES) + chance.choice((-1, 0, 1))).encode()


def _token(data: bytearray, _: Sequence[bytes], tokens: Sequence[bytes], chance: Random) -> None:
    begin, end = _range(data, chance, 8)
    data[begin : chance.choice((begin, end))] = chance.choice(tokens)


# --- atheris ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What fuzzing one target came to."""

    target: str
    executions: int
    edges: int
    """Of the control flow of ckpttool that were reached."""
    crash: Path | None
    """The input that failed."""
    output: str
    failed: bool


def has_atheris() -> bool:
    """Tell whether fuzzing can be guided here; there are wheels for x86-64 only."""
    return find_spec("atheris") is not None


def fuzz(target: str, seconds: int, crashes: Path, corpus: Path | None = None) -> Run:
    """Fuzz a target in a process of its own, from a copy of its corpus.

    Args:
        target: Its name.
        seconds: How long.
        crashes: Where an input that fails is kept.
        corpus: A folder for what was found to reach more, if it is to be kept.
    """
    crashes.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ckpttool-fuzz-") as scratch:
        grown = corpus or Path(scratch, "corpus")
        if (CORPUS / target).is_dir():
            shutil.copytree(CORPUS / target, grown, dirs_exist_ok=True)
        grown.mkdir(parents=True, exist_ok=True)
        ended = subprocess.run(
            [*_INSIDE, target, "--seconds", str(seconds), "--crashes", str(crashes), "--corpus", str(grown)],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": scratch, "XDG_CACHE_HOME": scratch},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=seconds * 4 + 600,
        )
    output = ended.stdout + ended.stderr
    kept = re.findall(r"Test unit written to (\S+)", output)
    return Run(
        target=target,
        executions=_last(r"stat::number_of_executed_units: (\d+)", output) or _last(r"#(\d+)", output),
        edges=_last(r"\bcov: (\d+)", output),
        crash=Path(kept[-1]) if kept else None,
        output=output,
        failed=ended.returncode != 0,
    )


def _last(pattern: str, text: str) -> int:
    return int((re.findall(pattern, text) or [0])[-1])


def _inside(target: str, seconds: int, crashes: Path, corpus: Path) -> None:
    """Run libFuzzer, which ends the process itself."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["ckpttool"]):
        module = importlib.import_module(_TARGETS)
        importlib.import_module("ckpttool.trainers.mindformers.launch")
    run: Target = atheris.instrument_func(module.planted) if target == _PLANTED else module.TARGETS[target]
    tokens: Sequence[bytes] = module.TOKENS.get(target, ())
    words = Path(tempfile.gettempdir(), "tokens")
    words.write_text("".join(map(_spelled, (*tokens, *_WORDS))))
    options = {
        "max_total_time": seconds,
        "max_len": MOST_BYTES,
        "timeout": HANG_SECONDS,
        "rss_limit_mb": _MOST_MEGABYTES,
        "artifact_prefix": f"{crashes}/{target}-",
        "dict": words,
        "print_final_stats": 1,
    }
    arguments = [sys.argv[0], *(f"-{name}={value}" for name, value in options.items()), str(corpus)]
    atheris.Setup(arguments, watched(run))
    atheris.Fuzz()


def _spelled(token: bytes) -> str:
    """Spell a line of libFuzzer's dictionary."""
    escaped = "".join(f"\\x{byte:02x}" for byte in token)
    return f'"{escaped}"\n'


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz one target, and say what came of it."""
    parser = argparse.ArgumentParser(prog=f"python -m {_RUNNER}")
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--crashes", type=Path, default=Path(tempfile.gettempdir(), "ckpttool-crashes"))
    parser.add_argument("--corpus", type=Path, help="where to keep inputs that reached more")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if not has_atheris():
        parser.exit(2, "this needs atheris (x86-64): pip install 'ckpttool[fuzz]'; pytest runs a plain mutator\n")
    if given.inside:
        _inside(given.target, given.seconds, given.crashes, given.corpus)
    targets = importlib.import_module(_TARGETS).TARGETS
    if given.target not in {*targets, _PLANTED}:
        parser.error(f"there is no target {given.target!r}; there are {', '.join(targets)}")
    run = fuzz(given.target, given.seconds, given.crashes, given.corpus)
    sys.stdout.write(f"{run.target}: {run.executions:,} executions, {run.edges:,} edges\n")
    if run.failed:
        sys.stdout.write(f"{run.output[-4000:]}\nit failed; the input is {run.crash}\n")
    return int(run.failed)


if __name__ == "__main__":
    sys.exit(main())
