"""What a pickle would call is read from its opcodes: what runs code is refused, what torch writes is left alone."""

from __future__ import annotations

import argparse
import array
import ast
import collections
import datetime as dt
import functools
import io
import logging
import pathlib
import pickle
import pickletools
import re
import subprocess
import sys
import types
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from random import Random
from uuid import UUID

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.finding import Code, Finding, Severity
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.formats import read_header
from ckpttool.core.formats.torch import pickle_scan
from ckpttool.core.formats.torch.pickle_names import Trust, modern, trust
from ckpttool.core.formats.torch.pickle_opcodes import MOST_NAMES, PickleNames
from ckpttool.core.formats.torch.pickle_scan import MOST_NAME_BYTES, PickleReader
from ckpttool.core.formats.torch.shard import look_at_pickles
from ckpttool.core.formats.torch.zip_directory import read_zip_directory
from ckpttool.trainers.mindformers.scalars import FACTS
from tests.support.shard_writers import MemorySource, entries_json, safetensors_file, torch_file, torch_pickle

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def scanned(data: bytes, *, pickles: int = 1) -> PickleNames:
    return PickleReader(MemorySource(data)).names(0, len(data), pickles=pickles)


def outcome(data: bytes) -> str:
    """What is made of a pickle, in one word."""
    names = scanned(data)
    words = {
        "runs": names.runs,
        "hidden": names.hidden,
        "too long": names.over_limit,
        "broken": names.broken,
        "unknown": names.unknown,
    }
    return next((word for word, is_so in words.items() if is_so), "clean")


def text(value: str | bytes) -> bytes:
    """The opcode of protocol 4 that pushes a short string."""
    data = value.encode() if isinstance(value, str) else value
    return b"\x8c" + bytes([len(data)]) + data


class Caller:
    """Something that, when it is unpickled, calls a function."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self._call


class Own:
    """A class of somebody's own."""


def optimizer_state() -> dict[str, object]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "weight": model[0].weight}


def megatron_like() -> dict[str, object]:
    args = argparse.Namespace(lr=1e-4, params_dtype=torch.bfloat16, save="out", world_size=8, tokens=1 << 70)
    rng = {"python": (3, (1, 2)), "numpy": np.random.RandomState(1).get_state(), "torch": torch.get_rng_state()}
    return {"args": args, "checkpoint_version": 3.0, "iteration": 1000, "rng_state": [rng], "model": {}}


def many_kinds() -> dict[str, object]:
    return {
        "dtypes": [torch.zeros(2).to(dtype) for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.complex64)],
        "integers": [torch.zeros(2, dtype=dtype) for dtype in (torch.uint8, torch.uint16, torch.int64, torch.bool)],
        "sparse": torch.eye(2).to_sparse(),
        "meta": torch.empty(2, device="meta"),
        "strided": [torch.strided, torch.device("cpu"), torch.Size([1])],
        "numpy": [np.zeros(2), np.float32(1), np.dtype("f8"), np.array(["a"], object), np.ma.zeros(2), np.bool_(1)],
        "generators": [np.random.RandomState(1), np.random.default_rng(1)],
        "plain": [Decimal(1), Fraction(1, 2), UUID(int=1), 1j, slice(1), range(3), {1}, frozenset([1])],
        "bytes": [bytearray(b"a")],
        "more": [..., NotImplemented, b"bytes", array.array("d", [1]), re.compile("a"), types.SimpleNamespace(a=1)],
        "times": [dt.datetime.now(dt.timezone.utc), dt.timedelta(1)],
        "collections": [collections.defaultdict(list), collections.deque([1]), collections.Counter("a")],
        "others": [pathlib.PurePosixPath("a"), logging.getLogger("a"), functools.partial(int, base=2)],
        "a long text": "x" * 2000,
        "a huge number": 1 << 5000,
    }


