"""Cost of `ckpttool export`, as ratios to torch's own converter on the same save, in turns.

    python benchmarks/export.py [--dir DIR] [--rounds N]

Two processes write 1 GiB of BF16 with torch.distributed.checkpoint: eight tensors of 128 MiB, divided by rows and by
columns in turn. Then `dcp_to_torch_save` with `safetensors.torch.save_file`, and `ckpttool export`, run in processes of
their own, round after round; ours also compares every CRC-32 and reads the output back from the disk. Printed are the
medians of the rounds' ratios, and the memory (VmHWM) of both. The outputs of the first round must be equal in every
bit. `--dir` needs 5 GiB; everything in it is deleted.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
SIDE, TENSORS, RANKS = 8192, 8, 2
FIGURES = {"wall": 1.0, "CPU": 1.0, "memory": 0.25}
"""The targets: ours as a ratio to torch's."""

WRITER = f"""
import os, sys, torch, torch.distributed as dist
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
out, rank, port = sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.environ |= dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
dist.init_process_group("gloo", rank=rank, world_size={RANKS})
mesh = init_device_mesh("cpu", ({RANKS},))
model = {{}}
for number in range({TENSORS}):
    torch.manual_seed(number * {RANKS} + rank)
    axis, shape = number % 2, [{SIDE}, {SIDE}]
    shape[axis] //= {RANKS}
    local = torch.randn(shape).to(torch.bfloat16)
    model[f"layers.{{number}}.weight"] = DTensor.from_local(local, mesh, [Shard(axis)], run_check=False)
save(dict(model=model), checkpoint_id=out)
dist.destroy_process_group()
"""
TORCH = """
import sys, torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
dcp_to_torch_save(sys.argv[1], sys.argv[2] + ".pt")
save_file(torch.load(sys.argv[2] + ".pt", mmap=True)["model"], sys.argv[2])
"""


class Cost(NamedTuple):
    """Seconds of wall and CPU time, and the most memory in bytes."""

    wall: float
    cpu: float
    memory: int


def measured(command: list[str]) -> Cost:
    """Run a process, and return its cost."""
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[:3]} ended with {process.returncode}")
    return Cost(time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def write_save(folder: Path) -> None:
    """Write the save, one process per rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    commands = [[sys.executable, "-c", WRITER, str(folder), str(rank), port] for rank in range(RANKS)]
    for process in [subprocess.Popen(command) for command in commands]:
        if process.wait():
            raise SystemExit("the save could not be written")


def one_round(save: Path, scratch: Path, *, first: bool) -> tuple[Cost, Cost]:
    """Run both on the save, and compare their outputs in the first round."""
    single, ours = scratch / "torch.safetensors", scratch / "ours"
    theirs_cost = measured([sys.executable, "-c", TORCH, str(save), str(single)])
    command = [sys.executable, "-m", "ckpttool", "export", str(save), "--output", str(ours), "--max-shard", "300MB"]
    ours_cost = measured(command)
    if first:  # in a process of its own: a child's memory begins at its parent's
        measured([sys.executable, __file__, "--equal", str(single), str(ours)])
    (scratch / "torch.safetensors.pt").unlink()
    single.unlink()
    shutil.rmtree(ours)
    return theirs_cost, ours_cost


def assert_equal(single: Path, folder: Path) -> None:
    """Compare two outputs bit by bit, a tensor at a time."""
    import torch
    from safetensors import safe_open

    names: set[str] = set()
    with safe_open(single, "pt") as theirs:
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, "pt") as ours:
                for name in ours.keys():  # noqa: SIM118  not a dictionary
                    names.add(name)
                    if not torch.equal(
                        ours.get_tensor(name).view(torch.int16), theirs.get_tensor(name).view(torch.int16)
                    ):
                        raise SystemExit(f"{name} differs")
        if names != {*theirs.keys()}:
            raise SystemExit("the names differ")


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--equal", type=Path, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.equal:
        assert_equal(*options.equal)
        return
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        save = Path(folder, "save")
        write_save(save)
        rounds = [one_round(save, Path(folder), first=not number) for number in range(options.rounds)]
    print(f"{platform.machine()}, {os.cpu_count()} cores, {options.rounds} rounds, {TENSORS * 2 * SIDE**2 // MIB} MiB")
    for index, (name, target) in enumerate(FIGURES.items()):
        ratio = statistics.median(ours[index] / theirs[index] for theirs, ours in rounds)
        print(f"{name:8} {ratio:5.2f}  target {target}")
    for title, costs in (("torch", [theirs for theirs, _ in rounds]), ("ckpttool", [ours for _, ours in rounds])):
        wall, cpu = (statistics.median(cost[index] for cost in costs) for index in (0, 1))
        print(f"{title:8} wall {wall:.2f} s, CPU {cpu:.2f} s, memory {max(cost.memory for cost in costs) // MIB} MiB")


if __name__ == "__main__":
    main()
