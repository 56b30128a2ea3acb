"""Do the pieces that the source describes make up the weights that MindFormers and MindSpore saved?

The saves of `fixtures/mindformers_divided` come from the writers of MindFormers with layouts that are drawn at random;
`truth.safetensors` has their whole weights, which MindFormers' own loader also read from them.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.domain.weights import NotExportableError
from tests.support.assembled_weights import assembled, tensors_in, weights_of
from tests.support.trees import FIXTURES

DIVIDED = FIXTURES / "mindformers_divided"
CASES = ("grid", "copies", "three_axes", "nested")
TWO_RANKS = FIXTURES / "pynative/two_ranks_sharded/checkpoint"
Document = dict[str, Any]


def copied(tree: Path, folder: Path) -> Path:
    return Path(shutil.copytree(tree, folder / "tree"))


def edit(tree: Path, change: Callable[[Document], object]) -> None:
    """Change the metadata.json of the only save."""
    (file,) = tree.glob("iteration_*/metadata.json")
    document = json.loads(file.read_text(encoding="utf-8"))
    change(document)
    file.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


def refusal(tree: Path, name: str | None = None, *, replicated: bool = False) -> tuple[str, str]:
    with pytest.raises(NotExportableError) as caught:
        weights_of(tree, name, replicated=replicated)
    return caught.value.finding.code.value, caught.value.finding.message


@pytest.mark.parametrize("case", CASES)
def test_the_parts_of_all_ranks_make_up_the_whole_weights(case: str) -> None:
    weights = weights_of(DIVIDED / case)
    truth = tensors_in(DIVIDED / case / "truth.safetensors")
    assert assembled(DIVIDED / case, weights) == truth
    assert not any(name in truth for left_out in weights.left_out for name in left_out.names)


@pytest.mark.parametrize("tree", ["two_ranks_sharded", "two_ranks_copies", "two_ranks_redundancy_removed"])
def test_two_ranks_of_the_pynative_trainer_have_the_weights_that_one_rank_has(tree: str) -> None:
    root = FIXTURES / "pynative" / tree / "checkpoint"
    found = assembled(root, weights_of(root, "iteration_00000005"))
    assert sorted((name, dtype, shape) for name, (dtype, shape, _) in found.items()) == [
        ("model.embedding.weight", "F32", (8, 8)),
        ("model.norm.weight", "F32", (8,)),
        ("model.output.weight", "F32", (8, 8)),
    ]


def test_rows_of_two_ranks_are_in_the_order_of_the_ranks() -> None:
    files = [tensors_in(path) for path in sorted(TWO_RANKS.glob("iteration_00000010/*-model-*.safetensors"))]
    _, _, whole = assembled(TWO_RANKS, weights_of(TWO_RANKS))["model.embedding.weight"]
    assert whole == files[0]["model.embedding.weight"][2] + files[1]["model.embedding.weight"][2]


def test_one_rank_is_exported_from_its_file_without_a_metadata_json() -> None:
    root = FIXTURES / "newfmt_1rank/output/checkpoint"
    (file,) = (root / "iteration_00000030").glob("*-model-*.safetensors")
    assert assembled(root, weights_of(root)) == tensors_in(file)


def test_unified_files_have_the_weights_alone() -> None:
    root = FIXTURES / "unified/merged"
    assert assembled(root, weights_of(root)) == tensors_in(root / "part0.safetensors")


# A save of several ranks that contradicts itself ----------------------------------------------------------------------


def of_embedding(document: Document) -> Document:
    found: Document = document["state_dict_metadata"]["model.embedding.weight"]
    return found


def swap_files(document: Document) -> None:
    places = document["storage_data"]
    first, second = "('model.embedding.weight', (0,))", "('model.embedding.weight', (1,))"
    places[first][0]["file_name"], places[second][0]["file_name"] = (
        places[second][0]["file_name"],
        places[first][0]["file_name"],
    )


def swap_places(document: Document) -> None:
    places = document["storage_data"]
    first, second = "('model.embedding.weight', (0,))", "('model.embedding.weight', (1,))"
    places[first], places[second] = places[second], places[first]


CONTRADICTIONS: dict[str, tuple[Callable[[Document], object], str, str]] = {
    "the files of two parts swapped": (swap_files, "export-incomplete", "is assigned to rank 0 and to rank 1"),
    "the places of two parts swapped": (swap_places, "export-incomplete", "but its layout assigns 1"),
    "another number of parts": (
        lambda document: of_embedding(document).update(axis_fragmentations=[1, 2]),
        "export-incomplete", "but its layout into [2, 1]",
    ),
    "a wider tensor": (
        lambda document: of_embedding(document).update(global_shape=[16, 8]),
        "export-incomplete", "has a fragment of [4, 8] instead of [8, 8]",
    ),
    "another type": (
        lambda document: of_embedding(document)["properties"].update(dtype="Int32"),
        "export-incomplete", "as I32 [4, 8], but the file has F32 [4, 8]",
    ),
    "interleaved parts": (
        lambda document: of_embedding(document)["layout"].update(interleaved_parallel=True),
        "export-not-understood", "interleaved",
    ),
    "the same ranks for two axes": (
        lambda document: of_embedding(document)["layout"].update(tensor_map=[0, 0]),
        "export-not-understood", "divides two axes by the same ranks",
    ),
    "an unknown type": (
        lambda document: of_embedding(document)["properties"].update(dtype="Float7"),
        "export-not-understood", "has a type or a shape that MindSpore does not have",
    ),
    "a part twice": (
        lambda document: of_embedding(document)["chunk"].append(of_embedding(document)["chunk"][0]),
        "export-incomplete", "has a fragment twice",
    ),
    "a part that is in no file": (
        lambda document: document["storage_data"].pop("('model.embedding.weight', (1,))"),
        "export-incomplete", "No file of the save has the part at [4, 0]",
    ),
    "a file for a part that is not listed": (
        lambda document: of_embedding(document)["chunk"].pop(),
        "export-incomplete", "is not a fragment of a tensor",
    ),
    "a weight in a file of the optimizer": (
        lambda document: document["storage_data"]["('model.norm.weight', (0,))"][0].update(
            file_name="tiny-opt-0000000-0000002.safetensors"
        ),
        "export-incomplete", "is in files of the model and in other files",
    ),
    "a file outside the save": (
        lambda document: document["storage_data"]["('model.embedding.weight', (0,))"][0].update(
            file_name="../iteration_00000005/tiny-model-0000000-0000002.safetensors"
        ),
        "export-incomplete", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_record_that_contradicts_itself_or_the_files_is_refused(case: str, tmp_path: Path) -> None:
    change, code, text = CONTRADICTIONS[case]
    tree = copied(TWO_RANKS, tmp_path)
    shutil.rmtree(tree / "iteration_00000005")
    edit(tree, change)
    assert refusal(tree)[0] == code
    assert text in refusal(tree)[1]


def test_a_part_without_description_and_file_leaves_a_gap(tmp_path: Path) -> None:
    tree = copied(TWO_RANKS, tmp_path)
    shutil.rmtree(tree / "iteration_00000005")

    def drop(document: Document) -> None:
        of_embedding(document)["chunk"].pop()
        document["storage_data"].pop("('model.embedding.weight', (1,))")

    edit(tree, drop)
    weights = weights_of(tree)
    with pytest.raises(AssertionError, match="in no piece"):
        assembled(tree, weights)


def test_a_weight_without_description_is_named_in_a_note(tmp_path: Path) -> None:
    tree = copied(TWO_RANKS, tmp_path)
    shutil.rmtree(tree / "iteration_00000005")

    def drop(document: Document) -> None:
        document["state_dict_metadata"].pop("model.norm.weight")
        document["storage_data"].pop("('model.norm.weight', (0,))")

    edit(tree, drop)
    (finding,) = weights_of(tree).findings
    assert "model.norm.weight" in finding.message


def test_another_copy_is_used_if_the_first_file_is_missing(tmp_path: Path) -> None:
    tree = copied(DIVIDED / "copies", tmp_path)
    truth = tensors_in(tree / "truth.safetensors")
    first, *others = sorted(tree.glob("iteration_*/*-model-*"))
    names = {name for file in others for name in tensors_in(file)}
    edit(tree, lambda document: drop_without_copy(document, first.name, names))
    first.unlink()
    found = assembled(tree, weights_of(tree))
    assert found
    assert all(truth[name] == tensor for name, tensor in found.items())


def drop_without_copy(document: Document, file: str, names: set[str]) -> None:
    """Drop the tensors that have a part only in one file."""
    for key, places in list(document["storage_data"].items()):
        if [place["file_name"] for place in places] == [file]:
            name = next(name for name in document["state_dict_metadata"] if key.startswith(str((name,))[:-2]))
            document["state_dict_metadata"].pop(name)
            for other in [other for other in document["storage_data"] if other.startswith(str((name,))[:-2])]:
                document["storage_data"].pop(other)
    assert names


def test_without_its_only_file_a_weight_is_refused(tmp_path: Path) -> None:
    tree = copied(TWO_RANKS, tmp_path)
    next(tree.glob("iteration_00000010/*-model-0000001-*")).unlink()
    assert refusal(tree, "iteration_00000010")[0] == "export-incomplete"


def test_several_ranks_without_a_metadata_json_are_refused(tmp_path: Path) -> None:
    tree = copied(TWO_RANKS, tmp_path)
    (tree / "iteration_00000010/metadata.json").unlink()
    code, message = refusal(tree, "iteration_00000010")
    assert (code, "no metadata.json" in message) == ("export-incomplete", True)


def test_a_damaged_shard_is_refused_with_its_own_finding(tmp_path: Path) -> None:
    tree = copied(TWO_RANKS, tmp_path)
    shard = next(tree.glob("iteration_00000010/*-model-0000001-*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    assert refusal(tree, "iteration_00000010")[0] == "shard-truncated"


def leaves(node: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    pairs = list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
    if not pairs:
        yield path
    for key, value in pairs:
        yield from leaves(value, (*path, key))


def place_of(document: Document, path: tuple[str | int, ...]) -> Any:  # noqa: ANN401  whatever the document has there
    place: Any = document
    for key in path:
        place = place[key]
    return place


def mutated(document: Document, chance: random.Random) -> Document:
    """Return a record with one value replaced by another of its kind, two of them swapped, or a part removed."""
    document = copy.deepcopy(document)
    paths = [path for path in leaves(document) if path]
    path = chance.choice(paths)
    field = next(key for key in reversed(path) if isinstance(key, str))
    kin = [other for other in paths if next(key for key in reversed(other) if isinstance(key, str)) == field]
    other = chance.choice(kin)
    parent, other_parent = place_of(document, path[:-1]), place_of(document, other[:-1])
    match chance.randrange(4):
        case 0:
            parent[path[-1]] = other_parent[other[-1]]
        case 1:
            value = parent[path[-1]]
            parent[path[-1]], other_parent[other[-1]] = other_parent[other[-1]], value
        case 2:
            if type(parent[path[-1]]) is int:
                parent[path[-1]] = chance.choice([0, -1, 1, 2, parent[path[-1]] + 1, 10**9])
        case _:
            depth = chance.randint(1, len(path))
            del place_of(document, path[: depth - 1])[path[depth - 1]]
    return document


@pytest.mark.parametrize("case", CASES)
def test_no_change_of_the_record_gives_other_weights(case: str, tmp_path: Path) -> None:
    tree = copied(DIVIDED / case, tmp_path)
    truth = tensors_in(tree / "truth.safetensors")
    (file,) = tree.glob("iteration_*/metadata.json")
    document = json.loads(file.read_text(encoding="utf-8"))
    chance = random.Random(case)  # noqa: S311
    refused = 0
    for _ in range(60):
        file.write_text(json.dumps(mutated(document, chance), ensure_ascii=False), encoding="utf-8")
        try:
            weights = weights_of(tree)
            found = assembled(tree, weights)
        except (NotExportableError, AssertionError):
            refused += 1
            continue
        assert found == truth or weights.findings
        assert all(truth[name] == tensor for name, tensor in found.items())
    assert 15 < refused < 60


# One folder per rank --------------------------------------------------------------------------------------------------


def test_files_of_several_ranks_are_refused_with_a_remedy() -> None:
    with pytest.raises(NotExportableError) as caught:
        weights_of(FIXTURES / "sink2_ckpt/output/checkpoint")
    finding = caught.value.finding
    assert finding.code.value == "export-needs-strategy"
    assert "mindspore.unified_safetensors" in (finding.remedy or "")
    assert "--replicated" in (finding.remedy or "")


@pytest.mark.parametrize("tree", ["sink2_ckpt", "sink2_safetensors"])
def test_replicated_ranks_have_each_weight_once_per_rank(tree: str) -> None:
    root = FIXTURES / tree / "output/checkpoint"
    weights = weights_of(root, "20_2", replicated=True)
    names = [target.name for target in weights.targets]
    assert sorted(names) == ["dense.bias", "dense.weight", "model.tok_embeddings.embedding_weight"]
    assert {len(target.pieces) for target in weights.targets} == {4}
    assert "optimizer.adam_m.dense.bias" in weights.left_out[0].names
    assert {"epoch_num", "scale_sense", "global_step"} <= set(weights.left_out[0].names)
    network = FIXTURES / "sink2_safetensors/output/checkpoint_network/rank_0"
    assert assembled(root, weights).keys() == tensors_in(next(network.glob("*-20_2.safetensors"))).keys()


def test_the_weights_are_those_that_mindformers_saves_alone() -> None:
    root = FIXTURES / "sink2_safetensors/output"
    found = assembled(root / "checkpoint", weights_of(root / "checkpoint", "20_2", replicated=True))
    (alone,) = (root / "checkpoint_network/rank_0").glob("*-network-20_2.safetensors")
    assert found == tensors_in(alone)


def test_ranks_with_different_shapes_are_refused_although_the_user_calls_them_replicated(tmp_path: Path) -> None:
    tree = copied(FIXTURES / "sink2_safetensors/output/checkpoint", tmp_path)
    other = next((FIXTURES / "unified/ranks/rank_2").glob("*.safetensors"))
    shard = next((tree / "rank_2").glob("*_rank_2-20_2.safetensors"))
    shard.chmod(0o600)
    shutil.copyfile(other, shard)
    code, message = refusal(tree, "20_2", replicated=True)
    assert (code, "do not have the same tensors" in message) == ("export-needs-strategy", True)


def test_one_rank_is_exported_with_a_note_that_nothing_proves_the_number_of_ranks(tmp_path: Path) -> None:
    tree = tmp_path / "checkpoint"
    shutil.copytree(FIXTURES / "sink2_safetensors/output/checkpoint/rank_0", tree / "rank_0")
    weights = weights_of(tree, "20_2")
    assert [target.name for target in weights.targets]
    assert [finding.code.value for finding in weights.findings] == ["export-needs-strategy"]


def one_rank(folder: Path, file: str) -> Path:
    """Put a file into a tree of one rank, and return the tree."""
    tree = folder / "checkpoint"
    (tree / "rank_0").mkdir(parents=True)
    shutil.copyfile(FIXTURES / "crc" / file, tree / f"rank_0/net_rank_0-1_2.{file.rpartition('.')[2]}")
    return tree


def test_bf16_of_a_ckpt_is_copied_as_it_is(tmp_path: Path) -> None:
    tree = one_rank(tmp_path, "bf16.ckpt")
    weights = weights_of(tree)
    found = assembled(tree, weights)
    assert "BF16" in {dtype for dtype, _, _ in found.values()}
    assert all(len(data) > 0 for _, _, data in found.values())


def test_the_checksum_of_a_ckpt_covers_its_pieces(tmp_path: Path) -> None:
    tree = one_rank(tmp_path, "tensors.ckpt")
    records = {piece.record for target in weights_of(tree).targets for piece in target.pieces}
    (record,) = records
    assert record is not None
    data = (tree / record.path).read_bytes()
    assert (record.begin, record.length) == (0, len(data) - 17)
    assert record.crc32 == zlib.crc32(data[: record.length]) == int.from_bytes(data[-10:], "big")


def test_a_tensor_that_mindspore_split_into_records_is_joined(tmp_path: Path) -> None:
    tree = one_rank(tmp_path, "split.ckpt")
    weights = weights_of(tree)
    assert any(target.flat and len(target.pieces) > 1 for target in weights.targets)
    assembled(tree, weights)
