"""Unified safetensors: one checkpoint that all ranks share, as whole as its map says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckpttool.core.domain.checkpoint import CommitState, Inventory
from ckpttool.core.domain.finding import Code, Finding, Row, Severity
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.storage.local import LocalStorage
from ckpttool.trainers.listing import list_root
from ckpttool.trainers.mindformers.layouts.unified import MindFormersUnified
from tests.support.answers import chosen, plan, refusal, why_not
from tests.support.faulty_storages import BROKEN, FaultyStorage, scan
from tests.support.trees import floats, safetensors_bytes, training_scalars

MAP = "param_name_map.json"
HYPER = "hyper_param.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two parts, their map in MindSpore 2.10's form, and the training scalars."""
    scalars = training_scalars(epoch=15, true_step=30)
    (tmp_path / HYPER).write_bytes(safetensors_bytes(scalars, {"format": "ms"}))
    weights = {"dense.bias": "part0.safetensors", "dense.weight": "part1.safetensors"}
    for name, part in weights.items():
        (tmp_path / part).write_bytes(safetensors_bytes([floats(name, [8])], {"format": "ms"}))
    (tmp_path / MAP).write_text(json.dumps({"metadata": {"total_size": 64}, "weight_map": weights}))
    return tmp_path


def local(folder: Path) -> Inventory:
    return scan(LocalStorage(str(folder)))


def findings(folder: Path) -> tuple[Finding, ...]:
    (one,) = local(folder).checkpoints
    return one.findings


def test_it_is_one_checkpoint_at_the_step_that_the_scalars_tell(folder: Path) -> None:
    inventory = local(folder)
    (one,) = inventory.checkpoints
    assert (one.name, one.step, one.step_source, one.commit) == ("unified", 30, "content", CommitState.COMMITTED)
    assert one.scalars.global_batch_size == 8
    assert [(shard.path, shard.rank, shard.role) for shard in one.shards] == [
        ("part0.safetensors", None, ShardRole.UNIFIED),
        ("part1.safetensors", None, ShardRole.UNIFIED),
        (HYPER, None, ShardRole.SCALARS),
    ]
    assert one.expected == (HYPER, "part0.safetensors", "part1.safetensors")
    assert (one.findings, inventory.findings) == ((), ())


def test_a_part_that_the_map_names_and_is_gone_is_missed(folder: Path) -> None:
    assert chosen(plan(folder)) == ("unified", 30)
    (folder / "part1.safetensors").unlink()
    answer = refusal(folder)
    assert why_not(answer) == [("unified", {Code.SHARD_MISSING})]
    assert answer.rejected[0].reasons[0].path == "part1.safetensors"


@pytest.mark.parametrize(
    ("content", "code", "severity"),
    [
        (None, Code.METADATA_INCOMPLETE, Severity.DAMAGE),
        ("{", Code.META_UNREADABLE, Severity.DAMAGE),
        ('{"dense.bias": 1}', Code.META_UNREADABLE, Severity.DAMAGE),
        ('{"dense.bias": "../x.safetensors"}', Code.UNSAFE_NAME, Severity.UNSAFE),
        ('{"dense.bias": "/etc/passwd"}', Code.UNSAFE_NAME, Severity.UNSAFE),
    ],
)
def test_a_map_that_cannot_be_followed(folder: Path, content: str | None, code: Row, severity: Severity) -> None:
    if content is None:
        (folder / MAP).unlink()
    else:
        (folder / MAP).write_text(content)
    (found,) = findings(folder)
    assert (found.code, found.severity, found.path) == (code, severity, MAP)
    (one,) = local(folder).checkpoints
    assert (one.expected, one.commit) == (None, CommitState.UNKNOWN)


@pytest.mark.parametrize("content", [b"", b"not safetensors"])
def test_scalars_that_cannot_be_read_tell_no_step(folder: Path, content: bytes) -> None:
    (folder / HYPER).write_bytes(content)
    (one,) = local(folder).checkpoints
    assert (one.step, one.step_source, one.label, one.scalars) == (None, "unknown", None, Scalars())
    assert refusal(folder).rejected[0].checkpoint.name == "unified"


def test_scalars_that_the_disk_withholds_tell_none_either(folder: Path) -> None:
    (one,) = scan(FaultyStorage(str(folder), {HYPER: BROKEN})).checkpoints
    assert one.step is None


def test_the_layout_is_known_by_the_file_of_scalars(folder: Path) -> None:
    layout = MindFormersUnified()
    assert layout.signs.recognise(list_root(LocalStorage(str(folder))))
    (folder / HYPER).unlink()
    assert not layout.signs.recognise(list_root(LocalStorage(str(folder))))
