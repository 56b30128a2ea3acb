"""Trees as an engineer finds them: real ones that were damaged, and built ones where no real one shows it.

Each function makes `output/` in a folder. They are named for what is wrong.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.support.trees import FIRST_SAVE_NS, FIXTURES, MINUTE_NS, TreeBuilder, writable


def real(folder: Path, name: str) -> Path:
    """Copy a fixture's output folder, writable, and return its checkpoint folder."""
    return writable(FIXTURES / name / "output", folder / "output") / "checkpoint"


def whole(folder: Path) -> None:
    real(folder, "sink2_ckpt")


def first_run(folder: Path) -> Path:
    """A training that has not been resumed yet."""
    checkpoint = real(folder, "sink2_ckpt")
    for rank in range(4):
        for path in (checkpoint / f"rank_{rank}").glob(f"llama2_7b_rank_{rank}_1-*"):
            path.unlink()
    return checkpoint


def missing_shard(folder: Path) -> None:
    (first_run(folder) / "rank_3/llama2_7b_rank_3-20_2.ckpt").unlink()


def truncated(folder: Path) -> None:
    path = real(folder, "sink2_safetensors") / "rank_1/llama2_7b_rank_1_1-30_2.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def empty_shard(folder: Path) -> None:
    (real(folder, "sink2_ckpt") / "rank_2/llama2_7b_rank_2_1-30_2.ckpt").write_bytes(b"")


def all_damaged(folder: Path) -> None:
    for path in real(folder, "sink2_ckpt").glob("rank_0/*.ckpt"):
        path.write_bytes(b"")


def unhealthy(folder: Path) -> None:
    real(folder, "health_pp2")


def torn_health_file(folder: Path) -> None:
    real(folder, "health_pp2")
    path = folder / "output/health_ckpts.json"
    path.write_bytes(path.read_bytes()[:-20])


def rewound(folder: Path) -> None:
    """The second run started at step 20 and has come to 24, where the first was at 40."""
    tree = TreeBuilder(folder).legacy(ranks=4)
    for epoch in (10, 15, 20):
        tree.save(epoch=epoch, step=2)
    tree.save(epoch=12, step=2, run=1)


def replaced_node(folder: Path) -> None:
    """Rank 3 went on on a new machine: its files of the second run have no suffix, and those of the first are gone."""
    tree = TreeBuilder(folder).legacy(ranks=4).save(epoch=10, step=2, ranks=[0, 1, 2])
    for epoch in (15, 20):
        tree.save(epoch=epoch, step=2, run=1, ranks=[0, 1, 2]).save(epoch=epoch, step=2, ranks=[3])


def breakpoint_file(folder: Path) -> None:
    path = real(folder, "nosink_ckpt") / "rank_1/llama2_7b_rank_1-3_3_breakpoint.ckpt"
    path.write_bytes(b"")


def stray_folder(folder: Path) -> None:
    checkpoint = real(folder, "sink2_ckpt")
    shutil.copytree(checkpoint / "rank_0", checkpoint / "rank_0_bak")
    (checkpoint / "rank_table.json").write_text("{}")


def broken_tracker(folder: Path) -> None:
    (real(folder, "newfmt_4rank") / "latest_checkpointed_iteration.txt").write_text("")


def async_save(folder: Path) -> None:
    real(folder, "async_ckpt")


def no_sink(folder: Path) -> None:
    real(folder, "nosink_ckpt")


def newer_layout(folder: Path) -> None:
    real(folder, "newfmt_tp2dp2")


SITUATIONS: dict[str, Callable[[Path], object]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        whole,
        missing_shard,
        truncated,
        empty_shard,
        all_damaged,
        unhealthy,
        torn_health_file,
        rewound,
        replaced_node,
        breakpoint_file,
        stray_folder,
        broken_tracker,
        async_save,
        no_sink,
        newer_layout,
    )
}


MORNING_NS = FIRST_SAVE_NS + 90 * MINUTE_NS


def before_morning(here: Path) -> None:
    """Let no file be younger than the saves that were made by hand: when a checkout was made says nothing."""
    for path in (here / "output").rglob("*"):
        if path.is_file() and path.stat().st_mtime_ns > MORNING_NS:
            os.utime(path, ns=(FIRST_SAVE_NS, FIRST_SAVE_NS))
