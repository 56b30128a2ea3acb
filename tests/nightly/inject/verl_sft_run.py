"""Train with verl's SFT trainer on two CPU ranks: its loop, loader and checkpoints are real, its engine is a toy.

    python verl_sft_run.py FOLDER SAVE_FREQ LAST_STEP [PATH]

It saves to FOLDER, is killed once it has saved a step from LAST_STEP on, and resumes from PATH, or by itself. The last
line is JSON: the step from which it resumed, the samples that were read, by step, and whether the run came to its end.
"""

import json
import os
import socket
import subprocess
import sys

EPOCHS, SAMPLES, BATCH, RANKS = 3, 22, 4, 2


def start_ranks():
    """Run this script once per rank, and print what rank 0 printed last."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(RANKS)}
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env=os.environ | address | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    outputs = [rank.communicate()[0] for rank in ranks]
    codes = [rank.returncode for rank in ranks]
    if any(codes):
        sys.exit(f"the ranks ended with {codes}")
    print(outputs[0].splitlines()[-1])


def train(folder, save_freq, last_step, path=None):  # noqa: C901  its classes need what it imports
    """Train as one rank; return what is printed."""
    import torch
    import verl.trainer.sft_trainer as sft
    from omegaconf import OmegaConf
    from torch import distributed
    from torch.distributed.fsdp import fully_shard
    from transformers import LlamaConfig, LlamaForCausalLM
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
    from verl.utils.dataset.dataset_utils import DatasetPadMode

    sft.log_gpu_memory_usage = lambda *_, **__: None  # asks the GPU
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(0)

    class KilledError(Exception):
        pass

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return SAMPLES

        def __getitem__(self, number):
            return {"input_ids": torch.full((4,), number), "attention_mask": torch.ones(4, dtype=torch.int64)}

    class Engine:
        def __init__(self):
            sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 32}
            self.module = LlamaForCausalLM(LlamaConfig(num_attention_heads=2, num_key_value_heads=2, **sizes))
            fully_shard(self.module)
            self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-3)
            self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda _: 1.0)
            self.manager = FSDPCheckpointManager(
                self.module, self.optimizer, self.schedule, checkpoint_config=OmegaConf.create({})
            )

        def get_data_parallel_rank(self):
            return rank

        def get_data_parallel_size(self):
            return RANKS

        def get_data_parallel_group(self):
            return distributed.group.WORLD

        def is_mp_src_rank_with_outputs(self):
            return True

        def save_checkpoint(self, **given):
            self.manager.save_checkpoint(**given)

        def load_checkpoint(self, path):
            self.manager.load_checkpoint(local_path=path)

    read = []

    class Client:
        def __init__(self, engine):
            self.engine = engine

        def train_batch(self, data):
            ids, parts = data["input_ids"], [None] * RANKS
            distributed.all_gather_object(parts, ids[:, 0].tolist())
            read.append([*parts[0], *parts[1]])
            loss = self.engine.module(input_ids=ids, labels=ids).loss
            loss.backward()
            self.engine.optimizer.step()
            self.engine.schedule.step()
            self.engine.optimizer.zero_grad()
            metrics = {"metrics": {"loss": loss.item()}}
            return sft.tu.get_tensordict(tensor_dict={}, non_tensor_dict=metrics)

        def step_profile(self):
            pass

        start_profile = stop_profile = reset = step_profile

    config = OmegaConf.create(
        {
            "data": {
                "train_batch_size": BATCH,
                "num_workers": 0,
                "use_dynamic_bsz": False,
                "max_token_len_per_gpu": 64,
                "micro_batch_size_per_gpu": 2,
            },
            "model": {"use_remove_padding": False, "lora_rank": 0},
            "trainer": {
                "total_epochs": EPOCHS,
                "total_training_steps": None,
                "save_freq": int(save_freq),
                "test_freq": -1,
                "project_name": "p",
                "experiment_name": "e",
                "logger": ["console"],
                "default_local_dir": folder,
                "resume_mode": "auto" if path is None else "resume_path",
                "resume_from_path": path,
                "device": "cpu",
            },
        }
    )
    config.data.pad_mode = DatasetPadMode.RIGHT
    trainer = sft.SFTTrainer.__new__(sft.SFTTrainer)
    trainer.config, trainer.rank, trainer.device_name = config, rank, "cpu"
    trainer.train_dataset, trainer.val_dataset = Data(), None
    trainer.engine = Engine()
    trainer.training_client = Client(trainer.engine)
    trainer.model_config = type("Model", (), {"tokenizer": type("Tokenizer", (), {"pad_token_id": 0})()})()
    trainer.optimizer_config = type("Optimizer", (), {})()
    trainer.start_profile_step = trainer.end_profile_step = -1
    trainer._build_dataloader()
    trainer._init_engine()
    trainer._build_ckpt_handler()
    trainer.resume_global_step = trainer.ckpt_handler.load_checkpoint()
    save = trainer.ckpt_handler.save_checkpoint

    def save_and_die(step):
        save(step)
        if step >= int(last_step):
            raise KilledError

    trainer.ckpt_handler.save_checkpoint = save_and_die
    ended = True
    try:
        trainer.fit()
    except KilledError:
        ended = False
    distributed.barrier()  # so that none goes while the other still waits for it
    distributed.destroy_process_group()
    return {"step": trainer.resume_global_step, "read": read, "ended": ended}


if __name__ == "__main__":
    if "RANK" not in os.environ:
        start_ranks()
    else:
        print(json.dumps(train(*sys.argv[1:])), flush=True)
