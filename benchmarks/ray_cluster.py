r"""Cost and benefit of a Ray cluster, against the threads of one process that read the same files.

    python benchmarks/ray_cluster.py [rounds]        (with ray installed, and ckpttool)

A cluster of one node per core is started on this machine: it shows the overhead, because all nodes share these cores.
The start is shown separately: joining, and the first check, for which every node starts a process. Then both run in
turns, from the page cache; the result is the median of the ratios of each turn, and the target is 1.3.

    structure            headers of 8,192 ranks
    checksum             every byte of 64 ranks of 16 MiB
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)
os.environ["PYTHONPATH"] = str(ROOT)  # for the nodes, too

from ray.cluster_utils import Cluster  # noqa: E402  found by the lines above

from ckpttool import verify  # noqa: E402
from ckpttool.library import on_ray  # noqa: E402
from ckpttool.types import CheckQuestion, Level, TreeQuestion  # noqa: E402
from tests.support.shard_writers import entries_json, safetensors_file  # noqa: E402

ROUNDS = 5
TREES = (("structure", Level.STRUCTURE, 8192, 4096), ("checksum", Level.CHECKSUM, 64, 16 << 20))
"""Name, level, ranks, and bytes per shard of each case."""


def write_tree(folder: Path, ranks: int, size: int) -> str:
    """Write one checkpoint with one tensor per rank, and return its root."""
    content = os.urandom(size)
    for rank in range(ranks):
        place = folder / "checkpoint" / f"rank_{rank}"
        place.mkdir(parents=True)
        shard = safetensors_file(entries_json([("w", "I8", [size], size)]), rank.to_bytes(8, "little") + content[8:])
        (place / f"net_rank_{rank}-1_1.safetensors").write_bytes(shard)
    return str(folder / "checkpoint")


def seconds(work: Callable[[], object]) -> float:
    """Return the duration of a call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Start a cluster, build the trees and measure."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    cluster = Cluster()
    for _ in range(os.cpu_count() or 1):
        cluster.add_node(num_cpus=1, object_store_memory=80 << 20, include_dashboard=False)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with on_ray(cluster.address):
            print(f"join            {time.perf_counter() - began:.2f} s")
        for name, level, ranks, size in TREES:
            tree = TreeQuestion(path=write_tree(Path(folder) / name, ranks, size))
            question = CheckQuestion(level=level, max_age=None, replicas=False)

            def look(tree: TreeQuestion = tree, question: CheckQuestion = question) -> None:
                list(verify(tree, question))

            look()
            ratios = []
            with on_ray(cluster.address):
                print(f"{name:15} first look {seconds(look):.2f} s")
            for _ in range(rounds):
                alone = seconds(look)
                with on_ray(cluster.address):
                    look()  # the workers of this connection are there
                    ratios.append(seconds(look) / alone)
            print(f"{name:15} {statistics.median(ratios):.2f} x threads, which take {alone:.2f} s; target 1.3")
    cluster.shutdown()


if __name__ == "__main__":
    main()
