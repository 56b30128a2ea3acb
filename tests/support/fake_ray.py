"""A Ray without a cluster: batches are run here, one by one, in an order that a seed decides, and nodes can be lost."""

from __future__ import annotations

import pickle
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

from ckpttool.core.domain.frozen import Packed, unpacked

T = TypeVar("T")


class RayError(Exception):
    """What Ray itself raises."""


class RayTaskError(RayError):
    """What a function raised on its node."""


class NodeDiedError(RayError):
    """Its node is gone."""


class FakeRay(ModuleType):
    """As much of Ray as is used."""

    def __init__(self, *, cores: int, seed: int, joined: bool) -> None:
        super().__init__("ray")
        self.cores, self._joined, self._nodes = cores, joined, ("c", "a", "b")
        self.lost: set[str] = set()
        """Nodes that are lost when they are asked; and the paths of tasks whose batch is lost."""
        self.dead: set[str] = set()
        """Nodes that the cluster knows to be dead."""
        self.there: Callable[[tuple[Any, ...]], tuple[Any, ...]] = lambda arguments: arguments
        """What another machine has in the place of what was sent."""
        self.back: Callable[[Any], Any] = lambda result: result
        """What comes back in the place of what was returned."""
        self.refusal: Exception | None = None
        """What joining a cluster raises."""
        self.flying: dict[int, tuple[Callable[..., object], tuple[Any, ...], Mapping[str, Any]]] = {}
        self.most_flying = 0
        self.left = False
        self._chance = random.Random(seed)  # noqa: S311  a course that can be had again
        self._refs = iter(range(1_000_000))

    def is_initialized(self) -> bool:
        return self._joined

    def init(self, **_: object) -> None:
        if self.refusal is not None:
            raise self.refusal

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(self.cores)} if self.cores else {}

    def nodes(self) -> list[dict[str, object]]:
        return [
            {
                "NodeID": f"id-{name}",
                "NodeManagerHostname": name,
                "Alive": name not in self.dead,
                "Resources": {"CPU": 1.0},
            }
            for name in self._nodes
        ]

    def remote(self, **options: object) -> Callable[[Callable[..., object]], object]:
        def decorated(function: Callable[..., object]) -> object:
            class Remote:
                @staticmethod
                def remote(*arguments: object) -> int:
                    ref = next(self._refs)
                    self.flying[ref] = (function, _sent(arguments), options)
                    self.most_flying = max(self.most_flying, len(self.flying))
                    return ref

            return Remote

        return decorated

    def wait(self, refs: list[int], *, num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        assert (num_returns, bool(timeout)) == (1, True)
        self.says()
        if self._chance.random() < 0.2:
            return [], refs  # nothing has come within the time
        done = self._chance.choice(refs)
        return [done], [ref for ref in refs if ref != done]

    def get(self, ref: int) -> object:
        function, arguments, options = self.flying.pop(ref)
        node = getattr(options.get("scheduling_strategy"), "node", None)
        if node in self.lost or any(getattr(task, "path", None) in self.lost for task in _tasks(arguments)):
            raise NodeDiedError("its raylet died")
        try:
            return self.back(_sent(function(*self.there(arguments))))
        except Exception as error:  # noqa: BLE001  whatever it raised there
            told = f"\x1b[36mray::look()\x1b[39m (pid=1)\n  File x\n{type(error).__name__}: {error}\n"
            raise RayTaskError(told) from None

    def says(self) -> None:
        """Write on stdout what became of a node, as Ray does, in a thread of its own."""
        thread = threading.Thread(target=print, args=("(raylet) Raylet is terminated.",))
        thread.start()
        thread.join()

    def shutdown(self) -> None:
        self.left = True


def _sent(value: T) -> T:
    """Return what arrives on another machine."""
    sent: T = pickle.loads(pickle.dumps(value))  # noqa: S301  what we wrote ourselves a moment ago
    return sent


def _tasks(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(unpacked(arguments[1])) if len(arguments) > 1 and isinstance(arguments[1], Packed) else ()


class _Affinity:
    def __init__(self, node_id: str, *, soft: bool) -> None:
        assert not soft
        self.node = node_id


@contextmanager
def fake_ray(*, cores: int = 2, seed: int = 0, joined: bool = True) -> Iterator[FakeRay]:
    """Let `import ray` be one of these."""
    ray, exceptions = FakeRay(cores=cores, seed=seed, joined=joined), ModuleType("ray.exceptions")
    vars(exceptions).update(RayError=RayError, RayTaskError=RayTaskError, NodeDiedError=NodeDiedError)
    strategies = ModuleType("ray.util.scheduling_strategies")
    vars(strategies).update(NodeAffinitySchedulingStrategy=_Affinity)
    modules = {
        "ray": ray,
        "ray.exceptions": exceptions,
        "ray.util": ModuleType("ray.util"),
        "ray.util.scheduling_strategies": strategies,
    }
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield ray
    finally:  # these alone: what was imported meanwhile stays
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
