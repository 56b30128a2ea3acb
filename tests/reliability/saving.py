"""A training that saves, a prune beside it, and the truth about every shard at every moment.

It saves as MindSpore does: each shard under a temporary name, renamed when it is complete, then meta.json. Or as what
copies shards from another disk does: under the shard's own name, which grows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from ckpttool.core.errors import ExitCode
from tests.reliability.beside import ReplicaAnswer
from tests.reliability.crowd import Crowd, End, Job
from tests.support.shard_writers import crc_trailer
from tests.support.trees import Tensor, ckpt_bytes, training_scalars

RANKS = 4
PREFIX = "llama2_7b"
KEPT = 3
CHANGED = ExitCode.INCOMPLETE
"""Of what was not looked at whole."""
GOOD = frozenset({"struct-ok", "agreed", "verified"})
FOREVER = float("inf")
_ELEMENTS = 16_384
_PIECES = 5
_PIECE_SECONDS = 0.008
"""Between two pieces of a shard."""
_PAUSE_SECONDS = 0.6
"""At most, between two saves, as long as few lie there."""
_MANY = 10


@dataclass(kw_only=True)
class Shard:
    """What is true of one file, in seconds of one clock."""

    epoch: int
    grows: bool
    """Under its own name; else it appears whole."""
    begun: float
    ready: float = FOREVER
    """From when on it may be whole: the last that it needs is under way."""
    whole: float = FOREVER
    """From when on it surely is."""
    going: float = FOREVER
    """From when on it may be gone: the prune that took it had begun."""
    gone: float = FOREVER
    """From when on it surely is: that prune had ended."""


def shard_path(rank: int, epoch: int) -> str:
    return f"rank_{rank}/{PREFIX}_rank_{rank}-{epoch}_2.ckpt"


@dataclass
class Truth:
    """Every shard that ever was, by its path."""

    shards: dict[str, Shard] = field(default_factory=dict)

    def steady(self, since: float, until: float) -> set[int]:
        """The epochs whose checkpoint was whole, and there, for all of a time."""
        return {
            epoch
            for epoch in {shard.epoch for shard in list(self.shards.values())}
            if all(self.is_steady(shard_path(rank, epoch), since, until) for rank in range(RANKS))
        }

    def is_steady(self, path: str, since: float, until: float) -> bool:
        """Tell whether a shard was whole, and there, for all of a time."""
        shard = self.shards.get(path)
        return shard is not None and shard.whole <= since and until <= shard.going

    def may_be_whole(self, epoch: int, since: float, until: float) -> bool:
        """Tell whether in a time there was a moment at which a checkpoint was whole."""
        shards = [self.shards.get(shard_path(rank, epoch)) for rank in range(RANKS)]
        return all(shard is not None and shard.ready <= until and since <= shard.gone for shard in shards)

    def may_be_torn(self, path: str, since: float, until: float) -> bool:
        """Tell whether in a time there was a moment at which a shard was there and not whole."""
        shard = self.shards.get(path)
        return shard is not None and shard.grows and shard.begun <= until and since <= shard.whole


@dataclass(kw_only=True)
class Worker(ReplicaAnswer):
    """Changes the tree, and writes down what is true of it."""

    root: Path
    truth: Truth


@dataclass(kw_only=True)
class Training(Worker):
    """Saves a checkpoint on all ranks at a time, and rests."""

    chance: Random = field(default_factory=lambda: Random(5))  # noqa: S311  the same training for the same seed

    def once(self) -> None:
        """Save, and rest: the longer, the more lies there, so that a prune finds a quiet while anywhere."""
        self.save(grows=self.chance.random() < 0.5, slowly=True)
        lying = sum(shard.gone is FOREVER for shard in list(self.truth.shards.values())) / RANKS
        self._stop.wait(self.chance.uniform(0, _PAUSE_SECONDS) * max(1.0, lying / _MANY))

    def save(self, *, grows: bool, slowly: bool) -> None:
        """Save one checkpoint; the ranks write side by side."""
        epoch = (self.done + 1) * 5
        content = self._content(epoch)
        ranks = [self._rank(rank, epoch, content, grows=grows) for rank in range(RANKS)]
        while ranks:
            writing = self.chance.choice(ranks)
            if next(writing, None) is None:
                ranks.remove(writing)
            elif slowly:
                time.sleep(self.chance.uniform(0, _PIECE_SECONDS))
        self.done += 1

    def _content(self, epoch: int) -> bytes:
        data = self.chance.randbytes(4 * _ELEMENTS)
        tensors = [Tensor(f"layer{number}.weight", "Float32", (_ELEMENTS,), data) for number in range(3)]
        body = ckpt_bytes([*tensors, *training_scalars(epoch=epoch, true_step=2 * epoch)])
        return body + crc_trailer(body)

    def _rank(self, rank: int, epoch: int, content: bytes, *, grows: bool) -> Iterator[bool]:
        """Write one rank's shard piece by piece, then its meta.json."""
        path = self.root / shard_path(rank, epoch)
        path.parent.mkdir(parents=True, exist_ok=True)
        begun = path if grows else path.with_suffix(".tmp")
        shard = Shard(epoch=epoch, grows=grows, begun=time.monotonic())
        self.truth.shards[shard_path(rank, epoch)] = shard
        cuts = sorted(self.chance.sample(range(1, len(content)), _PIECES - 1))
        with begun.open("wb", buffering=0) as file:
            for begin, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
                if grows and end == len(content):
                    shard.ready = time.monotonic()
                file.write(content[begin:end])
                yield True
        shard.ready = min(shard.ready, time.monotonic())
        begun.rename(path)
        path.chmod(0o400)
        shard.whole = time.monotonic()
        yield True
        meta = path.with_name("tmpa1b2c3d4")
        meta.write_text(json.dumps({"last_epoch": epoch, "last_step": 2, "last_ckpt_file": path.name}))
        meta.rename(path.with_name("meta.json"))


