"""Proves that a start which would load something else than the plan names is found, and its neighbours are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpttool.core.domain.checkpoint import Rename
from ckpttool.core.domain.finding import Finding, Severity
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.units import Rank
from ckpttool.trainers.common import LOOSE_FILE_LAYOUT
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.layouts.names import ITERATION_LAYOUT, RANK_LAYOUT, UNIFIED_LAYOUT
from ckpttool.trainers.mindformers.load import LoadKeys
from ckpttool.trainers.mindformers.loaded_instead import Start, loaded_instead
from ckpttool.trainers.mindformers.train_config import TrainConfig
from tests.support.inventories import checkpoint, tree
from tests.support.inventories import finding as finding_of
from tests.support.plans import LEGACY_LOAD, NEWER_LOAD, resume_plan
from tests.trainers.mindformers.test_launch_check import FITS, FITS_NEWER

SAFETENSORS_LOAD = replace(
    LEGACY_LOAD, load_ckpt_format="safetensors", resume_training="llama2_7b_rank_0-15_2.safetensors"
)
UNIFIED_LOAD = replace(SAFETENSORS_LOAD, resume_training=True)
HERE = "/data/output/checkpoint"
PLAN = resume_plan()
START = Start(plan=PLAN, inventory=tree(PLAN.point.checkpoint), load_path=HERE, config=FITS, logged_epoch=1000)


def start(load: LoadKeys = LEGACY_LOAD, *, layout: str = RANK_LAYOUT) -> Start:
    """The start of a plan that loads so."""
    return replace(START, plan=resume_plan(load=load), inventory=tree(PLAN.point.checkpoint, layout=layout))


def only(found: Start) -> Finding:
    (finding,) = loaded_instead(found)
    assert finding.code.check == "launch"
    assert finding.severity is Severity.SUSPECT
    assert finding.remedy
    return finding


@pytest.mark.parametrize("config", [FITS, FITS_NEWER, replace(FITS, use_parallel=True), None])
@pytest.mark.parametrize("load", [LEGACY_LOAD, SAFETENSORS_LOAD, NEWER_LOAD, UNIFIED_LOAD])
def test_a_start_that_loads_what_the_plan_names_is_left_alone(load: LoadKeys, config: TrainConfig | None) -> None:
    assert loaded_instead(replace(start(load), config=config)) == ()


class TestBesideTheRanks:
    def beside(self, *strays: str, **changes: object) -> Start:
        return replace(START, inventory=replace(START.inventory, strays=strays), **changes)  # type: ignore[arg-type]

    def test_what_ends_in_ckpt_beside_the_ranks_folders_is_loaded_instead(self) -> None:
        finding = only(self.beside("best.ckpt", "notes.txt"))
        assert (finding.code, finding.path) == (MindFormersCode.CKPT_BESIDE_RANKS, "best.ckpt")
        assert only(self.beside("best.ckpt", config=None)).code is MindFormersCode.CKPT_BESIDE_RANKS
        assert "best.ckpt and 2 more" in only(self.beside("best.ckpt", "c.ckpt", ".hidden.ckpt")).message

    @pytest.mark.parametrize("name", ["best.safetensors", "best.ckpt.bak", "rank_0/best.ckpt", "ckpt", "BEST.CKPT"])
    def test_other_strays_are_left_alone(self, name: str) -> None:
        assert loaded_instead(self.beside(name)) == ()

    def test_safetensors_and_other_layouts_are_left_alone(self) -> None:
        strays = ("best.ckpt",)
        for load, layout in (
            (SAFETENSORS_LOAD, RANK_LAYOUT),
            (NEWER_LOAD, ITERATION_LAYOUT),
            (UNIFIED_LOAD, UNIFIED_LAYOUT),
            (LEGACY_LOAD, LOOSE_FILE_LAYOUT),
        ):
            found = start(load, layout=layout)
            assert MindFormersCode.CKPT_BESIDE_RANKS not in {
                one.code for one in loaded_instead(replace(found, inventory=replace(found.inventory, strays=strays)))
            }


class TestRankInPrefix:
    def of_prefix(self, prefix: str, *, ranks: int = 4, renames: tuple[Rename, ...] = ()) -> Start:
        chosen = replace(checkpoint("15_2", prefix=prefix, ranks=range(ranks)), renames=renames)
        load = replace(LEGACY_LOAD, resume_training=chosen.shards[0].path.partition("/")[2])
        plan = resume_plan(load=load)
        return replace(START, plan=replace(plan, point=replace(plan.point, checkpoint=chosen)), inventory=tree(chosen))

    @pytest.mark.parametrize(
        ("prefix", "rank", "wanted"),
        [
            ("my_rank_7_model", 0, "my_rank_0_model_rank_0-15_2.ckpt"),
            ("my_rank_0_model", 1, "my_rank_1_model_rank_1-15_2.ckpt"),
            ("my_rank_07_model", 1, "my_rank_07_model_rank_0-15_2.ckpt"),  # it replaces _rank_7, which is not there
        ],
    )
    def test_mindformers_looks_for_another_name(self, prefix: str, rank: int, wanted: str) -> None:
        finding = only(self.of_prefix(prefix))
        there = f"rank_{rank}/{prefix}_rank_{rank}-15_2.ckpt"
        assert (finding.code, finding.path) == (MindFormersCode.PREFIX_HOLDS_RANK, there)
        assert f"on rank {rank} it looks for {wanted}, but" in finding.message

    @pytest.mark.parametrize("prefix", ["my_rank_model", "rank_7", "my_rank_", "llama-7b", "a_ranks_7"])
    def test_a_prefix_without_a_rank_is_left_alone(self, prefix: str) -> None:
        assert loaded_instead(self.of_prefix(prefix)) == ()

    def test_the_names_count_that_files_will_have(self) -> None:
        renames = tuple(
            Rename(
                source=f"rank_{rank}/a_rank_7_rank_{rank}-15_2.ckpt",
                target=f"rank_{rank}/a_rank_{rank}-15_2.ckpt",
                why="they differ",
            )
            for rank in range(4)
        )
        assert loaded_instead(self.of_prefix("a_rank_7", renames=renames)) == ()


class TestNoOptimizer:
    def newer(self, *roles: ShardRole, config: TrainConfig | None) -> Start:
        found = replace(start(NEWER_LOAD, layout=ITERATION_LAYOUT), config=config)
        shards = tuple(replace(found.plan.point.checkpoint.shards[0], role=role) for role in roles)
        chosen = replace(found.plan.point.checkpoint, shards=shards)
        return replace(found, plan=replace(found.plan, point=replace(found.plan.point, checkpoint=chosen)))

    @pytest.mark.parametrize("config", [FITS_NEWER, None])
    def test_an_iteration_without_one_is_found(self, config: TrainConfig | None) -> None:
        finding = only(self.newer(ShardRole.MODEL, config=config))
        assert (finding.code, finding.path) == (MindFormersCode.OPTIMIZER_MISSING, "15_2")

    @pytest.mark.parametrize("switch", ["no_save_optim", "no_load_optim"])
    def test_where_the_config_means_it_it_is_a_note(self, switch: str) -> None:
        config = replace(FITS_NEWER, **{switch: True})  # type: ignore[arg-type]  # one of two switches
        (finding,) = loaded_instead(self.newer(ShardRole.MODEL, config=config))
        assert (finding.code, finding.severity) == (MindFormersCode.OPTIMIZER_MISSING, Severity.NOTE)

    def test_an_iteration_with_one_is_left_alone(self) -> None:
        assert loaded_instead(self.newer(ShardRole.MODEL, ShardRole.OPTIMIZER, config=FITS_NEWER)) == ()


class TestPatterns:
    @pytest.mark.parametrize("load", [SAFETENSORS_LOAD, NEWER_LOAD, UNIFIED_LOAD])
    @pytest.mark.parametrize(
        ("path", "signs"),
        [("/data/run[1]/checkpoint", "`[`"), ("/data/run?/checkpoint", "`?`"), ("/[a*/checkpoint", "`*` and `[`")],
    )
    def test_a_sign_of_a_pattern_in_a_path_is_found(self, load: LoadKeys, path: str, signs: str) -> None:
        finding = only(replace(start(load), load_path=path))
        assert finding.code is MindFormersCode.PATH_IS_PATTERN
        assert finding.message.startswith(f"{signs} in the path {path} makes")

    @pytest.mark.parametrize("path", ["/data/run]/checkpoint", "/data/{run},!~ 模型 $x/checkpoint", HERE])
    def test_other_odd_signs_are_left_alone(self, path: str) -> None:
        assert loaded_instead(replace(start(SAFETENSORS_LOAD), load_path=path)) == ()

    def test_a_sign_in_the_file_name_is_found_too(self) -> None:
        name = "run[1]_rank_0-15_2.safetensors"
        finding = only(start(replace(SAFETENSORS_LOAD, resume_training=name)))
        assert (finding.code, name in finding.message) == (MindFormersCode.PATH_IS_PATTERN, True)
        assert "rename the files" in str(finding.remedy)


class TestOneDevice:
    ALONE = replace(FITS, world_size=1, use_parallel=False)

    def test_safetensors_in_rank_folders_are_found(self) -> None:
        finding = only(replace(start(SAFETENSORS_LOAD), config=self.ALONE))
        assert (finding.code, finding.path) == (MindFormersCode.RANK_FOLDER_ON_ONE_DEVICE, "base.yaml")

    def test_a_switch_that_another_file_may_set_is_not_held_against_the_config(self) -> None:
        assert loaded_instead(replace(start(SAFETENSORS_LOAD), config=replace(FITS, use_parallel=None))) == ()


class TestFaultTolerance:
    LISTED = replace(FITS, remove_redundancy=False)

    @pytest.mark.parametrize("flags", ["{TTP:1}", "TTP:0,UCE:1", "{ARF:1,TRE:1}", "{HCCE:1}"])
    @pytest.mark.parametrize("load", [LEGACY_LOAD, SAFETENSORS_LOAD, UNIFIED_LOAD])
    def test_a_switch_that_makes_mindformers_choose_by_time_is_found(self, load: LoadKeys, flags: str) -> None:
        finding = only(replace(start(load), config=self.LISTED, fault_tolerance=flags))
        assert (finding.code, finding.path) == (MindFormersCode.FAULT_TOLERANCE_PICKS, "base.yaml")
        assert (f"resume_training: {load.resume_training}" in finding.message) is (load is not UNIFIED_LOAD)

    @pytest.mark.parametrize("flags", ["", "{TTP:0,UCE:0}", "{TRE:1,TSP:1}"])
    def test_other_switches_are_left_alone(self, flags: str) -> None:
        assert loaded_instead(replace(start(), config=self.LISTED, fault_tolerance=flags)) == ()

    def test_where_it_does_not_count_it_is_left_alone(self) -> None:
        switched = replace(start(), fault_tolerance="{TTP:1}")
        assert loaded_instead(replace(switched, config=replace(FITS, remove_redundancy=True))) == ()
        assert loaded_instead(replace(switched, config=replace(FITS, remove_redundancy=None))) == ()
        assert loaded_instead(replace(switched, config=None)) == ()
        newer = replace(start(NEWER_LOAD, layout=ITERATION_LAYOUT), fault_tolerance="{TTP:1}")
        assert loaded_instead(replace(newer, config=replace(FITS_NEWER, remove_redundancy=False))) == ()


class TestRedundancy:
    PARALLEL = replace(FITS, data_parallel=True)
    REMOVES = replace(PARALLEL, remove_redundancy=True)

    def test_shards_with_a_part_of_the_tensors_each_are_found_by_their_own_word(self) -> None:
        finding = only(replace(start(SAFETENSORS_LOAD), config=self.PARALLEL, deduplicated=True))
        assert (finding.code, finding.path) == (MindFormersCode.REDUNDANCY_NOT_LOADABLE, None)

    @pytest.mark.parametrize(("load", "said"), [(SAFETENSORS_LOAD, None), (LEGACY_LOAD, None), (LEGACY_LOAD, False)])
    def test_else_by_the_configs(self, load: LoadKeys, said: bool | None) -> None:
        finding = only(replace(start(load), config=self.REMOVES, deduplicated=said))
        assert (finding.code, finding.path) == (MindFormersCode.REDUNDANCY_NOT_LOADABLE, "base.yaml")

    def test_what_can_be_loaded_is_left_alone(self) -> None:
        parts = replace(start(SAFETENSORS_LOAD), deduplicated=True)
        whole = replace(start(SAFETENSORS_LOAD), deduplicated=False)
        for config in (FITS, replace(self.REMOVES, auto_trans_ckpt=True), replace(FITS, remove_redundancy=True), None):
            assert loaded_instead(replace(parts, config=config)) == ()
        for config in (self.PARALLEL, self.REMOVES):
            assert loaded_instead(replace(whole, config=config)) == ()
        newer = replace(start(NEWER_LOAD, layout=ITERATION_LAYOUT), deduplicated=True)
        assert loaded_instead(replace(newer, config=self.REMOVES)) == ()


class TestReslicing:
    RESLICES = replace(FITS, auto_trans_ckpt=True)

    def of(self, *labels: str, strays: tuple[str, ...] = (), by_time: bool = False) -> Start:
        """A start from the first of these, re-sliced."""
        saves = [checkpoint(label) for label in labels]
        plan = replace(PLAN, point=replace(PLAN.point, checkpoint=saves[0]))
        found = replace(tree(*saves), strays=strays)
        return replace(START, plan=plan, inventory=found, config=replace(self.RESLICES, reslices_by_time=by_time))

    def test_a_name_that_sorts_behind_the_chosen_one_would_be_taken(self) -> None:
        finding = only(self.of("15_2", "5_2"))
        assert (finding.code, finding.path) == (MindFormersCode.RESLICING_PICKS, "rank_0/llama_rank_0-15_2.ckpt")
        assert "in rank_0/ it loads llama_rank_0-5_2.ckpt, not llama_rank_0-15_2.ckpt" in finding.message
        assert only(self.of("15_2", strays=("rank_0/my.ckpt",))).code is MindFormersCode.RESLICING_PICKS

    def test_a_breakpoint_file_counts_like_any_other(self) -> None:
        start = self.of("15_2")
        path = "rank_3/llama_rank_3-20_2_breakpoint.ckpt"
        beside = finding_of(MindFormersCode.BREAKPOINT_FILE, Severity.NOTE, path)
        assert only(replace(start, inventory=replace(start.inventory, findings=(beside,)))).path == (
            "rank_3/llama_rank_3-15_2.ckpt"
        )

    def test_a_chosen_one_that_sorts_last_or_is_alone_is_left_alone(self) -> None:
        assert loaded_instead(self.of("15_2", "10_2")) == ()
        assert loaded_instead(self.of("15_2", by_time=True)) == ()
        assert loaded_instead(self.of("15_2", strays=("rank_0/z.txt", "z.log"))) == ()

    @pytest.mark.parametrize("name", ["rank_0_bak", "rank_list.txt", "rank_", "rank_²"])
    def test_what_begins_like_a_ranks_folder_and_ends_in_no_number_ends_it(self, name: str) -> None:
        finding = only(self.of("15_2", strays=(name, "old")))
        assert (finding.code, finding.path) == (MindFormersCode.RESLICING_STOPS, name)
        assert "ValueError" in finding.message

    def test_so_does_a_number_that_is_not_the_next(self) -> None:
        found = self.of("15_2")
        gap = replace(found.inventory, folder_ranks=(*found.inventory.folder_ranks, Rank(7)))
        for start in (self.of("15_2", strays=("rank_old_2",)), replace(found, inventory=gap)):
            finding = only(start)
            assert finding.code is MindFormersCode.RESLICING_STOPS
            assert "FileNotFoundError" in finding.message

    def test_without_reslicing_and_for_safetensors_the_named_one_is_loaded(self) -> None:
        start = self.of("15_2", "5_2")
        assert loaded_instead(replace(start, config=FITS)) == ()
        assert loaded_instead(replace(start, config=None)) == ()
        plan = replace(start.plan, load=SAFETENSORS_LOAD.settings())
        assert loaded_instead(replace(start, plan=plan)) == ()
