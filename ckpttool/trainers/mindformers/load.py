"""The settings that make MindFormers load exactly the checkpoint that was chosen."""

from __future__ import annotations

from ckpttool.domain.checkpoint import Checkpoint, Inventory, LayoutName, Rename
from ckpttool.domain.frozen import dataclass
from ckpttool.domain.load_settings import LoadSettings, Place, SettingValue, TrainerSetting
from ckpttool.domain.shard import FormatName

LOAD_FORMAT = {FormatName.MINDSPORE_CKPT: "ckpt", FormatName.SAFETENSORS: "safetensors"}

_LOAD, _RESUME, _FORMAT, _LEGACY = (
    f"config:{key}" for key in ("load_checkpoint", "resume_training", "load_ckpt_format", "use_legacy_format")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadKeys:
    """The four keys of a config that decide what is loaded."""

    load_checkpoint: str
    resume_training: str | bool
    """An explicit file name in the legacy layout, never True: MindFormers' own choice is not to be trusted.
    True in the newer layout, where `load_checkpoint` already names the iteration's folder."""
    load_ckpt_format: str
    """`ckpt` or `safetensors`."""
    use_legacy_format: bool

    def settings(self, first: tuple[Rename, ...] = ()) -> LoadSettings:
        """Say them as every trainer's settings are said."""
        return LoadSettings(
            trainer="mindformers",
            path=self.load_checkpoint,
            settings=(
                _setting(_LOAD, self.load_checkpoint, is_path=True),
                _setting(_RESUME, self.resume_training),
                _setting(_FORMAT, self.load_ckpt_format),
                _setting(_LEGACY, self.use_legacy_format, is_default=self.use_legacy_format),
            ),
            first=first,
            older=tuple((place.partition(":")[2], place) for place in (_LOAD, _RESUME, _FORMAT)),
        )


def _setting(place: str, value: SettingValue, *, is_path: bool = False, is_default: bool = False) -> TrainerSetting:
    return TrainerSetting(place=Place.parsed(place), value=value, is_path=is_path, is_default=is_default)


def load_keys(load: LoadSettings) -> LoadKeys:
    """Return what settings that were made here say."""
    resume = load.value(_RESUME)
    return LoadKeys(
        load_checkpoint=load.path,
        resume_training=resume if isinstance(resume, str) else resume is True,
        load_ckpt_format=str(load.value(_FORMAT)),
        use_legacy_format=load.value(_LEGACY) is not False,
    )


def load_settings(inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings:
    """Say what to set; the settings hold once the checkpoint's renames, if any, are done.

    Source:
        Legacy layout: a folder and a file name make every rank load its own file of that name, and skip
        MindFormers' own choice. Newer layout: a path that has no tracker is taken as the iteration itself. Unified
        files: a folder with `hyper_param.safetensors` is loaded as a whole.
    """
    return _keys(inventory, checkpoint).settings(checkpoint.renames)


def _keys(inventory: Inventory, checkpoint: Checkpoint) -> LoadKeys:
    match inventory.layout:
        case LayoutName.MINDFORMERS_RANK:
            return LoadKeys(
                load_checkpoint=inventory.root,
                resume_training=_common_file_name(checkpoint),
                load_ckpt_format=LOAD_FORMAT[checkpoint.format],
                use_legacy_format=True,
            )
        case LayoutName.MINDFORMERS_ITERATION:
            path = checkpoint.name if inventory.root == "." else f"{inventory.root}/{checkpoint.name}"
            return LoadKeys(
                load_checkpoint=path, resume_training=True, load_ckpt_format="safetensors", use_legacy_format=False
            )
        case LayoutName.MINDFORMERS_UNIFIED | LayoutName.LOOSE_FILE:  # pragma: no branch  mypy knows all
            return LoadKeys(
                load_checkpoint=inventory.root,
                resume_training=True,
                load_ckpt_format="safetensors",
                use_legacy_format=True,
            )


def _common_file_name(checkpoint: Checkpoint) -> str:
    """Return rank 0's file name as it is after the renames; MindFormers puts each rank's own number into it."""
    first = checkpoint.shards[0].path
    renamed = {rename.source: rename.target for rename in checkpoint.renames}
    return renamed.get(first, first).rpartition("/")[2]
