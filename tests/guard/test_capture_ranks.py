"""Two processes: each keeps its own part, the rank with the bad batch is named, and their mean is what was reduced."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ckpttool import api
from ckpttool.domain.capture import Capture, NanQuestion, NanVerdict
from ckpttool.guard import CaptureSettings, Guard
from tests.guard.capturing import HardNet, batches, loss_of, place
from tests.guard.loop import Told
from tests.guard.ranks import on_two_ranks

ENTRY = "tests.guard.capturing:replay"


def wrapped(model: nn.Module, how: str) -> nn.Module:
    return DistributedDataParallel(model) if how == "ddp" else cast("nn.Module", fully_shard(model))


def train(rank: int, *, output: str, again: bool, wrap: str = "ddp") -> list[str]:
    """Train three steps, of which the last has a gradient on rank 1 that is not finite; every loss is finite."""
    torch.manual_seed(5)
    model = wrapped(HardNet(), wrap)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    settings = CaptureSettings(loss_of=loss_of) if again else CaptureSettings()
    told = Told()
    guard = Guard(model, optimizer, output=output, sinks=[told], capture=settings)
    torch.manual_seed(100 + rank)
    made = batches()
    if rank == 0:
        made[-1][-1]["weight"].fill_(1)
    for first, second in made:
        for batch in (first, second):
            batch["items"] += rank
            waits = isinstance(model, DistributedDataParallel) and batch is first
            with model.no_sync() if waits else nullcontext(), guard.micro(batch) as micro:  # type: ignore[operator]
                micro.loss(loss := loss_of(model, batch))
                loss.backward()
        guard.clip_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    weights = [value.full_tensor() if hasattr(value, "full_tensor") else value for value in model.parameters()]
    finite = all(bool(torch.isfinite(weight).all()) for weight in weights)
    return [*told.kinds(), "finite" if finite else "poisoned"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Any]]]:
    """All three ways in one start of two processes."""
    folder = tmp_path_factory.mktemp("ranks")
    cases = {
        "again": partial(train, output=str(folder / "again"), again=True),
        "once": partial(train, output=str(folder / "once"), again=False),
        "sharded": partial(train, output=str(folder / "sharded"), again=True, wrap="fsdp"),
    }
    return folder, on_two_ranks(cases, folder)


def read(path: str) -> Capture:
    found = api.inspect_nan(path)
    assert isinstance(found, Capture)
    return found


def test_both_ranks_capture_and_drop_and_neither_waits(trained: tuple[Path, dict[str, list[Any]]]) -> None:
    _, told = trained
    assert told["again"] == [["capture", "nonfinite", "finite"]] * 2
    assert told["once"] == [["capture", "nonfinite", "finite"]] * 2
    assert told["sharded"] == [["capture", "nonfinite", "finite"]] * 2


def test_the_rank_with_the_bad_batch_is_named_though_every_loss_was_finite(
    trained: tuple[Path, dict[str, list[Any]]],
) -> None:
    folder, _ = trained
    capture = read(place(folder / "again"))
    assert capture.findings == ()
    assert all(rank.bad_losses == 0 and rank.bad_gradients for rank in capture.ranks)
    assert [culprit.rank for culprit in capture.culprits] == [1]
    assert read(place(folder / "once")).culprits == ()


@pytest.mark.parametrize("how", ["again", "once"])
def test_the_mean_of_both_replays_is_the_reduced_gradient_in_every_bit(
    how: str, trained: tuple[Path, dict[str, list[Any]]]
) -> None:
    folder, _ = trained
    answer = api.replay_nan(NanQuestion(path=place(folder / how), entry=ENTRY, exact=True))
    assert answer.reproduced
    assert [rank.is_finite for rank in answer.ranks] == [True, False]
    assert [rank.gradients_equal == rank.gradients > 10 for rank in answer.ranks] == [True, True]
    assert answer.origin is not None
    assert (answer.origin.rank, answer.origin.op, answer.origin.phase) == (1, "sqrt", "backward")


def test_one_rank_alone_is_held_against_its_own_run_in_place(trained: tuple[Path, dict[str, list[Any]]]) -> None:
    folder, _ = trained
    for rank, finite in ((0, True), (1, False)):
        question = NanQuestion(path=place(folder / "again"), entry=ENTRY, ranks=(rank,), exact=True, locate=False)
        answer = api.replay_nan(question)
        assert (answer.reproduced, answer.ranks[0].is_finite) == (True, finite)
        assert answer.ranks[0].gradients > 10
    question = NanQuestion(path=place(folder / "once"), entry=ENTRY, ranks=(1,), locate=False)
    answer = api.replay_nan(question)
    assert (answer.reproduced, answer.ranks[0].gradients) == (True, 0)  # nobody knows its own gradients


def test_a_rank_whose_files_are_elsewhere_stops_no_other(
    trained: tuple[Path, dict[str, list[Any]]], tmp_path: Path
) -> None:
    folder, _ = trained
    here = tmp_path / "nan-at-00000003"
    here.mkdir()
    for name in ("r00001.json", "r00001.safetensors"):
        (here / name).write_bytes(Path(place(folder / "again"), name).read_bytes())
    capture = read(str(here))
    assert [finding.code.value for finding in capture.findings] == ["capture-incomplete"]
    assert [culprit.rank for culprit in capture.culprits] == [1]
    answer = api.replay_nan(NanQuestion(path=str(here), entry=ENTRY, ranks=(1,), exact=True, locate=False))
    assert answer.reproduced
    assert not api.replay_nan(NanQuestion(path=str(here), entry=ENTRY, locate=False)).reproduced


def test_sharded_weights_are_put_together_from_all_ranks(
    trained: tuple[Path, dict[str, list[Any]]], tmp_path: Path
) -> None:
    folder, _ = trained
    answer = api.replay_nan(NanQuestion(path=place(folder / "sharded"), entry=ENTRY))
    assert answer.findings == ()
    assert [rank.losses_equal for rank in answer.ranks] == [2, 2]
    assert answer.verdict is NanVerdict.DATA_OR_MODEL
    assert answer.origin is not None
    assert (answer.origin.rank, answer.origin.op) == (1, "sqrt")
    here = tmp_path / "nan-at-00000003"
    here.mkdir()
    for name in ("r00001.json", "r00001.safetensors"):
        (here / name).write_bytes(Path(place(folder / "sharded"), name).read_bytes())
    answer = api.replay_nan(NanQuestion(path=str(here), entry=ENTRY, ranks=(1,)))
    assert "cannot be put together: 2 parts were saved, and 1 are here" in answer.findings[-1].message
