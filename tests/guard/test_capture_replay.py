"""A captured step comes out in every bit, and does not if anything about it is another."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import cast

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import ckpttool
from ckpttool.core.domain.guarding import GuardEventKind
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import ExitCode
from ckpttool.guard import CaptureBudget, CaptureSettings, Guard
from ckpttool.guard.buffers import Buffers
from ckpttool.guard.capture.memory import StepMemory, callable_parts
from ckpttool.guard.capture.store import CaptureStore, StepFacts
from ckpttool.guard.model.capture import Capture, NanQuestion, NanReplay, NanVerdict, OriginKind
from tests.guard import capturing
from tests.guard.capturing import place, train
from tests.guard.faulty import flip
from tests.guard.loop import Told


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A capture in float32."""
    output = tmp_path_factory.mktemp("captured")
    train(output, capture=CaptureSettings(loss_of=capturing.loss_of))
    return place(output)


def replayed(path: str, entry: str = "replay", *, exact: bool = False, locate: bool = False) -> NanReplay:
    entry = f"tests.guard.capturing:{entry}"
    return ckpttool.library.replay_nan(NanQuestion(path=path, entry=entry, exact=exact, locate=locate))


def test_a_batch_lies_where_torch_puts_tensors_and_not_in_the_files_bytes(captured: str) -> None:
    # There a kernel of a CPU may sum in another order, and no step would come out as it was.
    capturing.ADDRESSES.clear()
    assert replayed(captured, "replay_noting_addresses").reproduced
    assert capturing.ADDRESSES
    assert [address % 64 for address in capturing.ADDRESSES] == [0] * len(capturing.ADDRESSES)


@pytest.mark.parametrize("entry", ["other_batch", "other_weight", "other_chance", "mended"])
def test_a_step_of_another_batch_weight_or_chance_does_not_come_out_and_exits_10(captured: str, entry: str) -> None:
    answer = replayed(captured, entry)
    assert answer.exit_code is ExitCode.DAMAGE
    assert not answer.reproduced
    rank = answer.ranks[0]
    if entry == "mended":
        assert rank.pattern_differs
    else:
        assert rank.losses_differ


def test_the_same_step_comes_out_and_exits_0(captured: str) -> None:
    assert replayed(captured).exit_code is ExitCode.OK


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("wider", "has another parameter first.bias (float32 8 captured, float32 16 here)"),
        ("halved", "has another parameter first.bias (float32 8 captured, float64 8 here)"),
        ("lacking", "lacks the parameter first.bias"),
        ("more", "has a parameter that was not captured: extra.weight, extra.bias"),
        ("another_buffer", "has a buffer that was not captured: extra"),
        ("raising", "the entry's own code raised KeyError: 'no such setting'"),
        ("no_model", "the entry returned int"),
        ("no_loss", "the loss does not require a gradient"),
    ],
)
def test_what_does_not_fit_is_said_by_name_and_exits_14(captured: str, entry: str, says: str) -> None:
    answer = replayed(captured, entry)
    assert answer.exit_code is ExitCode.INCOMPLETE
    (finding,) = answer.findings
    assert finding.code.value == "entry-does-not-fit"
    assert says in finding.message
    assert (answer.ranks, answer.verdict) == ((), NanVerdict.UNDECIDED)


def test_threads_and_switches_are_as_they_were_while_it_runs_and_as_they_are_behind_it(captured: str) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        answer = replayed(captured, exact=True)
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)
    assert answer.reproduced
    assert [difference.what for difference in answer.environment] == []


