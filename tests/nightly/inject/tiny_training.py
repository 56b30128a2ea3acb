"""A model of a few numbers, data whose samples are numbers, and a callback that writes down what every step really saw.

What is not MindFormers' own, and why: operators that only an accelerator has (overflow) are replaced by IsFinite; data
sinking is fed by the host, which rounds to whole sinks as MindSpore's iterator does; model and data are tiny.

Environment: CKPTTOOL_TRACE folder of the trace files, CKPTTOOL_PHASE their name, CKPTTOOL_DIE_AT step at which the
process kills itself.
"""

import hashlib
import inspect
import json
import os
import signal

import mindformers
import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindformers.models.configuration_utils import PretrainedConfig
from mindformers.models.modeling_utils import PreTrainedModel
from mindformers.tools.register import MindFormerModuleType, MindFormerRegister
from mindformers.tools.utils import get_real_group_size, get_real_rank
from mindformers.wrapper.wrapper import MFTrainOneStepCell
from mindspore import Parameter, Tensor, nn, ops
from mindspore.train import Callback, Model

OVERFLOW = ops.MultitypeFuncGraph("overflow")
STATE = {"samples": [], "initial_step": 0, "sink": False}


def write(**row):
    """Add a row to this rank's trace."""
    folder = os.environ["CKPTTOOL_TRACE"]
    os.makedirs(folder, exist_ok=True)
    path = f"{folder}/{os.environ['CKPTTOOL_PHASE']}_rank_{get_real_rank()}.jsonl"
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(row, default=str) + "\n")


@OVERFLOW.register("Tensor")
def overflow_of_a_tensor(gradient):
    return (ops.IsFinite()(gradient).astype(ms.float32) - 1.0).abs().sum().reshape((1,))


class TinyConfig(PretrainedConfig):
    model_type = "tinylm"

    def __init__(self, width=4, dropout=0.0, **others):
        self.width, self.dropout = width, dropout
        super().__init__(**others)


class TinyLM(PreTrainedModel):
    config_class = TinyConfig
    base_model_prefix = "tinylm"

    def __init__(self, config):
        super().__init__(config)
        chance = np.random.RandomState(7)
        width = config.width
        embedding = Tensor(chance.randn(8, width).astype(np.float32) * 0.1)
        self.embedding_weight = Parameter(embedding, name="model.tok_embeddings.embedding_weight")
        self.w = Parameter(Tensor(chance.randn(width, 8).astype(np.float32) * 0.1), name="lm_head.weight")
        self.b = Parameter(Tensor(np.zeros(8, np.float32)), name="lm_head.bias")
        self.loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        self.gather = ops.Gather()
        self.matmul = ops.MatMul()
        self.dropout = nn.Dropout(p=config.dropout)

    def construct(self, x, y, i):
        hidden = self.gather(self.embedding_weight, x, 0).mean(axis=1)
        hidden = self.dropout(hidden)
        return self.loss(self.matmul(hidden, self.w) + self.b, y)

    def can_generate(self):
        return False


