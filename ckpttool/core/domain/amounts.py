"""Amounts of disk space as users type them: a size such as `2TiB`, or a share such as `10%`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.errors import UsageError

if TYPE_CHECKING:
    from fractions import Fraction

_POWERS = "KMGTP"


def share(text: str) -> Fraction | int | None:
    """Parse `10%` as a fraction above 0 and up to 1, and `50G` as bytes; return None for any other text."""
    from fractions import Fraction

    percent = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)%", text)
    if percent is not None:
        return fraction if 0 < (fraction := Fraction(percent[1]) / 100) <= 1 else None
    size = re.fullmatch(rf"([0-9]{{1,12}}(?:\.[0-9]{{1,9}})?)([{_POWERS}])(?:i?B)?", text, re.IGNORECASE)
    if size is None:
        return None
    return int(Fraction(size[1]) * 1024 ** (1 + _POWERS.index(size[2].upper()))) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """An amount of disk space."""

    nbytes: ByteCount | None = None
    """Size in bytes; None for a share."""
    part: Fraction | None = None
    """Share of the total; None for a size."""

    def of(self, total: int) -> ByteCount:
        """Return the amount in bytes, rounded up.

        Args:
            total: Size in bytes of which the amount may be a share.
        """
        if self.part is None:
            return self.nbytes or ByteCount(0)
        return ByteCount(-int(-self.part * total // 1))


def amount(option: str, text: str) -> Amount:
    """Parse a size or a share.

    Raises:
        UsageError: The text is neither.
    """
    value = share(text)
    if value is None:
        raise UsageError(f"{option} takes a size such as 500GiB, or a share such as 10%, not {text!r}")
    return Amount(nbytes=ByteCount(value)) if isinstance(value, int) else Amount(part=value)


def size_only(option: str, text: str) -> ByteCount:
    """Parse a size.

    Raises:
        UsageError: The text is not a size.
    """
    value = share(text)
    if not isinstance(value, int):
        raise UsageError(f"{option} takes a size such as 500GiB, not {text!r}")
    return ByteCount(value)