HEALTHY: Mapping[str, Callable[[], dict[str, object]]] = {
    "a state dict and its optimizer": optimizer_state,
    "what Megatron saves": megatron_like,
    "every kind of tensor and value": many_kinds,
}


class TestWhatTrainersWrite:
    @pytest.mark.parametrize("protocol", [2, 5])
    @pytest.mark.parametrize("make", HEALTHY.values(), ids=HEALTHY)
    def test_a_file_that_torch_saved_is_left_alone(self, make: Callable[[], dict[str, object]], protocol: int) -> None:
        data = torch_file(make(), pickle_protocol=protocol)
        findings, nbytes = look_at_pickles(MemorySource(data), read_zip_directory(MemorySource(data)).entries)
        assert (findings, nbytes) == ((), len(torch_pickle(data)))

    @pytest.mark.parametrize("protocol", [2, 5])
    @pytest.mark.parametrize("make", HEALTHY.values(), ids=HEALTHY)
    def test_all_pickles_of_a_legacy_file_are_read_and_left_alone(
        self, make: Callable[[], dict[str, object]], protocol: int
    ) -> None:
        value = make()
        value.pop("meta", None)  # torch cannot write it so
        data = torch_file(value, pickle_protocol=protocol, _use_new_zipfile_serialization=False)
        assert scanned(data, pickles=5) == PickleNames()
        header = read_header(MemorySource(data), named=FormatName.MINDSPORE_CKPT, facts=FACTS)
        assert [one.code for one in header.findings] == [Code.UNSUPPORTED_FORMAT]

    def test_all_that_torch_itself_allows_is_known(self) -> None:
        from torch import _weights_only_unpickler as theirs

        allowed = theirs._get_allowed_globals()  # noqa: SLF001
        names = [name.rpartition(".") for name in allowed]
        assert len(names) > 100
        assert [name for name in names if trust(name[0], name[2]) is not Trust.KNOWN] == []

    def test_a_checkpoint_of_many_tensors_takes_few_steps(self) -> None:
        data = torch_pickle(torch_file({f"layers.{number}.weight": torch.zeros(1) for number in range(2000)}))
        reader = PickleReader(MemorySource(data))
        assert reader.names(0, len(data)) == PickleNames()
        assert reader.bytes_read < 2 * len(data)


REFUSED = """
    posix.system nt.system os.popen subprocess.Popen builtins.eval __builtin__.execfile __builtin__.getattr
    importlib.import_module runpy.run_path pickle.loads _pickle.loads cPickle.loads sys.exit socket.socket
    shutil.rmtree pty.spawn webbrowser.open ctypes.CDLL codecs.decode code.interact timeit.timeit pydoc.pipepager
    cProfile.run bdb.Bdb logging.config.listen asyncio.run types.FunctionType operator.attrgetter collections.abc
    commands.getoutput numpy.load numpy.testing._private.utils.runstring torch.hub.load torch.storage._load_from_bytes
    torch.fx.graph_module.reduce_graph_module cloudpickle.cloudpickle._make_function joblib.load
    eventlet.green.os.execv torch.jit._serialization.load numpy.lib._npyio_impl.load
    torch._numpy.testing.utils.runstring torch.serialization._load torch.serialization._legacy_load
    torch.distributed.distributed_c10d._tensor_to_object torch.distributed.rpc.internal.deserialize
    torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler.SubprocessHandler
    torch.distributed.run.main psutil.Popen yaml.load yaml.unsafe_load joblib.numpy_pickle.load cloudpickle.loads
    dill._dill.loads torch.FloatStorage.from_file numpy.ndarray.tofile pathlib.Path.write_text builtins.setattr
    deepspeed.launcher.runner.main torch.serialization._open_file numpy.lib._format_impl.open_memmap
"""

HARMLESS = """
    random.Random time.struct_time itertools.count math.sqrt builtins.len builtins.abs builtins.max builtins.min
    builtins.sum builtins.ValueError exceptions.ValueError builtins.KeyboardInterrupt signal.Signals inspect._empty
    types.GenericAlias torch._dynamo.decorators._DimRange
"""

