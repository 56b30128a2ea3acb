"""The programme's size, and what becomes of its figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reliability.figures import Programme, store


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let a commit leave out the whole programme, and nobody measure coverage by what is tried a thousand times."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("slow")


@pytest.fixture(scope="session")
def programme(request: pytest.FixtureRequest) -> Iterator[Programme]:
    """Tell a test whether to try everything (`--nightly`), and take down what it did (`--figures FILE`)."""
    programme = Programme(nightly=bool(request.config.getoption("--nightly")))
    yield programme
    file = request.config.getoption("--figures")
    if file and not request.session.testsfailed:
        store(programme.figures, Path(str(file)))
