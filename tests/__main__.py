"""Run the project's checks in turn; the first that fails ends the run with its own exit code.

`python -m tests` runs every commit's checks; `python -m tests --all` also measures coverage and runs the long tests.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# A process a core, and all tests of a file in one of them, for they share what is dear to make. In their order: files
# of few tests are the slow ones, and must not come last.
PYTEST = "python -m pytest -n auto --dist loadfile --no-loadscope-reorder"

STATIC = (
    "ruff check .",
    "ruff format --check .",
    "mypy",
    "lint-imports --no-logo",
)
COMMIT = (*STATIC, f"{PYTEST} -m 'not no_cover' --ignore=tests/nightly")
ALL = (
    *STATIC,
    f"{PYTEST} -m 'not no_cover' --cov --cov-report=",
    "coverage report",
    # The rooms in which an untested branch would be a wrong answer to which checkpoint can be trusted.
    "coverage report --include=ckpttool/decide/*,ckpttool/formats/* --fail-under=100",
    # What is tried by the thousand, of which coverage would more than double the time. A run of its own: if coverage
    # only pauses, Python 3.11 fails now and then to take its trace function from several threads at once.
    f"{PYTEST} -m no_cover",
)


def main() -> int:
    """Run the checks and return the exit code of the first that fails, or 0."""
    if unknown := set(sys.argv[1:]) - {"--all"}:
        print(f"unknown: {' '.join(sorted(unknown))}; usage: python -m tests [--all]", file=sys.stderr)
        return 2
    programs = Path(sys.executable).parent  # of this environment, activated or not
    for check in ALL if "--all" in sys.argv else COMMIT:
        print(f"\n$ {check}", flush=True)
        program, *arguments = shlex.split(check)
        code = subprocess.run([programs / program, *arguments], cwd=ROOT, check=False).returncode
        if code:
            print(f"\nfailed: {check}", file=sys.stderr)
            return code
    print("\nall checks passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
