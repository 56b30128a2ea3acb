"""Every parser of bytes that ckpttool has, as a function that fails where a promise is broken."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from itertools import islice

from ckpttool.core.commands.verify import bucket
from ckpttool.core.decide.naming import named
from ckpttool.core.domain.checkpoint import Inventory
from ckpttool.core.domain.data_position import segments
from ckpttool.core.domain.question import spike
from ckpttool.core.errors import UsageError
from ckpttool.core.render.escape import shown
from ckpttool.health.asd.config import check_asd_config, emit_asd_config
from ckpttool.health.verbs.asd import asd_dialects
from ckpttool.trainers.base import Layout, ScanOptions
from ckpttool.trainers.listing import list_root
from ckpttool.trainers.mindformers.layouts.names import (
    RANK_MARK,
    FileKind,
    file_name,
    parse_shape,
    rank_of_folder,
    shape_of,
)
from ckpttool.trainers.mindformers.simulate import simulate
from ckpttool.trainers.mindformers.simulate.versions import KNOWN_VERSIONS
from ckpttool.trainers.mindformers.simulate.view import MindFormersSettings, view_for_mindformers
from ckpttool.trainers.parts import layouts
from tests.reliability import fuzz_configs, fuzz_logs, fuzz_pickles, fuzz_records, fuzz_shards
from tests.reliability.fuzz_records import MemoryTree, assert_short

# --- names -----------------------------------------------------------------------------------------------------------

_SUFFIX = {"mindspore-ckpt": "ckpt", "safetensors": "safetensors"}


def names(data: bytes) -> None:
    """Read a file name as one of a rank's folder: a checkpoint's is spelled as MindFormers spells it."""
    name = os.fsdecode(data)
    shown(name)
    rank_of_folder(name)
    for rank in (0, 7, 12):
        shape = shape_of(name, f"_rank_{rank}")
        parsed = parse_shape(shape)
        if parsed.kind is not FileKind.CHECKPOINT or RANK_MARK in name:
            continue
        spelled = file_name(parsed.prefix, rank, parsed.run, parsed.position, _SUFFIX[parsed.format.value])
        # Run 0 is not spelled, and leading zeros are not kept.
        tail = name[len(parsed.prefix) :]
        assert name.startswith(f"{parsed.prefix}_rank_{rank}")
        plain = [int(digits) for digits in re.findall("[0-9]+", tail)]
        again = [int(digits) for digits in re.findall("[0-9]+", spelled[len(parsed.prefix) :])]
        assert plain == again or (parsed.run == 0 and [plain[0], *plain[2:]] == again)
        assert parse_shape(shape_of(spelled, f"_rank_{rank}")) == parsed


# --- whole trees -----------------------------------------------------------------------------------------------------

_BETWEEN_FILES = b"\n\n#file "
_MOST_FILES = 64
_LONGEST_PATH = 300


def _tree(data: bytes) -> MemoryTree:
    """Take the input apart into files: a path on one line, then the content."""
    files: dict[str, bytes] = {}
    for part in islice(data.split(_BETWEEN_FILES), _MOST_FILES):
        line, _, content = part.partition(b"\n")
        path = os.fsdecode(line[:_LONGEST_PATH])
        steps = path.split("/")
        if "\0" in path or any(step in {"", ".", ".."} for step in steps):
            continue
        if any(other == path or other.startswith(f"{path}/") or path.startswith(f"{other}/") for other in files):
            continue
        files[path] = content
    return MemoryTree(files)


def tree(data: bytes) -> None:
    """Scan a tree in every layout that knows it, read its records, and ask what MindFormers would have done."""
    storage = _tree(data)
    listing = list_root(storage)
    for signs in layouts():
        if signs.recognise(listing):
            layout = signs.layout
            for options in (ScanOptions(), ScanOptions(sizes=True, steps_per_epoch=2)):
                _assert_sound(layout, layout.scan(storage, listing, options), storage)
    for settings in (MindFormersSettings(), MindFormersSettings(use_checkpoint_health_monitor=True, world_size=2)):
        view = view_for_mindformers(storage, settings, output=storage)
        for version in KNOWN_VERSIONS:
            assert simulate(view, version).because


def _assert_sound(layout: Layout, inventory: Inventory, storage: MemoryTree) -> None:
    paths = [shard.path for checkpoint in inventory.checkpoints for shard in checkpoint.shards]
    assert set(paths) <= storage.files.keys()
    assert len(set(paths)) == len(paths)
    for checkpoint in inventory.checkpoints:
        assert (checkpoint.step or 0) >= 0 or checkpoint.step_source == "name"
        assert any(one is checkpoint for one in named(inventory.checkpoints, checkpoint.name))
        assert not any(path.startswith("/") or ".." in path.split("/") for path in checkpoint.expected or ())
    for record in layout.pointers(storage, inventory.folder_ranks):
        assert (record.name is None) != (record.trouble is None)


# --- what users type -------------------------------------------------------------------------------------------------


def asd_config(data: bytes) -> None:
    """Read a configuration string of feature-value detection; what is in force is written and read back."""
    text = data.decode("utf-8", "surrogateescape")
    for dialect in asd_dialects():
        check = check_asd_config(text, dialect)
        assert all(finding.message for finding in check.findings)
        try:
            spelled = emit_asd_config(check.config, dialect)
        except ValueError:  # zeros that the real parser lets through, and ours says so
            assert check.findings
            continue
        again = check_asd_config(spelled, dialect)
        assert again.config == check.config
        assert again.error is None


def options(data: bytes) -> None:
    """Read the values of options that have a grammar of their own."""
    text = data.decode("utf-8", "surrogateescape")
    readers: tuple[Callable[[], object], ...] = (
        lambda: segments([text]),
        lambda: spike(text),
        lambda: bucket(text),
        lambda: simulate(view_for_mindformers(MemoryTree({}), MindFormersSettings()), text),
    )
    for read in readers:
        try:
            read()
        except UsageError as error:
            assert_short(error, len(text) * 8 + 200)  # it repeats what was typed


TARGETS: dict[str, Callable[[bytes], None]] = {
    "shard": fuzz_shards.shard,
    "safetensors-text": fuzz_shards.safetensors_text,
    "ckpt-trailer": fuzz_shards.ckpt_trailer,
    "zip-directory": fuzz_shards.zip_directory,
    "pickle": fuzz_pickles.pickle_names,
    "strict-json": fuzz_records.strict_json,
    "meta-json": fuzz_records.meta_json,
    "iteration-json": fuzz_records.iteration_json,
    "health-json": fuzz_records.health_json,
    "journal": fuzz_records.journal,
    "manifest": fuzz_records.manifest,
    "ledger": fuzz_records.own_ledger,
    "timeline": fuzz_records.timeline,
    "config": fuzz_configs.config,
    "launch-config": fuzz_configs.launch_config,
    "yaml-spelling": fuzz_configs.spelling,
    "any-log": fuzz_logs.any_log,
    **fuzz_logs.DIALECTS,
    "asd-events": fuzz_logs.asd_events,
    "guard-report": fuzz_logs.guard_report,
    "log-numbers": fuzz_logs.numbers,
    "columns": fuzz_logs.columns,
    "names": names,
    "tree": tree,
    "asd-config": asd_config,
    "options": options,
}
"""By name, which is also that of the target's folder in `corpus/`."""


