"""`python -m tests.report_pictures` takes the pictures for the manual's page `report`, by Chromium and ImageMagick."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
from pathlib import Path
from random import Random
from unittest import mock

import ckpttool
from tests.nightly.test_report_page import Browser
from tests.pages import GUIDE
from tests.trees import MINUTE_NS, TreeBuilder

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
            ckpttool.ReportQuestion(
                tree=ckpttool.TreeQuestion(path="output"),
                choice=ckpttool.ResumeQuestion(
                    logs=ckpttool.EvidenceQuestion(
                        threshold=0.2, logs=ckpttool.LogQuestion(patterns=("output/train.csv",))
                    )
                ),
                keep_last=3,
            )
        )
    file = folder / "report.html"
    file.write_text(text, encoding="utf-8")
    return file


def main() -> None:
    """Take all pictures."""
    target = GUIDE / "report"
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        example(folder)
        os.chdir(folder)
        file = page(folder)
        for picture, width, height, top, dark in (
            ("light", 1000, 1320, 0, False),
            ("dark", 1000, 760, 1300, True),
            ("phone", 360, 900, 0, False),
        ):
            shot = folder / "shot.png"
            Browser(folder).run(file, f"--screenshot={shot}", width=width, height=top + height, dark=dark)
            cut = ["-crop", f"{width}x{height}+0+{top}", "+repage", "+dither", "-colors", str(COLOURS), "-strip"]
            out = target / f"{picture}.png"
            subprocess.run(["convert", shot, *cut, "-define", "png:compression-level=9", f"PNG8:{out}"], check=True)
            print(f"{out.relative_to(GUIDE)}: {out.stat().st_size / 1024:.0f} KiB")  # noqa: T201


if __name__ == "__main__":
    main()
