"""DeepSpeed's layout: a folder per tag, with one file for each part of the model and of the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.units import Rank
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.base import Members, Refusal, ScanOptions
from ckpttool.trainers.common.listed import own_folder
from ckpttool.trainers.common.written_together import WrittenTogether
from ckpttool.trainers.deepspeed import LAYOUT, TRAINER
from ckpttool.trainers.deepspeed_tags import LATEST
from ckpttool.trainers.listing import Listing

if TYPE_CHECKING:
    from ckpttool.core.domain.load_settings import LoadSettings
    from ckpttool.core.domain.placement import ReadByAll
    from ckpttool.core.domain.pointer import Pointer, PointerText


class DeepSpeedTags(WrittenTogether):
    """A layout with one folder per save, which may have any name.

    The file `latest` next to these folders names one of them.
    """

    name = LAYOUT.name
    title = TRAINER.title
    signs = LAYOUT

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """List the files of each tag, and read one of its model files up to the pickle."""
        from ckpttool.trainers.deepspeed.scan import scan_tags

        return scan_tags(storage, listing, options)

    def with_own_records(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Return the save unchanged, because the scan is complete."""
        return checkpoint

    def is_unfinished(self, name: str) -> bool:
        """Return False, because DeepSpeed writes directly to the final name."""
        return False

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Return the tag's folder with its contents; refuse to move the tag that `latest` names."""
        return own_folder(checkpoint, f"`{LATEST}`")

    def read_by_all(self, checkpoint: Checkpoint) -> ReadByAll:
        """Return `latest` and the model files that replicas share; each rank reads its own layers and experts."""
        from ckpttool.trainers.deepspeed_tags.tag import shared_files

        return shared_files(checkpoint, LATEST)

    def pointers(self, storage: Storage, ranks: Iterable[Rank]) -> Iterator[Pointer]:
        """Read `latest`."""
        from ckpttool.trainers.deepspeed_tags.latest import latest_pointer

        return iter((latest_pointer(storage),))

    def pointing_to(self, checkpoint: Checkpoint) -> Mapping[str, PointerText]:
        """Return the contents of `latest` that name the save."""
        from ckpttool.core.domain.pointer import PointerText
        from ckpttool.trainers.deepspeed_tags.latest import tag_bytes

        return {LATEST: PointerText(name=checkpoint.name, content=tag_bytes(checkpoint.name))}

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Return settings for the folder and the tag.

        Without a tag, DeepSpeed follows `latest`.
        """
        from ckpttool.core.domain.load_settings import LoadSettings, Place, TrainerSetting

        call_settings = (
            ("code:load_checkpoint(load_dir)", inventory.root),
            ("code:load_checkpoint(..., tag)", checkpoint.name),
            (f"file:{LATEST}", checkpoint.name),
        )
        settings = (
            TrainerSetting(
                place=Place.parsed(place),
                value=value,
                is_path=value is inventory.root,
                is_alternative=place.startswith("file:"),
            )
            for place, value in call_settings
        )
        return LoadSettings(
            trainer=TRAINER.name,
            path=inventory.root,
            settings=tuple(settings),
            remarks=("If it finds nothing, it returns (None, None) without an error: check the returned path.",),
        )
