"""What Megatron-LM's saves are, by what lies in their folders and by the arguments that one of the files holds."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.checkpoint import CommitState, Content, StepSource
from ckpttool.core.domain.finding import Code, Finding, blocking
from ckpttool.core.domain.plan import NoResumePoint
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import ExitCode
from ckpttool.trainers.megatron import ModelPart, SaveKind, kind_of
from ckpttool.trainers.megatron.record import save_record
from ckpttool.types import ResumeQuestion, TreeQuestion
from tests.support.answers import chosen, cli, plan, scanned, verdict
from tests.support.trainer_trees import healthy

TRACKER = "latest_checkpointed_iteration.txt"
_CALLS = b"\x80\x02cposix\nsystem\nX\x04\0\0\0true\x85R."


@pytest.fixture
def distributed(tmp_path: Path) -> Path:
    return healthy("mcore_dist_tp2dp2", tmp_path)


@pytest.fixture
def legacy(tmp_path: Path) -> Path:
    return healthy("mcore_legacy_tp2dp2", tmp_path)


@pytest.fixture
def with_digests(tmp_path: Path) -> Path:
    return healthy("mcore_integrity", tmp_path)


def args(**sizes: object) -> dict[str, object]:
    """What a save says of the ranks that wrote it."""
    return {"args": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1, "world_size": 4, **sizes}}


def against(root: Path, level: Level = Level.CHECKSUM) -> list[Finding]:
    """What `verify` has against the newest save."""
    return list(blocking(verdict(root, level=level).findings))


class TestKinds:
    @pytest.mark.parametrize(
        ("names", "kind"),
        [
            ({"metadata.json", ".metadata", "__0_0.distcp"}, SaveKind.DISTRIBUTED),
            ({"common.pt", "__0_0.distcp"}, SaveKind.DISTRIBUTED),
            ({"mp_rank_00", "mp_rank_01"}, SaveKind.LEGACY),
            ({"mp_rank_00_000_001"}, SaveKind.LEGACY),
            ({".metadata", "__0_0.distcp"}, SaveKind.PLAIN_DCP),
            ({"notes.txt"}, SaveKind.UNKNOWN),
        ],
    )
    def test_a_save_is_told_as_the_trainer_tells_it(self, names: set[str], kind: SaveKind) -> None:
        assert kind_of(frozenset(names)) is kind


class TestParts:
    def test_a_part_is_called_by_its_place_in_each_kind_of_parallelism_that_there_is(self) -> None:
        names = [
            part.folder
            for part in (ModelPart(1, None, None), ModelPart(1, 2, None), ModelPart(1, None, 3), ModelPart(10, 11, 12))
        ]
        assert names == ["mp_rank_01", "mp_rank_01_002", "mp_rank_01_003", "mp_rank_10_011_012"]

    @pytest.mark.parametrize(
        ("sizes", "folders"),
        [
            ({}, {"mp_rank_00": 0, "mp_rank_01": 1}),
            (
                {"pipeline_model_parallel_size": 2, "world_size": 8},
                {"mp_rank_00_000": 0, "mp_rank_01_000": 1, "mp_rank_00_001": 4, "mp_rank_01_001": 5},
            ),
            (
                {"expert_model_parallel_size": 2},
                {"mp_rank_00_000": 0, "mp_rank_01_000": 1, "mp_rank_00_001": 2, "mp_rank_01_001": 3},
            ),
            # One expert a rank: each rank of the model has other experts, and none the other's.
            (
                {"expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1},
                {"mp_rank_00_000": 0, "mp_rank_01_001": 1},
            ),
        ],
    )
    def test_a_part_is_written_by_the_first_rank_of_it(self, sizes: dict[str, object], folders: dict[str, int]) -> None:
        record = save_record(args(**sizes))
        assert record is not None
        assert {part.folder: rank for part, rank in record.parts().items()} == folders

    @pytest.mark.parametrize("sizes", [{"tensor_model_parallel_size": 1 << 30}, {"pipeline_model_parallel_size": None}])
    def test_where_no_size_can_be_meant_no_file_is_looked_for(self, sizes: dict[str, object]) -> None:
        assert save_record(args(**sizes)) is None


class TestDistributed:
    def test_a_save_of_a_newer_core_needs_no_common_pt(self, distributed: Path) -> None:
        folder = distributed / "iter_0000006"
        (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
        (folder / "common.pt").unlink()
        save = scanned(distributed).checkpoints[-1]
        assert (save.step, save.step_source, save.samples) == (6, StepSource.NAME, None)
        assert chosen(plan(distributed)) == ("iter_0000006", 6)

    def test_slices_without_metadata_json_anywhere_are_a_save_of_their_own_kind(self, distributed: Path) -> None:
        for name in ("metadata.json", "common.pt"):
            for file in distributed.glob(f"*/{name}"):
                file.unlink()
        save = scanned(distributed).checkpoints[-1]
        assert (save.commit, save.content, save.findings) == (CommitState.COMMITTED, Content.UNKNOWN, ())
        assert chosen(plan(distributed)) == ("iter_0000006", 6)


class TestRelease:
    def test_converted_weights_are_weights_and_taken_where_they_are_asked_for(self, distributed: Path) -> None:
        (distributed / "iter_0000003").rename(distributed / "release")
        (distributed / TRACKER).write_text("release")
        saves = {save.name: save for save in scanned(distributed).checkpoints}
        assert saves["release"].content is Content.WEIGHTS_ONLY
        choice = ResumeQuestion(name="release", allow_weights_only=True)
        said = [(str(each.place), each.value) for each in plan(distributed, choice=choice).load.settings]
        assert said == [
            (f"file:{TRACKER}", "release"),
            ("argument:--load", str(distributed)),
            ("argument:--exit-on-missing-checkpoint", True),
        ]


class TestIterationZero:
    def test_it_cannot_be_named_and_says_so(self, legacy: Path) -> None:
        (legacy / "iter_0000003").rename(legacy / "iter_0000000")
        load = ckpttool.scan(str(legacy)).layout.load(scanned(legacy), scanned(legacy).checkpoints[0])
        assert "--ckpt-step 0 counts as not given" in str(load)


class TestTracker:
    @pytest.mark.sample(2)
    @pytest.mark.parametrize("text", ["", "six", "0x6", "6.0", "-6", "9" * 30])
    def test_what_is_no_iteration_changes_no_choice(self, distributed: Path, text: str) -> None:
        (distributed / TRACKER).write_text(text)
        assert scanned(distributed).tracked is None
        assert chosen(plan(distributed)) == ("iter_0000006", 6)

    def test_a_save_that_it_names_and_that_is_not_there_is_named(self, distributed: Path) -> None:
        assert scanned(distributed).findings == ()
        (distributed / TRACKER).write_text("9")
        (finding,) = scanned(distributed).findings
        assert (finding.code, finding.path) == (Code.TRACKER_DISAGREES, TRACKER)
        assert (
            finding.message
            == "the tracker names iter_0000009, which does not exist: without --ckpt-step Megatron-LM stops"
        )

    def test_what_it_names_is_never_pruned(self, distributed: Path) -> None:
        (distributed / TRACKER).write_text("3")
        done = cli("prune", str(distributed), "--keep-last", "1", "--grace", "0", "--apply")
        assert "is the one that the tracker names" in " ".join(done.stdout.split())
        assert (distributed / "iter_0000003").is_dir()
        (distributed / TRACKER).write_text("6")
        assert cli("prune", str(distributed), "--keep-last", "1", "--grace", "0", "--apply").exit_code == 0
        assert not (distributed / "iter_0000003").exists()


class TestDigests:
    """`integrity.json`: SHA-256 of the files beside it."""

    def digest_file(self, root: Path) -> Path:
        return root / "iter_0000006" / "integrity.json"

    @pytest.mark.sample(2)
    @pytest.mark.parametrize("name", ["common.pt", ".metadata", "__2_0.distcp", "metadata.json"])
    def test_whatever_changed_is_found_by_its_bytes_alone(self, with_digests: Path, name: str) -> None:
        record = json.loads(self.digest_file(with_digests).read_text())
        record["files"][name] = "0" * 64
        self.digest_file(with_digests).write_text(json.dumps(record))
        assert against(with_digests, Level.STRUCTURE) == []
        assert [(each.code, each.path) for each in against(with_digests)] == [
            (Code.CHECKSUM_MISMATCH, f"iter_0000006/{name}")
        ]

    @pytest.mark.sample(2)
    @pytest.mark.parametrize(
        "text", ["", "{", '{"algorithm": "md5", "files": {}}', '{"algorithm": "sha256", "files": {"common.pt": "0"}}']
    )
    def test_one_that_says_nothing_verifies_nothing_and_damages_nothing(self, with_digests: Path, text: str) -> None:
        self.digest_file(with_digests).write_text(text)
        assert against(with_digests) == []
        answer = cli("verify", str(with_digests), "--level", "checksum", "--json")
        assert '"meta-unreadable"' in answer.stdout
        assert Code.META_UNREADABLE in {each.code for each in plan(with_digests).findings}

    @pytest.mark.sample(2)
    @pytest.mark.parametrize("name", ["../iter_0000003/common.pt", "a/b", "..", ""])
    def test_a_name_that_leads_out_is_not_followed(self, with_digests: Path, name: str) -> None:
        record = {"algorithm": "sha256", "files": {name: "0" * 64}}
        self.digest_file(with_digests).write_text(json.dumps(record))
        assert [each.code for each in against(with_digests)] == [Code.UNSAFE_NAME]


class TestManySaves:
    """Records of slices are read of the newest saves alone until an older one is judged."""

    @pytest.fixture
    def many(self, distributed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The real saves, of which only the newest one's record is read at a scan."""
        monkeypatch.setattr("ckpttool.trainers.megatron.scan._NEWEST", 1)
        return distributed

    @pytest.mark.parametrize("lost", ["__0_0.distcp", "__*.distcp"])
    def test_what_an_older_one_lacks_is_found_when_it_is_judged(self, many: Path, lost: str) -> None:
        for file in sorted((many / "iter_0000003").glob(lost)):
            file.unlink()
        shutil.rmtree(many / "iter_0000006")
        shutil.copytree(many / "iter_0000003", many / "iter_0000006")
        decision = ckpttool.resolve(TreeQuestion(path=str(many))).decision
        assert isinstance(decision, NoResumePoint)
        for rejection in decision.rejected:
            assert Code.SHARD_MISSING in {reason.code for reason in rejection.reasons}


