"""The weights of verl and SkyRL, as the command writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.export.truth import exported, of_tensors
from tests.support.commands import ask
from tests.support.trees import FIXTURES

EXPORTS = FIXTURES / "export"
SAVES = sorted(path.parent.name for path in EXPORTS.glob("*/truth.safetensors") if "zero" not in path.parent.name)


@pytest.mark.parametrize("save", SAVES)
def test_the_output_is_the_complete_model(save: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    said = ask("export", str(EXPORTS / save / "tree"), "--output", str(tmp_path / "out"))
    assert said.code == 0, said.output
    assert exported(tmp_path / "out") == of_tensors(load_file(EXPORTS / save / "truth.safetensors"))


@pytest.mark.parametrize(("tree", "part"), [("verl_2ranks", "actor"), ("skyrl_2ranks", "policy"), ("verl_sft", "")])
def test_the_models_config_is_copied(tree: str, part: str, tmp_path: Path) -> None:
    options = ["--part", part] if part else []
    said = ask("export", str(FIXTURES / "layouts" / tree), "--output", str(tmp_path / "out"), *options, "--json")
    assert said.json["output"]["copied"] == ["config.json"]


def test_several_models_are_refused_with_the_option(tmp_path: Path) -> None:
    said = ask("export", str(FIXTURES / "layouts/skyrl_2ranks"), "--output", str(tmp_path / "out"), "--json")
    (finding,) = said.json["findings"]
    assert (said.code, finding["code"]) == (14, "export-ambiguous-part")
    assert "--part" in finding["remedy"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "tree", ["mcore_dist_tp2dp2", "ds_zero1_2ranks", "automodel_2ranks", "../newfmt_tp2dp2/output/checkpoint"]
)
def test_a_part_of_a_save_with_one_model_is_refused(tree: str, tmp_path: Path) -> None:
    options = ("--output", str(tmp_path / "out"), "--json")
    said = ask("export", str(FIXTURES / "layouts" / tree), "--part", "actor", *options)
    assert (said.code, [finding["code"] for finding in said.json["findings"]]) == (14, ["export-ambiguous-part"])
    assert ask("export", str(FIXTURES / "layouts" / tree), *options).code == 0
