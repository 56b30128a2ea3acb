"""The records in a save by Hugging Face's Trainer: `trainer_state.json` and `training_args.bin`.

Source: `TrainerState` and `TrainingArguments` of transformers 4.57 and 5.23.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from ckpttool.core.formats.strict_json import (
    JsonObject,
    ParseError,
    get_int,
    get_optional_float,
    get_optional_int,
    get_optional_str,
    parse_object,
)
from ckpttool.core.storage.base import ByteSource, OverLimitError, Storage
from ckpttool.trainers.huggingface.log import STATE_LIMIT

_SMALL, _END = 64 << 10, 16 << 10
_LOG_BEGINS, _LOG_ENDS = b'\n  "log_history": [', b"\n  ],\n"
"""The beginning and end of the log as `TrainerState.save_to_json` writes them: sorted keys, two spaces per level."""
_ENTRY = re.compile(rb"\{[^{}]*\}")
_PIECE = 256 << 10
_MOST_LOSSES = 1024
"""Maximum number of log entries to compare with those of other saves."""
_MOST_ARGUMENTS = 1 << 20
"""Maximum bytes of arguments to compare; a real file has about 5,000."""
_LEAST_EPOCH = 1e-12
"""Smallest fraction of an epoch that any training run counts."""
_SAME_EPOCH = 1e-9
"""Tolerance for a fraction of an epoch, which is rounded to a double when it is written."""


class Epochs(NamedTuple):
    """The length of a run's epochs."""

    steps: int
    """Optimizer steps per epoch."""
    batches: int | None
    """Micro batches per rank and epoch; None if unknown.

    An epoch's last step may have fewer than the other steps.
    """


class State(NamedTuple):
    """The contents of `trainer_state.json`."""

    step: int
    epoch: float | None
    micro_batch: int | None
    """Samples per batch on each rank."""
    best: str | None
    """The folder of the save with the best metric, under the name that it had at that time."""
    lacks_length: bool = False
    """Whether the data set has no length, in which case Trainer plans for more epochs than any training run has."""
    logged: tuple[int, float] | None = None
    """Step and epoch of a log entry within an epoch; None if there is no such entry, or the log was not read."""

    losses: tuple[tuple[int, float], ...] = ()
    """The first logged losses, by step.

    A resumed run leaves them unchanged.
    """
    is_whole_log: bool = False
    """Whether `losses` contains all logged losses."""
    log: tuple[int, int] | None = None
    """The range of the log entries in the file; None if the file does not have Trainer's form."""

    log_every: int | None = None
    """The argument `logging_steps`. None if it is missing, or a part of the run."""
    save_every: int | None = None
    """The argument `save_steps`, in the same way."""

    @property
    def is_in_later_epoch(self) -> bool | None:
        """Whether the save is within an epoch after the first; None if unknown."""
        if self.epoch is None or not math.isfinite(self.epoch):
            return None
        return self.epoch > 1 and self.epoch % 1 > 0

    def epochs(self, accumulation: int | None) -> Epochs | None:
        """Return the length of the run's epochs; None if the data have no length, or their length is unknown.

        Args:
            accumulation: Micro batches per step; None if unknown.
        """
        if self.epoch is None or not _LEAST_EPOCH < self.epoch < math.inf or self.lacks_length:
            return None
        for step, epoch in ((self.step, self.epoch), self.logged or (0, 0.0)):
            if accumulation is not None and (epochs := _epochs(step, epoch, accumulation)) is not None:
                return epochs
        steps = round(self.step / self.epoch)
        if not steps:
            return None
        return Epochs(steps=steps, batches=steps if accumulation == 1 else None)


def _epochs(step: int, epoch: float, accumulation: int) -> Epochs | None:
    """Return the only epoch length that agrees with a step's position; None if unknown.

    The last step of an epoch may be short.

    Source: Trainer counts epochs in micro batches, and begins a new step at the start of each epoch.
    """
    done, part = divmod(epoch, 1.0)
    if not part:
        return None
    least = int(step / epoch)
    for steps in (least, least + 1):
        inside = (step - int(done) * steps) * accumulation
        batches = round(inside / part)
        if inside > 0 and math.ceil(batches / accumulation) == steps and abs(inside / batches - part) < _SAME_EPOCH:
            return Epochs(steps=steps, batches=batches)
    return None


