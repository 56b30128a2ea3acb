"""Output for the events of a watch, as they occur."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import summary_of
from ckpttool.core.domain.units import moment
from ckpttool.core.render.escape import shown
from ckpttool.core.render.json import Document, finding_document
from ckpttool.core.render.text import line
from ckpttool.watch.model import EventKind, WatchEvent

if TYPE_CHECKING:
    from rich.console import RenderableType

_SAID = {  # for other events the finding shows it, with the save's name
    EventKind.GOOD: "is good",
    EventKind.BAD: "is not good",
    EventKind.UNREADABLE: "cannot be read completely",
    EventKind.HEALTH_UNKNOWN: "is intact, but the health of the training is unknown",
    EventKind.READ_AGAIN: "was read again and is good",
    EventKind.CHECKSUM_MISMATCH: "no longer has the content it had",
}


def document(answer: WatchEvent) -> Document:
    """Return the document of `ckpttool/event/1`: one event in a watched tree."""
    return {
        "schema": "ckpttool/event/1",
        "id": answer.id,
        "event": answer.kind.value,
        "at": moment(answer.at),
        "root": answer.root,
        "checkpoint": answer.name,
        "step": answer.step,
        "verdict": None if answer.word is None else answer.word.value,
        "cached": answer.cached,
        "sealed": answer.sealed,
        "summary": summary(answer),
        "findings": [finding_document(finding) for finding in answer.findings],
    }


def one_line(answer: WatchEvent) -> str:
    """Encode the document in one line of ASCII, for scripts that read line by line."""
    return json.dumps(document(answer), allow_nan=False)


def text(answer: WatchEvent) -> str:
    """Describe the event in one line of text."""
    return shown(f"{moment(answer.at)}  {answer.kind.value:17}  {summary(answer)}")


def summary(answer: WatchEvent) -> str:
    """Return the reason for the event in one line."""
    if answer.why:
        return answer.why
    facts = [] if answer.word is None else [answer.word.value]
    facts += ["sealed"] if answer.sealed else []
    facts += ["from memory, not from the disk"] if answer.cached and answer.kind is EventKind.READ_AGAIN else []
    # The first finding shows what is missing in a save.
    findings = answer.findings[:1] if answer.kind is EventKind.SAVE_INCOMPLETE else answer.findings
    why = [summary_of(findings)] if findings else []
    if findings and findings[0].path is not None:
        why.insert(0, findings[0].path)
    if answer.kind in _SAID:
        why.insert(0, f"{answer.name} {_SAID[answer.kind]}" + (f" ({', '.join(facts)})" if facts else ""))
    return ": ".join(why)


def table(answer: WatchEvent) -> RenderableType:
    """Return the event as the watch prints it."""
    return line(text(answer))
