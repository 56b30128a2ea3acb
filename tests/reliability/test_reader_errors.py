"""A system call of a reader fails: nothing whole is called damaged, and what was not read is not called good."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from queue import SimpleQueue

import pytest

from ckpttool.core.errors import ExitCode
from tests.conftest import FIXTURES
from tests.reliability.figures import Figure, Programme
from tests.reliability.traced import Point, Run, traced, works
from tests.reliability.warm import Warm
from tests.reliability.writers import state
from tests.support.prunable_trees import seal
from tests.support.trees import TreeBuilder

NEWEST = "20_2"
ERRORS = ("EIO", "EACCES", "ESTALE", "EMFILE")
READERS: Mapping[str, Sequence[str]] = {
    "scan": ("scan", "output"),
    "verify": ("verify", "output", "--checkpoint", "all", "--jobs", "1"),
    "verify, every byte": ("verify", "output", "--checkpoint", "all", "--level", "checksum", "--no-ledger", "--jobs=1"),
    "resolve": ("resolve", "output"),
    "resolve, every byte": ("resolve", "output", "--level", "checksum"),
    "preflight": ("preflight", "output", "--config", "pretrain.yaml", "--allow", "folder-not-writable"),
}


@pytest.fixture
def place(tmp_path: Path, programme: Programme) -> Path:
    """Two whole saves, sealed, of which the newest is healthy."""
    reason = works()
    if reason is not None:
        programme.report("reader-errno", Figure(tried=0, unit="errors", seconds=0, note=reason))
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    tree = TreeBuilder(tmp_path / "tree").legacy(ranks=4, sparse=True).save(epoch=10, step=2).save(epoch=20, step=2)
    tree.health([("llama2_7b_rank_0-10_2.ckpt", 0), ("llama2_7b_rank_0-20_2.ckpt", 0)])
    seal(tree)
    (tree.base / "pretrain.yaml").write_bytes((FIXTURES / "configs/pretrain_sink2.yaml").read_bytes())
    return tree.base


@pytest.mark.parametrize("reader", READERS)
def test_an_error_is_no_damage_and_what_was_not_read_is_not_good(
    reader: str, place: Path, programme: Programme, tmp_path: Path
) -> None:
    before, start = state(place), time.monotonic()
    argv = (*READERS[reader], "--format", "json", "-q")
    servers: SimpleQueue[tuple[int, Warm]] = SimpleQueue()

    def run(point: Point | None) -> Run:
        number, warm = servers.get()
        try:
            env = {"XDG_CACHE_HOME": str(tmp_path / f"cache-{number}")}
            return traced(warm, argv, cwd=place, scratch=tmp_path / f"scratch-{number}", env=env, point=point)
        finally:
            servers.put((number, warm))

    with ExitStack() as stack:
        for number in range(2):
            servers.put((number, stack.enter_context(closing(Warm()))))
        for _ in range(2 * servers.qsize()):  # what is loaded at the first use must not be counted
            run(None)
        undisturbed = run(None)
        calls = undisturbed.calls if programme.nightly else undisturbed.calls[::10]
        turns = itertools.cycle(ERRORS)
        chosen = [Point(call, error) for call in calls for error in (ERRORS if programme.nightly else [next(turns)])]
        with ThreadPoolExecutor(2) as pool:
            runs = list(pool.map(run, chosen))
    wrong = [
        f"{point}: {each}" for point, one in zip(chosen, runs, strict=True) for each in judged(undisturbed, one, place)
    ]
    assert not wrong, f"{len(wrong)} of {len(chosen)}:\n" + "\n".join(wrong[:20])
    assert state(place) == before
    note = f"{', '.join(ERRORS[:-1])} and {ERRORS[-1]}: `scan`, `verify`, `resolve` and `preflight` of a healthy tree"
    hits = sum(bool(one.met) for one in runs)
    assert hits > 0.9 * len(runs)
    programme.report(
        "reader-errno", Figure(tried=hits, unit="errors", seconds=time.monotonic() - start, note=note), reader
    )


def judged(undisturbed: Run, run: Run, place: Path) -> Iterator[str]:
    """Say what is wrong with an answer that was got in spite of an error."""
    if run.code in {ExitCode.DAMAGE, ExitCode.UNSAFE} or run.code not in set(ExitCode):
        yield f"exit {run.code}: {run.stdout[:300]!r} {run.stderr.strip()!r}"
    ours = all(call.is_in(place) for call in run.met)
    if "Traceback" in run.stderr or ("internal error" in run.stderr and ours):
        yield run.stderr.strip()
    if run.code == ExitCode.OK:
        answer = json.loads(run.stdout)
        if good(answer) != good(json.loads(undisturbed.stdout)) and not passed_over(answer):
            yield f"says {good(answer)}"
    elif not run.stdout and not run.stderr:
        yield f"exit {run.code} without a word"


def good(answer: Mapping[str, object]) -> object:
    """What an answer calls good."""
    if answer["schema"] == "ckpttool/plan/1":
        return answer["resume"] and answer["resume"]["name"]  # type: ignore[index]  # as the contract has it
    if answer["schema"] == "ckpttool/verdicts/1":
        return [(one["name"], one["verdict"]) for one in answer["checkpoints"]]  # type: ignore[attr-defined]
    if answer["schema"] == "ckpttool/inventory/1":
        return [(one["name"], one["ranks"]) for one in answer["checkpoints"]]  # type: ignore[attr-defined]
    return answer["plan"] and good(answer["plan"])  # type: ignore[arg-type]


def passed_over(answer: Mapping[str, object]) -> bool:
    """Whether a plan takes an older one and says that the newest could not be read."""
    plan = answer.get("plan", answer)
    assert isinstance(plan, dict)
    reasons = [why for one in plan.get("rejected", ()) if one["name"] == NEWEST for why in one["reasons"]]
    return any(why["severity"] == "unknown" for why in reasons)


def test_an_answer_that_calls_damaged_or_good_what_it_could_not_read_is_caught(tmp_path: Path) -> None:
    def said(code: int, verdict: str) -> Run:
        answer = {"schema": "ckpttool/verdicts/1", "checkpoints": [{"name": NEWEST, "verdict": verdict}]}
        return Run(code, json.dumps(answer), "", ())

    whole = said(0, "verified")
    assert list(judged(whole, said(14, "unreadable"), tmp_path)) == []
    assert "exit 10" in "".join(judged(whole, said(10, "damaged"), tmp_path))
    assert "says" in "".join(judged(whole, said(0, "struct-ok"), tmp_path))
    assert "without a word" in "".join(judged(whole, Run(14, "", "", ()), tmp_path))
