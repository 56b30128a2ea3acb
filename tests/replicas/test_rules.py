"""Which shard another one may be rebuilt from: proven to be a copy, and beyond doubt itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Content, StepSource, Topology
from ckpttool.core.domain.finding import Code, Finding, damage, note, suspect
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.plan import NoResumePoint, Rejection, ResumePoint
from ckpttool.core.domain.replicas import Proof, RecordedSlices, TensorDigests, Trust
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import FileStamp, FormatName, Shard, ShardRole
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.domain.verdict import Level, ShardReport, VerdictWord
from ckpttool.replicas.advice import heal_advice, is_about_shards, with_healing
from ckpttool.replicas.findings import ReplicasCode
from ckpttool.replicas.model import Donor, Healing, HealOrder, Place, SavedShards, Sealed, ShardHealing, Target
from ckpttool.replicas.rules import (
    contradicted,
    find_donors,
    is_held_back_by,
    metadata_of,
    with_shards,
)
from ckpttool.trainers.mindformers.findings import MindFormersCode
from tests.support.verifying import report

GONE = Target(rank=Rank(3), role=ShardRole.FULL, path="3", is_missing=True, findings=())


def held(rank: int, text: str = "ab", *, verified: bool = False, findings: tuple[Finding, ...] = ()) -> ShardReport:
    """A shard with a tensor for each letter of an alphabet, which hold the letters of a text."""
    digests = b"".join(letter.encode() * 8 for letter in text)
    whole = report(rank, schema=str(len(text)), tensors=len(text), matched=verified, findings=findings)
    tensors = TensorDigests(names=tuple("wxyz"[: len(text)]), digests=digests)
    return replace(whole, path=str(rank), stamp=None, tensor_digests=tensors)


def shards(**texts: str) -> dict[Place, ShardReport]:
    """Shards by rank: `r0="ab"`."""
    return {(Rank(int(rank[1:])), ShardRole.FULL): held(int(rank[1:]), text) for rank, text in texts.items()}


def at(name: str, **texts: str) -> SavedShards:
    return of_run(shards(**texts), name)


def of_run(held_there: Mapping[Place, ShardReport], name: str = "15_2") -> SavedShards:
    """Another checkpoint of the same run."""
    return SavedShards(name=name, step=Step(30), same_run=True, shards=held_there)


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
    assert (found.refusal.code, found.refusal.ranks) == (ReplicasCode.NO_DONOR, (3,))
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


EARLIER = replace(EQUAL[1], name="7_2", same_run=False)
"""A checkpoint of another start at which they were equal, too."""


def test_beside_one_of_the_same_run_a_checkpoint_of_another_start_is_the_second_proof() -> None:
    donor = answered(shards(r0="ab", r1="ab"), (EQUAL[0], EARLIER))
    assert isinstance(donor, Donor)
    assert (donor.rank, donor.proof, donor.witnesses) == (0, Proof.LEARNED, ("15_2", "7_2"))
    another = replace(EARLIER, name="5_2")
    assert answered(shards(r0="ab"), (EARLIER, another)) == "rank 0 was equal at 0 other checkpoints of the run"


def test_another_start_in_which_they_differed_shows_that_ranks_changed_places() -> None:
    parted = replace(at("7_2", r0="ef", r1="ef", r3="eX"), same_run=False)
    assert str(answered(shards(r0="ab", r1="ab"), (EQUAL[0], parted, EARLIER))).startswith(
        "rank 0 differed in x at 7_2"
    )
    shapes = {place: replace(report, schema_hash="other") for place, report in shards(r0="eg", r3="ef").items()}
    other = replace(of_run(shapes, "7_2"), same_run=False)
    assert isinstance(answered(shards(r0="ab"), (EQUAL[0], other, EARLIER)), Donor)


def test_another_start_proves_nothing_where_other_ranks_were_equal_then_than_are_now() -> None:
    now = shards(r0="ab", r1="gh")
    assert str(answered(now, (EQUAL[0], EARLIER))).startswith("ranks 0-1 were equal at 1 other checkpoint of the run")
    kept = at("15_2", r0="cd", r1="gh", r3="cd")
    assert str(answered(now, (kept, EARLIER))).startswith("rank 0 was equal at 1 other checkpoint of the run")
    told = replace(at("7_2", r0="ef", r1="gi", r3="ef"), same_run=False)
    assert isinstance(answered(now, (kept, told)), Donor)


def test_from_before_the_first_step_a_checkpoint_is_no_witness_beside_another_start_s() -> None:
    begun = replace(EQUAL[0], step=Step(0))
    assert answered(shards(r0="ab"), (begun, EARLIER)) == "rank 0 was equal at 1 other checkpoint of the run"
    assert isinstance(answered(shards(r0="ab"), (begun, EQUAL[1])), Donor)


@pytest.mark.parametrize(
    ("own", "others", "order", "is_proven"),
    [
        ("abX", ("abc", "abc"), HealOrder(), True),
        ("abX", ("abc", "abc"), HealOrder(tensor="y"), True),
        ("aXX", ("abc", "abc"), HealOrder(), False),  # more differs than changed together
        ("aeX", ("aec", "aec"), HealOrder(), False),  # so it does where one tensor never changed
        ("abXz", ("abc", "abc"), HealOrder(), False),  # another schema
        ("abX", ("abc",), HealOrder(), False),  # as many are damaged as are whole: nobody else could tell
        ("abX", ("abc", "abz"), HealOrder(), False),  # one that was equal then is another now
    ],
)
def test_what_is_whole_of_a_damaged_file_proves_a_copy_where_it_changed_as_the_donor_s(
    own: str, others: Sequence[str], order: HealOrder, is_proven: bool
) -> None:
    target = replace(GONE, is_missing=False)
    now = shards(r3=own, **{f"r{rank}": text for rank, text in enumerate(others)})
    then = at("15_2", **dict.fromkeys(("r0", "r1", "r3"), "def"))
    (found,) = find_donors([target], now, [then], None, order)
    assert (found.donor is not None) is is_proven
    if found.donor is not None:
        assert (found.donor.rank, found.donor.witnesses, found.donor.rest_agrees) == (0, ("15_2",), True)


def test_of_a_damaged_file_that_could_not_all_be_read_nothing_is_taken_for_proof() -> None:
    target = replace(GONE, is_missing=False)
    part = replace(held(3, "ab"), tensors=3)
    now = {**shards(r0="ab", r1="ab"), (Rank(3), ShardRole.FULL): part}
    (found,) = find_donors([target], now, EQUAL[:1], None, HealOrder())
    assert found.donor is None


def test_a_rank_that_differed_once_is_no_copy() -> None:
    witnesses = (*EQUAL, at("5_2", r0="gh", r3="gi"))
    assert answered(shards(r0="ab"), (witnesses[2], *EQUAL)) == "rank 0 differed in x at 5_2"


@pytest.mark.parametrize(
    "text",
    ["abc", ""],
)
def test_a_rank_that_held_other_tensors_is_no_copy(text: str) -> None:
    others = (at("15_2", r0=text, r3="cd"), *EQUAL[1:])
    assert answered(shards(r0="ab"), others) == "rank 0 had other tensors at 15_2"


def test_a_rank_that_held_tensors_of_other_shapes_is_no_copy() -> None:
    other = replace(held(0, "cd"), schema_hash="other shapes")
    witness = of_run({**shards(r3="cd"), (Rank(0), ShardRole.FULL): other})
    assert answered(shards(r0="ab"), (witness, EQUAL[1])) == "rank 0 had tensors of other shapes at 15_2"


def test_a_tensor_that_never_changed_then_and_has_since_teaches_nothing() -> None:
    still = (at("15_2", r0="cd", r3="cd"), at("10_2", r0="ed", r3="ed"))
    assert (
        answered(shards(r0="ab"), still)
        == "x was constant while rank 0 was equal, which proves nothing; it has changed since"
    )
    assert isinstance(answered(shards(r0="ad"), still), Donor)


def test_a_witness_that_is_in_doubt_itself_is_passed_over() -> None:
    odd = suspect(Code.NORM_JUMP, "jumps", path="0")
    doubted = of_run({**shards(r3="cd"), (Rank(0), ShardRole.FULL): held(0, "cd", findings=(odd,))})
    assert answered(shards(r0="ab"), (doubted, EQUAL[1])) == "rank 0 was equal at 1 other checkpoint of the run"


def test_a_donor_in_doubt_is_never_taken() -> None:
    odd = suspect(Code.NORM_JUMP, "the norm jumps", path="0")
    now = {(Rank(0), ShardRole.FULL): held(0, findings=(odd,))}
    assert answered(now) == "rank 0 is also suspect: the norm jumps"


@pytest.mark.parametrize("known", [None, TensorDigests(names=("w",), digests=b"aaaaaaaa")])
def test_a_donor_that_could_not_be_read_whole_is_never_taken(known: TensorDigests | None) -> None:
    unread = replace(held(0), tensor_digests=known)
    assert answered({(Rank(0), ShardRole.FULL): unread}) == (
        "rank 0 cannot be compared: not all of its tensors could be read"
    )
    witness = of_run({**shards(r3="cd"), (Rank(0), ShardRole.FULL): unread})
    assert answered(shards(r0="ab"), (witness, EQUAL[1])) == "rank 0 was equal at 1 other checkpoint of the run"


def test_for_one_tensor_it_is_enough_that_this_one_was_equal() -> None:
    others = (at("15_2", r0="cX", r3="cd"), at("10_2", r0="eX", r3="ef"))
    one = HealOrder(tensor="w")
    assert answered(shards(r0="ab"), others) == "rank 0 differed in x at 15_2"
    assert isinstance(answered(shards(r0="ab"), others, order=one), Donor)
    assert answered(shards(r0="ab"), others, order=HealOrder(tensor="x")) == "rank 0 differed in x at 15_2"
    assert (
        answered(shards(r0="ab"), others, order=HealOrder(tensor="v"))
        == "rank 0 cannot be compared: it has no tensor v"
    )
    slices = {"w": {Rank(0): 0, Rank(3): 0}, "x": {Rank(0): 0, Rank(3): 1}}
    record = RecordedSlices(source="metadata.json", slices=slices)
    assert isinstance(answered(shards(r0="ab"), (), record, one), Donor)
    assert answered(shards(r0="ab"), (), record) == "rank 0 has another slice of x according to metadata.json"


WITNESSES_OF_FIVE = tuple(
    at(name, **dict.fromkeys(("r0", "r1", "r2", "r3", "r4"), text)) for name, text in (("15_2", "cd"), ("10_2", "ef"))
)


def test_of_copies_that_differ_most_are_believed_and_of_two_none() -> None:
    donor = answered(shards(r0="aX", r1="ab", r2="ab", r4="ab"), WITNESSES_OF_FIVE)
    assert isinstance(donor, Donor)
    assert (donor.rank, donor.agrees) == (1, 2)
    for texts in ({"r0": "aX", "r1": "ab", "r2": "ab"}, {"r0": "aX", "r1": "aX", "r2": "ab", "r4": "ab"}):
        assert str(answered(shards(**texts), WITNESSES_OF_FIVE)).endswith("there is no evidence which of them is right")
    assert answered(shards(r0="aX", r1="ab")) == (
        "ranks 0-1 have the same slices but differ: there is no evidence which of them is right"
    )


def test_two_that_agree_are_believed_if_the_third_copy_is_the_only_other_one() -> None:
    odd = suspect(Code.REPLICA_DIFFERS, "differs")
    target = Target(rank=Rank(0), role=ShardRole.FULL, path="0", is_missing=False, findings=(odd,))
    now = {**shards(r1="ab", r2="ab"), target.place: held(0, "aX", findings=(odd,))}
    three, five = (
        tuple(at(name, **dict.fromkeys(ranks, text)) for name, text in (("15_2", "cd"), ("10_2", "ef")))
        for ranks in (("r0", "r1", "r2"), ("r0", "r1", "r2", "r3", "r4"))
    )
    (found,) = find_donors([target], now, three, None, HealOrder())
    assert found.donor is not None
    assert (found.donor.rank, found.donor.agrees) == (1, 2)
    for others in (five, three):  # the lost one was a copy, or may have been
        (found, _) = find_donors([target, GONE], now, others, None, HealOrder())
        assert found.refusal is not None
        assert found.refusal.message.endswith("there is no evidence which of them is right")
    (found, _) = find_donors([target, GONE], now, three, recorded("w", "x", slices=[0, 0, 0, 1]), HealOrder())
    assert found.donor is not None


def test_of_copies_that_differ_a_checksum_decides() -> None:
    now = {**shards(r0="aX", r1="aX", r2="ab"), (Rank(2), ShardRole.FULL): held(2, "ab", verified=True)}
    donor = answered(now, WITNESSES_OF_FIVE)
    assert isinstance(donor, Donor)
    assert (donor.rank, donor.trust) == (2, Trust.CHECKSUM)


def test_a_named_donor_must_be_proven_all_the_same() -> None:
    now = shards(r0="ab", r1="ab", r2="ab")
    donor = answered(now, order=HealOrder(donor=Rank(1)))
    assert isinstance(donor, Donor)
    assert donor.rank == 1
    assert answered(now, order=HealOrder(donor=Rank(2))) == "rank 2 was equal at 0 other checkpoints of the run"
    assert answered(now, order=HealOrder(donor=Rank(7))) == "rank 7 has no such shard"
    four = shards(r0="aX", r1="ab", r2="ab", r4="ab")
    assert answered(four, WITNESSES_OF_FIVE, order=HealOrder(donor=Rank(0))) == ("rank 0 differs from the other copies")


def sealed(text: str) -> Target:
    """The lost shard, of which a manifest has what it held."""
    then = held(3, text)
    assert then.tensor_digests is not None
    return replace(GONE, sealed=Sealed("seals/20_2.json", then.schema_hash, then.tensor_digests))


@pytest.mark.parametrize("order", [HealOrder(), HealOrder(tensor="x")])
def test_what_the_manifest_has_of_a_lost_shard_proves_who_holds_it(order: HealOrder) -> None:
    (found,) = find_donors([sealed("ab")], shards(r0="aX", r1="ab"), (), None, order)
    assert found.donor is not None
    assert (found.donor.rank, found.donor.proof, found.donor.trust) == (1, Proof.SEALED, Trust.CHECKSUM)
    assert found.donor.record == "seals/20_2.json"
    for then in (GONE, sealed("cd")):
        (found,) = find_donors([then], shards(r0="aX", r1="ab"), (), None, order)
        assert found.donor is None


def test_of_copies_that_differ_the_one_that_was_sealed_so_is_believed() -> None:
    now = shards(r0="aX", r1="aX", r2="aX", r4="ab")
    (found,) = find_donors([sealed("ab")], now, WITNESSES_OF_FIVE, None, HealOrder())
    assert found.donor is not None
    assert (found.donor.rank, found.donor.proof) == (4, Proof.SEALED)


def with_stamp(report: ShardReport, inode: int) -> ShardReport:
    return replace(report, stamp=FileStamp.on_disk(size=1, mtime_ns=1, inode=inode))


def test_two_names_of_one_file_are_no_two_copies() -> None:
    now = {place: with_stamp(report, 7) for place, report in shards(r0="ab", r1="ab").items()}
    donor = answered(now)
    assert isinstance(donor, Donor)
    assert (donor.trust, donor.agrees) == (Trust.NUMERICS, None)
    two = {place: with_stamp(report, place[0]) for place, report in now.items()}
    donor = answered(two)
    assert isinstance(donor, Donor)
    assert (donor.trust, donor.agrees) == (Trust.COPY, 1)


def test_three_names_of_one_file_outvote_nobody() -> None:
    now = {place: with_stamp(report, 7) for place, report in shards(r1="ab", r2="ab", r4="ab").items()}
    assert str(answered(now | shards(r0="aX"), WITNESSES_OF_FIVE)).endswith(
        "there is no evidence which of them is right"
    )


def test_what_to_do_about_a_rank_that_has_no_such_shard_is_said() -> None:
    for now, remedy in (
        (shards(r0="ab", r1="ab"), "omit --from, or use a rank that has one: ranks 0-1"),
        ({}, "a copy is proven by two o"),
    ):
        (found,) = find_donors([GONE], now, EQUAL, None, HealOrder(donor=Rank(9)))
        assert found.refusal is not None
        assert "rank 9 has no such shard" in found.refusal.message
        assert (found.refusal.remedy or "").startswith(remedy)
    (found,) = find_donors([GONE], shards(r0="ab", r2="ab"), EQUAL, None, HealOrder(donor=Rank(2)))
    assert found.refusal is not None
    assert found.refusal.remedy == "omit --from, or use a proven rank: rank 0"


def recorded(*names: str, slices: Sequence[int]) -> RecordedSlices:
    held_by = {Rank(rank): number for rank, number in enumerate(slices)}
    return RecordedSlices(source="metadata.json", slices=dict.fromkeys(names, held_by))


def test_a_record_proves_a_copy_without_any_other_checkpoint() -> None:
    donor = answered(shards(r0="ab", r1="ab"), (), recorded("w", "x", slices=[0, 1, 0, 1]))
    assert isinstance(donor, Donor)
    assert (donor.rank, donor.proof, donor.record) == (1, Proof.RECORDED, "metadata.json")


def test_what_a_record_says_of_other_slices_outweighs_equal_tensors() -> None:
    assert answered(shards(r0="ab"), EQUAL, recorded("w", "x", slices=[0, 1, 0, 1])) == (
        "rank 0 has another slice of w according to metadata.json"
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
    assert why == "ranks 0-2, 4-5 were equal at 0 other checkpoints of the run"
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


def test_a_witness_with_other_types_or_shapes_than_now_teaches_nothing() -> None:
    def at_other_shapes(name: str) -> SavedShards:
        both = {(Rank(rank), ShardRole.FULL): replace(held(rank, "cd"), schema_hash="other") for rank in (0, 3)}
        return of_run(both, name)

    others = (at_other_shapes("15_2"), at_other_shapes("10_2"))
    assert answered(shards(r0="ab"), others) == "rank 0 was equal at 0 other checkpoints of the run"


def save(name: str = "20_2", step: int | None = 40, *, missing: bool = True) -> Checkpoint:
    """A save on ranks 0 to 3, of which the last one's shard may be missing."""
    ranks = range(3 if missing else 4)
    return Checkpoint(
        name=name,
        scalars=Scalars(),
        step=None if step is None else Step(step),
        step_source=StepSource.CONTENT,
        shards=tuple(
            Shard(path=str(rank), rank=Rank(rank), role=ShardRole.FULL, format=FormatName.MINDSPORE_CKPT)
            for rank in ranks
        ),
        topology=Topology(world_size=4),
        format=FormatName.MINDSPORE_CKPT,
        commit=CommitState.UNRECORDED,
        content=Content.FULL,
    )