_YAML = (b"&a ", b"*a", b"<<: *a\n", b"!!str ", b"? ", b"- ", b"{", b"}", b"|\n", b">-\n", b"0x" + b"f" * 4000, b"\t")
_JSON = (b'"', b"[", b"]", b"{", b"}", b":", b",", b"\\ud800", b"\\u0000", b"NaN", b"-Infinity", b"9" * 5000, b'":')
_LOG = (b"nan", b"[1 31049]", b"inf", b"\r\n", b"1e400", b"9" * 5000, "٣".encode())

TOKENS: dict[str, Sequence[bytes]] = {
    "shard": (b"\x0a", b"\x12", b"\x1a", b"\x08", b"crc_num", b"Float32", b"Int64", b"str", b"step_num", b"epoch_num"),
    "safetensors-text": (*_JSON, b'"dtype":"F4"', b'"shape":[]', b'"data_offsets":[0,0]', b'"__metadata__":{}'),
    "ckpt-trailer": (b"crc_num", b"\x0a"),
    "zip-directory": (b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07", b"PK\x07\x08"),
    "pickle": (
        *(
            b"cos\nsystem\n",
            b"cbuiltins\ngetattr\n",
            b"(ios\nsystem\n",
            b"\x8c\x02os",
            b"\x8c\x06system",
            b"\x93",
            b"\x94",
        ),
        *(
            b"X\2\0\0\0os",
            b"U\6system",
            b"Vsystem\n",
            b"\x95" + bytes(8),
            b"\x80\x04",
            b"\x80\x02",
            b"h\0",
            b"q\0",
            b"g0\n",
        ),
    ),
    **dict.fromkeys(("strict-json", "meta-json", "iteration-json", "health-json", "timeline", "log-hf-trainer"), _JSON),
    **dict.fromkeys(("journal", "manifest", "ledger", "log-json-lines"), (*_JSON, b"%80", b"%25", b"../")),
    **dict.fromkeys(("config", "launch-config", "yaml-spelling"), _YAML),
    "any-log": (*_LOG, b"\x1f\x8b", b'"log_history"', b"Epoch:[", b"iteration "),
    "log-mindformers": (
        *_LOG,
        b"Epoch:[",
        b"is_skip: [True]",
        b"global_norm: [",
        b", stop training",
        b"[True]",
        b" of step 7",
    ),
    "log-megatron": (*_LOG, b"iteration 5/ 9 |", b"grad norm:", b"consumed samples: inf |"),
    "log-hf-printed": (*_LOG, b"{'loss': ", b"'epoch': 1}", b"|# | 101/300 ["),
    "log-csv": (*_LOG, b",", b'"', b"step,", b"global_norm"),
    "log-tensorboard": (
        b"brain.Event:",
        b"\x0a",
        b"\x10",
        b"\x15",
        b"\x2a",
        b"\x42",
        b"\xff" * 9,
        b"\x08\x13",
        b"\x08\x0e",
    ),
    "asd-events": (
        *_LOG,
        b"[Rank None]",
        b"[Rank 3]",
        b"strikes and out on rank: ",
        b"param name ",
        b" (global step 7)",
    ),
    **dict.fromkeys(
        ("log-guard-events", "guard-report"),
        (*_JSON, b'"kind": "', b'"step": ', b"nan", b'"ckpttool/events/1"', b'"dropped": true', b'"rank": '),
    ),
    "log-numbers": _LOG,
    "columns": (b"step=", b",", b"=", b"loss=", b"time="),
    "names": (b"_rank_0", b"_rank_12", b"-1_2.ckpt", b"_breakpoint", b".tmp", b".safetensors", b"-network", b"\xff"),
    "tree": (_BETWEEN_FILES, b"rank_0/", b"rank_1/", b"meta.json\n", b"iteration_00000020/", b"common.json\n"),
    "asd-config": (b"enable:true", b"with_checksum:", b"cooldown:", b"upper_thresh1=3", b",", b":", "²".encode()),
    "options": (b":", b"/", b"last", b"9" * 5000, b"2.1"),
}
TOKENS["planted"] = (b"{", b'"step_num"', b"NaN", b"9999")
"""What a mutator should know of a grammar."""


def planted(data: bytes) -> None:
    """Fail behind three conditions that depend on each other: whoever finds this finds others."""
    if data.startswith(b"{"):
        _, found, tail = data.partition(b'"step_num"')
        if found:
            _, found, end = tail.partition(b"NaN")
            if found and end.count(b"9") > 2:
                raise LookupError("the planted bug")
