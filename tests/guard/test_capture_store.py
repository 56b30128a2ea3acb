"""A capture is whole or not there, costs no more than it may, and leaves the training as it was."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ckpttool
from ckpttool.core.domain.guarding import GuardEventKind
from ckpttool.core.domain.units import ByteCount, Step
from ckpttool.guard import CaptureBudget, CaptureSettings, Guard, randomness
from ckpttool.guard.capture import shard
from ckpttool.guard.capture import store as store_module
from ckpttool.guard.capture.memory import Remembered, StepMemory
from ckpttool.guard.capture.store import CaptureStore, StepFacts
from ckpttool.guard.findings import GuardCode
from ckpttool.guard.model.capture import Capture, CaptureLevel, NanQuestion
from tests.guard.capturing import HardNet, batches, loss_of, place, train
from tests.guard.loop import Told


def read(path: str) -> Capture:
    found = ckpttool.library.inspect_nan(path)
    assert isinstance(found, Capture)
    return found


def a_step(model: nn.Module, *, batch: dict[str, Any] | None = None, change: bool = False) -> StepMemory:
    """Compute one step that is not finite, and remember it."""
    memory = StepMemory(model)
    model.zero_grad()
    for each in batches(1)[0] if batch is None else [batch]:
        memory.micro(each)
        loss = loss_of(model, each)
        memory.loss(loss)
        loss.backward()
        if change:
            each["items"].add_(1)
    return memory


def store(folder: Path, model: nn.Module, told: Told, **settings: Any) -> CaptureStore:  # noqa: ANN401  as settings
    return CaptureStore(str(folder), model, emit=told, settings=CaptureSettings(**settings))


def captured(folder: Path, **settings: Any) -> tuple[Capture | None, Told]:  # noqa: ANN401  as above
    torch.manual_seed(0)
    model, told = HardNet(), Told()
    path = store(folder, model, told, **settings).capture(a_step(model), StepFacts(step=Step(7)))
    return (None if path is None else read(path)), told


def everything(model: nn.Module) -> list[object]:
    state = [(name, value.clone()) for name, value in (*model.named_parameters(), *model.named_buffers())]
    gradients = [None if each.grad is None else each.grad.clone() for each in model.parameters()]
    kept = randomness.states()
    flat = [*(value for _, value in state), *(each for each in gradients if each is not None), kept["torch"]]
    return [bytes(each.detach().reshape(-1).view(torch.uint8).numpy()) for each in flat if isinstance(each, Tensor)] + [
        kept["python"]
    ]


def test_a_capture_leaves_weights_gradients_buffers_and_chance_as_they_were(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, told = HardNet(), Told()
    memory = a_step(model)
    before = everything(model)
    assert store(tmp_path, model, told, loss_of=loss_of).capture(memory, StepFacts(step=Step(1))) is not None
    assert everything(model) == before
    assert told.kinds() == ["capture"]


@pytest.mark.parametrize("mode", ["act", "watch"])
def test_a_training_with_captures_is_equal_in_every_bit_to_one_without(mode: str, tmp_path: Path) -> None:
    made = batches(5)
    made[2], made[4] = made[4], made[2]  # the bad one in the middle
    runs = []
    for output, settings in ((tmp_path / "a", CaptureSettings(loss_of=loss_of)), (tmp_path / "b", None)):
        torch.manual_seed(5)
        _, model = train(
            output, model=HardNet(), made=made, capture=settings or CaptureSettings(budget=NOTHING), mode=mode
        )
        runs.append(everything(model))
    assert runs[0] == runs[1]
    assert (tmp_path / "a/guard/captures").is_dir()
    assert not (tmp_path / "b/guard/captures").exists()


NOTHING = CaptureBudget(captures=0, light_captures=0, reruns=0)


def test_what_cannot_be_written_is_taken_away_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stream", "rank_bytes", "head_bytes"):

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(shard, name, full)
            capture, told = captured(tmp_path)
        assert capture is None
        (event,) = told.of(GuardEventKind.CAPTURE_FAILED)
        assert "No space left on device" in str(event["error"])
        assert list((tmp_path / "captures").iterdir()) == []
    assert captured(tmp_path)[0] is not None


def test_a_disk_that_takes_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hung = threading.Event()

    def hangs(path: str, blocks: Iterable[object], **_: object) -> None:
        hung.wait(30)
        for _block in blocks:
            Path(path).touch()

    monkeypatch.setattr(shard, "stream", hangs)
    capture, told = captured(tmp_path, budget=CaptureBudget(io_timeout=0.2))
    assert capture is None
    assert "accepted no data for 0.2 s" in str(told.of(GuardEventKind.CAPTURE_FAILED)[0]["error"])
    hung.set()
    for thread in threading.enumerate():
        if thread.name == "ckpttool-capture":
            thread.join(10)
    assert list((tmp_path / "captures").iterdir()) == []


def test_over_the_budget_a_capture_is_light_and_then_there_is_none(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, told = HardNet(), Told()
    kept = store(tmp_path, model, told, budget=CaptureBudget(captures=2, light_captures=2, every_steps=10))
    paths = [kept.capture(a_step(model), StepFacts(step=Step(step))) for step in (1, 5, 11, 30, 50)]
    levels = [None if path is None else read(path).ranks[0].level for path in paths]
    full, light = CaptureLevel.FULL, CaptureLevel.LIGHT
    assert levels == [full, light, full, light, None]
    again = store(tmp_path, model, told, budget=CaptureBudget(captures=2, light_captures=3, every_steps=10))
    again.restore(json.loads(json.dumps(kept.saved())))
    path = again.capture(a_step(model), StepFacts(step=Step(70)))
    assert path is not None
    assert read(path).ranks[0].level is light
    assert again.capture(a_step(model), StepFacts(step=Step(71))) is None


@pytest.mark.parametrize("why", ["size", "room"])
def test_what_is_too_large_or_leaves_no_room_for_checkpoints_is_light(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = CaptureBudget(nbytes=ByteCount(100)) if why == "size" else CaptureBudget()
    if why == "room":
        monkeypatch.setattr(store_module, "_free_bytes", lambda _: 4096)
    capture, _ = captured(tmp_path, budget=budget)
    assert capture is not None
    (rank,) = capture.ranks
    assert rank.level is CaptureLevel.LIGHT
    assert [name for name, _ in rank.weights] == [name for name, _ in HardNet().named_parameters()]


def test_a_batch_changed_in_place_is_told_and_the_next_one_is_copied(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, told = HardNet(), Told()
    kept = store(tmp_path, model, told)
    memory = a_step(model, change=True)
    path = kept.capture(memory, StepFacts(step=Step(1)))
    assert path is not None
    capture = read(path)
    assert [batch.changed for batch in capture.ranks[0].micro_batches] == [True, True]
    assert "inputs-mutated" in {finding.code.value for finding in capture.findings}
    memory.forget()
    batch = {"items": torch.ones(6, 8)}
    memory.micro(batch)
    batch["items"].zero_()
    assert bool((memory.micro_batches[0].batch["items"] == 1).all())  # type: ignore[index]
    assert not memory.micro_batches[0].was_changed


@pytest.mark.parametrize("way", ["data", "numpy"])
def test_a_change_that_torch_does_not_count_is_seen_by_the_batchs_hash(way: str) -> None:
    memory = StepMemory(nn.Linear(1, 1))
    items, rest = torch.ones(4), torch.zeros(2)
    batch = {"items": items, "rest": [rest]}
    memory.micro(batch)
    assert not memory.micro_batches[0].was_changed
    if way == "data":
        items.data[0] = 3
    else:
        np.asarray(rest)[1] = 1
    assert not memory.micro_batches[0].was_moved
    assert memory.micro_batches[0].was_changed


def test_a_loss_is_captured_as_it_was_if_the_training_uses_its_memory_again() -> None:
    memory, loss = StepMemory(nn.Linear(1, 1)), torch.zeros(())
    for value in (2.0, 3.0):
        memory.micro(torch.ones(1))
        memory.loss(loss.fill_(value))
    assert [None if micro.loss is None else float(micro.loss) for micro in memory.micro_batches] == [2.0, 3.0]


def accumulated(output: Path, room: int) -> tuple[Told, list[float]]:
    """Train one step of four micro-batches of 24 kB, the second of which is not finite."""
    torch.manual_seed(0)
    model, told = nn.Linear(1000, 1), Told()

    def loss_of(model: nn.Module, batch: object) -> Tensor:
        return cast("Tensor", model(cast("dict[str, Tensor]", batch)["items"])).mean()

    budget = CaptureBudget(host_batches=ByteCount(room))
    settings = CaptureSettings(budget=budget, loss_of=loss_of)
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), output=output, sinks=[told], capture=settings)
    held = []
    for number in range(4):
        items = torch.randn(6, 1000)
        if number == 1:
            items[0, 0] = float("nan")
        with guard.micro({"items": items, "sizes": (items.shape, "text")}) as micro:
            micro.loss(loss := model(items).mean()).backward()
        memory = guard._memory  # noqa: SLF001  nobody else tells what is held
        assert memory is not None
        held.append(float(sum(each.nbytes(on_host=True) for each in memory.micro_batches)))
        assert not loss.isnan() or number == 1
    guard.clip_(1.0)
    return told, held


def test_the_batches_of_an_accumulated_step_stay_within_their_budget_and_the_capture_says_so(tmp_path: Path) -> None:
    told, held = accumulated(tmp_path, 50_000)
    assert held == [24_000.0, 48_000.0, 72_000.0, 72_000.0], "what the training itself holds comes on top"
    assert told.kinds() == ["capture", "nonfinite"], "and it is not computed again in place from less than all"
    (rank,) = read(place(tmp_path, 1)).ranks
    assert rank.level is CaptureLevel.LIGHT, "it cannot be replayed, so it takes none of the whole ones' places"
    left_out = [micro.left_out for micro in rank.micro_batches]
    assert [each is None for each in left_out] == [True, True, False, True]
    assert left_out[2] is not None
    assert left_out[2].is_over_budget
    assert "float32 6×1000 xxh3-64 " in left_out[2].reason
    found = ckpttool.library.inspect_nan(place(tmp_path, 1))
    assert isinstance(found, Capture)
    (noted,) = [finding for finding in found.findings if finding.code is GuardCode.CAPTURE_INCOMPLETE]
    assert noted.remedy is not None
    assert "host_batches" in noted.remedy


def test_an_accumulated_step_within_its_budget_is_kept_whole(tmp_path: Path) -> None:
    told, held = accumulated(tmp_path, 72_000)
    assert held[-1] == 96_000
    (rank,) = read(place(tmp_path, 1)).ranks
    assert rank.level is CaptureLevel.FULL
    assert [micro.left_out for micro in rank.micro_batches] == [None] * 4
    assert rank.rerun is not None
    assert told.kinds() == ["capture", "nonfinite"]


class Pair(NamedTuple):
    items: Tensor
    label: str


def test_a_batch_that_moves_to_the_host_is_the_same_batch() -> None:
    batch = [Pair(torch.ones(3, requires_grad=True), "a"), {"rest": (torch.zeros(2),)}]
    micro = Remembered(batch, None, {}, cloned=False)
    assert (micro.nbytes(on_host=True), micro.nbytes(on_host=False)) == (20, 0)
    cast("list[Any]", batch)[1]["rest"][0].add_(1)
    micro.move_to_host()
    pair, rest = cast("list[Any]", micro.batch)
    assert isinstance(pair, Pair)
    assert pair.items.requires_grad
    assert rest["rest"][0].tolist() == [1, 1]
    assert micro.was_changed, "that it was changed before is not forgotten"
    micro.drop("beyond it")
    assert (micro.batch, micro.was_changed) == (None, True)
    nothing = Remembered("text", None, {}, cloned=False)
    nothing.drop("beyond it")
    assert nothing.let_go == "beyond it; fingerprint: no tensors"


def test_a_device_that_is_full_of_earlier_batches_gives_the_oldest_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[object] = []
    memory = StepMemory(nn.Linear(1, 1), device_batches=20)

    def nbytes(micro: Remembered, *, on_host: bool) -> int:
        return 16 if (micro.index in moved) is on_host else 0

    monkeypatch.setattr(Remembered, "nbytes", nbytes)
    monkeypatch.setattr(Remembered, "move_to_host", lambda micro: moved.append(micro.index))
    for number in range(4):
        memory.micro(torch.ones(4), index=number)
    assert moved == [0, 1]


class Strange:
    pass


def test_of_a_batch_of_own_classes_the_rest_is_kept_and_its_place_is_told(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, told = HardNet(), Told()
    strange = {**batches(1)[0][1], "meta": [Strange()]}
    path = store(tmp_path, model, told).capture(a_step(model, batch=strange), StepFacts(step=Step(1)))
    assert path is not None
    left_out = read(path).ranks[0].micro_batches[0].left_out
    assert left_out is not None
    assert (left_out.path, left_out.reason) == ("meta[0]", "tests.guard.test_capture_store.Strange")
    answer = ckpttool.library.replay_nan(NanQuestion(path=path, entry="tests.guard.capturing:replay", locate=False))
    cannot = next(each for each in answer.findings if each.severity)
    assert "its batch was not saved: meta[0] is" in cannot.message
    assert "encode_batch" in str(cannot.remedy)

    def plain(batch: object) -> object:
        assert isinstance(batch, dict)
        return {key: value for key, value in batch.items() if key != "meta"}

    path = store(tmp_path, model, told, encode_batch=plain).capture(
        a_step(model, batch=strange), StepFacts(step=Step(2))
    )
    assert path is not None
    assert read(path).ranks[0].micro_batches[0].left_out is None


def test_a_sparse_batch_counts_by_the_elements_that_it_holds() -> None:
    micro = Remembered(torch.eye(100).to_sparse(), None, {}, cloned=False)
    assert micro.nbytes(on_host=True) == 100 * (4 + 2 * 8)
    micro.drop("beyond it")
    assert micro.let_go == "beyond it; fingerprint: float32 100×100 unread"


def test_the_same_step_captured_after_a_restart_is_another_capture(tmp_path: Path) -> None:
    first, second = (captured(tmp_path)[0] for _ in range(2))
    assert first is not None
    assert second is not None
    assert [Path(capture.path).name for capture in (first, second)] == ["nan-at-00000007", "nan-at-00000007-1"]
    digests = [[each.xxh3_128 for each in capture.ranks[0].gradients] for capture in (first, second)]
    assert digests[0] == digests[1]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_model_can_be_exported_while_a_guard_keeps_its_steps(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), output=tmp_path)
    for called in (True, False):
        with guard.micro(torch.ones(1, 2)) as micro:
            micro.loss(model(torch.ones(1, 2)).sum() if called else torch.ones(()))
            assert hooks(model) == (0 if called else 1), "on the module that was called first, until it is called"
        torch.jit.script(model)
    guard.micro(torch.ones(1, 2)).__enter__()
    guard.close()
    torch.jit.script(model)
    assert hooks(model) == 0


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_pre_hooks) for module in model.modules())  # noqa: SLF001  torch has no public name
