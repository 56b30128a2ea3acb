"""Random programmes over trees of one and two ranks and of other trainers, where no majority decides."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from ckpttool.core.errors import ExitCode
from ckpttool.core.storage import open_storage
from tests.support.answers import FIXTURES
from tests.support.commands import Said, ask
from tests.support.trainer_trees import LAYOUTS

OTHERS = ("hf_single", "hf_ddp2", "hf_sharded_index", "verl_2ranks", "orbax_standard", "dcp_fsdp2_4ranks",
          "dcp_plain_2ranks")  # fmt: skip
OF_RANKS = ("sink2_safetensors", "sink2_ckpt", "nosink_ckpt")
"""Trees that MindFormers wrote; some of their ranks are copied."""


@dataclass
class Tally:
    """What was tried."""

    commands: int = 0
    said: Counter[str] = field(default_factory=Counter)
    """Commands, each with its exit code."""


class Tree:
    """A tree of several saves, and what each of its files held when it was saved."""

    def __init__(self, folder: Path, random: Random, tally: Tally, *, ranks: int | None) -> None:
        """Copy a real tree: another trainer's, or so many ranks of one of MindFormers'."""
        self.random, self.tally = random, tally
        self.kind = random.choice(OTHERS if ranks is None else OF_RANKS)
        self.root = folder / "run"
        if ranks is None:
            shutil.copytree(LAYOUTS / self.kind, self.root, symlinks=True)
        else:
            shutil.copytree(FIXTURES / self.kind / "output", self.root)
            for rank in self.root.glob("checkpoint/rank_*"):
                if int(rank.name[5:]) >= ranks:
                    shutil.rmtree(rank)
            for later in self.root.glob("checkpoint/rank_*/*_rank_?_1-*"):  # another start's
                later.unlink()
        for path in self.root.rglob("*"):
            path.chmod(path.stat().st_mode | 0o600)
        scan = json.loads(self.ask("scan").stdout)
        self.base = Path(scan["root"])
        saves = sorted(scan["checkpoints"], key=lambda save: save["step"])
        self.shards = {save["name"]: [shard["path"] for shard in save["shards"]] for save in saves}
        self.right = {path: (self.base / path).read_bytes() for paths in self.shards.values() for path in paths}
        self.sealed: set[str] = set()
        self.silent: set[str] = set()
        """Saves with a flipped bit in a file whose header holds no names, or without what a trainer can do without:
        not all of it shows."""
        self.headers = {path: headers_of(self.base / path) for path in self.right}
        """The bytes of each file that are no tensor's."""

    def ask(self, command: str, *options: str) -> Said:
        """Run a command, and count it."""
        said = ask(command, str(self.root), *options, *(() if command == "seal" else ("--json",)))
        self.tally.commands += 1
        self.tally.said[f"{command} {int(said.code)}"] += 1
        assert said.code not in {ExitCode.FAILED, ExitCode.USAGE}, said.stderr
        return said

    def is_whole(self, name: str) -> bool:
        """Tell whether every file of a save is what it was."""
        return all(self.content(path) == self.right[path] for path in self.shards[name])

    def content(self, path: str) -> bytes | None:
        """Return what lies there."""
        place = self.base / path
        return place.read_bytes() if place.exists() else None

    @property
    def names(self) -> list[str]:
        """The saves of which anything is there, oldest first."""
        return [name for name, paths in self.shards.items() if any((self.base / path).exists() for path in paths)]

    def spoil(self, path: str, how: str) -> None:
        """Flip a bit of a file's header, cut it, or lose it."""
        content, place = self.right[path], self.base / path
        shows = how != "flip" or place.suffix in {".safetensors", ".ckpt"}
        shows &= not path.startswith(
            tuple(f"{name}/default/ocdbt.process_" for name in self.shards)
        )  # parts of a merge
        if not shows or place.name == "data.pt" or place.name.startswith("rng_state"):
            self.silent |= {name for name, paths in self.shards.items() if path in paths}
        if how == "lose":
            place.unlink(missing_ok=True)
        elif how == "cut":
            place.write_bytes(content[: self.random.randrange(len(content))])
        else:
            place.write_bytes(flipped(content, self.random.choice(self.headers[path]), self.random))

    def remove(self, name: str) -> None:
        """Take a save away, as a person does."""
        for path in self.shards[name]:
            (self.base / path).unlink(missing_ok=True)
        if (self.base / name).is_dir():
            shutil.rmtree(self.base / name)


def flipped(content: bytes, at: int, random: Random) -> bytes:
    """Flip one bit of a byte."""
    return content[:at] + bytes([content[at] ^ 1 << random.randrange(7)]) + content[at + 1 :]


def headers_of(path: Path) -> list[int]:
    """Return the places of the bytes that are no tensor's."""
    places = set(range(path.stat().st_size))
    for _, (begin, end) in spans_of(path):
        places -= set(range(begin, end))
    return sorted(places)


