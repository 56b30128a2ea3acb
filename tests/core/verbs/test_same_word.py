"""`launch` writes a config just where `preflight` says go, and refuses with its reasons, over trees of every kind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.launch import Launch
from ckpttool.core.domain.preflight import Preflight
from ckpttool.core.errors import CkptToolError, ExitCode
from ckpttool.types import DataQuestion, LaunchOrder, PreflightQuestion, ResumeQuestion, TreeQuestion
from tests.support.healthy_trees import healthy_tree

CONFIG = """\
run_mode: train
use_parallel: True
auto_trans_ckpt: {trans}
runner_config: {{epochs: 9999, batch_size: {batch}, sink_mode: True, sink_size: {sink}}}
parallel: {{parallel_mode: {mode}, full_batch: True}}
parallel_config: {{data_parallel: {ranks}, model_parallel: 1}}
callbacks:
  - {{type: CheckpointMonitor, prefix: llama2_7b, keep_checkpoint_max: 3}}
"""


def _cut(shards: list[Path]) -> None:
    shards[-1].write_bytes(shards[-1].read_bytes()[:40])


def _lost(shards: list[Path]) -> None:
    shards[-1].unlink()


def _gone(shards: list[Path]) -> None:
    shutil.rmtree(shards[-1].parent)


def _beside(shards: list[Path]) -> None:
    shutil.copy(shards[0], shards[0].parent.parent / f"best{shards[0].suffix}")


_FAULTS: tuple[Callable[[list[Path]], None] | None, ...] = (None, None, _cut, _lost, _gone, _beside)


def _made(folder: Path, chance: Random, seed: int) -> tuple[Path, Path, int]:
    """Make a tree, whole or not, and a config that may fit it; return both and the ranks that the tree had."""
    tree, _ = healthy_tree(folder, seed)
    ranks = max(1, len(list(tree.glob("checkpoint/rank_*"))))
    shards = sorted([*tree.glob("checkpoint/*/*.ckpt"), *tree.glob("checkpoint/*/*.safetensors")])
    fault = chance.choice(_FAULTS)
    if fault is not None and shards:
        fault(shards)
    config = folder / "base.yaml"
    text = CONFIG.format(
        ranks=chance.choice([ranks, ranks, 2 * ranks]),
        mode=chance.choice([0, 1]),
        batch=chance.choice([1, 2, 8]),
        sink=chance.choice([1, 2, 4]),
        trans=chance.choice([True, False, False]),
    )
    config.write_text(text)
    return tree, config, ranks


@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", range(40))
def test_a_launch_is_written_where_preflight_says_go_and_nowhere_else(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)  # noqa: S311  the same tree for the same seed, no secret
    tree, base, ranks = _made(tmp_path, chance, seed)
    devices = chance.choice([None, None, ranks, 2 * ranks])
    question, choice, data = (
        TreeQuestion(path=str(tree)),
        ResumeQuestion(),
        DataQuestion(),
    )
    ready = ckpttool.preflight(
        PreflightQuestion(
            config=str(base),
            tree=question,
            choice=choice,
            data=data,
            devices=devices,
            allowed=(Code.START_DIFFERS,),  # the base config names nothing to load; the written one does
        )
    )
    new = tmp_path / "new.yaml"
    order = LaunchOrder(base=str(base), output=str(new), devices_per_node=devices)
    try:
        launched: Launch | Preflight | ExitCode = ckpttool.launch(question, choice, data, order=order)
    except CkptToolError as error:
        launched = error.exit_code
    code = ready.exit_code
    assert new.exists() == (code is ExitCode.OK)
    if isinstance(launched, Preflight):
        # The disk is never the same twice, and what is written is not started as the base config stands.
        others = [[check for check in one.checks if check.name not in {"start", "disk"}] for one in (launched, ready)]
        assert others[0] == others[1]
        assert launched.exit_code == code
    else:
        assert (ExitCode.OK if isinstance(launched, Launch) else launched) is code
