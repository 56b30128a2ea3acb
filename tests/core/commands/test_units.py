"""Times and sizes as people write them."""

from __future__ import annotations

from fractions import Fraction

import pytest
import typer

from ckpttool.core.commands.options import duration
from ckpttool.core.domain.amounts import share


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("12h", 43_200), ("7d", 604_800), ("1w", 604_800), ("1.5h", 5_400)],
)
def test_a_time_with_a_unit_is_the_same_for_every_option(text: str, seconds: float) -> None:
    assert {duration(bare, to="s")(text) for bare in "smhd"} == {seconds}


@pytest.mark.parametrize(("bare", "seconds"), [("s", 2.5), ("m", 150), ("h", 9_000), ("d", 216_000)])
def test_a_bare_number_is_in_the_unit_that_the_option_always_had(bare: str, seconds: float) -> None:
    assert duration(bare, to="s")("2.5") == seconds
    assert duration(bare)("2.5") == 2.5


@pytest.mark.parametrize(
    "text", ["5x", "m", "", "5 m", "1e3s", "-1d", "\u00b2h", "0x10", "five", "\u0663", "1_0", "1e-400"]
)
def test_what_is_no_time_is_answered_with_examples(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a time such as 90s, 5m, 12h or 7d; a bare number is hours"):
        duration("h")(text)


def test_a_time_may_need_a_unit() -> None:
    assert duration(None)("2h") == 7_200
    with pytest.raises(typer.BadParameter, match=r"'2' is not a time such as 90s, 5m, 12h or 7d$"):
        duration(None)("2")


@pytest.mark.parametrize("text", ["-1", "-0.1", "-1e9"])
def test_no_time_is_below_nothing(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is less than 0d"):
        duration("d")(text)
    with pytest.raises(typer.BadParameter, match="is less than 1s"):
        duration("s", least=1)("0.999s")
    assert duration("s", least=1)("1s") == 1


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("10%", Fraction(1, 10)),
        ("100%", Fraction(1)),
        ("0.5%", Fraction(1, 200)),
        ("50G", 50 << 30),
        ("50g", 50 << 30),
        ("50GB", 50 << 30),
        ("1.5TiB", 3 << 39),
        ("512K", 512 << 10),
    ],
)
def test_a_share_is_a_fraction_or_bytes(text: str, meant: Fraction | int) -> None:
    assert share(text) == meant


@pytest.mark.parametrize("text", ["0%", "101%", "-1%", "10", "1/7", "50X", "0G", "G", "%", "1e3G", "50G/s", "1000%"])
def test_what_is_no_share_is_none(text: str) -> None:
    assert share(text) is None


@pytest.mark.parametrize(("text", "seconds"), [("1h30m", 5400), ("1d12h", 129600), ("2m5.5s", 125.5)])
def test_units_may_follow_one_another_from_the_longest_on(text: str, seconds: float) -> None:
    assert duration(None)(text) == seconds


@pytest.mark.parametrize("text", ["30m1h", "1h2h", "1h30", "h30m", "1h 30m"])
def test_units_in_no_order_are_no_time(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a time such as"):
        duration("s")(text)
