"""Replay a policy over training logs, and recommend thresholds from them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Sequence
from functools import reduce
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeAlias

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.question import STDIN, LogQuestion
from ckpttool.core.errors import UsageError
from ckpttool.health.asd.features import FeaturePolicy
from ckpttool.health.model.answers import CalibrationAnswer, ReplayAnswer
from ckpttool.health.model.questions import ReplayQuestion
from ckpttool.health.model.reading import LogReading
from ckpttool.health.policies.base import Policy, PolicySettings
from ckpttool.health.policies.registry import policy_of, settings_of
from ckpttool.health.read.asd_events import detector_events
from ckpttool.health.read.logs import LogPass, written
from ckpttool.health.rules.calibrate import calibrate as recommend
from ckpttool.health.rules.evidence import saves_of
from ckpttool.health.rules.replay import Trace, advise, courses_of, logged
from ckpttool.health.rules.replay import replay as run
from ckpttool.health.rules.timeline import timeline, without_skipped
from ckpttool.health.verbs.asd import asd_dialects
from ckpttool.trainers.registry import log_reader, phrasings, words_of_logs

if TYPE_CHECKING:
    from ckpttool.core.domain.advice import Calibration, ThresholdSettings
    from ckpttool.core.verbs.scanning import Tree
    from ckpttool.health.model.asd import AsdEvent
    from ckpttool.trainers.abilities import PolicyWords

_STAND_IN = (
    "the logs have no lines of a detector, so the square of the global norm is checked instead of each parameter's "
    "largest gradient, which the detector uses"
)

Logs: TypeAlias = "str | os.PathLike[str] | Sequence[str]"

_CALIBRATES = ("global_norm", "embedding_local_norm")
"""The fields for thresholds; if there are several logs, the time also shows which log is later."""


def _patterns(logs: Logs) -> tuple[str, ...]:
    return (os.fspath(logs),) if isinstance(logs, (str, os.PathLike)) else tuple(logs)


def replay(question: ReplayQuestion | Logs, tree: Tree | None = None) -> ReplayAnswer:
    """Compute what a policy would have done over training logs.

    The logs are read in one pass and in bounded memory.

    Args:
        question: The logs, the policy and its settings; or the logs alone: files, folders, globs.
        tree: The tree whose checkpoints are compared with the timeline; scanned with sizes, for the times of the saves.

    Raises:
        UsageError: A log does not exist, the policy has no such setting, or there is no spike to resume past.
        IncompleteError: Whether there is a spike is unknown: a log could not be read to the end, or has no step.
    """
    if not isinstance(question, ReplayQuestion):
        question = ReplayQuestion(logs=LogQuestion(patterns=_patterns(question)))
    policy = None if question.policy is None else policy_of(question.policy, _settings(question))
    reader = log_reader(question.logs.columns)
    logs = LogPass(reader, question.logs.patterns, keep=tree is not None)
    steps = logs.steps()
    if policy is None:
        first = list(islice(steps, 1))  # identifies the trainer of the log; a pipe can be read only once
        steps = chain(first, steps)
        policy = policy_of(_usual_policy(question, reader.recognised), _settings(question))
    log_pass = logs
    trace = Trace()
    detected = _detected(policy, logs)
    if detected and isinstance(policy, FeaturePolicy):
        result = logged(policy.name, policy.judge_events(detected))
        if tree is not None and STDIN not in logs.names:
            log_pass = LogPass(reader, question.logs.patterns, keep=True)
            deque(trace.watch(log_pass.steps()), maxlen=0)  # for the times of the saves
    else:
        result = run(policy, steps, trace)
        if isinstance(policy, FeaturePolicy):
            result = replace(result, notes=(_STAND_IN, *result.notes))
    events = without_skipped(result.events, trace.skipped)
    line = timeline(events, trace.ascending(), margin_minutes=question.margin_minutes, judged=result.judged)
    marks = None
    if tree is not None:
        attempts = log_pass.attempts()
        courses = courses_of(None if detected else policy, line, attempts, question.margin_minutes)
        if question.spike is not None:
            courses.refuse_hidden_spike(question.spike.around)
        marks = courses.marks(*saves_of(tree.inventory, attempts, written(tree.inventory.checkpoints)))
    answer = ReplayAnswer(
        settings=_policy_words(settings_of(policy)),
        result=result,
        reading=logs.reading(),
        timeline=line,
        marks=marks,
        advice=None,
    )
    if question.spike is None:
        return answer
    from ckpttool.core.verbs.resolving import with_detours

    advice = advise(question.spike, policy, answer, trace)
    return replace(answer, advice=with_detours(advice, tree, reader.recognised))


def _usual_policy(question: ReplayQuestion, formats: Collection[str]) -> str:
    """Return the policy to replay if none is named; a threshold alone is taken as a norm."""
    if question.threshold is not None or question.count is not None or question.nan_counts:
        return "skip"
    words = words_of_logs(formats)
    return (None if words is None else words.own_policy) or "zscore"


def _settings(question: ReplayQuestion) -> PolicySettings:
    return PolicySettings(
        threshold=question.threshold,
        count=question.count,
        nan_counts=question.nan_counts,
        dialect=question.dialect,
        asd_config=question.asd_config,
        dialects=asd_dialects(),
    )


def _detected(policy: Policy, logs: LogPass) -> tuple[AsdEvent, ...]:
    """Return the detectors' events, if the policy judges those."""
    if not isinstance(policy, FeaturePolicy):
        return ()
    events, problems = detector_events(logs.names)
    if not events and STDIN in logs.names:
        raise UsageError("the log has no event of a detector; to judge its norms, give a file instead of -")
    for problem in problems if events else ():
        logs.keep_problem(problem)
    return events


def calibrate(question: LogQuestion | Logs, *, warm_up: int | None = None) -> CalibrationAnswer:
    """Compute thresholds for a training run from its logs.

    Args:
        question: The logs, and the meaning of their columns; or only the logs.
        warm_up: Number of steps to leave out at the start; None leaves out the first tenth.

    Raises:
        UsageError: A log does not exist.
    """
    if not isinstance(question, LogQuestion):
        question = LogQuestion(patterns=_patterns(question))
    reader = log_reader(question.columns)
    several = len(reader.expand(question.patterns)) > 1
    log = reader.merged(question.patterns, keep=(*_CALIBRATES, "time") if several else _CALIBRATES)
    if log is None:
        raise UsageError("give a training log")
    calibration = recommend(log.metrics, warm_up=warm_up)
    settings = threshold_settings(calibration, reader.recognised)
    return CalibrationAnswer(calibration=calibration, settings=settings, reading=LogReading.of(log))


def threshold_settings(calibration: Calibration, formats: Collection[str] = ()) -> ThresholdSettings:
    """Return thresholds as settings for the trainer of the logs, or else for the first trainer with such settings."""
    own_words = words_of_logs(formats)
    own_settings = None if own_words is None else own_words.thresholds(calibration)
    return own_settings or next(
        thresholds for words in phrasings() if (thresholds := words.thresholds(calibration)) is not None
    )


def _policy_words(settings: PolicyWords) -> PolicyWords:
    """Return a policy's settings in the terms of its users, because a policy may be a trainer's own rule."""
    return reduce(lambda spelled, words: words.policy_words(spelled), phrasings(), settings)
