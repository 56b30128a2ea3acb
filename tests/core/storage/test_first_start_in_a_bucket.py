"""A run that saves to a bucket starts from scratch if its folder has no object, and never if the bucket is unknown."""

from __future__ import annotations

import pytest

from tests.conftest import FIXTURES
from tests.support.commands import Said, ask
from tests.support.s3_relay import Relay
from tests.support.trees import writable

pytest.importorskip("obstore", reason="object stores are read by obstore, which is not installed")


def start(root: str, *options: str) -> Said:
    return ask("resolve", root, "--or-start", "--json", *options)


def test_a_folder_without_objects_is_a_start_from_scratch(relay: Relay) -> None:
    said = start("s3://bucket/run/checkpoint")
    assert (said.code, said.json["start"], said.json["root"]) == (0, "scratch", "s3://bucket/run/checkpoint")
    (relay.folder / "bucket" / "run").mkdir(parents=True)
    (relay.folder / "bucket" / "run" / "config.yaml").write_text("seed: 1\n")
    assert start("s3://bucket/run").code == 0


@pytest.mark.parametrize("trace", ["latest", "checkpoint-5/notes.md", "model.safetensors", ".ckpttool/seals/x.json"])
def test_a_trace_in_the_bucket_prevents_it(relay: Relay, trace: str) -> None:
    path = relay.folder / "bucket" / "run" / trace
    path.parent.mkdir(parents=True)
    path.write_text("x")
    said = start("s3://bucket/run")
    assert said.code == 11, said.output
    assert trace.partition("/")[0] in said.stderr


def test_a_log_in_the_bucket_is_read(relay: Relay) -> None:
    path = relay.folder / "bucket" / "run" / "train.log"
    path.parent.mkdir(parents=True)
    path.write_text("step 37 loss 2.0\n")
    assert start("s3://bucket/run").code == 11
    assert start("s3://bucket/run", "--save-every", "100").code == 0


@pytest.mark.usefixtures("relay")
def test_a_bucket_that_does_not_exist_is_an_error() -> None:
    assert start("s3://other/run").code == ask("resolve", "s3://other/run").code == 12


def test_a_tree_in_the_bucket_is_resumed(relay: Relay) -> None:
    writable(FIXTURES / "layouts" / "hf_single", relay.folder / "bucket" / "run")
    assert start("s3://bucket/run").json["start"] == "resume"