def chosen(checkpoint: Checkpoint, *rejected: Rejection) -> ResumePoint:
    return ResumePoint(
        checkpoint=checkpoint,
        step=Step(checkpoint.step or 0),
        evidence=Level.STRUCTURE,
        verdict=VerdictWord.STRUCT_OK,
        lost_steps=0,
        rejected=rejected,
        findings=(),
    )


LOST = damage(Code.SHARD_MISSING, "is gone", path="3", ranks=(Rank(3),))


def healing(checkpoint: Checkpoint) -> Healing:
    target = Target(rank=Rank(3), role=ShardRole.FULL, path="3", is_missing=True, findings=(LOST,))
    donor = Donor(rank=Rank(0), path="0", proof=Proof.LEARNED, trust=Trust.COPY)
    return Healing(
        root="tree",
        layout="mindformers-rank",
        checkpoint=checkpoint,
        shards=(ShardHealing(target=target, donor=donor),),
        lost=(),
        refusals=(),
        order=HealOrder(),
        resolved_from=None,
    )


def test_records_follow_only_where_the_healed_save_will_be_the_newest_whole_one() -> None:
    target, older = healing(save()), save("15_2", 30, missing=False)
    assert is_held_back_by(target, chosen(target.checkpoint))
    assert is_held_back_by(target, chosen(older, Rejection(checkpoint=target.checkpoint, reasons=(LOST,))))
    odd = suspect(Code.MARKED_UNHEALTHY, "is not well", path="20_2")
    assert not is_held_back_by(target, chosen(older, Rejection(checkpoint=target.checkpoint, reasons=(LOST, odd))))
    assert not is_held_back_by(target, chosen(save("25_2", 50, missing=False)))
    assert [shard.path for shard in with_shards(target).shards] == ["0", "1", "2", "3"]