UNJUDGED = """
    builtins.type builtins.print builtins.str.lower collections.OrderedDict.fromkeys datetime.datetime.now
    torch.nn.modules.module.Module torch._C._VariableFunctionsClass.relu torch.utils.data.dataloader.DataLoader
    torch.optim.lr_scheduler.LambdaLR numpy.sum own.trainer.run own.load my_torch.load
    torch.nn.functional.gelu torch.nn.init.xavier_uniform_ torch.relu numpy.rec.recarray scipy.sparse._csr.csr_matrix
    torch.nested._internal.nested_tensor._rebuild_njt
    torch.distributed.checkpoint.default_planner.DefaultLoadPlanner torch.distributed.distributed_c10d.ReduceOp
"""


EVALUATES = """
    torch.fx.experimental.symbolic_shapes:ShapeEnv.evaluate_guards_expression
    torch.fx.operator_schemas:_torchscript_type_to_python_type torch._guards:Source.get_value
    torch.utils.model_dump:get_model_info torch._library.infer_schema:infer_schema
    torch.distributed.checkpoint.filesystem:FileSystemReader.read_metadata numpy.lib._format_impl:read_array
    torch.nn.functional:handle_torch_function torch.nn.functional:boolean_dispatch yaml:full_anything
    fsspec.implementations.local:LocalFileSystem.rm transformers.utils.hub:anything
"""
"""A module of a library, and a function or a method in it."""


def evaluating(package: Path) -> Iterator[tuple[str, str]]:
    """Yield the functions and methods of a package that evaluate text, unpickle, or start a program."""
    calls = {"eval", "exec", "os.system", "os.popen", "pickle.load", "pickle.loads", "subprocess.Popen"}
    calls |= {f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output")}
    for path in sorted(package.rglob("*.py")):
        text = path.read_text("utf-8", "replace")
        if any(f"{call}(" in text for call in calls) and not {"test", "tests"}.intersection(path.parts):
            module = ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
            yield from ((module, name) for name, node in _functions(ast.parse(text), "") if _calls(node, calls))


def _functions(node: ast.AST, outer: str) -> Iterator[tuple[str, ast.AST]]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.ClassDef):
            yield from _functions(each, f"{outer}{each.name}.")
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{outer}{each.name}", each


def _calls(function: ast.AST, calls: set[str]) -> bool:
    return any(isinstance(each, ast.Call) and ast.unparse(each.func) in calls for each in ast.walk(function))


