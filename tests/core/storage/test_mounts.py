"""Which file system a path lies on, told by tables as machines have them, and what of it is one machine's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpttool.core.domain.node import Mount, Reach
from ckpttool.core.storage.mounts import boot_id, disk_id, disk_identity, mount_of, mount_table

TABLE = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
31 27 259:7 / /data rw,noatime - xfs /dev/nvme1n1 rw
40 27 0:50 / /home rw,relatime shared:9 master:2 - nfs4 filer:/export/home rw,vers=4.2,addr=10.0.0.1
41 27 0:51 / /mnt/my\\040disk\\134x rw - lustre 10.0.0.2@o2ib:/scratch rw
42 27 0:52 / /host rw - virtiofs share rw
43 27 0:53 / /auto rw - autofs systemd-1 rw
44 43 0:54 / /auto rw - nfs filer:/auto rw
45 27 0:55 / /remote rw - fuse.sshfs me@there: rw
46 27 0:56 / /joined rw - fuse.mergerfs a:b rw
47 27 0:57 / /bare rw - fuse something rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "source", "reach"),
    [
        ("/", "ext4", "/dev/nvme0n1p2", Reach.LOCAL),
        ("/databank/x", "ext4", "/dev/nvme0n1p2", Reach.LOCAL),
        ("/data", "xfs", "/dev/nvme1n1", Reach.LOCAL),
        ("/data/run/checkpoint", "xfs", "/dev/nvme1n1", Reach.LOCAL),
        ("/home/me/run", "nfs4", "filer:/export/home", Reach.SHARED),
        ("/mnt/my disk\\x/run", "lustre", "10.0.0.2@o2ib:/scratch", Reach.SHARED),
        ("/host/run", "virtiofs", "share", Reach.UNKNOWN),
        ("/auto/run", "nfs", "filer:/auto", Reach.SHARED),
        ("/remote/run", "fuse.sshfs", "me@there:", Reach.SHARED),
        ("/joined/run", "fuse.mergerfs", "a:b", Reach.LOCAL),
        ("/bare/run", "fuse", "something", Reach.UNKNOWN),
    ],
)
def test_a_path_lies_on_the_innermost_mount_that_covers_it(path: str, kind: str, source: str, reach: Reach) -> None:
    assert mount_of(path, TABLE) == Mount(kind=kind, source=source, reach=reach)


def test_a_link_lies_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "here").symlink_to("there")
    there = os.path.realpath(tmp_path / "there")
    table = f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:9 / {there} rw - nfs filer:/x rw\n"
    assert mount_of(str(tmp_path / "here"), table).kind == "nfs"


@pytest.mark.parametrize("table", ["", "\n", "x", "1 2 3", " - ", "1 0 8:1 / / rw - ext4", "1 0 8:1 / - ext4 a b"])
def test_a_table_that_tells_nothing_makes_an_unknown_disk(table: str) -> None:
    assert mount_of("/data", table) == Mount(kind="", source="", reach=Reach.UNKNOWN)


def test_this_machine_tells_of_its_root() -> None:
    assert mount_of("/", mount_table()).kind
    assert len(boot_id()) > 8


def test_two_machines_own_disks_are_two_whatever_their_names_and_a_shared_one_is_one() -> None:
    def seen(path: str, boot: str) -> str:
        return disk_identity(path, table=TABLE, boot=boot)

    assert seen("/", "node 0") != seen("/", "node 1")
    assert seen("/", "node 0") == seen("/", "node 0")
    assert seen("/home/me", "node 0") == seen("/home/me", "node 1")
    assert seen("/home/me", "node 0") != seen("/remote", "node 0")


def test_a_disk_that_is_not_known_as_shared_counts_as_this_machines_own() -> None:
    def seen(boot: str) -> str:
        return disk_identity("/host/none", table=TABLE, boot=boot)

    assert seen("node 0") != seen("node 1")
    assert disk_identity("/", table="", boot="")


def test_a_disk_has_a_name_also_where_nobody_may_look_at_the_root_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    here = disk_id("/data/none/of/this")
    monkeypatch.setattr("os.path.exists", lambda _: False)
    assert disk_id("/data/none/of/this") == here
