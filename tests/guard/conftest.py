"""What tests inside a training process share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture
def one_process_group(tmp_path: Path) -> Iterator[None]:
    """Be the only rank of a world."""
    from torch import distributed

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Compute with one: two that wait for each other on a busy machine take ten times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
