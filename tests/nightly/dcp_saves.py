"""Write folders of torch.distributed.checkpoint with every kind of slice: dcp_saves.py OUT RANK WORLD PORT.

Four of these processes wrote `fixtures/export/dcp_kinds_4ranks` and `…/dcp_fsdp_tp_4ranks` with torch 2.13.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int8, torch.uint8, torch.bool)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def kinds(one: DeviceMesh, two: DeviceMesh) -> dict[str, object]:
    """Return tensors of all types, placements and forms of storage."""
    world, rank = one.size(), one.get_rank()
    found: dict[str, object] = {}
    for dtype in (*TYPES, *FP8):
        tensor, name = (torch.randn(7, 6) * 3).to(dtype), str(dtype).removeprefix("torch.")
        found[f"plain.{name}"] = tensor
        if dtype not in FP8:
            found[f"shard0.{name}"] = distribute_tensor(tensor, one, [Shard(0)])
            continue
        parts = [*tensor.view(torch.uint8).chunk(world)]
        parts += [torch.empty(0, 6, dtype=torch.uint8)] * (world - len(parts))
        own = parts[rank].view(dtype)
        found[f"shard0.{name}"] = DTensor.from_local(
            own, one, [Shard(0)], shape=tensor.shape, stride=tensor.stride(), run_check=False
        )
    found["shard1"] = distribute_tensor(torch.randn(5, 9), one, [Shard(1)])
    found["replicated"] = distribute_tensor(torch.randn(5, 3), one, [Replicate()])
    found["hsdp"] = distribute_tensor(torch.randn(6, 3), two, [Replicate(), Shard(0)])
    found["two_axes"] = distribute_tensor(torch.randn(8, 6), two, [Shard(0), Shard(1)])
    found["one_axis_twice"] = distribute_tensor(torch.randn(16, 3), two, [Shard(0), Shard(0)])
    found["experts"] = distribute_tensor(torch.randn(4, 6, 5), two, [Shard(0), Shard(2)])
    found["one_row"] = distribute_tensor(torch.randn(1, 8), one, [Shard(0)])
    found |= {
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "complex": torch.randn(3, 2, dtype=torch.complex64),
    }
    found["view_of_larger"] = torch.randn(10, 10)[2:5, 1:4]
    found["transposed"] = torch.randn(4, 7).t()
    found["tied_a"] = found["tied_b"] = torch.randn(6, 6)
    found["with.dots"] = {"inner.more": torch.randn(2, 2)}
    found["list"] = [torch.randn(2), torch.randn(3)]
    return found


def main(out: str, rank: int, world: int, port: str) -> None:
    """Write the folders."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    one = init_device_mesh("cpu", (world,))
    two = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    saved = {"model": kinds(one, two), "optimizer": {"x": torch.randn(3)}, "step": 7}
    save(saved, checkpoint_id=f"{out}/kinds")
    model = nn.Sequential(nn.Linear(6, 16, dtype=torch.bfloat16), nn.Linear(16, 5, dtype=torch.bfloat16))
    parallelize_module(model, two["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=two["dp"])
    save({"model": model.state_dict()}, checkpoint_id=f"{out}/fsdp_under_tp")
    writer = FileSystemWriter(f"{out}/file_per_slice", single_file_per_rank=False, thread_count=2)
    save({"model": saved["model"]}, storage_writer=writer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
