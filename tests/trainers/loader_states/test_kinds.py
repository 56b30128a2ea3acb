"""The position in states that real loaders saved is where real loaders continue."""

from __future__ import annotations

import json
import pickle
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.decide.loader_positions import described
from ckpttool.core.domain.loader_state import LoaderState
from ckpttool.core.formats.torch.pickle_objects import Made
from ckpttool.core.formats.torch.plain import plain_values, value_at
from ckpttool.core.storage import open_storage
from ckpttool.trainers.loader_states import KINDS, recognized, states_in, unknown_kind
from ckpttool.trainers.loader_states.files import loader_files, loaders_in, pickled_loader
from tests.conftest import FIXTURES

STATES = FIXTURES / "loader_states"
SIZE = 2
"""Rows per batch in all of these states."""


@cache
def truths() -> dict[str, dict[str, Any]]:
    """What is true of each state, by its file."""
    told: dict[str, dict[str, Any]] = json.loads((STATES / "truth.json").read_text())
    return told


def state_in(name: str) -> LoaderState:
    (loader,) = loaders_in(open_storage(str(STATES)), f"{name}.pt")
    assert loader.state is not None
    return loader.state


def values_in(name: str) -> object:
    with open_storage(str(STATES)).open(f"{name}.pt") as source:
        return plain_values(source)


@pytest.mark.parametrize("name", truths())
def test_a_state_shows_what_its_loader_had_read(name: str) -> None:
    state, truth = state_in(name), truths()[name]
    if state.kind == "datasets":
        assert state.samples == truth["read"]  # without a loader, each row is alone
    elif state.batches is None:
        assert state.samples == SIZE * truth["read"]
    else:
        assert state.batches == truth["read"]
        assert state.samples in {SIZE * state.batches, None}


@pytest.mark.parametrize("name", [name for name, truth in truths().items() if truth["next"] != truth["resumed"]])
def test_a_loader_continues_elsewhere_only_after_its_epoch_or_without_its_shuffle_buffer(name: str) -> None:
    assert state_in(name).finished or name == "datasets/shuffle_buffer"


@pytest.mark.parametrize("name", truths())
def test_a_finished_loader_that_yields_nothing_is_known_and_no_other_is(name: str) -> None:
    state, truth = state_in(name), truths()[name]
    assert (state.yields_nothing is not None) == bool(state.finished and not truth["batches_left"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("torchdata/in_order", "5 batches, 10 samples"),
        ("torchdata/workers_every_3", "5 batches"),
        ("torchdata/finished", "12 batches, 24 samples, at its end"),
        ("datasets/rows", "epoch 0, 5 samples"),
        ("datasets/loader", "epoch 0, 3 batches, 6 samples"),
        ("mosaic/streaming", "epoch 0, 10 samples"),
        ("energon/savable_workers", "5 batches in total, 10 samples in total"),
    ],
)
def test_a_position_is_described_in_its_loaders_terms(name: str, text: str) -> None:
    assert described(state_in(name)) == text


def test_a_state_without_any_number_is_unknown() -> None:
    assert described(LoaderState(kind="torchdata")) == "position unknown"


@pytest.mark.parametrize(
    ("name", "workers"),
    [("torchdata/in_order", 0), ("torchdata/workers", 2), ("energon/savable", 0), ("energon/savable_workers", 2)],
)
def test_the_processes_of_a_loader_are_counted(name: str, workers: int) -> None:
    assert state_in(name).workers == workers


def test_a_finished_loader_with_one_process_begins_its_next_epoch() -> None:
    state = values_in("datasets/loader_workers_finished")
    assert isinstance(state, dict)
    del state["_snapshot"]["_worker_snapshots"]["worker_1"]
    found = recognized(state)
    assert found is not None
    assert (found.finished, found.yields_nothing) == (True, None)


def test_batches_since_a_process_s_checkpoint_count_as_well() -> None:
    state = values_in("energon/savable_workers")
    first = value_at(state, "dataloader_state_dict", "worker_states", 0)
    assert isinstance(first, Made)
    assert isinstance(first.state, tuple)
    slots = first.state[1]
    slots["offset"] = 4
    assert state_of(state).batches == truths()["energon/savable_workers"]["read"] + 4
    slots["state"] = None
    assert state_of(state).batches == 2 + 4  # the other process has yielded two


def test_ranks_must_agree_only_on_what_all_read_in_step() -> None:
    assert state_in("torchdata/rank_1_of_2").is_lockstep
    assert not state_in("datasets/loader").is_lockstep
    assert not state_in("datasets/loader_workers").is_lockstep


