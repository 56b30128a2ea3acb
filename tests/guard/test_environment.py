"""A replay takes over the settings of a capture, and nothing that no machine has."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch

from ckpttool.guard.environment import differences, environment, processor, take_over
from ckpttool.guard.model.capture import Setting

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threads", 10**8),
        ("threads", 10**30),
        ("threads", -2),
        ("threads", "many"),
        ("default_dtype", "load"),
        ("default_dtype", "no_such"),
    ],
)
def test_a_setting_that_no_machine_has_stays_a_difference(name: str, value: Setting) -> None:
    before = environment(CPU)
    take_over({name: value})
    here = environment(CPU)
    assert here == before
    assert [each.what for each in differences({**before, name: value}, here)] == [name]


def test_the_threads_of_a_larger_machine_are_taken_over() -> None:
    take_over({"threads": 3})
    assert environment(CPU)["threads"] == 3


X86 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 26
model\t\t: 2
model name\t: AMD EPYC
stepping\t: 1
cpu MHz\t\t: 2596.092

processor\t: 1
cpu family\t: 26
model\t\t: 2
model name\t: AMD EPYC
"""
ARM = """processor\t: 0
BogoMIPS\t: 243.75
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd40

processor\t: 1
CPU part\t: 0xd4f
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (X86, "AMD EPYC, cpu family 26, model 2"),
        (ARM, "CPU implementer 0x41, CPU part 0xd40"),
        ("", "as platform says"),
        (None, "as platform says"),
    ],
    ids=["x86", "arm", "empty", "missing"],
)
def test_the_processor_is_the_first_one_without_what_changes(
    text: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "processor", lambda: "as platform says")
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text, encoding="utf-8")
    assert processor(str(tmp_path / "cpuinfo")) == expected


def test_another_processor_is_a_difference_unless_the_record_has_none() -> None:
    here = environment(CPU)
    assert here["cpu"] == processor()
    (difference,) = differences({**here, "cpu": "another one"}, here)
    assert (difference.what, difference.captured, difference.here) == ("cpu", "another one", here["cpu"])
    before = {name: value for name, value in here.items() if name != "cpu"}
    assert differences(before, here) == ()
