"""write_iterations.py FOLDER SEED COUNT: write saves of random layouts with MindFormers' own functions.

Each case is a folder with `iteration_00000010/`, a tracker, and `truth.safetensors` with the whole weights. The
`ReshardLoader` of MindFormers then loads every tensor for one rank; the last line of the output says how many it
loaded, and how many are equal to the truth. Real are the layouts and the number of each fragment, the writers of the
shards and of metadata.json, and the loader; not real is the training.
"""

import json
import os
import random
import sys
from unittest import mock

import on_a_cpu  # noqa: F401  MindFormers cannot be imported without it

# isort: split
import mindspore as ms
import numpy as np
from mindformers.checkpoint import metadata, reshard, sharded_tensor
from mindspore import Layout, Tensor

TYPES = (ms.float32, ms.float16, ms.bfloat16, ms.int32, ms.int64, ms.int8, ms.uint8, ms.bool_, ms.float64)
NAMES = ("model.layers.{}.weight", "层.{}", "it's {}", "a(b), {}")
COMMON = {
    "epoch_num": 1, "step_num": 10, "global_step": 10, "loss_scale": 1.0, "global_batch_size": 8,
    "consumed_samples": None, "ckpt_status": None,
}  # fmt: skip


class Case:
    """One save, of which each tensor is divided along random dimensions of a grid of ranks."""

    def __init__(self, folder, seed):
        self.random = random.Random(seed)  # noqa: S311
        self.folder, self.save = folder, f"{folder}/iteration_00000010"
        os.makedirs(self.save)
        self.prefix = self.random.choice(["tiny", None, "a-b", "x_opt"])
        sizes = [self.random.choice([1, 2, 2, 3]) for _ in range(self.random.choice([1, 2, 2, 3]))]
        if max(sizes) == 1:
            sizes[0] = 2
        self.sizes, self.axes = tuple(sizes), ("dp", "cp", "tp")[: len(sizes)]
        self.stage = int(np.prod(sizes))
        stages = self.random.choice([1, 1, 2])
        self.world = self.stage * stages
        self.truth, self.optimizer = {}, {}
        self.parts = {rank: {} for rank in range(self.world)}
        self.described = {rank: {} for rank in range(self.world)}
        for number in range(self.random.randint(2, 6)):
            self.add(number, self.random.randrange(stages), is_model=number == 0 or self.random.random() < 0.7)

    def layout(self, ranks, dims):
        names = list(self.axes)
        self.random.shuffle(names)
        tensor_map = []
        for _ in range(dims):
            count = self.random.choice([0, 0, 1, 1, 2])
            own, names = tuple(names[:count]), names[count:]
            tensor_map.append({0: "None", 1: own[0] if own else None}.get(len(own), own))
        return Layout(self.sizes, self.axes, rank_list=ranks)(*tensor_map)

    def add(self, number, stage, *, is_model):
        """Add a tensor to the ranks of a pipeline stage."""
        ranks = list(range(stage * self.stage, (stage + 1) * self.stage))
        dims = self.random.randint(0, 3)
        layout = self.layout(ranks, dims) if dims and self.random.random() < 0.85 else None
        grid, tensor_map = self.sizes, [-1] * dims
        if layout is not None:
            grid, tensor_map = layout.to_dict()["device_matrix"], layout.to_dict()["tensor_map"]
        cuts = [1] * dims
        for axis, sides in enumerate(tensor_map):
            for side in sides if isinstance(sides, tuple) else (sides,):
                cuts[axis] *= 1 if side < 0 else grid[-side - 1]
        shape = tuple(cut * self.random.choice([1, 2, 3]) for cut in cuts)
        dtype = self.random.choice(TYPES)
        values = np.random.default_rng(number).integers(-1000, 1000, size=shape)
        whole = Tensor(np.array(values)).astype(dtype)
        name = ("" if is_model else "adam_m.") + self.random.choice(NAMES).format(number)
        (self.truth if is_model else self.optimizer)[name] = whole
        for rank in ranks:
            area = reshard.infer_slice_area_by_rank(grid, tensor_map, rank - ranks[0], shape)
            part = array_of(whole)[tuple(slice(*bounds) for bounds in area)]
            self.parts[rank][name] = Tensor(np.array(part)).astype(dtype)
            self.described[rank][name] = [layout, dtype, shape]

    def write(self):
        cache = {}
        metas = {
            rank: sharded_tensor.get_sharded_tensor_from_strategy_metadata(described, rank, layout_cache=cache) or {}
            for rank, described in self.described.items()
        }
        for rank, parts in self.parts.items():
            for kind, names in ((metadata.FileType.MODEL, self.truth), (metadata.FileType.OPTIMIZER, self.optimizer)):
                own = {name: part for name, part in parts.items() if name in names}
                if own:
                    write(metadata.get_checkpoint_name(self.save, self.prefix, rank, self.world, kind), own)
        with mock.patch.object(metadata, "get_group_size", return_value=self.world):
            places = metadata.get_total_params_file_mapping_info(metas, self.prefix, set(self.truth))
        if self.random.random() < 0.4:  # without redundancy: each fragment is in the file of one of its ranks
            by_fragment = {}
            for place in places:
                by_fragment.setdefault(place[3], []).append(place)
            places = [self.random.choice(copies) for copies in by_fragment.values()]
        metadata.save_metadata(metas, places, f"{self.save}/metadata.json")
        with open(f"{self.save}/common.json", "w", encoding="utf-8") as file:
            json.dump(COMMON, file)
        with open(f"{self.folder}/latest_checkpointed_iteration.txt", "w", encoding="utf-8") as file:
            file.write("10")
        write(f"{self.folder}/truth", self.truth)

    def loaded(self):
        """Return the tensors that MindFormers loads for one rank, and the number of those that are right."""
        described, places = metadata.load_metadata(f"{self.save}/metadata.json")
        right = 0
        whole = {**self.truth, **self.optimizer}
        for name, tensor in whole.items():
            wanted = sharded_tensor.build_sharded_tensor(
                name, tensor.dtype, tensor.shape, tensor.shape, axis_fragmentations=[1] * tensor.ndim
            )
            found = reshard.ReshardLoader(self.save, {name: wanted}, {name: described[name]}, places).load()[name]
            same = (found.dtype, tuple(found.shape)) == (tensor.dtype, tuple(tensor.shape))
            right += same and array_of(Tensor(found)).tobytes() == array_of(tensor).tobytes()
        return len(whole), right


def array_of(tensor):
    return (tensor.astype(ms.float32) if tensor.dtype == ms.bfloat16 else tensor).asnumpy()


def write(path, tensors):
    rows = [{"name": name, "data": tensor} for name, tensor in tensors.items()]
    ms.save_checkpoint(rows, path, format="safetensors")


if __name__ == "__main__":
    counts = []
    for index in range(int(sys.argv[3])):
        case = Case(f"{sys.argv[1]}/case_{index}", f"{sys.argv[2]}.{index}")
        case.write()
        counts.append(case.loaded())
    print(json.dumps({"tensors": sum(count for count, _ in counts), "right": sum(right for _, right in counts)}))
