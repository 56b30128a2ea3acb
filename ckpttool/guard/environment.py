"""Conditions other than weights, data and random numbers that affect the last bits: versions, processor, kernels."""

from __future__ import annotations

import os
import platform
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache

import torch

from ckpttool.guard.model.capture import Difference, Setting

_LIBRARIES = ("accelerate", "lightning", "numpy", "pytorch_lightning", "transformers", "transformer_engine")
_VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "ATEN_CPU_CAPABILITY", "MKL_CBWR", "OMP_DYNAMIC")

_PROCESSOR = ("model name", "cpu family", "model", "CPU implementer", "CPU part")
"""The lines of `/proc/cpuinfo` that identify a processor. Virtual machines shorten the name, and Arm has none."""

COMPILED = "compiled"
"""Name of the setting for whether compiled code computed the loss. Only the user's entry can compile it again."""

_MOST_NODES = 2000
"""Maximum number of nodes to check in the graph of a loss. Compiled parts are near the end, or numerous."""

_MOST_THREADS = 1024
"""Maximum number of threads per process, more than the cores of any machine. Far more would end the process."""


def _set_threads(value: Setting) -> None:
    threads = int(value or 1)
    if 1 <= threads <= _MOST_THREADS:
        torch.set_num_threads(threads)


def _switch(owner: object, name: str) -> Callable[[Setting], None]:
    return lambda value: setattr(owner, name, value)


_SETTERS: dict[str, Callable[[Setting], object]] = {
    "threads": _set_threads,
    "deterministic": lambda value: torch.use_deterministic_algorithms(mode=bool(value)),
    "float32_matmul_precision": lambda value: torch.set_float32_matmul_precision(str(value)),
    "default_dtype": lambda value: torch.set_default_dtype(getattr(torch, str(value))),
    "mkldnn": lambda value: torch.backends.mkldnn.set_flags(bool(value)),
    "cudnn": _switch(torch.backends.cudnn, "enabled"),
    "cudnn_benchmark": _switch(torch.backends.cudnn, "benchmark"),
    "cudnn_deterministic": _switch(torch.backends.cudnn, "deterministic"),
    "fp16_reduced_precision": _switch(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    "bf16_reduced_precision": _switch(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    "sdp_flash": lambda value: torch.backends.cuda.enable_flash_sdp(bool(value)),
    "sdp_memory_efficient": lambda value: torch.backends.cuda.enable_mem_efficient_sdp(bool(value)),
    "sdp_math": lambda value: torch.backends.cuda.enable_math_sdp(bool(value)),
    "sdp_cudnn": lambda value: torch.backends.cuda.enable_cudnn_sdp(bool(value)),
}
"""Functions that restore settings, including in another process."""


def environment(device: torch.device) -> dict[str, Setting]:
    """Return the current conditions by name."""
    settings: dict[str, Setting] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "cpu": processor(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "mkldnn": bool(torch.backends.mkldnn.enabled),
        "cudnn": torch.backends.cudnn.enabled,
        "cudnn_version": torch.backends.cudnn.version() if device.type == "cuda" else None,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "fp16_reduced_precision": bool(torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction),
        "bf16_reduced_precision": bool(torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
        "sdp_flash": torch.backends.cuda.flash_sdp_enabled(),
        "sdp_memory_efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "sdp_math": torch.backends.cuda.math_sdp_enabled(),
        "sdp_cudnn": torch.backends.cuda.cudnn_sdp_enabled(),
    }
    for name in _LIBRARIES:
        if name in sys.modules:
            settings[name] = str(getattr(sys.modules[name], "__version__", None))
    return settings | {name: os.environ[name] for name in _VARIABLES if name in os.environ}


@cache
def processor(path: str = "/proc/cpuinfo") -> str | None:
    """Return the model of the processor, by which kernels choose their instructions and block sizes."""
    facts: dict[str, str] = {}
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as lines:
        for text in lines:
            name, _, value = (part.strip() for part in text.partition(":"))
            if not name:  # the end of the first processor
                break
            facts[name] = value if name == "model name" else f"{name} {value}"
    parts = [facts[name] for name in _PROCESSOR if name in facts]
    return ", ".join(parts) or platform.processor() or None


def comes_from_compiled(loss: object) -> bool:
    """Return whether compiled code computed a loss. Without compilation, its last bits differ.

    The graph of the loss shows this, whether the model, a part of it, or a function was compiled.
    """
    ahead, count = deque([getattr(loss, "grad_fn", None)]), 0
    while ahead and count < _MOST_NODES:
        node = ahead.popleft()
        if node is None:
            continue
        count += 1
        if node.name().startswith("CompiledFunction"):
            return True
        ahead.extend(following for following, _ in node.next_functions)
    return False


def take_over(captured: Mapping[str, Setting]) -> None:
    """Restore the captured conditions as far as possible. Another number of threads changes the last bits.

    If torch refuses a setting, or no machine supports it, the current value stays, which counts as a difference.
    """
    for name, setter in _SETTERS.items():
        if name in captured:
            with suppress(AttributeError, RuntimeError, TypeError, ValueError):
                setter(captured[name])


def differences(captured: Mapping[str, Setting], current: Mapping[str, Setting]) -> tuple[Difference, ...]:
    """Return the conditions that differ, by name. Libraries that are not loaded in this process do not count."""
    names = sorted(name for name, value in captured.items() if current.get(name) != value)
    return tuple(
        Difference(what=name, captured=captured[name], here=current.get(name))
        for name in names
        if name in current or name not in _LIBRARIES
    )
