"""Logs of made trainings in the formats of trainers: the same losses in each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence


def csv(losses: Sequence[float], *, every: int = 1, first: int = 1, rate: float = 1e-4) -> str:
    """A table with a column each for step, loss, norm and learning rate."""
    rows = (f"{first + every * place},{loss:.6f},{1 + loss / 10:.4f},{rate:g}\n" for place, loss in enumerate(losses))
    return "step,loss,grad_norm,lr\n" + "".join(rows)


def megatron(losses: Sequence[float], *, batch: int = 256, validated: int = 0) -> str:
    """Megatron-LM's lines, and a validation each so many."""
    lines = []
    for step, loss in enumerate(losses, 1):
        lines.append(
            f" iteration {step:8d}/  500000 | consumed samples: {step * batch:12d} | learning rate: 1.000000E-04 | "
            f"lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {1 + loss / 10:.3f} | number of nan iterations: 0 |"
        )
        if validated and step % validated == 0:
            lines.append(f" validation loss at iteration {step} | lm loss value: {loss:.6E} | lm loss PPL: 1.0E+00 |")
    return "\n".join(lines) + "\n"


def mindformers(losses: Sequence[float]) -> str:
    """MindFormers' step lines, all of one epoch."""
    return "".join(
        f"2026-11-20 10:00:00,000 - [mindformers/core/callback/callback.py:529] - INFO - {{ Epoch:[  1/  1], "
        f"step:[{step:5d}/{len(losses):5d}], loss: {loss:.6f}, per_step_time: 1754ms, lr: 0.0001, "
        f"overflow cond: False, loss_scale: 1.0, global_norm: [{1 + loss / 10:.6f}], train_throughput_per_npu: 1.0T\n"
        for step, loss in enumerate(losses, 1)
    )


def torchtitan(losses: Sequence[float]) -> str:
    """Torchtitan's lines, in colour."""
    return "".join(
        f"[titan] 2026-11-20 10:00:00,123 - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss: {loss:8.5f}  "
        f"\x1b[38;2;180;60;0mgrad_norm: {1 + loss / 10:7.4f}  \x1b[36mmemory:  0.50GiB(0.53%)\x1b[39m\n"
        for step, loss in enumerate(losses, 1)
    )


def huggingface(losses: Sequence[float]) -> str:
    """Hugging Face's `trainer_state.json`."""
    history = [
        {"step": step, "loss": round(loss, 6), "grad_norm": round(1 + loss / 10, 4), "learning_rate": 1e-4}
        for step, loss in enumerate(losses, 1)
    ]
    return json.dumps({"log_history": history})


FORMATS: dict[str, Callable[[Sequence[float]], str]] = {
    "csv": csv,
    "megatron": megatron,
    "mindformers": mindformers,
    "torchtitan": torchtitan,
    "huggingface": huggingface,
}