def test_advice_counts_what_healing_saves_and_says_how_sure_it_is() -> None:
    older = chosen(save("15_2", 30, missing=False))
    proven = heal_advice(older, save(), root="my tree", is_proven=True)
    assert proven is not None
    assert proven.finding.message.startswith("ckpttool repair shards 'my tree' --checkpoint 20_2 would save 10 steps: ")
    assert proven.finding.remedy == "ckpttool repair shards 'my tree' --checkpoint 20_2 --apply"
    may = heal_advice(older, save(), root="t", is_proven=False)
    assert may is not None
    assert may.finding.message.endswith("the missing or damaged files, and healing would save 10 steps")
    assert may.finding.remedy == "check with ckpttool repair shards t --checkpoint 20_2"
    unknown_step = heal_advice(older, save(step=None), root="t", is_proven=True)
    assert unknown_step is not None
    assert "would save the steps since then" in unknown_step.finding.message
    assert heal_advice(older, save(step=30), root="t", is_proven=True) is None
    nothing = NoResumePoint(root="t", evidence=Level.STRUCTURE, rejected=(), findings=())
    whole = heal_advice(nothing, save(), root="t", is_proven=True)
    assert whole is not None
    assert "would make 20_2 intact" in whole.finding.message


def test_advice_is_for_saves_that_lack_nothing_but_shards() -> None:
    odd = suspect(Code.NORM_JUMP, "jumps", path="0")
    cut = damage(Code.SHARD_TRUNCATED, "is cut", path="0")
    record = damage(Code.METADATA_INCOMPLETE, "no common.json", path="common.json")
    assert is_about_shards(save(), [LOST, cut])
    assert not any(is_about_shards(save(), reasons) for reasons in ([], [LOST, odd], [record]))


