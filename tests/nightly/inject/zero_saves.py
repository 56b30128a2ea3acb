"""Write a ZeRO save with all kinds of parameters and buffers: `zero_saves.py OUT STAGE TYPE`, one process per rank.

Rank 0 also writes `OUT/truth.pt`, what DeepSpeed's own converter makes of it. So were `fixtures/export/zero*` made.
"""

import sys

import deepspeed
import torch
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from torch import nn


class Model(nn.Module):
    """Parameters of odd sizes, shared, frozen and in two groups; buffers of six types."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(11, 7)
        self.a = nn.Linear(7, 5)
        self.frozen = nn.Linear(5, 5)
        self.b = nn.Linear(5, 7, bias=False)
        self.head = nn.Linear(7, 11, bias=False)
        self.head.weight = self.emb.weight
        self.bn = nn.LayerNorm(7)
        self.scale = nn.Parameter(torch.tensor([1.5]))
        self.register_buffer("mean", torch.full((3,), 1 / 3))
        self.register_buffer("table", torch.arange(5))
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("temp", torch.ones(2), persistent=False)
        for name, dtype in (("halfb", torch.bfloat16), ("small", torch.float16), ("dbl", torch.float64)):
            self.register_buffer(name, torch.linspace(-2, 2, 7).to(dtype))
        for parameter in self.frozen.parameters():
            parameter.requires_grad = False

    def forward(self, tokens):
        hidden = self.frozen(self.a(self.emb(tokens)))
        return (self.scale * self.head(self.bn(self.b(hidden)))).float().pow(2).mean()


def main(out, stage, dtype):
    """Train three steps and save."""
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    torch.manual_seed(0)
    model = Model()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [{"params": [p for p in trained if p.dim() > 1]}, {"params": [p for p in trained if p.dim() == 1]}]
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0, "sub_group_size": 40},
        "bf16": {"enabled": dtype == "bf16"},
    }
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for name, kept in (("halfb", torch.bfloat16), ("small", torch.float16), ("dbl", torch.float64)):
        setattr(model, name, torch.linspace(-2, 2, 7).to(kept))
    for _ in range(3):
        engine.backward(engine(torch.randint(0, 11, (2,))))
        engine.step()
    engine.save_checkpoint(out, tag="global_step3")
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        torch.save(get_fp32_state_dict_from_zero_checkpoint(out, "global_step3"), f"{out}.truth.pt")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
