"""What `preflight` says of a start, held against what the real program then did.

A start is right if the program went on at the step of the newest save that is whole, with all that the save holds.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NO_GO_WRONG = 0.02
"""How many of all starts may be held back although they would have gone on."""


@dataclass(frozen=True, kw_only=True)
class Did:
    """What the real program did."""

    step: int | None
    """With which step it began; None: it stopped with an error."""
    whole: bool = True
    """Whether optimizer and data went on, too."""
    beside: str = ""
    """For people: the error, or what was not whole."""

    def __str__(self) -> str:
        """Say it in a word or two."""
        if self.step is None:
            return f"stopped: {self.beside[:90]}"
        return f"step {self.step}{'' if self.whole else f', not whole: {self.beside[:90]}'}"


@dataclass(frozen=True, kw_only=True)
class Held:
    """One start: what was said of it, and what it did."""

    case: str
    said: dict[str, Any]
    """The document of `preflight`."""
    did: Did
    best: int
    """The step of the newest whole save; 0: there is none."""

    @property
    def go(self) -> bool:
        """Whether it was to be started."""
        return bool(self.said["go"])

    @property
    def start(self) -> str:
        """What was said of the start, in a line."""
        checks = {check["name"]: check for check in self.said["checks"]}
        return str(checks.get("start", {}).get("summary", ""))

    @property
    def stopped_falsely(self) -> bool:
        """Whether it went on although it was said to stop."""
        return self.did.step is not None and re.search(r"\bit (takes \S+ and )?stops\b", self.start) is not None

    @property
    def right(self) -> bool:
        """Whether what was said is so."""
        if not self.go:
            return not (self.did.whole and self.did.step == self.best and self.best > 0)
        resume = (self.said["plan"] or {}).get("resume") or {}
        return self.did.whole and self.did.step is not None and self.did.step == resume.get("step") == self.best

    def __str__(self) -> str:
        """Say it in a line."""
        checks = {check["name"]: check for check in self.said["checks"]}
        told = self.start or "; ".join(finding["code"] for check in checks.values() for finding in check["findings"])
        verdict = f"{'GO' if self.go else 'NO-GO'} {self.said['exit_code']}"
        return f"{'right' if self.right else 'WRONG'}  {self.case}: {verdict} ({told[:110]}) | {self.did} | {self.best}"


def preflight(tree: Path, *options: str, cwd: Path | None = None) -> dict[str, Any]:
    """Ask `preflight` as a job does."""
    command = [sys.executable, "-m", "ckpttool", "preflight", str(tree), "--json", "-q", *options]
    run = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    document: dict[str, Any] = json.loads(run.stdout)
    assert document["exit_code"] == run.returncode
    return document


def assert_right(starts: Iterable[Held]) -> None:
    """Hold that no GO is wrong, and hardly any NO-GO; say the table in any case."""
    held = []
    for start in starts:
        sys.stdout.write(f"{start}\n")  # pytest shows it with -s, or with -rP once all is done
        sys.stdout.flush()
        held.append(start)
    go_right, go_wrong, no_go_right, no_go_wrong = (
        sum((each.go, each.right) == (go, right) for each in held) for go in (True, False) for right in (True, False)
    )
    stopped_falsely = [each for each in held if each.stopped_falsely]
    table = (
        f"GO right {go_right}, wrong {go_wrong}; NO-GO right {no_go_right}, wrong {no_go_wrong}; "
        f"said to stop, and did not {len(stopped_falsely)}"
    )
    sys.stdout.write(f"{table}\n")
    wrong = "\n".join([table, *(str(each) for each in held if not each.right or each.stopped_falsely)])
    assert go_wrong == 0, wrong
    assert no_go_wrong <= NO_GO_WRONG * len(held), wrong
    assert not stopped_falsely, wrong
    assert go_right > 0, table