class TestWhatRunsCode:
    @pytest.mark.parametrize("protocol", PROTOCOLS)
    @pytest.mark.parametrize(
        ("function", "name"),
        [(exec, "exec"), (getattr, "getattr"), (pickle.loads, "loads"), (torch.load, "load"), (np.load, "load")],
    )
    def test_a_call_is_found_in_every_protocol_wherever_it_hides(
        self, function: Callable[..., object], name: str, protocol: int
    ) -> None:
        harmless = [Own(), collections.OrderedDict(a=1), "x" * 300, {str(number): number for number in range(300)}]
        names = scanned(pickle.dumps([*harmless, Caller(function, "1"), *harmless], protocol))
        assert [one.rpartition(".")[2] for one in names.runs] == [name]
        assert (names.unknown, names.broken, names.hidden) == ([f"{__name__}.Own"], None, False)

    @pytest.mark.parametrize("name", REFUSED.split())
    def test_a_name_that_runs_code_or_reaches_it_is_refused(self, name: str) -> None:
        module, _, function = name.rpartition(".")
        assert trust(module, function) is Trust.RUNS
        shown = [".".join(modern(module, function))]
        assert scanned(f"c{module}\n{function}\n.".encode()).runs == shown
        assert scanned(f"(i{module}\n{function}\n.".encode()).runs == shown

    @pytest.mark.parametrize("name", HARMLESS.split())
    def test_a_harmless_value_of_a_library_is_known(self, name: str) -> None:
        module, _, value = name.rpartition(".")
        assert trust(module, value) is Trust.KNOWN

    @pytest.mark.parametrize("name", UNJUDGED.split())
    def test_what_only_looks_like_what_runs_is_no_more_than_unknown(self, name: str) -> None:
        module, _, value = name.rpartition(".")
        if value in {"lower", "fromkeys", "now", "relu"}:
            module, _, outer = module.rpartition(".")
            value = f"{outer}.{value}"
        assert trust(module, value) is Trust.UNKNOWN

    @pytest.mark.parametrize("name", EVALUATES.split())
    def test_a_function_of_a_library_that_is_not_known_to_be_harmless_is_refused(self, name: str) -> None:
        module, value = name.split(":")
        assert trust(module, value) is Trust.RUNS
        assert trust(f"own_{module}", value) is Trust.UNKNOWN

    @pytest.mark.slow
    def test_no_function_of_torch_or_numpy_that_evaluates_or_unpickles_is_taken_for_harmless(self) -> None:
        found = [
            f"{module}.{name}"
            for library in (torch, np, yaml)
            for module, name in evaluating(Path(str(library.__file__)).parent)
            if trust(module, name) is not Trust.RUNS
        ]
        assert found == []

    @pytest.mark.parametrize("protocol", [2, 4])
    def test_no_module_optimizer_or_schedule_of_torch_is_called_unsafe(self, protocol: int) -> None:
        layer = torch.nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(layer.parameters())
        schedules = [
            torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5),
            torch.optim.lr_scheduler.CyclicLR(optimizer, 0.1, 0.2, cycle_momentum=False),
            torch.optim.swa_utils.SWALR(optimizer, 0.1),
        ]
        saved = [
            layer, optimizer, *schedules, torch.nn.LazyLinear(4), torch.nn.GELU(),
            torch.nn.TransformerEncoderLayer(8, 2, activation=torch.nn.functional.gelu), torch.amp.GradScaler("cpu"),
            torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged),
            np.zeros(2, [("a", "f4")]).view(np.recarray), np.ma.masked_equal([1, 2], 1), np.poly1d([1, 2]),
            np.random.default_rng(1), [torch.relu, np.mean, torch.nn.init.ones_],
        ]  # fmt: skip
        for each in saved:
            assert scanned(torch_pickle(torch_file(each, pickle_protocol=protocol))).runs == [], each

    def test_a_name_of_python_2_is_shown_as_what_it_is(self) -> None:
        assert scanned(pickle.dumps(Caller(subprocess.Popen, "true"), 2)).runs == ["subprocess.Popen"]

    @pytest.mark.parametrize(
        ("module", "name"),
        [
            ("torch.serialization", "os.system"),
            ("torch.serialization", "os"),
            ("collections", "OrderedDict.__reduce_ex__"),
            ("torch._utils", "_rebuild_tensor_v2.__globals__"),
            ("argparse", "Namespace.__init__"),
            ("own.module", "Class.getattr"),
        ],
    )
    def test_a_way_from_a_harmless_module_to_another_is_refused(self, module: str, name: str) -> None:
        assert scanned(b"\x80\x04" + text(module) + text(name) + b"\x93.").runs == [f"{module}.{name}"]

    @pytest.mark.parametrize(
        "name",
        ["megatron.core.enums.ModelType", "__main__.Args", "torch.nn.modules.linear.Linear", "own.system.Config"],
    )
    def test_somebodys_own_class_is_unknown_and_no_more(self, name: str) -> None:
        module, _, cls = name.rpartition(".")
        assert trust(module, cls) is Trust.UNKNOWN

    def test_no_name_that_python_3_has_too_is_believed_because_of_what_it_meant_in_python_2(self) -> None:
        assert trust("__builtin__", "set") is trust("UserDict", "UserDict") is Trust.KNOWN
        names = [*NAME_MAPPING, *((module, name) for module in IMPORT_MAPPING for name in ("UserDict", "open", "Path"))]
        believed = {module for module, name in names if trust(module, name) is Trust.KNOWN}
        assert believed & sys.stdlib_module_names == set()


