"""Where nobody knows which saves are good, `prune --apply` ends with 14 and deletes nothing."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from ckpttool.core.errors import ExitCode
from tests.support.commands import ask
from tests.support.trainer_trees import LAYOUTS

FIXTURES = LAYOUTS.parent
PRUNE = ("--keep-last", "1", "--grace", "0", "--apply")


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and ".ckpttool" not in path.parts}


def two_runs(root: Path) -> None:
    """Put a save of another run beside those that are there."""
    shutil.copytree(root / "checkpoint-12", root / "checkpoint-1000")
    record = root / "checkpoint-1000" / "trainer_state.json"
    state = json.loads(record.read_text())
    log = [{**entry, "loss": entry["loss"] + 1} for entry in state["log_history"]]
    record.write_text(json.dumps({**state, "global_step": 1000, "log_history": log}, indent=2))


@pytest.mark.parametrize("is_mixed", [True, False])
def test_in_a_folder_with_two_runs_nothing_goes_and_in_one_with_one_the_older_ones_go(
    is_mixed: bool, tmp_path: Path
) -> None:
    root = shutil.copytree(LAYOUTS / "hf_single", tmp_path / "run")
    if is_mixed:
        two_runs(root)
    before = files(root)
    pruned = ask("prune", str(root), *PRUNE)
    if is_mixed:
        assert (pruned.code, files(root)) == (ExitCode.INCOMPLETE, before), pruned.stdout
    else:
        assert pruned.code == ExitCode.OK
        assert {path.partition("/")[0] for path in files(root)} == {"checkpoint-12"}


@pytest.mark.parametrize("is_closed", [True, False])
def test_with_a_rank_folder_that_may_not_be_listed_nothing_goes(
    is_closed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root lists any folder, so for it the disk refuses."""
    root = shutil.copytree(FIXTURES / "nosink_ckpt", tmp_path / "run")
    closed = next(path for path in sorted(root.rglob("rank_1")) if path.is_dir())
    before = files(root)
    with monkeypatch.context() as disk:
        closed.chmod(0 if is_closed else 0o755)
        if is_closed and os.geteuid() == 0:
            refuse_to_list(disk, closed)
        try:
            pruned = ask("prune", str(closed.parent), *PRUNE)
        finally:
            closed.chmod(0o755)
    assert pruned.code == (ExitCode.INCOMPLETE if is_closed else ExitCode.OK), pruned.stdout
    assert (files(root) == before) is is_closed


def refuse_to_list(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    scandir = os.scandir

    def refused(path: str | int = ".") -> object:
        if Path(f"/proc/self/fd/{path}" if isinstance(path, int) else path).resolve() == folder.resolve():
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
