"""Write a shard of the static trainer again with weights and counters only: `python without_optimizer.py SHARD`."""

import sys

import mindspore

COUNTERS = ("epoch_num", "step_num", "loss_scale", "global_batch_size")

tensors = mindspore.load_checkpoint(sys.argv[1])
counters = {name: tensors[name].asnumpy().item() for name in COUNTERS if name in tensors}
weights = [
    {"name": name, "data": tensor}
    for name, tensor in tensors.items()
    if name not in COUNTERS and name != "global_step" and not name.startswith("adam_")
]
mindspore.save_checkpoint(weights, sys.argv[1], append_dict=counters)