def of_start(*names: str, slices: Sequence[int]) -> RecordedSlices:
    """What the training wrote down as it began."""
    return replace(recorded(*names, slices=slices), is_of_save=False)


OTHER_TRAINING = (replace(EQUAL[0], same_run=False),)


def test_a_record_of_the_training_s_start_must_be_borne_out_by_other_copies() -> None:
    record = of_start("w", "x", slices=[0, 1, 0, 1])
    donor = answered(shards(r0="ab", r1="cd", r2="ab"), (), record)
    assert isinstance(donor, Donor)
    assert (donor.rank, donor.proof, donor.trust) == (1, Proof.RECORDED, Trust.NUMERICS)
    for now in (shards(r1="cd"), shards(r0="ab", r1="cd"), shards(r0="ab", r1="cd", r2="aX")):
        assert not isinstance(answered(now, (), record), Donor)


def test_a_record_of_the_training_s_start_is_borne_out_by_one_checkpoint_of_the_run() -> None:
    record = of_start("w", "x", slices=[0, 1, 0, 1])
    donor = answered(shards(r1="cd"), EQUAL[:1], record)
    assert isinstance(donor, Donor)
    assert (donor.rank, donor.proof) == (1, Proof.RECORDED)
    assert not isinstance(answered(shards(r1="cd"), OTHER_TRAINING, record), Donor)
    lost = (at("15_2", r1="cd"),)
    assert not isinstance(answered(shards(r1="cd"), lost, record), Donor)


