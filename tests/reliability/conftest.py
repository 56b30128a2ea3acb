"""The programme's size, and what becomes of its figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reliability.figures import Programme, store


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to the slow tests what has a size; that each part sees what it looks for is quick."""
    for item in items:
        if "programme" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")


@pytest.fixture(scope="session")
def programme(request: pytest.FixtureRequest) -> Iterator[Programme]:
    """Tell a test whether to try everything (`--nightly`), and take down what it did (`--figures FILE`)."""
    programme = Programme(nightly=bool(request.config.getoption("--nightly")))
    yield programme
    file = request.config.getoption("--figures")
    if file and not request.session.testsfailed:
        store(programme.figures, Path(str(file)))
