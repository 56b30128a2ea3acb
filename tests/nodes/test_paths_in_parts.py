"""What a part lists lies in its tree, or right above it."""

from __future__ import annotations

import pytest

from ckpttool.core.formats.strict_json import ParseError
from ckpttool.nodes.part_file import decode_path


@pytest.mark.parametrize("path", ["shard.ckpt", "rank_0/shard.ckpt", "a..b/c", "../config.yaml"])
def test_a_path_in_the_tree_or_right_above_it_is_taken(path: str) -> None:
    assert decode_path(path) == path


@pytest.mark.parametrize("path", ["/etc/passwd", "rank_0/../../shard.ckpt", "rank_0/..", "../../shard.ckpt", "a\0b"])
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(ParseError, match="is not in a tree"):
        decode_path(path)
