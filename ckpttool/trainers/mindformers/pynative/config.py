"""Configs of the PyNative trainer: YAML with `training`, `parallelism` and `checkpoint` sections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.decide.lint_engine import View
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.settings import RunConfig
from ckpttool.core.formats.safe_yaml import settings_of
from ckpttool.trainers.mindformers.pynative.keys import KEYS, OF_OLDER
from ckpttool.trainers.mindformers.pynative.ramp_up import RampUp

if TYPE_CHECKING:
    from ckpttool.core.domain.settings import Value
    from ckpttool.core.formats.safe_yaml import Document

_MEGATRON_DATA = "BlendedMegatronDatasetDataLoader"

_SIGNS = {
    "training": {"local_batch_size", "global_batch_size"},
    "parallelism": {"data_parallel_shard", "hsdp_shard_size", "tensor_parallel", "pipeline_parallel"},
    "checkpoint": {"save_interleaved_steps", "no_load_optim", "no_save_optim", "load_balanced"},
    "train_dataset": {"dataloader"},
    "model": {"architectures"},
}
"""Settings that only the PyNative trainer has, by section.

`steps` and `save_path` are left out, because many programs have them.
"""

_STRICT = ("training", "parallelism", "checkpoint")
"""Sections in which any other key stops the trainer."""


def is_pynative(data: dict[str, object]) -> bool:
    """Return whether a YAML config is for the PyNative trainer.

    Source:
        The configs of the wheels 1.9.0 to 2.1.0: those of the static trainer have a `runner_config`, those of the
        PyNative trainer `training`, `parallelism` or `lr_scheduler` at the top, and none has keys of both. Another
        trainer's YAML may have a `training` section: two sections must have this trainer's own settings, and few
        others.
    """
    if "runner_config" in data and not isinstance(data.get("training"), dict):
        return False
    if not any(isinstance(data.get(name), dict) for name in ("training", "parallelism", "lr_scheduler")):
        return False
    sections = {name: section for name in _SIGNS if isinstance(section := data.get(name), dict)}
    if sum(not _SIGNS[name].isdisjoint(section) for name, section in sections.items()) < 2:  # noqa: PLR2004  one may be a coincidence
        return False
    is_known = [
        key in KEYS[name] or key in OF_OLDER.get(name, ()) for name in _STRICT for key in sections.get(name, {})
    ]
    return 3 * sum(is_known) >= 2 * len(is_known)


@dataclass(frozen=True, slots=True, kw_only=True)
class PyNativeConfig(RunConfig):
    """The settings on which a resume depends. A value of the wrong type stops every start; its default is used here."""

    trainer: str = "mindformers"
    steps: int
    """Number of steps in the complete training run: `training.steps`."""
    local_batch_size: int
    """Samples per micro-batch of one data-parallel rank."""
    ranks_per_replica: int
    """Product of the tensor, pipeline and context parallel sizes."""
    ramp_up: RampUp | None
    """The schedule of the global batch size; None if it is constant."""
    load_path: str
    base_load_path: str
    """The complete model under an adapter; empty if there is no adapter."""
    no_load_optim: bool
    load_balanced: bool
    save_path: str
    enable_save: bool
    save_every: int
    """Steps between saves, counted from the first step of a run: `checkpoint.save_interleaved_steps`."""
    save_max: int
    """Number of saves of one run to keep."""
    dataset_samples: int | None
    """Samples of the training data, if the config contains the number (Megatron's `sizes`)."""
    shuffles: bool

    def started_on(self, devices: int | None) -> PyNativeConfig:
        """Return the config for this number of devices, because the file does not contain the number."""
        if devices is None:
            return self
        return replace(self, world_size=devices, replicas=devices // self.ranks_per_replica or None)

    @property
    def micro_batch(self) -> int | None:
        """Samples in one micro-batch over all data-parallel ranks; None if the number of these ranks is unknown."""
        return None if self.replicas is None else self.replicas * self.local_batch_size


def read_config(document: Document, *, path: str, devices: int | None = None) -> PyNativeConfig:
    """Return a YAML config's settings for resuming, parallelism and data, with the trainer's own defaults.

    Args:
        document: The config.
        path: The config's path as the user typed it.
        devices: Number of ranks to start, which no config contains.

    Source:
        `CheckpointConfig`, `TrainingConfig` and `ParallelismConfig` of MindFormers 2.1.0.
    """
    from ckpttool.trainers.mindformers.pynative.lint import WHEN_READ, lint

    settings = settings_of(document, path=path)
    view = View(settings)
    sizes = (f"parallelism.{kind}_parallel" for kind in ("tensor", "pipeline", "context"))
    ranks = 1
    for key in sizes:
        ranks *= max(view.count(key), 1)
    batch = max(view.count("training.global_batch_size"), 1)
    config = PyNativeConfig(
        path=path,
        world_size=None,
        global_batch_size=batch,
        sink_size=None,
        prefix=_prefix(view),
        text=document.text,
        settings=settings,
        findings=lint(settings, WHEN_READ),
        pipeline_stages=max(view.count("parallelism.pipeline_parallel"), 1),
        steps=view.count("training.steps", 1000),
        local_batch_size=max(view.count("training.local_batch_size"), 1),
        ranks_per_replica=ranks,
        ramp_up=RampUp.of(view.raw("training.rampup_batch_size"), batch),
        load_path=_text(view, "checkpoint.load_path"),
        base_load_path=_text(view, "checkpoint.base_load_path"),
        no_load_optim=view.is_on("checkpoint.no_load_optim"),
        load_balanced=view.is_on("checkpoint.load_balanced"),
        save_path=_text(view, "checkpoint.save_path"),
        enable_save=view.get("checkpoint.enable_save") is not False,
        save_every=abs(view.count("checkpoint.save_interleaved_steps", 1000)),
        save_max=view.count("checkpoint.save_max", 5),
        dataset_samples=_dataset_samples(view),
        shuffles=view.is_on("train_dataset.dataloader.shuffle"),
    )
    return config.started_on(devices)


def _text(view: View, key: str) -> str:
    value = view.get(key)
    return value if isinstance(value, str) else ""


def _prefix(view: View) -> str | None:
    """Return the prefix of the next saves; None if their names have no prefix."""
    key = "checkpoint.prefix"
    value: Value = view.get(key) if view.setting(key) is not None else "checkpoint"
    return value if isinstance(value, str) else None


def _dataset_samples(view: View) -> int | None:
    """Return the number of samples in the training data, the first of the `sizes` of Megatron's loader."""
    if view.get("train_dataset.dataloader.type") != _MEGATRON_DATA:
        return None
    samples = view.count("train_dataset.dataloader.sizes.0", 0)
    return samples if samples > 0 else None
