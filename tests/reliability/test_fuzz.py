"""Every parser of bytes on bytes that nobody wrote: mutations at each commit, guided by coverage in the nightly run."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from ckpttool.core.formats.torch.pickle_opcodes import PickleNames
from ckpttool.core.formats.torch.pickle_scan import PickleReader
from ckpttool.core.logs.base import UnreadableError, number
from tests.reliability import fuzzing
from tests.reliability.figures import Figure, Programme
from tests.reliability.fuzz_targets import TARGETS, TOKENS, planted

SECONDS = int(os.environ.get("CKPTTOOL_FUZZ_SECONDS", "60"))
"""Of guided fuzzing a target, in the nightly run."""

AT_ONCE = 2

MUTATIONS = 2500
_SLOW = {
    "launch-config": 150, "yaml-spelling": 300, "config": 600, "shard": 900, "tree": 500, "log-mindformers": 800,
    "log-megatron": 500, "log-hf-trainer": 800, "log-hf-printed": 800, "log-json-lines": 800, "log-csv": 800,
    "log-guard-events": 800, "guard-report": 150,
}  # fmt: skip
"""Mutations of the targets that take a millisecond or more each."""


def tried(target: str, data: bytes) -> str | None:
    """Run a target on one input; return how it failed, if it did."""
    try:
        with fuzzing.no_hang():
            fuzzing.watched(TARGETS[target])(data)
    except (Exception, fuzzing.HangError) as error:  # noqa: BLE001  whatever comes out is the finding
        return f"{target}: {type(error).__name__}: {str(error)[:200]} at {data[:200]!r}"
    return None


# --- every commit ----------------------------------------------------------------------------------------------------


def test_every_target_has_a_corpus_and_every_corpus_a_target() -> None:
    assert {path.name for path in fuzzing.CORPUS.iterdir()} == set(TARGETS)
    assert all(fuzzing.seeds(target) for target in TARGETS)
    assert all(len(seed) <= fuzzing.MOST_BYTES for target in TARGETS for seed in fuzzing.seeds(target))
    assert sum(len(seed) for target in TARGETS for seed in fuzzing.seeds(target)) < 160_000


@pytest.mark.parametrize("target", TARGETS)
def test_no_seed_and_no_mutation_of_one_breaks_a_promise(target: str, programme: Programme) -> None:
    started = time.monotonic()
    own = fuzzing.seeds(target)
    changed = fuzzing.mutations(own, TOKENS.get(target, ()), target)
    inputs = [*own, *islice(changed, _SLOW.get(target, MUTATIONS))]
    wrong = [failure for data in inputs if (failure := tried(target, data)) is not None]
    assert not wrong, f"{len(wrong)} of {len(inputs)}:\n" + "\n".join(wrong[:5])
    if not programme.nightly:
        seconds = round(time.monotonic() - started, 1)
        programme.report("fuzz", Figure(tried=len(inputs), unit="executions", seconds=seconds))


# --- long runs: what takes the square of a line's length takes hours for a line of a megabyte ------------------------

RUN_BYTES = 200_000
_RUNS = (b" ", b"9", b"a", b"[", b"{", b'"', b",", b"\\", b"_", b".", b"\xff", b"-", b"0 ", b"a,", b"x: ")
_BEFORE_A_VALUE = re.compile(rb"[:=\[{(,] *|\n|\Z")
_STRETCHED = (
    "any-log", "asd-events", "log-numbers", "config", "strict-json", "health-json", "safetensors-text",
)  # fmt: skip


def stretched(target: str) -> Iterator[bytes]:
    """Yield seeds with a long run of one thing where a value could stand."""
    chance = Random(target)  # noqa: S311  to be repeated, not to keep a secret
    own = fuzzing.seeds(target)
    if target == "any-log":
        own = [seed for other in TARGETS if other.startswith("log-") for seed in fuzzing.seeds(other)] + own
    while True:
        seed = chance.choice(own)
        place = chance.choice([match.end() for match in _BEFORE_A_VALUE.finditer(seed)])
        run = chance.choice(_RUNS)
        yield seed[:place] + run * (RUN_BYTES // len(run)) + chance.choice((b"", b"x", b"\n")) + seed[place:]


@pytest.mark.parametrize("target", _STRETCHED)
def test_a_long_run_of_anything_takes_no_more_than_its_length(target: str, programme: Programme) -> None:
    wrong = [
        failure
        for data in islice(stretched(target), 200 if programme.nightly else 8)
        if (failure := tried(target, data)) is not None
    ]
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:5])


def test_a_torn_line_of_a_million_digits_is_no_number_and_that_is_known_at_once() -> None:
    with fuzzing.no_hang(), pytest.raises(UnreadableError):
        number(b"9" * 1_000_000 + b"x")


@pytest.mark.parametrize("seed", ["call-0.pkl", "call-4.pkl", "method-2.pkl", "getattr-2.pkl", "getattr-4.pkl"])
def test_a_scan_that_finds_nothing_in_a_pickle_is_noticed(seed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = (fuzzing.CORPUS / "pickle" / seed).read_bytes()
    TARGETS["pickle"](content)
    monkeypatch.setattr(PickleReader, "names", lambda *_, **__: PickleNames())
    with pytest.raises(AssertionError):
        TARGETS["pickle"](content)


# --- the nightly run -------------------------------------------------------------------------------------------------


def test_guided_fuzzing_breaks_no_promise(programme: Programme, tmp_path: Path) -> None:
    if not programme.nightly:
        pytest.skip("guided fuzzing is a part of the nightly run")
    if not fuzzing.has_atheris():
        reason = "atheris is not installed (it has wheels for x86-64 alone): pip install 'ckpttool[fuzz]'"
        programme.report("fuzz", Figure(tried=0, unit="executions", seconds=0, note=reason))
        pytest.skip(reason)
    started = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = list(pool.map(lambda target: fuzzing.fuzz(target, SECONDS, tmp_path), TARGETS))
    wrong = [
        f"{run.target}: {run.crash.read_bytes()[:400]!r}\n{run.output[-3000:]}" if run.crash else run.output[-3000:]
        for run in runs
        if run.failed
    ]
    assert not wrong, f"{len(wrong)} of {len(runs)} targets:\n" + "\n\n".join(wrong[:5])
    assert all(run.executions > 0 for run in runs), [run.target for run in runs if not run.executions]
    note = f"{len(runs)} parsers, {SECONDS} s each, guided by up to {max(run.edges for run in runs):,} edges each"
    programme.report(
        "fuzz",
        Figure(
            tried=sum(run.executions for run in runs),
            unit="executions",
            seconds=round(time.monotonic() - started, 1),
            note=note,
        ),
    )


# --- what fuzzing itself must be able to see -------------------------------------------------------------------------


def test_the_plain_mutator_finds_a_bug_behind_three_conditions() -> None:
    own = [b'{"epoch_num": 1, "step_num": 20, "loss": 9.25}', b'["x", 99]']
    changed = fuzzing.mutations(own, (b"NaN",), "any")

    def fails(data: bytes) -> bool:
        try:
            planted(data)
        except LookupError:
            return True
        return False

    assert not any(map(fails, own))
    assert any(map(fails, islice(changed, 20_000)))


def test_guided_fuzzing_finds_it_from_nothing_and_keeps_the_input(programme: Programme, tmp_path: Path) -> None:
    if not (programme.nightly and fuzzing.has_atheris()):
        pytest.skip("needs the nightly run, and atheris")
    run = fuzzing.fuzz("planted", SECONDS, tmp_path)
    assert run.failed
    assert run.crash is not None
    with pytest.raises(LookupError, match="planted"):
        planted(run.crash.read_bytes())


def test_a_parser_that_runs_something_is_seen_even_where_it_swallows_the_error(tmp_path: Path) -> None:
    def unpickles(_: bytes) -> None:
        with suppress(AssertionError):
            os.system(f"touch {tmp_path}/ran")  # noqa: S605  what no parser may do

    with pytest.raises(AssertionError, match=r"os\.system"):
        fuzzing.watched(unpickles)(b"")
    assert not list(tmp_path.iterdir())


def test_a_parser_that_hangs_is_ended() -> None:
    with pytest.raises(fuzzing.HangError), fuzzing.no_hang(0.05):
        any(number < 0 for number in range(1 << 40))


def test_a_parser_that_waits_for_ever_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "WAIT_SECONDS", 0.05)
    with pytest.raises(fuzzing.HangError), fuzzing.no_hang():
        time.sleep(30)


def test_the_same_seed_gives_the_same_mutations() -> None:
    own = fuzzing.seeds("strict-json")
    one, other = (list(islice(fuzzing.mutations(own, (b"x",), "any"), 200)) for _ in range(2))
    assert one == other
    assert len(set(one)) > 150
