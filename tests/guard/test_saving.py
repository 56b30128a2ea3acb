"""What a training saves is read by every command, and a resume goes on in every bit, whenever it was killed."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from xxhash import xxh3_128_hexdigest

import ckpttool
from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.guarding import GuardEventKind
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.question import CheckQuestion, TreeQuestion
from ckpttool.core.domain.retention import PruneOrder, RetentionPolicy
from ckpttool.core.domain.units import Step
from ckpttool.core.domain.verdict import Level, Verdict, VerdictWord
from ckpttool.core.errors import IncompleteError, NothingToResumeError, UsageError, WriteFailedError
from ckpttool.guard import Guard
from ckpttool.guard.resume import SeededByIndex
from ckpttool.guard.state_tree import Unsaveable
from ckpttool.types import ResumeQuestion
from tests.guard.loop import SmallNet, Told, batches, loss_of
from tests.guard.resumable import EPOCH, Training, flip, train

STEPS = 18


def never_killed(until: int = STEPS) -> Training:
    training = Training()
    resumed = training.resume(Path("/nowhere"), fresh_ok=True)
    assert list(training.steps(resumed, until)) == list(range(1, until + 1))
    return training


def question(output: Path) -> TreeQuestion:
    return TreeQuestion(path=str(output))


def verdicts(output: Path, name: str = "all") -> list[Verdict]:
    return list(ckpttool.verify(question(output), CheckQuestion(level=Level.CHECKSUM, name=name)).answer().verdicts)


def shard(output: Path, name: str) -> Path:
    return output / f"checkpoint/rank_0/run_rank_0-{name}.safetensors"


def files(output: Path) -> dict[str, bytes]:
    return {str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*") if path.is_file()}


def test_what_was_saved_goes_through_every_command(tmp_path: Path) -> None:
    train(tmp_path, 8)
    newest, *older = ckpttool.scan(question(tmp_path)).inventory.checkpoints[::-1]
    assert [save.name for save in (newest, *older)] == ["2_1", "1_6", "1_4", "1_2"]
    assert (newest.step, dict(newest.facts)["optimizer_step"], newest.samples) == (8, 7, 32)
    assert (newest.scalars.global_batch_size, newest.health) == (4, Health.HEALTHY)
    for verdict in verdicts(tmp_path):
        assert verdict.word is VerdictWord.VERIFIED
        assert [finding for finding in verdict.findings if finding.severity > Severity.NOTE] == []
    assert all(sealing.written and not sealing.findings for sealing in ckpttool.seal(question(tmp_path), "all"))
    decision = ckpttool.resolve(question(tmp_path)).decision
    assert isinstance(decision, ResumePlan)
    assert (decision.point.checkpoint.name, decision.findings) == ("2_1", ())
    order = PruneOrder(apply=True, trash_days=0, grace=0)
    assert ckpttool.prune(question(tmp_path), RetentionPolicy(keep_last=1), order).applied
    assert [path.name for path in (tmp_path / "checkpoint/.ckpttool/birth").iterdir()] == ["run-2_1.r0.json"]
    assert [save.name for save in ckpttool.scan(question(tmp_path)).inventory.checkpoints] == ["2_1"]


@pytest.mark.parametrize("stop", [4, EPOCH + 1, 2 * EPOCH], ids=["in an epoch", "behind its begin", "at its end"])
def test_a_resumed_training_is_equal_in_every_bit_to_one_that_never_stopped(stop: int, tmp_path: Path) -> None:
    first = train(tmp_path, stop, every=stop)
    second = Training()
    resumed = second.resume(tmp_path)
    assert (resumed.step, resumed.applied, resumed.is_checked) == (stop, stop - (stop > 5), True)
    assert resumed.epoch == (stop - 1) // EPOCH + 1
    list(second.steps(resumed, STEPS))
    found = second.bits()
    whole = never_killed()
    assert first.order + second.order == whole.order
    assert found == whole.bits()


def test_a_flipped_bit_is_found_by_the_birth_certificate_alone(tmp_path: Path) -> None:
    train(tmp_path, 4)
    flip(shard(tmp_path, "1_4"))
    with pytest.raises(IncompleteError, match="differs from the written file"):
        Training().resume(tmp_path)
    assert [verdict.word for verdict in verdicts(tmp_path)] == [VerdictWord.DAMAGED, VerdictWord.VERIFIED]
    assert Training().resume(tmp_path).step == 2, "what a check found damaged is remembered"
    plan = tmp_path / "plan.json"
    answer = ckpttool.resolve(question(tmp_path), ResumeQuestion(evidence=Level.CHECKSUM))
    plan.write_text(json.dumps(answer.to_dict()), encoding="utf-8")
    assert Training().resume(plan).step == 2


def test_what_a_plan_leaves_out_is_passed_over_and_nothing_else(tmp_path: Path) -> None:
    train(tmp_path, 4)
    answer = ckpttool.resolve(question(tmp_path), ResumeQuestion()).to_dict()
    handed: dict[int, list[Tensor]] = {}
    for left_out in (0, 2, 9):
        detour = {"checkpoint_step": 4, "skip_batches": left_out}
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps(answer | {"advice": {"kind": "stop", "detour": detour}}), encoding="utf-8")
        training = Training()
        resumed = training.resume(plan)
        assert resumed.left_out == left_out
        handed[left_out] = list(resumed.batches(training.loader))
    assert [len(batches) for batches in handed.values()] == [3, 1, 0], "of seven a epoch, four were trained"
    assert torch.equal(handed[2][0], handed[0][2])


def test_a_save_without_a_certificate_is_loaded_and_said_not_to_be_checked(tmp_path: Path) -> None:
    train(tmp_path, 2)
    (tmp_path / "checkpoint/.ckpttool/birth/run-1_2.r0.json").unlink()
    assert not Training().resume(tmp_path).is_checked


def test_what_needs_a_pickle_is_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    training = Training()
    training.extra["mine"] = {"deep": [object()]}
    with training.writer(tmp_path) as writer:
        before = files(tmp_path)
        with pytest.raises(Unsaveable, match=r"extra\.mine\.deep\[0\]: object"):
            writer.save(step=0)
    assert files(tmp_path) == before


def full_disk(patch: pytest.MonkeyPatch) -> None:
    def write(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(os, "write", write)


@pytest.mark.parametrize("background", [False, True])
def test_a_full_disk_leaves_the_save_before(background: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    writer = training.writer(tmp_path)
    resumed = training.resume(tmp_path, fresh_ok=True)
    steps = training.steps(resumed, 4)
    next(steps)
    writer.save()
    before = files(tmp_path)
    next(steps)
    with monkeypatch.context() as patch:
        full_disk(patch)
        if background:
            writer.save(background=True)
        with pytest.raises(WriteFailedError, match="No space left"):
            writer.close() if background else writer.save()
    assert files(tmp_path) == before
    assert writer.save() == "1_2"
    writer.close()
    assert Training().resume(tmp_path).step == 2


def test_each_save_is_an_event_with_its_digest_and_one_that_failed_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, events = SmallNet(), Told()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard = Guard(model, optimizer, mode="watch", sinks=[events])
    with ckpttool.checkpoint_writer(
        str(tmp_path), prefix="run", model=model, optimizer=optimizer, guard=guard
    ) as writer:
        assert writer.save(step=1) == "1_1"
        with monkeypatch.context() as patch:
            full_disk(patch)
            with pytest.raises(WriteFailedError):
                writer.save(step=2)
    (saved,) = events.of(GuardEventKind.SAVED)
    content = shard(tmp_path, "1_1").read_bytes()
    assert saved["checkpoint"] == "1_1"
    assert (saved["bytes"], saved["digest"]) == (len(content), xxh3_128_hexdigest(content))
    (failed,) = events.of(GuardEventKind.SAVE_FAILED)
    assert "No space left" in str(failed["message"])


def test_a_save_of_the_same_step_takes_the_place_of_the_first(tmp_path: Path) -> None:
    training = Training()
    with training.writer(tmp_path) as writer:
        for seen in (1, 2):
            training.extra["seen"] = seen
            assert writer.save(step=3) == "1_3"
    assert [verdict.word for verdict in verdicts(tmp_path)] == [VerdictWord.VERIFIED]
    again = Training()
    again.resume(tmp_path)
    assert again.extra["seen"] == 2


def test_what_a_killed_writer_left_is_swept_by_the_next_and_no_other_file(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint/rank_0"
    folder.mkdir(parents=True)
    left = {"run_rank_0-1_4.tmp": b"torn", "other_rank_0-1_4.tmp": b"another's", "meta.json.tmp": b"another's"}
    left[".ckpttool-0123456789abcdef.tmp"] = b"a meta.json of ours"
    for name, content in left.items():
        (folder / name).write_bytes(content)
    with Training().writer(tmp_path) as writer:
        assert sorted(path.name for path in folder.iterdir()) == ["meta.json.tmp", "other_rank_0-1_4.tmp"]
        assert writer.save(step=4) == "_1-1_4"


def test_nothing_there_is_an_error_unless_a_training_begins(tmp_path: Path) -> None:
    for output in (tmp_path / "gone", tmp_path):
        with pytest.raises(NothingToResumeError, match="fresh_ok=True"):
            Training().resume(output)
        assert Training().resume(output, fresh_ok=True).checkpoint is None


def without(name: str) -> dict[str, Any]:
    return {**Training().objects, name: None}


def other_model() -> dict[str, Any]:
    training = Training()
    training.model.usual = nn.BatchNorm1d(6, affine=False)
    return training.objects


def other_order() -> dict[str, Any]:
    training = Training()
    optimizer = torch.optim.AdamW(training.model.parameters(), lr=0.1)
    return {**training.objects, "optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.ConstantLR(optimizer)}


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        (lambda: without("scheduler"), "with a scheduler"),
        (lambda: without("loader"), "with a loader"),
        (lambda: without("guard"), "saved with a guard, but the resume has none: pass one"),
        (lambda: {**Training().objects, "extra": {"seen": 0, "mean": 1.0}}, "saved without 'mean' in extra"),
        (other_model, "the model differs from the saved one|the optimizer's parameters, or their order, differ"),
        (other_order, "number 0 was conv.bias, and now is embed.weight"),
        (lambda: {**Training().objects, "loader": DataLoader(SeededByIndex(Noisy(), 1))}, "cannot report its position"),
    ],
)
def test_other_objects_than_those_saved_are_refused(objects: Any, message: str, tmp_path: Path) -> None:  # noqa: ANN401
    train(tmp_path, 2)
    with pytest.raises(UsageError, match=message):
        ckpttool.resume_training(str(tmp_path), **objects())


def test_a_save_without_a_guard_is_gone_on_from_with_one_that_says_what_it_does_not_know(tmp_path: Path) -> None:
    alone = Training()
    alone.guard = None  # type: ignore[assignment]
    with ckpttool.checkpoint_writer(str(tmp_path), prefix="run", **{**alone.objects, "extra": {}}) as writer:
        writer.save(step=4)
    told = Told()
    training = Training()
    training.guard.sinks.append(told)
    resumed = ckpttool.resume_training(str(tmp_path), **training.objects | {"extra": {}})
    assert (resumed.step, training.guard.step) == (4, 4)
    assert told.kinds() == ["blind", "resumed"]


def test_what_was_saved_and_is_not_asked_for_is_put_into_extra(tmp_path: Path) -> None:
    seen = train(tmp_path, 2).extra["seen"]
    training = Training()
    del training.extra["seen"]
    training.resume(tmp_path)
    assert training.extra == {"seen": seen}


def test_what_cannot_be_meant_is_refused_at_the_start(tmp_path: Path) -> None:
    training = Training()
    for prefix in ("", "a-b", "a_rank_b", "../x", "x" * 65):
        with pytest.raises(UsageError, match="prefix"):
            ckpttool.checkpoint_writer(str(tmp_path), prefix=prefix, **training.objects)
    for wrong in (None, 3):
        with pytest.raises(UsageError, match="prefix"):
            ckpttool.checkpoint_writer(str(tmp_path), prefix=wrong, **training.objects)  # type: ignore[arg-type]
    for folder in (b"output", None):
        with pytest.raises(UsageError, match="output must be a path"):
            ckpttool.checkpoint_writer(folder, prefix="x", **training.objects)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="source must be a path"):
            ckpttool.resume_training(folder, **training.objects)  # type: ignore[arg-type]
    for settings in ({"embedding": "embed.weight"}, {"embedding": "gone", "health_threshold": 1.0}):
        with pytest.raises(UsageError, match=r"embedding|no parameter"):
            training.writer(tmp_path, **settings)
    with pytest.raises(UsageError, match="steps_per_epoch"):
        ckpttool.checkpoint_writer(str(tmp_path), prefix="x", **training.objects, steps_per_epoch=0)
    with pytest.raises(UsageError, match=r"save\(step"):
        ckpttool.checkpoint_writer(
            str(tmp_path), prefix="x", model=nn.Linear(1, 1), optimizer=training.optimizer
        ).save()


def test_a_save_in_a_spike_that_was_applied_is_unhealthy_until_it_is_over(tmp_path: Path) -> None:
    model = SmallNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = Guard(model, optimizer, mode="watch")
    marks = {}
    with ckpttool.checkpoint_writer(
        str(tmp_path), prefix="run", model=model, optimizer=optimizer, guard=guard
    ) as writer:
        for number, batch in enumerate(batches(15), 1):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            if number == 3:
                guard.tell(GuardEventKind.SPIKE, step=Step(number), dropped=False)
            marks[writer.save()] = number
    found = {marks[save.name]: save.health for save in ckpttool.scan(question(tmp_path)).inventory.checkpoints}
    assert [step for step, health in found.items() if health is Health.UNHEALTHY] == list(range(3, 14))
    assert {found[step] for step in (1, 2, 14, 15)} == {Health.UNKNOWN}


def test_a_health_file_that_is_not_the_trainers_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "health_ckpts.json").write_text("mine", encoding="utf-8")
    train(tmp_path, 2)
    assert (tmp_path / "health_ckpts.json").read_text(encoding="utf-8") == "mine"


def test_moments_wider_than_their_weights_keep_every_bit(tmp_path: Path) -> None:
    def made() -> dict[str, Any]:
        model = nn.Linear(4, 4).bfloat16()
        return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.1)}

    first, second = made(), made()
    first["model"](torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
    first["optimizer"].step()
    for state in first["optimizer"].state.values():
        state["exp_avg"] = torch.full((), 1 + 2**-20).expand(state["exp_avg"].shape).clone()
    with ckpttool.checkpoint_writer(str(tmp_path), prefix="run", **first) as writer:
        writer.save(step=1)
    ckpttool.resume_training(str(tmp_path), **second)
    moments = [state["exp_avg"] for state in second["optimizer"].state.values()]
    assert [(moment.dtype, moment.flatten()[0].item()) for moment in moments] == [(torch.float32, 1 + 2**-20)] * 2


def test_a_second_model_with_its_optimizer_is_saved_as_something_extra(tmp_path: Path) -> None:
    def made() -> dict[str, Any]:
        training, critic = Training(), SmallNet()
        return {**training.objects, "extra": {"critic": critic, "by": torch.optim.AdamW(critic.parameters(), lr=0.1)}}

    first, second = made(), made()
    loss_of(first["extra"]["critic"], torch.ones(6, 4)).backward()
    first["extra"]["by"].step()
    with ckpttool.checkpoint_writer(str(tmp_path), prefix="run", **first) as writer:
        writer.save(step=1)
    ckpttool.resume_training(str(tmp_path), **second)
    critics = [objects["extra"]["critic"].state_dict() for objects in (first, second)]
    assert all(torch.equal(value, critics[1][name]) for name, value in critics[0].items())
    moments = [objects["extra"]["by"].state_dict()["state"] for objects in (first, second)]
    assert all(
        torch.equal(value, moments[1][index][key]) for index in moments[0] for key, value in moments[0][index].items()
    )


class Noisy:
    """Items with random noise."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int, /) -> float:
        return index + torch.rand(1).item()


def test_items_depend_on_seed_epoch_and_index_alone_and_leave_the_generators_alone() -> None:
    data, again = SeededByIndex(Noisy(), 1), SeededByIndex(Noisy(), 1)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    items = [data[index] for index in range(len(data))]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert [again[index] for index in (4, 3, 2, 1, 0)] == items[::-1]
    again.set_epoch(2)
    assert [again[0], SeededByIndex(Noisy(), 2)[0]] != [items[0], items[0]]
