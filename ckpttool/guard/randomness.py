"""The states of all random-number generators that a step may use."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias, cast

import torch

States: TypeAlias = "dict[str, object]"
"""State by generator: `torch`, `cuda`, `npu` or `xpu` (one per device), `numpy` if it is imported, and `python`."""

_DEVICES = ("cuda", "npu", "xpu")
"""Modules with one generator per device, if torch provides them. torch_npu adds the module of Ascend."""

_MERSENNE_BYTES = 2500
"""Size in bytes of a Mersenne Twister: 624 words, and the position of the next word."""


def states(*, devices: bool = True) -> States:
    """Return all states, in the form for `state_tree.spell`. Reading device states waits for the devices."""
    saved: States = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if devices:
        saved.update(_device_states(_accelerators()))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        saved["numpy"] = _numpy_state(numpy)
    return saved


class StatesReader:
    """Reader of all states before each micro-batch.

    If a generator was not used since the last call, its state is the same object. A hundred micro-batches then take the
    memory of one. The state is also not copied, which would take Python and numpy longer than the rest of a
    micro-batch.
    """

    def __init__(self) -> None:
        self._python = _PythonGenerator()
        self._numpy = _NumpyGenerator()
        self._devices: list[tuple[str, Any]] | None = None

    def states(self) -> States:
        """Return the same value as the function `states`."""
        if self._devices is None:
            self._devices = [*_accelerators()]
        saved: States = {"torch": torch.get_rng_state(), "python": self._python.state()}
        if self._devices:
            saved.update(_device_states(self._devices))
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            saved["numpy"] = self._numpy.state(numpy)
        return saved


class _PythonGenerator:
    """The generator of the module `random`.

    CPython stores its words in the object itself, so that its memory shows whether it was used.
    """

    def __init__(self) -> None:
        self._generator = cast("Any", random.random).__self__
        self._memory = _memory_of(self._generator) if _shows_use() else None
        self._words: object = None
        self._state: tuple[Any, ...] = ()

    def state(self) -> tuple[Any, ...]:
        words = None if self._memory is None else (bytes(self._memory), self._generator.gauss_next)
        if words is None or words != self._words:
            self._words, self._state = words, random.getstate()
        return self._state


def _shows_use() -> bool:
    """Return whether the memory of a generator changes when it is used, and only then."""
    if sys.implementation.name != "cpython":
        return False
    generator = random.Random(0)  # noqa: S311  no secret
    memory = _memory_of(generator)
    new, unused = bytes(memory), bytes(memory)
    generator.random()
    return new == unused and new != bytes(memory)


def _memory_of(generator: random.Random) -> ctypes.Array[ctypes.c_char]:
    """Return the memory of an object, without its reference count. The object must live as long as the process."""
    head = object.__basicsize__
    return (ctypes.c_char * (type(generator).__basicsize__ - head)).from_address(id(generator) + head)


class _NumpyGenerator:
    """numpy's global generator, whose state is at an address that numpy publishes."""

    def __init__(self) -> None:
        self._generator: Any = None
        self._memory: ctypes.Array[ctypes.c_char] | None = None
        self._words: bytes | None = None
        self._state: Any = None

    def state(self, numpy: Any) -> Any:  # noqa: ANN401  a module, and a tuple or a dict of its own
        generator = numpy.random.get_bit_generator()
        if generator is not self._generator:
            is_usual = type(generator) is numpy.random.MT19937
            self._generator, self._memory = generator, _numpy_memory(generator) if is_usual else None
        words = None if self._memory is None else bytes(self._memory)
        # Normal numbers are made in pairs: if the second one is left, the words do not show its use.
        if words is None or words != self._words or self._state[3]:
            self._words, self._state = words, _numpy_state(numpy)
        return self._state


def _numpy_state(numpy: Any) -> Any:  # noqa: ANN401  a module, and a tuple or a dict of its own
    is_usual = type(numpy.random.get_bit_generator()) is numpy.random.MT19937
    return numpy.random.get_state(legacy=is_usual)  # without it numpy warns of other generators


def _numpy_memory(generator: Any) -> ctypes.Array[ctypes.c_char]:  # noqa: ANN401  of numpy
    """Return the memory of a Mersenne Twister. It is valid as long as the generator exists."""
    return (ctypes.c_char * _MERSENNE_BYTES).from_address(generator.ctypes.state_address)


def restore(saved: Mapping[str, object]) -> None:
    """Restore the output of `states`. Generators that it does not contain stay unchanged.

    Raises:
        ValueError, TypeError, RuntimeError: The state is invalid. The states before it were already restored.
    """
    if "torch" in saved:
        torch.set_rng_state(cast("torch.Tensor", saved["torch"]))
    if "python" in saved:
        random.setstate(cast("tuple[object, ...]", saved["python"]))
    for name, module in _accelerators():
        for device, state in enumerate(cast("list[torch.Tensor]", saved.get(name, []))[: module.device_count()]):
            module.set_rng_state(state, device)
    if "numpy" in saved:
        import numpy as np

        np.random.set_state(cast("tuple[str, np.ndarray, int, int, float]", saved["numpy"]))  # noqa: NPY002  the global generator


def _device_states(modules: Iterable[tuple[str, Any]]) -> States:
    return {name: module.get_rng_state_all() for name, module in modules if module.is_initialized()}


def _accelerators() -> Iterator[tuple[str, Any]]:
    modules = ((name, getattr(torch, name, None)) for name in _DEVICES)
    return ((name, module) for name, module in modules if module is not None and module.is_available())