class Numbers:
    """Sample i is the number i, so that a step's samples can be told from the third column.

    Noisy samples are not periodic, and no model predicts all of them: the loss varies from step to step.
    """

    def __init__(self, count, offset, noisy):
        self.count, self.offset, self.noisy = count, offset, noisy

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        index = int(index)
        if self.noisy:
            random = np.random.RandomState(index)
            token = random.randint(8)
            answer = token if random.rand() < 0.9 else random.randint(8)
            return np.full(2, token, np.int32), np.int32(answer), np.int32(index + self.offset)
        tokens = np.array([index % 8, (index // 8) % 8], np.int32)
        return tokens, np.int32(index % 8), np.int32(index + self.offset)


def streaming_data(loader, batch_size):
    """Make the real streaming loader; lists become int32 arrays on the way, which its models do elsewhere."""
    import mindformers.dataset.dataloader.hf_dataloader as hf

    if not hasattr(hf.HFIterableDataset, "as_arrays"):
        query = hf.HFIterableDataset._query_single_sample
        hf.HFIterableDataset.as_arrays = True
        hf.HFIterableDataset._query_single_sample = lambda self: tuple(np.array(v, np.int32) for v in query(self))
    settings = {key: value for key, value in loader.items() if key not in ("type", "n_samples")}
    ranks = get_real_group_size()
    shards = {"num_shards": ranks, "shard_id": get_real_rank()} if ranks > 1 else {"num_shards": None, "shard_id": None}
    data = hf.HFDataLoader(
        **shards, python_multiprocessing=False, num_parallel_workers=1, batch_size=batch_size, **settings
    )
    return data.batch(batch_size, drop_remainder=True)


class TinyDataset:
    def __new__(cls, dataset_config=None, **_):
        loader, batch_size = dataset_config.data_loader, int(dataset_config.batch_size)
        if loader.type == "HFDataLoader":
            return streaming_data(loader, batch_size)
        numbers = Numbers(int(loader.n_samples), int(loader.get("offset", 0) or 0), bool(loader.get("noisy", False)))
        data = ds.GeneratorDataset(
            numbers, ["x", "y", "i"], shuffle=bool(loader.get("shuffle", False)), num_shards=get_real_group_size(),
            shard_id=get_real_rank(), python_multiprocessing=False,
        )  # fmt: skip
        return data.batch(batch_size, drop_remainder=True)


class TinyLoader:
    """Stands in the config; the data set above makes its own."""


class CpuTrainOneStep(MFTrainOneStepCell):
    def start_overflow_check(self, pre_cond, compute_input):
        return False, compute_input

    def get_overflow_status(self, status, compute_output):
        return ops.AddN()(self.hyper_map(OVERFLOW, compute_output)).reshape(()) > 0.5


def weights_of(net):
    return {
        p.name: hashlib.sha256(np.ascontiguousarray(p.asnumpy()).tobytes()).hexdigest() for p in net.get_parameters()
    }


def optimizer_step(optimizer):
    return int(optimizer.global_step.asnumpy().reshape(-1)[0])


class Trace(Callback):
    """Write a row at the begin, at every step and at the end of the training."""

    def on_train_begin(self, run_context):
        call = run_context.original_args()
        self.optimizer = call.train_network.optimizer
        write(begin={
            "version": mindformers.__version__, "optimizer_step": optimizer_step(self.optimizer),
            "weights": weights_of(call.train_network),
        })  # fmt: skip

    def on_train_step_end(self, run_context):
        call = run_context.original_args()
        if not STATE["sink"]:
            STATE["samples"].extend(int(sample) for sample in call.train_dataset_element[2].asnumpy())
        rate = call.net_outputs[3]
        step = STATE["initial_step"] + call.cur_step_num
        write(
            step=step, optimizer_step=optimizer_step(self.optimizer), loss=float(call.net_outputs[0].asnumpy()),
            rate=float(rate.asnumpy()) if hasattr(rate, "asnumpy") else None, samples=list(STATE["samples"]),
        )  # fmt: skip
        STATE["samples"].clear()
        if step >= int(os.environ.get("CKPTTOOL_DIE_AT") or step + 1):
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_end(self, run_context):
        write(end=STATE["initial_step"] + run_context.original_args().cur_step_num)


def feed_from_the_host(model, dataset, epochs, sink_size):
    """Let the real loop of data sinking run with a host's iterator, rounded to whole sinks as MindSpore's own does."""
    dataset.set_init_step(dataset.get_init_step() // sink_size * sink_size)
    net, iterator = model._train_network, []

    class Helper:
        def sink_size(self):
            return sink_size

        def __iter__(self):
            yield ()

        def continue_send(self): ...

        def stop_send(self): ...

        def release(self): ...

    def sink():
        if not iterator:
            rounds = -(-epochs * sink_size // dataset.get_dataset_size())
            iterator.append(dataset.create_tuple_iterator(num_epochs=rounds))
        for _ in range(sink_size):
            try:
                element = next(iterator[0])
            except StopIteration:
                element = next(iterator[0])
            STATE["samples"].extend(int(sample) for sample in element[2].asnumpy())
            outputs = net(*element)
        return outputs

    helper = Helper()
    model._exec_preprocess = lambda **_: (helper, net)
    model._check_network_mode = lambda _, mode: (net.set_train(mode), sink)[1]
    model._train_process = lambda epoch, data, callbacks, call, initial_epoch=0, valid=None: (
        model._train_dataset_sink_process(
            epoch, data, callbacks, call, sink_size, initial_epoch, valid or (None, 1, False)
        )
    )


def install():
    """Register the tiny training, and let every training write its trace."""
    kinds = MindFormerModuleType
    for made, kind in (
        (TinyConfig, kinds.CONFIG), (TinyLM, kinds.MODELS), (TinyDataset, kinds.DATASET),
        (TinyLoader, kinds.DATASET_LOADER), (CpuTrainOneStep, kinds.WRAPPER),
    ):  # fmt: skip
        MindFormerRegister.register_cls(made, module_type=kind)
    MFTrainOneStepCell.start_overflow_check = lambda self, pre_cond, compute_input: (False, compute_input)
    real_train = Model.train

    def train(self, epoch, dataset, callbacks=None, dataset_sink_mode=False, sink_size=-1, **others):
        runner = inspect.currentframe().f_back.f_locals["config"].runner_config
        STATE.update(initial_step=int(runner.initial_step or 0), sink=dataset_sink_mode)
        write(config={"initial_step": STATE["initial_step"], "asked_to_skip": int(dataset.get_init_step() or 0)})
        if dataset_sink_mode:
            feed_from_the_host(self, dataset, epoch, sink_size)
        return real_train(
            self, epoch, dataset, callbacks=[*(callbacks or []), Trace()], dataset_sink_mode=dataset_sink_mode,
            sink_size=sink_size, **others,
        )  # fmt: skip

    Model.train = train
