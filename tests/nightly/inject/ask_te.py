"""Ask Transformer Engine's own debug features what they do to each operand: compiled parts are stubbed out.

    python ask_te.py TE_FOLDER INSPECT_FOLDER LOG_FOLDER LAYER,LAYER,... CONFIG...

TE_FOLDER and INSPECT_FOLDER hold the unpacked wheels. Prints JSON, a line for each config: layer -> gemm -> operand ->
what becomes of it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
import types

te, inspect, logs, layers, *configs = sys.argv[1:]
layers = layers.split(",")
sys.path.insert(0, inspect)
REAL = "transformer_engine.debug"


class Anything(type):
    """Whatever is asked of it is another one."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})

    def __call__(cls, *_arguments, **_named):
        return Anything("called", (), {})


class Stub(types.ModuleType):
    """A module in which every name stands for something."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """What is compiled, or loads it: everything of the package but the debug features."""

    def find_spec(self, name, path, target=None):
        if name.startswith(REAL) or name.split(".")[0] not in {
            "transformer_engine",
            "transformer_engine_torch",
            "triton",
        }:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        stub = Stub(spec.name)
        stub.__version__ = "0"
        stub.__path__ = [os.path.join(te, *spec.name.split("."))]
        return stub

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Stubs())

import nvdlfw_inspect.api as debug_api  # noqa: E402
import torch  # noqa: E402, F401  once, and not in every child

OPERANDS = {"fprop": ("activation", "weight"), "dgrad": ("gradient", "weight"), "wgrad": ("activation", "gradient")}


def ask(config):
    """Start the debug features as a trainer does, and ask what they do."""
    features = os.path.join(te, "transformer_engine", "debug", "features")
    debug_api.initialize(config_file=config, feature_dirs=[features], log_dir=logs, init_training_step=100)
    # Answers are kept by the line that asks: each question gets a line of its own, as it has in the trainer.
    source, answers = [], {}
    for layer in layers:
        for gemm, operands in OPERANDS.items():
            common = f"layer_name={layer!r}, gemm={gemm!r}, iteration=100"
            source.append(f"answers[{layer!r}, {gemm!r}] = debug_api.transformer_engine.fp8_gemm_enabled({common})")
            for operand in operands:
                more = f"{common}, tensor_name={operand!r}"
                source.append(
                    f"answers[{layer!r}, {gemm!r}, {operand!r}] = "
                    f"debug_api.transformer_engine.modify_tensor_enabled({more})"
                )
    exec(compile("\n".join(source), "<questions>", "exec"), {"answers": answers, "debug_api": debug_api})  # noqa: S102
    return {
        layer: {
            gemm: {operand: becomes(answers, layer, gemm, operand) for operand in operands}
            for gemm, operands in OPERANDS.items()
        }
        for layer in layers
    }


def yes(answer):
    """Newer ones add the step of the next change."""
    return bool(answer[0] if isinstance(answer, tuple) else answer)


def becomes(answers, layer, gemm, operand):
    """As `debug_quantization.py` decides: what is modified is not asked whether it is quantised."""
    if yes(answers[layer, gemm, operand]):
        return "modified"
    return "quantized" if yes(answers[layer, gemm]) else "high"


for config in configs:  # what is started cannot be started again: each in a process of its own
    child = os.fork()
    if not child:
        print(json.dumps(ask(config)), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
