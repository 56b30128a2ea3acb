"""Cost of a tree in an object store: requests, time at 20 ms per request, and memory.

    python benchmarks/objects.py [shards]

The store is the tests' relay over a folder, in a separate process: it represents a network latency of 20 ms, and not
the speed of any store. It counts the requests, which do not depend on the machine. The time of one thread is that of
the same number of consecutive GETs by the same library.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

SHARDS = 1024
DELAY_SECONDS = 0.02
RSS_TARGET_MIB = 96.0
GETS_TARGET, SHARE_TARGET = 1.05, 1 / 20


def write_tree(folder: Path, shards: int) -> None:
    """Write one checkpoint with this many ranks, one folder per rank, as safetensors of one small tensor."""
    for rank in range(shards):
        place = folder / "run" / "checkpoint" / f"rank_{rank}"
        place.mkdir(parents=True)
        header = json.dumps({"weight": {"dtype": "F32", "shape": [256], "data_offsets": [0, 1024]}}).encode()
        data = struct.pack("<Q", len(header)) + header + bytes(1024)
        (place / f"llama_rank_{rank}-1_1.safetensors").write_bytes(data)
        meta = {"epoch_num": 1, "step_num": 1, "global_step": 1, "ckpt_file": f"llama_rank_{rank}-1_1.safetensors"}
        (place / "meta.json").write_text(json.dumps(meta))


def serve(folder: str, delay: str) -> None:
    """Serve the store until the input ends; print the address, then per input line the requests since the last."""
    from tests.support.s3_relay import relay_over

    with relay_over(Path(folder)) as relay:
        relay.delay_seconds = float(delay)
        print(json.dumps(relay.environment()), flush=True)
        for _ in sys.stdin:
            print(json.dumps(relay.asked), flush=True)
            relay.asked.clear()


def look(root: str) -> None:
    """Verify a tree's headers, and print seconds and memory."""
    import ckpttool
    from ckpttool.types import CheckQuestion, TreeQuestion

    begun = time.monotonic()
    tree = ckpttool.scan(TreeQuestion(path=root))
    scanned = time.monotonic()
    for _ in ckpttool.verify(tree, CheckQuestion()):
        pass
    seconds = time.monotonic() - scanned
    print(json.dumps([scanned - begun, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))


def one_thread(shards: int) -> float:
    """Return the seconds of this many consecutive GETs; a tenth of them is measured."""
    from obstore.store import from_url

    store = from_url("s3://bucket", client_options={"allow_http": True})
    measured = max(1, shards // 10)
    begun = time.monotonic()
    for rank in range(measured):
        store.get_range(f"run/checkpoint/rank_{rank}/llama_rank_{rank}-1_1.safetensors", start=0, length=1024)
    return (time.monotonic() - begun) * shards / measured


class Cost(NamedTuple):
    """Cost of checking one checkpoint in a store."""

    lists: int
    heads: int
    gets: int
    """Requests for shards; each rank's `meta.json` adds one."""
    scan_seconds: float
    header_seconds: float
    one_thread_seconds: float
    """Seconds of as many consecutive GETs."""
    rss_mib: float


def measured(shards: int) -> Cost:
    """Write a tree of this many shards, serve it, and check it."""
    with tempfile.TemporaryDirectory() as folder:
        write_tree(Path(folder) / "bucket", shards)
        command = [sys.executable, __file__, "serve", folder, str(DELAY_SECONDS)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as store:
            to_store, from_store = store.stdin, store.stdout
            if to_store is None or from_store is None:
                raise TypeError("both are pipes")
            os.environ |= json.loads(from_store.readline())
            alone = one_thread(shards)
            print(file=to_store, flush=True)
            from_store.readline()
            done = subprocess.run(
                [sys.executable, __file__, "look", "s3://bucket/run/checkpoint"],
                capture_output=True,
                text=True,
                check=True,
            )
            print(file=to_store, flush=True)
            counts: dict[str, int] = json.loads(from_store.readline())
            to_store.close()
    to_scan, to_verify, rss = json.loads(done.stdout)
    gets = counts.get("GET", 0) - shards
    return Cost(counts.get("LIST", 0), counts.get("HEAD", 0), gets, to_scan, to_verify, alone, rss)


def main(shards: int) -> None:
    """Measure, and print each figure with its target."""
    cost, objects = measured(shards), 2 * shards
    print(f"{shards} shards, {objects} objects, {DELAY_SECONDS * 1000:g} ms a request")
    print(f"LIST {cost.lists} (at most {-(-objects // 1000) + 1}), HEAD {cost.heads} (0)")
    print(f"GET a shard {cost.gets / shards:.3f} (at most {GETS_TARGET})")
    print(f"scan {cost.scan_seconds:.2f} s, headers {cost.header_seconds:.2f} s; ", end="")
    print(f"one thread {cost.one_thread_seconds:.1f} s for as many GETs")
    share = cost.header_seconds / cost.one_thread_seconds
    print(f"headers' share of one thread {share:.4f} (at most {SHARE_TARGET:.4f})")
    print(f"resident {cost.rss_mib:.0f} MiB (at most {RSS_TARGET_MIB:g})")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", folder, delay]:
            serve(folder, delay)
        case ["look", root]:
            look(root)
        case words:
            main(int(words[0]) if words else SHARDS)
