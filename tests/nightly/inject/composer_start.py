"""Start Composer in many folders, and print how each start went.

    python composer_start.py < STARTS, or with torchrun, of which all ranks need NODE_RANK

A line of STARTS is JSON: `folder` of the saves, `until` (batches), and what else the Trainer is given. Samples are
whole numbers, so that the first batch says where the data stand. Each answer is a line: what was loaded, the batches
that were read, the last batch; or the error.
"""

import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
import warnings

answers, sys.stdout = sys.stdout, sys.stderr
warnings.simplefilter("ignore")


class _Empty(types.ModuleType):
    """A module of which any name is there, and nothing is used."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, sys.modules.get(f"{self.__name__}.{name}") or type(name, (), {}))
        return self.__dict__[name]


class _Unneeded(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Composer imports torchvision and its platform's client wherever it is used; these runs need neither."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torchvision", "mcli"}:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = _Empty(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, _Unneeded())

import torch  # noqa: E402
from composer import Trainer  # noqa: E402
from composer.core import Callback  # noqa: E402
from composer.models import ComposerModel  # noqa: E402
from composer.optim import DecoupledAdamW  # noqa: E402
from composer.utils import dist  # noqa: E402
from torch.utils.data import DataLoader, Dataset, IterableDataset  # noqa: E402

SAMPLES, BATCH = 40, 4


class Model(ComposerModel):
    def __init__(self):
        super().__init__()
        self.module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))

    def forward(self, batch):
        return self.module(batch["x"].float().reshape(-1, 1).expand(-1, 4))

    def loss(self, outputs, batch):
        return outputs.square().mean() / 1000

    def eval_forward(self, batch, outputs=None):
        return self.forward(batch)


class Numbers(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, at):
        return {"x": torch.tensor(at)}


class Streamed(IterableDataset):
    """Keeps its place as MosaicML's streaming data sets do, which Composer asks for."""

    def __init__(self):
        self.begin = 0

    def __len__(self):
        return SAMPLES // dist.get_world_size()

    def __iter__(self):
        begin, self.begin = self.begin, 0
        ranks, rank = dist.get_world_size(), dist.get_global_rank()
        return iter([{"x": torch.tensor(at)} for at in range(begin + rank, SAMPLES, ranks)])

    def state_dict(self, num_samples, from_beginning):
        return {"sample_in_epoch": num_samples}

    def load_state_dict(self, state):
        self.begin = state["sample_in_epoch"]


class Seen(Callback):
    def __init__(self):
        self.batches, self.optimizer = [], None

    def after_dataloader(self, state, logger):
        if self.optimizer is None:
            self.optimizer = any(len(optimizer.state) > 0 for optimizer in state.optimizers)
        parts = dist.all_gather_object(state.batch["x"].tolist())
        self.batches.append(sorted(number for part in parts for number in part))


def loader(kind, batch):
    data = Streamed() if kind == "streamed" else Numbers()
    sampler = None if kind == "streamed" else dist.get_sampler(data, shuffle=kind == "shuffled")
    return DataLoader(data, batch_size=batch // dist.get_world_size(), sampler=sampler)


def start(folder, until, data="plain", batch=BATCH, sharded=False, **settings):
    model, seen = Model(), Seen()
    settings.setdefault("max_duration", f"{until}ba")
    if sharded:
        settings["parallelism_config"] = {"fsdp": {"state_dict_type": "sharded"}}
    told = {}
    try:
        trainer = Trainer(
            model=model, optimizers=DecoupledAdamW(model.parameters(), lr=1e-3), save_folder=folder,
            train_dataloader=loader(data, batch), device="cpu", seed=3, callbacks=[seen], progress_bar=False,
            **{"save_interval": "4ba", **settings},
        )  # fmt: skip
        told["step"] = int(trainer.state.timestamp.batch)
        trainer.fit()
        told["ends"] = int(trainer.state.timestamp.batch)
    except Exception as error:  # noqa: BLE001  whatever it stops with is the answer
        told["error"] = f"{type(error).__name__}: {error}"[:600]
    return {**told, "optimizer": seen.optimizer, "batches": seen.batches}


torch.set_num_threads(1)
torch.cuda.current_device = lambda: torch.device("cpu")  # all of FSDP that needs a GPU
if "WORLD_SIZE" in os.environ:  # by torchrun, for a single rank too
    dist.initialize_dist("cpu")
starts = [sys.stdin.read().splitlines() if dist.get_global_rank() == 0 else None]
dist.broadcast_object_list(starts)
for line in starts[0]:
    told = start(**json.loads(line))
    if dist.get_global_rank() == 0:
        print(json.dumps(told), file=answers, flush=True)
