"""Checks on many machines that all see the tree: batches of tasks on an existing Ray cluster.

Ray schedules everything: it sends a batch to a node with a free core, repeats the batch on another node if the first
dies, and returns the results as they arrive. The shards of a lost batch are unknown, never missing.

Source:
    Ray 2.60: `ray.init`, `ray.wait`, scheduling strategies, `ray.exceptions`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from ckpttool import __version__
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.frozen import Packed, packed, replace, unpacked
from ckpttool.core.domain.verdict import CheckTask
from ckpttool.core.errors import IncompleteError, UsageError
from ckpttool.core.storage import is_local, is_object_store, open_storage
from ckpttool.core.verify.check import failed
from ckpttool.core.verify.engines.threads import ThreadEngine
from ckpttool.core.verify.engines.waiting import WaitingEngine
from ckpttool.core.verify.observation import Observation

T = TypeVar("T")

BATCH_BYTES = 1 << 30
BATCH_HEADERS = 256
"""Maximum bytes and tasks of a batch: seconds of work, so that a node's death costs little."""

_MEMORY = 64 << 20
"""Memory in bytes that a batch needs on its node, because data is read through a buffer."""

_RETRIES = 2
_FLYING = 2
"""Batches in flight per core: enough to keep each core busy, and few enough to abandon."""

_TICK_SECONDS = 1.0
_CONNECT_SECONDS = 10.0


