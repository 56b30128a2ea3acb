"""Lies in the mutated copy as `ckpttool/_mutant.py`: each mutant there asks it whether it is the one that is on.

It reads files beside itself, no environment, for tests start processes with an environment of their own.
"""

from __future__ import annotations

import os
from pathlib import Path

_HERE = Path(__file__).parent
_ON = int((_HERE / "_mutant_on").read_text()) if (_HERE / "_mutant_on").exists() else 0
_REACHED = _HERE / "_mutants_reached"
_RECORDS = _REACHED.exists()
_SEEN: set[tuple[str, int]] = set()


def is_on(number: int) -> bool:
    """Whether this mutant is on; while reaching is recorded, also note the test that runs."""
    if _RECORDS:
        reach = os.environ.get("PYTEST_CURRENT_TEST", ""), number
        if reach not in _SEEN:
            _SEEN.add(reach)
            with _REACHED.open("a") as file:
                file.write(f"{number}\t{reach[0]}\n")
    return number == _ON
