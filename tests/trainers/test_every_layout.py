"""What every layout must answer, whoever wrote it. A new one gets a row in `CASES`, and answers all of these.

Where a question does not apply, the row says why, and names the fact that makes it so: that is then what is tested.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Inventory
from ckpttool.core.domain.finding import Code, Severity, blocking
from ckpttool.core.domain.load_settings import LoadSettings
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.errors import UnknownLayoutError
from ckpttool.core.storage import open_storage
from ckpttool.trainers import parts, registry
from ckpttool.trainers.base import WHOLE_TREE, Layout, Members, Part, Refusal, ScanOptions, Trainer
from ckpttool.trainers.common import LOOSE_FILE_LAYOUT
from ckpttool.trainers.listing import list_root
from ckpttool.trainers.mindformers.layouts.names import ITERATION_LAYOUT, RANK_LAYOUT, UNIFIED_LAYOUT
from tests.support.answers import decide, named, names, scanned, verdict
from tests.support.faulty_storages import layout_of
from tests.support.trainer_trees import LAYOUTS, edit_json, lay_deepspeed_saves
from tests.support.trees import TreeBuilder, ckpt_bytes, floats, safetensors_bytes, training_scalars, weights
from tests.trainers import toy


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAsked:
    """Why a question is none for a layout."""

    why: str
    so: Callable[[Layout, Inventory], bool]
    """What is true of a healthy tree because of that."""


def _no_pointer(layout: Layout, inventory: Inventory) -> bool:
    return list(layout.pointers(open_storage(inventory.root), range(4))) == []  # type: ignore[arg-type]  # ranks


def _unrecorded(_: Layout, inventory: Inventory) -> bool:
    return all(one.commit is CommitState.UNRECORDED for one in inventory.checkpoints)


NO_POINTER = NotAsked(why="no record names the last save", so=_no_pointer)
UNRECORDED = NotAsked(why="no record of a save is written beside its files", so=_unrecorded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One layout: how to make a healthy tree of it, and how to spoil that."""

    layout: str
    build: Callable[[Path], Path]
    """Writes a tree below a folder; returns the path to give to ckpttool."""
    saves: tuple[str, ...]
    """Names of what it wrote, oldest first."""
    cut_off: Callable[[Path], object] | NotAsked = UNRECORDED
    """Takes away what says that the newest save was finished."""
    lose: Callable[[Path], str] | NotAsked
    """Takes away a file of the newest save; returns the path that must be named."""
    stray: Callable[[Path], str] | NotAsked
    """Adds a file that belongs to no save; returns the path that must be named."""
    tear: Callable[[Path], object] | NotAsked = NO_POINTER
    """Cuts the record in half that names the last save."""
    lie: Callable[[Path], int] | NotAsked
    """Lets the newest save's name tell another step than its content; returns the content's."""
    forget: Callable[[Path], object] | NotAsked
    """Takes away what tells the newest save's step, or which files it has."""


def _rank(base: Path) -> Path:
    return TreeBuilder(base).legacy().save(epoch=10, step=2).save(epoch=15, step=2).checkpoint


def _without_step(root: Path) -> None:
    tree = TreeBuilder(root.parent.parent).legacy()
    tree.save(epoch=15, step=2, scalars=[])


def _other_step(root: Path) -> int:
    tree = TreeBuilder(root.parent.parent).legacy()
    tree.save(epoch=15, step=2, true_step=45)
    return 45


def _remove(path: str) -> Callable[[Path], str]:
    def remove(root: Path) -> str:
        (root / path).unlink()
        return path

    return remove


def _write(path: str, text: str = "x") -> Callable[[Path], str]:
    def write(root: Path) -> str:
        (root / path).write_text(text)
        return path

    return write


def _iteration(base: Path) -> Path:
    return TreeBuilder(base).legacy().iteration(step=20).iteration(step=30).checkpoint


def _common_says_45(root: Path) -> int:
    edit_json(root / "iteration_00000030" / "common.json", step_num=45)
    return 45