class TestOtherSpellings:
    def test_a_data_set_of_torchtitan_counts_documents_or_has_that_of_datasets_inside(self) -> None:
        loader: dict[str, Any] = {"_num_yielded": 3, "_iterator_finished": False, "fetcher_state": {}}
        own = recognized({**loader, "dataset_state": {"sample_idx": 7, "token_buffer": [1, 2]}})
        assert own is not None
        assert (own.kind, described(own), own.order) == (
            "torchdata with torchtitan's data set",
            "3 batches, document 7",
            (),
        )
        passes = recognized({**loader, "dataset_state": {"sample_idx": 7, "epoch": 2, "inputs_buffer": []}})
        assert passes is not None
        assert (passes.order, passes.is_strict) == ((2, 7), False)
        inner = recognized({**loader, "dataset_state": {"token_buffer": [], "data": values_in("datasets/rows")}})
        assert inner is not None
        assert (inner.epoch, inner.order, inner.never_moved) == (0, (), False)

    def test_an_older_data_set_has_a_shard_and_a_row(self) -> None:
        state = recognized({"examples_iterable": {"shard_idx": 2, "shard_example_idx": 9}, "epoch": 1})
        assert state is not None
        assert (described(state), state.order) == ("epoch 1, shard 2, row 9", ())
        state = recognized({"examples_iterable": {"shard_idx": 0, "shard_example_idx": 9, "type": "ExamplesIterable"}})
        assert state is not None
        assert state.samples == 9
        state = recognized({"examples_iterable": {"ex_iterable_idx": 1, "ex_iterables": [{}, {}]}})
        assert state is not None
        assert state.place == "2 sources"

    def test_a_data_set_that_never_moved_is_known_by_all_of_its_counters(self) -> None:
        still = {"shard_idx": 0, "shard_example_idx": 0, "type": "ArrowExamplesIterable"}
        assert state_of({"examples_iterable": still, "epoch": 0}).never_moved
        several = {"examples_iterable": {"previous_states": [still, {**still, "shard_example_idx": 1}]}}
        assert not state_of(several).never_moved
        assert state_of({"examples_iterable": {"previous_states": [still, None]}}).never_moved

    def test_a_snapshot_from_before_the_first_batch_says_nothing_about_the_data_set(self) -> None:
        still = {"examples_iterable": {"shard_idx": 0, "shard_example_idx": 0}, "epoch": 0}
        snapshot = {"_snapshot_step": 0, "_worker_snapshots": {"worker_0": {"dataset_state": still}}}
        state = state_of({"_snapshot": snapshot, "_steps_since_snapshot": 3})
        assert (state.batches, state.never_moved) == (3, False)
        state = state_of({"_snapshot": {**snapshot, "_snapshot_step": 3}, "_steps_since_snapshot": 0})
        assert (state.batches, state.never_moved) == (3, True)

    def test_a_streaming_state_without_samples_may_be_the_start_or_the_end_of_its_epoch(self) -> None:
        own = {"epoch": 0, "num_canonical_nodes": 1, "shuffle_seed": 9}
        assert state_of({**own, "sample_in_epoch": 0}).order == ()
        assert state_of({**own, "sample_in_epoch": 8}).order == (0, 8)

    def test_olmo_core_counts_epochs_and_batches_of_a_data_set(self) -> None:
        state = state_of({"epoch": 2, "batches_processed": 3, "seed": 1, "dataset_fingerprint": "a"})
        other = state_of({"epoch": 2, "batches_processed": 3, "seed": 1, "dataset_fingerprint": "b"})
        assert (state.order, state.is_strict, state.identity == other.identity) == ((2, 3), True, False)


def state_of(values: object) -> LoaderState:
    state = recognized(values)
    assert state is not None
    return state


class TestStatesOfNoKind:
    def test_they_are_described_by_their_keys_and_no_position_is_guessed(self) -> None:
        assert recognized({"sample_in_epoch": 3}) is None
        assert recognized({"epoch": 1, "batches_processed": 10}) is None  # a script's own progress
        assert recognized({"epoch": 1, "sample_idx": 10}) is None
        assert unknown_kind({"b": 1, "a": 2}) == "unknown kind: keys a, b"
        assert unknown_kind(dict.fromkeys("abcdefgh")) == "unknown kind: keys a, b, c, d, e, f, …"
        assert unknown_kind({"x" * 1000: 1}) == f"unknown kind: keys {'x' * 40}"
        assert unknown_kind({}) == "unknown kind: no keys"
        assert unknown_kind([1]) == "unknown kind: not a dictionary"
        assert unknown_kind(None) == "unknown kind: empty"

    def test_an_object_is_named_by_its_class(self, tmp_path: Path) -> None:
        (tmp_path / "a.pkl").write_bytes(pickle.dumps(Path))
        loader = pickled_loader(pickle.dumps(random.Random(1)), path="a", key="k", rank=None)  # noqa: S311  any object
        assert loader.problem is not None
        assert loader.problem.startswith(("unknown kind: an object of random.Random", "would run code"))


