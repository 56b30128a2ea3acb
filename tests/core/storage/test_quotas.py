"""Quotas as `quota` and `lfs` report them, and that a program that fails or hangs leaves them unknown."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ckpttool.core.domain.node import Space
from ckpttool.core.storage import quotas
from ckpttool.core.storage.quotas import Quotas, quotas_of
from tests.support.programs import program

MIB = 1 << 20
UID, GID = os.getuid(), 4242


def table(kind: str, source: str = "/dev/sda1") -> str:
    return f"36 35 98:0 / / rw - {kind} {source} rw\n"


@pytest.fixture
def owner(tmp_path: Path) -> os.stat_result:
    """The status of a file of this user, and of a group."""
    status = tmp_path.stat()
    return os.stat_result((*status[:4], UID, GID, *status[6:]))


@pytest.fixture(autouse=True)
def only_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with a shell's tools and with nothing else that is called `quota` or `lfs`."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("cat", "sh", "sleep"):
        (programs / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(programs))
    return programs


def asked(tmp_path: Path, owner: os.stat_result, kind: str) -> Quotas:
    return quotas_of(str(tmp_path), owner, table=table(kind))


def user(free: int, total: int, number: int = UID) -> Space:
    return Space(limit=f"the quota of user {number}", free_bytes=free, total_bytes=total, uid=number)


class TestQuota:
    def test_users_and_groups_each_have_one(self, tmp_path: Path, only_ours: Path, owner: os.stat_result) -> None:
        output = f"""\
Disk quotas for user alice (uid {UID}):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
      /dev/sda1   10240    5120   20480 1999999999       7       0       0       0
Disk quotas for group other (gid 1):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
      /dev/sda1       1       0       2       0       7       0       0       0
Disk quotas for group staff (gid {GID}):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
      /dev/sda1    1024       0    4096       0       7       0       0       0
"""
        program(only_ours, "quota", output=output, exit_code=1)
        group = Space(limit=f"the quota of group {GID}", free_bytes=3 * MIB, total_bytes=4 * MIB, gid=GID)
        # Over its soft limit, a user can write until the grace time ends, and then no longer.
        assert asked(tmp_path, owner, "ext4") == Quotas((user(-5 * MIB, 5 * MIB), group))
        assert (only_ours / "quota.asked").read_text() == "-w -p -v -u -g -f /\n"

    def test_of_another_user_only_the_row_of_this_disk_counts(
        self, tmp_path: Path, only_ours: Path, owner: os.stat_result
    ) -> None:
        output = f"""\
Disk quotas for user bob (uid {UID + 1}):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
server:/a long export name  1*   1   9   123   7   0   0   0
      /dev/sda1    1024       0    4096       0       7       0       0       0
"""
        program(only_ours, "quota", output=output)
        other = os.stat_result((*owner[:4], UID + 1, *owner[5:]))
        assert asked(tmp_path, other, "xfs").spaces[0] == user(3 * MIB, 4 * MIB, UID + 1)
        assert (only_ours / "quota.asked").read_text() == f"-w -p -v -u {UID + 1}\n-w -p -v -g {GID}\n"

    @pytest.mark.parametrize(
        "output",
        [
            f"Disk quotas for user alice (uid {UID}): none\n",
            f"Disk quotas for user alice (uid {UID}):\n /dev/sda1 1024 0 0 0 7 0 0 0\n",
            "",
            "\udcff\n\0",
            f"Disk quotas for user alice (uid {UID}):\n /dev/sda1 {'9' * 30} 0 1 0 7 0 0 0\n",
        ],
    )
    def test_without_a_limit_there_is_no_quota(
        self, output: str, tmp_path: Path, only_ours: Path, owner: os.stat_result
    ) -> None:
        program(only_ours, "quota", output=output)
        assert asked(tmp_path, owner, "ext4") == Quotas(())

    def test_without_the_program_there_is_none(self, tmp_path: Path, owner: os.stat_result) -> None:
        assert asked(tmp_path, owner, "ext4") == Quotas(())

    def test_a_program_that_cannot_be_run_is_named(
        self, tmp_path: Path, only_ours: Path, owner: os.stat_result
    ) -> None:
        (only_ours / "quota").write_text("#!/nowhere\n")
        (only_ours / "quota").chmod(0o755)
        assert asked(tmp_path, owner, "ext4") == Quotas((), ("quota cannot be run: No such file or directory",))

    def test_one_that_hangs_is_ended_and_named(
        self, tmp_path: Path, only_ours: Path, owner: os.stat_result, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(quotas, "SECONDS", 0.05)
        program(only_ours, "quota", output="", then="sleep 600")
        assert asked(tmp_path, owner, "nfs4") == Quotas((), ("quota did not answer within 0.05 s",))


class TestLustre:
    def rows(self, only_ours: Path, **rows: str) -> None:
        """The answers to `lfs quota -q -u`, `-g` and `-p`, and to `lfs project -d`."""
        cases = "".join(f"*'{words}'*) cat {only_ours}/{name}.txt;;\n" for name, words in CALLS.items() if name in rows)
        for name, text in rows.items():
            (only_ours / f"{name}.txt").write_text(text)
        program(only_ours, "lfs", output="", then=f'case " $*" in\n{cases}esac')

    def test_the_smallest_of_user_group_and_project_is_there(
        self, tmp_path: Path, only_ours: Path, owner: os.stat_result
    ) -> None:
        self.rows(
            only_ours,
            user=f"        /lustre   1024       0    4096       -      23       0       0       -\nuid {UID} is using "
            "default block quota setting\n",
            group="/lustre/a/path/that/is/long\n               2048*   1024    8192 6d23h      23       0      0  -\n",
            project="/lustre [1024]  0  2048 -  1 0 0 -\n",
            folder="   77 P /lustre/run\n",
        )
        found = asked(tmp_path, owner, "lustre")
        assert found.spaces == (
            user(3 * MIB, 4 * MIB),
            Space(limit=f"the quota of group {GID}", free_bytes=-MIB, total_bytes=MIB, gid=GID),
            Space(limit="the quota of project 77", free_bytes=MIB, total_bytes=2 * MIB),
        )
        assert found.troubles == ("lfs reports the quota of project 77 only in part",)

    def test_project_0_is_none(self, tmp_path: Path, only_ours: Path, owner: os.stat_result) -> None:
        self.rows(only_ours, folder="    0 - /lustre/run\n", project="/lustre 1024 0 2048 - 1 0 0 -\n")
        assert asked(tmp_path, owner, "lustre") == Quotas(())

    def test_only_lfs_is_asked_on_lustre(self, tmp_path: Path, only_ours: Path, owner: os.stat_result) -> None:
        program(only_ours, "quota", output=f"Disk quotas for user a (uid {UID}):\n /dev/sda1 1 0 9 0 7 0 0 0\n")
        assert asked(tmp_path, owner, "lustre") == Quotas(())
        assert asked(tmp_path, owner, "ext4") != Quotas(())


CALLS = {"user": "quota -q -u", "group": "quota -q -g", "project": "quota -q -p", "folder": "project -d"}
