"""A folder of its own for each test, beside the fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.trees import FIXTURES


@pytest.fixture
def beside_fixtures(here: Path) -> Path:
    """Make it the working directory, with the fixtures at the same relative paths as in a checkout."""
    (here / "fixtures").symlink_to(FIXTURES)
    return here
