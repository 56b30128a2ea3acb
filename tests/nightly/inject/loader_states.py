"""Save the states of real data loaders, and resume each: `loader_states.py LIBRARY FOLDER`.

Prints for each case the batches of an uninterrupted run, the number that had been read at the save, and the batches
that a new loader yields from the state.
"""

from __future__ import annotations

import copy
import io
import json
import sys
import tarfile
import types
import warnings
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from itertools import islice
from pathlib import Path
from typing import Any

import torch

warnings.filterwarnings("ignore")
ROWS, SIZE = 24, 2


class Case:
    """A loader, and how its state is taken and restored."""

    def __init__(self, make: Callable[[], Any], state: str = "state_dict", load: str = "load_state_dict") -> None:
        self.make, self.state, self.load = make, state, load

    def run(self, file: Path, stop: int | None) -> dict[str, Any]:
        """Read some batches, or all of an epoch, save the state, and resume from it."""
        torch.manual_seed(0)
        reference = list(islice(plain(self.make()), 2 * ROWS))
        torch.manual_seed(0)
        loader = self.make()
        read = list(islice(plain(loader), stop))
        state = copy.deepcopy(getattr(loader, self.state)())
        torch.save(wrapped(state), file)
        torch.manual_seed(0)
        resumed = self.make()
        getattr(resumed, self.load)(state)
        return {"reference": reference, "read": len(read), "resumed": list(islice(plain(resumed), 2 * ROWS))}


def wrapped(state: object) -> object:
    """Return a state as its trainers save it: Energon's under a key."""
    return {"dataloader_state_dict": state} if type(state).__name__ == "SavableDataLoaderState" else state


def plain(loader: Any) -> Iterator[list[int]]:
    """Yield the rows of each batch."""
    for batch in loader:
        rows = batch["a"] if isinstance(batch, dict) else getattr(batch, "text", batch)
        yield [int(row) for row in (rows if isinstance(rows, (list, torch.Tensor)) else [rows])]


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """A map-style data set."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> int:
        return row


class Absent(types.ModuleType):
    """A module that is not installed, from which any class can be imported."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__, self.__path__ = ModuleSpec(name, None), []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def of_torchdata() -> dict[str, tuple[Case, int | None]]:
    """Return StatefulDataLoaders over a map-style data set."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    def made(
        workers: int = 0, *, every: int = 1, shuffle: bool = False, ranks: int = 1, persistent: bool = False
    ) -> Any:
        extra: dict[str, Any] = {"shuffle": shuffle}
        if ranks > 1:
            extra = {"sampler": StatefulDistributedSampler(Rows(), num_replicas=ranks, rank=ranks - 1, seed=3)}
        if workers:
            extra |= {"multiprocessing_context": "fork", "persistent_workers": persistent}
        return StatefulDataLoader(Rows(), batch_size=SIZE, num_workers=workers, snapshot_every_n_steps=every, **extra)

    return {
        "in_order": (Case(made), 5),
        "shuffled": (Case(lambda: made(shuffle=True)), 5),
        "workers": (Case(lambda: made(2)), 5),
        "workers_every_3": (Case(lambda: made(2, every=3)), 5),
        "workers_persistent": (Case(lambda: made(2, persistent=True)), 5),
        "rank_1_of_2": (Case(lambda: made(ranks=2)), 4),
        "last_batch": (Case(made), ROWS // SIZE),
        "finished": (Case(made), None),
        "finished_rank_1_of_2": (Case(lambda: made(ranks=2)), None),
        "finished_workers": (Case(lambda: made(2, ranks=2)), None),
    }


def of_datasets() -> dict[str, tuple[Case, int | None]]:
    """Return iterable data sets of Hugging Face's datasets, alone and with a StatefulDataLoader."""
    from datasets import Dataset, IterableDataset, disable_progress_bars, interleave_datasets
    from datasets.distributed import split_dataset_by_node
    from torchdata.stateful_dataloader import StatefulDataLoader

    disable_progress_bars()

    def base(rows: int = ROWS, shards: int = 4) -> IterableDataset:
        return Dataset.from_dict({"a": list(range(rows))}).to_iterable_dataset(num_shards=shards)

    def loaded(workers: int = 0) -> Any:
        extra: dict[str, Any] = {"multiprocessing_context": "fork"} if workers else {}
        return StatefulDataLoader(base(), batch_size=SIZE, num_workers=workers, **extra)  # type: ignore[arg-type]

    return {
        "rows": (Case(base), 5),
        "shuffle_buffer": (Case(lambda: base().shuffle(seed=1, buffer_size=5)), 5),
        "interleaved": (Case(lambda: interleave_datasets([base(), base(12, 2)], probabilities=[0.5, 0.5], seed=2)), 5),
        "by_node": (Case(lambda: split_dataset_by_node(base(), rank=1, world_size=2)), 5),
        "loader": (Case(loaded), 3),
        "loader_workers": (Case(lambda: loaded(2)), 3),
        "loader_finished": (Case(loaded), None),
        "loader_workers_finished": (Case(lambda: loaded(2)), None),
    }


