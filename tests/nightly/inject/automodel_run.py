"""Train a tiny Llama with NeMo AutoModel's own saving and loading on the CPU, and tell where it began and what it read.

    python -m torch.distributed.run --nproc_per_node 2 -- automodel_run.py FOLDER STEPS EVERY

Its recipes want CUDA, so the loop is this script's; recipe, checkpointer, step scheduler and random states are real.
Rank 0 prints JSON at last: the step at which it began, and the samples of each step.
"""

from __future__ import annotations

import contextlib
import json
import sys

answers, sys.stdout = sys.stdout, sys.stderr

import triton.runtime.autotuner as tuner  # noqa: E402

own_init = tuner.Autotuner.__init__


def lenient(self, *arguments, **named):
    """Let pass a kernel that is not used here, which newer versions of Triton refuse."""
    with contextlib.suppress(ValueError):
        own_init(self, *arguments, **named)


tuner.Autotuner.__init__ = lenient

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import transformers  # noqa: E402
from nemo_automodel.components.checkpoint.config import CheckpointingConfig  # noqa: E402
from nemo_automodel.components.config.loader import ConfigNode  # noqa: E402
from nemo_automodel.components.training.rng import StatefulRNG  # noqa: E402
from nemo_automodel.components.training.step_scheduler import StepScheduler  # noqa: E402
from nemo_automodel.recipes.base_recipe import BaseRecipe  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler  # noqa: E402

BATCH, SAMPLES = 4, 40
folder, steps, every = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)


class Recipe(BaseRecipe):
    """A recipe without pipeline stages."""

    peft_config = None

    def _get_optimizer_checkpoint_part_ids(self):
        return None


sizes = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 1)
recipe = Recipe()
recipe.model = transformers.LlamaForCausalLM(
    transformers.LlamaConfig(vocab_size=64, hidden_size=8, intermediate_size=8, max_position_embeddings=64, **sizes)
)
fully_shard(recipe.model, mesh=dist.device_mesh.init_device_mesh("cpu", (world,)))
recipe.optimizer = torch.optim.SGD(recipe.model.parameters(), lr=1e-3, momentum=0.9)
data = [{"input_ids": torch.full((6,), number)} for number in range(SAMPLES)]
sampler = StatefulDistributedSampler(data, num_replicas=world, rank=rank, shuffle=True, seed=5)
recipe.dataloader = StatefulDataLoader(data, batch_size=BATCH // world, sampler=sampler)
recipe.step_scheduler = StepScheduler(
    global_batch_size=BATCH, local_batch_size=BATCH // world, dp_size=world, dataloader=recipe.dataloader,
    ckpt_every_steps=every, num_epochs=4, max_steps=steps, preemption_signal=None, save_checkpoint_every_epoch=False,
)  # fmt: skip
recipe.rng = StatefulRNG(seed=11, ranked=True)
recipe.cfg = ConfigNode({"checkpoint": {"checkpoint_dir": folder}})
recipe.checkpointer = CheckpointingConfig(
    checkpoint_dir=folder, save_consolidated=False, model_repo_id="tiny/llama"
).build(dp_rank=rank, tp_rank=0, pp_rank=0)
recipe.load_checkpoint()
began, read = recipe.step_scheduler.step, []
for epoch in recipe.step_scheduler.epochs:
    recipe.step_scheduler.set_epoch(epoch)
    for batches in recipe.step_scheduler:
        parts = [[]] * world
        dist.all_gather_object(parts, [int(ids[0]) for batch in batches for ids in batch["input_ids"]])
        read.append([sample for part in parts for sample in part])
        for batch in batches:
            recipe.model(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss.backward()
        recipe.optimizer.step()
        recipe.optimizer.zero_grad()
        if recipe.step_scheduler.is_ckpt_step:
            recipe.save_checkpoint(epoch, recipe.step_scheduler.step, 1.0)
recipe._finalize_and_close_checkpointer()
if rank == 0:
    print(json.dumps({"step": began, "read": read}), file=answers, flush=True)
dist.destroy_process_group()