def _unified(base: Path) -> Path:
    folder = base / "weights"
    folder.mkdir()
    scalars = safetensors_bytes(training_scalars(epoch=15, true_step=30), {"format": "ms"})
    (folder / "hyper_param.safetensors").write_bytes(scalars)
    for part in ("part0", "part1"):
        (folder / f"{part}.safetensors").write_bytes(safetensors_bytes([floats(part, [8])], {"format": "ms"}))
    parts = {part: f"{part}.safetensors" for part in ("part0", "part1")}
    (folder / "param_name_map.json").write_text(json.dumps({"metadata": {"total_size": 64}, "weight_map": parts}))
    return folder


def _loose(base: Path) -> Path:
    file = base / "step-30.ckpt"
    file.write_bytes(ckpt_bytes([*weights(), *training_scalars(epoch=15, true_step=45)]))
    return file


def _toy(base: Path) -> Path:
    toy.save(base / "saves", 20)
    toy.save(base / "saves", 30)
    return base / "saves"


def _toy_says_45(root: Path) -> int:
    edit_json(root / "step-30" / "toy.json", step=45)
    return 45


def _real(name: str) -> Callable[[Path], Path]:
    """Copy a tree that the real trainer wrote."""

    def build(base: Path) -> Path:
        shutil.copytree(LAYOUTS / name, base / "saves", copy_function=shutil.copyfile)
        return base / "saves"

    return build


def _older_in_its_place(newest: str, older: str, step: int) -> Callable[[Path], int]:
    def replace_it(root: Path) -> int:
        shutil.rmtree(root / newest)
        shutil.copytree(root / older, root / newest)
        return step

    return replace_it


def _cut(path: str) -> Callable[[Path], str]:
    def cut(root: Path) -> str:
        (root / path).write_bytes((root / path).read_bytes()[:100])
        return path

    return cut


def _lightning(base: Path) -> Path:
    saves = LAYOUTS / "light_single" / "checkpoints"
    (base / "checkpoints").mkdir()
    for name in ("epoch=0-step=8.ckpt", "epoch=1-step=12.ckpt"):
        shutil.copyfile(saves / name, base / "checkpoints" / name)
    return base / "checkpoints"


def _files(base: Path) -> Path:
    root = _real("files_loop")(base)
    (root / "llama-70b-init.pt").unlink()
    return root


def _holds_step_200(root: Path) -> int:
    shutil.copyfile(root / "ckpt_200.pt", root / "ckpt_300.pt")
    return 200


def _holds_step_6(root: Path) -> int:
    shutil.copyfile(LAYOUTS / "light_ddp2_accum/checkpoints/epoch=1-step=6.ckpt", root / "epoch=1-step=12.ckpt")
    return 6


def _lightning_folders(base: Path) -> Path:
    return _real("light_modelparallel2")(base) / "checkpoints"


def _composer(name: str) -> Callable[[Path], Path]:
    return lambda base: Path(shutil.copytree(LAYOUTS / name, base / "saves", symlinks=True))


def _composer_holds_step_8(root: Path) -> int:
    (root / "ep1-ba14-rank0.pt").unlink()
    shutil.copyfile(root / "ep0-ba8-rank0.pt", root / "ep1-ba14-rank0.pt")
    return 8


def _lightning_with_deepspeed(base: Path) -> Path:
    return lay_deepspeed_saves(base)


def _accelerate(base: Path) -> Path:
    root = _real("accel_ddp2")(base)
    shutil.rmtree(root / "checkpoints/checkpoint_0")
    return root


def _without_rank_states(root: Path) -> None:
    for file in (root / "checkpoints/checkpoint_2").glob("random_states_*.pkl"):
        file.unlink()


def _without_progress(root: Path) -> None:
    for name in ("checkpoint_1", "checkpoint_2"):
        (root / "checkpoints" / name / "custom_checkpoint_0.pkl").unlink()
    (root / "checkpoints/checkpoint_2/scheduler.bin").unlink()


def _holds_step_8(root: Path) -> int:
    saves = root / "checkpoints"
    shutil.rmtree(saves / "checkpoint_2")
    shutil.copytree(saves / "checkpoint_1", saves / "checkpoint_2")
    return 8


def _hf(base: Path) -> Path:
    root = _real("hf_single")(base)
    shutil.rmtree(root / "checkpoint-4")
    return root


def _hf_state_says_45(root: Path) -> int:
    state = root / "checkpoint-12" / "trainer_state.json"
    state.write_text(state.read_text().replace('"global_step": 12', '"global_step": 45'))
    return 45


