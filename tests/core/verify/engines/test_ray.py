"""Batches that others run: every task comes back once, what is lost is unknown, and no other disk is believed."""

from __future__ import annotations

import shutil
import socket
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckpttool
from ckpttool.core.domain.finding import Code, Severity, worst
from ckpttool.core.domain.frozen import Packed, packed, replace, unpacked
from ckpttool.core.domain.question import CheckQuestion, TreeQuestion
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import CkptToolError, ExitCode, IncompleteError, UsageError
from ckpttool.core.verbs.verifying import watched
from ckpttool.core.verify.engines.ray import BATCH_BYTES, BATCH_HEADERS, batches
from ckpttool.core.verify.meter import Meter
from ckpttool.nodes.model import PartQuestion
from tests.support.answers import FIXTURES
from tests.support.commands import ask
from tests.support.fake_ray import fake_ray
from tests.support.verifying import task_for

TREE = str(FIXTURES / "sink2_ckpt" / "output")


@given(costs=st.lists(st.integers(0, 3 << 30), max_size=300), cores=st.integers(1, 64))
def test_tasks_are_divided_so_that_each_is_in_one_batch_and_no_batch_is_too_large(costs: list[int], cores: int) -> None:
    tasks = [replace(task_for(str(number), Level.CHECKSUM), cost=ByteCount(cost)) for number, cost in enumerate(costs)]
    made = list(batches(tasks, cores))
    assert Counter(each.path for batch in made for each in batch) == Counter(each.path for each in tasks)
    for batch in made:
        assert 1 <= len(batch) <= BATCH_HEADERS
        assert len(batch) == 1 or sum(each.cost for each in batch) <= BATCH_BYTES
    if len(tasks) >= 2 * cores:
        assert len(made) >= cores, "a core has nothing to do"


def answer(level: Level, name: str = "all") -> dict[str, object]:
    found = ckpttool.verify(TreeQuestion(path=TREE, sizes=True), CheckQuestion(level=level, name=name, max_age=None))
    return {**found.to_dict(), "seconds": None}


@pytest.mark.parametrize("level", [Level.STRUCTURE, Level.CHECKSUM, Level.NUMERICS])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_answer_is_that_of_this_process_whatever_comes_back_first(level: Level, seed: int) -> None:
    here = answer(level)
    with fake_ray(seed=seed, cores=1) as ray, ckpttool.library.on_ray():
        meter = Meter()
        with watched(meter):
            assert answer(level) == here
        assert ray.most_flying <= 4
        assert not ray.flying
        assert not ray.left, "a program's own connection stays"
    assert meter.bytes_done == meter.bytes_total
    assert meter.shards_done == meter.shards_total > 0


def test_what_a_lost_node_was_to_read_is_unknown_and_everything_else_is_known() -> None:
    lost = "rank_2/llama2_7b_rank_2_1-30_2.ckpt"
    with fake_ray(cores=8) as ray, ckpttool.library.on_ray():
        ray.lost = {lost}
        found = ckpttool.verify(TreeQuestion(path=TREE, sizes=True), CheckQuestion(name="_1-30_2")).answer()
    (verdict,) = found.verdicts
    assert {report.path for report in verdict.reports if worst(report.findings) is Severity.UNKNOWN} == {lost}
    assert [each.code for each in verdict.findings if each.severity > Severity.NOTE] == [Code.UNREADABLE]
    assert "NodeDiedError" in next(each.message for each in verdict.findings if each.path == lost)


def test_who_wants_no_more_leaves_little_under_way() -> None:
    with fake_ray(cores=1) as ray, ckpttool.library.on_ray():
        events = ckpttool.verify(TreeQuestion(path=TREE, sizes=True), CheckQuestion(level=Level.CHECKSUM, max_age=None))
        next(events)
        events.close()
        assert 0 < len(ray.flying) <= 2