class Arguments(NamedTuple):
    """The contents of `training_args.bin`; None for missing values."""

    micro_batch: int | None = None
    accumulation: int | None = None
    world: int | None = None
    most_saves: int | None = None
    """Maximum number of saves to keep: `save_total_limit`."""
    finds_batch: bool = False
    """Whether Trainer halved the micro batch until the batch fit in memory: `auto_find_batch_size`."""
    drops_last: bool = False
    """Whether an incomplete last batch of an epoch is dropped: `dataloader_drop_last`."""
    skips_data: bool = True
    """Whether a resume skips the data already read; False with `ignore_data_skip`."""


def read_state(storage: Storage, path: str) -> State:
    """Read the complete `trainer_state.json`, because a truncated file does not mark a finished save.

    Raises:
        ParseError: The file is truncated, or not in Trainer's form.
        OSError: The file cannot be read.
    """
    return _state(storage.small_file(path, limit=STATE_LIMIT), path)


def read_ends_of_state(storage: Storage, path: str) -> State:
    """Read both ends of `trainer_state.json`, which show whether the file is complete.

    A long run's log, which every save contains, is left out.

    Raises:
        ParseError: The file is truncated, or not in Trainer's form.
        OSError: The file cannot be read.
    """
    try:
        before, begins, tail = storage.small_file(path, limit=_SMALL).partition(_LOG_BEGINS)
        first, is_whole = tail.partition(_LOG_ENDS)[0], True
    except OverLimitError:
        is_whole = False
        with storage.open(path) as source:
            size = int(source.stamp.size)
            before, begins, first = source.read(0, _END).partition(_LOG_BEGINS)
            tail = source.read(size - _END, _END)
    else:
        size = len(before) + len(begins) + len(tail)
    _, ends, after = tail.partition(_LOG_ENDS)  # no JSON string contains a line end, so neither is in a string
    if begins and ends:
        with suppress(ParseError):
            state = _state(before + begins + ends + after, path)
            losses = _losses(first)
            is_whole = is_whole and losses is not None and len(losses) < _MOST_LOSSES
            log = len(before) + len(begins), size - len(ends) - len(after)
            return state._replace(losses=losses or (), is_whole_log=is_whole, log=log)
    return read_state(storage, path)


def _losses(text: bytes) -> tuple[tuple[int, float], ...] | None:
    """Return the losses at the start of a possibly truncated log, or None if Trainer did not write it."""
    return _losses_of(entry[0] for entry in islice(_ENTRY.finditer(text), _MOST_LOSSES))


def _losses_of(entries: Iterable[bytes]) -> tuple[tuple[int, float], ...] | None:
    try:
        logged = json.loads(b"[%s]" % b",".join(entries))
    except (ValueError, RecursionError):
        return None
    losses: list[tuple[int, float]] = []
    for entry in logged:
        step, loss = entry.get("step"), entry.get("loss")
        if type(step) is int and type(loss) is float:
            losses.append((step, loss))
    return tuple(losses)


class Log(NamedTuple):
    """Position of the log in a state that is too long for a scan to read completely."""

    storage: Storage
    path: str
    begin: int
    end: int

    def losses(self) -> Iterator[tuple[int, float]]:
        """Yield the step and loss of each entry.

        The file is read in parts, up to the first entry that lacks Trainer's form.

        Raises:
            OSError: The log cannot be read.
        """
        text, end = b"", min(self.end, self.begin + STATE_LIMIT)
        with self.storage.open(self.path) as source:
            for at in range(self.begin, end, _PIECE):
                complete, brace, text = (text + source.read(at, min(_PIECE, end - at))).rpartition(b"}")
                losses = _losses_of(entry[0] for entry in _ENTRY.finditer(complete + brace))
                if losses is None or len(text) > _PIECE:  # no entry is that long
                    return
                yield from losses