def _knows_all(_: Layout, inventory: Inventory) -> bool:
    return all(one.step_source == "content" for one in inventory.checkpoints)


def _committed(_: Layout, inventory: Inventory) -> bool:
    return all(one.commit is CommitState.COMMITTED for one in inventory.checkpoints)


def _named_alone(_: Layout, inventory: Inventory) -> bool:
    return all(one.step_source == "name" for one in inventory.checkpoints)


def _without_files(root: Path) -> None:
    shutil.rmtree(root / "global_step_3" / "actor")
    (root / "global_step_3" / "actor").mkdir()


CASES = [
    Case(
        layout=RANK_LAYOUT,
        build=_rank,
        saves=("10_2", "15_2"),
        lose=_remove("rank_1/llama2_7b_rank_1-15_2.ckpt"),
        stray=_write("rank_0/notes.txt"),
        tear=_write("rank_0/meta.json", '{"last_epoch": 1'),
        lie=_other_step,
        forget=_without_step,
    ),
    Case(
        layout="accelerate",
        build=_accelerate,
        saves=("checkpoint_1", "checkpoint_2"),
        cut_off=_without_rank_states,
        lose=_remove("checkpoints/checkpoint_2/random_states_1.pkl"),
        stray=_write("checkpoints/notes.txt"),
        lie=_holds_step_8,
        forget=_without_progress,
    ),
    Case(
        layout="hf-trainer",
        build=_hf,
        saves=("checkpoint-8", "checkpoint-12"),
        cut_off=_remove("checkpoint-12/trainer_state.json"),
        lose=_remove("checkpoint-12/scheduler.pt"),
        stray=_write("checkpoint-12.bak"),
        lie=_hf_state_says_45,
        forget=_write("checkpoint-12/trainer_state.json", "{"),
    ),
    Case(
        layout=ITERATION_LAYOUT,
        build=_iteration,
        saves=("iteration_00000020", "iteration_00000030"),
        cut_off=_remove("iteration_00000030/metadata.json"),
        lose=_remove("iteration_00000030/llama2_7b-model-0000001-0000004.safetensors"),
        stray=_write("iteration_00000030/notes.txt"),
        tear=_write("latest_checkpointed_iteration.txt", "3x"),
        lie=_common_says_45,
        forget=_write("iteration_00000030/metadata.json", "{"),
    ),
    Case(
        layout=UNIFIED_LAYOUT,
        build=_unified,
        saves=("unified",),
        cut_off=_remove("param_name_map.json"),
        lose=_remove("part1.safetensors"),
        stray=NotAsked(why="whatever lies in the folder is loaded", so=lambda _, inventory: inventory.strays == ()),
        lie=NotAsked(why="its name tells no step", so=_knows_all),
        forget=_write("param_name_map.json", "{"),
    ),
    Case(
        layout=LOOSE_FILE_LAYOUT,
        build=_loose,
        saves=("step-30.ckpt",),
        lose=NotAsked(why="it is the only one", so=lambda _, inventory: len(inventory.checkpoints[0].shards) == 1),
        stray=NotAsked(why="its folder is anybody's", so=lambda _, inventory: inventory.strays == ()),
        lie=lambda _: 45,
        forget=NotAsked(why="of one file nothing is unknown but what it is a part of", so=_knows_all),
    ),
    Case(
        layout="deepspeed",
        build=_real("ds_zero1_2ranks"),
        saves=("global_step3", "global_step6"),
        lose=_remove("global_step6/zero_pp_rank_1_mp_rank_00_optim_states.pt"),
        stray=_write("global_step6/notes.txt"),
        tear=_write("latest", ""),
        lie=_older_in_its_place("global_step6", "global_step3", 3),
        forget=_cut("global_step6/mp_rank_00_model_states.pt"),
    ),
    Case(
        layout="lightning",
        build=_lightning,
        saves=("epoch=0-step=8.ckpt", "epoch=1-step=12.ckpt"),
        lose=NotAsked(why="a save is one file", so=lambda _, inventory: len(inventory.checkpoints[1].shards) == 1),
        stray=_write("notes.txt"),
        lie=_holds_step_6,
        forget=_write("epoch=1-step=12.ckpt", "PK\x03\x04"),
    ),
    Case(
        layout="lightning",
        build=_lightning_folders,
        saves=("epoch=0-step=3.ckpt", "epoch=0-step=6.ckpt"),
        cut_off=_remove("epoch=0-step=6.ckpt/meta.pt"),
        lose=_remove("epoch=0-step=6.ckpt/__1_0.distcp"),
        stray=_write("epoch=0-step=6.ckpt/notes.txt"),
        lie=_older_in_its_place("epoch=0-step=6.ckpt", "epoch=0-step=3.ckpt", 3),
        forget=_write("epoch=0-step=6.ckpt/.metadata", "{"),
    ),
    Case(
        layout="composer",
        build=_composer("composer_single"),
        saves=("ep0-ba8-rank0.pt", "ep1-ba12-rank0.pt", "ep1-ba14-rank0.pt"),
        lose=NotAsked(why="a save is one file", so=lambda _, inventory: len(inventory.checkpoints[1].shards) == 1),
        stray=_write("notes.txt"),
        lie=_composer_holds_step_8,
        forget=_write("ep1-ba14-rank0.pt", "PK\x03\x04"),
    ),
    Case(
        layout="composer",
        build=_composer("composer_fsdp"),
        saves=("ep0-ba6", "ep1-ba12"),
        cut_off=_remove("ep1-ba12/.metadata"),
        lose=_remove("ep1-ba12/__1_0.distcp"),
        stray=_write("notes.txt"),
        lie=_older_in_its_place("ep1-ba12", "ep0-ba6", 6),
        forget=_write("ep1-ba12/.metadata", "{"),
    ),
    Case(
        layout="lightning",
        build=_lightning_with_deepspeed,
        saves=("epoch=0-step=3.ckpt", "epoch=0-step=6.ckpt"),
        cut_off=_remove("epoch=0-step=6.ckpt/latest"),
        lose=_remove("epoch=0-step=6.ckpt/checkpoint/zero_pp_rank_1_mp_rank_00_optim_states.pt"),
        stray=_write("epoch=0-step=6.ckpt/notes.txt"),
        lie=_older_in_its_place("epoch=0-step=6.ckpt", "epoch=0-step=3.ckpt", 3),
        forget=_cut("epoch=0-step=6.ckpt/checkpoint/mp_rank_00_model_states.pt"),
    ),
    Case(
        layout="verl",
        build=_real("verl_2ranks"),
        saves=("global_step_1", "global_step_2", "global_step_3"),
        lose=_remove("global_step_3/actor/optim_world_size_2_rank_1.pt"),
        stray=_write("notes.txt"),
        tear=_write("latest_checkpointed_iteration.txt", "3x"),
        lie=NotAsked(why="nothing but its name tells its step", so=_named_alone),
        forget=_without_files,
    ),
    Case(
        layout="skyrl",
        build=_real("skyrl_2ranks"),
        saves=("global_step_10", "global_step_12"),
        cut_off=_remove("global_step_12/trainer_state.pt"),
        lose=_remove("global_step_12/policy/model_world_size_2_rank_1.pt"),
        stray=_write("notes.txt"),
        tear=_write("latest_ckpt_global_step.txt", ""),
        lie=_older_in_its_place("global_step_12", "global_step_10", 10),
        forget=_cut("global_step_12/trainer_state.pt"),
    ),
    Case(
        layout="megatron",
        build=_real("mcore_dist_tp2dp2"),
        saves=("iter_0000003", "iter_0000006"),
        cut_off=_remove("iter_0000006/metadata.json"),
        lose=_remove("iter_0000006/__3_1.distcp"),
        stray=_write("iter_0000006/notes.txt"),
        tear=_write("latest_checkpointed_iteration.txt", ""),
        lie=_older_in_its_place("iter_0000006", "iter_0000003", 3),
        forget=_write("iter_0000006/.metadata", ""),
    ),
    Case(
        layout="torchtitan",
        build=_real("titan_4ranks/checkpoint"),
        saves=("step-5", "step-10"),
        cut_off=_remove("step-10/.metadata"),
        lose=_remove("step-10/__2_0.distcp"),
        stray=_write("notes.txt"),
        lie=_older_in_its_place("step-10", "step-5", 5),
        forget=_cut("step-10/.metadata"),
    ),
    Case(
        layout="olmo-core",
        build=_real("olmo_2ranks"),
        saves=("step6", "step10", "step12"),
        cut_off=_remove("step12/.metadata.json"),
        lose=_remove("step12/train/rank1.pt"),
        stray=_write("notes.txt"),
        lie=_older_in_its_place("step12", "step6", 6),
        forget=_cut("step12/train/rank0.pt"),
    ),
    Case(
        layout="automodel",
        build=_real("automodel_2ranks"),
        saves=("epoch_0_step_4", "epoch_0_step_9", "epoch_1_step_11"),
        cut_off=_write("epoch_1_step_11/.incomplete"),
        lose=_remove("epoch_1_step_11/rng/rng_global_rank_1.pt"),
        stray=_write("notes.txt"),
        lie=_older_in_its_place("epoch_1_step_11", "epoch_0_step_4", 5),
        forget=_write("epoch_1_step_11/step_scheduler.pt"),
    ),
    Case(
        layout="torch-dcp",
        build=_real("dcp_fsdp2_4ranks"),
        saves=("step_000005", "step_000010", "step_000015"),
        cut_off=_remove("step_000015/.metadata"),
        lose=_remove("step_000015/__2_0.distcp"),
        stray=_write("notes.txt"),
        lie=_older_in_its_place("step_000015", "step_000005", 5),
        forget=_cut("step_000015/.metadata"),
    ),
    Case(
        layout="torch-files",
        build=_files,
        saves=("ckpt_100.pt", "ckpt_200.pt", "ckpt_300.pt"),
        lose=NotAsked(why="a save is one file", so=lambda _, inventory: len(inventory.checkpoints[1].shards) == 1),
        stray=_write("notes.txt"),
        lie=_holds_step_200,
        forget=_write("ckpt_300.pt", "PK\x03\x04"),
    ),
    Case(
        layout="orbax",
        build=_real("orbax_standard"),
        saves=("10", "20", "30"),
        cut_off=NotAsked(why="a folder is renamed when it is whole", so=_committed),
        lose=_remove("30/default/manifest.ocdbt"),
        stray=_write("notes.txt"),
        lie=NotAsked(why="nothing but its name tells its step", so=_named_alone),
        forget=_remove("30/_CHECKPOINT_METADATA"),
    ),
    Case(
        layout="toy-dcp",
        build=_toy,
        saves=("step-20", "step-30"),
        cut_off=_remove("step-30/toy.json"),
        lose=_remove("step-30/__1_0.toy"),
        stray=_write("notes.txt"),
        lie=_toy_says_45,
        forget=_write("step-30/toy.json", "{"),
    ),
]
EVERY = pytest.mark.parametrize("case", CASES, ids=lambda case: case.layout)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TRAINERS", (toy.TOY, *registry.TRAINERS))