def test_a_node_with_another_version_and_one_that_cannot_import_ours_are_refused() -> None:
    with fake_ray() as ray, ckpttool.library.on_ray():
        ray.back = lambda _: ("node", "0.0.1", [], None)
        with pytest.raises(UsageError, match="install the same version on all nodes"):
            answer(Level.STRUCTURE)
        ray.there = lambda arguments: arguments[:1]
        with pytest.raises(UsageError, match=r"\(TypeError: .*\): install it on all nodes"):
            answer(Level.STRUCTURE)


def test_a_node_that_has_another_disk_there_proves_nothing(tmp_path: Path) -> None:
    root = str(FIXTURES / "sink2_ckpt" / "output" / "checkpoint")
    other = tmp_path / "checkpoint"
    shutil.copytree(root, other)
    shutil.rmtree(other / "rank_3")

    def elsewhere(arguments: tuple[object, ...]) -> tuple[object, ...]:
        version, batch, timeout = arguments
        assert isinstance(batch, Packed)
        return version, packed([replace(each, root=str(other)) for each in unpacked(batch)]), timeout

    with fake_ray() as ray, ckpttool.library.on_ray():
        ray.there = elsewhere
        found = ckpttool.verify(TreeQuestion(path=TREE, sizes=True), CheckQuestion(name="_1-30_2")).answer()
    (verdict,) = found.verdicts
    said = {each.path: each.message for each in verdict.findings if each.code is Code.UNREADABLE}
    assert len(said) == 4
    assert {("does not see it" in text, "a different file" in text) for text in said.values()} == {
        (True, False),
        (False, True),
    }
    assert "does not see it" in said["rank_3/llama2_7b_rank_3_1-30_2.ckpt"]
    assert max(each.severity for each in verdict.findings) is Severity.UNKNOWN


def test_a_file_that_was_written_anew_meanwhile_is_taken_as_it_is_now(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "sink2_ckpt" / "output", tmp_path / "output")
    written = next((tmp_path / "output" / "checkpoint" / "rank_1").glob("*1-30_2.ckpt"))

    def later(arguments: tuple[object, ...]) -> tuple[object, ...]:
        content = written.read_bytes()
        written.unlink()
        written.write_bytes(content)
        return arguments

    with fake_ray(cores=1) as ray, ckpttool.library.on_ray():
        ray.there = later
        found = ckpttool.verify(TreeQuestion(path=str(tmp_path), sizes=True), CheckQuestion(name="_1-30_2")).answer()
    (verdict,) = found.verdicts
    assert worst(verdict.findings) < Severity.UNKNOWN


@pytest.mark.parametrize(
    ("address", "code", "says"),
    [
        (None, ExitCode.USAGE, "RAY_ADDRESS"),
        ("auto", ExitCode.USAGE, "ckpttool starts none"),
        ("local", ExitCode.USAGE, "ckpttool starts none"),
        ("nonsense", ExitCode.USAGE, "expected HOST:PORT"),
        ("host:port", ExitCode.USAGE, "expected HOST:PORT"),
    ],
)
def test_no_cluster_is_started_and_none_guessed(address: str | None, code: ExitCode, says: str) -> None:
    with fake_ray(joined=False), pytest.raises(CkptToolError, match=says) as refused, ckpttool.library.on_ray(address):
        pass
    assert refused.value.exit_code is code


def test_where_nobody_listens_that_is_said_at_once_and_a_cluster_without_cores_is_none() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        nobody = ckpttool.library.on_ray(f"127.0.0.1:{port}")
        with fake_ray(joined=False), pytest.raises(IncompleteError, match="no Ray cluster responds"), nobody:
            pass
    with fake_ray(cores=0), pytest.raises(IncompleteError, match="no cores"), ckpttool.library.on_ray():
        pass


