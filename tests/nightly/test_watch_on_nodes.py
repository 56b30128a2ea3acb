"""The fragment for Slurm that the manual ships, in a job of four nodes with a disk each: a node's watch is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nightly.clusters import NODES, slurm
from tests.pages import GUIDE
from tests.support.saving_trainer import RANKS, content

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="starts Slurm: --nightly")

LIMIT_SECONDS = 120

SHIM = """#!/bin/sh
# A node's own name and disk, where a launcher started this; the judge runs as it is.
export XDG_CACHE_HOME={base}/cache
if [ -n "${{SLURM_STEP_ID:-}}" ] && [ -n "${{SLURM_PROCID:-}}" ]; then
    export XDG_STATE_HOME={base}/state-$SLURM_PROCID
    echo $$ > {base}/pid-$SLURM_PROCID
    exec unshare --mount --uts sh -c '
        hostname node-$SLURM_PROCID
        mount --bind {base}/disk-$SLURM_PROCID {base}/local
        exec "$@"' sh {python} -m ckpttool "$@" --every 0.5
fi
export XDG_STATE_HOME={base}/state
exec {python} -m ckpttool "$@" --every 0.5 --patience 12s --skew 0s
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    tried = subprocess.run(["unshare", "--mount", "--uts", "true"], capture_output=True, check=False)
    if tried.returncode != 0:
        pytest.skip("a disk for each node takes mount namespaces: run it as root")
    (tmp_path / "bin").mkdir()
    (tmp_path / "local").mkdir()
    shim = tmp_path / "bin" / "ckpttool"
    shim.write_text(SHIM.format(base=tmp_path, python=sys.executable), encoding="utf-8")
    shim.chmod(0o755)
    for rank in range(RANKS):
        (tmp_path / f"disk-{rank % len(NODES)}" / "checkpoint" / f"rank_{rank}").mkdir(parents=True)
    text = (GUIDE / "watch" / "watch-parts.sbatch").read_text(encoding="utf-8")
    assert "/local/output/checkpoint" in text
    (tmp_path / "job.sh").write_text(text.replace("/local/output/checkpoint", f"{tmp_path}/local/checkpoint"))
    (tmp_path / "start_training.sh").write_text('while [ ! -e "$SLURM_SUBMIT_DIR/ended" ]; do sleep 0.2; done\n')
    return tmp_path


def shard(base: Path, rank: int, number: int) -> Path:
    return base / f"disk-{rank % len(NODES)}" / "checkpoint" / f"rank_{rank}" / f"llm_rank_{rank}-{number}_1.ckpt"


def save(base: Path, number: int) -> None:
    for rank in range(RANKS):
        shard(base, rank, number).write_bytes(content(rank, number))


def told(base: Path) -> list[tuple[str, str | None]]:
    lines = [line for file in base.glob("watch-*.jsonl") for line in file.read_text().splitlines()]
    return [(event["event"], event["checkpoint"]) for event in map(json.loads, lines)]


def until(happened: Callable[[], bool], base: Path) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not happened():
        said = [file.read_text() for file in [*base.glob("watch-*.err"), base / "job.log"]]
        assert time.monotonic() < end, f"{told(base)}\n{said}"
        time.sleep(0.2)


def test_the_fragment_tells_each_save_and_the_node_whose_watch_is_killed_and_ends_with_the_job(
    base: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        environment = {**cluster.environment, "PATH": f"{base}/bin:{os.environ['PATH']}"}
        line = ["salloc", "--nodes=4", "bash", str(base / "job.sh")]
        with (base / "job.log").open("wb") as log:
            job = subprocess.Popen(line, env=environment, cwd=base, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            for number in (1, 2):
                save(base, number)
                until(lambda number=number: ("good", f"{number}_1") in told(base), base)  # type: ignore[misc]
            assert told(base) == [("good", "1_1"), ("good", "2_1")]
            os.kill(int((base / "pid-2").read_text()), signal.SIGKILL)
            until(lambda: ("part-stale", None) in told(base), base)
            assert [name for kind, name in told(base) if kind not in {"good", "save-overdue"}] == [None]
            (base / "ended").touch()
            assert job.wait(LIMIT_SECONDS) == 0, (base / "job.log").read_text()
        finally:
            job.kill()
            job.wait()
    (events,) = base.glob("watch-*.jsonl")
    stale = [json.loads(line) for line in events.read_text().splitlines() if "part-stale" in line]
    assert [("part 3 of 4 (node-2)" in each["findings"][0]["message"]) for each in stale] == [True]
