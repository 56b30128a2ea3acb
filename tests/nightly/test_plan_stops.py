"""A plan that is killed at every system call while it is applied, and that meets every error at every one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reliability.injection import tried
from tests.reliability.test_injection import MOST_MISSES, PARTS, prepared
from tests.reliability.traced import works
from tests.reliability.writers import APPLIED_PLAN

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="stops at every call: --nightly")


@pytest.mark.parametrize("part", PARTS)
def test_whatever_happens_at_whichever_call_each_file_is_in_its_place_or_in_the_trash(
    part: str, tmp_path: Path
) -> None:
    reason = works()
    if reason is not None:
        pytest.skip(reason)
    bench = prepared(APPLIED_PLAN, tmp_path)
    chosen = list(PARTS[part][0](bench.calls, everything=False))
    hits, wrong = tried(bench, chosen)
    assert not wrong, f"{len(wrong)} of {len(chosen)}:\n" + "\n".join(wrong[:20])
    assert hits >= (1 - MOST_MISSES) * len(chosen)
