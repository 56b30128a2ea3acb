"""Faults that somebody made: shards, configs, pickles and zip files meant to crash, fill memory, or run code."""

from __future__ import annotations

import zipfile

import torch

from ckpttool.core.domain.shard import FormatName
from tests.faults.scenes import Site, scene
from tests.support.hostile_files import CORPUS


@scene(30)
def header_of_100_mb(site: Site) -> None:
    CORPUS["longest-header-declared.safetensors"](site.shard(1))


@scene(30)
def terabyte_of_zeros(site: Site) -> None:
    CORPUS["terabyte-of-zeros.ckpt"](site.shard(1))


@scene(30)
def deep_header(site: Site) -> None:
    CORPUS["deep.safetensors"](site.shard(1))


@scene(30)
def giant_numbers(site: Site) -> None:
    CORPUS["giant-numbers.safetensors"](site.shard(1))


BASE = "base.yaml"


def _config(site: Site, begin: str) -> None:
    path = site.folder / BASE
    path.write_text(begin + path.read_text())


@scene(31, where=BASE)
def alias_bomb(site: Site) -> None:
    lines = ["a0: &a0 [1, 1]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]
    _config(site, "\n".join(lines) + "\n")


@scene(31)
def deep_yaml(site: Site) -> None:
    _config(site, "deep: " + "[" * 10_000 + "]" * 10_000 + "\n")


@scene(31)
def tag(site: Site) -> None:
    _config(site, "x: !!python/object/apply:os.system ['true']\n")


@scene(31)
def yaml_key_twice(site: Site) -> None:
    _config(site, "seed: 1\nseed: 2\n")


def spelled_as_before(site: Site) -> None:
    """Lines that a launch does not set are copied byte for byte."""
    assert "\nseed: 1_2\n" in (site.folder / "new.yaml").read_text()


@scene(31, after=spelled_as_before)
def odd_spelling(site: Site) -> None:
    path = site.folder / BASE
    path.write_text(path.read_text().replace("seed: 0", "seed: 1_2"))


def no_code_was_run(site: Site) -> None:
    """The pickles would touch a file."""
    assert list(site.folder.rglob("*.ran*")) == []


@scene(32, after=no_code_was_run)
def pickle(site: Site) -> None:
    CORPUS["pickle.ckpt"](site.shard(1))


@scene(32, after=no_code_was_run)
def pickle_in_a_zip(site: Site) -> None:
    CORPUS["pickle-in-a-zip.pt"](site.shard(1))


@scene(32)
def pickle_of_tensors(site: Site) -> None:
    """Not made to hurt, and no shard either."""
    torch.save({"a": torch.zeros(3)}, site.shard(1), _use_new_zipfile_serialization=False)


def _zip(site: Site, *names: str, data: bytes = bytes(range(256)), method: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(site.output / "model.pt", "w", method) as archive:
        for name in names:
            archive.writestr(name, data if name != "model/data.pkl" else b"\x80\x02}.")


def a_zip(site: Site) -> None:
    """A file of torch's layout beside the tree."""
    _zip(site, "model/data.pkl", "model/data/0", "model/data/1", "model/version")


@scene(32, where="model.pt", prepare=a_zip, after=no_code_was_run)
def pickle_in_a_model(site: Site) -> None:
    CORPUS["pickle-in-a-zip.pt"](site.output / "model.pt")


@scene(32, where="model.pt", prepare=a_zip)
def class_of_somebodys_own(site: Site) -> None:
    """Which Megatron's and DeepSpeed's files have, and nobody can judge: whole, and said."""
    torch.save({"a": torch.zeros(3), "kind": FormatName.TORCH_ZIP}, site.output / "model.pt")


@scene(33, where="model.pt", prepare=a_zip)
def bomb(site: Site) -> None:
    _zip(site, "model/data/0", data=bytes(64 << 20), method=zipfile.ZIP_DEFLATED)


@scene(33, where="model.pt", prepare=a_zip)
def name_twice(site: Site) -> None:
    path = site.output / "model.pt"
    path.write_bytes(path.read_bytes().replace(b"model/data/1", b"model/data/0"))


@scene(33, where="model.pt", prepare=a_zip)
def headers_disagree(site: Site) -> None:
    path = site.output / "model.pt"
    data = path.read_bytes()
    at = data.index(b"model/data/0")
    path.write_bytes(data[:at] + b"model/data/9" + data[at + 12 :])


@scene(33, where="model.pt", prepare=a_zip)
def appended(site: Site) -> None:
    with (site.output / "model.pt").open("ab") as file:
        file.write(b"more")


@scene(33, where="model.pt", prepare=a_zip)
def flag_of_encryption(site: Site) -> None:
    path = site.output / "model.pt"
    data = bytearray(path.read_bytes())
    for magic, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(magic) + place] |= 1
    path.write_bytes(data)
