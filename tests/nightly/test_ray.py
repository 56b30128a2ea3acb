"""A real Ray cluster on this machine: the answers of threads, also where a node dies, and no answer where nobody is."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.nightly.borrowing import SCRIPTS, trainer_python
from tests.nightly.object_servers import Server, server
from tests.pages import ROOT
from tests.support.answers import FIXTURES
from tests.support.shard_writers import entries_json, safetensors_file

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="starts Ray clusters: --nightly")

RAY = "ray==2.60.0"
LIMIT_SECONDS = 180
SIZE = 16 << 20
"""Bytes of a shard that takes a moment to read."""


class Cluster(NamedTuple):
    """One that was started, as its own nodes' processes."""

    python: str
    address: str
    raylets: Sequence[int]
    """The first one is the head's."""
    environment: Mapping[str, str]

    def command(self, *words: str) -> list[str]:
        return [str(Path(self.python).parent / "ckpttool"), *words]

    def ask(self, *words: str, cwd: Path | None = None, on_ray: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command, with nothing of what an earlier one remembered."""
        more = ["--engine", "ray", "--ray-address", self.address] if on_ray else []
        memory = Path(self.environment["HOME"]) / f"cache{time.monotonic_ns()}"
        environment = {**self.environment, "XDG_CACHE_HOME": str(memory)}
        line = self.command(*words, *more)
        return subprocess.run(
            line, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command on the cluster that somebody is to disturb."""
        line = self.command(*words, "--engine", "ray", "--ray-address", self.address)
        return subprocess.Popen(
            line, env=dict(self.environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def working(self) -> dict[int, int]:
        """Return the raylet of each process that looks at shards now."""
        found = {}
        for folder in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                if b"ray::check_here" in (folder / "cmdline").read_bytes():
                    status = (folder / "status").read_text().splitlines()
                    parent = int(next(line for line in status if line.startswith("PPid:")).split()[1])
                    if parent in self.raylets:
                        found[int(folder.name)] = parent
        return found


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trainer_python(tmp_path_factory.mktemp("python"), RAY, f"{ROOT}[objects]", borrows=False)


@contextmanager
def cluster_of(python: str, folder: Path, more: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **(more or {})}
    line = [python, str(SCRIPTS / "ray_cluster.py")]
    with subprocess.Popen(
        line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        told = json.loads(next(line for line in process.stdout if line.startswith("{")))
        try:
            yield Cluster(python, told["address"], told["raylets"], environment)
        finally:
            process.stdin.close()
            process.wait(60)


@pytest.fixture(scope="module")
def cluster(python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_of(python, tmp_path_factory.mktemp("home")) as started:
        yield started


@pytest.fixture
def mortal(python: str, tmp_path: Path) -> Iterator[Cluster]:
    """One of whose nodes some may be killed."""
    (tmp_path / "home").mkdir()
    with cluster_of(python, tmp_path / "home") as started:
        yield started


def copy(tree: str, to: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / tree / "output", to / "output"))


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, ...]:
    """Healthy ones of two formats, and one in which a header is torn and a shard is missing."""
    sick = copy("sink2_safetensors", tmp_path / "sick")
    (torn, gone, *_) = sorted(sick.glob("checkpoint/rank_2/*.safetensors"))
    torn.write_bytes(b"\xff" * 100 + torn.read_bytes()[100:])
    gone.unlink()
    return copy("async_ckpt", tmp_path / "ckpt"), copy("sink2_safetensors", tmp_path / "safetensors"), sick


VERIFYING = [("verify", "--checkpoint", "all", "--level", level) for level in ("structure", "checksum", "numerics")]
QUESTIONS = [*VERIFYING, ("resolve",), ("resolve", "--level", "checksum")]


@pytest.mark.parametrize("question", QUESTIONS, ids=" ".join)
def test_the_answer_is_that_of_threads(question: tuple[str, ...], cluster: Cluster, trees: tuple[Path, ...]) -> None:
    for tree in trees:
        words = (*question, str(tree), "--format", "json")
        said, meant = cluster.ask(*words), cluster.ask(*words, on_ray=False)
        assert (said.returncode, timeless(said.stdout), said.stderr) == (
            meant.returncode,
            timeless(meant.stdout),
            meant.stderr,
        ), tree


def timeless(document: str) -> str:
    """Leave out how long it took."""
    return re.sub(r'"seconds": [0-9.]+', "", document)


def test_what_is_sealed_is_what_threads_seal(cluster: Cluster, trees: tuple[Path, ...], tmp_path: Path) -> None:
    twin = Path(shutil.copytree(trees[0], tmp_path / "twin" / "output"))
    said = cluster.ask("seal", str(trees[0]), "--checkpoint", "all")
    meant = cluster.ask("seal", str(twin), "--checkpoint", "all", on_ray=False)
    assert (said.returncode, meant.returncode) == (0, 0), said.stderr
    assert sealed(trees[0]) == sealed(twin)
    shard = next(trees[0].rglob("*.ckpt"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    damaged = cluster.ask("verify", str(trees[0]), "--checkpoint", "all", "--level", "checksum")
    assert (damaged.returncode, "checksum-mismatch" in damaged.stdout) == (10, True), damaged.stdout


def sealed(tree: Path) -> list[object]:
    """What manifests hold of the content of files."""
    found = sorted(tree.rglob("*manifest*.json"))
    assert found
    keys = ("path", "size", "xxh3_128", "chunks", "schema_hash", "tensors")
    return [[shard.get(key) for key in keys] for path in found for shard in json.loads(path.read_text())["shards"]]


def test_preflight_and_report_say_what_they_say_by_threads(
    cluster: Cluster, trees: tuple[Path, ...], tmp_path: Path
) -> None:
    config = tmp_path / "pretrain.yaml"
    config.write_text("trainer: {}\nrunner_config: {epochs: 50, batch_size: 2, sink_mode: true, sink_size: 2}\n")
    for tree in trees:
        words = ("preflight", str(tree), "--config", str(config), "--level", "checksum", "--format", "json")
        said, meant = cluster.ask(*words), cluster.ask(*words, on_ray=False)
        assert (said.returncode, said.stderr) == (meant.returncode, meant.stderr)
        assert findings(said) == findings(meant)
        page = tmp_path / "page.md"
        done = cluster.ask("report", str(tree), "--output", str(page), "--format", "markdown", "--level", "checksum")
        resolved = cluster.ask("resolve", str(tree), "--level", "checksum", on_ray=False)
        assert done.returncode == resolved.returncode, done.stderr
        assert page.read_text()
        page.unlink()


def findings(said: subprocess.CompletedProcess[str]) -> list[object]:
    """Every finding of a document, wherever it stands."""
    found: list[object] = []

    def see(value: object) -> object:
        if isinstance(value, dict) and "code" in value:
            found.append(value)
        return value

    json.loads(said.stdout, object_hook=see)
    assert found
    return found


def test_parts_of_all_nodes_are_a_tree(cluster: Cluster, trees: tuple[Path, ...], tmp_path: Path) -> None:
    for number, tree in enumerate(trees):
        folder = tmp_path / f"parts{number}"
        folder.mkdir()
        done = cluster.ask("part", str(tree), "--out", f"{folder}/")
        assert done.returncode == 0, done.stderr
        assert len(list(folder.iterdir())) == len(cluster.raylets)
        said = cluster.ask("resolve", str(folder), "--format", "json", on_ray=False)
        meant = cluster.ask("resolve", str(tree), "--format", "json", on_ray=False)
        assert (said.returncode, chosen(said)) == (meant.returncode, chosen(meant)), said.stderr


def chosen(said: subprocess.CompletedProcess[str]) -> object:
    return json.loads(said.stdout).get("resume_from")


def test_a_bucket_is_read_by_all_nodes(python: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        store: Server = stack.enter_context(server("seaweedfs", tmp_path / "seaweedfs"))
        (tmp_path / "home").mkdir()
        cluster = stack.enter_context(cluster_of(python, tmp_path / "home", store.environment))
        folder = FIXTURES / "sink2_safetensors/output"
        for path in sorted((path for path in folder.rglob("*") if path.is_file()), key=os.path.getmtime):
            store.put(f"run/{path.relative_to(folder)}", path.read_bytes())
        for question in QUESTIONS:
            words = (*question, f"{store.url}/run", "--format", "json")
            said, meant = cluster.ask(*words), cluster.ask(*words, on_ray=False)
            assert (said.returncode, timeless(said.stdout)) == (meant.returncode, timeless(meant.stdout)), said.stderr


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A tree that takes a while to read: 48 ranks of 16 MiB."""
    folder = tmp_path / "large" / "checkpoint"
    chance = random.Random(5)  # noqa: S311  any bytes
    for rank in range(48):
        (folder / f"rank_{rank}").mkdir(parents=True)
        data = safetensors_file(entries_json([("w", "I8", [SIZE], SIZE)]), chance.randbytes(SIZE))
        (folder / f"rank_{rank}" / f"net_rank_{rank}-1_1.safetensors").write_bytes(data)
    return folder


def until_they_work(cluster: Cluster, process: subprocess.Popen[str]) -> dict[int, int]:
    end = time.monotonic() + LIMIT_SECONDS
    while process.poll() is None and time.monotonic() < end:
        if found := cluster.working():
            return found
    raise AssertionError(process.communicate()[1])


def test_where_a_node_dies_the_others_do_its_work_and_the_answer_is_the_same(mortal: Cluster, large: Path) -> None:
    words = ("verify", str(large), "--level", "checksum", "--format", "json", "--no-ledger")
    meant = mortal.ask(*words, on_ray=False)
    process = mortal.start(*words)
    while True:
        at_work = set(until_they_work(mortal, process).values()) - {mortal.raylets[0]}  # with it the cluster is gone
        if at_work:
            break
    os.kill(at_work.pop(), signal.SIGKILL)
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, timeless(out)) == (meant.returncode, timeless(meant.stdout)), err


def test_the_part_of_a_node_that_is_dead_is_missing_and_nothing_is_good_without_it(
    mortal: Cluster, trees: tuple[Path, ...], tmp_path: Path
) -> None:
    os.kill(mortal.raylets[2], signal.SIGKILL)
    folder = tmp_path / "parts"
    folder.mkdir()
    done = mortal.ask("part", str(trees[1]), "--out", f"{folder}/")
    assert (done.returncode, "Traceback" in done.stderr) == (14, False), done.stderr
    said = mortal.ask("resolve", str(folder), on_ray=False)
    assert said.returncode == 14, said.stdout + said.stderr


def test_ctrl_c_ends_it_and_nobody_works_on(cluster: Cluster, large: Path) -> None:
    meant = cluster.ask("verify", str(large), on_ray=False).returncode
    ended, err = meant, ""
    for _ in range(10):
        process = cluster.start("verify", str(large), "--level", "checksum", "--no-ledger")
        until_they_work(cluster, process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=LIMIT_SECONDS)
        ended = process.returncode
        if ended != meant:  # else it was done before it was told
            break
    assert (ended, "Traceback" in err) == (130, False), err
    end = time.monotonic() + LIMIT_SECONDS
    while cluster.working():
        assert time.monotonic() < end
    after = cluster.ask("verify", str(large))
    assert after.returncode == meant, after.stderr


def test_an_address_where_nobody_is_ends_at_once(cluster: Cluster, trees: tuple[Path, ...]) -> None:
    said = Cluster(cluster.python, "127.0.0.1:1", (), cluster.environment).ask("verify", str(trees[0]))
    assert (said.returncode, said.stdout) == (14, "")
    assert "no Ray cluster responds at 127.0.0.1:1" in said.stderr
