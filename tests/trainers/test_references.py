"""A trainer's value names its parts as texts, which no type checker follows: so all that they lead to stand here.

mypy holds each against its protocol, and the tests hold that nothing is referred to that does not stand here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import pytest

from ckpttool.core.domain.asd import AsdDialect
from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey, Inventory
from ckpttool.core.domain.expectation import Evidence
from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.loader_state import SavedLoader
from ckpttool.core.domain.question import AskedSizes
from ckpttool.core.domain.scalars import OwnScalars
from ckpttool.core.domain.settings import RunConfig, StepIntervals
from ckpttool.core.logs.base import LogFormat, LogPlaces
from ckpttool.core.storage.base import Storage
from ckpttool.trainers import (
    accelerate,
    automodel,
    composer,
    deepspeed,
    hf_saves,
    huggingface,
    lightning,
    megatron,
    olmo_core,
    orbax,
    torch_dcp,
    torch_files,
    torchtitan,
    verl,
)
from ckpttool.trainers.abilities import ConfigReader, HealthFile, LaunchTarget, Phrasing, Simulator, WeightsSource
from ckpttool.trainers.accelerate import loaders as accelerate_loaders
from ckpttool.trainers.accelerate import own_choice as accelerate_choice
from ckpttool.trainers.accelerate import resumes as accelerate_resumes
from ckpttool.trainers.accelerate.layout import AccelerateLayout
from ckpttool.trainers.automodel import loaders as automodel_loaders
from ckpttool.trainers.automodel import resumes as automodel_resumes
from ckpttool.trainers.automodel import weights as automodel_weights
from ckpttool.trainers.automodel.layout import AutoModelLayout
from ckpttool.trainers.base import Effects, Layout, LayoutSigns, Resume, Trainer, referred
from ckpttool.trainers.common import loose_weights
from ckpttool.trainers.composer import config as composer_config
from ckpttool.trainers.composer import effects as composer_effects
from ckpttool.trainers.composer import loaders as composer_loaders
from ckpttool.trainers.composer import own_choice as composer_choice
from ckpttool.trainers.composer import weights as composer_weights
from ckpttool.trainers.composer.layout import ComposerLayout
from ckpttool.trainers.deepspeed import config as deepspeed_config
from ckpttool.trainers.deepspeed import loaders as deepspeed_loaders
from ckpttool.trainers.deepspeed import resumes as deepspeed_resumes
from ckpttool.trainers.deepspeed import weights as deepspeed_weights
from ckpttool.trainers.deepspeed.layout import DeepSpeedTags
from ckpttool.trainers.deepspeed_tags import tag as deepspeed_tag
from ckpttool.trainers.hf_saves import weights as hf_weights
from ckpttool.trainers.huggingface import config as huggingface_config
from ckpttool.trainers.huggingface import effects as huggingface_effects
from ckpttool.trainers.huggingface import intervals as huggingface_intervals
from ckpttool.trainers.huggingface import own_choice as huggingface_choice
from ckpttool.trainers.huggingface import places as huggingface_places
from ckpttool.trainers.huggingface.layout import HfTrainerLayout
from ckpttool.trainers.huggingface.log import HfPrinted, HfTrainer
from ckpttool.trainers.huggingface.places import HfLogs
from ckpttool.trainers.lightning import config as lightning_config
from ckpttool.trainers.lightning import deepspeed_saves as lightning_deepspeed
from ckpttool.trainers.lightning import effects as lightning_effects
from ckpttool.trainers.lightning import intervals as lightning_intervals
from ckpttool.trainers.lightning import loaders as lightning_loaders
from ckpttool.trainers.lightning import own_choice as lightning_choice
from ckpttool.trainers.lightning import places as lightning_places
from ckpttool.trainers.lightning import weights as lightning_weights
from ckpttool.trainers.lightning.layout import LightningLayout
from ckpttool.trainers.megatron import loaders as megatron_loaders
from ckpttool.trainers.megatron import resumes as megatron_resumes
from ckpttool.trainers.megatron import weights as megatron_weights
from ckpttool.trainers.megatron.layout import MegatronIterations
from ckpttool.trainers.megatron.load import MegatronWords
from ckpttool.trainers.megatron.log import Megatron
from ckpttool.trainers.mindformers import effects as mindformers_effects
from ckpttool.trainers.mindformers import intervals as mindformers_intervals
from ckpttool.trainers.mindformers import scalars, silent_errors, strategy
from ckpttool.trainers.mindformers import weights as mindformers_weights
from ckpttool.trainers.mindformers.config import TrainConfigs
from ckpttool.trainers.mindformers.health_file import MindFormersHealthFile
from ckpttool.trainers.mindformers.launch import MindFormersLaunch
from ckpttool.trainers.mindformers.layouts import names
from ckpttool.trainers.mindformers.layouts.iteration import MindFormersIteration
from ckpttool.trainers.mindformers.layouts.rank import MindFormersRank
from ckpttool.trainers.mindformers.layouts.unified import MindFormersUnified
from ckpttool.trainers.mindformers.logs.places import MindFormersLogs
from ckpttool.trainers.mindformers.logs.text import MindFormers
from ckpttool.trainers.mindformers.policies import MindFormersWords
from ckpttool.trainers.mindformers.pynative import retention as pynative_retention
from ckpttool.trainers.mindformers.pynative import words as pynative_words
from ckpttool.trainers.mindformers.pynative.log import PyNativeLog
from ckpttool.trainers.mindformers.simulator import MindFormersSimulator
from ckpttool.trainers.olmo_core import config as olmo_core_config
from ckpttool.trainers.olmo_core import loaders as olmo_loaders
from ckpttool.trainers.olmo_core import resumes as olmo_core_resumes
from ckpttool.trainers.olmo_core import weights as olmo_weights
from ckpttool.trainers.olmo_core.layout import OlmoCoreLayout
from ckpttool.trainers.orbax import resumes as orbax_resumes
from ckpttool.trainers.orbax.layout import OrbaxLayout
from ckpttool.trainers.registry import trainers
from ckpttool.trainers.torch_dcp import loaders as dcp_loaders
from ckpttool.trainers.torch_dcp import resumes as torch_dcp_resumes
from ckpttool.trainers.torch_dcp import weights as dcp_weights
from ckpttool.trainers.torch_dcp.layout import TorchDcpLayout
from ckpttool.trainers.torch_files import loaders as torch_files_loaders
from ckpttool.trainers.torch_files import resumes as torch_files_resumes
from ckpttool.trainers.torch_files.layout import TorchFilesLayout
from ckpttool.trainers.torchtitan import config as torchtitan_config
from ckpttool.trainers.torchtitan import effects as torchtitan_effects
from ckpttool.trainers.torchtitan import intervals as torchtitan_intervals
from ckpttool.trainers.torchtitan import own_choice as torchtitan_choice
from ckpttool.trainers.torchtitan import weights as torchtitan_weights
from ckpttool.trainers.torchtitan.layout import TorchtitanLayout
from ckpttool.trainers.torchtitan.log import TorchtitanLog
from ckpttool.trainers.verl import effects as verl_effects
from ckpttool.trainers.verl import loaders as verl_loaders
from ckpttool.trainers.verl import own_choice as verl_choice
from ckpttool.trainers.verl import skyrl
from ckpttool.trainers.verl import weights as verl_weights
from ckpttool.trainers.verl.layout import VerlLayout
from ckpttool.trainers.verl.skyrl import effects as skyrl_effects
from ckpttool.trainers.verl.skyrl import loaders as skyrl_loaders
from ckpttool.trainers.verl.skyrl import own_choice as skyrl_choice
from ckpttool.trainers.verl.skyrl.layout import SkyRlLayout

LAYOUTS: tuple[Callable[[], Layout], ...] = (
    AccelerateLayout,
    AutoModelLayout,
    ComposerLayout,
    DeepSpeedTags,
    HfTrainerLayout,
    LightningLayout,
    MegatronIterations,
    MindFormersIteration,
    MindFormersRank,
    MindFormersUnified,
    OlmoCoreLayout,
    OrbaxLayout,
    SkyRlLayout,
    TorchDcpLayout,
    TorchFilesLayout,
    TorchtitanLayout,
    VerlLayout,
)
SIGNS: tuple[LayoutSigns, ...] = (
    *(one.LAYOUT for one in (accelerate, automodel, composer, deepspeed, huggingface, lightning, megatron)),
    *(one.LAYOUT for one in (olmo_core, orbax, skyrl, torch_dcp, torch_files, torchtitan, verl)),
    *(names.UNIFIED, names.ITERATION, names.RANK),
)
LOG_FORMATS: tuple[Callable[[], LogFormat], ...] = (
    HfPrinted,
    HfTrainer,
    Megatron,
    MindFormers,
    PyNativeLog,
    TorchtitanLog,
)
LOG_PLACES: tuple[Callable[[], LogPlaces], ...] = (HfLogs, MindFormersLogs)
START_LOGS: tuple[Callable[[str], tuple[str, ...]], ...] = (huggingface_places.start_logs, lightning_places.start_logs)
HEALTH_FILES: tuple[Callable[[], HealthFile], ...] = (MindFormersHealthFile,)
CONFIG_CLASSES: tuple[Callable[[], ConfigReader], ...] = (TrainConfigs,)
CONFIGS: tuple[ConfigReader, ...] = (
    composer_config.CONFIGS,
    deepspeed_config.CONFIGS,
    huggingface_config.CONFIGS,
    lightning_config.CONFIGS,
    olmo_core_config.CONFIGS,
    torchtitan_config.CONFIGS,
)
LAUNCHES: tuple[Callable[[], LaunchTarget], ...] = (MindFormersLaunch,)
WORDS: tuple[Callable[[], Phrasing], ...] = (MegatronWords, MindFormersWords)
WORDS_FOR: tuple[Callable[[Inventory | None, Collection[str]], Phrasing | None], ...] = (pynative_words.words_for,)
DIALECTS: tuple[AsdDialect, ...] = (silent_errors.MONITOR,)
SCALARS: tuple[OwnScalars, ...] = (scalars.OWN,)
SIMULATOR_CLASSES: tuple[Callable[[], Simulator], ...] = (MindFormersSimulator,)
SIMULATORS: tuple[Simulator, ...] = (
    accelerate_choice.SIMULATOR,
    automodel_resumes.SIMULATOR,
    composer_choice.SIMULATOR,
    deepspeed_resumes.SIMULATOR,
    huggingface_choice.SIMULATOR,
    lightning_choice.SIMULATOR,
    megatron_resumes.SIMULATOR,
    olmo_core_resumes.SIMULATOR,
    orbax_resumes.SIMULATOR,
    skyrl_choice.SIMULATOR,
    torch_dcp_resumes.SIMULATOR,
    torch_files_resumes.SIMULATOR,
    torchtitan_choice.SIMULATOR,
    verl_choice.SIMULATOR,
)
EVIDENCE: tuple[Callable[[Storage, RunConfig | None], Evidence], ...] = (strategy.world_evidence,)
OBJECTIONS: tuple[Callable[[Checkpoint, AskedSizes], tuple[Finding, ...]], ...] = (
    automodel_resumes.objections,
    composer_effects.objections,
    deepspeed_tag.objections,
    lightning_deepspeed.objections,
    hf_saves.objections,
    megatron_resumes.objections,
    olmo_core_resumes.objections,
    skyrl_effects.objections,
    torchtitan_effects.objections,
    verl_effects.objections,
)
EFFECTS: tuple[Callable[[Resume], Effects], ...] = (
    accelerate_resumes.effects,
    automodel_resumes.effects,
    composer_effects.effects,
    deepspeed_resumes.effects,
    huggingface_effects.effects,
    lightning_effects.effects,
    megatron_resumes.effects,
    mindformers_effects.effects,
    olmo_core_resumes.effects,
    orbax_resumes.effects,
    skyrl_effects.effects,
    torch_dcp_resumes.effects,
    torch_files_resumes.effects,
    torchtitan_effects.effects,
    verl_effects.effects,
)
INTERVALS: tuple[Callable[[RunConfig | None, Storage, Checkpoint | None], StepIntervals | None], ...] = (
    huggingface_intervals.intervals,
    lightning_intervals.intervals,
    mindformers_intervals.intervals,
    torchtitan_intervals.intervals,
)
SAVE_INTERVALS: tuple[Callable[[RunConfig], int | None], ...] = (mindformers_intervals.save_interval,)
OWNED: tuple[Callable[[Inventory, RunConfig | None], Mapping[CheckpointKey, str]], ...] = (pynative_retention.owned,)
LOADERS: tuple[Callable[[Storage, Inventory, Checkpoint], Iterable[SavedLoader]], ...] = (
    accelerate_loaders.loaders,
    automodel_loaders.loaders,
    composer_loaders.loaders,
    deepspeed_loaders.loaders,
    lightning_loaders.loaders,
    megatron_loaders.loaders,
    olmo_loaders.loaders,
    dcp_loaders.loaders,
    torch_files_loaders.loaders,
    verl_loaders.loaders,
    skyrl_loaders.loaders,
)
WEIGHTS: tuple[WeightsSource, ...] = (
    automodel_weights.weights,
    composer_weights.weights,
    deepspeed_weights.weights,
    hf_weights.script_weights,
    hf_weights.trainer_weights,
    lightning_weights.weights,
    loose_weights.loop_weights,
    megatron_weights.weights,
    mindformers_weights.weights,
    olmo_weights.weights,
    dcp_weights.plain_weights,
    torchtitan_weights.weights,
    verl_weights.weights,
)

FIELDS: dict[str, tuple[tuple[object, ...], tuple[object, ...]]] = {
    "layouts_at": ((), SIGNS),
    "log_formats_at": (LOG_FORMATS, ()),
    "log_places_at": (LOG_PLACES, ()),
    "start_logs_at": ((), START_LOGS),
    "health_file_at": (HEALTH_FILES, ()),
    "configs_at": (CONFIG_CLASSES, CONFIGS),
    "launch_at": (LAUNCHES, ()),
    "words_at": (WORDS, ()),
    "words_for_at": ((), WORDS_FOR),
    "asd_dialects_at": ((), DIALECTS),
    "scalars_at": ((), SCALARS),
    "simulator_at": (SIMULATOR_CLASSES, SIMULATORS),
    "evidence_at": ((), EVIDENCE),
    "objections_at": ((), OBJECTIONS),
    "effects_at": ((), EFFECTS),
    "intervals_at": ((), INTERVALS),
    "save_interval_at": ((), SAVE_INTERVALS),
    "owned_at": ((), OWNED),
    "loaders_at": ((), LOADERS),
    "weights_at": ((), WEIGHTS),
}
"""By field: the classes of which one is made, and what is taken as it is."""


def references(field: str) -> list[str]:
    found: list[str] = []
    for trainer in trainers():
        value = getattr(trainer, field)
        found += value if isinstance(value, tuple) else [value] if value is not None else []
    return found


@pytest.mark.parametrize("field", FIELDS)
def test_a_reference_leads_to_what_mypy_holds_against_its_protocol(field: str) -> None:
    classes, objects = FIELDS[field]
    made: set[object] = set()
    for reference in references(field):
        there = referred(reference)
        if there not in objects:
            assert type(there) in classes, reference
            made.add(type(there))
    assert made == set(classes), "what nobody refers to"


def test_every_field_that_is_a_reference_is_looked_at() -> None:
    assert set(FIELDS) == {name for name in Trainer.__slots__ if name.endswith("_at")}


def test_the_signs_of_a_layout_lead_to_the_layout_that_has_them() -> None:
    found = [signs.layout for trainer in trainers() for signs in trainer.layouts]
    assert {type(layout) for layout in found} == set(LAYOUTS)
    assert all(layout.signs.layout.name == layout.name == layout.signs.name for layout in found)
