"""A tree on one of several machines' own disks looks whole by itself. Nobody can know from there whether it is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckpttool
from ckpttool.core.decide.completeness import MOST_NAMED
from ckpttool.core.decide.one_node import intact_here_alone, judge_one_node
from ckpttool.core.decide.resume import choose
from ckpttool.core.domain.expectation import RankFiles, WorldEvidence
from ckpttool.core.domain.finding import Code, Finding, Severity
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.node import Job, Mount, Node, Reach, Surroundings
from ckpttool.core.domain.plan import NoResumePoint, Rejection, ResumePlan, exit_of
from ckpttool.core.domain.preflight import Outcome
from ckpttool.core.domain.units import Rank
from ckpttool.core.errors import ExitCode
from ckpttool.core.storage.mounts import mount_of, mount_table
from ckpttool.types import DataQuestion, PreflightQuestion, ResumeQuestion, TreeQuestion
from tests.conftest import FIXTURES
from tests.support.answers import coded, decide
from tests.support.commands import ask
from tests.support.inventories import checkpoint, expect_ranks, finding, tree, verdicts
from tests.support.plans import resume_plan
from tests.support.trees import TreeBuilder

CONFIG = (FIXTURES / "configs" / "pretrain_sink2.yaml").read_text()
LOCAL, SHARED, ODD = "ext4 /dev/sda1", "nfs4 filer:/x", "9p host"
SLURM = {"SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2"}


def node(disk: str = LOCAL, environment: Mapping[str, str] | None = None) -> Node:
    return Node(environment=environment or {}, mounts=f"1 0 8:1 / / rw - {disk} rw\n" if disk else "")


def around(
    mount: Mount, declared: Iterable[int], jobs: Iterable[Job] = (), files: RankFiles = RankFiles.APART
) -> Surroundings:
    return Surroundings(files=files, sign="rank_N/", declared=tuple(declared), jobs=tuple(jobs), mount=mount)


@pytest.fixture
def one(tmp_path: Path) -> TreeBuilder:
    """What the first of two machines has: ranks 0 and 1 of 4."""
    return TreeBuilder(tmp_path).legacy(ranks=2).save(epoch=10, step=2).save(epoch=15, step=2)


def config(folder: Path, *, dp: int = 4, trans: bool = False) -> str:
    path = folder / "base.yaml"
    path.write_text(CONFIG.replace("data_parallel: 4", f"data_parallel: {dp}") + f"auto_trans_ckpt: {trans}\n")
    return str(path)


def resolved(
    built: TreeBuilder, here: Node, *, world: int | None = None, base: str | None = None
) -> ResumePlan | NoResumePoint:
    train = None if base is None else ckpttool.library.read_config(base)
    question = TreeQuestion(path=str(built.output), world_size=world, config=train)
    return ckpttool.resolve(question, ResumeQuestion(), DataQuestion(), node=here).decision


def said(decision: ResumePlan | NoResumePoint) -> list[Finding]:
    return coded(decision.findings, Code.ONE_NODE_ONLY)


def code(decision: ResumePlan | NoResumePoint) -> ExitCode:
    return exit_of(decision, strict=False)


class TestWholeHere:
    @pytest.mark.parametrize(
        "environment",
        [
            SLURM,
            {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
            {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"},
            {"WORLD_SIZE": "4"},
            {"MS_WORKER_NUM": "4"},
        ],
    )
    def test_where_a_launcher_speaks_of_more_it_is_unknown(self, one: TreeBuilder, environment: dict[str, str]) -> None:
        answer = resolved(one, node(environment=environment))
        assert isinstance(answer, ResumePlan)
        (found,) = said(answer)
        assert found.severity is Severity.UNKNOWN
        assert "this machine's own disk (ext4 on /dev/sda1) has only ranks 0 to 1" in found.message
        assert "--world-size 2" in (found.remedy or "")
        assert code(answer) is ExitCode.INCOMPLETE

    @pytest.mark.parametrize(
        "environment",
        [
            {},
            {"SLURM_NNODES": "1", "SLURM_JOB_NUM_NODES": "1"},
            {"SLURM_NNODES": "2(x2)"},
            {"WORLD_SIZE": "2"},
            {"MS_WORKER_NUM": "2", "SLURM_NNODES": "1"},
            {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
        ],
    )
    def test_on_a_single_machine_it_is_as_it_was(self, one: TreeBuilder, environment: dict[str, str]) -> None:
        assert resolved(one, node(environment=environment)) == decide(one.output)

    @pytest.mark.parametrize("disk", [SHARED, "lustre mgs:/l", "gpfs fs1", "ceph mon:/", "beegfs x", "fuse.juicefs v"])
    def test_on_a_disk_that_all_machines_see_it_is_as_it_was(self, one: TreeBuilder, disk: str) -> None:
        assert resolved(one, node(disk, SLURM)) == decide(one.output)

    @pytest.mark.parametrize(
        ("disk", "words"), [(ODD, "9p, a file system that may not be visible"), ("", "a disk that may not be visible")]
    )
    def test_a_disk_that_is_not_known_as_shared_is_not_taken_for_it(
        self, one: TreeBuilder, disk: str, words: str
    ) -> None:
        (found,) = said(resolved(one, node(disk, SLURM)))
        assert words in found.message

    def test_what_counts_is_the_disk_of_the_shards_and_not_of_the_link_to_them(
        self, one: TreeBuilder, tmp_path: Path
    ) -> None:
        there = os.path.realpath(tmp_path / "filer")
        (tmp_path / "filer").mkdir()
        for rank in ("rank_0", "rank_1"):
            shutil.move(one.checkpoint / rank, tmp_path / "filer" / rank)
            (one.checkpoint / rank).symlink_to(tmp_path / "filer" / rank)
        mounts = f"1 0 8:1 / / rw - {LOCAL} rw\n2 1 0:9 / {there} rw - {SHARED} rw\n"
        assert said(resolved(one, Node(environment=SLURM, mounts=mounts))) == []

    def test_as_many_ranks_as_are_declared_lack_none(self, one: TreeBuilder, tmp_path: Path) -> None:
        here = node(environment=SLURM)
        assert said(resolved(one, here, world=2)) == []
        assert said(resolved(one, here, base=config(tmp_path, dp=2))) == []
        assert said(resolved(one, here, base=config(tmp_path, dp=2, trans=True))) == []
        assert said(resolved(one, here, base=config(tmp_path, dp=4, trans=True))) != []

    @pytest.mark.parametrize(
        ("environment", "known"),
        [
            ({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}, False),
            ({"MS_WORKER_NUM": "2"}, True),
            ({"MS_WORKER_NUM": "1"}, False),
        ],
    )
    def test_as_many_ranks_as_a_launcher_counts_lack_none(
        self, one: TreeBuilder, environment: dict[str, str], known: bool
    ) -> None:
        assert (said(resolved(one, node(environment={**SLURM, **environment}))) == []) is known

    def test_of_a_save_without_ranks_it_says_so_unless_its_own_record_names_all_files(self) -> None:
        mount = Mount(kind="xfs", source="/dev/sda", reach=Reach.LOCAL)
        jobs = [Job(said_by="JOB=2", several=True)]
        save = replace(checkpoint(ranks=[]), expected=None)
        for files in (RankFiles.UNKNOWN, RankFiles.UNCOUNTED):
            found = intact_here_alone(save, around(mount, [], jobs, files))
            assert found is not None
            assert "has only files of unknown ranks" in found.message
        recorded = replace(save, expected=("a",))
        assert intact_here_alone(recorded, around(mount, [], jobs, RankFiles.UNKNOWN)) is None
        assert intact_here_alone(recorded, around(mount, [], jobs, RankFiles.UNCOUNTED)) is not None

    def test_the_newer_layout_counts_its_ranks_itself(self, tmp_path: Path) -> None:
        built = TreeBuilder(tmp_path).iteration(step=20, world=2)
        assert said(resolved(built, node(environment=SLURM))) == []


class TestRanksElsewhere:
    def test_a_machines_share_of_the_declared_ranks_is_no_word_on_the_others(
        self, one: TreeBuilder, tmp_path: Path
    ) -> None:
        for answer in (resolved(one, node(), world=4), resolved(one, node(), base=config(tmp_path, dp=4))):
            assert isinstance(answer, NoResumePoint)
            (found,) = said(answer)
            assert "only ranks 0 to 1 of 4 ranks found on" in found.message
            reasons = [reason for one in answer.rejected for reason in one.reasons]
            assert {(each.code, each.severity) for each in reasons} == {(Code.RANK_MISSING, Severity.UNKNOWN)}
            assert code(answer) is ExitCode.INCOMPLETE

    def test_the_second_machine_says_the_same(self, one: TreeBuilder) -> None:
        for rank in (0, 1):
            folder = one.checkpoint / f"rank_{rank + 2}"
            (one.checkpoint / f"rank_{rank}").rename(folder)
            for path in folder.glob("llama*"):
                path.rename(folder / path.name.replace(f"_rank_{rank}-", f"_rank_{rank + 2}-"))
        answer = resolved(one, node())
        assert "only ranks 2 to 3 of 4 ranks" in said(answer)[0].message
        assert code(answer) is ExitCode.INCOMPLETE

    def test_that_these_are_all_is_offered_to_the_first_machine_alone(self, one: TreeBuilder, tmp_path: Path) -> None:
        second = TreeBuilder(tmp_path / "second").legacy(ranks=4).save(epoch=10, step=2, ranks=[2, 3])
        offers = ["--world-size 2" in (said(resolved(each, node(), world=4))[0].remedy or "") for each in (one, second)]
        assert offers == [True, False]

    @pytest.mark.parametrize(
        ("ranks", "world"), [([0, 1, 2], 4), ([0, 2], 4), ([1, 2], 4), ([0, 1], 3), ([0, 1, 3], 4)]
    )
    def test_what_no_machine_of_several_equal_ones_has_is_a_loss(
        self, tmp_path: Path, ranks: list[int], world: int
    ) -> None:
        built = TreeBuilder(tmp_path).legacy(ranks=world).save(epoch=10, step=2, ranks=ranks)
        answer = resolved(built, node(), world=world)
        assert (said(answer), code(answer)) == ([], ExitCode.NOTHING_TO_RESUME)
        heard = resolved(built, node(environment=SLURM), world=world)
        assert (said(heard), code(heard)) == ([], ExitCode.NOTHING_TO_RESUME)

    def test_a_single_rank_is_a_machines_share_where_a_launcher_speaks_of_several(self, tmp_path: Path) -> None:
        built = TreeBuilder(tmp_path).legacy(ranks=2).save(epoch=10, step=2, ranks=[0])
        assert code(resolved(built, node(), world=2)) is ExitCode.NOTHING_TO_RESUME
        heard = resolved(built, node(ODD, SLURM), world=2)
        assert code(heard) is ExitCode.INCOMPLETE
        assert "the launcher indicates more machines (SLURM_JOB_NUM_NODES=2)" in said(heard)[0].message

    @pytest.mark.parametrize("disk", [SHARED, ODD, ""])
    def test_on_a_disk_that_others_may_see_it_is_a_loss(self, one: TreeBuilder, disk: str) -> None:
        assert code(resolved(one, node(disk), world=4)) is ExitCode.NOTHING_TO_RESUME

    def test_what_is_damaged_here_is_damaged_from_wherever_one_looks(self, one: TreeBuilder) -> None:
        for epoch in (10, 15):
            one.remove(one.shard(1, epoch, 2))
        answer = resolved(one, node(environment=SLURM), world=4)
        assert (said(answer), code(answer)) == ([], ExitCode.NOTHING_TO_RESUME)

    def test_one_whole_share_is_enough_not_to_know(self, one: TreeBuilder) -> None:
        one.remove(one.shard(1, 15, 2))
        answer = resolved(one, node(), world=4)
        assert isinstance(answer, NoResumePoint)
        assert len(said(answer)) == 1
        assert code(answer) is ExitCode.INCOMPLETE

    def test_no_checkpoint_on_one_of_several_machines_is_no_word_on_the_others(self, tmp_path: Path) -> None:
        built = TreeBuilder(tmp_path).legacy(ranks=2).folder("checkpoint/rank_0").folder("checkpoint/rank_1")
        assert code(resolved(built, node())) is ExitCode.NOTHING_TO_RESUME
        answer = resolved(built, node(environment=SLURM))
        assert code(answer) is ExitCode.INCOMPLETE
        assert "no checkpoint found on" in said(answer)[0].message

    def test_thousands_of_others_are_unknown_too(self) -> None:
        world = 8 * MOST_NAMED
        known = expect_ranks(
            tree(checkpoint(ranks=range(8))), [WorldEvidence(world_size=world, source="I say so", declared=True)]
        )
        nothing = choose(known, ResumeQuestion(), verdicts())
        assert isinstance(nothing, NoResumePoint)
        mount = Mount(kind="xfs", source="/dev/sda", reach=Reach.LOCAL)
        answer = judge_one_node(nothing, known, around(mount, [world]))
        assert code(answer) is ExitCode.INCOMPLETE
        assert "ranks 0 to 7" in said(answer)[0].message


class TestJudgedByItself:
    """Without a disk and an environment."""

    TWO_OF_FOUR = expect_ranks(
        tree(checkpoint(ranks=range(2), findings=[finding(Code.UNCOMMITTED_SAVE)])),
        [WorldEvidence(world_size=4, source="I say so", declared=True)],
    )
    JOBS = (Job(said_by="JOB=2", several=True),)

    @pytest.mark.parametrize(("reach", "is_open"), [(Reach.LOCAL, True), (Reach.SHARED, False)])
    def test_that_a_save_was_not_finished_is_not_said_if_its_record_may_lie_elsewhere(
        self, reach: Reach, *, is_open: bool
    ) -> None:
        nothing = choose(self.TWO_OF_FOUR, ResumeQuestion(), verdicts())
        assert isinstance(nothing, NoResumePoint)
        mount = Mount(kind="k", source="s", reach=reach)
        answer = judge_one_node(nothing, self.TWO_OF_FOUR, around(mount, [4], self.JOBS))
        assert isinstance(answer, NoResumePoint)
        (reason,) = coded(answer.rejected[0].reasons, Code.UNCOMMITTED_SAVE)
        assert (reason.severity is Severity.UNKNOWN, "is not on this machine" in reason.message) == (is_open, is_open)

    @pytest.mark.parametrize(("reach", "is_open"), [(Reach.LOCAL, True), (Reach.SHARED, False)])
    def test_a_newer_one_that_lacks_other_ranks_alone_may_be_whole_on_other_machines(
        self, reach: Reach, *, is_open: bool
    ) -> None:
        plan = resume_plan()
        chosen = plan.point.checkpoint
        lacks = replace(finding(Code.SHARD_MISSING), ranks=(Rank(5),))
        newer = Rejection(checkpoint=replace(chosen, name="20_2"), reasons=(lacks,))
        plan = replace(plan, point=replace(plan.point, rejected=(newer,)))
        mount = Mount(kind="k", source="s", reach=reach)
        answer = judge_one_node(plan, tree(chosen), around(mount, [4], self.JOBS))
        assert [one.path for one in said(answer)] == (["20_2"] if is_open else [])


class TestCommands:
    @pytest.mark.parametrize(("trans", "summary"), [(True, "the 2 ranks seen here"), (False, "unknown from")])
    def test_preflight_does_not_know(self, one: TreeBuilder, tmp_path: Path, trans: bool, summary: str) -> None:
        question = PreflightQuestion(
            config=config(tmp_path, dp=4, trans=trans),
            tree=TreeQuestion(path=str(one.output)),
            choice=ResumeQuestion(),
            data=DataQuestion(),
            allowed=(Code.START_DIFFERS,),
        )
        answer = ckpttool.preflight(question, node=node(environment=SLURM))
        assert answer.exit_code is ExitCode.INCOMPLETE
        (check,) = [each for each in answer.checks if each.name == "checkpoint"]
        assert (check.outcome, summary in check.summary) == (Outcome.UNKNOWN, True)

    def test_the_whole_command_goes_by_its_own_environment_and_disk(self, one: TreeBuilder, tmp_path: Path) -> None:
        if mount_of(str(one.checkpoint), mount_table()).reach is not Reach.LOCAL:
            pytest.skip("the tests' own folder lies on a disk that other machines may see")
        heard = ask("resolve", str(one.output), env=SLURM)
        assert heard.code == ExitCode.INCOMPLETE
        assert heard.stdout.startswith("Resume from step 30 (15_2): intact on the 2 ranks seen here (exit 14)\n")
        assert "try: run ckpttool part DIR --out FOLDER/ on every machine" in " ".join(heard.stdout.split())
        assert ask("resolve", str(one.output)).code == ExitCode.OK
        declared = ask("resolve", str(one.output), "--world-size", "4")
        assert declared.stdout.startswith("This machine alone does not show which checkpoint")
        assert "restore intact" not in declared.stdout
        assert ask("resolve", str(one.output), "--world-size", "2", env=SLURM).code == ExitCode.OK
        base = config(tmp_path, dp=4, trans=True)
        flight = ("preflight", str(one.output), "--config", base, "--allow", "start-differs")
        assert ask(*flight, env=SLURM).code == ExitCode.INCOMPLETE
        assert ask(*flight, "--allow", "one-node-only", env=SLURM).code == ExitCode.OK
        launch = ("launch", str(one.output), "--config", base, "--output", str(tmp_path / "new.yaml"))
        assert ask(*launch, env=SLURM).code == ExitCode.INCOMPLETE
        assert not (tmp_path / "new.yaml").exists()

    def test_nothing_goes_and_no_record_is_written_for_what_is_whole_here_alone(self, one: TreeBuilder) -> None:
        """What is kept in its place may be whole on no other machine."""
        if mount_of(str(one.checkpoint), mount_table()).reach is not Reach.LOCAL:
            pytest.skip("the tests' own folder lies on a disk that other machines may see")
        (one.checkpoint / "rank_0" / "meta.json").unlink(missing_ok=True)
        before = sorted(path for path in one.output.rglob("*") if ".ckpttool" not in path.parts)
        prune = ("prune", str(one.output), "--keep-last", "1", "--grace", "0")
        repair = ("repair-meta", str(one.output), "--grace", "0")
        for command in (prune, repair):
            said = ask(*command, "--apply", env=SLURM)
            assert (said.code, "one-node-only" in said.stdout) == (ExitCode.INCOMPLETE, True), said.stdout
            assert sorted(path for path in one.output.rglob("*") if ".ckpttool" not in path.parts) == before
        assert ask(*prune, "--world-size", "2", env=SLURM).code == ExitCode.OK
        for command in (prune, repair):
            assert ask(*command).code == ExitCode.OK


@given(
    shown=st.sets(st.integers(0, 7), min_size=1),
    world=st.integers(1, 16),
    several=st.booleans(),
    reach=st.sampled_from(Reach),
    files=st.sampled_from(RankFiles),
)
def test_nothing_is_ever_made_better_by_it(
    shown: set[int], world: int, several: bool, reach: Reach, files: RankFiles
) -> None:
    known = expect_ranks(
        tree(checkpoint(ranks=shown), checkpoint("20_2", ranks=shown, findings=[finding()])),
        [WorldEvidence(world_size=world, source="I say so", declared=True)],
    )
    point = choose(known, ResumeQuestion(), verdicts())
    if not isinstance(point, NoResumePoint):
        return
    jobs = [Job(said_by="JOB=2", several=True)] if several else []
    mount = Mount(kind="k", source="s", reach=reach)
    answer = judge_one_node(point, known, around(mount, [world], jobs, files))
    assert isinstance(answer, NoResumePoint)
    if code(answer) is ExitCode.INCOMPLETE:
        assert reach is not Reach.SHARED
        assert files is not RankFiles.TOGETHER or several  # of one folder a launcher alone tells
        assert len(shown) < world
    else:
        assert answer == point
