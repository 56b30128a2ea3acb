"""A folder of torch.distributed.checkpoint is held against its own record, with nothing of torch."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.domain.checkpoint import CommitState
from ckpttool.core.domain.finding import Code, Row, Severity
from ckpttool.core.storage import open_storage
from ckpttool.trainers.torch_dcp import is_store, store
from ckpttool.trainers.torch_dcp.store import DcpStore, read_store, value_slices, values_of
from tests.support.trainer_trees import LAYOUTS

REAL = sorted({path.parent for path in LAYOUTS.rglob(".metadata")})
SAVE = LAYOUTS / "dcp_fsdp2_4ranks" / "step_000015"

Change = Callable[[Any], object]


@pytest.fixture
def save(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAVE, tmp_path / "save"))


def looked(save: Path, *, most: int = store.AT_A_SCAN) -> DcpStore:
    return read_store(open_storage(str(save.parent)), save.name, most=most)


def codes(found: DcpStore) -> list[Row]:
    return [finding.code for finding in found.findings]


def change(save: Path, changed: Change) -> None:
    """Let torch's own record say something else."""
    record = save / ".metadata"
    said = pickle.loads(record.read_bytes())  # noqa: S301  a real one
    changed(said)
    record.write_bytes(pickle.dumps(said, 4))


@pytest.mark.parametrize("folder", REAL, ids=lambda path: "/".join(path.parts[-3:]))
def test_a_real_folder_is_whole_to_the_last_byte(folder: Path) -> None:
    found = read_store(open_storage(str(folder)), "", sizes=True)
    assert (found.findings, found.commit) == ((), CommitState.COMMITTED)
    assert found.expected == tuple(shard.path for shard in found.shards)
    assert all(shard.stamp is not None and shard.least == shard.stamp.size for shard in found.shards)


def test_paths_are_told_from_the_root_and_values_by_their_names(save: Path) -> None:
    found = looked(save)
    assert found.expected == tuple(f"save/__{rank}_0.distcp" for rank in range(4))
    assert [shard.stamp for shard in found.shards] == [None] * 4
    places = value_slices(found)
    own = {name: places[name] for name in ("app.step", "app.consumed_samples")}
    assert values_of(open_storage(str(save.parent)), "save", own) == {"app.step": 15, "app.consumed_samples": 120}


def test_a_value_that_cannot_be_read_is_left_out(save: Path) -> None:
    own = {name: each for name, each in value_slices(looked(save)).items() if name == "app.step"}
    (save / own["app.step"].path).unlink()
    outside = own["app.step"]._replace(path="../x")
    storage = open_storage(str(save.parent))
    assert values_of(storage, "save", {**own, "outside": outside}) == {}


def test_a_file_of_an_earlier_save_by_more_ranks_is_a_note(save: Path) -> None:
    shutil.copy(save / "__3_0.distcp", save / "__4_0.distcp")
    found = looked(save)
    assert [(finding.code, finding.severity, finding.path) for finding in found.findings] == [
        (Code.STRAY_FILE, Severity.NOTE, "save/__4_0.distcp")
    ]
    assert len(found.shards) == 4


@pytest.mark.parametrize("unfinished", [True, False])
def test_without_its_record_a_save_was_not_finished(save: Path, *, unfinished: bool) -> None:
    record = save / ".metadata"
    record.rename(save / ".metadata.tmp") if unfinished else record.unlink()
    found = looked(save)
    assert (found.commit, found.expected, len(found.shards)) == (CommitState.UNCOMMITTED, None, 4)
    assert codes(found) == ([Code.UNCOMMITTED_SAVE] if unfinished else [])


@pytest.mark.parametrize("keep", [0, 3000])
def test_a_torn_record_is_damage_and_nobody_knows_whether_the_save_was_finished(save: Path, keep: int) -> None:
    record = save / ".metadata"
    record.write_bytes(record.read_bytes()[:keep])
    found = looked(save)
    assert (found.commit, found.expected) == (CommitState.UNKNOWN, None)
    assert [(finding.code, finding.path) for finding in found.findings] == [(Code.HEADER_INVALID, "save/.metadata")]


def test_a_record_that_cannot_be_read_is_unknown(save: Path) -> None:
    (save / ".metadata").unlink()
    (save / ".metadata").symlink_to("nowhere")
    assert codes(looked(save)) == [Code.UNREADABLE]


