"""Where a setting is said, and how a path is spelled in full."""

from __future__ import annotations

import pytest

from ckpttool.core.domain.load_settings import LoadSettings, Place, TrainerSetting


@pytest.mark.parametrize(
    "text",
    ["config:a.load_path", "argument:--load", "environment:RANK_ID", "config:a:b", "code:load(path)", "file:latest"],
)
def test_a_place_is_spelled_as_it_was_read(text: str) -> None:
    assert str(Place.parsed(text)) == text


@pytest.mark.parametrize("text", ["load_checkpoint", "config:", ":a", "folder:a", ""])
def test_what_names_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"place|Place"):
        Place.parsed(text)


def test_the_path_alone_is_spelled_in_full_and_no_setting_that_reads_like_it() -> None:
    path = TrainerSetting(place=Place.parsed("argument:--load"), value="run", is_path=True)
    name = TrainerSetting(place=Place.parsed("argument:--name"), value="run")
    load = LoadSettings(trainer="toy", path="run", settings=(path, name)).at("/data/run")
    assert (load.path, load.value("argument:--load"), load.value("argument:--name")) == (
        "/data/run",
        "/data/run",
        "run",
    )
    assert load.value("argument:--other") is None
