"""A model of a few numbers, and a callback that records what every step of the PyNative trainer really used.

Environment: CKPTTOOL_TRACE folder of the trace files, CKPTTOOL_PHASE their name, CKPTTOOL_DIE_AT step at which the
process kills itself, CKPTTOOL_NAN_AT steps with a NaN loss, CKPTTOOL_SHARDED rows divided among the ranks,
CKPTTOOL_ADAPTER only an adapter is trained.
"""

import hashlib
import json
import os
import signal

import mindformers
import mindspore as ms
import numpy as np
from mindformers.parallel_core.transformer_config import TransformerConfig
from mindformers.pynative.callback.callback import TrainerCallback
from mindformers.tools.register import MindFormerModuleType, MindFormerRegister
from mindspore import Parameter, Tensor, mint, nn
from on_a_cpu import FULL_SHAPES, RANK, WORLD

STATE = {"samples": [], "step": 0}
SHAPE = {
    "num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "seq_length": 4, "vocab_size": 8,
    "num_query_groups": 1, "kv_channels": 8, "mtp_num_layers": None,
}  # fmt: skip


@MindFormerRegister.register(MindFormerModuleType.CONFIG, legacy=False, search_names="tiny")
class TinyConfig:
    def __init__(self, **settings):
        self.__dict__.update(settings)

    def to_dict(self):
        return dict(self.__dict__)


@MindFormerRegister.register(MindFormerModuleType.MODELS, legacy=False)
class TinyForCausalLM(nn.Cell):
    """Two matrices and a vector; `CKPTTOOL_SHARDED` leaves each rank only its rows of the matrices."""

    def __init__(self, config):
        super().__init__(auto_prefix=False)
        self.random = np.random.RandomState(3)
        self.settings = config
        rows = WORLD if os.environ.get("CKPTTOOL_SHARDED") else 1
        self.embedding = self.parameter("model.embedding.weight", 8, 8, parts=rows)
        self.output = self.parameter("model.output.weight", 8, 8, parts=rows)
        self.norm = self.parameter("model.norm.weight", 8)
        self.adapter = None
        if os.environ.get("CKPTTOOL_ADAPTER"):
            self.adapter = self.parameter("model.output.lora_a", 8, 8)
            self.embedding.requires_grad = self.output.requires_grad = self.norm.requires_grad = False

    def parameter(self, name, *shape, parts=1):
        values = (self.random.randn(*shape) * 0.1).astype(np.float32)
        if parts > 1:
            FULL_SHAPES[name] = shape
            count = shape[0] // parts
            values = values[RANK * count : (RANK + 1) * count]
        with ms.DeviceCtx("CPU"):
            return Parameter(Tensor(values), name=name)

    def to_empty(self):
        return self

    def init_states(self): ...

    def get_gpt_transformer_config(self):
        config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)
        for name, value in SHAPE.items():
            setattr(config, name, value)
        return config

    def construct(self, input_ids=None, x=None, **others):
        STATE["samples"].extend(int(sample) for sample in np.ravel(input_ids.asnumpy()))
        hidden = mint.matmul(x[:, : self.embedding.shape[0]], self.embedding)
        result = mint.matmul(hidden[:, : self.output.shape[0]], self.output)
        if self.adapter is not None:
            result = result + mint.matmul(hidden, self.adapter)
        rate = getattr(self.settings, "dropout", 0.0)
        if rate:
            result = ms.ops.dropout(result, p=rate)
        result = result * self.norm + self.norm - 1.0
        if getattr(self.settings, "noisy", False):
            result = result - mint.sin(3 * x)
        loss = mint.mean(mint.square(result))
        if str(STATE["step"] + 1) in os.environ.get("CKPTTOOL_NAN_AT", "").split(","):
            loss = loss * float("nan")
        return (loss,) if mindformers.__version__.startswith("1.") else loss


def digest(parameter):
    return hashlib.sha256(np.ascontiguousarray(parameter.asnumpy()).tobytes()).hexdigest()


def tensors_of(model, optimizer):
    """Return the hash of every tensor of the weights and the optimizer, by name."""
    models = model if isinstance(model, list) else [model]
    return {each.name: digest(each) for net in (*models, optimizer) for each in net.get_parameters()}


def steps_of(optimizer):
    return int(optimizer.global_step.asnumpy().ravel()[0])


def number(value):
    return float(value.asnumpy()) if hasattr(value, "asnumpy") else value


@MindFormerRegister.register(MindFormerModuleType.CALLBACK)
class Trace(TrainerCallback):
    """Write a row at the begin, at every step and at the end of the training."""

    def __init__(self, **settings):
        super().__init__()
        folder = os.environ["CKPTTOOL_TRACE"]
        os.makedirs(folder, exist_ok=True)
        path = f"{folder}/{os.environ['CKPTTOOL_PHASE']}_rank_{RANK}.jsonl"
        self.file = open(path, "w", encoding="utf-8")  # noqa: SIM115  until the process ends

    def write(self, **row):
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()

    def start_step(self, state):
        STATE["samples"].clear()
        STATE["step"] = state.global_step

    def on_train_begin(self, args, state, **others):
        optimizer = others["optimizer"]
        self.start_step(state)
        self.write(begin={
            "version": mindformers.__version__, "step": state.global_step, "steps": state.max_steps,
            "consumed_samples": getattr(state, "consumed_samples", None), "optimizer_step": steps_of(optimizer),
            "tensors": tensors_of(others["model"], optimizer),
        })  # fmt: skip

    def on_step_end(self, args, state, **others):
        optimizer, rates = others["optimizer"], others["lr_scheduler"]
        updates = steps_of(optimizer)
        self.write(
            step=state.global_step, samples=list(STATE["samples"]), optimizer_step=updates,
            consumed_samples=getattr(state, "consumed_samples", None), loss=number(others["loss"]),
            norm=number(others["grad_norm"]), rate=number(rates(Tensor(updates - 1, ms.int64))),
            rate_in_the_log=number(rates(state.global_step)), tensors=tensors_of(others["model"], optimizer),
        )  # fmt: skip
        self.start_step(state)
        if state.global_step >= int(os.environ.get("CKPTTOOL_DIE_AT") or state.global_step + 1):
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_end(self, args, state, **others):
        self.write(end=state.global_step)
