"""Whose tree a folder is: what lies in it tells, the config's trainer or the user; never who comes first."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.settings import RunConfig, SafeFix, Settings
from ckpttool.core.errors import ConfigError, ExitCode, IncompleteError, UnknownLayoutError, UsageError
from ckpttool.core.formats.config_text import ConfigFile
from ckpttool.core.verbs import configs
from ckpttool.trainers import registry
from ckpttool.trainers.base import Part, Refusal
from ckpttool.trainers.below import trees_below
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.locate import locate
from tests.support.answers import cli
from tests.support.trainer_trees import healthy, layout_of_tree, truths
from tests.support.trees import TreeBuilder
from tests.trainers import toy
from tests.trainers.test_locate import deny

BOTH = "toy-dcp and twin-file side by side"


class TwinLayout(toy.ToyLayout):
    """Names its saves as the toy does, and puts something else into them."""

    name = "twin-file"

    def recognise(self, listing: Listing) -> bool:
        return any("model.twin" in names for _, names in listing.inside("step-[0-9]{1,18}"))


class FilesLayout(toy.ToyLayout):
    """Keeps each save in a file of the root."""

    name = "toy-files"

    def recognise(self, listing: Listing) -> bool:
        return any(entry.name.endswith(".toyfile") for entry in listing.entries)

    def part(self, listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
        del listing
        if folder or file is None or not file.endswith(".toyfile"):
            return None
        return Part(focus=file, resolved_from=f"checkpoint {file}")


FILES = replace(
    toy.TOY, name="files", layout_names=(FilesLayout.name,), layouts_at=("tests.trainers.test_whose_tree:FILES_SIGNS",)
)
FILES_SIGNS = FilesLayout().signs


class AnyLayout(toy.ToyLayout):
    """Takes every folder with a record for a save, whatever it is called: also those that others have in theirs."""

    name = "toy-any"
    gives_way = True

    def recognise(self, listing: Listing) -> bool:
        return any("toy.json" in names for _, names in listing.inside())

    def part(self, listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
        del file
        save = folder.partition("/")[0]
        held = dict(listing.alone(save).inside()).get(save, frozenset())
        return Part(focus=save, resolved_from=f"checkpoint {save}") if "toy.json" in held else None


ANY = replace(
    toy.TOY, name="any", layout_names=(AnyLayout.name,), layouts_at=("tests.trainers.test_whose_tree:ANY_SIGNS",)
)
ANY_SIGNS = AnyLayout().signs


class TwinConfigs:
    """Takes what says that it is a twin's, in a spelling that is no YAML."""

    def may_be_own(self, content: bytes) -> bool:
        return b"twin" in content

    def read(self, file: ConfigFile, *, devices: int | None = None) -> RunConfig | None:  # noqa: ARG002
        return config_of("twin", file.content.decode()) if b"twin = 1" in file.content else None

    def saves_in(self, config: RunConfig) -> str | None:
        return config.text or None

    def lint(self, config: RunConfig) -> tuple[Finding, ...]:
        return config.findings

    def fixes(self, config: RunConfig) -> tuple[SafeFix, ...]:
        del config
        return ()


TWIN = replace(
    toy.TOY,
    name="twin",
    title="Twin",
    layout_names=(TwinLayout.name,),
    layouts_at=("tests.trainers.test_whose_tree:TWIN_SIGNS",),
    configs_at="tests.trainers.test_whose_tree:TwinConfigs",
)
"""A trainer that can be told in a config to save as the toy does."""
TWIN_SIGNS = TwinLayout().signs


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TRAINERS", (toy.TOY, TWIN, FILES, ANY, *registry.TRAINERS))


def twin(root: Path, step: int) -> None:
    (root / f"step-{step}").mkdir(parents=True)
    (root / f"step-{step}" / "model.twin").write_text("x")


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    root = tmp_path / "mixed"
    toy.save(root, 20)
    twin(root, 30)
    return root


def config_of(trainer: str, text: str = "") -> RunConfig:
    nothing = dict.fromkeys(("world_size", "global_batch_size", "sink_size", "prefix"))
    settings = Settings(path="run.yaml", entries=())
    return RunConfig(trainer=trainer, path="run.yaml", text=text, settings=settings, findings=(), **nothing)