class RayCluster:
    """A running Ray cluster of the user. ckpttool does not start clusters or guess their addresses."""

    def __init__(self, address: str | None) -> None:
        """Connect to the cluster.

        Args:
            address: `HOST:PORT` as printed by `ray start`, or `ray://HOST:PORT`; None if already connected.

        Raises:
            UsageError: Ray is not installed or its version differs from the cluster's, or the address is invalid.
            IncompleteError: The address does not respond, or the cluster has no cores.
        """
        self._ray = _imported()
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            self._join(address)
        self.cores = int(self._ray.cluster_resources().get("CPU", 0))
        if not self.cores:
            self.leave()
            raise IncompleteError(f"the Ray cluster at {address} has no cores: start nodes with ray start --num-cpus")

    def _join(self, address: str | None) -> None:
        if not address:
            raise UsageError("--engine ray needs a running cluster: give --ray-address HOST:PORT, or set RAY_ADDRESS")
        if address in {"auto", "local"}:
            raise UsageError(f"--ray-address {address}: give HOST:PORT of a running cluster; ckpttool starts none")
        _assert_answers(address)
        try:
            self._ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, TimeoutError) as error:
            raise IncompleteError(f"no Ray cluster responds at {address}: {_first_line(error)}") from None
        except (RuntimeError, ValueError) as error:
            raise UsageError(f"--ray-address {address}: {_first_line(error)}") from None

    def leave(self) -> None:
        """Disconnect, unless the connection was made by the calling program."""
        if self._is_ours:
            self._ray.shutdown()

    def on_nodes(self, work: Callable[..., T], calls: Sequence[tuple[str, tuple[object, ...]]]) -> Iterator[T | str]:
        """Call a function on several nodes, and yield the results in call order; for a failed call, yield the reason.

        Args:
            work: A function at the top level of a module, which is imported there.
            calls: The node of each call, as in `nodes`, and the arguments.

        Raises:
            UsageError: A node cannot run the function.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        refs = [
            self._ray.remote(
                num_cpus=1, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
            )(work).remote(*call)
            for node, call in calls
        ]
        yield from (self.got(ref) for ref in refs)

    @property
    def nodes(self) -> tuple[tuple[str, str], ...]:
        """The nodes that currently have cores, each with its cluster name and its host, sorted by host."""
        alive = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        return tuple(sorted(((node["NodeID"], node["NodeManagerHostname"]) for node in alive), key=lambda it: it[::-1]))

    @property
    def dead(self) -> tuple[str, ...]:
        """The hosts that have left this cluster."""
        alive: dict[str, bool] = {}
        for node in self._ray.nodes():
            alive[node["NodeManagerHostname"]] = node["Alive"] or alive.get(node["NodeManagerHostname"], False)
        return tuple(sorted(host for host, is_alive in alive.items() if not is_alive))

    def got(self, ref: object) -> Any:  # noqa: ANN401  what was called says what it returns
        """Return the result of a call, or the reason why it is unknown.

        Raises:
            UsageError: A node cannot run the function.
        """
        from ray.exceptions import RayError, RayTaskError

        try:
            return self._ray.get(ref)
        except RayTaskError as error:
            raise UsageError(
                f"a Ray node cannot run ckpttool {__version__} ({_last_line(error)[:120]}): install it on all nodes"
            ) from None
        except RayError as error:
            return type(error).__name__

    def engine(self, *, timeout: float) -> RayEngine:
        """Return the engine that reads shards on the cluster; `timeout` is in seconds."""
        return RayEngine(self, self._ray, timeout)


def _imported() -> ModuleType:
    try:
        return import_module("ray")
    except ImportError:
        raise UsageError("--engine ray needs Ray: pip install 'ckpttool[ray]', the same version on all nodes") from None


def _assert_answers(address: str) -> None:
    """Check that the address responds. Ray itself would retry for minutes, with messages on stderr.

    Raises:
        UsageError: The address is invalid.
        IncompleteError: The address does not respond.
    """
    import socket
    from urllib.parse import urlsplit

    place = urlsplit(address if address.startswith("ray://") else f"//{address}")
    try:
        host, port = place.hostname, place.port
    except ValueError:
        host, port = None, None
    if not port or not host:
        raise UsageError(f"--ray-address {address}: expected HOST:PORT or ray://HOST:PORT")
    try:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise IncompleteError(f"no Ray cluster responds at {address}: {error.strerror or error}") from None


def _last_line(error: Exception) -> str:
    """Return the exception raised on a node, without its coloured prefix."""
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


class RayEngine:
    """An engine that runs batches of tasks on the cores of the cluster."""

    def __init__(self, cluster: RayCluster, ray: ModuleType, timeout: float) -> None:
        """Store the cluster, the Ray module, and the seconds after which a read counts as hung."""
        self._cluster, self._ray, self._timeout = cluster, ray, timeout
        spread = ray.remote(num_cpus=1, memory=_MEMORY, max_retries=_RETRIES, scheduling_strategy="SPREAD")
        self._look: Any = spread(check_here)

    def run(self, tasks: Sequence[CheckTask]) -> Iterator[Observation]:
        """Yield one observation per task, as the batches return.

        If the caller stops early, running batches are not cancelled, but end when the process leaves the cluster. Ray
        2.60 aborts the process if a cancelled batch finishes in the meantime.
        """
        waiting = deque(batches(tasks, self._cluster.cores))
        flying: dict[object, Sequence[CheckTask]] = {}
        while waiting or flying:
            while waiting and len(flying) < _FLYING * self._cluster.cores:
                batch = list(map(_as_listed, waiting.popleft()))
                flying[self._look.remote(__version__, packed(batch), self._timeout)] = batch
            done, _ = self._ray.wait(list(flying), num_returns=1, timeout=_TICK_SECONDS)
            for ref in done:
                yield from self._seen(ref, flying.pop(ref))

    def _seen(self, ref: object, batch: Sequence[CheckTask]) -> Iterator[Observation]:
        answer = self._cluster.got(ref)
        if isinstance(answer, str):
            message = f"the Ray node that read it was lost, and no other node read it ({answer}): unknown, not damaged"
            yield from (failed(task, message) for task in batch)
            return
        host, version, places, observed = answer
        assert_same(host, version)
        observed.own["task"] = [batch[place] for place in places]
        yield from (_of_this_tree(observation, host) for observation in unpacked(observed))


def assert_same(host: str, version: str) -> None:
    """Check that a node runs the same version of ckpttool, so that it checks files the same way this machine does.

    Raises:
        UsageError: The node has a different version.
    """
    if version != __version__:
        raise UsageError(
            f"{host} has ckpttool {version}, this machine {__version__}: install the same version on all nodes"
        )


def batches(tasks: Sequence[CheckTask], cores: int) -> Iterator[tuple[CheckTask, ...]]:
    """Divide tasks into batches, biggest tasks first, so that every core gets work and no batch exceeds its limit."""
    ordered = sorted(tasks, key=lambda task: -task.cost)
    share = -(-sum(task.cost for task in tasks) // (2 * cores))
    many = max(1, min(BATCH_HEADERS, -(-len(tasks) // (2 * cores))))
    batch: list[CheckTask] = []
    cost = 0
    for task in ordered:
        if batch and (cost + task.cost > min(BATCH_BYTES, share) or len(batch) == many):
            yield tuple(batch)
            batch, cost = [], 0
        batch.append(task)
        cost += task.cost
    if batch:
        yield tuple(batch)


def _as_listed(task: CheckTask) -> CheckTask:
    """Return a task for another machine, with its absolute root and the stamp of its file."""
    root = str(Path(task.root).absolute()) if is_local(task.root) else task.root
    if task.listed is not None:
        return task if root == task.root else replace(task, root=root)
    try:
        listed = open_storage(task.root).stamp(task.path)
    except OSError:  # the check reports the problem
        listed = None
    return replace(task, root=root, listed=listed)


def _of_this_tree(observed: Observation, host: str) -> Observation:
    """Return a node's observation, or a failure if the node read a different file, which proves nothing here."""
    task, stamp = observed.task, observed.report.stamp
    is_gone = stamp is None and any(finding.code is Code.CHANGED_WHILE_READING for finding in observed.report.findings)
    if not is_local(task.root) or not (is_gone or (stamp is not None and stamp != task.listed)):
        return observed
    try:
        stamp_here = open_storage(task.root).stamp(task.path)
    except OSError:
        return observed
    if stamp == stamp_here or stamp_here != task.listed:  # it is being written; the check shows this
        return observed
    problem = "does not see it" if stamp is None else "sees a different file at that path"
    return failed(
        task, f"{host} {problem}: --engine ray needs disks that all nodes share; for local disks use ckpttool part"
    )


def check_here(version: str, tasks: Packed, timeout: float) -> tuple[str, str, list[int], Packed | None]:
    """Check some shards on this node, and return its identity.

    Returns:
        The host, its version, the index of each task, and the observations without their tasks.
    """
    import socket

    host = socket.gethostname()
    if version != __version__:  # a task may have other fields then
        return host, __version__, [], None
    batch: list[CheckTask] = unpacked(tasks)
    if not batch[0].level.reads_content:
        observed = list(WaitingEngine(timeout=timeout, work=_work).run(batch))
    else:
        observed = list(ThreadEngine(jobs=1, timeout=timeout, work=_work).run(batch))
    place_of = {(task.path, task.part): place for place, task in enumerate(batch)}
    places = [place_of[observation.task.path, observation.task.part] for observation in observed]
    columns = packed(observed)
    for fields in (columns.shared, columns.own):
        fields.pop("task", None)
    return host, __version__, places, columns


def _work(task: CheckTask) -> Observation:
    from ckpttool.core.verify.report import check_and_judge

    if task.listed is None or not is_object_store(task.root):
        return check_and_judge(task)
    from ckpttool.core.storage.objects import ListedObjects

    return check_and_judge(task, storage=ListedObjects(task.root, {task.path: task.listed}))