@pytest.fixture
def tree(case: Case, tmp_path: Path) -> Path:
    """A healthy tree of the layout."""
    return case.build(tmp_path)


class Whole(NamedTuple):
    """A healthy tree, and what was read of it."""

    root: Path
    layout: Layout
    inventory: Inventory


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Whole]:
    """Return `whole(case)`, which is built and scanned once: nobody spoils it."""
    made: dict[int, Whole] = {}

    def of_case(case: Case) -> Whole:
        if id(case) not in made:
            root = case.build(tmp_path_factory.mktemp("whole"))
            made[id(case)] = Whole(root, layout_of(case.layout), scanned(root))
        return made[id(case)]

    return of_case


def asked(case: Case, question: Callable[[Path], object] | NotAsked, tree: Path) -> object:
    """Spoil the tree; or say why there is nothing to spoil, which is then all that is tested."""
    if isinstance(question, NotAsked):
        assert question.so(layout_of(case.layout), scanned(tree)), question.why
        return question
    return question(tree)


def newest(case: Case, tree: Path) -> Checkpoint:
    return named(scanned(tree), case.saves[-1])


def taken(tree: Path) -> str | None:
    """The save that `resolve` takes."""
    decision = decide(tree)
    return decision.point.checkpoint.name if isinstance(decision, ResumePlan) else None