class TestByWhatLiesInIt:
    @pytest.mark.parametrize(
        ("path", "layout"),
        [
            ("step-20", "toy-dcp"),
            ("step-20/toy.json", "toy-dcp"),
            ("step-30", "twin-file"),
            ("step-30/model.twin", "twin-file"),
        ],
    )
    def test_a_path_inside_belongs_to_whoever_wrote_what_lies_there(self, mixed: Path, path: str, layout: str) -> None:
        found = locate(str(mixed / path))
        assert (found.layout.name, found.focus) == (layout, path.partition("/")[0])

    @pytest.mark.parametrize("name", ["twin-file", "toy-dcp"])
    def test_the_layout_that_is_asked_for_is_taken(self, mixed: Path, name: str) -> None:
        assert locate(str(mixed), layout=name).layout.name == name

    def test_a_path_inside_is_no_part_of_a_layout_that_did_not_write_it(self, mixed: Path) -> None:
        with pytest.raises(UnknownLayoutError, match=r"step-20/toy.json is not part of a tree of mindformers-rank$"):
            locate(str(mixed / "step-20" / "toy.json"), layout="mindformers-rank")

    def test_a_file_in_the_root_may_be_a_save_of_its_own(self, tmp_path: Path) -> None:
        for name in ("step-1.toyfile", "step-2.toyfile", "notes.pt"):
            (tmp_path / name).write_text("x")
        found = locate(str(tmp_path / "step-1.toyfile"))
        assert (found.layout.name, found.focus) == ("toy-files", "step-1.toyfile")
        assert found.resolved_from == f"checkpoint step-1.toyfile of {tmp_path}"
        assert locate(str(tmp_path / "notes.pt")).layout.name == "loose-file"


def record(folder: Path) -> Path:
    """Write what makes a folder a save of the layout that gives way."""
    folder.mkdir(parents=True)
    (folder / "toy.json").write_text("{}")
    return folder


