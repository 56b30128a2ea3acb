"""A save in an object store is exported as one on a disk; parts of other machines are not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import FIXTURES
from tests.export.truth import exported
from tests.support.commands import ask
from tests.support.s3_relay import relay_over

pytest.importorskip("obstore", reason="object stores are read by obstore, which is not installed")


@pytest.mark.parametrize("tree", ["layouts/hf_fsdp2ranks", "layouts/dcp_plain_2ranks", "layouts/hf_sharded_index"])
def test_a_save_in_a_bucket_is_exported_as_one_on_a_disk(
    tree: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(FIXTURES / tree, tmp_path / "stores/run/tree")
    with relay_over(tmp_path / "stores", monkeypatch):
        said = ask("export", "s3://run/tree", "--output", str(tmp_path / "from_bucket"), "--json")
        assert said.code == 0, said.output
        refused = ask("export", "s3://run/tree", "--output", "s3://run/out")
        assert refused.code == 2
        assert "export to a folder, then copy it" in refused.stderr
    assert ask("export", str(FIXTURES / tree), "--output", str(tmp_path / "from_disk")).code == 0
    assert exported(tmp_path / "from_bucket") == exported(tmp_path / "from_disk")
    assert not (tmp_path / "stores/run/out").exists()


def test_the_records_of_other_machines_have_no_weights(tmp_path: Path) -> None:
    part = tmp_path / "one.ckptpart"
    tree = FIXTURES / "layouts/hf_single"
    assert ask("part", str(tree), "--part", "1/1", "--out", str(part)).code == 0
    said = ask("export", str(part), "--output", str(tmp_path / "out"))
    assert said.code in {2, 12, 14}, said.output
    assert not (tmp_path / "out").exists()