class TestHiding:
    """A name that no pickler spells so."""

    @pytest.mark.parametrize(
        "opcodes",
        {
            "from a list": b"\x80\x04]" + text("os") + b"a" + text("system") + b"\x93",
            "after a copy": b"\x80\x04" + text("os") + b"2" + b"\x93",
            "with a gap": b"\x80\x04" + text("os") + text("system") + b"N0\x93",
            "from nowhere": b"\x80\x04\x93",
            "from bytes": b"\x80\x04" + text("os") + b"U\x06system\x93",
            "remembered by number": b"\x80\x04" + text("os") + b"q\0" + text("a") + b"\x94h\0h\0\x93",
            "remembered by a far number": b"\x80\x04" + text("os") + b"r\0\0\1\0" + b"h\0j\0\0\1\0\x93",
            "remembered by a line": b"\x80\x04" + text("os") + b"p0\n" + text("a") + b"\x94h\0h\0\x93",
            "recalled by a line": b"\x80\x04" + text("os") + b"\x94g0\ng0\n\x93",
            "never remembered": b"\x80\x04h\7h\7\x93",
            "remembered no string": b"\x80\x04N\x94h\0h\0\x93",
            "in an old pickle": b"\x80\x02" + text("os") + b"q\0" + text("system") + b"q\1h\0h\1\x93",
            "too long for a name": b"\x80\x04X" + (600).to_bytes(4, "little") + b"a" * 600 + text("a") + b"\x93",
            "a long line": b"\x80\x04cos\n" + b"path.os." * 100 + b"system\n",
            "a long module": b"c" + b"a" * 600 + b"\nb\n",
            "a number for a name": b"\x80\x02\x82\1",
            "a larger number for a name": b"\x80\x02\x83\1\1",
            "a huge number for a name": b"\x80\x02\x84\1\1\1\1",
        }.values(),
    )
    def test_what_is_put_together_is_refused(self, opcodes: bytes) -> None:
        assert scanned(opcodes + b")R.").hidden

    def test_what_the_memo_really_holds_is_believed(self) -> None:
        spelled = text("collections") + b"\x94" + text("OrderedDict") + b"\x94"
        assert outcome(b"\x80\x04" + spelled + b"\x93\x94Nh\0h\1\x93.") == "clean"
        assert outcome(b"\x80\x04" + spelled + b"\x93\x94Nj\0\0\0\0" + b"h\1\x93.") == "clean"
        assert outcome(b"\x80\x04" + text("a") + b"\x95" + bytes(8) + text("b") + b"\x93.") == "unknown"  # a new frame
        assert scanned(b"\x80\x04" + text("os") + b"\x94" + text("system") + b"\x94N0h\0h\1\x93.").runs == ["os.system"]

    def test_the_memo_is_empty_at_the_next_pickle(self) -> None:
        first = b"\x80\x04" + text("a") + b"\x94."
        assert scanned(first + b"\x80\x04h\0h\0\x93.", pickles=2).hidden

    def test_only_as_many_pickles_are_read_as_stand_there(self) -> None:
        harmless, evil = pickle.dumps(1), pickle.dumps(Caller(exec, "1"))
        assert scanned(harmless + evil, pickles=1).runs == []
        assert scanned(harmless + evil, pickles=5).runs == ["builtins.exec"]
        assert scanned(harmless + b"raw numbers", pickles=5) == PickleNames()


