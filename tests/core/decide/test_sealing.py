"""To seal again forgets nothing: what was recorded first is what damage is measured by."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.decide import sealing
from ckpttool.core.decide.sealing import healed_notes, manifest_of, merge, with_more
from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.manifest import CHUNK_BYTES, Manifest, ShardSeal
from ckpttool.core.domain.replicas import Healed, Proof, TensorDigests, Trust
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.units import ByteCount, Rank
from ckpttool.core.domain.verdict import Level, ShardReport
from tests.support.answers import codes
from tests.support.inventories import checkpoint, verdicts
from tests.support.manifests import EARLIER, LATER, manifest, seal

OLD = manifest(seal("a", chunks=(1, 2)), seal("b", chunks=(3,)))


def now(*seals: ShardSeal, world_size: int | None = 4) -> Manifest:
    """What is on the disk at a later time, looked at by a later version."""
    later = (replace(one, first_seen=LATER) for one in seals)
    return replace(manifest(*later, world_size=world_size, sealed_at=LATER), sealed_by="0.2.0")


def test_the_first_seal_is_taken_as_it_is() -> None:
    new = now(seal("a"))
    assert merge(None, new, reseal=False) == (new, ())


def test_digests_of_tensors_are_taken_over_and_added_to_an_older_seal() -> None:
    held = TensorDigests(names=("w",), digests=bytes(8))
    merged, findings = merge(OLD, now(*(replace(one, tensors=held) for one in OLD.shards)), reseal=False)
    assert findings == ()
    assert {one.tensors for one in merged.shards} == {held}
    assert merge(merged, now(*OLD.shards), reseal=False) == (merged, ())


def test_digests_of_tensors_for_which_a_manifest_has_no_room_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [TensorDigests(names=("w",), digests=bytes([number]) * 8) for number in range(2)]
    new = now(*(replace(one, tensors=each) for one, each in zip(OLD.shards, held, strict=True)))
    monkeypatch.setattr(sealing, "MOST_TENSORS_BYTES", 37)  # 32 digits and a name of 5
    assert [one.tensors for one in merge(OLD, new, reseal=False)[0].shards] == held
    monkeypatch.setattr(sealing, "MOST_TENSORS_BYTES", 36)
    assert merge(OLD, new, reseal=False) == (OLD, ())


@pytest.mark.parametrize("reseal", [False, True])
def test_to_seal_the_same_again_changes_not_a_byte(reseal: bool) -> None:
    merged, findings = merge(OLD, now(*OLD.shards), reseal=reseal)
    assert merged is OLD
    assert findings == ()


def test_what_differs_keeps_its_old_seal_and_is_damage_that_names_the_chunks() -> None:
    merged, findings = merge(OLD, now(seal("a", chunks=(1, 9)), seal("b", chunks=(3,))), reseal=False)
    assert merged is OLD
    (finding,) = findings
    assert (finding.code, finding.severity, finding.path) == (Code.CHECKSUM_MISMATCH, Severity.DAMAGE, "a")
    assert "1 of 2 chunks of 64 MiB (from 0: 1)" in finding.message
    assert EARLIER in finding.message
    assert (finding.expected, finding.actual) == (OLD.by_path["a"].xxh3_128, seal(chunks=(1, 9)).xxh3_128)


def test_a_file_of_another_size_says_both() -> None:
    _, (finding,) = merge(OLD, now(seal("a", chunks=(1,)), seal("b", chunks=(3,))), reseal=False)
    assert f"has {CHUNK_BYTES} bytes instead of {2 * CHUNK_BYTES}" in finding.message


def test_a_file_that_was_replaced_does_not_drown_the_message_in_numbers() -> None:
    old = manifest(seal("a", chunks=tuple(range(100))))
    _, (finding,) = merge(old, now(seal("a", chunks=tuple(range(100, 200)))), reseal=False)
    assert "100 of 100 chunks" in finding.message
    assert "6, 7, …" in finding.message
    assert len(finding.message) < 200


def test_reseal_takes_what_is_there_and_unchanged_files_stay_as_old_as_they_are() -> None:
    merged, findings = merge(OLD, now(seal("a", chunks=(1, 9)), seal("b", chunks=(3,))), reseal=True)
    assert [(each.path, each.code, each.severity) for each in findings] == [
        ("a", Code.CHECKSUM_MISMATCH, Severity.NOTE)
    ]
    assert merged.by_path["a"].chunks == seal(chunks=(1, 9)).chunks
    assert (merged.by_path["a"].first_seen, merged.by_path["b"].first_seen) == (LATER, EARLIER)
    assert (merged.sealed_at, merged.sealed_by) == (LATER, "0.2.0")


def test_a_new_shard_is_added_beside_one_that_differs() -> None:
    merged, findings = merge(OLD, now(*OLD.shards, seal("c", chunks=(7,))), reseal=False)
    assert findings == ()
    assert [(one.path, one.first_seen) for one in merged.shards] == [("a", EARLIER), ("b", EARLIER), ("c", LATER)]
    assert merged.sealed_at == LATER
    merged, findings = merge(OLD, now(seal("a", chunks=(9, 9)), OLD.by_path["b"], seal("c")), reseal=False)
    assert codes(findings) == {Code.CHECKSUM_MISMATCH}
    assert merged.by_path["a"] == OLD.by_path["a"]
    assert merged.by_path["c"].first_seen == LATER


def test_a_shard_that_is_gone_stays_recorded_and_is_missed() -> None:
    merged, (finding,) = merge(OLD, now(seal("a", chunks=(1, 2))), reseal=False)
    assert merged is OLD
    assert (finding.code, finding.severity, finding.path) == (Code.SHARD_MISSING, Severity.DAMAGE, "b")


def test_reseal_forgets_a_shard_that_is_gone() -> None:
    merged, findings = merge(OLD, now(seal("a", chunks=(1, 2))), reseal=True)
    assert [(each.path, each.code, each.severity) for each in findings] == [("b", Code.SHARD_MISSING, Severity.NOTE)]
    assert list(merged.by_path) == ["a"]


@pytest.mark.parametrize(("before", "after", "kept"), [(None, 4, 4), (4, None, 4), (None, None, None), (4, 4, 4)])
def test_a_world_size_that_nothing_told_is_no_disagreement(
    before: int | None, after: int | None, kept: int | None
) -> None:
    merged, findings = merge(replace(OLD, world_size=before), now(*OLD.shards, world_size=after), reseal=False)
    assert (merged.world_size, findings) == (kept, ())


def test_another_world_size_is_damage_and_the_old_one_is_kept_unless_meant() -> None:
    new = now(*OLD.shards, world_size=3)
    merged, (finding,) = merge(OLD, new, reseal=False)
    assert (merged, finding.code, finding.severity) == (OLD, Code.WORLD_SIZE_DIFFERS, Severity.DAMAGE)
    assert (finding.expected, finding.actual) == ("4", "3")
    assert merge(OLD, new, reseal=True)[0].world_size == 3


SEALS = st.lists(
    st.builds(seal, st.sampled_from("abcd"), chunks=st.lists(st.integers(0, 2), max_size=2).map(tuple)),
    max_size=4,
    unique_by=lambda one: one.path,
)


@given(SEALS, SEALS)
def test_nothing_that_was_recorded_is_ever_lost_or_changed(before: list[ShardSeal], after: list[ShardSeal]) -> None:
    old, new = manifest(*before), now(*after)
    merged, findings = merge(old, new, reseal=False)
    assert merged.by_path.items() >= old.by_path.items()
    assert merged.by_path.keys() == old.by_path.keys() | new.by_path.keys()
    wrong = {one.path for one in before if one.path not in new.by_path or not one.same_content(new.by_path[one.path])}
    assert {finding.path for finding in findings} == wrong
    assert list(merged.by_path) == sorted(merged.by_path)
    assert merge(merged, new, reseal=False) == (merged, findings)


@given(SEALS, SEALS)
def test_resealed_is_what_is_there(before: list[ShardSeal], after: list[ShardSeal]) -> None:
    merged, findings = merge(manifest(*before), now(*after), reseal=True)
    assert all(each.severity is Severity.NOTE for each in findings)
    assert merge(merged, now(*after), reseal=True)[1] == ()
    assert [(one.path, one.chunks) for one in merged.shards] == [(one.path, one.chunks) for one in now(*after).shards]


def test_what_a_machine_seals_later_is_added_and_forgets_nothing() -> None:
    new = now(seal("a", chunks=(9, 9)), seal("c"), world_size=None)
    assert with_more(None, new) is new
    more = with_more(OLD, new)
    assert [one.path for one in more.shards] == ["a", "b", "c"]
    assert more.by_path["a"] == OLD.by_path["a"]
    assert more.sealed_at == LATER


def test_what_was_not_hashed_as_a_whole_is_not_sealed() -> None:
    save = checkpoint(ranks=range(1))
    path = save.shards[0].path
    unread = ShardReport(
        path=path, rank=Rank(0), role=ShardRole.FULL, level=Level.STRUCTURE, format=save.format, stamp=None, scalars=(),
        schema_hash="all", tensors=1, checksum_matched=False, bytes_read=ByteCount(0), findings=(),
    )  # fmt: skip
    for reports, why in (((), "does not cover all its shards"), ((unread,), f"{path} was not hashed completely")):
        verdict = replace(verdicts()(save), reports=reports)
        with pytest.raises(ValueError, match=why):
            manifest_of("rank", save, verdict, at=LATER, by="0.2.0")


@pytest.mark.parametrize(
    ("proof", "trust", "tensor", "words"),
    [
        (
            Proof.LEARNED,
            Trust.COPY,
            None,
            "rebuilt on NOW|they were equal at other checkpoints|equaled another rank's copy",
        ),
        (
            Proof.RECORDED,
            Trust.CHECKSUM,
            "w",
            "its tensor w was rebuilt on NOW|by the layout's record|was verified by a checksum",
        ),
    ],
)
def test_a_note_says_from_whom_a_shard_is(proof: Proof, trust: Trust, tensor: str | None, words: str) -> None:
    healed = Healed(rank=Rank(0), proof=proof, trust=trust, tensor=tensor, at="NOW")
    save = checkpoint()
    alone, rebuilt = (seal(shard.path) for shard in save.shards[1:3])
    seals = [alone, replace(rebuilt, healed=healed), replace(seal("gone"), healed=healed)]
    (told,) = healed_notes(save, seals)
    what, same, speaks = words.split("|")
    assert (told.code, told.path, told.ranks) == (Code.HEALED, rebuilt.path, (2,))
    assert told.message == f"{what} from rank 0: its shard is a copy ({same}) and {speaks}"
