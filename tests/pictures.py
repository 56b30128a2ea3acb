"""`python -m tests.pictures` takes the manual's pictures of a report and of a watch, by Chromium and ImageMagick."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
from html import escape
from io import StringIO
from pathlib import Path
from random import Random
from unittest import mock

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

import ckpttool
from ckpttool.core.domain.verdict import Level
from ckpttool.types import EvidenceQuestion, LogQuestion, ReportQuestion, ResumeQuestion, TreeQuestion
from ckpttool.watch.answers import text
from tests.nightly.test_report_page import Browser
from tests.pages import GUIDE
from tests.support.trees import MINUTE_NS, TreeBuilder
from tests.support.watched_trainings import Trainer, Watching

NOW = 1_800_000_000.0
"""Seconds since 1970: the day on which the pictures are taken, whenever that is."""

RANKS, SAVES, EVERY = 48, 9, 500
STEPS = SAVES * EVERY + 220
COLOURS = 48
"""Of a picture: few are used, and it takes a third."""


def example(folder: Path) -> Path:
    """A training with what happens to trainings: a rank lost, files cut off, spikes, a norm that climbs."""
    builder = TreeBuilder(folder, now_ns=int(NOW * 1e9) - (SAVES + 1) * 60 * MINUTE_NS)
    builder.legacy(ranks=RANKS, prefix="llama3_8b")
    for number in range(1, SAVES + 1):
        builder.save(epoch=1, step=number * EVERY, true_step=number * EVERY, global_batch_size=512)
        builder.now_ns += 59 * MINUTE_NS
    builder.remove(builder.shard(17, 1, 4500))
    for rank in (30, 31):
        builder.truncate(builder.shard(rank, 1, 4500), 200)
    for rank in range(8, 16):
        builder.remove(builder.shard(rank, 1, 3500))
    builder.truncate(builder.shard(40, 1, 2000), 0)
    (builder.output / "train.csv").write_text("\n".join(["step,loss,global_norm,embedding_local_norm", *_rows()]))
    return builder.output


def _rows() -> list[str]:
    chance = Random(1)  # noqa: S311  the same picture each time
    rows = []
    for step in range(1, STEPS):
        spike = 9.0 if 3030 <= step < 3042 else 7.0 if step == 1411 else 1.0
        norm = (0.35 + 2.2 * math.exp(-step / 400)) * math.exp(chance.gauss(0, 0.09)) * spike
        climb = max(step - 4000, 0) ** 2 * 2.2e-7
        embedding = 0.09 + 0.02 * math.sin(step / 600) + chance.gauss(0, 0.004) + climb
        rows.append(f"{step},{2.1 + 8.6 * math.exp(-step / 350) + chance.gauss(0, 0.03)},{norm},{embedding}")
    return rows


def page(folder: Path) -> Path:
    """Write the report."""
    with mock.patch("time.time", return_value=NOW):
        text = ckpttool.report(
            ReportQuestion(
                tree=TreeQuestion(path="output"),
                choice=ResumeQuestion(
                    logs=EvidenceQuestion(threshold=0.2, logs=LogQuestion(patterns=("output/train.csv",)))
                ),
                keep_last=3,
            )
        )
    file = folder / "report.html"
    file.write_text(text, encoding="utf-8")
    return file


def watched(folder: Path) -> Path:
    """Write down what a watch told while a training saved, hung and was healed: a terminal, as a page."""
    trainer = Trainer(folder, seed=1)
    watching = Watching(trainer.root, folder / "state", seal=True, level=Level.CHECKSUM)
    for _ in range(4):
        trainer.begin()
        watching.poll(trainer, times=16)
    flipped = trainer.file(5, 3)
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    watching.poll(trainer, times=6)
    trainer.begin(hangs=3)
    watching.poll(trainer, times=40)
    lines = ["$ ckpttool watch output/checkpoint --seal --patience 2m", *map(text, watching.told)]
    inner = "\n".join(
        f'<span class="{line[22:].split(maxsplit=1)[0] if line[0] != "$" else "asked"}">{escape(line)}</span>'
        for line in lines
    )
    file = folder / "watch.html"
    file.write_text(f"<style>{TERMINAL}</style><pre>{inner}</pre>", encoding="utf-8")
    return file


def answered(folder: Path) -> Path:
    """Write what `ckpttool resolve` shows on a terminal for the tree of `ckpttool demo`, as a page."""
    environment = os.environ | {"COLUMNS": "100", "TERM": "xterm-256color", "XDG_CACHE_HOME": str(folder / "cache")}
    environment.pop("NO_COLOR", None)
    subprocess.run(["ckpttool", "demo", "night"], cwd=folder, env=environment, check=True, capture_output=True)
    # `script` gives the command a terminal, for which it uses colours.
    shown = subprocess.run(
        ["script", "-qec", "ckpttool resolve", "/dev/null"],
        cwd=folder / "night", env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    console = Console(record=True, width=100, file=StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(f"$ cd night && ckpttool resolve\n{shown.stdout}"), highlight=False)
    inner = console.export_html(theme=MONOKAI, code_format="<pre>{code}</pre>", inline_styles=True)
    file = folder / "resolve.html"
    file.write_text(f"<style>{TERMINAL}</style>{inner}", encoding="utf-8")
    return file


TERMINAL = """
body { margin: 0; background: #14181d; }
pre { margin: 14px 16px; font: 13px/1.55 "DejaVu Sans Mono", monospace; color: #d5dbe1; white-space: pre-wrap; }
.asked { color: #8fa1b3; } .good { color: #7fc98b; } .bad, .checksum-mismatch { color: #ff8a80; font-weight: bold; }
.save-incomplete, .save-overdue { color: #f2c063; font-weight: bold; }
"""


def shoot(file: Path, target: Path, size: tuple[int, int], *, top: int = 0, dark: bool = False) -> None:
    """Take a picture of a page, with few colours."""
    width, height = size
    shot = file.parent / "shot.png"
    Browser(file.parent).run(file, f"--screenshot={shot}", width=width, height=top + height, dark=dark)
    cut = ["-crop", f"{width}x{height}+0+{top}", "+repage", "+dither", "-colors", str(COLOURS), "-strip"]
    target.parent.mkdir(exist_ok=True)
    subprocess.run(["convert", shot, *cut, "-define", "png:compression-level=9", f"PNG8:{target}"], check=True)
    print(f"{target.relative_to(GUIDE)}: {target.stat().st_size / 1024:.0f} KiB")  # noqa: T201


def main() -> None:
    """Take all pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        example(folder)
        os.chdir(folder)
        file = page(folder)
        shoot(file, GUIDE / "report" / "light.png", (1000, 1320))
        shoot(file, GUIDE / "report" / "dark.png", (1000, 760), top=1300, dark=True)
        shoot(file, GUIDE / "report" / "phone.png", (360, 900))
    with tempfile.TemporaryDirectory() as name:
        shoot(watched(Path(name)), GUIDE / "watch" / "night.png", (1000, 215), dark=True)
    with tempfile.TemporaryDirectory() as name:
        shoot(answered(Path(name)), GUIDE / "resolve.png", (840, 580), dark=True)


if __name__ == "__main__":
    main()
