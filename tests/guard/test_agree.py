"""Eight whole numbers in which the largest says it all."""

from __future__ import annotations

import math
import struct
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.guard.agree import Agreement, Ranks, Vote
from ckpttool.guard.model.guarding import Action, Proposal

ALONE = Ranks(None, torch.device("cpu"))

norms = st.floats(min_value=0) | st.just(math.nan)
proposals = st.builds(
    lambda action, norm, finite: Proposal(action=action, norm=norm, is_finite=finite and math.isfinite(norm)),
    st.sampled_from(Action),
    norms,
    st.booleans(),
)
votes = st.builds(
    lambda proposal, failed, strike, abnormal: Vote(proposal=proposal, failed=failed, strike=strike, abnormal=abnormal),
    st.none() | proposals,
    st.integers(0, 9),
    st.booleans(),
    st.booleans(),
)


def agreed(*cast: Vote) -> Agreement:
    """Agree as that many ranks would, one after the other."""
    told: list[torch.Tensor] = []

    def gather(numbers: torch.Tensor, **_: object) -> None:
        told.append(numbers.clone())
        numbers.copy_(torch.stack(told).amax(dim=0))

    with (
        patch.object(Ranks, "count", len(cast) + 1),
        patch.object(dist, "get_backend_config", lambda _: "cpu:gloo"),
        patch.object(dist, "all_reduce", gather),
    ):
        return [ALONE.agree(vote) for vote in cast][-1]


@given(st.lists(votes, min_size=1, max_size=4))
def test_all_ranks_agree_on_the_largest_action_and_norm_and_are_finite_only_together(cast: list[Vote]) -> None:
    result = agreed(*cast)
    known = [vote.proposal for vote in cast if vote.proposal is not None]
    assert (result.proposal is None) == (not known)
    assert result.failed == max(vote.failed for vote in cast)
    assert result.strike == any(vote.strike for vote in cast)
    assert result.abnormal == any(vote.abnormal for vote in cast)
    if result.proposal is None:
        assert not result.norms_differ
        return
    assert result.proposal.action == max(proposal.action for proposal in known)
    assert result.proposal.is_finite == all(proposal.is_finite for proposal in known)
    words = {"nan" if math.isnan(proposal.norm) else proposal.norm for proposal in known}
    assert result.norms_differ == (len(words) > 1)
    if "nan" in words:
        assert math.isnan(result.proposal.norm)
    else:
        assert result.proposal.norm == max(proposal.norm for proposal in known)


@pytest.mark.parametrize("bits", [0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x7FFFFFFFFFFFFFFF])
def test_a_nan_is_a_nan_however_a_device_spells_it(bits: int) -> None:
    spelled = struct.unpack("<d", struct.pack("<Q", bits))[0]
    pair = [Vote(proposal=Proposal(action=Action.SKIP, norm=norm, is_finite=False)) for norm in (math.nan, spelled)]
    assert not agreed(*pair).norms_differ


def test_one_bit_of_a_norm_is_a_difference() -> None:
    pair = [
        Vote(proposal=Proposal(action=Action.APPLY, norm=norm, is_finite=True)) for norm in (1.0, math.nextafter(1, 2))
    ]
    assert agreed(*pair).norms_differ


def test_without_process_groups_there_is_one_process_and_it_is_the_first() -> None:
    assert (ALONE.count, ALONE.world, ALONE.own) == (1, 1, 0)


@given(votes)
def test_a_single_rank_agrees_with_itself(vote: Vote) -> None:
    result = ALONE.agree(vote)
    assert not result.norms_differ
    assert repr(result.proposal) == repr(vote.proposal).replace("-nan", "nan")


@given(votes)
def test_one_rank_alone_agrees_with_itself_as_if_its_vote_went_through_the_numbers(vote: Vote) -> None:
    assert repr(ALONE.agree(vote)) == repr(agreed(vote))