@dataclass(kw_only=True)
class Pruning(Worker):
    """Prunes, and writes down what went."""

    crowd: Crowd | None = None
    applied: int = 0

    def once(self) -> None:
        """Prune once."""
        assert self.crowd is not None
        began = time.monotonic()
        keep = ("--keep-last", str(KEPT), "--apply", "--grace", "0", "-q")
        end = self.crowd.run([Job(("prune", str(self.root), *keep))])[0]
        ended = time.monotonic()
        if end.code not in {ExitCode.OK, CHANGED}:
            self.wrong.append(f"prune: exit {end.code}: {end.told}")
        went = [
            shard
            for path, shard in list(self.truth.shards.items())
            if shard.whole < ended and shard.gone is FOREVER and not (self.root / path).exists()
        ]
        for shard in went:
            shard.going, shard.gone = began, ended
        self.applied += bool(went)
        self.done += 1
        self.wrong += wrong_prune({shard.epoch for shard in went}, self.root, self.truth, ended)


def wrong_prune(went: Iterable[int], root: Path, truth: Truth, ended: float) -> Iterator[str]:
    """Say which of these epochs a prune should have left, and of which it left a part."""
    there = {path for path in list(truth.shards) if (root / path).exists()}
    for epoch in went:
        left = [rank for rank in range(RANKS) if shard_path(rank, epoch) in there]
        if left:
            yield f"prune took {epoch}_2, but not on ranks {left}"
        newer = {
            one
            for one in truth.steady(ended, ended)
            if one > epoch and all(shard_path(rank, one) in there for rank in range(RANKS))
        }
        if len(newer) < KEPT:
            yield f"prune took {epoch}_2, and of what is newer only {sorted(newer)} is whole"


