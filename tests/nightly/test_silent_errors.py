"""A rank that computes wrongly among three: seen, named, and answered by all of them in the same step."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from ckpttool.guard.checks import ReplicaCheck
from ckpttool.guard.features import FeatureProbe
from tests.guard.faulty import flip
from tests.guard.rank_errors import CULPRIT, FAULTY_FROM, STEPS, WRONG_AT, Seen, guarded, hooked, small_model
from tests.guard.ranks import on_ranks

RANKS = 3  # of two, a reciprocal is exact and nobody is the odd one

pytestmark = pytest.mark.slow  # beside two ranks of tests/guard/test_ranks.py that share a start with others


class FailingProbe(FeatureProbe):
    """Raises in backward."""

    def _read_bucket(self, bucket: object) -> None:
        raise ZeroDivisionError(bucket)


def compared(_rank: int, *, spoils: int | None, fails: bool = False) -> Seen:
    """Flip a bit of a weight on one rank, and compare."""
    model = small_model()
    check = ReplicaCheck(model)
    with torch.no_grad():
        if _rank == spoils:
            flip(model.module[2].weight, (3, 4), 0)
    found = check.compare(None if fails and _rank == 0 else check.hashes())
    return {"found": None if found is None else (found.parameters, found.count, found.ranks)}


CASES = {
    "plain": partial(hooked, probe_of=None),
    "hooked": partial(hooked, probe_of=FeatureProbe),
    "failing": partial(hooked, probe_of=FailingProbe),
    "plain in views": partial(hooked, probe_of=None, views=True),
    "hooked in views": partial(hooked, probe_of=FeatureProbe, views=True),
    "culprit": partial(hooked, probe_of=FeatureProbe, wrong=1e9, steps=WRONG_AT + 1),
    "culprit behind another hook": partial(hooked, probe_of=FeatureProbe, other=True, wrong=1e9, steps=WRONG_AT),
    "nan": partial(hooked, probe_of=FeatureProbe, wrong=math.nan, steps=WRONG_AT),
    "equal weights": partial(compared, spoils=None),
    "a flipped weight": partial(compared, spoils=2),
    "no hashes": partial(compared, spoils=2, fails=True),
    "warns": partial(guarded, replica_every=10),
    "stops": partial(guarded, replica_every=0, on_abnormal="stop"),
    "patrols": partial(guarded, replica_every=0, patrol=4),
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Seen]]:
    return on_ranks(RANKS, CASES, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize(
    ("plain", "ours"), [("plain", "hooked"), ("plain", "failing"), ("plain in views", "hooked in views")]
)
def test_the_hook_changes_no_bit_of_a_training_not_even_where_it_fails(
    seen: dict[str, list[Seen]], plain: str, ours: str
) -> None:
    expected = seen[plain][0]["weights"]
    assert [found["weights"] for found in seen[plain]] == [expected] * RANKS
    assert [found["weights"] for found in seen[ours]] == [expected] * RANKS


def test_of_three_ranks_the_one_with_the_wrong_gradient_is_seen_and_no_other(seen: dict[str, list[Seen]]) -> None:
    for rank, found in enumerate(seen["culprit"]):
        if rank == CULPRIT:
            assert found["events"][0] == ("sdc-event", WRONG_AT, CULPRIT)
            assert {event[1:] for event in found["events"] if event[0].startswith("sdc")} == {(WRONG_AT, CULPRIT)}
        else:
            assert found["events"] == []
    assert [found["events"] for found in seen["hooked"]] == [[]] * RANKS


def test_behind_another_hook_all_see_the_same_and_name_nobody(seen: dict[str, list[Seen]]) -> None:
    for found in seen["culprit behind another hook"]:
        assert found["knows"] == (False, None)
        assert found["events"][0] == ("sdc-event", WRONG_AT, None)
    # In views of its buckets torch divides what is accumulated, and multiplies else: for three ranks other bits.
    assert [found["knows"] for found in seen["hooked in views"]] == [(False, None)] * RANKS
    assert [found["knows"] for found in seen["hooked"]] == [(True, 0), (True, 1), (True, 2)]


def test_whose_gradients_were_not_finite_is_known_after_the_reduction(seen: dict[str, list[Seen]]) -> None:
    assert [found["not_finite"] for found in seen["nan"]] == [[], [WRONG_AT], []]
    assert [found["not_finite"] for found in seen["hooked"]] == [[], [], []]


def test_what_fails_in_backward_is_raised_where_it_can_be_contained(seen: dict[str, list[Seen]]) -> None:
    assert [found["errors"] for found in seen["failing"]] == [STEPS] * RANKS


def test_a_flipped_bit_of_a_weight_is_found_by_all_ranks_and_the_odd_one_is_named(seen: dict[str, list[Seen]]) -> None:
    assert [found["found"] for found in seen["a flipped weight"]] == [(("2.weight",), 1, (2,))] * RANKS
    assert [found["found"] for found in seen["equal weights"]] == [None] * RANKS
    assert [found["found"] for found in seen["no hashes"]] == [None] * RANKS


def test_a_guard_compares_weights_now_and_then(seen: dict[str, list[Seen]]) -> None:
    for found in seen["warns"]:
        told = [
            event for event in zip(found["told"], found["values"], strict=True) if event[0][0] == "replicas-disagree"
        ]
        assert [event for event, _ in told] == [("replicas-disagree", 10)]
        assert told[0][1]["parameters"] == ["0.weight"]
        assert told[0][1]["ranks"] == [CULPRIT]
        assert told[0][1]["message"] == "weights differ from rank to rank: different on rank 1, in 0.weight"
    assert all("replicas-disagree" not in dict(found["told"]) for found in seen["stops"])


def test_a_strike_of_one_rank_starts_the_checksum_on_all_in_the_same_step(seen: dict[str, list[Seen]]) -> None:
    for rank, found in enumerate(seen["warns"]):
        assert found["checked"] == [14, 15, 16, 17]
        assert [event for event in found["told"] if event[0] == "checksum-on"] == [("checksum-on", 13)]
        strikes = [event for event in found["told"] if event[0] == "sdc-strike"]
        assert strikes == ([("sdc-strike", WRONG_AT)] if rank == CULPRIT else [])


def test_a_wrong_product_is_told_by_its_rank_alone_and_all_go_on_unless_they_were_told_to_stop(
    seen: dict[str, list[Seen]],
) -> None:
    for rank, found in enumerate(seen["warns"]):
        wrong = {step for kind, step in found["told"] if kind == "checksum-abnormal"}
        assert wrong == ({15, 16, 17} if rank == CULPRIT else set())
        assert found["stopped"] is None
    for found in seen["stops"]:
        step, message = found["stopped"]
        assert step == FAULTY_FROM
        assert "a matrix product was wrong" in message


def test_on_patrol_whole_steps_are_checked_before_any_strike(seen: dict[str, list[Seen]]) -> None:
    for found in seen["patrols"]:
        assert found["checked"] == [4, 8, 12, 14, 15, 16, 17]
