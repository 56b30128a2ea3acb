"""`python -m tests.reliability [PYTEST ARGUMENT…]`: the nightly part, whose figures go into the manual's page."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests import pages
from tests.reliability.figures import FIGURES, load, store


def main() -> int:
    """Run everything; where it passes, write the figures down. Arguments choose parts: `-k power`."""
    with tempfile.TemporaryDirectory() as folder:
        new = Path(folder, "figures.json")
        options = ["--nightly", f"--figures={new}", "--ignore=tests/reliability/test_figures.py", *sys.argv[1:]]
        command = [sys.executable, "-m", "pytest", "tests/reliability", *options]
        code = subprocess.run(command, cwd=pages.ROOT, check=False).returncode
        # Half a run, one in which something was wrong, and one that only lists tests leave the figures as they were.
        if code == 0 and new.exists():
            if not sys.argv[1:]:
                FIGURES.unlink(missing_ok=True)  # all of it is new
            store(load(new))
            pages.main()
    return code


if __name__ == "__main__":
    sys.exit(main())
