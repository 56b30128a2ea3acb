"""Verdicts say whose they are: who asks for the health of a tree need not know in which order to hand them in."""

from __future__ import annotations

import ckpttool
from ckpttool.core.domain.verdict import Level, Verdict
from ckpttool.health.model.questions import HealthQuestion
from ckpttool.types import CheckQuestion, TreeQuestion
from tests.support.answers import FIXTURES


def test_verdicts_come_to_their_checkpoints_in_any_order() -> None:
    tree = ckpttool.scan(TreeQuestion(path=str(FIXTURES / "health_pp2" / "output"), sizes=True))
    events = ckpttool.verify(tree, CheckQuestion(level=Level.NUMERICS, name="all"))
    verdicts = [event for event in events if isinstance(event, Verdict)]
    question = HealthQuestion(threshold=5.0)
    answers = [ckpttool.health(tree, question, given) for given in (verdicts, verdicts[::-1], verdicts[1:])]
    assert len(answers[0].weights) == len(verdicts) > 2
    assert answers[1] == answers[0]
    assert len({weight.name for weight in answers[0].weights} - {weight.name for weight in answers[2].weights}) == 1
