"""What stores did once is read back: each trial by itself, and the latest last."""

from __future__ import annotations

import os
from pathlib import Path

from ckpttool.domain.frozen import replace
from ckpttool.domain.stored import CLAIMS, StoreTrial
from ckpttool.records.store_trials import read_trials, trial_bytes, trial_path
from ckpttool.storage.local import LocalStorage

HERE, ELSEWHERE = "http://store.example", "http://other.example"
FIRST = StoreTrial(address=HERE, server="x", tried_at="2026-11-28T00:00:00Z", refused=CLAIMS, taken=())
SECOND = replace(FIRST, tried_at="2026-11-29T00:00:00Z", refused=CLAIMS[:1], taken=CLAIMS[1:])


def kept(root: Path, trial: StoreTrial, chance: str, *, second: int) -> Path:
    """Write a trial down as of some second."""
    path = root / trial_path(trial.tried_at, chance * 16)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(trial_bytes(trial))
    os.utime(path, (second, second))
    return path


def read(root: Path, address: str = HERE) -> tuple[tuple[int, StoreTrial], ...]:
    return read_trials(LocalStorage(str(root)), address)


def test_two_trials_of_one_store_are_both_read_and_the_later_one_is_last(tmp_path: Path) -> None:
    kept(tmp_path, FIRST, "a", second=20)
    assert read(tmp_path) == ((20_000_000_000, FIRST),)
    kept(tmp_path, SECOND, "b", second=30)
    assert read(tmp_path) == ((20_000_000_000, FIRST), (30_000_000_000, SECOND))


def test_the_store_s_own_clock_says_which_is_later_and_not_the_name(tmp_path: Path) -> None:
    kept(tmp_path, FIRST, "a", second=30)
    kept(tmp_path, SECOND, "b", second=20)
    assert [trial for _, trial in read(tmp_path)] == [SECOND, FIRST]


def test_two_trials_of_one_moment_are_two(tmp_path: Path) -> None:
    for chance in "ab":
        kept(tmp_path, FIRST, chance, second=20)
    assert len(read(tmp_path)) == 2


def test_a_trial_of_another_store_or_a_torn_one_hides_no_other(tmp_path: Path) -> None:
    kept(tmp_path, replace(FIRST, address=ELSEWHERE), "a", second=10)
    torn = kept(tmp_path, FIRST, "b", second=20)
    whole = torn.read_bytes()
    kept(tmp_path, SECOND, "c", second=30)
    for wrong in (whole[:-1], whole[:-20], whole.replace(b"crc32", b"crc33", 1), b"", b"{}"):
        torn.write_bytes(wrong)
        assert [trial for _, trial in read(tmp_path)] == [SECOND]
    assert [trial.address for _, trial in read(tmp_path, ELSEWHERE)] == [ELSEWHERE]


def test_of_very_many_the_latest_are_read(tmp_path: Path) -> None:
    for day in range(1, 29):
        for hour in range(3):
            kept(tmp_path, replace(FIRST, tried_at=f"2026-11-{day:02}T{hour:02}:00:00Z"), "a", second=100 * day + hour)
    found = read(tmp_path)
    assert len(found) == 64
    assert found[-1][1].tried_at == "2026-11-28T02:00:00Z"


def test_a_tree_without_any_has_none(tmp_path: Path) -> None:
    assert read(tmp_path) == ()
