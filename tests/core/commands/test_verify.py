"""What a user sees of `verify` and `seal`: golden answers, and single torch files, which no layout knows."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
import torch

from tests.conftest import Golden
from tests.support.commands import Said, ask
from tests.support.situations import SITUATIONS

FORMATS = {"table": "txt", "json": "json"}

# Exit code of `verify --checkpoint all` at its level.
VERIFIED: dict[tuple[str, str], int] = {
    ("whole", "structure"): 0,
    ("whole", "numerics"): 0,
    ("missing-shard", "structure"): 10,
    ("truncated", "checksum"): 10,
    ("all-damaged", "structure"): 10,
    ("newer-layout", "structure"): 0,
    ("async-save", "structure"): 0,
}


def steady(text: str) -> str:
    """Take out of an answer what no two runs share: how long it took, and when."""
    text = re.sub(r'"seconds": [\d.]+', '"seconds": 0.0', text)
    return re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "2026-11-20T03:00:00Z", text)


@pytest.mark.parametrize(("situation", "level"), VERIFIED)
@pytest.mark.parametrize("form", FORMATS)
def test_what_verify_says_is_the_golden_answer(
    situation: str, level: str, form: str, here: Path, golden: Golden
) -> None:
    SITUATIONS[situation](here)
    said = ask("verify", "output", "--level", level, "--checkpoint", "all", "--no-ledger", "--format", form)
    assert said.code == VERIFIED[situation, level]
    if form == "json":
        assert said.json["level"] == level
    golden(f"verify/{situation}-{level}.{FORMATS[form]}", steady(said.stdout))


# Exit code of `seal`, which takes the newest.
SEALED = {"whole": 0, "newer-layout": 0, "truncated": 10}


@pytest.mark.parametrize("situation", SEALED)
@pytest.mark.parametrize("form", FORMATS)
def test_what_seal_says_is_the_golden_answer(situation: str, form: str, here: Path, golden: Golden) -> None:
    SITUATIONS[situation](here)
    said = ask("seal", "output", "--format", form)
    assert said.code == SEALED[situation]
    if form == "json":
        assert said.json["checkpoints"]
    golden(f"seal/{situation}.{FORMATS[form]}", steady(said.stdout))


def verdicts(said: Said) -> list[str]:
    checkpoints = said.json["checkpoints"]
    return [checkpoint["verdict"] for checkpoint in checkpoints]


def saved_by_torch(path: Path) -> Path:
    torch.save({"model": {"weight": torch.arange(4096, dtype=torch.float32)}, "step": 7}, path)
    os.utime(path, (1_700_000_000, 1_700_000_000))  # what was written a moment ago may still be written to
    return path


@pytest.mark.sample(1)
@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin"])
def test_a_whole_torch_file_is_verified_by_the_checksums_inside(suffix: str, here: Path) -> None:
    file = saved_by_torch(here / f"model{suffix}")
    said = ask("verify", file.name, "--level", "checksum", "--no-ledger", "--format", "json")
    assert said.code == 0
    assert verdicts(said) == ["verified"]


def test_a_flipped_bit_in_a_torch_file_is_damage_at_checksum_and_unseen_at_structure(here: Path) -> None:
    file = saved_by_torch(here / "model.pt")
    data = bytearray(file.read_bytes())
    data[data.index(torch.arange(4096, dtype=torch.float32).numpy().tobytes()) + 5000] ^= 1
    file.write_bytes(data)
    assert ask("verify", "model.pt", "--no-ledger").code == 0
    said = ask("verify", "model.pt", "--level", "checksum", "--no-ledger", "--format", "json")
    assert said.code == 10
    assert verdicts(said) == ["damaged"]
    assert '"checksum-mismatch"' in said.stdout


def test_nan_in_a_torch_file_is_seen_and_is_no_damage_to_its_checksums(here: Path) -> None:
    torch.save({"weight": torch.full((8,), torch.nan)}, here / "model.pt")
    said = ask("verify", "model.pt", "--level", "numerics", "--no-ledger", "--format", "json")
    assert (said.code, verdicts(said)) == (10, ["suspect"])
    assert "'weight' has 8 NaN" in said.stdout
    assert ask("verify", "model.pt", "--level", "checksum", "--no-ledger").code == 0


def test_a_torch_file_is_sealed_and_a_later_change_of_it_is_found(here: Path) -> None:
    file = saved_by_torch(here / "model.pt")
    assert ask("seal", "model.pt", "-q").code == 0
    assert ask("verify", "model.pt", "--level", "checksum", "--no-ledger").code == 0
    other = here / "other.pt"
    torch.save({"model": {"weight": torch.zeros(4096)}, "step": 7}, other)
    shutil.copyfile(other, file)  # whole, with checksums of its own that agree
    assert ask("verify", "model.pt", "--level", "checksum", "--no-ledger").code == 10


def test_what_was_not_looked_at_is_counted(here: Path) -> None:
    SITUATIONS["whole"](here)
    assert "\n4 others not checked: --checkpoint all\n" in ask("verify", "output").stdout
    assert "others not checked" not in ask("verify", "output", "--checkpoint", "all").stdout
