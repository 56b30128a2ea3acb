"""The folder of one start: TensorBoard's event files, or `metrics.csv`."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool.core.errors import UsageError
from ckpttool.core.logs.run_folder import RunFolder
from ckpttool.trainers.registry import log_reader


def test_the_event_files_are_read_by_the_time_in_their_names(tmp_path: Path) -> None:
    names = ["events.out.tfevents.1700000100.host.9.0", "events.out.tfevents.900000000.host.8.0"]
    for name in (*names, "metrics.csv", "events.json"):
        (tmp_path / name).write_text("")
    assert log_reader().expand([str(tmp_path)]) == (f"{tmp_path}/{names[1]}", f"{tmp_path}/{names[0]}")


def test_metrics_csv_is_the_log_of_a_folder_without_event_files(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("")
    assert log_reader().expand([str(tmp_path)]) == (f"{tmp_path}/metrics.csv",)


def test_a_folder_without_a_log_is_an_error_that_names_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no events\.out\.tfevents\.\* and no metrics\.csv"):
        log_reader().expand([str(tmp_path)])
    assert RunFolder().inside(str(tmp_path / "absent")) == ()
    assert RunFolder().near(str(tmp_path)) == ()