def of_mosaic(folder: Path) -> dict[str, tuple[Case, int | None]]:
    """Return a StreamingDataLoader, without torchvision: it fits only one build of torch, and is for pictures alone."""
    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
        sys.modules[name] = Absent(name)
    import streaming

    with streaming.MDSWriter(out=str(folder / "mds"), columns={"a": "int"}, size_limit=100) as writer:
        for row in range(ROWS):
            writer.write({"a": row})

    def made() -> Any:
        streaming.base.util.clean_stale_shared_memory()
        data = streaming.StreamingDataset(
            local=str(folder / "mds"), shuffle=True, shuffle_seed=7, batch_size=SIZE, num_canonical_nodes=1
        )
        return streaming.StreamingDataLoader(data, batch_size=SIZE)

    return {"streaming": (Case(made), 5)}


def of_energon(folder: Path) -> dict[str, tuple[Case, int | None]]:
    """Return savable loaders."""
    import subprocess

    from megatron import energon

    data = folder / "webdataset"
    data.mkdir()
    for shard in range(3):
        with tarfile.open(data / f"shard_{shard}.tar", "w") as archive:
            for row in range(shard * 8, shard * 8 + 8):
                text = str(row).encode()
                member = tarfile.TarInfo(f"{row:04d}.txt")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text))
    words = ["--non-interactive", "--split-ratio", "1,0,0", "--sample-type", "TextSample", "--force-overwrite"]
    program = str(Path(sys.executable).with_name("energon"))
    subprocess.run(
        [program, "prepare", str(data), *words, "--field-map", '{"text":"txt"}'], check=True, capture_output=True
    )

    def made(workers: int) -> Any:
        config = energon.WorkerConfig(rank=0, world_size=1, num_workers=workers)
        data_set = energon.get_train_dataset(
            data, batch_size=SIZE, shuffle_buffer_size=4, max_samples_per_sequence=5, worker_config=config
        )
        return energon.get_savable_loader(data_set, checkpoint_every_sec=0, checkpoint_every_min_n_samples=1)

    words = ["save_state_rank", "restore_state_rank"]
    return {"savable": (Case(lambda: made(0), *words), 5), "savable_workers": (Case(lambda: made(2), *words), 5)}


def main(library: str, folder: Path) -> None:
    """Run all cases of one library."""
    kinds = {"torchdata": of_torchdata, "datasets": of_datasets}
    of_folder = {"mosaic": of_mosaic, "energon": of_energon}
    cases = kinds[library]() if library in kinds else of_folder[library](folder)
    print(json.dumps({name: case.run(folder / f"{name}.pt", stop) for name, (case, stop) in cases.items()}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
