"""The real Orbax restores the step that a plan names, where its own choice is damaged and it stops there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.plan import Outcome
from ckpttool.types import TreeQuestion
from tests.nightly.borrowing import told, trainer_python
from tests.support.answers import plan, scanned

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="installs a trainer: --nightly")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("orbax") / "venv"
    return trainer_python(home, "orbax-checkpoint==0.12.8", "jax==0.10.2", borrows=False)


@pytest.fixture
def tree(python: str, tmp_path: Path) -> Path:
    """Steps 10, 20 and 30, as Orbax saves them here."""
    assert told(python, "orbax_run.py", str(tmp_path / "saves"), "save") == {"latest": 30}
    return tmp_path / "saves"


def restored(python: str, tree: Path) -> object:
    step = plan(tree).load.value("code:manager.restore(step)")
    return told(python, "orbax_run.py", str(tree), "restore", str(step))


def test_the_newest_of_whole_saves_is_restored(python: str, tree: Path) -> None:
    assert restored(python, tree) == {"step": 30, "right": True}


def largest(tree: Path) -> Path:
    return max((path for path in (tree / "30").rglob("d/*") if path.is_file()), key=lambda path: path.stat().st_size)


def _cut(tree: Path) -> None:
    file = largest(tree)
    file.write_bytes(file.read_bytes()[:100])


def _without_data(tree: Path) -> None:
    largest(tree).unlink()


def _without_manifest(tree: Path) -> None:
    (tree / "30/default/manifest.ocdbt").unlink()


def _flipped_node(tree: Path) -> None:
    (node,) = (tree / "30/default/d").iterdir()
    content = bytearray(node.read_bytes())
    content[len(content) // 2] ^= 1
    node.write_bytes(content)


@pytest.mark.parametrize("spoil", [_cut, _without_data, _without_manifest, _flipped_node])
def test_where_the_latest_is_damaged_it_stops_there_and_the_plan_does_not(
    python: str, tree: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(tree)
    simulated = ckpttool.library.simulate(ckpttool.resolve(TreeQuestion(path=str(tree))), None)
    assert (simulated.would_resume, simulated.outcome) == ("30", Outcome.STOPS)
    assert told(python, "orbax_run.py", str(tree), "latest") == {"latest": 30}
    assert "error" in told(python, "orbax_run.py", str(tree), "restore", "30")
    assert restored(python, tree) == {"step": 20, "right": True}


def test_what_is_kept_in_a_save_disturbs_it_not(python: str, tree: Path) -> None:
    list(ckpttool.seal(TreeQuestion(path=str(tree), sizes=True), "all"))
    assert (tree / "30/ckpttool.manifest.json").exists()
    assert [each.name for each in scanned(tree).checkpoints] == ["10", "20", "30"]
    assert restored(python, tree) == {"step": 30, "right": True}
