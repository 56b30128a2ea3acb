"""Start the real PyNative trainer of MindFormers on a CPU, on one rank or two, and read what every step really used.

`CKPTTOOL_MINDFORMERS` names the same folder as for the static trainer (`real_mindformers.py`); of each version only
`mindformers/` and `venv/` are needed. `inject/pynative/on_a_cpu.py` lists what is not real.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from tests.nightly.real_mindformers import INJECT, PLACE, Row, Server, Trace, Training, free_port, home_of

PYNATIVE = INJECT / "pynative"
NEEDED = ("mindformers",)
ROOT = "./output/checkpoint"

Settings = Mapping[str, object]
NO_SETTINGS: Settings = {}

SAMPLES = {"data": 400, "small": 120}
"""Samples of each data set, by the name that a config of a test has for it."""

_BASE = (PYNATIVE / "pretrain.yaml").read_text(encoding="utf-8")


def needs(version: str = "2.1.0") -> Path:
    """Return the folder of this MindFormers, or skip the test."""
    home = home_of(version, NEEDED)
    if home is None:
        pytest.skip(f"needs MindFormers {version}: set {PLACE} to a folder that contains it")
    return home


@functools.cache
def data_set(name: str) -> Path:
    """Write a data set of 50 MB once per process, and delete it when that ends."""
    folder = Path(tempfile.mkdtemp(prefix="ckpttool-pynative-"))
    atexit.register(shutil.rmtree, folder)
    file = folder / f"{name}.mindrecord"
    python = needs() / "venv/bin/python"
    subprocess.run([python, PYNATIVE / "write_data.py", file, str(SAMPLES[name])], check=True, capture_output=True)
    return file


def config(settings: Settings = NO_SETTINGS, *, data: str = "data", add: str = "") -> str:
    """Return the tiny training's config with other values of some keys, and lines added at its end.

    A value may have more lines, which then become keys of the same section.
    """
    text = _BASE.replace("DATA", str(data_set(data)))
    for key, value in settings.items():
        text, count = re.subn(rf"(?m)^(\s+){key}:.*$", rf"\g<1>{key}: {value}", text, count=1)
        assert count == 1, key
    return text + add


def save_of(step: int) -> str:
    return f"{ROOT}/iteration_{step:08d}"


def new_server(log: Path) -> Server:
    return Server(needs(), log, inject=PYNATIVE, imported="prepared")


@dataclass
class PyNative(Training):
    """A folder in which one training of the PyNative trainer runs, stops, and resumes."""

    text: str = field(default_factory=config)
    environment: Mapping[str, str] = field(default_factory=dict)

    inject: ClassVar[Path] = PYNATIVE
    needed: ClassVar[tuple[str, ...]] = NEEDED
    names_one_device: ClassVar[bool] = True

    def copy(self, folder: Path, text: str, *, ranks: int | None = None, version: str | None = None) -> PyNative:
        """Return a training with a copy of the checkpoints of this one."""
        made = PyNative(folder, version or self.version, ranks or self.ranks, text, environment=self.environment)
        if self.checkpoints.exists():
            shutil.copytree(self.checkpoints, made.checkpoints)
        return made

    def own_environment(self, phase: str) -> dict[str, str]:
        return {**super().own_environment(phase), "OMP_NUM_THREADS": "1", **self.environment}

    def fresh_command(self, base: str = "base.yaml") -> str:
        start = f"{PYNATIVE / 'start.py'} {base}"
        if self.ranks == 1:
            return f"exec python {start}"
        return (
            f"exec msrun --worker_num={self.ranks} --local_worker_num={self.ranks} --master_port={free_port()} "
            f"--log_dir=output/msrun_log --join=True --cluster_time_out=120 {start}"
        )

    def start_warm(self, server: Server, phase: str, base: str = "base.yaml", **environment: str) -> Trace:
        """Start it on one rank as a copy of a process that has imported the trainer."""
        status = server.start({
            "arguments": [str(PYNATIVE / "start.py"), base], "folder": str(self.folder),
            "environment": {**self.own_environment(phase), **environment},
            "output": str(self.folder / f"{phase}.txt"),
        })  # fmt: skip
        self.code = os.waitstatus_to_exitcode(status)
        return self.trace(phase)

    def save(self, step: int) -> Path:
        return self.checkpoints / f"iteration_{step:08d}"

    def shard_of(self, step: int, kind: str, rank: int = 0) -> Path:
        """Return a shard by the first number of its name; its name may have no prefix."""
        (found,) = (path for path in self.save(step).glob(f"*{kind}-{rank:07d}-*.safetensors"))
        return found

    def common(self, step: int) -> Row:
        document: Row = json.loads((self.save(step) / "common.json").read_text(encoding="utf-8"))
        return document


def launched_config(document: Row, ranks: int) -> str:
    """Return the config that the printed command starts; `run_mindformer.py` itself is in no wheel."""
    command = document.get("command") or document["commands"][0]
    found = re.search(r"run_mindformer\.py --config (\S+) --mode 1", command)
    assert found, command
    assert ranks == 1 or re.search(rf"msrun_launcher\.sh '.*' {ranks} ", command), command
    return found[1]


def tensors(row: Row) -> Iterator[tuple[str, str]]:
    """Return names and hashes of a row, without the optimizer's own step."""
    return ((name, digest) for name, digest in row["tensors"].items() if name != "global_step")


def weights(row: Row) -> dict[str, str]:
    return {name: digest for name, digest in tensors(row) if not name.startswith("adam_")}


def moments(row: Row) -> dict[str, str]:
    return {name: digest for name, digest in tensors(row) if name.startswith("adam_")}
