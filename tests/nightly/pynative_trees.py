"""Trees of the real PyNative trainer, each made when its first case needs it, and faults for copies of them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.nightly.real_mindformers import Server, Trace
from tests.nightly.real_pynative import NO_SETTINGS, PyNative, Settings, config, needs

TRACKER = "latest_checkpointed_iteration.txt"
NEWEST = "iteration_00000030"
RAMP_UP = "16\n  rampup_batch_size: [4, 4, 96]"

Edit = Callable[[PyNative], object]


def write(path: str, content: str | bytes) -> Edit:
    """Write a file of the tree."""

    def act(training: PyNative) -> None:
        file = training.checkpoints / path
        if file.exists():
            file.chmod(0o600)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    return act


def remove(path: str) -> Edit:
    return lambda training: (training.checkpoints / path).unlink()


def remove_shard(kind: str, step: int = 30, rank: int = 0) -> Edit:
    return lambda training: training.shard_of(step, kind, rank).unlink()


def change_shard(kind: str, change: Callable[[bytes], bytes], step: int = 30, rank: int = 0) -> Edit:
    def act(training: PyNative) -> None:
        shard = training.shard_of(step, kind, rank)
        shard.chmod(0o600)
        shard.write_bytes(change(shard.read_bytes()))

    return act


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def zeros(content: bytes) -> bytes:
    return bytes(len(content))


def nothing(_: bytes) -> bytes:
    return b""


def without_last_byte(content: bytes) -> bytes:
    return content[:-1]


def with_another_byte(content: bytes) -> bytes:
    return content + b"\0"


def long_header(content: bytes) -> bytes:
    return b"\xff" * 8 + content[8:]


CHANGES = {
    "cut": half, "zeroed": zeros, "emptied": nothing, "one byte short": without_last_byte,
    "one byte too long": with_another_byte, "header too long": long_header,
}  # fmt: skip


def edit_common(step: int = 30, *, without: tuple[str, ...] = (), **values: object) -> Edit:
    def act(training: PyNative) -> None:
        document = {key: value for key, value in training.common(step).items() if key not in without}
        write(f"iteration_{step:08d}/common.json", json.dumps({**document, **values}))(training)

    return act


def copy(source: str, to: str) -> Edit:
    """Copy a file or a folder; paths start from the training's folder."""

    def act(training: PyNative) -> None:
        origin, target = training.folder / source, training.folder / to
        target.parent.mkdir(parents=True, exist_ok=True)
        if origin.is_dir():
            shutil.copytree(origin, target)
        else:
            shutil.copyfile(origin, target)

    return act


def copy_shard(kind: str, to: str) -> Edit:
    return lambda training: copy(str(training.shard_of(30, kind).relative_to(training.folder)), to)(training)


def rename(source: str, to: str) -> Edit:
    return lambda training: (training.checkpoints / source).rename(training.checkpoints / to)


def age(training: PyNative) -> None:
    """Make all files an hour older, so that those written next are clearly newer."""
    for path in training.checkpoints.rglob("*"):
        times = path.stat()
        os.utime(path, (times.st_atime - 3600, times.st_mtime - 3600))


def all_of(*edits: Edit) -> Edit:
    def act(training: PyNative) -> None:
        for edit in edits:
            edit(training)

    return act


HALF_SAVE = copy_shard("model", "output/checkpoint/iteration_00000040/tiny-model-0000000-0000001.safetensors")


@dataclass(frozen=True, kw_only=True)
class Template:
    """A training whose tree the cases copy."""

    die_at: int | None = 34
    ranks: int = 1
    version: str = "2.1.0"
    data: str = "data"
    settings: Settings = field(default_factory=dict)
    without: tuple[str, ...] = ()
    """Keys that its version does not know."""
    environment: Mapping[str, str] = field(default_factory=dict)


BASE_MODEL = "BASE_MODEL"
"""Stands in a config for the last save of the template "complete"."""