def wrong_listing(document: Mapping[str, object], truth: Truth, since: float, until: float) -> Iterator[str]:
    """Say what `scan` or `verify` printed that was not so at any moment while it worked."""
    steady = truth.steady(since, until)
    checkpoints = document["checkpoints"]
    assert isinstance(checkpoints, list)
    listed = {int(one["name"].removesuffix("_2")): one for one in checkpoints}
    yield from (f"{epoch}_2 is whole and not listed" for epoch in steady - listed.keys())
    for epoch, one in listed.items():
        verdict = one.get("verdict")
        if epoch in steady and verdict not in {None, *GOOD}:
            yield f"{epoch}_2 is whole and called {verdict}"
        if verdict in GOOD and not truth.may_be_whole(epoch, since, until):
            yield f"{epoch}_2 is not whole or not there, and called {verdict}"
        for finding in one["findings"]:
            if _is_false(finding, truth, since, until, whole=epoch in steady):
                yield f"{epoch}_2: {_told(finding)}"
    for finding in _of_tree(document):
        if finding["severity"] in {"suspect", "damage", "unsafe"}:
            yield _told(finding)


def _told(finding: Mapping[str, str]) -> str:
    return f"false {finding['severity']} {finding['code']} {finding['path']}: {finding['message']}"


def _says_why(document: Mapping[str, object]) -> bool:
    """Tell whether anything in a document is a reason for exit 10."""
    checkpoints = document["checkpoints"]
    assert isinstance(checkpoints, list)
    findings = [*_of_tree(document), *(finding for one in checkpoints for finding in one["findings"])]
    return any(finding["severity"] in {"suspect", "damage"} for finding in findings)


def _of_tree(document: Mapping[str, object]) -> list[dict[str, str]]:
    findings = document.get("findings", [])
    assert isinstance(findings, list)
    return findings


def _is_false(finding: Mapping[str, str], truth: Truth, since: float, until: float, *, whole: bool) -> bool:
    """Tell whether a finding was untrue all the time. What is no more than unknown never is, unless all is whole."""
    if finding["severity"] == "note":
        return False
    if whole:
        return True
    if finding["severity"] == "unknown":
        return False
    path = finding["path"]
    if finding["code"] in {"shard-missing", "rank-missing"}:  # not there yet, or no more
        return truth.is_steady(path, since, until)
    return not truth.may_be_torn(path, since, until)


def wrong_choice(document: Mapping[str, object], truth: Truth, since: float, until: float) -> Iterator[str]:
    """Say what is wrong with what `resolve` chose."""
    steady = truth.steady(since, until)
    resume = document["resume"]
    if not isinstance(resume, dict):
        if steady:
            yield f"resolve takes nothing, and {sorted(steady)} were whole"
        return
    epoch = int(resume["name"].removesuffix("_2"))
    if not truth.may_be_whole(epoch, since, until):
        yield f"resolve takes {epoch}_2, which is not whole or not there"
    if steady and epoch < max(steady):
        yield f"resolve takes {epoch}_2 and passes over {max(steady)}_2, which is whole"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one reader said, and when it may have looked."""

    end: End
    since: float
    until: float

    def wrong(self, truth: Truth) -> Iterator[str]:
        """Say what of it was not so."""
        command = self.end.job.argv[0]
        is_choice = command == "resolve"
        other = ExitCode.NOTHING_TO_RESUME if is_choice else ExitCode.DAMAGE
        if self.end.code not in {ExitCode.OK, other, CHANGED} or "Traceback" in self.end.stderr:
            yield f"{command}: exit {self.end.code}: {self.end.told}"
        elif self.end.stdout:
            document = json.loads(self.end.stdout)
            judge = wrong_choice if is_choice else wrong_listing
            yield from judge(document, truth, self.since, self.until)
            if self.end.code == ExitCode.DAMAGE and not _says_why(document):
                yield f"{command}: exit {self.end.code}, and nothing is said to be wrong"
        elif self.end.code != CHANGED or not is_choice:
            yield f"{command}: exit {self.end.code} without a word"


def asked(root: Path, crowd: Crowd) -> list[Answer]:
    """Let all readers look at once."""
    commands = (
        ("scan",),
        ("resolve",),
        ("verify", "--checkpoint", "all"),
        ("verify", "--checkpoint", "all", "--level", "checksum", "--no-ledger"),
    )
    since = time.monotonic()
    ends = crowd.run([Job((name, str(root), *options, "--format", "json", "-q")) for name, *options in commands])
    until = time.monotonic()
    return [Answer(end=end, since=since, until=until) for end in ends]
