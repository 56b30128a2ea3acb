"""`python -m tests` runs every check of the project in turn; the first that fails ends it with its own exit code."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# A process a core, and all tests of a file in one of them, for they share what is dear to make. In their order: files
# of few tests are the slow ones, and must not come last.
PYTEST = "python -m pytest -n auto --dist loadfile --no-loadscope-reorder"

CHECKS = (
    "ruff check .",
    "ruff format --check .",
    "mypy",
    "lint-imports --no-logo",
    f"{PYTEST} -m 'not no_cover' --cov --cov-report=",
    "coverage report",
    # The rooms where a branch that no test takes would be a wrong answer to which checkpoint can be trusted.
    "coverage report --include=ckpttool/decide/*,ckpttool/formats/* --fail-under=100",
    # What is tried by the thousand, of which coverage would more than double the time. A run of its own: where coverage
    # only pauses, Python 3.11 fails now and then to take its trace function from several threads at once.
    f"{PYTEST} -m no_cover",
)


def main() -> int:
    """Run the checks and return the exit code of the first that fails, or 0."""
    programs = Path(sys.executable).parent  # of this environment, activated or not
    for check in CHECKS:
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
