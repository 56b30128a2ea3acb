"""A file system that the machine's settings mount at a path, and that is not mounted, leaves the path unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool.core.storage import mounts
from ckpttool.core.storage.mounts import PlannedMount, mount_table, not_mounted, planned_mounts

TABLE = """\
27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
31 27 259:7 / /data rw,noatime - xfs /dev/nvme1n1 rw
43 27 0:53 / /net rw - autofs systemd-1 rw
44 43 0:54 / /net/here rw - nfs filer:/here rw
"""


@pytest.mark.parametrize(
    ("path", "point", "is_mounted"),
    [
        ("/data/run", "/data", True),
        ("/data", "/data", True),
        ("/data/a/run", "/data/a", False),
        ("/weka/run", "/weka", False),
        ("/weka", "/weka/", False),
        ("/wekaother/run", "/weka", True),
        ("/net/here/run", "/net/here", True),
        ("/net/here/run", "/net", True),
    ],
)
def test_a_planned_mount_that_covers_a_path_must_be_in_the_table(path: str, point: str, *, is_mounted: bool) -> None:
    why = not_mounted(path, table=TABLE, planned=(PlannedMount(point, "/etc/fstab"),))
    told = f"{point.rstrip('/')} is not mounted, although /etc/fstab lists it"
    assert (why == told) is not is_mounted


def test_a_path_below_automount_that_is_not_there_is_not_mounted() -> None:
    assert not_mounted("/net/gone/run", table=TABLE, planned=()) == "autofs has not mounted it"
    assert not_mounted("/net/here/run", table=TABLE, planned=()) != "autofs has not mounted it"


@pytest.mark.parametrize("path", ["/no such folder", "/no such folder/run/checkpoint", "/mnt/no such disk/run"])
def test_a_folder_directly_below_the_root_that_is_not_there_may_be_a_mount(path: str) -> None:
    assert "may not be mounted" in (not_mounted(path, table=mount_table(), planned=()) or "")


def test_a_path_that_is_there_or_whose_parent_is_there_needs_no_mount(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "new" / "deeper"):
        assert not_mounted(str(path), table=mount_table(), planned=()) is None
        assert not_mounted(str(path), table="", planned=(PlannedMount(str(tmp_path), "/etc/fstab"),)) is None


def test_fstab_maps_of_autofs_and_units_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(planned_mounts(), tuple)
    direct = tmp_path / "auto.direct"
    direct.write_text("/scratch -rw filer:/scratch\n")
    texts = {
        "/etc/fstab": "# disks\nUUID=1 / ext4 rw 0 1\nUUID=2 none swap sw 0 0\nfiler:/a /my\\040data nfs rw\nbroken\n",
        "/etc/auto.master": f"+auto.master\n/home auto.home\n/- {direct}\n/- auto.other\n/-\n",
        "/etc/auto.other": "/projects filer:/projects\n",
    }
    here = str(tmp_path)
    monkeypatch.setattr(
        mounts, "_text", lambda path: Path(path).read_text() if path.startswith(here) else texts.get(path, "")
    )
    units = tmp_path / "units"
    units.mkdir()
    (units / "weka.mount").write_text("[Mount]\nWhat=backend\nWhere=/weka\n")
    (units / "other.service").write_text("Where=/not\n")
    monkeypatch.setattr(mounts, "_UNITS", str(units))
    assert planned_mounts() == (
        PlannedMount("/my data", "/etc/fstab"),
        PlannedMount("/home", "/etc/auto.master"),
        PlannedMount("/scratch", str(direct)),
        PlannedMount("/projects", "/etc/auto.other"),
        PlannedMount("/weka", f"{units}/weka.mount"),
    )