@pytest.mark.parametrize("weight", [2.0, float("inf")])
def test_a_step_of_sparse_gradients_is_captured_and_comes_out_again(weight: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, told = capturing.embedding(), Told()
    optimizer = torch.optim.SparseAdam(list(model.parameters()))
    guard = Guard(model, optimizer, output=tmp_path, sinks=[told])
    batch = {"ids": torch.tensor([1, 3, 3]), "weight": torch.tensor([1.0, weight, 1.0])[:, None]}
    with guard.micro(batch) as micro:
        micro.loss(loss := (model(batch["ids"]) * batch["weight"]).sum()).backward()
    guard.clip_(1.0)
    optimizer.step()
    guard.close()
    assert bool(torch.isfinite(loss)) == guard.applied
    assert told.kinds() == ([] if weight == 2.0 else ["capture", "nonfinite"])
    if told.kinds():
        answer = replayed(place(tmp_path, 1), "replay_embedding", exact=True, locate=True)
        assert answer.reproduced
        assert [gradient.shape for gradient in answer.ranks[0].nonfinite] == [(5, 3)]
        assert answer.origin is not None
        assert (answer.origin.kind, answer.origin.op) == (OriginKind.INPUT, "weight")


def test_a_light_capture_takes_its_weights_from_a_file_and_no_other_weights(tmp_path: Path) -> None:
    light = CaptureSettings(budget=CaptureBudget(captures=0))
    _, model = train(tmp_path, capture=light)
    (finding,) = replayed(place(tmp_path)).findings
    assert "has no weights" in finding.message
    assert "--weights" in str(finding.remedy)
    weights = str(tmp_path / "weights.safetensors")
    save_file({f"model.{name}": value.detach().clone() for name, value in model.named_parameters()}, weights)
    question = NanQuestion(path=place(tmp_path), entry="tests.guard.capturing:replay", exact=True, weights=weights)
    assert ckpttool.library.replay_nan(question).reproduced
    # A save has more than weights.
    more = {"model.norm.running_mean": torch.ones(8), "optimizer.head.bias.exp_avg": torch.ones(1)}
    named = {f"model.{name}": value.detach().clone() for name, value in model.named_parameters()}
    save_file({**named, **more}, weights)
    assert ckpttool.library.replay_nan(question).reproduced
    save_file({f"model.{name}": value.detach() + 1 for name, value in model.named_parameters()}, weights)
    answer = ckpttool.library.replay_nan(question)
    assert answer.exit_code is ExitCode.INCOMPLETE
    assert "differ from the captured ones" in answer.findings[0].message


def test_a_whole_capture_can_be_computed_with_other_weights(captured: str, tmp_path: Path) -> None:
    torch.manual_seed(77)
    weights = str(tmp_path / "weights.safetensors")
    save_file({name: value.detach().clone() for name, value in capturing.HardNet().named_parameters()}, weights)
    question = NanQuestion(path=captured, entry="tests.guard.capturing:replay", weights=weights, locate=False)
    answer = ckpttool.library.replay_nan(question)
    assert answer.exit_code is ExitCode.DAMAGE
    assert answer.ranks[0].losses_differ == (0, 1)
    assert not answer.ranks[0].is_finite  # it is the batch


def test_what_is_finite_when_computed_at_once_again_is_transient(tmp_path: Path) -> None:
    def once_more(model: torch.nn.Module, batch: object) -> torch.Tensor:
        assert isinstance(batch, dict)
        return capturing.loss_of(model, {**batch, "weight": torch.ones(6)})

    told, _ = train(tmp_path, capture=CaptureSettings(loss_of=once_more))
    assert told.kinds() == ["transient", "capture", "nonfinite"]
    answer = replayed(place(tmp_path))
    assert (answer.verdict, answer.reproduced) == (NanVerdict.TRANSIENT, True)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_the_autocast_of_a_forward_that_a_trainer_put_in_place_of_the_models_own_is_seen(*, is_replaced: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    autocast = torch.autocast("cpu", dtype=torch.bfloat16)
    if is_replaced:  # as accelerate does it
        model.forward = autocast(model.forward)  # type: ignore[method-assign]
    memory = StepMemory(model)
    memory.micro(torch.ones(1, 2))
    with nullcontext() if is_replaced else autocast:
        model(torch.ones(1, 2))
    assert memory.micro_batches[0].inner_autocast == (("cpu", "bfloat16"),)


def test_a_loss_scalers_factor_goes_in_and_out_as_it_did(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, told = capturing.HardNet(), Told()
    memory, scale = StepMemory(model), 1024.0
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    buffers = Buffers(model)
    buffers.take()
    for batch in capturing.batches(1)[0]:
        memory.micro(batch)
        memory.loss(loss := capturing.loss_of(model, batch))
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    settings = CaptureSettings(loss_of=capturing.loss_of)
    store = CaptureStore(str(tmp_path), model, emit=told, settings=settings)
    path = store.capture(memory, StepFacts(step=Step(1), scale=scale, restore_buffers=buffers.restore))
    assert path is not None
    answer = replayed(path, exact=True)
    assert answer.reproduced
    assert answer.ranks[0].gradients_equal == answer.ranks[0].gradients > 10


def healthy_batches() -> list[list[dict[str, torch.Tensor]]]:
    made = capturing.batches(1)
    made[-1][-1]["weight"][2] = 1
    return made


@pytest.mark.parametrize("name", ["head.weight", "first.parametrizations.weight.original"])
def test_a_flipped_bit_of_a_weight_is_the_origin(tmp_path: Path, name: str) -> None:
    torch.manual_seed(5)
    model = capturing.HardNet()
    weight = dict(model.named_parameters())[name]
    flip(weight.data.view(-1), (3,), 30)
    flipped = weight.reshape(-1)[3].item()
    assert abs(flipped) > 1e36
    settings = CaptureSettings(loss_of=capturing.loss_of)
    told, _ = train(tmp_path, model=model, made=healthy_batches(), capture=settings)
    assert told.kinds() == ["capture", "nonfinite"], "it is not transient"
    assert told.of(GuardEventKind.CAPTURE)[0]["culprit"] is True
    answer = replayed(place(tmp_path, 1), locate=True)
    assert (answer.reproduced, answer.verdict) == (True, NanVerdict.DATA_OR_MODEL)
    assert [culprit.rank for culprit in answer.culprits] == [0]
    assert answer.origin is not None
    assert (answer.origin.kind, answer.origin.op) == (OriginKind.PARAMETER, name)
    assert answer.origin.value == flipped
    assert answer.origin.times_rms is not None
    assert answer.origin.times_rms > 1e6
    assert not answer.ranks[0].is_finite


@pytest.mark.parametrize("value", [float("nan"), complex(1.0, float("inf"))])
def test_a_training_with_complex_weights_is_captured_and_comes_out_as_it_was(value: complex, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, told = capturing.Spectral(), Told()
    optimizer = torch.optim.Adam(model.parameters())
    guard = Guard(model, optimizer, output=tmp_path, sinks=[told])
    for number in (1, 2):
        signal = torch.randn(4, 6, dtype=torch.cfloat)
        if number == 2:
            signal[0, 0] = torch.tensor(value)
        with guard.micro(signal) as micro:
            micro.loss(loss := model(signal)).backward()
        assert (loss.isfinite().item(), number) in {(True, 1), (False, 2)}
        guard.clip_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert told.kinds() == ["capture", "nonfinite"]
    answer = replayed(place(tmp_path, 2), "replay_spectral", exact=True, locate=True)
    assert answer.reproduced
    assert answer.origin is not None
    assert (answer.origin.kind, answer.origin.op) == (OriginKind.INPUT, "batch")
    (gradient,) = answer.ranks[0].nonfinite
    assert gradient.nan + gradient.positive_inf + gradient.negative_inf > 0


@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize("is_seen", [True, False])
def test_the_autocast_of_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, bf16: bool, is_seen: bool) -> None:
    if not is_seen:
        monkeypatch.setattr(StepMemory, "_called", lambda *_: None)
    torch.manual_seed(0)
    model, told = capturing.Parted(), Told()
    optimizer = torch.optim.AdamW(model.parameters())
    guard = Guard(model, optimizer, output=tmp_path, sinks=[told])
    for number in range(3):
        batch = torch.randn(5, capturing.WIDTH)
        with guard.micro(batch, index=number) as micro:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                micro.loss(loss := model.training_step(batch, number))
            loss.backward()
        guard.clip_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert told.kinds() == ["capture", "nonfinite"]
    answer = replayed(place(tmp_path), "replay_parted", exact=True)
    notes = [finding.message for finding in answer.findings if "autocast" in finding.message]
    if is_seen:
        assert (answer.reproduced, notes) == (True, [])
    else:
        assert notes == ["rank 0: the autocast with which the model was called is unknown; it is computed with none"]


def test_no_hook_of_ours_is_put_inside_a_compiled_module() -> None:
    inner = nn.Sequential(nn.Linear(2, 2))
    model = nn.Sequential(cast("nn.Module", torch.compile(inner, backend="eager")), nn.Linear(2, 2))
    assert callable_parts(model) == [model, model[0], model[1]]
    in_place = nn.Sequential(nn.Linear(2, 2))
    in_place.compile(backend="eager")
    assert callable_parts(in_place) == [in_place]


def test_once_it_is_known_which_module_is_called_first_only_that_one_is_asked() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    memory = StepMemory(model)

    def hooked() -> list[str]:
        return [name for name, module in model.named_modules() if module._forward_pre_hooks]  # noqa: SLF001

    memory.micro(torch.ones(1, 2))
    assert hooked() == ["", "a", "b"]
    model["a"](torch.ones(1, 2))
    assert hooked() == []
    memory.micro(torch.ones(1, 2))
    assert hooked() == ["a"]
    model["b"](torch.ones(1, 2))  # another part comes first, so all are asked again
    memory.micro(torch.ones(1, 2))
    assert hooked() == ["", "a", "b"]
    memory.leave()
    assert hooked() == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("compiles", [True, False])
def test_a_replay_of_compiled_code_without_it_names_the_difference(tmp_path: Path, *, compiles: bool) -> None:
    torch.manual_seed(0)
    model = capturing.Spectral()
    optimizer = torch.optim.Adam(model.parameters())
    guard = Guard(model, optimizer, output=tmp_path)
    computes = torch.compile(model, backend="aot_eager") if compiles else model
    for value in (1.0, float("nan")):
        with guard.micro(signal := torch.full((4, 6), value)) as micro:
            micro.loss(computes(signal)).backward()
        guard.clip_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    found = ckpttool.library.inspect_nan(place(tmp_path, 2))
    assert isinstance(found, Capture)
    assert dict(found.ranks[0].environment)["compiled"] is compiles
    for entry, same in (("replay_spectral", not compiles), ("replay_spectral_compiled", compiles)):
        answer = replayed(place(tmp_path, 2), entry)
        assert ("compiled" in {difference.what for difference in answer.environment}) is not same
        assert any("compiled" in finding.message for finding in answer.findings) is not same