def prunes(folder: Path, random: Random, tally: Tally, *, ranks: int | None, steps: int) -> None:
    """Damage older saves, seal, prune and ask: the newest, which is whole, is never lost, damaged or ruled out."""
    tree = Tree(folder, random, tally, ranks=ranks)
    log: list[str] = [tree.kind]
    for _ in range(steps):
        newest = tree.names[-1]
        older = tree.names[:-1]
        what = random.choice(["flip", "flip", "flip", "cut", "lose", "seal", "prune", "prune", "remove"])
        log.append(f"{what} {newest}")
        if what in {"flip", "cut", "lose"} and older:
            path = random.choice([path for name in older for path in tree.shards[name]])
            tree.spoil(path, what)
            log.append(path)
        elif what == "seal" and not tree.ask("seal", "--checkpoint", newest).code:
            tree.sealed.add(newest)
        elif what == "prune":
            prune(tree, random, log)
        elif what == "remove" and len(older) > 1 and tree.is_whole(older[-1]):
            tree.remove(newest)
        newest = tree.names[-1]
        code, name = resolved(tree)
        assert tree.is_whole(newest), log
        if newest in tree.sealed:
            assert (code, name) == (ExitCode.OK, newest), (code, name, log)
        elif name is None:  # two contradict each other
            assert code in {ExitCode.INCOMPLETE, ExitCode.UNSAFE}, (code, log)
        else:
            assert tree.is_whole(name) or name in tree.silent, (code, name, log)


def resolved(tree: Tree) -> tuple[ExitCode, str | None]:
    """Return how `resolve` ends, and what it chooses."""
    said = tree.ask("resolve")
    resume = json.loads(said.stdout)["resume"]
    return ExitCode(said.code), None if resume is None else resume["name"]


def prune(tree: Tree, random: Random, log: list[str]) -> None:
    """Prune: of what is whole enough stays, nothing that stays is changed, and no answer becomes worse."""
    last = random.choice([1, 1, 2])
    whole = {name for name in tree.names if tree.is_whole(name)}
    before = {path: tree.content(path) for path in tree.right}
    answer = resolved(tree)
    tree.ask("prune", "--keep-last", str(last), "--grace", "0", "--apply")
    left = set(tree.names)
    log.append(f"left {sorted(left)}")
    assert len((whole | tree.silent) & left) >= min(last, len(whole)), log
    for path, content in before.items():
        assert tree.content(path) in {None, content}, log
    assert resolved(tree) == answer, (resolved(tree), answer, log)


def heals(folder: Path, random: Random, tally: Tally, *, ranks: int) -> None:
    """Break a file's header or lose it, flip a bit of another's weights in silence, and heal: what is healed is right.

    Where a file is gone of which the only copy was flipped, nobody can know; but then nobody calls the two proven.
    """
    tree = Tree(folder, random, tally, ranks=ranks)
    name = random.choice(tree.names)
    paths = list(tree.shards[name])
    random.shuffle(paths)
    sick, *others = paths
    silent = random.choice(others) if random.random() < 0.7 else None
    if silent is not None:
        (tree.base / silent).write_bytes(flipped(tree.right[silent], in_weights(tree.base / silent, random), random))
    how = random.choice(["flip", "flip", "length", "cut", "lose"])
    if how == "length":
        (tree.base / sick).write_bytes(flipped(tree.right[sick], 0, random))
    else:
        tree.spoil(sick, how)
    log = [tree.kind, name, how, sick, silent]
    damaged = {path: tree.content(path) for path in paths}
    tree.ask("heal", "--checkpoint", name, "--grace", "0", "--apply")
    verdict = json.loads(tree.ask("verify", "--checkpoint", name, "--level", "checksum").stdout)["checkpoints"][0]
    for path in paths:
        now = tree.content(path)
        if now == damaged[path]:
            continue
        assert path == sick, log
        assert now is not None, log
        if data_of(now) != data_of(tree.right[path]):
            assert how in {"cut", "lose"}, log
            assert silent is not None, log
            assert len(paths) == 2, log
            assert verdict["verdict"] not in {"agreed", "verified"}, log
    if silent is not None and tree.content(silent) != tree.right[silent]:
        assert verdict["verdict"] != "verified", log
    resolved(tree)


def in_weights(path: Path, random: Random) -> int:
    """Choose a byte of the tensors' data that is no counter."""
    spans = [span for name, span in spans_of(path) if "weight" in name]
    begin, end = random.choice(spans)
    return random.randrange(begin, end, 4)  # the lowest bits of a number: nothing about it is odd


def spans_of(path: Path) -> list[tuple[str, tuple[int, int]]]:
    """Return where each tensor lies."""
    from ckpttool.core.domain.shard import FormatName
    from ckpttool.core.formats import read_header

    with open_storage(str(path.parent)).open(path.name) as source:
        entries = read_header(source, named=FormatName.SAFETENSORS).entries
    return [(entry.name, span) for entry in entries for span in entry.spans]


def data_of(content: bytes) -> bytes:
    """Return a safetensors file without its header, whose text is each rank's own; a `.ckpt` as it is."""
    return content[8 + int.from_bytes(content[:8], "little") :] if content[8:9] == b"{" else content


def run(folder: Path, *, seed: int, commands: int) -> Tally:
    """Try programmes until so many commands were run."""
    tally, number = Tally(), 0
    while tally.commands < commands:
        random = Random(f"{seed}-{number}")  # noqa: S311  no secret
        place = folder / str(number)
        place.mkdir()
        os.environ["XDG_CACHE_HOME"] = str(place / "cache")
        ranks = random.choice([1, 2, None, None, "heal", "heal"])
        try:
            if ranks == "heal":
                heals(place, random, tally, ranks=random.choice([2, 2, 3, 4]))
            else:
                assert not isinstance(ranks, str)
                prunes(place, random, tally, ranks=ranks, steps=random.randrange(3, 10))
        except AssertionError as error:
            raise AssertionError(f"programme {seed}-{number}: {error}") from error
        shutil.rmtree(place)
        number += 1
    return tally