def is_whole(tree: Path, name: str) -> bool:
    """Whether `verify` finds nothing against a save."""
    return not blocking(verdict(tree, name).findings)


def is_refused(case: Case) -> bool:
    """Whether nothing of this layout can be resumed from."""
    return case.layout == LOOSE_FILE_LAYOUT


def assert_passed_over(case: Case, tree: Path, name: str) -> None:
    """Nobody calls the newest save whole or takes it; the one before it is taken, where there is one."""
    assert not is_whole(tree, name)
    assert taken(tree) == (case.saves[-2] if len(case.saves) > 1 else None)


@EVERY
def test_a_healthy_tree_is_known_and_whole_and_its_newest_taken(case: Case, whole: Callable[[Case], Whole]) -> None:
    root, _, inventory = whole(case)
    assert (inventory.layout, tuple(names(inventory))) == (case.layout, case.saves)
    listing = list_root(open_storage(inventory.root))
    knows = [layout.name for layout in parts.recognised(listing)]
    assert knows == ([] if is_refused(case) else [case.layout])
    for name in case.saves:
        assert is_whole(root, name)
    if is_refused(case):
        with pytest.raises(UnknownLayoutError, match="its other ranks are unknown"):
            decide(root)
    else:
        assert taken(root) == case.saves[-1]


