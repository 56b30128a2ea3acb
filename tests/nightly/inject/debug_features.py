"""Start nvdlfw-inspect with configs and the real debug features of Transformer Engine, and ask what each operand does.

The compiled parts of Transformer Engine are stand-ins: nothing is computed, only asked, on any machine. Each config has
a process of its own, for what it registers stays.
"""

import importlib.abc
import importlib.machinery
import inspect
import json
import os
import sys
import types
import warnings
from pathlib import Path

STAND_INS = ("transformer_engine_torch", "transformer_engine.pytorch")
WITHOUT_THEIR_OWN_CODE = ("transformer_engine", "transformer_engine.common")
TENSORS = ("activation", "weight", "gradient")


class StandIn(types.ModuleType):
    """A module of which every name is a class."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__init__": lambda *_args, **_kwargs: None})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds them."""

    def __init__(self, root):
        self.root = Path(root)

    def find_spec(self, name, _path=None, _target=None):
        is_ours = name in WITHOUT_THEIR_OWN_CODE or name.startswith(STAND_INS)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_ours else None

    def create_module(self, spec):
        module = (StandIn if spec.name.startswith(STAND_INS) else types.ModuleType)(spec.name)
        module.__path__ = [str(self.root / spec.name.replace(".", "/"))]
        return module

    def exec_module(self, module):
        pass


def start(root, case):
    """Start with a config, and make what each layer would make; the log says the rest."""
    import nvdlfw_inspect.api as debug_api

    features = f"{root}/transformer_engine/debug/features"
    debug_api.initialize(config_file=case["config"], feature_dirs=[features], log_dir=case["log_dir"])
    from transformer_engine.debug.pytorch.debug_quantization import DebugQuantizer

    sized = [1] if "tp_size" in inspect.signature(DebugQuantizer.__init__).parameters else []
    for layer in case["layers"]:
        for tensor in TENSORS:
            DebugQuantizer(layer, tensor, types.SimpleNamespace(), None, *sized)


def outcome(root, case):
    """Return what stopped it, in a process of its own."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            start(root, case)
            said = {"error": None, "message": ""}
        except BaseException as error:  # noqa: BLE001  SystemExit, too: whatever stops it is the answer
            said = {"error": type(error).__name__, "message": str(error)[:300]}
        os.write(sending, json.dumps(said).encode())
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as pipe:
        said = json.loads(pipe.read())
    os.waitpid(child, 0)
    return said


def swallowed(words):
    """Return which words the recipe's class takes without being changed by them."""
    from transformer_engine.common.recipe import DelayedScaling

    def takes(word, value):
        try:
            return not hasattr(DelayedScaling(**{word: value}), word)
        except TypeError:
            return False

    return [word for word, value in words.items() if takes(word, value)]


def main(root, asked):
    warnings.simplefilter("ignore")
    sys.meta_path.insert(0, Finder(root))
    import nvdlfw_inspect.api  # noqa: F401  once for all: it brings torch
    import transformer_engine.common.recipe
    import transformer_engine.debug.features.utils.stats_buffer  # noqa: F401

    question = json.loads(Path(asked).read_text(encoding="utf-8"))
    outcomes = [outcome(root, case) for case in question["cases"]]
    print(json.dumps({"outcomes": outcomes, "swallowed": swallowed(question["words"])}))


main(*sys.argv[1:])