class Asked(pickle.Unpickler):
    """Python's own, which runs nothing and takes down what it is asked for."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.names: set[str] = set()

    def find_class(self, module: str, name: str) -> object:
        self.names.add(f"{module}.{name}")
        return lambda *_: {}


MEMO = [text("os"), text("collections"), text("own"), b"\x94", b"\x94", b"h\0", b"h\1", b"\x93", b"N", b"0"]
PIECES = [
    *MEMO,
    *(text(word) for word in ("os", "system", "OrderedDict")),
    *(b"h\2", b"j\1\0\0\0", b"g0\n", b"q\0", b"q\1", b"r\1\0\0\0", b"p0\n"),
    *(b"\x93", b"\x93", b")R", b"(t", b"\x85", b"0", b"1", b"2", b"(", b"N", b"]", b"}", b"a", b"K\1"),
    *(b"X\2\0\0\0os", b"U\6system", b"S'os'\n", b"Vsystem\n", b"I1\n", b"\x95" + bytes(8), b"\x80\4", b"."),
    *(b"cos\nsystem\n", b"ccollections\nOrderedDict\n", b"cown\nname\n", b"(ios\nsystem\n"),
]


def test_whatever_an_unpickler_would_ask_for_is_found() -> None:
    chance = Random(5)  # noqa: S311  the same pickles in every run
    asked = 0
    for _ in range(8_000):
        begin = chance.choice([b"", b"\x80\2", b"\x80\4", b"\x80\5"])
        pieces = chance.choice([MEMO, PIECES])
        data = begin + b"".join(chance.choices(pieces, k=chance.randrange(1, 25))) + b"."
        unpickler = Asked(data)
        with suppress(Exception):  # most make no sense to it at some point; what it asked for before counts
            unpickler.load()
        names = scanned(data)
        missed = {name for name in unpickler.names if trust(*name.rsplit(".", 1)) is not Trust.KNOWN}
        asked += bool(missed)
        assert names.hidden or missed <= {*names.runs, *names.unknown}, data
    assert asked > 400


class TestBrokenOnes:
    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\x80\x02",
            b"\x80\x02]",
            b"\x80\x02\0.",
            b"\x80\x02K",
            b"\x80\x02J\1\1",
            b"\x80\x04h",
            b"\x80\x04\x95\1",
            b"\x80\x02X\5\0\0\0abc.",
            b"\x80\x02X\5\0",
            b"\x80\x02\x8c",
            b"\x80\x02T\xff\xff\xff\xff.",
            b"\x80\x02B\xff\xff\xff\xff.",
            b"\x80\x02\x8a",
            b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff.",
            b"\x80\x02I1",
            b"\x80\x02cos",
            b"\x80\x02cos\nsys",
            b"\x80\x02c",
            b"\xff",
        ],
    )
    def test_what_cannot_be_read_to_its_end_is_broken(self, data: bytes) -> None:
        names = scanned(data)
        assert names.broken is not None
        assert "at byte " in names.broken
        assert (names.runs, names.hidden) == ([], False)

    def test_what_is_hidden_before_the_break_stays_hidden(self) -> None:
        put_together = b"\x80\2" + b"X\2\0\0\0osq\0X\6\0\0\0systemq\1\x93)R"
        for rest in (b"cos", b"c", b"\xff"):
            names = scanned(put_together + rest)
            assert names.hidden
            assert names.broken is not None

    @given(st.binary(max_size=200))
    def test_whatever_the_bytes_the_scan_ends(self, data: bytes) -> None:
        for begin in (b"", b"\x80\x02", b"\x80\x04", b"c"):
            assert outcome(begin + data)

    @given(
        st.recursive(st.none() | st.integers() | st.floats() | st.text() | st.binary(), st.lists, max_leaves=5),
        st.sampled_from(PROTOCOLS),
    )
    def test_whatever_plain_value_is_pickled_it_is_clean(self, value: object, protocol: int) -> None:
        assert outcome(pickle.dumps(value, protocol)) == "clean"

    def test_every_opcode_there_is_is_known(self) -> None:
        arguments = {"decimalnl_short": b"1\n", "stringnl": b"''\n", "stringnl_noescape_pair": b"a\nb\n"}
        for opcode in pickletools.opcodes:
            code = opcode.code.encode("latin-1")
            if opcode.arg is None:
                data = b""
            elif opcode.arg.n >= 0:
                data = b"\1" * opcode.arg.n
            elif opcode.arg.n == pickletools.UP_TO_NEWLINE:
                data = arguments.get(opcode.arg.name, b"1\n")
            else:
                widths = {pickletools.TAKEN_FROM_ARGUMENT1: 1, pickletools.TAKEN_FROM_ARGUMENT8U: 8}
                data = bytes(widths.get(opcode.arg.n, 4))
            for begin in (b"", b"\x80\x04"):
                assert scanned(begin + code + data + b".").broken is None, opcode.name


class TestLimits:
    def test_a_pickle_of_too_many_opcodes_is_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pickle_scan, "MOST_STEPS", 1000)
        data = b"\x80\x04" + text("a") * 1100 + b"."
        assert outcome(data) == "too long"
        assert outcome(b"\x80\x04" + text("a") * 900 + b".") == "clean"

    def test_what_is_counted_is_counted_over_all_pickles_of_a_file(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pickle_scan, "MOST_STEPS", 1000)
        data = b"\x80\x04" + text("a") * 600 + b"."
        reader = PickleReader(MemorySource(data))
        assert not reader.names(0, len(data)).over_limit
        assert reader.names(0, len(data)).over_limit

    def test_more_bytes_than_the_limit_are_not_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pickle_scan, "MOST_BYTES", 1 << 20)
        data = b"\x80\x02" + b"K\1" * (1 << 20) + b"."
        reader = PickleReader(MemorySource(data))
        assert reader.names(0, len(data)).over_limit
        assert reader.bytes_read <= (1 << 20) + (256 << 10)

    def test_long_data_are_passed_over_without_being_read(self) -> None:
        blob = bytes(3 << 20)
        for data in (pickle.dumps([blob, Caller(exec, "1")], 4), pickle.dumps([blob, Caller(exec, "1")], 2)):
            assert scanned(data).runs == ["builtins.exec"]
        reader = PickleReader(MemorySource(data := pickle.dumps([blob] * 1 + [Own()], 5)))
        assert reader.names(0, len(data)).unknown == [f"{__name__}.Own"]
        assert reader.bytes_read < len(data) // 2

    @pytest.mark.parametrize("protocol", [b"", b"\x80\x04"])
    def test_a_line_longer_than_all_that_is_in_memory_is_passed_over(self, protocol: bytes) -> None:
        long = b"9" * (1 << 20)
        assert scanned(protocol + b"L" + long + b"L\ncos\nsystem\n.").runs == ["os.system"]
        assert outcome(protocol + b"L" + long) == "broken"

    def test_a_file_that_is_cut_meanwhile_is_broken(self) -> None:
        source = MemorySource(b"\x80\x02L" + b"9" * (1 << 20))
        names = PickleReader(source).names(0, 1 << 30)
        assert names.broken is not None

    def test_names_are_kept_once_and_not_without_end(self) -> None:
        many = b"".join(b"cown\nname%d\n" % (number % 1500) for number in range(3000))
        assert len(scanned(many + b".").unknown) == MOST_NAMES

    def test_a_name_as_long_as_may_be_is_taken(self) -> None:
        name = b"n" * MOST_NAME_BYTES
        assert scanned(b"cown\n" + name + b"\n.").unknown == [f"own.{name.decode()}"]
        long = b"X" + len(name).to_bytes(4, "little") + name
        assert scanned(b"\x80\x04" + text("own") + long + b"\x93.").unknown == [f"own.{name.decode()}"]


class TestFiles:
    """What is said of a whole file."""

    @staticmethod
    def archive(**records: bytes) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, data in records.items():
                archive.writestr(f"model/{name.replace('_', '.')}", data)
        return file.getvalue()

    def findings(self, **records: bytes) -> list[Finding]:
        data = self.archive(**records)
        return list(look_at_pickles(MemorySource(data), read_zip_directory(MemorySource(data)).entries)[0])

    def test_what_runs_is_named_and_refused(self) -> None:
        names = b"".join(b"cos\nf%d\n" % number for number in range(5))
        (found,) = self.findings(data_pkl=names + b".")
        assert (found.code, found.severity) == (Code.UNSAFE_PICKLE, Severity.UNSAFE)
        assert "'model/data.pkl' names 'os.f0', 'os.f1', 'os.f2' and 2 more: " in found.message

    @pytest.mark.parametrize("name", ["data_pkl", "DATA_PKL", "constants_pkl"])
    def test_every_pickle_of_an_archive_is_read_also_in_capitals(self, name: str) -> None:
        found = self.findings(**{"byteorder": b"little", name: b"cos\nsystem\n."})
        assert found[-1].severity is Severity.UNSAFE

    def test_a_hidden_name_is_refused(self) -> None:
        (found,) = self.findings(data_pkl=b"\x80\x04\x93.")
        assert found.severity is Severity.UNSAFE
        assert "computed only during loading" in found.message

    def test_unknown_classes_are_a_note(self) -> None:
        (found,) = self.findings(data_pkl=b"cmegatron.core\nA\n.")
        assert (found.code, found.severity) == (Code.UNSAFE_PICKLE, Severity.NOTE)
        assert "'megatron.core.A'" in found.message

    def test_a_pickle_that_breaks_off_is_damage(self) -> None:
        (found,) = self.findings(data_pkl=b"cmegatron.core\nA\n\xff")
        assert (found.code, found.severity) == (Code.HEADER_INVALID, Severity.DAMAGE)

    def test_a_pickle_that_goes_on_too_long_is_refused_and_no_further_one_read(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pickle_scan, "MOST_STEPS", 10)
        (found,) = self.findings(data_pkl=b"\x80\x04" + text("a") * 20 + b".", other_pkl=b"cos\nsystem\n.")
        assert (found.code, found.severity) == (Code.OVER_LIMIT, Severity.UNSAFE)

    def test_no_archive_has_more_findings_than_anybody_reads(self) -> None:
        assert len(self.findings(**{f"p{number}_pkl": b"cos\nsystem\n." for number in range(40)})) == 16

    @pytest.mark.parametrize("named", [FormatName.MINDSPORE_CKPT, FormatName.SAFETENSORS, FormatName.TORCH_ZIP])
    @pytest.mark.parametrize("protocol", PROTOCOLS)
    def test_a_bare_pickle_that_runs_code_is_refused_under_whatever_name(
        self, protocol: int, named: FormatName
    ) -> None:
        header = read_header(
            MemorySource(pickle.dumps(Caller(exec, "raise SystemExit"), protocol) + bytes(10)), named=named
        )
        (found,) = header.findings
        assert (found.code, found.severity) == (Code.UNSAFE_PICKLE, Severity.UNSAFE)
        assert header.format is FormatName.TORCH_PICKLE

    @pytest.mark.parametrize("data", [b"cown\nClass\n)R." + bytes(9), b"\x93" + bytes(20), b"hello world"])
    def test_what_may_be_no_pickle_at_all_is_not_called_unsafe(self, data: bytes) -> None:
        (found,) = read_header(MemorySource(data), named=FormatName.MINDSPORE_CKPT, facts=FACTS).findings
        assert found.severity is Severity.DAMAGE

    def test_a_healthy_shard_is_never_read_as_a_pickle(self) -> None:
        data = safetensors_file(entries_json([("cos\nsystem\n", "F32", [2], 8)]), bytes(8))
        assert read_header(MemorySource(data), named=FormatName.SAFETENSORS, facts=FACTS).findings == ()
