"""Entry point of `python -m ckpttool` and of the console script."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress

COLLECTIONS = (100_000, 50, 100)
"""High garbage-collector thresholds. A start allocates fewer objects than the first, and none is garbage."""


def main() -> None:
    """Run the command line, without optional steps at start and exit that take a fifth of a short command's time."""
    gc.set_threshold(*COLLECTIONS)
    try:
        from ckpttool.cli.main import run

        code = run()
    except KeyboardInterrupt:  # before the command line was read, or after its answer
        with suppress(OSError):
            os.write(2, b"ckpttool: interrupted\n")
        code = 130
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError):  # our output was flushed, and failures were reported
                stream.flush()
    # Every file is closed and every result flushed; an orderly shutdown of the interpreter has no use.
    os._exit(code)


if __name__ == "__main__":
    main()
