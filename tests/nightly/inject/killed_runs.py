"""A small model of text, and trainings of it in forked processes that are killed at a step.

The first process imports a trainer once, computes nothing, and forks one process for each training.
"""

import os
import shutil
import signal
import traceback
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

TEXT = torch.tensor(list((Path(torch.__file__).parent / "nn/functional.py").read_bytes()[:400_000]), dtype=torch.long)
LENGTH, BATCH, DROPOUT = 24, 8, 0.1


class Samples(torch.utils.data.Dataset):
    """Pieces of a text, always the same at an index."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        place = int(torch.randint(len(TEXT) - LENGTH - 1, (1,), generator=torch.Generator().manual_seed(index)))
        return {"inputs": TEXT[place : place + LENGTH], "labels": TEXT[place + 1 : place + LENGTH + 1]}


class Characters(nn.Module):
    """Predicts the next byte."""

    def __init__(self):
        super().__init__()
        self.embedding, self.recurrent = nn.Embedding(256, 32), nn.GRU(32, 64, batch_first=True)
        self.dropout, self.head = nn.Dropout(DROPOUT), nn.Linear(64, 256)

    def forward(self, inputs, labels):
        told = self.head(self.dropout(self.recurrent(self.embedding(inputs))[0]))
        return functional.cross_entropy(told.flatten(0, 1), labels.flatten())


def kill():
    """End this process as a lost machine does."""
    os.kill(os.getpid(), signal.SIGKILL)


def copy(origin, folder):
    """Copy a run, to resume the copy."""
    shutil.copytree(origin, folder)
    return folder


def killed(log, train, *arguments, **settings):
    """Train in a process until it is killed, with all that it prints in a log."""
    child = os.fork()
    if not child:
        try:
            file = os.open(log, os.O_WRONLY | os.O_CREAT)
            os.dup2(file, 1)
            os.dup2(file, 2)
            torch.set_num_threads(1)
            train(*arguments, **settings)
        except BaseException:  # noqa: BLE001  the log has it
            traceback.print_exc()
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), Path(log).read_text(errors="replace")[-2000:]
