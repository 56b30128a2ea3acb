"""Real data loaders continue at the position that their saved states show, as the fixtures say of today's versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.storage import open_storage
from ckpttool.trainers.loader_states.files import loaders_in
from tests.conftest import FIXTURES
from tests.nightly.borrowing import told, trainer_python

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="installs four libraries: --nightly")

SIZE = 2
LIBRARIES = {
    "torchdata": (True, ("torchdata==0.11.0",)),
    "datasets": (False, ("torch==2.13.0", "torchdata==0.11.0", "datasets==5.2.0")),
    "mosaic": (False, ("torch==2.13.0", "mosaicml-streaming==0.13.0")),
    "energon": (False, ("torch==2.13.0", "megatron-energon==7.4.1")),
}
"""By library: whether the tests' own torch is borrowed, and the packages to install."""
TRUTH = json.loads((FIXTURES / "loader_states" / "truth.json").read_text())


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_resumed_loader_begins_where_its_state_says(library: str, tmp_path: Path) -> None:
    borrows, packages = LIBRARIES[library]
    python = trainer_python(tmp_path / "venv", *packages, borrows=borrows)
    (tmp_path / "states").mkdir()
    runs: dict[str, Any] = told(python, "loader_states.py", library, str(tmp_path / "states"))
    assert {f"{library}/{name}" for name in runs} == {name for name in TRUTH if name.startswith(f"{library}/")}
    for name, run in runs.items():
        (loader,) = loaders_in(open_storage(str(tmp_path / "states")), f"{name}.pt")
        state = loader.state
        assert state is not None
        if state.yields_nothing is not None:
            assert run["resumed"] == []
        elif not state.finished and name != "shuffle_buffer":  # its rows in the buffer are lost
            samples_per_batch = 1 if state.kind == "datasets" else SIZE
            at = (state.samples or 0) // samples_per_batch if state.batches is None else state.batches
            assert (at, run["resumed"][:1]) == (run["read"], run["reference"][at : at + 1])
        assert min(len(run["resumed"]), 48) == TRUTH[f"{library}/{name}"]["batches_left"]