class TestHostileStates:
    @pytest.mark.parametrize("count", [-1, 10**30, True, "5", None, 5.0, [5]])
    def test_a_count_that_no_loader_writes_is_unknown(self, count: object) -> None:
        state = state_of({"_num_yielded": count, "_iterator_finished": False})
        assert state.batches is None
        assert state_of({"epoch": count, "sample_in_epoch": 1, "num_canonical_nodes": 1, "shuffle_seed": 1}).order == ()

    def test_a_state_that_contains_itself_ends(self) -> None:
        endless: dict[str, Any] = {"epoch": 0}
        endless["examples_iterable"] = endless
        assert state_of(endless).place is None
        endless["previous_states"] = [endless] * 1000
        assert state_of({"examples_iterable": {**endless, "shard_idx": 0}}).never_moved is False
        assert list(states_in({"a": endless}))

    def test_a_search_through_a_large_file_ends(self) -> None:
        wide: dict[int, object] = {number: {"x": {}} for number in range(50_000)}
        assert list(states_in({"model": wide, "dataloader": {"_num_yielded": 1, "_iterator_finished": False}}))

    def test_the_tensors_of_a_large_model_do_not_end_the_search(self) -> None:
        model = dict.fromkeys(map(str, range(20_000)), 1.0)
        state = {"_num_yielded": 1, "_iterator_finished": False}
        assert [key for key, _ in states_in({"model": model, "z": {"loader": state}})] == ["z.loader"]

    def test_code_in_a_pickle_inside_a_value_is_named_and_not_run(self, tmp_path: Path) -> None:
        class Bomb:
            def __reduce__(self) -> tuple[object, tuple[str]]:
                import os

                return os.system, (f"touch {tmp_path}/ran",)

        data = pickle.dumps({"_num_yielded": 3, "_iterator_finished": False, "dataset_state": Bomb()})
        loader = pickled_loader(data, path="a", key="dataloader.dp_rank_0", rank=None)
        assert loader.is_unsafe
        assert "system" in (loader.problem or "")
        assert loader.state is None
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize("data", [b"", b"\x80\x04", b"junk", pickle.dumps({"a": 1})[:-1]])
    def test_a_pickle_that_is_cut_is_no_state(self, data: bytes) -> None:
        assert pickled_loader(data, path="a", key="k", rank=None).problem == "not a complete pickle"

    def test_changed_states_never_raise(self) -> None:
        rng = random.Random(7)  # noqa: S311  no secret
        states = [values_in(name) for name in truths()]
        strange: list[object] = [None, -1, 10**40, "x", [], {}, True, b"", 1.5, [None], {"a": None}]
        for state in states:
            for _ in range(60):
                changed = mutated(state, rng, strange)
                for _, found in states_in(changed):
                    assert described(found)
                unknown_kind(changed)

    @pytest.mark.parametrize("name", ["torchdata/workers", "datasets/loader_workers", "energon/savable"])
    def test_files_with_flipped_bits_never_raise(self, name: str, tmp_path: Path) -> None:
        content, rng = (STATES / f"{name}.pt").read_bytes(), random.Random(3)  # noqa: S311  no secret
        for _ in range(60):
            changed = bytearray(content)
            changed[rng.randrange(min(len(changed), 1500))] ^= 1 << rng.randrange(8)
            (tmp_path / "a.pt").write_bytes(changed)
            for loader in loaders_in(open_storage(str(tmp_path)), "a.pt"):
                assert loader.state is not None
                described(loader.state)


def mutated(value: object, rng: random.Random, strange: list[object]) -> object:
    """Return a copy in which some values and some keys differ."""
    if rng.random() < 0.06:
        return rng.choice(strange)
    if isinstance(value, dict):
        kept = {key: mutated(inner, rng, strange) for key, inner in value.items() if rng.random() > 0.04}
        return {**kept, **({"shard_idx": rng.choice(strange)} if rng.random() < 0.05 else {})}
    if isinstance(value, list):
        return [mutated(inner, rng, strange) for inner in value]
    return value


def test_each_kind_reads_a_state_of_its_own() -> None:
    assert len(KINDS) == len({kind.partition(":")[0] for kind in KINDS}) == 6


def test_of_more_loaders_than_are_read_one_is_shown_with_the_number_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ckpttool.trainers.loader_states.files.MOST_LOADERS", 2)
    found = loader_files(open_storage(str(STATES)), [(f"{name}.pt", None) for name in list(truths())[:5]])
    assert [loader.problem for loader in found] == [None, None, "not read, like 2 others: ckpttool reads 2 per save"]
