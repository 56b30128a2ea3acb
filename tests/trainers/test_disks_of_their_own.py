"""Machines that save to disks of their own: one of them knows no end of it, and all of them need what all read."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code, Finding
from ckpttool.core.domain.node import Node
from ckpttool.core.domain.plan import NoResumePoint, ResumePlan, exit_of
from ckpttool.core.domain.preflight import Outcome
from ckpttool.core.errors import ExitCode
from ckpttool.trainers.locate import locate
from ckpttool.types import DataQuestion, PreflightQuestion, ResumeQuestion, TreeQuestion
from tests.conftest import FIXTURES
from tests.nodes.test_split_trees import given
from tests.support.answers import coded
from tests.support.commands import ask
from tests.support.split_trees import look_at, seat

LOCAL, SHARED = "ext4 /dev/sda1", "nfs4 filer:/x"
SLURM = {"SLURM_JOB_NUM_NODES": "2"}

RANK_IN_NAME = {
    "verl_2ranks": r"_rank_(\d+)\.pt$",
    "skyrl_2ranks": r"_rank_(\d+)\.pt$",
    "hf_fsdp2ranks": r"__(\d+)_\d+\.distcp$|rng_state_(\d+)\.pth$",
    "hf_ddp2": r"rng_state_(\d+)\.pth$",
    "dcp_plain_2ranks": r"__(\d+)_\d+\.distcp$",
    "titan_4ranks": r"__(\d+)_\d+\.distcp$",
    "ds_zero1_2ranks": r"zero_pp_rank_(\d+)_",
    "ds_zero3_2ranks": r"zero_pp_rank_(\d+)_",
    "mcore_dist_tp2dp2": r"__(\d+)_\d+\.distcp$",
    "mcore_legacy_tp2dp2": r"mp_rank_(\d+)/",
    "accel_ddp2": r"random_states_(\d+)\.pkl$",
    "light_modelparallel2": r"__(\d+)_\d+\.distcp$",
    "automodel_2ranks": r"__(\d+)_\d+\.distcp$|_rank_(\d+)\.pt$",
    "olmo_2ranks": r"__(\d+)_\d+\.distcp$|rank(\d+)\.pt$",
}
"""Whose a file is that a rank writes: the first machine has all others, too, for rank 0 writes them."""

RANKS = {"titan_4ranks": 4, "mcore_dist_tp2dp2": 4}


def rank_of(name: str, path: str) -> int:
    match = re.search(RANK_IN_NAME[name], path)
    return 0 if match is None else int(next(filter(None, match.groups())))


def machine(tmp_path: Path, name: str, number: int, *, of: int = 2) -> Path:
    """What one of several machines has of a real tree."""
    source, out = FIXTURES / "layouts" / name, tmp_path / f"node{number}" / "output"
    for path in source.rglob("*"):
        inner = path.relative_to(source)
        if path.is_file() and rank_of(name, str(inner)) * of // RANKS.get(name, 2) == number:
            (out / inner).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, out / inner)
    return out


def node(disk: str = LOCAL, environment: dict[str, str] | None = None) -> Node:
    return Node(environment=SLURM if environment is None else environment, mounts=f"1 0 8:1 / / rw - {disk} rw\n")


def resolved(tree: Path, here: Node) -> ResumePlan | NoResumePoint:
    choice = ResumeQuestion(allow_weights_only=True)
    return ckpttool.resolve(TreeQuestion(path=str(tree)), choice, node=here).decision


def told(decision: ResumePlan | NoResumePoint) -> tuple[Finding, ...]:
    rejected = decision.rejected if isinstance(decision, NoResumePoint) else decision.point.rejected
    return (*decision.findings, *(reason for one in rejected for reason in one.reasons))


@pytest.mark.sample(12)
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("name", RANK_IN_NAME)
def test_one_of_two_machines_does_not_know(name: str, number: int, tmp_path: Path) -> None:
    decision = resolved(machine(tmp_path, name, number), node())
    assert len(coded(decision.findings, Code.ONE_NODE_ONLY)) == 1
    assert exit_of(decision, strict=False) is ExitCode.INCOMPLETE
    assert not any("was not finished" in each.message for each in told(decision))
    assert "SLURM_JOB_NUM_NODES=2" in coded(decision.findings, Code.ONE_NODE_ONLY)[0].message


@pytest.mark.parametrize("name", ["verl_2ranks", "hf_fsdp2ranks", "ds_zero3_2ranks", "titan_4ranks"])
@pytest.mark.parametrize("here", [node(SHARED), node(environment={})], ids=["shared disk", "no launcher"])
def test_what_all_machines_miss_is_a_loss(name: str, here: Node, tmp_path: Path) -> None:
    decision = resolved(machine(tmp_path, name, 0), here)
    assert exit_of(decision, strict=False) is ExitCode.NOTHING_TO_RESUME


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", RANK_IN_NAME)
def test_a_whole_tree_with_one_machine_to_start_on_is_taken_as_ever(name: str, tmp_path: Path) -> None:
    decision = resolved(machine(tmp_path, name, 0, of=1), node(environment={}))
    assert exit_of(decision, strict=False) is ExitCode.OK


def test_what_is_damaged_on_this_machine_is_so_wherever_one_looks(tmp_path: Path) -> None:
    tree = machine(tmp_path, "verl_2ranks", 0)
    for save in sorted(path for path in tree.iterdir() if path.is_dir())[:-1]:
        shutil.rmtree(save)
    (own,) = tree.rglob("model_world_size_2_rank_0.pt")
    own.write_bytes(own.read_bytes()[:-100])
    decision = resolved(tree, node())
    assert coded(decision.findings, Code.ONE_NODE_ONLY) == []
    assert exit_of(decision, strict=False) is ExitCode.NOTHING_TO_RESUME


def test_an_older_save_of_one_machine_is_not_taken_for_the_newest_of_two(tmp_path: Path) -> None:
    whole, part = machine(tmp_path / "whole", "dcp_plain_2ranks", 0, of=1), machine(tmp_path, "dcp_plain_2ranks", 0)
    newest = max(path.name for path in whole.iterdir() if path.is_dir())
    shutil.rmtree(whole / newest)
    shutil.copytree(part / newest, whole / newest)
    decision = resolved(whole, node())
    assert isinstance(decision, ResumePlan)
    assert [each.path for each in coded(decision.findings, Code.ONE_NODE_ONLY)] == [newest]
    assert exit_of(decision, strict=False) is ExitCode.INCOMPLETE
    assert exit_of(resolved(whole, node(SHARED)), strict=False) is ExitCode.OK


def test_preflight_on_one_machine_of_two_is_no_word_to_start_anew(tmp_path: Path) -> None:
    question = PreflightQuestion(
        config=None,
        tree=TreeQuestion(path=str(machine(tmp_path, "hf_fsdp2ranks", 1))),
        choice=ResumeQuestion(),
        data=DataQuestion(),
    )
    answer = ckpttool.preflight(question, node=node())
    assert answer.exit_code is ExitCode.INCOMPLETE
    (check,) = [each for each in answer.checks if each.name == "checkpoint"]
    assert check.outcome is Outcome.UNKNOWN
    assert not any("start from scratch" in (each.finding.remedy or "") for each in check.reasons)


def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *trees: Path) -> Path:
    """Let each machine look at its own tree, wherever it lies."""
    folder = tmp_path / "parts"
    for number, tree in enumerate(trees, 1):
        monkeypatch.chdir(tree.parent)
        told = ("--part", f"{number}/{len(trees)}", "--run-id", "look", "--out", f"{folder}/")
        assert ask("part", "output", *told).code == ExitCode.OK
    return folder


READ_BY_ALL = {
    "hf_fsdp2ranks": "trainer_state.json",
    "hf_ddp2": "trainer_state.json",
    "dcp_plain_2ranks": ".metadata",
    "titan_4ranks": ".metadata",
    "ds_zero1_2ranks": "latest",
    "ds_zero3_2ranks": "latest",
    "mcore_dist_tp2dp2": "latest_checkpointed_iteration.txt",
    "mcore_legacy_tp2dp2": "latest_checkpointed_iteration.txt",
    "accel_ddp2": "optimizer.bin",
    "light_modelparallel2": ".metadata",
    "olmo_2ranks": ".metadata",
}
"""What the second machine lacks that its ranks read before all else."""


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", READ_BY_ALL)
def test_what_a_machine_lacks_is_no_go(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees = [machine(tmp_path, name, number) for number in (0, 1)]
    given = parts(tmp_path, monkeypatch, *trees)
    said = ask("resolve", str(given), "--json", "--allow-weights-only")
    assert said.code == ExitCode.DAMAGE, said.stdout
    findings = said.json["findings"]
    assert isinstance(findings, list)
    found = [each for each in findings if each["code"] == "shard-elsewhere" and each["severity"] == "damage"]
    assert len(found) == 1
    assert READ_BY_ALL[name] in json.dumps(found)
    assert "rsync -asR -- " in found[0]["remedy"]
    assert ask("preflight", str(given)).stdout.startswith("NO-GO")


def as_seen(monkeypatch: pytest.MonkeyPatch, *trees: Path) -> ExitCode:
    """Return how `resolve` ends where each of these trees lies at one path on a disk of its own."""
    looks = []
    for number, tree in enumerate(trees, 1):
        place = tree.rename(tree.parents[1] / "output")
        looks.append(look_at(seat(number, len(trees), Path(locate(str(place)).storage.root))))
        place.rename(tree)
    given(monkeypatch, looks)
    choice = ResumeQuestion(allow_weights_only=True)
    return exit_of(ckpttool.resolve(TreeQuestion(path="x.ckptpart"), choice).decision, strict=False)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["verl_2ranks", *READ_BY_ALL])
def test_once_each_machine_has_all_it_is_go(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees = [machine(tmp_path, name, number) for number in (0, 1)]
    assert as_seen(monkeypatch, *trees) is (ExitCode.OK if name == "verl_2ranks" else ExitCode.DAMAGE)
    for tree in trees if name != "verl_2ranks" else ():
        shutil.copytree(FIXTURES / "layouts" / name, tree, dirs_exist_ok=True)
    assert as_seen(monkeypatch, *trees) is ExitCode.OK


def test_a_machine_without_others_slices_may_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees = [machine(tmp_path, "dcp_plain_2ranks", number) for number in (0, 1)]
    for record in trees[0].rglob(".metadata"):
        shutil.copy2(record, trees[1] / record.relative_to(trees[0]))
    assert as_seen(monkeypatch, *trees) is ExitCode.INCOMPLETE


def test_parts_of_one_folder_ask_for_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = machine(tmp_path, "dcp_plain_2ranks", 0, of=1)
    said = ask("resolve", str(parts(tmp_path, monkeypatch, tree, tree)), "--json")
    assert (said.code, "shard-elsewhere" in said.stdout) == (ExitCode.OK, False)