class TestInsideASave:
    @pytest.mark.parametrize(
        "path", ["", "model", "model/toy.json", "model/deep", "model/deep/er/shard", "model/deep/er"]
    )
    def test_what_looks_like_a_tree_in_a_save_is_a_part_of_that_save(self, tmp_path: Path, path: str) -> None:
        twin(tmp_path, 20)
        twin(tmp_path, 30)
        deep = record(tmp_path / "step-20/model") / "deep/er"
        deep.mkdir(parents=True)
        (deep / "shard").write_text("x")
        found = locate(str(tmp_path / "step-20" / path))
        assert (found.layout.name, found.storage.root, found.focus) == ("twin-file", str(tmp_path), "step-20")

    def test_who_stands_there_stands_in_the_tree(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        twin(tmp_path, 20)
        monkeypatch.chdir(record(tmp_path / "step-20/model"))
        for path in (None, "."):
            found = locate(path)
            assert (found.layout.name, found.storage.root) == ("twin-file", str(tmp_path))
            assert found.focus == (None if path is None else "step-20")

    def test_a_save_of_any_name_is_itself_in_the_tree_around_it(self, tmp_path: Path) -> None:
        record(tmp_path / "tree/best")
        record(tmp_path / "tree/last")
        (tmp_path / "tree/notes").mkdir()
        found = locate(str(tmp_path / "tree/best"))
        assert (found.layout.name, found.storage.root, found.focus) == ("toy-any", str(tmp_path / "tree"), "best")
        with pytest.raises(UnknownLayoutError, match="notes has no checkpoints"):
            locate(str(tmp_path / "tree/notes"))

    def test_one_with_several_saves_of_its_own_is_named_beside_the_other(self, tmp_path: Path) -> None:
        twin(tmp_path, 20)
        record(tmp_path / "best")
        record(tmp_path / "last")
        with pytest.raises(UsageError, match="has twin-file and toy-any side by side: choose one with --lay"):
            locate(str(tmp_path))
        assert locate(str(tmp_path), layout="toy-any").layout.name == "toy-any"
        assert locate(str(tmp_path), layout="twin-file").layout.name == "twin-file"

    def test_a_closed_folder_above_keeps_nothing_back(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        twin(tmp_path / "step-1", 20)
        deny(monkeypatch, str(tmp_path), errno.EACCES)
        found = locate(str(tmp_path / "step-1"))
        assert (found.layout.name, found.storage.root) == ("twin-file", str(tmp_path / "step-1"))

    def test_no_save_is_searched_for_trees(self, tmp_path: Path) -> None:
        twin(tmp_path / "a", 20)
        record(tmp_path / "a/step-20/model")
        record(tmp_path / "b/best/model")
        (tmp_path / "b/best/toy.json").write_text("{}")
        record(tmp_path / "b/notes/old")
        found = [below.path for below in trees_below(str(tmp_path))]
        assert found == [str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "b/notes")]
        assert list(trees_below(str(tmp_path / "a/step-20"))) == []
        assert [below.path for below in trees_below(str(tmp_path / "a"))] == [str(tmp_path / "a")]


class TestKnownPlaces:
    @pytest.fixture(autouse=True)
    def _places(self, monkeypatch: pytest.MonkeyPatch) -> None:
        _, *others = registry.TRAINERS
        own = replace(toy.TOY, places=("saves", "logs/version_*/saves"))
        monkeypatch.setattr(registry, "TRAINERS", (own, *others))

    def test_of_several_numbers_none_is_taken(self, tmp_path: Path) -> None:
        for version in range(12):
            toy.save(tmp_path / f"logs/version_{version}/saves", 20)
        with pytest.raises(UsageError, match=r"/version_0/saves \(toy-dcp\), .* and 7 more; give one of them$"):
            locate(str(tmp_path))

    def test_of_two_trainers_none_is_taken_unless_somebody_says_which(self, tmp_path: Path) -> None:
        toy.save(tmp_path / "saves", 20)
        TreeBuilder(tmp_path).legacy().save(epoch=10, step=2)
        with pytest.raises(UsageError, match=r"saves \(toy-dcp\) and .*output/checkpoint \(mindformers-rank\);"):
            locate(str(tmp_path))
        assert locate(str(tmp_path), layout="toy-dcp").layout.name == "toy-dcp"
        assert locate(str(tmp_path), config=config_of("mindformers")).layout.name == "mindformers-rank"

    def test_a_closed_place_is_named_beside_the_tree(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        toy.save(tmp_path / "saves", 20)
        other = tmp_path / "checkpoint"
        other.mkdir()
        deny(monkeypatch, str(other), errno.EACCES)
        found = locate(str(tmp_path))
        assert found.resolved_from == f"{tmp_path}/saves; {other} cannot be read"
        deny(monkeypatch, str(tmp_path / "saves"), errno.EACCES)
        with pytest.raises(IncompleteError, match="Permission denied"):
            locate(str(tmp_path))


class TestBesideWhatNobodyMayList:
    """`lost+found` of a disk: whether a folder of any name is a save is not known then."""

    @pytest.fixture(autouse=True)
    def _lost(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "lost+found").mkdir()
        deny(monkeypatch, str(tmp_path / "lost+found"), errno.EACCES)

    def test_the_trees_below_are_searched_and_it_is_named(self, tmp_path: Path) -> None:
        twin(tmp_path / "a", 20)
        found = [(below.path, below.is_known) for below in trees_below(str(tmp_path))]
        assert found == [(str(tmp_path / "a"), True), (str(tmp_path / "lost+found"), False)]


class TestWhereItIsNotKnown:
    def test_a_closed_save_leaves_the_layout_open(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        toy.save(tmp_path, 20)
        deny(monkeypatch, str(tmp_path / "step-20"), errno.EACCES)
        with pytest.raises(IncompleteError, match="Permission denied"):
            locate(str(tmp_path))

    @pytest.mark.parametrize("path", [".", "step-20", "step-20/model.twin"])
    def test_what_two_layouts_know_is_said_with_what_decides(self, tmp_path: Path, path: str) -> None:
        toy.save(tmp_path, 20)
        (tmp_path / "step-20" / "model.twin").write_text("x")
        with pytest.raises(UsageError, match=rf"{BOTH}: choose one with --layout$"):
            locate(str(tmp_path / path))
        said = cli("scan", str(tmp_path / path))
        assert (said.exit_code, said.stderr.count("\n")) == (ExitCode.USAGE, 1)


class TestByTheConfig:
    @pytest.mark.parametrize("layout", ["toy-dcp", "twin-file"])
    def test_the_trainer_whose_config_it_is_answers_and_not_the_first(self, mixed: Path, layout: str) -> None:
        assert locate(str(mixed), config=config_of("twin", layout)).layout.name == layout

    def test_where_its_config_does_not_tell_its_only_layout_in_the_folder_is_meant(self, mixed: Path) -> None:
        assert locate(str(mixed), config=config_of("twin")).layout.name == "twin-file"
        assert locate(str(mixed), config=config_of("toy")).layout.name == "toy-dcp"

    def test_where_it_has_none_there_both_are_named(self, mixed: Path) -> None:
        why = f"{BOTH}, and run.yaml, a config for MindFormers, matches none of them: choose one with --layout"
        config = mixed.parent / "run.yaml"
        config.write_text("use_parallel: True\n")
        with pytest.raises(UsageError, match=re.escape(why.replace("run.yaml", str(config)))):
            locate(str(mixed), config=ckpttool.library.read_config(str(config)))

    def test_a_tree_beside_another_trainers_is_its_own_configs(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy().save(epoch=10, step=2)
        toy.save(tree.checkpoint, 20)
        config = tmp_path / "run.yaml"
        config.write_text("use_legacy_format: False\n")  # its next saves lie otherwise: still the only ones of its own
        assert (
            locate(str(tree.checkpoint), config=ckpttool.library.read_config(str(config))).layout.name
            == "mindformers-rank"
        )


FOREIGN = {
    "a workflow": "name: ci\non: [push]\njobs: {test: {runs-on: ubuntu-latest, steps: [{run: make}]}}\n",
    "a manifest": "apiVersion: batch/v1\nkind: Job\nmetadata: {name: train}\nspec: {parallelism: 8}\n",
    "Hydra's": "trainer: {_target_: lightning.Trainer, max_epochs: 3, callbacks: []}\nmodel: {_target_: M}\ndata: {}\n",
    "axolotl's": "base_model: NousResearch/Llama-2-7b\noutput_dir: ./out\ndatasets: []\nmicro_batch_size: 2\n",
    "NeMo's": "name: gpt\ntrainer: {devices: 8}\nexp_manager: {resume_if_exists: true}\nmodel: {micro_batch_size: 4}\n",
    "a research script's": "load_checkpoint: model_400.pt\nresume: true\nscheduler: OneCycleLR\n",
    "a test bench's": "runner: docker\nrunner_config: {image: alpine, persistent: true}\nrun_mode: service\n",
    "a renderer's": "model: LTX\nparallel_config: {cfg_size: 2, ulysses_size: 4}\ncontext: {}\n",
}
OWN = [
    "use_parallel: True\n",
    "base_config: ./pretrain.yaml\nseed: 1\n",
    "load_checkpoint: ./weights\nrun_mode: finetune\nmodel: {}\n",
    "runner_config: {epochs: 2}\n",
    "parallel_config: {data_parallel: 2}\n",
    "context: {mode: 0, device_target: Ascend}\ntrainer: {type: CausalLanguageModelingTrainer}\n",
    "monitor_config: {monitor_on: True}\n",
    "data_skip_steps: 40\n",
    "callbacks: []\nmodel: {}\nrunner_wrapper: {type: MFTrainOneStepCell}\n",
]


class TestWhoseConfig:
    @pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
    def test_the_yaml_of_others_is_no_config_that_ckpttool_knows(self, tmp_path: Path, text: str) -> None:
        config = tmp_path / "other.yaml"
        config.write_text(text)
        tree = TreeBuilder(tmp_path).legacy().save(epoch=10, step=2)
        for command in (["lint-config"], ["resolve", str(tree.checkpoint), "--config"]):
            said = cli(*command, str(config))
            assert said.exit_code == ExitCode.USAGE
            assert "is not a training config that ckpttool recognizes" in " ".join(said.output.split())

    @pytest.mark.parametrize("text", OWN)
    def test_one_word_of_its_own_makes_it_a_trainers_however_short_it_is(self, text: str) -> None:
        assert configs.parse_config(text.encode(), path="short.yaml").trainer == "mindformers"

    def test_what_one_reader_cannot_parse_another_may_know(self) -> None:
        assert configs.parse_config(b"[twin]\ntwin = 1\n", path="run.toml").trainer == "twin"
        with pytest.raises(ConfigError, match=r"run\.toml"):
            configs.parse_config(b"[twin]\ntwin = 2\n", path="run.toml")

    def test_what_two_trainers_take_is_read_for_neither(self) -> None:
        with pytest.raises(UsageError, match=r"^both\.yaml could be a config for Twin or for MindFormers"):
            configs.parse_config(b"use_parallel: True  # twin = 1\n", path="both.yaml")


OF_MINDFORMERS = (
    "data_skip_steps",
    "resume_training",
    "load_ckpt_format",
    "sink",
    "msrun",
    "rank folder",
    "lint-config",
)
"""Words of MindFormers alone."""


@pytest.mark.sample(7)
@pytest.mark.parametrize("tree", [tree for tree in sorted(truths()) if layout_of_tree(tree) in registry.LAYOUT_NAMES])
@pytest.mark.parametrize("command", ["scan", "resolve", "launch", "preflight", "verify"])
def test_no_other_trainer_is_spoken_of_in_an_answer_about_a_tree(command: str, tree: str, tmp_path: Path) -> None:
    own = next(trainer for trainer in registry.trainers() if layout_of_tree(tree) in trainer.layout_names)
    others = {trainer.title for trainer in registry.trainers()} - {own.title, "torch.distributed.checkpoint"}
    for asked in ([command], [command, "--world-size", "64"]):
        said = cli(asked[0], str(healthy(tree, tmp_path / asked[-1])), *asked[1:]).output
        assert [word for word in (*others, *OF_MINDFORMERS) if word in said.replace(str(tmp_path), "")] == []
