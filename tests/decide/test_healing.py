"""Which shard another one may be rebuilt from: proven to be a copy, and beyond doubt itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from ckpttool.decide.healing import find_donors, metadata_of
from ckpttool.domain.finding import Code, Finding, suspect
from ckpttool.domain.frozen import replace
from ckpttool.domain.healing import Donor, HealOrder, Place, SavedShards, Sick
from ckpttool.domain.replicas import Proof, RecordedSlices, TensorDigests, Trust
from ckpttool.domain.shard import FormatName, ShardRole
from ckpttool.domain.units import ByteCount, Rank
from ckpttool.domain.verdict import Level, ShardReport

GONE = Sick(rank=Rank(3), role=ShardRole.FULL, path="3", is_missing=True, findings=())


def held(rank: int, text: str = "ab", *, verified: bool = False, findings: tuple[Finding, ...] = ()) -> ShardReport:
    """A shard with a tensor for each letter of an alphabet, which hold the letters of a text."""
    digests = b"".join(letter.encode() * 8 for letter in text)
    return ShardReport(
        path=str(rank),
        rank=Rank(rank),
        role=ShardRole.FULL,
        level=Level.NUMERICS,
        format=FormatName.MINDSPORE_CKPT,
        stamp=None,
        scalars=(),
        schema_hash=str(len(text)),
        tensors=len(text),
        checksum_matched=verified,
        bytes_read=ByteCount(0),
        findings=findings,
        tensor_digests=TensorDigests(names=tuple("wxyz"[: len(text)]), digests=digests),
    )


def shards(**texts: str) -> dict[Place, ShardReport]:
    """Shards by rank: `r0="ab"`."""
    return {(Rank(int(rank[1:])), ShardRole.FULL): held(int(rank[1:]), text) for rank, text in texts.items()}


def at(name: str, **texts: str) -> SavedShards:
    return SavedShards(name=name, shards=shards(**texts))


EQUAL = (at("15_2", r0="cd", r1="cd", r3="cd"), at("10_2", r0="ef", r1="ef", r3="ef"))
"""Two other checkpoints at which ranks 0, 1 and 3 were equal, and changed between them."""


def answered(
    now: Mapping[Place, ShardReport],
    witnesses: Sequence[SavedShards] = EQUAL,
    recorded: RecordedSlices | None = None,
    order: HealOrder = HealOrder(),
) -> Donor | str:
    """The donor, or why there is none."""
    (found,) = find_donors([GONE], now, witnesses, recorded, order)
    if found.donor is not None:
        assert found.refusal is None
        return found.donor
    assert found.refusal is not None
    assert (found.refusal.code, found.refusal.ranks) == (Code.NO_DONOR, (3,))
    return found.refusal.message.removeprefix("no donor is proven: ")


def test_two_other_checkpoints_prove_a_copy_and_a_third_copy_speaks_for_it() -> None:
    donor = answered(shards(r0="ab", r1="ab"))
    assert donor == Donor(
        rank=Rank(0),
        path="0",
        proof=Proof.LEARNED,
        witnesses=("15_2", "10_2"),
        trust=Trust.COPY,
        agrees=Rank(1),
    )


def test_without_a_third_copy_sound_numbers_speak_for_a_donor() -> None:
    donor = answered(shards(r0="ab"))
    assert isinstance(donor, Donor)
    assert (donor.trust, donor.agrees) == (Trust.NUMERICS, None)


def test_a_donor_with_a_checksum_comes_first() -> None:
    now = {**shards(r0="ab"), (Rank(1), ShardRole.FULL): held(1, "ab", verified=True)}
    donor = answered(now)
    assert isinstance(donor, Donor)
    assert (donor.rank, donor.trust, donor.agrees) == (1, Trust.CHECKSUM, None)


def test_one_other_checkpoint_proves_nothing() -> None:
    assert answered(shards(r0="ab"), EQUAL[:1]) == "rank 0 was equal at 1 other checkpoint of the run"


def test_a_rank_that_differed_once_is_no_copy() -> None:
    witnesses = (*EQUAL, at("5_2", r0="gh", r3="gi"))
    assert answered(shards(r0="ab"), (witnesses[2], *EQUAL)) == "rank 0 differed in x at 5_2"


@pytest.mark.parametrize(
    "text",
    ["abc", ""],
)
def test_a_rank_that_held_other_tensors_is_no_copy(text: str) -> None:
    others = (at("15_2", r0=text, r3="cd"), *EQUAL[1:])
    assert answered(shards(r0="ab"), others) == "rank 0 held other tensors at 15_2"


def test_a_rank_that_held_tensors_of_other_shapes_is_no_copy() -> None:
    other = replace(held(0, "cd"), schema_hash="other shapes")
    witness = SavedShards(name="15_2", shards={**shards(r3="cd"), (Rank(0), ShardRole.FULL): other})
    assert answered(shards(r0="ab"), (witness, EQUAL[1])) == "rank 0 held tensors of other shapes at 15_2"


def test_a_tensor_that_never_changed_then_and_has_since_teaches_nothing() -> None:
    still = (at("15_2", r0="cd", r3="cd"), at("10_2", r0="ed", r3="ed"))
    assert answered(shards(r0="ab"), still) == "x did not change where rank 0 was equal, and has changed since"
    assert isinstance(answered(shards(r0="ad"), still), Donor)


def test_a_witness_that_is_in_doubt_itself_is_passed_over() -> None:
    odd = suspect(Code.NORM_JUMP, "jumps", path="0")
    doubted = SavedShards(
        name="15_2", shards={**shards(r3="cd"), (Rank(0), ShardRole.FULL): held(0, "cd", findings=(odd,))}
    )
    assert answered(shards(r0="ab"), (doubted, EQUAL[1])) == "rank 0 was equal at 1 other checkpoint of the run"


def test_a_donor_in_doubt_is_never_taken() -> None:
    odd = suspect(Code.NORM_JUMP, "the norm jumps", path="0")
    now = {(Rank(0), ShardRole.FULL): held(0, findings=(odd,))}
    assert answered(now) == "rank 0 is doubted itself: the norm jumps"


@pytest.mark.parametrize("known", [None, TensorDigests(names=("w",), digests=b"aaaaaaaa")])
def test_a_donor_that_could_not_be_read_whole_is_never_taken(known: TensorDigests | None) -> None:
    unread = replace(held(0), tensor_digests=known)
    assert answered({(Rank(0), ShardRole.FULL): unread}) == ("rank 0 tells nothing: its tensors could not all be read")
    witness = SavedShards(name="15_2", shards={**shards(r3="cd"), (Rank(0), ShardRole.FULL): unread})
    assert answered(shards(r0="ab"), (witness, EQUAL[1])) == "rank 0 was equal at 1 other checkpoint of the run"


def test_for_one_tensor_it_is_enough_that_this_one_was_equal() -> None:
    others = (at("15_2", r0="cX", r3="cd"), at("10_2", r0="eX", r3="ef"))
    one = HealOrder(tensor="w")
    assert answered(shards(r0="ab"), others) == "rank 0 differed in x at 15_2"
    assert isinstance(answered(shards(r0="ab"), others, order=one), Donor)
    assert answered(shards(r0="ab"), others, order=HealOrder(tensor="x")) == "rank 0 differed in x at 15_2"
    assert answered(shards(r0="ab"), others, order=HealOrder(tensor="v")) == "rank 0 tells nothing: it has no tensor v"
    slices = {"w": {Rank(0): 0, Rank(3): 0}, "x": {Rank(0): 0, Rank(3): 1}}
    record = RecordedSlices(source="metadata.json", slices=slices)
    assert isinstance(answered(shards(r0="ab"), (), record, one), Donor)
    assert answered(shards(r0="ab"), (), record) == "rank 0 holds another slice of x by metadata.json"


WITNESSES_OF_FOUR = tuple(
    at(name, **dict.fromkeys(("r0", "r1", "r2", "r3"), text)) for name, text in (("15_2", "cd"), ("10_2", "ef"))
)


def test_of_copies_that_differ_most_are_believed_and_of_two_none() -> None:
    donor = answered(shards(r0="aX", r1="ab", r2="ab"), WITNESSES_OF_FOUR)
    assert isinstance(donor, Donor)
    assert (donor.rank, donor.agrees) == (1, 2)
    assert answered(shards(r0="aX", r1="ab")) == (
        "ranks 0-1 hold the same slices and differ: which of them is right, nothing tells"
    )


def test_of_copies_that_differ_a_checksum_decides() -> None:
    now = {**shards(r0="aX", r1="aX", r2="ab"), (Rank(2), ShardRole.FULL): held(2, "ab", verified=True)}
    donor = answered(now, WITNESSES_OF_FOUR)
    assert isinstance(donor, Donor)
    assert (donor.rank, donor.trust) == (2, Trust.CHECKSUM)


def test_a_named_donor_must_be_proven_all_the_same() -> None:
    now = shards(r0="ab", r1="ab", r2="ab")
    donor = answered(now, order=HealOrder(donor=Rank(1)))
    assert isinstance(donor, Donor)
    assert donor.rank == 1
    assert answered(now, order=HealOrder(donor=Rank(2))) == "rank 2 was equal at 0 other checkpoints of the run"
    assert answered(now, order=HealOrder(donor=Rank(7))) == "rank 7 has no such shard"
    three = shards(r0="aX", r1="ab", r2="ab")
    assert answered(three, WITNESSES_OF_FOUR, order=HealOrder(donor=Rank(0))) == (
        "rank 0 differs from the other copies"
    )


def recorded(*names: str, slices: Sequence[int]) -> RecordedSlices:
    held_by = {Rank(rank): number for rank, number in enumerate(slices)}
    return RecordedSlices(source="metadata.json", slices=dict.fromkeys(names, held_by))


def test_a_record_proves_a_copy_without_any_other_checkpoint() -> None:
    donor = answered(shards(r0="ab", r1="ab"), (), recorded("w", "x", slices=[0, 1, 0, 1]))
    assert isinstance(donor, Donor)
    assert (donor.rank, donor.proof, donor.record) == (1, Proof.RECORDED, "metadata.json")


def test_what_a_record_says_of_other_slices_outweighs_equal_tensors() -> None:
    assert answered(shards(r0="ab"), EQUAL, recorded("w", "x", slices=[0, 1, 0, 1])) == (
        "rank 0 holds another slice of w by metadata.json"
    )


def test_of_tensors_that_a_record_does_not_name_other_checkpoints_tell() -> None:
    part = recorded("w", slices=[0, 0, 0, 0])
    assert answered(shards(r0="ab"), (), part) == "rank 0 was equal at 0 other checkpoints of the run"
    donor = answered(shards(r0="ab"), EQUAL, part)
    assert isinstance(donor, Donor)
    assert donor.proof is Proof.LEARNED


def test_reasons_are_told_of_three_ranks_and_counted_beyond() -> None:
    now = shards(r0="ab", r1="ab", r2="ab", r4="ab", r5="ab")
    why = answered(now, ())
    assert isinstance(why, str)
    assert why.count("was equal at 0 other checkpoints") == 3
    assert why.endswith("; and 2 other ranks")
    assert answered({}) == "no other rank has a shard of this kind"


@pytest.mark.parametrize(
    ("donor", "own_then", "donor_then", "expected"),
    [
        ("f=ms r=0", "r=3 f=ms", "f=ms r=0", "r=3 f=ms"),
        ("f=ms crc=7", "crc=5 f=ms", "f=ms crc=5", "crc=7 f=ms"),
        ("f=ms new=1", "f=ms", "f=ms", "f=ms new=1"),
        ("f=ms first=0", "f=ms", "f=ms first=0", "f=ms"),
        ("f=ms", "f=ms mine=3", "f=ms", "f=ms mine=3"),
        ("", "f=ms", "f=ms", "f=ms"),
    ],
)
def test_a_header_s_text_is_the_donor_s_but_for_what_each_rank_says_of_itself(
    donor: str, own_then: str, donor_then: str, expected: str
) -> None:
    def pairs(text: str) -> list[tuple[str, str]]:
        return [(name, value) for name, _, value in (word.partition("=") for word in text.split())]

    assert list(metadata_of(pairs(donor), pairs(own_then), pairs(donor_then))) == pairs(expected)
