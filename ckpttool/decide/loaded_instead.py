"""What MindFormers would load instead of what the plan names, or where its start would end: one rule for each way.

A new one is a function, a line in `RULES`, a code in `CODES` and its explanation. Rules see names and settings alone:
what a file holds is `verify`'s business. Each was seen in a start of the real program, or read in its code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from ckpttool.domain.checkpoint import Inventory, LayoutName
from ckpttool.domain.finding import Code, Finding, Severity, brief
from ckpttool.domain.frozen import dataclass
from ckpttool.domain.plan import ResumePlan
from ckpttool.domain.train_config import TrainConfig

_PATTERN = frozenset("*?[")
"""What `glob` does not take for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a start would find."""

    plan: ResumePlan
    inventory: Inventory
    """The whole tree: what lies beside the chosen checkpoint may be loaded for it."""
    load_path: str
    """`load_checkpoint`, absolute, as a launch config has it."""
    config: TrainConfig | None = None
    """None where no config is known: a rule that goes by one then says nothing."""


Rule: TypeAlias = "Callable[[Start], Iterator[Finding]]"


def loaded_instead(start: Start) -> tuple[Finding, ...]:
    """Return every way in which the real start would load something else than the plan says, or nothing."""
    return tuple(brief(finding) for rule in RULES for finding in rule(start))


def _stops(code: Code, message: str, remedy: str, path: str | None = None) -> Finding:
    return Finding(code=code, severity=Severity.SUSPECT, message=message, path=path, remedy=remedy)


def _pattern(start: Start) -> Iterator[Finding]:
    """Find paths that are more than themselves to `glob`.

    Source:
        load_checkpoint_with_safetensors (1.6.0 to 2.1.0) loads `glob(sf_file_name)`, and the newer layout and merged
        files are found by `glob(folder + "/*.safetensors")`; `.ckpt` files are opened by their name.
    """
    load = start.plan.load
    if load.load_ckpt_format != "safetensors":
        return
    name = load.resume_training if isinstance(load.resume_training, str) else ""
    for what, text, remedy in (
        ("path", start.load_path, "rename the folder, or give DIR as a link to it whose path has none of * ? ["),
        ("file name", name, "rename the files of this checkpoint, on every rank, to a name without * ? ["),
    ):
        signs = " and ".join(f"`{sign}`" for sign in sorted(_PATTERN & {*text}))
        if signs:
            yield _stops(
                Code.PATH_IS_PATTERN,
                f"{signs} in the {what} {text} makes it a pattern: MindFormers loads the safetensors files that `glob` "
                "finds for it, which are others or none, and then trains from random weights without a word",
                remedy,
            )


def _one_device(start: Start) -> Iterator[Finding]:
    """Find safetensors in rank folders for a training that does not say `use_parallel: True`.

    Source:
        validate_config_with_file_mode (1.6.0 to 2.1.0): "when input checkpoint file is rank dir, Please set
        use_parallel: True". The file or its rank's folder as `load_checkpoint` fails, too.
    """
    config = start.config
    if config is None or config.use_parallel is not False:
        return
    if start.inventory.layout is LayoutName.MINDFORMERS_RANK and start.plan.load.load_ckpt_format == "safetensors":
        yield _stops(
            Code.RANK_FOLDER_ON_ONE_DEVICE,
            "without `use_parallel: True` MindFormers loads no safetensors from rank folders: every start ends in a "
            "ValueError",
            "convert the shards with mindspore.safetensors_to_ckpt (`ckpttool explain rank-folder-on-one-device` shows "
            "how), and let the next run save `checkpoint_format: ckpt`, which one device can load",
            config.path,
        )


RULES: tuple[Rule, ...] = (_pattern, _one_device)
"""All of them, in the order in which a start would meet what they are about."""

CODES = frozenset({Code.PATH_IS_PATTERN, Code.RANK_FOLDER_ON_ONE_DEVICE})
"""What the rules say: in `preflight` it belongs to the launch."""
