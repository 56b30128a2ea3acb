"""Only whole names count: what a file in a rank's folder is, told from its name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.shard import FormatName
from ckpttool.trainers.mindformers.layouts.names import (
    RANK_MARK,
    FileKind,
    FileName,
    file_name,
    parse_shape,
    rank_of_folder,
    shape_of,
)
from ckpttool.trainers.mindformers.scalars import EpochStep


def parsed(name: str, rank: int = 0) -> FileName:
    return parse_shape(shape_of(name, f"_rank_{rank}"))


class TestCheckpoints:
    @pytest.mark.parametrize(
        ("name", "prefix", "run", "label", "fmt"),
        [
            ("llama_rank_0-20_2.ckpt", "llama", 0, "20_2", FormatName.MINDSPORE_CKPT),
            ("llama_rank_0_1-25_2.safetensors", "llama", 1, "25_2", FormatName.SAFETENSORS),
            ("llama-7b_rank_0-1_1.ckpt", "llama-7b", 0, "1_1", FormatName.MINDSPORE_CKPT),
            ("llama3.1_8b_rank_0_12-3_2.ckpt", "llama3.1_8b", 12, "3_2", FormatName.MINDSPORE_CKPT),
            ("my_rank_7_model_rank_0-3_2.ckpt", "my_rank_7_model", 0, "3_2", FormatName.MINDSPORE_CKPT),
            ("my_rank_0_model_rank_0-3_2.ckpt", "my_rank_0_model", 0, "3_2", FormatName.MINDSPORE_CKPT),
            ("a-1_2_rank_0-3_4.ckpt", "a-1_2", 0, "3_4", FormatName.MINDSPORE_CKPT),
            ("模型_rank_0-3_4.ckpt", "模型", 0, "3_4", FormatName.MINDSPORE_CKPT),
            ("a\nb_rank_0-3_4.ckpt", "a\nb", 0, "3_4", FormatName.MINDSPORE_CKPT),
            (f"x_rank_0-{10**17}_1.ckpt", "x", 0, f"{10**17}_1", FormatName.MINDSPORE_CKPT),
        ],
    )
    def test_the_parts_of_a_name(self, name: str, prefix: str, run: int, label: str, fmt: FormatName) -> None:
        found = parsed(name)
        assert (found.kind, found.prefix.replace(RANK_MARK, "0")) == (FileKind.CHECKPOINT, prefix)
        assert (found.run, str(found.position), found.format) == (run, label, fmt)

    @pytest.mark.parametrize(
        "name",
        [
            "old-llama_rank_0-20_2.ckpt.bak",
            "llama_rank_0-20_2.ckpt~",
            "llama_rank_0-20_2.ckpt\n",
            "llama_rank_0-20_2.CKPT",
            "llama_rank_0-20_2",
            "llama_rank_0-20_2.pt",
            "_rank_0-20_2.ckpt",  # no prefix: MindFormers always writes one
            "llama_rank_0-20.ckpt",
            "llama_rank_0--20_2.ckpt",
            "llama_rank_0-20_-2.ckpt",
            "llama_rank_0-٢٠_2.ckpt",
            "llama_rank_0-2²_2.ckpt",
            "llama_rank_0_x-20_2.ckpt",
            "llama_rank_0_-20_2.ckpt",
            "llama_rank_0-best.ckpt",
            f"x_rank_0-{'9' * 19}_1.ckpt",
            f"x_rank_0_{'9' * 10}-1_1.ckpt",
            "health_ckpts.json",
            "",
        ],
    )
    def test_anything_more_or_less_is_a_stray(self, name: str) -> None:
        assert parsed(name).kind is FileKind.STRAY

    @given(st.text(alphabet="9", min_size=20, max_size=100_000))
    def test_a_huge_number_costs_nothing_and_means_nothing(self, digits: str) -> None:
        assert parsed(f"x_rank_0-{digits}_1.ckpt").kind is FileKind.STRAY

    @given(
        prefix=st.text(min_size=1, max_size=12).filter(lambda text: "/" not in text and RANK_MARK not in text),
        rank=st.integers(0, 9999),
        run=st.integers(0, 99),
        label=st.builds(EpochStep, epoch=st.integers(0, 10**9), step=st.integers(0, 10**9)),
        suffix=st.sampled_from(["ckpt", "safetensors"]),
    )
    def test_what_is_written_is_read_back(
        self, prefix: str, rank: int, run: int, label: EpochStep, suffix: str
    ) -> None:
        found = parsed(file_name(prefix, rank, run, label, suffix), rank)
        assert found.kind is FileKind.CHECKPOINT
        assert (found.prefix.replace(RANK_MARK, str(rank)), found.run, found.position) == (prefix, run, label)


class TestOtherKinds:
    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("meta.json", FileKind.META),
            ("llama_rank_0-network.ckpt", FileKind.NETWORK),
            ("llama_rank_0_1-network.ckpt", FileKind.NETWORK),
            ("llama_rank_0-network-15_2.safetensors", FileKind.NETWORK),
            ("llama_rank_0-trainable_params.ckpt", FileKind.TRAINABLE),
            ("llama_rank_0_2-trainable_params-15_2.safetensors", FileKind.TRAINABLE),
            ("llama_rank_0-15_2_breakpoint.ckpt", FileKind.BREAKPOINT),
            ("llama_rank_0-15_2.tmp", FileKind.IN_PROGRESS),
            ("tmpa1b2c3d_", FileKind.IN_PROGRESS),
            (".tmpBVubU7", FileKind.IN_PROGRESS),
            ("llama_rank_0-graph.meta", FileKind.GRAPH),
            ("llama_rank_1-15_2.ckpt", FileKind.OTHER_RANK),
            ("llama_rank_01-15_2.ckpt", FileKind.OTHER_RANK),
            ("meta.json.bak", FileKind.STRAY),
            ("meta.json\n", FileKind.STRAY),
            ("tmpa1b2c3d", FileKind.STRAY),
            (".tmpBVub", FileKind.STRAY),
            ("tmpa1b2c3d_e", FileKind.STRAY),
            ("llama_rank_0-networks-15_2.ckpt", FileKind.STRAY),
            ("llama_rank_1-network-15_2.ckpt", FileKind.STRAY),
        ],
    )
    def test_each_is_told_from_a_checkpoint(self, name: str, kind: FileKind) -> None:
        assert parsed(name).kind is kind


class TestShapes:
    @pytest.mark.parametrize("prefix", ["llama", "my_rank_7_model", "my_rank_7"])
    def test_one_save_has_one_shape_on_all_ranks(self, prefix: str) -> None:
        label = EpochStep(epoch=20, step=2)
        shapes = {shape_of(file_name(prefix, rank, 1, label, "ckpt"), f"_rank_{rank}") for rank in range(20)}
        assert shapes == {f"{prefix}_rank_{RANK_MARK}_1-20_2.ckpt"}


@pytest.mark.parametrize(
    ("name", "rank"), [("rank_0", 0), ("rank_7", 7), ("rank_8191", 8191), ("rank_1048575", 1048575)]
)
def test_a_rank_folder_is_matched_whole(name: str, rank: int) -> None:
    assert rank_of_folder(name) == rank


LIKE_A_RANK = "rank_0_bak old-rank_3 rank_007 rank_00 rank_ rank_-1 rank_+1 rank_1_0 rank_٣ rank_² rank_1000000000"


@pytest.mark.parametrize(
    "name", [*LIKE_A_RANK.split(), "rank_1048576", "Rank_1", "rank_table.json", "rank_ 1", "rank_1\n", ""]
)
def test_what_only_looks_like_one_is_none(name: str) -> None:
    assert rank_of_folder(name) is None
