"""Nothing that lies in a tree, a config, a log or a name crashes a command, hangs it, fills memory or runs code."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from ckpttool.core.errors import ExitCode
from tests.reliability.figures import Figure, Programme
from tests.reliability.hostile_inputs import CHANGING, SWEEPS, sensible, situations
from tests.reliability.hostile_runner import STARTED_SOMETHING, WROTE_OUTSIDE, Done, Runner
from tests.reliability.hostile_situation import (
    CANARY,
    MOST_MEBIBYTES,
    Ask,
    Situation,
    ask,
    in_place_of,
    sound_tree,
    text,
)

MOST_CPU_SECONDS = 5.0
SHARED_CORES = 1.6
"""How much more of its own time a process takes where others use the same caches. The figures tell what it took."""
MOST_BYTES_SAID = 200_000
MOST_BYTES_IN_A_DOCUMENT = 8_000_000
"""A document for programs tells of each of 60,000 rewinds."""
REFUSED_WRITE = "cannot write .*; nothing was changed|cannot make the folder .*: a file or a symbolic link has its name"
STOPPED = {STARTED_SOMETHING: "started something", WROTE_OUTSIDE: "changed something outside"}
MAY_CHANGE = ("output", "new.yaml", "cache")
"""What a command that changes something may change; one that does not may only remember, in `cache`."""


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with closing(Runner(tmp_path_factory.mktemp("said"))) as runner:
        yield runner


@dataclass
class Tally:
    """What all cases came to."""

    asked: int = 0
    """Whose answer is known."""
    swept: int = 0
    """Of which any sensible answer will do."""
    peak: float = 0.0
    cpu: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def tried(self) -> int:
        return self.asked + self.swept

    def add(self, case: str, one: Ask, done: Done, complaints: Iterable[str]) -> None:
        self.asked += one.exit >= 0
        self.swept += one.exit < 0
        self.peak, self.cpu = max(self.peak, done.peak_mebibytes), max(self.cpu, done.cpu_seconds)
        told = ", ".join(complaints)
        if told:
            self.wrong.append(f"{case} | {one.line}: {told}: {done.said[:300]!r}")


def test_every_hostile_input_gets_a_clear_answer_within_its_limits(
    programme: Programme, runner: Runner, tmp_path: Path
) -> None:
    began = time.monotonic()
    tally = Tally()
    for situation in situations():
        if not situation.heavy or programme.nightly:
            for case in _all_asks(situation) if programme.nightly else [situation]:
                _try(case, runner, tmp_path / "here", tally)
    shown = "\n".join(tally.wrong[:40])
    assert not tally.wrong, f"{len(tally.wrong)} of {tally.tried} cases:\n{shown}"
    figure = Figure(
        tried=tally.tried,
        unit="command lines",
        seconds=round(time.monotonic() - began, 1),
        note=f"{tally.asked:,} asked exactly, {tally.swept:,} swept; at most {tally.peak:.0f} MiB and "
        f"{tally.cpu:.1f} s of CPU; nothing was run, nothing outside was changed, and after every change the same "
        "checkpoint was found",
    )
    programme.report("hostile", figure)


def _all_asks(situation: Situation) -> list[Situation]:
    """Return the situation with what is asked in any case, and with every command that suits it."""
    lines = SWEEPS[situation.kind]
    anything = tuple(Ask(line=line, exit=-1, among=sensible(situation, line)) for line in lines)
    return [replace(situation, asks=situation.asks + anything)]


def _try(situation: Situation, runner: Runner, here: Path, tally: Tally) -> None:
    """Ask everything in a fresh folder; after a command that may change it, in another one."""
    _fresh(situation, here)
    before = _snapshot(here)
    for one in situation.asks:
        done = _ask(one, situation, runner, here)
        changing = any(word in one.line for word in CHANGING)
        after = _snapshot(here)
        changed = _changes(before, after, MAY_CHANGE if changing else ("cache",))
        tally.add(
            situation.name,
            one,
            done,
            [*_complaints(one, done, situation.most_mebibytes), *changed, *_lost(situation, before, after)],
        )
        if changing or changed:
            if any(name.startswith("output/") for name, _ in before.items() ^ after.items()):
                _ask_again(one, situation, runner, here, tally)
            _fresh(situation, here)
            before = _snapshot(here)
    shutil.rmtree(here)


def _ask(one: Ask, situation: Situation, runner: Runner, here: Path) -> Done:
    arguments = [situation.string if word == "STRING" else word for word in one.line.split()]
    environment = {"COLUMNS": "200", "XDG_CACHE_HOME": str(here / "cache"), "HOME": str(here), "NO_COLOR": "1"}
    return runner.run(arguments, folder=here, environment=environment)


def _ask_again(change: Ask, situation: Situation, runner: Runner, here: Path, tally: Tally) -> None:
    """After a command that changed something the same checkpoint must be found as before."""
    for one in situation.asks:
        if one.line == "resolve output":
            done = _ask(one, situation, runner, here)
            tally.add(
                f"{situation.name}, after {change.line}", one, done, _complaints(one, done, situation.most_mebibytes)
            )


def _lost(situation: Situation, before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Say which files of the checkpoint that must be found are not what they were, to the byte."""
    kept = [name for name in before if situation.kept and fnmatchcase(name, situation.kept)]
    assert kept or not situation.kept, f"{situation.name}: nothing is called {situation.kept}"
    return [f"touched {name!r}" for name in kept if before[name] != after.get(name)]