TWO: Settings = {"steps": 16, "save_interleaved_steps": 5}
REMOVED: Settings = {**TWO, "remove_redundancy": True}
SHARDED = {"CKPTTOOL_SHARDED": "1"}
RAMPED: Settings = {"global_batch_size": RAMP_UP, "save_interleaved_steps": 5}
ADAPTER: Settings = {
    "save_path": f'"./output/checkpoint"\n  save_trainable_only: True\n  base_load_path: "{BASE_MODEL}"'
}

TEMPLATES = {
    "killed": Template(),
    "complete": Template(die_at=None),
    "asynchronous": Template(settings={"async_save": True}),
    "asynchronous, one save": Template(settings={"async_save": True}, die_at=14),
    "asynchronous, one save kept": Template(settings={"async_save": True, "save_max": 1}),
    "asynchronous, complete": Template(settings={"async_save": True}, die_at=None),
    "two saves kept": Template(settings={"save_max": 2, "save_interleaved_steps": 5}),
    "no prefix": Template(settings={"prefix": "null"}),
    "prefix adopt": Template(settings={"prefix": '"adopt"'}),
    "ramp-up": Template(settings=RAMPED, die_at=24),
    "ramp-up over an epoch": Template(settings=RAMPED, die_at=24, data="small"),
    "ramp-up, early": Template(settings=RAMPED, die_at=14),
    "NaN skipped": Template(
        settings={"max_norm": "1.0\n  use_skip_step_on_nan: True"}, environment={"CKPTTOOL_NAN_AT": "15,16"}, die_at=24
    ),
    "shuffled": Template(settings={"shuffle": True}),
    "shuffled, second epoch": Template(settings={"shuffle": True}, data="small", die_at=24),
    "second epoch": Template(data="small", die_at=24),
    "without the optimizer": Template(settings={"no_save_optim": True}),
    "uneven": Template(settings={"save_interleaved_steps": 9}, die_at=28),
    "adapter": Template(settings=ADAPTER, environment={"CKPTTOOL_ADAPTER": "1"}),
    "1.9.0": Template(version="1.9.0", settings={"local_batch_size": 8}, without=("data_parallel_shard",)),
    "copies": Template(ranks=2, settings=TWO, die_at=12),
    "removed": Template(ranks=2, settings=REMOVED, die_at=12),
    "sharded": Template(ranks=2, settings=TWO, die_at=12, environment=SHARDED),
    "sharded and removed": Template(ranks=2, settings=REMOVED, die_at=12, environment=SHARDED),
}


@dataclass
class Templates:
    """The trainings of `TEMPLATES`, and their twins that nothing interrupted; each is made when it is first needed."""

    folder: Path
    server: Server
    made: dict[tuple[str, bool], tuple[PyNative, Trace]] = field(default_factory=dict)

    def of(self, name: str, *, twin: bool = False) -> tuple[PyNative, Trace]:
        if (name, twin) not in self.made:
            template = TEMPLATES[name]
            needs(template.version)
            folder = self.folder / f"{name}{' twin' if twin else ''}".replace(" ", "_")
            training = PyNative(
                folder, template.version, template.ranks, self.text(name), environment=template.environment
            )
            trace = start(training, self.server, "first", die_at=None if twin else template.die_at)
            assert trace.steps, training.errors("first")
            self.made[name, twin] = training, trace
        return self.made[name, twin]

    def text(self, name: str, settings: Settings = NO_SETTINGS, *, add: str = "", data: str | None = None) -> str:
        """Return the config of a template, with some settings changed."""
        template = TEMPLATES[name]
        text = config({**template.settings, **settings}, data=data or template.data, add=add)
        if BASE_MODEL in text:
            text = text.replace(BASE_MODEL, str(self.of("complete")[0].save(40)))
        return "".join(line for line in text.splitlines(keepends=True) if not line.strip().startswith(template.without))


def start(
    training: PyNative, server: Server, phase: str, base: str = "base.yaml", *, die_at: int | None = None
) -> Trace:
    """Start a config: by the server if it can be, which is six times as fast."""
    if training.ranks > 1 or training.version != server.version:
        return training.train(phase, training.fresh_command(base), die_at=die_at)
    environment = {} if die_at is None else {"CKPTTOOL_DIE_AT": str(die_at)}
    return training.start_warm(server, phase, base, **environment)
