"""Exports of MindFormers' saves by the command: the weights of the truth, or nothing."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from tests.support.assembled_weights import Tensor, tensors_in, weights_of
from tests.support.commands import Said, ask
from tests.support.trees import FIXTURES
from tests.trainers.mindformers.test_weights import CASES, DIVIDED, mutated

SAVE = "iteration_00000010"
RANKS = FIXTURES / "sink2_safetensors/output/checkpoint"


def export(tree: Path, output: Path, *options: str, name: str = SAVE) -> Said:
    return ask("export", name, "--tree", str(tree), "--output", str(output), *options)


def written(output: Path) -> dict[str, Tensor]:
    return tensors_in(output / "model.safetensors")


def remains(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("exported"))


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.chmod(0o600)
    file.write_bytes(content)


@pytest.mark.parametrize("case", CASES)
def test_the_output_has_the_whole_weights(case: str, tmp_path: Path) -> None:
    said = export(DIVIDED / case, tmp_path / "exported", "--json")
    assert said.code == 0, said.output
    assert written(tmp_path / "exported") == tensors_in(DIVIDED / case / "truth.safetensors")
    output = said.json["output"]
    assert (output["loadable"], output["records_proven"], output["copies_equal"]) == (False, 0, 1)
    assert "MindFormers" in output["names_of"]


@pytest.mark.parametrize("case", CASES)
def test_no_change_of_the_record_is_exported_as_other_weights(case: str, tmp_path: Path) -> None:
    tree = Path(shutil.copytree(DIVIDED / case, tmp_path / "tree"))
    truth = tensors_in(tree / "truth.safetensors")
    file = tree / SAVE / "metadata.json"
    document = json.loads(file.read_text(encoding="utf-8"))
    chance = random.Random(case)  # noqa: S311
    refused = 0
    for number in range(12):
        file.write_text(json.dumps(mutated(document, chance), ensure_ascii=False), encoding="utf-8")
        output = tmp_path / f"exported_{number}"
        said = export(tree, output)
        if said.code:
            assert said.code in {10, 14, 15}, said.output
            assert not output.exists()
            refused += 1
        else:
            found = written(output)
            assert found == truth or "not in the output" in said.stdout
            assert found.items() <= truth.items()
    assert refused


def test_the_checksum_of_a_ckpt_is_compared(tmp_path: Path) -> None:
    tree = one_rank(tmp_path, "with_scalars.ckpt")
    said = export(tree, tmp_path / "exported", "--json", name="3_20")
    assert said.json["output"]["records_proven"] == 1, said.output
    shard = next((tree / "rank_0").glob("*.ckpt"))
    piece = weights_of(tree, "3_20").targets[0].pieces[0]
    flip(shard, piece.begin)
    said = export(tree, tmp_path / "exported_2", name="3_20")
    assert (said.code, "checksum-mismatch" in said.stdout) == (10, True)
    assert remains(tmp_path) == ["exported"]


def one_rank(folder: Path, file: str) -> Path:
    tree = folder / "checkpoint"
    (tree / "rank_0").mkdir(parents=True)
    shutil.copyfile(FIXTURES / "crc" / file, tree / "rank_0/net_rank_0-3_20.ckpt")
    return tree


def test_equal_copies_of_all_ranks_are_exported_once(tmp_path: Path) -> None:
    said = export(RANKS, tmp_path / "exported", "--replicated", "--json", name="20_2")
    assert (said.code, said.json["output"]["copies_equal"]) == (0, 4)
    (alone,) = (RANKS.parent / "checkpoint_network/rank_0").glob("*-network-20_2.safetensors")
    assert written(tmp_path / "exported") == tensors_in(alone)


def test_without_the_statement_of_the_user_copies_are_refused(tmp_path: Path) -> None:
    said = export(RANKS, tmp_path / "exported", name="20_2")
    assert (said.code, "export-needs-strategy" in said.stdout) == (14, True)
    assert "mindspore.unified_safetensors" in said.stdout
    assert remains(tmp_path) == []


@pytest.mark.parametrize("rank", range(4))
def test_one_differing_bit_of_a_copy_is_noticed(rank: int, tmp_path: Path) -> None:
    tree = Path(shutil.copytree(RANKS, tmp_path / "tree"))
    for target in weights_of(tree, "20_2", replicated=True).targets:
        piece = next(piece for piece in target.pieces if f"rank_{rank}/" in piece.path)
        flip(tree / piece.path, piece.begin)
        said = export(tree, tmp_path / "exported", "--replicated", name="20_2")
        assert (said.code, "is not the same in" in said.stdout) == (14, True), said.output
        assert remains(tmp_path) == []
        flip(tree / piece.path, piece.begin)


def test_a_changed_moment_of_the_optimizer_does_not_matter(tmp_path: Path) -> None:
    tree = Path(shutil.copytree(RANKS, tmp_path / "tree"))
    shard = next((tree / "rank_1").glob("*_rank_1-20_2.safetensors"))
    header = shard.read_bytes()
    begin = 8 + int.from_bytes(header[:8], "little")
    row = json.loads(header[8:begin])["optimizer.adam_m.dense.weight"]
    flip(shard, begin + row["data_offsets"][0])
    assert export(tree, tmp_path / "exported", "--replicated", name="20_2").code == 0


def test_bytes_that_nothing_in_the_save_checks_are_called_unchecked(tmp_path: Path) -> None:
    tree = Path(shutil.copytree(DIVIDED / "grid", tmp_path / "tree"))
    piece = weights_of(tree).targets[0].pieces[0]
    flip(tree / piece.path, piece.begin)
    said = export(tree, tmp_path / "exported")
    assert (said.code, "the source has no checksums of its own" in said.stdout) == (0, True)
    said = export(tree, tmp_path / "exported_2", "--level", "checksum")
    assert (said.code, "no checksum, seal or copy proves the source" in said.stdout) == (0, True)
    assert "verified" not in said.stdout


def test_a_seal_is_compared_at_the_level_of_checksums(tmp_path: Path) -> None:
    tree = Path(shutil.copytree(DIVIDED / "grid", tmp_path / "tree"))
    assert ask("seal", str(tree)).code == 0
    said = export(tree, tmp_path / "exported", "--level", "checksum", "--json")
    sources = said.json["output"]["sources"]
    assert (said.code, sources["level"]) == (0, "checksum")
    assert sources["files"] == sources["verified"] > 1
    piece = weights_of(tree).targets[0].pieces[0]
    shard, times = tree / piece.path, (tree / piece.path).stat()
    flip(shard, piece.begin)
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    said = export(tree, tmp_path / "exported_2", "--level", "checksum")
    assert (said.code, "checksum-mismatch" in said.stdout) == (10, True)
    assert remains(tmp_path) == ["exported"]


def test_copies_of_other_ranks_are_compared_at_the_level_of_checksums(tmp_path: Path) -> None:
    tree = Path(shutil.copytree(FIXTURES / "newfmt_4rank/output/checkpoint", tmp_path / "tree"))
    name = "iteration_00000030"
    said = export(tree, tmp_path / "exported", "--level", "checksum", "--json", name=name)
    assert said.json["output"]["sources"] == {"files": 1, "verified": 1, "level": "checksum"}
    piece = weights_of(tree).targets[0].pieces[0]
    flip(tree / piece.path, piece.begin)
    said = export(tree, tmp_path / "exported_2", "--level", "checksum", name=name)
    assert said.code == 10, said.output
    assert remains(tmp_path) == ["exported"]
