"""Training runs of MindFormers that were killed, and resumes of them, right and with a fault, for `postflight`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from ckpttool.core.domain.shard import FormatName
from ckpttool.core.formats import read_header
from ckpttool.core.storage import open_storage
from tests.nightly.real_mindformers import INJECT, Row, Server, Trace, Training
from tests.nightly.real_pynative import PyNative

EVERY, SAVED, KILLED, END = 40, 120, 150, 170
"""Steps between saves, of the newest save, of the kill, and of the end of the resumed run."""

BATCH = 32

Answer = tuple[int, tuple[str, ...]]
"""Exit code and findings."""

Run = TypeVar("Run", bound=Training)


def make_writable(path: Path) -> Path:
    path.chmod(0o600)
    return path


def edit(path: Path, **values: object) -> None:
    """Set the first line of each key in a config; None removes the line."""
    text = path.read_text(encoding="utf-8")
    for key, value in values.items():
        line = "" if value is None else rf"\g<1>{key}: {value}\n"
        text, count = re.subn(rf"(?m)^(\s*(?:- )?){key}:.*\n", line, text, count=1)
        assert count == 1, key
    path.write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Resume(Generic[Run]):
    """A fault and the answers to it."""

    fault: Callable[[Run], object]
    """Acts on the training, which has `resume.yaml` of `launch` and `base.yaml`; the first is then started."""
    answers: tuple[Answer, ...]
    """With the plan that was made before the start; if there are several, each is right, but says more or less."""
    bare: int | None = None
    """Exit code without a plan, if it is another one."""
    first: int = SAVED + 1
    """The first step of the resumed run."""
    end: int = END


@dataclass(frozen=True)
class Answers:
    """The answers of `postflight` to one resumed run, each as exit code and document."""

    plan: tuple[int, Row]
    bare: tuple[int, Row]
    files: tuple[int, Row]
    """With the output of both runs and the folder of the checkpoints."""

    @property
    def all(self) -> tuple[tuple[int, Row], ...]:
        return self.plan, self.bare, self.files


def findings_of(document: Row) -> tuple[str, ...]:
    return tuple(finding["code"] for finding in document["findings"])


def postflight(training: Training, *arguments: str, plan: str | None = None) -> tuple[int, Row]:
    """Ask `postflight` in the training's folder, with a plan on standard input if there is one."""
    words = ["postflight", *arguments, "--json", *(["-"] if plan is not None else [])]
    run = training.ckpttool(*words, stdin=plan)
    document: Row = json.loads(run.stdout)
    assert run.returncode == document["exit_code"], run.stderr
    return run.returncode, document


def plan_of(training: Training) -> str:
    """Return the plan as a pipe has it."""
    run = training.ckpttool("resolve", "output", "--config", "base.yaml", "--format", "json")
    assert run.returncode == 0, run.stdout
    return run.stdout


def answers_of(training: Training, plan: str, *, phase: str = "second") -> Answers:
    files = ("output", "--before", "first.txt", "--after", f"{phase}.txt")
    return Answers(postflight(training, plan=plan), postflight(training), postflight(training, *files))


def copied(training: Run, folder: Path) -> Run:
    """Return a training with a copy of all that the first run of this one wrote."""
    made = replace(training, folder=folder)
    for name in ("output", "trace"):
        shutil.copytree(training.folder / name, folder / name)
    shutil.copyfile(training.folder / "first.txt", folder / "first.txt")
    return made


def zero_tensors(shard: Path, format_: FormatName, is_lost: Callable[[str], bool]) -> None:
    """Set some tensors of a shard to zero, in place."""
    content = bytearray(make_writable(shard).read_bytes())
    with open_storage(str(shard.parent)).open(shard.name) as source:
        entries = [entry for entry in read_header(source, named=format_).entries if is_lost(entry.name)]
    assert entries
    for entry in entries:
        for begin, end in entry.spans:
            content[begin:end] = bytes(end - begin)
    shard.write_bytes(content)


def is_moment(name: str) -> bool:
    return name.startswith("adam_")


def is_step(name: str) -> bool:
    return name == "global_step"


def nothing(_: Training) -> None:
    """Leave the launch as it is."""


def settings(**values: object) -> Callable[[Training], None]:
    """Change the config that `launch` wrote."""
    return lambda training: edit(training.folder / "resume.yaml", **values)


def own(**values: object) -> Callable[[Training], None]:
    """Start the first run's config instead, with some keys changed."""

    def act(training: Training) -> None:
        shutil.copyfile(training.folder / "base.yaml", training.folder / "resume.yaml")
        edit(training.folder / "resume.yaml", **values)

    return act


# The static trainer.


def shard_of(training: Training, step: int = SAVED) -> Path:
    return training.shard(0, f"-1_{step}.ckpt")


def zeroed(is_lost: Callable[[str], bool]) -> Callable[[Training], None]:
    return lambda training: zero_tensors(shard_of(training), FormatName.MINDSPORE_CKPT, is_lost)


def without_optimizer(training: Training) -> None:
    python, script = training.home / "venv/bin/python", INJECT / "without_optimizer.py"
    subprocess.run([python, script, make_writable(shard_of(training))], check=True, capture_output=True)


def stray_file(training: Training) -> None:
    shutil.copyfile(shard_of(training, SAVED - EVERY), training.checkpoints / "best.ckpt")


def start_static(training: Training, server: Server, phase: str, base: str, die_at: int) -> Trace:
    environment = {"CKPTTOOL_DIE_AT": str(die_at)}
    return training.start(server, phase, "run_mindformer.py", training.folder, environment, base=base)


# The newer layout, which both trainers write.


def newer_shard(training: Training, kind: str, step: int = SAVED) -> Path:
    (found,) = (training.checkpoints / f"iteration_{step:08d}").glob(f"*{kind}-*.safetensors")
    return found


def without(kind: str) -> Callable[[Training], None]:
    return lambda training: newer_shard(training, kind).unlink()


def older_content(training: Training) -> None:
    for kind in ("model", "opt"):
        shard = make_writable(newer_shard(training, kind))
        shard.write_bytes(newer_shard(training, kind, SAVED - EVERY).read_bytes())


def newer_zeroed(is_lost: Callable[[str], bool]) -> Callable[[Training], None]:
    return lambda training: zero_tensors(newer_shard(training, "opt"), FormatName.SAFETENSORS, is_lost)


# The PyNative trainer.


def consumed(samples: int) -> Callable[[PyNative], None]:
    """Let the save record another position of the data."""

    def act(training: PyNative) -> None:
        path = make_writable(training.save(SAVED) / "common.json")
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**document, "consumed_samples": samples}), encoding="utf-8")

    return act


def without_optimizer_unnoticed(training: PyNative) -> None:
    """Remove the optimizer of a save whose prefix ends like a name of one, which the trainer's check then accepts."""
    newer_shard(training, "opt").unlink()
    shard = newer_shard(training, "model")
    shard.rename(shard.with_name("adopt-" + shard.name.partition("-")[2]))
    edit(training.folder / "resume.yaml", prefix='"adopt"')


def start_pynative(training: PyNative, server: Server, phase: str, base: str, die_at: int) -> Trace:
    if training.ranks > 1:
        return training.train(phase, training.fresh_command(base), die_at=die_at)
    return training.start_warm(server, phase, base, CKPTTOOL_DIE_AT=str(die_at))
