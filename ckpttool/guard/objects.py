"""The state of a training run as one tree of plain values and tensors that can be restored bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.errors import UsageError
from ckpttool.guard import randomness
from ckpttool.guard.capture.compute import unwrapped
from ckpttool.guard.nested import is_sharded
from ckpttool.guard.state_tree import Sharded, Unsaveable

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ckpttool.guard.step import Guard

Tree = dict[str, Any]


@runtime_checkable
class Stateful(Protocol):
    """An object with a state to save, such as a scheduler, a scaler or a data loader."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object:
        """Restore the state."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """The objects of a training run. Pass the same objects to a save and to a resume."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: Stateful | None
    scaler: Stateful | None
    loader: object
    """An object with `state_dict` and `load_state_dict`, such as torchdata's `StatefulDataLoader`.

    None: no data state.
    """
    guard: Guard | None
    extra: MutableMapping[str, Any]
    """The user's values. A value with a `state_dict` is saved through it, any other value directly."""

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    def tree(self) -> Tree:
        """Return the complete state. Its tensors are those of the training run, not copies.

        Raises:
            Unsaveable: The optimizer has state that belongs to no parameter.
            UsageError: The loader has no state.
        """
        states = self.optimizer.state_dict()
        names = self._parameter_names()
        for key in states["state"]:
            if not isinstance(key, int):
                raise Unsaveable("optimizer", f"a state that does not belong to a parameter: {key!r:.40}")
        return {
            "model": dict(unwrapped(self.model).state_dict()),
            "optimizer": {names[index]: state for index, state in states["state"].items()},
            "groups": states["param_groups"],
            "parameters": names,
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "loader": None if self.loader is None else _stateful(self.loader).state_dict(),
            "guard": None if self.guard is None else self.guard.saved(),
            "rng": randomness.states(),
            "extra": {
                name: value.state_dict() if isinstance(value, Stateful) else value for name, value in self.extra.items()
            },
        }

    def load(self, tree: Tree) -> None:
        """Restore everything except the random-number state, because creating the loader's iterator draws from it.

        Raises:
            UsageError: The objects differ from those of the saved training run, or were sharded differently.
        """
        self._assert_same(tree)
        model = unwrapped(self.model)
        current = model.state_dict()
        try:
            model.load_state_dict({name: _like(value, current.get(name)) for name, value in tree["model"].items()})
        except RuntimeError as error:
            raise UsageError(f"the model differs from the saved one: {error}") from None
        self._load_optimizer(tree)
        for part, stateful in (("scheduler", self.scheduler), ("scaler", self.scaler), ("loader", self.loader)):
            if stateful is not None:
                _stateful(stateful).load_state_dict(tree[part])
        if self.guard is not None:
            self.guard.restore(tree["guard"])
        for name, value in tree["extra"].items():
            if isinstance(own_value := self.extra.get(name), Stateful):
                own_value.load_state_dict(value)
            else:
                self.extra[name] = value

    def _assert_same(self, tree: Tree) -> None:
        if tree["parameters"] != self._parameter_names():
            raise UsageError(
                "the optimizer's parameters, or their order, differ from the saved ones: "
                f"{_first_difference(tree['parameters'], self._parameter_names())}"
            )
        for part, stateful in (("scheduler", self.scheduler), ("scaler", self.scaler), ("loader", self.loader)):
            if stateful is not None and tree[part] is None:
                raise UsageError(
                    f"the checkpoint was saved without a {part}, but the resume has one: resume without it, and "
                    "create it afterwards"
                )
            if stateful is None and tree[part] is not None:
                raise _missing_object(part)
        if self.guard is None and tree["guard"] is not None:  # in the opposite case the guard reports it
            raise _missing_object("guard")
        if missing := sorted(self.extra.keys() - tree["extra"].keys()):
            raise UsageError(
                f"the checkpoint was saved without {', '.join(map(repr, missing))} in extra: resume without it, and "
                "add it to extra for later saves"
            )

    def _parameters(self) -> Iterator[Tensor]:
        return (parameter for group in self.optimizer.param_groups for parameter in group["params"])

    def _parameter_names(self) -> list[str]:
        """Return the names of the optimizer's parameters in its own order, which may differ from the model's."""
        names = {id(parameter): name for name, parameter in unwrapped(self.model).named_parameters()}
        return [names.get(id(parameter), f"#{index}") for index, parameter in enumerate(self._parameters())]

    def _load_optimizer(self, tree: Tree) -> None:
        parameters = list(self._parameters())
        by_name = dict(zip(tree["parameters"], range(len(parameters)), strict=True))
        states = {
            by_name[name]: {key: _copied(value, parameters[by_name[name]]) for key, value in state.items()}
            for name, state in tree["optimizer"].items()
        }
        self.optimizer.load_state_dict({"state": states, "param_groups": tree["groups"]})
        # torch converts a state to the type of its parameter, which would truncate wider moments.
        for index, state in states.items():
            loaded = self.optimizer.state[parameters[index]]
            for key, value in state.items():
                if isinstance(value, Tensor) and loaded[key].dtype != value.dtype:
                    loaded[key] = value.to(loaded[key].device)


def _stateful(loader: object) -> Stateful:
    if not isinstance(loader, Stateful):
        raise UsageError(
            f"{type(loader).__name__} cannot report its position in the data: pass a loader with state_dict and "
            "load_state_dict, such as torchdata's StatefulDataLoader, or none"
        )
    return loader


def _missing_object(part: str) -> UsageError:
    return UsageError(
        f"the checkpoint was saved with a {part}, but the resume has none: pass one of the same kind as at the save"
    )


def _copied(value: object, parameter: Tensor) -> object:
    """Return a copy of a state that shares no memory with the file."""
    if isinstance(value, Sharded):
        return _like(value, parameter)
    return value.clone() if isinstance(value, Tensor) else value


def _like(value: object, current: object) -> object:
    """Convert a saved shard to a tensor of this run. Any other value is returned unchanged.

    Raises:
        UsageError: The tensor was divided into another number of parts, or differently.
    """
    if not isinstance(value, Sharded):
        return value
    from torch.distributed.tensor import DTensor, Shard

    if not isinstance(current, Tensor) or not is_sharded(current):
        raise _other_shards(value, "is not sharded here")
    current = cast("DTensor", current)
    mesh = current.device_mesh
    placements = tuple(
        f"shard:{placement.dim}" if isinstance(placement, Shard) else "replicate" for placement in current.placements
    )
    current_layout = (tuple(mesh.mesh.shape), tuple(mesh.mesh_dim_names or ()), placements)
    if current_layout != (value.mesh_shape, value.mesh_names, value.placements):
        raise _other_shards(value, f"is sharded as {current_layout[2]} over {current_layout[0]} here")
    local = value.local.to(current.to_local().device, copy=True)
    shape, stride = torch.Size(value.shape), value.stride
    return DTensor.from_local(local, mesh, current.placements, run_check=False, shape=shape, stride=stride)


def _other_shards(value: Sharded, current: str) -> UsageError:
    return UsageError(
        f"a tensor was saved in shards, as {value.placements} over {value.mesh_shape}, but {current}: resume on the "
        "same number of ranks, or save with torch.distributed.checkpoint, which reshards"
    )


def _first_difference(saved: Sequence[str], current: Sequence[str]) -> str:
    for index, (first, second) in enumerate(zip(saved, current, strict=False)):
        if first != second:
            return f"number {index} was {first}, and now is {second}"
    return f"there were {len(saved)}, and now there are {len(current)}"
