"""With streaming data the position is that of the loader's own state files, or there is no launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool.core.errors import ExitCode
from tests.conftest import FIXTURES
from tests.support.commands import Said, ask
from tests.support.situations import real

STEP = 60
LOADER = """
train_dataset:
  data_loader:
    type: {type}
    streaming: {streaming}
    size: 1000
    dataset_state_dir: {folder}
    use_broadcast_data: False
"""


@pytest.fixture
def streaming(here: Path) -> Path:
    """A tree of 4 ranks that resumes at step 60, its config, and the states of that step and of one fetched ahead."""
    real(here, "sink2_ckpt")
    config(here)
    for step in (STEP, 78):
        states(here / f"states/step_{step}")
    return here


def config(here: Path, *, kind: str = "HFDataLoader", streaming: str = "True", folder: str = "states") -> None:
    base = (FIXTURES / "configs" / "pretrain_sink2.yaml").read_text()
    (here / "base.yaml").write_text(base + LOADER.format(type=kind, streaming=streaming, folder=folder))


def states(folder: Path, ranks: range = range(4)) -> None:
    folder.mkdir(parents=True)
    for rank in ranks:
        (folder / f"dataset_state_rank{rank}.json").write_text('{"_train_state": {"cur_iter": 1}}')


def preflight(*options: str) -> Said:
    return ask("preflight", "output", "--config", "base.yaml", *options, "--format", "json")


def codes(said: Said) -> list[tuple[str, str]]:
    reasons = said.json["checks"]
    found = [reason for check in reasons for reason in check["findings"]]
    return [(one["code"], one["severity"]) for one in found if one["code"].startswith("stream-")]


@pytest.mark.parametrize("kind", ["HFDataLoader", "CommonDataLoader"])
def test_0_where_every_rank_has_the_state_of_the_step(kind: str, streaming: Path) -> None:
    config(streaming, kind=kind)
    said = preflight()
    assert (said.code, codes(said)) == (ExitCode.OK, [])
    launched = ask("launch", "output", "--config", "base.yaml", "--output", "new.yaml", "--format", "json")
    assert launched.code == ExitCode.OK
    resolved = ask("resolve", "output", "--config", "base.yaml", "--format", "json")
    assert resolved.json["data"]["dataset_state"] == f"states/step_{STEP}"
    shown = " ".join(ask("resolve", "output", "--config", "base.yaml").stdout.split())
    assert (
        "data position states/step_60 (from the state files of the streaming data, regardless of the settings" in shown
    )
    assert "data position from states/step_60" in " ".join(
        ask("preflight", "output", "--config", "base.yaml").stdout.split()
    )


def test_data_that_are_not_streamed_need_no_state(streaming: Path) -> None:
    config(streaming, streaming="False", folder="nowhere")
    stands = preflight("--new-dataset")  # the config as it stands does not ignore what was read
    assert (stands.code, "start-differs" in stands.stdout) == (ExitCode.DAMAGE, True)
    assert preflight("--new-dataset", "--allow", "start-differs").code == ExitCode.OK
    resolved = ask("resolve", "output", "--config", "base.yaml", "--format", "json")
    assert "dataset_state" not in resolved.json["data"]


def test_10_where_a_rank_lacks_its_state_though_later_ones_are_there(streaming: Path) -> None:
    for rank in (1, 3):
        (streaming / f"states/step_{STEP}/dataset_state_rank{rank}.json").unlink()
    said = ask("preflight", "output", "--config", "base.yaml")
    assert said.code == ExitCode.DAMAGE
    words = " ".join(said.stdout.split())
    assert "expected the data loader's state of rank 1, 3 as dataset_state_rank1.json, but found none" in words
    assert "stream-state-missing states/step_60" in words.replace(f"{streaming}/", "")
    launched = ask("launch", "output", "--config", "base.yaml", "--output", "new.yaml")
    assert launched.code == ExitCode.DAMAGE
    assert not (streaming / "new.yaml").exists()
    assert preflight("--allow", "stream-state-missing").code == ExitCode.OK


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--gbs", "16"], "batches of 16 samples"),
        (["--new-dataset"], "--new-dataset"),
        (["--dataset-changed-at", "20"], "--dataset-changed-at"),
    ],
)
def test_10_for_what_would_move_the_position(options: list[str], what: str, streaming: Path) -> None:
    said = preflight(*options)
    assert said.code == ExitCode.DAMAGE
    assert codes(said) == [("stream-position-fixed", "suspect")]
    assert f"{what} would move the data position" in said.stdout
    launched = ask("launch", "output", "--config", "base.yaml", "--output", "new.yaml", *options)
    assert (launched.code, (streaming / "new.yaml").exists()) == (ExitCode.DAMAGE, False)
