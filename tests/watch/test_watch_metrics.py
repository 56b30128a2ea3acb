"""What Prometheus is told of a watch: in a file, and over HTTP."""

from __future__ import annotations

import builtins
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="metrics are written by prometheus-client, which is not installed")
from prometheus_client.parser import text_string_to_metric_families

from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.domain.verdict import Level
from ckpttool.watch.model import WatchQuestion, WatchRule
from ckpttool.watch.verbs import Watch
from tests.pages import GUIDE
from tests.support.commands import ask
from tests.watch.test_watch import flip_weights, shard, tree

__all__ = ["tree"]

RULES = GUIDE / "watch" / "alerts.yaml"


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Every sample by its name and what it is about, as Prometheus' own parser reads it."""
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation.endswith(".")
        for sample in family.samples:
            about = (sample.name, *(value for name, value in sorted(sample.labels.items()) if name != "tree"))
            if not sample.name.endswith("_created"):
                found[about] = sample.value
    return found


def written(tree: Path, *more: str, code: int = 0) -> dict[tuple[str, ...], float]:
    file = tree.parent / "ckpttool.prom"
    done = ask("watch", str(tree), "--once", "--metrics", str(file), *more)
    assert done.code == code, done.stderr
    return samples(file.read_text())


def test_what_is_known_of_a_healthy_tree_is_written_down(tree: Path) -> None:
    told = written(tree, "--seal")
    nbytes = sum(path.stat().st_size for path in tree.rglob("*.ckpt"))
    assert told["ckpttool_newest_good_step",] == 2
    assert told["ckpttool_newest_good_timestamp_seconds",] == 1_700_000_000
    whole = ("verified", "agreed", "struct-ok")
    assert sum(told["ckpttool_checkpoints", word] for word in whole) == 2
    assert told["ckpttool_checkpoints", "damaged"] == 0
    assert told["ckpttool_events_total", "good"] == 2
    assert told["ckpttool_events_total", "bad"] == 0
    assert told["ckpttool_verified_bytes_total",] >= nbytes
    assert told["ckpttool_hook_failures_total",] == 0
    assert told["ckpttool_last_poll_timestamp_seconds",] > 1_700_000_000
    assert told["ckpttool_free_bytes",] > 0


def test_damage_and_a_hook_that_fails_are_counted_and_the_newest_good_one_is_an_older_one(tree: Path) -> None:
    written(tree, "--seal")
    flip_weights(shard(tree, 1, 2))
    os.utime(shard(tree, 1, 2), (1_700_000_100, 1_700_000_100))
    time.sleep(0.2)
    told = written(tree, "--on-event", "false", "--every", "0.05", "--patience", "0", code=10)
    assert told["ckpttool_newest_good_step",] == 1
    assert told["ckpttool_checkpoints", "damaged"] == 1
    assert told["ckpttool_events_total", "checksum-mismatch"] == 1
    assert told["ckpttool_hook_failures_total",] == 1


def test_the_tree_is_a_label_whatever_its_name_is(tree: Path) -> None:
    odd = tree.parent / 'a"b\\\n\udce9'
    tree.rename(odd)
    file = tree.parent / "ckpttool.prom"
    assert ask("watch", str(odd), "--once", "--metrics", str(file)).code == 0
    (family, *_) = text_string_to_metric_families(file.read_text())
    assert family.samples[0].labels["tree"].startswith(str(tree.parent) + '/a"b\\\n')


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def watching(tree: Path, **more: Any) -> Watch:  # noqa: ANN401  fields of the question
    question = WatchQuestion(
        tree=TreeQuestion(path=str(tree)),
        rule=WatchRule(rested=1.0),
        level=Level.STRUCTURE,
        environment={"XDG_STATE_HOME": str(tree.parent / "state")},
        **more,
    )
    return Watch(question, lambda _: None, lambda _: None)


def test_who_asks_over_http_is_told_what_is_known_then(tree: Path) -> None:
    port = free_port()
    watch = watching(tree, listen=("127.0.0.1", port))

    def asked() -> dict[tuple[str, ...], float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return samples(answer.read().decode())

    with watch.begun():
        assert ("ckpttool_last_poll_timestamp_seconds",) not in asked()
        watch.poll()
        watch.finish_reading()
        assert asked()["ckpttool_events_total", "good"] == 2
    with pytest.raises(OSError, match="refused"):
        asked()


def test_a_port_that_is_taken_is_said_in_a_line(tree: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        done = ask("watch", str(tree), "--listen", address)
        assert (done.code, done.stderr.splitlines()) == (
            2,
            [f"ckpttool: error: --listen {address}: Address already in use"],
        )


def test_where_the_file_can_be_written_no_longer_the_watch_goes_on_and_says_so_once(tree: Path) -> None:
    notes: list[str] = []
    watch = watching(tree, metrics=str(tree.parent / "gone" / "x.prom"))
    watch._note = notes.append  # noqa: SLF001
    (tree.parent / "gone").mkdir()
    with watch.begun():
        shutil.rmtree(tree.parent / "gone")
        for _ in range(3):
            watch.poll()
            watch.finish_reading()
        assert (watch.told.total(), len(notes)) == (2, 1)


def test_without_prometheus_client_its_installation_is_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:  # noqa: ANN401  as the real one
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    done = ask("watch", str(tree), "--once", "--metrics", str(tree.parent / "x.prom"))
    assert (done.code, "pip install 'ckpttool[watch]'" in done.stderr) == (2, True)


def test_every_alert_asks_for_a_metric_that_is_written(tree: Path) -> None:
    import re

    names = {name for name, *_ in written(tree)}
    asked = set(re.findall(r"ckpttool_\w+", RULES.read_text()))
    assert asked
    assert asked <= names | {"ckpttool_newest_good_timestamp_seconds"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_prometheus_takes_the_metrics_and_the_alerts(tree: Path) -> None:
    written(tree)
    text = (tree.parent / "ckpttool.prom").read_bytes()
    done = subprocess.run(["promtool", "check", "metrics"], input=text, check=False, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    done = subprocess.run(["promtool", "check", "rules", RULES], check=False, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