def test_a_large_record_is_left_for_a_closer_look(save: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (save / "__2_0.distcp").unlink()
    found = looked(save, most=100)
    assert (found.metadata, found.findings, found.commit) == (None, (), CommitState.COMMITTED)
    assert found.expected == tuple(shard.path for shard in found.shards)
    monkeypatch.setattr("ckpttool.core.formats.torch.dcp.MOST_METADATA_BYTES", 100)
    assert codes(looked(save, most=100)) == [Code.OVER_LIMIT]


def _lead_out(said: Any) -> None:  # noqa: ANN401  torch's own
    next(iter(said.storage_data.values())).relative_path = "../../etc/passwd"


def _gap(said: Any) -> None:  # noqa: ANN401
    max(said.storage_data.values(), key=lambda info: (info.relative_path, info.offset)).offset += 64


def _half(said: Any) -> None:  # noqa: ANN401
    tensor = next(
        each for each in said.state_dict_metadata.values() if hasattr(each, "chunks") and len(each.chunks) > 1
    )
    del tensor.chunks[-1]


def _beyond(said: Any) -> None:  # noqa: ANN401
    tensor = next(
        each for each in said.state_dict_metadata.values() if hasattr(each, "chunks") and len(each.chunks) > 1
    )
    tensor.chunks[-1].offsets = type(tensor.size)([size + 1 for size in tensor.chunks[-1].offsets])


def _lost_slice(said: Any) -> None:  # noqa: ANN401
    last = max(said.storage_data, key=lambda key: (said.storage_data[key].relative_path, said.storage_data[key].offset))
    del said.storage_data[last]


def _lost_value(said: Any) -> None:  # noqa: ANN401
    del said.storage_data[next(key for key in said.storage_data if key.fqn == "app.step")]


@pytest.mark.parametrize(
    ("spoiled", "code"),
    [
        (_lead_out, Code.UNSAFE_NAME),
        (_gap, Code.OFFSETS_NOT_CONTIGUOUS),
        (_half, Code.ENTRIES_MISSING),
        (_beyond, Code.ENTRIES_MISSING),
        (_lost_slice, Code.ENTRIES_MISSING),
        (_lost_value, Code.ENTRIES_MISSING),
    ],
)
def test_a_record_that_contradicts_itself_is_named(save: Path, spoiled: Change, code: Row) -> None:
    change(save, spoiled)
    found = looked(save)
    assert code in codes(found)
    assert all(finding.path == "save/.metadata" for finding in found.findings)
    assert all(".." not in path for path in found.expected or ())


def test_a_record_that_would_run_code_is_refused(save: Path) -> None:
    class Runs:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            import os

            return os.system, ("true",)

    change(save, lambda said: setattr(said, "planner_data", Runs()))
    assert [(finding.code, finding.severity) for finding in looked(save).findings] == [
        (Code.UNSAFE_PICKLE, Severity.UNSAFE)
    ]


def test_slices_that_another_hand_changed_are_unsupported_and_not_damaged(save: Path) -> None:
    def compress(said: Any) -> None:  # noqa: ANN401
        for info in said.storage_data.values():
            if info.relative_path == "__1_0.distcp":
                info.transform_descriptors = ["zstd"]

    change(save, compress)
    found = looked(save)
    assert [(each.code, each.severity, each.path) for each in found.findings] == [
        (Code.UNSUPPORTED_FORMAT, Severity.UNKNOWN, "save/__1_0.distcp")
    ]
    assert "save/__1_0.distcp" not in {*(found.expected or ()), *(shard.path for shard in found.shards)}


def by_rank(save: Path, ranks: int = 4) -> None:
    """Write what ranks write that do not talk to each other."""
    whole = (save / ".metadata").read_bytes()
    for rank in range(ranks):
        own = pickle.loads(whole)  # noqa: S301  a real one
        own.storage_data = {key: info for key, info in own.storage_data.items() if info.relative_path[2] == str(rank)}
        offsets = {(key.fqn, key.offset) for key in own.storage_data}
        own.state_dict_metadata = {
            name: each for name, each in own.state_dict_metadata.items() if name in {fqn for fqn, _ in offsets}
        }
        for name, each in own.state_dict_metadata.items():
            if hasattr(each, "chunks"):
                each.chunks = [part for part in each.chunks if (name, part.offsets) in offsets]
        (save / f"__{rank}.metadata").write_bytes(pickle.dumps(own, 4))
    (save / ".metadata").unlink()


def test_records_of_two_ranks_are_put_together_and_one_of_them_is_not_enough(tmp_path: Path) -> None:
    """The fewest ranks that there can be several of."""
    pair = Path(shutil.copytree(LAYOUTS / "dcp_plain_2ranks" / "8", tmp_path / "pair"))
    before = looked(pair)
    by_rank(pair, 2)
    found = looked(pair)
    assert (found.findings, found.expected) == ((), before.expected)
    assert (set(found.names), value_slices(found)) == (set(before.names), value_slices(before))
    (pair / "__1.metadata").unlink()
    assert Code.RANK_MISSING in codes(looked(pair))


def test_a_file_in_a_folder_of_the_save_is_looked_for(save: Path) -> None:
    def move(said: Any) -> None:  # noqa: ANN401
        for info in said.storage_data.values():
            if info.relative_path == "__1_0.distcp":
                info.relative_path = "inner/__1_0.distcp"

    (save / "inner").mkdir()
    (save / "__1_0.distcp").rename(save / "inner" / "__1_0.distcp")
    change(save, move)
    found = looked(save)
    assert found.findings == ()
    assert "save/inner/__1_0.distcp" in {shard.path for shard in found.shards}


@pytest.mark.parametrize(
    ("names", "is_one"),
    [
        ({".metadata"}, True),
        ({"__0.metadata"}, True),
        ({"__12_0.distcp"}, True),
        ({".metadata.json", "__0_0.distcp.bak", "x__0_0.distcp", "metadata", ".metadata.tmp"}, False),
    ],
)
def test_a_folder_is_told_by_its_names(names: set[str], *, is_one: bool) -> None:
    assert is_store(names) is is_one