def test_two_names_of_one_file_bear_no_record_out() -> None:
    now = {place: with_stamp(report, 7) for place, report in shards(r0="ab", r2="ab").items()}
    assert not isinstance(answered(now | shards(r1="cd"), (), of_start("w", "x", slices=[0, 1, 0, 1])), Donor)


def test_what_the_start_s_record_does_not_tell_of_must_be_equal_on_all_ranks() -> None:
    record = of_start("w", slices=[0, 1, 0, 1])
    donor = answered(shards(r0="ab", r1="cb", r2="ab"), (), record)
    assert isinstance(donor, Donor)
    assert donor.rank == 1
    assert not isinstance(answered(shards(r0="ab", r1="cd", r2="ab"), (), record), Donor)
    assert not isinstance(answered(shards(r1="cb"), EQUAL[:1], record), Donor)


def test_a_record_of_another_arrangement_neither_proves_nor_refuses() -> None:
    four = of_start("w", "x", "y", "z", slices=[0, 0, 0, 0])
    now = shards(r0="abcd", r1="abxy")
    assert answered(now, (), four) == ("ranks 0-1 were equal at 0 other checkpoints of the run")
    apart = of_start("w", "x", slices=[0, 1, 2, 3])
    donor = answered(shards(r0="ab", r1="ab"), EQUAL, apart)
    assert isinstance(donor, Donor)
    assert donor.proof is Proof.LEARNED


