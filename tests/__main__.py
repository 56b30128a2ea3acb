"""Run the project's checks in turn; the first that fails ends the run with its own exit code.

`python -m tests` runs every commit's checks, in minutes. `python -m tests --all` takes more than an hour: it also
measures coverage, runs the tests marked `slow` and the reliability programme, and looks how many of 64 small faults the
tests find.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent

STATIC = (
    "ruff check .",
    "ruff format --check .",
    "lint-imports --no-logo",
)
TYPES = "mypy"
# A process a core, and all tests of a file in one of them, for they share what is dear to make. In their order: files
# of few tests are the slow ones, and must not come last. A test that hangs is red after five minutes.
PYTEST = "python -m pytest -n auto --dist loadfile --no-loadscope-reorder -o faulthandler_timeout=300"
COMMIT = f"{PYTEST} -m 'not slow' --ignore=tests/nightly --ignore=tests/reliability"
# In which an untested branch would be a wrong answer to which checkpoint can be trusted.
RULES = (
    "*/core/decide/*",
    "*/core/formats/*",
    "*/health/asd/*",
    "*/health/policies/*",
    "*/health/rules*",
    "*/replicas/rules*",
)
REST = (
    # Of a test that stops a call wherever it is (`no_cover`), it would stop the measuring.
    f"{PYTEST} -m 'not slow and not no_cover' --cov --cov-report=",
    "coverage report",
    f"coverage report --include={','.join(RULES)} --fail-under=100",
    # Without coverage, which would more than double its time; each may take an hour.
    f"{PYTEST} -m 'slow or no_cover' -o faulthandler_timeout=3600",
    "python -m tests.mutants",
)


def main() -> int:
    """Run the checks and return the exit code of the first that fails, or 0."""
    if unknown := set(sys.argv[1:]) - {"--all"}:
        print(f"unknown: {' '.join(sorted(unknown))}; usage: python -m tests [--all]", file=sys.stderr)
        return 2
    code = _first_failure(STATIC)
    if not code:
        # The types are checked beside the tests: neither keeps two cores busy by itself from beginning to end.
        with tempfile.TemporaryFile() as said, _started(TYPES, said) as types:
            code = _first_failure(REST if "--all" in sys.argv else (COMMIT,))
            if types.wait():
                said.seek(0)
                print(f"\n$ {TYPES}\n{said.read().decode()}\nfailed: {TYPES}", file=sys.stderr)
                code = code or types.returncode
    if not code:
        print("\nall checks passed")
    return code


def _first_failure(checks: tuple[str, ...]) -> int:
    for check in checks:
        print(f"\n$ {check}", flush=True)
        with _started(check) as process:
            code = process.wait()
        if code:
            print(f"\nfailed: {check}", file=sys.stderr)
            return code
    return 0


def _started(check: str, output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    program, *arguments = shlex.split(check)
    of_this_environment = Path(sys.executable).parent / program  # activated or not
    return subprocess.Popen([of_this_environment, *arguments], cwd=ROOT, stdout=output, stderr=output)


if __name__ == "__main__":
    sys.exit(main())