@pytest.mark.parametrize(
    ("refusal", "code", "says"),
    [
        (ConnectionError("\n its GCS does not answer\n  File x\n"), ExitCode.INCOMPLETE, "its GCS does not answer"),
        (TimeoutError(), ExitCode.INCOMPLETE, "TimeoutError"),
        (RuntimeError("Version mismatch: 2.9\nhere 2.8"), ExitCode.USAGE, "Version mismatch: 2.9"),
    ],
)
def test_why_a_cluster_that_listens_is_not_joined_is_said_in_a_line(
    refusal: Exception, code: ExitCode, says: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listens, fake_ray(joined=False) as ray:
        ray.refusal = refusal
        address = f"127.0.0.1:{listens.getsockname()[1]}"
        with pytest.raises(CkptToolError, match=rf"{address}.*: {says}$") as refused, ckpttool.library.on_ray(address):
            pass
    assert refused.value.exit_code is code


def test_each_node_writes_down_what_it_sees_and_a_lost_one_is_named(tmp_path: Path) -> None:
    out = f"{tmp_path}/parts/"
    question = PartQuestion(tree=TreeQuestion(path=TREE), check=CheckQuestion(), out=out, run="look")
    with fake_ray() as ray, ckpttool.library.on_ray():
        ray.lost = {"id-b"}
        found = list(ckpttool.library.parts_of_nodes(question))
    lost = [each for each in found if isinstance(each, IncompleteError)]
    assert ["the node b was lost" in str(each) for each in lost] == [True]
    assert sorted(path.name for path in Path(out).iterdir()) == [
        "look.00001-of-00003.ckptpart",
        "look.00003-of-00003.ckptpart",
    ]
    plan = ckpttool.resolve(TreeQuestion(path=out)).to_dict()
    assert plan["parts"]["missing"] == [2]


def test_a_node_that_is_known_to_be_dead_has_a_part_too_and_nobody_has_it(tmp_path: Path) -> None:
    question = PartQuestion(tree=TreeQuestion(path=TREE), check=CheckQuestion(), out=f"{tmp_path}/parts/")
    with fake_ray() as ray, ckpttool.library.on_ray():
        ray.dead = {"a"}
        found = list(ckpttool.library.parts_of_nodes(question))
    assert [isinstance(each, IncompleteError) for each in found] == [False, False, True]
    assert ckpttool.resolve(TreeQuestion(path=f"{tmp_path}/parts/")).to_dict()["parts"]["missing"] == [3]


def test_parts_of_nodes_need_a_cluster_and_a_folder_and_numbers_of_nobody(tmp_path: Path) -> None:
    question = PartQuestion(tree=TreeQuestion(path=TREE), check=CheckQuestion(), out=f"{tmp_path}/parts/")
    with pytest.raises(UsageError, match="on_ray"):
        next(ckpttool.library.parts_of_nodes(question))
    with fake_ray(), ckpttool.library.on_ray():
        for wrong in (replace(question, part="1/3"), replace(question, devices_per_node=8)):
            with pytest.raises(UsageError, match="numbers the nodes in any order"):
                next(ckpttool.library.parts_of_nodes(wrong))
        with pytest.raises(UsageError, match="name a folder"):
            next(ckpttool.library.parts_of_nodes(replace(question, out=str(tmp_path / "one.ckptpart"))))


def test_on_the_command_line_every_command_that_reads_takes_the_engine(tmp_path: Path) -> None:
    with fake_ray():
        assert ask("verify", TREE, "--engine", "ray").code == 0
        assert ask("resolve", TREE, "--engine", "ray", "--json").json == ask("resolve", TREE, "--json").json
        said = ask("part", TREE, "--engine", "ray", "--out", f"{tmp_path}/parts/")
        assert said.code == 0, said.stderr
        assert ask("verify", f"{tmp_path}/parts").code == 0
    assert "--engine ray" in ask("verify", TREE, "--ray-address", "127.0.0.1:6379").stderr
    assert ask("verify", TREE, "--ray-address", "127.0.0.1:6379").code == 2
