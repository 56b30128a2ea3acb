"""Memory and time of `export` of ZeRO saves, beside DeepSpeed's own converter in the same minute.

    python benchmarks/export_zero.py PYTHON [rounds]

PYTHON is an environment with DeepSpeed. The save has 1.0 GB of FP32 master weights on two ranks, without the other
state of the optimizer, which neither reads. `convert_zero_checkpoint_to_state_dict` writes one file and checks nothing;
`export` also compares the CRC-32 of all records, and reads its output back. Both run as a program, in turns.

Medians of three rounds on two cores with other load, of the converter and of `export`: peak memory 2,160 and 96 MiB in
ZeRO 2, 2,161 and 95 MiB in ZeRO 3; 9.1 and 6.2 s (CPU 3.7 and 2.6), 13.4 and 8.1 s (CPU 5.0 and 2.4).
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

RANKS = 2
DIVIDED = 3
"""The stage in which each rank has a part of each weight."""
LAYERS = {f"layers.{index}.weight": (2048, 2048) for index in range(52)} | {"embed.weight": (16_001, 2048)}
CONVERT = (
    "import sys; from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_state_dict as convert; "
    "convert(sys.argv[1], sys.argv[2], max_shard_size=None)"
)


class Cost(NamedTuple):
    """Cost of one program."""

    peak_mib: float
    wall: float
    cpu: float


def write(root: Path, stage: int) -> None:
    """Write a save with random weights; in ZeRO 3, a rank has its parts of ten parameters in each sub group."""
    import torch  # only in a process of its own: a program's peak memory includes what its parent had when it forked

    folder = root / "global_step1"
    folder.mkdir(parents=True)
    (root / "latest").write_text(folder.name)
    shapes = {name: torch.Size(shape) for name, shape in LAYERS.items()}
    numel = sum(shape.numel() for shape in shapes.values())
    settings = {"ds_config": {"zero_optimization": {"stage": stage}}, "ds_version": "0.19.8"}
    for rank in range(RANKS):
        flat = torch.rand(-(-numel // RANKS), generator=torch.Generator().manual_seed(rank))
        name = f"zero_pp_rank_{rank}_mp_rank_00"
        file, groups = "mp_rank_00_model_states.pt", {"single_partition_of_fp32_groups": [flat]}
        if stage == DIVIDED:
            parts = [shape.numel() // RANKS for shape in shapes.values()]
            sizes = [sum(parts[index : index + 10]) for index in range(0, len(parts), 10)]
            file, groups = f"{name}_model_states.pt", {"fp32_flat_groups": [part.clone() for part in flat.split(sizes)]}
        state = {"zero_stage": stage, "partition_count": RANKS, **groups}
        torch.save({"optimizer_state_dict": state, **settings}, folder / f"{name}_optim_states.pt")
        model = {
            "module": {},
            "buffer_names": [],
            "param_shapes": [shapes],
            "shared_params": {},
            "dp_world_size": RANKS,
            "mp_world_size": 1,
            "global_steps": 1,
        }
        torch.save(model | settings, folder / file)


def cost(*command: str) -> Cost:
    """Run a program to its end."""
    begin = time.monotonic()
    program = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
    _, status, usage = os.wait4(program.pid, 0)
    if status:
        raise SystemExit(f"failed: {command}")
    return Cost(usage.ru_maxrss / 1024, time.monotonic() - begin, usage.ru_utime + usage.ru_stime)


def main(python: str, rounds: int) -> None:
    """Print the costs of both programs for each stage."""
    for stage in (2, 3):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            subprocess.run([sys.executable, __file__, "write", str(root / "save"), str(stage)], check=True)
            costs: dict[str, list[Cost]] = {"zero_to_fp32": [], "export": []}
            for _ in range(rounds):
                shutil.rmtree(root / "real", ignore_errors=True)
                shutil.rmtree(root / "mine", ignore_errors=True)
                mine = ("-m", "ckpttool", "export", str(root / "save"), "--output", str(root / "mine"))
                costs["zero_to_fp32"].append(cost(python, "-c", CONVERT, str(root / "save"), str(root / "real")))
                costs["export"].append(cost(sys.executable, *mine))
            for name, each in costs.items():
                peak, wall, cpu = (statistics.median(column) for column in zip(*each, strict=True))
                print(f"ZeRO {stage}, {name}: peak {peak:,.0f} MiB, {wall:.2f} s, CPU {cpu:.2f} s")


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main(sys.argv[1], int([*sys.argv, "3"][2]))