def test_a_common_record_that_would_run_code_keeps_its_save_from_being_taken(distributed: Path) -> None:
    common = distributed / "iter_0000006" / "common.pt"
    with zipfile.ZipFile(common) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(common, "w") as archive:
        for name, content in records.items():
            archive.writestr(name, _CALLS if name.endswith("data.pkl") else content)
    assert {each.code for each in against(distributed)} == {Code.UNSAFE_PICKLE}
    assert chosen(plan(distributed)) == ("iter_0000003", 3)


def test_seal_leaves_a_save_whose_step_nothing_tells_and_takes_one_whose_step_is_told(with_digests: Path) -> None:
    nobody_knows = "iter_" + 30 * "9"
    (with_digests / "iter_0000006").rename(with_digests / nobody_knows)
    refused = cli("seal", str(with_digests))
    assert refused.exit_code == ExitCode.INCOMPLETE
    assert f"no shard of {nobody_knows} records its step" in " ".join(refused.output.split())
    assert not list(with_digests.rglob("*manifest*"))
    (with_digests / nobody_knows).rename(with_digests / "iter_0000006")
    assert cli("seal", str(with_digests)).exit_code == ExitCode.OK


def test_an_only_save_that_was_renamed_beside_its_tracker_is_no_script_s_own(with_digests: Path) -> None:
    assert chosen(plan(with_digests)) == ("iter_0000006", 6)
    (with_digests / "iter_0000006").rename(with_digests / "best")
    for command in ("preflight", "seal"):
        answer = cli(command, str(with_digests))
        assert answer.exit_code == ExitCode.INCOMPLETE
        told = " ".join(answer.output.split())
        assert "a tracker of Megatron-LM, verl or MindFormers" in told
        assert "give the folder its original name again" in told


@pytest.mark.parametrize("fixture", ["mcore_dist_tp2dp2", "mcore_legacy_tp2dp2"])
def test_files_are_of_the_save_and_of_no_rank_alone(fixture: str, tmp_path: Path) -> None:
    checkpoints = scanned(healthy(fixture, tmp_path)).checkpoints
    assert {each.topology.shared for each in checkpoints} == {True}