@EVERY
def test_a_save_that_was_not_finished_is_passed_over_and_says_so(case: Case, tree: Path) -> None:
    if isinstance(asked(case, case.cut_off, tree), NotAsked):
        return
    spoiled = newest(case, tree)
    why = {finding.code for finding in blocking(spoiled.findings)}
    assert why & {Code.UNCOMMITTED_SAVE, Code.METADATA_INCOMPLETE}
    assert_passed_over(case, tree, spoiled.name)


@EVERY
def test_a_missing_file_is_named_by_its_own_path(case: Case, tree: Path) -> None:
    path = asked(case, case.lose, tree)
    if isinstance(path, NotAsked):
        return
    missing = [finding.path for finding in newest(case, tree).findings if finding.code is Code.SHARD_MISSING]
    assert missing == [path]
    assert_passed_over(case, tree, case.saves[-1])


@EVERY
def test_a_stray_is_named_in_a_note_and_changes_nothing(case: Case, tree: Path) -> None:
    path = asked(case, case.stray, tree)
    if isinstance(path, NotAsked):
        return
    inventory = scanned(tree)
    findings = [*inventory.findings, *(each for one in inventory.checkpoints for each in one.findings)]
    strays = [(each.path, each.severity) for each in findings if each.code is Code.STRAY_FILE]
    assert strays == [(path, Severity.NOTE)]
    assert taken(tree) == case.saves[-1]


@EVERY
def test_a_torn_pointer_changes_no_choice(case: Case, tree: Path) -> None:
    if isinstance(asked(case, case.tear, tree), NotAsked):
        return
    assert taken(tree) == case.saves[-1]
    layout, inventory = layout_of(case.layout), scanned(tree)
    pointers = list(layout.pointers(open_storage(inventory.root), inventory.folder_ranks))
    assert [pointer.trouble for pointer in pointers if pointer.trouble is not None] != []


@EVERY
def test_where_name_and_content_tell_two_steps_the_content_is_believed_or_nothing(case: Case, tree: Path) -> None:
    step = asked(case, case.lie, tree)
    if isinstance(step, NotAsked):
        return
    one = newest(case, tree)
    if blocking(one.findings):
        assert Code.STEP_DISAGREES in {finding.code for finding in one.findings}
        assert_passed_over(case, tree, one.name)
    else:
        assert (one.step, one.step_source) == (step, "content")


@EVERY
def test_what_nothing_tells_stays_unknown_and_unknown_is_not_good(case: Case, tree: Path) -> None:
    if isinstance(asked(case, case.forget, tree), NotAsked):
        return
    one = newest(case, tree)
    assert one.step is None or blocking(one.findings)
    assert ("--sink-size" in str(one.step_remedy)) == (case.layout == RANK_LAYOUT)
    assert taken(tree) == (case.saves[-2] if len(case.saves) > 1 else None)