def test_what_bears_a_record_of_the_start_out_is_the_same_for_all_that_it_calls_copies() -> None:
    donor = answered(shards(r0="ab", r1="cd", r2="ab", r4="cd"), (), of_start("w", "x", slices=[0, 1, 0, 1, 1]))
    assert isinstance(donor, Donor)
    assert (donor.rank, donor.proof, donor.trust, donor.agrees) == (1, Proof.RECORDED, Trust.COPY, 4)


def test_healing_is_named_as_the_remedy_of_what_it_mends_alone_and_of_no_note() -> None:
    """As it would be typed where it is proven; else as what to look at first."""
    gone, aside = damage(Code.SHARD_MISSING, "it is gone"), note(MindFormersCode.META_MISSING, "it is gone")
    rejected = (
        Rejection(checkpoint=save("20_2"), reasons=(gone, aside)),
        Rejection(checkpoint=save("15_2"), reasons=(gone,)),
    )
    remedies = []
    for is_proven in (True, False):
        nothing = NoResumePoint(root="tree", evidence=Level.STRUCTURE, rejected=rejected, findings=())
        advice = heal_advice(nothing, save("20_2"), root="tree", is_proven=is_proven)
        assert advice is not None
        newest, other = with_healing(rejected, advice)
        assert newest.reasons[1] is aside
        assert other is rejected[1]
        remedies.append(newest.reasons[0].remedy)
    copies = "other ranks have proven copies of all missing or damaged files"
    lie = "other ranks may have copies of the missing or damaged files"
    command = "ckpttool repair shards tree --checkpoint 20_2"
    assert remedies == [
        f"{copies}; to make 20_2 intact: {command} --apply",
        f"{lie}, and healing would make 20_2 intact; to check: {command}",
    ]


