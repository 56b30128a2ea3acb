"""Processes that train together on this machine, each of which runs the same cases one after the other."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

Case = Callable[[int], Any]
"""Runs on each rank, and returns what the test wants to see of it: plain values."""

LONGEST = 280.0
"""Seconds for all cases together, and for one meeting of the ranks; less than a test that hangs is given."""


def on_ranks(count: int, cases: Mapping[str, Case], folder: Path) -> dict[str, list[Any]]:
    """Return what each case returned, by rank. An exception in a rank is its traceback as text."""
    # One process imports what is dear to import; of it, before it has computed anything, the ranks are forked.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp", "tests.guard.rank_steps"])
    processes = [context.Process(target=_run, args=(rank, count, dict(cases), str(folder))) for rank in range(count)]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(LONGEST)
            assert process.exitcode == 0, f"a rank hangs, or was ended: {process.exitcode}"
    finally:
        for process in processes:
            process.kill()
    told = [pickle.loads((folder / f"rank{rank}").read_bytes()) for rank in range(count)]  # noqa: S301  our own
    return {name: [results[name] for results in told] for name in cases}


def _run(rank: int, count: int, cases: dict[str, Case], folder: str) -> None:
    torch.set_num_threads(1)
    os.chdir(folder)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=count, timeout=timedelta(seconds=LONGEST)
    )
    results: dict[str, Any] = {}
    for name, case in cases.items():
        dist.barrier()
        try:
            results[name] = case(rank)
        except Exception:  # noqa: BLE001  the test shows it
            results[name] = traceback.format_exc()
    Path(folder, f"rank{rank}").write_bytes(pickle.dumps(results))
    dist.destroy_process_group()
