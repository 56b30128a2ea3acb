"""Train a tiny model with a real OLMo-core on the CPU, and tell where it began and what it read.

    python -m torch.distributed.run --nproc_per_node 2 -- olmo_core_run.py FOLDER STEPS EVERY [GLOBAL_BATCH]

It saves to FOLDER, and resumes from there by itself. Rank 0 prints JSON at last: the step before its first, and the
samples of each step.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["OLMO_SHARED_FS"] = "1"
answers, sys.stdout = sys.stdout, sys.stderr

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from olmo_core.config import DType  # noqa: E402
from olmo_core.data import NumpyDataLoaderConfig, NumpyFSLDatasetConfig, TokenizerConfig  # noqa: E402
from olmo_core.distributed.parallel import DataParallelType  # noqa: E402
from olmo_core.nn.transformer import TransformerConfig  # noqa: E402
from olmo_core.optim import ConstantScheduler, LionConfig  # noqa: E402
from olmo_core.train import (  # noqa: E402
    Duration,
    TrainerConfig,
    prepare_training_environment,
    teardown_training_environment,
)
from olmo_core.train.callbacks import Callback, CheckpointerCallback  # noqa: E402
from olmo_core.train.train_module import TransformerDataParallelConfig, TransformerTrainModuleConfig  # noqa: E402

LENGTH, SAMPLES = 8, 40
folder, steps, every = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
batch = int(sys.argv[4]) if len(sys.argv) > 4 else 4
prepare_training_environment(backend="gloo", seed=7)
rank, work = dist.get_rank(), folder.parent / "work"
tokens = folder.parent / "tokens.npy"
if rank == 0 and not tokens.exists():
    mapped = np.memmap(tokens, mode="w+", dtype=np.uint8, shape=(SAMPLES * LENGTH,))
    mapped[:] = np.repeat(np.arange(SAMPLES), LENGTH)
    mapped.flush()
dist.barrier()
words = TokenizerConfig(vocab_size=64, eos_token_id=63, pad_token_id=62)
dataset = NumpyFSLDatasetConfig(
    paths=[str(tokens)], sequence_length=LENGTH, tokenizer=words, work_dir=str(work)
).build()
design = TransformerConfig.llama_like(
    d_model=4, vocab_size=64, n_layers=1, n_heads=1, hidden_size_multiplier=1.0, dtype=DType.float32
)
design.block.feed_forward.hidden_size = 4
module = TransformerTrainModuleConfig(
    rank_microbatch_size=LENGTH,
    max_sequence_length=LENGTH,
    optim=LionConfig(lr=1e-3),
    scheduler=ConstantScheduler(),
    dp_config=TransformerDataParallelConfig(name=DataParallelType.fsdp),
).build(design.build(init_device="cpu"), device=torch.device("cpu"))
loader = NumpyDataLoaderConfig(global_batch_size=batch * LENGTH, seed=3, num_workers=0, num_threads=0).build(
    dataset, dp_process_group=module.dp_process_group
)
read: list[list[int]] = []


class Reads(Callback):
    """Collects the samples of each step, over all ranks."""

    def pre_step(self, batch: dict[str, torch.Tensor]) -> None:
        parts: list[list[int]] = [[]] * dist.get_world_size()
        dist.all_gather_object(parts, batch["input_ids"][:, 0].tolist())
        read.append([sample for part in parts for sample in part])


config = TrainerConfig(
    save_folder=str(folder), work_dir=str(work), max_duration=Duration.steps(steps), metrics_collect_interval=1
)
saving = CheckpointerCallback(save_interval=every, save_async=False, pre_train_checkpoint=False, max_checkpoints=None)
trainer = config.with_callback("checkpointer", saving).with_callback("reads", Reads()).build(module, loader)
trainer.fit()
if rank == 0:
    print(json.dumps({"step": trainer.global_step - len(read), "read": read}), file=answers, flush=True)
teardown_training_environment()