def _fresh(situation: Situation, here: Path) -> None:
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    situation.make(here)


def _complaints(one: Ask, done: Done, most_mebibytes: int = MOST_MEBIBYTES) -> Iterator[str]:
    """Say what is wrong with an answer."""
    if done.hung:
        yield "hung"
    if done.code in STOPPED:
        yield STOPPED[done.code]
    if done.code not in _answers(one, done):
        yield f"exit {done.code}, not {'an answer' if one.exit < 0 else one.exit}"
    if one.says not in done.said:
        yield f"does not say {one.says!r}"
    if "Traceback" in done.said or "internal error" in done.said:
        yield "failed itself"
    if done.peak_mebibytes > most_mebibytes:
        yield f"{done.peak_mebibytes:.0f} MiB"
    if done.cpu_seconds > MOST_CPU_SECONDS * SHARED_CORES:
        yield f"{done.cpu_seconds:.1f} s of CPU"
    if len(done.stdout) + len(done.stderr) > (MOST_BYTES_IN_A_DOCUMENT if "--format" in one.line else MOST_BYTES_SAID):
        yield f"said {len(done.stdout) + len(done.stderr)} bytes"
    if not _is_plain(done):
        yield "said what a terminal would obey"
    yield from _malformed(one.line, done)


def _answers(one: Ask, done: Done) -> frozenset[int]:
    """Return how a command may end."""
    if one.exit >= 0:
        return frozenset({one.exit})
    # A write that is refused, because something else has the name, says so with the code of a write that fails.
    is_refused = any(word in one.line for word in CHANGING) and re.search(REFUSED_WRITE, done.said)
    return frozenset({*one.among, *({ExitCode.FAILED} if is_refused else ())})


def _is_plain(done: Done) -> bool:
    said = (done.stdout + done.stderr).decode("utf-8", "surrogateescape")
    return all(character.isprintable() or character == "\n" for character in said)


def _malformed(line: str, done: Done) -> Iterator[str]:
    """Check the form of an answer that a program reads; a command that was stopped says nothing there."""
    _, _, form = line.partition("--format ")
    if not form or not done.stdout:
        return
    try:
        if form.startswith(("json", "sarif")):
            json.loads(done.stdout)
        elif form == "junit":
            ET.fromstring(done.stdout)  # noqa: S314  our own output, and a parser that knows no bombs is the point
        elif form == "github":
            lines = done.stdout.decode().splitlines()
            assert all(line.startswith(("::error ", "::warning ", "::notice ")) for line in lines[:-1]), lines
            ends = ("GO: ", "NO-GO: ", "1 config: ", "::error ", "::warning ", "::notice ")
            assert lines[-1].startswith(ends), lines[-1]
    except (ValueError, AssertionError, ET.ParseError) as error:
        yield f"no {form}: {error!r:.200}"


def _snapshot(here: Path) -> dict[str, object]:
    """Everything below a folder, links not followed: what it is, how large, since when, and what is in it."""
    found: dict[str, object] = {}
    for path in here.rglob("*"):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() and status.st_size < 1 << 16 else b""
        target = str(path.readlink()) if path.is_symlink() else ""
        times = 0 if path.is_dir() else status.st_mtime_ns
        found[path.relative_to(here).as_posix()] = (status.st_mode, status.st_size, times, target, content)
    return found


def _changes(before: dict[str, object], after: dict[str, object], allowed: Iterable[str]) -> list[str]:
    names = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    if CANARY in names:
        return ["ran a command"]
    return [f"changed {name!r}" for name in sorted(names) if name.split("/")[0] not in allowed]


# --- That the judge would notice -------------------------------------------------------------------------------------


