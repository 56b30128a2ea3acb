"""Rules about MindFormers' health monitor, which says "healthy" wherever it cannot measure."""

from __future__ import annotations

from collections.abc import Iterator

from ckpttool.decide.lint_engine import Problem, Rule, suspect
from ckpttool.domain.finding import Code
from ckpttool.trainers.mindformers.lint.skipping import HEALTH, NEWER_EMBEDDING
from ckpttool.trainers.mindformers.lint.view import ConfigView

_MODEL = "model.model_config"


def _switch(view: ConfigView) -> str | None:
    """Return the setting that switches the monitor on; None where it is off."""
    if view.is_on(HEALTH):
        return HEALTH
    return NEWER_EMBEDDING if view.is_newer_layout and view.get(NEWER_EMBEDDING) else None


def _stages(view: ConfigView) -> Iterator[Problem]:
    switch = _switch(view)
    if switch is not None and view.stages == 1:
        yield suspect(
            "parallel_config.pipeline_stage" if view.setting("parallel_config.pipeline_stage") else switch,
            "the health monitor measures nothing without pipeline stages: every checkpoint is recorded as healthy",
            "set `pipeline_stage` to 2 or more, or judge by the training log: ckpttool health --threshold X --log LOG",
        )


def _slices(view: ConfigView) -> Iterator[Problem]:
    switch = _switch(view)
    if switch is not None and view.get("parallel.full_batch") is not False:
        yield suspect(
            "parallel.full_batch" if view.setting("parallel.full_batch") else switch,
            "the health monitor is documented for `full_batch: False` alone",
            "write `full_batch: False` and a `dataset_strategy` under `parallel:`",
        )


def _model_size(view: ConfigView) -> Iterator[Problem]:
    """The embedding is found by its number of elements, so both sizes must be known before the model is built."""
    if not view.is_on(HEALTH) or not view.is_section(_MODEL) or view.get("pretrained_model_dir"):
        return
    for key in ("hidden_size", "vocab_size"):
        if view.get(f"{_MODEL}.{key}") is None:
            yield suspect(
                f"{_MODEL}.{key}",
                f"`{HEALTH}` needs the model's `{key}`: without it MindFormers stops with a ValueError "
                "after the model is built",
                f"write `{key}` under `model_config:`",
            )


HEALTH_RULES = (
    Rule(code=Code.HEALTH_NEEDS_STAGES, check=_stages),
    Rule(code=Code.HEALTH_NEEDS_SLICES, check=_slices),
    Rule(code=Code.HEALTH_NEEDS_MODEL_SIZE, check=_model_size),
)