def logs_contradict(log: Log, later: Log, *, until: int) -> bool:
    """Return whether a later save's log changed entries of an earlier log, up to a given step.

    A run that continues writes its earlier entries again byte for byte. Two runs that diverged never log the same
    values again, so the end of the earlier log decides. All entries are compared only if that end differs.

    Raises:
        OSError: A log cannot be read.
    """
    length = log.end - log.begin
    last = min(length, _END)
    with log.storage.open(log.path) as mine, later.storage.open(later.path) as theirs:
        if mine.read(log.end - last, last) == theirs.read(later.begin + length - last, last):
            return False
    for (step, loss), (other_step, later_loss) in zip(log.losses(), later.losses(), strict=False):
        if min(step, other_step) > until:
            break
        if step != other_step or (loss != later_loss and not math.isnan(loss) and not math.isnan(later_loss)):
            return True
    return False


def _state(data: bytes, path: str) -> State:
    record = _parsed(data, path)
    return State(
        step=get_int(record, "global_step", where=path),
        epoch=get_optional_float(record, "epoch", where=path),
        micro_batch=get_optional_int(record, "train_batch_size", where=path),
        best=get_optional_str(record, "best_model_checkpoint", where=path),
        lacks_length=record.get("num_train_epochs") == sys.maxsize,
        logged=_logged(record.get("log_history")),
        is_whole_log=record.get("log_history") == [],
        log_every=_count(record.get("logging_steps")),
        save_every=_count(record.get("save_steps")),
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _logged(entries: object) -> tuple[int, float] | None:
    """Return the step and epoch of the first entry that is within an epoch."""
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            step, epoch = entry.get("step"), entry.get("epoch")
            if isinstance(step, int) and isinstance(epoch, float) and _LEAST_EPOCH < epoch < math.inf and epoch % 1:
                return step, epoch
    return None


def _parsed(data: bytes, path: str) -> JsonObject:
    if len(data) <= _SMALL:  # any contents take little memory; for a thousand saves this is half the time
        with suppress(ValueError, RecursionError):
            record = json.loads(data)
            if isinstance(record, dict):
                return record
    return parse_object(data, where=path, limit=STATE_LIMIT, nonfinite=True)


class ArgumentsReader:
    """Reader of `training_args.bin`.

    The file is the same in all saves of a run, and identical files are read only once.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: dict[bytes, Arguments] = {}

    def __call__(self, path: str) -> Arguments:
        """Return the arguments in a save; empty if the file cannot be read.

        No training run needs them.
        """
        try:
            with self._storage.open(path) as source:
                data = source.read(0, _MOST_ARGUMENTS)
                if data not in self._known:
                    self._known[data] = _arguments(source)
        except OSError:
            return Arguments()
        return self._known[data]


def _arguments(source: ByteSource) -> Arguments:
    from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError
    from ckpttool.core.formats.torch.plain import integer_at, plain_values, value_at

    try:
        arguments = plain_values(source)
    except BrokenPickleError:
        return Arguments()

    def count(*path: str) -> int | None:
        number = integer_at(arguments, *path)
        return number if number is not None and number > 0 else None

    return Arguments(
        micro_batch=count("per_device_train_batch_size"),
        accumulation=count("gradient_accumulation_steps"),
        world=count("distributed_state", "num_processes"),
        most_saves=count("save_total_limit"),
        finds_batch=value_at(arguments, "auto_find_batch_size") is True,
        drops_last=value_at(arguments, "dataloader_drop_last") is True,
        skips_data=value_at(arguments, "ignore_data_skip") is not True,
    )


def global_batch(state: State | None, arguments: Arguments, world: int | None) -> int | None:
    """Return the samples per optimizer step over all ranks; None if unknown.

    The size in the state is per rank, whatever the number of devices, and whatever size was found to fit in memory.
    """
    micro = (state.micro_batch if state is not None else None) or arguments.micro_batch
    ranks = world or arguments.world
    if micro is None or arguments.accumulation is None or ranks is None:
        return None
    return micro * arguments.accumulation * ranks