def test_a_donor_whose_data_differ_from_what_lies_behind_a_broken_header_is_refused() -> None:
    (found,) = find_donors([GONE], shards(r0="ab"), EQUAL, None, HealOrder())
    refused = contradicted(found, "x").refusal
    assert refused is not None
    assert (refused.code, refused.ranks) == (ReplicasCode.NO_DONOR, (3,))
    assert "rank 0's file differ in x" in refused.message


def test_states_that_the_start_s_record_names_and_no_shard_holds_are_not_missed() -> None:
    told = of_start("w", "x", slices=[0, 1, 0, 1])
    now = shards(r0="ab", r1="cd", r2="ab")
    for more, is_proven in (("adam_m.w", True), ("head.bias", False)):
        record = replace(told, slices={**told.slices, more: told.slices["w"]})
        assert isinstance(answered(now, (), record), Donor) is is_proven


def test_if_only_a_suspected_copy_has_a_checksum_the_refusal_says_so() -> None:
    outvoted = held(2, "aX", verified=True, findings=(suspect(Code.REPLICA_DIFFERS, "differs"),))
    reason = answered({**shards(r0="ab"), (Rank(2), ShardRole.FULL): outvoted})
    assert reason == "ranks 0, 2 differ, and a checksum matches only for a file that is also suspect"


def test_the_refusal_of_the_requested_donor_says_what_speaks_against_it() -> None:
    constant = (at("15_2", r0="ck", r1="ck", r3="ck"), at("10_2", r0="ek", r1="ek", r3="ek"))
    now = shards(r0="aX", r1="ak")
    assert isinstance(answered(now, constant), Donor)
    reason = answered(now, constant, order=HealOrder(donor=Rank(0)))
    assert reason == "x was constant while rank 0 was equal, which proves nothing; it has changed since"


def test_a_suspected_copy_that_no_other_checkpoint_has_is_not_taken_for_an_older_step() -> None:
    suspected = held(2, "XY", findings=(suspect(Code.REPLICA_DIFFERS, "differs"),))
    reason = answered({**shards(r0="ab", r1="ab"), (Rank(2), ShardRole.FULL): suspected}, (*EQUAL, EARLIER))
    assert reason == "ranks 0-2 have the same slices but differ: there is no evidence which of them is right"


def test_a_shard_whose_tensors_are_unknown_neither_confirms_a_record_nor_contradicts_it() -> None:
    unknown = replace(held(2), tensor_digests=None)
    slices = {name: {Rank(rank): 0 for rank in (0, 1, 2, 3)} for name in "wx"}
    record = RecordedSlices(source="record", slices=slices, is_of_save=False)
    donor = answered({**shards(r0="ab", r1="ab"), (Rank(2), ShardRole.FULL): unknown}, (), record)
    assert isinstance(donor, Donor)
    assert (donor.rank, donor.proof) == (0, Proof.RECORDED)


def test_a_rank_that_the_other_checkpoints_do_not_have_says_nothing_about_them() -> None:
    donor = answered(shards(r0="ab", r1="ab", r2="gh"), (EQUAL[0], EARLIER))
    assert isinstance(donor, Donor)
    assert (donor.rank, donor.witnesses) == (0, ("15_2", "7_2"))
