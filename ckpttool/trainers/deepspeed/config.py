"""DeepSpeed's JSON config: its number of data-parallel ranks, and settings that harm a resume.

Source:
    DeepSpeed 0.19.8: `runtime/config.py` (`_set_batch_related_parameters`), `DeepSpeedEngine.load_checkpoint`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpttool.core.decide.lint_engine import Problem, Rule, View, note
from ckpttool.trainers.common.linted_configs import LintedConfigs
from ckpttool.trainers.deepspeed import TRAINER
from ckpttool.trainers.deepspeed.findings import DeepSpeedCode
from ckpttool.trainers.findings import TrainersCode

_BATCH, _AUTO = "train_batch_size", "auto"
_OWN = ("zero_optimization", "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer", "steps_per_print")


def _universal(view: View) -> Iterator[Problem]:
    key = "checkpoint.load_universal"
    if view.is_on(key):
        yield note(
            key,
            "with `load_universal` every start loads the save that `latest_universal` names, which no later save "
            "updates: a run that stops later goes back to the converted save",
            "set it only for the first start after the conversion",
        )


def _replicas(view: View) -> int | None:
    """Divide the samples per step by those per rank, if the config sets all the values needed.

    Ranks that share a sequence also share a batch, but each rank has its own part of the optimizer state.
    """
    batch, micro, steps = (
        view.count(key, 0)
        for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    if view.setting("sequence_parallel_size") is not None:
        return None
    is_told = min(batch, micro, steps) > 0 and batch % (micro * steps) == 0
    return batch // (micro * steps) if is_told else None


def _filled_in(view: View) -> Iterator[Problem]:
    if view.get(_BATCH) == _AUTO:
        yield note(
            _BATCH,
            "`train_batch_size: auto` is filled in by the trainer when it starts, so this config does not show its "
            "number of data-parallel ranks",
            "give the number of data-parallel ranks to start with --dp N, to compare it with the save",
        )


def _is_own(view: View) -> bool:
    return view.get(_BATCH) == _AUTO or any(view.setting(key) is not None for key in _OWN)


CONFIGS = LintedConfigs(
    trainer=TRAINER.name,
    words=(*_OWN, _BATCH),
    is_own=_is_own,
    rules=(
        Rule(code=DeepSpeedCode.UNIVERSAL_STAYS, check=_universal),
        Rule(code=TrainersCode.BATCH_SIZE_UNKNOWN, check=_filled_in),
    ),
    replicas=_replicas,
)