GOOD = Done(code=0, stdout=b"fine\n", stderr=b"", peak_mebibytes=30.0, cpu_seconds=0.1)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (replace(GOOD, code=-14), "hung"),
        (replace(GOOD, code=-24), "hung"),
        (replace(GOOD, code=STARTED_SOMETHING), "started something"),
        (replace(GOOD, code=WROTE_OUTSIDE), "changed something outside"),
        (replace(GOOD, code=10), "exit 10, not 0"),
        (replace(GOOD, stdout=b"no\n"), "does not say 'fine'"),
        (replace(GOOD, stderr=b"Traceback (most recent call last)"), "failed itself"),
        (replace(GOOD, peak_mebibytes=257.0), "257 MiB"),
        (replace(GOOD, cpu_seconds=8.1), "8.1 s of CPU"),
        (replace(GOOD, stdout=b"fine" * 60_000), "said 240000 bytes"),
        (replace(GOOD, stdout=b"fine\x1b[31m"), "said what a terminal would obey"),
        (replace(GOOD, stdout="fine\u202e".encode()), "said what a terminal would obey"),
    ],
)
def test_the_judge_notices(bad: Done, complaint: str) -> None:
    assert list(_complaints(ask("scan output", 0, "fine"), GOOD)) == []
    assert complaint in list(_complaints(ask("scan output", 0, "fine"), bad))


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("scan output", ExitCode.USAGE, ""),
        ("scan output", ExitCode.FAILED, ""),
        ("scan output", ExitCode.FAILED, "cannot write a: b; nothing was changed"),
        ("resolve output", ExitCode.NOTHING_TO_RESUME, ""),
        ("seal output", ExitCode.FAILED, "no"),
        ("prune output --apply", ExitCode.LOCKED, ""),
    ],
)
def test_the_judge_notices_an_answer_that_makes_no_sense(line: str, code: int, said: str) -> None:
    tree = Situation(name="", kind="tree", make=text(""), asks=())
    one = Ask(line=line, exit=-1, among=sensible(tree, line))
    assert list(_complaints(one, replace(GOOD, stdout=said.encode(), code=code))) == [f"exit {code:d}, not an answer"]


def test_a_change_to_the_checkpoint_that_must_be_found_is_noticed(tmp_path: Path) -> None:
    tree = sound_tree(tmp_path)
    situation = Situation(name="", kind="tree", make=text(""), asks=(), kept="output/checkpoint/rank_*/*-10_2.*")
    before = _snapshot(tmp_path)
    (tree.output / tree.shard(1, 10, 2)).unlink()
    assert _lost(situation, before, _snapshot(tmp_path)) == [f"touched 'output/{tree.shard(1, 10, 2)}'"]
    assert _lost(situation, before, before) == []


def test_a_change_after_which_another_checkpoint_is_found_is_noticed(runner: Runner, tmp_path: Path) -> None:
    tree = sound_tree(tmp_path)
    asks = (ask("resolve output", 0, "Resume from step 30 (15_2)"),)
    situation = Situation(name="sound", kind="tree", make=text(""), asks=asks)
    change = ask("prune output --apply", 0)
    fine, wrong = Tally(), Tally()
    _ask_again(change, situation, runner, tmp_path, fine)
    (tree.output / tree.shard(1, 15, 2)).unlink()
    _ask_again(change, situation, runner, tmp_path, wrong)
    assert (fine.asked, fine.wrong) == (1, [])
    assert wrong.wrong[0].startswith("sound, after prune output --apply | resolve output: does not say")


def test_the_judge_notices_a_document_that_is_none() -> None:
    assert list(_malformed("preflight --format junit", replace(GOOD, stdout=b"<a>"))) != []
    assert list(_malformed("scan --format json", replace(GOOD, stdout=b"{"))) != []
    assert list(_malformed("preflight --format github", replace(GOOD, stdout=b"::error::x\ny"))) != []


def test_a_command_that_is_run_and_a_file_that_is_changed_are_noticed(tmp_path: Path) -> None:
    before = _snapshot(tmp_path)
    in_place_of(tmp_path / "outside" / "precious", text("changed"))
    assert _changes(before, _snapshot(tmp_path), ("output",)) != []
    in_place_of(tmp_path / CANARY, text(""))
    assert _changes(before, _snapshot(tmp_path), ("output",)) == ["ran a command"]


def test_the_runner_measures_and_stops_what_starts_something_or_writes_elsewhere(
    tmp_path: Path,
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    sound_tree(here)
    (here / "out").symlink_to("..")
    greedy = (
        "import ckpttool.__main__ as m, os, sys, time\n"
        "from tests.reliability import hostile_runner\n"
        "def main():\n"
        "    if sys.argv[1] == 'start': os.system('touch canary-ran')\n"
        "    if sys.argv[1] == 'write': open('../outside', 'w')\n"
        "    if sys.argv[1] == 'link': open('out/outside', 'w')\n"
        "    if sys.argv[1] == 'rename': os.rename('output', '../outside')\n"
        "    if sys.argv[1] == 'below': os.mkdir('outside', dir_fd=os.open('out', os.O_RDONLY))\n"
        "    held = b'x' * (300 << 20)\n"
        "    end = time.process_time() + 0.3\n"
        "    while time.process_time() < end: pass\n"
        "    os._exit(0)\n"
        "m.main = main\n"
        "hostile_runner.serve()\n"
    )
    with closing(Runner(tmp_path, program=("-c", greedy))) as runner:
        done = runner.run(["eat"], folder=here)
        assert done.peak_mebibytes > 300
        assert done.cpu_seconds >= 0.3
        assert runner.run(["start"], folder=here).code == STARTED_SOMETHING
        for way in ("write", "link", "rename", "below"):
            assert runner.run([way], folder=here).code == WROTE_OUTSIDE
    assert not (here / CANARY).exists()
    assert not (tmp_path / "outside").exists()
