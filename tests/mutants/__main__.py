"""`python -m tests.mutants` puts small faults into a copy of the project and tells which of them no test finds.

It takes them from the lines that changed since the last tag, or in the last month. A first run of a commit's tests
notes which test reaches which fault; then each fault is switched on alone, and the tests that reach it run until one
fails: those of its own room first. A fault that no test finds is either a hole in the tests or no fault at all, because
the module means the same with it; about one in seven is that. Fewer killed than `LEAST_KILLED` end the run with exit 1.
"""

from __future__ import annotations

import argparse
import random
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from itertools import count
from os import cpu_count
from pathlib import Path
from queue import Queue

import tests.__main__
from tests.mutants.places import Mutant, choose, mutants_of, put

ROOT = Path(__file__).resolve().parent.parent.parent
LEAST_KILLED = 70  # per cent; of 64 that were looked at one by one, 75 were killed and 14 changed nothing
QUIET = ("-q", "--no-header", "-p", "no:cacheprovider")
COMMIT = shlex.split(tests.__main__.COMMIT)[3:]  # behind `python -m pytest`


class Copy:
    """The mutated project in a folder of its own, with a Python that imports it from there and from nowhere else."""

    def __init__(self, folder: Path, mutants: list[Mutant]) -> None:
        self.folder = folder
        for name in _git("ls-files", "-co", "--exclude-standard", "-z").split("\0"):
            if name and (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
        put(folder, mutants)
        shutil.copy(Path(__file__).parent / "switch.py", folder / "ckpttool" / "_mutant.py")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
        self.python = folder / ".venv" / "bin" / "python"
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder / ".venv")}))
        ours = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"  # with what is installed by a link
        (packages / "mutated.pth").write_text(f"{folder}\n{ours}\n")
        program = Path(sysconfig.get_path("scripts")) / "ckpttool"
        _, _, body = program.read_text().partition("\n")
        (self.python.parent / "ckpttool").write_text(f"#!{self.python}\n{body}")
        (self.python.parent / "ckpttool").chmod(0o755)

    def switch_on(self, number: int) -> None:
        (self.folder / "ckpttool" / "_mutant_on").write_text(str(number))

    def pytest(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, "-m", "pytest", *QUIET, *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def reached(self) -> tuple[dict[int, set[str]], set[str]]:
        """Run a commit's tests with no mutant on; return the tests that reach each, and those that fail in a copy."""
        record = self.folder / "ckpttool" / "_mutants_reached"
        record.touch()
        done = self.pytest(*COMMIT, "-rfE")
        reached: dict[int, set[str]] = defaultdict(set)
        for line in record.read_text().splitlines():
            number, _, test = line.partition("\t")
            name, _, phase = test.rpartition(" ")
            # What a fixture reaches for the whole file is asserted on by any test of it.
            reached[int(number)].add(name if phase == "(call)" else name.partition("::")[0])
        record.unlink()
        failed = set(re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, flags=re.MULTILINE))
        if done.returncode not in {0, 1} or not reached:
            raise SystemExit(f"the tests do not run in the copy:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return reached, failed

    def killer(self, number: int, mutant: Mutant, tests: set[str], excused: set[str]) -> str | None:
        """Return the test that finds the mutant, or None."""
        self.switch_on(number)
        room = Path("tests", *Path(mutant.path).parts[1:-1])
        while not (self.folder / room).is_dir():
            room = room.parent
        known = sorted((test for test in tests if test), key=lambda test: (not test.startswith(f"{room}/"), test))
        # A value that is kept for the whole process was reached by the first test that asked for it.
        rest = [str(room)] if room != Path("tests") else []
        excuses = [f"--deselect={test}" for test in sorted(excused)]
        for asked in (known, rest):
            if asked:
                (self.folder / "_asked").write_text("\n".join([*excuses, *asked]))
                done = self.pytest("-x", "-m", "not slow", "-o", "faulthandler_timeout=120", "@_asked")
                if failed := re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, flags=re.MULTILINE):
                    return failed[1]
                if "Timeout (" in done.stderr:
                    return "a test that does not end any more"
                if done.returncode not in {0, 5}:
                    return f"pytest, which ended with {done.returncode}: {done.stderr.strip()[-200:]}"
        return None


def main() -> int:
    """Print what becomes of each mutant; return 1 if too few are killed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--seed", default=datetime.now(timezone.utc).date().isoformat(), help="default: today's date")
    parser.add_argument("--since", help="a commit; default: the last tag, else a month ago")
    parser.add_argument("--room", action="append", help="only modules below ckpttool/ROOM; may be given more than once")
    asked = parser.parse_args()
    chance = random.Random(asked.seed)  # noqa: S311  a sample
    candidates = [
        mutant
        for path, lines in sorted(_changed(asked.since).items())
        if not asked.room or any(path.startswith(f"ckpttool/{room}") for room in asked.room)
        for mutant in mutants_of(ROOT, path, lines, chance)
    ]
    mutants = choose(candidates, asked.count, chance)
    print(f"{len(mutants)} mutants of {len(candidates)} (seed {asked.seed})", flush=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: Queue[Copy] = Queue()
        for number in range(cpu_count() or 1):
            copies.put(Copy(Path(folder, str(number)), mutants))
        first = copies.get()
        reached, failed = first.reached()
        copies.put(first)
        print(f"left out, for they fail in a copy: {len(failed)} tests", flush=True)
        done = count(1)

        def judge(numbered: tuple[int, Mutant]) -> bool:
            number, mutant = numbered
            copy = copies.get()
            killer = copy.killer(number, mutant, reached[number], failed)
            copies.put(copy)
            print(f"[{next(done)}] {'SURVIVED' if killer is None else 'killed'}  {mutant}  {killer or ''}", flush=True)
            return killer is not None

        with ThreadPoolExecutor(copies.qsize()) as pool:
            killed = list(pool.map(judge, enumerate(mutants, 1)))
    share = 100 * sum(killed) / len(killed) if killed else 100
    print(f"{sum(killed)} of {len(killed)} killed ({share:.0f} %); look at those that survived")
    return int(share < LEAST_KILLED)


def _changed(since: str | None) -> dict[str, set[int] | None]:
    """The lines of each module that changed; None stands for all of them."""
    modules: dict[str, set[int] | None] = dict.fromkeys(_git("ls-files", "ckpttool/*.py").split(), None)
    revision = (
        since or _git("describe", "--tags", "--abbrev=0") or _git("log", "-1", "--format=%H", "--until=1 month ago")
    )
    if not revision.strip():
        return modules  # no tag, and all of the history is younger than a month
    lines: dict[str, set[int]] = defaultdict(set)
    path = ""
    for line in _git("diff", "-U0", revision.strip(), "--", "ckpttool").splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ b/")
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            lines[path].update(range(int(hunk[1]), int(hunk[1]) + int(hunk[2] or 1)))
    return {path: lines[path] for path in modules if path in lines}


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout


if __name__ == "__main__":
    sys.exit(main())
