"""What tests of object stores share: a relay that stands for the wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.s3_relay import Relay, relay_over


@pytest.fixture
def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    """A store with one bucket, called `bucket`."""
    (tmp_path / "stores" / "bucket").mkdir(parents=True)
    with relay_over(tmp_path / "stores", monkeypatch) as relay:
        yield relay