@EVERY
def test_a_path_inside_means_the_save_that_it_belongs_to(case: Case, whole: Callable[[Case], Whole]) -> None:
    _, layout, inventory = whole(case)
    listing = list_root(open_storage(inventory.root))
    for checkpoint in inventory.checkpoints:
        for shard in checkpoint.shards:
            folder, _, file = shard.path.rpartition("/")
            part = layout.signs.part(listing, folder, file)
            if folder:
                assert isinstance(part, Part)
                assert part.focus in {checkpoint.name, file}
                assert checkpoint.name in str(part.resolved_from)
            elif part not in {None, WHOLE_TREE}:  # a file in the root may be a save
                assert isinstance(part, Part)
                assert part.focus in {checkpoint.name, file}
    assert layout.signs.part(listing, "somewhere-else", None) is None
    assert layout.signs.part(listing, ".ckpttool", "journal.json") is None


@EVERY
def test_what_goes_with_a_save_is_its_own_and_there(case: Case, whole: Callable[[Case], Whole]) -> None:
    root, layout, inventory = whole(case)
    seen: set[str] = set()
    for checkpoint in inventory.checkpoints:
        members = layout.members(checkpoint)
        if isinstance(members, Refusal):
            assert members.why.startswith("is ")
            continue
        assert isinstance(members, Members)
        assert all((root / path).exists() for path in members.paths)
        assert seen.isdisjoint(members.paths)
        seen.update(members.paths)
        assert all(shard.path.startswith(members.paths) for shard in checkpoint.shards)


@EVERY
def test_each_save_has_a_place_of_its_own_for_a_seal_or_none(case: Case, whole: Callable[[Case], Whole]) -> None:
    _, layout, inventory = whole(case)
    places = [layout.seal_place(checkpoint) for checkpoint in inventory.checkpoints]
    paths = [place.path for place in places if not isinstance(place, Refusal)]
    assert len(set(paths)) == len(paths)
    assert all(".." not in path.split("/") and not path.startswith("/") for path in paths)
    assert all(place.why for place in places if isinstance(place, Refusal))


@EVERY
def test_a_save_is_loaded_by_its_own_path_or_not_at_all(case: Case, whole: Callable[[Case], Whole]) -> None:
    _, layout, inventory = whole(case)
    for checkpoint in inventory.checkpoints:
        load = layout.load(inventory, checkpoint)
        if isinstance(load, LoadSettings):
            assert load.path.startswith(inventory.root)
            by_path = any(setting.is_path and setting.value == load.path for setting in load.settings)
            by_number = any(setting.value == checkpoint.step != 0 for setting in load.settings)
            assert by_path or by_number
            assert load.at("/elsewhere").path == "/elsewhere"
        else:
            assert is_refused(case)


SEVERAL_SAVES = [signs.layout for signs in parts.layouts() if signs.name != UNIFIED_LAYOUT]
"""Of the others a prune may take all but one; a tree that is a single save loses it to nobody."""


@pytest.mark.parametrize("layout", SEVERAL_SAVES, ids=lambda layout: layout.name)
def test_a_tree_of_which_all_lies_in_the_trash_holds_no_checkpoint(layout: Layout, tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    assert layout.scan(storage, list_root(storage), ScanOptions(sizes=True)).checkpoints == ()


def test_every_layout_that_there_is_has_a_row() -> None:
    assert {case.layout for case in CASES} == {*registry.LAYOUT_NAMES, toy.ToyLayout.name}


QUESTIONS = ("cut_off", "lose", "stray", "tear", "lie", "forget")


def test_a_row_answers_every_question_and_says_why_where_it_is_none() -> None:
    rows: Iterable[object] = (getattr(case, name) for case in CASES for name in QUESTIONS)
    assert all(callable(row) or (isinstance(row, NotAsked) and row.why) for row in rows)


def test_the_layouts_that_an_option_takes_are_those_of_all_trainers_the_most_usual_first() -> None:
    of_trainers = [name for trainer in registry.trainers() for name in reversed(trainer.layout_names)]
    assert (*of_trainers, LOOSE_FILE_LAYOUT) == (*toy.TOY.layout_names, *registry.LAYOUT_NAMES)


@pytest.mark.parametrize("trainer", [*registry.trainers(), toy.TOY], ids=lambda trainer: trainer.name)
def test_a_trainer_names_its_layouts_as_they_name_themselves(trainer: Trainer) -> None:
    assert trainer.layout_names == tuple(layout.name for layout in trainer.layouts)
